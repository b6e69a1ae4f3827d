"""Drawings of what the profilers return: every byte and operation of the result is on its figure,
once.
"""

from __future__ import annotations

from torch import nn
from torch.optim import Adam

from helpers import plotting
from helpers.memory import profile_layer_mem
from helpers.models import LeNet
from helpers.operations import profile_ops


def bars(figure) -> dict[str, float]:
    """Return the length of each bar of stacked parts, by its layer."""
    axes = figure.axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    lengths = dict.fromkeys(names, 0.0)
    for part in axes.containers:
        for name, patch in zip(names, part.patches, strict=True):
            lengths[name] += patch.get_width()
    return lengths


def shares(axes) -> list[float]:
    return [round((wedge.theta2 - wedge.theta1) / 360, 4) for wedge in axes.patches]


def test_the_working_set_of_each_layer_is_a_bar():
    profile = profile_layer_mem(LeNet(), training=False)
    lengths = bars(plotting.draw_layer_memory(profile, training=False, title="x"))
    assert lengths["fc1"] == 4 * (256 + 256 * 120 + 120 + 120)
    assert lengths["relu1"] == 2 * 4 * 6 * 24 * 24
    assert sum(lengths.values()) == profile.parameter_bytes + sum(
        row.input_bytes + row.output_bytes for row in profile.layers
    )


def test_what_training_keeps_has_gradients_and_an_optimizers_state():
    profile = profile_layer_mem(LeNet(), optimizer=Adam)
    drawn = plotting.draw_layer_memory(profile, training=True, title="x")
    legend = [text.get_text() for text in drawn.axes[0].get_legend().get_texts()]
    assert legend == ["parameters", "gradients", "optimizer state", "saved for backward"]
    kept = (
        profile.parameter_bytes
        + profile.gradient_bytes
        + profile.optimizer_state_bytes
        + profile.saved_bytes
    )
    assert sum(bars(drawn).values()) == kept
    assert "flatten" not in bars(drawn)


def test_operations_are_counted_in_one_layer_each_and_small_ones_are_together():
    profile = profile_ops(
        nn.Sequential(nn.Sequential(nn.Linear(90, 10, bias=False)), nn.ReLU()), (1, 90)
    )
    inference, _ = plotting.draw_operations(profile).axes
    assert shares(inference) == [round(1800 / 1810, 4), round(10 / 1810, 4)]


def test_the_parts_of_a_layer_have_the_same_colours_in_each_drawing():
    profile = profile_layer_mem(LeNet())
    first = [
        plotting.draw_layer_memory(profile, training=trains, title="x").axes[0]
        for trains in (False, True)
    ]
    assert len({axes.containers[0].patches[0].get_facecolor() for axes in first}) == 1
