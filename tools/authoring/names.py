"""Which cells of a notebook take names from which others."""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterable, Sequence
from types import CodeType


def needed(sources: Sequence[str], wanted: Iterable[int]) -> frozenset[int]:
    """Return the indices of the cells that are wanted, and of all that these take a name from,
    directly or not.

    A cell takes a name from the last cell before it that binds the name.
    """
    waiting, found = list(wanted), set()
    names = [_names(source) for source in sources]
    while waiting:
        index = waiting.pop()
        if index in found:
            continue
        found.add(index)
        for name in names[index][0]:
            waiting += next(
                ([before] for before in reversed(range(index)) if name in names[before][1]), []
            )
    return frozenset(found)


def _names(source: str) -> tuple[set[str], set[str]]:
    """Return the names that a cell takes from others, and those that it binds."""
    taken: set[str] = set()
    bound: set[str] = set()
    for instruction in dis.get_instructions(
        compile(source, "a cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    ):
        if instruction.opname == "LOAD_NAME":
            taken |= {instruction.argval} - bound
        elif isinstance(instruction.argval, CodeType):
            taken |= _inner_names(instruction.argval) - bound
        elif instruction.opname == "STORE_NAME":
            bound.add(instruction.argval)
    return taken, bound


def _inner_names(code: CodeType) -> set[str]:
    """Return the names that a function or a class takes from outside when it runs."""
    names: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(instruction.argval)
        elif isinstance(instruction.argval, CodeType):
            names |= _inner_names(instruction.argval)
    return names
