"""The pointer chase of :mod:`helpers.hardware.limits.chase` on a CUDA device: one thread, one load after another.

Written for CUDA C++, compiled and counted where there is no GPU. The latency of a GPU's load is seen by one thread of
one warp, with nothing to hide it; a page of device memory is 2 MiB, so the walk of its page table is rare. Lesson 01.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from helpers import native
from helpers.hardware.limits import chase
from helpers.timing.runs import run

DECLARATION = "void chase(const uint64_t* next, uint64_t* state, uint64_t steps)"

_STEPS = 10_000
_RUNS = 5


def source() -> str:
    """Return the kernel's text."""
    return native.read_source(__package__, "chase.cu")


def cuda_walk(device: torch.device) -> tuple[Callable[[torch.Tensor], float], str]:
    """Return a function from a linked buffer on ``device`` (uint64) to the seconds of one load, and the compiler.

    Each call takes the fastest of its runs between two CUDA events, after one that does not count; every run goes on
    where the last one stopped, so that a buffer beyond the caches is not walked on lines that they still hold. Link
    the buffer anew before another call. Raises NativeError where the kernel cannot be compiled or loaded. Lesson 01.
    """
    cubin = native.compile_cuda(source(), architecture=native.gpu_architecture(device))
    kernel = cubin.load(device).function(DECLARATION)

    def walk_s(buffer: torch.Tensor) -> float:
        state = torch.zeros(1, dtype=torch.int64, device=device).view(torch.uint64)
        times_s = [run(lambda: kernel(buffer, state, _STEPS, grid=1, block=1), 1, device, time.perf_counter).device_s
                   for _ in range(1 + _RUNS)]  # fmt: skip
        return min(times_s[1:]) / _STEPS

    return walk_s, cubin.compiler


def linked_on(device: torch.device, buffer: torch.Tensor, working_set_bytes: int, *, line_bytes: int) -> torch.Tensor:
    """Return a cycle over ``working_set_bytes``, linked in the host's ``buffer`` (uint64) and copied to ``device``.

    Its lines are then read once in the order of the walk: what fits into the caches is there, and of what does not
    they hold the end of the round, as after a whole one. Raises ValueError as
    :func:`helpers.hardware.limits.chase.link` does.
    For the library itself.
    """
    places = torch.from_numpy(chase.link(buffer.numpy(), working_set_bytes, line_bytes=line_bytes))
    there = buffer[: working_set_bytes // 8].to(device)
    there.view(torch.int64).index_select(0, places.to(device))
    return there
