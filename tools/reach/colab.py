"""What Colab opens, the branch ``colab``: the students' tree, in which each notebook begins with a
cell for Colab.

The cell stands in these notebooks alone: nobody else needs it, so nobody else sees it.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell

from tools.authoring.course import Course
from tools.authoring.lesson import AuthoringError
from tools.exercises import handout, sheets

_CELL = Path(__file__).with_name("first_cell.py")


def first_cell(address: str) -> str:
    """Return the text of the first cell, for a repository at ``address``."""
    return _CELL.read_text(encoding="utf-8").replace("ADDRESS", address).rstrip()


def write(course: Course, target: Path) -> Path:
    """Write the tree to ``target``, in place of what stood there, and return it.

    Raises AuthoringError while the address is unknown, and where the tree would give a solution
    away.
    """
    if not course.address:
        raise AuthoringError(
            "the repository's address is not known yet; run: python -m tools.reach address ADDRESS"
        )
    with handout.in_place_of(target) as fresh:
        handout.fill(course, fresh)
        for path in sorted(fresh.glob("course/**/*.ipynb")):
            notebook = nbformat.read(path, as_version=4)
            notebook.cells.insert(0, new_code_cell(first_cell(course.address), id="in-colab"))
            path.write_text(f"{nbformat.writes(notebook)}\n", encoding="utf-8")
        handout.refuse(handout.leaks(fresh, sheets.load(course)))
    return target
