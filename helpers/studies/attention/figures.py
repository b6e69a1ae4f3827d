"""Attention in tiles: the matrix of scores that nobody stores, and what a tile reads and adds to,
forward and back.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers import plotting
from helpers.checks import members, whole_number
from helpers.studies._paper import (
    COMPUTING,
    DATA,
    EMPTY,
    INK,
    QUIET,
    SENDING,
    arrow,
    box,
    keys,
    paper,
    tint,
    write,
)

_CELL_IN, _SMALL_IN, _BAR_IN, _GAP_IN, _LEFT_IN, _TOP_IN = 0.46, 0.32, 0.34, 0.12, 1.0, 0.42
_MOST = 12
_EDGE = "#AAAAAA"


def draw_score_tiles(order: Sequence[tuple[int, int]], step: int, *, title: str = "") -> Figure:
    """Draw the matrix of scores at tile number ``step`` of ``order``: a row a block of queries, a
    column one of keys.

    ``order`` has each tile as its row and column, from 0; tiles that are not in it are never made.
    Beside the matrix stand Q and O, above it K and V; what the tile needs is marked, and so is the
    block of O that it adds to. A number says how often a block was read so far, by a cache with
    room for one block of each, and in O how often it was written. ``title`` stands above the
    drawing. Raises ValueError for no tiles, a tile twice, more than 12 rows or columns, and a step
    that is not there. Lesson 21.
    """
    tiles = [
        tuple(whole_number(f"order[{index}]", side, at_least=0, at_most=_MOST - 1) for side in tile)
        for index, tile in enumerate(members("order", order, "tiles, each its row and column"))
    ]
    if not tiles or len(set(tiles)) < len(tiles) or any(len(tile) != 2 for tile in tiles):
        raise ValueError("order is tiles, each once and as (row, column), such as [(0, 0), (0, 1)]")
    step = whole_number("step", step, at_least=0, at_most=len(tiles) - 1)
    rows, columns = (max(sides) + 1 for sides in zip(*tiles, strict=True))
    cell_in = _CELL_IN if max(rows, columns) <= 6 else _SMALL_IN
    now, computed = tiles[step], set(tiles[:step])
    downwards, across = zip(*tiles, strict=True)
    q_reads, k_reads = (_runs([*side[: step + 1], None]) for side in (downwards, across))
    o_writes = _runs([*downwards, None][: step + 2])
    legend = {
        "in the cache": (DATA, INK),
        "left the cache": (tint(DATA, 0.65), _EDGE),
        "computed": (COMPUTING, INK),
    }
    legend |= {"done": (tint(COMPUTING, 0.65), _EDGE), "to come": (EMPTY, _EDGE)}
    if len(tiles) < rows * columns:
        legend["never"] = ("white", _EDGE)
    top, left = _TOP_IN + _BAR_IN + _GAP_IN, _LEFT_IN + _BAR_IN + _GAP_IN
    right, low = left + columns * cell_in, top + rows * cell_in
    high = max(low, top + 0.34 * len(legend) + 0.25) + 0.15
    figure, axes = paper(right + _GAP_IN + _BAR_IN + 2.5, high, title=title)
    done = tint(COMPUTING, 0.65)
    write(axes, _LEFT_IN - 0.1, (top + low) / 2, "queries Q", ha="right", bold=True)
    write(axes, (left + right) / 2, _TOP_IN - 0.2, "keys K and values V", bold=True)
    write(axes, right + _GAP_IN + _BAR_IN / 2, _TOP_IN + _BAR_IN - 0.12, "O", bold=True)
    for row, y in enumerate(top + row * cell_in for row in range(rows)):
        bar, marked = (_BAR_IN, cell_in), row == now[0]
        colour = _cache_colour(row, now[0], q_reads)
        _cell(axes, (_LEFT_IN, y), bar, colour, marked=marked, times=q_reads[row])
        row_tiles = {tile for tile in tiles if tile[0] == row}
        if marked:
            colour = COMPUTING
        elif row_tiles <= computed:
            colour = done
        else:
            colour = tint(COMPUTING, 0.88) if row_tiles & computed else EMPTY
        _cell(axes, (right + _GAP_IN, y), bar, colour, marked=marked, times=o_writes[row])
        for column in range(columns):
            tile = (row, column)
            colour = EMPTY if tile in tiles else "white"
            if tile == now:
                colour = COMPUTING
            elif tile in computed:
                colour = done
            corner = left + column * cell_in, y
            _cell(axes, corner, (cell_in, cell_in), colour, marked=tile == now)
    for column in range(columns):
        corner, bar = (left + column * cell_in, _TOP_IN), (cell_in, _BAR_IN)
        colour = _cache_colour(column, now[1], k_reads)
        _cell(axes, corner, bar, colour, marked=column == now[1], times=k_reads[column])
    key_left = right + _GAP_IN + _BAR_IN + 0.4
    for index, (name, colours) in enumerate(legend.items()):
        keys(axes, key_left, top + 0.34 * index, {name: colours})
    below, text = top + 0.34 * len(legend) + 0.12, "2  times read (O: written)"
    write(axes, key_left, below, text, size=10, ha="left")
    return figure


def _cell(
    axes: Axes,
    corner: tuple[float, float],
    size: tuple[float, float],
    colour: str,
    *,
    marked: bool = False,
    times: int = 0,
) -> None:
    """Draw a block, and in it how many ``times`` it was read or written."""
    edge, thick, order = (INK, 2.2, 3) if marked else (_EDGE, 0.8, 1)
    block = Rectangle(
        corner, *size, facecolor=colour, edgecolor=edge, linewidth=thick, zorder=order
    )
    axes.add_patch(block)
    if times:
        x, y = block.get_center()
        write(axes, x, y, str(times), size=10)


def draw_units(
    rows: Sequence[int], *, modelled: Sequence[float], simulated: Sequence[float], title: str
) -> Figure:
    """Draw the units that tiles read, over the rows of a tile: a line for the formula, points for a
    simulated cache.

    A unit is the bytes of Q of one head; ``modelled`` and ``simulated`` have one number for each of
    ``rows``, and ``title`` stands above the drawing. Lesson 21.
    """
    figure, axes = plotting.figure(title=title, height_in=3.6)
    axes.loglog(
        rows,
        modelled,
        "--",
        color=plotting.MODELLED,
        linewidth=2,
        label="2 n / rows + 2 (modelled)",
    )
    axes.loglog(rows, simulated, "o-", color=plotting.MEASURED, label="cache of 64 KiB (simulated)")
    for index, (row, units) in enumerate(zip(rows, simulated, strict=True)):
        last = index == len(rows) - 1
        axes.annotate(
            f"{units:.0f}",
            (row, units),
            textcoords="offset points",
            xytext=(-9 if last else 0, 8),
            ha="right" if last else "center",
        )
    axes.set_xticks(rows, [str(row) for row in rows])
    axes.set_yticks([20, 50, 100, 200], ["20", "50", "100", "200"])
    axes.minorticks_off()
    axes.set(xlabel="rows of a tile of 32 columns", ylabel="units read", ylim=(12, 420))
    axes.legend(loc="upper right")
    return figure


_PRODUCTS = (
    ("S", "= Q K\u1d40 / \u221ad", "again, then W = exp(S \u2212 \u03bb)"),
    ("dV", "+= W\u1d40 G", "to the values of its columns"),
    ("dW", "= G V\u1d40", "the gradient of each weight"),
    ("dQ", "+= dS K / \u221ad", "to the queries of its rows"),
    ("dK", "+= dS\u1d40 Q / \u221ad", "to the keys of its columns"),
)


def draw_backward_tile() -> Figure:
    """Draw one tile of the backward pass: the blocks that it reads, those that it adds to, and its
    five products.

    Lesson 21.
    """
    blocks, row, column = 4, 1, 2
    left, top, side = 1.75, 1.15, 0.5
    figure, axes = paper(left + blocks * side + 5.6, max(3.6, top + blocks * side + 0.45), title="")
    middle_x, middle_y = left + (column + 0.5) * side, top + (row + 0.5) * side
    for i in range(blocks):
        for j in range(blocks):
            colour = COMPUTING if (i, j) == (row, column) else EMPTY
            _cell(axes, (left + j * side, top + i * side), (side, side), colour)
    for name, x, colour in (("Q, G, \u03bb, D", 0.45, DATA), ("dQ", 1.1, SENDING)):
        for i in range(blocks):
            _cell(axes, (x, top + i * side), (0.34, side), colour if i == row else EMPTY)
        write(axes, x + 0.17, top + blocks * side + 0.2, name, bold=True)
    for name, y, colour in (("K, V", 0.12, DATA), ("dK, dV", 0.64, SENDING)):
        for j in range(blocks):
            _cell(axes, (left + j * side, y), (side, 0.34), colour if j == column else EMPTY)
        write(axes, left + blocks * side + 0.1, y + 0.17, name, bold=True, ha="left")
    arrow(axes, (left + column * side, middle_y), (1.47, middle_y), colour=INK, thick=1.4)
    arrow(axes, (middle_x, top + row * side), (middle_x, 1.0), colour=INK, thick=1.4)
    words = left + blocks * side + 0.8
    for index, (name, formula, meaning) in enumerate(_PRODUCTS):
        y = top + 0.12 + 0.42 * index
        box(axes, words, y - 0.16, 0.34, 0.34, str(index + 1), colour=COMPUTING, bold=True)
        write(axes, words + 0.45, y, f"{name} {formula}", size=12, bold=True, ha="left")
        write(axes, words + 2.12, y, meaning, size=11, colour=QUIET, ha="left")
    last = "dS = W \u2218 (dW \u2212 D), element by element"
    write(axes, words + 0.5, y + 0.42, last, size=11, ha="left")
    legend = {"read": (DATA, INK), "computed here": (COMPUTING, INK), "added to": (SENDING, INK)}
    keys(axes, words, 0.2, legend)
    return figure


def _runs(side: Sequence[int | None]) -> Counter[int]:
    """Return the number of runs of each block that have ended."""
    return Counter(
        block
        for block, following in itertools.pairwise(side)
        if block is not None and block != following
    )


def _cache_colour(block: int, now: int, reads: Counter[int]) -> str:
    return DATA if block == now else tint(DATA, 0.65) if reads[block] else EMPTY
