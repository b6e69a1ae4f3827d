"""The levels below one line of a program, and the tile of sums that a kernel keeps in registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from helpers.checks import members, named
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

_LEFT_IN, _LINE_IN, _GAP_IN, _PAD_IN = 1.45, 0.225, 0.24, 0.1
_CODE_IN = 0.0875  # a character of code at 10 points
_CELL_IN, _CELL_HIGH_IN, _SIDE_IN = 1.25, 0.52, 1.25


def draw_levels(levels: Mapping[str, Sequence[str]], *, title: str) -> Figure:
    """Return the levels of one call, from the top: each with its name and the lines that stand
    there, as code.

    Each hands on to the one below it. Raises TypeError or ValueError for levels that are no named
    lines. Lesson 15.
    """
    named("levels", levels, "levels, each a list of lines")
    lines = {
        level: members(f"levels[{level!r}]", level_lines, "lines", kind=str)
        for level, level_lines in levels.items()
    }
    width = (
        _CODE_IN * max(len(line) for level_lines in lines.values() for line in level_lines)
        + 2 * _PAD_IN
    )
    height = (
        sum(len(level_lines) * _LINE_IN + _PAD_IN for level_lines in lines.values())
        + (len(lines) - 1) * _GAP_IN
    )
    figure, axes = paper(_LEFT_IN + width + 0.15, height + 0.2, title=title)
    top = 0.1
    for index, (level, level_lines) in enumerate(lines.items()):
        tall = len(level_lines) * _LINE_IN + _PAD_IN
        colour = tint(COMPUTING, 0.25) if index == len(lines) - 1 else tint(DATA, 0.55)
        write(axes, _LEFT_IN - 0.15, top + tall / 2, level, bold=True, ha="right")
        box(axes, _LEFT_IN, top, width, tall, colour=colour)
        for row, line in enumerate(level_lines):
            y = top + _PAD_IN / 2 + (row + 0.5) * _LINE_IN
            axes.text(
                _LEFT_IN + _PAD_IN,
                y,
                line,
                fontsize=10,
                color=INK,
                family="monospace",
                va="center_baseline",
            )
        if index < len(lines) - 1:
            arrow(
                axes,
                (_LEFT_IN + 0.5, top + tall + 0.02),
                (_LEFT_IN + 0.5, top + tall + _GAP_IN - 0.02),
            )
        top += tall + _GAP_IN
    return figure


def draw_tile(
    sums: Sequence[Sequence[str]], inputs: Sequence[str], filters: Sequence[str], *, title: str
) -> Figure:
    """Return a tile of ``sums`` as a kernel keeps it: a row for each of ``inputs``, a column a
    vector of ``filters``.

    Each is the name of its register; ``title`` stands above the drawing.

    Raises TypeError or ValueError for sums that are not one for each input and each vector of
    filters. Lesson 15.
    """
    inputs, filters = (
        members("inputs", inputs, "registers", kind=str),
        members("filters", filters, "registers", kind=str),
    )
    rows = [
        members("sums", row, "registers", kind=str)
        for row in members("sums", sums, "rows of registers")
    ]
    if [len(row) for row in rows] != [len(filters)] * len(inputs):
        lengths, wanted_lengths = [len(row) for row in rows], [len(filters)] * len(inputs)
        raise ValueError(
            f"the rows of sums have {lengths} registers; give {wanted_lengths}: a row for each "
            "input, with a sum for each vector of filters"
        )
    left, top = 0.2 + _SIDE_IN + 0.45, 0.12 + _CELL_HIGH_IN + 0.4
    wide = left + len(filters) * _CELL_IN
    figure, axes = paper(wide + 0.2, top + len(inputs) * _CELL_HIGH_IN + 0.38, title=title)
    for column, name in enumerate(filters):
        x = left + column * _CELL_IN
        box(axes, x + 0.05, 0.12, _CELL_IN - 0.1, _CELL_HIGH_IN, name, colour=tint(DATA, 0.35))
        arrow(
            axes,
            (x + _CELL_IN / 2, 0.16 + _CELL_HIGH_IN),
            (x + _CELL_IN / 2, top - 0.02),
            colour=SENDING,
        )
    for row, name in enumerate(inputs):
        y = top + row * _CELL_HIGH_IN
        box(axes, 0.2, y + 0.03, _SIDE_IN, _CELL_HIGH_IN - 0.06, name, colour=tint(DATA, 0.35))
        arrow(
            axes,
            (0.24 + _SIDE_IN, y + _CELL_HIGH_IN / 2),
            (left - 0.02, y + _CELL_HIGH_IN / 2),
            colour=SENDING,
        )
        for column, register in enumerate(rows[row]):
            box(
                axes,
                left + column * _CELL_IN + 0.03,
                y + 0.03,
                _CELL_IN - 0.06,
                _CELL_HIGH_IN - 0.06,
                register,
                colour=COMPUTING,
            )
    bottom = top + len(inputs) * _CELL_HIGH_IN + 0.16
    write(axes, 0.2 + _SIDE_IN / 2, bottom, "inputs", colour=QUIET)
    write(axes, left + len(filters) * _CELL_IN / 2, bottom, "sums, which stay", colour=QUIET)
    write(axes, 0.2 + _SIDE_IN, 0.12 + _CELL_HIGH_IN / 2, "filters", ha="right", colour=QUIET)
    return figure
