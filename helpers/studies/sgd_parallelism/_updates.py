"""Parallelism over update iterations: gradients that are applied ``delay`` updates after the
weights they belong to.

A stale gradient is what every scheme that does not wait produces: a pipeline without flush, a
parameter server, threads on shared weights. Here staleness is a plain queue, the same in every run
bit for bit, so that delay and rate can be told apart from luck. And local SGD, whose workers train
alone for some steps and then average their weights. Lesson 04.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np
import torch
from torch import nn

from helpers import console
from helpers.checks import number, whole_number
from helpers.parallel._collectives import collective
from helpers.results import Record
from helpers.studies.sgd_parallelism import _problems as problems

_MOST_STEPS = 10**7
_MOST_DELAY = 1000  # of a polynomial whose roots are found in seconds


class StaleRun(Record):
    """One training with stale gradients: ``losses`` are those of each batch before its update was
    computed.

    ``first_loss`` and ``final_loss`` are over all examples, ``largest_loss`` is the largest of a
    batch. ``diverged`` is what :func:`problems.has_diverged` says; a loss that is not finite ends
    the run, so ``steps`` may be smaller than asked. ``weights`` is a hash of the final weights'
    bytes. Lesson 04.
    """

    delay: int
    rate: float
    steps: int
    updates: int
    first_loss: float
    final_loss: float
    largest_loss: float
    diverged: bool
    weights: str = field(repr=False)
    losses: tuple[float, ...] = field(repr=False)


def train_stale(
    model: nn.Module, data: Any, *, delay: int, rate: float, steps: int, batch_size: int | None = 64
) -> StaleRun:
    """Train a copy of ``model`` by SGD with gradients that are ``delay`` updates old; return the
    loss curve.

    Step t computes the gradient of batch t at the weights of now and puts it at the end of a queue;
    when more than ``delay`` stand in the queue the oldest is applied:
    ``w[t+1] = w[t] - rate * gradient(w[t-delay], batch[t-delay])``. So the first ``delay`` steps
    change nothing, ``steps - delay`` updates are made, and delay 0 is plain SGD, bit for bit.
    ``data`` is a pair of tensors (inputs, targets) or a loader, which is read once;
    ``batch_size=None`` takes all examples in every step (no noise). The loss is cross-entropy for
    whole-number targets, else half the squared error. The order of the examples (and what the model
    draws) is that of seed 0: the same call gives the same bits. ``model`` stays as it is.

    Raises TypeError or ValueError for an argument that is not accepted. Lesson 04.
    """
    delay, steps = whole_number("delay", delay, at_least=0), whole_number("steps", steps)
    training = problems.Training(model, data, rate=rate, batch_size=batch_size)
    device = training.examples.inputs.device
    waiting: deque = deque()
    updates = 0
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        for batch in itertools.islice(training.batches, steps):
            loss, slopes = problems.gradient(training.model, batch)
            if not training.note(loss):
                break
            waiting.append(slopes)
            if len(waiting) > delay:
                problems.descend(training.model, waiting.popleft(), training.rate)
                updates += 1
    return StaleRun(
        delay=delay,
        steps=len(training.losses),
        updates=updates,
        largest_loss=max(training.losses),
        **training.summary(),
    )


def stability_limit(delay: int) -> float:
    """Return the largest ``rate * curvature`` at which delayed gradient descent on a quadratic is
    stable.

    ``w[t+1] = w[t] - a w[t-delay]`` goes to 0 from every start if and only if
    ``0 < a < 2 sin(pi / (2 (2 delay + 1)))`` (equal to ``2 cos(delay pi / (2 delay + 1))``): 2
    without delay, 1 at delay 1, 0.618 at 2, about ``pi / (2 delay + 1)`` for a long one. Sources:
    Levin and May, "A note on difference-delay equations", Theoretical Population Biology 9 (1976);
    for delayed SGD, Yang et al., "PipeMare: Asynchronous Pipeline Parallel DNN Training" (2019),
    its lemma on fixed delays. Lesson 04.
    """
    delay = whole_number("delay", delay, at_least=0, at_most=_MOST_STEPS)
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))


def growth_factor(rate_times_curvature: float, *, delay: int) -> float:
    """Return by what factor the distance to the optimum of a quadratic changes a step in the long
    run; above 1: grows.

    The largest modulus of the roots of ``z^(delay+1) - z^delay + rate * curvature``, found
    numerically: it knows nothing of :func:`stability_limit`, and where it passes 1 is that limit.
    Lesson 04.
    """
    delay = whole_number("delay", delay, at_least=0, at_most=_MOST_DELAY)
    coefficients = np.zeros(delay + 2)
    coefficients[:2] = 1.0, -1.0
    coefficients[-1] += number("rate_times_curvature", rate_times_curvature, above=0)
    return float(np.abs(np.roots(coefficients)).max())


def descend_quadratic(curvature: float, *, rate: float, delay: int, steps: int) -> list[float]:
    """Return w[0] = 1 to w[``steps``] of delayed descent at ``rate`` on ``curvature * w^2 / 2``.

    >>> descend_quadratic(1.0, rate=0.5, delay=1, steps=3)
    [1.0, 1.0, 0.5, 0.0]

    The queue is that of :func:`train_stale`: nothing is applied in the first ``delay`` steps.
    Lesson 04.
    """
    curvature, rate = number("curvature", curvature, above=0), number("rate", rate, above=0)
    delay = whole_number("delay", delay, at_least=0)
    steps = whole_number("steps", steps, at_most=_MOST_STEPS)
    path = [1.0]
    for step in range(steps):
        slope = curvature * path[step - delay] if step >= delay else 0.0
        path.append(path[-1] - rate * slope)
    return path


# Local SGD: workers that train alone for some steps and then average their weights.


class LocalRun(Record):
    """A training by local SGD: how often the workers synchronised, what that moved, and how well
    they learnt.

    ``sent_bytes`` is what the busiest worker sends in all: counted in the messages of a ring
    all-reduce of the weights, one a synchronisation. They are not carried, because the workers run
    in one process. ``largest_distance`` is the greatest Euclidean distance of a worker's weights
    from their mean just before a synchronisation. ``losses`` are the workers' mean batch losses,
    step by step. Lesson 04.
    """

    workers: int
    synchronise_every: int
    rate: float
    steps: int
    synchronisations: int
    sent_bytes: int
    first_loss: float
    final_loss: float
    diverged: bool
    largest_distance: float
    weights: str = field(repr=False)
    losses: tuple[float, ...] = field(repr=False)


class LocalSweep(Record):
    """Trainings by local SGD that differ in how often they synchronise. Lesson 04."""

    runs: tuple[LocalRun, ...]


def train_local(
    model: nn.Module,
    data: Any,
    *,
    workers: int,
    synchronise_every: int,
    rate: float,
    steps: int,
    batch_size: int | None = 64,
) -> LocalRun:
    """Train copies of ``model`` on ``workers`` parts of the data and average them every
    ``synchronise_every`` steps.

    ``data`` is as in :func:`train_stale`, and ``rate`` is that of SGD. Worker i takes examples i,
    i + W, i + 2 W, ... and batches of ``batch_size`` of them, in the order of seed i. All take a
    step, and after each ``synchronise_every`` steps every worker goes on from the mean of their
    weights; the end synchronises too, so there are ``ceil(steps / synchronise_every)``
    synchronisations. Synchronising after every step is data parallelism: the mean of weights that
    one step changed is one step with the mean gradient. The workers run one after another in this
    process, so the same call gives the same bits. ``model`` stays as it is. After Stich, "Local SGD
    Converges Fast and Communicates Little" (2018).

    Raises TypeError or ValueError for an argument that is not accepted.
    """
    workers, steps = whole_number("workers", workers), whole_number("steps", steps)
    every = whole_number("synchronise_every", synchronise_every)
    training = problems.Training(model, data, rate=rate, batch_size=None)
    examples = training.examples
    if len(examples.inputs) < workers:
        raise ValueError(
            f"{len(examples.inputs)} examples are fewer than {workers} workers; give each at least "
            "one"
        )
    team = [training.model, *(problems.copy_for_training(model) for _ in range(workers - 1))]
    streams = []
    for worker in range(workers):
        shard = problems.Examples(*(part[worker::workers] for part in examples))
        streams.append(problems.batches_of(shard, batch_size, seed=worker))
    synchronisations, largest_distance = 0, 0.0
    for step in range(1, steps + 1):
        loss = 0.0
        for member, stream in zip(team, streams, strict=True):
            own_loss, slopes = problems.gradient(member, next(stream))
            problems.descend(member, slopes, training.rate)
            loss += own_loss / workers
        is_finite = training.note(loss)
        if step % every == 0 or step == steps or not is_finite:
            largest_distance = max(largest_distance, _average(team))
            synchronisations += 1
        if not is_finite:
            break
    weights = nn.utils.parameters_to_vector(problems.trainable_parameters(training.model))
    ring = collective(
        "all_reduce",
        "ring",
        world_size=workers,
        length=len(weights),
        element_bytes=weights.element_size(),
    )
    return LocalRun(
        workers=workers,
        synchronise_every=every,
        steps=len(training.losses),
        synchronisations=synchronisations,
        sent_bytes=synchronisations * max(rank.sent_bytes for rank in ring.ranks()),
        largest_distance=largest_distance,
        **training.summary(),
    )


def sweep_local(
    model: nn.Module,
    data: Any,
    *,
    workers: int,
    every: Sequence[int],
    rate: float,
    steps: int,
    batch_size: int | None = 64,
) -> LocalSweep:
    """Train as :func:`train_local` once for each interval in ``every``, from the same weights.

    ``model``, ``data``, ``workers``, ``rate``, ``steps``, ``batch_size`` and what is raised are
    those of :func:`train_local`. Lesson 04.
    """
    if not every:
        raise ValueError(
            "every is empty; give at least one number of steps between synchronisations"
        )
    examples = problems.examples_of(data, problems.device_of(problems.copy_for_training(model)))
    return LocalSweep(
        tuple(
            train_local(
                model,
                examples,
                workers=workers,
                synchronise_every=interval,
                rate=rate,
                steps=steps,
                batch_size=batch_size,
            )
            for interval in console.track(list(every), "intervals", unit="run")
        )
    )


def _average(team: Sequence[nn.Module]) -> float:
    """Give every member the mean of all weights; return the greatest distance that one had from
    it.
    """
    squares = [0.0] * len(team)
    with torch.no_grad():
        for weights in zip(*map(problems.trainable_parameters, team), strict=True):
            mean = torch.stack(weights).mean(0)
            for member, weight in enumerate(weights):
                squares[member] += float((weight - mean).square().sum())
                weight.copy_(mean)
    return math.sqrt(max(squares))
