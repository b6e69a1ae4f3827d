"""Growth over the years and energies: points where they belong."""

from __future__ import annotations

import pytest
from drawing_samples import settle

from helpers.hardware._devices import Source
from helpers.studies.history._tables import EnergyCost, Point, Trend, energy_costs, training_compute
from helpers.studies.history.figures import draw_energy, draw_trends, energy_text

SOURCE = Source("made up for a test", "", "reference", "2026-01-01")


def series(points, quantity="compute", unit="FLOP") -> Trend:
    return Trend(
        quantity, unit, tuple(Point(name, year, value, SOURCE) for year, value, name in points)
    )


def cost(name: str, kind: str, least_pj: float, most_pj: float | None = None) -> EnergyCost:
    return EnergyCost(
        name, kind, 32, least_pj, least_pj if most_pj is None else most_pj, 45, SOURCE
    )


def test_trends_have_a_marker_and_a_colour_each():
    many = series([(1971, 2.3, "a"), (2020, 4e7, "b")], "transistors", "thousands")
    fast = series([(1971, 7e5, "a"), (2020, 4.9e9, "b")], "clock", "Hz")
    drawn = draw_trends([many, fast], title="t")
    first, second = drawn.axes[0].lines[:2]
    assert list(first.get_ydata()) == [2.3, 4e7]
    assert first.get_marker() != second.get_marker()
    assert first.get_color() != second.get_color()
    legend = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert legend[:2] == ["transistors (thousands)", "clock (Hz)"]


def test_trends_with_a_mark_have_a_panel_each_and_a_line_at_its_year():
    many = series(
        [(1971, 2.0, "a"), (2004.8, 8.0, "b"), (2006, 16.0, "c")], "transistors", "thousands"
    )
    fast = series([(1971, 3.0, "a"), (2005.7, 6.0, "b")], "clock", "Hz")
    drawn = draw_trends([many, fast], title="t", mark=2005)
    assert [axes.get_title() for axes in drawn.axes] == ["transistors\n(thousands)", "clock\n(Hz)"]
    lines = [axes.lines for axes in drawn.axes]
    assert [list(line.get_xdata()) for line, _ in lines] == [[2005, 2005]] * 2
    assert [list(points.get_ydata()) for _, points in lines] == [[2, 8, 16], [3, 6]]
    assert lines[0][1].get_color() != lines[1][1].get_color()


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf"), float("nan")])
def test_values_that_a_logarithmic_axis_cannot_show_are_refused(wrong):
    with pytest.raises(ValueError, match="finite values above 0 only; compute"):
        draw_trends([series([(2000, wrong, "a")])], title="t")
    with pytest.raises(ValueError, match="an energy is a number above 0; not add"):
        draw_energy([cost("add", "arithmetic", wrong)])


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="at least one point"):
        draw_trends([series([])], title="t")
    with pytest.raises(ValueError, match="at least one point"):
        draw_trends([], title="t")
    with pytest.raises(ValueError, match="at least one operation"):
        draw_energy([])


def test_energies_are_points_or_ranges_in_kinds_cheapest_first():
    rows = [
        cost("multiply", "arithmetic", 4),
        cost("add", "arithmetic", 1),
        cost("DRAM", "access", 1300, 2600),
    ]
    drawn = draw_energy(rows)
    settle(drawn)
    axes = drawn.axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["add", "multiply", "DRAM"]
    assert [list(line.get_xdata()) for line in axes.lines] == [[1], [4], [1300, 2600]]
    assert [text.get_text() for text in axes.texts] == ["1 pJ", "4 pJ", "1.3 nJ to 2.6 nJ"]
    assert [text.get_ha() for text in axes.texts] == ["left", "left", "right"]
    assert axes.get_xlim() == (1, 10_000)
    assert "10 pJ" in [tick.get_text() for tick in axes.get_xticklabels()]
    assert axes.lines[0].get_color() == axes.lines[1].get_color() != axes.lines[2].get_color()


def test_the_librarys_own_tables_can_be_drawn():
    draw_trends([training_compute()], title="t")
    draw_energy(energy_costs().costs)


@pytest.mark.parametrize(
    ("energy_j", "text"),
    [
        (3e-14, "0.03 pJ"),
        (2e-13, "0.2 pJ"),
        (3.7e-12, "3.7 pJ"),
        (6.4e-10, "640 pJ"),
        (2e-9, "2 nJ"),
        (5e-15, "5 fJ"),
        (1.5e-6, "1.5 uJ"),
        (2e-3, "2 mJ"),
    ],
)
def test_energy_text(energy_j, text):
    assert energy_text(energy_j) == text
