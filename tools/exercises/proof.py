"""Prove an exercise: give it an answer, run its checks here, and see what they say and how many
points they give.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

from helpers.results import Result
from tools.authoring.lesson import Cell
from tools.authoring.proof import own_copy, run_cell
from tools.exercises.sheets import Sheet, released, sections_of

# the names that given cells leave, by the cells' texts
_GIVEN: dict[tuple[str, ...], dict[str, Any]] = {}
# the texts of released cells by id, by the texts of the sheet's
_RELEASED: dict[tuple[str, ...], dict[str, str]] = {}


@dataclass(frozen=True)
class ExerciseAttempt(Result):
    """What one answer to ``exercise`` got of ``points``, hidden checks included, and what the
    visible ones said.
    """

    exercise: str
    score: float
    points: int
    said: str


def stub(sheet: Sheet, exercise: str) -> str:
    """Return the text of the cell that a student finds, whose function returns ``not_yet``."""
    return _released_source(sheet, exercise, grade=False)


def public_checks(sheet: Sheet, exercise: str) -> str:
    """Return the text of the visible checks, as a student finds it."""
    return _released_source(sheet, exercise, grade=True)


def attempt(sheet: Sheet, exercise: str, answer: str) -> ExerciseAttempt:
    """Return the result of the text ``answer`` in the place of the exercise's answer.

    Runs the given cells of the notebook's beginning and of the exercise, then the visible checks;
    then the same again with all checks. An exception in a cell passes unchanged.
    """
    checks = sheet.cell("checks", exercise)
    points = checks.metadata["points"]
    printed = io.StringIO()
    with redirect_stdout(printed):
        run_cell(public_checks(sheet, exercise), "checks", run_answer(sheet, exercise, answer))
    with redirect_stdout(io.StringIO()):
        score = run_cell(checks.source, "checks", run_answer(sheet, exercise, answer))
    return ExerciseAttempt(exercise, score, points, printed.getvalue())


def run_answer(sheet: Sheet, exercise: str, answer: str) -> dict[str, Any]:
    """Return the names that stand when the given cells and ``answer`` have run, and the checks have
    not.

    The given cells before the answer run once for all answers: most of their time goes into
    figures.
    """
    introduction, *sections = sections_of(sheet.lesson.cells)
    section = next(
        cells
        for cells in sections
        if any(cell.metadata.get("answer") == exercise for cell in cells)
    )
    answer_index = next(
        index for index, cell in enumerate(section) if cell.metadata.get("answer") == exercise
    )
    names = {
        name: own_copy(value)
        for name, value in _given_names((*introduction, *section[:answer_index])).items()
    }
    with redirect_stdout(io.StringIO()):
        run_cell(answer, f"answer to {exercise}", names)
        _run_given(section[answer_index + 1 :], names)
    return names


def _given_names(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the names that stand after these cells, which no caller may change."""
    key = tuple(cell.source for cell in cells)
    if key not in _GIVEN:
        names: dict[str, Any] = {"__name__": "__main__"}
        with redirect_stdout(io.StringIO()):
            _run_given(cells, names)
        _GIVEN[key] = names
    return _GIVEN[key]


def _run_given(cells: Iterable[Cell], names: dict[str, Any]) -> None:
    for cell in cells:
        if cell.kind == "code" and not {"answer", "checks"} & set(cell.metadata):
            run_cell(cell.source, f"cell at line {cell.line}", names)


def _released_source(sheet: Sheet, exercise: str, *, grade: bool) -> str:
    key = tuple(cell.source for cell in sheet.lesson.cells)
    if key not in _RELEASED:
        cells = released(sheet).cells
        _RELEASED[key] = {
            cell.metadata.get("nbgrader", {}).get("grade_id", ""): cell.source for cell in cells
        }
    return _RELEASED[key][f"{exercise}_checks" if grade else exercise]
