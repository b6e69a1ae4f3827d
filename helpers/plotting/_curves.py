"""Curves over a size: the model as a line, the measurement as points, and marks where something
fills up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypedDict

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from helpers.checks import boolean, members, named, number, numbers
from helpers.plotting._style import FOUND, MEASURED, MODELLED, PREDICTED, figure, unit_axis


class _Look(TypedDict, total=False):
    color: str
    marker: str
    linestyle: str


_LOOKS: dict[str, _Look] = {
    "predicted": {"color": PREDICTED, "marker": "D", "linestyle": ":"},
    "modelled": {"color": MODELLED, "marker": "", "linestyle": "-"},
    **{name: {"color": MEASURED, "marker": "o", "linestyle": ""} for name in FOUND},
}
_OTHERS: tuple[_Look, ...] = (
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
    curves = {
        name: _values(name, values)
        for name, values in named("curves", curves, "lists of numbers").items()
    }
    _check(sizes, curves, log)
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
    _value_axis(
        axes, [value for values in curves.values() for value in values if value is not None], log
    )
    unit_axis(axes, "y", unit)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
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
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(sizes))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f} {unit}".rstrip()))


def _value_axis(axes: Axes, values: Sequence[float], log: bool) -> None:
    if not log:
        axes.set_ylim(bottom=0, top=1.15 * max(values))
        return
    axes.set_yscale("log")
    axes.set_ylim(
        10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(1.3 * max(values)))
    )
    axes.yaxis.set_minor_formatter(NullFormatter())


def _values(name: str, values: Sequence[float | None]) -> list[float | None]:
    items = members(f"curves[{name!r}]", values, "numbers")
    return [
        None if value is None else number(f"curves[{name!r}][{index}]", value)
        for index, value in enumerate(items)
    ]


def _check(sizes: Sequence[float], curves: Mapping[str, Sequence[float | None]], log: bool) -> None:
    uneven = [name for name, values in curves.items() if len(values) != len(sizes)]
    if uneven:
        raise ValueError(
            f"{len(sizes)} sizes need as many values; {', '.join(uneven)} has another length"
        )
    values_drawn = [value for values in curves.values() for value in values if value is not None]
    if not values_drawn:
        raise ValueError("nothing to draw: give at least one size and one value")
    if len([name for name in curves if name not in _LOOKS]) > len(_OTHERS):
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


_MOST_TICKS = 9


def binary_ticks(axes: Axes, sizes: Sequence[float]) -> None:
    """Make the x axis logarithmic with ticks at powers of two, written as '32 KiB'."""
    axes.set_xscale("log", base=2)
    low, high = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    step = max(1, math.ceil((high - low) / _MOST_TICKS))
    axes.xaxis.set_major_locator(FixedLocator([2.0**power for power in range(low, high + 1, step)]))
    axes.xaxis.set_minor_locator(NullLocator())
    unit_axis(axes, "x", "B", binary=True)
    axes.set_xlim(2.0 ** (low - 0.3), 2.0 ** (high + 0.3))
