"""Ensembles: in a loop, stacked and by processes the same networks come out; where each pays is
timed.
"""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

from helpers import timing
from helpers.studies.sgd_parallelism import _ensembles as ensembles, _problems as problems

# The two compute the same sums, in products of another shape: a few roundings of float32 (6e-8) a
# step.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def examples():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(96, 12, generator=generator)
    return problems.Examples(inputs, inputs[:, :3].argmax(1))


@pytest.fixture
def nets():
    return ensembles.make_ensemble(5, hidden=8, inputs=12, outputs=3, device="cpu")


class HerePool:
    """Ranks that run one after another in this process."""

    def __init__(self, world_size):
        self.world_size = world_size

    def run(self, function, *args):
        return [
            function(rank, self.world_size, *copy.deepcopy(args)) for rank in range(self.world_size)
        ]


def test_an_ensemble_differs_in_its_weights_and_leaves_the_random_numbers_alone():
    state = torch.get_rng_state()
    first, second = (
        ensembles.make_ensemble(3, hidden=4, inputs=6, outputs=2, device="cpu") for _ in range(2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert ensembles.largest_difference(first, second) == 0
    assert len({problems.weights_digest(model) for model in first}) == 3


@pytest.mark.parametrize("rate", [0.1, (0.01, 0.02, 0.05, 0.1, 0.2)])
def test_stacked_equals_the_loop_and_the_loop_is_sgd(rate, nets, examples):
    settings = {"rate": rate, "steps": 20, "batch_size": 32}
    before = [problems.weights_digest(net) for net in nets]
    loop = ensembles.train_in_loop(nets, examples, **settings)
    stacked = ensembles.train_stacked(nets, examples, **settings)
    assert ensembles.largest_difference(loop, stacked) < TOLERANCE
    assert ensembles.largest_difference(loop, nets) > 100 * TOLERANCE
    assert [problems.weights_digest(net) for net in nets] == before
    for place, net in enumerate(nets):
        own_rate = rate if isinstance(rate, float) else rate[place]
        optimizer = torch.optim.SGD(net.parameters(), lr=own_rate)
        for batch in itertools.islice(problems.batches_of(examples, 32), 20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(batch.inputs), batch.targets).backward()
            optimizer.step()
    assert ensembles.largest_difference(loop, nets) < TOLERANCE


def test_a_network_that_gets_its_neighbours_gradient_is_seen(nets, examples):
    """The planted mistake: rates in another order, so that each network takes another's step."""
    rates = (0.01, 0.02, 0.05, 0.1, 0.2)
    right = ensembles.train_in_loop(nets, examples, rate=rates, steps=5, batch_size=32)
    wrong = ensembles.train_stacked(nets, examples, rate=rates[::-1], steps=5, batch_size=32)
    assert ensembles.largest_difference(right, wrong) > 100 * TOLERANCE


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_processes_train_every_network_once_and_give_them_back_in_order(world_size, nets, examples):
    settings = {"rate": (0.01, 0.02, 0.05, 0.1, 0.2), "steps": 5, "batch_size": 32}
    loop = ensembles.train_in_loop(nets, examples, **settings)
    found, step_s = ensembles.train_in_processes(HerePool(world_size), nets, examples, **settings)
    assert [problems.weights_digest(net) for net in found] == [
        problems.weights_digest(net) for net in loop
    ]
    assert step_s > 0


def test_real_ranks_train_the_same_networks(four_ranks, nets, examples):
    settings = {"rate": 0.1, "steps": 5, "batch_size": 32}
    found, step_s = ensembles.train_in_processes(four_ranks, nets, examples, **settings)
    assert (
        ensembles.largest_difference(found, ensembles.train_in_loop(nets, examples, **settings))
        < TOLERANCE
    )
    assert step_s > 0


@pytest.mark.timed
def test_a_stack_is_measured_to_cost_no_more_than_two_loops_over_three():
    net_s = stack_s = math.inf
    for _ in range(12):  # the fastest of both: a busy machine adds time, and never takes any away
        measured = ensembles.measure_overheads(device="cpu")
        net_s, stack_s = min(net_s, measured.net_s), min(stack_s, measured.stack_s)
        if stack_s <= 2 * 3 * net_s:
            break
    assert 0 < stack_s <= 2 * 3 * net_s


def test_a_crossover_holds_what_was_timed_and_run_by_processes(examples):
    found = ensembles.sweep_crossover(
        examples, nets=3, sizes=((4, 16), (16, 96)), pool=HerePool(2), budget_s=0.05, device="cpu"
    )
    assert [(point.hidden, point.batch_size, point.nets) for point in found.points] == [
        (4, 16, 3),
        (16, 96, 3),
    ]
    for point in found.points:
        assert point.processes_ratio == pytest.approx(point.processes_s / point.loop_s)
        assert point.low_ratio <= point.stacked_ratio <= point.high_ratio
    bare = ensembles.sweep_crossover(
        examples, nets=2, sizes=((4, 16),), budget_s=0.02, device="cpu"
    ).points[0]
    assert (bare.modelled_ratio, bare.processes_s, bare.processes_ratio) == (None, None, None)


@pytest.mark.timed
def test_stacking_many_small_networks_pays_and_a_planted_loop_does_not(examples):
    nets = ensembles.make_ensemble(24, hidden=4, inputs=12, outputs=3, device="cpu")
    stacked, rates = ensembles.stack_weights(nets), torch.full((24,), 1e-6)
    batch = problems.select_examples(examples, torch.arange(16))
    calls = {
        "loop": lambda: ensembles.loop_step(nets, batch, rates),
        "stacked": lambda: ensembles.stacked_step(nets[0], stacked, batch, rates),
        "planted": lambda: ensembles.loop_step([*nets, *nets], batch, torch.cat([rates, rates])),
    }
    found = timing.compare(calls, budget_s=1.0)
    assert found.candidate("stacked").time_ratio < 0.7
    assert found.candidate("planted").time_ratio > 1.2


def test_what_cannot_be_stacked_or_trained_is_refused(nets, examples):
    settings = {"rate": 0.1, "steps": 1, "batch_size": 32}
    wide = ensembles.make_ensemble(1, hidden=9, inputs=12, outputs=3, device="cpu")
    with pytest.raises(ValueError, match="differ in their layers"):
        ensembles.train_stacked([*nets, *wide], examples, **settings)
    normed = [nn.Sequential(nn.Linear(12, 3), nn.BatchNorm1d(3)) for _ in range(2)]
    with pytest.raises(ValueError, match="holds buffers"):
        ensembles.train_stacked(normed, examples, **settings)
    nets[1].fc1.requires_grad_(False)
    with pytest.raises(ValueError, match="frozen"):
        ensembles.train_stacked(nets, examples, **settings)
    with pytest.raises(ValueError, match="2 rates for 5 models"):
        ensembles.train_in_loop(nets, examples, **(settings | {"rate": (0.1, 0.2)}))
    with pytest.raises(ValueError, match="models is empty"):
        ensembles.train_in_loop([], examples, **settings)
