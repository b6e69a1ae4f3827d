"""Threads and processes against one core, with steps that sleep, so that their times are known."""

import time

import pytest
import torch

from helpers.models import BasicFCModel
from helpers.studies.sgd_parallelism import _sharing as sharing


@pytest.fixture
def model():
    torch.manual_seed(0)
    return BasicFCModel(6, 24, 3, 2)


@pytest.fixture
def points():
    return torch.rand(20, 6), torch.arange(20) % 3


def sleep_a_share(rank, world_size, model, images, labels, steps):
    assert (len(images), len(labels)) == (12, 12)
    time.sleep(0.04 * steps / world_size)
    with torch.no_grad():
        next(iter(model.parameters())).add_(1 + 0.5 * (world_size - 1))


@pytest.mark.timed
def test_each_way_is_timed_per_step(two_ranks, model, points):
    threads, before = torch.get_num_threads(), [weight.clone() for weight in model.parameters()]
    found = sharing.measure_sharing(
        sleep_a_share, two_ranks, model, points, batch_size=12, steps=3, rounds=2
    )
    assert (found.width, found.batch_size, found.workers) == (24, 12, 2)
    assert found.alone_s >= 0.04  # per step, and a sleep never ends early
    assert 1.4 < found.gain_of_examples < 2.8
    assert 0.7 < found.gain_of_layers < 1.4
    assert found.largest_difference == pytest.approx(0.5)
    assert torch.get_num_threads() == threads
    assert all(torch.equal(was, now) for was, now in zip(before, model.parameters(), strict=True))


def test_threads_are_those_of_each_way(two_ranks, model, points):
    seen = []

    def note(rank, world_size, model, *_):
        seen.append((world_size, torch.get_num_threads()))  # a rank has a list of its own
        with torch.no_grad():
            next(iter(model.parameters())).fill_(torch.get_num_threads() + 10 * rank)

    found = sharing.measure_sharing(
        note, two_ranks, model, points, batch_size=12, steps=1, rounds=1
    )
    assert seen == [(1, 1), (1, 2)] * 2  # of the round that warms up as well
    # rank 0 computes with one thread, as the process alone does
    assert found.largest_difference == 0
