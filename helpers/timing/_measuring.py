"""One function: its cold call, and warm runs until they are stable or the budget is spent."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from helpers._checks import number
from helpers.results import Result, cell
from helpers.timing._runs import (
    ADVICE,
    Clock,
    Function,
    Run,
    calibrate,
    check_clock,
    check_function,
    chosen_device,
    device_in_use,
    run,
    watch_waiting,
    why_disturbed,
)

_STABLE_RUNS = 8
_FEWEST_RUNS = 2
_PRECISION = 0.02
_DRIFT = 0.05
_LOAD = 1.25


@dataclass(frozen=True)
class Timing(Result):
    """How long one call of a function takes, in seconds; ``reason`` says why the timing is not ``stable``.

    ``waiting_share`` is the part of the time in which a thread of this process had no processor; None if unknown.
    """

    cold_s: float
    minimum_s: float
    median_s: float
    iqr_s: float
    runs: int
    calls_per_run: int
    threads: int
    device: str
    waiting_share: float | None
    stable: bool
    reason: str


@dataclass(frozen=True)
class CudaTiming(Timing):
    """A timing on CUDA; ``device_median_s`` is the same runs between two CUDA events on the current stream."""

    device_median_s: float


def measure(
    fn: Function,
    *,
    budget_s: float = 1.0,
    device: str | torch.device | None = None,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Return how long a call of ``fn`` takes: cold, and then warm until the timing is stable or the budget is spent.

    The docstring of :mod:`helpers.timing` states the boundary. ``cold_s`` is the first call made here, timed alone.
    Then come warm-up runs, which choose ``calls_per_run`` so that a run is far above the clock's resolution (100 us
    on a CPU, 2 ms on CUDA), and the runs that count: ``minimum_s``, ``median_s`` and ``iqr_s`` (75th less 25th
    percentile, linear interpolation) are seconds a call over ``runs`` runs. ``budget_s`` is for what follows the cold
    call; the warm-up, a last run and two runs in any case may overrun it. ``fn`` is called an unknown number of times.

    ``stable`` means: at least 8 runs over a tenth of the budget; the distribution-free 95 % interval of the median is
    within 2 % of it; the medians of the first and the second half differ by at most 5 %; the median is at most 1.25
    times the minimum; no thread of this process waited for a processor longer than a tenth of the time (known on Linux
    only). This is looked at whenever the runs have grown by half since the last look, so that luck ends few
    measurements. Else ``reason`` says which failed first; nothing is raised, no warning is given.

    ``device`` is what is waited for at both ends of a run, ``"cpu"`` or ``"cuda"``; by default the current CUDA device
    where this process has used CUDA, else the CPU. On CUDA a :class:`CudaTiming` comes back. ``clock`` is for tests.

    Raises TypeError or ValueError for a bad argument, RuntimeError for CUDA where there is none; an exception in
    ``fn`` passes unchanged. Lesson 00.
    """
    check_function("fn", fn)
    number("budget_s", budget_s, above=0)
    check_clock(clock)
    chosen = chosen_device(device)
    cold_s = run(fn, 1, chosen, clock).host_s
    chosen = chosen or device_in_use()
    begin_s, waiting = clock(), watch_waiting(clock)
    calls, warm = calibrate(fn, chosen, clock)
    # A warm-up that alone took the whole budget counts as a run: another one would cost as much again.
    runs = [warm] if calls == 1 and clock() - begin_s >= budget_s else []
    waiting_share, reason = _until_stable(
        runs,
        lambda: run(fn, calls, chosen, clock),
        spent_s=lambda: clock() - begin_s,
        waiting=waiting,
        budget_s=budget_s,
    )
    calls_s = np.array([timed.host_s for timed in runs]) / calls
    lower_s, median_s, upper_s = np.quantile(calls_s, [0.25, 0.5, 0.75]).tolist()
    shared = {
        "cold_s": cold_s, "minimum_s": float(calls_s.min()), "median_s": median_s, "iqr_s": upper_s - lower_s,
        "runs": len(runs), "calls_per_run": calls, "threads": torch.get_num_threads(), "device": str(chosen),
        "waiting_share": waiting_share, "stable": not reason, "reason": reason,
    }  # fmt: skip
    if chosen.type == "cpu":
        return Timing(**shared)
    return CudaTiming(**shared, device_median_s=float(np.median([timed.device_s for timed in runs])) / calls)


def _until_stable(
    runs: list[Run],
    next_run: Callable[[], Run],
    *,
    spent_s: Callable[[], float],
    waiting: Callable[[], float | None],
    budget_s: float,
) -> tuple[float | None, str]:
    """Append runs until they are stable or the budget is spent; return the waiting share and why not stable."""
    next_look = _STABLE_RUNS
    while True:
        runs.append(next_run())
        spent = spent_s()
        clock_stands_still = spent == 0 and len(runs) >= _STABLE_RUNS
        over = (spent >= budget_s and len(runs) >= _FEWEST_RUNS) or clock_stands_still
        if over or (len(runs) >= next_look and spent >= budget_s / 10):
            waiting_share = waiting()
            reason = why_disturbed(waiting_share) or _why_unstable([timed.host_s for timed in runs])
            if over or not reason:
                return waiting_share, reason
            next_look = math.ceil(1.5 * len(runs))


def _why_unstable(runs_s: Sequence[float]) -> str:
    """Return the first criterion of :func:`measure` that the runs fail, for a student; "" when they are stable."""
    median_s = float(np.median(runs_s))
    if len(runs_s) < _STABLE_RUNS:
        return too_few("runs", len(runs_s), _STABLE_RUNS, median_s)
    if median_s == 0:
        return "a run is shorter than the clock can tell: give the function more to do"
    low_s, high_s = median_interval(runs_s, 0.05)
    precision = (high_s - low_s) / 2 / median_s
    if precision > _PRECISION:
        return imprecise("the median", precision, _PRECISION)
    half = len(runs_s) // 2
    drift = abs(float(np.median(runs_s[half:])) - float(np.median(runs_s[:half]))) / median_s
    if drift > _DRIFT:
        return f"the second half of the runs differs from the first by {cell('share', drift)}: {ADVICE}"
    if median_s > _LOAD * min(runs_s):
        return f"the median is {median_s / min(runs_s):.2f} times the minimum, so something disturbs it: {ADVICE}"
    return ""


def too_few(what: str, done: int, needed: int, run_s: float) -> str:
    """Say that ``done`` of the ``needed`` runs or rounds fitted, and which budget holds them all."""
    enough_s = 1.2 * needed * run_s
    rounded_s = f"{math.ceil(enough_s):,}" if enough_s > 10 else f"{enough_s:.2g}"
    return f"{done} {what} fitted in the budget, {needed} are needed: give a budget_s of {rounded_s} or more"


def imprecise(what: str, found_share: float, wanted_share: float) -> str:
    """Say that ``what`` is known to a share of itself that is larger than the one wanted."""
    found = cell("share", found_share) if found_share < 1 else f"a factor of {1 + found_share:.3g}"
    return f"{what} is known to {found} only, not to {cell('share', wanted_share)}: {ADVICE}"


def median_interval(values: Sequence[float], alpha: float) -> tuple[float, float]:
    """Return the order-statistic interval that misses the population's median with probability alpha at most."""
    rank = _rank(len(values), alpha)
    ordered = np.sort(values)
    return (float(ordered[rank - 1]), float(ordered[-rank])) if rank else (0.0, math.inf)


@functools.cache
def _rank(count: int, alpha: float) -> int:
    """Return the largest k for which fewer than k heads in ``count`` fair tosses are as rare as alpha / 2."""
    tail = 0.0
    for heads in range(count + 1):
        ways = math.lgamma(count + 1) - math.lgamma(heads + 1) - math.lgamma(count - heads + 1)
        tail += math.exp(ways - count * math.log(2))
        if tail > alpha / 2:
            return heads
    raise ValueError(f"alpha must be below 2; got {alpha}")
