"""The boundary of a timing: what one run is, what is waited for around it, and what else had the
processor meanwhile.

:func:`measure` times one function: its cold call, and warm runs until they are stable or the budget
is spent. Also what is set for a steadier measurement: the number of threads, and how the C library
keeps memory.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
import torch

from helpers.checks import cpu_or_cuda, number, real, whole_number
from helpers.results import Record, cell, derived

Function = Callable[[], object]
Clock = Callable[[], float]

# A CPU run is 1,000 ticks of the coarsest perf_counter (100 ns); a CUDA run some 200
# synchronisations.
_RUN_S = {"cpu": 1e-4, "cuda": 2e-3}
_REPEATED_BELOW_S = 1e-2
_MOST_CALLS = 100_000
_FEWEST_ROUNDS, _MOST_ROUNDS = 5, 500


class Run(NamedTuple):
    """The seconds of one run: on the host's clock, and between two CUDA events (on a CPU the same
    number).
    """

    host_s: float
    device_s: float


def run(fn: Function, calls: int, device: torch.device | None, clock: Clock) -> Run:
    """Call ``fn`` ``calls`` times within the boundary that the package's docstring states.

    ``device`` None, for a first call, means whatever CUDA device is in use by the time it is waited
    for.
    """
    stream = (
        torch.cuda.current_stream(device) if device is not None and device.type == "cuda" else None
    )
    events = [] if stream is None else [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    _synchronise(device)
    with collector_off():
        start_s = clock()
        for event in events[:1]:
            event.record(stream)
        for _ in itertools.repeat(None, calls):
            fn()
        for event in events[1:]:
            event.record(stream)
        _synchronise(device)
        host_s = clock() - start_s
    if not host_s >= 0:
        raise ValueError(
            f"clock gave {start_s!r} and, later, a reading {host_s!r} after it; give one that "
            "never goes back, such as time.perf_counter"
        )
    return Run(host_s, events[0].elapsed_time(events[1]) / 1e3 if events else host_s)


def calibrate(fn: Function, device: torch.device, clock: Clock) -> tuple[int, Run]:
    """Warm ``fn`` up; return how many calls make a run long enough for the clock, and the last such
    run.
    """
    calls, least_s = 1, _RUN_S[device.type]
    while True:
        last_run = run(fn, calls, device, clock)
        # so that one disturbed run does not end the search too early
        if last_run.host_s < _REPEATED_BELOW_S:
            last_run = min(last_run, run(fn, calls, device, clock), key=lambda timed: timed.host_s)
        if last_run.host_s >= least_s or calls == _MOST_CALLS:
            return calls, last_run
        growth = 1.2 * least_s / last_run.host_s if last_run.host_s > 0 else math.inf
        calls = min(_MOST_CALLS, math.ceil(calls * min(10, growth)))


def latest_s(budget_s: float) -> float:
    """Return when a measurement with this budget ends at the latest, in seconds from its begin: at
    the budget's end.

    With ``HELPERS_EARLY_END=1`` it ends where a stable one may end at the earliest. The test of a
    notebook sets that, because it compares no time; what is called stable is so by the same rules.
    """
    return earliest_s(budget_s) if os.environ.get("HELPERS_EARLY_END") == "1" else budget_s


def earliest_s(budget_s: float) -> float:
    """Return the seconds from its begin before which no measurement with this budget is called
    stable.
    """
    return budget_s / 10


def rounds(budget_s: float, clock: Clock) -> Iterator[int]:
    """Count rounds until ``budget_s`` is spent: 5 in any case, 500 at most."""
    begin_s, end_s = clock(), latest_s(budget_s)
    for index in range(_MOST_ROUNDS):
        if index >= _FEWEST_ROUNDS and clock() - begin_s >= end_s:
            return
        yield index


def device_in_use() -> torch.device:
    """Return the current CUDA device where this process has used CUDA, else the CPU."""
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_initialized()
        else torch.device("cpu")
    )


@overload
def chosen_device(device: str | torch.device) -> torch.device: ...
@overload
def chosen_device(device: str | torch.device | None) -> torch.device | None: ...
def chosen_device(device: str | torch.device | None) -> torch.device | None:
    """Return the device with its index, None for None; ValueError or RuntimeError for one that
    cannot be timed.
    """
    if device is None:
        return None
    chosen = cpu_or_cuda(device)
    if chosen.type == "cpu":
        return torch.device("cpu")
    if (chosen.index or 0) >= torch.cuda.device_count():
        raise RuntimeError(
            f"device {str(device)!r} is not here: this process sees {torch.cuda.device_count()} "
            "CUDA devices; give 'cpu' or one of those"
        )
    return torch.device(
        "cuda", torch.cuda.current_device() if chosen.index is None else chosen.index
    )


def check_function(name: str, fn: object) -> None:
    """Raise TypeError when ``fn`` cannot be called; ``name`` names it in the message."""
    if not callable(fn):
        hint = "; write lambda: a * b, not a * b" if isinstance(fn, torch.Tensor) else ""
        raise TypeError(
            f"{name} must be a function without arguments, not {type(fn).__name__}{hint}"
        )


def check_clock(clock: object) -> None:
    """Raise TypeError when ``clock`` is no function, or when its readings are no numbers."""
    if not callable(clock):
        raise TypeError(
            f"clock={clock!r} is no function; give one that returns seconds, such as "
            "time.perf_counter"
        )
    real("a reading of clock", clock())


@contextmanager
def collector_off() -> Iterator[None]:
    """Keep the garbage collector from a moment of its own choice inside the block."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _synchronise(device: torch.device | None) -> None:
    target = device_in_use() if device is None else device
    if target.type == "cuda":
        torch.cuda.synchronize(target)


# What a busy machine does to a timing.

ADVICE = "stop other programs or raise budget_s"
MOST_WAITING = 0.1

_THREADS = Path("/proc/self/task")


def watch_waiting(clock: Clock) -> Callable[[], float | None]:
    """Return a function that gives, from now on, the share of the time in which the unluckiest
    thread waited.

    A thread waits while it is ready to run and another program has its processor. The share is None
    where the system does not tell (only Linux does, in the second number of
    ``/proc/self/task/*/schedstat``, see proc(5)), and for a test's own clock, whose time no
    processor spends.
    """
    before_s, begin_s = _waited_s(), time.perf_counter()

    def share() -> float | None:
        now_s = _waited_s()
        if clock is not time.perf_counter or not before_s or not now_s:
            return None
        waited_s = max(now_s[thread] - before_s.get(thread, 0.0) for thread in now_s)
        return waited_s / (time.perf_counter() - begin_s)

    return share


def why_disturbed(waiting_share: float | None) -> str:
    """Return a reason when a thread waited for more than a tenth of the time, else ""."""
    if waiting_share is None or waiting_share <= MOST_WAITING:
        return ""
    return (
        f"a thread waited for a processor during {cell('share', waiting_share)} of the time: "
        f"{ADVICE}"
    )


def _waited_s() -> dict[str, float]:
    """Return the seconds that each thread has waited since it began; empty where the system does
    not tell.
    """
    waited_s = {}
    for statistics_file in _THREADS.glob("*/schedstat"):
        try:
            waited_s[statistics_file.parent.name] = (
                int(statistics_file.read_text().split()[1]) / 1e9
            )
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended since the listing
            continue
    return waited_s


# Settings.

_MOST_THREADS = 4096  # many more, and OpenMP ends the process for want of memory


@contextmanager
def fixed_threads(threads: int) -> Iterator[None]:
    """Compute with ``threads`` CPU threads inside the block, then with as many as before, also
    after an exception.

    Raises TypeError or ValueError when ``threads`` is no whole number from 1 to 4,096.

    >>> with fixed_threads(1):
    ...     torch.get_num_threads()
    1

    Lesson 15.
    """
    threads = whole_number("threads", threads, at_most=_MOST_THREADS)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class AllocatorSetting(Record):
    """What :func:`steady_allocator` found and did: the C library, whether a setting was made, what
    follows.
    """

    library: str
    changed: bool
    effect: str


def steady_allocator() -> AllocatorSetting:
    """Make the C library keep freed memory, so that a large CPU tensor does not start on fresh
    pages every time.

    By default glibc maps each large block anew and gives it back when freed; writing a fresh page
    faults, and page faults, not arithmetic, then decide the time of an element-wise operation. Here
    ``mallopt`` sets M_MMAP_MAX to 0 (no block is mapped) and M_TRIM_THRESHOLD to -1 (the heap never
    shrinks) for the rest of the process: see mallopt(3). Call it before the first tensor. The first
    calls after it still fault, until the heap has its shape (up to eight on glibc 2.36), and the
    process keeps the memory of its peak. Calling it again changes nothing. Where the C library is
    not glibc, nothing is set, and the result says so.

    Raises RuntimeError when glibc refuses the setting.

    >>> steady_allocator().effect  # doctest: +SKIP
    'freed memory stays with the process'

    Lesson 01.
    """
    library = _glibc()
    if library is None:
        return AllocatorSetting(sys.platform, False, "not glibc: unchanged")
    for name, parameter, value in (("M_MMAP_MAX", -4, 0), ("M_TRIM_THRESHOLD", -1, -1)):
        if library.mallopt(parameter, value) != 1:
            raise RuntimeError(
                f"glibc refused mallopt({name}, {value}); timings of large tensors hold page faults"
            )
    library.gnu_get_libc_version.restype = ctypes.c_char_p
    version = library.gnu_get_libc_version().decode()
    return AllocatorSetting(f"glibc {version}", True, "freed memory stays with the process")


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None


# One function.

_STABLE_RUNS = 8
_FEWEST_RUNS = 2
_PRECISION = 0.02
_DRIFT = 0.05
_LOAD = 1.25


class Timing(Record):
    """How long one call of a function takes, in seconds; ``reason`` says why the timing is not
    ``stable``.

    ``waiting_share`` is the part of the time in which a thread of this process had no processor;
    None if unknown.
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


class CudaTiming(Timing):
    """A timing on CUDA; ``device_median_s`` is the same runs between two CUDA events on the current
    stream.
    """

    device_median_s: float


def measure(
    fn: Function,
    *,
    budget_s: float = 1.0,
    device: str | torch.device | None = None,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Return the time of a call of ``fn``: cold, and then warm until the timing is stable or the
    budget is spent.

    The docstring of :mod:`helpers.timing` states the boundary. ``cold_s`` is the first call made
    here, timed alone. Then come warm-up runs, which choose ``calls_per_run`` so that a run takes at
    least 100 us on a CPU and 2 ms on CUDA, far above the clock's resolution, and the runs that
    count: ``minimum_s``, ``median_s`` and ``iqr_s`` (75th less 25th percentile, linear
    interpolation) are seconds a call over ``runs`` runs. ``budget_s`` is for what follows the cold
    call; the warm-up, a last run and two runs in any case may overrun it. ``fn`` is called an
    unknown number of times.

    ``stable`` means: at least 8 runs over a tenth of the budget; the distribution-free 95 %
    interval of the median is within 2 % of it; the medians of the first and the second half differ
    by at most 5 %; the median is at most 1.25 times the minimum; no thread of this process waited
    for a processor longer than a tenth of the time (known on Linux only). This is looked at
    whenever the runs have grown by half since the last look, so that luck ends few measurements.
    Else ``reason`` says which failed first; nothing is raised, no warning is given.

    ``device`` is what is waited for at both ends of a run, ``"cpu"`` or ``"cuda"``; by default the
    current CUDA device where this process has used CUDA, else the CPU. Another accelerator, such as
    MPS, is not waited for, so ``fn`` has to do it. On CUDA a :class:`CudaTiming` comes back.
    ``clock`` is for tests.

    Raises TypeError or ValueError for a bad argument, RuntimeError for CUDA where there is none; an
    exception in ``fn`` passes unchanged.

    >>> timing = measure(lambda: sum(range(1000)), budget_s=0.05)
    >>> 0 < timing.minimum_s <= timing.median_s
    True

    Lesson 00.
    """
    check_function("fn", fn)
    number("budget_s", budget_s, above=0)
    check_clock(clock)
    chosen = chosen_device(device)
    cold_s = run(fn, 1, chosen, clock).host_s
    chosen = chosen or device_in_use()
    begin_s, read_waiting_share = clock(), watch_waiting(clock)
    calls, warm = calibrate(fn, chosen, clock)
    # A warm-up that alone took the whole budget counts as a run: another one would cost as much
    # again.
    runs = [warm] if calls == 1 and clock() - begin_s >= latest_s(budget_s) else []
    next_look = _STABLE_RUNS
    while True:
        runs.append(run(fn, calls, chosen, clock))
        spent_s = clock() - begin_s
        clock_stands_still = spent_s == 0 and len(runs) >= _STABLE_RUNS
        is_spent = spent_s >= latest_s(budget_s) and len(runs) >= _FEWEST_RUNS
        is_over = is_spent or clock_stands_still
        if is_over or (len(runs) >= next_look and spent_s >= earliest_s(budget_s)):
            waiting_share = read_waiting_share()
            reason = why_disturbed(waiting_share) or _why_unstable([timed.host_s for timed in runs])
            if is_over or not reason:
                break
            next_look = math.ceil(1.5 * len(runs))
    calls_s = np.array([timed.host_s for timed in runs]) / calls
    lower_s, median_s, upper_s = np.quantile(calls_s, [0.25, 0.5, 0.75]).tolist()
    timing = Timing(
        cold_s=cold_s,
        minimum_s=float(calls_s.min()),
        median_s=median_s,
        iqr_s=upper_s - lower_s,
        runs=len(runs),
        calls_per_run=calls,
        threads=torch.get_num_threads(),
        device=str(chosen),
        waiting_share=waiting_share,
        stable=not reason,
        reason=reason,
    )
    if chosen.type == "cpu":
        return timing
    device_median_s = float(np.median([timed.device_s for timed in runs])) / calls
    return derived(CudaTiming, timing, device_median_s=device_median_s)


def _why_unstable(runs_s: Sequence[float]) -> str:
    """Return the first criterion of :func:`measure` that the runs fail, for a student; "" when they
    are stable.
    """
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
        return (
            f"the second half of the runs differs from the first by {cell('share', drift)}: "
            f"{ADVICE}"
        )
    if median_s > _LOAD * min(runs_s):
        return (
            f"the median is {median_s / min(runs_s):.2f} times the minimum, so something disturbs "
            f"it: {ADVICE}"
        )
    return ""


def too_few(unit: str, fitted: int, needed: int, run_s: float) -> str:
    """Say that ``fitted`` of the ``needed`` runs or rounds fitted, and which budget holds them
    all.
    """
    enough_s = 1.2 * needed * run_s
    rounded_s = f"{math.ceil(enough_s):,}" if enough_s > 10 else f"{enough_s:.2g}"
    return (
        f"{fitted} {unit} fitted in the budget, {needed} are needed: "
        f"give a budget_s of {rounded_s} or more"
    )


def imprecise(quantity: str, known_share: float, wanted_share: float) -> str:
    """Say that ``quantity`` is known to a share of itself that is larger than the wanted one."""
    known_text = (
        cell("share", known_share) if known_share < 1 else f"a factor of {1 + known_share:.3g}"
    )
    return (
        f"{quantity} is known to {known_text} only, not to {cell('share', wanted_share)}: {ADVICE}"
    )


def median_interval(values: Sequence[float], alpha: float) -> tuple[float, float]:
    """Return the order-statistic interval that misses the population's median with probability
    alpha at most.
    """
    rank = _rank(len(values), alpha)
    ordered = np.sort(values)
    return (float(ordered[rank - 1]), float(ordered[-rank])) if rank else (0.0, math.inf)


@functools.cache
def _rank(count: int, alpha: float) -> int:
    """Return the largest k for which fewer than k heads in ``count`` fair tosses are as rare as
    alpha / 2.
    """
    tail = 0.0
    for heads in itertools.count():
        log_ways = math.lgamma(count + 1) - math.lgamma(heads + 1) - math.lgamma(count - heads + 1)
        tail += math.exp(log_ways - count * math.log(2))
        if tail > alpha / 2:
            break
    return heads
