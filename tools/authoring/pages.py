"""The table of lessons in the README, made from the lessons' metadata."""

from __future__ import annotations

from collections.abc import Sequence

from tools.authoring import notebook
from tools.authoring.lesson import AuthoringError, Lesson

BEGIN, END = "<!-- lessons -->", "<!-- /lessons -->"


def table(lessons: Sequence[Lesson], *, folder: str = "course/") -> str:
    """Return the lessons as a Markdown table: number, title as a link, minutes, needs."""
    files = {lesson.number: f"{folder}{lesson.notebook_name}" for lesson in lessons}
    rows = [
        f"| {lesson.number} | [{_cell(lesson.title)}]({files[lesson.number]}) | {lesson.minutes} "
        f"| {_cell(notebook.needs_text(lesson, files)) or 'nothing'} |"
        for lesson in lessons
    ]
    return "\n".join(["| | Lesson | Minutes | Needs |", "|--|--|--:|--|", *rows])


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def with_table(readme: str, lessons: Sequence[Lesson]) -> str:
    """Return the README's text with a fresh table between its two markers; the rest stays to the byte.

    Raises AuthoringError when the markers do not stand in it once each, in order.
    """
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(BEGIN) > readme.index(END):
        raise AuthoringError(f"README.md must hold {BEGIN} and then {END}, once each, around the table of lessons")
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(lessons)}\n{END}{after}"
