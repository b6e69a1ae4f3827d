"""nbgrader keeps the grades: a released assignment, the marks of a submission, grades.csv, and the
pages for students.

The notebook that nbgrader reads is the released one with the student's answers, and its outputs are
the marks; nothing in it is run. A mark that a person gave stays when the automatic one is written
again: nbgrader keeps the two apart.
"""

from __future__ import annotations

import contextlib
import hashlib
import html
import io
import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import nbformat
from nbgrader import preprocessors
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps import NbGraderAPI
from nbgrader.converters import Autograde
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config

from helpers import storage
from tools.authoring.course import Course
from tools.exercises import handout, sheets
from tools.exercises.sheets import WRITTEN_STUB, Sheet
from tools.grading import outputs, page
from tools.grading.intake import TIMESTAMP
from tools.grading.marker import Mark, Marks

READ = "read"  # the folder of the notebooks that nbgrader reads
KEPT = "autograded"  # and of those that it keeps, for the Formgrader
_UNREAD = "Nothing was run"
_OPEN, _CLOSE = (
    '<pre style="white-space: pre-wrap; word-break: normal; font: inherit; border: 0">\n',
    "\n</pre>",
)
_MOST_OF_A_CELL = 50_000  # characters that are shown of it
_HIDDEN_MISSED = "On the hidden inputs:"
_FOR_STUDENTS = ", hidden not run"  # ends what the checks say where a student runs them


class GradingError(Exception):
    """What stops the grading of a class, and what to do."""


class _Record(Autograde):
    """nbgrader's autograde on a notebook that has run already."""

    sanitize_preprocessors: ClassVar = [
        preprocessors.DeduplicateIds,
        preprocessors.OverwriteKernelspec,
        preprocessors.OverwriteCells,
        preprocessors.CheckCellMetadata,
    ]
    autograde_preprocessors: ClassVar = [
        preprocessors.SaveAutoGrades,
        preprocessors.AssignLatePenalties,
        preprocessors.CheckCellMetadata,
    ]


class Book:
    """The folder of a class, with nbgrader's gradebook in it; ``names`` are the students'."""

    def __init__(self, folder: Path, names: Mapping[str, str] | None = None) -> None:
        self.folder = folder.resolve()
        self.names = dict(names or {})
        self.url = f"sqlite:///{self.folder / 'gradebook.db'}"

    def prepare(self, course: Course, sheet: Sheet) -> None:
        """Release a lesson's exercises into the gradebook, where they are not there as the source
        has them now.
        """
        name, text = sheet.lesson.name, nbformat.writes(sheets.instructor(sheet)) + "\n"
        source = self.folder / "source" / name / sheet.lesson.notebook_name
        released = self.folder / "release" / name / sheet.lesson.notebook_name
        if (
            released.is_file()
            and source.is_file()
            and source.read_text(encoding="utf-8") == text
            and self._has(name)
        ):
            return
        handout.release_into(self.folder, [sheet], course)
        with _tools_on_path(), contextlib.redirect_stderr(io.StringIO()):
            api = NbGraderAPI(config=self._config(name))
            api.log.setLevel(logging.CRITICAL)
            result = api.generate_assignment(name, force=True)
        if not result["success"]:
            raise GradingError(
                f"nbgrader could not release {name}: {result['log']}{result.get('error', '')}"
            )

    def _has(self, name: str) -> bool:
        try:
            with self._open() as book:
                return bool(book.find_assignment(name).notebooks)
        except MissingEntry:
            return False

    def record(self, sheet: Sheet, marks: Marks, notebook: nbformat.NotebookNode) -> None:
        """Write the marks of a submission; what was there of it is replaced, but for marks of a
        person.
        """
        folder = self.folder / READ / marks.student / marks.assignment
        folder.mkdir(parents=True, exist_ok=True)
        marked = with_marks(notebook, marks, outputs.of_given(sheet))
        storage.write_atomically(
            folder / sheet.lesson.notebook_name, nbformat.writes(marked) + "\n"
        )
        (folder / TIMESTAMP).unlink(missing_ok=True)
        if marks.handed_in:
            storage.write_atomically(folder / TIMESTAMP, f"{marks.handed_in} UTC")
        self._convert(_Record, marks.assignment, marks.student)

    def page(self, assignment: str, student: str) -> None:
        """Write the page of a student, with the marks and comments that the gradebook holds now.

        It stays as it is where nothing that it is made from has changed.
        """
        page_path = self._page(assignment, student)
        note = self.folder / "marks" / student / f"{assignment}.page"
        origin = self._origin_of_page(assignment, student)
        if (
            page_path.is_file()
            and note.is_file()
            and note.read_text() == f"{origin} {_digest(page_path.read_bytes())}\n"
        ):
            return
        self._convert(page.Page, assignment, student)
        note.parent.mkdir(parents=True, exist_ok=True)
        storage.write_atomically(note, f"{origin} {_digest(page_path.read_bytes())}\n")

    def forget_page(self, assignment: str, student: str) -> None:
        """Remove a page that is of other marks than those that the student has now."""
        self._page(assignment, student).unlink(missing_ok=True)

    def _page(self, assignment: str, student: str) -> Path:
        return self.folder / "feedback" / student / assignment / f"{assignment}.html"

    def _origin_of_page(self, assignment: str, student: str) -> str:
        """Return a digest of all that a page is made from: the notebook, its grades and comments,
        and how it is written.
        """
        notebook = self.folder / KEPT / student / assignment / f"{assignment}.ipynb"
        with self._open() as book:
            submission = book.find_submission_notebook(assignment, assignment, student)
            grades = [
                [
                    grade.name,
                    grade.score,
                    grade.max_score,
                    grade.manual_score,
                    grade.needs_manual_grade,
                ]
                for grade in sorted(submission.grades, key=lambda grade: grade.name)
            ]
            comments = [
                [comment.name, comment.comment]
                for comment in sorted(submission.comments, key=lambda comment: comment.name)
            ]
            content = json.dumps(
                [grades, comments, submission.late_submission_penalty, self.names.get(student)]
            )
        return _digest(
            content.encode(), notebook.read_bytes() if notebook.is_file() else b"", *page.sources()
        )

    def _convert(self, kind: type, assignment: str, student: str) -> None:
        config = self._config(assignment)
        config.CourseDirectory.student_id = student
        config.PageExporter.student_name = outputs.printable(self.names.get(student, ""))
        with _tools_on_path(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nbgrader's own, from its database layer
            converter = kind(coursedir=CourseDirectory(config=config), config=config)
            converter.force = True
            with _collect_errors(converter.log) as errors:
                try:
                    converter.start()
                except NbGraderException as error:
                    raise GradingError(
                        f"nbgrader failed on {assignment} of {student}: {_cause(errors) or error}"
                    ) from error

    def _config(self, assignment: str) -> Config:
        config = sheets.release_config()
        config.CourseDirectory.root = str(self.folder)
        config.CourseDirectory.db_url = self.url
        config.CourseDirectory.submitted_directory = READ
        config.CourseDirectory.assignment_id = assignment
        config.BaseConverter.permissions = 644
        page.configure(config)
        return config

    def _open(self) -> Gradebook:
        with _tools_on_path():
            return Gradebook(self.url)

    def holds(self, marks: Marks) -> bool:
        """Return True when the gradebook has these marks, and the notebook that it keeps is the one
        that they are of.

        It is not where Formgrader's Autograde ran: that writes its own, or removes the folder.
        """
        read, autograded = (
            self.folder / folder / marks.student / marks.assignment / f"{marks.assignment}.ipynb"
            for folder in (READ, KEPT)
        )
        if not (read.is_file() and autograded.is_file()):
            return False
        try:
            contents = _students_part(autograded)
            is_same = contents == _students_part(read)
        except ValueError:  # it is no notebook any more
            return False
        if not is_same or not all(_is_text(part) for part in contents if isinstance(part, str)):
            return False
        try:
            with self._open() as book:
                grades = book.find_submission_notebook(
                    marks.assignment, marks.assignment, marks.student
                ).grades
                scores = {grade.name: grade.auto_score for grade in grades}
        except MissingEntry:
            return False
        return all(scores.get(f"{mark.exercise}_checks") == mark.score for mark in marks.marks)

    def row(self, sheet: Sheet, marks: Marks, record_error: str = "") -> dict[str, object]:
        """Return the row of grades.csv of a submission, with the marks of persons where there are
        any.

        An answer that waits for a person has no points yet, and the score is what there is without
        it. ``record_error`` is what could not be written down, which comes first in the note.
        """
        points = points_of(sheet)
        scores: dict[str, float | None] = dict.fromkeys(points) | {
            mark.exercise: mark.score for mark in marks.marks
        }
        penalty = 0.0
        with contextlib.suppress(MissingEntry), self._open() as book:
            submission = book.find_submission_notebook(
                marks.assignment, marks.assignment, marks.student
            )
            penalty = submission.late_submission_penalty or 0.0
            for grade in submission.grades:
                is_awaited = grade.needs_manual_grade and grade.manual_score is None
                scores[grade.name.removesuffix("_checks")] = None if is_awaited else grade.score
        awaited = [name for name, score in scores.items() if score is None]
        notes = [
            record_error,
            marks.problem,
            *(f"{mark.exercise}: {mark.note}" for mark in marks.marks if mark.note),
        ]
        return {
            "student": marks.student,
            "assignment": marks.assignment,
            "score": sum(score for score in scores.values() if score is not None) - penalty,
            "so_far_of": float(sum(points[name] for name in points if name not in awaited)),
            "max_score": float(sum(points.values())),
            "answers_to_mark": len(awaited),
            "note": "; ".join(note for note in (*notes, *marks.notes) if note),
            **{name: "" if score is None else score for name, score in scores.items()},
        }


def points_of(sheet: Sheet) -> dict[str, int]:
    """Return the points of each exercise and written answer, in the order of the notebook."""
    cells = [cell.metadata for cell in sheet.lesson.cells if "points" in cell.metadata]
    return {str(cell.get("checks") or cell.get("written")): cell["points"] for cell in cells}


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\n".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


@contextlib.contextmanager
def _collect_errors(log: logging.Logger) -> Iterator[list[str]]:
    """Yield a list that gets a logger's errors, which are printed nowhere meanwhile."""
    errors: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(record.getMessage())  # type: ignore[method-assign]  # of this one alone
    handlers, propagates, level = list(log.handlers), log.propagate, log.level
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.ERROR)
    try:
        yield errors
    finally:
        log.handlers, log.propagate = handlers, propagates
        log.setLevel(level)


def _cause(errors: Sequence[str]) -> str:
    """Return the last line of the traceback among what nbgrader said, "" where there is none."""
    return next(
        (error.strip().splitlines()[-1] for error in errors if error.startswith("Traceback")), ""
    )


def with_marks(
    notebook: nbformat.NotebookNode,
    marks: Marks,
    given_outputs: Mapping[str, list[dict[str, Any]]] | None = None,
) -> nbformat.NotebookNode:
    """Return a notebook whose cells of checks show what the student shall read, and the score that
    nbgrader takes.

    It is shown to the lecturer in a browser, by Formgrader: a written answer in it is text and
    nothing else. ``given_outputs`` is what the given cells show, by their ids.
    """
    marked = nbformat.from_dict(notebook)
    outputs_by_id = {**(given_outputs or {}), **marks.outputs}
    by_cell = {f"{mark.exercise}_checks": mark for mark in marks.marks}
    for cell in marked.cells:
        nbgrader_mark = cell.metadata.get("nbgrader", {})
        if cell.cell_type != "code":
            if not nbgrader_mark.locked and cell.source != WRITTEN_STUB:
                cell.source = as_text(cell.source)
            continue
        mark = by_cell.get(nbgrader_mark.get("grade_id", ""))
        if not nbgrader_mark.get("locked"):
            cell.source = outputs.cut_code(cell.source, _MOST_OF_A_CELL)
        cell.outputs, cell.execution_count = [], None
        if mark is not None:
            text = nbformat.v4.new_output(
                "stream", name="stdout", text=_describe(mark, marks.problem)
            )
            score = nbformat.v4.new_output(
                "execute_result", {"text/plain": repr(mark.score)}, execution_count=1
            )
            cell.outputs, cell.execution_count = [text, score], 1
        else:
            cell.outputs = [nbformat.from_dict(output) for output in outputs_by_id.get(cell.id, [])]
    marked.metadata.handed_in = nbformat.from_dict(
        {"when": marks.handed_in, "notes": [*marks.notes]}
    )
    return marked


def as_text(answer: str) -> str:
    """Return Markdown that shows ``answer`` as it was typed: an element that no tag in it can end,
    for none can begin.

    Markdown itself lets HTML, links of any kind and images of other hosts through.
    """
    return (
        f"{_OPEN}{html.escape(outputs.cut(answer.rstrip(), _MOST_OF_A_CELL), quote=False)}{_CLOSE}"
    )


def _students_part(path: Path) -> list[object]:
    """Return the outputs of a notebook's code cells and, as strings, its written answers."""
    cells = nbformat.read(path, as_version=4).cells
    return [
        cell.outputs if cell.cell_type == "code" else cell.source
        for cell in cells
        if cell.cell_type == "code" or not cell.metadata.get("nbgrader", {}).get("locked")
    ]


def _is_text(source: str) -> bool:
    return source == WRITTEN_STUB or bool(re.fullmatch(f"{re.escape(_OPEN)}[^<]*{_CLOSE}", source))


def _describe(mark: Mark, problem: str) -> str:
    """Return the text that a student reads of an exercise: the visible checks, and what the hidden
    inputs change in that.
    """
    if problem:
        return outputs.printable(f"{_UNREAD}: {problem}.\n")
    report = mark.said.rstrip().removesuffix(_FOR_STUDENTS)
    report_lines = report.splitlines()
    missed = [
        goal
        for goal, reached in mark.goals
        if not reached and f"  {'reached':<11}  {goal}" in report_lines
    ]
    hidden = [f"  {'not reached':<11}  {goal}" for goal in missed]
    lines = [
        report,
        *([_HIDDEN_MISSED, *hidden] if missed else []),
        f"{mark.score:g} of {mark.points} points",
    ]
    return outputs.printable("\n".join(lines)) + "\n"


@contextlib.contextmanager
def _tools_on_path() -> Iterator[None]:
    """nbgrader calls alembic by its bare name: let it find that of this Python.

    It changes folders; come back.
    """
    path, folder = os.environ.get("PATH", ""), os.getcwd()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{path}"
    try:
        yield
    finally:
        os.environ["PATH"] = path
        os.chdir(folder)
