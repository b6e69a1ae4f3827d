"""The sources of parallelism drawn: a split product, the limit of stale gradients, ensembles,
threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from helpers.checks import members, numbers, one_of
from helpers.plotting._style import MEASURED, MODELLED, figure

if TYPE_CHECKING:
    from helpers.studies.sgd_parallelism._ensembles import Crossover
    from helpers.studies.sgd_parallelism._within_layer import ProductSplit, ThreadSweep

_PARTS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", ":")
_SHARED = "#DDDDDD"
_GAP_SHARE = 0.45  # between two matrices, of the longest side
_PROCESSES = "#D55E00"


def draw_split(split: ProductSplit) -> Figure:
    """Return a picture of one product in parts: a, b and the output, each part's pieces in the
    part's own colour.

    Grey is what every part must have whole. Split over the inner dimension each part has a whole
    output of its own, a term of the sum, so the output is drawn as many times. The sides are to
    scale, at least an eighth of the longest. Raises ValueError for more parts than there are
    colours, 6. Lesson 04.
    """
    from helpers.studies.sgd_parallelism._within_layer import ProductSplit

    one_of("split", split, ProductSplit, "a ProductSplit, such as model_split() returns")
    if split.parts > len(_PARTS):
        raise ValueError(
            f"{split.parts} parts have no colours of their own; draw a split in at most "
            f"{len(_PARTS)}"
        )
    longest = max(split.m, split.k, split.n)
    m, k, n = (max(side / longest, 1 / 8) for side in (split.m, split.k, split.n))
    drawn, axes = figure(title="", height_in=2.6)
    title = f"({split.m}, {split.k}) @ ({split.k}, {split.n}) by {split.by}: {split.combine}"
    # the axes are narrower than the title
    drawn.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold")
    cut = {
        "rows": ("rows", None, "rows"),
        "columns": (None, "columns", "columns"),
        "inner": ("columns", "rows", None),
    }
    a_cut, b_cut, output_cut = cut[split.by]
    sizes = [_part_size(split, part) for part in range(split.parts)]
    top = max(m, k)
    left = _matrix(axes, 0.0, top, (m, k), a_cut, sizes, "a")
    axes.text(left + _GAP_SHARE / 2, top / 2, "@", ha="center", va="center", fontsize=16)
    left = _matrix(axes, left + _GAP_SHARE, top, (k, n), b_cut, sizes, "b")
    outputs = split.parts if split.by == "inner" and split.parts > 1 else 1
    for index in range(outputs):
        axes.text(
            left + _GAP_SHARE / 2,
            top / 2,
            "+" if index else "=",
            ha="center",
            va="center",
            fontsize=16,
        )
        part_sizes = [0.0] * index + [1.0] if outputs > 1 else sizes
        left = _matrix(
            axes,
            left + _GAP_SHARE,
            top,
            (m, n),
            "rows" if outputs > 1 else output_cut,
            part_sizes,
            f"term {index}" if outputs > 1 else "output",
        )
    axes.set_xlim(-0.05, left + 0.05)
    axes.set_ylim(-0.25, top + 0.05)
    axes.set_aspect("equal")
    axes.set_axis_off()
    handles = [Patch(color=_PARTS[part], label=f"part {part}") for part in range(split.parts)]
    if None in (a_cut, b_cut):
        handles.append(Patch(color=_SHARED, label="needed by every part"))
    drawn.legend(
        handles=handles,
        ncols=min(4, len(handles)),
        loc="outside lower left",
        fontsize=11,
        frameon=False,
    )
    return drawn


def _part_size(split: ProductSplit, part: int) -> float:
    """Return the share of the side that is cut which this part has."""
    total_macs = split.m * split.k * split.n
    return split.work[part].macs / total_macs


def _matrix(
    axes: Axes,
    left: float,
    top: float,
    shape: tuple[float, float],
    cut: str | None,
    sizes: Sequence[float],
    name: str,
) -> float:
    """Draw one matrix with its upper left corner at (left, top), cut along ``cut``; return its
    right edge.
    """
    height, width = shape
    low = (top - height) / 2
    offset = 0.0
    for part, size in enumerate([1.0] if cut is None else sizes):
        if cut == "columns":
            box = (left + offset * width, low), size * width, height
        else:
            box = (left, low + (1 - offset - size) * height), width, size * height
        colour = _SHARED if cut is None else _PARTS[part]
        if size:
            axes.add_patch(Rectangle(*box, facecolor=colour, edgecolor="white", linewidth=1.5))
        offset += size
    axes.text(left + width / 2, low - 0.06, name, ha="center", va="top", fontsize=12)
    return left + width


def draw_limits(
    delays: Sequence[float], modelled: Sequence[float], simulated: Sequence[float]
) -> Figure:
    """Return the largest stable rate times curvature over ``delays``: a line ``modelled``, points
    ``simulated``.

    Both axes are logarithmic, the delay as delay + 1, so that no delay has a place. Raises
    ValueError where the three are not of one length. Lesson 04.
    """
    delays = numbers("delays", delays, at_least=0)
    modelled, simulated = (
        numbers("modelled", modelled, above=0),
        numbers("simulated", simulated, above=0),
    )
    if not len(delays) == len(modelled) == len(simulated) > 0:
        raise ValueError(
            f"{len(delays)} delays, {len(modelled)} modelled, {len(simulated)} found: give equally "
            "many"
        )
    drawn, axes = figure(title="")
    positions = [delay + 1 for delay in delays]
    axes.plot(positions, modelled, "-", color=MODELLED, label="modelled")
    axes.plot(positions, simulated, "o", color=MEASURED, markersize=9, label="simulated")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(positions))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda position, _: f"{position - 1:g}"))
    _plain_ticks(axes)
    axes.set_xlabel("delay (updates)")
    axes.set_ylabel("largest stable rate times curvature")
    drawn.legend(loc="outside lower left", ncols=2, fontsize=11, frameon=False)
    return drawn


def draw_crossover(crossover: Crossover) -> Figure:
    """Return the time of a step of the ensemble over that of the loop, by size: stacked, modelled,
    in processes.

    Below the line at 1 a way is faster than the loop. What was not modelled, or not run, is left
    out. Raises ValueError for no points. Lesson 04.
    """
    from helpers.studies.sgd_parallelism._ensembles import Crossover

    points = one_of(
        "crossover", crossover, Crossover, "the crossover that sweep_crossover() returns"
    ).points
    if not points:
        raise ValueError("nothing to draw: the sweep has no sizes")
    drawn, axes = figure(title=f"{points[0].nets} networks: time over that of the loop")
    positions = range(len(points))
    rows = (
        ("modelled_ratio", MODELLED, "D--", "stacked, modelled"),
        ("stacked_ratio", MEASURED, "o-", "stacked, measured"),
        ("processes_ratio", _PROCESSES, "s-", "processes, measured"),
    )
    for name, colour, line, label in rows:
        known = [
            (position, getattr(p, name))
            for position, p in zip(positions, points, strict=True)
            if getattr(p, name)
        ]
        if known:
            axes.plot(*zip(*known, strict=True), line, color=colour, label=label)
    axes.axhline(1, color="#444444", linewidth=1.4, label="the loop")
    axes.set_yscale("log")
    _plain_ticks(axes)
    axes.set_xticks(positions, [f"{p.hidden} wide\nbatch {p.batch_size}" for p in points])
    axes.set_xlim(-0.3, len(points) - 0.7)
    axes.set_xlabel("size of each network")
    axes.set_ylabel("time over the loop's")
    drawn.legend(loc="outside lower left", ncols=2, fontsize=11, frameon=False)
    return drawn


def draw_speedup(sweeps: Sequence[ThreadSweep]) -> Figure:
    """Return the speedup of each swept function against its number of threads, with the line of a
    perfect one.

    Raises ValueError for no sweeps. Lesson 04.
    """
    from helpers.studies.sgd_parallelism._within_layer import ThreadSweep

    sweeps = members("sweeps", sweeps, "sweeps of threads", kind=ThreadSweep)
    if not sweeps:
        raise ValueError("nothing to draw: give at least one sweep of threads")
    drawn, axes = figure(title="Speedup by threads")
    counts = sorted({point.threads for sweep in sweeps for point in sweep.points})
    axes.plot(counts, counts, ":", color="#777777", marker="_", label="perfect")
    for index, sweep in enumerate(sweeps):
        axes.plot(
            [point.threads for point in sweep.points],
            [point.speedup for point in sweep.points],
            marker="o",
            color=_LINES[index % len(_LINES)],
            linestyle=_DASHES[index % len(_DASHES)],
            label=sweep.name,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:g}"))
    _plain_ticks(axes)
    axes.set_xlabel("threads")
    axes.set_ylabel("speedup over one thread")
    drawn.legend(loc="outside lower left", ncols=3, fontsize=11, frameon=False)
    return drawn


def _plain_ticks(axes: Axes) -> None:
    """Write the ticks of the y axis as plain numbers."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    low, high = axes.get_ylim()
    if high / low < 30:  # too few powers of ten to read between
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    else:
        axes.yaxis.set_minor_formatter(NullFormatter())
