"""Parallelism over update iterations: gradients that are applied ``delay`` updates after the weights they belong to.

A stale gradient is what every scheme that does not wait produces: a pipeline without flush, a parameter server, threads
on shared weights. Here staleness is a plain queue, the same in every run bit for bit, so that delay and rate can be
told apart from luck. Lesson 03.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from helpers import console
from helpers.checks import whole_number
from helpers.results import Result
from helpers.sources.problems import (
    Examples,
    batch_indices,
    chosen,
    descend,
    device_of,
    examples_of,
    gradient,
    loss_of,
    own_copy,
    positive,
    trainable,
    weights_digest,
    whole_loss,
)

_BLOWN_UP = 3  # times the first loss


@dataclass(frozen=True)
class StaleRun(Result):
    """One training with stale gradients: ``losses`` are those of each batch before its update was computed.

    ``first_loss`` and ``final_loss`` are over all examples, ``largest_loss`` is the largest of a batch. ``diverged``
    is what :func:`has_diverged` says; a loss that is not finite ends the run, so ``steps`` may be smaller than asked.
    ``weights`` is a hash of the final weights' bytes. Lesson 03.
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


@dataclass(frozen=True)
class StaleSweep(Result):
    """Trainings over every delay and rate, and beside them the rate that theory allows.

    ``curvature`` is the largest of the loss at the weights of the start; ``limits`` has the largest stable rate for
    each delay of a quadratic of that curvature. Lesson 03.
    """

    model: str
    batch_size: int | None
    curvature: float
    limits: tuple[StabilityLimit, ...]
    runs: tuple[StaleRun, ...]

    def run(self, delay: int, rate: float) -> StaleRun:
        """Return the training of one ``delay`` and ``rate``; ValueError where there is none."""
        for row in self.runs:
            if (row.delay, row.rate) == (delay, rate):
                return row
        known = ", ".join(f"({row.delay}, {row.rate:g})" for row in self.runs)
        raise ValueError(f"no run with delay {delay} and rate {rate}; there are (delay, rate) {known}")

    def grid(self, name: str = "final_loss") -> Any:
        """Return a DataFrame of a field of the runs: one row a delay, one column a rate."""
        import pandas as pd

        rows = [{"delay": row.delay, "rate": row.rate, name: getattr(row, name)} for row in self.runs]
        return pd.DataFrame(rows).pivot(index="delay", columns="rate", values=name)


@dataclass(frozen=True)
class StabilityLimit(Result):
    """The largest stable ``rate * curvature`` of delayed descent on a quadratic, and the rate that this allows.

    ``rate`` is None where the curvature is not above 0 and limits nothing. Lesson 03.
    """

    delay: int
    rate_times_curvature: float
    rate: float | None


def train_stale(
    model: nn.Module,
    data: Any,
    *,
    delay: int,
    rate: float,
    steps: int,
    batch_size: int | None = 64,
    seed: int = 0,
) -> StaleRun:
    """Train a copy of ``model`` by SGD with gradients that are ``delay`` updates old; return the loss curve.

    Step t computes the gradient of batch t at the weights of now and puts it at the end of a queue; when more than
    ``delay`` stand in the queue the oldest is applied: ``w[t+1] = w[t] - rate * gradient(w[t-delay], batch[t-delay])``.
    So the first ``delay`` steps change nothing, ``steps - delay`` updates are made, and delay 0 is plain SGD, bit for
    bit. ``data`` is a pair of tensors (inputs, targets) or a loader, which is read once; ``batch_size=None`` takes all
    examples in every step (no noise). The loss is cross-entropy for whole-number targets, else half the squared error.
    ``seed`` decides the order of the examples (and what the model draws): the same call gives the same bits. ``model``
    stays as it is.

    Raises TypeError or ValueError for an argument that is not accepted. Lesson 03.
    """
    delay = whole_number("delay", delay, at_least=0)
    steps = whole_number("steps", steps, at_least=1)
    seed = whole_number("seed", seed, at_least=0)
    rate = positive(rate, "rate")
    trained = own_copy(model)
    device = device_of(trained)
    examples = examples_of(data, device)
    first_loss = whole_loss(trained, examples)
    waiting: deque = deque()
    losses: list[float] = []
    updates = 0
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        batches = batch_indices(len(examples.inputs), batch_size, seed=seed)
        for _ in range(steps):
            loss, slopes = gradient(trained, chosen(examples, next(batches)))
            losses.append(loss)
            if not math.isfinite(loss):
                break
            waiting.append(slopes)
            if len(waiting) > delay:
                descend(trained, waiting.popleft(), rate)
                updates += 1
    final_loss = whole_loss(trained, examples)
    return StaleRun(
        delay=delay,
        rate=rate,
        steps=len(losses),
        updates=updates,
        first_loss=first_loss,
        final_loss=final_loss,
        largest_loss=max(losses),
        diverged=has_diverged(losses, first_loss, final_loss),
        weights=weights_digest(trained),
        losses=tuple(losses),
    )


def sweep_stale(
    model: nn.Module,
    data: Any,
    *,
    delays: Sequence[int] = (0, 1, 2, 4, 8, 16, 32),
    rates: Sequence[float] = (0.05, 0.2, 0.8),
    steps: int = 600,
    batch_size: int | None = 64,
    seed: int = 0,
) -> StaleSweep:
    """Train as :func:`train_stale` for every delay and rate, all from the same weights and on the same batches.

    Beside the runs stands what theory says of a quadratic with the curvature that the loss has at the start
    (:func:`largest_curvature`): a network's curvature changes while it learns, so there it is a guide and no proof.

    Raises what :func:`train_stale` raises. Lesson 03.
    """
    if not delays or not rates:
        raise ValueError("there is nothing to sweep: give at least one delay and one rate")
    delays = [whole_number("delays", delay, at_least=0) for delay in delays]
    rates = [positive(rate, "rates") for rate in rates]
    examples = examples_of(data, device_of(own_copy(model)))
    curvature = largest_curvature(model, examples)
    pairs = [(delay, rate) for rate in rates for delay in delays]
    shared = {"steps": steps, "batch_size": batch_size, "seed": seed}
    runs = [train_stale(model, examples, delay=delay, rate=rate, **shared)
            for delay, rate in console.track(pairs, "delays and rates", unit="run")]  # fmt: skip
    return StaleSweep(
        model=type(model).__name__,
        batch_size=batch_size,
        curvature=curvature,
        limits=tuple(_limit(delay, curvature) for delay in delays),
        runs=tuple(runs),
    )


def _limit(delay: int, curvature: float) -> StabilityLimit:
    limit = stability_limit(delay)
    return StabilityLimit(delay, limit, limit / curvature if curvature > 0 else None)


def has_diverged(losses: Sequence[float], first_loss: float, final_loss: float) -> bool:
    """Return True when a training blew up: a loss not finite or above 3 times the first, or the final above the first.

    A network that blew up may come back to the loss of guessing and stay there, so the end alone does not tell.
    For the library itself.
    """
    if not all(math.isfinite(loss) for loss in (*losses, final_loss)):
        return True
    return max(losses) > _BLOWN_UP * first_loss or final_loss > first_loss


def stability_limit(delay: int) -> float:
    """Return the largest ``rate * curvature`` at which delayed gradient descent on a quadratic is stable.

    ``w[t+1] = w[t] - a w[t-delay]`` goes to 0 from every start if and only if ``0 < a < 2 sin(pi / (2 (2 delay + 1)))``
    (equal to ``2 cos(delay pi / (2 delay + 1))``): 2 without delay, 1 at delay 1, 0.618 at 2, about ``pi / (2 delay +
    1)`` for a long one. Sources: Levin and May, "A note on difference-delay equations", Theoretical Population Biology
    9 (1976); for delayed SGD, Yang et al., "PipeMare: Asynchronous Pipeline Parallel DNN Training" (2019), its lemma on
    fixed delays. Lesson 03.
    """
    delay = whole_number("delay", delay, at_least=0)
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))


def growth_factor(rate_times_curvature: float, *, delay: int) -> float:
    """Return by what factor the distance to the optimum of a quadratic changes a step in the long run; above 1: grows.

    The largest modulus of the roots of ``z^(delay+1) - z^delay + rate * curvature``, found numerically: it knows
    nothing of :func:`stability_limit`, and where it passes 1 is that limit. Lesson 03.
    """
    delay = whole_number("delay", delay, at_least=0)
    coefficients = np.zeros(delay + 2)
    coefficients[0] = 1.0
    coefficients[1] -= 1.0
    coefficients[-1] += positive(rate_times_curvature, "rate_times_curvature")
    return float(np.abs(np.roots(coefficients)).max())


def descend_quadratic(curvature: float, *, rate: float, delay: int, steps: int, start: float = 1.0) -> list[float]:
    """Return w[0] to w[steps] of delayed descent on ``curvature * w^2 / 2``, started at ``start``.

    The queue is that of :func:`train_stale`: nothing is applied in the first ``delay`` steps. Lesson 03.
    """
    curvature, rate = positive(curvature, "curvature"), positive(rate, "rate")
    delay, steps = whole_number("delay", delay, at_least=0), whole_number("steps", steps, at_least=1)
    path = [float(start)]
    for step in range(steps):
        slope = curvature * path[step - delay] if step >= delay else 0.0
        path.append(path[-1] - rate * slope)
    return path


def largest_curvature(model: nn.Module, data: Any, *, iterations: int = 50, seed: int = 0) -> float:
    """Return the largest curvature of the loss over ``data`` at the model's weights, in loss over weight squared.

    Power iteration on Hessian-vector products finds the eigenvalue of the Hessian that is largest in size, from below;
    it stops when an iteration changes it by under one part in a million. The model stays as it is. Lesson 03.
    """
    copied = own_copy(model)
    examples = examples_of(data, device_of(copied))
    weights = trainable(copied)
    generator = torch.Generator().manual_seed(seed)
    vector = [torch.randn(weight.shape, generator=generator).to(weight) for weight in weights]
    curvature = 0.0
    for _ in range(whole_number("iterations", iterations, at_least=1)):
        length = math.sqrt(sum(float(part.square().sum()) for part in vector))
        if length == 0:
            return 0.0
        direction = [part / length for part in vector]
        vector = _hessian_times(copied, examples, direction)
        before, curvature = curvature, sum(float((a * b).sum()) for a, b in zip(direction, vector, strict=True))
        if abs(curvature - before) <= 1e-6 * abs(curvature):
            break
    return curvature


def _hessian_times(model: nn.Module, examples: Examples, direction: list[torch.Tensor]) -> list[torch.Tensor]:
    weights = trainable(model)
    with torch.enable_grad():
        loss = loss_of(model(examples.inputs), examples.targets)
        slopes = torch.autograd.grad(loss, weights, create_graph=True)
        along = sum((slope * part).sum() for slope, part in zip(slopes, direction, strict=True))
        return list(torch.autograd.grad(along, weights, materialize_grads=True))
