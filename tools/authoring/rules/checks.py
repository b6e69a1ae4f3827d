"""The rules of a lesson and its notebook, each a pure function that returns what breaks it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher

import nbformat

from slides.rules import KEYS
from tools.authoring import minutes, notebook, yours
from tools.authoring.lesson import STAGES, Lesson
from tools.authoring.problem import Problem
from tools.authoring.rules import markdown, shares, traces

MOST_LINES = 30
TAGS = frozenset(
    {
        "objectives",
        "recap",
        "formulas",
        yours.TAG,
        *STAGES,
        "nbval-ignore-output",
        "raises-exception",
    }
    | {"slide", "slide-more", "slide-code", "slide-output", minutes.FOLDED, "rule"}
)
OF_A_LESSON = frozenset(
    {"objectives", "recap", "formulas", "rule", "slide", "slide-more", "slide-code", "slide-output"}
)
OF_A_SLIDE = {"minutes", *KEYS} - {"say", "here"}  # the lecture alone states those two
METADATA_KEYS = frozenset({"tags", "yours", "checks", "takes", "jupyter", *OF_A_SLIDE})

Notebook = nbformat.NotebookNode
Check = Callable[[Lesson, Notebook], list[Problem]]

_NBVAL_COMMENT = re.compile(r"(?m)^\s*#+\s*(NBVAL_\w+|PYTEST_VALIDATE_\w+)\s*$")
_UNDECIDED = {
    "a comparison that is not stable": re.compile(
        r"\A(?!Timing\b)(?s:.*?)(?:\bstable=False\b|(?m:^\s*stable\s+no\s*$))"
    ),
    "a claim that is not decided": re.compile(r"(?m)^Here this was not (?:decided|measured)\.$"),
}
_PLACEHOLDER = re.compile(r"no run is recorded|python3? -m helpers\.recorded")
_OBJECT_TEXT = re.compile(r"^<[^>]*>$", re.DOTALL)


def _problem(lesson: Lesson, index: int | None, what: str) -> Problem:
    return Problem(lesson.notebook_name, index, what)


def _code(built: Notebook) -> Iterator[tuple[int, Notebook]]:
    return ((index, cell) for index, cell in enumerate(built.cells) if cell.cell_type == "code")


def _outputs(built: Notebook) -> Iterator[tuple[int, Notebook, Notebook]]:
    return ((index, cell, output) for index, cell in _code(built) for output in cell.outputs)


def drift(lesson: Lesson, built: Notebook, others: Sequence[Lesson] = ()) -> list[Problem]:
    """The notebook's cells, ids and metadata are those of the source; outputs are not looked at."""
    rebuild = f"run make lessons LESSONS={lesson.number}"
    expected = notebook.unexecuted(lesson, others)
    if dict(built.metadata) != dict(expected.metadata):
        return [_problem(lesson, None, f"its metadata is not that of {lesson.name}.py; {rebuild}")]
    want, have = ([_stated(cell) for cell in cells] for cells in (expected.cells, built.cells))
    for kind, first, last, source_first, _ in SequenceMatcher(
        None, have, want, autojunk=False
    ).get_opcodes():
        if kind != "equal":
            line = lesson.cells[min(source_first, len(lesson.cells) - 1)].line
            what = (
                f"{max(last - first, 1)} cell(s) differ from line {line} of {lesson.name}.py on; "
                f"{rebuild}"
            )
            return [_problem(lesson, first, what)]
    return []


def _stated(cell: Notebook) -> tuple[str, str, str, str]:
    return (
        cell.cell_type,
        cell.source,
        json.dumps(cell.metadata, sort_keys=True),
        cell.get("id", ""),
    )


def executed(lesson: Lesson, built: Notebook) -> list[Problem]:
    """Code cells are numbered 1 to n: nbval never compares a cell without a number."""
    return [
        _problem(
            lesson,
            index,
            f"its execution count is {cell.execution_count}, not {count}; build the lesson again",
        )
        for count, (index, cell) in enumerate(_code(built), start=1)
        if cell.execution_count != count
    ]


def alt_texts(lesson: Lesson, built: Notebook) -> list[Problem]:
    """A picture has an alt text, and it is the output's text/plain, so that nbval compares it."""
    found = []
    for index, _, output in _outputs(built):
        data = output.get("data", {})
        for mime in (mime for mime in data if mime.startswith("image/")):
            plain = str(data.get("text/plain", "")).strip()
            alt = str(output.get("metadata", {}).get(mime, {}).get("alt", "")).strip()
            if not alt or alt != plain or _OBJECT_TEXT.match(plain):
                what = (
                    f"a figure without alt text (text/plain is {plain[:40]!r}); use "
                    "plotting.show(figure, alt=...)"
                )
                found.append(_problem(lesson, index, what))
        if any(
            not picture.text.strip() for picture in markdown.pictures(data.get("text/html", ""))
        ):
            found.append(
                _problem(lesson, index, "its HTML holds an <img> without alt text; give it one")
            )
    for index, cell in enumerate(built.cells):
        for span in markdown.spans(cell.source) if cell.cell_type == "markdown" else []:
            if span.kind == "image" and not span.text.strip():
                what = (
                    f"the picture {span.target} has no alt text; write ![what it "
                    f"shows]({span.target})"
                )
                found.append(_problem(lesson, index, what))
    return found


def lengths(lesson: Lesson, built: Notebook) -> list[Problem]:
    """A code cell has at most 30 lines."""
    return [
        _problem(
            lesson,
            index,
            f"{len(lines)} lines of code, at most {MOST_LINES}: split it, or move it to helpers",
        )
        for index, cell in _code(built)
        if len(lines := cell.source.splitlines()) > MOST_LINES
    ]


def objectives(lesson: Lesson, built: Notebook) -> list[Problem]:
    """One cell promises the objectives, a later one states the same in the past tense, above the
    way on.
    """
    if lesson.is_appendix:
        return []
    found, places = [], {}
    for tag, done in (("objectives", False), ("recap", True)):
        cells = [
            index for index, cell in enumerate(built.cells) if tag in cell.metadata.get("tags", [])
        ]
        if len(cells) != 1 or built.cells[cells[0]].cell_type != "markdown":
            what = f"{len(cells)} cells are tagged {tag}; tag exactly one markdown cell"
            found.append(_problem(lesson, cells[1] if len(cells) > 1 else None, what))
            continue
        places[tag] = cells[0]
        stated = built.cells[cells[0]].source.partition("\n\n**Next: ")[0]
        if not stated.endswith(f":\n\n{notebook.objectives(lesson, done=done)}"):
            what = (
                "does not end with the objectives of the lesson's metadata; build the lesson again"
            )
            found.append(_problem(lesson, cells[0], what))
    if len(places) == 2 and places["recap"] < places["objectives"]:
        found.append(
            _problem(
                lesson,
                places["recap"],
                "the recap stands before the objectives; move it to the end",
            )
        )
    return found


def title(lesson: Lesson, built: Notebook) -> list[Problem]:
    """The notebook begins with its title, that of the metadata, and no other cell has a heading of
    that level.
    """
    tops = [
        (index, line)
        for index, cell in enumerate(built.cells)
        if cell.cell_type == "markdown"
        for line in markdown.titles(cell.source)
    ]
    if tops[:1] != [(0, lesson.title)]:
        place = "the first cell" if lesson.is_appendix else "the cell tagged objectives"
        what = f"begin with '# {lesson.title}', the title of the metadata, in {place}"
        return [_problem(lesson, 0, what)]
    return [
        _problem(lesson, index, f"a second title, '# {line}'; use ##") for index, line in tops[1:]
    ]


def tags(lesson: Lesson, built: Notebook) -> list[Problem]:
    """Tags and cell metadata are known ones, and nbval's are tags, not comments (a comment after
    code is ignored).
    """
    found = []
    allowed = TAGS - OF_A_LESSON if lesson.is_appendix else TAGS
    allowed_keys = METADATA_KEYS - OF_A_SLIDE if lesson.is_appendix else METADATA_KEYS
    for index, cell in enumerate(built.cells):
        own = cell.metadata.get("tags", [])
        unknown = sorted({tag for tag in own if tag not in allowed or own.count(tag) > 1})
        if unknown:
            what = (
                f"tags {', '.join(unknown)} are unknown or stand twice; the tags are "
                f"{', '.join(sorted(allowed))}"
            )
            found.append(_problem(lesson, index, what))
        keys = sorted(set(cell.metadata) - allowed_keys)
        if keys:
            what = (
                f"unknown cell metadata {', '.join(keys)}; it is one of "
                f"{', '.join(sorted(allowed_keys))}"
            )
            found.append(_problem(lesson, index, what))
        if cell.cell_type == "code" and (comment := _NBVAL_COMMENT.search(cell.source)):
            tag = comment[1].lower().replace("_", "-")
            found.append(
                _problem(lesson, index, f"the comment {comment[1]}: use the tag {tag} instead")
            )
        if cell.cell_type == "markdown" and {"nbval-ignore-output", "raises-exception"} & set(own):
            found.append(
                _problem(
                    lesson, index, "a tag of nbval on a markdown cell; it belongs to a code cell"
                )
            )
    return found


def stages(lesson: Lesson, built: Notebook) -> list[Problem]:
    """Experiments are cells in the order predict, run, look, explain; after explain one may run or
    look again.
    """
    found, last = [], "explain"
    started = False
    for index, cell in enumerate(built.cells):
        own = [tag for tag in cell.metadata.get("tags", []) if tag in STAGES]
        if len(own) > 1:
            found.append(
                _problem(
                    lesson,
                    index,
                    f"is tagged {' and '.join(own)}; a cell is one step of an experiment",
                )
            )
        for stage in own[:1]:
            fits = {
                last,
                STAGES[(STAGES.index(last) + 1) % 4],
                *(["run", "look"] if last == "explain" else []),
            }
            if stage not in fits or (not started and stage != "predict"):
                after = last if started else "nothing"
                what = (
                    f"{stage} after {after}; an experiment is cells in the order "
                    f"{', '.join(STAGES)}"
                )
                found.append(_problem(lesson, index, what))
            last, started = stage, True
    if started and last != "explain":
        found.append(
            _problem(lesson, None, f"the last experiment ends with {last}; end it with explain")
        )
    return found


def outputs(lesson: Lesson, built: Notebook) -> list[Problem]:
    """A saved notebook shows no error but one that a tagged cell lets happen, and nothing on
    stderr.
    """
    found = []
    for index, cell, output in _outputs(built):
        expected = "raises-exception" in cell.metadata.get("tags", [])
        if output.output_type == "error" and not expected:
            what = (
                f"shows {output.ename}; mend it, or tag the cell raises-exception where the error "
                "is the lesson"
            )
            found.append(_problem(lesson, index, what))
        if output.output_type == "stream" and output.name == "stderr":
            what = (
                f"shows {output.text.strip()[:60]!r} on stderr; mend what warns, nbval compares it"
            )
            found.append(_problem(lesson, index, what))
    for index, cell in _code(built):
        tagged = "raises-exception" in cell.metadata.get("tags", [])
        if tagged and not any(output.output_type == "error" for output in cell.outputs):
            found.append(
                _problem(
                    lesson, index, "is tagged raises-exception but raises none; remove the tag"
                )
            )
    return found


def decided(lesson: Lesson, built: Notebook) -> list[Problem]:
    """A saved notebook shows no comparison that is not stable, and no claim that its machine could
    not decide.
    """
    return [
        _problem(
            lesson,
            index,
            f"shows {what} ({text.strip().splitlines()[0][:60]!r}); build it on a quiet machine, "
            "ask for less precision or give more budget_s, or show a count or a recording",
        )
        for index, _, output in _outputs(built)
        for text in [output.get("text", output.get("data", {}).get("text/plain", ""))]
        for what, pattern in _UNDECIDED.items()
        if pattern.search(text)
    ]


def placeholders(lesson: Lesson, built: Notebook) -> list[Problem]:
    """No output tells a reader to make what the course lacks."""
    return [
        _problem(
            lesson,
            index,
            "tells the reader to record a run; show published figures, or leave the cell out",
        )
        for index, _, output in _outputs(built)
        if any(_PLACEHOLDER.search(text) for text in shares.compared_texts(output))
    ]


def machine(lesson: Lesson, built: Notebook) -> list[Problem]:
    """Neither text, code nor output names a machine: no absolute path, no memory address."""
    found = []
    for index, cell in enumerate(built.cells):
        shown = [text for output in cell.get("outputs", []) for text in traces.texts(output)]
        for phrase in {
            phrase: None for text in (cell.source, *shown) for phrase in traces.in_text(text, {})
        }:
            found.append(_problem(lesson, index, f"holds {phrase}; name no machine"))
    return found


CHECKS: tuple[Check, ...] = ( executed, alt_texts, lengths, objectives, title, tags, stages,
    outputs, decided, placeholders, machine)  # fmt: skip


def check(lesson: Lesson, built: Notebook, others: Sequence[Lesson] = ()) -> list[Problem]:
    """Return every problem of one lesson's notebook; ``others`` are the course's lessons."""
    return drift(lesson, built, others) + [
        problem for rule in CHECKS for problem in rule(lesson, built)
    ]
