"""The cells of a notebook that take names from others, directly or not."""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterable, Sequence
from types import CodeType


def needed_cells(sources: Sequence[str], indices: Iterable[int]) -> frozenset[int]:
    """Return the indices of the cells that are wanted, and of all that these take a name from,
    directly or not.

    A cell takes a name from the last cell before it that binds the name.
    """
    pending, cells = list(indices), set()
    names = [_names(source) for source in sources]
    while pending:
        index = pending.pop()
        if index in cells:
            continue
        cells.add(index)
        for name in names[index][0]:
            pending += next(
                ([before] for before in reversed(range(index)) if name in names[before][1]), []
            )
    return frozenset(cells)


def _names(source: str) -> tuple[set[str], set[str]]:
    """Return the names that a cell takes from others, and those that it binds."""
    taken_names: set[str] = set()
    bound_names: set[str] = set()
    for instruction in dis.get_instructions(
        compile(source, "a cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    ):
        if instruction.opname == "LOAD_NAME":
            taken_names |= {instruction.argval} - bound_names
        elif isinstance(instruction.argval, CodeType):
            taken_names |= _inner_names(instruction.argval) - bound_names
        elif instruction.opname == "STORE_NAME":
            bound_names.add(instruction.argval)
    return taken_names, bound_names


def _inner_names(code: CodeType) -> set[str]:
    """Return the names that a function or a class takes from outside when it runs."""
    names: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(instruction.argval)
        elif isinstance(instruction.argval, CodeType):
            names |= _inner_names(instruction.argval)
    return names
