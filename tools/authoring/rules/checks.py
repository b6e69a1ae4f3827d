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


def _problem(lesson: Lesson, index: int | None, message: str) -> Problem:
    return Problem(lesson.notebook_name, index, message)


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
    expected_cells, built_cells = (
        [_compared_parts(cell) for cell in cells] for cells in (expected.cells, built.cells)
    )
    for kind, first, last, source_first, _ in SequenceMatcher(
        None, built_cells, expected_cells, autojunk=False
    ).get_opcodes():
        if kind != "equal":
            line = lesson.cells[min(source_first, len(lesson.cells) - 1)].line
            message = (
                f"{max(last - first, 1)} cell(s) differ from line {line} of {lesson.name}.py on; "
                f"{rebuild}"
            )
            return [_problem(lesson, first, message)]
    return []


def _compared_parts(cell: Notebook) -> tuple[str, str, str, str]:
    return (
        cell.cell_type,
        cell.source,
        json.dumps(cell.metadata, sort_keys=True),
        cell.get("id", ""),
    )


def execution_counts(lesson: Lesson, built: Notebook) -> list[Problem]:
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
    problems = []
    for index, _, output in _outputs(built):
        data = output.get("data", {})
        for mime in (mime for mime in data if mime.startswith("image/")):
            plain = str(data.get("text/plain", "")).strip()
            alt = str(output.get("metadata", {}).get(mime, {}).get("alt", "")).strip()
            if not alt or alt != plain or _OBJECT_TEXT.match(plain):
                message = (
                    f"a figure without alt text (text/plain is {plain[:40]!r}); use "
                    "plotting.show(figure, alt=...)"
                )
                problems.append(_problem(lesson, index, message))
        if any(
            not picture.text.strip() for picture in markdown.pictures(data.get("text/html", ""))
        ):
            problems.append(
                _problem(lesson, index, "its HTML holds an <img> without alt text; give it one")
            )
    for index, cell in enumerate(built.cells):
        for span in markdown.spans(cell.source) if cell.cell_type == "markdown" else []:
            if span.kind == "image" and not span.text.strip():
                message = (
                    f"the picture {span.target} has no alt text; write ![what it "
                    f"shows]({span.target})"
                )
                problems.append(_problem(lesson, index, message))
    return problems


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
    problems, positions = [], {}
    for tag, is_recap in (("objectives", False), ("recap", True)):
        cells = [
            index for index, cell in enumerate(built.cells) if tag in cell.metadata.get("tags", [])
        ]
        if len(cells) != 1 or built.cells[cells[0]].cell_type != "markdown":
            message = f"{len(cells)} cells are tagged {tag}; tag exactly one markdown cell"
            problems.append(_problem(lesson, cells[1] if len(cells) > 1 else None, message))
            continue
        positions[tag] = cells[0]
        text = built.cells[cells[0]].source.partition("\n\n**Next: ")[0]
        if not text.endswith(f":\n\n{notebook.objectives(lesson, done=is_recap)}"):
            message = (
                "does not end with the objectives of the lesson's metadata; build the lesson again"
            )
            problems.append(_problem(lesson, cells[0], message))
    if len(positions) == 2 and positions["recap"] < positions["objectives"]:
        problems.append(
            _problem(
                lesson,
                positions["recap"],
                "the recap stands before the objectives; move it to the end",
            )
        )
    return problems


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
        where = "the first cell" if lesson.is_appendix else "the cell tagged objectives"
        message = f"begin with '# {lesson.title}', the title of the metadata, in {where}"
        return [_problem(lesson, 0, message)]
    return [
        _problem(lesson, index, f"a second title, '# {line}'; use ##") for index, line in tops[1:]
    ]


def tags(lesson: Lesson, built: Notebook) -> list[Problem]:
    """Tags and cell metadata are known ones, and nbval's are tags, not comments (a comment after
    code is ignored).
    """
    problems = []
    allowed_tags = TAGS - OF_A_LESSON if lesson.is_appendix else TAGS
    allowed_keys = METADATA_KEYS - OF_A_SLIDE if lesson.is_appendix else METADATA_KEYS
    for index, cell in enumerate(built.cells):
        cell_tags = cell.metadata.get("tags", [])
        unknown = sorted(
            {tag for tag in cell_tags if tag not in allowed_tags or cell_tags.count(tag) > 1}
        )
        if unknown:
            message = (
                f"tags {', '.join(unknown)} are unknown or stand twice; the tags are "
                f"{', '.join(sorted(allowed_tags))}"
            )
            problems.append(_problem(lesson, index, message))
        keys = sorted(set(cell.metadata) - allowed_keys)
        if keys:
            message = (
                f"unknown cell metadata {', '.join(keys)}; it is one of "
                f"{', '.join(sorted(allowed_keys))}"
            )
            problems.append(_problem(lesson, index, message))
        if cell.cell_type == "code" and (comment := _NBVAL_COMMENT.search(cell.source)):
            tag = comment[1].lower().replace("_", "-")
            problems.append(
                _problem(lesson, index, f"the comment {comment[1]}: use the tag {tag} instead")
            )
        if cell.cell_type == "markdown" and {"nbval-ignore-output", "raises-exception"} & set(
            cell_tags
        ):
            problems.append(
                _problem(
                    lesson, index, "a tag of nbval on a markdown cell; it belongs to a code cell"
                )
            )
    return problems


def stages(lesson: Lesson, built: Notebook) -> list[Problem]:
    """Experiments are cells in the order predict, run, look, explain; after explain one may run or
    look again.
    """
    problems, last = [], "explain"
    started = False
    for index, cell in enumerate(built.cells):
        cell_stages = [tag for tag in cell.metadata.get("tags", []) if tag in STAGES]
        if len(cell_stages) > 1:
            problems.append(
                _problem(
                    lesson,
                    index,
                    f"is tagged {' and '.join(cell_stages)}; a cell is one step of an experiment",
                )
            )
        for stage in cell_stages[:1]:
            allowed_stages = {
                last,
                STAGES[(STAGES.index(last) + 1) % 4],
                *(["run", "look"] if last == "explain" else []),
            }
            if stage not in allowed_stages or (not started and stage != "predict"):
                after = last if started else "nothing"
                message = (
                    f"{stage} after {after}; an experiment is cells in the order "
                    f"{', '.join(STAGES)}"
                )
                problems.append(_problem(lesson, index, message))
            last, started = stage, True
    if started and last != "explain":
        problems.append(
            _problem(lesson, None, f"the last experiment ends with {last}; end it with explain")
        )
    return problems


def outputs(lesson: Lesson, built: Notebook) -> list[Problem]:
    """A saved notebook shows no error but one that a tagged cell lets happen, and nothing on
    stderr.
    """
    problems = []
    for index, cell, output in _outputs(built):
        is_expected = "raises-exception" in cell.metadata.get("tags", [])
        if output.output_type == "error" and not is_expected:
            message = (
                f"shows {output.ename}; mend it, or tag the cell raises-exception where the error "
                "is the lesson"
            )
            problems.append(_problem(lesson, index, message))
        if output.output_type == "stream" and output.name == "stderr":
            message = (
                f"shows {output.text.strip()[:60]!r} on stderr; mend what warns, nbval compares it"
            )
            problems.append(_problem(lesson, index, message))
    for index, cell in _code(built):
        is_tagged = "raises-exception" in cell.metadata.get("tags", [])
        if is_tagged and not any(output.output_type == "error" for output in cell.outputs):
            problems.append(
                _problem(
                    lesson, index, "is tagged raises-exception but raises none; remove the tag"
                )
            )
    return problems


def decisions(lesson: Lesson, built: Notebook) -> list[Problem]:
    """A saved notebook shows no comparison that is not stable, and no claim that its machine could
    not decide.
    """
    return [
        _problem(
            lesson,
            index,
            f"shows {description} ({text.strip().splitlines()[0][:60]!r}); build it on a quiet "
            "machine, ask for less precision or give more budget_s, or show a count or a recording",
        )
        for index, _, output in _outputs(built)
        for text in [output.get("text", output.get("data", {}).get("text/plain", ""))]
        for description, pattern in _UNDECIDED.items()
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
    problems = []
    for index, cell in enumerate(built.cells):
        output_texts = [text for output in cell.get("outputs", []) for text in traces.texts(output)]
        for phrase in {
            phrase: None
            for text in (cell.source, *output_texts)
            for phrase in traces.in_text(text, {})
        }:
            problems.append(_problem(lesson, index, f"holds {phrase}; name no machine"))
    return problems


CHECKS: tuple[Check, ...] = ( execution_counts, alt_texts, lengths, objectives, title, tags, stages,
    outputs, decisions, placeholders, machine)  # fmt: skip


def check(lesson: Lesson, built: Notebook, others: Sequence[Lesson] = ()) -> list[Problem]:
    """Return every problem of one lesson's notebook; ``others`` are the course's lessons."""
    return drift(lesson, built, others) + [
        problem for rule in CHECKS for problem in rule(lesson, built)
    ]
