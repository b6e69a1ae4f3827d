"""The roofline model: the time of a workload from its FLOPs, its bytes and a machine's limits. Nothing is measured."""

from __future__ import annotations

from dataclasses import dataclass

from helpers._checks import number
from helpers.hardware._devices import Device, require_device
from helpers.hardware.limits._results import MachineLimits, MemoryLevel
from helpers.results import Result, derived

COMPUTE_BOUND, MEMORY_BOUND, OVERHEAD_BOUND = "compute-bound", "memory-bound", "overhead-bound"


@dataclass(frozen=True)
class Workload(Result):
    """What is to be done: ``flops`` operations in ``dtype`` on ``moved_bytes`` read and written.

    ``working_set_bytes`` are the distinct bytes touched, which decide the memory level; by default ``moved_bytes``,
    as where each byte moves once. ``calls`` of operators make it up: each costs the call overhead.

    Raises ValueError for no bytes, a negative or infinite number, calls that are no whole number of at least 1, or a
    working set larger than the bytes moved; TypeError for what is no number. Lesson 02.
    """

    name: str
    flops: float
    moved_bytes: float
    dtype: str = "float32"
    working_set_bytes: float | None = None
    calls: int = 1

    def __post_init__(self) -> None:
        for field, least in (("flops", 0), ("moved_bytes", 0), ("working_set_bytes", 0), ("calls", 1)):
            if field != "working_set_bytes" or self.working_set_bytes is not None:
                number(f"{field} of {self.name!r}", getattr(self, field), at_least=least)
        if self.calls != int(self.calls):
            raise ValueError(f"calls of {self.name!r} must be a whole number, got {self.calls!r}")
        if self.moved_bytes == 0:
            raise ValueError(
                f"{self.name!r} moves no bytes, so it has no arithmetic intensity (FLOP a byte); give the bytes that "
                "it reads and writes"
            )
        if self.working_set_bytes is not None and self.working_set_bytes > self.moved_bytes:
            raise ValueError(
                f"{self.name!r} touches {self.working_set_bytes:,} bytes and moves only {self.moved_bytes:,}; each "
                "byte of the working set moves at least once"
            )

    @property
    def intensity_flops_per_byte(self) -> float:
        """The arithmetic intensity: FLOPs for each byte moved."""
        return self.flops / self.moved_bytes


@dataclass(frozen=True)
class RooflinePoint(Result):
    """A workload on a machine: where it stands under the roofs, and the time that the model gives it.

    ``level`` is the memory level whose bandwidth is the slope, ``ridge_flops_per_byte`` where slope and peak meet.
    ``modelled_s`` holds the call overhead, ``attainable_flops_per_s`` (the roof above the point) does not. Lesson 02.
    """

    name: str
    dtype: str
    flops: float
    moved_bytes: float
    intensity_flops_per_byte: float
    level: str
    bandwidth_bytes_per_s: float
    peak_flops_per_s: float
    ridge_flops_per_byte: float
    attainable_flops_per_s: float
    compute_s: float
    memory_s: float
    overhead_s: float
    modelled_s: float
    regime: str

    @property
    def modelled_flops_per_s(self) -> float:
        """FLOP/s at the modelled time: below the roof by what the call overhead costs."""
        return self.flops / self.modelled_s


def model(workload: Workload, limits: MachineLimits, *, level: str | None = None) -> RooflinePoint:
    """Return where ``workload`` stands under the roofs of ``limits``, and its modelled time.

    ``compute_s`` is FLOPs over the peak of its dtype, ``memory_s`` bytes over the bandwidth of a memory level: the one
    called ``level``, or else the smallest that holds the working set (by its ``holds_bytes``) and whose bandwidth was
    measured (the point names it). The longer of the two is the roofline's time: arithmetic and transfers overlap
    perfectly, the bytes move once, and each runs at its measured best. ``overhead_s`` is the call overhead times the
    calls. On a CPU it is added, for the operator starts only when the call has got to it; on CUDA the calls run ahead
    of the kernels, so ``modelled_s`` is the longest of the three, as in a row of launches with one wait at its end.

    ``regime`` is "compute-bound", "memory-bound" (left of the ridge point) or "overhead-bound" (the overhead is longer
    than both). Source of the model: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model
    for multicore architectures", Communications of the ACM 52(4), 2009; the overhead is our addition.

    Raises ValueError for a dtype without a measured peak, a level that is not there, or a bandwidth that nobody could
    measure; TypeError when ``workload`` or ``limits`` is none. Lesson 02.
    """
    if not isinstance(workload, Workload):
        raise TypeError(
            f"model works on a Workload, not on {type(workload).__name__}; write Workload('name', flops, moved_bytes), "
            "or roofline(...) for a model's layers"
        )
    require_limits(limits)
    peak = peak_of(limits, workload.dtype)
    memory = _level(limits, workload, level)
    bandwidth = memory.bandwidth_bytes_per_s
    compute_s, memory_s = workload.flops / peak, workload.moved_bytes / bandwidth
    overhead_s, longer_s = workload.calls * limits.call_overhead_s, max(compute_s, memory_s)
    overlaps = limits.device.startswith("cuda")
    busy = COMPUTE_BOUND if compute_s >= memory_s else MEMORY_BOUND
    return derived(
        RooflinePoint,
        workload,
        level=memory.name,
        bandwidth_bytes_per_s=bandwidth,
        peak_flops_per_s=peak,
        ridge_flops_per_byte=peak / bandwidth,
        attainable_flops_per_s=min(peak, workload.intensity_flops_per_byte * bandwidth),
        compute_s=compute_s,
        memory_s=memory_s,
        overhead_s=overhead_s,
        modelled_s=max(longer_s, overhead_s) if overlaps else longer_s + overhead_s,
        regime=OVERHEAD_BOUND if overhead_s > longer_s else busy,
    )


def require_limits(given: object) -> None:
    """Raise TypeError unless ``given`` are the limits of a machine."""
    if not isinstance(given, MachineLimits):
        raise TypeError(f"limits are what helpers.probe() returns, not {type(given).__name__} {given!r:.40}")


def peak_of(limits: MachineLimits, dtype: str) -> float:
    """Return the measured peak in FLOP/s; ValueError, with the dtypes that were measured, for another."""
    if dtype not in limits.peak_flops:
        measured = ", ".join(limits.peak_flops) or "none"
        raise ValueError(f"no peak was measured for {dtype!r} on this machine; there is one for {measured}")
    return limits.peak_flops[dtype]


def _level(limits: MachineLimits, workload: Workload, name: str | None) -> MemoryLevel:
    if name is not None:
        chosen = limits.level(name)
        if chosen.bandwidth_bytes_per_s is None:
            raise ValueError(f"the bandwidth of {name} could not be measured here{_why(limits)}; choose another level")
        return chosen
    known = [level for level in limits.memory_levels if level.bandwidth_bytes_per_s is not None]
    wanted = workload.moved_bytes if workload.working_set_bytes is None else workload.working_set_bytes
    for level in known:
        if level is limits.memory or level.fits(wanted):
            return level
    raise ValueError(
        f"the bandwidth of {limits.memory.name} could not be measured here{_why(limits)}; {workload.name!r} needs it"
    )


def _why(limits: MachineLimits) -> str:
    return f" ({'; '.join(limits.notes)})" if limits.notes else ""


# What a maker promises: the two numbers of a datasheet that the measured roofs are drawn beside.


@dataclass(frozen=True)
class DatasheetRoof(Result):
    """A device's promised peak in ``dtype`` (dense, without sparsity) and memory bandwidth. Lesson 02.

    Raises TypeError for what is no number, ValueError for one that is not above 0 and finite.
    """

    name: str
    dtype: str
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        for field in ("peak_flops_per_s", "bandwidth_bytes_per_s"):
            number(f"the {field} of {self.name}", getattr(self, field), above=0)

    @property
    def ridge_flops_per_byte(self) -> float:
        """Where the promised slope and the promised peak meet."""
        return self.peak_flops_per_s / self.bandwidth_bytes_per_s


def datasheet_roof(device: Device, dtype: str = "float32", *, unit: str | None = None) -> DatasheetRoof:
    """Return the roofs that the table of devices has for ``device``: dense peak in ``dtype``, memory bandwidth.

    ``unit`` is "vector" or "matrix", by default whichever is faster. Raises TypeError for what is no device, ValueError
    where the table does not know the peak or the bandwidth, with the dtypes whose dense peak it does know. Lesson 02.
    """
    require_device(device)
    peak = device.peak(dtype, unit=unit)
    if peak is None or peak.dense_flops_per_s is None:
        known = list(dict.fromkeys(row.dtype for row in device.peaks if row.dense_flops_per_s is not None))
        raise ValueError(
            f"the dense peak of {device.name} in {dtype}{f' on its {unit} units' if unit else ''} is unknown; known "
            f"are {', '.join(known) or 'none'}"
        )
    if device.memory_bandwidth_bytes_per_s is None:
        raise ValueError(f"the memory bandwidth of {device.name} is unknown, so its datasheet gives no slope")
    return DatasheetRoof(device.name, dtype, peak.dense_flops_per_s, device.memory_bandwidth_bytes_per_s)
