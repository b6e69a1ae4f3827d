"""The timeline: the table, the levels and the peak say the same, and results survive JSON."""

from __future__ import annotations

import pytest
import torch
from memory_models import Adam
from torch import nn

from helpers.memory import (
    CATEGORIES,
    LiveTensor,
    MemoryTimeline,
    PeakEstimate,
    estimate_peak_memory,
)
from helpers.memory._allocator import record_allocations, usage
from helpers.models import LeNet
from helpers.results import from_dict


@pytest.fixture(scope="module")
def estimate():
    return estimate_peak_memory(LeNet(), (16, 1, 28, 28), optimizer=Adam)


def test_the_live_bytes_are_the_sum_over_the_table(estimate):
    table, events = estimate.timeline.table(), estimate.timeline.event_table()
    assert list(table.columns) == [
        "name",
        "category",
        "layer",
        "size_bytes",
        "start_event",
        "end_event",
    ]
    for event, live_bytes in enumerate(events.live_bytes):
        alive = table[(table.start_event <= event) & (table.end_event >= event)]
        assert alive.size_bytes.sum() == live_bytes
    assert events.live_bytes.max() == estimate.peak_bytes == events.live_bytes[estimate.peak_event]
    assert events.operator[estimate.peak_event] == estimate.operator


def test_what_is_alive_at_the_peak_adds_up(estimate):
    assert sum(estimate.category_bytes.values()) == estimate.peak_bytes
    assert sum(group.size_bytes for group in estimate.alive) == estimate.peak_bytes
    assert sum(group.peak_share for group in estimate.alive) == pytest.approx(1)
    assert (
        sum(tensor.size_bytes for tensor in estimate.timeline.alive_at(estimate.peak_event))
        == estimate.peak_bytes
    )
    assert set(estimate.category_bytes) <= set(CATEGORIES)
    assert sum(group.tensors for group in estimate.alive) == len(
        estimate.timeline.alive_at(estimate.peak_event)
    )


def test_phases_follow_each_other_and_lives_fit_into_them(estimate):
    phases = [event.phase for event in estimate.timeline.events]
    assert list(dict.fromkeys(phases)) == ["forward", "loss", "backward", "optimizer"]
    begin, end = phases.index("backward"), phases.index("optimizer")
    for tensor in estimate.timeline.tensors:
        assert 0 <= tensor.start_event <= tensor.end_event < len(phases)
        if tensor.category == "saved activation":
            assert tensor.start_event < begin <= tensor.end_event
        if tensor.category == "gradient":
            assert begin <= tensor.start_event < end
            assert tensor.end_event == len(phases) - 1
        if tensor.category in ("parameter", "input", "optimizer state"):
            assert (tensor.start_event, tensor.end_event) == (0, len(phases) - 1)


def test_backward_operators_belong_to_their_layers(estimate):
    layers = [
        event.layer
        for event in estimate.timeline.events
        if event.operator == "convolution_backward"
    ]
    assert layers == ["conv2", "conv1"]
    gradients = {
        (tensor.layer, tensor.name): tensor.size_bytes
        for tensor in estimate.timeline.tensors
        if tensor.category == "gradient"
    }
    assert gradients["conv1", "weight"] == 600
    assert len(gradients) == 10


def test_a_model_that_is_one_module_in_inference():
    line = estimate_peak_memory(nn.ReLU(), (2, 3), training=False).timeline
    assert line.tensors == (
        LiveTensor("input 0", "input", "", 24, 0, 0),
        LiveTensor("relu", "activation", "", 24, 0, 0),
    )


def test_results_survive_json_and_print(estimate):
    assert from_dict(PeakEstimate, estimate.to_dict()) == estimate
    assert isinstance(estimate.timeline, MemoryTimeline)
    text = str(estimate)
    assert "peak" in text
    assert "workspace" in text
    assert len(text.splitlines()) < 60
    assert "<table" in estimate._repr_html_()


@pytest.mark.parametrize(
    ("options", "said"),
    [({}, ["the loss is the sum of the outputs", "no optimizer", "one forward and backward pass"]),
     ({"loss": torch.mean, "optimizer": lambda parameters: Adam(parameters)},
      ["the loss is the one given", "the optimizer is the one given, in its second step"]),
     ({"optimizer": torch.optim.SGD}, ["the optimizer is SGD, in its second step"]),
     ({"autocast": torch.bfloat16}, ["parameters in float32, autocast to bfloat16"]),
     ({"training": False}, ["inference without gradients on (2, 4); parameters in float32"])],
)  # fmt: skip
def test_an_estimate_says_which_step_it_is_of(options, said):
    text = estimate_peak_memory(nn.Linear(4, 4), (2, 4), **options).step
    assert [part for part in said if part not in text] == []
    assert ("optimizer" in text) == options.get("training", True)


def test_usage_of_known_changes():
    assert (usage([]).peak_bytes, usage([]).kept_bytes) == (0, 0)
    known = usage([10, 5, -10, 20, -5])
    assert (known.peak_bytes, known.kept_bytes) == (25, 20)


def test_a_record_sees_each_allocation_and_release_in_its_window():
    with record_allocations() as record:
        record.mark("made")
        first = torch.empty(100, dtype=torch.uint8)
        second = torch.empty(50, dtype=torch.uint8)
        record.mark("dropped")
        del first
        record.mark("rest")
        del second
    assert record.window("made") == [100, 50]
    assert record.window("dropped") == [-100]
    assert record.window("rest") == [-50]
