"""The curves of an array: counts agree with the simulation, and what is drawn is what the formulas
say.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest

from helpers.plotting.explorer._formulas import evaluate
from helpers.studies.simulators import systolic


@pytest.mark.parametrize(("rows", "side"), [(1, 1), (1, 4), (3, 4), (4, 4), (9, 3)])
def test_the_modelled_elements_at_work_are_those_of_the_simulation(rows, side):
    run = systolic.simulate(np.ones((rows, side)), np.ones((side, side)), rows=side, columns=side)
    assert systolic.working_elements(rows, side=side).tolist() == run.active.tolist()


def test_each_element_of_tpu_v1_works_once_a_row():
    working = systolic.working_elements(96, side=256)
    assert (len(working), working.sum(), working[:256].sum()) == (862, 96 * 256**2, 0)


@pytest.mark.parametrize(
    ("k", "n", "side", "share"),
    [
        (600, 600, 256, 0.6104),
        (600, 600, 512, 0.3433),
        (256, 256, 256, 1),
        (257, 257, 256, 0.2520),
        (9, 1, 256, 0.0001),
    ],
)
def test_the_useful_share_is_weights_over_places(k, n, side, share):
    assert systolic.useful_share(k, n, side=side) == pytest.approx(share, abs=5e-5)
    places = -(-k // side) * -(-n // side) * side**2
    assert systolic.useful_share(k, n, side=side) * places == pytest.approx(k * n)


def test_a_line_of_elements_at_work_for_each_number_of_rows():
    drawn = systolic.draw_working([2, 6], side=3)
    first, second, all_elements = drawn.axes[0].lines
    assert first.get_ydata().tolist() == systolic.working_elements(2, side=3).tolist()
    assert second.get_ydata().max() == 9 == all_elements.get_ydata()[0]
    assert first.get_label().startswith("2 rows (22% of all PE cycles")  # 2 of 9 cycles
    plt.close(drawn)


@pytest.mark.parametrize("rows", [[], [1, 2, 3, 4, 5]])
def test_no_line_and_too_many_are_refused(rows):
    with pytest.raises(ValueError, match="there must be 1 to 4"):
        systolic.draw_working(rows, side=4)


def test_the_figure_to_turn_begins_at_600_and_has_a_step_behind_each_multiple(monkeypatch):
    given = {}
    monkeypatch.setattr("helpers.plotting.explore", lambda **options: given.update(options))
    systolic.explore_width()
    array, width = given["inputs"]
    assert (array.start, width.start) == ("256", 600)
    assert {256, 257, 512, 513} <= set(width.values)
    assert list(width.values) == sorted(set(width.values))
    for side in array.options:
        for columns in (128, 256, 257, 600, 1025):
            turned = {"array": array.options[side], "width": columns}
            values = evaluate(given["formulas"], turned)
            assert values["useful"] / 100 == pytest.approx(
                systolic.useful_share(columns, columns, side=int(side))
            )
