"""The limits of a machine as data, which :func:`helpers.hardware.probe` measures.

Lessons 01, 02.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from helpers.results import Record

_NO_PEAK = (
    "no peak was measured: these limits were recorded before the probe measured the core's own "
    "multiply-adds"
)


class MemoryLevel(Record):
    """A level of the memory hierarchy: ``bandwidth_bytes_per_s`` is the triad's inside it, counted
    as STREAM counts.

    On a CPU a cache's is that of a compiled triad on all threads, main memory's that of PyTorch's.

    ``size_bytes`` is what one core reaches at this level, as the system names it (None for main
    memory when it is unknown); ``holds_bytes``, by default the same, is what of it the probe's
    bandwidth curve shows, and what the models go by. ``latency_s`` is that of one dependent load.
    None stands for what could not be measured here; the probe's notes say why. Lesson 01.
    """

    name: str
    size_bytes: int | None
    latency_s: float | None
    bandwidth_bytes_per_s: float | None
    holds_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.holds_bytes is None:
            object.__setattr__(self, "holds_bytes", self.size_bytes)

    def fits(self, working_set_bytes: float) -> bool:
        """Return whether the level is known to hold ``working_set_bytes``."""
        return self.holds_bytes is not None and working_set_bytes <= self.holds_bytes


class LatencyPoint(Record):
    """The time of one dependent load, each address read from the load before it, in a buffer of
    this size.
    """

    working_set_bytes: int
    latency_s: float


class BandwidthPoint(Record):
    """Bytes moved a second by five kernels whose arrays together hold ``working_set_bytes``.

    Counted as STREAM does, what the program reads plus what it writes: read (a sum) n, write (a
    fill) n, copy 2 n, triad ``a = b + s c`` 3 n, scale ``a *= s`` in place 2 n bytes; what a cache
    fetches before a write is not counted.
    """

    working_set_bytes: int
    read_bytes_per_s: float
    write_bytes_per_s: float
    copy_bytes_per_s: float
    triad_bytes_per_s: float
    scale_bytes_per_s: float


class MachineLimits(Record):
    """The measured limits of one device with ``threads`` CPU threads: every roof and every overhead
    of the models.

    ``peak_flops`` maps a dtype's name ("float32", "bfloat16" ...) to the most FLOP/s: on a CPU of
    the cores' own multiply-adds, whichever library runs on them, on CUDA of the library's product.
    ``product_flops`` has FLOP/s of the library's fastest matrix product, which models of a product
    take. Of "int8" both count operations a second. ``call_overhead_s`` is a call of a PyTorch
    operator on one element (on CUDA, launched and not waited for); ``launch_s`` is a kernel
    launched and waited for, and the two bus rates are those of pinned memory: CUDA only, else None.
    ``notes`` has a line for everything that could not be measured. Lessons 01 and 02.
    """

    device: str
    threads: int
    date: str
    versions: Mapping[str, str]
    chase: str
    memory_levels: tuple[MemoryLevel, ...]
    peak_flops: Mapping[str, float]
    product_flops: Mapping[str, float]
    call_overhead_s: float
    launch_s: float | None
    host_to_device_bytes_per_s: float | None
    device_to_host_bytes_per_s: float | None
    unstable: tuple[str, ...]
    notes: tuple[str, ...]
    latencies: tuple[LatencyPoint, ...] = field(repr=False)
    bandwidths: tuple[BandwidthPoint, ...] = field(repr=False)

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        table_html = super()._repr_html_()
        return f"<div>{table_html}<ul>{notes}</ul></div>" if notes else table_html

    # rates as rates, and without the notes, of which each has a line
    def _shown(self) -> list[tuple[str, Any]]:
        return [
            (f"{name}_per_s" if name in ("peak_flops", "product_flops") else name, value)
            for name, value in super()._shown()
            if name != "notes"
        ]

    @classmethod
    def _upgraded(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return values of before ``product_flops``, when the product was called the peak, as those
        of today.
        """
        if "product_flops" in values or "peak_flops" not in values:
            return values
        products = {"product_flops": values["peak_flops"]}
        if str(values.get("device")).startswith("cuda"):
            return {**values, **products}
        unstable = [name.replace(" peak", " product") for name in values.get("unstable", ())]
        notes = [*values.get("notes", ()), _NO_PEAK]
        return {**values, **products, "peak_flops": {}, "unstable": unstable, "notes": notes}

    @property
    def memory(self) -> MemoryLevel:
        """Main memory: the last level, the one that the roofline's slope is."""
        return self.memory_levels[-1]

    @property
    def stable(self) -> bool:
        """True when every limit repeated within a tenth: evidence that can contradict a claim of a
        lesson.
        """
        return not self.unstable

    def resting_on(self, *names: str) -> MachineLimits:
        """Return these limits as evidence for a claim that rests on ``names`` alone: the others may
        be unstable.

        The names are those of ``unstable``: "DRAM bandwidth", "L1 latency", "float32 peak",
        "float32 product", "call overhead", "latency curve", "bandwidth curve". Raises ValueError
        for a limit that was not measured here. Lesson 01.
        """
        levels = [
            f"{level.name} {curve}"
            for level in self.memory_levels
            for curve in ("latency", "bandwidth")
        ]
        limit_names = [
            *levels,
            *(f"{dtype} peak" for dtype in self.peak_flops),
            *(f"{dtype} product" for dtype in self.product_flops),
            "call overhead",
            "latency curve",
            "bandwidth curve",
        ]
        if unknown := [name for name in names if name not in limit_names]:
            raise ValueError(
                f"there is no limit {unknown[0]!r}; there are {', '.join(limit_names)}"
            )
        return replace(self, unstable=tuple(name for name in self.unstable if name in names))

    def level(self, name: str) -> MemoryLevel:
        """Return the level called ``name``; ValueError, with the names there are, for another."""
        levels = {level.name: level for level in self.memory_levels}
        if name not in levels:
            raise ValueError(f"there is no level {name!r}; this machine has {', '.join(levels)}")
        return levels[name]

    def level_of(self, working_set_bytes: int) -> MemoryLevel:
        """Return the smallest level that holds ``working_set_bytes``, main memory where no cache
        does.
        """
        for level in self.memory_levels[:-1]:
            if level.fits(working_set_bytes):
                return level
        return self.memory
