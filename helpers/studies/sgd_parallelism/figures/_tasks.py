"""A training as tasks, with an arrow for each wait, and its longest chain."""

from __future__ import annotations

import itertools

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.plotting._style import COLOURS
from helpers.studies._paper import (
    COMPUTING,
    DATA,
    QUIET,
    SENDING,
    arrow,
    box,
    keys,
    paper,
    tint,
    write,
)

_WIDE_IN, _MARGIN_IN, _HEAD_IN, _FOOT_IN = 8.2, 0.3, 0.35, 0.32
_ROW_IN, _BOX_IN = 0.72, 0.4
_FORWARD, _BACKWARD = tint(COMPUTING, 0.35), tint(COLOURS["backward"], 0.35)


def draw_tasks() -> Figure:
    """Draw a training as a row of tasks per example, an arrow for each wait, and one of its longest
    chains marked.

    Each of two steps has for each of three examples a forward and a backward pass through two
    layers, and then one update, which waits for all examples. The chain passes through the example
    in the middle. Lesson 04.
    """
    steps, examples, layers = 2, 3, 2
    columns = steps * (2 * layers + 1)
    drawn, axes = paper(_WIDE_IN, _HEAD_IN + examples * _ROW_IN + _FOOT_IN, title="")
    pitch_in = (_WIDE_IN - 2 * _MARGIN_IN) / columns
    width_in = 0.68 * pitch_in
    chain = examples // 2  # the row in the middle, where the updates stand as well

    def position(column: int, row: float) -> tuple[float, float]:
        return _MARGIN_IN + (column + 0.5) * pitch_in, _HEAD_IN + (row + 0.3) * _ROW_IN

    order = [
        *((str(layer + 1), _FORWARD) for layer in range(layers)),
        *((str(layer + 1), _BACKWARD) for layer in reversed(range(layers))),
    ]
    for step in range(steps):
        first = step * (2 * layers + 1)
        update_position = position(first + 2 * layers, chain)
        for row in sorted(range(examples), key=lambda row: row == chain):  # the chain on top
            marked = row == chain
            positions = [position(first + column, row) for column in range(len(order))]
            before = [position(first - 1, chain)] if step else []
            for start, end in itertools.pairwise([*before, *positions, update_position]):
                _wait(axes, start, end, width_in, marked=marked)
            for at, (text, colour) in zip(positions, order, strict=True):
                _task(axes, at, width_in, text, colour, marked=marked)
        _task(axes, update_position, width_in, "update", DATA, marked=True)
        middle, _ = position(first + layers, 0)
        write(axes, middle, 0.14, f"step {step + 1}", size=12, bold=True, colour=QUIET)
    tasks = steps * (2 * layers * examples + 1)
    legend = {
        "layer, forward": (_FORWARD, "none"),
        "layer, backward": (_BACKWARD, "none"),
        f"longest chain, {columns} of {tasks} tasks": ("white", SENDING),
    }
    keys(axes, _MARGIN_IN, _HEAD_IN + (chain + examples / 2) * _ROW_IN + 0.2, legend)
    return drawn


def _task(
    axes: Axes, at: tuple[float, float], width_in: float, text: str, colour: str, *, marked: bool
) -> None:
    left, top = at[0] - width_in / 2, at[1] - _BOX_IN / 2
    edge, size = SENDING if marked else "none", 9.5 if len(text) > 1 else 12
    box(axes, left, top, width_in, _BOX_IN, text, colour=colour, edge=edge, thick=2.2, size=size)


def _wait(
    axes: Axes,
    before: tuple[float, float],
    after: tuple[float, float],
    width_in: float,
    *,
    marked: bool,
) -> None:
    start, end = (before[0] + width_in / 2, before[1]), (after[0] - width_in / 2, after[1])
    arrow(axes, start, end, colour=SENDING if marked else QUIET, thick=2.2 if marked else 1)
