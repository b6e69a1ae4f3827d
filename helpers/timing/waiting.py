"""How long the threads of this process were ready to run and had no processor: what a busy machine does to a timing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from helpers.results import cell
from helpers.timing.reasons import ADVICE
from helpers.timing.runs import Clock

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
