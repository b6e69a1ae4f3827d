"""The TPU paper's tables against themselves: sums, means, what its text says of single figures."""

from __future__ import annotations

import json

import pytest

from helpers.hardware import device
from helpers.results import from_dict, row_of
from helpers.studies.simulators.systolic import TpuApplications, tpu_applications

ROWS = tpu_applications().applications


def percent(name: str) -> list[float]:
    return [100 * getattr(row, name) for row in ROWS]


def test_the_cycles_of_each_application_add_up():
    """The paper: rows 1, 4, 5 and 6 total 100 %; as printed, to 100.0 or 100.1."""
    for row in ROWS:
        total = row.active_share + row.stall_share + row.shift_share + row.non_matrix_share
        assert round(100 * total, 1) in (100.0, 100.1), row.name
        assert row.useful_share <= row.active_share


@pytest.mark.parametrize(
    ("name", "mean", "digits"),
    [
        ("active_share", 28, 0),
        ("useful_share", 23, 0),
        ("shift_share", 12, 0),
        ("non_matrix_share", 20, 0),
        ("model_error_share", 8, 0),
    ],
)
def test_means_are_those_that_the_paper_prints(name, mean, digits):
    assert round(sum(percent(name)) / len(ROWS), digits) == mean


def test_one_printed_mean_is_not_that_of_its_row():
    """The paper prints a mean weight stall of 43 %: then its four means would add up to 103 %.

    Its row has 41.
    """
    assert round(sum(percent("stall_share")) / len(ROWS)) == 41


def test_tera_operations_have_the_printed_mean():
    assert round(sum(row.measured_tops for row in ROWS) / len(ROWS), 1) == 21.4


def test_unused_multiply_adds_are_what_the_paper_prints_within_its_rounding():
    unused = [0.3, 1.2, 0.0, 4.2, 0.0, 23.7]
    found = [
        active - useful
        for active, useful in zip(percent("active_share"), percent("useful_share"), strict=True)
    ]
    assert found == pytest.approx(unused, abs=0.1001)


def test_single_figures_are_those_of_the_text():
    cnn1 = row_of(ROWS, "application", name="CNN1")
    # "About 35% of cycles are spent waiting"
    assert round(100 * (cnn1.stall_share + cnn1.shift_share)) == 35
    assert round(100 * cnn1.non_matrix_share) == 19  # "roughly 19% of cycles not explained"
    # "only about half of the MACs"
    assert cnn1.useful_share / cnn1.active_share == pytest.approx(0.5, abs=0.02)
    # "between 5M and 100M"
    assert sorted(row.weights for row in ROWS)[:: len(ROWS) - 1] == [5_000_000, 100_000_000]


def test_every_application_stays_below_the_peak_and_a_perceptron_meets_a_weight_once_an_example():
    peak = device("TPU v1").peak("int8").dense_flops_per_s
    assert all(row.measured_tops * 1e12 < peak for row in ROWS)
    assert all(
        row.ops_per_weight_byte == row.batch for row in ROWS if not row.name.startswith("CNN")
    )


def test_the_table_is_a_frame_with_its_source_and_goes_through_json():
    table = tpu_applications()
    assert list(table.table()["name"]) == ["MLP0", "MLP1", "LSTM0", "LSTM1", "CNN0", "CNN1"]
    assert {row.source.address for row in ROWS} == {"https://arxiv.org/abs/1704.04760"}
    assert "12.7 %" in str(table)
    assert from_dict(TpuApplications, json.loads(table.to_json())) == table
