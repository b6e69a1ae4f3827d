"""Hold the whole course to its rules: every lesson, the glossary, the links, the index and the
README.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.authoring import made, order, pages
from tools.authoring.course import Course
from tools.authoring.lesson import APPENDIX, Lesson
from tools.authoring.problem import Problem
from tools.authoring.rules import (
    checks,
    form,
    formulas,
    functions,
    glossary,
    links,
    markdown,
    origins,
    page as page_rules,
    shares,
    symbols,
)

PAGES = ("README.md", "CONTRIBUTING.md", "course/glossary.md", "course/syllabus.md",
         "course/formulas.md", "course/index_of_functions.md", "course/my_training_is_slow.md",
         "course/one_step.md", "course/record_a_gpu.md", "course/rules_of_thumb.md",
         "course/support.md")  # fmt: skip


def lessons(course: Course, numbers: Sequence[str] = ()) -> list[Problem]:
    """Return every problem of the lessons in ``numbers`` (all when empty): rules, links, words,
    symbols of formulas.

    And of their appendices: rules and links.
    """
    everything = course.lessons()
    entries = glossary.read(course.glossary)
    found: list[Problem] = []
    for lesson in course.lessons(numbers):
        built = course.built(lesson)
        page = course.notebook(lesson)
        in_page = course.checks(lesson).is_file()
        form_rules = page_rules if in_page else form
        found += symbols.check(lesson, symbols.read(course.symbols)) if in_page else []
        found += checks.check(lesson, built, everything) + form_rules.check(lesson, built)
        found += links.check_notebook(lesson.notebook_name, built, page=page, root=course.root)
        found += glossary.check_lesson(lesson.notebook_name, built, entries)
        found += formulas.check(lesson)
    for appendix in course.appendices(numbers):
        built = course.built(appendix)
        found += checks.check(appendix, built, everything) + form.check(appendix, built)
        found += links.check_notebook(
            appendix.notebook_name, built, page=course.notebook(appendix), root=course.root
        )
        found += linked(course, appendix)
    return found


def origins_of(course: Course, numbers: Sequence[str], sanitize: Path) -> list[origins.Resting]:
    """Return for each lesson and appendix what its compared values rest on, which another processor
    may change.
    """
    rules = shares.patterns(sanitize)
    chosen = (*course.lessons(numbers), *course.appendices(numbers))
    return [origins.resting(one.label, course.built(one), course.package, rules) for one in chosen]


def linked(course: Course, appendix: Lesson) -> list[Problem]:
    """Return a problem where the lesson of an appendix does not link it."""
    [lesson] = course.lessons([appendix.number])
    texts = (cell.source for cell in course.built(lesson).cells if cell.cell_type == "markdown")
    targets = {
        span.target.partition("#")[0]
        for text in texts
        for span in markdown.spans(text)
        if span.kind == "link"
    }
    what = (
        f"does not link its appendix; write [...]({appendix.notebook_name}) where a reader may "
        "want it"
    )
    return [] if appendix.notebook_name in targets else [Problem(lesson.notebook_name, None, what)]


def strays(course: Course) -> list[Problem]:
    """Return a problem for each notebook beside the lessons that no source makes."""
    known = {one.notebook_name for one in (*course.lessons(), *course.appendices())}
    what = "no source makes this notebook; remove it, or write its source in course/source"
    found = [
        *sorted(course.folder.glob("*.ipynb")),
        *sorted((course.folder / APPENDIX).glob("*.ipynb")),
    ]
    names = [path.relative_to(course.folder).as_posix() for path in found]
    return [Problem(name, None, what) for name in names if name not in known]


def shared(course: Course) -> list[Problem]:
    """Return every problem of the pages that all lessons share."""
    everything = course.lessons()
    texts = {
        lesson.number: [
            cell.source for cell in course.built(lesson).cells if cell.cell_type == "markdown"
        ]
        for lesson in everything
    }
    found = order.problems(course.acts, [lesson.name for lesson in everything])
    found += strays(course) + needs(course) + owners(course)
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
        Problem(
            course.source(lesson).name, None, f"needs lesson {need}, which does not stand before it"
        )
        for lesson in everything
        for need in lesson.needs
        if need.isdigit() and (need not in known or need >= lesson.number)
    ]


def owners(course: Course) -> list[Problem]:
    """Return a problem for each lesson whose reader writes a function of a name that another lesson
    has.

    The course's version is found by its name in a folder that holds the reader's copies of all
    lessons.
    """
    first: dict[str, str] = {}
    found = []
    for lesson in (*course.lessons(), *course.appendices()):
        for name in (cell.metadata["yours"] for cell in lesson.cells if "yours" in cell.metadata):
            if first.setdefault(name, lesson.label) != lesson.label:
                what = (
                    f"yours={name!r} stands in {first[name]} too; give each function a name of its "
                    "own"
                )
                found.append(Problem(course.source(lesson).name, None, what))
    return found


def current(course: Course) -> list[Problem]:
    """Return a problem for each page made from the lessons that is not what the lessons make of it
    now.
    """
    everything = course.lessons()
    readme = course.readme.read_text(encoding="utf-8") if course.readme.is_file() else ""
    expected = {
        course.readme: pages.with_table(readme, everything, address=course.address),
        course.functions: functions.page(course, everything),
        **made.pages(course, everything),
    }
    what = "it is not what the lessons make of it now; run python -m tools.authoring table --write"
    return [
        Problem(path.name, None, what)
        for path, text in expected.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
