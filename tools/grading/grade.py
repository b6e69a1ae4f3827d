"""Grade a folder of submissions: find them, mark each in a process of its own, record it, and go on
where it stopped.

A submission that is marked is written down at once (``marks/STUDENT/ASSIGNMENT.json``), with what
it was made from. So a run that is killed loses at most what it was at, and the next one takes up
the rest; its temporary folder lies there, too, and is removed by then. A page is written where
something that it shows has changed.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
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
from tools.grading.lms import Download
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
    """The outcome of a run: ``new`` submissions were marked, ``unchanged`` had been before;
    ``skipped`` names what was none.

    ``grades`` is the path of the table of marks, which is no :meth:`table` of this result.

    ``awaiting_marks`` says which written answers have no marks of a person yet, ``files`` names
    what a system for courses imports, or why it gets none.
    """

    submissions: int
    new: int
    unchanged: int
    took_s: float
    skipped: tuple[str, ...]
    grades: str
    awaiting_marks: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass
class _Run:
    """The submissions of a run and their states, which the steps below bring forward.

    ``fingerprints`` says what the marks of each depend on; ``unchanged`` holds those that were
    marked before, as they were written down, ``to_mark`` the others, and ``changing`` those of them
    whose file changed while it was marked, twice: not marked. ``errors`` says of each why it could
    not be written down, "" where it was.
    """

    book: Book
    sheets: dict[str, Sheet]
    submissions: list[Submission]
    fingerprints: dict[Submission, str]
    unchanged: dict[Submission, tuple[str, Marks]]
    to_mark: list[Submission]
    changing: list[Submission]
    errors: dict[Submission, str]

    def sheet(self, submission: Submission) -> Sheet:
        return self.sheets[submission.assignment]

    def take_fingerprint(self, submission: Submission) -> bool:
        """Fingerprint a submission again; return True where it has changed since the last time."""
        before = self.fingerprints[submission]
        self.fingerprints[submission] = _fingerprint(self.sheet(submission), submission)
        return self.fingerprints[submission] != before


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
    sheets_by_name = {
        sheet.lesson.name: sheet for sheet in handout.of_class(into, tuple(all_sheets().values()))
    }
    roster = table.Roster.read(listed) if listed else None
    into.mkdir(parents=True, exist_ok=True)
    with _lock_and_unpack(submissions, into) as download:
        to_grade, skipped = _find(submissions, download, list(sheets_by_name))
        students = dict.fromkeys(submission.student for submission in to_grade)
        people = table.People(download, roster, [*students, *skipped])
        run = _begin(Book(into, people.names()), sheets_by_name, to_grade, force)
        with contextlib.closing(_mark(run, limits, jobs or os.cpu_count() or 1)) as marked:
            _record(run, marked)
        rows, files = _write_outputs(run, people, skipped, into)
    return Graded(
        submissions=len(to_grade),
        new=len(run.to_mark) - len(run.changing),
        unchanged=len(run.unchanged),
        took_s=time.monotonic() - started_s,
        skipped=(*_as_lines(skipped), *_lines_on_failures(run)),
        grades=str(into / "grades.csv"),
        awaiting_marks=table.awaiting_marks(rows, sheets_by_name),
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
    visible = sandbox.visible_folders()
    secret = (HERE.folder / "instructor", HERE.root / "tests", HERE.root / "_build")
    for path in (folder.resolve() for folder in (submissions, into, *secret)):
        around = [folder for folder in visible if path.is_relative_to(folder)]
        if around:
            raise GradingError(
                f"{path} lies in {around[0]}, which every submission may read; move it elsewhere"
            )


@contextlib.contextmanager
def _lock_and_unpack(submissions: Path, into: Path) -> Iterator[Download]:
    """Yield the folder of submissions, while no other run may grade into the same folder."""
    try:
        with filelock.FileLock(into / ".grading.lock", timeout=0):
            _remove_what_was_killed(into)
            yield lms.unpack(submissions, into)
    except filelock.Timeout:
        raise GradingError(f"another run grades into {into}; wait until it has ended") from None


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


def _find(
    source: Path, download: Download, assignments: list[str]
) -> tuple[list[Submission], dict[str, str]]:
    """Return the submissions of a download of ``source``, and by its name why a file or folder
    holds none.

    Raises GradingError where there is no submission at all.
    """
    to_grade, unusable = intake.find(download.folder, assignments)
    skipped = download.skipped | unusable
    if not to_grade:
        hint = (
            f"{source} holds no submission; put each at STUDENT/{assignments[0]}.ipynb, or as "
            "nbgrader collects them, STUDENT/ASSIGNMENT/ASSIGNMENT.ipynb"
        )
        raise GradingError("; ".join([hint, *_as_lines(skipped)[:3]]))
    return to_grade, skipped


def _begin(book: Book, sheets: dict[str, Sheet], to_grade: list[Submission], force: bool) -> _Run:
    """Release the assignments into the gradebook, and part what is to be marked from what was."""
    for assignment in sorted({submission.assignment for submission in to_grade}):
        book.prepare(HERE, sheets[assignment])
    fingerprints = {
        submission: _fingerprint(sheets[submission.assignment], submission)
        for submission in to_grade
    }
    unchanged, to_mark = {}, []
    for submission in to_grade:
        saved = load_marks(book.folder, submission)
        if force or saved is None or saved[0] != fingerprints[submission]:
            to_mark.append(submission)
        else:
            unchanged[submission] = saved
    errors = dict.fromkeys(to_grade, "")
    return _Run(book, sheets, to_grade, fingerprints, unchanged, to_mark, [], errors)


def _mark(run: _Run, limits: Limits, jobs: int) -> Generator[tuple[Submission, Marks]]:
    """Yield each submission that is not marked yet with its marks, as they are done.

    One that the machine disturbed, or whose file changed meanwhile, is marked a second time.
    """
    again: list[Submission] = []
    with tempfile.TemporaryDirectory(
        prefix=_WORKING, dir=run.book.folder, ignore_cleanup_errors=True
    ) as folder:
        marked = _mark_in_processes(run.to_mark, limits, jobs, folder)
        for submission, marks in console.track(
            marked, "grading", unit="submission", total=len(run.to_mark)
        ):
            if run.take_fingerprint(submission) or marks.disturbed:
                again.append(submission)
            else:
                yield submission, marks
        # one at a time, so that no other takes the memory
        for submission, marks in _mark_in_processes(again, limits, 1, folder):
            if run.take_fingerprint(submission):
                run.changing.append(submission)
            else:
                yield submission, marks


def _record(run: _Run, marked: Iterable[tuple[Submission, Marks]]) -> None:
    """Write down what the gradebook lacks of marks made before, then each of the new ones at once,
    with its page.
    """
    for submission, (fingerprint, marks) in run.unchanged.items():
        dated = _with_submission_time(submission, marks)
        if dated != marks:
            _save_marks(run.book.folder, submission, fingerprint, dated)
        if dated != marks or not run.book.holds(dated):
            work = functools.partial(
                _record_in_book, run.book, run.sheet(submission), submission, dated
            )
            run.errors[submission] = _record_error(run.book, submission, work)
    for submission, marks in marked:
        dated = _with_submission_time(submission, marks)
        fingerprint = "" if marks.problem.startswith(_FAILED) else run.fingerprints[submission]
        _save_marks(run.book.folder, submission, fingerprint, dated)
        work = functools.partial(
            _record_with_page, run.book, run.sheet(submission), submission, dated
        )
        run.errors[submission] = _record_error(run.book, submission, work)


def _write_outputs(
    run: _Run, people: table.People, skipped: Mapping[str, str], into: Path
) -> tuple[list[dict[str, Any]], list[str]]:
    """Write the pages of unchanged submissions, grades.csv, and what Canvas or Moodle imports.

    Returns the rows of grades.csv, and a line on each file to import.
    """
    for submission in console.track(list(run.unchanged), "pages", unit="page"):
        run.errors[submission] = run.errors[submission] or _record_error(
            run.book, submission, functools.partial(_write_page, run.book, submission)
        )
    marks = {
        submission: saved[1]
        for submission in run.submissions
        if (saved := load_marks(into, submission))
    }
    rows = [
        run.book.row(run.sheet(submission), marks[submission], run.errors[submission])
        for submission in marks
    ]
    rows = people.complete(rows, skipped, run.sheets)
    storage.write_atomically(into / "grades.csv", table.as_csv(rows, run.sheets))
    unread = {
        (submission.student, submission.assignment)
        for submission in marks
        if marks[submission].problem
    }
    return rows, people.write_imports(into, rows, unread)


def _as_lines(skipped: Mapping[str, str]) -> list[str]:
    return [f"{name!r} {reason}" for name, reason in skipped.items()]


def _lines_on_failures(run: _Run) -> list[str]:
    """Return a line on each submission that changed while it was marked or was not written down."""
    changing = [
        f"{submission.student!r} changed while it was marked; grade again"
        for submission in run.changing
    ]
    unwritten = [
        f"{submission.student!r}, {submission.assignment}: {error}"
        for submission, error in run.errors.items()
        if error
    ]
    return [*changing, *unwritten]


def _record_error(book: Book, submission: Submission, work: Callable[[], object]) -> str:
    """Do the work that writes a submission down; return why it failed, "" where it did not.

    Others are graded all the same.

    A full disk or a closed folder is no submission's, and is raised.
    """
    try:
        work()
    except (OSError, OperationalError):
        raise
    except Exception as error:
        book.forget_page(submission.assignment, submission.student)
        message = " ".join(str(error).encode("utf-8", "replace").decode().split())[:200]
        return f"marked, but no page could be written ({type(error).__name__}: {message})"
    return ""


def _record_with_page(book: Book, sheet: Sheet, submission: Submission, marks: Marks) -> None:
    _record_in_book(book, sheet, submission, marks)
    _write_page(book, submission)  # at once, while the next ones run


def _write_page(book: Book, submission: Submission) -> None:
    book.page(submission.assignment, submission.student)


def _record_in_book(book: Book, sheet: Sheet, submission: Submission, marks: Marks) -> None:
    notebook = sheets.released(sheet) if marks.problem else intake.clean(sheet, submission.path)
    book.record(sheet, marks, notebook)


def _with_submission_time(submission: Submission, marks: Marks) -> Marks:
    """Return the marks with the time when the submission was handed in, or with a note where the
    file that says so does not.
    """
    notes = tuple(note for note in marks.notes if not note.startswith(intake.TIMESTAMP))
    # the file may be another than in an earlier run
    marks = dataclasses.replace(marks, handed_in="", notes=notes)
    timestamp_file = submission.path.with_name(intake.TIMESTAMP)
    if timestamp_file.is_symlink() or not timestamp_file.is_file():
        return marks
    with timestamp_file.open("rb") as file:
        text = file.read(_LONGEST_TIMESTAMP + 1).decode("utf-8", "replace").strip()
    try:
        submitted_at = (
            parse_utc(text) if _DATE.fullmatch(text) and len(text) <= _LONGEST_TIMESTAMP else None
        )
    except (ValueError, OverflowError, TypeError, AttributeError):
        # of the libraries that read dates
        submitted_at = None
    if submitted_at is None or not _FIRST_YEAR <= submitted_at.year <= _LAST_YEAR:
        note = (
            f"{intake.TIMESTAMP} holds no date such as 2026-11-22 10:00:00 UTC, so nobody knows "
            "when it came"
        )
        return dataclasses.replace(marks, notes=(*marks.notes, note))
    return dataclasses.replace(marks, handed_in=str(submitted_at))


def _fingerprint(sheet: Sheet, submission: Submission) -> str:
    """Return a digest of all that marks depend on: the submission's file, or why it cannot be read,
    and the exercises.
    """
    text = nbformat.writes(sheets.instructor(sheet))
    try:
        content = submission.digest()
    except intake.IntakeError as error:
        content = str(error)
    return hashlib.sha256(f"{content}\n{text}".encode()).hexdigest()


def _marks_path(folder: Path, submission: Submission) -> Path:
    return folder / "marks" / submission.student / f"{submission.assignment}.json"


def _save_marks(folder: Path, submission: Submission, fingerprint: str, marks: Marks) -> None:
    path = _marks_path(folder, submission)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"fingerprint": fingerprint, "marks": dataclasses.asdict(marks)}, indent=1)
    storage.write_atomically(path, text + "\n")


def load_marks(folder: Path, submission: Submission) -> tuple[str, Marks] | None:
    """Return the fingerprint and the marks that were written down; None where there are none."""
    path = _marks_path(folder, submission)
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


def _mark_in_processes(
    to_mark: Sequence[Submission], limits: Limits, jobs: int, folder: str
) -> Iterator[tuple[Submission, Marks]]:
    """Yield each submission with its marks, as they are done, ``jobs`` at once, each in a fresh
    process.

    ``folder`` is theirs, for what may be lost. The next one has started when one is yielded, so
    that no processor waits for what is done with its marks.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tools.grading.preload"])
    not_started = list(to_mark)
    running: dict[Connection, tuple[Submission, ForkServerProcess, float]] = {}

    def fill() -> None:
        while not_started and len(running) < jobs:
            submission = not_started.pop(0)
            pipe, child_pipe = context.Pipe()
            process = context.Process(
                target=_mark_in_child,
                args=(child_pipe, submission, limits),
                name=submission.student,
                daemon=True,
            )
            process.start()
            child_pipe.close()
            running[pipe] = (submission, process, time.monotonic())

    environment = dict(os.environ)
    # for the processes that are started; back at the end
    os.environ.update(headless(cache_folder=folder))
    try:
        fill()
        while running:
            ready = wait(list(running), timeout=1.0)
            for pipe in [pipe for pipe in running if pipe in ready]:
                submission, process, _ = running[pipe]
                marks = _receive_marks(pipe, submission, "its marking ended without a result")
                del running[pipe]
                _end(process)
                fill()
                yield submission, marks
            for pipe, (submission, process, start_s) in list(running.items()):
                if time.monotonic() - start_s > limits.total_s + _GRACE_S:
                    del running[pipe]
                    _end(process)
                    fill()
                    yield (
                        submission,
                        _no_marks(submission, "its answers kept the checks busy for too long"),
                    )
    finally:
        for _, process, _ in running.values():
            _end(process)
        os.environ.clear()
        os.environ.update(environment)


def _end(process: Any) -> None:
    process.join(timeout=5)
    if process.is_alive():
        process.kill()
        process.join()


def _receive_marks(pipe: Connection, submission: Submission, otherwise: str) -> Marks:
    try:
        result = pipe.recv()
    except EOFError:
        return _no_marks(submission, otherwise)
    if isinstance(result, str):
        raise GradingError(result)
    return result


def _no_marks(submission: Submission, reason: str) -> Marks:
    sheet = _sheet(submission.assignment)
    marks = tuple(
        Mark(name, 0.0, sheet.cell("checks", name).metadata["points"], "", ())
        for name in sheet.exercises
    )
    return Marks(submission.student, submission.assignment, marks, problem=reason, disturbed=True)


@functools.cache
def all_sheets() -> dict[str, Sheet]:
    """Return the exercises of every lesson, by the name of their notebook; read once."""
    return {sheet.lesson.name: sheet for sheet in sheets.load(HERE)}


def _sheet(assignment: str) -> Sheet:
    """Return the exercises of an assignment, under its name in the class."""
    sheets_by_title = {title_of(name): sheet for name, sheet in all_sheets().items()}
    return sheets_by_title[title_of(assignment)].named(assignment)


def _mark_in_child(pipe: Connection, submission: Submission, limits: Limits) -> None:
    """Mark one submission and send its marks, or a sentence on why none can be marked at all.

    What the submission asks for may be made here, on the checks' side, so that the limit on memory
    holds here as well.
    """
    threading.Thread(target=_end_with, args=(pipe,), daemon=True).start()
    resource.setrlimit(resource.RLIMIT_DATA, (limits.memory_bytes, limits.memory_bytes))
    try:
        sandbox.leave_keys()
        pipe.send(marker.mark(_sheet(submission.assignment), submission, limits))
    except sandbox.SandboxError as error:
        pipe.send(str(error))
    except Exception as error:
        pipe.send(
            _no_marks(
                submission,
                f"{_FAILED} ({type(error).__name__}); it is marked again in the next run",
            )
        )


def _end_with(pipe: Connection, end: Callable[[int], Any] = os._exit) -> None:
    """End this process, and its sandbox with it, when the one that grades has gone."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        end(1)
