"""The boundary of a timing: what one run is, what is waited for around it, and what else had the processor meanwhile.

Also what is set for a steadier measurement: the number of threads, and how the C library keeps memory.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from helpers._checks import real, whole_number
from helpers.results import Result, cell

Function = Callable[[], object]
Clock = Callable[[], float]

# A CPU run is 1,000 ticks of the coarsest perf_counter (100 ns); a CUDA run some 200 synchronisations.
_RUN_S = {"cpu": 1e-4, "cuda": 2e-3}
_REPEATED_BELOW_S = 1e-2
_MOST_CALLS = 100_000
_FEWEST_ROUNDS, _MOST_ROUNDS = 5, 500


@dataclass(frozen=True)
class Run:
    """The seconds of one run: on the host's clock, and between two CUDA events (on a CPU the same number)."""

    host_s: float
    device_s: float


def run(fn: Function, calls: int, device: torch.device | None, clock: Clock) -> Run:
    """Call ``fn`` ``calls`` times within the boundary that the package's docstring states.

    ``device`` None, for a first call, means whatever CUDA device is in use by the time it is waited for.
    """
    stream = torch.cuda.current_stream(device) if device is not None and device.type == "cuda" else None
    marks = [] if stream is None else [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    _synchronise(device)
    with _collector_off():
        start_s = clock()
        for mark in marks[:1]:
            mark.record(stream)
        for _ in itertools.repeat(None, calls):
            fn()
        for mark in marks[1:]:
            mark.record(stream)
        _synchronise(device)
        host_s = clock() - start_s
    if not host_s >= 0:
        raise ValueError(f"clock gave {start_s!r} and, later, a reading {host_s!r} after it; give one that never goes "
                         "back, such as time.perf_counter")  # fmt: skip
    return Run(host_s, marks[0].elapsed_time(marks[1]) / 1e3 if marks else host_s)


def calibrate(fn: Function, device: torch.device, clock: Clock) -> tuple[int, Run]:
    """Warm ``fn`` up; return how many calls make a run long enough for the clock, and the last such run."""
    calls, wanted_s = 1, _RUN_S[device.type]
    while True:
        last = run(fn, calls, device, clock)
        if last.host_s < _REPEATED_BELOW_S:  # so that one disturbed run does not end the search too early
            last = min(last, run(fn, calls, device, clock), key=lambda timed: timed.host_s)
        if last.host_s >= wanted_s or calls == _MOST_CALLS:
            return calls, last
        growth = 1.2 * wanted_s / last.host_s if last.host_s > 0 else math.inf
        calls = min(_MOST_CALLS, math.ceil(calls * min(10, growth)))


def rounds(budget_s: float, clock: Clock) -> Iterator[int]:
    """Count rounds until ``budget_s`` is spent: 5 in any case, 500 at most."""
    begin_s = clock()
    for done in range(_MOST_ROUNDS):
        if done >= _FEWEST_ROUNDS and clock() - begin_s >= budget_s:
            return
        yield done


def device_in_use() -> torch.device:
    """Return the current CUDA device where this process has used CUDA, else the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_initialized() else torch.device("cpu")


def chosen_device(device: str | torch.device | None) -> torch.device | None:
    """Return the device with its index, None for None; ValueError or RuntimeError for one that cannot be timed."""
    if device is None:
        return None
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        chosen = None
    if chosen is None or chosen.type not in _RUN_S:
        raise ValueError(f"device {str(device)!r} cannot be timed; give 'cpu' or 'cuda' (or 'cuda:1', ...)")
    if chosen.type == "cpu":
        return torch.device("cpu")
    if (chosen.index or 0) >= torch.cuda.device_count():
        raise RuntimeError(f"device {str(device)!r} is not here: this process sees {torch.cuda.device_count()} CUDA "
                           "devices; give 'cpu' or one of those")  # fmt: skip
    return torch.device("cuda", torch.cuda.current_device() if chosen.index is None else chosen.index)


def check_function(what: str, fn: object) -> None:
    """Raise TypeError when ``fn`` cannot be called; ``what`` names it."""
    if not callable(fn):
        hint = "; write lambda: a * b, not a * b" if isinstance(fn, torch.Tensor) else ""
        raise TypeError(f"{what} must be a function without arguments, not {type(fn).__name__}{hint}")


def check_clock(clock: object) -> None:
    """Raise TypeError when ``clock`` is no function, or when its readings are no numbers."""
    if not callable(clock):
        raise TypeError(f"clock={clock!r} is no function; give one that returns seconds, such as time.perf_counter")
    real("a reading of clock", clock())


@contextmanager
def _collector_off() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _synchronise(device: torch.device | None) -> None:
    waited_for = device_in_use() if device is None else device
    if waited_for.type == "cuda":
        torch.cuda.synchronize(waited_for)


# What a busy machine does to a timing.

ADVICE = "stop other programs or raise budget_s"
MOST_WAITING = 0.1

_THREADS = Path("/proc/self/task")


def watch_waiting(clock: Clock) -> Callable[[], float | None]:
    """Return a function that gives, from now on, the share of the time in which the unluckiest thread waited.

    A thread waits while it is ready to run and another program has its processor. The share is None where the
    system does not tell (only Linux does, in the second number of ``/proc/self/task/*/schedstat``, see proc(5)), and
    for a test's own clock, whose time no processor spends.
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
    return f"a thread waited for a processor during {cell('share', waiting_share)} of the time: {ADVICE}"


def _waited_s() -> dict[str, float]:
    """Return the seconds that each thread has waited since it began; empty where the system does not tell."""
    waited = {}
    for statistics in _THREADS.glob("*/schedstat"):
        try:
            waited[statistics.parent.name] = int(statistics.read_text().split()[1]) / 1e9
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended since the listing
            continue
    return waited


# Settings.

_MOST_THREADS = 4096  # many more, and OpenMP ends the process for want of memory


@contextmanager
def fixed_threads(threads: int) -> Iterator[None]:
    """Compute with ``threads`` CPU threads inside the block, then with as many as before, also after an exception.

    Raises TypeError or ValueError when ``threads`` is no whole number from 1 to 4,096. Lesson 02.
    """
    threads = whole_number("threads", threads, at_most=_MOST_THREADS)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class AllocatorSetting(Result):
    """What :func:`steady_allocator` found and did: the C library, whether a setting was made, what follows."""

    library: str
    changed: bool
    effect: str


def steady_allocator() -> AllocatorSetting:
    """Make the C library keep freed memory, so that a large CPU tensor does not start on fresh pages every time.

    By default glibc maps each large block anew and gives it back when freed; writing a fresh page faults, and page
    faults, not arithmetic, then decide the time of an element-wise operation. Here ``mallopt`` sets M_MMAP_MAX to 0 (no
    block is mapped) and M_TRIM_THRESHOLD to -1 (the heap never shrinks) for the rest of the process: see mallopt(3).
    Call it before the first tensor. The first calls after it still fault, until the heap has its shape (up to eight on
    glibc 2.36), and the process keeps the memory of its peak. Calling it again changes nothing. Where the C library is
    not glibc, nothing is set, and the result says so.

    Raises RuntimeError when glibc refuses the setting. Lesson 01.
    """
    library = _glibc()
    if library is None:
        return AllocatorSetting(sys.platform, False, "not glibc: unchanged")
    for name, parameter, value in (("M_MMAP_MAX", -4, 0), ("M_TRIM_THRESHOLD", -1, -1)):
        if library.mallopt(parameter, value) != 1:
            raise RuntimeError(f"glibc refused mallopt({name}, {value}); timings of large tensors hold page faults")
    library.gnu_get_libc_version.restype = ctypes.c_char_p
    version = library.gnu_get_libc_version().decode()
    return AllocatorSetting(f"glibc {version}", True, "freed memory stays with the process")


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None
