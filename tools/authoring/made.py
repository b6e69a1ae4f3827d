"""Pages made from the lessons, to be read beside them: formulas and syllabus. A course without them gets none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.authoring.course import Course
from tools.authoring.lesson import Lesson
from tools.authoring.rules import formulas, syllabus


def pages(course: Course, lessons: Sequence[Lesson]) -> dict[Path, str]:
    """Return the text that each of these pages must have now, for those that the course has."""
    found = {}
    if course.formulas.is_file():
        found[course.formulas] = formulas.page(lessons)
    if course.syllabus.is_file():
        found[course.syllabus] = syllabus.page(lessons)
    return found
