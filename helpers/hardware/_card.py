"""The card of a machine: its processor, caches, memory, limits and GPUs, as one result that prints
for a reader.

A card holds no host name, user name or serial number, so it may stand in a recorded file. Lesson
00.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from helpers import units
from helpers.results import Record

if TYPE_CHECKING:
    import pandas as pd

CACHE_KINDS = ("data", "instruction", "unified")


class Cache(Record):
    """One sort of cache: ``size_bytes`` is one instance's, ``shared_by`` the logical processors
    that share one.

    ``kind`` is data, instruction or unified. Where instances of one sort are shared by unlike
    numbers of processors (some are offline), ``shared_by`` is the largest. None is unknown. Lesson
    00.
    """

    level: int
    kind: str
    size_bytes: int | None
    line_bytes: int | None = None
    ways: int | None = None
    shared_by: int | None = None
    instances: int | None = None


class Gpu(Record):
    """One GPU as its driver describes it; ``backend`` is CUDA, ROCm or MPS.

    None is unknown. Lesson 00.
    """

    name: str
    backend: str
    multiprocessors: int | None = None
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    capability: str | None = None
    clock_hz: float | None = None
    driver: str | None = None


class MachineCard(Record):
    """The facts of one machine.

    None is unknown, but for the two limits, where it means that none can be seen. ``allowed_cores``
    are the logical processors that the process may run on, ``quota_cores`` the processor time, in
    cores, that its control groups give it, ``usable_cores`` the smaller of the two.
    ``memory_limit_bytes`` is the smallest limit of its control groups. ``extensions`` are the
    instruction sets that matter to deep learning and that every processor has. ``caches`` is None
    where the system lists none. Lesson 00.
    """

    model: str | None = None
    vendor: str | None = None
    architecture: str | None = None
    extensions: tuple[str, ...] | None = None
    physical_cores: int | None = None
    logical_cores: int | None = None
    allowed_cores: int | None = None
    quota_cores: float | None = None
    usable_cores: float | None = None
    base_hz: float | None = None
    maximum_hz: float | None = None
    caches: tuple[Cache, ...] | None = None
    ram_bytes: int | None = None
    ram_available_bytes: int | None = None
    memory_limit_bytes: int | None = None
    swap_bytes: int | None = None
    system: str | None = None
    gpus: tuple[Gpu, ...] | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        caches = ("caches", _align(_cache_rows(self)))
        lines = [
            f"  {name:<12}  {block}".replace("\n", "\n" + " " * 16)
            for name, block in (*_lines(self), caches, *_last_lines(self))
        ]
        return "\n".join(["Machine card", *lines])

    def _repr_html_(self) -> str:
        header, *caches = _cache_rows(self)
        lines = _html_rows([*_lines(self), *_last_lines(self)], heads=1)
        rows = _html_rows([header], heads=len(header)) + _html_rows(caches, heads=1)
        return f"<div><b>Machine card</b><table>{lines}</table><table>{rows}</table></div>"

    def table(self) -> pd.DataFrame:
        """Return the caches as a DataFrame of plain numbers, one row a sort of cache; see
        :class:`Cache`.
        """
        import pandas as pd

        columns = [field.name for field in dataclasses.fields(Cache)]
        return pd.DataFrame([cache.to_dict() for cache in self.caches or ()], columns=columns)


def binary(size_bytes: int | None) -> str:
    """Return a size as it is built, in powers of two and without empty decimals: ``32 KiB``,
    ``1.25 MiB``.
    """
    number, _, unit = units.text(size_bytes, "B", binary=True).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}".strip()


def _lines(card: MachineCard) -> list[tuple[str, str]]:
    maker = ", ".join(filter(None, [card.vendor, card.architecture]))
    extensions = ", ".join(card.extensions or ()) or "none that speeds deep learning up"
    physical, logical = _or_unknown(card.physical_cores), _or_unknown(card.logical_cores)
    usable = f"{card.usable_cores:.3g}" if card.usable_cores is not None else "unknown"
    quota = f" (a quota of {card.quota_cores:.3g})" if card.quota_cores else ""
    memory = f"{binary(card.ram_bytes)}, of which {binary(card.ram_available_bytes)} available"
    limit = "none seen" if card.memory_limit_bytes is None else binary(card.memory_limit_bytes)
    return [
        ("processor", _or_unknown(card.model) + (f" ({maker})" if maker else "")),
        ("instructions", "unknown" if card.extensions is None else extensions),
        ("cores", f"{physical} physical, {logical} logical, {usable} usable{quota}"),
        (
            "clock",
            f"base {units.text(card.base_hz, 'Hz')}, maximum {units.text(card.maximum_hz, 'Hz')}",
        ),
        ("memory", memory),
        ("memory limit", limit),
        ("swap", "none" if card.swap_bytes == 0 else binary(card.swap_bytes)),
        ("system", _or_unknown(card.system)),
    ]


def _cache_rows(card: MachineCard) -> list[list[str]]:
    header = ["cache", "size", "instances", "line", "ways", "shared by"]
    rows = [
        [
            f"L{cache.level} {cache.kind}",
            binary(cache.size_bytes),
            _or_unknown(cache.instances),
            binary(cache.line_bytes),
            _or_unknown(cache.ways),
            _or_unknown(cache.shared_by),
        ]
        for cache in card.caches or ()
    ]
    return [header, *(rows or [["unknown"] * len(header)])]


def _last_lines(card: MachineCard) -> list[tuple[str, str]]:
    """Return the lines below the caches: the GPUs, and the notes."""
    gpus = [(f"GPU {index}", _gpu_line(gpu)) for index, gpu in enumerate(card.gpus or ())]
    no_gpu = [("GPU", "unknown" if card.gpus is None else "none")]
    return [*(gpus or no_gpu), *(("note", note) for note in card.notes)]


def _gpu_line(gpu: Gpu) -> str:
    return (
        f"{gpu.name} ({gpu.backend}): {_or_unknown(gpu.multiprocessors)} multiprocessors, memory "
        f"{binary(gpu.memory_bytes)}, L2 {binary(gpu.l2_bytes)}, capability "
        f"{_or_unknown(gpu.capability)}, clock {units.text(gpu.clock_hz, 'Hz')}, driver "
        f"{_or_unknown(gpu.driver)}"
    )


def _or_unknown(value: object) -> str:
    return "unknown" if value is None else str(value)


def _align(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _html_rows(rows: Iterable[Sequence[str]], *, heads: int) -> str:
    """Return rows of a table, of each of which the first ``heads`` cells are headings."""
    lines = []
    for row in rows:
        tags = ["th"] * heads + ["td"] * (len(row) - heads)
        cells = (
            f"<{tag} style='text-align:left;padding:0 1em 0 0'>{html.escape(cell)}</{tag}>"
            for tag, cell in zip(tags, row, strict=True)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "".join(lines)
