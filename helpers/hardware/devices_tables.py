"""What the table of devices comes to: memory on the chip level by level, and published rates that are 2x too high.

Computed from :mod:`helpers.hardware.devices`, nothing measured. Lessons 01 and 02.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from helpers.hardware.devices import Device, Source, amount, device, device_data, device_sources, devices
from helpers.results import Result

_EVEN_RATIO = 1.0


@dataclass(frozen=True)
class OnChipMemory(Result):
    """One device's memory on the chip, all cores together, level by level; None is unknown or not there.

    ``registers_to_l2_ratio`` above 1 is the inversion: more in registers than in the cache behind them. Lesson 01.
    """

    name: str
    kind: str
    introduced: str | None
    register_bytes: int | None
    l1_bytes: int | None
    shared_bytes: int | None
    l2_bytes: int | None
    l3_bytes: int | None
    registers_to_l2_ratio: float | None

    @property
    def inverted(self) -> bool | None:
        """Whether the registers hold more than the second-level cache; None where one of the two is unknown."""
        return None if self.registers_to_l2_ratio is None else self.registers_to_l2_ratio > _EVEN_RATIO


@dataclass(frozen=True)
class MemoryInversion(Result):
    """Registers, first and second level of GPUs against processors; the medians are of the devices known. Lesson 01."""

    gpu_median_ratio: float | None
    cpu_median_ratio: float | None
    devices: tuple[OnChipMemory, ...]


@dataclass(frozen=True)
class PublishedError(Result):
    """A published table's rate beside ours; a ``claim_ratio`` near 2 is a sparse rate given for a dense one.

    Lesson 02.
    """

    device: str
    dtype: str
    said: str
    claimed_flops_per_s: float
    dense_flops_per_s: float
    claim_ratio: float
    published_by: str
    source: Source = field(repr=False)


@dataclass(frozen=True)
class PublishedErrors(Result):
    """Rates that public tables call dense, or do not call sparse, held to ours. Lesson 02."""

    median_ratio: float
    claims: tuple[PublishedError, ...]


def memory_inversion(names: Sequence[str] | None = None) -> MemoryInversion:
    """Return the memory on the chips of the devices called ``names``, by default of all whose registers are known.

    Raises TypeError for one name instead of a list, ValueError for an unknown or ambiguous name, as
    :func:`helpers.hardware.devices.device`. Lesson 01.
    """
    if isinstance(names, str):
        raise TypeError(f"names is a list of names, such as [{names!r}]")
    if names is None:
        chosen = [known for known in devices() if known.register_bytes is not None]
    else:
        chosen = [device(name) for name in names]
    rows = tuple(_on_chip(one) for one in chosen)
    return MemoryInversion(_median_ratio(rows, "gpu"), _median_ratio(rows, "cpu"), rows)


def published_errors() -> PublishedErrors:
    """Return the rates of public tables that this course found wrong, each with its ratio to the dense rate.

    Every one was read in the table that it is laid to; the address is in the claim's ``source``. Lesson 02.
    """
    data = device_data()
    sources = device_sources(data)
    claims = tuple(_claim(entry, sources[entry["source"]]) for entry in data["claim"])
    return PublishedErrors(statistics.median(claim.claim_ratio for claim in claims), claims)


def _on_chip(one: Device) -> OnChipMemory:
    known = one.register_bytes is not None and one.l2_bytes is not None
    ratio = one.register_bytes / one.l2_bytes if known else None
    return OnChipMemory(one.name, one.kind, one.introduced, one.register_bytes, one.l1_bytes, one.shared_bytes,
                        one.l2_bytes, one.l3_bytes, ratio)  # fmt: skip


def _median_ratio(rows: Sequence[OnChipMemory], kind: str) -> float | None:
    ratios = [row.registers_to_l2_ratio for row in rows if row.kind == kind and row.registers_to_l2_ratio is not None]
    return statistics.median(ratios) if ratios else None


def _claim(entry: dict, source: Source) -> PublishedError:
    claimed = amount(entry["flops_per_s"])
    dense = device(entry["device"]).peak(entry["dtype"]).dense_flops_per_s
    return PublishedError(entry["device"], entry["dtype"], entry["said"], claimed, dense, claimed / dense,
                          source.title, source)  # fmt: skip
