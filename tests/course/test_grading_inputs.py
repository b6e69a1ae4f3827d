"""Answers that spoil what they are given, in the sandbox: what they change comes back, and spoils
no check.
"""

from __future__ import annotations

import nbformat
import pytest

from tests.exercises.conftest import SHEETS
from tests.exercises.test_inputs import WAYS, due, spoiling
from tools.exercises import sheets
from tools.grading import marker
from tools.grading.intake import Submission
from tools.grading.sandbox import Limits

pytestmark = [pytest.mark.timeout(1200), pytest.mark.usefixtures("working_sandbox")]

# At home each sheet meets each way in `make test`. CI takes every other sheet, in one of the three
# ways in turn.
CASES = [
    pytest.param(
        sheet,
        way,
        id=f"{sheet.lesson.number}-{way}",
        marks=pytest.mark.ci if (place - 2 * turn) % (2 * len(WAYS)) == 0 else pytest.mark.release,
    )
    for place, sheet in enumerate(SHEETS)
    for turn, way in enumerate(WAYS)
]


@pytest.mark.parametrize(("sheet", "way"), CASES)
def test_answers_that_spoil_their_inputs_get_what_they_get_at_home(sheet, way, tmp_path):
    sent = sheets.released(sheet)
    answers = {name: spoiling(sheet, name, [way]) for name in sheet.exercises}
    for cell in sent.cells:
        cell.source = answers.get(cell.metadata.nbgrader.grade_id, cell.source)
    path = tmp_path / "sent.ipynb"
    path.write_text(nbformat.writes(sent), encoding="utf-8")
    marks = marker.mark(sheet, Submission("student", sheet.lesson.name, path), Limits())
    assert {one.exercise: one.score for one in marks.marks} == {
        name: due(sheet, name) for name in sheet.exercises
    }
