"""The mountains of a memory: latency and bandwidth by working set. Lesson 01."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from helpers import units
from helpers.checks import choice, members
from helpers.hardware.limits._results import BandwidthPoint, LatencyPoint
from helpers.plotting._curves import binary_ticks
from helpers.plotting._style import MEASURED, MODELLED, STYLE_FILE, figure, unit_axis
from helpers.studies.simulators._cache import ChasePoint

KERNELS = ("read", "write", "copy", "triad", "scale")
_MARKERS = ("o", "s", "^", "D", "v")
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7")
_ORIGINS = {"measured": MEASURED, "simulated": MODELLED}
_CACHES = {
    "measured": "cache sizes, by the operating system",
    "simulated": "cache sizes of the simulated machine",
}
_MOST_NAMED = 3
_TITLE_PAD_PT = 34  # room for the names of the caches


def draw_latencies(
    latencies: Sequence[LatencyPoint],
    *,
    caches: Mapping[str, int] | None = None,
    change_points: Sequence[float] = (),
    origin: str = "measured",
    title: str = "Time of one dependent load by working set",
) -> Figure:
    """Return the latency mountain: the times of a load, ``latencies``, over the working set, both
    logarithmic.

    ``caches`` maps names to sizes in bytes as the operating system states them: dashed lines, named
    at the top. ``change_points`` are working sets in bytes at which a finder saw the latency
    change: dotted lines, their sizes (of more than four their number) below the axes. ``origin`` is
    "measured" or "simulated", which has the colour of models. ``title`` stands above the axes.
    Raises ValueError for another origin, for no points or one without a time above 0. Lesson 01.
    """
    choice("origin", origin, _ORIGINS)
    description = "latency points, such as the latencies of probe()"
    latencies = members("latencies", latencies, description, kind=(LatencyPoint, ChasePoint))
    if not latencies:
        raise ValueError("nothing to draw: the limits hold no latency (their notes say why)")
    wrong = [point for point in latencies if not 0 < point.latency_s < math.inf]
    if wrong:
        raise ValueError(f"a latency must be a time above 0; got {wrong[0]}")
    drawn, axes = figure(title=title)
    sorted_points = sorted(latencies, key=lambda point: point.working_set_bytes)
    sizes = [point.working_set_bytes for point in sorted_points]
    times_s = [point.latency_s for point in sorted_points]
    axes.plot(sizes, times_s, "o-", color=_ORIGINS[origin], markersize=4, label=origin, zorder=3)
    _logarithmic(axes, [*sizes, *(caches or {}).values()], times_s, "s")
    _mark_caches(axes, caches or {}, _CACHES[origin])
    _mark_changes(axes, change_points)
    axes.set_ylabel("time of a load")
    drawn.legend(loc="outside lower left", ncols=2, fontsize=10, frameon=False)
    return drawn


def draw_bandwidths(
    bandwidths: Sequence[BandwidthPoint],
    *,
    kernels: Sequence[str] = KERNELS,
    compiled: Mapping[int, float] | None = None,
) -> Figure:
    """Return the bandwidth mountain: a curve a kernel of ``bandwidths`` over the working set, rates
    from zero.

    ``kernels`` are some of read, write, copy, triad and scale. ``compiled`` is a compiled triad's
    bytes a second by working set: then PyTorch's curves, whose left end is their call, are dashed
    beside it. Raises ValueError for no points or an unknown kernel. Lesson 01.
    """
    unknown = [name for name in kernels if name not in KERNELS]
    if unknown or not kernels:
        raise ValueError(
            f"the kernels are {', '.join(KERNELS)}; got {', '.join(unknown) or 'none'}"
        )
    bandwidths = members(
        "bandwidths", bandwidths, "points, such as the bandwidths of probe()", kind=BandwidthPoint
    )
    if not bandwidths:
        raise ValueError("nothing to draw: the limits hold no bandwidth (their notes say why)")
    drawn, axes = figure(title="Bandwidth by working set")
    sorted_points = sorted(bandwidths, key=lambda point: point.working_set_bytes)
    sizes = [point.working_set_bytes for point in sorted_points]
    for name in kernels:
        index = KERNELS.index(name)
        rates = [getattr(point, f"{name}_bytes_per_s") for point in sorted_points]
        line, label = ("--", f"PyTorch's {name}") if compiled else ("-", name)
        axes.plot(
            sizes,
            rates,
            marker=_MARKERS[index],
            color=_COLOURS[index],
            markersize=4,
            linewidth=1.6,
            linestyle=line,
            label=label,
        )
    if compiled:
        axes.plot(
            *zip(*sorted(compiled.items()), strict=True),
            marker="o",
            color=_COLOURS[KERNELS.index("triad")],
            linewidth=2.2,
            label="compiled triad",
        )
    _logarithmic(axes, [*sizes, *(compiled or {})], None, "B/s")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("bandwidth")
    drawn.legend(loc="outside lower left", ncols=3, fontsize=10, frameon=False)
    return drawn


def _logarithmic(
    axes: Axes, sizes: Sequence[float], values: Sequence[float] | None, unit: str
) -> None:
    binary_ticks(axes, sizes)
    axes.set_xlabel("working set")
    axes.tick_params(axis="x", labelsize=10)
    if values is not None:
        axes.set_yscale("log")
        axes.set_ylim(
            10 ** math.floor(math.log10(min(values))),
            10 ** math.ceil(math.log10(1.3 * max(values))),
        )
        axes.yaxis.set_minor_formatter(NullFormatter())
    unit_axis(axes, "y", unit)


def _mark_caches(axes: Axes, caches: Mapping[str, int], name_of_all: str) -> None:
    for index, (name, size) in enumerate(caches.items()):
        axes.axvline(
            size,
            color="#777777",
            linestyle="--",
            linewidth=1.2,
            zorder=1.5,
            label="_cache" if index else name_of_all,
        )
        axes.text(
            size,
            1.01,
            f"{name}\n{_binary(size)}",
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=10,
            color="#444444",
        )
    if caches:
        with plt.style.context(STYLE_FILE):
            axes.set_title(axes.get_title(loc="left"), pad=_TITLE_PAD_PT)


def _mark_changes(axes: Axes, change_points: Sequence[float]) -> None:
    sizes = [_binary(size) for size in change_points]
    label_of_all = (
        "found on the curve: "
        f"{', '.join(sizes) if len(sizes) <= _MOST_NAMED else f'{len(sizes)} rises'}"
    )
    for index, size in enumerate(change_points):
        axes.axvline(
            size,
            color="#D55E00",
            linestyle=":",
            linewidth=1.6,
            zorder=1.6,
            label="_found" if index else label_of_all,
        )


def _binary(size: float) -> str:
    number, _, unit = units.text(round(size), "B", binary=True).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"
