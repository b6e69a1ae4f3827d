"""Grade a folder of submissions: find them, mark each in a process of its own, record it, and go on
where it stopped.

A submission that is marked is written down at once (``marks/STUDENT/ASSIGNMENT.json``), with what
it was made from. So a run that is killed loses at most what it was at, and the next one takes up
the rest; its temporary folder lies there, too, and is removed by then. A page is written where
something that it shows has changed.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import multiprocessing
import os
import re
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import filelock
import nbformat
from nbgrader.utils import parse_utc
from sqlalchemy.exc import OperationalError

from helpers import console, storage
from helpers.results import Result
from tools.authoring.course import HERE
from tools.authoring.environment import headless
from tools.authoring.order import title_of
from tools.exercises import handout, sheets
from tools.exercises.sheets import Sheet
from tools.grading import intake, lms, marker, sandbox, table
from tools.grading.gradebook import Book, GradingError
from tools.grading.intake import Submission
from tools.grading.marker import Mark, Marks
from tools.grading.sandbox import Limits

_GRACE_S = 60.0  # what the checks may take beyond the time of the submission
_LONGEST_TIMESTAMP = 60
_WORKING = ".grading-"  # begins the name of a run's temporary folder in the class's
_HALF_WRITTEN = ".*.tmp"  # as helpers.storage names what it writes
# 3/4/2026 is anybody's guess
_DATE = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d[\d:.]*( ?[\w/+:-]+)?", re.ASCII)
_FIRST_YEAR, _LAST_YEAR = 1990, 9000
_FAILED = "the checks failed on it"


@dataclass(frozen=True)
class Graded(Result):
    """What a run did: ``new`` submissions were marked, ``kept`` had been before; ``strange`` names
    what was none.

    ``grades`` is the path of the table of marks, which is no :meth:`table` of this result.

    ``waiting`` says which written answers have no marks of a person yet, ``files`` names what a
    system for courses imports, or why it gets none.
    """

    submissions: int
    new: int
    kept: int
    took_s: float
    strange: tuple[str, ...]
    grades: str
    waiting: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def grade(
    submissions: Path,
    into: Path,
    *,
    jobs: int = 0,
    limits: Limits | None = None,
    force: bool = False,
    listed: Path | None = None,
) -> Graded:
    """Grade what lies in ``submissions`` and write grades.csv and the pages for students below
    ``into``.

    ``submissions`` is a folder, or what Canvas or Moodle packs (``lms``). ``jobs`` sandboxes run at
    once (0: one for each processor). With ``force`` what was marked before is marked again. Each
    student on the list ``listed`` (``table.Roster``) has a row. Raises GradingError or
    SandboxError, saying what to do, before anything is run.
    """
    started_s, limits = time.monotonic(), limits or Limits()
    _refuse(submissions, into)
    sandbox.refuse_unless_working()
    sheets = {
        sheet.lesson.name: sheet for sheet in handout.of_class(into, tuple(all_sheets().values()))
    }
    roster = table.Roster.read(listed) if listed else None
    into.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(into / ".grading.lock", timeout=0):
            _remove_what_was_killed(into)
            download = lms.unpacked(submissions, into)
            found, strange = intake.find(download.folder, list(sheets))
            strange = download.strange | strange
            left_out = [f"{name!r} {why}" for name, why in strange.items()]
            if not found:
                raise GradingError(
                    "; ".join(
                        [
                            f"{submissions} holds no submission; put each at "
                            f"STUDENT/{next(iter(sheets))}.ipynb, or as "
                            "nbgrader collects them, STUDENT/ASSIGNMENT/ASSIGNMENT.ipynb",
                            *left_out[:3],
                        ]
                    )
                )
            people = table.People(
                download, roster, [*dict.fromkeys(one.student for one in found), *strange]
            )
            book = Book(into, people.names())
            for name in sorted({one.assignment for one in found}):
                book.prepare(HERE, sheets[name])
            new, changing, troubles = _mark_all(
                found, sheets, book, limits, jobs or os.cpu_count() or 1, force
            )
            left_out += [
                f"{one.student!r} changed while it was marked; grade again" for one in changing
            ]
            for one in console.track(
                [one for one in found if one not in new], "pages", unit="page"
            ):
                troubles[one] = troubles[one] or _trouble(
                    book, one, functools.partial(_page, book, one)
                )
            left_out += [
                f"{one.student!r}, {one.assignment}: {why}" for one, why in troubles.items() if why
            ]
            marks = {one: kept[1] for one in found if (kept := kept_marks(into, one))}
            rows = [book.row(sheets[one.assignment], marks[one], troubles[one]) for one in marks]
            rows = people.completed(rows, strange, sheets)
            storage.write_atomically(into / "grades.csv", table.as_csv(rows, sheets))
            unread = {(one.student, one.assignment) for one in marks if marks[one].problem}
            files = people.write_imports(into, rows, unread)
    except filelock.Timeout:
        raise GradingError(f"another run grades into {into}; wait until it has ended") from None
    return Graded(
        submissions=len(found),
        new=len(new) - len(changing),
        kept=len(found) - len(new),
        took_s=time.monotonic() - started_s,
        strange=tuple(left_out),
        grades=str(into / "grades.csv"),
        waiting=table.waiting(rows, sheets),
        files=tuple(files),
    )


def _refuse(submissions: Path, into: Path) -> None:
    if not (
        submissions.is_dir() or (submissions.is_file() and submissions.suffix.lower() == ".zip")
    ):
        raise GradingError(
            f"{submissions} is not a folder and no ZIP file; name the one that holds the "
            "submissions, SUBMISSIONS=folder"
        )
    shown = sandbox.visible()
    secret = (HERE.folder / "instructor", HERE.root / "tests", HERE.root / "_build")
    for path in (one.resolve() for one in (submissions, into, *secret)):
        around = [one for one in shown if path.is_relative_to(one)]
        if around:
            raise GradingError(
                f"{path} lies in {around[0]}, which every submission may read; move it elsewhere"
            )


def _remove_what_was_killed(into: Path) -> None:
    """Remove what runs that were killed left: their working folders, and files that were being
    written.
    """
    for stale in into.glob(f"{_WORKING}*"):
        if stale.is_dir():
            shutil.rmtree(stale)
    for folder in (
        into,
        *(into / name for name in ("marks", "read", "feedback", "source", "release")),
    ):
        for stale in folder.rglob(_HALF_WRITTEN) if folder != into else folder.glob(_HALF_WRITTEN):
            stale.unlink()


def _mark_all(
    found: Sequence[Submission],
    sheets: dict[str, Sheet],
    book: Book,
    limits: Limits,
    jobs: int,
    force: bool,
) -> tuple[list[Submission], list[Submission], dict[Submission, str]]:
    """Mark what is not marked yet, record what is not recorded.

    Returns what was marked, whose pages are written; those of it whose file changed meanwhile,
    twice: not marked; and of each submission why it could not be written down, "" where it was.
    """
    made_from = {one: _fingerprint(sheets[one.assignment], one) for one in found}
    troubles = dict.fromkeys(found, "")
    todo = []
    for one in found:
        kept = kept_marks(book.folder, one)
        if force or kept is None or kept[0] != made_from[one]:
            todo.append(one)
            continue
        dated = _dated(one, kept[1])
        if dated != kept[1]:
            _keep(book.folder, one, kept[0], dated)
        if dated != kept[1] or not book.holds(dated):
            troubles[one] = _trouble(
                book, one, functools.partial(_record, book, sheets[one.assignment], one, dated)
            )
    again: list[Submission] = []
    changing: list[Submission] = []

    def take(one: Submission, marks: Marks, *, last: bool) -> None:
        before, made_from[one] = made_from[one], _fingerprint(sheets[one.assignment], one)
        if made_from[one] != before and last:
            changing.append(one)
        elif made_from[one] != before or (marks.disturbed and not last):
            again.append(one)
        else:
            dated = _dated(one, marks)
            _keep(book.folder, one, "" if marks.problem.startswith(_FAILED) else before, dated)
            troubles[one] = _trouble(
                book, one, lambda: _write_down(book, sheets[one.assignment], one, dated)
            )

    with tempfile.TemporaryDirectory(
        prefix=_WORKING, dir=book.folder, ignore_cleanup_errors=True
    ) as folder:
        marked = _marked(todo, limits, jobs, folder)
        for one, marks in console.track(marked, "grading", unit="submission", total=len(todo)):
            take(one, marks, last=False)
        # one at a time, so that no other takes the memory
        for one, marks in _marked(again, limits, 1, folder):
            take(one, marks, last=True)
    return todo, changing, troubles


def _trouble(book: Book, one: Submission, work: Callable[[], object]) -> str:
    """Do what writes a submission down; return what it failed at, "" where it did not: others are
    graded all the same.

    A full disk or a closed folder is no submission's, and is raised.
    """
    try:
        work()
    except (OSError, OperationalError):
        raise
    except Exception as error:
        book.forget_page(one.assignment, one.student)
        said = " ".join(str(error).encode("utf-8", "replace").decode().split())[:200]
        return f"marked, but no page could be written ({type(error).__name__}: {said})"
    return ""


def _write_down(book: Book, sheet: Sheet, one: Submission, marks: Marks) -> None:
    _record(book, sheet, one, marks)
    _page(book, one)  # at once, while the next ones run


def _page(book: Book, one: Submission) -> None:
    book.page(one.assignment, one.student)


def _record(book: Book, sheet: Sheet, one: Submission, marks: Marks) -> None:
    notebook = sheets.released(sheet) if marks.problem else intake.clean(sheet, one.path)
    book.record(sheet, marks, notebook)


def _dated(one: Submission, marks: Marks) -> Marks:
    """Return the marks with when the submission was handed in, or with a note where the file that
    says so does not.
    """
    notes = tuple(note for note in marks.notes if not note.startswith(intake.TIMESTAMP))
    # the file may be another than in an earlier run
    marks = dataclasses.replace(marks, handed_in="", notes=notes)
    stamp = one.path.with_name(intake.TIMESTAMP)
    if stamp.is_symlink() or not stamp.is_file():
        return marks
    with stamp.open("rb") as file:
        text = file.read(_LONGEST_TIMESTAMP + 1).decode("utf-8", "replace").strip()
    try:
        when = (
            parse_utc(text) if _DATE.fullmatch(text) and len(text) <= _LONGEST_TIMESTAMP else None
        )
    except (ValueError, OverflowError, TypeError, AttributeError):
        # of the libraries that read dates
        when = None
    if when is None or not _FIRST_YEAR <= when.year <= _LAST_YEAR:
        note = (
            f"{intake.TIMESTAMP} holds no date such as 2026-11-22 10:00:00 UTC, so nobody knows "
            "when it came"
        )
        return dataclasses.replace(marks, notes=(*marks.notes, note))
    return dataclasses.replace(marks, handed_in=str(when))


def _fingerprint(sheet: Sheet, one: Submission) -> str:
    """Return what the marks of a submission depend on: its file, or why it cannot be read, and the
    exercises.
    """
    text = nbformat.writes(sheets.instructor(sheet))
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
    """Return the marks that were written down, and what they were made from; None where there are
    none.
    """
    path = _marks_path(folder, one)
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        fields = content["marks"]
        marks = tuple(
            Mark(**{**mark, "goals": tuple(map(tuple, mark["goals"]))}) for mark in fields["marks"]
        )
        return content["fingerprint"], Marks(
            **{**fields, "marks": marks, "notes": tuple(fields.get("notes", ()))}
        )
    except (ValueError, KeyError, TypeError):  # somebody's own, or of another version of the course
        return None


def _marked(
    todo: Sequence[Submission], limits: Limits, jobs: int, folder: str
) -> Iterator[tuple[Submission, Marks]]:
    """Yield each submission with its marks, as they are done, ``jobs`` at once, each in a fresh
    process.

    ``folder`` is theirs, for what may be lost. The next one has started when one is yielded, so
    that no processor waits for what is done with its marks.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tools.grading.preload"])
    waiting = list(todo)
    running: dict[Connection, tuple[Submission, ForkServerProcess, float]] = {}

    def fill() -> None:
        while waiting and len(running) < jobs:
            one = waiting.pop(0)
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(theirs, one, limits), name=one.student, daemon=True
            )
            process.start()
            theirs.close()
            running[ours] = (one, process, time.monotonic())

    before = dict(os.environ)
    # for the processes that are started; back at the end
    os.environ.update(headless(cache_folder=folder))
    try:
        fill()
        while running:
            ready = wait(list(running), timeout=1.0)
            for pipe in [pipe for pipe in running if pipe in ready]:
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
    sheet = _sheet(one.assignment)
    marks = tuple(
        Mark(name, 0.0, sheet.cell("checks", name).metadata["points"], "", ())
        for name in sheet.exercises
    )
    return Marks(one.student, one.assignment, marks, problem=why, disturbed=True)


@functools.cache
def all_sheets() -> dict[str, Sheet]:
    """Return the exercises of every lesson, by the name of their notebook; read once."""
    return {sheet.lesson.name: sheet for sheet in sheets.load(HERE)}


def _sheet(assignment: str) -> Sheet:
    """Return the exercises of an assignment, under its name in the class."""
    sheets = {title_of(name): sheet for name, sheet in all_sheets().items()}
    return sheets[title_of(assignment)].named(assignment)


def _work(pipe: Connection, one: Submission, limits: Limits) -> None:
    """Mark one submission and send its marks, or a sentence on why none can be marked at all.

    What the submission asks for may be made here, on the checks' side, so that the limit on memory
    holds here as well.
    """
    threading.Thread(target=_end_with, args=(pipe,), daemon=True).start()
    resource.setrlimit(resource.RLIMIT_DATA, (limits.memory_bytes, limits.memory_bytes))
    try:
        sandbox.leave_keys()
        pipe.send(marker.mark(_sheet(one.assignment), one, limits))
    except sandbox.SandboxError as error:
        pipe.send(str(error))
    except Exception as error:
        pipe.send(
            _none(one, f"{_FAILED} ({type(error).__name__}); it is marked again in the next run")
        )


def _end_with(pipe: Connection, end: Callable[[int], Any] = os._exit) -> None:
    """End this process, and its sandbox with it, when the one that grades has gone."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        end(1)
