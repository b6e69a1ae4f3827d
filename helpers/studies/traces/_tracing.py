"""The calls of a step, as PyTorch's profiler writes them into a trace file."""

from __future__ import annotations

import bisect
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile

from helpers import storage
from helpers.checks import members

Call = dict[str, Any]  # as in the file: "name", "ts", "dur" and "args"; and "label"
_WARM_STEPS = 2
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def read_calls(path: str | os.PathLike[str]) -> list[Call]:
    """Return the operators' calls of a trace file in the order in which they begin, an outer call
    before its inner.

    A call is a dictionary: "name", "ts" (its beginning) and "dur" (its duration), both in
    microseconds, "label", the ``record_function`` around it ("" without one), and "args", the types
    and shapes of its inputs if the profiler noted them. Calls of autograd's nodes are among them.
    Lesson 13.
    """
    events = _read_events(path)
    calls, labels = _sort_events(events, "cpu_op"), _outermost(events)
    begins = [label["ts"] for label in labels]
    for call in calls:
        around = bisect.bisect_right(begins, call["ts"]) - 1
        is_inside = around >= 0 and call["ts"] < begins[around] + labels[around]["dur"]
        call["label"] = labels[around]["name"] if is_inside else ""
    return calls


def _read_events(path: str | os.PathLike[str]) -> list[Call]:
    return json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]


def _sort_events(events: Iterable[Call], *categories: str) -> list[Call]:
    """Return the events of these ``categories`` in the order in which they begin, an outer one
    before its inner.
    """
    chosen = (event for event in events if event.get("cat") in categories)
    return sorted(chosen, key=lambda event: (event["ts"], -event["dur"]))


def _outermost(events: Iterable[Call]) -> list[Call]:
    """Return the labels that lie in no other, in their order; the optimizer sets one of its own
    inside the script's.
    """
    outer: list[Call] = []
    for label in _sort_events(events, "user_annotation"):
        if not outer or label["ts"] >= outer[-1]["ts"] + outer[-1]["dur"]:
            outer.append(label)
    return outer


def read_kernels(path: str | os.PathLike[str]) -> list[Call]:
    """Return the work of a GPU, its kernels, copies and fills of memory, from a trace file in the
    order of their beginnings.

    They are dictionaries as in :func:`read_calls`. The list is empty for a trace without a GPU.
    Lesson 13.
    """
    return _sort_events(_read_events(path), *_ON_GPU)


def idle_share(kernels: Sequence[Call]) -> float:
    """Return the part of the time, from the first kernel to the end of the last, in which no kernel
    runs.

    Kernels come in the order of their beginnings, and two that run at the same time count once.
    Raises ValueError for no kernels and for kernels that take no time.

    >>> idle_share([{"ts": 0, "dur": 2}, {"ts": 1, "dur": 2}, {"ts": 8, "dur": 2}])
    0.5

    Lesson 13.
    """
    kernels = members("kernels", kernels, "kernels, as read_kernels() returns them", kind=Mapping)
    if not kernels:
        raise ValueError("no kernels; give a trace of a step that ran on a GPU")
    begin, idle_us = kernels[0]["ts"], 0.0
    end = begin + kernels[0]["dur"]
    for kernel in kernels[1:]:
        idle_us += max(0.0, kernel["ts"] - end)
        end = max(end, kernel["ts"] + kernel["dur"])
    if end == begin:
        raise ValueError(
            "the kernels take no time; give a trace whose times have fractions of a microsecond"
        )
    return idle_us / (end - begin)


def trace_step(
    step: Callable[[int], object], *, read: Callable[[Path], list[Call]] = read_calls
) -> list[Call]:
    """Return the calls that ``read`` finds in the trace of one step, after two warm ones that are
    not in the trace.

    These are the calls of operators, or with :func:`read_kernels` what the GPU ran. Lesson 13.
    """
    for index in range(_WARM_STEPS):
        step(index)
    # read at its first use: the profiler writes lines of its own else
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    # of the CPU, and of a GPU where there is one
    with profile(record_shapes=True, acc_events=True) as recording:
        step(_WARM_STEPS)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the last kernels end within the trace
    with storage.temporary_folder("trace") as folder:
        recording.export_chrome_trace(str(folder / "trace.json"))
        return read(folder / "trace.json")


def own_times(calls: Sequence[Call]) -> dict[str, float]:
    """Return the microseconds of each name's calls without the calls inside them, the longest
    first.

    Lesson 13.
    """
    self_us: Counter[str] = Counter()
    open_calls: list[Call] = []
    for call in calls:
        while open_calls and open_calls[-1]["ts"] + open_calls[-1]["dur"] <= call["ts"]:
            open_calls.pop()
        self_us[call["name"]] += call["dur"]
        if open_calls:
            self_us[open_calls[-1]["name"]] -= call["dur"]
        open_calls.append(call)
    return dict(self_us.most_common())


def takes_float64(call: Call) -> bool:
    """Return whether an input of a call is a float64 tensor with a shape; a Python number is none.

    Lesson 13.
    """
    arguments = call["args"]
    types, shapes = arguments.get("Input type", []), arguments.get("Input Dims", [])
    return any(kind == "double" and shape for kind, shape in zip(types, shapes, strict=True))
