"""How computing grew: training compute of landmark models, processors by year, and the energy of an
operation.

Small tables with their sources in ``history.toml`` beside this module, the growth fitted to them
(:func:`doubling_time`). Lessons 01, 02 and 14.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field
from importlib import resources
from typing import Any

import numpy as np

from helpers.checks import number, one_of
from helpers.hardware._devices import Source, device_sources
from helpers.results import Record

QUANTITIES = ("transistors", "clock_hz", "power_w", "single_thread", "cores")

_PICO = 1e-12
_FLOPS_PER_PETAFLOP = 10**15
_LEAST_POINTS = 3
_QUANTILE_POINTS = 20_001


class Point(Record):
    """A quantity's ``value`` at a time, ``year`` with a fraction (2012.75 is the end of September).

    Lesson 02.
    """

    name: str
    year: float
    value: float
    source: Source = field(repr=False)


class Trend(Record):
    """A quantity over the years, in time's order; ``unit`` says what the values are. Lesson 02."""

    quantity: str
    unit: str
    points: tuple[Point, ...]

    def between(self, first: float, last: float) -> Trend:
        """Return the points with ``first <= year < last``."""
        return Trend(
            self.quantity,
            self.unit,
            tuple(point for point in self.points if first <= point.year < last),
        )


class DoublingTime(Record):
    """How fast a series doubled: the slope of log2 of the value against the year, by least squares.

    ``low`` and ``high`` bound the slope with ``confidence_share``; ``doubling_years`` is one over
    the slope (infinite for a slope of 0, negative for what halves), and its bounds are None where
    the slope's interval holds 0: the series then says nothing of a doubling time. ``annual_ratio``
    is the growth in one year. Lesson 02.
    """

    doublings_per_year: float
    low_doublings_per_year: float
    high_doublings_per_year: float
    doubling_years: float
    shortest_doubling_years: float | None
    longest_doubling_years: float | None
    annual_ratio: float
    confidence_share: float
    points: int


class EnergyCost(Record):
    """The energy of one operation or of one access of ``bits``, in picojoules, least to most, on a
    ``process_nm`` chip.

    Lesson 01.
    """

    name: str
    kind: str
    bits: int
    least_pj: float
    most_pj: float
    process_nm: int
    source: Source = field(repr=False)

    @property
    def least_j(self) -> float:
        """The least, in joules."""
        return self.least_pj * _PICO

    @property
    def most_j(self) -> float:
        """The most, in joules."""
        return self.most_pj * _PICO

    @property
    def middle_j(self) -> float:
        """The middle of least and most, in joules."""
        return (self.least_j + self.most_j) / 2


class EnergyTable(Record):
    """The energy of operations and accesses; one row a cost. Lesson 01."""

    costs: tuple[EnergyCost, ...]


class RelativeEnergyCost(Record):
    """The energy of reading or writing one value in ``name``, over that of one multiply-accumulate:
    ``mac_ratio``.

    Lesson 14.
    """

    name: str
    mac_ratio: float
    process_nm: int
    source: Source = field(repr=False)


class RelativeEnergyTable(Record):
    """The energy of accesses relative to a multiply-accumulate; one row a place that holds values.

    Lesson 14.
    """

    costs: tuple[RelativeEnergyCost, ...]


@functools.cache
def training_compute() -> Trend:
    """Return the operations that training landmark models took, 1957 to 2023, by Epoch AI's
    estimates.

    In FLOP. Epoch expects most estimates to be right within a factor of 2, the latest within 5.
    Lesson 02.
    """
    data = _data()
    source = device_sources(data)[data["training"]["source"]]
    rows = data["training"]["rows"]
    points = tuple(
        Point(name, year, petaflop * _FLOPS_PER_PETAFLOP, source) for name, year, petaflop in rows
    )
    return Trend("training compute", "FLOP", points)


def processors(quantity: str) -> Trend:
    """Return one quantity of microprocessors by year: transistors, clock_hz, power_w, single_thread
    or cores.

    One processor a calendar year, the first of Karl Rupp's list; ``single_thread`` is his SPECint x
    1,000, ``cores`` counts as his list does (240 for a Xeon Phi). Raises ValueError for another
    quantity. Lesson 02.
    """
    if quantity not in QUANTITIES:
        raise ValueError(
            f"quantity {quantity!r} is not in the table; use one of {', '.join(QUANTITIES)}"
        )
    data = _data()
    source = device_sources(data)[data["processors"]["source"]]
    table = data["processors"][quantity]
    units = {"clock_hz": "Hz", "power_w": "W", "single_thread": "SPECint x 1,000"}
    points = tuple(
        Point("", year, value * table["factor"], source) for year, value in table["rows"]
    )
    return Trend(quantity, units.get(quantity, ""), points)


def doubling_time(series: Trend, *, confidence: float = 0.95) -> DoublingTime:
    """Fit ``log2(value) = a + b * year`` by least squares and return b with its interval and the
    doubling time 1 / b.

    The interval is Student's for the slope of a line with independent errors of one spread. Raises
    ValueError for fewer than three points, points of one year, a value that is not positive and
    finite, or a confidence outside (0, 1). Lesson 02.
    """
    one_of("series", series, Trend, "a series, such as training_compute()")
    years = np.array([point.year for point in series.points])
    values = np.array([point.value for point in series.points])
    if len(years) < _LEAST_POINTS or np.ptp(years) == 0:
        raise ValueError(
            f"{series.quantity}: a growth rate with an interval needs at least {_LEAST_POINTS} "
            f"points of different years; there are {len(years)}"
        )
    if not np.all((values > 0) & (values < np.inf)):
        raise ValueError(
            f"{series.quantity}: only positive finite values have a logarithm to fit; these go "
            f"from {values.min():g} to {values.max():g}"
        )
    if not 0 < number("confidence", confidence) < 1:
        raise ValueError(f"confidence is a share between 0 and 1, such as 0.95, not {confidence!r}")
    slope, error = _slope(years, np.log2(values))
    half_width = _student_quantile((1 + confidence) / 2, len(years) - 2) * error
    low, high = slope - half_width, slope + half_width
    is_significant = low > 0 or high < 0
    shortest, longest = sorted((1 / low, 1 / high), key=abs) if is_significant else (None, None)
    return DoublingTime(
        slope,
        low,
        high,
        1 / slope if slope else math.inf,
        shortest,
        longest,
        2**slope,
        confidence,
        len(years),
    )


@functools.cache
def energy_costs() -> EnergyTable:
    """Return the energy of additions, multiplications and accesses on a 45 nm chip: Horowitz, ISSCC
    2014.

    Lesson 01.
    """
    data = _data()
    sources = device_sources(data)
    nm = data["energy"]["process_nm"]
    rows = data["energy"]["rows"]
    return EnergyTable(
        tuple(
            EnergyCost(name, kind, bits, least_pj, most_pj, nm, sources[source])
            for name, kind, bits, least_pj, most_pj, source in rows
        )
    )


@functools.cache
def relative_energy_costs() -> RelativeEnergyTable:
    """Return the energy of an access relative to a multiply-accumulate on a 65 nm chip: Chen, Emer
    and Sze, ISCA 2016.

    The places are a register file of an element, a neighbouring element, the buffer on the chip,
    and DRAM. Lesson 14.
    """
    data = _data()
    source, nm = (
        device_sources(data)[data["relative_energy"]["source"]],
        data["relative_energy"]["process_nm"],
    )
    rows = data["relative_energy"]["rows"]
    return RelativeEnergyTable(
        tuple(RelativeEnergyCost(name, ratio, nm, source) for name, ratio in rows)
    )


def energy_cost(name: str) -> EnergyCost:
    """Return the cost called ``name``, such as ``"float32 multiply"`` or ``"DRAM"``.

    Raises ValueError for another name, with those there are. Lesson 01.
    """
    costs = energy_costs().costs
    match = next((cost for cost in costs if cost.name == name), None)
    if match is None:
        raise ValueError(
            f"no energy is known for {name!r}; the table has "
            f"{', '.join(cost.name for cost in costs)}"
        )
    return match


def multiplier_exponent() -> float:
    """Return how a multiplier's energy grows with its bits: the p of energy ~ bits^p, between 8 and
    32 bits (about 2).

    So a multiplier of twice the bits takes about 2^p = 4 times the energy: it adds up twice as many
    rows of partial products that are twice as wide. Lesson 02.
    """
    narrow, wide = energy_cost("int8 multiply"), energy_cost("int32 multiply")
    return math.log(wide.middle_j / narrow.middle_j) / math.log(wide.bits / narrow.bits)


@functools.cache
def _data() -> Mapping[str, Any]:
    return tomllib.loads(
        resources.files("helpers.studies.history")
        .joinpath("history.toml")
        .read_text(encoding="utf-8")
    )


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the least-squares slope and its standard error."""
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ (y - y.mean())) / spread
    residuals = y - y.mean() - slope * centred
    return slope, math.sqrt(float(residuals @ residuals) / (len(x) - 2) / spread)


@functools.cache
def _student_quantile(share: float, freedom: int) -> float:
    """Return the quantile of Student's t for a share above one half, by integrating the density
    over an angle.

    With t = sqrt(freedom) tan(angle) the density is proportional to cos(angle)^(freedom - 1), so
    the range is finite.
    """
    angles = np.linspace(0, math.pi / 2, _QUANTILE_POINTS)
    density = np.cos(angles) ** (freedom - 1)
    cumulative = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2)))
    angle = float(np.interp(2 * share - 1, cumulative / cumulative[-1], angles))
    return math.sqrt(freedom) * math.tan(angle)


def series(
    quantity: str,
    years: Sequence[float],
    values: Sequence[float],
    *,
    source: Source,
    unit: str = "",
) -> Trend:
    """Return a series of a reader's own numbers, for :func:`doubling_time`.

    Raises ValueError when there are not as many values as years. Lesson 02.
    """
    if len(years) != len(values):
        raise ValueError(
            f"{quantity}: {len(years)} years and {len(values)} values; there must be one value a "
            "year"
        )
    points = sorted(zip(years, values, strict=True))
    return Trend(quantity, unit, tuple(Point("", year, value, source) for year, value in points))
