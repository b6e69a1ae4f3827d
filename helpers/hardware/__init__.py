"""The machine under the notebook: as its system describes it (:func:`machine_card`), as measured (:func:`probe`).

A name is imported from its module when it is first used: the card is read also where PyTorch does not load.

Lesson 00.
"""

from __future__ import annotations

import importlib

_HOMES = {
    "compare_alignment": "access", "compare_direction": "access", "compare_order": "access",
    "lines_touched": "access", "sweep_stride": "access", "model_channels": "access_channels",
    "sweep_threads": "access_channels", "count_faults": "access_pages", "measure_fresh_pages": "access_pages",
    "Cache": "card", "Gpu": "card", "MachineCard": "card", "find_change_points": "changepoints", "Device": "devices",
    "device": "devices", "known_device": "devices", "ridge_flops_per_byte": "devices",
    "memory_inversion": "devices_tables", "published_errors": "devices_tables", "measure_disk": "disk",
    "revolution_s": "disk", "ring_bytes": "disk", "sweep_disk_cache": "disk", "doubling_time": "history",
    "energy_cost": "history", "energy_costs": "history", "inference_energy": "history",
    "multiplier_exponent": "history", "processors": "history", "training_compute": "history",
    "BandwidthPoint": "limits", "LatencyPoint": "limits", "MachineLimits": "limits", "MemoryLevel": "limits",
    "measure_copy_costs": "links", "measure_links": "links", "machine_card": "machine",
    "measure_mapped_weights": "mapped", "model_missed_layers": "mapped", "measure_loopback": "network",
    "packet_overhead": "network", "shortest_round_trip_s": "network", "probe": "probing",
}  # fmt: skip

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'helpers.hardware' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"helpers.hardware.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
