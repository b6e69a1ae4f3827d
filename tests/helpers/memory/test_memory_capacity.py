"""The largest batch: the search alone, on the estimate, and against a process that is really
limited.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from helpers import hardware, isolation
from helpers.memory import ModelError, estimate_peak_memory, fits, max_batch_size
from helpers.memory._peak import largest_below
from helpers.models import LeNet
from tests.properties import repeatable

BATCHES = 300
GROWTH = st.lists(st.tuples(st.integers(1, 80), st.integers(0, 1000)), min_size=1, max_size=8)


@repeatable(examples=150)
@given(st.integers(0, 2000), GROWTH, st.data(), st.integers(1, BATCHES))
def test_the_search_finds_the_last_that_fits(fixed, growth, data, smallest):
    """A peak grows by another number of bytes per example in each stretch of batches, by none in
    some.
    """
    steps = [step for length, step in growth for _ in range(length)]
    peaks = [
        *itertools.accumulate(itertools.islice(itertools.cycle(steps), BATCHES), initial=fixed)
    ]
    limit = data.draw(st.integers(0, peaks[-1] + 10) | st.sampled_from(peaks))
    fitting = [batch for batch in range(smallest, BATCHES + 1) if peaks[batch] <= limit]
    assert largest_below(peaks.__getitem__, limit, BATCHES, smallest=smallest) == max(
        fitting, default=0
    )


def test_the_search_takes_few_steps_on_a_straight_line():
    asked = []
    largest_below(lambda n: asked.append(n) or 10**6 + 12_345 * n, 10**9, 2**20)
    assert len(set(asked)) < 12


def test_the_result_fits_and_one_more_does_not():
    found = max_batch_size(LeNet(), (1, 1, 28, 28), 2_000_000, training=False)
    peaks = [
        estimate_peak_memory(LeNet(), (batch, 1, 28, 28), training=False).peak_bytes
        for batch in (found.batch_size, found.batch_size + 1)
    ]
    assert [found.peak_bytes, found.next_peak_bytes] == peaks
    assert peaks[0] <= 2_000_000 < peaks[1]
    assert fits(LeNet(), (found.batch_size, 1, 28, 28), 2_000_000, training=False)
    assert not fits(LeNet(), (found.batch_size + 1, 1, 28, 28), 2_000_000, training=False)


def test_nothing_fits_and_everything_fits():
    nothing = max_batch_size(nn.Linear(10, 10), (1, 10), 100)
    assert (nothing.batch_size, nothing.peak_bytes) == (0, None)
    everything = max_batch_size(nn.Linear(10, 10), (1, 10), 10**9, at_most=64)
    assert (everything.batch_size, everything.next_peak_bytes) == (64, None)


def normalised():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))


def test_a_model_that_cannot_run_one_example_begins_at_two():
    found = max_batch_size(normalised(), (32, 4), 100_000)
    assert found.smallest_batch_size == 2
    assert found.peak_bytes <= 100_000 < found.next_peak_bytes
    assert (
        found.next_peak_bytes
        == estimate_peak_memory(normalised(), (found.batch_size + 1, 4)).peak_bytes
    )
    assert max_batch_size(normalised(), (32, 4), 100).batch_size == 0
    assert max_batch_size(normalised(), (32, 4), 100_000, training=False).smallest_batch_size == 1


class Needs(nn.Module):
    """A layer for batches of at least ``batch``."""

    def __init__(self, batch):
        super().__init__()
        self.linear, self.batch = nn.Linear(4, 4), batch

    def forward(self, x):
        if len(x) < self.batch:
            raise ValueError(f"a batch of {len(x)}")
        return self.linear(x)


def test_a_model_that_runs_the_callers_batch_only_begins_there():
    found = max_batch_size(Needs(7), torch.zeros(7, 4), 10**6, at_most=50)
    assert (found.smallest_batch_size, found.batch_size) == (7, 50)


@pytest.mark.parametrize(
    ("given", "at_most", "named"), [(7, 50, 7), (1, 50, 1), (0, 50, 1), (7, 1, 1)]
)
def test_the_error_is_that_of_the_callers_batch(given, at_most, named):
    with pytest.raises(ModelError, match=f"a batch of {named} "):
        max_batch_size(Needs(99), (given, 4), 10**6, at_most=at_most)


def test_inputs_that_are_tensors_are_resized_together():
    model = nn.Bilinear(4, 4, 4)
    shapes = (torch.zeros(2, 4), torch.zeros(2, 4))
    found = max_batch_size(model, shapes, 100_000)
    assert found.peak_bytes <= 100_000 < found.next_peak_bytes
    with pytest.raises(ValueError, match="one common batch"):
        max_batch_size(model, (torch.zeros(2, 4), torch.zeros(3, 4)), 100_000)


class Masked(nn.Linear):
    """Stores less where the mask is all ones."""

    def forward(self, x, mask):
        return super().forward(x) if mask.all() else super().forward(x).exp().exp()


class Packed(nn.GRU):
    """Runs on sequences of the lengths given."""

    def forward(self, x, lengths, *, in_order):
        return super().forward(
            pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=in_order)
        )


@pytest.mark.parametrize(("mask", "batch"), [(torch.ones(3), 3), (torch.tensor([1.0, 1, 0]), 2)])
def test_a_mask_keeps_the_values_that_were_given(mask, batch):
    peaks = [
        estimate_peak_memory(
            Masked(8, 8), (torch.zeros(size, 8), torch.ones(size).bool())
        ).peak_bytes
        for size in (batch, batch + 1)
    ]
    found = max_batch_size(Masked(8, 8), (torch.zeros(3, 8), mask.bool()), peaks[1] - 1)
    assert (found.batch_size, found.peak_bytes) == (batch, peaks[0])


@pytest.mark.parametrize(("lengths", "in_order"), [([2, 7, 3], False), ([7, 3, 2], True)])
def test_lengths_are_repeated(lengths, in_order):
    def given(lengths):
        return {
            "x": torch.zeros(len(lengths), 7, 4),
            "lengths": torch.tensor(lengths),
            "in_order": in_order,
        }

    doubled = [length for length in lengths for _ in range(2)]
    peak = estimate_peak_memory(Packed(4, 4), given(doubled)).peak_bytes
    found = max_batch_size(Packed(4, 4), given(lengths), 10**6, at_most=6)
    assert (found.batch_size, found.peak_bytes) == (6, peak)


@pytest.mark.parametrize("memory_bytes", [-1, math.nan, math.inf, "-2 GB", True])
def test_a_limit_that_is_none(memory_bytes):
    with pytest.raises(
        (TypeError, ValueError), match=r"memory_bytes=.*; give a finite number, 0 or more"
    ):
        fits(nn.Linear(4, 4), (1, 4), memory_bytes)


@pytest.mark.parametrize("search", [fits, max_batch_size])
@pytest.mark.parametrize(
    ("text", "told"), [("24", "has no unit; write"), ("24 Gb", "write a capital B for bytes")]
)
def test_a_limit_in_words_needs_a_unit_of_bytes(search, text, told):
    with pytest.raises(ValueError, match=told):
        search(nn.Linear(4, 4), (1, 4), text)


def test_a_limit_may_be_a_text_with_its_unit():
    assert fits(nn.Linear(4, 4), (1, 4), "24 GiB").memory_bytes == 24 * 2**30
    assert max_batch_size(nn.Linear(4, 4), (1, 4), "1 kB").memory_bytes == 1000


@pytest.mark.parametrize(
    ("options", "card", "expected"),
    [({}, {"ram_bytes": 9000}, 9000), ({}, {"ram_bytes": 9000, "memory_limit_bytes": 700}, 700),
     ({"target": "cuda"}, {"ram_bytes": 9000, "gpus": (SimpleNamespace(memory_bytes=800),)}, 800)],
)  # fmt: skip
def test_without_a_limit_it_is_the_memory_of_the_device(monkeypatch, options, card, expected):
    absent = {"ram_bytes": None, "memory_limit_bytes": None, "gpus": ()}
    monkeypatch.setattr(hardware, "machine_card", lambda: SimpleNamespace(**{**absent, **card}))
    assert fits(nn.Linear(4, 4), (1, 4), **options).memory_bytes == expected
    assert max_batch_size(nn.Linear(4, 4), (1, 4), at_most=8, **options).memory_bytes == expected


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_limit_must_be_given_where_the_memory_is_not_known(monkeypatch, target):
    card = SimpleNamespace(ram_bytes=None, memory_limit_bytes=None, gpus=None)
    monkeypatch.setattr(hardware, "machine_card", lambda: card)
    with pytest.raises(
        ValueError, match=f"the memory of '{target}.*' is not known here; give memory_bytes"
    ):
        fits(nn.Linear(4, 4), (1, 4), target=target)


def test_a_fit_says_what_is_left():
    fit = fits(nn.Linear(4, 4), (1, 4), 10_000)
    assert fit
    assert fit.free_bytes == 10_000 - fit.peak_bytes
    assert not fits(nn.Linear(4, 4), (1, 4), 0)


WIDTH, DEPTH = 1000, 6


def deep_network():
    return nn.Sequential(nn.PReLU(), *(nn.Sigmoid() for _ in range(DEPTH)))


def one_step(batch):
    network, x = deep_network(), torch.zeros(batch, WIDTH)
    network(x).sum().backward()
    return True


@pytest.mark.slow
def test_a_process_with_that_much_memory_runs_the_batch_and_not_a_larger_one():
    """The limit counts all that the process takes, so the two runs stand 6 % to either side of
    it.
    """
    memory_bytes = 400_000_000
    found = max_batch_size(deep_network(), (1, WIDTH), memory_bytes)
    assert found.peak_bytes <= memory_bytes < found.next_peak_bytes
    below = isolation.run_limited(
        one_step, int(0.94 * found.batch_size), memory_bytes=memory_bytes, timeout_s=120
    )
    above = isolation.run_limited(
        one_step, int(1.06 * found.batch_size), memory_bytes=memory_bytes, timeout_s=120
    )
    assert below.status == "returned", below.message
    assert above.status == "out_of_memory", above.message
