"""Build the notebooks from their sources, and the pages that are made from all of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import nbformat

from helpers.storage import write_atomically
from tools.authoring import made, notebook, pages
from tools.authoring.course import Course
from tools.authoring.lesson import AuthoringError, Lesson
from tools.authoring.rules import checks, functions, traces
from tools.authoring.run import CELL_TIMEOUT_S, run

_TRIES = 3
_RUN_STEP_S = 10  # so that two builds state the same


def build(
    course: Course,
    numbers: Sequence[str] = (),
    *,
    appendices: bool = False,
    draft: bool = False,
    cell_timeout_s: int = CELL_TIMEOUT_S,
) -> list[Path]:
    """Build the lessons in ``numbers`` (all when empty), then the README's table and the index of
    functions.

    With ``appendices`` theirs are built instead. Returns the notebooks written. Every source is
    read before the first cell runs, and a notebook is replaced only when its whole run went well. A
    lesson that shows a comparison that is not stable, or a claim that is not decided, is run up to
    three times, and then refused; with ``draft`` it is run once and written as it is, to be read
    and not kept. Raises AuthoringError: one sentence that names the lesson and what to do.
    """
    all_lessons = course.lessons()
    chosen_lessons = _choose_lessons(course, numbers, appendices)
    _read_readme(course)
    paths = [
        _build_one(course, lesson, all_lessons, draft, cell_timeout_s) for lesson in chosen_lessons
    ]
    refresh(course)
    return paths


def _choose_lessons(course: Course, numbers: Sequence[str], appendices: bool) -> tuple[Lesson, ...]:
    lessons, appendix_lessons = course.lessons(numbers), course.appendices(numbers)
    return appendix_lessons if appendices else lessons


def refresh(course: Course) -> None:
    """Bring the README's table, the index of functions, formulas and syllabus up to date, without
    running anything.
    """
    lessons = course.lessons()
    write(course.readme, pages.with_table(_read_readme(course), lessons, address=course.address))
    write(course.functions, functions.page(course, lessons))
    for path, text in made.pages(course, lessons).items():
        path.parent.mkdir(exist_ok=True)
        write(path, text)


def _read_readme(course: Course) -> str:
    try:
        return course.readme.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise AuthoringError(
            "there is no README.md to hold the table of lessons; write one"
        ) from error
    except OSError as error:
        raise AuthoringError(f"README.md cannot be read: {error.strerror}") from error


def _build_one(
    course: Course, lesson: Lesson, all_lessons: Sequence[Lesson], draft: bool, cell_timeout_s: int
) -> Path:
    for _ in range(1 if draft else _TRIES):
        fresh = notebook.unexecuted(lesson, all_lessons)
        started_s = time.monotonic()
        folder = course.notebook(lesson).parent
        folder.mkdir(exist_ok=True)  # the first appendix makes its folder
        built = run(fresh, lesson, folder=folder, cell_timeout_s=cell_timeout_s)
        run_s = _RUN_STEP_S * round((time.monotonic() - started_s) / _RUN_STEP_S)
        undecided_problems = [] if draft else checks.decisions(lesson, built)
        if not undecided_problems:
            break
    if undecided_problems:
        assert undecided_problems[0].cell is not None  # it is an output's
        line = lesson.cells[undecided_problems[0].cell].line
        raise AuthoringError(
            f"{lesson.label}: in each of {_TRIES} runs the cell at line {line} of "
            f"{lesson.name}.py {undecided_problems[0].what}"
        )
    return _write_notebook(course, replace(lesson, run_s=run_s), all_lessons, built)


def keep(course: Course, numbers: Sequence[str] = (), *, appendices: bool = False) -> list[Path]:
    """Bring the notebooks of the lessons in ``numbers`` (all when empty) to their sources, with the
    outputs they have.

    With ``appendices`` it is theirs instead. Returns the notebooks written. Nothing runs, so that
    their code must be that of the sources. Raises AuthoringError where it is not, before a notebook
    is written.
    """
    all_lessons = course.lessons()
    built_lessons = [
        (lesson, course.built(lesson)) for lesson in _choose_lessons(course, numbers, appendices)
    ]
    for lesson, built in built_lessons:
        notebook.with_outputs(lesson, all_lessons, built)
    paths = [_write_notebook(course, lesson, all_lessons, built) for lesson, built in built_lessons]
    refresh(course)
    return paths


def _write_notebook(
    course: Course, lesson: Lesson, all_lessons: Sequence[Lesson], run: nbformat.NotebookNode
) -> Path:
    """Write the lesson's notebook with the outputs of ``run``, and return its path."""
    try:
        text = notebook.canonical(notebook.with_outputs(lesson, all_lessons, run))
    except (ValueError, nbformat.ValidationError) as error:
        raise AuthoringError(
            f"{lesson.label} gave an output that cannot be saved: {error}"
        ) from error
    _refuse_traces(nbformat.reads(text, as_version=4), lesson, course.root)
    path = course.notebook(lesson)
    path.parent.mkdir(exist_ok=True)
    write(path, text)
    return path


def _refuse_traces(built: nbformat.NotebookNode, lesson: Lesson, root: Path) -> None:
    local = traces.here(root)
    for cell, source_cell in zip(built.cells, lesson.cells, strict=True):
        for output in cell.get("outputs", []):
            phrases = [
                phrase for text in traces.texts(output) for phrase in traces.in_text(text, local)
            ]
            if phrases:
                raise AuthoringError(
                    f"{lesson.label}: the cell at line {source_cell.line} of {lesson.name}.py "
                    f"shows {phrases[0]}; a saved notebook names no machine, so show a path "
                    "relative to the course, or nothing"
                )


def write(path: Path, text: str) -> None:
    """Write ``path`` whole or not at all; raises AuthoringError when the disk refuses."""
    try:
        write_atomically(path, text)
    except OSError as error:
        raise AuthoringError(f"{path.name}: {error.strerror or error}") from error
