"""Hold the whole course to its rules: every lesson, the glossary, the links, the index and the README."""

from __future__ import annotations

from collections.abc import Sequence

from tools.authoring import made, pages
from tools.authoring.course import Course
from tools.authoring.problem import Problem
from tools.authoring.rules import checks, form, formulas, functions, glossary, links

PAGES = ("README.md", "CONTRIBUTING.md", "course/glossary.md", "course/syllabus.md", "course/formulas.md",
         "course/index_of_functions.md")  # fmt: skip


def lessons(course: Course, numbers: Sequence[str] = ()) -> list[Problem]:
    """Return every problem of the lessons in ``numbers`` (all when empty): rules, links, words, symbols of formulas."""
    everything = course.lessons()
    entries = glossary.read(course.glossary)
    found: list[Problem] = []
    for lesson in course.lessons(numbers):
        built = course.built(lesson)
        page = course.notebook(lesson)
        found += checks.check(lesson, built, everything) + form.check(lesson, built)
        found += links.check_notebook(lesson.notebook_name, built, page=page, root=course.root)
        found += glossary.check_lesson(lesson.notebook_name, built, entries)
        found += formulas.check(lesson)
    return found


def strays(course: Course) -> list[Problem]:
    """Return a problem for each notebook beside the lessons that no source makes."""
    known = {lesson.notebook_name for lesson in course.lessons()}
    what = "no source makes this notebook; remove it, or write its source in course/source"
    return [Problem(path.name, None, what) for path in sorted(course.folder.glob("*.ipynb")) if path.name not in known]


def shared(course: Course) -> list[Problem]:
    """Return every problem of the pages that all lessons share."""
    everything = course.lessons()
    texts = {
        lesson.number: [cell.source for cell in course.built(lesson).cells if cell.cell_type == "markdown"]
        for lesson in everything
    }
    found = strays(course) + needs(course) + owners(course)
    found += glossary.check_back_links(glossary.read(course.glossary), everything, texts)
    for name in PAGES:
        if (course.root / name).is_file():
            found += links.check_page(course.root / name, root=course.root)
    return found + current(course) + functions.check(course, everything)


def needs(course: Course) -> list[Problem]:
    """Return a problem for each lesson that needs one which does not come before it."""
    everything = course.lessons()
    known = {lesson.number for lesson in everything}
    return [
        Problem(course.source(lesson).name, None, f"needs lesson {need}, which does not stand before it")
        for lesson in everything
        for need in lesson.needs
        if need.isdigit() and (need not in known or need >= lesson.number)
    ]


def owners(course: Course) -> list[Problem]:
    """Return a problem for each lesson whose reader writes a function of a name that another lesson has.

    The course's version is found by its name in a folder that holds the reader's copies of all lessons.
    """
    first: dict[str, str] = {}
    found = []
    for lesson in course.lessons():
        for name in (cell.metadata["yours"] for cell in lesson.cells if "yours" in cell.metadata):
            if first.setdefault(name, lesson.number) != lesson.number:
                what = f"yours={name!r} stands in lesson {first[name]} too; give each function a name of its own"
                found.append(Problem(course.source(lesson).name, None, what))
    return found


def current(course: Course) -> list[Problem]:
    """Return a problem for each page made from the lessons that is not what the lessons make of it now."""
    everything = course.lessons()
    readme = course.readme.read_text(encoding="utf-8") if course.readme.is_file() else ""
    expected = {
        course.readme: pages.with_table(readme, everything),
        course.functions: functions.page(course, everything),
        **made.pages(course, everything),
    }
    what = "it is not what the lessons make of it now; run python -m tools.authoring table --write"
    return [
        Problem(path.name, None, what)
        for path, text in expected.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
