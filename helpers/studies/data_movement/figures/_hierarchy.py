"""The memory hierarchy of a machine as a ladder, the links of a system, and what processors hold
near their cores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Polygon
from matplotlib.ticker import LogLocator, NullFormatter

from helpers import units
from helpers.checks import members
from helpers.hardware.limits._results import MemoryLevel
from helpers.plotting._style import MEASURED, STYLE_FILE, figure, ink_on, mix_colours, unit_axis
from helpers.studies.data_movement._copies import MeasuredLink
from helpers.studies.data_movement.figures._labels import label_points
from helpers.studies.memory_hierarchy._inversion import OnChipMemory

_SHADES = ("#08306B", "#0072B2", "#56B4E9", "#9FD0EE", "#D3E8F6")
_NARROWEST, _WIDEST = 0.22, 1.0  # of the pyramid's width
_LEVELS = ("registers", "L1, shared", "L2", "L3")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_COLUMNS = (
    (1.18, "size"),
    (1.46, "latency"),
    (1.75, "bandwidth"),
    (2.1, "latency over the\nlevel above's"),
)


def draw_hierarchy(levels: Sequence[MemoryLevel]) -> Figure:
    """Return a pyramid of the memory levels, the smallest and fastest at the top, with their
    measured numbers.

    A step's width grows with the logarithm of its size (a level of unknown size is as wide as the
    base). The last column is a load's time over that of the level above. What is None stands as
    "unknown". Raises ValueError for no levels. Lesson 01.
    """
    levels = members(
        "levels", levels, "memory levels, such as the memory_levels of probe()", kind=MemoryLevel
    )
    if not levels:
        raise ValueError("nothing to draw: give at least one memory level")
    drawn, axes = figure(
        title="Memory hierarchy of this machine", height_in=1.3 + 0.62 * len(levels)
    )
    write = partial(axes.text, ha="center", va="center", fontsize=11)
    widths = _widths([level.size_bytes for level in levels])
    for index, (level, width) in enumerate(zip(levels, widths, strict=True)):
        above = widths[index - 1] if index else width * 0.72
        colour = _SHADES[min(index, len(_SHADES) - 1)]
        corners = [
            (0.5 - above / 2, index),
            (0.5 + above / 2, index),
            (0.5 + width / 2, index + 0.94),
            (0.5 - width / 2, index + 0.94),
        ]
        axes.add_patch(Polygon(corners, closed=True, facecolor=colour, edgecolor="white"))
        write(0.5, index + 0.47, level.name, fontweight="bold", color=ink_on(colour))
        times = _times_slower(levels[index - 1], level) if index else ""
        cells = (
            units.text(level.size_bytes, "B", binary=True),
            units.text(level.latency_s, "s"),
            units.text(level.bandwidth_bytes_per_s, "B/s"),
            times,
        )
        for (across, _), cell in zip(_COLUMNS, cells, strict=True):
            write(across, index + 0.47, cell)
    for across, name in _COLUMNS:
        write(across, -0.12, name, va="bottom", fontsize=10, color="#555555")
    axes.set(xlim=(0, 2.3), ylim=(len(levels), -0.55))
    axes.axis("off")
    return drawn


def draw_links(links: Sequence[MeasuredLink]) -> Figure:
    """Return two panels, bandwidth and latency, with a line a link in the given order; both axes
    are logarithmic.

    An unknown number is written as such. Raises ValueError for no links and a number that is not
    above 0. Lesson 01.
    """
    links = members("links", links, "links, such as measure_links() returns", kind=MeasuredLink)
    if not links:
        raise ValueError("nothing to draw: give at least one link")
    panels = [
        ("bandwidth", "B/s", [link.bandwidth_bytes_per_s for link in links]),
        ("latency", "s", [link.latency_s for link in links]),
    ]
    panels = [panel for panel in panels if any(value is not None for value in panel[2])]
    if not panels:
        raise ValueError("nothing to draw: no link has a bandwidth or a latency")
    wrong = [
        link.link
        for link in links
        for value in (link.bandwidth_bytes_per_s, link.latency_s)
        if value is not None and not 0 < value < math.inf
    ]
    if wrong:
        raise ValueError(
            f"bandwidth and latency are numbers above 0, or None; not those of {', '.join(wrong)}"
        )
    with plt.style.context(STYLE_FILE):
        drawn, axes_grid = plt.subplots(
            1, len(panels), figsize=(8.4, 1.5 + 0.42 * len(links)), sharey=True, squeeze=False
        )
        drawn.suptitle(
            "What moves data in this machine, and how fast",
            x=0.01,
            ha="left",
            fontsize=14,
            fontweight="bold",
        )
    for axes, (name, unit, values) in zip(axes_grid[0], panels, strict=True):
        known = [value for value in values if value is not None]
        axes.set_xscale("log")
        axes.set_xlim(min(known) / 3, max(known) * 30)
        for row, value in enumerate(values):
            if value is not None:
                axes.plot([value], [row], "o", color=MEASURED, markersize=10)
            at = math.sqrt(min(known) * max(known)) if value is None else value
            axes.annotate(
                units.text(value, unit),
                (at, row),
                xytext=(9, 0),
                textcoords="offset points",
                va="center",
                fontsize=10,
            )
        axes.xaxis.set_major_locator(LogLocator(numticks=4))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(axis="x", labelsize=10)
        unit_axis(axes, "x", unit)
        axes.set_xlabel(name)
        axes.grid(axis="y", visible=False)
    axes_grid[0][0].set_yticks(range(len(links)), [link.link for link in links])
    axes_grid[0][0].set_ylim(len(links) - 0.5, -0.5)
    return drawn


def draw_inversion(processors: Sequence[OnChipMemory]) -> Figure:
    """Return a line a processor over the levels of on-chip memory, from the cores outwards; bytes
    are logarithmic.

    ``processors`` are rows of :func:`helpers.studies.memory_hierarchy._inversion.memory_inversion`:
    the bytes of all instances of a level together. "L1, shared" is the larger of the two, which on
    many GPUs are one memory. GPUs are solid lines, others dashed; what is unknown leaves a gap. A
    line that rises is a pyramid, one that falls stands on its head.

    Raises ValueError where no bytes are known. Lesson 01.
    """
    processors = members("processors", processors, "rows of memory_inversion()", kind=OnChipMemory)
    rows = [
        {at: value for at, value in enumerate(_totals(row)) if value is not None}
        for row in processors
    ]
    occupied = [point for row in rows for point in row.items()]
    if not occupied:
        raise ValueError("nothing to draw: give at least one processor with the bytes of one level")
    drawn, axes = figure(title="Memory inversion: total bytes at each level", height_in=3.9)
    with plt.style.context(STYLE_FILE):
        colours = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    axes.set_yscale("log", base=2)
    ends, end_colours = [], []
    for index, (processor, row) in enumerate(zip(processors, rows, strict=True)):
        colour = colours[index % len(colours)]
        axes.plot(
            range(len(_LEVELS)),
            [row.get(at, math.nan) for at in range(len(_LEVELS))],
            marker=_MARKERS[index % len(_MARKERS)],
            color=colour,
            linestyle="-" if processor.kind == "gpu" else "--",
            markersize=7,
        )
        if row:
            ends.append((max(row), row[max(row)], processor.name))
            end_colours.append(mix_colours(colour, "#000000", 0.3))
    known = [value for _, value in occupied]
    axes.set_xticks(range(len(_LEVELS)), _LEVELS)
    axes.set_xlim(-0.25, len(_LEVELS) - 1 + 0.9)
    axes.set_ylim(min(known) / 2, max(known) * 2)
    unit_axis(axes, "y", "B", binary=True)
    axes.set_xlabel("from the arithmetic units outwards (solid: GPU)")
    axes.set_ylabel("on the whole chip")
    for name, colour in zip(label_points(axes, ends, avoid=occupied), end_colours, strict=True):
        name.set_color(colour)
    return drawn


def _totals(row: OnChipMemory) -> tuple[int | None, ...]:
    nearest = max(
        (size for size in (row.l1_bytes, row.shared_bytes) if size is not None), default=None
    )
    return row.register_bytes, nearest, row.l2_bytes, row.l3_bytes


def _widths(sizes: Sequence[int | None]) -> list[float]:
    """Return the widths of the steps: linear in the logarithm of the size, never narrower than the
    step above.
    """
    known = [math.log(size) for size in sizes if size]
    least, most = (min(known), max(known)) if known else (0.0, 0.0)
    span = most - least or 1.0
    widths: list[float] = []
    for size in sizes:
        share = (math.log(size) - least) / span if size else 1.0
        widths.append(max([*widths[-1:], _NARROWEST + (_WIDEST - _NARROWEST) * share]))
    return widths


def _times_slower(above: MemoryLevel, level: MemoryLevel) -> str:
    if above.latency_s is None or level.latency_s is None:
        return "unknown"
    return f"{level.latency_s / above.latency_s:.1f}x"
