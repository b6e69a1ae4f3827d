"""The roofline: a machine's measured roofs, a datasheet's beside them, and points that never move a roof."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from helpers import units
from helpers._checks import boolean, members, one_of
from helpers.hardware.limits._results import MachineLimits
from helpers.plotting._labels import label_points
from helpers.plotting._style import MEASURED, MODELLED, figure, unit_axis
from helpers.roofline import DatasheetRoof, LayerPlacement, Placement, RooflinePoint
from helpers.roofline._modelling import peak_of

Point = RooflinePoint | Placement | LayerPlacement

_TEXT_PT = 10.5  # of names and legend
_MOST_NAMES = 12  # more points than this are numbered, and named below
_NOTE_CHARACTERS, _LABEL_CHARACTERS = 100, 56
_SLOPES = ("#000000", "#8C510A", "#56B4E9", "#CC79A7", "#D55E00")  # from main memory inwards
_PEAKS = ("-", (0, (6, 2)), (0, (4, 1, 1, 1)), (0, (1, 1)))  # a line style a dtype; the first is the main one
_MEMORY_SIDE, _COMPUTE_SIDE = "#E69F00", "#56B4E9"


def draw_roofline(
    limits: MachineLimits,
    points: Sequence[Point] = (),
    *,
    datasheet: DatasheetRoof | None = None,
    dtypes: Sequence[str] | None = None,
    title: str = "Roofline of this machine",
) -> Figure:
    """Return the roofs of ``limits`` on logarithmic axes, with ``points`` under (or over) them.

    ``title`` stands above them. Every memory level whose bandwidth was measured is a slope, every dtype of ``dtypes``
    (by default those of the points, else float32) a flat roof; the roofs come from ``limits`` alone, whatever the
    points are. Below a peak a thin line is the rate of the library's product, where it is less. ``datasheet`` adds
    dashed roofs. A :class:`RooflinePoint` is drawn hollow at its modelled FLOP/s; a placement also solid at its
    measured FLOP/s. Shading separates the memory-bound from the compute-bound side for main memory, or for the slowest
    level that was measured. Points without a FLOP have no place on a logarithmic axis and are named in a note.

    Raises ValueError for a dtype that was not measured, and where no bandwidth was.
    """
    one_of("limits", limits, MachineLimits, "the limits of a machine, such as probe() returns")
    points = members("points", points, "RooflinePoints or placements", kind=Point)
    shown = [point for point in points if _modelled(point).flops > 0]
    chosen = list(dtypes or dict.fromkeys(_modelled(point).dtype for point in shown) or ["float32"])
    peaks = {dtype: peak_of(limits, dtype) for dtype in chosen}
    slopes = {level.name: level.bandwidth_bytes_per_s for level in limits.memory_levels if level.bandwidth_bytes_per_s}
    if not slopes:
        raise ValueError(f"no memory bandwidth was measured on this machine ({'; '.join(limits.notes)}): no roof")
    drawn, axes = figure(title=title, height_in=4.1)
    axes.set(xscale="log", yscale="log")
    low, high = _range(peaks, slopes, shown, datasheet)
    _draw_measured(axes, peaks, slopes, low, high)
    _draw_products(axes, limits, peaks, max(slopes.values()), high)
    if datasheet is not None:
        _draw_datasheet(axes, datasheet, low, high)
    _draw_points(axes, shown)
    _shade(axes, max(peaks.values()) / list(slopes.values())[-1], low, high)
    axes.set_xlim(low, high)
    axes.set_ylim(*_heights(peaks, slopes, shown, low, datasheet))
    _finish(axes)
    drawn.legend(loc="outside lower left", ncols=2 if datasheet else 3, fontsize=_TEXT_PT, frameon=False,
                 title=_notes(points, shown), title_fontsize=_TEXT_PT, alignment="left")  # fmt: skip
    _name(axes, shown)
    return drawn


def roofline_alt(points: Sequence[Point] = (), *, datasheet: bool = False) -> str:
    """Return an alt text that is the same on every machine: what is drawn, and the points' names, no number."""
    boolean("datasheet", datasheet)
    text = (
        "Roofline on logarithmic axes, FLOP a second over FLOP a byte: one rising line for each memory level, all "
        "ending in a flat roof at the peak of a number type, and a thin line where the library's product ends"
    )
    text += "; the datasheet's roofs are dashed" if datasheet else ""
    names = [point.name for point in points if _modelled(point).flops > 0]
    return f"{text}. Points: {', '.join(names)}." if names else f"{text}."


def _modelled(point: Point) -> RooflinePoint:
    return point if isinstance(point, RooflinePoint) else point.point


def _measured_rate(point: Point) -> float | None:
    return None if isinstance(point, RooflinePoint) else _modelled(point).flops / point.measured_s


def _rates(points: Iterable[Point]) -> list[float]:
    both = ((_modelled(point).modelled_flops_per_s, _measured_rate(point)) for point in points)
    return [rate for pair in both for rate in pair if rate is not None]


def _range(
    peaks: dict[str, float], slopes: dict[str, float], points: Sequence[Point], datasheet: DatasheetRoof | None
) -> tuple[float, float]:
    """Return the least and the greatest intensity: all ridges and points, with room on both sides."""
    ridges = [peak / slope for peak in peaks.values() for slope in slopes.values()]
    ridges += [datasheet.ridge_flops_per_byte] if datasheet else []
    places = [*ridges, *(_modelled(point).intensity_flops_per_byte for point in points)]
    return min(1 / 8, min(places) / 3), 5 * max(places)


def _heights(
    peaks: dict[str, float],
    slopes: dict[str, float],
    points: Sequence[Point],
    low: float,
    datasheet: DatasheetRoof | None,
) -> tuple[float, float]:
    tops = [*peaks.values(), *([datasheet.peak_flops_per_s] if datasheet else [])]
    rates = _rates(points)
    return min([low * min(slopes.values()), *(rate / 2 for rate in rates)]), 3 * max([*tops, *rates])


def _draw_measured(axes: Axes, peaks: dict[str, float], slopes: dict[str, float], low: float, high: float) -> None:
    top, steepest = max(peaks.values()), max(slopes.values())
    for place, (name, slope) in enumerate(reversed(slopes.items())):
        ends = [low, top / slope]
        axes.plot(ends, [slope * end for end in ends], color=_SLOPES[place % len(_SLOPES)], zorder=2.2,
                  label=f"{name}: {units.text(slope, 'B/s')}")  # fmt: skip
    for place, (dtype, peak) in enumerate(peaks.items()):
        axes.plot([peak / steepest, high], [peak, peak], color=_SLOPES[0], linestyle=_PEAKS[place % len(_PEAKS)],
                  zorder=2.2, label=f"peak, {dtype}: {units.text(peak, 'FLOP/s')}")  # fmt: skip


def _draw_products(axes: Axes, limits: MachineLimits, peaks: dict[str, float], steepest: float, high: float) -> None:
    """Draw what the library's product reaches of each peak; on a GPU it is the peak, and there is nothing to draw."""
    for place, (dtype, peak) in enumerate(peaks.items()):
        rate = limits.product_flops.get(dtype, peak)
        if rate < peak:
            axes.plot([rate / steepest, high], [rate, rate], color="#777777", linestyle=_PEAKS[place % len(_PEAKS)],
                      linewidth=1, zorder=2.1, label=f"product, {dtype}: {units.text(rate, 'FLOP/s')}")  # fmt: skip


def _draw_datasheet(axes: Axes, promised: DatasheetRoof, low: float, high: float) -> None:
    ridge, slope, peak = promised.ridge_flops_per_byte, promised.bandwidth_bytes_per_s, promised.peak_flops_per_s
    label = (f"datasheet, {promised.name}, {promised.dtype}: {units.text(slope, 'B/s')}, "
             f"{units.text(peak, 'FLOP/s')}")  # fmt: skip
    axes.plot([low, ridge, high], [slope * low, peak, peak], color="#777777", linestyle="--", linewidth=1.6,
              zorder=2.1, label=textwrap.fill(label, _LABEL_CHARACTERS))  # fmt: skip


def _draw_points(axes: Axes, points: Sequence[Point]) -> None:
    for point in points:
        across, modelled, measured = (_modelled(point).intensity_flops_per_byte,
                                      _modelled(point).modelled_flops_per_s, _measured_rate(point))  # fmt: skip
        if measured is not None:
            axes.plot([across, across], [modelled, measured], color="#888888", linewidth=1, zorder=2.5)
            axes.plot([across], [measured], "o", color=MEASURED, zorder=3)
        axes.plot([across], [modelled], "D", markerfacecolor="white", markeredgecolor=MODELLED, markeredgewidth=1.6,
                  zorder=2.9)  # fmt: skip
    if points:
        axes.plot([], [], "D", markerfacecolor="white", markeredgecolor=MODELLED, markeredgewidth=1.6,
                  label="modelled")  # fmt: skip
    if any(_measured_rate(point) is not None for point in points):
        axes.plot([], [], "o", color=MEASURED, label="measured")


def _shade(axes: Axes, ridge: float, low: float, high: float) -> None:
    for start, end, colour, words in (
        (low, ridge, _MEMORY_SIDE, "memory-bound"),
        (ridge, high, _COMPUTE_SIDE, "compute-bound"),
    ):
        axes.axvspan(start, end, color=colour, alpha=0.08, zorder=0)
        axes.text(math.sqrt(start * end), 0.985, words, transform=axes.get_xaxis_transform(), ha="center", va="top",
                  fontsize=_TEXT_PT, color="#555555")  # fmt: skip


def _finish(axes: Axes) -> None:
    unit_axis(axes, "x", "FLOP/B")
    unit_axis(axes, "y", "FLOP/s")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=8))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("arithmetic intensity")
    axes.set_ylabel("operations a second")


def _name(axes: Axes, points: Sequence[Point]) -> None:
    named = [
        (_modelled(point).intensity_flops_per_byte, _anchor(point), point.name if _fit(points) else str(place))
        for place, point in enumerate(points, start=1)
    ]
    others = [(_modelled(point).intensity_flops_per_byte, _modelled(point).modelled_flops_per_s) for point in points]
    label_points(axes, named, avoid=others, fontsize=_TEXT_PT)


def _notes(points: Sequence[Point], shown: Sequence[Point]) -> str:
    """Return the names behind the numbers, where there are too many to write at the points, and what is not drawn."""
    numbers = "" if _fit(shown) else ", ".join(f"{place} {p.name}" for place, p in enumerate(shown, start=1))
    left_out = ", ".join(point.name for point in points if _modelled(point).flops == 0)
    notes = [numbers, left_out and f"no FLOP, so not drawn: {left_out}"]
    return "\n".join(textwrap.fill(note, _NOTE_CHARACTERS) for note in notes if note)


def _fit(points: Sequence[Point]) -> bool:
    return len(points) <= _MOST_NAMES


def _anchor(point: Point) -> float:
    return _measured_rate(point) or _modelled(point).modelled_flops_per_s
