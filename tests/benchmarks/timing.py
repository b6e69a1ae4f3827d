"""Our timer beside its peers on the same work: ``make bench NAME=timing``.

The peers are ``torch.utils.benchmark.Timer(...).blocked_autorange``, with our number of threads and
with its default (one), and the standard library's ``timeit``. Each gets the same seconds. On CUDA
``timeit`` is given a clock that synchronises; torch's Timer does so by itself.
"""

from __future__ import annotations

import argparse
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils import benchmark

from helpers import results, timing

SIDE = 512
BATCH = 32


@dataclass(frozen=True)
class Row(results.Result):
    """One piece of work under one timer; ``ratio`` is its median over that of
    ``helpers.timing.measure``.
    """

    work: str
    timer: str
    threads: int
    minimum_s: float
    median_s: float
    iqr_s: float
    ratio: float
    stable: str


def lenet_like(device: torch.device) -> Callable[[], torch.Tensor]:
    """Return the forward pass of two convolutions and three fully connected layers on a batch of
    28x28 images.
    """
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    ).to(device)
    images = torch.rand(BATCH, 1, 28, 28, device=device)
    return torch.inference_mode()(lambda: model(images))


def by_torch(fn: Callable[[], object], budget_s: float, **threads: int) -> tuple[int, np.ndarray]:
    """Return torch's number of threads and its seconds a call."""
    timer = benchmark.Timer("fn()", globals={"fn": fn}, **threads)
    measurement = timer.blocked_autorange(min_run_time=budget_s)
    return measurement.num_threads, np.array(measurement.times)


def by_timeit(fn: Callable[[], object], budget_s: float, device: torch.device) -> np.ndarray:
    """Return timeit's seconds a call, over as many repetitions as the budget holds."""

    def clock() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    timer = timeit.Timer(fn, timer=clock)
    number, taken_s = timer.autorange()
    return np.array(timer.repeat(repeat=max(3, int(budget_s / taken_s)), number=number)) / number


def rows(work: str, fn: Callable[[], object], budget_s: float, device: torch.device) -> list[Row]:
    """Time one piece of work under every timer, ours first."""
    ours = timing.measure(fn, budget_s=budget_s, device=device)
    peers = {
        "torch Timer": by_torch(fn, budget_s, num_threads=ours.threads),
        "torch Timer (default)": by_torch(fn, budget_s),
        "timeit": (ours.threads, by_timeit(fn, budget_s, device)),
    }
    stable = "yes" if ours.stable else ours.reason.partition(":")[0]
    table = [
        Row(
            work,
            "helpers.timing",
            ours.threads,
            ours.minimum_s,
            ours.median_s,
            ours.iqr_s,
            1.0,
            stable,
        )
    ]
    for timer, (threads, times_s) in peers.items():
        lower_s, median_s, upper_s = np.quantile(times_s, [0.25, 0.5, 0.75]).tolist()
        ratio = median_s / ours.median_s
        table.append(
            Row(work, timer, threads, float(times_s.min()), median_s, upper_s - lower_s, ratio, "")
        )
    return table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--budget", type=float, default=1.0, help="seconds a timer and piece of work (default: 1)"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    a, b = (torch.rand(SIDE, SIDE, device=device) for _ in range(2))
    works = {
        f"a * b, {SIDE}x{SIDE}": lambda: a * b,
        f"a @ b, {SIDE}x{SIDE}": lambda: a @ b,
        f"LeNet-like forward, batch {BATCH}": lenet_like(device),
    }
    table = [row for work, fn in works.items() for row in rows(work, fn, arguments.budget, device)]
    print(results.printed(pd.concat([row.table() for row in table])).to_string(index=False))


if __name__ == "__main__":
    main()
