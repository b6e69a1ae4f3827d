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
class Handed:
    """What was handed in, put back together, and what a lecturer should know of it."""

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
    found: list[Submission] = []
    strange: dict[str, str] = {}
    for home in sorted(folder.iterdir()):
        if home.is_symlink() or not home.is_dir() or not _STUDENT.fullmatch(home.name):
            strange[home.name] = "is not the folder of a student (letters, digits, _ . @ -)"
            continue
        try:
            own, besides = _own_files(home, assignments)
        except OSError as error:
            strange[home.name] = f"cannot be read ({error.strerror}); mend its rights"
            continue
        found += own
        if besides:
            strange[home.name] = besides
    return found, strange


def _own_files(home: Path, assignments: list[str]) -> tuple[list[Submission], str]:
    """Return a student's files, one an assignment, and what is wrong with the others, "" where
    nothing is.
    """
    files = list(_files(home))
    own, several = [], []
    for assignment in assignments:
        alike = [one for one in files if _is_copy(one.name, assignment)]
        exact = [one for one in alike if one.name == f"{assignment}.ipynb"]
        if exact:
            # nbgrader's own place comes first
            own.append(Submission(home.name, assignment, exact[0]))
            several += [one for one in alike if one not in exact]
        elif len(alike) == 1:
            own.append(Submission(home.name, assignment, alike[0], alike[0].name))
        else:
            several += alike
    if several:
        return (
            own,
            (
                f"holds {_listed(several)}, of which one may be meant; keep that one, under the "
                "exercises' name"
            ),
        )
    notebooks = [one for one in files if one.suffix.lower() == ".ipynb"]
    if own:
        return own, ""
    if notebooks:
        return (
            [],
            f"holds {_listed(notebooks)}, which has no name of the exercises; rename it, such as "
            f"to {assignments[0]}.ipynb",
        )
    return [], f"holds no notebook with a name of the exercises, such as {assignments[0]}.ipynb"


def _files(home: Path) -> list[Path]:
    """Return a student's files, those in a folder of theirs first; what is hidden and links are
    left out.
    """
    here = [
        one for one in sorted(home.iterdir()) if not (one.is_symlink() or one.name.startswith("."))
    ]
    inside = [one for folder in here if folder.is_dir() for one in sorted(folder.iterdir())]
    return [one for one in (*inside, *here) if one.is_file() and not one.is_symlink()]


def _is_copy(name: str, assignment: str) -> bool:
    """Return True for an assignment's name, with any number or former title, also as downloads
    change it.
    """
    titles = "|".join(map(re.escape, titles_of(assignment)))
    return bool(re.fullmatch(rf"\d\d_(?:{titles})(?:{_COPY})*\.ipynb", name, re.IGNORECASE))


def _listed(paths: Sequence[Path]) -> str:
    shown = ", ".join(repr(one.name)[:140] for one in paths[:_MOST_NAMED])
    return f"{shown} and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else shown


def _read(path: Path) -> bytes:
    """Return the file's beginning, one byte more than is accepted at most. Raises IntakeError."""
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise IntakeError(f"the file cannot be read ({error.strerror})") from None


def clean(sheet: Sheet, path: Path) -> nbformat.NotebookNode:
    """Return the released notebook with the answers of the file at ``path``. Raises IntakeError."""
    return handed(sheet, path).notebook


def handed(sheet: Sheet, path: Path) -> Handed:
    """Return the released notebook with the answers of the file at ``path``, and notes on it.

    Raises IntakeError.
    """
    given = _cells(path)
    made = sheets.released(sheet)
    released = {cell.metadata.nbgrader.grade_id: cell for cell in made.cells}
    names, notes = _names(sheet, released, given)
    asked = {*sheet.exercises, *(f"{name}_checks" for name in sheet.exercises)}
    if asked.isdisjoint(names) and not any(_grade_id(cell) in sheet.written for cell in given):
        raise IntakeError(
            f"this is no notebook of {sheet.lesson.title}: none of its exercises is there; hand in "
            f"the file {sheet.lesson.notebook_name} that you were given"
        )
    places = _places(released, given, names)
    notes += _changed(released, given, places)
    notes += [
        f"the answer to {name} came in {len(places[name])} cells, which ran in their order"
        for name in places
        if len(places[name]) > 1 and released[name].metadata.nbgrader.solution
    ]
    added: dict[str, list[nbformat.NotebookNode]] = {}
    at = ""
    for number, (cell, name) in enumerate(zip(given, names, strict=True)):
        an_answer = name in sheet.exercises
        if name and not (an_answer and number in places[name][:-1]):
            at = name
        elif (
            cell["cell_type"] == "code"
            and cell["source"].strip()
            and (not name or number in places[name])
        ):
            added.setdefault(at, []).append(_own(cell["source"], sum(map(len, added.values()))))
    cells = list(added.get("", []))
    for name, cell in released.items():
        sources = [given[place]["source"] for place in places.get(name, [])]
        if name in sheet.exercises and sources:
            cell.source = sources[-1]
        elif cell.metadata.nbgrader.solution and (
            text := "\n\n".join(one for one in sources if one.strip())
        ):
            cell.source = text  # a blank written answer is as one that was not touched
        cells += [cell, *added.get(name, [])]
    made.cells = cells
    return Handed(made, tuple(notes))


def _names(
    sheet: Sheet, released: dict[str, nbformat.NotebookNode], given: Sequence[dict[str, Any]]
) -> tuple[list[str], list[str]]:
    """Return of each cell which one of the released cells it is, "" for none, and a note where that
    had to be found.

    nbgrader's own mark says it. Where a tool has removed the marks, the cells' ids do, which the
    release fixes; where these have gone as well, what stands in a cell: the text that was given, or
    the function that was asked for.
    """
    names = [name if (name := _grade_id(cell)) in released else "" for cell in given]
    notes = []
    ids = {cell.id: name for name, cell in released.items() if name not in names}
    by_id = [name or ids.get(cell["id"], "") for name, cell in zip(names, given, strict=True)]
    if by_id != names:
        notes.append("cells without nbgrader's marks were found by their ids")
    found = [*by_id]
    texts = {
        (cell.cell_type, _bare(cell.source)): name
        for name, cell in released.items()
        if name not in by_id
    }
    for place, (cell, name) in enumerate(zip(given, by_id, strict=True)):
        found[place] = name or texts.get((cell["cell_type"], _bare(cell["source"])), "")
    defines = {
        name: re.compile(
            rf"^def\s+(?:{'|'.join(map(re.escape, _functions(sheet, name)))})\s*\(", re.MULTILINE
        )
        for name in sheet.exercises
        if name not in found
    }
    before = dict(zip([*released][1:], released, strict=False))
    for place, cell in enumerate(given):
        if found[place]:
            continue
        if cell["cell_type"] == "code":
            found[place] = next(
                (name for name, one in defines.items() if one.search(cell["source"])), ""
            )
        elif cell["cell_type"] == "markdown" and place:
            follows = [
                name
                for name in sheet.written
                if before.get(name) == found[place - 1] and name not in found
            ]
            found[place] = follows[0] if follows else ""
    if any(
        name in sheet.exercises or name in sheet.written
        for name, known in zip(found, by_id, strict=True)
        if name != known
    ):
        notes.append("answers without nbgrader's marks were found by what stands in them")
    return found, notes


def _functions(sheet: Sheet, name: str) -> list[str]:
    return re.findall(r"^def\s+(\w+)", sheet.cell("answer", name).source, re.MULTILINE)


def _places(
    released: dict[str, nbformat.NotebookNode],
    given: Sequence[dict[str, Any]],
    names: Sequence[str],
) -> dict[str, list[int]]:
    """Return where each released cell stands in the file; of an answer's copies not those that
    nobody wrote in.
    """
    places: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        if name:
            places.setdefault(name, []).append(number)
    for name, cell in released.items():
        if cell.metadata.nbgrader.solution and name in places:
            # of equal ones the last
            by_text = {_bare(given[place]["source"]): place for place in places[name]}
            written = [
                place for text, place in by_text.items() if text not in ("", _bare(cell.source))
            ]
            places[name] = sorted(written) or places[name][:1]
    return places


def _changed(
    released: dict[str, nbformat.NotebookNode],
    given: Sequence[dict[str, Any]],
    places: dict[str, list[int]],
) -> list[str]:
    """Return a note on the cells of code that were given and changed or deleted; a formatter's
    changes are none.
    """
    changed, deleted = [], []
    for name, cell in released.items():
        if cell.cell_type == "code" and cell.metadata.nbgrader.locked:
            sources = [
                one for place in places.get(name, []) if (one := given[place]["source"]).strip()
            ]
            if not sources:
                deleted.append(name)
            elif any(_bare(one) != _bare(cell.source) for one in sources):
                changed.append(name)
    checks = {
        name: name.removesuffix("_checks")
        for name, cell in released.items()
        if cell.metadata.nbgrader.grade
    }
    notes = [
        f"the checks of {checks[one]} were" if one in checks else "a cell that was given was"
        for one in changed
    ]
    others = sum(one not in checks for one in deleted)
    gone = [f"the checks of {checks[one]}" for one in deleted if one in checks]
    gone += (
        [f"{others} {'cell that was' if others == 1 else 'cells that were'} given"]
        if others
        else []
    )
    return [
        *dict.fromkeys(f"{one} changed; the original counted" for one in notes),
        *([f"deleted: {', '.join(gone)}; the originals counted"] if gone else []),
    ]


def _bare(source: str) -> str:
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
        cells = [_cell(one) for one in content.get("cells")]
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


def _cell(given: Any) -> dict[str, Any]:
    return {
        "cell_type": str(given["cell_type"]),
        "source": _text(given["source"]),
        "metadata": given.get("metadata"),
        "id": str(given.get("id")),
    }


def _text(source: Any) -> str:
    lines = [source] if isinstance(source, str) else list(source)
    if not all(isinstance(line, str) for line in lines):
        raise TypeError("no text")
    # half a surrogate pair is no text
    return "".join(lines).encode("utf-8", "replace").decode("utf-8")


def _grade_id(cell: dict[str, Any]) -> str:
    metadata = cell["metadata"]
    ours = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    return str(ours.get("grade_id", "")).strip() if isinstance(ours, dict) else ""


def _own(source: str, number: int) -> nbformat.NotebookNode:
    cell = nbformat.v4.new_code_cell(source)
    cell.id = f"{_OWN}-{number}"
    return cell
