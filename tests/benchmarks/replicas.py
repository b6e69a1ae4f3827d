"""The figures of the hundred replicas on this machine, one thread (``make bench NAME=replicas``).

A ladder a number of replicas: each way's step beside the sequential one, as the median ratio of
runs in turns with its interval, and as the ratio of the smallest times, which a busy machine
changes least. Then the figures to reach. ``--compile`` adds ``torch.compile``, whose first step
takes a minute or two; ``--seconds`` is the budget of a ladder of 100 replicas; ``--thread-time``
times by the thread's own processor time, which on a busy machine leaves out waiting, not the caches
and the memory that other programs take away.
"""

from __future__ import annotations

import argparse
import os
import time

import pandas as pd
import torch

from helpers import results, timing
from helpers.studies import replicas

# The rung, the number of replicas, and the speedup over sequential fits to reach; "small nets" are
# the nets alone.
FIGURES = (
    ("stacked", "small nets", 100, 25.0),
    ("fused_optimizer", "fit", 1, 1.0),
    ("fused_optimizer", "fit", 100, 25.0),
    ("compiled", "fit", 100, 30.0),
    ("own_step", "fit", 100, 30.0),
)


class Rung(results.Record):
    """One rung with its noise; ``of_minima_speedup`` is the ratio of the smallest times."""

    rung: str
    median_s: float
    minimum_s: float
    speedup: float
    low_speedup: float
    high_speedup: float
    of_minima_speedup: float


class Figure(results.Record):
    """A speedup over the first rung to reach, and what was measured, by medians and by minima."""

    figure: str
    wanted_speedup: float
    measured_speedup: float
    of_minima_speedup: float
    verdict: str


def rungs_of(ladder: replicas.ReplicaLadder) -> list[Rung]:
    """Return the ladder's rungs with the ratio of the smallest times."""
    rows = [ladder.comparison.candidate(rung.rung) for rung in ladder.rungs]
    return [
        results.derived(Rung, rung, row, of_minima_speedup=rows[0].minimum_s / row.minimum_s)
        for rung, row in zip(ladder.rungs, rows, strict=True)
    ]


def figures(ladders: list[replicas.ReplicaLadder]) -> list[Figure]:
    """Return what of :data:`FIGURES` was measured: reached where the whole interval is above,
    missed where it is below.

    An interval around the figure, or a busy machine below it, is too noisy to tell.
    """
    found = []
    for ladder in ladders:
        busy = (ladder.comparison.waiting_share or 0) > 0.1
        for name, program, count, wanted in FIGURES:
            rung = next((rung for rung in rungs_of(ladder) if rung.rung == name), None)
            if rung is None or (ladder.program, ladder.replicas) != (program, count):
                continue
            verdict = "reached" if rung.low_speedup >= wanted else "missed"
            if verdict == "missed" and (busy or rung.high_speedup >= wanted):
                verdict = "too noisy to tell"
            found.append(
                Figure(
                    f"{program}, {count} replicas: {name}",
                    wanted,
                    rung.speedup,
                    rung.of_minima_speedup,
                    verdict,
                )
            )
    return found


def show(title: str, rows: list[results.Record]) -> None:
    """Print results of one type as a table."""
    frame = results.printed(
        pd.concat([pd.DataFrame([row.to_dict()]) for row in rows], ignore_index=True)
    )
    print(f"\n{title}\n{frame.to_string(index=False)}", flush=True)


def main() -> None:
    """Print every ladder, the load of the machine, and what of the figures is reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        help="budget of a ladder of 100 replicas (default: 30)",
    )
    parser.add_argument(
        "--replicas", type=int, nargs="+", default=[1, 10, 100], help="numbers of replicas"
    )
    parser.add_argument("--compile", action="store_true", help="measure torch.compile as well")
    parser.add_argument(
        "--thread-time",
        action="store_true",
        help="time by the thread's processor time: busy machine",
    )
    arguments = parser.parse_args()
    clock = time.thread_time if arguments.thread_time else time.perf_counter
    print(timing.steady_allocator())
    torch.set_num_threads(1)
    problem, ladders = replicas.make_problem(), []
    for count in arguments.replicas:
        budget_s = arguments.seconds * (0.3 + 0.7 * count / 100)
        offered = {*replicas.default_ways(), *(["compiled"] if arguments.compile else [])}
        ways = [way for way in replicas.WAYS if way in offered]
        ladders.append(
            replicas.measure_small_nets(replicas=count, budget_s=budget_s / 3, clock=clock)
        )
        ladders.append(
            replicas.measure_ladder(
                problem, replicas=count, ways=ways, budget_s=budget_s, clock=clock
            )
        )
        for ladder in ladders[-2:]:
            show(
                f"{ladder.program}, {count} replicas: {ladder.reason or 'stable'}", rungs_of(ladder)
            )
    show("Figures", figures(ladders))
    if hasattr(os, "getloadavg"):
        print(f"load of the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
