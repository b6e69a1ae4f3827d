"""The calls of a step, as PyTorch's profiler writes them into a trace file."""

from __future__ import annotations

import bisect
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from helpers import storage
from helpers.checks import whole_number

Call = dict[str, Any]  # as in the file: "name", "ts", "dur" and "args"; and "label"
_WARM_STEPS = 2


def read_calls(path: str | os.PathLike[str]) -> list[Call]:
    """Return the operators' calls of a trace file in the order in which they begin, an outer call before its inner.

    A call is a dictionary: "name", "ts" (its beginning) and "dur" (its duration), both in microseconds, "label", the
    ``record_function`` around it ("" without one), and "args", the types and shapes of its inputs if the profiler noted
    them. Calls of autograd's nodes are among them. Lesson 13.
    """
    events = json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]
    calls = sorted(
        (event for event in events if event.get("cat") == "cpu_op"), key=lambda call: (call["ts"], -call["dur"])
    )
    labels = _outermost(event for event in events if event.get("cat") == "user_annotation")
    begins = [label["ts"] for label in labels]
    for call in calls:
        around = bisect.bisect_right(begins, call["ts"]) - 1
        is_inside = around >= 0 and call["ts"] < begins[around] + labels[around]["dur"]
        call["label"] = labels[around]["name"] if is_inside else ""
    return calls


def _outermost(labels: Iterable[Call]) -> list[Call]:
    """Return the labels that lie in no other, in their order; the optimizer sets one of its own inside the script's."""
    outer: list[Call] = []
    for label in sorted(labels, key=lambda label: (label["ts"], -label["dur"])):
        if not outer or label["ts"] >= outer[-1]["ts"] + outer[-1]["dur"]:
            outer.append(label)
    return outer


def trace_step(step: Callable[[int], object], *, steps: int = 1) -> list[Call]:
    """Return the calls of ``steps`` steps, one after the other, after two warm ones that are not in the trace.

    Lesson 13.
    """
    whole_number("steps", steps)
    for index in range(_WARM_STEPS):
        step(index)
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # read at its first use: the profiler writes lines of its own else
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as recording:
        for index in range(_WARM_STEPS, _WARM_STEPS + steps):
            step(index)
    with storage.temporary_folder("trace") as folder:
        recording.export_chrome_trace(str(folder / "trace.json"))
        return read_calls(folder / "trace.json")


def own_times(calls: Sequence[Call]) -> dict[str, float]:
    """Return the microseconds of each name's calls without the calls inside them, the longest first.

    Lesson 13.
    """
    own: Counter[str] = Counter()
    open_calls: list[Call] = []
    for call in calls:
        while open_calls and open_calls[-1]["ts"] + open_calls[-1]["dur"] <= call["ts"]:
            open_calls.pop()
        own[call["name"]] += call["dur"]
        if open_calls:
            own[open_calls[-1]["name"]] -= call["dur"]
        open_calls.append(call)
    return dict(own.most_common())


def takes_float64(call: Call) -> bool:
    """Return whether an input of a call is a float64 tensor with a shape; a Python number is none. Lesson 13."""
    given = call["args"]
    types, shapes = given.get("Input type", []), given.get("Input Dims", [])
    return any(kind == "double" and shape for kind, shape in zip(types, shapes, strict=True))
