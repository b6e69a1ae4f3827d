"""Attention's reads and writes in four orders: addresses for a cache, and formulas of their
bytes.

Lesson 21.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from helpers.checks import boolean, choice, short, whole_number
from helpers.results import Record
from helpers.studies.simulators import AddressStream, CacheLevel, join_streams, simulate_caches

ORDERS = ("row by row", "products in tiles", "queries outside", "keys outside")
_NUMBER, _LINE = 4, 64  # bytes of a float32, and of a cache line
_MOST_TILES = 10**7
_MOST_TOKENS = 2**20


class Moved(Record):
    """Bytes that came from memory, and that went there. Lesson 21."""

    read_bytes: int
    written_bytes: int


def tiles_of(
    tokens: int, *, rows: int, columns: int, order: str = "queries outside", causal: bool = False
) -> tuple[tuple[int, int], ...]:
    """Return the tiles of the table in their ``order``, each its block of queries and its block of
    keys, from 0.

    >>> tiles_of(4, rows=2, columns=2, causal=True)
    ((0, 0), (1, 0), (1, 1))

    The table is ``tokens`` x ``tokens``, a tile ``rows`` x ``columns``, and the order "queries
    outside" or "keys outside". With ``causal`` those that have a key to look at. Raises ValueError
    for tiles that do not divide the tokens, and for too many of them. Lesson 21.
    """
    boolean("causal", causal)
    order = choice("order", order, ORDERS[2:])
    tokens, rows, columns = _check(tokens, rows, columns)
    count = (tokens // rows) * (tokens // columns)
    if count > _MOST_TILES:
        raise ValueError(
            f"{short(tokens)} tokens have {short(count)} tiles of {rows} x {columns}, above "
            f"{_MOST_TILES:,}; give fewer tokens or larger tiles"
        )
    q_blocks, kv_blocks = range(tokens // rows), range(tokens // columns)
    tiles = (
        [(i, j) for i in q_blocks for j in kv_blocks]
        if order == ORDERS[2]
        else [(i, j) for j in kv_blocks for i in q_blocks]
    )
    return tuple((i, j) for i, j in tiles if not causal or j * columns < (i + 1) * rows)


def stream(
    tokens: int, width: int, *, order: str, rows: int = 64, columns: int = 64
) -> AddressStream:
    """Return the cache lines that a head of ``tokens`` x ``width`` touches, in ``order``: of Q, K,
    V, O and the table.

    "row by row": a query after another; the table is written, scaled, made a softmax and read
    again, each time whole. "products in tiles": the same passes, and both products in tiles.
    "queries outside" and "keys outside": no table, and a loop over tiles that keeps queries (keys),
    as FlashAttention-2 (FlashAttention) does. Tiles are ``rows`` x ``columns``, numbers float32;
    sums and tiles of scores stay in registers. Raises ValueError for a width that is not whole
    lines, and tiles that do not divide the tokens.
    """
    order = choice("order", order, ORDERS)
    tokens, rows, columns = _check(tokens, rows, columns)
    if whole_number("width", width) * _NUMBER % _LINE or tokens * _NUMBER % _LINE:
        raise ValueError(
            f"{tokens} tokens of width {width} are not whole lines of {_LINE} bytes; give "
            f"multiples of {_LINE // _NUMBER}"
        )
    if tokens > _MOST_TOKENS or width > _MOST_TOKENS:
        raise ValueError(
            f"{short(tokens)} tokens of width {short(width)} are too many to list; give at most "
            f"{_MOST_TOKENS:,}"
        )
    touches = _Touches(tokens, width)
    if order in ORDERS[2:]:
        parts = touches.without_table(order, rows, columns)
    else:
        parts = touches.with_table(*((1, tokens) if order == "row by row" else (rows, columns)))
    return join_streams([AddressStream(lines * _LINE, writes, _LINE) for lines, writes in parts])


def count_bytes(
    tokens: int,
    width: int,
    *,
    order: str,
    rows: int = 64,
    columns: int = 64,
    cache_bytes: int = 65_536,
) -> Moved:
    """Return the bytes of :func:`stream` that reach memory through a cache of ``cache_bytes``,
    empty before and after.

    ``tokens``, ``width``, ``order``, ``rows`` and ``columns`` are those of the stream. The cache is
    fully associative, replaces the least recently used line and reads a line before it writes to
    it. Lesson 21.
    """
    run = simulate_caches(
        stream(tokens, width, order=order, rows=rows, columns=columns), [CacheLevel(cache_bytes)]
    )
    level = run.levels[0]
    return Moved(level.read_bytes, level.written_bytes + level.dirty_lines * level.line_bytes)


def model_bytes(tokens: int, width: int, *, order: str, rows: int = 64, columns: int = 64) -> Moved:
    """Return by formula what :func:`count_bytes` counts, for a cache that holds a tile's needs, not
    all keys or values.

    ``tokens``, ``width``, ``order``, ``rows`` and ``columns`` are those of :func:`stream`.
    """
    order = choice("order", order, ORDERS)
    tokens, rows, columns = _check(tokens, rows, columns)
    matrix_bytes, table_bytes = tokens * whole_number("width", width) * _NUMBER, tokens**2 * _NUMBER
    reads, writes, tables = {
        "row by row": (2 * tokens + 2, 1, True),
        "products in tiles": (2 * tokens // rows + 2, 1, True),
        "queries outside": (2 * tokens // rows + 2, 1, False),
        "keys outside": (2 * tokens // columns + 2, tokens // columns, False),
    }[order]
    return Moved(
        reads * matrix_bytes + 4 * tables * table_bytes,
        writes * matrix_bytes + 3 * tables * table_bytes,
    )


def _check(tokens: int, rows: int, columns: int) -> tuple[int, int, int]:
    tokens = whole_number("tokens", tokens)
    for name, side in {"rows": rows, "columns": columns}.items():
        if tokens % whole_number(name, side):
            raise ValueError(f"{tokens:,} tokens are cut into no whole tiles of {side} {name}")
    return tokens, rows, columns


_Part = tuple[np.ndarray, bool]


class _Touches:
    """The lines in which Q, K, V, O and the table lie, and those that an order touches."""

    def __init__(self, tokens: int, width: int) -> None:
        self.tokens, self.row_lines, self.table_row_lines = (
            tokens,
            width * _NUMBER // _LINE,
            tokens * _NUMBER // _LINE,
        )

    def block(self, matrix: int, number: int, rows: int) -> np.ndarray:
        """Return the lines of a block of rows of Q (0), K (1), V (2) or O (3)."""
        first = (matrix * self.tokens + number * rows) * self.row_lines
        return np.arange(first, first + rows * self.row_lines)

    def tile(self, row: int, column: int, rows: int, columns: int) -> np.ndarray:
        """Return the lines of a tile of the table, which lies behind all others."""
        first = 4 * self.tokens * self.row_lines + row * rows * self.table_row_lines
        return (
            first + self.table_row_lines * np.arange(rows)[:, None] + self.columns(column, columns)
        ).ravel()

    @staticmethod
    def columns(column: int, columns: int) -> np.ndarray:
        numbers = _LINE // _NUMBER
        return np.arange(column * columns // numbers, -(-(column + 1) * columns // numbers))

    def with_table(self, rows: int, columns: int) -> Iterator[_Part]:
        for i in range(self.tokens // rows):
            for j in range(self.tokens // columns):
                yield self.block(0, i, rows), False
                yield self.block(1, j, columns), False
                yield self.tile(i, j, rows, columns), True
        for _ in ("scale", "softmax"):
            for i in range(self.tokens):
                yield self.tile(i, 0, 1, self.tokens), False
                yield self.tile(i, 0, 1, self.tokens), True
        for i in range(self.tokens // rows):
            for j in range(self.tokens // columns):
                yield self.tile(i, j, rows, columns), False
                yield self.block(2, j, columns), False
            yield self.block(3, i, rows), True

    def without_table(self, order: str, rows: int, columns: int) -> Iterator[_Part]:
        for i, j in tiles_of(self.tokens, rows=rows, columns=columns, order=order):
            yield self.block(0, i, rows), False
            yield self.block(1, j, columns), False
            yield self.block(2, j, columns), False
            if order == "keys outside":
                yield self.block(3, i, rows), False
            if order == "keys outside" or (j + 1) * columns == self.tokens:
                yield self.block(3, i, rows), True
