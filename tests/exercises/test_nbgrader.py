"""nbgrader itself, from the instructor's folder to the grades: the solution, the stub, and a
student's tampering.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI
from traitlets.config import Config

from tests.exercises.conftest import SHEETS
from tools.authoring.course import HERE
from tools.exercises import handout, proof, sheets

SHEET = SHEETS[0]
ASSIGNMENT = SHEET.lesson.name
# what is done to each; one more, WRONG, is answered so
REWRITTEN, SOLVED, DELETED = "units", "ranking", "fair_ratio"
WRONG = next(
    one for one in SHEET.wrong if one.gets and one.name not in (REWRITTEN, SOLVED, DELETED)
)


def points() -> dict[str, int]:
    return {name: SHEET.cell("checks", name).metadata["points"] for name in SHEET.exercises}


def hand_in(folder: Path, student: str, notebook: nbformat.NotebookNode) -> None:
    path = folder / "submitted" / student / ASSIGNMENT / SHEET.lesson.notebook_name
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)


def with_answers(answers: dict[str, str]) -> nbformat.NotebookNode:
    """Return the student's notebook with ``answers`` written into it, by the names of the
    exercises.
    """
    made = sheets.released(SHEET)
    for cell in made.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        cell.source = answers.get(name, cell.source)
    return made


# nbgrader's own, from its database layer
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Object of type:Warning")]


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The folder of a class of two in which nbgrader released, graded and kept the first lesson's
    exercises.
    """
    folder = tmp_path_factory.mktemp("class")
    handout.nbgrader_folder(HERE, folder, [SHEET.lesson.number])
    config = Config()
    config.CourseDirectory.root = str(folder)
    config.CourseDirectory.db_url = f"sqlite:///{folder / 'gradebook.db'}"
    config.merge(sheets.release_config())
    config.Execute.timeout = 240  # for a cell, which imports PyTorch: nbgrader gives it 30 s
    with pytest.MonkeyPatch.context() as patch:
        # nbgrader calls alembic by its bare name
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("PYTHONPATH", str(HERE.root))
        api = NbGraderAPI(config=config)
        api.log.setLevel(logging.CRITICAL)
        released = api.generate_assignment(ASSIGNMENT)
        assert released["success"], released["log"] + released.get("error", "")
        hand_in(
            folder,
            "solved",
            with_answers({name: SHEET.cell("answer", name).source for name in SHEET.exercises}),
        )
        hand_in(folder, "tampered", tampered())
        for student in ("solved", "tampered"):
            done = api.autograde(ASSIGNMENT, student)
            assert done["success"], done["log"] + done.get("error", "")
    return folder


def tampered() -> nbformat.NotebookNode:
    """One exercise wrong, one solved; in one the checks were rewritten to give every point, in one
    they are gone.
    """
    answers = {
        WRONG.name: WRONG.cell.source,
        SOLVED: SHEET.cell("answer", SOLVED).source,
        f"{REWRITTEN}_checks": str(points()[REWRITTEN]),
    }
    made = with_answers(answers)
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cell.source = "The table is mine now."
    made.cells = [
        cell for cell in made.cells if cell.metadata.nbgrader.grade_id != f"{DELETED}_checks"
    ]
    return made


def scores(folder: Path, student: str) -> dict[str, float]:
    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}") as book:
        grades = book.find_submission_notebook(SHEET.lesson.name, ASSIGNMENT, student).grades
        return {
            grade.name.removesuffix("_checks"): grade.score
            for grade in grades
            if grade.name.endswith("_checks")
        }


def to_be_read(folder: Path, student: str) -> set[str]:
    """Return the exercises that nbgrader could not grade and leaves to a person."""
    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}") as book:
        grades = book.find_submission_notebook(SHEET.lesson.name, ASSIGNMENT, student).grades
        return {
            grade.name.removesuffix("_checks") for grade in grades if grade.needs_manual_grade
        } - set(SHEET.written)


@pytest.mark.ci
def test_nbgrader_gives_the_solution_all_points(graded):
    assert scores(graded, "solved") == points()
    assert to_be_read(graded, "solved") == set()


@pytest.mark.ci
def test_nbgrader_gives_what_the_proof_gives_and_restores_rewritten_checks(graded):
    proved = proof.attempt(SHEET, WRONG.name, WRONG.cell.source).score
    given = {WRONG.name: proved, SOLVED: points()[SOLVED]}
    assert scores(graded, "tampered") == dict.fromkeys(SHEET.exercises, 0) | given
    assert 0 < proved < points()[WRONG.name]
    assert to_be_read(graded, "tampered") == {DELETED}


@pytest.mark.ci
def test_nbgrader_restores_the_given_text(graded):
    path = graded / "autograded" / "tampered" / ASSIGNMENT / SHEET.lesson.notebook_name
    given = {cell.metadata.nbgrader.grade_id: cell.source for cell in sheets.released(SHEET).cells}
    cells = nbformat.read(path, as_version=4).cells
    restored = [
        cell for cell in cells if cell.cell_type == "markdown" and cell.metadata.nbgrader.locked
    ]
    assert restored
    assert all(cell.source == given[cell.metadata.nbgrader.grade_id] for cell in restored)


@pytest.mark.ci
def test_nbgrader_releases_what_course_exercises_holds(graded):
    made = nbformat.read(graded / "release" / ASSIGNMENT / SHEET.lesson.notebook_name, as_version=4)
    assert sheets.drift(SHEET, made) == []
