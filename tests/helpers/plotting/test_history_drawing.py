"""Growth over the years and energies: points where they belong, doubling lines that double."""

from __future__ import annotations

import numpy as np
import pytest
from drawing_samples import overlapping, settle

from helpers.hardware._devices import Source
from helpers.hardware._history import EnergyCost, Point, Series, doubling_time, energy_costs, training_compute
from helpers.plotting._history import (
    Doubling,
    doubling_line,
    draw_energy,
    draw_growth,
    draw_trends,
    duration,
    energy_text,
)

SOURCE = Source("made up for a test", "", "reference", "2026-01-01")
TWO_YEARS = Doubling("steady", 1970, 2010, 1000.0, 2.0)


def series(points, quantity="compute", unit="FLOP") -> Series:
    return Series(quantity, unit, tuple(Point(name, year, value, SOURCE) for year, value, name in points))


CROWD = series([(2010 + place / 3, 10.0 ** (18 + place / 3), f"model number {place}") for place in range(14)])


def cost(name: str, kind: str, least_pj: float, most_pj: float | None = None) -> EnergyCost:
    return EnergyCost(name, kind, 32, least_pj, least_pj if most_pj is None else most_pj, 45, SOURCE)


def test_a_doubling_line_doubles():
    axes = draw_growth(CROWD, title="t", doublings=[TWO_YEARS]).axes[0]
    line = next(line for line in axes.lines if line.get_label().startswith("steady"))
    assert list(line.get_xdata()) == [1970, 2010]
    assert list(line.get_ydata()) == [1000, 1000 * 2**20]
    assert line.get_label() == "steady: doubles every 2.0 years"
    assert TWO_YEARS.value_at(1972) == 2000


def test_the_line_of_a_fit_is_numpys():
    points = series([(2000, 1.0, "a"), (2003, 9.0, "b"), (2004, 20.0, "c"), (2009, 900.0, "d")])
    line = doubling_line("fit", points, doubling_time(points))
    slope, height = np.polyfit([2000, 2003, 2004, 2009], np.log2([1, 9, 20, 900]), 1)
    assert line.doubling_years == pytest.approx(1 / slope)
    assert [line.value_at(year) for year in (2000, 2009)] == pytest.approx(
        [2 ** (height + slope * year) for year in (2000, 2009)], rel=1e-6
    )
    shrinking = series([(2000, 9.0, "a"), (2001, 4.1, "b"), (2002, 2.0, "c")])
    with pytest.raises(ValueError, match="compute does not grow"):
        doubling_line("fit", shrinking, doubling_time(shrinking))


def test_points_are_where_they_were_given_and_their_names_do_not_overlap():
    drawn = draw_growth(CROWD, title="t")
    settle(drawn)
    axes = drawn.axes[0]
    assert list(zip(*axes.lines[0].get_data(), strict=True)) == [(p.year, p.value) for p in CROWD.points]
    assert [text.get_text() for text in axes.texts] == [point.name for point in CROWD.points]
    assert overlapping(axes.texts) == []
    assert axes.get_yscale() == "log"
    assert axes.get_ylabel() == "compute (FLOP)"


def test_only_the_points_asked_for_are_named_and_all_are_drawn():
    axes = draw_growth(CROWD, title="t", named=["model number 3"]).axes[0]
    assert len(axes.lines[0].get_xdata()) == 14
    assert [text.get_text() for text in axes.texts] == ["model number 3"]
    with pytest.raises(ValueError, match="no point is called GPT; there are model number 0, "):
        draw_growth(CROWD, title="t", named=["GPT"])


def test_trends_have_a_marker_and_a_colour_each():
    many = series([(1971, 2.3, "a"), (2020, 4e7, "b")], "transistors", "thousands")
    fast = series([(1971, 7e5, "a"), (2020, 4.9e9, "b")], "clock", "Hz")
    drawn = draw_trends([many, fast], title="t", doublings=[TWO_YEARS])
    first, second = drawn.axes[0].lines[:2]
    assert list(first.get_ydata()) == [2.3, 4e7]
    assert first.get_marker() != second.get_marker()
    assert first.get_color() != second.get_color()
    legend = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert legend[:2] == ["transistors (thousands)", "clock (Hz)"]


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf"), float("nan")])
def test_values_that_a_logarithmic_axis_cannot_show_are_refused(wrong):
    with pytest.raises(ValueError, match="finite values above 0 only; compute"):
        draw_growth(series([(2000, wrong, "a")]), title="t")
    with pytest.raises(ValueError, match="finite values above 0 only; compute"):
        draw_trends([series([(2000, wrong, "a")])], title="t")
    with pytest.raises(ValueError, match="an energy is a number above 0; not add"):
        draw_energy([cost("add", "arithmetic", wrong)])


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="at least one point"):
        draw_growth(series([]), title="t")
    with pytest.raises(ValueError, match="at least one point"):
        draw_trends([], title="t")
    with pytest.raises(ValueError, match="at least one operation"):
        draw_energy([])
    with pytest.raises(ValueError, match="doubling time above 0, and a later last year"):
        Doubling("a", 2010, 2000, 1.0, 1.0)


def test_energies_are_points_or_ranges_in_kinds_cheapest_first():
    rows = [cost("multiply", "arithmetic", 4), cost("add", "arithmetic", 1), cost("DRAM", "access", 1300, 2600)]
    drawn = draw_energy(rows)
    settle(drawn)
    axes = drawn.axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["add", "multiply", "DRAM"]
    assert [list(line.get_xdata()) for line in axes.lines] == [[1], [4], [1300, 2600]]
    assert [text.get_text() for text in axes.texts] == ["1 pJ", "4 pJ", "1.3 nJ to 2.6 nJ"]
    assert "10 pJ" in [tick.get_text() for tick in axes.get_xticklabels()]
    assert axes.lines[0].get_color() == axes.lines[1].get_color() != axes.lines[2].get_color()


def test_the_librarys_own_tables_can_be_drawn():
    compute = training_compute()
    draw_growth(compute, title="t", named=[point.name for point in compute.points[:3]])
    draw_energy(energy_costs().costs)


@pytest.mark.parametrize(
    ("energy_j", "text"),
    [(3e-14, "0.03 pJ"), (2e-13, "0.2 pJ"), (3.7e-12, "3.7 pJ"), (6.4e-10, "640 pJ"), (2e-9, "2 nJ"), (5e-15, "5 fJ"),
     (1.5e-6, "1.5 uJ"), (2e-3, "2 mJ")],
)  # fmt: skip
def test_energy_text(energy_j, text):
    assert energy_text(energy_j) == text


@pytest.mark.parametrize(
    ("years", "text"), [(0.1, "37 days"), (0.5, "6.0 months"), (1.7, "20.4 months"), (2, "2.0 years")]
)
def test_duration(years, text):
    assert duration(years) == text
