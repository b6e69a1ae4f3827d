"""The CPU allocator's log: what it handed out and took back, as PyTorch's profiler reports it for
the profiled thread; and what a call takes from CUDA's.

A release of memory that was allocated before the profiler started is not reported, so a record
opens before what it is to see. What oneDNN or MKL take from the system themselves is not reported
either.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch.autograd import profiler

from helpers import steps

_MARK = "helpers.memory:"
# Kineto writes lines of its own to stderr, and reads its level once, at its first use.
_QUIET_KINETO = {"KINETO_LOG_LEVEL": "6"}


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
        yield from _record_allocations()


def _record_allocations() -> Iterator[AllocatorLog]:
    if torch.autograd._profiler_enabled():
        raise RuntimeError(
            "a PyTorch profiler is running, and there can be only one: leave it before measuring "
            "memory"
        )
    for name, value in _QUIET_KINETO.items():
        os.environ.setdefault(name, value)
    log = AllocatorLog()
    with profiler.profile(use_kineto=True, profile_memory=True) as profile:
        yield log
    log._windows.update(
        _cut_windows(_order_changes(profile.kineto_results.experimental_event_tree()))
    )


def _order_changes(roots: list) -> list[int | str]:
    """Return the changes in bytes and the names of the marks, in the order of time."""
    timed_items, pending = [], list(roots)
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        if event.tag.name == "Allocation" and event.extra_fields.device.type == "cpu":
            timed_items.append((event.start_time_ns, event.extra_fields.alloc_size))
        elif event.name.startswith(_MARK):
            timed_items.append((event.start_time_ns, event.name.removeprefix(_MARK)))
    return [item for _, item in sorted(timed_items, key=lambda pair: pair[0])]


def _cut_windows(items: list[int | str]) -> dict[str, list[int]]:
    windows: dict[str, list[int]] = {}
    changes: list[int] = []
    for item in items:
        if isinstance(item, str):
            changes = windows.setdefault(item, [])
        else:
            changes.append(item)
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
    peak_bytes = torch.cuda.max_memory_allocated(device) - before_bytes
    return Usage(
        peak_bytes=peak_bytes, kept_bytes=torch.cuda.memory_allocated(device) - before_bytes
    ), value
