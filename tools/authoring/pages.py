"""The parts that pages made from the lessons share: the table of lessons, its acts, and the note
to authors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tools.authoring.lesson import AuthoringError, Lesson

BEGIN, END = "<!-- lessons -->", "<!-- /lessons -->"

_COLAB = "https://colab.research.google.com"
_BINDER = "https://mybinder.org"


def table(lessons: Sequence[Lesson], *, address: str = "") -> str:
    """Return the lessons as a Markdown table: number, title as a link, question, minutes, needs.

    An act's title heads its lessons. With the repository's address a lesson has badges as well,
    which open it in Colab and in Binder.
    """
    files = {lesson.number: f"course/{lesson.notebook_name}" for lesson in lessons}
    rows = [
        f"| {lesson.number} | [{_cell(lesson.title)}]({files[lesson.number]}) "
        f"| {_cell(lesson.way.question) if lesson.way else ''} | {lesson.minutes} | "
        f"{needs(lesson, files)} |"
        for lesson in lessons
    ]
    head, line = (
        "| | Lesson | The question that it answers | Minutes | Needs |",
        "|--|--|--|--:|--|",
    )
    if address:
        rows = [
            f"{row} {badges(lesson, address)} |" for row, lesson in zip(rows, lessons, strict=True)
        ]
        head, line = f"{head} In the browser |", f"{line}--|"
    return "\n".join(
        [head, line, *with_acts(lessons, rows, f"| | **{{}}** |{' |' * (head.count('|') - 3)}")]
    )


def total(lessons: Sequence[Lesson]) -> str:
    """Return the sentence that says how long the lessons take together, from the minutes of each.

    >>> total(())
    'Together the lessons take 0 minutes, which is 0.0 hours, without their exercises.'
    """
    minutes = sum(lesson.minutes for lesson in lessons)
    return (
        f"Together the lessons take {minutes:,} minutes, which is {minutes / 60:.1f} hours, "
        "without their exercises."
    )


def with_acts(lessons: Sequence[Lesson], rows: Sequence[str], heading: str) -> list[str]:
    """Return the rows of a table, one a lesson, each act's below ``heading``, which has {} for the
    act's title.
    """
    lines, act = [], ""
    for lesson, row in zip(lessons, rows, strict=True):
        if lesson.act != act:
            act = lesson.act
            lines.append(heading.format(_cell(act)))
        lines.append(row)
    return lines


def made_from(sources: str) -> str:
    """Return the note to authors on a page that is made from ``sources``: a comment, which no
    reader sees.
    """
    return f"<!-- Built by `make lessons` from {sources}; do not edit. -->"


def badges(lesson: Lesson, address: str, *, pictures: bool = True) -> str:
    """Return the badges of a lesson: Colab opens what the branch ``colab`` holds, Binder builds
    from ``.binder``.

    Their pictures come from a network; without ``pictures`` they are words.
    """
    repository = address.removeprefix("https://github.com/")
    colab = f"{_COLAB}/github/{repository}/blob/colab/course/{lesson.notebook_name}"
    binder = f"{_BINDER}/v2/gh/{repository}/HEAD?urlpath=lab/tree/my_course/{lesson.notebook_name}"
    if not pictures:
        return f"[Colab]({colab}), [Binder]({binder})"
    return (
        f"[![Open lesson {lesson.number} in Colab]({_COLAB}/assets/colab-badge.svg)]({colab}) "
        f"[![Open lesson {lesson.number} in Binder]({_BINDER}/badge_logo.svg)]({binder})"
    )


def needs(lesson: Lesson, files: Mapping[str, str]) -> str:
    """Return the needs of a lesson, with the numbers of lessons as links into ``files`` (number to
    file).
    """
    texts = (f"[{need}]({files[need]})" if need in files else _cell(need) for need in lesson.needs)
    return ", ".join(texts) or "nothing"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def with_table(readme: str, lessons: Sequence[Lesson], *, address: str = "") -> str:
    """Return the README's text with a fresh table and its sum between its two markers; the rest
    stays to the byte.

    Raises AuthoringError when the markers do not stand in it once each, in order.
    """
    if (
        readme.count(BEGIN) != 1
        or readme.count(END) != 1
        or readme.index(BEGIN) > readme.index(END)
    ):
        raise AuthoringError(
            f"README.md must hold {BEGIN} and then {END}, once each, around the table of lessons"
        )
    before, _, remainder = readme.partition(BEGIN)
    _, _, after = remainder.partition(END)
    return f"{before}{BEGIN}\n{table(lessons, address=address)}\n\n{total(lessons)}\n{END}{after}"
