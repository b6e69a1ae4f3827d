"""Bytes per layer: the known networks to the byte, sharing and tying, and the totals against the
timeline.
"""

from __future__ import annotations

import pytest
import torch
from memory_models import LENET_BYTES, LENET_SAVED, Adam, Residual, TinyLanguageModel
from torch import nn

from helpers.memory import estimate_peak_memory, profile_layer_mem
from helpers.models import LeNet


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
