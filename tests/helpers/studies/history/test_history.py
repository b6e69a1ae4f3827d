"""Growth rates and energies against numpy's fit, printed tables, repetition and Horowitz's own
sums.
"""

import math

import numpy as np
import pytest

from helpers.hardware._devices import Source
from helpers.studies.history import _tables as history
from helpers.studies.history._tables import (
    QUANTITIES,
    doubling_time,
    energy_cost,
    energy_costs,
    multiplier_exponent,
    processors,
    relative_energy_costs,
    series,
    training_compute,
)

SOURCE = Source("a test", "https://example.org", "reference", "2026-11-21")


def made(years, values):
    return series("made", years, values, source=SOURCE)


def test_every_point_has_a_source_and_the_years_rise():
    for one in (training_compute(), *map(processors, QUANTITIES)):
        years = [point.year for point in one.points]
        assert years == sorted(years)
        assert len(one.points) >= 25
        assert all(
            point.value > 0 and point.source.address.startswith("https://") for point in one.points
        )
    assert all(
        len({int(point.year) for point in processors(name).points}) == len(processors(name).points)
        for name in QUANTITIES
    )
    assert len({point.name for point in training_compute().points}) == len(
        training_compute().points
    )
    with pytest.raises(ValueError, match="use one of transistors"):
        processors("frequency")


def test_units_are_what_they_say():
    named = {point.name: point.value for point in training_compute().points}
    assert named["AlexNet"] == pytest.approx(4.7e17)
    assert named["GPT-3 175B"] == pytest.approx(3.14e23)
    assert processors("transistors").points[0].value == pytest.approx(2310)
    assert processors("clock_hz").points[0].value == pytest.approx(704e3)
    assert processors("clock_hz").unit == "Hz"


def test_an_exact_doubling_is_found_exactly():
    fit = doubling_time(made([2000, 2001.5, 2003, 2004.5], [1, 2, 4, 8]))
    assert fit.doubling_years == pytest.approx(1.5)
    assert fit.shortest_doubling_years == pytest.approx(1.5)
    assert fit.longest_doubling_years == pytest.approx(1.5)
    assert fit.annual_ratio == pytest.approx(2 ** (1 / 1.5))
    halving = doubling_time(made([2000, 2001, 2002], [8, 4, 2]))
    assert halving.doubling_years == pytest.approx(-1)


@pytest.mark.parametrize(
    ("points", "confidence", "quantile"),
    [
        (3, 0.95, 12.706),
        (4, 0.95, 4.303),
        (7, 0.95, 2.571),
        (12, 0.95, 2.228),
        (32, 0.95, 2.042),
        (12, 0.99, 3.169),
        (12, 0.80, 1.372),
    ],
)
def test_slope_and_interval_are_those_of_polyfit_and_of_the_printed_table(
    points, confidence, quantile
):
    """The slope and its error by numpy's fit, the quantile by the printed tables of Student's t, to
    three decimals.
    """
    rng = np.random.default_rng(points)
    years = np.sort(rng.uniform(1970, 2020, points))
    values = 2 ** (0.3 * (years - 1970) + rng.normal(0, 1.5, points))
    fit = doubling_time(made(years.tolist(), values.tolist()), confidence=confidence)
    centred, logs = years - years.mean(), np.log2(values)
    line, intercept = np.polyfit(centred, logs, 1)
    residuals = logs - line * centred - intercept
    error = math.sqrt(residuals @ residuals / (points - 2) / (centred @ centred))
    assert fit.doublings_per_year == pytest.approx(line, rel=1e-9)
    assert fit.high_doublings_per_year - line == pytest.approx(quantile * error, rel=3e-4)
    assert line - fit.low_doublings_per_year == pytest.approx(quantile * error, rel=3e-4)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    """The oracle is repetition: lines of a known slope, and how often their 80 % interval holds
    it.
    """
    rng = np.random.default_rng(11)
    years = np.linspace(2000, 2010, 12)
    held = 0
    for _ in range(200):
        values = 2 ** (0.5 * years - 1000 + rng.normal(0, 1, len(years)))
        fit = doubling_time(made(years.tolist(), values.tolist()), confidence=0.8)
        held += fit.low_doublings_per_year <= 0.5 <= fit.high_doublings_per_year
    assert 140 <= held <= 180


def test_a_series_without_a_trend_gives_no_doubling_time():
    fit = doubling_time(made([2000, 2001, 2002, 2003, 2004], [3, 1, 3, 1, 3]))
    assert fit.low_doublings_per_year < 0 < fit.high_doublings_per_year
    assert fit.shortest_doubling_years is None
    assert fit.longest_doubling_years is None
    assert "unknown" in str(fit)
    assert doubling_time(made([2000, 2001, 2002], [5, 5, 5])).doubling_years == math.inf


def test_bad_series_are_explained():
    with pytest.raises(ValueError, match="at least 3 points"):
        doubling_time(made([2000, 2001], [1, 2]))
    with pytest.raises(ValueError, match="different years"):
        doubling_time(made([2000, 2000, 2000], [1, 2, 3]))
    for wrong, words in ((-1, "from -1 to 2"), (math.inf, "from 1 to inf"), (math.nan, "from nan")):
        with pytest.raises(ValueError, match=f"only positive finite values .* {words}"):
            doubling_time(made([2000, 2001, 2002], [1, wrong, 2]))
    with pytest.raises(ValueError, match=r"such as 0\.95"):
        doubling_time(made([2000, 2001, 2002], [1, 2, 3]), confidence=95)
    with pytest.raises(ValueError, match="2 years and 3 values"):
        made([2000, 2001], [1, 2, 3])


def test_moores_law_and_what_slowed():
    transistors = doubling_time(processors("transistors"))
    assert 1.8 < transistors.doubling_years < 2.4
    early, late = (
        doubling_time(processors("clock_hz").between(*span))
        for span in ((1970, 2005), (2005, 2023))
    )
    assert early.doubling_years < 3.2
    assert late.low_doublings_per_year < 0 < late.high_doublings_per_year
    before, after = (
        doubling_time(processors("single_thread").between(*span))
        for span in ((1970, 2005), (2005, 2023))
    )
    assert after.shortest_doubling_years > 2 * before.longest_doubling_years
    assert doubling_time(processors("cores").between(2005, 2023)).longest_doubling_years < 5


def test_training_compute_grew_faster_than_processors_since_2010():
    """Sevilla et al. 2022 find about 20 months before 2010 and 6 months after it, from 123
    models.
    """
    before, after = (
        doubling_time(training_compute().between(*span)) for span in ((1950, 2010), (2010, 2030))
    )
    assert before.shortest_doubling_years < 20 / 12 < before.longest_doubling_years
    assert after.shortest_doubling_years < 6 / 12 * 1.05
    assert after.longest_doubling_years < before.shortest_doubling_years


def test_the_energies_are_ordered_as_physics_has_them():
    for kind in ("add", "multiply"):
        assert energy_cost(f"int8 {kind}").middle_j < energy_cost(f"int32 {kind}").middle_j
        assert energy_cost(f"float16 {kind}").middle_j < energy_cost(f"float32 {kind}").middle_j
    levels = [
        energy_cost(name).middle_j
        for name in ("cache of 8 KB", "cache of 32 KB", "cache of 1 MB", "DRAM")
    ]
    assert levels == sorted(levels)
    names = [cost.name for cost in energy_costs().costs]
    assert len(names) == len(set(names))
    assert all(cost.least_j <= cost.most_j and cost.source.address for cost in energy_costs().costs)
    assert energy_cost("float32 multiply").middle_j == pytest.approx(3.7e-12)
    assert energy_cost("DRAM").middle_j == pytest.approx(1.95e-9)
    with pytest.raises(ValueError, match="the table has int8 add"):
        energy_cost("fp8 add")


def test_accesses_relative_to_a_mac_grow_with_the_distance():
    costs = relative_energy_costs().costs
    assert [(cost.name, cost.mac_ratio) for cost in costs] == [
        ("register file", 1),
        ("neighbour", 2),
        ("buffer", 6),
        ("DRAM", 200),
    ]
    assert {(cost.process_nm, cost.source.read) for cost in costs} == {(65, "2026-11-23")}
    assert "Eyeriss" in costs[0].source.title
    assert "200.00x" in str(relative_energy_costs())


def test_two_tables_of_energy_agree_on_dram_within_a_factor_of_two():
    """Horowitz in 16-bit floats at 45 nm, for the 16 bits of a 64-bit access; Eyeriss in 16-bit
    integers at 65 nm.
    """
    mac = energy_cost("float16 multiply").middle_j + energy_cost("float16 add").middle_j
    dram = energy_cost("DRAM")
    relative = dram.middle_j * 16 / dram.bits / mac
    assert 0.5 < relative / relative_energy_costs().costs[-1].mac_ratio < 2


def test_a_multiplier_of_twice_the_bits_takes_four_times_the_energy():
    assert 2 ** multiplier_exponent() == pytest.approx(4, rel=0.05)
    assert multiplier_exponent() == pytest.approx(math.log(3.1 / 0.2, 4))


def test_tables_are_frames():
    assert list(training_compute().table().columns) == ["name", "year", "value"]
    assert len(energy_costs().table()) == len(energy_costs().costs)
    assert set(history.energy_costs().table()["process_nm"]) == {45}
