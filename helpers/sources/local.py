"""Local SGD: workers that train alone for some steps and then average their weights. Lesson 03."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from helpers import console
from helpers.checks import whole_number
from helpers.parallel.collectives import collective
from helpers.results import Result
from helpers.sources.problems import (
    Examples,
    batch_indices,
    chosen,
    descend,
    device_of,
    examples_of,
    gradient,
    own_copy,
    parameter_bytes,
    positive,
    trainable,
    weights_digest,
    whole_loss,
)
from helpers.sources.updates import has_diverged


@dataclass(frozen=True)
class LocalRun(Result):
    """A training by local SGD: how often the workers synchronised, what that moved, and how well they learnt.

    ``sent_bytes`` is what the busiest worker sends in all: counted in the messages of a ring all-reduce of the weights,
    one a synchronisation. They are not carried, because the workers run in one process. ``largest_distance`` is the
    greatest Euclidean distance of a worker's weights from their mean just before a synchronisation. ``losses`` are the
    workers' mean batch losses, step by step. Lesson 03.
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


@dataclass(frozen=True)
class LocalSweep(Result):
    """Trainings by local SGD that differ in how often they synchronise. Lesson 03."""

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
    seed: int = 0,
) -> LocalRun:
    """Train copies of ``model`` on ``workers`` parts of the data and average them every ``synchronise_every`` steps.

    Worker i takes examples i, i + W, i + 2 W, ... and batches of ``batch_size`` of them. All take a step, and after
    each ``synchronise_every`` steps every worker goes on from the mean of their weights; the end synchronises too, so
    there are ``ceil(steps / synchronise_every)`` synchronisations. Synchronising after every step is data parallelism:
    the mean of weights that one step changed is one step with the mean gradient. The workers run one after another in
    this process, so the same call gives the same bits. ``model`` stays as it is. After Stich, "Local SGD Converges
    Fast and Communicates Little" (2018).

    Raises TypeError or ValueError for an argument that is not accepted. For the library itself.
    """
    workers = whole_number("workers", workers, at_least=1)
    every = whole_number("synchronise_every", synchronise_every, at_least=1)
    steps = whole_number("steps", steps, at_least=1)
    rate, seed = positive(rate, "rate"), whole_number("seed", seed, at_least=0)
    team = [own_copy(model) for _ in range(workers)]
    examples = examples_of(data, device_of(team[0]))
    if len(examples.inputs) < workers:
        raise ValueError(f"{len(examples.inputs)} examples are fewer than {workers} workers; give each at least one")
    shards = [Examples(*(part[worker::workers] for part in examples)) for worker in range(workers)]
    streams = [batch_indices(len(shards[worker].inputs), batch_size, seed=seed + worker) for worker in range(workers)]
    first_loss = whole_loss(team[0], examples)
    losses: list[float] = []
    synchronisations, largest_distance = 0, 0.0
    for step in range(1, steps + 1):
        loss = 0.0
        for member, shard, stream in zip(team, shards, streams, strict=True):
            own_loss, slopes = gradient(member, chosen(shard, next(stream)))
            descend(member, slopes, rate)
            loss += own_loss / workers
        losses.append(loss)
        if step % every == 0 or step == steps or not math.isfinite(loss):
            largest_distance = max(largest_distance, _average(team))
            synchronisations += 1
        if not math.isfinite(loss):
            break
    final_loss = whole_loss(team[0], examples)
    numbers = sum(weight.numel() for weight in trainable(team[0]))
    ring = collective("all_reduce", "ring", world_size=workers, length=numbers,
                      element_bytes=parameter_bytes(team[0]) // numbers)  # fmt: skip
    return LocalRun(
        workers=workers,
        synchronise_every=every,
        rate=rate,
        steps=len(losses),
        synchronisations=synchronisations,
        sent_bytes=synchronisations * max(rank.sent_bytes for rank in ring.ranks()),
        first_loss=first_loss,
        final_loss=final_loss,
        diverged=has_diverged(losses, first_loss, final_loss),
        largest_distance=largest_distance,
        weights=weights_digest(team[0]),
        losses=tuple(losses),
    )


def sweep_local(
    model: nn.Module, data: Any, *, workers: int, every: Sequence[int], rate: float, steps: int,
    batch_size: int | None = 64, seed: int = 0,
) -> LocalSweep:  # fmt: skip
    """Train as :func:`train_local` once for each interval in ``every``, from the same weights.

    Raises what :func:`train_local` raises. Lesson 03.
    """
    if not every:
        raise ValueError("every is empty; give at least one number of steps between synchronisations")
    examples = examples_of(data, device_of(own_copy(model)))
    return LocalSweep(tuple(
        train_local(model, examples, workers=workers, synchronise_every=interval, rate=rate, steps=steps,
                    batch_size=batch_size, seed=seed)
        for interval in console.track(list(every), "intervals", unit="run")
    ))  # fmt: skip


def _average(team: Sequence[nn.Module]) -> float:
    """Give every member the mean of all weights; return the greatest distance that one had from it."""
    squares = [0.0] * len(team)
    with torch.no_grad():
        for weights in zip(*(trainable(member) for member in team), strict=True):
            mean = torch.stack(list(weights)).mean(0)
            for member, weight in enumerate(weights):
                squares[member] += float((weight - mean).square().sum())
                weight.copy_(mean)
    return math.sqrt(max(squares))
