"""Exercises: read their sources, release them through nbgrader's own preprocessors, build them,
hold them to rules.

A source, course/instructor/exercises/NN_title_exercises.py, belongs to lesson NN. What a code cell
is stands in its metadata: ``answer="units"`` holds the function with its solution between
``### BEGIN SOLUTION`` and ``### END SOLUTION``; ``checks="units" points=3`` its visible checks, and
then the hidden ones between ``### BEGIN HIDDEN TESTS`` and ``### END HIDDEN TESTS``;
``wrong="units" says="..."`` is a plausible wrong answer, with a part of what its author shall read,
and where stated ``gets=2``, the points that are left. Wrong answers are for the tests alone; all
else is in the notebook, and what is not an answer is locked. A markdown cell
``written="first_call" points=2`` holds the guide by which a person marks what a student writes in
its place; the question stands in the cell above.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import nbformat
from nbgrader import preprocessors as nbgrader
from traitlets.config import Config

from tools.authoring import notebook, yours
from tools.authoring.build import write
from tools.authoring.course import Course
from tools.authoring.lesson import FILE_NAME, AuthoringError, Cell, Lesson, cells_of
from tools.authoring.problem import Problem
from tools.authoring.rules import checks, links
from tools.authoring.run import run
from tools.authoring.yours import FEWEST_WRONG, Wrong

STUB = "return exercises.not_yet"
HINTS = 3
WRITTEN = 2
WRITTEN_STUB = "*Write your answer here.*"

_SUFFIX = "_exercises"
_SCHEMA = {"schema_version": 3, "task": False}
_RELEASE = (
    nbgrader.LockCells,
    nbgrader.ClearSolutions,
    nbgrader.CheckCellMetadata,
    nbgrader.ClearHiddenTests,
    nbgrader.ClearMarkScheme,
    nbgrader.ComputeChecksums,
    nbgrader.CheckCellMetadata,
)
_REGION = {"answer": "SOLUTION", "checks": "HIDDEN TESTS"}
_OURS = ("answer", "checks", "points", "written")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_REGION_LINE = re.compile(r"^ *### (?:BEGIN|END) SOLUTION\n?", re.MULTILINE)
_DETAILS = re.compile(r"<details>.*?<summary>.*?</summary>.*?</details>", re.DOTALL)


@dataclass(frozen=True)
class Sheet:
    """The exercises of a lesson: ``lesson`` holds the cells of their notebook, and the planted
    wrong answers.
    """

    lesson: Lesson

    @property
    def wrong(self) -> tuple[Wrong, ...]:
        return self.lesson.wrong

    @property
    def exercises(self) -> tuple[str, ...]:
        return tuple(
            cell.metadata["answer"] for cell in self.lesson.cells if "answer" in cell.metadata
        )

    @property
    def written(self) -> tuple[str, ...]:
        return tuple(
            cell.metadata["written"] for cell in self.lesson.cells if "written" in cell.metadata
        )

    def named(self, name: str) -> Sheet:
        """Return the same exercises under an assignment's name, which may have another number or a
        former title.
        """
        number, _, title = name.partition("_")
        return replace(self, lesson=replace(self.lesson, number=number, slug=title))

    def cell(self, role: str, exercise: str) -> Cell:
        """Return the cell that is the ``answer``, ``checks`` or ``written`` guide so named;
        KeyError for none.
        """
        for cell in self.lesson.cells:
            if cell.metadata.get(role) == exercise:
                return cell
        raise KeyError(f"{self.lesson.name}: no {role} of {exercise!r}")


def load(course: Course, numbers: Sequence[str] = ()) -> tuple[Sheet, ...]:
    """Return the exercises of the lessons in ``numbers`` (all when empty), in the order of the
    lessons.

    Raises AuthoringError when a source is ill-formed or belongs to no lesson.
    """
    lessons = {lesson.number: lesson for lesson in course.lessons()}
    chosen = [lesson.number for lesson in course.lessons(numbers)] if numbers else lessons
    all_sheets = [
        _read(lessons, path.name, path.read_text(encoding="utf-8"))
        for path in sorted(source_files(course))
    ]
    return tuple(sheet for sheet in all_sheets if sheet.lesson.number in chosen)


def source_files(course: Course) -> list[Path]:
    """Return the paths of the sources of all exercises."""
    return list((course.folder / "instructor" / "exercises").glob("*.py"))


def read(course: Course, name: str, script: str) -> Sheet:
    """Return the exercises in the text ``script`` of the source ``name``, held to the rules of the
    module's docstring.
    """
    return _read({lesson.number: lesson for lesson in course.lessons()}, name, script)


def _read(lessons: Mapping[str, Lesson], name: str, script: str) -> Sheet:
    match = FILE_NAME.fullmatch(name)
    if match is None or not match["slug"].endswith(_SUFFIX) or match["number"] not in lessons:
        raise AuthoringError(f"{name}: name it after its lesson, such as 00_start_here{_SUFFIX}.py")
    lesson = lessons[match["number"]]
    if match["slug"] != f"{lesson.slug}{_SUFFIX}":
        raise AuthoringError(
            f"{name}: lesson {lesson.number} is {lesson.slug}; name it {lesson.name}{_SUFFIX}.py"
        )
    cells, wrong = yours.split_notebook_cells(cells_of(script, name), name)
    title = f"{lesson.title}: exercises"
    exercise_lesson = replace(
        lesson, slug=match["slug"], title=title, objectives=(), cells=cells, wrong=wrong, run_s=0
    )
    sheet = Sheet(exercise_lesson)
    _refuse_ill_formed(sheet, name)
    return sheet


def _refuse_ill_formed(sheet: Sheet, name: str) -> None:
    """Raise AuthoringError for what nbgrader would release or grade otherwise than its author
    meant.
    """
    seen: set[tuple[str, str]] = set()
    for cell in sheet.lesson.cells:
        where = f"{name}, line {cell.line}"
        roles = [role for role in _REGION if role in cell.metadata]
        if len(roles) > 1 or (roles and cell.kind != "code"):
            raise AuthoringError(f"{where}: a code cell is either an answer or checks")
        for role in ("SOLUTION", "HIDDEN TESTS"):
            region_lines = [
                line.strip()
                for line in cell.source.splitlines()
                if f" {role}" in line and "###" in line
            ]
            belongs = roles != [] and _REGION[roles[0]] == role
            if region_lines != ([f"### BEGIN {role}", f"### END {role}"] if belongs else []):
                expected = "exactly one region" if belongs else "no region"
                raise AuthoringError(
                    f"{where}: {expected} '### BEGIN {role}' to '### END {role}' belongs here"
                )
        for role in roles:
            exercise, points = str(cell.metadata[role]), cell.metadata.get("points")
            if not _NAME.fullmatch(exercise) or (role, exercise) in seen:
                raise AuthoringError(
                    f"{where}: {role}={exercise!r}; each exercise needs a name of its own, lower "
                    "case"
                )
            if role == "checks" and (type(points) is not int or points < 1):
                raise AuthoringError(
                    f"{where}: points={points!r}; checks need points, a goal each, such as points=3"
                )
            seen.add((role, exercise))
    _refuse_ill_formed_questions(sheet, name)
    answers, with_checks = (
        {exercise for kind, exercise in seen if kind == role} for role in _REGION
    )
    strangers = {wrong.name for wrong in sheet.wrong} - answers
    if answers != with_checks or strangers:
        alone = ", ".join(sorted((answers ^ with_checks) | strangers))
        raise AuthoringError(f"{name}: {alone} needs one cell answer=... and one cell checks=...")


def _refuse_ill_formed_questions(sheet: Sheet, name: str) -> None:
    names = [*sheet.exercises]
    for cell in (cell for cell in sheet.lesson.cells if "written" in cell.metadata):
        where, points = f"{name}, line {cell.line}", cell.metadata.get("points")
        question = str(cell.metadata["written"])
        if cell.kind != "markdown" or not _NAME.fullmatch(question) or question in names:
            example = '# %% [markdown] written="first_call" points=2'
            raise AuthoringError(
                f"{where}: the guide to a written answer needs a name of its own: {example}"
            )
        if type(points) is not int or points < 1:
            raise AuthoringError(
                f"{where}: points={points!r}; a written answer needs points, such as points=2"
            )
        names.append(question)


def instructor(sheet: Sheet) -> nbformat.NotebookNode:
    """Return the notebook with solutions and hidden tests, as nbgrader's ``source`` folder wants
    it; not run.
    """
    instructor_notebook = notebook.unexecuted(sheet.lesson)
    for count, (cell, source_cell) in enumerate(
        zip(instructor_notebook.cells, sheet.lesson.cells, strict=True), start=1
    ):
        own_metadata = {key: value for key, value in cell.metadata.items() if key not in _OURS}
        cell.metadata = nbformat.from_dict(
            {**own_metadata, "nbgrader": nbgrader_metadata(source_cell.metadata, count)}
        )
    return instructor_notebook


def nbgrader_metadata(stated: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return the metadata that nbgrader reads of a cell: an answer, checks or a written answer with
    points, or what is given.
    """
    if "answer" in stated:
        return {
            **_SCHEMA,
            "grade_id": stated["answer"],
            "grade": False,
            "solution": True,
            "locked": False,
        }
    if "checks" in stated:
        grade_id = f"{stated['checks']}_checks"
        return {
            **_SCHEMA,
            "grade_id": grade_id,
            "grade": True,
            "solution": False,
            "locked": True,
            "points": stated["points"],
        }
    if "written" in stated:
        return {
            **_SCHEMA,
            "grade_id": stated["written"],
            "grade": True,
            "solution": True,
            "locked": False,
            "points": stated["points"],
        }
    return {
        **_SCHEMA,
        "grade_id": f"given_{count}",
        "grade": False,
        "solution": False,
        "locked": True,
    }


def release_config() -> Config:
    """Return the settings by which nbgrader makes a student's notebook: the stub returns
    ``not_yet`` instead of raising.
    """
    return Config({"ClearSolutions": {"code_stub": {"python": STUB}, "text_stub": WRITTEN_STUB}})


def released(sheet: Sheet) -> nbformat.NotebookNode:
    """Return the student's notebook, not run: nbgrader's preprocessors cleared solutions and hidden
    tests.
    """
    student_notebook = instructor(sheet)
    resources: dict[str, Any] = {}
    for preprocessor in _RELEASE:
        student_notebook, resources = preprocessor(config=release_config()).preprocess(
            student_notebook, resources
        )
    return student_notebook


def solved(sheet: Sheet) -> nbformat.NotebookNode:
    """Return the notebook for who learns alone, not run: the course's solutions, and the guides to
    written answers.
    """
    solution_notebook = released(sheet)
    answers = {name: sheet.cell("answer", name).source for name in sheet.exercises}
    guides = {name: sheet.cell("written", name).source for name in sheet.written}
    for cell in solution_notebook.cells:
        name = cell.metadata.nbgrader.grade_id
        if name in answers:
            cell.source = _REGION_LINE.sub("", answers[name])
        elif name in guides:
            cell.source = f"**A good answer:** {guides[name]}"
    return solution_notebook


def build(course: Course, numbers: Sequence[str] = ()) -> list[Path]:
    """Run the student's notebooks of the lessons in ``numbers`` (all when empty), untouched, and
    write them.

    Returns the paths written, in course/exercises. Raises AuthoringError: one sentence on what to
    mend.
    """
    folder = course.folder / "exercises"
    folder.mkdir(exist_ok=True)
    written = []
    for sheet in load(course, numbers):
        executed = run(released(sheet), sheet.lesson, folder=folder)
        path = folder / sheet.lesson.notebook_name
        write(path, notebook.canonical(executed))
        written.append(path)
    return written


def update_keeping_outputs(course: Course, numbers: Sequence[str] = ()) -> list[Path]:
    """Bring the notebooks of the lessons in ``numbers`` (all when empty) to their sources, with the
    outputs they have.

    Returns the paths written. Nothing runs, so that their code must be that of the sources:
    AuthoringError where it is not, before a notebook is written.
    """
    updates = []
    for sheet in load(course, numbers):
        path = course.folder / "exercises" / sheet.lesson.notebook_name
        updated, built = released(sheet), nbformat.read(path, as_version=4)
        code, old = (
            [cell for cell in version.cells if cell.cell_type == "code"]
            for version in (updated, built)
        )
        if [cell.source for cell in code] != [cell.source for cell in old]:
            raise AuthoringError(
                f"{path.name} has other code than its source has; run make student"
            )
        for cell, before in zip(code, old, strict=True):
            cell.outputs, cell.execution_count = before.outputs, before.execution_count
        updates.append((path, updated))
    for path, updated in updates:
        write(path, notebook.canonical(updated))
    return [path for path, _ in updates]


def problems(course: Course) -> list[Problem]:
    """Return every problem of the exercises: rules broken, notebooks that are absent, drifted or of
    no source.
    """
    problems_found: list[Problem] = []
    all_sheets = load(course)
    for sheet in all_sheets:
        problems_found += list(find_rule_problems(sheet)) + _check_built(course, sheet)
    names = {sheet.lesson.notebook_name for sheet in all_sheets}
    stray_message = (
        "no source makes this notebook; remove it, or write its source in "
        "course/instructor/exercises"
    )
    strays = sorted(
        path.name
        for path in (course.folder / "exercises").glob("*.ipynb")
        if path.name not in names
    )
    return problems_found + [Problem(name, None, stray_message) for name in strays]


def find_rule_problems(sheet: Sheet) -> Iterator[Problem]:
    """Yield a problem for an exercise without a picture or table, hints or wrong answers, and for
    too few questions.
    """
    where = f"{sheet.lesson.name}.py"
    if len(sheet.written) != WRITTEN:
        yield Problem(
            where,
            None,
            f"{len(sheet.written)} written questions, write {WRITTEN}, each with its guide",
        )
    sections = list(sections_of(sheet.lesson.cells))
    for exercise in sheet.exercises:
        section = next(
            cells
            for cells in sections
            if any(cell.metadata.get("answer") == exercise for cell in cells)
        )
        if not any(cell.metadata.get("checks") == exercise for cell in section):
            yield Problem(
                where, None, f"{exercise}: its answer and its checks stand under different headings"
            )
        texts = [cell.source for cell in section if cell.kind == "markdown"]
        pictures = [
            cell
            for cell in section
            if cell.kind == "code" and not set(cell.metadata) & set(_REGION)
        ]
        if not pictures and not any("|--" in text or "![" in text for text in texts):
            yield Problem(
                where,
                None,
                f"{exercise}: show a picture or a table between its heading and its answer",
            )
        hints = sum(len(_DETAILS.findall(text)) for text in texts)
        if hints != HINTS:
            yield Problem(
                where,
                None,
                f"{exercise}: {hints} folded hints (<details><summary>...), write {HINTS}",
            )
        wrong = sum(wrong_answer.name == exercise for wrong_answer in sheet.wrong)
        if wrong < FEWEST_WRONG:
            message = (
                f"{exercise}: {wrong} wrong answers, write at least {FEWEST_WRONG}, each with its "
                "says=..."
            )
            yield Problem(where, None, message)


def sections_of(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Yield the cells before the first heading of the second level, then those from each such
    heading on.
    """
    section: list[Cell] = []
    for cell in cells:
        if cell.kind == "markdown" and cell.source.startswith("## ") and section:
            yield section
            section = []
        section.append(cell)
    yield section


def _check_built(course: Course, sheet: Sheet) -> list[Problem]:
    path = course.folder / "exercises" / sheet.lesson.notebook_name
    if not path.is_file():
        return [Problem(path.name, None, "is not built; run make student")]
    built = nbformat.read(path, as_version=4)
    problems_found = drift(sheet, built)
    for rule in (
        checks.execution_counts,
        checks.alt_texts,
        checks.lengths,
        checks.title,
        checks.outputs,
        checks.machine,
    ):
        problems_found += rule(sheet.lesson, built)
    return problems_found + links.check_notebook(path.name, built, page=path, root=course.root)


def drift(sheet: Sheet, built: nbformat.NotebookNode) -> list[Problem]:
    """Return a problem where the built notebook is not what the source gives now; outputs are not
    looked at.
    """
    expected = released(sheet)
    want, have = ([_identity(cell) for cell in version.cells] for version in (expected, built))
    for kind, first, _, source_first, _ in SequenceMatcher(
        None, have, want, autojunk=False
    ).get_opcodes():
        if kind != "equal":
            line = sheet.lesson.cells[min(source_first, len(want) - 1)].line
            message = f"differs from line {line} of {sheet.lesson.name}.py on; run make student"
            return [Problem(sheet.lesson.notebook_name, first, message)]
    if dict(built.metadata) != dict(expected.metadata):
        return [
            Problem(
                sheet.lesson.notebook_name,
                None,
                "its metadata is not that of its source; run make student",
            )
        ]
    return []


def _identity(cell: nbformat.NotebookNode) -> tuple[str, ...]:
    return (
        cell.cell_type,
        cell.source,
        json.dumps(cell.metadata, sort_keys=True),
        str(cell.get("id")),
    )
