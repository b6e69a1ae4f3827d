"""The most floating-point operations a second that matrix products reach here, by type of number. Lesson 02."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from helpers.timing._runs import Function, calibrate, run

CPU_TYPES = ("float32", "float64", "bfloat16", "float16")
CUDA_TYPES = ("float32", "tfloat32", "float64", "bfloat16", "float16")

ALWAYS = "float32"

_TRIAL_SIDE, _FIRST_SIDE = 64, 256
_LARGEST_SIDE = {"cpu": 4096, "cuda": 16384}


@dataclass(frozen=True)
class Budget:
    """Seconds for all runs of one size of matrix (``size_s``), and the longest product (``call_s``)."""

    size_s: float = 0.08
    call_s: float = 0.06


def flops_of_product(side: int) -> int:
    """Return the operations of a product of two square matrices: ``side``^3 MACs of two each. Lesson 02."""
    return 2 * side**3


def peak_flops(name: str, device: torch.device, *, budget: Budget) -> float | str:
    """Return FLOP/s of the fastest product of two square matrices of the type ``name``, or why there is none.

    Sides double from 256 until one product would take over ``budget.call_s``; the fastest run of all counts. "tfloat32"
    is float32 whose products CUDA may round to TF32, "float32" forbids that. The reason is a line for a reader: the
    device has no product of this type, or one of side 256 alone would take over four times ``budget.call_s`` (float32
    is timed also then: a device without it is none, and a busy machine must not look like one). Lesson 02.
    """
    dtype = torch.float32 if name == "tfloat32" else getattr(torch, name)
    with _precision("high" if name == "tfloat32" else "highest"):
        try:
            trial_s = _product_s(_TRIAL_SIDE, dtype, device)
        except (RuntimeError, TypeError) as error:
            return f"there is no matrix product of {name} here: {str(error).splitlines()[0]}"
        too_slow = trial_s * (_FIRST_SIDE / _TRIAL_SIDE) ** 3 > 4 * budget.call_s
        if too_slow and name != ALWAYS:
            return (f"a matrix product of {name} reaches {flops_of_product(_TRIAL_SIDE) / trial_s / 1e9:.2g} GFLOP/s "
                    "here, too slow to be timed in a probe")  # fmt: skip
        return max(_rates(dtype, device, budget))


def _product_s(side: int, dtype: torch.dtype, device: torch.device, *, budget_s: float = 0.005) -> float:
    """Return the fastest of some warm products."""
    a, b, out = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(3))
    torch.mm(a, b, out=out)
    return fastest_s(lambda: torch.mm(a, b, out=out), device, budget_s=budget_s)


def _rates(dtype: torch.dtype, device: torch.device, budget: Budget) -> Iterator[float]:
    side = _FIRST_SIDE
    while True:
        try:
            taken_s = _product_s(side, dtype, device, budget_s=budget.size_s)
        except torch.OutOfMemoryError:  # on a device that others have filled the smaller products count
            if side == _FIRST_SIDE:
                raise
            return
        yield flops_of_product(side) / taken_s
        side *= 2
        if side > _LARGEST_SIDE[device.type] or 8 * taken_s > budget.call_s:
            return


@contextmanager
def _precision(name: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def call_overhead_s(device: torch.device, *, calls: int = 200, runs: int = 50) -> float:
    """Return the seconds of one call of an operator on one element (``torch.add`` with ``out=``), fastest of ``runs``.

    On CUDA the host's time: the kernels are launched, and waited for only after the clock was read. Lesson 02.
    """
    one, out = torch.ones(1, device=device), torch.ones(1, device=device)
    return min(_calls_s(one, out, calls) for _ in range(runs)) / calls


def _calls_s(one: torch.Tensor, out: torch.Tensor, calls: int) -> float:
    _wait(one.device)
    begin_s = time.perf_counter()
    for _ in range(calls):
        torch.add(one, one, out=out)
    taken_s = time.perf_counter() - begin_s
    _wait(one.device)
    return taken_s


def launch_s(device: torch.device, *, runs: int = 500) -> float:
    """Return the seconds of one kernel on one element of a CUDA ``device``, launched and waited for. Lesson 02."""
    one, out = torch.ones(1, device=device), torch.ones(1, device=device)
    taken_s = []
    for _ in range(runs):
        begin_s = time.perf_counter()
        torch.add(one, one, out=out)
        _wait(device)
        taken_s.append(time.perf_counter() - begin_s)
    return min(taken_s)


def bus_bytes_per_s(device: torch.device, *, to_device: bool, size_bytes: int = 2**26, budget_s: float = 0.1) -> float:
    """Return bytes a second between pinned memory of the host and a CUDA ``device``, one way. Lesson 01."""
    host = torch.ones(size_bytes, dtype=torch.uint8, pin_memory=True)
    there = torch.ones(size_bytes, dtype=torch.uint8, device=device)
    into, source = (there, host) if to_device else (host, there)
    return size_bytes / fastest_s(lambda: into.copy_(source, non_blocking=True), device, budget_s=budget_s)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


TOLERANCE = 0.1

Key = tuple[Hashable, ...]
Stage = Callable[[], Mapping[Key, float]]

_FEWEST_RUNS = 3
_EXTRA_PASSES = 2


def fastest_s(fn: Function, device: torch.device, *, budget_s: float) -> float:
    """Return the seconds of one call of ``fn``, the fastest of as many runs as ``budget_s`` holds (three at least).

    A run is that of :mod:`helpers.timing`; on CUDA its time is the one between two CUDA events. Lesson 02.
    """
    calls, first = calibrate(fn, device, time.perf_counter)
    fastest, end_s = first.device_s, time.perf_counter() + budget_s
    runs = 1
    while runs < _FEWEST_RUNS or time.perf_counter() < end_s:
        fastest = min(fastest, run(fn, calls, device, time.perf_counter).device_s)
        runs += 1
    return fastest / calls


def agree(times_s: Sequence[float]) -> bool:
    """Return whether the two smallest of the times differ by at most a tenth; one time alone agrees with nothing."""
    smallest = sorted(times_s)[:2]
    return len(smallest) == 2 and smallest[1] <= (1 + TOLERANCE) * smallest[0]


def in_passes(
    stages: Sequence[Stage], *, end_s: float, track: Callable[[Iterable[Stage]], Iterable[Stage]]
) -> dict[Key, list[float]]:
    """Return what the stages gave, one value a pass: two passes over all, two more over what did not repeat.

    Passes are apart in time, so that a disturbance meets one of them. Whatever the time, each stage runs once; no
    further one begins after ``end_s`` on the clock of ``time.perf_counter``. ``track`` shows the progress of the first
    two passes.
    """
    values: dict[Key, list[float]] = {}

    def runs() -> Iterator[tuple[int, Stage]]:
        yield from enumerate(track([*stages, *stages]))
        for _ in range(_EXTRA_PASSES):
            yield from ((len(stages), stage) for stage in stages
                        if not all(agree(values[key]) for key in keys.get(id(stage), ())))  # fmt: skip

    keys: dict[int, tuple[Key, ...]] = {}
    for place, stage in runs():
        if place >= len(stages) and time.perf_counter() > end_s:
            continue
        found = stage()
        keys[id(stage)] = tuple(found)
        for key, value in found.items():
            values.setdefault(key, []).append(value)
    return values
