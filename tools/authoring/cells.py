"""Read the cells of a percent script."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import nbformat

_MARKER = re.compile(r"^\s*#\s*%%(\s|$)")
_JUPYTEXT_KEYS = ("lines_to_next_cell",)


class AuthoringError(Exception):
    """A lesson cannot be read, built or checked; the text says which, where, and what to do."""


@dataclass(frozen=True)
class Cell:
    """One cell of a source: ``kind`` is markdown or code, ``line`` the line of its ``# %%``
    marker.
    """

    kind: str
    source: str
    tags: tuple[str, ...]
    metadata: Mapping[str, Any]
    line: int


@functools.lru_cache(maxsize=128)  # a second a lesson, and every check of one lesson reads them all
def cells_of(script: str, where: str) -> tuple[Cell, ...]:
    """Return the cells of a percent script; ``where`` names the file in the AuthoringError for an
    ill-formed one.
    """
    import jupytext  # a reader's environment has none, and the reader's copy is made there

    try:
        read_cells = jupytext.reads(script, fmt="py:percent").cells
    except nbformat.ValidationError as error:
        example = 'write it as # %% tags=["run"] minutes=2'
        raise AuthoringError(
            f"{where}: a cell's metadata is ill-formed ({error.message}); {example}"
        ) from error
    lines = [
        number for number, line in enumerate(script.splitlines(), start=1) if _MARKER.match(line)
    ]
    if len(lines) != len(read_cells):
        raise AuthoringError(
            f"{where}: {len(lines)} lines begin a cell with '# %%' but {len(read_cells)} cells are "
            "read; put no text between the header and the first '# %%', and no '# %%' within a cell"
        )
    if not read_cells:
        raise AuthoringError(f"{where} has no cells; begin one with '# %%' or '# %% [markdown]'")
    return tuple(_cell(cell, line, where) for cell, line in zip(read_cells, lines, strict=True))


def _cell(cell: Any, line: int, where: str) -> Cell:
    if cell.cell_type not in ("markdown", "code"):
        raise AuthoringError(f"{where}, line {line}: a {cell.cell_type} cell; use markdown or code")
    if not cell.source.strip():
        raise AuthoringError(f"{where}, line {line}: an empty cell; write it or remove its '# %%'")
    metadata = {key: value for key, value in cell.metadata.items() if key not in _JUPYTEXT_KEYS}
    tags = metadata.pop("tags", [])
    return Cell(cell.cell_type, cell.source, tuple(tags), MappingProxyType(metadata), line)
