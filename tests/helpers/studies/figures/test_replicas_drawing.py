"""Replicas in a loop and in a stack: as many boxes as calls, and bars where replicas are
coupled.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from helpers.plotting._style import legible_colour
from helpers.studies import replicas
from helpers.studies._paper import SENDING

STAGES = ["layer", "tanh", "layer 2"]


def texts(drawn):
    return [text.get_text() for text in drawn.axes[0].texts]


def patches(drawn, kind):
    return [patch for patch in drawn.axes[0].patches if isinstance(patch, kind)]


def test_a_loop_has_a_box_a_call_and_a_stack_one_a_stage():
    drawn = replicas.draw_replicas(STAGES, replicas=4, title="Four nets")
    assert len(patches(drawn, FancyBboxPatch)) == 3 * 4 + 3
    assert len(patches(drawn, FancyArrowPatch)) == 2 * 2 * 4
    assert {"a loop: 12 calls", "a stack: 3 calls", "replica 3", "12"} <= set(texts(drawn))
    plt.close(drawn)


def test_a_coupling_is_a_bar_at_its_stage():
    drawn = replicas.draw_couplings(STAGES, {"tanh": "one norm"}, replicas=3, title="What couples")
    bars = [
        box
        for box in patches(drawn, FancyBboxPatch)
        if plt.matplotlib.colors.to_hex(box.get_facecolor()) == legible_colour(SENDING).lower()
    ]
    assert len(bars) == 1
    assert "one norm" in texts(drawn)
    plt.close(drawn)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="no stage"):
        replicas.draw_couplings(STAGES, {"clip": "one norm"}, title="")
    with pytest.raises(ValueError, match="replicas=1"):
        replicas.draw_replicas(STAGES, replicas=1, title="")
    with pytest.raises(TypeError, match="stages"):
        replicas.draw_replicas("layer", title="")


def test_epochs_end_with_the_shortest_run_and_show_the_long_gaps():
    slow = replicas.EpochTimes(2, ((1.0, 1.5), (2.5, 3.0)))
    fast = replicas.EpochTimes(1, ((1.0, 1.5), (1.502, 2.0)))
    drawn = replicas.draw_epochs({"slow": slow, "fast": fast}, title="Gaps")
    labels = {text.get_text() for text in drawn.axes[0].get_yticklabels()}
    assert {"slow", "fast"} <= labels
    assert drawn.axes[0].get_title(loc="left") == "Gaps"
    widths = [patch.get_width() for patch in drawn.axes[0].patches]
    assert len(widths) == 6  # a gap, a step and a cut gap; a gap and two steps
    assert sum(widths) == pytest.approx(2.0 + 2.0 - 0.002)
    plt.close(drawn)


def test_a_ladder_is_relative_to_its_first_program():
    times_s = {1: {"old": 2.0, "stack": 4.0}, 100: {"old": 6.0, "stack": 2.0}}
    drawn = replicas.draw_ladder(times_s, title="Speed", ylabel="times as fast as the old one")
    axes = drawn.axes[0]
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert lines["1 replica"] == [1, 0.5]
    assert lines["100 replicas"] == [1, 3]
    assert axes.get_ylabel() == "times as fast as the old one"
    with pytest.raises(ValueError, match="outer product"):
        replicas.draw_ladder({1: {"old": 2.0}, 10: {"outer product": 1.0}}, title="Speed")
    plt.close("all")


def test_a_changed_fit_is_marked():
    changes = torch.zeros(5, 4)
    changes[2, 1], changes[4, 3] = 0.5, 1e-12
    drawn = replicas.draw_changes(changes, title="Changes")
    assert texts(drawn).count("changed") == 1
    assert texts(drawn).count("same") == 19
    plt.close(drawn)


def test_clipping_has_a_line_for_each_name():
    drawn = replicas.draw_clipping({"own": [0.3, 0.1], "one norm": [0.3, 0.2]}, title="Clipping")
    assert [list(line.get_ydata()) for line in drawn.axes[0].lines] == [[0.3, 0.1], [0.3, 0.2]]
    plt.close(drawn)
