"""The figures of lesson 03: what they show is what was counted."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from helpers import plotting
from helpers.studies import gpu_execution
from helpers.studies.gpu_execution import launch, occupancy, run_scheduler

BLUE, GREY = plotting.COLOURS["computing"], plotting.COLOURS["waiting"]


def colours(drawn):
    return Counter(
        to_hex(patch.get_facecolor()).upper()
        for patch in drawn.axes[0].patches
        if isinstance(patch, Rectangle)
    )


def texts(drawn):
    return [text.get_text() for text in drawn.axes[0].texts]


def guarded(thread, x):
    if thread.x < len(x):
        x[thread.x]


def test_lanes_are_blue_where_they_take_part():
    run = launch(guarded, np.ones(72, np.float32), grid=1, block=96)
    last = [request for request in run.requests if request.warp == 2]
    drawn = gpu_execution.draw_lanes({"the last warp": last}, title="t")
    assert colours(drawn) == {BLUE: 8, GREY: 24}
    assert {"the last warp", "load x"} <= set(texts(drawn))
    with pytest.raises(ValueError, match="requests of 'all' are of no warp or of several"):
        gpu_execution.draw_lanes({"all": run.requests}, title="t")
    with pytest.raises(ValueError, match="give those of one"):
        gpu_execution.draw_lanes({}, title="t")
    with pytest.raises(TypeError, match="give a list of requests, as a launch has them"):
        gpu_execution.draw_lanes({"x": [1]}, title="t")


@pytest.mark.parametrize(
    ("stride", "sectors", "words"), [(1, 4, 32), (2, 8, 32), (8, 32, 32), (0, 1, 1)]
)
def test_sectors_have_eight_words_each_and_the_wanted_are_blue(stride, sectors, words):
    drawn = gpu_execution.draw_sectors({"x": [4 * stride * lane for lane in range(32)]}, title="t")
    assert colours(drawn) == Counter({BLUE: words, GREY: 8 * sectors - words})
    assert f"{sectors} sector{'s' if sectors > 1 else ''}" in texts(drawn)


@pytest.mark.parametrize(
    ("words", "passes", "first"), [(32, 32, 1), (33, 1, 32), (34, 2, 16), (0, 1, 32)]
)
def test_banks_have_a_square_for_each_lane_and_the_first_pass_is_blue(words, passes, first):
    drawn = gpu_execution.draw_banks({"x": [4 * words * lane for lane in range(32)]}, title="t")
    panel, *squares = (patch for patch in drawn.axes[0].patches if isinstance(patch, Rectangle))
    assert colours(drawn) - Counter([to_hex(panel.get_facecolor()).upper()]) == +Counter(
        {BLUE: first, GREY: 32 - first}
    )
    for lane, square in enumerate(squares):
        across, down = (square.get_xy() - np.array(panel.get_xy())) / square.get_width()
        assert (across, down) == (pytest.approx(words * lane % 32), pytest.approx(lane))
    assert f"{passes} pass{'es' if passes > 1 else ''}" in texts(drawn)


def step(kernel, sectors, passes):
    [published] = [row for row in gpu_execution.TRANSPOSES if row.kernel == kernel]
    return gpu_execution.TransposeStep(sectors, passes, published)


def test_the_way_has_a_bar_as_long_as_each_time_and_bold_counts_where_they_change():
    steps = {
        "one line": step("Naive", 36, None),
        "tile": step("Tiled", 8, 32),
        "padded": step("TiledPadded", 8, 1),
    }
    drawn = gpu_execution.draw_way(steps, least_s=2.56e-3, title="t")
    bars = [patch for patch in drawn.axes[0].patches if isinstance(patch, Rectangle)]
    assert [bar.get_width() / bars[0].get_width() for bar in bars] == pytest.approx(
        [1, 8.6235 / 18.0645, 5.0724 / 18.0645]
    )
    [least] = drawn.axes[0].lines
    assert (least.get_xdata()[0] - bars[0].get_x()) / bars[0].get_width() == pytest.approx(
        2.56 / 18.0645
    )
    bold = [text.get_text() for text in drawn.axes[0].texts if text.get_fontweight() == "bold"]
    assert bold == ["8", "32", "1"]
    assert {"36", "–", "18.06 ms", "8.62 ms", "5.07 ms", "roofline, 2.56 ms (modelled)"} <= set(
        texts(drawn)
    )
    with pytest.raises(ValueError, match="no steps; give at least one TransposeStep"):
        gpu_execution.draw_way({}, least_s=1.0, title="t")
    with pytest.raises(TypeError, match="give a list of steps of the way"):
        gpu_execution.draw_way({"x": 1}, least_s=1.0, title="t")
    with pytest.raises(ValueError, match="least_s"):
        gpu_execution.draw_way(steps, least_s=0, title="t")
    with pytest.raises(TypeError, match="least_s"):
        gpu_execution.draw_way(steps, least_s="2", title="t")


@pytest.mark.parametrize("draw", [gpu_execution.draw_sectors, gpu_execution.draw_banks])
def test_requests_are_refused(draw):
    for given, words in (
        ({}, "no request"),
        ({"x": []}, "no addresses of 'x'"),
        ({"x": [2]}, "multiple of the 4"),
    ):
        with pytest.raises(ValueError, match=words):
            draw(given, title="t")
    with pytest.raises(TypeError, match="give a dictionary from names to byte addresses"):
        draw([0, 4], title="t")


def test_a_schedule_has_a_bar_to_issue_and_a_bar_to_wait_for_each_turn():
    schedule = run_scheduler(4, latency_cycles=19, rounds=4)
    drawn = gpu_execution.draw_schedules({"4 warps": schedule}, title="t", until=80)
    assert len(drawn.axes[0].collections) == 2 * len(schedule.turns)
    assert texts(drawn) == ["4 warps:\nbusy 40 %"]
    assert drawn.axes[0].get_xlim() == (0, 80)
    with pytest.raises(ValueError, match="no schedules; give at least one"):
        gpu_execution.draw_schedules({}, title="t", until=1)
    with pytest.raises(TypeError, match="give a list of schedules"):
        gpu_execution.draw_schedules({"x": 1}, title="t", until=1)


def test_the_figure_to_turn_computes_the_occupancy(monkeypatch):
    import math

    figure = {}
    monkeypatch.setattr(plotting, "explore", lambda **arguments: figure.update(arguments))
    gpu_execution.explore_occupancy()
    menu, *sliders = figure["inputs"]
    cards = gpu_execution.figures._GPUS
    assert set(menu.options) == set(cards)
    for number in range(300):
        card = list(cards)[number % len(cards)]
        threads, registers, kib = (
            slider.values[number * step % len(slider.values)]
            for slider, step in zip(sliders, (1, 37, 7), strict=True)
        )
        values = {
            "threads": threads,
            "registers": registers,
            "kib": kib,
            "ceil": math.ceil,
            "floor": math.floor,
            "gpu": type("Gpu", (), dict(menu.options[card])),
        }
        for name, formula in figure["formulas"].items():
            values[name] = eval(formula, values)
        fits = occupancy(cards[card], threads=threads, registers=registers, shared_bytes=1024 * kib)
        assert (values["fitting"], values["occupancy"]) == (
            fits.blocks,
            pytest.approx(100 * fits.warp_share),
        )


def test_the_figure_to_turn_is_displayed(capsys):
    gpu_execution.explore_occupancy()
    assert "the occupancy of a GPU over the registers of a thread" in capsys.readouterr().out
