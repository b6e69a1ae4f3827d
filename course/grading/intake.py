"""What was handed in, read without trust: a file becomes the sources of its cells, or a sentence on what is wrong.

The notebook that is graded is the released one with the student's answers written into it, so that deleted, changed
and doubled cells of the course come out as they went; cells that a student added run where they stand.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from course.authoring import exercises
from course.authoring.exercises import Sheet

LARGEST_BYTES = 20 * 2**20
MOST_CELLS, MOST_CHARACTERS = 1_000, 1_000_000  # of a notebook: all of it is written on a page
_STUDENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,99}")
_OWN = "own"  # begins the grade_id of a cell that a student added


class IntakeError(Exception):
    """A file is not a notebook of the exercises; the text says why, for the student. For the library itself."""


@dataclass(frozen=True)
class Submission:
    """A file handed in: by whom, for which notebook, where it lies, and when (``timestamp`` may be ""). Not yet read.

    For the library itself.
    """

    student: str
    assignment: str
    path: Path

    def digest(self) -> str:
        """Return the SHA-256 of the file's beginning, up to the largest size that is read. Raises IntakeError."""
        return hashlib.sha256(_read(self.path)).hexdigest()


def find(folder: Path, assignments: list[str]) -> tuple[list[Submission], list[str]]:
    """Return the submissions in ``folder``, by student, and a line for each file or folder that is none.

    STUDENT/ASSIGNMENT/ASSIGNMENT.ipynb, as nbgrader has it, or STUDENT/ASSIGNMENT.ipynb. Links are not followed.
    """
    found, strange = [], []
    for home in sorted(folder.iterdir()):
        if home.is_symlink() or not home.is_dir() or not _STUDENT.fullmatch(home.name):
            strange.append(f"{home.name!r} is not the folder of a student (letters, digits, _ . @ -)")
            continue
        try:
            own = [one for assignment in assignments for one in _own_files(home, assignment)]
        except OSError as error:
            strange.append(f"{home.name!r} cannot be read ({error.strerror}); mend its rights")
            continue
        found += own
        if not own:
            strange.append(
                f"{home.name!r} holds no notebook with a name of the exercises, such as {assignments[0]}.ipynb"
            )
    return found, strange


def _own_files(home: Path, assignment: str) -> list[Submission]:
    """Return the student's one file for an assignment, or nothing."""
    places = (home / assignment / f"{assignment}.ipynb", home / f"{assignment}.ipynb")
    here = [one for one in places if one.is_file() and not (one.is_symlink() or one.parent.is_symlink())]
    return [Submission(home.name, assignment, one) for one in here[:1]]


def _read(path: Path) -> bytes:
    """Return the file's beginning, one byte more than is accepted at most. Raises IntakeError."""
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise IntakeError(f"the file cannot be read ({error.strerror})") from None


def clean(sheet: Sheet, path: Path) -> nbformat.NotebookNode:
    """Return the released notebook with the answers of the file at ``path``. Raises IntakeError."""
    given = _cells(path)
    made = exercises.released(sheet)
    names = [cell.metadata.nbgrader.grade_id for cell in made.cells]
    known: dict[str, str] = {}
    added: dict[str, list[nbformat.NotebookNode]] = {}
    place = ""
    for cell in given:
        name = _grade_id(cell)
        if name in names:
            place = name
            known.setdefault(name, cell["source"])
        elif cell["cell_type"] == "code" and cell["source"].strip():
            added.setdefault(place, []).append(_own(cell["source"], sum(map(len, added.values()))))
    if not known:
        raise IntakeError(f"this is no notebook of {sheet.lesson.title}: none of its cells is there; hand in the file "
                          f"{sheet.lesson.notebook_name} that you were given")  # fmt: skip
    cells = list(added.get("", []))
    for cell in made.cells:
        name = cell.metadata.nbgrader.grade_id
        if cell.metadata.nbgrader.solution and (cell.cell_type == "code" or known.get(name, "").strip()):
            cell.source = known.get(name, cell.source)  # a blank written answer is as one that was not touched
        cells += [cell, *added.get(name, [])]
    made.cells = cells
    return made


def _cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook file as their type, source and metadata."""
    data = _read(path)
    if len(data) > LARGEST_BYTES:
        raise IntakeError(
            f"the file is larger than {LARGEST_BYTES // 2**20} MiB; clear its outputs and hand it in again"
        )
    try:
        content = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise IntakeError("the file is not a notebook: it holds no JSON; hand in the .ipynb file itself") from None
    version = content.get("nbformat") if isinstance(content, dict) else None
    if version != 4:
        raise IntakeError("the file is not a notebook of format 4; save it with JupyterLab and hand it in again")
    try:
        cells = [_cell(one) for one in content.get("cells")]
    except (TypeError, KeyError, AttributeError):
        raise IntakeError("the file is a damaged notebook; open it with JupyterLab and save it again") from None
    if len(cells) > MOST_CELLS or sum(len(cell["source"]) for cell in cells) > MOST_CHARACTERS:
        raise IntakeError(f"the notebook has more than {MOST_CELLS:,} cells or {MOST_CHARACTERS:,} characters in them; "
                          "delete what is no answer and hand it in again")  # fmt: skip
    return cells


def _cell(given: Any) -> dict[str, Any]:
    return {"cell_type": str(given["cell_type"]), "source": _text(given["source"]), "metadata": given.get("metadata")}


def _text(source: Any) -> str:
    lines = [source] if isinstance(source, str) else list(source)
    if not all(isinstance(line, str) for line in lines):
        raise TypeError("no text")
    return "".join(lines).encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair is no text


def _grade_id(cell: dict[str, Any]) -> str:
    metadata = cell["metadata"]
    ours = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    return str(ours.get("grade_id", "")) if isinstance(ours, dict) else ""


def _own(source: str, number: int) -> nbformat.NotebookNode:
    cell = nbformat.v4.new_code_cell(source)
    cell.id = f"{_OWN}-{number}"
    return cell
