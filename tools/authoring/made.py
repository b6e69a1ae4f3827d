"""Pages made from the lessons, to be read beside them: formulas and syllabus. A course without them gets none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.authoring import minutes, yours
from tools.authoring.cells import cells_of
from tools.authoring.course import Course
from tools.authoring.lesson import Lesson
from tools.authoring.rules import formulas, syllabus


def pages(course: Course, lessons: Sequence[Lesson]) -> dict[Path, str]:
    """Return the text that each of these pages must have now, for those that the course has."""
    found = {}
    if course.formulas.is_file():
        found[course.formulas] = formulas.page(lessons)
    if course.syllabus.is_file():
        found[course.syllabus] = syllabus.page(lessons, exercise_minutes(course))
    return found


def exercise_minutes(course: Course) -> dict[str, int]:
    """Return the minutes of each lesson's exercises, by its number, for the lessons that have some."""
    found = {}
    for path in sorted((course.folder / "instructor" / "exercises").glob("*.py")):
        cells, _ = yours.parted(cells_of(path.read_text(encoding="utf-8"), path.name), path.name)
        found[path.name[:2]] = minutes.minutes(cells, run_s=0)
    return found
