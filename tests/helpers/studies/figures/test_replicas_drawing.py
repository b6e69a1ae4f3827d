"""Replicas in a loop and in a stack: as many boxes as calls, and bars where replicas are coupled."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

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
        if plt.matplotlib.colors.to_hex(box.get_facecolor()) == SENDING.lower()
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
