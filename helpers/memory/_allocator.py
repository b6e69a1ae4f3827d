"""The CPU allocator's log: what it handed out and took back, as PyTorch's profiler reports it for
the profiled thread; and what a call takes from CUDA's.

A release of memory that was allocated before the profiler started is not reported, so a record
opens before what it is to see. What oneDNN or MKL take from the system themselves is not reported
either.
"""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch.autograd import profiler

from helpers import steps

_MARK = "helpers.memory:"


@dataclass
class AllocatorLog:
    """Allocations (positive) and releases (negative) in bytes, in order, cut into windows by
    marks.
    """

    marks: int = 0
    _windows: dict[str, list[int]] = field(default_factory=dict)

    def mark(self, name: str) -> None:
        """Open the window ``name``: what follows belongs to it, until the next mark."""
        self.marks += 1
        with profiler.record_function(_MARK + name):
            pass

    @contextmanager
    def recorded(self, name: str) -> Iterator[None]:
        """Let the window ``name`` have what happens inside the context, also before an
        exception.
        """
        self.mark(name)
        try:
            yield
        finally:
            self.mark("between")

    def window(self, name: str) -> list[int]:
        """Return the changes after the mark ``name``, once the record is closed."""
        return self._windows[name]


@dataclass(frozen=True)
class Usage:
    """Bytes over the level at the start: the most at any moment, and what is left at the end."""

    peak_bytes: int
    kept_bytes: int


def usage(changes: list[int]) -> Usage:
    """Return the peak and the end of a row of allocations and releases; the peak is at least 0."""
    levels = list(itertools.accumulate(changes, initial=0))
    return Usage(peak_bytes=max(levels), kept_bytes=levels[-1])


@contextmanager
def record_allocations() -> Iterator[AllocatorLog]:
    """Record this thread's CPU allocations; the record is filled when the context closes.

    Raises RuntimeError when a PyTorch profiler is already running, since there can be only one.
    """
    with steps.ONE_AT_A_TIME:
        if torch.autograd._profiler_enabled():
            raise RuntimeError(
                "a PyTorch profiler is running, and there can be only one: leave it before "
                "measuring memory"
            )
        # Kineto writes lines of its own to stderr, and reads its level once, at its first use.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        log = AllocatorLog()
        with profiler.profile(use_kineto=True, profile_memory=True) as profile:
            yield log
        log._windows.update(_cut_windows(profile.kineto_results.experimental_event_tree()))


def _cut_windows(roots: list) -> dict[str, list[int]]:
    """Return the changes in bytes after each mark, in the order of time."""
    events, pending = [], list(roots)
    while pending:
        events.append(pending.pop())
        pending.extend(events[-1].children)
    windows: dict[str, list[int]] = {}
    changes: list[int] = []
    for event in sorted(events, key=operator.attrgetter("start_time_ns")):
        if event.name.startswith(_MARK):
            changes = windows.setdefault(event.name.removeprefix(_MARK), [])
        elif event.tag.name == "Allocation" and event.extra_fields.device.type == "cpu":
            changes.append(event.extra_fields.alloc_size)
    return windows


def cuda_usage(call: Callable[[], object], device: torch.device) -> tuple[Usage, object]:
    """Return the bytes that ``call()`` took from the CUDA caching allocator, and the value that it
    returned.
    """
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before_bytes = torch.cuda.memory_allocated(device)
    value = call()
    torch.cuda.synchronize(device)
    return Usage(
        peak_bytes=torch.cuda.max_memory_allocated(device) - before_bytes,
        kept_bytes=torch.cuda.memory_allocated(device) - before_bytes,
    ), value
