"""Bytes per layer: the known networks to the byte, sharing and tying, and the totals against the
timeline.
"""

from __future__ import annotations

import pytest
import torch
from memory_models import Adam, Residual, TinyLanguageModel
from torch import nn

from helpers.memory import (
    estimate_peak_memory,
    profile_layer_alexnet,
    profile_layer_mem,
    profile_mem,
)
from helpers.models import LeNet

# in, weights and biases, out of one image: worked out by hand
LENET_BYTES = {
    "conv1": (3136, 624, 13824),
    "relu1": (13824, 0, 13824),
    "pool1": (13824, 0, 3456),
    "conv2": (3456, 9664, 4096),
    "pool2": (4096, 0, 1024),
    "fc1": (1024, 123360, 480),
    "fc2": (480, 29040, 240),
    "fc3": (240, 2440, 40),
}
# the first that saves a tensor counts it; a pool keeps its places as 8-byte integers
LENET_SAVED = {
    "conv1": 0,
    "relu1": 13824,
    "pool1": 2 * 3456,
    "conv2": 3456,
    "relu2": 4096,
    "pool2": 2 * 1024,
    "flatten": 0,
    "fc1": 1024,
    "relu3": 480,
    "fc2": 0,
    "relu4": 240,
    "fc3": 0,
}


@pytest.fixture(scope="module")
def lenet():
    return profile_layer_mem(LeNet(), (1, 1, 28, 28), optimizer=Adam)


def rows(profile):
    return {row.layer: row for row in profile.layers}


def test_lenet_to_the_byte(lenet):
    found = rows(lenet)
    assert list(found) == list(LENET_SAVED)
    for layer, expected in LENET_BYTES.items():
        row = found[layer]
        assert (row.input_bytes, row.weight_bytes + row.bias_bytes, row.output_bytes) == expected
    assert {layer: row.saved_bytes for layer, row in found.items()} == LENET_SAVED
    assert found["conv1"].bias_bytes == 24
    assert all(row.calls == 1 for row in lenet.layers)


def test_lenet_in_training_has_a_gradient_and_two_moments_a_parameter(lenet):
    for row in lenet.layers:
        parameters, tensors = row.weight_bytes + row.bias_bytes, 2 if row.weight_bytes else 0
        assert row.gradient_bytes == parameters
        # each parameter's step is one float
        assert row.optimizer_state_bytes == 2 * parameters + 4 * tensors
    assert lenet.parameter_bytes == lenet.gradient_bytes == 4 * 41_282
    assert lenet.saved_bytes == sum(LENET_SAVED.values())


def test_inference_saves_nothing():
    profile = profile_layer_mem(LeNet(), (1, 1, 28, 28), training=False)
    assert profile.saved_bytes == profile.gradient_bytes == profile.optimizer_state_bytes == 0
    assert rows(profile)["conv1"].workspace_bytes > 0


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (LeNet, (8, 1, 28, 28)),
        (Residual, (32, 64)),
        (lambda: nn.LSTM(16, 32, 2, batch_first=True), (4, 10, 16)),
        (lambda: nn.MultiheadAttention(32, 4, batch_first=True), (torch.zeros(4, 10, 32),) * 3),
    ],
)
def test_what_is_saved_is_what_is_alive_when_backward_begins(make, inputs):
    """Two roads: hooks on what autograd saves, and the lives of tensors from forward to
    backward.
    """
    line = estimate_peak_memory(make(), inputs).timeline
    begin = next(event for event, each in enumerate(line.events) if each.phase == "backward")
    alive = sum(
        tensor.size_bytes
        for tensor in line.tensors
        if tensor.category == "saved activation" and tensor.start_event < begin <= tensor.end_event
    )
    # the loss is alive, and saved by none
    assert profile_layer_mem(make(), inputs).saved_bytes == alive - 4


def test_checkpointing_saves_less_in_the_blocks():
    plain, recomputed = (
        profile_layer_mem(Residual(checkpointed=each), (32, 64)) for each in (False, True)
    )
    assert recomputed.saved_bytes < plain.saved_bytes / 4


def test_a_shared_module_is_one_row_with_its_calls():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.act, self.unused = nn.Linear(8, 8), nn.ReLU(), nn.Linear(3, 3)

        def forward(self, x):
            return self.act(self.linear(self.act(self.linear(x))))

    found = rows(profile_layer_mem(Twice(), (2, 8)))
    assert (found["linear"].calls, found["linear"].input_bytes) == (2, 2 * 2 * 8 * 4)
    assert (
        found["linear"].weight_bytes
        == found["linear"].gradient_bytes - found["linear"].bias_bytes
        == 256
    )
    assert (
        found["unused"].calls,
        found["unused"].weight_bytes,
        found["unused"].gradient_bytes,
    ) == (0, 36, 0)
    assert "" not in found


def test_a_tied_weight_is_counted_once():
    model = TinyLanguageModel()
    profile = profile_layer_mem(model, torch.zeros(2, 16, dtype=torch.long))
    assert profile.parameter_bytes == sum(4 * parameter.numel() for parameter in model.parameters())
    assert rows(profile)["embedding"].weight_bytes == 100 * 32 * 4
    assert rows(profile)["head"].weight_bytes == 0


def test_frozen_layers_have_no_gradient():
    model = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4))
    found = rows(profile_layer_mem(model, (2, 4), optimizer=Adam))
    assert found["0"].gradient_bytes == found["0"].optimizer_state_bytes == 0
    assert found["1"].gradient_bytes == 80


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
