"""Curves over a size: the model as a line, the measurement as points, and marks where something
fills up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from helpers.checks import boolean, named, number, numbers
from helpers.plotting._arguments import lists_of_numbers, require_lengths
from helpers.plotting._style import FOUND, MEASURED, MODELLED, PREDICTED, decades, figure, unit_axis

_LOOKS: dict[str, dict[str, Any]] = {
    "predicted": {"color": PREDICTED, "marker": "D", "linestyle": ":"},
    "modelled": {"color": MODELLED, "marker": "", "linestyle": "-"},
    **{name: {"color": MEASURED, "marker": "o", "linestyle": ""} for name in FOUND},
}
_OTHERS: tuple[dict[str, Any], ...] = (
    {"color": "#D55E00", "linestyle": "--"},
    {"color": "#555555", "linestyle": "-."},
)


def draw_curves(
    sizes: Sequence[float],
    curves: Mapping[str, Sequence[float | None]],
    *,
    unit: str,
    title: str,
    xlabel: str,
    ylabel: str,
    size_unit: str = "B",
    marks: Mapping[str, float] | None = None,
    log: bool = True,
) -> Figure:
    """Return the curves over ``sizes``, which are bytes, or plain numbers with ``size_unit=""``.

    ``curves`` maps names to one value in ``unit`` a size; None leaves the place free. The names
    modelled (a line), predicted, and measured, counted, simulated, published or stated (points)
    keep their looks; up to two others are broken lines. ``marks`` are sizes at which something
    fills up, named at the top of the axes, whose texts are ``title``, ``xlabel`` and ``ylabel``.
    ``log=False`` has values from zero.

    Raises TypeError for what is no list of numbers, ValueError for no size, a curve of another
    length, a third other name, a size not above 0, or a value that is not finite or, on a
    logarithmic axis, not above 0.

    >>> curves = {"modelled": [1e-7, 1e-4], "measured": [2e-7, None]}
    >>> texts = {"title": "A copy", "xlabel": "size", "ylabel": "time"}
    >>> fig = draw_curves([2**10, 2**20], curves, unit="s", marks={"L1": 2**15}, **texts)
    >>> [text.get_text() for text in fig.legends[0].get_texts()], fig.axes[0].get_xscale()
    (['modelled', 'measured'], 'log')

    Lesson 10.
    """
    boolean("log", log)
    sizes = numbers("sizes", sizes, above=0)
    marks = {
        name: number(f"marks[{name!r}]", at, above=0)
        for name, at in named("marks", marks or {}, "sizes").items()
    }
    curves = lists_of_numbers("curves", curves)
    require_lengths(curves, len(sizes), "sizes need as many values")
    values_drawn = [value for values in curves.values() for value in values if value is not None]
    if not values_drawn:
        raise ValueError("nothing to draw: give at least one size and one value")
    if len(curves.keys() - _LOOKS.keys()) > len(_OTHERS):
        raise ValueError(
            f"beside {', '.join(_LOOKS)} there is room for {len(_OTHERS)} curves; got "
            f"{', '.join(curves)}"
        )
    nonpositive = [value for value in values_drawn if log and value <= 0]
    if nonpositive:
        raise ValueError(
            f"{nonpositive[0]:g} cannot be drawn on a logarithmic axis; give numbers above 0, or "
            "log=False"
        )
    fig, axes = figure(title=title)
    other_looks = iter(_OTHERS)
    for name, values in curves.items():
        look = _LOOKS[name] if name in _LOOKS else next(other_looks)
        points = [
            (size, value) for size, value in zip(sizes, values, strict=True) if value is not None
        ]
        axes.plot(
            *zip(*points, strict=True) if points else ([], []),
            label=name,
            markersize=6,
            linewidth=2,
            **look,
        )
    _size_axis(axes, [*sizes, *marks.values()], size_unit)
    if log:
        axes.set_yscale("log")
        axes.set_ylim(decades(values_drawn, room=1.3))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0, top=1.15 * max(values_drawn))
    unit_axis(axes, "y", unit)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    for name, size in marks.items():
        axes.axvline(size, color="#777777", linestyle="--", linewidth=1.2, zorder=1.5)
        axes.annotate(
            name,
            (size, 1),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-4, -4),
            rotation=90,
            ha="right",
            va="top",
            textcoords="offset points",
            fontsize=11,
            color="#444444",
        )
    fig.legend(loc="outside lower left", ncols=4, fontsize=11, frameon=False)
    return fig


def _size_axis(axes: Axes, sizes: Sequence[float], unit: str) -> None:
    if unit == "B":
        binary_ticks(axes, sizes)
        return
    _power_ticks(axes, sorted(set(sizes)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f} {unit}".rstrip()))


_MOST_TICKS = 9


def binary_ticks(axes: Axes, sizes: Sequence[float]) -> None:
    """Make the x axis logarithmic with ticks at powers of two, written as '32 KiB'."""
    low, high = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    step = max(1, math.ceil((high - low) / _MOST_TICKS))
    _power_ticks(axes, [2.0**power for power in range(low, high + 1, step)])
    unit_axis(axes, "x", "B", binary=True)
    axes.set_xlim(2.0 ** (low - 0.3), 2.0 ** (high + 0.3))


def _power_ticks(axes: Axes, ticks: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
