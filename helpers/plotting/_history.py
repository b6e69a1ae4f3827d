"""How we got here: growth over the years on a logarithmic axis, and what an operation costs in energy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, MaxNLocator, NullFormatter

from helpers._checks import members
from helpers.hardware._history import EnergyCost, Series
from helpers.plotting._style import MEASURED, MODELLED, figure
from helpers.results import label

_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_COLOURS = (MODELLED, "#D55E00", MEASURED, "#CC79A7", "#000000", "#E69F00", "#56B4E9")
_ENERGY_ROOM = 100  # times the dearest: room for its text
_ROOM_SHARE = 0.12  # of the axis, at its right end
_PICOJOULE = 1e-12
# From how many picojoules on, and how many of them make one: tables of energies write 0.03 pJ, not 30 fJ.
_UNITS = ((1e9, 1e9, "mJ"), (1e6, 1e6, "uJ"), (1e3, 1e3, "nJ"), (0.01, 1, "pJ"), (0, 1e-3, "fJ"))


def draw_trends(all_series: Sequence[Series], *, title: str, relative_to: float | None = None) -> Figure:
    """Return several series over the years on one logarithmic axis, a marker and a colour each.

    It is how Moore's law and its slowing are seen: some quantities go on, others stop. With ``relative_to``, a year, a
    value is over that of its series' point nearest to the year, so that all meet there at 1. Raises ValueError for no
    points and for values that are not above 0. Lesson 02.
    """
    all_series = members("all_series", all_series, "series of helpers.hardware._history", kind=Series)
    _check(all_series)
    drawn, axes = figure(title=title, height_in=3.9)
    if relative_to is not None:
        all_series = [_relative(series, relative_to) for series in all_series]
    for place, series in enumerate(all_series):
        marker, colour = _MARKERS[place % len(_MARKERS)], _COLOURS[place % len(_COLOURS)]
        years, values = [point.year for point in series.points], [point.value for point in series.points]
        axes.plot(years, values, linestyle="None", marker=marker, color=colour, label=_quantity(series))
    _by_year(axes, [point.value for series in all_series for point in series.points])
    axes.set_ylabel(f"value, {'in the unit of the legend' if relative_to is None else f'over that of {relative_to:g}'}")
    drawn.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=11)
    return drawn


def draw_energy(costs: Sequence[EnergyCost], *, title: str = "Energy of one operation") -> Figure:
    """Return a line an operation with its energy on a logarithmic axis, cheapest first within its kind.

    ``costs`` are those of :func:`helpers.hardware._history.energy_costs`; a cost known from least to most is a bar
    between the two, any other a point. Raises ValueError for no cost and an energy that is not above 0. Lesson 01.
    """
    costs = members("costs", costs, "costs, such as energy_costs() returns", kind=EnergyCost)
    if not costs:
        raise ValueError("nothing to draw: give at least one operation and its energy")
    wrong = [f"{cost.name} ({cost.least_pj} pJ)" for cost in costs if not 0 < cost.least_pj <= cost.most_pj < math.inf]
    if wrong:
        raise ValueError(f"an energy is a number above 0; not {', '.join(wrong)}")
    kinds = list(dict.fromkeys(cost.kind for cost in costs))
    rows = sorted(costs, key=lambda cost: (kinds.index(cost.kind), cost.middle_j))
    drawn, axes = figure(title=title, height_in=1.0 + 0.24 * len(rows))
    axes.set_xscale("log")
    for place, cost in enumerate(rows):
        at = kinds.index(cost.kind)
        ends = sorted({cost.least_pj, cost.most_pj})
        axes.plot(ends, [place] * len(ends), marker=_MARKERS[at % len(_MARKERS)], markersize=8, linewidth=3,
                  color=_COLOURS[at % len(_COLOURS)])  # fmt: skip
        words = " to ".join(energy_text(end * _PICOJOULE) for end in ends)
        axes.annotate(words, (cost.most_pj, place), xytext=(9, 0), textcoords="offset points", va="center", fontsize=10)
    low, high = min(cost.least_pj for cost in rows), max(cost.most_pj for cost in rows)
    axes.set_xlim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(_ENERGY_ROOM * high)))
    axes.xaxis.set_major_locator(LogLocator(numticks=9))
    axes.xaxis.set_major_formatter(lambda value, _: energy_text(value * _PICOJOULE))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(rows)), [cost.name for cost in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("energy (each labelled line is ten times the one before)")
    handles = [Patch(facecolor=_COLOURS[at % len(_COLOURS)], label=kind) for at, kind in enumerate(kinds)]
    drawn.legend(handles=handles, ncols=len(kinds), loc="outside lower left", frameon=False, fontsize=10)
    return drawn


def energy_text(energy_j: float) -> str:
    """Return an energy from femtojoules to millijoules as text: ``energy_text(2e-13)`` is '0.2 pJ'."""
    value = energy_j / _PICOJOULE
    factor, unit = next((factor, unit) for least, factor, unit in _UNITS if value >= least)
    return f"{value / factor:.3g} {unit}"


def _relative(series: Series, year: float) -> Series:
    then = min(series.points, key=lambda point: abs(point.year - year)).value
    return Series(series.quantity, "", tuple(replace(point, value=point.value / then) for point in series.points))


def _quantity(series: Series) -> str:
    name = label(series.quantity)
    return f"{name} ({series.unit})" if series.unit else name


def _by_year(axes: Axes, values: Sequence[float]) -> None:
    axes.set_yscale("log")
    axes.set_ylim(10 ** (math.floor(math.log10(min(values))) - 0.3), 10 ** (math.ceil(math.log10(max(values))) + 0.3))
    axes.yaxis.set_major_locator(LogLocator(numticks=9))
    axes.yaxis.set_major_formatter(LogFormatterSciNotation())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    first, last = axes.get_xlim()
    axes.set_xlim(first, last + _ROOM_SHARE * (last - first))
    axes.set_xlabel("year")


def _check(all_series: Sequence[Series]) -> None:
    if not all_series or not all(series.points for series in all_series):
        raise ValueError("nothing to draw: give series with at least one point each")
    for series in all_series:
        wrong = [point.value for point in series.points if not 0 < point.value < math.inf]
        if wrong:
            raise ValueError(f"a logarithmic axis shows finite values above 0 only; {series.quantity} holds {wrong[0]}")
