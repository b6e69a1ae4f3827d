"""What was handed in, read without trust: a file becomes the sources of its cells, or a sentence on
what is wrong.

The notebook that is graded is the released one with the student's answers written into it, so that
deleted, changed and doubled cells of the course come out as they went; cells that a student added
run where they stand. An answer in several cells, copied or split, runs in their order.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from tools.authoring.order import titles_of
from tools.exercises import sheets
from tools.exercises.sheets import Sheet

LARGEST_BYTES = 20 * 2**20
TIMESTAMP = "timestamp.txt"  # beside a notebook, as nbgrader collects it: when it was handed in
MOST_CELLS, MOST_CHARACTERS = 1_000, 1_000_000  # of a notebook: all of it is written on a page
_STUDENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,99}")
# what a browser, Canvas, JupyterLab, Windows, a Mac append
_COPY = r" ?\(\d+\)|-\d+|-copy\d*| ?- copy| copy(?: \d+)?"
_MOST_NAMED = 3
_OWN = "own"  # begins the grade_id of a cell that a student added


class IntakeError(Exception):
    """A file is not a notebook of the exercises; the text says why, for the student."""


@dataclass(frozen=True)
class Submission:
    """A file handed in: by whom, for which notebook, where it lies; ``came_as`` is its own name
    where that differs.

    Not yet read.
    """

    student: str
    assignment: str
    path: Path
    came_as: str = ""

    def digest(self) -> str:
        """Return the SHA-256 of the file's beginning, up to the largest size that is read.

        Raises IntakeError.
        """
        return hashlib.sha256(_read(self.path)).hexdigest()


@dataclass(frozen=True)
class RestoredNotebook:
    """The notebook that was handed in, put back together, and notes on it for the lecturer."""

    notebook: nbformat.NotebookNode
    notes: tuple[str, ...]


def find(folder: Path, assignments: list[str]) -> tuple[list[Submission], dict[str, str]]:
    """Return the submissions in ``folder``, by student, and by its name why a file or folder holds
    none.

    STUDENT/ASSIGNMENT/ASSIGNMENT.ipynb, as nbgrader has it, or STUDENT/ASSIGNMENT.ipynb; where
    neither is there, the only file whose name a second download or upload has changed: "ASSIGNMENT
    (1).ipynb", "ASSIGNMENT-1.ipynb", "ASSIGNMENT.IPYNB", or which has the number of another edition
    of the course. Links are not followed.
    """
    submissions: list[Submission] = []
    skipped: dict[str, str] = {}
    for home in sorted(folder.iterdir()):
        if home.is_symlink() or not home.is_dir() or not _STUDENT.fullmatch(home.name):
            skipped[home.name] = "is not the folder of a student (letters, digits, _ . @ -)"
            continue
        try:
            students_files, problem = _own_files(home, assignments)
        except OSError as error:
            skipped[home.name] = f"cannot be read ({error.strerror}); mend its rights"
            continue
        submissions += students_files
        if problem:
            skipped[home.name] = problem
    return submissions, skipped


def _own_files(home: Path, assignments: list[str]) -> tuple[list[Submission], str]:
    """Return a student's files, one an assignment, and what is wrong with the others, "" where
    nothing is.
    """
    files = list(_files(home))
    submissions, ambiguous = [], []
    for assignment in assignments:
        alternatives = [path for path in files if _is_copy(path.name, assignment)]
        exact = [path for path in alternatives if path.name == f"{assignment}.ipynb"]
        if exact:
            # nbgrader's own place comes first
            submissions.append(Submission(home.name, assignment, exact[0]))
            ambiguous += [path for path in alternatives if path not in exact]
        elif len(alternatives) == 1:
            submissions.append(
                Submission(home.name, assignment, alternatives[0], alternatives[0].name)
            )
        else:
            ambiguous += alternatives
    if ambiguous:
        return (
            submissions,
            (
                f"holds {_list_names(ambiguous)}, of which one may be meant; keep that one, under "
                "the exercises' name"
            ),
        )
    notebooks = [path for path in files if path.suffix.lower() == ".ipynb"]
    if submissions:
        return submissions, ""
    if notebooks:
        return (
            [],
            f"holds {_list_names(notebooks)}, which has no name of the exercises; rename it, such "
            f"as to {assignments[0]}.ipynb",
        )
    return [], f"holds no notebook with a name of the exercises, such as {assignments[0]}.ipynb"


def _files(home: Path) -> list[Path]:
    """Return a student's files, those in a folder of theirs first; what is hidden and links are
    left out.
    """
    entries = [
        entry
        for entry in sorted(home.iterdir())
        if not (entry.is_symlink() or entry.name.startswith("."))
    ]
    inner_entries = [
        entry for folder in entries if folder.is_dir() for entry in sorted(folder.iterdir())
    ]
    return [
        entry for entry in (*inner_entries, *entries) if entry.is_file() and not entry.is_symlink()
    ]


def _is_copy(name: str, assignment: str) -> bool:
    """Return True for an assignment's name, with any number or former title, also as downloads
    change it.
    """
    titles = "|".join(map(re.escape, titles_of(assignment)))
    return bool(re.fullmatch(rf"\d\d_(?:{titles})(?:{_COPY})*\.ipynb", name, re.IGNORECASE))


def _list_names(paths: Sequence[Path]) -> str:
    names = ", ".join(repr(path.name)[:140] for path in paths[:_MOST_NAMED])
    return f"{names} and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else names


def _read(path: Path) -> bytes:
    """Return the file's beginning, one byte more than is accepted at most. Raises IntakeError."""
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise IntakeError(f"the file cannot be read ({error.strerror})") from None


def clean(sheet: Sheet, path: Path) -> nbformat.NotebookNode:
    """Return the released notebook with the answers of the file at ``path``. Raises IntakeError."""
    return restore(sheet, path).notebook


def restore(sheet: Sheet, path: Path) -> RestoredNotebook:
    """Return the released notebook with the answers of the file at ``path``, and notes on it.

    Raises IntakeError.
    """
    cells_in_file = _cells(path)
    notebook = sheets.released(sheet)
    released = {cell.metadata.nbgrader.grade_id: cell for cell in notebook.cells}
    names, notes = _names(sheet, released, cells_in_file)
    names_of_exercises = {*sheet.exercises, *(f"{name}_checks" for name in sheet.exercises)}
    if names_of_exercises.isdisjoint(names) and not any(
        _grade_id(cell) in sheet.written for cell in cells_in_file
    ):
        raise IntakeError(
            f"this is no notebook of {sheet.lesson.title}: none of its exercises is there; hand in "
            f"the file {sheet.lesson.notebook_name} that you were given"
        )
    indices = _indices(released, cells_in_file, names)
    notes += _notes_on_changes(released, cells_in_file, indices)
    notes += [
        f"the answer to {name} came in {len(indices[name])} cells, which ran in their order"
        for name in indices
        if len(indices[name]) > 1 and released[name].metadata.nbgrader.solution
    ]
    added: dict[str, list[nbformat.NotebookNode]] = {}
    anchor = ""
    for index, (cell, name) in enumerate(zip(cells_in_file, names, strict=True)):
        is_answer = name in sheet.exercises
        if name and not (is_answer and index in indices[name][:-1]):
            anchor = name
        elif (
            cell["cell_type"] == "code"
            and cell["source"].strip()
            and (not name or index in indices[name])
        ):
            added.setdefault(anchor, []).append(
                _added_cell(cell["source"], sum(map(len, added.values())))
            )
    cells = list(added.get("", []))
    for name, cell in released.items():
        sources = [cells_in_file[index]["source"] for index in indices.get(name, [])]
        if name in sheet.exercises and sources:
            cell.source = sources[-1]
        elif cell.metadata.nbgrader.solution and (
            text := "\n\n".join(source for source in sources if source.strip())
        ):
            cell.source = text  # a blank written answer is as one that was not touched
        cells += [cell, *added.get(name, [])]
    notebook.cells = cells
    return RestoredNotebook(notebook, tuple(notes))


def _names(
    sheet: Sheet, released: dict[str, nbformat.NotebookNode], cells: Sequence[dict[str, Any]]
) -> tuple[list[str], list[str]]:
    """Return the name of the released cell that each cell is, "" for none, and a note where that
    had to be found.

    nbgrader's own mark says it. Where a tool has removed the marks, the cells' ids do, which the
    release fixes; where these have gone as well, what stands in a cell: the text that was given, or
    the function that was asked for.
    """
    names = [name if (name := _grade_id(cell)) in released else "" for cell in cells]
    notes = []
    ids = {cell.id: name for name, cell in released.items() if name not in names}
    by_id = [name or ids.get(cell["id"], "") for name, cell in zip(names, cells, strict=True)]
    if by_id != names:
        notes.append("cells without nbgrader's marks were found by their ids")
    final_names = [*by_id]
    texts = {
        (cell.cell_type, _without_formatting(cell.source)): name
        for name, cell in released.items()
        if name not in by_id
    }
    for index, (cell, name) in enumerate(zip(cells, by_id, strict=True)):
        final_names[index] = name or texts.get(
            (cell["cell_type"], _without_formatting(cell["source"])), ""
        )
    defines = {
        name: re.compile(
            rf"^def\s+(?:{'|'.join(map(re.escape, _functions(sheet, name)))})\s*\(", re.MULTILINE
        )
        for name in sheet.exercises
        if name not in final_names
    }
    predecessors = dict(zip([*released][1:], released, strict=False))
    for index, cell in enumerate(cells):
        if final_names[index]:
            continue
        if cell["cell_type"] == "code":
            final_names[index] = next(
                (name for name, pattern in defines.items() if pattern.search(cell["source"])), ""
            )
        elif cell["cell_type"] == "markdown" and index:
            candidates = [
                name
                for name in sheet.written
                if predecessors.get(name) == final_names[index - 1] and name not in final_names
            ]
            final_names[index] = candidates[0] if candidates else ""
    if any(
        name in sheet.exercises or name in sheet.written
        for name, name_by_id in zip(final_names, by_id, strict=True)
        if name != name_by_id
    ):
        notes.append("answers without nbgrader's marks were found by what stands in them")
    return final_names, notes


def _functions(sheet: Sheet, name: str) -> list[str]:
    return re.findall(r"^def\s+(\w+)", sheet.cell("answer", name).source, re.MULTILINE)


def _indices(
    released: dict[str, nbformat.NotebookNode],
    cells: Sequence[dict[str, Any]],
    names: Sequence[str],
) -> dict[str, list[int]]:
    """Return the indices of each released cell in the file; of an answer's copies not those that
    nobody wrote in.
    """
    indices: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        if name:
            indices.setdefault(name, []).append(index)
    for name, cell in released.items():
        if cell.metadata.nbgrader.solution and name in indices:
            # of equal ones the last
            by_text = {
                _without_formatting(cells[index]["source"]): index for index in indices[name]
            }
            written = [
                index
                for text, index in by_text.items()
                if text not in ("", _without_formatting(cell.source))
            ]
            indices[name] = sorted(written) or indices[name][:1]
    return indices


def _notes_on_changes(
    released: dict[str, nbformat.NotebookNode],
    cells: Sequence[dict[str, Any]],
    indices: dict[str, list[int]],
) -> list[str]:
    """Return a note on the cells of code that were given and changed or deleted; a formatter's
    changes are none.
    """
    changed, deleted = [], []
    for name, cell in released.items():
        if cell.cell_type == "code" and cell.metadata.nbgrader.locked:
            sources = [
                source
                for index in indices.get(name, [])
                if (source := cells[index]["source"]).strip()
            ]
            if not sources:
                deleted.append(name)
            elif any(
                _without_formatting(source) != _without_formatting(cell.source)
                for source in sources
            ):
                changed.append(name)
    checks = {
        name: name.removesuffix("_checks")
        for name, cell in released.items()
        if cell.metadata.nbgrader.grade
    }
    notes = [
        f"the checks of {checks[name]} were" if name in checks else "a cell that was given was"
        for name in changed
    ]
    other_count = sum(name not in checks for name in deleted)
    deletions = [f"the checks of {checks[name]}" for name in deleted if name in checks]
    deletions += (
        [f"{other_count} {'cell that was' if other_count == 1 else 'cells that were'} given"]
        if other_count
        else []
    )
    return [
        *dict.fromkeys(f"{note} changed; the original counted" for note in notes),
        *([f"deleted: {', '.join(deletions)}; the originals counted"] if deletions else []),
    ]


def _without_formatting(source: str) -> str:
    """Return a source without what a formatter may change."""
    return re.sub(r"[\s,()'\"]+", "", source)


def _cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook file as their type, source and metadata."""
    data = _read(path)
    if len(data) > LARGEST_BYTES:
        raise IntakeError(
            f"the file is larger than {LARGEST_BYTES // 2**20} MiB; clear its outputs and hand it "
            "in again"
        )
    try:
        content = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise IntakeError(
            "the file is not a notebook: it holds no JSON; hand in the .ipynb file itself"
        ) from None
    version = content.get("nbformat") if isinstance(content, dict) else None
    if version != 4:
        raise IntakeError(
            "the file is not a notebook of format 4; save it with JupyterLab and hand it in again"
        )
    try:
        cells = [_cell(cell) for cell in content.get("cells")]
    except (TypeError, KeyError, AttributeError):
        raise IntakeError(
            "the file is a damaged notebook; open it with JupyterLab and save it again"
        ) from None
    if len(cells) > MOST_CELLS or sum(len(cell["source"]) for cell in cells) > MOST_CHARACTERS:
        raise IntakeError(
            f"the notebook has more than {MOST_CELLS:,} cells or {MOST_CHARACTERS:,} characters in "
            "them; delete what is no answer and hand it in again"
        )
    return cells


def _cell(content: Any) -> dict[str, Any]:
    return {
        "cell_type": str(content["cell_type"]),
        "source": _text(content["source"]),
        "metadata": content.get("metadata"),
        "id": str(content.get("id")),
    }


def _text(source: Any) -> str:
    lines = [source] if isinstance(source, str) else list(source)
    if not all(isinstance(line, str) for line in lines):
        raise TypeError("no text")
    # half a surrogate pair is no text
    return "".join(lines).encode("utf-8", "replace").decode("utf-8")


def _grade_id(cell: dict[str, Any]) -> str:
    metadata = cell["metadata"]
    nbgrader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    return str(nbgrader.get("grade_id", "")).strip() if isinstance(nbgrader, dict) else ""


def _added_cell(source: str, index: int) -> nbformat.NotebookNode:
    cell = nbformat.v4.new_code_cell(source)
    cell.id = f"{_OWN}-{index}"
    return cell
