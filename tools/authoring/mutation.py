"""Plant a bug in a copy of the library and see the lesson's notebook fail; without it, see the same
cells pass.

A mutation proves that a lesson's compared cells watch what the library computes. The lesson runs by
strict nbval in a kernel on whose path a copy of the package stands before the installed one. Of the
lesson those cells run that show the bugs, and those that they take a name from; that the rest of it
passes, its notebook's own test says.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

from helpers.results import Result
from tools.authoring import names, strict
from tools.authoring.course import Course
from tools.authoring.lesson import AuthoringError, Lesson

LEAST_PER_LESSON = 2
# what of an output is not compared, for nbval as well
SANITIZE = Path(__file__).with_name("sanitize.cfg")


@dataclass(frozen=True)
class Mutation:
    """A bug, named by ``what``: in ``module`` (a file such as helpers/units.py) ``old`` becomes
    ``new``.

    ``shown_by`` is text of the one code cell that shows it; without it the lesson runs from its
    beginning.
    """

    lesson: str
    module: str
    old: str
    new: str
    what: str
    shown_by: str | None = None


@dataclass(frozen=True)
class Caught(Result):
    """The fate of one mutation: ``cell`` is the code cell (counted from 0) that caught it, None
    when none did.
    """

    lesson: str
    module: str
    what: str
    caught_by: str
    cell: int | None = field(repr=False)


@dataclass(frozen=True)
class MutationTable(Result):
    """Every mutation and the cell that caught it."""

    mutations: tuple[Caught, ...]


def plant(source: str, mutation: Mutation) -> str:
    """Return a module's text with the bug in it; raises AuthoringError when the mutation no longer
    applies.
    """
    count = source.count(mutation.old)
    where = f"the mutation {mutation.what!r} of {mutation.module}"
    if count != 1:
        raise AuthoringError(
            f"{where} no longer applies: its old text stands there {count} times, not once"
        )
    text = source.replace(mutation.old, mutation.new)
    if text == source:
        raise AuthoringError(f"{where} changes nothing; write another new text")
    try:
        compile(text, mutation.module, "exec")
    except SyntaxError as error:
        raise AuthoringError(
            f"{where} is not Python any more: {error.msg}; a bug must run to be caught"
        ) from error
    return text


def needed_cells(sources: Sequence[str], shown_by: Sequence[str]) -> frozenset[int]:
    """Return the indices of the cells that hold the texts, and of all that these take a name from,
    directly or not.

    Raises AuthoringError for a text that stands not in one cell alone.
    """
    holder_indices = []
    for text in shown_by:
        holders = [index for index, source in enumerate(sources) if text in source]
        if len(holders) != 1:
            raise AuthoringError(
                f"{text!r}, which names a cell, stands in {len(holders)} code cells, not in one"
            )
        holder_indices += holders
    return names.needed_cells(sources, holder_indices)


def attempt(
    course: Course,
    lesson: Lesson,
    mutation: Mutation,
    *,
    sanitize: Path,
    kernels: Path,
    cells: Collection[int] | None = None,
) -> Caught:
    """Run code cells (None: all) on a copy of the library with the bug in it, up to the first cell
    that fails.

    ``kernels`` is the folder of :func:`tools.authoring.warm.kernels`.
    """
    with _copy(course, lesson, cells) as root:
        module = root / mutation.module
        if not module.is_file():
            raise AuthoringError(
                f"the mutation {mutation.what!r} is of {mutation.module}, which is no file"
            )
        text = plant(module.read_text(encoding="utf-8"), mutation)
        for bytecode_file in module.parent.glob(f"__pycache__/{module.stem}.*"):
            # Python would take it for the new text if that is as long and of the same second
            bytecode_file.unlink()
        module.write_text(text, encoding="utf-8")
        failure = first_failure(
            root / "course" / lesson.notebook_name, root, sanitize=sanitize, kernels=kernels
        )
    cell, why = failure or (None, "")
    caught_by = "no cell" if cell is None else f"code cell {cell}: {why}"
    return Caught(lesson.number, mutation.module, mutation.what, caught_by, cell)


def control(
    course: Course, lesson: Lesson, cells: Collection[int], *, sanitize: Path, kernels: Path
) -> tuple[int, str] | None:
    """Run code cells on an unchanged copy; returns the first failure, None when all pass."""
    with _copy(course, lesson, cells) as root:
        return first_failure(
            root / "course" / lesson.notebook_name, root, sanitize=sanitize, kernels=kernels
        )


def attempt_all(
    course: Course, mutations: Sequence[Mutation], *, sanitize: Path, kernels: Path
) -> MutationTable:
    """Try every mutation, then control each lesson: the same cells, up to the last one that caught
    a mutation.

    Raises AuthoringError when a mutation no longer applies, or a lesson fails without one.
    """
    lessons = {lesson.number: lesson for lesson in course.lessons()}
    by_lesson: dict[str, list[Mutation]] = {}
    for mutation in mutations:
        by_lesson.setdefault(mutation.lesson, []).append(mutation)
    unknown = sorted(set(by_lesson) - set(lessons))
    if unknown:
        raise AuthoringError(
            f"there are mutations of lesson {', '.join(unknown)}, which does not exist"
        )
    tables = (
        _attempt_lesson(
            course, lessons[number], lesson_mutations, sanitize=sanitize, kernels=kernels
        )
        for number, lesson_mutations in by_lesson.items()
    )
    return MutationTable(tuple(result for table in tables for result in table))


def _attempt_lesson(
    course: Course, lesson: Lesson, mutations: Sequence[Mutation], *, sanitize: Path, kernels: Path
) -> list[Caught]:
    sources = [cell.source for cell in course.built(lesson).cells if cell.cell_type == "code"]
    texts = [mutation.shown_by for mutation in mutations if mutation.shown_by is not None]
    cells = (
        needed_cells(sources, texts)
        if len(texts) == len(mutations)
        else frozenset(range(len(sources)))
    )
    results = [
        attempt(course, lesson, mutation, sanitize=sanitize, kernels=kernels, cells=cells)
        for mutation in mutations
    ]
    last = max((result.cell for result in results if result.cell is not None), default=-1)
    control_cells = frozenset(cell for cell in cells if cell <= last)
    failure = (
        control(course, lesson, control_cells, sanitize=sanitize, kernels=kernels)
        if control_cells
        else None
    )
    if failure:
        cell, why = failure
        raise AuthoringError(
            f"lesson {lesson.number} fails without a mutation too, at code cell {cell}: {why}"
        )
    return results


@contextmanager
def _copy(course: Course, lesson: Lesson, cells: Collection[int] | None) -> Iterator[Path]:
    """Yield a temporary root with the package, the course's data and checks, and the notebook
    without other cells.
    """
    with tempfile.TemporaryDirectory(
        prefix="course-mutation-", ignore_cleanup_errors=True
    ) as folder:
        root = Path(folder)
        shutil.copytree(course.root / course.package, root / course.package)
        for folder_name in ("recorded", "source/checks"):
            if (course.folder / folder_name).is_dir():
                shutil.copytree(course.folder / folder_name, root / "course" / folder_name)
        (root / "course").mkdir(exist_ok=True)
        notebook = course.built(lesson)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        for index, cell in enumerate(code):
            if cells is not None and index not in cells:
                cell.metadata["tags"] = [*cell.metadata.get("tags", ()), "nbval-skip"]
        nbformat.write(notebook, root / "course" / lesson.notebook_name)
        yield root


def first_failure(
    notebook: Path, root: Path, *, sanitize: Path, kernels: Path
) -> tuple[int, str] | None:
    """Run a notebook by strict nbval with ``root`` first on the path; returns the first failing
    code cell and why.

    Raises AuthoringError when nbval itself, and not a cell, failed: no kernel, nothing collected, a
    cell out of time.
    """
    for failure in strict.failures(
        notebook, root, sanitize=sanitize, kernels=kernels, first_only=True
    ):
        if failure.why == strict.OUT_OF_TIME:
            raise AuthoringError(
                f"{notebook.name} could not be compared: code cell {failure.cell} {failure.why}"
            )
        return failure.cell, failure.why
    return None
