"""The figures of lesson 07: a sum in two levels step by step, its times by size, and the price of
leaving a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from helpers import plotting
from helpers.plotting import MEASURED, MODELLED, Curves, Series, Slider
from helpers.studies._paper import (
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
from helpers.studies.two_levels._rings import NODES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STEPS = (
    "at the start",
    "reduce-scatter\ninside the nodes",
    "all-reduce\nbetween partners",
    "all-gather\ninside the nodes",
)
_CELL_IN, _ROW_IN, _GAP_IN, _NODE_GAP_IN = 0.72, 0.5, 0.55, 0.42
_LEFT_IN, _TOP_IN = 1.15, 0.85
_ONE_TERM, _NODE_SUM = tint(DATA, 0.75), tint(DATA, 0.2)
_WHOLE_SUM = tint(MEASURED, 0.45)
_LINE = "#882255"


def draw_steps() -> Figure:
    """Return the vectors of four GPUs in two nodes before, between and after the steps of a sum in
    two levels.

    GPU 0 begins with ones, GPU 1 with tens, GPU 2 with hundreds and GPU 3 with thousands. Each
    vector is drawn as two halves, with the value of their elements. Lesson 07.
    """
    wide = _LEFT_IN + len(_STEPS) * 2 * _CELL_IN + (len(_STEPS) - 1) * _GAP_IN + 0.25
    high = _row_top(NODES[-1][-1]) + _ROW_IN + 0.75
    drawn, axes = paper(wide, high, title="A sum in two levels, step by step")
    for number, node in enumerate(NODES):
        top = _row_top(node[0]) - 0.08
        box(
            axes,
            0.08,
            top,
            wide - 0.16,
            _row_top(node[-1]) + _ROW_IN + 0.08 - top,
            colour="none",
            edge=QUIET,
        )
        write(
            axes,
            0.2,
            (_row_top(node[0]) + _row_top(node[-1]) + _ROW_IN) / 2,
            f"node {number}",
            size=10,
            turned=True,
        )
        for rank in node:
            write(axes, _LEFT_IN - 0.12, _row_top(rank) + _ROW_IN / 2, f"GPU {rank}", ha="right")
    states = vectors()
    for step, name in enumerate(_STEPS):
        left = _LEFT_IN + step * (2 * _CELL_IN + _GAP_IN)
        for line, words in enumerate(name.split("\n")):
            write(axes, left + _CELL_IN, 0.22 + 0.24 * line, words, bold=not line)
        for rank, halves in enumerate(states[step]):
            for half, value in enumerate(halves):
                corner = left + half * _CELL_IN, _row_top(rank)
                colour = EMPTY if value is None else _colour(value)
                box(
                    axes,
                    *corner,
                    _CELL_IN,
                    _ROW_IN,
                    "" if value is None else f"{value:,}",
                    colour=colour,
                    edge=QUIET,
                )
        if step:
            _draw_messages(axes, step, left - _GAP_IN / 2)
    names = {
        "one GPU's": _ONE_TERM,
        "a node's sum": _NODE_SUM,
        "the whole sum": _WHOLE_SUM,
        "not here": EMPTY,
    }
    keys(axes, _LEFT_IN, high - 0.36, {name: (colour, QUIET) for name, colour in names.items()})
    return drawn


def vectors() -> list[list[list[int | None]]]:
    """Return the values of both halves on each GPU at each step, None for a half that a GPU does
    not have.
    """
    values = [1, 10, 100, 1000]
    node_sums = [sum(values[peer] for peer in node) for node in NODES for _ in node]
    totals = [sum(values)] * len(values)

    def keep_own_half(sums: Sequence[int]) -> list[list[int | None]]:
        return [[None, total] if rank % 2 else [total, None] for rank, total in enumerate(sums)]

    return [
        [[value, value] for value in values],
        keep_own_half(node_sums),
        keep_own_half(totals),
        [[total, total] for total in totals],
    ]


def draw_sizes(
    published: Mapping[str, Mapping[int, float]],
    *,
    bounds: Mapping[int, tuple[float, float]],
    line: Mapping[int, float],
) -> Figure:
    """Return a plot of the times of all-reduces over the bytes of their tensors.

    ``published`` has the seconds for each size in bytes by a name, and is drawn as points.
    ``bounds`` has two modelled times for each size, drawn as the space between them, and ``line``
    the seconds of a latency and a bandwidth. Lesson 07.
    """
    drawn, axes = plotting.figure(
        title="Time of an all-reduce on one and on four nodes of B200", height_in=4.4
    )
    sizes = sorted(bounds)
    low, high = np.array([bounds[size] for size in sizes]).T
    axes.fill_between(
        sizes,
        low,
        high,
        color=MODELLED,
        alpha=0.35,
        label="between the bounds of four nodes (modelled)",
    )
    axes.plot(
        sorted(line),
        [line[size] for size in sorted(line)],
        color=_LINE,
        label="a latency and a rate (modelled)",
    )
    for (name, times), marker in zip(published.items(), "os^v", strict=False):
        axes.plot(
            list(times),
            list(times.values()),
            marker,
            ms=6,
            color=MEASURED,
            markeredgecolor=INK,
            label=f"{name} (published)",
        )
    axes.set(yscale="log", xlabel="bytes of the tensor", ylabel="time of the all-reduce")
    axes.set_xscale("log", base=2)
    axes.set_xticks([2**power for power in (15, 20, 25, 30, 34)])
    plotting.unit_axis(axes, "x", "B", binary=True)
    plotting.unit_axis(axes, "y", "s")
    axes.legend()
    return drawn


def explore_leaving() -> None:
    """Display the price of leaving a node as a figure to turn: by the rates of both links, the GPUs
    and the nodes.

    An all-reduce in two levels, inside and outside one after the other, and an all-to-all are
    compared with themselves in a single node, for the same bytes on each GPU. Only bytes take time.
    Lesson 07.
    """
    plotting.explore(
        title="How many times as long as in one node?",
        alt="Two curves over the nodes: an all-to-all becomes far longer than in one node, an "
        "all-reduce hardly.",
        inputs=[
            Slider("nodes", "nodes", [2, 3, 4, 6, 8, 12, 16, 32, 64], 2),
            Slider("gpus", "GPUs per node", [2, 4, 8, 16, 32, 72], 8),
            Slider("inside", "GB/s inside the node", [31, 63, 150, 300, 450, 900, 1800], 450),
            Slider("port", "GB/s of a port", [3.125, 6.25, 12.5, 25, 50, 100, 200, 400], 50),
        ],
        formulas={
            "near": "2 * (gpus - 1) / gpus / inside",
            "far": "2 * (nodes - 1) / nodes / gpus / port",
            "all_reduce": "(near + far) / near",
            "pieces_near": "(gpus - 1) / (gpus * nodes) / inside",
            "pieces_far": "(nodes - 1) / nodes / port",
            "all_to_all": "max(pieces_near, pieces_far) / ((gpus - 1) / gpus / inside)",
        },
        picture=Curves(
            along="nodes",
            lines=[
                Series("all_to_all", "all-to-all", SENDING),
                Series("all_reduce", "all-reduce in two levels", MODELLED),
            ],
            xlabel="nodes",
            ylabel="time relative to one node (modelled)",
            log_x=False,
            log_y=False,
        ),
    )


def _row_top(rank: int) -> float:
    node = rank // len(NODES[0])
    return _TOP_IN + rank * (_ROW_IN + 0.06) + node * _NODE_GAP_IN


def _colour(value: int) -> str:
    """Return the colour of a value by the terms in it, which are its ones."""
    return {1: _ONE_TERM, 2: _NODE_SUM}.get(str(value).count("1"), _WHOLE_SUM)


def _draw_messages(axes: Axes, step: int, x: float) -> None:
    """Draw who exchanges messages before the column ``step``: inside the nodes, or between
    partners.
    """
    inside = step != 2
    pairs = NODES if inside else tuple(zip(*NODES, strict=True))
    for position, (first, second) in enumerate(pairs):
        at = x if inside else x + (position - 0.5) * 0.22
        ends = (at, _row_top(first) + _ROW_IN / 2), (at, _row_top(second) + _ROW_IN / 2)
        for start, end in (ends, ends[::-1]):
            arrow(axes, start, end, colour=QUIET if inside else SENDING, thick=1.6)
