"""The figures of lesson 10: what they draw, and a loader to turn that is held to the exact
simulation.
"""

from __future__ import annotations

import itertools

import pytest

from helpers import plotting
from helpers.studies import input_pipeline
from tests.explored import at


def test_the_overlap_has_four_steps_in_turn_and_four_overlapped() -> None:
    drawn = input_pipeline.draw_overlap(0.1, 0.02, steps=4)
    lanes = [label.get_text() for label in drawn.axes[0].get_yticklabels()]
    assert sorted(lanes) == [
        "in turn: the GPU",
        "in turn: the loop",
        "overlapped: the GPU",
        "overlapped: the thread",
    ]
    ends_ms = {round(1000 * (box.get_x() + box.get_width())) for box in drawn.axes[0].patches}
    assert max(ends_ms) == 4 * 120  # in turn, after four batches and four steps
    assert 4 * 100 + 20 in ends_ms  # overlapped, after four batches and the last step


def test_the_figure_to_turn_computes_what_the_simulation_does(monkeypatch) -> None:
    figure = {}
    monkeypatch.setattr(plotting, "explore", lambda **given: figure.update(given))
    input_pipeline.explore_loader()
    values = [slider.values for slider in figure["inputs"]]
    for workers, factor, late in itertools.product(*values):
        times_s = [(late if number % 7 == 6 else 10) / 1000 for number in range(7 * 40 + 1)]
        played = input_pipeline.simulate_feeding(
            times_s, 0.020, workers=workers, prefetch_factor=factor, warm_up=7 * 32
        )
        shown = at(figure["inputs"], figure["formulas"], workers=workers, factor=factor, late=late)
        assert shown["busy"] == pytest.approx(100 * played.busy_share), (workers, factor, late)
        assert shown["busy"] <= shown["average"] * (1 + 1e-9)


def test_the_figure_to_turn_begins_at_the_bet_and_can_be_shown(monkeypatch) -> None:
    input_pipeline.explore_loader()
    figure = {}
    monkeypatch.setattr(plotting, "explore", lambda **given: figure.update(given))
    input_pipeline.explore_loader()
    begins = at(figure["inputs"], figure["formulas"])
    assert (begins["busy"], begins["average"]) == pytest.approx((70, 100))
    assert at(figure["inputs"], figure["formulas"], factor=3)["busy"] == 100
