"""The tiles of causal attention that queries and keys of some pieces have in common. Lesson 09."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from helpers.checks import members, whole_number


def count_tiles(queries: Iterable[int], keys: Iterable[int]) -> float:
    """Return the tiles that causal attention computes for the pieces ``queries`` and ``keys`` of a
    sequence.

    Pieces are numbered in the order of the sequence. A tile is all queries of one piece with all
    keys of one piece. A piece looks at all of an earlier piece, at half of itself, and at nothing
    of a later one. Raises TypeError for what is no sequence of whole numbers, ValueError for a
    number below 0. Lesson 09.

    >>> count_tiles([2], [0, 1, 2, 3])
    2.5
    """
    rows, columns = (
        _pieces(name, pieces) for name, pieces in (("queries", queries), ("keys", keys))
    )
    return sum(
        1.0 if column < row else 0.5 * (column == row)
        for row, column in itertools.product(rows, columns)
    )


def _pieces(name: str, pieces: Iterable[int]) -> list[int]:
    sizes = members(name, pieces, "pieces")
    return [whole_number(f"{name}[{index}]", size, at_least=0) for index, size in enumerate(sizes)]
