"""The memory of a model by category and the working sets of its layers: the known networks to the
byte, and their figures.
"""

from __future__ import annotations

import pytest
from torch.optim import Adam

from helpers.models import LeNet
from helpers.studies.working_set import (
    draw_memory,
    draw_working_sets,
    profile_layer_alexnet,
    profile_mem,
)
from tests.helpers.memory.memory_models import LENET_BYTES, LENET_SAVED


def test_alexnet_layer_by_layer():
    profile = profile_layer_alexnet()
    convolutions = [row for row in profile.layers if row.kind == "Conv2d"]
    linears = [row for row in profile.layers if row.kind == "Linear"]
    assert [round(row.working_set_bytes / 1e6, 2) for row in convolutions] == [
        1.47,
        1.98,
        3.05,
        3.97,
        2.71,
    ]
    assert [round(row.working_set_bytes / 1e6, 2) for row in linears] == [151.06, 67.16, 16.41]
    assert profile.layers[0].working_set_bytes == 4 * (
        3 * 224 * 224 + 64 * 3 * 11 * 11 + 64 + 64 * 55 * 55
    )
    assert profile.parameter_bytes == 4 * 61_100_840
    assert profile.batch_bytes == 4 * 3 * 224 * 224


def test_working_sets_of_another_model():
    profile = profile_layer_alexnet(LeNet(), (1, 1, 28, 28))
    assert [row.working_set_bytes for row in profile.layers] == [
        sum(LENET_BYTES[layer]) for layer in ("conv1", "conv2", "fc1", "fc2", "fc3")
    ]


def test_the_pie_adds_up_and_its_peak_is_the_estimate():
    profile = profile_mem(LeNet(), (64, 1, 28, 28), optimizer=Adam)
    shares = {share.category: share for share in profile.shares}
    assert (
        sum(share.size_bytes for share in profile.shares)
        == profile.whole_bytes
        >= profile.peak_bytes
    )
    assert sum(share.whole_share for share in profile.shares) == pytest.approx(1)
    assert sum(share.at_peak_bytes for share in profile.shares) == profile.peak_bytes
    assert shares["parameter"].size_bytes == shares["gradient"].size_bytes == 4 * 41_282
    assert shares["optimizer state"].size_bytes == 2 * 4 * 41_282 + 4 * 10
    assert shares["saved activation"].size_bytes == 64 * sum(LENET_SAVED.values()) + 4
    assert shares["input"].size_bytes == 64 * 28 * 28 * 4


def test_each_profile_of_memory_is_a_pie():
    profiles = {"inference": profile_mem(LeNet(), training=False), "training": profile_mem(LeNet())}
    drawn = draw_memory(profiles, title="x")
    assert [axes.get_title() for axes in drawn.axes] == ["inference", "training"]
    for axes, profile in zip(drawn.axes, profiles.values(), strict=True):
        shares = [(wedge.theta2 - wedge.theta1) / 360 for wedge in axes.patches]
        assert shares == pytest.approx([part.whole_share for part in profile.shares], abs=1e-3)


def test_working_sets_are_bars():
    sets = profile_layer_alexnet(LeNet(), (1, 1, 28, 28))
    (axes,) = draw_working_sets(sets, title="x").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        row.layer for row in sets.layers
    ]
    parts = {
        part.get_label(): [patch.get_width() for patch in part.patches] for part in axes.containers
    }
    assert parts == {
        "parameters": [row.parameter_bytes for row in sets.layers],
        "inputs": [row.input_bytes for row in sets.layers],
        "outputs": [row.output_bytes for row in sets.layers],
    }
