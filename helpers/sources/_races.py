"""Races shown: what two additions to one number can come to, and how many additions real threads lose. Lesson 03."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from helpers._checks import choice, whole_number
from helpers.results import Result
from helpers.sources._servers import run_threads

HOW = ("in place", "read, then write")


@dataclass(frozen=True)
class Outcome(Result):
    """One value that additions of 1 can leave behind, and in how many of the interleavings. Lesson 03."""

    final_value: int
    lost_updates: int
    interleavings: int


@dataclass(frozen=True)
class Interleavings(Result):
    """Every order in which the reads and writes of workers can follow one another, counted. Lesson 03."""

    workers: int
    interleavings: int
    lossless_share: float
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class LostUpdates(Result):
    """Additions of 1 to each element of a shared tensor: what was added, what arrived.

    ``lost_additions`` counts element by element. ``lost_share`` is its part of all. Lesson 03.
    """

    workers: int
    how: str
    with_lock: bool
    elements: int
    additions: int
    lost_additions: int
    lost_share: float


def interleave_additions(workers: int) -> Interleavings:
    """Return what ``workers`` additions of 1 to a shared 0 can leave, over all orders of their reads and writes.

    An addition is a read, and later a write of what was read plus 1. Two workers have 6 interleavings, of which 2
    leave 2 and 4 leave 1. Every interleaving is run; for n workers there are (2 n)! / 2^n. Raises ValueError for more
    than 4 workers (5 have 113,400). Lesson 03.
    """
    workers = whole_number("workers", workers, at_least=1)
    if workers > 4:
        raise ValueError(f"workers={workers} have too many interleavings to run each; give at most 4")
    order = [worker for worker in range(workers) for _ in range(2)]
    finals = Counter(_final_value(steps, workers) for steps in set(itertools.permutations(order)))
    total = finals.total()
    return Interleavings(
        workers=workers,
        interleavings=total,
        lossless_share=finals[workers] / total,
        outcomes=tuple(Outcome(value, workers - value, count) for value, count in sorted(finals.items())),
    )


def _final_value(steps: Sequence[int], workers: int) -> int:
    """Run one interleaving: the first time a worker's number stands in it is its read, the second its write."""
    shared, read = 0, [-1] * workers
    for worker in steps:
        if read[worker] < 0:
            read[worker] = shared
        else:
            shared = read[worker] + 1
    return shared


def count_lost_updates(
    workers: int, additions: int = 200, *, how: str = "in place", with_lock: bool = False, elements: int = 100_000
) -> LostUpdates:
    """Return how many additions threads lose that add 1 to one shared tensor, each ``additions`` times.

    ``how="in place"`` is ``shared.add_(1)``, as Hogwild adds: PyTorch computes it outside Python's lock, so two threads
    can read an element before either writes it, and one addition is lost. ``how="read, then write"`` is ``shared.copy_(
    shared + 1)``: the two are far apart, and far more is lost. ``with_lock=True`` puts a lock around each addition, and
    none is lost. How many are lost without it is luck; it may be none. The tensor is int64 on the CPU, where the
    threads are.

    Raises TypeError or ValueError for an argument that is not accepted. Lesson 03.
    """
    workers = whole_number("workers", workers, at_least=1)
    additions = whole_number("additions", additions, at_least=1)
    choice("how", how, HOW)
    shared = torch.zeros(whole_number("elements", elements, at_least=1), dtype=torch.int64)
    guard = threading.Lock() if with_lock else nullcontext()

    def work(_: int) -> None:
        for _ in range(additions):
            with guard:
                if how == "in place":
                    shared.add_(1)
                else:
                    shared.copy_(shared + 1)

    run_threads(work, workers)
    made = workers * additions * shared.numel()
    lost = made - int(shared.sum())
    return LostUpdates(workers, how, with_lock, shared.numel(), made, lost, lost / made)
