"""The memory on the chips of GPUs and processors, level by level, from the table of devices."""

from __future__ import annotations

from collections.abc import Sequence

from helpers import hardware
from helpers.results import Record, derived


class OnChipMemory(Record):
    """One device's memory on the chip, all cores together, level by level; None is unknown or not
    there.

    ``registers_to_l2_ratio`` above 1 is the inversion: more in registers than in the cache behind
    them. Lesson 01.
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


def memory_inversion(names: Sequence[str]) -> tuple[OnChipMemory, ...]:
    """Return the memory on the chips of the devices called ``names``.

    Raises TypeError for one name instead of a list, ValueError for an unknown or ambiguous name, as
    :func:`helpers.hardware._devices.device`.

    >>> rows = memory_inversion(["NVIDIA V100", "NVIDIA H200", "EPYC 7713"])
    >>> [(row.name, round(row.registers_to_l2_ratio, 2)) for row in rows]
    [('V100 SXM2', 3.33), ('H200 SXM', 0.66), ('EPYC 7713', 0.01)]

    Lesson 01.
    """
    if isinstance(names, str):
        raise TypeError(f"names is a list of names, such as [{names!r}]")
    return tuple(_on_chip(hardware.device(name)) for name in names)


def _on_chip(device: hardware.Device) -> OnChipMemory:
    registers, l2 = device.register_bytes, device.l2_bytes
    ratio = None if registers is None or l2 is None else registers / l2
    return derived(OnChipMemory, device, registers_to_l2_ratio=ratio)
