"""The minutes of a lesson for its reader, estimated from its cells until somebody was timed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from tools.authoring.cells import Cell

WORDS_PER_MINUTE = 100  # at 130, readers of six lessons needed a sixth more than was said
LINE_S = 5  # of visible code
PREDICTION = 2  # minutes each
YOURS = (5, 15)  # what a function that the reader writes may take; its cell says it: takes=8
USUAL = 8
EXERCISE = 12
QUESTION = 3
STEP = 5

# the site's name of the tag: a reader sees the output, and the code after a click
FOLDED = "hide-input"

# and not what a fitted model predicts
_PREDICTION = re.compile(r"(?<![\w.])(?:helpers\.)?predict\(")
_NOT_PROSE = frozenset({"objectives", "recap", "formulas"})
_BLOCK = re.compile(r"```.*?```|\$\$.*?\$\$", re.DOTALL)
_LINE = re.compile(r"\s*(?:[|#>]|[-*] |\d+\. )")


def words(cells: Iterable[Cell]) -> int:
    """Return the words of running text: no lists, tables, quotations, headings and formulas in
    lines of their own.
    """
    return sum(
        len(prose(cell.source).split())
        for cell in cells
        if cell.kind == "markdown" and not _NOT_PROSE & set(cell.tags)
    )


def prose(text: str) -> str:
    """Return the running text of a markdown cell."""
    return "\n".join(line for line in _BLOCK.sub(" ", text).splitlines() if not _LINE.match(line))


def predictions(cells: Iterable[Cell]) -> int:
    """Return the number of predictions that the cells ask for."""
    return sum(len(_PREDICTION.findall(cell.source)) for cell in cells if cell.kind == "code")


def lines(cell: Cell) -> int:
    """Return the lines of code that a reader sees of a cell: none of a folded one, no blank line
    and no comment.
    """
    if cell.kind != "code" or FOLDED in cell.tags:
        return 0
    code_lines = (line.strip() for line in cell.source.splitlines())
    return sum(
        bool(line) and line != "#" and not line.startswith(("# ", "//")) for line in code_lines
    )


def minutes(cells: Sequence[Cell], *, run_s: float) -> int:
    """Return the minutes of a lesson, or of its exercises, rounded up to five; its cells take
    ``run_s`` to run.
    """
    total = words(cells) / WORDS_PER_MINUTE + predictions(cells) * PREDICTION + run_s / 60
    total += sum(lines(cell) for cell in cells if "yours" not in cell.metadata) * LINE_S / 60
    total += sum(cell.metadata.get("takes", USUAL) for cell in cells if "yours" in cell.metadata)
    for kind, minutes_each in (("answer", EXERCISE), ("written", QUESTION)):
        total += sum(kind in cell.metadata for cell in cells) * minutes_each
    return STEP * math.ceil(total / STEP)
