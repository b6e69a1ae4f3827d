"""Pages made from the lessons, to be read beside them: formulas and syllabus.

A course without them gets none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.authoring import machine_map, minutes, three_numbers, yours
from tools.authoring.cells import cells_of
from tools.authoring.course import Course
from tools.authoring.lesson import Lesson
from tools.authoring.rules import formulas, page, syllabus, symbols


def pages(course: Course, lessons: Sequence[Lesson]) -> dict[Path, str]:
    """Return the text that each of these pages must have now, for those that the course has."""
    texts = {}
    if course.formulas.is_file():
        texts[course.formulas] = formulas.page(lessons, symbols.read(course.symbols))
    for lesson in lessons:
        if lesson.way:
            texts[course.map(lesson)] = machine_map.svg(lesson.way.places)
    acts = course.acts
    if acts and all(act.question and act.places for act in acts):
        texts[course.course_map] = machine_map.course_svg(acts)
        for lesson in lessons:
            if lesson.slug == three_numbers.LESSON and course.notebook(lesson).is_file():
                texts[course.three_numbers] = three_numbers.svg(course.built(lesson))
                texts[course.asked_numbers] = three_numbers.svg(course.built(lesson), asks=True)
    if any(lesson.way for lesson in lessons):
        texts[course.rules_of_thumb] = rules_of_thumb(lessons)
    if course.syllabus.is_file():
        texts[course.syllabus] = syllabus.page(lessons, exercise_minutes(course))
    return texts


def rules_of_thumb(lessons: Sequence[Lesson]) -> str:
    """Return the page of the rules of thumb: those that end the parts of the lessons, by act."""
    lines = [
        "# Rules of thumb",
        "",
        "Each part of a lesson ends with a rule that carries a number. Here are all of them.",
    ]
    act = ""
    for lesson in lessons:
        rules = [
            rule
            for cell in lesson.cells
            if cell.kind == "markdown"
            for rule in page.rules_of_thumb(cell.source)
        ]
        if not rules or lesson.way is None:
            continue
        if lesson.act != act:
            lines += ["", f"## {lesson.act}"]
            act = lesson.act
        lines += ["", f"From [lesson {lesson.number}, {lesson.title}]({lesson.notebook_name}):", ""]
        lines += [f"- {' '.join(rule.split())}" for rule in rules]
    return "\n".join(lines) + "\n"


def exercise_minutes(course: Course) -> dict[str, int]:
    """Return the minutes of each lesson's exercises, by its number, for the lessons that have
    some.
    """
    minutes_by_lesson = {}
    for path in sorted((course.folder / "instructor" / "exercises").glob("*.py")):
        cells, _ = yours.split_notebook_cells(
            cells_of(path.read_text(encoding="utf-8"), path.name), path.name
        )
        minutes_by_lesson[path.name[:2]] = minutes.minutes(cells, run_s=0)
    return minutes_by_lesson
