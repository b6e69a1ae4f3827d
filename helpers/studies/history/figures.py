"""How we got here: growth over the years on a logarithmic axis, and what an operation costs in
energy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, MaxNLocator, NullFormatter

from helpers.checks import members
from helpers.plotting._style import MEASURED, MODELLED, STYLE_FILE, figure
from helpers.results import label
from helpers.studies.history._tables import EnergyCost, Trend

_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_COLOURS = (MODELLED, "#D55E00", MEASURED, "#CC79A7", "#000000", "#E69F00", "#56B4E9")
_ENERGY_ROOM = 30  # times an energy: where its text ends
_ROOM_SHARE = 0.12  # of the axis, at its right end
_PICOJOULE = 1e-12
# From how many picojoules on, and how many of them make one: tables of energies write 0.03 pJ, not
# 30 fJ.
_UNITS = ((1e9, 1e9, "mJ"), (1e6, 1e6, "uJ"), (1e3, 1e3, "nJ"), (0.01, 1, "pJ"), (0, 1e-3, "fJ"))


def draw_trends(all_series: Sequence[Trend], *, title: str, mark: float | None = None) -> Figure:
    """Return ``all_series`` over the years on one logarithmic axis, a marker and a colour each,
    under ``title``.

    It is how Moore's law and its slowing are seen: some quantities go on, others stop. With
    ``mark``, a year, each series has a panel of its own, and a line stands at that year in all of
    them. Raises ValueError for no points and for values that are not above 0. Lesson 02.
    """
    all_series = members(
        "all_series", all_series, "series of helpers.studies.history._tables", kind=Trend
    )
    _check(all_series)
    if mark is not None:
        return _panels(all_series, title, mark)
    chart, axes = figure(title=title, height_in=3.9)
    for index, series in enumerate(all_series):
        _points(axes, series, index, label=_quantity(series))
    _by_year(axes, [point.value for series in all_series for point in series.points])
    axes.set_ylabel("value, in the unit of the legend")
    chart.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=11)
    return chart


def _panels(all_series: Sequence[Trend], title: str, mark: float) -> Figure:
    chart, first = figure(title=title, height_in=2.8)
    first.remove()
    chart.suptitle(title, x=0.02, ha="left", fontsize=14, fontweight="bold")
    with plt.style.context(STYLE_FILE):
        panels = chart.subplots(1, len(all_series), sharex=True, squeeze=False)[0]
    for index, (axes, series) in enumerate(zip(panels, all_series, strict=True)):
        axes.axvline(mark, color="#888888", linewidth=1.2, linestyle="--")
        _points(axes, series, index, markersize=4)
        _by_year(axes, [point.value for point in series.points])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=3))
        axes.yaxis.set_major_locator(LogLocator(numticks=5))
        axes.tick_params(labelsize=11)
        axes.set_title(_quantity(series).replace(" (", "\n("), fontsize=11, pad=6)
        axes.set_xlabel("")
    years = [point.year for series in all_series for point in series.points]
    panels[0].set_xlim(min(years) - 3, max(years) + 3)
    return chart


def _points(
    axes: Axes,
    series: Trend,
    index: int,
    *,
    label: str | None = None,
    markersize: float | None = None,
) -> None:
    years, values = (
        [point.year for point in series.points],
        [point.value for point in series.points],
    )
    axes.plot(
        years,
        values,
        linestyle="None",
        marker=_MARKERS[index % len(_MARKERS)],
        color=_COLOURS[index % len(_COLOURS)],
        label=label,
        markersize=markersize,
    )


def draw_energy(costs: Sequence[EnergyCost], *, title: str = "Energy of one operation") -> Figure:
    """Return a line an operation with its energy on a logarithmic axis, cheapest first within its
    kind.

    ``costs`` are those of :func:`helpers.studies.history._tables.energy_costs`; a cost known from
    least to most is a bar between the two, any other a point. Raises ValueError for no cost and an
    energy that is not above 0. Lesson 01.
    """
    costs = members("costs", costs, "costs, such as energy_costs() returns", kind=EnergyCost)
    if not costs:
        raise ValueError("nothing to draw: give at least one operation and its energy")
    wrong = [
        f"{cost.name} ({cost.least_pj} pJ)"
        for cost in costs
        if not 0 < cost.least_pj <= cost.most_pj < math.inf
    ]
    if wrong:
        raise ValueError(f"an energy is a number above 0; not {', '.join(wrong)}")
    kinds = list(dict.fromkeys(cost.kind for cost in costs))
    rows = sorted(costs, key=lambda cost: (kinds.index(cost.kind), cost.middle_j))
    chart, axes = figure(title=title, height_in=1.0 + 0.24 * len(rows))
    axes.set_xscale("log")
    right = 10 ** math.ceil(math.log10(max(cost.most_pj for cost in rows)))
    for row, cost in enumerate(rows):
        kind_index = kinds.index(cost.kind)
        bounds = sorted({cost.least_pj, cost.most_pj})
        axes.plot(
            bounds,
            [row] * len(bounds),
            marker=_MARKERS[kind_index % len(_MARKERS)],
            markersize=8,
            linewidth=3,
            color=_COLOURS[kind_index % len(_COLOURS)],
        )
        words = " to ".join(energy_text(end * _PICOJOULE) for end in bounds)
        fits = cost.most_pj * _ENERGY_ROOM <= right
        axes.annotate(
            words,
            (cost.most_pj if fits else cost.least_pj, row),
            xytext=(9 if fits else -9, 0),
            textcoords="offset points",
            ha="left" if fits else "right",
            va="center",
            fontsize=10,
        )
    axes.set_xlim(10 ** math.floor(math.log10(min(cost.least_pj for cost in rows))), right)
    axes.xaxis.set_major_locator(LogLocator(numticks=9))
    axes.xaxis.set_major_formatter(lambda value, _: energy_text(value * _PICOJOULE))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(rows)), [cost.name for cost in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("energy (each labelled line is ten times the one before)")
    handles = [
        Patch(facecolor=_COLOURS[kind_index % len(_COLOURS)], label=kind)
        for kind_index, kind in enumerate(kinds)
    ]
    chart.legend(
        handles=handles, ncols=len(kinds), loc="outside lower left", frameon=False, fontsize=10
    )
    return chart


def energy_text(energy_j: float) -> str:
    """Return an energy from femtojoules to millijoules as text: ``energy_text(2e-13)`` is '0.2
    pJ'.
    """
    value = energy_j / _PICOJOULE
    factor, unit = next((factor, unit) for least, factor, unit in _UNITS if value >= least)
    return f"{value / factor:.3g} {unit}"


def _quantity(series: Trend) -> str:
    name = label(series.quantity)
    return f"{name} ({series.unit})" if series.unit else name


def _by_year(axes: Axes, values: Sequence[float]) -> None:
    axes.set_yscale("log")
    axes.set_ylim(
        10 ** (math.floor(math.log10(min(values))) - 0.3),
        10 ** (math.ceil(math.log10(max(values))) + 0.3),
    )
    axes.yaxis.set_major_locator(LogLocator(numticks=9))
    axes.yaxis.set_major_formatter(LogFormatterSciNotation())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    first, last = axes.get_xlim()
    axes.set_xlim(first, last + _ROOM_SHARE * (last - first))
    axes.set_xlabel("year")


def _check(all_series: Sequence[Trend]) -> None:
    if not all_series or not all(series.points for series in all_series):
        raise ValueError("nothing to draw: give series with at least one point each")
    for series in all_series:
        wrong = [point.value for point in series.points if not 0 < point.value < math.inf]
        if wrong:
            raise ValueError(
                f"a logarithmic axis shows finite values above 0 only; {series.quantity} holds "
                f"{wrong[0]}"
            )
