"""Updates that do not wait: stale gradients, a parameter server, shared weights, local SGD.

What is exact is exact.
"""

import copy
import itertools
import math
import threading

import numpy as np
import pytest
import torch
from torch import nn

from helpers import data
from helpers.models import BasicFCModel
from helpers.results import from_dict
from helpers.studies import sgd_parallelism
from helpers.studies.sgd_parallelism import (
    _problems as problems,
    _servers as servers,
    _updates as updates,
)

DELAYS = (0, 1, 2, 3, 5, 8, 16, 32)


@pytest.fixture(scope="module")
def digits():
    images, labels = next(iter(data.make_MNIST_loader(1000, split="test")))
    return problems.Examples(images, labels)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return BasicFCModel(hidden=16, layers=2)


@pytest.fixture(scope="module")
def quadratic():
    return problems.least_squares(64, 6, condition=4.0, noise=0.1, seed=3)


def sgd_by_torch(model, examples, *, rate, steps, batch_size):
    """The oracle: torch.optim.SGD on the same batches."""
    trained = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(trained.parameters(), lr=rate)
    losses = []
    for batch in itertools.islice(problems.batches_of(examples, batch_size), steps):
        loss = nn.functional.cross_entropy(trained(batch.inputs), batch.targets)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return trained, losses


def test_another_seed_gives_other_batches(digits):
    first, again, other = (next(problems.batches_of(digits, 32, seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)


def test_without_delay_it_is_sgd_of_torch_bit_for_bit(model, digits):
    settings = {"rate": 0.1, "steps": 40, "batch_size": 32}
    expected, losses = sgd_by_torch(model, digits, **settings)
    found = updates.train_stale(model, digits, delay=0, **settings)
    assert found.weights == problems.weights_digest(expected)
    assert found.losses == tuple(losses)
    assert updates.train_stale(model, digits, delay=1, **settings).weights != found.weights


def test_a_stale_run_is_repeatable_leaves_the_model_alone_and_counts_its_updates(model, digits):
    before, state = problems.weights_digest(model), torch.get_rng_state()
    settings = {"delay": 3, "rate": 0.1, "steps": 20, "batch_size": 32}
    first, second = (updates.train_stale(model, digits, **settings) for _ in range(2))
    assert first == second
    assert (first.steps, first.updates, len(first.losses)) == (20, 17, 20)
    assert problems.weights_digest(model) == before
    assert torch.equal(torch.get_rng_state(), state)

    assert from_dict(updates.StaleRun, first.to_dict()) == first


def test_nothing_is_applied_before_the_queue_is_full(model, digits):
    waiting = updates.train_stale(model, digits, delay=8, rate=0.1, steps=8, batch_size=32)
    assert (waiting.updates, waiting.weights) == (0, problems.weights_digest(model))
    assert waiting.final_loss == waiting.first_loss


@pytest.mark.parametrize("delay", DELAYS)
def test_the_limit_of_stability_is_where_the_roots_of_the_recurrence_leave_the_unit_circle(delay):
    limit = updates.stability_limit(delay)
    assert limit == pytest.approx(2 * math.cos(delay * math.pi / (2 * delay + 1)), rel=1e-12)
    assert (
        updates.growth_factor(0.999 * limit, delay=delay)
        < 1
        < updates.growth_factor(1.001 * limit, delay=delay)
    )
    # A limit that is one delay off, the likeliest slip, is seen.
    assert updates.growth_factor(1.001 * updates.stability_limit(delay + 1), delay=delay) < 1


@pytest.mark.parametrize("delay", [0, 1, 2, 8])
def test_delayed_descent_grows_by_the_roots_and_falls_below_the_limit(delay):
    for factor in (0.9, 1.1):
        product = factor * updates.stability_limit(delay)
        path = np.abs(
            updates.descend_quadratic(
                4.0, rate=product / 4, delay=delay, steps=4000 if factor < 1 else 400
            )
        )
        assert bool(path[-50:].max() < 1e-6) is (factor < 1)
        growth = updates.growth_factor(product, delay=delay)
        if factor > 1:  # from maximum to maximum: the path swings
            assert (path[300:].max() / path[:101].max()) ** (1 / 300) == pytest.approx(
                growth, rel=0.02
            )


@pytest.mark.parametrize("delay", [0, 1, 4])
def test_least_squares_obeys_the_limit_on_both_sides(delay, quadratic):
    limit = updates.stability_limit(delay) / quadratic.curvatures[0]
    shared = {"delay": delay, "steps": 600, "batch_size": None}
    below, above = (
        updates.train_stale(quadratic.model(), quadratic.examples, rate=factor * limit, **shared)
        for factor in (0.9, 1.1)
    )
    assert below.final_loss == pytest.approx(quadratic.optimum_loss, rel=1e-6)
    assert not below.diverged
    assert above.diverged


def test_delayed_training_of_least_squares_follows_the_path_of_its_quadratic():
    """One weight, no noise: the weights must be those of the recurrence, step by step."""
    problem = problems.least_squares(32, 1, condition=1, seed=2)
    settings = {"rate": 0.3, "delay": 2}
    run = updates.train_stale(
        problem.model(), problem.examples, steps=30, batch_size=None, **settings
    )
    start = -float(problem.optimum[0])
    distances = updates.descend_quadratic(1.0, steps=30, **settings)
    assert run.losses == pytest.approx(
        [(start * distance) ** 2 / 2 for distance in distances[:30]], rel=1e-9, abs=1e-15
    )


def test_the_known_optimum_is_the_one_numpy_finds(quadratic):
    inputs, targets = (part.numpy() for part in quadratic.examples)
    weights, squares, _, _ = np.linalg.lstsq(inputs, targets, rcond=None)
    assert quadratic.optimum.numpy() == pytest.approx(weights[:, 0], rel=1e-9)
    assert quadratic.optimum_loss == pytest.approx(squares[0] / (2 * len(inputs)), rel=1e-9)
    eigenvalues = np.linalg.eigvalsh(inputs.T @ inputs / len(inputs))[::-1]
    assert quadratic.curvatures == pytest.approx(eigenvalues, rel=1e-9)


@pytest.mark.parametrize(("losses", "first", "final", "expected"), [
    ([1.0, 0.5], 1.0, 0.5, False), ([1.0, 2.9], 1.0, 0.9, False), ([1.0, 3.1], 1.0, 0.9, True),
    ([1.0], 1.0, 1.1, True), ([1.0, math.nan], 1.0, 0.5, True), ([1.0], 1.0, math.inf, True),
])  # fmt: skip
def test_what_counts_as_blown_up(losses, first, final, expected):
    assert problems.has_diverged(losses, first, final) is expected


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_server_of_equal_workers_is_the_queue_of_their_delay_bit_for_bit(workers, model, digits):
    shared = {"rate": 0.1}
    run = servers.simulate_server(model, digits, compute_s=[0.5] * workers, updates=24, **shared)
    queue = updates.train_stale(model, digits, delay=workers - 1, steps=24 + workers - 1, **shared)
    assert run.weights == queue.weights
    assert run.losses == queue.losses[:24]
    assert run.staleness_counts == {
        **dict.fromkeys(range(workers - 1), 1),
        workers - 1: 24 - workers + 1,
    }
    assert run.simulated_s == 0.5 * 24 / workers
    assert [share.updates for share in run.shares] == [24 // workers] * workers


def test_the_slow_worker_has_the_stalest_gradients(model, digits):
    """Three workers, one three times as slow: six updates of the others come between its fetch and
    its update.
    """
    run = servers.simulate_server(model, digits, compute_s=[1.0, 1.0, 3.0], rate=0.05, updates=70)
    slow = run.shares[2]
    assert (slow.updates, slow.mean_staleness) == (10, 6)
    assert run.largest_staleness == 6
    assert run.final_loss < run.first_loss
    # Six updates of the two fast ones and one of the slow one in three seconds.
    assert run.simulated_s == 30


@pytest.mark.parametrize("run", [servers.run_server, servers.run_hogwild])
def test_real_threads_make_every_update_learn_and_alone_are_plain_sgd(run, model, digits):
    shared = {"rate": 0.05, "updates": 60}
    plain = updates.train_stale(model, digits, delay=0, rate=0.05, steps=60)
    alone = run(model, digits, workers=1, **shared)
    assert (alone.weights, alone.staleness_counts) == (plain.weights, {0: 60})
    several = run(model, digits, workers=3, **shared)
    assert several.updates == sum(share.updates for share in several.shares) == 60
    assert sum(several.staleness_counts.values()) == 60
    assert several.final_loss < several.first_loss
    assert not several.diverged
    assert (
        from_dict(servers.ServerRun, several.to_dict()).staleness_counts == several.staleness_counts
    )


@pytest.mark.parametrize(
    ("run", "updates_made"), [(servers.run_server, 3), (servers.run_hogwild, 4)]
)
def test_staleness_is_counted_while_another_worker_computes(
    run, updates_made, model, digits, monkeypatch
):
    """Each of two workers is held, twice, until both have fetched: of the first two updates one is
    one update stale.
    """
    both = threading.Barrier(2, timeout=60)
    calls = threading.local()
    plain = servers.gradient

    def held(replica, batch):
        calls.made = getattr(calls, "made", 0) + 1
        if calls.made <= 2:
            both.wait()
        return plain(replica, batch)

    monkeypatch.setattr(servers, "gradient", held)
    found = run(model, digits, workers=2, rate=0.05, updates=updates_made)
    assert found.updates == updates_made
    assert found.staleness_counts[0] >= 1
    assert found.staleness_counts[1] >= 1


def test_an_exception_in_a_worker_and_a_loss_that_is_not_finite_end_the_run(
    model, digits, monkeypatch
):
    blown = servers.run_server(model, digits, workers=2, rate=1e30, updates=50)
    assert blown.diverged
    assert blown.updates < 50
    assert servers.run_hogwild(model, digits, workers=2, rate=1e30, updates=50).diverged

    def fails(replica, batch):
        raise RuntimeError("planted")

    monkeypatch.setattr(servers, "gradient", fails)
    with pytest.raises(RuntimeError, match="planted"):
        servers.run_server(model, digits, workers=2, rate=0.1, updates=4)


def test_hogwild_writes_one_memory_and_a_server_copies(model, digits):
    run = servers._Run(model, digits, rate=0.1)
    own, shared = (
        problems.trainable_parameters(run.sharing_replica()),
        problems.trainable_parameters(run.model),
    )
    assert [a.data_ptr() for a in own] == [b.data_ptr() for b in shared]
    assert not {a.data_ptr() for a in own} & {
        b.data_ptr() for b in problems.trainable_parameters(model)
    }


def test_interleavings_are_counted_as_by_hand():
    two = servers.interleave_additions(2)
    assert (two.interleavings, two.lossless_share) == (6, 1 / 3)
    assert [(row.final_value, row.lost_updates, row.interleavings) for row in two.outcomes] == [
        (1, 1, 4),
        (2, 0, 2),
    ]
    for workers in (1, 3, 4):
        found = servers.interleave_additions(workers)
        assert found.interleavings == math.factorial(2 * workers) // 2**workers
        # Nothing is lost in the serial orders alone.
        assert found.outcomes[-1].interleavings == math.factorial(workers)
    with pytest.raises(ValueError, match="at most 4"):
        servers.interleave_additions(5)


@pytest.mark.parametrize("how", servers.HOW)
def test_a_lock_loses_nothing_and_one_worker_needs_none(how):
    for workers, with_lock in ((1, False), (3, True)):
        found = servers.count_lost_updates(
            workers, 30, how=how, with_lock=with_lock, elements=20_000
        )
        assert (found.additions, found.lost_additions) == (workers * 30 * 20_000, 0)
    raced = servers.count_lost_updates(3, 30, how=how, elements=20_000)
    # which is luck; each element got the 30 of one worker at least
    assert 0 <= raced.lost_additions <= 2 * 30 * 20_000


def test_a_lost_addition_is_seen(monkeypatch):
    """Both workers read before either writes: everything that one of them added is lost."""
    both = threading.Barrier(2, timeout=60)
    copy_ = torch.Tensor.copy_

    def late(self, source):
        both.wait()
        return copy_(self, source)

    monkeypatch.setattr(torch.Tensor, "copy_", late)
    found = servers.count_lost_updates(2, 1, how="read, then write", elements=10)
    assert (found.lost_additions, found.lost_share) == (10, 0.5)


@pytest.mark.parametrize(
    ("steps", "every", "expected"), [(60, 1, 60), (60, 10, 6), (60, 7, 9), (5, 100, 1), (60, 60, 1)]
)
def test_local_sgd_synchronises_exactly_so_often(steps, every, expected, quadratic):
    run = updates.train_local(
        quadratic.model(),
        quadratic.examples,
        workers=4,
        synchronise_every=every,
        rate=0.1,
        steps=steps,
        batch_size=4,
    )
    assert run.synchronisations == expected
    # Chunks of 2, 2, 1 and 1 weights of 8 bytes: in each half of the ring a worker sends all but
    # one of them, and the busiest leaves out one of 1 weight twice.
    assert run.sent_bytes == expected * (5 + 5) * 8


def test_synchronising_every_step_is_one_step_on_the_whole_batch(quadratic):
    """Four workers on a quarter each, all of it every step: gradient descent on everything."""
    settings = {"rate": 0.5, "steps": 25, "batch_size": None}
    run = updates.train_local(
        quadratic.model(), quadratic.examples, workers=4, synchronise_every=1, **settings
    )
    plain = updates.train_stale(quadratic.model(), quadratic.examples, delay=0, **settings)
    assert run.losses == pytest.approx(plain.losses, rel=1e-9)
    rarely = updates.train_local(
        quadratic.model(), quadratic.examples, workers=4, synchronise_every=25, **settings
    )
    assert rarely.losses != pytest.approx(plain.losses, rel=1e-3)
    # Left alone, each goes to the optimum of its own quarter: their mean is not that of the whole.
    assert rarely.final_loss > 1.2 * run.final_loss
    assert rarely.largest_distance > 0


def test_one_local_worker_is_plain_sgd_bit_for_bit(model, digits):
    settings = {"rate": 0.1, "steps": 20, "batch_size": 32}
    run = updates.train_local(model, digits, workers=1, synchronise_every=5, **settings)
    assert run.weights == updates.train_stale(model, digits, delay=0, **settings).weights
    assert (run.sent_bytes, run.largest_distance) == (0, 0)


def test_local_sgd_learns_the_digits_with_a_fortieth_of_the_synchronisations(model, digits):
    sweep = updates.sweep_local(
        model, digits, workers=4, every=(1, 40), rate=0.05, steps=120, batch_size=16
    )
    often, rarely = sweep.runs
    assert (often.synchronisations, rarely.synchronisations) == (120, 3)
    assert max(often.final_loss, rarely.final_loss) < 0.5 * often.first_loss
    assert len(sweep.table()) == 2


def test_a_loader_gives_the_same_as_its_tensors_and_keeps_its_order():
    loader = data.make_MNIST_loader(100, seed=4)
    state = loader.generator.get_state()
    examples = problems.examples_of(loader, torch.device("cpu"))
    assert examples.inputs.shape == (4000, 1, 28, 28)
    assert torch.equal(loader.generator.get_state(), state)


@pytest.mark.parametrize(("arguments", "problem"), [
    ({"delay": -1}, "delay=-1 is too small"),
    ({"rate": 0}, "rate=0; give a finite number above 0"),
    ({"rate": "fast"}, "rate='fast' is text"),
    ({"steps": 0}, "steps=0 is too small"),
    ({"batch_size": 65}, "batch_size=65 is above the 64 examples"),
])  # fmt: skip
def test_wrong_numbers_are_refused(arguments, problem, quadratic):
    given = {"delay": 0, "rate": 0.1, "steps": 1, "batch_size": None} | arguments
    with pytest.raises((TypeError, ValueError), match=problem):
        updates.train_stale(quadratic.model(), quadratic.examples, **given)


def test_wrong_models_and_data_are_refused(quadratic, model):
    settings = {"delay": 0, "rate": 0.1, "steps": 1}
    with pytest.raises(TypeError, match="model is the class BasicFCModel"):
        updates.train_stale(BasicFCModel, quadratic.examples, **settings)
    with pytest.raises(ValueError, match="no trainable parameter"):
        updates.train_stale(nn.ReLU(), quadratic.examples, **settings)
    with pytest.raises(TypeError, match="give a pair of tensors"):
        updates.train_stale(model, [1, 2], **settings)
    with pytest.raises(ValueError, match="shapes"):
        updates.train_stale(model, (torch.zeros(3, 784), torch.zeros(2)), **settings)
    with pytest.raises(ValueError, match="give targets of the outputs' shape"):
        updates.train_stale(
            quadratic.model(),
            (quadratic.examples.inputs, quadratic.optimum.repeat(11)[:64]),
            **settings,
        )
    with pytest.raises(ValueError, match="compute_s is empty"):
        servers.simulate_server(model, quadratic.examples, compute_s=(), rate=0.1, updates=1)
    with pytest.raises(ValueError, match=r"condition=0\.5; give a finite number, 1 or more"):
        problems.least_squares(8, 2, condition=0.5)
    assert {"train_stale", "run_hogwild", "train_local"} <= set(dir(sgd_parallelism))
    assert sgd_parallelism.train_stale is updates.train_stale
