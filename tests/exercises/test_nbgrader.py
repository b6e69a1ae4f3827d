"""nbgrader itself, from the instructor's folder to the grades: the solution, the stub, and a student's tampering."""

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

from course.authoring import exercises, exercises_proof, exercises_tree
from course.authoring.course import HERE
from tests.exercises.conftest import SHEETS

SHEET = SHEETS[0]
ASSIGNMENT = SHEET.lesson.name


def hand_in(folder: Path, student: str, notebook: nbformat.NotebookNode) -> None:
    path = folder / "submitted" / student / ASSIGNMENT / SHEET.lesson.notebook_name
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)


def with_answers(answers: dict[str, str]) -> nbformat.NotebookNode:
    """Return the student's notebook with ``answers`` written into it, by the names of the exercises."""
    made = exercises.released(SHEET)
    for cell in made.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        cell.source = answers.get(name, cell.source)
    return made


# nbgrader's own, from its database layer
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Object of type:Warning")]


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The folder of a class of two in which nbgrader released, graded and kept the first lesson's exercises."""
    folder = tmp_path_factory.mktemp("class")
    exercises_tree.nbgrader_folder(HERE, folder, [SHEET.lesson.number])
    config = Config()
    config.CourseDirectory.root = str(folder)
    config.CourseDirectory.db_url = f"sqlite:///{folder / 'gradebook.db'}"
    config.merge(exercises.release_config())
    with pytest.MonkeyPatch.context() as patch:
        # nbgrader calls alembic by its bare name
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("PYTHONPATH", str(HERE.root))
        api = NbGraderAPI(config=config)
        api.log.setLevel(logging.CRITICAL)
        released = api.generate_assignment(ASSIGNMENT)
        assert released["success"], released["log"] + released.get("error", "")
        hand_in(folder, "solved", with_answers({name: SHEET.cell("answer", name).source for name in SHEET.exercises}))
        hand_in(folder, "tampered", tampered())
        for student in ("solved", "tampered"):
            done = api.autograde(ASSIGNMENT, student)
            assert done["success"], done["log"] + done.get("error", "")
    return folder


def tampered() -> nbformat.NotebookNode:
    """One exercise untouched, one wrong, one solved; in one the checks were rewritten to give every point."""
    wrong = next(one for one in SHEET.wrong if one.exercise == "cold_and_warm" and "pop" in one.cell.source)
    answers = {"cold_and_warm": wrong.cell.source, "ranking": SHEET.cell("answer", "ranking").source,
               "units_checks": "3.0"}  # fmt: skip
    return with_answers(answers)


def scores(folder: Path, student: str) -> dict[str, float]:
    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}") as book:
        grades = book.find_submission_notebook(SHEET.lesson.name, ASSIGNMENT, student).grades
        return {grade.name.removesuffix("_checks"): grade.score for grade in grades}


def test_nbgrader_gives_the_solution_all_points(graded):
    points = {name: SHEET.cell("checks", name).metadata["points"] for name in SHEET.exercises}
    assert scores(graded, "solved") == points


def test_nbgrader_gives_what_the_proof_gives_and_restores_rewritten_checks(graded):
    wrong = next(one for one in SHEET.wrong if one.exercise == "cold_and_warm" and "pop" in one.cell.source)
    proved = exercises_proof.attempt(SHEET, "cold_and_warm", wrong.cell.source).score
    assert scores(graded, "tampered") == {"units": 0, "cold_and_warm": proved, "ranking": 3, "fair_ratio": 0}
    assert 0 < proved < 3


def test_nbgrader_releases_what_course_exercises_holds(graded):
    made = nbformat.read(graded / "release" / ASSIGNMENT / SHEET.lesson.notebook_name, as_version=4)
    assert exercises.drift(SHEET, made) == []
