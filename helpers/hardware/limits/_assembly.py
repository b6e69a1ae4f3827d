"""From the times that the stages gave to a :class:`MachineLimits`: merged, checked for repeating, put in order."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from helpers.hardware.limits._bandwidth import KERNELS
from helpers.hardware.limits._levels import CacheLevel, latency_point
from helpers.hardware.limits._peak import Key, agree
from helpers.hardware.limits._results import BandwidthPoint, LatencyPoint, MachineLimits, MemoryLevel

_UNSTABLE_SHARE = 0.1

Values = Mapping[Key, Sequence[float]]


@dataclass(frozen=True)
class Measured:
    """What was measured on a device: ``values`` holds, by what was timed, one time a pass."""

    device: str
    threads: int
    chase: str
    versions: Mapping[str, str]
    values: Values


@dataclass(frozen=True)
class Memory:
    """Main memory: its name and size, and the working set of the curve at which its bandwidth is read."""

    name: str
    size_bytes: int | None
    working_set_bytes: int


def memory_level(name: str, size_bytes: int | None, working_set_bytes: int) -> Memory:
    """Return main memory as :func:`assembled` takes it."""
    return Memory(name, size_bytes, working_set_bytes)


def curve_of(values: Values) -> tuple[LatencyPoint, ...]:
    """Return the latency curve, the smallest time of the passes at each size."""
    return tuple(LatencyPoint(key[1], min(times)) for key, times in values.items() if key[0] == "latency")


def triads_of(values: Values) -> dict[int, float]:
    """Return PyTorch's triad in bytes a second by working set, the fastest of the passes."""
    return {key[1]: 1 / min(times) for key, times in values.items() if key[0] == "bandwidth" and key[2] == "triad"}


def assembled(
    measured: Measured, *, levels: Sequence[CacheLevel], memory: Memory, notes: Iterable[str]
) -> MachineLimits:
    """Return the limits: of every quantity the fastest pass; ``unstable`` names what did not repeat within a tenth.

    A curve is unstable when more than a tenth of its points is.
    """
    values = measured.values
    unstable: list[str] = []
    latencies = curve_of(values)

    def fastest(key: Key, name: str) -> float | None:
        if key not in values:
            return None
        if not agree(values[key]):
            unstable.append(name)
        return min(values[key])

    def rate(key: Key, name: str) -> float | None:
        value = fastest(key, name)
        return None if value is None else 1 / value

    def level(
        name: str, size: int | None, inside: tuple[int, int | None], bandwidth: Key, holds: int | None = None
    ) -> MemoryLevel:
        point = latency_point(latencies, inside)
        latency_s = fastest(("latency", point.working_set_bytes), f"{name} latency") if point else None
        return MemoryLevel(name, size, latency_s, rate(bandwidth, f"{name} bandwidth"), holds)

    below = (0, *(each.size_bytes for each in levels))
    caches = [level(each.name, each.size_bytes, (below[index], each.size_bytes), ("level", each.name), each.holds_bytes)
              for index, each in enumerate(levels)]  # fmt: skip
    whole = level(memory.name, memory.size_bytes, (below[-1], None), ("bandwidth", memory.working_set_bytes, "triad"))
    peaks = {key[1]: rate(key, f"{key[1]} peak") for key in values if key[0] == "peak"}
    call_s = fastest(("call",), "call overhead")
    launch_s = fastest(("launch",), "launch")
    buses = [rate(("bus", way), f"{way.replace('_', ' ')} rate") for way in ("host_to_device", "device_to_host")]
    unstable += [f"{what} curve" for what in ("latency", "bandwidth") if _does_not_repeat(values, what)]
    return MachineLimits(
        device=measured.device, threads=measured.threads, date=datetime.date.today().isoformat(),
        versions={"python": platform.python_version(), "torch": torch.__version__, **measured.versions},
        chase=measured.chase, memory_levels=(*caches, whole), peak_flops=peaks, call_overhead_s=call_s,
        launch_s=launch_s, host_to_device_bytes_per_s=buses[0], device_to_host_bytes_per_s=buses[1],
        unstable=tuple(unstable), notes=tuple(notes), latencies=latencies, bandwidths=_bandwidths(values),
    )  # fmt: skip


def _does_not_repeat(values: Values, what: str) -> bool:
    points = [times for key, times in values.items() if key[0] == what]
    return sum(not agree(times) for times in points) > _UNSTABLE_SHARE * len(points)


def _bandwidths(values: Values) -> tuple[BandwidthPoint, ...]:
    sizes = dict.fromkeys(key[1] for key in values if key[0] == "bandwidth")
    return tuple(
        BandwidthPoint(
            size, **{f"{kernel}_bytes_per_s": 1 / min(values["bandwidth", size, kernel]) for kernel in KERNELS}
        )
        for size in sizes
    )
