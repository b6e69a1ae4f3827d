"""A parameter server: workers that fetch weights, compute, and send gradients without waiting for
one another.

Twice: on a simulated clock, where every claim is exact, and with real threads, where staleness is
what this machine makes of it. Lesson 04.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from helpers.checks import boolean, choice, numbers, whole_number
from helpers.results import Record
from helpers.studies.sgd_parallelism._problems import (
    Training,
    copy_for_training,
    descend,
    gradient,
    trainable_parameters,
)


class WorkerShare(Record):
    """The share of one worker: its updates, and how many updates of others came between its fetch
    and its update.

    Lesson 04.
    """

    worker: int
    updates: int
    mean_staleness: float


class ServerRun(Record):
    """A training through a parameter server, or by threads on shared weights.

    ``staleness`` of an update is the number of updates that came between the fetch of its weights
    and itself; ``staleness_counts`` says how often each occurred. ``simulated_s`` is the simulated
    clock at the last update, None for a real run. ``losses`` are those of the batches in the order
    in which their gradients were applied. Lesson 04.
    """

    how: str
    workers: int
    rate: float
    updates: int
    first_loss: float
    final_loss: float
    diverged: bool
    mean_staleness: float
    largest_staleness: int
    staleness_counts: dict[int, int]
    simulated_s: float | None
    shares: tuple[WorkerShare, ...]
    weights: str = field(repr=False)
    losses: tuple[float, ...] = field(repr=False)


def simulate_server(
    model: nn.Module, data: Any, *, compute_s: Sequence[float], rate: float, updates: int
) -> ServerRun:
    """Train a copy of ``model`` through a parameter server on a simulated clock; the same bits in
    every run.

    ``data``, ``rate`` and the batches are those of :func:`train_stale`. ``compute_s`` has one entry
    a worker: how long it takes to compute a gradient. A worker fetches the weights and the next
    batch, works that long, sends its gradient, which is applied at once, and fetches again.
    Fetching and sending take no time; of workers that finish together the lower number goes first.
    Learning is real, only the clock is not.

    So of W equally fast workers each gradient is W - 1 updates old once all have finished their
    first, and the run is that of ``train_stale(..., delay=W - 1, steps=updates + W - 1)`` bit for
    bit. One worker is plain SGD. Of workers of unequal speed the slow one's gradients are the
    stalest.

    Raises TypeError or ValueError for an argument that is not accepted. Lesson 04.
    """
    durations_s = numbers("compute_s", compute_s, above=0)
    if not durations_s:
        raise ValueError(
            "compute_s is empty; give one time in seconds for each worker, such as (1.0, 1.0)"
        )
    updates = whole_number("updates", updates)
    run = _Run(model, data, rate=rate)
    # An event: when a gradient is ready, whose it is, at which version its weights were fetched,
    # and the gradient.
    events: list[tuple[float, int, int, float, tuple[Tensor, ...]]] = []
    now_s = 0.0

    def fetch(worker: int) -> None:
        ready_s = now_s + durations_s[worker]
        loss, slopes = gradient(run.model, next(run.batches))
        heapq.heappush(events, (ready_s, worker, len(run.losses), loss, slopes))

    for worker in range(len(durations_s)):
        fetch(worker)
    while not run.is_over(updates):
        now_s, worker, version, loss, slopes = heapq.heappop(events)
        run.apply(worker, version, loss, slopes)
        fetch(worker)
    return run.result(
        "parameter server, simulated clock", workers=len(durations_s), simulated_s=now_s
    )


def run_server(
    model: nn.Module, data: Any, *, workers: int, rate: float, updates: int
) -> ServerRun:
    """Train a copy of ``model`` through a parameter server whose ``workers`` are threads of this
    process.

    ``data``, ``rate`` and the batches are those of :func:`train_stale`. Each worker has weights of
    its own. It copies the server's under a lock, computes a gradient without it, and takes the lock
    again to apply it, until ``updates`` have been applied in all. Which gradient is applied when,
    and so the staleness and the last digits of the loss, differ from run to run; nothing here is a
    claim about time. One worker is plain SGD, bit for bit. PyTorch's operators let go of Python's
    lock, so the threads do compute at once.

    Raises TypeError or ValueError for an argument that is not accepted; an exception in a worker
    passes unchanged. Lesson 04.
    """
    workers, updates = whole_number("workers", workers), whole_number("updates", updates)
    run = _Run(model, data, rate=rate)
    lock = threading.Lock()
    replicas = [copy_for_training(run.model) for _ in range(workers)]

    def work(worker: int) -> None:
        replica = replicas[worker]
        while True:
            with lock:
                if run.is_over(updates):
                    return
                version, batch = len(run.losses), next(run.batches)
                replica.load_state_dict(run.model.state_dict())
            loss, slopes = gradient(replica, batch)
            with lock:
                if run.is_over(updates):
                    return
                run.apply(worker, version, loss, slopes)

    run_threads(work, workers)
    return run.result("parameter server, threads", workers=workers)


def run_hogwild(
    model: nn.Module, data: Any, *, workers: int, rate: float, updates: int
) -> ServerRun:
    """Train a copy of ``model`` by threads that read and write one set of weights with no lock
    (Hogwild).

    ``data``, ``rate`` and the batches are those of :func:`train_stale`. Each of the ``workers``
    computes on the shared weights while others change them, and adds its update in place: a
    gradient may be that of weights which never stood there together, and an addition may be lost
    (:func:`helpers.studies.sgd_parallelism._servers.count_lost_updates`). ``updates`` are made in
    all, shared evenly. ``staleness`` counts the updates that others began between a worker's read
    and its write. Runs differ; that the loss still falls is what is to be seen, and no time is
    claimed. Source: Recht, Re, Wright and Niu, "Hogwild!: A Lock-Free Approach to Parallelizing
    Stochastic Gradient Descent" (2011), whose proof asks for sparse updates: those of a dense
    network are not. On CUDA the threads share one stream, in which kernels follow one another:
    gradients are stale there, and no addition is lost.

    Raises TypeError or ValueError for an argument that is not accepted; an exception in a worker
    passes unchanged. Lesson 04.
    """
    workers = whole_number("workers", workers)
    updates = whole_number("updates", updates, at_least=workers)
    run = _Run(model, data, rate=rate)
    counting = threading.Lock()  # for the books alone: the weights are read and written without it
    begun = 0
    replicas = [run.sharing_replica() for _ in range(workers)]

    def work(worker: int) -> None:
        nonlocal begun
        for _ in range(worker, updates, workers):
            with counting:
                version, batch = begun, next(run.batches)
            loss, slopes = gradient(replicas[worker], batch)
            with counting:
                staleness = begun - version
                begun += 1
            if math.isfinite(loss):
                descend(replicas[worker], slopes, run.rate)
            with counting:
                run.note_update(worker, staleness, loss)
            if not math.isfinite(loss):
                return

    run_threads(work, workers)
    return run.result("Hogwild, threads without a lock", workers=workers)


def run_threads(work: Callable[[int], None], workers: int) -> None:
    """Call ``work(worker)`` in one thread a worker, all begun together; raise the exception of the
    first worker that has one.
    """
    start = threading.Barrier(workers)

    def begin_together(worker: int) -> None:
        start.wait()
        work(worker)

    with ThreadPoolExecutor(workers) as threads:
        list(threads.map(begin_together, range(workers)))


class _Run(Training):
    """A training by several workers: the server's model, and which worker's update was how
    stale.
    """

    def __init__(self, model: nn.Module, data: Any, *, rate: float) -> None:
        super().__init__(model, data, rate=rate)
        self._notes: list[tuple[int, int]] = []
        self._stopped = False

    def apply(self, worker: int, version: int, loss: float, slopes: tuple[Tensor, ...]) -> None:
        """Apply a gradient and note its staleness; a loss that is not finite is the end."""
        self.note_update(worker, len(self.losses) - version, loss)
        if not self._stopped:
            descend(self.model, slopes, self.rate)

    def note_update(self, worker: int, staleness: int, loss: float) -> None:
        self._notes.append((worker, staleness))
        self._stopped = not self.note(loss) or self._stopped

    def is_over(self, updates: int) -> bool:
        return self._stopped or len(self.losses) >= updates

    def sharing_replica(self) -> nn.Module:
        """Return a module of its own whose trainable parameters lie in the memory of this run's
        model.
        """
        replica = copy_for_training(self.model)
        for parameter, shared in zip(
            trainable_parameters(replica), trainable_parameters(self.model), strict=True
        ):
            parameter.data = shared.data
        return replica

    def result(self, method: str, *, workers: int, simulated_s: float | None = None) -> ServerRun:
        delays = [staleness for _, staleness in self._notes]
        shares = []
        for worker in range(workers):
            own = [staleness for sender, staleness in self._notes if sender == worker]
            shares.append(WorkerShare(worker, len(own), fmean(own) if own else math.nan))
        return ServerRun(
            how=method,
            workers=workers,
            updates=len(self.losses),
            mean_staleness=fmean(delays),
            largest_staleness=max(delays),
            staleness_counts=dict(sorted(Counter(delays).items())),
            simulated_s=simulated_s,
            shares=tuple(shares),
            **self.summary(),
        )


HOW = ("in place", "read, then write")


class AdditionOutcome(Record):
    """One value that additions of 1 can leave behind, and in how many of the interleavings.

    Lesson 04.
    """

    final_value: int
    lost_updates: int
    interleavings: int


class Interleavings(Record):
    """Every order in which the reads and writes of workers can follow one another, counted.

    Lesson 04.
    """

    workers: int
    interleavings: int
    lossless_share: float
    outcomes: tuple[AdditionOutcome, ...]


class LostUpdates(Record):
    """Additions of 1 to each element of a shared tensor: what was added, what arrived.

    ``lost_additions`` counts element by element. ``lost_share`` is its part of all. Lesson 04.
    """

    workers: int
    how: str
    with_lock: bool
    elements: int
    additions: int
    lost_additions: int
    lost_share: float


def interleave_additions(workers: int) -> Interleavings:
    """Return the sums that ``workers`` additions of 1 to a shared 0 can leave, over all orders of
    their reads and writes.

    An addition is a read, and later a write of what was read plus 1. Two workers have 6
    interleavings, of which 2 leave 2 and 4 leave 1. Every interleaving is run; for n workers there
    are (2 n)! / 2^n. Raises ValueError for more than 4 workers (5 have 113,400). Lesson 04.
    """
    workers = whole_number("workers", workers)
    if workers > 4:
        raise ValueError(
            f"workers={workers} have too many interleavings to run each; give at most 4"
        )
    order = [worker for worker in range(workers) for _ in range(2)]
    finals = Counter(_final_value(steps, workers) for steps in set(itertools.permutations(order)))
    total = finals.total()
    return Interleavings(
        workers=workers,
        interleavings=total,
        lossless_share=finals[workers] / total,
        outcomes=tuple(
            AdditionOutcome(value, workers - value, count)
            for value, count in sorted(finals.items())
        ),
    )


def _final_value(steps: Sequence[int], workers: int) -> int:
    """Run one interleaving: the first time a worker's number stands in it is its read, the second
    its write.
    """
    shared, read = 0, [-1] * workers
    for worker in steps:
        if read[worker] < 0:
            read[worker] = shared
        else:
            shared = read[worker] + 1
    return shared


def count_lost_updates(
    workers: int,
    additions: int = 200,
    *,
    how: str = "in place",
    with_lock: bool = False,
    elements: int = 100_000,
) -> LostUpdates:
    """Return how many additions ``workers`` threads lose that add 1 to one shared tensor,
    ``additions`` times each.

    ``how="in place"`` is ``shared.add_(1)``, as Hogwild adds: PyTorch computes it outside Python's
    lock, so two threads can read an element before either writes it, and one addition is lost.
    ``how="read, then write"`` is ``shared.copy_(shared + 1)``: the two are far apart, and far more
    is lost. ``with_lock=True`` puts a lock around each addition, and none is lost. How many are
    lost without it is luck; it may be none. The tensor has ``elements`` int64 numbers on the CPU,
    where the threads are.

    Raises TypeError or ValueError for an argument that is not accepted. Lesson 04.
    """
    boolean("with_lock", with_lock)
    workers = whole_number("workers", workers)
    additions = whole_number("additions", additions)
    choice("how", how, HOW)
    shared = torch.zeros(whole_number("elements", elements), dtype=torch.int64)
    guard = threading.Lock() if with_lock else nullcontext()

    def work(_: int) -> None:
        for _ in range(additions):
            with guard:
                if how == "in place":
                    shared.add_(1)
                else:
                    shared.copy_(shared + 1)

    run_threads(work, workers)
    expected = workers * additions * shared.numel()
    lost = expected - int(shared.sum())
    return LostUpdates(workers, how, with_lock, shared.numel(), expected, lost, lost / expected)
