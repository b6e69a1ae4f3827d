"""The limits of the processor at hand, measured: stages in passes, put together.

Called by :mod:`probe`.
"""

from __future__ import annotations

import datetime
import functools
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from helpers import console, native
from helpers.hardware._card import MachineCard
from helpers.hardware._machine import machine_card
from helpers.hardware.limits import (
    _bandwidth as bandwidth,
    _chase as chase,
    _levels as levels_of,
    _library as library,
    _multiply_adds as multiply_adds,
)
from helpers.hardware.limits._bandwidth import KERNELS
from helpers.hardware.limits._levels import ProbedCache, latency_point
from helpers.hardware.limits._passes import TOLERANCE, Key, Stage, agree, fastest_s, run_in_passes
from helpers.hardware.limits._results import (
    BandwidthPoint,
    LatencyPoint,
    MachineLimits,
    MemoryLevel,
)
from helpers.results import cell
from helpers.timing._runs import MOST_WAITING, watch_waiting

_CPU = torch.device("cpu")
_OVERHEAD_SHARE = 0.05
_CONVOLVED = ("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True)
class ProbePlan:
    """The budget of a probe: seconds until the last pass begins, the points of its curves, seconds
    a kernel.

    ``products`` is the budget of the matrix products, ``types`` what they are of, ``most_bytes``
    the largest buffer.
    """

    latency_s: float = 6.0
    whole_s: float = 14.0
    per_octave: int = 4
    least_bytes: int = 2**12
    kernel_s: float = 0.006
    most_bytes: int = levels_of.MOST_BYTES
    products: library.Budget = field(default_factory=library.Budget)
    types: Sequence[str] = library.CPU_TYPES


def measure_cpu(plan: ProbePlan) -> MachineLimits:
    """Return the limits of this processor with as many threads as PyTorch has now; some 7 seconds
    on 2 cores.

    What cannot be measured is None, with a note.
    """
    begin_s, waiting = time.perf_counter(), watch_waiting(time.perf_counter)
    threads, card = torch.get_num_threads(), machine_card()
    walker = chase.find_walker()
    named_levels = levels_of.card_levels(card)
    most_bytes = min(
        plan.most_bytes, levels_of.largest_bytes(named_levels, threads, _free_bytes(card))
    )
    line_bytes = (
        max((cache.line_bytes or 0 for cache in card.caches or ()), default=0) or chase.LINE_BYTES
    )
    values, notes = _latencies(
        walker, plan, named_levels, (most_bytes, line_bytes), begin_s + plan.latency_s
    )
    latencies = curve_of(values)
    levels = named_levels or levels_of.curve_levels(latencies, threads)
    if not named_levels:
        notes.append(_origin_note(levels))
    notes += levels_of.disagreements(named_levels, latencies)
    reasons: dict[str, str] = {}
    forms, compiler_reason = _forms()
    stages = [
        *_bandwidth_stages(plan, levels, most_bytes, threads, notes),
        *_compute_stages(plan, forms, threads, reasons),
    ]
    values |= run_in_passes(
        stages, end_s=begin_s + plan.whole_s, track=track("bandwidth and compute")
    )
    if named_levels and ("level", named_levels[-1].name) in values:
        inside_bytes_per_s = 1 / min(values["level", named_levels[-1].name])
        levels, narrowing_notes = levels_of.narrow_last_level(
            named_levels, inside_bytes_per_s, triads_of(values), threads
        )
        notes += narrowing_notes
    notes += reasons.values()
    notes += peak_notes(values, compiler_reason)
    notes += busy_notes(waiting())
    notes += levels_of.size_notes(levels, most_bytes, threads)
    measurement = Measured(
        "cpu", threads, walker.name, {"chase": walker.version} if walker.version else {}, values
    )
    memory = Memory("DRAM", card.ram_bytes, most_bytes)
    return assemble_limits(measurement, levels=levels, memory=memory, notes=notes)


def _free_bytes(card: MachineCard) -> int | None:
    sizes = [
        size for size in (card.ram_bytes, card.ram_available_bytes, card.memory_limit_bytes) if size
    ]
    return min(sizes) if sizes else None


def busy_notes(waiting_share: float | None) -> tuple[str, ...]:
    """Return a note when a thread waited for a processor for over a tenth of the probe."""
    if waiting_share is None or waiting_share <= MOST_WAITING:
        return ()
    return (
        f"a thread waited for a processor during {cell('share', waiting_share)} of the time, so "
        "the limits are those of a busy machine: stop other programs and call probe(refresh=True)",
    )


def track(label: str) -> functools.partial:
    """Return the progress bar of a part of the probe."""
    return functools.partial(console.track, description=f"probe: {label}", unit="stage")


def _origin_note(levels: Sequence[ProbedCache]) -> str:
    if not levels:
        return (
            "the system lists no caches and the latency curve shows none: main memory is the only "
            "level"
        )
    return (
        "the system lists no caches: their sizes are read off the latency curve, good to a factor "
        "of two"
    )


def _latencies(
    walker: chase.Walker,
    plan: ProbePlan,
    named_levels: Sequence[ProbedCache],
    sizes_bytes: tuple[int, int],
    end_s: float,
) -> tuple[dict[Key, list[float]], list[str]]:
    """Return the seconds of a load by working set, and notes; ``sizes_bytes`` are the largest one
    and a line.
    """
    notes, (most_bytes, line_bytes) = [], sizes_bytes
    if walker.walk is None:
        notes.append(
            f"no latency was measured, because a loop in Python hides the caches: {walker.reason}; "
            "install one of them and call probe(refresh=True)"
        )
        return {}, notes
    if walker.reason:
        notes.append(f"the chase runs in {walker.name}: {walker.reason}")
    buffer = chase.chase_buffer(most_bytes)
    if not chase.huge_pages(buffer):
        notes.append(
            "the chase runs in small pages (or the system does not tell): beyond the reach of the "
            "TLB a load holds a walk of the page table"
        )
    last_cache_bytes = max(
        levels_of.UNKNOWN_LAST_CACHE_BYTES, named_levels[-1].size_bytes if named_levels else 0
    )
    sizes = levels_of.grid(
        plan.least_bytes, most_bytes, per_octave=plan.per_octave, dense_until_bytes=last_cache_bytes
    )
    stages = [
        functools.partial(_latency_stage, walker.walk, buffer, size, line_bytes) for size in sizes
    ]
    return run_in_passes(stages, end_s=end_s, track=track("latency")), notes


def _latency_stage(
    walk: chase.Walk, buffer: np.ndarray, size_bytes: int, line_bytes: int
) -> dict[Key, float]:
    chase.link(buffer, size_bytes, line_bytes=line_bytes)
    return {("latency", size_bytes): chase.walk_s(walk, buffer)}


def _bandwidth_stages(
    plan: ProbePlan, levels: Sequence[ProbedCache], most_bytes: int, threads: int, notes: list[str]
) -> list[Stage]:
    """Return a stage for each point of the curves and for each cache; note whose triad it is, or
    why there is none.
    """
    pool = bandwidth.pool(most_bytes, _CPU)
    sizes = levels_of.grid(
        2 ** max(14, plan.least_bytes.bit_length() - 1),
        most_bytes,
        per_octave=1,
        dense_until_bytes=0,
    )
    stages: list[Stage] = [
        functools.partial(curve_stage, pool, size, _CPU, plan.kernel_s) for size in sizes
    ]
    triad = bandwidth.compiled_triad(threads)
    for index, level in enumerate(levels):
        size = levels_of.triad_bytes(levels, index, threads)
        if not isinstance(triad, str):
            stages.append(functools.partial(_compiled_stage, level.name, triad, size))
        elif 192 <= size <= most_bytes and _outlasts_a_call(pool, size):
            stages.append(
                functools.partial(triad_stage, level.name, pool, size, _CPU, plan.kernel_s)
            )
        else:
            notes.append(
                f"{level.name}: no bandwidth, because a call of PyTorch takes long beside the data "
                f"there, and {triad}"
            )
    if levels and not isinstance(triad, str):
        team = f"{threads} thread{'s' * (threads > 1)}"
        notes.append(
            f"the caches' bandwidth is a compiled triad's on {team}, main memory's that of "
            "PyTorch's, whose call takes long beside the data of a cache"
        )
    return stages


def _outlasts_a_call(pool: torch.Tensor, size_bytes: int) -> bool:
    taken_s = fastest_s(bandwidth.operators(pool, size_bytes)["triad"].fn, _CPU, budget_s=0)
    return library.call_overhead_s(_CPU, runs=10) < _OVERHEAD_SHARE * taken_s


def curve_stage(
    pool: torch.Tensor, size_bytes: int, device: torch.device, budget_s: float
) -> dict[Key, float]:
    """Return the seconds a byte of every kernel at one working set."""
    operators = bandwidth.operators(pool, size_bytes)
    return {
        ("bandwidth", size_bytes, name): fastest_s(kernel.fn, device, budget_s=budget_s)
        / kernel.moved_bytes
        for name, kernel in operators.items()
    }


def triad_stage(
    name: str, pool: torch.Tensor, size_bytes: int, device: torch.device, budget_s: float
) -> dict[Key, float]:
    """Return the seconds a byte of PyTorch's triad inside the level ``name``."""
    triad = bandwidth.operators(pool, size_bytes)["triad"]
    return {("level", name): fastest_s(triad.fn, device, budget_s=budget_s) / triad.moved_bytes}


def _compiled_stage(name: str, triad: bandwidth.CompiledTriad, size_bytes: int) -> dict[Key, float]:
    return {("level", name): 1 / triad(size_bytes)}


def _forms() -> tuple[Mapping[str, multiply_adds.Function], str]:
    """Return the core's own multiply-adds, compiled, and ""; or none, and why."""
    try:
        return multiply_adds.compile_forms(), ""
    except native.NativeError as error:
        return {}, error.problem.splitlines()[0]


def _compute_stages(
    plan: ProbePlan,
    forms: Mapping[str, multiply_adds.Function],
    threads: int,
    reasons: dict[str, str],
) -> list[Stage]:
    """Return the stages of the products, of the peaks and of the call's overhead.

    The peak of a type is that of the core's own multiply-adds, for which no library is needed; of a
    type without any (or all, where nothing can be compiled) the library's convolution is measured
    beside its product.
    """
    stages = [
        functools.partial(product_stage, name, _CPU, plan.products, reasons) for name in plan.types
    ]
    for name in plan.types:
        if any(form in forms for form in multiply_adds.FORMS[name]):
            stages.append(functools.partial(_core_stage, name, forms, threads))
        elif name in _CONVOLVED:
            stages.append(functools.partial(_convolution_stage, name, plan.products))
    return [*stages, lambda: {("call",): library.call_overhead_s(_CPU)}]


def product_stage(
    name: str, device: torch.device, budget: library.Budget, reasons: dict[str, str]
) -> dict[Key, float]:
    """Return the seconds a FLOP of the type's best matrix product; a reason where there is none."""
    rate = library.product_flops(name, device, budget=budget)
    if isinstance(rate, str):
        reasons[name] = rate
        return {}
    reasons.pop(name, None)
    return {("product", name): 1 / rate}


def _convolution_stage(name: str, budget: library.Budget) -> dict[Key, float]:
    rate = library.convolution_flops(name, budget=budget)
    return {} if isinstance(rate, str) else {("convolution", name): 1 / rate}


def _core_stage(
    name: str, forms: Mapping[str, multiply_adds.Function], threads: int
) -> dict[Key, float]:
    rate = multiply_adds.core_flops(forms, name, threads=threads)
    return {("core", name): 1 / rate} if rate else {}


_UNSTABLE_SHARE = 0.1

Values = Mapping[Key, Sequence[float]]


@dataclass(frozen=True)
class Measured:
    """The measurements of a device: ``values`` holds a list of times, one a pass, by quantity."""

    device: str
    threads: int
    chase: str
    versions: Mapping[str, str]
    values: Values


@dataclass(frozen=True)
class Memory:
    """Main memory: its name and size, and the working set of the curve at which its bandwidth is
    read.
    """

    name: str
    size_bytes: int | None
    working_set_bytes: int


def curve_of(values: Values) -> tuple[LatencyPoint, ...]:
    """Return the latency curve, the smallest time of the passes at each size."""
    return tuple(
        LatencyPoint(key[1], min(times)) for key, times in values.items() if key[0] == "latency"
    )


def triads_of(values: Values) -> dict[int, float]:
    """Return PyTorch's triad in bytes a second by working set, the fastest of the passes."""
    return {
        key[1]: 1 / min(times)
        for key, times in values.items()
        if key[0] == "bandwidth" and key[2] == "triad"
    }


def peaks_of(values: Values) -> dict[str, Key]:
    """Return the peak of each type: the fastest of the core's multiply-adds, the product, the
    convolution.
    """
    sources = ("core", "convolution", "product")
    of_types = [
        key for key in values if key[0] == "core" or key[0] == "convolution" or key[0] == "product"
    ]
    peaks: dict[str, Key] = {}
    for key in sorted(of_types, key=lambda key: sources.index(key[0])):
        name = key[1]
        if name not in peaks or min(values[key]) < min(values[peaks[name]]):
            peaks[name] = key
    return peaks


def peak_notes(values: Values, compiler_reason: str) -> tuple[str, ...]:
    """Return a note for every peak that is the library's and not the core's own;
    ``compiler_reason`` says why all are.

    "" stands for a compiler that works.
    """
    peaks = peaks_of(values)
    origin = "what the library reaches, the faster of its product and its convolution"
    if compiler_reason:
        return (
            f"each peak is {origin}, and the core may do more, because its own multiply-adds were "
            f"not measured: {compiler_reason}",
        )
    absent = [name for name in peaks if ("core", name) not in values]
    notes = (
        [f"the core has no multiply-adds of its own for {', '.join(absent)}: the peak is {origin}"]
        if absent
        else []
    )
    for name in peaks:
        own_s, best_s = min(values.get(("core", name), [0.0])), min(values[peaks[name]])
        if own_s > (1 + TOLERANCE) * best_s:
            notes.append(
                f"the peak of {name} is that of the library's product, {own_s / best_s:.2g} times "
                "that of the core's own multiply-adds: the library may use a unit that they do not "
                "reach"
            )
    return tuple(notes)


def assemble_limits(
    measurement: Measured, *, levels: Sequence[ProbedCache], memory: Memory, notes: Iterable[str]
) -> MachineLimits:
    """Return the limits: of every quantity the fastest pass; ``unstable`` names those that did not
    repeat within a tenth.

    A curve is unstable when more than a tenth of its points is.
    """
    values = measurement.values
    unstable: list[str] = []
    latencies = curve_of(values)

    def fastest(key: Key, name: str) -> float:
        if not agree(values[key]):
            unstable.append(name)
        return min(values[key])

    def rate(key: Key, name: str) -> float | None:
        return 1 / fastest(key, name) if key in values else None

    def level(
        name: str,
        size: int | None,
        inside: tuple[int, int | None],
        bandwidth: Key,
        holds: int | None = None,
    ) -> MemoryLevel:
        point = latency_point(latencies, inside)
        latency_s = (
            fastest(("latency", point.working_set_bytes), f"{name} latency") if point else None
        )
        return MemoryLevel(name, size, latency_s, rate(bandwidth, f"{name} bandwidth"), holds)

    lower_bytes = (0, *(cache.size_bytes for cache in levels))
    caches = [
        level(
            cache.name,
            cache.size_bytes,
            (lower_bytes[index], cache.size_bytes),
            ("level", cache.name),
            cache.holds_bytes,
        )
        for index, cache in enumerate(levels)
    ]
    memory_level = level(
        memory.name,
        memory.size_bytes,
        (lower_bytes[-1], None),
        ("bandwidth", memory.working_set_bytes, "triad"),
    )
    peaks = {name: 1 / fastest(key, f"{name} peak") for name, key in peaks_of(values).items()}
    products = {
        key[1]: 1 / fastest(key, f"{key[1]} product") for key in values if key[0] == "product"
    }
    call_s = fastest(("call",), "call overhead")
    launch_s = fastest(("launch",), "launch") if ("launch",) in values else None
    buses = [
        rate(("bus", direction), f"{direction.replace('_', ' ')} rate")
        for direction in ("host_to_device", "device_to_host")
    ]
    unstable += [
        f"{curve} curve" for curve in ("latency", "bandwidth") if _does_not_repeat(values, curve)
    ]
    return MachineLimits(
        device=measurement.device,
        threads=measurement.threads,
        date=datetime.date.today().isoformat(),
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__,
            **measurement.versions,
        },
        chase=measurement.chase,
        memory_levels=(*caches, memory_level),
        peak_flops=peaks,
        product_flops=products,
        call_overhead_s=call_s,
        launch_s=launch_s,
        host_to_device_bytes_per_s=buses[0],
        device_to_host_bytes_per_s=buses[1],
        unstable=tuple(unstable),
        notes=tuple(notes),
        latencies=latencies,
        bandwidths=_bandwidths(values),
    )


def _does_not_repeat(values: Values, curve: str) -> bool:
    points = [times for key, times in values.items() if key[0] == curve]
    return sum(not agree(times) for times in points) > _UNSTABLE_SHARE * len(points)


def _bandwidths(values: Values) -> tuple[BandwidthPoint, ...]:
    sizes = dict.fromkeys(key[1] for key in values if key[0] == "bandwidth")
    return tuple(
        BandwidthPoint(
            size,
            **{
                f"{kernel}_bytes_per_s": 1 / min(values["bandwidth", size, kernel])
                for kernel in KERNELS
            },
        )
        for size in sizes
    )
