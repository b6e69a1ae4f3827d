"""The sources of parallelism drawn: a split product, the limit of stale gradients, ensembles,
threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

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
    a_cut, b_cut, output_cut = {
        "rows": ("rows", None, "rows"),
        "columns": (None, "columns", "columns"),
        "inner": ("columns", "rows", "rows"),
    }[split.by]
    sizes = [part.macs / (split.m * split.k * split.n) for part in split.work]
    top = max(m, k)
    # what stands before each matrix, its shape, the cut, the sizes of its parts, and its name
    matrices = [("", (m, k), a_cut, sizes, "a"), ("@", (k, n), b_cut, sizes, "b")]
    if split.by == "inner" and split.parts > 1:
        for index in range(split.parts):
            whole = [0.0] * index + [1.0]
            sign = "+" if index else "="
            matrices.append((sign, (m, n), output_cut, whole, f"term {index}"))
    else:
        matrices.append(("=", (m, n), output_cut, sizes, "output"))
    right = -_GAP_SHARE
    for sign, shape, cut, part_sizes, name in matrices:
        middle = right + _GAP_SHARE / 2
        axes.text(middle, top / 2, sign, ha="center", va="center", fontsize=16)
        right = _matrix(axes, right + _GAP_SHARE, top, shape, cut, part_sizes, name)
    axes.set(xlim=(-0.05, right + 0.05), ylim=(-0.25, top + 0.05), aspect="equal")
    axes.set_axis_off()
    handles = [Patch(color=_PARTS[part], label=f"part {part}") for part in range(split.parts)]
    if None in (a_cut, b_cut):
        handles.append(Patch(color=_SHARED, label="needed by every part"))
    _legend(drawn, columns=min(4, len(handles)), handles=handles)
    return drawn


def _legend(drawn: Figure, *, columns: int, **handles: Any) -> None:
    """Write the legend below the axes."""
    drawn.legend(loc="outside lower left", ncols=columns, fontsize=11, frameon=False, **handles)


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
    modelled = numbers("modelled", modelled, above=0)
    simulated = numbers("simulated", simulated, above=0)
    if not len(delays) == len(modelled) == len(simulated) > 0:
        raise ValueError(
            f"{len(delays)} delays, {len(modelled)} modelled, {len(simulated)} found: give equally "
            "many"
        )
    drawn, axes = figure(title="")
    positions = [delay + 1 for delay in delays]
    axes.plot(positions, modelled, "-", color=MODELLED, label="modelled")
    axes.plot(positions, simulated, "o", color=MEASURED, markersize=9, label="simulated")
    axes.set(xscale="log", yscale="log")
    axes.set(xlabel="delay (updates)", ylabel="largest stable rate times curvature")
    axes.set_xticks(positions, [f"{delay:g}" for delay in delays])
    axes.set_xticks([], minor=True)
    _plain_ticks(axes)
    _legend(drawn, columns=2)
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
    rows = (
        ("modelled_ratio", MODELLED, "D--", "stacked, modelled"),
        ("stacked_ratio", MEASURED, "o-", "stacked, measured"),
        ("processes_ratio", _PROCESSES, "s-", "processes, measured"),
    )
    for name, colour, line, label in rows:
        ratios = [getattr(point, name) for point in points]
        known = [(position, ratio) for position, ratio in enumerate(ratios) if ratio]
        if known:
            axes.plot(*zip(*known, strict=True), line, color=colour, label=label)
    axes.axhline(1, color="#444444", linewidth=1.4, label="the loop")
    axes.set_yscale("log")
    _plain_ticks(axes)
    axes.set_xticks(range(len(points)), [f"{p.hidden} wide\nbatch {p.batch_size}" for p in points])
    axes.set(xlim=(-0.3, len(points) - 0.7), xlabel="size of each network")
    axes.set_ylabel("time over the loop's")
    _legend(drawn, columns=2)
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
    looks = zip(itertools.cycle(_LINES), itertools.cycle(_DASHES), strict=False)
    for sweep, (colour, dashes) in zip(sweeps, looks, strict=False):
        axes.plot(
            [point.threads for point in sweep.points],
            [point.speedup for point in sweep.points],
            marker="o",
            color=colour,
            linestyle=dashes,
            label=sweep.name,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(counts, [f"{count}" for count in counts])
    axes.set_xticks([], minor=True)
    _plain_ticks(axes)
    axes.set(xlabel="threads", ylabel="speedup over one thread")
    _legend(drawn, columns=3)
    return drawn


def _plain_ticks(axes: Axes) -> None:
    """Write the ticks of the y axis as plain numbers."""
    plain = FuncFormatter(lambda value, _: f"{value:.3g}")
    axes.yaxis.set_major_formatter(plain)
    low, high = axes.get_ylim()
    is_short = high / low < 30  # too few powers of ten to read between
    if is_short:
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axes.yaxis.set_minor_formatter(plain if is_short else NullFormatter())
