"""The limits of a CUDA device, measured.

Written and compiled, and not run where the course has no GPU to run it on.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from helpers import native
from helpers.hardware._card import Gpu
from helpers.hardware._machine import machine_card
from helpers.hardware.limits import (
    _bandwidth as bandwidth,
    _chase as chase,
    _cpu as cpu,
    _levels as levels_of,
    _library as library,
)
from helpers.hardware.limits._levels import ProbedCache
from helpers.hardware.limits._passes import Key, Stage, run_in_passes
from helpers.hardware.limits._results import MachineLimits
from helpers.timing._runs import run

_LINE_BYTES = 128
_LEAST_BYTES, _LEAST_CURVE_BYTES = 2**14, 2**20
_OVERHEAD_SHARE = 0.2


def cuda_plan() -> cpu.ProbePlan:
    """Return the default plan with the types of numbers that a GPU multiplies."""
    return replace(
        cpu.ProbePlan(), per_octave=2, least_bytes=_LEAST_BYTES, types=library.CUDA_TYPES
    )


def measure_cuda(device: torch.device, plan: cpu.ProbePlan) -> MachineLimits:
    """Return the limits of the CUDA ``device``; one that is not measured is None, with a note."""
    begin_s, gpus = time.perf_counter(), machine_card().gpus
    gpu = gpus[device.index] if gpus else Gpu(str(device), "CUDA")
    named_levels = (ProbedCache("L2", gpu.l2_bytes, 1),) if gpu.l2_bytes else ()
    free_bytes, _ = torch.cuda.mem_get_info(device)
    most_bytes = min(plan.most_bytes, levels_of.largest_bytes(named_levels, 1, free_bytes))
    notes: list[str] = []
    values, versions = _latencies(device, plan, most_bytes, begin_s + plan.latency_s, notes)
    latencies = cpu.curve_of(values)
    levels = levels_of.curve_levels(latencies, 1)
    if named_levels:
        # the L1, where the curve shows one well below the L2 that the driver names
        least_bytes = named_levels[0].size_bytes / 8
        levels = (*(level for level in levels[:1] if level.size_bytes < least_bytes), *named_levels)
    else:
        notes.append(
            "the driver names no L2: the levels are read off the latency curve, good to a factor "
            "of two"
        )
    notes += levels_of.size_notes(levels, most_bytes, 1)
    reasons: dict[str, str] = {}
    stages: list[Stage] = [
        *_bandwidth_stages(device, plan, levels, most_bytes, notes),
        *cpu.product_stages(plan, device, reasons),  # of tensor cores, where there are any
        lambda: {("call",): library.call_overhead_s(device)},
        lambda: {("launch",): library.launch_s(device)},
        lambda: {("bus", "host_to_device"): 1 / library.bus_bytes_per_s(device, to_device=True)},
        lambda: {("bus", "device_to_host"): 1 / library.bus_bytes_per_s(device, to_device=False)},
    ]
    values |= run_in_passes(stages, end_s=begin_s + plan.whole_s, label="bandwidth and compute")
    return cpu.assemble_limits(
        str(device),
        values,
        levels=levels,
        memory=("device memory", gpu.memory_bytes),
        chase="CUDA C++" if latencies else "none",
        versions=versions,
        notes=[*notes, *reasons.values()],
    )


def _latencies(
    device: torch.device, plan: cpu.ProbePlan, most_bytes: int, end_s: float, notes: list[str]
) -> tuple[dict[Key, list[float]], dict[str, str]]:
    try:
        walk_s, compiler = cuda_walk(device)
    except native.NativeError as error:
        notes.append(f"no latency was measured: {error.problem.splitlines()[0]}")
        return {}, {}
    host = torch.zeros(most_bytes // 8, dtype=torch.int64).view(torch.uint64)

    def load_s(size_bytes: int) -> float:
        return walk_s(link_on_device(device, host, size_bytes))

    sizes = levels_of.grid(
        plan.least_bytes, most_bytes, per_octave=plan.per_octave, dense_until_bytes=most_bytes
    )
    whole_lines = [size // _LINE_BYTES * _LINE_BYTES for size in sizes]
    return cpu.latencies_at(whole_lines, load_s, end_s=end_s), {"chase": compiler}


def _bandwidth_stages(
    device: torch.device,
    plan: cpu.ProbePlan,
    levels: Sequence[ProbedCache],
    most_bytes: int,
    notes: list[str],
) -> list[Stage]:
    pool = bandwidth.pool(most_bytes, device)
    stages = cpu.curve_stages(pool, _LEAST_CURVE_BYTES, most_bytes, plan.kernel_s)
    for level in levels:
        if level.name != "L2":
            notes.append(
                f"{level.name}: no bandwidth, because PyTorch's kernels do not stay inside it"
            )
            continue
        size = min(most_bytes, level.size_bytes // 2)
        stages.append(functools.partial(cpu.triad_stage, level.name, pool, size, plan.kernel_s))
        if cpu.call_share(pool, size, budget_s=plan.kernel_s) > _OVERHEAD_SHARE:
            notes.append(
                f"{level.name}: the bandwidth is a lower bound, because launching takes long "
                "beside the data"
            )
    return stages


DECLARATION = "void chase(const uint64_t* next, uint64_t* state, uint64_t steps)"

_STEPS = 10_000
_RUNS = 5


def source() -> str:
    """Return the kernel's text."""
    return native.read_source(__package__, "chase.cu")


def cuda_walk(device: torch.device) -> tuple[Callable[[torch.Tensor], float], str]:
    """Return a function from a linked buffer on ``device`` (uint64) to the seconds of one load, and
    the compiler.

    Each call takes the fastest of its runs between two CUDA events, after one that does not count;
    every run goes on where the last one stopped, so that a buffer beyond the caches is not walked
    on lines that they still hold. Link the buffer anew before another call. Raises NativeError
    where the kernel cannot be compiled or loaded. Lesson 01.
    """
    cubin = native.compile_cuda(source(), architecture=native.gpu_architecture(device))
    kernel = cubin.load(device).function(DECLARATION)

    def walk_s(buffer: torch.Tensor) -> float:
        state = torch.zeros(1, dtype=torch.int64, device=device).view(torch.uint64)
        times_s = [
            run(
                lambda: kernel(buffer, state, _STEPS, grid=1, block=1), 1, device, time.perf_counter
            ).device_s
            for _ in range(1 + _RUNS)
        ]
        return min(times_s[1:]) / _STEPS

    return walk_s, cubin.compiler


def link_on_device(
    device: torch.device, buffer: torch.Tensor, working_set_bytes: int
) -> torch.Tensor:
    """Return a cycle over ``working_set_bytes``, linked in the host's ``buffer`` (uint64) and
    copied to ``device``.

    Its lines are then read once in the order of the walk: what fits into the caches is there, and
    of what does not they hold the end of the round, as after a whole one. Raises ValueError as
    :func:`helpers.hardware.limits._chase.link` does.
    """
    chain = torch.from_numpy(chase.link(buffer.numpy(), working_set_bytes, line_bytes=_LINE_BYTES))
    device_buffer = buffer[: working_set_bytes // 8].to(device)
    device_buffer.view(torch.int64).index_select(0, chain.to(device))
    return device_buffer
