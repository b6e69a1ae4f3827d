"""Limits made by hand, and what several tests of drawings ask of a figure."""

from __future__ import annotations

import itertools

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from helpers.hardware.limits._results import (
    BandwidthPoint,
    LatencyPoint,
    MachineLimits,
    MemoryLevel,
)
from helpers.plotting._style import STYLE_FILE

KIB, MIB = 2**10, 2**20
LEVELS = (
    MemoryLevel("L1", 32 * KIB, 1e-9, 200e9),
    MemoryLevel("L2", MIB, 4e-9, 100e9),
    MemoryLevel("memory", 2**33, 100e-9, 25e9),
)


def limits(**changes) -> MachineLimits:
    """A machine of round numbers: ridge points at 0.5, 1 and 4 FLOP a byte in float32."""
    sizes = [2**power for power in range(12, 25)]
    values = {
        "device": "cpu",
        "threads": 1,
        "date": "2026-01-01",
        "versions": {},
        "chase": "none",
        "memory_levels": LEVELS,
        "peak_flops": {"float32": 100e9, "float64": 50e9},
        "product_flops": {"float32": 80e9, "float64": 50e9},
        "call_overhead_s": 1e-6,
        "launch_s": None,
        "host_to_device_bytes_per_s": None,
        "device_to_host_bytes_per_s": None,
        "unstable": (),
        "notes": (),
        "latencies": tuple(
            LatencyPoint(size, 1e-9 if size <= 32 * KIB else 4e-9) for size in sizes
        ),
        "bandwidths": tuple(BandwidthPoint(size, 5e10, 4e10, 8e10, 9e10, 7e10) for size in sizes),
    }
    return MachineLimits(**values | changes)


def settle(drawn: Figure) -> None:
    """Lay ``drawn`` out at the resolution at which it is saved, so that its texts know their
    boxes.
    """
    with plt.style.context(STYLE_FILE):
        drawn.set_dpi(plt.rcParams["savefig.dpi"])
    drawn.draw_without_rendering()


def overlapping(texts) -> list[tuple[str, str]]:
    """Return the pairs of texts of a settled figure whose boxes share more than a rounded edge."""
    boxes = [
        (text.get_text(), text.get_window_extent().shrunk(0.98, 0.9))
        for text in texts
        if text.get_text()
    ]
    return [
        (a, b)
        for (a, first), (b, second) in itertools.combinations(boxes, 2)
        if first.overlaps(second)
    ]
