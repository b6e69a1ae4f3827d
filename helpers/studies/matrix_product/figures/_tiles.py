"""A product in tiles: the blocks of threads of C, and what one block, or two threads, read of A and
of B.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.checks import whole_number
from helpers.studies._paper import COMPUTING, DATA, EMPTY, INK, QUIET, keys, paper, tint, write

_CELL_IN, _GAP_IN, _LEFT_IN, _TOP_IN, _MOST = 0.17, 0.42, 0.3, 0.34, 24


def draw_tiles(
    m: int,
    n: int,
    k: int,
    *,
    tile: int,
    block: tuple[int, int] = (0, 0),
    step: int | None = None,
    title: str = "",
) -> Figure:
    """Return A (m x k) beside C (m x n) and B (k x n) above it: what two threads read, or one block
    in a step.

    The sides are ``m``, ``n`` and ``k``. C is cut into blocks of ``tile`` x ``tile`` threads, an
    element each. Without ``step`` it is the naive kernel: the first two threads of ``block`` (its
    row and column) read the same row of A, and a column of B each. With it, the block has the tiles
    number ``step`` in its shared memory. ``title`` stands above the drawing. Raises ValueError for
    sides that the tile does not divide or above 24, a block or a step that is not there. Lesson 02.
    """
    for name, side in {"m": m, "n": n, "k": k}.items():
        if whole_number(name, side, at_most=_MOST) % whole_number("tile", tile):
            raise ValueError(
                f"{name}={side} is cut into no whole tiles of {tile}; give a multiple of the tile"
            )
    rows, columns = (
        whole_number(f"block[{index}]", at, at_least=0, at_most=side // tile - 1) * tile
        for index, (at, side) in enumerate(zip(block, (m, n), strict=True))
    )
    naive = step is None
    tall, wide = (1, min(tile, 2)) if naive else (tile, tile)
    start = (
        0 if step is None else whole_number("step", step, at_least=0, at_most=k // tile - 1) * tile
    )
    left, top = _LEFT_IN + k * _CELL_IN + _GAP_IN, _TOP_IN + k * _CELL_IN + _GAP_IN
    high = top + m * _CELL_IN
    figure, axes = paper(max(left + n * _CELL_IN + 0.3, 6.0), high + 0.75, title=title)
    now, path = (slice(0, k), slice(0, 0)) if naive else (slice(start, start + tile), slice(0, k))
    at = {"A": (_LEFT_IN, top), "B": (left, _TOP_IN), "C": (left, top)}
    strips = {
        "A": (m, k, (rows, rows + tall), None),
        "B": (k, n, None, (columns, columns + wide)),
        "C": (m, n, (rows, rows + tall), (columns, columns + wide)),
    }
    for name, (down, across, needed_rows, needed_columns) in strips.items():
        for i in range(down):
            for j in range(across):
                is_needed = (needed_rows is None or needed_rows[0] <= i < needed_rows[1]) and (
                    needed_columns is None or needed_columns[0] <= j < needed_columns[1]
                )
                k_index = {"A": j, "B": i, "C": -1}[name]
                colour = (
                    COMPUTING if name == "C" else DATA if now.start <= k_index < now.stop else EMPTY
                )
                if naive and name == "B":
                    colour = tint(DATA, 0.6)
                if colour == EMPTY and path.start <= k_index < path.stop:
                    colour = tint(DATA, 0.75)
                _cell(axes, *at[name], i, j, colour if is_needed else EMPTY)
        x, y = at[name]
        write(axes, x + across * _CELL_IN / 2, y - 0.16, f"{name}, {down} x {across}", bold=True)
    for i in range(0, m, tile):
        for j in range(0, n, tile):
            _frame(axes, left + j * _CELL_IN, top + i * _CELL_IN, tile, thick=1.2, colour=QUIET)
    if not naive:
        _frame(axes, _LEFT_IN + start * _CELL_IN, top + rows * _CELL_IN, tile)
        _frame(axes, left + columns * _CELL_IN, _TOP_IN + start * _CELL_IN, tile)
        _frame(axes, left + columns * _CELL_IN, top + rows * _CELL_IN, tile)
    legend = (
        {
            "two threads": (COMPUTING, "none"),
            "both read": (DATA, "none"),
            "one reads": (tint(DATA, 0.6), "none"),
        }
        if naive
        else {
            "a block": (COMPUTING, INK),
            "in its shared memory": (DATA, INK),
            "before and after": (tint(DATA, 0.75), "none"),
        }
    )
    keys(axes, _LEFT_IN, high + 0.25, legend | ({"blocks": ("white", QUIET)} if naive else {}))
    return figure


def _cell(axes: Axes, x: float, y: float, row: int, column: int, colour: str) -> None:
    corner = (x + column * _CELL_IN + 0.01, y + row * _CELL_IN + 0.01)
    axes.add_patch(Rectangle(corner, _CELL_IN - 0.02, _CELL_IN - 0.02, facecolor=colour))


def _frame(
    axes: Axes, x: float, y: float, cells: int, *, thick: float = 2.2, colour: str = INK
) -> None:
    side = cells * _CELL_IN
    axes.add_patch(
        Rectangle((x, y), side, side, facecolor="none", edgecolor=colour, linewidth=thick, zorder=3)
    )
