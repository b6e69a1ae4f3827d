"""Plant a bug in a copy of the library and see the lesson's notebook fail; without it, see the same cells pass.

A mutation proves that a lesson's compared cells watch what the library computes. The lesson runs by strict nbval in a
kernel on whose path a copy of the package stands before the installed one.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import pytest

from helpers.results import Result
from tools.authoring.course import Course
from tools.authoring.environment import headless
from tools.authoring.lesson import AuthoringError, Lesson

CELL_TIMEOUT_S = 120
LEAST_PER_LESSON = 2


@dataclass(frozen=True)
class Mutation:
    """A bug, named by ``what``: in ``module`` (a file such as helpers/units.py) ``old`` becomes ``new``."""

    lesson: str
    module: str
    old: str
    new: str
    what: str


@dataclass(frozen=True)
class Caught(Result):
    """What became of one mutation: ``cell`` is the code cell (counted from 0) that caught it, None when none did."""

    lesson: str
    module: str
    what: str
    caught_by: str
    cell: int | None = field(repr=False)


@dataclass(frozen=True)
class MutationTable(Result):
    """Every mutation and the cell that caught it."""

    mutations: tuple[Caught, ...]


def mutated(source: str, mutation: Mutation) -> str:
    """Return a module's text with the bug in it; raises AuthoringError when the mutation no longer applies."""
    count = source.count(mutation.old)
    where = f"the mutation {mutation.what!r} of {mutation.module}"
    if count != 1:
        raise AuthoringError(f"{where} no longer applies: its old text stands there {count} times, not once")
    text = source.replace(mutation.old, mutation.new)
    if text == source:
        raise AuthoringError(f"{where} changes nothing; write another new text")
    try:
        compile(text, mutation.module, "exec")
    except SyntaxError as error:
        raise AuthoringError(f"{where} is not Python any more: {error.msg}; a bug must run to be caught") from error
    return text


def attempt(course: Course, lesson: Lesson, mutation: Mutation, *, sanitize: Path) -> Caught:
    """Run the lesson's notebook on a copy of the library with the bug in it, up to the first cell that fails."""
    with _copy(course, lesson) as root:
        module = root / mutation.module
        if not module.is_file():
            raise AuthoringError(f"the mutation {mutation.what!r} is of {mutation.module}, which is no file")
        module.write_text(mutated(module.read_text(encoding="utf-8"), mutation), encoding="utf-8")
        failure = first_failure(root / "course" / lesson.notebook_name, root, sanitize=sanitize)
    cell, why = failure or (None, "")
    caught_by = "no cell" if cell is None else f"code cell {cell}: {why}"
    return Caught(lesson.number, mutation.module, mutation.what, caught_by, cell)


def control(course: Course, lesson: Lesson, *, through: int, sanitize: Path) -> tuple[int, str] | None:
    """Run the code cells 0 to ``through`` on an unchanged copy; returns the first failure, None when all pass."""
    with _copy(course, lesson) as root:
        path = root / "course" / lesson.notebook_name
        notebook = nbformat.read(path, as_version=4)
        code = [index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
        notebook.cells = notebook.cells[: code[through] + 1]
        nbformat.write(notebook, path)
        return first_failure(path, root, sanitize=sanitize)


def attempt_all(course: Course, mutations: Sequence[Mutation], *, sanitize: Path) -> MutationTable:
    """Try every mutation, then control each lesson up to the last cell that caught one.

    Raises AuthoringError when a mutation no longer applies, or a lesson fails without one.
    """
    lessons = {lesson.number: lesson for lesson in course.lessons()}
    unknown = sorted({mutation.lesson for mutation in mutations} - set(lessons))
    if unknown:
        raise AuthoringError(f"there are mutations of lesson {', '.join(unknown)}, which does not exist")
    caught = tuple(attempt(course, lessons[one.lesson], one, sanitize=sanitize) for one in mutations)
    for number in dict.fromkeys(one.lesson for one in caught):
        last = max((one.cell for one in caught if one.lesson == number and one.cell is not None), default=None)
        failure = None if last is None else control(course, lessons[number], through=last, sanitize=sanitize)
        if failure:
            cell, why = failure
            raise AuthoringError(f"lesson {number} fails without a mutation too, at code cell {cell}: {why}")
    return MutationTable(caught)


@contextmanager
def _copy(course: Course, lesson: Lesson) -> Iterator[Path]:
    """Yield a temporary root with the package, the lesson's notebook and the course's data, and nothing compiled."""
    with tempfile.TemporaryDirectory(prefix="course-mutation-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(course.root / course.package, root / course.package, ignore=ignore)
        if (course.folder / "recorded").is_dir():
            shutil.copytree(course.folder / "recorded", root / "course" / "recorded")
        (root / "course").mkdir(exist_ok=True)
        shutil.copy(course.notebook(lesson), root / "course")
        yield root


def first_failure(notebook: Path, root: Path, *, sanitize: Path) -> tuple[int, str] | None:
    """Run a notebook by strict nbval with ``root`` first on the path; returns the first failing code cell and why.

    Raises AuthoringError when nbval itself, and not a cell, failed: no kernel, nothing collected, a cell out of time.
    """
    # nbval runs within this process, as starting pytest anew takes longer than many a lesson; the kernel is its own.
    (root / "pytest.ini").write_text("[pytest]\n")
    without = (f"no:{name}" for name in ("cacheprovider", "faulthandler", "threadexception", "unraisableexception"))
    plugins = [part for name in ("nbval.plugin", *without) for part in ("-p", name)]
    arguments = ["-c", str(root / "pytest.ini"), f"--rootdir={root}", *plugins, "-q", "-x", "--color=no",
                 "--capture=no", "--assert=plain", "--nbval", "--nbval-current-env",
                 f"--nbval-sanitize-with={sanitize}",
                 f"--nbval-cell-timeout={CELL_TIMEOUT_S}", str(notebook)]  # fmt: skip
    seen = _Seen()
    shown = io.StringIO()
    with _environment(root), contextlib.redirect_stdout(shown):
        code = pytest.main(arguments, plugins=[seen])
    if code == pytest.ExitCode.OK and seen.passed:
        return None
    if code != pytest.ExitCode.TESTS_FAILED or seen.failure is None or "Timeout of" in seen.failure[1]:
        tail = " / ".join(shown.getvalue().strip().splitlines()[-4:])
        raise AuthoringError(f"{notebook.name} could not be compared: {tail or 'no cell ran'}")
    cell, text = seen.failure
    return cell, _reason(text)


@contextmanager
def _environment(root: Path) -> Iterator[None]:
    """Give kernels that start within it a headless environment in which the copy of the package is found first."""
    before, cache = dict(os.environ), root / "cache"
    cache.mkdir(exist_ok=True)  # else IPython makes a folder for its profile elsewhere, and leaves it
    path = os.pathsep.join(part for part in (str(root), before.get("PYTHONPATH", "")) if part)
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ.update(headless(cache_folder=str(cache)), PYTHONPATH=path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class _Seen:
    """A plugin of pytest that keeps how many cells passed, and the first that failed in being run or compared."""

    def __init__(self) -> None:
        self.passed = 0
        self.failure: tuple[int, str] | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        number = re.search(r"Cell (\d+)$", report.nodeid)
        if report.when == "call" and number:
            self.passed += report.passed
            if report.failed and self.failure is None:
                self.failure = int(number[1]), report.longreprtext


def _reason(text: str) -> str:
    """Return a failure in a few words: the exception that was raised, or that the outputs differ."""
    if "caused an exception" not in text:
        return "its output differs"
    raised = re.findall(r"(?m)^(?:\x1b\[[0-9;]*m)*([A-Za-z_][\w.]*)(?:\x1b\[[0-9;]*m)*: ", text)
    return f"raised {raised[-1]}" if raised else "raised an exception"
