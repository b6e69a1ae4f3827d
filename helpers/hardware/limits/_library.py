"""Rates of the library here: products and convolutions by type of number, a call, a launch, a bus.

Lesson 02.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from helpers.hardware.limits._passes import fastest_s

CPU_TYPES = ("float32", "float64", "bfloat16", "float16", "int8")
CUDA_TYPES = ("float32", "tfloat32", "float64", "bfloat16", "float16")

ALWAYS = "float32"

_TRIAL_SIDE, _FIRST_SIDE = 64, 256
_LARGEST_SIDE = {"cpu": 4096, "cuda": 16384}
# Of a convolution. In smaller batches PyTorch multiplies matrices itself; larger results are in new
# pages each time.
_IMAGES, _ROWS = 16, 8
_ABSENT = (RuntimeError, TypeError, AttributeError)
_CALLS, _LAUNCHES = 200, 500
_BUS_BYTES, _BUS_S = 2**26, 0.1

# from a side: what runs, and its operations
Work = Callable[[int], tuple[Callable[[], object], int]]


@dataclass(frozen=True)
class Budget:
    """Seconds for all runs of one size of matrix (``size_s``), and the longest product
    (``call_s``).
    """

    size_s: float = 0.08
    call_s: float = 0.06


def flops_of_product(side: int) -> int:
    """Return the operations of a product of two square matrices: ``side``^3 MACs of two each.

    Lesson 02.
    """
    return 2 * side**3


def product_flops(name: str, device: torch.device, *, budget: Budget) -> float | str:
    """Return FLOP/s of the library's fastest product of two square matrices of the type ``name``,
    or why there is none.

    Sides double from 256 until one product would take over ``budget.call_s``; the fastest run of
    all counts. "tfloat32" is float32 whose products CUDA may round to TF32, "float32" forbids that;
    a product of int8 is summed in int32. The reason is a line for a reader: the device has no
    product of this type, or one of side 256 alone would take over four times ``budget.call_s``
    (float32 is timed also then: a device without it is none, and a busy machine must not look like
    one). Lesson 02.
    """
    dtype = torch.float32 if name == "tfloat32" else getattr(torch, name)

    def product(side: int) -> tuple[Callable[[], object], int]:
        a, b = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
        multiply, of_sums = (torch._int_mm, torch.int32) if name == "int8" else (torch.mm, dtype)
        out = torch.empty(side, side, dtype=of_sums, device=device)
        return lambda: multiply(a, b, out=out), flops_of_product(side)

    with _precision("high" if name == "tfloat32" else "highest"):
        return _fastest(
            product, f"matrix product of {name}", device, budget, power=3, always=name == ALWAYS
        )


def convolution_flops(name: str, *, budget: Budget) -> float | str:
    """Return FLOP/s of the library's fastest convolution of a CPU in the type ``name``, or why
    there is none.

    Its kernel is of 1 x 1, so that no program saves multiplications, and its numbers of channels
    double from 256. Lesson 02.
    """
    dtype = getattr(torch, name)

    def convolution(channels: int) -> tuple[Callable[[], object], int]:
        # (images, channels, rows, columns), in memory with the channels last
        x = torch.ones(_IMAGES, _ROWS, _ROWS, channels, dtype=dtype).permute(0, 3, 1, 2)
        weight = torch.ones(channels, channels, 1, 1, dtype=dtype)
        return lambda: torch.conv2d(x, weight), 2 * _IMAGES * _ROWS**2 * channels**2

    return _fastest(
        convolution, f"convolution of {name}", torch.device("cpu"), budget, power=2, always=False
    )


def _fastest(
    work: Work, operation: str, device: torch.device, budget: Budget, *, power: int, always: bool
) -> float | str:
    """Return the rate of ``work``, whose operations grow with this power of its side, or why there
    is none.
    """
    try:
        trial_s, flops = _work_s(work, _TRIAL_SIDE, device)
    except _ABSENT as error:
        return f"there is no {operation} here: {str(error).splitlines()[0]}"
    too_slow = trial_s * (_FIRST_SIDE / _TRIAL_SIDE) ** power > 4 * budget.call_s
    if too_slow and not always:
        return (
            f"a {operation} reaches {flops / trial_s / 1e9:.2g} GFLOP/s here, too slow to be timed "
            "in a probe"
        )
    return max(_rates(work, device, budget, power=power))


def _work_s(
    work: Work, side: int, device: torch.device, *, budget_s: float = 0.005
) -> tuple[float, int]:
    """Return the fastest of some warm runs, and the operations of one."""
    fn, flops = work(side)
    fn()
    return fastest_s(fn, device, budget_s=budget_s), flops


def _rates(work: Work, device: torch.device, budget: Budget, *, power: int) -> Iterator[float]:
    side = _FIRST_SIDE
    while True:
        try:
            taken_s, flops = _work_s(work, side, device, budget_s=budget.size_s)
        except torch.OutOfMemoryError:
            # on a device that others have filled the smaller products count
            if side == _FIRST_SIDE:
                raise
            return
        yield flops / taken_s
        side *= 2
        if side > _LARGEST_SIDE[device.type] or 2**power * taken_s > budget.call_s:
            return


@contextmanager
def _precision(name: str) -> Iterator[None]:
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)


def call_overhead_s(device: torch.device, *, runs: int = 50) -> float:
    """Return the seconds of one call of an operator on one element (``torch.add`` with ``out=``),
    fastest of ``runs``.

    On CUDA the host's time: the kernels are launched, and waited for only after the clock was read.
    Lesson 02.
    """
    operand, out = torch.ones(1, device=device), torch.ones(1, device=device)
    return min(_calls_s(operand, out) for _ in range(runs)) / _CALLS


def _calls_s(operand: torch.Tensor, out: torch.Tensor) -> float:
    _wait(operand.device)
    begin_s = time.perf_counter()
    for _ in range(_CALLS):
        torch.add(operand, operand, out=out)
    taken_s = time.perf_counter() - begin_s
    _wait(operand.device)
    return taken_s


def launch_s(device: torch.device) -> float:
    """Return the seconds of one kernel on one element of a CUDA ``device``, launched and waited
    for.

    Lesson 02.
    """
    operand, out = torch.ones(1, device=device), torch.ones(1, device=device)
    taken_s = []
    for _ in range(_LAUNCHES):
        begin_s = time.perf_counter()
        torch.add(operand, operand, out=out)
        _wait(device)
        taken_s.append(time.perf_counter() - begin_s)
    return min(taken_s)


def bus_bytes_per_s(device: torch.device, *, to_device: bool) -> float:
    """Return bytes a second between pinned memory of the host and a CUDA ``device``, one way.

    Lesson 01.
    """
    host = torch.ones(_BUS_BYTES, dtype=torch.uint8, pin_memory=True)
    device_buffer = torch.ones(_BUS_BYTES, dtype=torch.uint8, device=device)
    target, source = (device_buffer, host) if to_device else (host, device_buffer)
    copy = functools.partial(target.copy_, source, non_blocking=True)
    return _BUS_BYTES / fastest_s(copy, device, budget_s=_BUS_S)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
