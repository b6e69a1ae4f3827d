"""Two workers on one machine: threads that share layers, and processes that share examples, against
one core.

Lesson 04.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from helpers import timing
from helpers.checks import whole_number
from helpers.ranks import Ranks
from helpers.results import Record
from helpers.studies.sgd_parallelism import _problems as problems

Train = Callable[..., Any]


class SharingTimes(Record):
    """One training step of a network: on one core, with its layers shared by threads, its examples
    by processes.

    The times are the shortest of all rounds, in which the three took turns. ``largest_difference``
    is that of two weights that correspond, of the processes and of one process after equally many
    steps. Lesson 04.
    """

    width: int
    batch_size: int
    workers: int
    alone_s: float
    layers_shared_s: float
    examples_shared_s: float
    largest_difference: float

    @property
    def gain_of_layers(self) -> float:
        """How many times as fast as one core the threads are."""
        return self.alone_s / self.layers_shared_s

    @property
    def gain_of_examples(self) -> float:
        """How many times as fast as one core the processes are."""
        return self.alone_s / self.examples_shared_s


def measure_sharing(
    train: Train,
    ranks: Ranks,
    model: nn.Module,
    data: Any,
    *,
    batch_size: int = 256,
    steps: int = 5,
    rounds: int = 5,
) -> SharingTimes:
    """Return the time of a training step of ``model`` on one core, by threads, and by the processes
    of ``ranks``.

    ``train(rank, world_size, model, images, labels, steps)`` takes so many steps on its rank's
    share of the images and leaves the model with the new weights; with one rank it exchanges
    nothing. It is called in each of three ways in turns, ``rounds`` times, on a batch of the first
    ``batch_size`` examples of ``data`` and a fresh copy of ``model``: here with one thread, here
    with as many threads as there are ranks, and on the ranks. Starting and sending are outside the
    time. The number of threads is afterwards as it was. Lesson 04.
    """
    batch_size, steps = whole_number("batch_size", batch_size), whole_number("steps", steps)
    rounds = whole_number("rounds", rounds)
    examples = problems.examples_of(data, torch.device("cpu"))
    batch = problems.select_examples(examples, torch.arange(batch_size))
    runs_of: dict[str, list[_Round]] = {"alone": [], "layers": [], "examples": []}
    for _ in range(rounds + 1):  # the first is to warm up
        for method, threads in (("alone", 1), ("layers", ranks.world_size)):
            with timing.fixed_threads(threads):
                runs_of[method].append(_time_training(0, 1, train, model, batch, steps))
        shares = ranks.run(_time_training, train, model, batch, steps)
        runs_of["examples"].append(_Round(shares[0].weights, max(share.step_s for share in shares)))
    shortest = {
        method: min(runs[1:], key=lambda run: run.step_s) for method, runs in runs_of.items()
    }
    return SharingTimes(
        width=max(weight.shape[0] for weight in model.parameters()),
        batch_size=batch_size,
        workers=ranks.world_size,
        alone_s=shortest["alone"].step_s,
        layers_shared_s=shortest["layers"].step_s,
        examples_shared_s=shortest["examples"].step_s,
        largest_difference=float(
            (shortest["examples"].weights - shortest["alone"].weights).abs().max()
        ),
    )


class _Round(NamedTuple):
    weights: Tensor  # all of the model, as one vector
    step_s: float


def _time_training(
    rank: int, world_size: int, train: Train, model: nn.Module, batch: problems.Examples, steps: int
) -> _Round:
    """Train a copy of ``model`` on this rank's share."""
    model_copy = problems.copy_for_training(model)
    if world_size > 1:
        torch.distributed.barrier()
    start_s = time.perf_counter()
    train(rank, world_size, model_copy, batch.inputs, batch.targets, steps)
    taken_s = time.perf_counter() - start_s
    weights = nn.utils.parameters_to_vector(model_copy.parameters()).detach()
    return _Round(weights, taken_s / steps)
