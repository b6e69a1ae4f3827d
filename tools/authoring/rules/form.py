"""The form of a lesson whose reader writes cells: its sizes, and that nothing gives an answer away.

Each rule is a function that returns what breaks it.
"""

from __future__ import annotations

import ast
import html
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import nbformat

from helpers.widgets import NO_PREDICTION
from tools.authoring import minutes
from tools.authoring.lesson import Lesson
from tools.authoring.problem import Problem
from tools.authoring.rules import shares

CODE_CELLS = 60
WORDS = 2600  # with about 80 that the build adds: the map and why the next lesson follows
PARTS = 6
MEDIAN_LINES = 6
LINES = 20
WIDTH = 95
YOURS = (3, 6)
PREDICTIONS = (4, 8)
# a number of fewer digits may equal an answer by chance, one with the answer's unit does not
TELLING_DIGITS = 3

Notebook = nbformat.NotebookNode

_UNSEEN = re.compile(r"<script>.*?</script>|<[^>]*>", re.DOTALL)
_PART = re.compile(r"(?m)^## Part \d")
_BOOLEAN = re.compile(r"(?m)^.*: (?:True|False)$")
_EVIDENCE = ("measured", "counted", "simulated", "published", "stated")
_ASKED = re.compile(rf"(.*) \[.*\]\n{re.escape(NO_PREDICTION)}\Z")
_NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
_MEASURE = r"\s?[kMGTPEmunpµ]?i?(?:B|s|Hz|FLOP|MAC|W|J)\b"  # a unit as helpers.units writes it


def sizes(lesson: Lesson, built: Notebook) -> list[Problem]:
    """A lesson is done in one sitting: so many cells, words, parts, predictions and functions to
    write.
    """
    code = [cell.source.splitlines() for cell in lesson.cells if cell.kind == "code"]
    part_count = sum(
        len(_PART.findall(cell.source)) for cell in lesson.cells if cell.kind == "markdown"
    )
    function_count = sum("yours" in cell.metadata for cell in lesson.cells)
    limits = (
        ("code cells", len(code), 0, CODE_CELLS),
        ("words", words(built), 0, WORDS),
        ("parts", part_count, 0, PARTS),
        ("lines in the median code cell", statistics.median(map(len, code)), 0, MEDIAN_LINES),
        ("functions that the reader writes", function_count, *YOURS),
        ("predictions", minutes.predictions(lesson.cells), *PREDICTIONS),
    )
    problems = [
        Problem(
            lesson.notebook_name,
            None,
            f"{count:g} {quantity}, {f'{least} to' if least else 'at most'} {most}",
        )
        for quantity, count, least, most in limits
        if not least <= count <= most
    ]
    for index, cell in enumerate(built.cells):
        lines = cell.source.splitlines() if cell.cell_type == "code" else []
        if len(lines) > LINES:
            problems.append(
                Problem(lesson.notebook_name, index, f"{len(lines)} lines of code, at most {LINES}")
            )
        longest = max(map(len, lines), default=0)
        if longest > WIDTH:
            problems.append(
                Problem(
                    lesson.notebook_name, index, f"a line of {longest} characters, at most {WIDTH}"
                )
            )
    return problems


def words(built: Notebook) -> int:
    """Return the words of all texts of a built notebook, also those that the build adds, such as
    the objectives.
    """
    return sum(len(cell.source.split()) for cell in built.cells if cell.cell_type == "markdown")


def booleans(lesson: Lesson, built: Notebook) -> list[Problem]:
    """No output says that something holds: numbers stand side by side, and what must hold is
    asserted silently.
    """
    message = "shows {!r}; show the two numbers and a sentence, and assert what must hold"
    return [
        Problem(lesson.notebook_name, index, message.format(line[0].strip()))
        for index, cell in enumerate(built.cells)
        for output in cell.get("outputs", [])
        for text in _texts(output)
        if (line := _BOOLEAN.search(text))
    ]


@dataclass(frozen=True)
class Question:
    """A prediction: the variable that holds it, its question as the notebook shows it, and the cell
    that asks.
    """

    name: str
    text: str
    cell_index: int


def answers(lesson: Lesson, built: Notebook) -> list[Problem]:
    """Every prediction is revealed, and no output between the two holds its answer.

    The answer is what the reveal shows in the saved notebook. It is given away by its number and
    unit, or by its number alone where that has three digits or more.
    """
    problems = []
    predictions = list(questions(built))
    if len(predictions) < minutes.predictions(lesson.cells):
        message = (
            "a prediction is not a line name = helpers.predict(...) of its own, so that its reveal "
            "is not found"
        )
        problems.append(Problem(lesson.notebook_name, None, message))
    for question in predictions:
        if not question.text:
            message = (
                f"{question.name} is not shown; let it be the cell's last line, and build the "
                "lesson again"
            )
            problems.append(Problem(lesson.notebook_name, question.cell_index, message))
            continue
        cell_index, output_index = find_reveal(built, question)
        if cell_index is None:
            message = (
                f"{question.name} is predicted and never revealed; call "
                f"{question.name}.reveal(...) below"
            )
            problems.append(Problem(lesson.notebook_name, question.cell_index, message))
            continue
        answer = answer_of(built.cells[cell_index].outputs[output_index])
        for index, output in _between(built, question, cell_index, output_index):
            phrase = answer and next(
                (part for text in _texts(output) if (part := find_answer(text, answer))), ""
            )
            if phrase:
                message = (
                    f"shows {phrase!r} before {question.name} is revealed as {answer}; move it "
                    "below the reveal"
                )
                problems.append(Problem(lesson.notebook_name, index, message))
    return problems


def questions(built: Notebook) -> Iterator[Question]:
    for index, cell in enumerate(built.cells):
        for node in ast.parse(cell.source).body if cell.cell_type == "code" else []:
            if (
                isinstance(node, ast.Assign)
                and _calls(node.value, "predict")
                and isinstance(node.targets[0], ast.Name)
            ):
                matches = (
                    _ASKED.match(output.get("data", {}).get("text/plain", ""))
                    for output in cell.outputs
                )
                yield Question(
                    node.targets[0].id, next((match[1] for match in matches if match), ""), index
                )


def _calls(node: ast.expr, name: str) -> bool:
    """Return whether an expression is a call of ``name``, or of an attribute so named."""
    callee = node.func if isinstance(node, ast.Call) else None
    return name == (callee.attr if isinstance(callee, ast.Attribute) else getattr(callee, "id", ""))


def find_reveal(built: Notebook, question: Question) -> tuple[int | None, int]:
    """Return the cell that shows the answer, and which of its outputs does; None where no cell
    does.
    """
    for index, cell in enumerate(built.cells[question.cell_index :], start=question.cell_index):
        if f"{question.name}.reveal(" in cell.source:
            for output_index, output in enumerate(cell.get("outputs", [])):
                if _reveal_lines(output)[:1] == [question.text]:
                    return index, output_index
    return None, 0


def answer_of(output: Notebook) -> str:
    """Return the number and unit that a reveal shows as the answer: found where there is one, else
    modelled.
    """
    rows = [re.split(r"\s{2,}", line) for line in _reveal_lines(output)[1:]]
    values = {row[0]: row[1] for row in rows if len(row) > 1}
    return next((values[name] for name in (*_EVIDENCE, "modelled") if name in values), "")


def _reveal_lines(output: Notebook) -> list[str]:
    """Return the lines of a reveal, as a terminal shows them: in a notebook they are a table."""
    data = output.get("data", {})
    question = re.match(r"<div><b>(.*?)</b><table>", data.get("text/html", ""))
    if question is None:
        return data.get("text/plain", "").splitlines()
    rows = re.findall(r"<th[^>]*>(.*?)</th><td[^>]*>(.*?)</td>", data["text/html"])
    return [html.unescape(line) for line in (question[1], *("  ".join(row) for row in rows))]


def _between(
    built: Notebook, question: Question, last_index: int, output_index: int
) -> Iterator[tuple[int, Notebook]]:
    """Yield the outputs from the cell that asks to the answer; the question itself is none of
    them.
    """
    for index in range(question.cell_index, last_index + 1):
        for output in built.cells[index].get("outputs", [])[
            : output_index if index == last_index else None
        ]:
            if not output.get("data", {}).get("text/plain", "").startswith(question.text):
                yield index, output


def find_answer(text: str, answer: str) -> str:
    """Return the part of a text that is the answer, "" where none is."""
    number = re.match(rf"-?({_NUMBER})", answer)
    with_unit = re.search(rf"(?<![\w.,]){re.escape(answer)}(?!\w)", text)
    if with_unit:
        return with_unit[0]
    if number is None or sum(map(str.isdigit, number[1])) < TELLING_DIGITS:
        return ""
    # 22.7 GiB of memory do not tell a ratio of 22.7
    unit_pattern = _MEASURE if answer.endswith("x") else r"(?!)"
    numbers = re.finditer(rf"(?<![\w.,]){_NUMBER}(?!{unit_pattern})", text)
    return next(
        (
            match[0]
            for match in numbers
            if match[0].rstrip(",").replace(",", "") == number[1].replace(",", "")
        ),
        "",
    )


def _texts(output: Notebook) -> list[str]:
    """Return the texts that a reader sees of an output, HTML without its tags and scripts."""
    return [_UNSEEN.sub(" ", text) for text in shares.compared_texts(output)]


CHECKS: Sequence[Callable[[Lesson, Notebook], list[Problem]]] = (sizes, booleans, answers)


def check(lesson: Lesson, built: Notebook) -> list[Problem]:
    """Return every problem of a lesson whose reader writes cells; none of another, and of an
    appendix all but sizes.
    """
    if lesson.is_appendix:
        return booleans(lesson, built) + answers(lesson, built)
    if not any("yours" in cell.metadata for cell in lesson.cells):
        return []
    return [problem for rule in CHECKS for problem in rule(lesson, built)]
