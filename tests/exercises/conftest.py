"""The exercises as their sources state them, and a copy of the course whose exercises were built
once.
"""

from __future__ import annotations

import shutil

import pytest

from tools.authoring.course import HERE, Course
from tools.exercises import sheets

SHEETS = sheets.load(HERE)
EXERCISES = [
    pytest.param(sheet, name, id=f"{sheet.lesson.number}-{name}")
    for sheet in SHEETS
    for name in sheet.exercises
]
WRONG = [
    pytest.param(sheet, wrong, id=f"{sheet.lesson.number}-{wrong.name}-{wrong.says[:25]}")
    for sheet in SHEETS
    for wrong in sheet.wrong
]


def copy_course(root) -> Course:
    """Copy to ``root`` what the exercises of lesson 00 are made from and lead to."""
    here = HERE.folder
    for name in (
        "source/00_start_here.py",
        "instructor/exercises/00_start_here_exercises.py",
        "00_start_here.ipynb",
        "glossary.md",
    ):
        target = root / "course" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(here / name, target)
    (root / "README.md").write_text("# A course\n")
    (root / "helpers").mkdir()
    (root / "helpers" / "units.py").write_text("KILO = 1000\n")
    return Course(root)


@pytest.fixture(scope="session")
def built_twice(tmp_path_factory):
    """A copy of the course with its exercises built, and the bytes of the first and of a second
    build.
    """
    course = copy_course(tmp_path_factory.mktemp("exercises"))
    written = []
    with pytest.MonkeyPatch.context() as patch:
        # the kernel works in the copy, with the helpers from here
        patch.setenv("PYTHONPATH", str(HERE.root))
        for _ in range(2):
            (path,) = sheets.build(course)
            written.append(path.read_bytes())
    return course, written


@pytest.fixture
def built(built_twice, tmp_path):
    """A fresh copy of the built course."""
    course, _ = built_twice
    return Course(shutil.copytree(course.root, tmp_path / "built"))
