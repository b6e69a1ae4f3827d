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
    all_lessons = course.lessons()
    entries = glossary.read(course.glossary)
    problems: list[Problem] = []
    for lesson in course.lessons(numbers):
        built = course.built(lesson)
        page = course.notebook(lesson)
        in_page = course.checks(lesson).is_file()
        form_rules = page_rules if in_page else form
        problems += symbols.check(lesson, symbols.read(course.symbols)) if in_page else []
        problems += checks.check(lesson, built, all_lessons) + form_rules.check(lesson, built)
        problems += links.check_notebook(lesson.notebook_name, built, page=page, root=course.root)
        problems += glossary.check_lesson(lesson.notebook_name, built, entries)
        problems += formulas.check(lesson)
    for appendix in course.appendices(numbers):
        built = course.built(appendix)
        problems += checks.check(appendix, built, all_lessons) + form.check(appendix, built)
        problems += links.check_notebook(
            appendix.notebook_name, built, page=course.notebook(appendix), root=course.root
        )
        problems += check_appendix_link(course, appendix)
    return problems


def origins_of(course: Course, numbers: Sequence[str], sanitize: Path) -> list[origins.Resting]:
    """Return the origins of the compared values of each lesson and appendix, which another
    processor may change.
    """
    rules = shares.patterns(sanitize)
    lessons_and_appendices = (*course.lessons(numbers), *course.appendices(numbers))
    return [
        origins.trace(lesson.label, course.built(lesson), course.package, rules)
        for lesson in lessons_and_appendices
    ]


def check_appendix_link(course: Course, appendix: Lesson) -> list[Problem]:
    """Return a problem where the lesson of an appendix does not link it."""
    [lesson] = course.lessons([appendix.number])
    texts = (cell.source for cell in course.built(lesson).cells if cell.cell_type == "markdown")
    targets = {
        span.target.partition("#")[0]
        for text in texts
        for span in markdown.spans(text)
        if span.kind == "link"
    }
    message = (
        f"does not link its appendix; write [...]({appendix.notebook_name}) where a reader may "
        "want it"
    )
    return (
        [] if appendix.notebook_name in targets else [Problem(lesson.notebook_name, None, message)]
    )


def strays(course: Course) -> list[Problem]:
    """Return a problem for each notebook beside the lessons that no source makes."""
    known_names = {lesson.notebook_name for lesson in (*course.lessons(), *course.appendices())}
    message = "no source makes this notebook; remove it, or write its source in course/source"
    paths = [
        *sorted(course.folder.glob("*.ipynb")),
        *sorted((course.folder / APPENDIX).glob("*.ipynb")),
    ]
    names = [path.relative_to(course.folder).as_posix() for path in paths]
    return [Problem(name, None, message) for name in names if name not in known_names]


def shared_pages(course: Course) -> list[Problem]:
    """Return every problem of the pages that all lessons share."""
    all_lessons = course.lessons()
    texts = {
        lesson.number: [
            cell.source for cell in course.built(lesson).cells if cell.cell_type == "markdown"
        ]
        for lesson in all_lessons
    }
    problems = order.problems(course.acts, [lesson.name for lesson in all_lessons])
    problems += strays(course) + needs(course) + owners(course)
    problems += glossary.check_back_links(glossary.read(course.glossary), all_lessons, texts)
    for name in PAGES:
        if (course.root / name).is_file():
            problems += links.check_page(course.root / name, root=course.root)
    return problems + outdated_pages(course) + functions.check(course, all_lessons)


def needs(course: Course) -> list[Problem]:
    """Return a problem for each lesson that needs one which does not come before it."""
    all_lessons = course.lessons()
    known_numbers = {lesson.number for lesson in all_lessons}
    return [
        Problem(
            course.source(lesson).name, None, f"needs lesson {need}, which does not stand before it"
        )
        for lesson in all_lessons
        for need in lesson.needs
        if need.isdigit() and (need not in known_numbers or need >= lesson.number)
    ]


def owners(course: Course) -> list[Problem]:
    """Return a problem for each lesson whose reader writes a function of a name that another lesson
    has.

    The course's version is found by its name in a folder that holds the reader's copies of all
    lessons.
    """
    first_labels: dict[str, str] = {}
    problems = []
    for lesson in (*course.lessons(), *course.appendices()):
        for name in (cell.metadata["yours"] for cell in lesson.cells if "yours" in cell.metadata):
            if first_labels.setdefault(name, lesson.label) != lesson.label:
                message = (
                    f"yours={name!r} stands in {first_labels[name]} too; give each function a name "
                    "of its own"
                )
                problems.append(Problem(course.source(lesson).name, None, message))
    return problems


def outdated_pages(course: Course) -> list[Problem]:
    """Return a problem for each page made from the lessons that is not what the lessons make of it
    now.
    """
    all_lessons = course.lessons()
    readme = course.readme.read_text(encoding="utf-8") if course.readme.is_file() else ""
    expected_texts = {
        course.readme: pages.with_table(readme, all_lessons, address=course.address),
        course.functions: functions.page(course, all_lessons),
        **made.pages(course, all_lessons),
    }
    message = (
        "it is not what the lessons make of it now; run python -m tools.authoring table --write"
    )
    return [
        Problem(path.name, None, message)
        for path, text in expected_texts.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
