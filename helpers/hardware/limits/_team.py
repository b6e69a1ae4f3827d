"""A compiled loop on several threads that begin together, repeated until a run is long enough for
the clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

# the last arguments of a loop in C++: int32_t* arrived, int32_t threads, int64_t* times
Start = tuple[int, int, int]


def team_s(work: Callable[[int, Start], object], threads: int) -> float:
    """Return the seconds from the first thread's begin to the last one's end, of ``threads``
    threads.

    Thread ``index`` calls ``work(index, start)``. The loop of ``work`` takes ``start`` as its last
    arguments, waits for all with ``wait_for_all`` of team.h, and writes its begin and its end.
    """
    arrivals = torch.zeros(1, dtype=torch.int32)
    times = torch.zeros(threads, 2, dtype=torch.int64)

    def call(index: int) -> None:
        work(index, (arrivals.data_ptr(), threads, times[index].data_ptr()))

    workers = [threading.Thread(target=call, args=(index,)) for index in range(1, threads)]
    for thread in workers:
        thread.start()
    call(0)  # ctypes gives up Python's lock meanwhile
    for thread in workers:
        thread.join()
    return (int(times[:, 1].max()) - int(times[:, 0].min())) / 1e9


def repeat_s(run_s: Callable[[int], float], *, at_least_s: float, runs: int) -> float:
    """Return the seconds of one repeat, in the fastest of ``runs`` runs and the one that was long
    enough.

    ``run_s(repeats)`` runs and returns the seconds. Repeats grow until a run takes half of
    ``at_least_s``.
    """
    repeats, taken_s = 2, run_s(2)
    while taken_s < at_least_s / 2:
        repeats = max(2 * repeats, int(repeats * at_least_s / max(taken_s, at_least_s / 100)))
        taken_s = run_s(repeats)
    return min(taken_s, *(run_s(repeats) for _ in range(runs))) / repeats
