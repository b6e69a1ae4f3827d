"""The drawings of tasks, cuts and batches show the counts that they stand for."""

from __future__ import annotations

import math

import pytest
from drawing_samples import overlapping, settle
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from helpers.plotting.explorer import _explore
from helpers.studies import sgd_parallelism
from helpers.studies.sgd_parallelism import RateSearch
from helpers.studies.sgd_parallelism.figures._cuts import SIDES

ORANGE = "#d55e00"


def search(batch: int, mean: float, error: float = 1.0) -> RateSearch:
    return RateSearch(batch, 0.5, (0.1,), 0.1, mean, error, ((mean,),))


def test_tasks_waits_and_the_chain_are_as_many_as_counted():
    steps, examples, layers = 2, 3, 2
    axes = sgd_parallelism.draw_tasks().axes[0]
    boxes = [patch for patch in axes.get_children() if isinstance(patch, FancyBboxPatch)][
        :-3
    ]  # without those of the key
    arrows = [patch for patch in axes.get_children() if isinstance(patch, FancyArrowPatch)]
    chain = steps * (2 * layers + 1)
    tasks = steps * (2 * layers * examples + 1)
    # of a first layer for the update before
    waits = steps * examples * 2 * layers + (steps - 1) * examples
    assert (len(boxes), len(arrows)) == (tasks, waits)
    assert sum(to_hex(box.get_edgecolor()) == ORANGE for box in boxes) == chain
    assert sum(to_hex(arrow.get_edgecolor()) == ORANGE for arrow in arrows) == chain - 1
    assert f"longest chain, {chain} of {tasks} tasks" in {text.get_text() for text in axes.texts}


def test_texts_of_the_tasks_do_not_touch():
    drawn = sgd_parallelism.draw_tasks()
    settle(drawn)
    assert overlapping(drawn.axes[0].texts) == []
    boxes = [patch for patch in drawn.axes[0].get_children() if isinstance(patch, FancyBboxPatch)][
        :-3
    ]
    heights = {round(box.get_y(), 6) for box in boxes if to_hex(box.get_edgecolor()) == ORANGE}
    assert len(heights) == 1  # of three examples the chain takes the one beside the updates


@pytest.mark.parametrize("side", SIDES)
def test_a_cut_draws_one_sum_and_a_piece_for_each_worker_elsewhere(side):
    drawn = sgd_parallelism.draw_cut(side)
    settle(drawn)
    axes = drawn.axes[0]
    said = [text.get_text() for text in axes.texts]
    assert (said.count("a sum of 4 terms"), said.count("no sum"), said.count("all")) == (1, 2, 2)
    # Of nine matrices two are needed whole and seven are coloured, one of these as whole terms.
    assert len(axes.patches) == 2 + 7 * 4
    assert overlapping(axes.texts) == []
    summed = {
        "tokens": "gradient of the weights",
        "inputs": "outputs",
        "outputs": "gradient of the inputs",
    }[side]
    titles = [text.get_text() for text in axes.texts if text.get_fontweight() == "bold"]
    assert titles.index(summed) == [text for text in said if "sum" in text].index(
        "a sum of 4 terms"
    )
    assert titles == ["outputs", "gradient of the inputs", "gradient of the weights"]


def test_other_sides_are_refused():
    with pytest.raises(ValueError, match="side='layers' is not known"):
        sgd_parallelism.draw_cut("layers")


def test_the_figure_to_turn_starts_at_the_worked_example(monkeypatch):
    given = {}
    monkeypatch.setattr("helpers.plotting.explore", lambda **options: given.update(options))
    sgd_parallelism.explore_sharing()
    inputs = {turned.name: turned for turned in given["inputs"]}
    setting = _explore._start(given["inputs"])
    assert (inputs["cut"].start, inputs["link"].start, setting["tokens"]) == (
        "tokens",
        "100 Gbit/s",
        16384,
    )
    shown = _explore.evaluate(given["formulas"], setting)
    alone_s, sending_s = 6 * 4096**2 * 16384 / 400e12, 1.5 * 2 * 4096**2 / 12.5e9
    assert shown["gain"] == pytest.approx(alone_s / (alone_s / 4 + sending_s))
    assert shown["gain"] == pytest.approx(0.815, abs=0.001)
    along_inputs = {**setting, "cut": inputs["cut"].options["inputs or outputs"]}
    gains = [
        _explore.evaluate(given["formulas"], {**along_inputs, "tokens": n})["gain"]
        for n in (256, 262144)
    ]
    assert gains[0] == pytest.approx(gains[1])
    even = {**setting, "tokens": 4096}
    other = {**even, "cut": inputs["cut"].options["inputs or outputs"]}
    assert _explore.evaluate(given["formulas"], even) == pytest.approx(
        _explore.evaluate(given["formulas"], other)
    )


def test_updates_are_drawn_with_their_model_and_its_parts_cross_at_the_critical_batch():
    drawn = sgd_parallelism.draw_updates(
        {8: search(8, 130.5), 1024: search(1024, 26.25)}, stays=25.0, shrinks=800.0
    )
    settle(drawn)
    axes = drawn.axes[0]
    both, stays, shrinks, critical, measured = axes.lines[:5]
    assert [both.get_ydata()[0], both.get_ydata()[-1]] == pytest.approx([125, 25 + 800 / 1024])
    assert set(stays.get_ydata()) == {25.0}
    assert shrinks.get_ydata()[0] == pytest.approx(100)
    assert (list(critical.get_xdata()), list(critical.get_ydata())) == ([32], [25])
    assert (list(measured.get_xdata()), list(measured.get_ydata())) == ([8, 1024], [130.5, 26.25])
    assert "critical batch, 32 images" in {text.get_text() for text in axes.texts}


def test_rounds_have_a_curve_for_each_way_and_their_errors():
    ways = {"one": {8: (100.0, 5.0), 64: (40.0, 2.0)}, "four": {8: (50.0, 4.0), 64: (30.0, 1.0)}}
    axes = sgd_parallelism.draw_rounds(ways).axes[0]
    assert [list(bars[0].get_ydata()) for bars in axes.containers] == [[100, 40], [50, 30]]
    tops = [segment[1][1] for bars in axes.containers for segment in bars[2][0].get_segments()]
    assert tops == pytest.approx([105, 42, 54, 31])
    assert [bars.get_label() for bars in axes.containers] == ["one", "four"]
    with pytest.raises(ValueError, match="0 ways of working; give one to 3"):
        sgd_parallelism.draw_rounds({})
    with pytest.raises(ValueError, match="stays=nan"):
        sgd_parallelism.draw_updates({8: search(8, 1.0)}, stays=math.nan, shrinks=1.0)
