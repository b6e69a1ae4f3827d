"""Grade a folder of submissions: find them, mark each in a process of its own, record it, and go on where it stopped.

A submission that is marked is written down at once (``marks/STUDENT/ASSIGNMENT.json``), with what it was made from. So
a run that is killed loses at most what it was at, and the next one takes up the rest; its temporary folder lies there,
too, and is removed by then. A page is written where something that it shows has changed.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import filelock
import nbformat

from course.authoring import exercises
from course.authoring.course import HERE
from course.authoring.environment import headless
from course.authoring.exercises import Sheet
from course.grading import intake, marker, sandbox
from course.grading.gradebook import Book, GradingError
from course.grading.intake import Submission
from course.grading.marker import Mark, Marks
from course.grading.sandbox import Limits
from helpers import console, storage
from helpers.results import Result

_GRACE_S = 60.0  # what the checks may take beyond the time of the submission
_LONGEST_TIMESTAMP = 60
_WORKING = ".grading-"  # begins the name of a run's temporary folder in the class's
_FAILED = "the checks failed on it"


@dataclass(frozen=True)
class Graded(Result):
    """What a run did: ``new`` submissions were marked, ``kept`` had been before; ``strange`` names what was none.

    For the library itself.
    """

    submissions: int
    new: int
    kept: int
    took_s: float
    strange: tuple[str, ...]
    table: str


def grade(submissions: Path, into: Path, *, jobs: int = 0, limits: Limits | None = None, force: bool = False) -> Graded:
    """Grade what lies in ``submissions`` and write grades.csv and the pages for students below ``into``.

    ``jobs`` sandboxes run at once (0: one for each processor). With ``force`` what was marked before is marked again.
    Raises GradingError or SandboxError, saying what to do, before anything is run.
    """
    started_s, limits = time.monotonic(), limits or Limits()
    _refuse(submissions, into)
    sandbox.refuse_unless_working()
    sheets = all_sheets()
    found, strange = intake.find(submissions, list(sheets))
    if not found:
        raise GradingError(f"{submissions} holds no submission; put each at STUDENT/{next(iter(sheets))}.ipynb, or as "
                           "nbgrader collects them, STUDENT/ASSIGNMENT/ASSIGNMENT.ipynb")  # fmt: skip
    into.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(into / ".grading.lock", timeout=0):
            for stale in into.glob(f"{_WORKING}*"):
                shutil.rmtree(stale)
            book = Book(into)
            for name in sorted({one.assignment for one in found}):
                book.prepare(HERE, sheets[name])
            new, changing = _mark_all(found, sheets, book, limits, jobs or os.cpu_count() or 1, force)
            strange += [f"{one.student!r} changed while it was marked; grade again" for one in changing]
            for one in console.track([one for one in found if one not in new], "pages", unit="page"):
                book.page(one.assignment, one.student)
            table = into / "grades.csv"
            kept = [marks for one in found if (marks := kept_marks(into, one))]
            storage.write_atomically(table, book.table([marks for _, marks in kept]))
    except filelock.Timeout:
        raise GradingError(f"another run grades into {into}; wait until it has ended") from None
    took_s = time.monotonic() - started_s
    return Graded(len(found), len(new) - len(changing), len(found) - len(new), took_s, tuple(strange), str(table))


def _refuse(submissions: Path, into: Path) -> None:
    if not submissions.is_dir():
        raise GradingError(
            f"{submissions} is not a folder; name the one that holds the submissions, SUBMISSIONS=folder"
        )
    for path in (submissions.resolve(), into.resolve()):
        around = [one for one in sandbox.visible() if path.is_relative_to(one)]
        if around:
            raise GradingError(f"{path} lies in {around[0]}, which every submission may read; move it elsewhere")


def _mark_all(
    found: Sequence[Submission], sheets: dict[str, Sheet], book: Book, limits: Limits, jobs: int, force: bool
) -> tuple[list[Submission], list[Submission]]:
    """Mark what is not marked yet, record what is not recorded.

    Returns what was marked, whose pages are written, and those of it whose file changed meanwhile, twice: not marked.
    """
    made_from = {one: _fingerprint(sheets[one.assignment], one) for one in found}
    todo = []
    for one in found:
        kept = kept_marks(book.folder, one)
        if force or kept is None or kept[0] != made_from[one]:
            todo.append(one)
        elif not book.holds(kept[1]):
            _record(book, sheets[one.assignment], one, kept[1])
    again: list[Submission] = []
    changing: list[Submission] = []

    def take(one: Submission, marks: Marks, *, last: bool) -> None:
        before, made_from[one] = made_from[one], _fingerprint(sheets[one.assignment], one)
        if made_from[one] != before and last:
            changing.append(one)
        elif made_from[one] != before or (marks.disturbed and not last):
            again.append(one)
        else:
            _keep(book.folder, one, "" if marks.problem.startswith(_FAILED) else before, marks)
            _record(book, sheets[one.assignment], one, marks)
            book.page(one.assignment, one.student)  # at once, while the next ones run

    with tempfile.TemporaryDirectory(prefix=_WORKING, dir=book.folder, ignore_cleanup_errors=True) as folder:
        marked = _marked(todo, limits, jobs, folder)
        for one, marks in console.track(marked, "grading", unit="submission", total=len(todo)):
            take(one, marks, last=False)
        for one, marks in _marked(again, limits, 1, folder):  # one at a time, so that no other takes the memory
            take(one, marks, last=True)
    return todo, changing


def _record(book: Book, sheet: Sheet, one: Submission, marks: Marks) -> None:
    notebook = exercises.released(sheet) if marks.problem else intake.clean(sheet, one.path)
    stamp = one.path.with_name("timestamp.txt")
    text = stamp.read_text(errors="replace") if stamp.is_file() and not stamp.is_symlink() else ""
    book.record(sheet, marks, notebook, text if len(text) <= _LONGEST_TIMESTAMP else "")


def _fingerprint(sheet: Sheet, one: Submission) -> str:
    """Return what the marks of a submission depend on: its file, or why it cannot be read, and the exercises."""
    text = nbformat.writes(exercises.instructor(sheet))
    try:
        content = one.digest()
    except intake.IntakeError as error:
        content = str(error)
    return hashlib.sha256(f"{content}\n{text}".encode()).hexdigest()


def _marks_path(folder: Path, one: Submission) -> Path:
    return folder / "marks" / one.student / f"{one.assignment}.json"


def _keep(folder: Path, one: Submission, fingerprint: str, marks: Marks) -> None:
    path = _marks_path(folder, one)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"fingerprint": fingerprint, "marks": dataclasses.asdict(marks)}, indent=1)
    storage.write_atomically(path, text + "\n")


def kept_marks(folder: Path, one: Submission) -> tuple[str, Marks] | None:
    """Return the marks that were written down, and what they were made from; None where there are none."""
    path = _marks_path(folder, one)
    if not path.is_file():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    fields = content["marks"]
    marks = tuple(Mark(**{**mark, "goals": tuple(map(tuple, mark["goals"]))}) for mark in fields["marks"])
    return content["fingerprint"], Marks(**{**fields, "marks": marks})


def _marked(todo: Sequence[Submission], limits: Limits, jobs: int, folder: str) -> Iterator[tuple[Submission, Marks]]:
    """Yield each submission with its marks, as they are done, ``jobs`` at once, each in a fresh process.

    ``folder`` is theirs, for what may be lost. The next one has started when one is yielded, so that no processor waits
    for what is done with its marks.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["course.grading.preload"])
    waiting, running = list(todo), {}

    def fill() -> None:
        while waiting and len(running) < jobs:
            one = waiting.pop(0)
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, one, limits), name=one.student, daemon=True)
            process.start()
            theirs.close()
            running[ours] = (one, process, time.monotonic())

    before = dict(os.environ)
    os.environ.update(headless(cache_folder=folder))  # for the processes that are started; back at the end
    try:
        fill()
        while running:
            for pipe in wait(list(running), timeout=1.0):
                one, process, _ = running[pipe]
                marks = _result(pipe, one, "its marking ended without a result")
                del running[pipe]
                _end(process)
                fill()
                yield one, marks
            for pipe, (one, process, start_s) in list(running.items()):
                if time.monotonic() - start_s > limits.total_s + _GRACE_S:
                    del running[pipe]
                    _end(process)
                    fill()
                    yield one, _none(one, "its answers kept the checks busy for too long")
    finally:
        for _, process, _ in running.values():
            _end(process)
        os.environ.clear()
        os.environ.update(before)


def _end(process: Any) -> None:
    process.join(timeout=5)
    if process.is_alive():
        process.kill()
        process.join()


def _result(pipe: Connection, one: Submission, otherwise: str) -> Marks:
    try:
        result = pipe.recv()
    except EOFError:
        return _none(one, otherwise)
    if isinstance(result, str):
        raise GradingError(result)
    return result


def _none(one: Submission, why: str) -> Marks:
    sheet = all_sheets()[one.assignment]
    marks = tuple(Mark(name, 0.0, sheet.cell("checks", name).metadata["points"], "", ()) for name in sheet.exercises)
    return Marks(one.student, one.assignment, marks, problem=why, disturbed=True)


@functools.cache
def all_sheets() -> dict[str, Sheet]:
    """Return the exercises of every lesson, by the name of their notebook; read once. For the library itself."""
    return {sheet.lesson.name: sheet for sheet in exercises.sheets(HERE)}


def _work(pipe: Connection, one: Submission, limits: Limits) -> None:
    """Mark one submission and send its marks, or a sentence on why none can be marked at all.

    What the submission asks for may be made here, on the checks' side, so that the limit on memory holds here as well.
    """
    threading.Thread(target=_end_with, args=(pipe,), daemon=True).start()
    resource.setrlimit(resource.RLIMIT_DATA, (limits.memory_bytes, limits.memory_bytes))
    try:
        sandbox.leave_keys()
        pipe.send(marker.mark(all_sheets()[one.assignment], one, limits))
    except sandbox.SandboxError as error:
        pipe.send(str(error))
    except Exception as error:
        pipe.send(_none(one, f"{_FAILED} ({type(error).__name__}); it is marked again in the next run"))


def _end_with(pipe: Connection, end: Callable[[int], Any] = os._exit) -> None:
    """End this process, and its sandbox with it, when the one that grades has gone."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        end(1)
