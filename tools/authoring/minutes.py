"""How long a lesson takes its reader, computed from what it holds: nobody guesses it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from tools.authoring.cells import Cell

WORDS_A_MINUTE = 180
CODE_CELL = 1 / 3  # minutes each
PREDICTION = 1.5
YOURS = 6
EXERCISE = 12
QUESTION = 3
STEP = 5

_PREDICTION = re.compile(r"(?<![\w.])(?:helpers\.)?predict\(")  # and not what a fitted model predicts


def words(cells: Iterable[Cell]) -> int:
    """Return the words of all texts: what stands between spaces, also in tables and formulas."""
    return sum(len(cell.source.split()) for cell in cells if cell.kind == "markdown")


def predictions(cells: Iterable[Cell]) -> int:
    """Return how many predictions the cells ask for."""
    return sum(len(_PREDICTION.findall(cell.source)) for cell in cells if cell.kind == "code")


def minutes(cells: Sequence[Cell], *, run_s: float) -> int:
    """Return the minutes of a lesson, or of its exercises, rounded up to five; its cells take ``run_s`` to run."""
    found = words(cells) / WORDS_A_MINUTE + predictions(cells) * PREDICTION + run_s / 60
    found += sum(cell.kind == "code" for cell in cells) * CODE_CELL
    for kind, each in (("yours", YOURS), ("answer", EXERCISE), ("written", QUESTION)):
        found += sum(kind in cell.metadata for cell in cells) * each
    return STEP * math.ceil(found / STEP)
