"""Repetition in the probe: a time is the fastest of many runs, and each measurement is made in
passes apart in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import torch

from helpers import console
from helpers.timing._runs import Function, calibrate, run

TOLERANCE = 0.1

# A stage names its time: whose it is, and of which bytes, cache, type or bus.
Key = (
    tuple[Literal["latency"], int]
    | tuple[Literal["bandwidth"], int, str]
    | tuple[Literal["level", "core", "product", "convolution", "bus"], str]
    | tuple[Literal["call", "launch"]]
)
Stage = Callable[[], Mapping[Key, float]]

_FEWEST_RUNS = 3
_EXTRA_PASSES = 2


def fastest_s(fn: Function, device: torch.device, *, budget_s: float) -> float:
    """Return the seconds of one call of ``fn``, the fastest of as many runs as ``budget_s`` holds
    (three at least).

    A run is that of :mod:`helpers.timing`; on CUDA its time is the one between two CUDA events.
    Lesson 02.
    """
    calls, sample = calibrate(fn, device, time.perf_counter)
    runs_s, end_s = [sample.device_s], time.perf_counter() + budget_s
    while len(runs_s) < _FEWEST_RUNS or time.perf_counter() < end_s:
        runs_s.append(run(fn, calls, device, time.perf_counter).device_s)
    return min(runs_s) / calls


def agree(times_s: Sequence[float]) -> bool:
    """Return whether the two smallest of the times differ by at most a tenth; one time alone agrees
    with nothing.
    """
    smallest = sorted(times_s)[:2]
    return len(smallest) == 2 and smallest[1] <= (1 + TOLERANCE) * smallest[0]


def run_in_passes(stages: Sequence[Stage], *, end_s: float, label: str) -> dict[Key, list[float]]:
    """Return the values of the stages, one a pass: two passes over all, two more over those that
    did not repeat.

    Passes are apart in time, so that a disturbance meets one of them. Whatever the time, each stage
    runs once; no further one begins after ``end_s`` on the clock of ``time.perf_counter``. A
    progress bar called ``label`` shows the first two passes.
    """
    values: dict[Key, list[float]] = {}
    keys: dict[Stage, Iterable[Key]] = {}

    def run_stage(stage: Stage) -> None:
        keys[stage] = stage_values = stage()
        for key, value in stage_values.items():
            values.setdefault(key, []).append(value)

    bar = console.track([*stages, *stages], f"probe: {label}", unit="stage")
    for index, stage in enumerate(bar):
        if index < len(stages) or time.perf_counter() <= end_s:
            run_stage(stage)
    for stage in [*stages] * _EXTRA_PASSES:
        repeats = all(agree(values[key]) for key in keys[stage])
        if not repeats and time.perf_counter() <= end_s:
            run_stage(stage)
    return values
