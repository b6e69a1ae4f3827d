"""Memories from the registers outwards, a tower a machine, side by side."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from helpers.checks import members, named, whole_number
from helpers.studies._paper import (
    COMPUTING,
    DATA,
    INK,
    QUIET,
    SENDING,
    arrow,
    box,
    paper,
    tint,
    write,
)

_TOWER_IN, _NARROWEST_IN, _WIDEST_IN, _ROW_IN, _GAP_IN, _EDGE_IN = 3.7, 0.4, 2.9, 0.34, 0.06, 0.9
_INSIDE_IN = 1.9  # a narrower bar has its words beside it

Memory = tuple[str, str] | tuple[str, str, int]


def draw_towers(
    towers: Mapping[str, Sequence[Memory | None]], *, on_chip: int, bus: tuple[int, str], title: str
) -> Figure:
    """Return ``towers``, one a machine: its memories from the nearest down, each (name, what to
    know about it, bytes).

    All towers have as many rows; None leaves one out. The first ``on_chip`` rows stand above the
    chip's edge. ``bus`` is the row at which the towers are joined, counted from 0, and what joins
    them. A bar's width is linear in the logarithm of its bytes, from the least that any tower has
    to the most; a memory without them has the widest. ``title`` stands above the drawing. Raises
    TypeError or ValueError for towers that are no lists of memories, or of different heights.
    Lesson 01.
    """
    rows = {
        name: members(f"towers[{name!r}]", tower, "pairs of a name and a text, or None")
        for name, tower in named("towers", towers, "lists of memories").items()
    }
    heights = {len(tower) for tower in rows.values()}
    if len(heights) != 1 or heights == {0}:
        raise ValueError(
            f"towers of {[len(tower) for tower in rows.values()]} rows cannot stand side by side; "
            "give each as many, with None for a memory that a machine has not"
        )
    (height,) = heights
    whole_number("on_chip", on_chip, at_least=0, at_most=height)
    at, joined_by = bus
    whole_number("bus[0]", at, at_least=0, at_most=height - 1)
    drawn, axes = paper(
        _EDGE_IN + len(rows) * _TOWER_IN, 0.5 + height * (_ROW_IN + _GAP_IN) + 0.15, title=title
    )
    tops = [0.5 + row * (_ROW_IN + _GAP_IN) for row in range(height)]
    known = [
        math.log(memory[2])
        for tower in rows.values()
        for memory in tower
        if memory and len(memory) > 2
    ]
    middles = [_EDGE_IN + (index + 0.5) * _TOWER_IN for index in range(len(rows))]
    for middle, (name, tower) in zip(middles, rows.items(), strict=True):
        write(axes, middle, 0.22, name, bold=True, size=12)
        for row, memory in enumerate(tower):
            if memory is None:
                continue
            colour = (
                tint(COMPUTING, 0.15 + 0.5 * row / height) if row < on_chip else tint(DATA, 0.55)
            )
            width, y = _width(memory, known), tops[row] + _ROW_IN / 2
            box(axes, middle - width / 2, tops[row], width, _ROW_IN, colour=colour)
            inside = width > _INSIDE_IN
            write(
                axes,
                middle if inside else middle + width / 2 + 0.06,
                y,
                f"{memory[0]}: {memory[1]}",
                size=10.5,
                ha="center" if inside else "left",
            )
    edge = tops[on_chip] - _GAP_IN / 2 if on_chip < height else tops[-1] + _ROW_IN
    axes.plot(
        [0.1, _EDGE_IN + len(rows) * _TOWER_IN - 0.1],
        [edge, edge],
        linestyle="--",
        color=QUIET,
        linewidth=1,
    )
    write(axes, 0.12, edge - 0.13, "on the chip", ha="left", size=10, colour=INK)
    write(axes, 0.12, edge + 0.15, "outside", ha="left", size=10, colour=INK)
    for left, right in itertools.pairwise(middles):
        y, reach = tops[at] + _ROW_IN / 2, _WIDEST_IN / 2 + 0.04
        arrow(axes, (left + reach, y), (right - reach, y), colour=SENDING)
        arrow(axes, (right - reach, y), (left + reach, y), colour=SENDING)
        write(axes, (left + right) / 2, y + 0.15, joined_by, size=10, colour=SENDING)
    return drawn


def _width(memory: Memory, known: Sequence[float]) -> float:
    if len(memory) == 2:
        return _WIDEST_IN
    least, most = min(known), max(known)
    share = (math.log(memory[2]) - least) / (most - least) if most > least else 1.0
    return _NARROWEST_IN + (_WIDEST_IN - _NARROWEST_IN) * share
