"""What torch's profiler saw, as the classic table of a profiler: for any function, and for the step
of a model.
"""

from __future__ import annotations

import bisect
import html
import math
import os
import statistics
from collections import defaultdict
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from helpers import results, steps, trees
from helpers.checks import whole_number
from helpers.results import Record
from helpers.timing._runs import check_function, chosen_device, device_in_use

UNACCOUNTED = "(unaccounted)"
_CALL = "helpers.profiling: one call"
_BOOKKEEPING = ("[memory]", "ProfilerStep", "PyTorch Profiler")
_ENGINE = "autograd::engine::evaluate_function: "
_TITLES = ("name", "share", "time", "calls", "average", "minimum", "maximum")


class KernelTime(Record):
    """One row of the classic profile: all the calls of one kernel (on CUDA) or operator (on a CPU).

    Lesson 11.
    """

    share: float
    total_s: float
    calls: int
    average_s: float
    minimum_s: float
    maximum_s: float
    name: str


class KernelTable(Record):
    """The kernels or operators of ``runs`` calls of a function, the longest first; the shares add
    up to 1.

    ``whole_s`` is the time of those calls under the profiler, which adds about a microsecond an
    operator. The last row, "(unaccounted)", is what no row holds: Python on a CPU, the idle device
    on CUDA. It is negative where kernels ran at the same time. Lesson 11.
    """

    device: str
    threads: int
    runs: int
    whole_s: float
    kernels: tuple[KernelTime, ...]

    def __str__(self) -> str:
        return "\n".join([self._title(), *trees.rows_text(_TITLES, self._cells())])

    def _repr_html_(self) -> str:
        title = f"<b>{html.escape(self._title())}</b>"
        return (
            "<div "
            f"style='font-size:.9em;overflow-x:auto'>{title}"
            f"{trees.rows_html(_TITLES, self._cells())}</div>"
        )

    def _title(self) -> str:
        kind = "operators, time of their own" if self.device == "cpu" else "kernels"
        runs = "1 run" if self.runs == 1 else f"{self.runs:,} runs"
        return f"{kind}, {runs} on {self.device}: {results.cell('whole_s', self.whole_s)}"

    def _cells(self) -> list[tuple[tuple[str, ...], float]]:
        def text(row: KernelTime, name: str) -> str:
            return results.cell(name, getattr(row, name))

        times = ("calls", "average_s", "minimum_s", "maximum_s")
        return [
            (
                (
                    row.name,
                    text(row, "share"),
                    text(row, "total_s"),
                    *(text(row, name) if row.calls else "" for name in times),
                ),
                row.share,
            )
            for row in self.kernels
        ]


def kernel_table(
    fn: Callable[[], object], *, runs: int = 1, device: str | torch.device | None = None
) -> KernelTable:
    """Return the classic profile of ``fn``: share, time, calls, average, minimum and maximum of
    each kernel.

    ``fn`` is called once without being recorded (what happens only the first time is over), and
    then ``runs`` times under torch's profiler; the calls and times are those of all ``runs``. On a
    CPU a row is an operator or a ``record_function`` region, and its time what it spends itself,
    without the operators that it calls. On CUDA a row is a kernel, a copy or a fill, and its time
    the device's. ``device`` is by default the CUDA device where this process has used one, else the
    CPU. On a CPU only what runs in the calling thread, or in autograd's, is seen.

    Raises TypeError or ValueError for a bad argument, RuntimeError where a profiler is already
    running or CUDA is asked for and absent; an exception in ``fn`` passes unchanged.

    >>> table = kernel_table(lambda: torch.ones(8).exp(), runs=3, device="cpu")
    >>> sorted((row.name, row.calls) for row in table.kernels)[1:]
    [('aten::empty', 3), ('aten::exp', 3), ('aten::fill_', 3), ('aten::ones', 3)]

    Lesson 11.
    """
    check_function("fn", fn)
    runs = whole_number("runs", runs)
    chosen = chosen_device(device)
    _refuse_nested()
    fn()
    chosen = chosen or device_in_use()
    recordings = _record_calls(fn, chosen, runs)
    seconds: dict[str, list[float]] = defaultdict(list)
    on_cuda = chosen.type == "cuda"
    for event in (event for events, _ in recordings for event in events):
        if event.device_type != (DeviceType.CUDA if on_cuda else DeviceType.CPU):
            continue
        if not on_cuda:
            seconds[event.name].append(event.self_cpu_time_total / 1e6)
        elif not getattr(event, "is_user_annotation", False):
            seconds[event.name].append(event.time_range.elapsed_us() / 1e6)
    whole_s = sum(call_s for _, call_s in recordings)
    return KernelTable(
        device=str(chosen),
        threads=torch.get_num_threads(),
        runs=runs,
        whole_s=whole_s,
        kernels=table_rows(seconds, whole_s),
    )


def table_rows(seconds: dict[str, list[float]], whole_s: float) -> tuple[KernelTime, ...]:
    """Return the rows of the classic table from the seconds of every call, and the unaccounted part
    of the whole.
    """

    def row(name: str, total_s: float, calls_s: list[float]) -> KernelTime:
        return KernelTime(
            share=total_s / whole_s if whole_s else 0.0,
            total_s=total_s,
            calls=len(calls_s),
            average_s=total_s / len(calls_s) if calls_s else 0.0,
            minimum_s=min(calls_s, default=0.0),
            maximum_s=max(calls_s, default=0.0),
            name=name,
        )

    rows = [row(name, math.fsum(calls_s), calls_s) for name, calls_s in seconds.items()]
    rows.sort(key=lambda row: (-row.total_s, row.name))
    unaccounted_s = whole_s - math.fsum(row.total_s for row in rows)
    return (*rows, row(UNACCOUNTED, unaccounted_s, []))


def profile_operators(
    step: Callable[[], None], device: torch.device, count: int
) -> dict[tuple[str, str], tuple[int, float]]:
    """Return, by operator and phase, its calls and median seconds in ``count`` steps, and those of
    the rest.

    The seconds are the operator's own; on CUDA those of the kernels that it launches. The phase is
    "backward" for what autograd's engine calls, also what is computed again there. The rest,
    (UNACCOUNTED, "both"), is what a step takes beyond its operators.
    """
    _refuse_nested()
    calls: dict[tuple[str, str], int] = {}
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for events, whole_s in _record_calls(step, device, count):
        calls, own_s = _sum_by_operator(events, on_cuda=device.type == "cuda")
        own_s[UNACCOUNTED, "both"] = whole_s - sum(own_s.values())
        for row, spent_s in own_s.items():
            seconds[row].append(spent_s)
    return {
        row: (calls.get(row, 0), statistics.median([*spent_s, *[0.0] * (count - len(spent_s))]))
        for row, spent_s in seconds.items()
    }


def _sum_by_operator(
    events: list[Any], *, on_cuda: bool
) -> tuple[dict[tuple[str, str], int], dict[tuple[str, str], float]]:
    """Return the calls and the own seconds of each operator and phase in one step."""
    calls: dict[tuple[str, str], int] = defaultdict(int)
    own_s: dict[tuple[str, str], float] = defaultdict(float)
    for event in events:
        if event.device_type != DeviceType.CPU:
            continue
        name = event.name.removeprefix(_ENGINE)
        row = name, "backward" if _is_backward(event) else "forward"
        own_s[row] += (event.self_device_time_total if on_cuda else event.self_cpu_time_total) / 1e6
        # the engine's region holds the operator's own of the same name
        calls[row] += name == event.name
    return calls, own_s


def _is_backward(event: Any) -> bool:
    while event is not None:
        if event.name.startswith(_ENGINE):
            return True
        event = event.cpu_parent
    return False


def _record_calls(
    fn: Callable[[], object], device: torch.device, runs: int
) -> list[tuple[list[Any], float]]:
    """Return, for each of ``runs`` calls of ``fn``, the profiler's events and the seconds of the
    call.
    """
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize(device)
    # read at its first use: the profiler writes lines of its own else
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    # One cycle has nothing to add up, but without acc_events torch 2.11 and 2.12 warn that events
    # of cycles are lost.
    # Threads take turns: torch has one profiler for all of them, and the process ends where two
    # start it.
    with steps.ONE_AT_A_TIME, profile(activities=activities, acc_events=True) as recorder:
        for _ in range(runs):
            with record_function(_CALL):
                fn()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
    events = [event for event in recorder.events() if not event.name.startswith(_BOOKKEEPING)]
    calls = [
        event.time_range
        for event in events
        if event.name == _CALL and event.device_type == DeviceType.CPU
    ]
    calls.sort(key=attrgetter("start"))
    starts = [call.start for call in calls]
    events_of_calls: list[list[Any]] = [[] for _ in calls]
    for event in events:
        index = bisect.bisect_right(starts, event.time_range.start) - 1
        if index >= 0 and event.time_range.start <= calls[index].end and event.name != _CALL:
            events_of_calls[index].append(event)
    return [
        (call_events, call.elapsed_us() / 1e6)
        for call_events, call in zip(events_of_calls, calls, strict=True)
    ]


def _refuse_nested() -> None:
    if torch.autograd._profiler_enabled():
        raise RuntimeError(
            "a profiler is already running, and torch has only one at a time: call this outside of "
            "it"
        )
