"""The limits of the processor at hand, measured: stages in passes, put together.

Called by :mod:`probe`.
"""

from __future__ import annotations

import datetime
import functools
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from helpers import native
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
    sizes = (card.ram_bytes, card.ram_available_bytes, card.memory_limit_bytes)
    free_bytes = min(filter(None, sizes), default=None)
    most_bytes = min(plan.most_bytes, levels_of.largest_bytes(named_levels, threads, free_bytes))
    known_lines = (cache.line_bytes for cache in card.caches or () if cache.line_bytes)
    line_bytes = max(known_lines, default=chase.LINE_BYTES)
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
    values |= run_in_passes(stages, end_s=begin_s + plan.whole_s, label="bandwidth and compute")
    if named_levels and ("level", named_levels[-1].name) in values:
        inside_bytes_per_s = 1 / min(values["level", named_levels[-1].name])
        levels, narrowing_notes = levels_of.narrow_last_level(
            named_levels, inside_bytes_per_s, triads_of(values), threads
        )
        notes += narrowing_notes
    notes += [
        *reasons.values(),
        *peak_notes(values, compiler_reason),
        *busy_notes(waiting()),
        *levels_of.size_notes(levels, most_bytes, threads),
    ]
    return assemble_limits(
        "cpu",
        values,
        levels=levels,
        memory=("DRAM", card.ram_bytes),
        chase=walker.name,
        versions={"chase": walker.version} if walker.version else {},
        notes=notes,
    )


def busy_notes(waiting_share: float | None) -> tuple[str, ...]:
    """Return a note when a thread waited for a processor for over a tenth of the probe."""
    if waiting_share is None or waiting_share <= MOST_WAITING:
        return ()
    return (
        f"a thread waited for a processor during {cell('share', waiting_share)} of the time, so "
        "the limits are those of a busy machine: stop other programs and call probe(refresh=True)",
    )


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
    walk, notes, (most_bytes, line_bytes) = walker.walk, [], sizes_bytes
    if walk is None:
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
    last_cache_bytes = named_levels[-1].size_bytes if named_levels else 0
    sizes = levels_of.grid(
        plan.least_bytes,
        most_bytes,
        per_octave=plan.per_octave,
        dense_until_bytes=max(levels_of.UNKNOWN_LAST_CACHE_BYTES, last_cache_bytes),
    )

    def load_s(size_bytes: int) -> float:
        chase.link(buffer, size_bytes, line_bytes=line_bytes)
        return chase.walk_s(walk, buffer)

    return latencies_at(sizes, load_s, end_s=end_s), notes


def latencies_at(
    sizes_bytes: Sequence[int], load_s: Callable[[int], float], *, end_s: float
) -> dict[Key, list[float]]:
    """Return the seconds of a load by working set, as ``load_s`` measures them, in passes."""

    def measure(size_bytes: int) -> dict[Key, float]:
        return {("latency", size_bytes): load_s(size_bytes)}

    stages = [functools.partial(measure, size) for size in sizes_bytes]
    return run_in_passes(stages, end_s=end_s, label="latency")


def _bandwidth_stages(
    plan: ProbePlan, levels: Sequence[ProbedCache], most_bytes: int, threads: int, notes: list[str]
) -> list[Stage]:
    """Return a stage for each point of the curves and for each cache; note whose triad it is, or
    why there is none.
    """
    pool = bandwidth.pool(most_bytes, _CPU)
    least_bytes = 2 ** max(14, plan.least_bytes.bit_length() - 1)
    stages = curve_stages(pool, least_bytes, most_bytes, plan.kernel_s)
    triad = bandwidth.compiled_triad(threads)
    for index, level in enumerate(levels):
        size = levels_of.triad_bytes(levels, index, threads)
        if not isinstance(triad, str):
            stages.append(rate_stage(("level", level.name), functools.partial(triad, size)))
        elif 192 <= size <= most_bytes and call_share(pool, size) < _OVERHEAD_SHARE:
            stages.append(functools.partial(triad_stage, level.name, pool, size, plan.kernel_s))
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


def call_share(pool: torch.Tensor, size_bytes: int, *, budget_s: float = 0.0) -> float:
    """Return the time of a call that computes next to nothing, over that of a triad of these bytes,
    which is timed for ``budget_s``.
    """
    triad = bandwidth.operators(pool, size_bytes)["triad"]
    triad_s = fastest_s(triad.fn, pool.device, budget_s=budget_s)
    return library.call_overhead_s(pool.device, runs=10) / triad_s


def curve_stages(
    pool: torch.Tensor, least_bytes: int, most_bytes: int, budget_s: float
) -> list[Stage]:
    """Return a stage for each working set of the bandwidth's curve."""
    sizes = levels_of.grid(least_bytes, most_bytes, per_octave=1, dense_until_bytes=0)
    return [functools.partial(_curve_stage, pool, size, budget_s) for size in sizes]


def _curve_stage(pool: torch.Tensor, size_bytes: int, budget_s: float) -> dict[Key, float]:
    """Return the seconds a byte of every kernel at one working set."""
    return {
        ("bandwidth", size_bytes, name): _byte_s(kernel, pool.device, budget_s)
        for name, kernel in bandwidth.operators(pool, size_bytes).items()
    }


def triad_stage(
    name: str, pool: torch.Tensor, size_bytes: int, budget_s: float
) -> dict[Key, float]:
    """Return the seconds a byte of PyTorch's triad inside the level ``name``."""
    triad = bandwidth.operators(pool, size_bytes)["triad"]
    return {("level", name): _byte_s(triad, pool.device, budget_s)}


def _byte_s(kernel: bandwidth.BandwidthKernel, device: torch.device, budget_s: float) -> float:
    return fastest_s(kernel.fn, device, budget_s=budget_s) / kernel.moved_bytes


def rate_stage(key: Key, measure: Callable[[], float | str]) -> Stage:
    """Return the stage of a rate, whose time is one over it; it has none for 0 or for a reason."""

    def stage() -> dict[Key, float]:
        rate = measure()
        return {} if isinstance(rate, str) or not rate else {key: 1 / rate}

    return stage


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
    stages = product_stages(plan, _CPU, reasons)
    for name in plan.types:
        if any(form in forms for form in multiply_adds.FORMS[name]):
            rate = functools.partial(multiply_adds.core_flops, forms, name, threads=threads)
            stages.append(rate_stage(("core", name), rate))
        elif name != "int8":
            convolution = functools.partial(library.convolution_flops, name, budget=plan.products)
            stages.append(rate_stage(("convolution", name), convolution))
    return [*stages, lambda: {("call",): library.call_overhead_s(_CPU)}]


def product_stages(plan: ProbePlan, device: torch.device, reasons: dict[str, str]) -> list[Stage]:
    """Return a stage for each type's best matrix product, which notes in ``reasons`` why there is
    none.
    """

    def rate(name: str) -> float | str:
        flops_per_s = library.product_flops(name, device, budget=plan.products)
        if isinstance(flops_per_s, str):
            reasons[name] = flops_per_s
        else:
            reasons.pop(name, None)
        return flops_per_s

    return [rate_stage(("product", name), functools.partial(rate, name)) for name in plan.types]


_UNSTABLE_SHARE = 0.1

Values = Mapping[Key, Sequence[float]]


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
    peaks: dict[str, Key] = {}
    for name in (*library.CUDA_TYPES, *library.CPU_TYPES):
        sources: tuple[Key, ...] = (("core", name), ("convolution", name), ("product", name))
        if known := [key for key in sources if key in values]:
            peaks[name] = min(known, key=lambda key: min(values[key]))
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
    device: str,
    values: Values,
    *,
    levels: Sequence[ProbedCache],
    memory: tuple[str, int | None],
    chase: str,
    versions: Mapping[str, str],
    notes: Iterable[str],
) -> MachineLimits:
    """Return the limits: of every quantity the fastest pass; ``unstable`` names those that did not
    repeat within a tenth.

    ``values`` holds a list of times, one a pass, by quantity; ``memory`` is main memory's name and
    size. A curve is unstable when more than a tenth of its points is.
    """
    unstable: list[str] = []
    latencies = curve_of(values)

    def fastest(key: Key, name: str) -> float:
        if not agree(values[key]):
            unstable.append(name)
        return min(values[key])

    def rate(key: Key, name: str) -> float | None:
        return 1 / fastest(key, name) if key in values else None

    rows: list[tuple[str, int | None, int | None, Key]] = [
        (cache.name, cache.size_bytes, cache.holds_bytes, ("level", cache.name)) for cache in levels
    ]
    rows.append((*memory, None, ("bandwidth", max(triads_of(values)), "triad")))
    memory_levels, lower_bytes = [], 0
    for name, size_bytes, holds_bytes, bandwidth_key in rows:
        point = latency_point(latencies, (lower_bytes, size_bytes))
        latency_s = (
            fastest(("latency", point.working_set_bytes), f"{name} latency") if point else None
        )
        bytes_per_s = rate(bandwidth_key, f"{name} bandwidth")
        memory_levels.append(MemoryLevel(name, size_bytes, latency_s, bytes_per_s, holds_bytes))
        lower_bytes = size_bytes or 0
    return MachineLimits(
        device=device,
        threads=torch.get_num_threads(),
        date=datetime.date.today().isoformat(),
        versions={"python": platform.python_version(), "torch": torch.__version__, **versions},
        chase=chase,
        memory_levels=tuple(memory_levels),
        peak_flops={
            name: 1 / fastest(key, f"{name} peak") for name, key in peaks_of(values).items()
        },
        product_flops={
            key[1]: 1 / fastest(key, f"{key[1]} product") for key in values if key[0] == "product"
        },
        call_overhead_s=fastest(("call",), "call overhead"),
        launch_s=fastest(("launch",), "launch") if ("launch",) in values else None,
        host_to_device_bytes_per_s=rate(("bus", "host_to_device"), "host to device rate"),
        device_to_host_bytes_per_s=rate(("bus", "device_to_host"), "device to host rate"),
        unstable=(*unstable, *_unstable_curves(values)),
        notes=tuple(notes),
        latencies=latencies,
        bandwidths=_bandwidths(values),
    )


def _unstable_curves(values: Values) -> Iterator[str]:
    for curve in ("latency", "bandwidth"):
        points = [times for key, times in values.items() if key[0] == curve]
        if sum(not agree(times) for times in points) > _UNSTABLE_SHARE * len(points):
            yield f"{curve} curve"


def _bandwidths(values: Values) -> tuple[BandwidthPoint, ...]:
    return tuple(
        BandwidthPoint(size, *(1 / min(values["bandwidth", size, kernel]) for kernel in KERNELS))
        for size in triads_of(values)
    )
