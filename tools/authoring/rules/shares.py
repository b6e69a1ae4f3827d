"""The share of a lesson's outputs that strict nbval compares, counted honestly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from helpers.results import Result
from tools.authoring.notebook import WIDGET_VIEW

IGNORE_TAG = "nbval-ignore-output"

_NEVER_COMPARED = {"image/png", "image/jpeg", WIDGET_VIEW}
_PATTERN = re.compile(r"^regex: (.*)\nreplace: (.*)$", re.MULTILINE)
_MASK = re.compile(r"(?m)<(?:rate|time|times)>|^here: <verdict>$")


@dataclass(frozen=True)
class ComparedShare(Result):
    """Of a lesson's code cells: how many show something, how many of those are compared, and the
    share.
    """

    lesson: str
    code_cells: int
    shown: int
    compared: int
    compared_share: float | None


@dataclass(frozen=True)
class Shares(Result):
    """The share of every lesson, and of all together."""

    total_share: float | None
    lessons: tuple[ComparedShare, ...]


Patterns = Sequence[tuple[str, str]]


def patterns(sanitize_file: Path) -> Patterns:
    """Return the (regex, replacement) pairs of a sanitise file, as nbval reads them."""
    return _PATTERN.findall(sanitize_file.read_text(encoding="utf-8"))


def sanitize(text: str, rules: Patterns) -> str:
    """Return ``text`` as nbval compares it."""
    for regex, replacement in rules:
        text = re.sub(regex, replacement, text)
    return text


def share(name: str, notebook: nbformat.NotebookNode, rules: Patterns) -> ComparedShare:
    """Count the code cells of one notebook; the share is None when no cell shows anything."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown_cells = [cell for cell in code if cell.outputs]
    compared_cells = [cell for cell in shown_cells if is_compared(cell, rules)]
    return ComparedShare(
        name,
        len(code),
        len(shown_cells),
        len(compared_cells),
        len(compared_cells) / len(shown_cells) if shown_cells else None,
    )


def shares(lesson_shares: Sequence[ComparedShare]) -> Shares:
    """Put the shares of all lessons together."""
    shown_count = sum(lesson_share.shown for lesson_share in lesson_shares)
    return Shares(
        sum(lesson_share.compared for lesson_share in lesson_shares) / shown_count
        if shown_count
        else None,
        tuple(lesson_shares),
    )


def is_compared(cell: nbformat.NotebookNode, rules: Patterns) -> bool:
    """Return True when nbval would notice a change in what the cell shows.

    It would not where the cell is tagged, was never run, shows a picture without text, or shows
    nothing but what is masked.
    """
    if cell.execution_count is None or IGNORE_TAG in cell.metadata.get("tags", []):
        return False
    texts = [sanitize(text, rules) for output in cell.outputs for text in compared_texts(output)]
    return any(re.search(r"\w", _MASK.sub("", text)) for text in texts)


def compared_texts(output: nbformat.NotebookNode) -> list[str]:
    """Return the texts of one output that strict nbval compares."""
    if output.output_type == "stream":
        return [output.text]
    if output.output_type == "error":
        return [output.ename, output.evalue]
    data: dict[str, Any] = output.data
    return [
        value if isinstance(value, str) else str(value)
        for mime, value in data.items()
        if mime not in _NEVER_COMPARED
    ]
