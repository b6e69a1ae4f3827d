"""Known processors and accelerators as data: peaks, memory, caches, registers, each figure with
where it was read.

The figures stand in ``devices.toml`` beside this module. A figure that no source was found for is
None and is shown as unknown. Peaks are kept dense and sparse apart: published tables mix the two,
and are then wrong by a factor of two. Lessons 01 and 02.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from importlib import resources
from typing import TYPE_CHECKING, Any

from helpers import results
from helpers.hardware._card import MachineCard
from helpers.results import Record

if TYPE_CHECKING:
    import pandas as pd

UNITS = ("vector", "matrix")
DTYPES = (
    "float64",
    "float32",
    "tfloat32",
    "bfloat16",
    "float16",
    "float8",
    "float4",
    "int8",
    "int4",
)

_MARKETING = (
    "nvidia",
    "geforce",
    "tesla",
    "amd",
    "instinct",
    "intel",
    "r",
    "tm",
    "processor",
    "cpu",
)
_BITS_PER_BYTE = 8


class Source(Record):
    """Where a figure was read: ``kind`` is vendor, paper, reference (database, press) or community.

    Lesson 02.
    """

    title: str
    address: str
    kind: str
    read: str


class Fact(Record):
    """One figure of a device: its field, the value in the field's unit, the source and a note on
    it.

    Lesson 02.
    """

    name: str
    value: float | str
    source: Source = field(repr=False)
    note: str = ""


class Peak(Record):
    """The most operations a second in one format; for int8 and int4 they are operations on whole
    numbers.

    ``unit`` is vector (ordinary cores) or matrix (tensor or matrix cores, systolic arrays).
    ``dense_flops_per_s`` is the rate for any matrix, ``sparse_flops_per_s`` the one for matrices
    with two zeros in every four values; a multiply-add counts as two operations. None is unknown.
    Lesson 02.
    """

    dtype: str
    unit: str
    dense_flops_per_s: float | None
    sparse_flops_per_s: float | None
    source: Source = field(repr=False)
    note: str = ""


class Device(Record):
    """One processor or accelerator as published; None is unknown, and ``facts`` holds the source of
    every figure.

    ``kind`` is gpu, cpu, tpu or soc, ``introduced`` a year. ``cores`` are the multiprocessors or
    compute units of a GPU, the TensorCores of a TPU. What begins with ``core_`` is one core's:
    registers, first-level cache, and the most of it (or beside it) that a program may use as shared
    memory. ``array_rows`` by ``array_columns`` elements are one systolic array of a TPU, of which a
    core may have several; ``clock_hz`` are its cycles a second. ``l3_bytes`` is the last level
    where it is not L2, ``on_chip_bytes`` a TPU's memory on the chip. ``memory_bus_bits`` times
    ``memory_rate_per_s`` (transfers a second on each wire) is eight times the bandwidth. Lessons
    01, 02 and 14.
    """

    name: str
    kind: str
    introduced: str | None = None
    cores: int | None = None
    core_register_bytes: int | None = None
    core_l1_bytes: int | None = None
    core_shared_bytes: int | None = None
    array_rows: int | None = None
    array_columns: int | None = None
    clock_hz: float | None = None
    l2_bytes: int | None = None
    l3_bytes: int | None = None
    on_chip_bytes: int | None = None
    memory_bytes: int | None = None
    memory_bus_bits: int | None = None
    memory_rate_per_s: float | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    tdp_w: float | None = None
    peaks: tuple[Peak, ...] = ()
    aliases: tuple[str, ...] = field(default=(), repr=False)
    facts: tuple[Fact, ...] = field(default=(), repr=False)

    @property
    def year(self) -> int | None:
        """The year it was introduced, as a number; None where it is unknown."""
        return None if self.introduced is None else int(self.introduced)

    @property
    def register_bytes(self) -> int | None:
        """Registers of all cores together; None where cores or their registers are unknown."""
        return _product(self.cores, self.core_register_bytes)

    @property
    def l1_bytes(self) -> int | None:
        """First-level data caches of all cores together (on NVIDIA's since Volta, with the shared
        memory in them).
        """
        return _product(self.cores, self.core_l1_bytes)

    @property
    def shared_bytes(self) -> int | None:
        """The shared memory that all cores together can give to programs; None for what has none or
        is unknown.
        """
        return _product(self.cores, self.core_shared_bytes)

    @property
    def bus_bandwidth_bytes_per_s(self) -> float | None:
        """The bandwidth that bus width and data rate come to; None where one of them is unknown."""
        bits_per_s = _product(self.memory_bus_bits, self.memory_rate_per_s)
        return None if bits_per_s is None else bits_per_s / _BITS_PER_BYTE

    def fact(self, name: str) -> Fact | None:
        """Return the figure ``name`` with its source, None where it is unknown.

        Raises ValueError for a name that is no figure of a device.
        """
        if name not in FIGURES:
            raise ValueError(f"a device has no figure {name!r}; it has {', '.join(FIGURES)}")
        return next((fact for fact in self.facts if fact.name == name), None)

    def peak(self, dtype: str, *, unit: str | None = None) -> Peak | None:
        """Return the peak in ``dtype`` of ``unit``, or of the faster unit; None where none is
        known.

        Raises ValueError for a dtype that is not in :data:`DTYPES` or a unit that is not in
        :data:`UNITS`.
        """
        _require(dtype, DTYPES, "dtype")
        if unit is not None:
            _require(unit, UNITS, "unit")
        candidates = [
            peak for peak in self.peaks if peak.dtype == dtype and unit in (None, peak.unit)
        ]
        return max(candidates, key=lambda peak: peak.dense_flops_per_s or 0.0, default=None)

    def sources(self) -> pd.DataFrame:
        """Return every figure and peak as printed, with the source's title, kind, address, date and
        note; one a row.
        """
        import pandas as pd

        rows: list[tuple[str, str, Fact | Peak | None]]
        rows = [
            (results.label(name), results.cell(name, getattr(self, name)), self.fact(name))
            for name in FIGURES
        ]
        rows += [
            (f"{peak.dtype} {peak.unit} {state}", results.cell("flops_per_s", rate), peak)
            for peak in self.peaks
            for state, rate in (
                ("dense", peak.dense_flops_per_s),
                ("sparse", peak.sparse_flops_per_s),
            )
            if rate is not None
        ]
        return pd.DataFrame(
            [(figure, value, *_origin(fact)) for figure, value, fact in rows],
            columns=["figure", "value", "source", "kind", "address", "read", "note"],
        )


FIGURES = tuple(
    member.name
    for member in fields(Device)
    if member.name not in ("name", "kind", "peaks", "aliases", "facts")
)


class KnownDevice(Record):
    """The table's entry for a machine's device: the device, or None and the reason in words.

    Lesson 02.
    """

    asked: str
    device: Device | None
    reason: str


@functools.cache
def devices() -> tuple[Device, ...]:
    """Return every device of the table, in its order: GPUs, TPUs, processors, Apple's chips.

    Lesson 02.
    """
    data = read_toml("helpers.hardware", "devices.toml")
    sources = device_sources(data)
    return tuple(_device(entry, sources) for entry in data["device"])


def device(name: str) -> Device:
    """Return the device called ``name``: the table's name, an alias, or what
    ``torch.cuda.get_device_name`` says.

    Makers' names, case and punctuation do not count; everything else does, so an H200 is never
    taken for an H100, nor an RTX 3090 Ti for an RTX 3090. Raises TypeError for what is no text,
    ValueError for a name that is unknown or that several devices go by, with the names that are
    near.

    >>> h100 = device("NVIDIA H100 80GB HBM3")
    >>> h100.name, h100.cores, h100.l2_bytes
    ('H100 SXM 80 GB', 132, 52428800)

    Lesson 02.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"device takes a name such as 'NVIDIA H200', not {name!r} ({type(name).__name__})"
        )
    normal_name = _normal(name)
    if normal_name in _by_name():
        return _by_name()[normal_name]
    near = _near(normal_name)
    if len(near) > 1 and all(_normal(near_name).startswith(normal_name) for near_name in near):
        raise ValueError(f"{name!r} may be {' or '.join(near)}, and they differ; say which")
    suggestion = (
        f"near it: {', '.join(near)}"
        if near
        else f"known: {', '.join(entry.name for entry in devices())}"
    )
    raise ValueError(f"{name!r} is not in the table of devices; {suggestion}")


def known_device(machine: str | MachineCard) -> KnownDevice:
    """Return the table's entry for a device's name, or for a machine card's first GPU or else its
    processor.

    Nothing is raised for a device that is not in the table: ``device`` is None then and ``reason``
    says why, so a roofline is drawn without data-sheet roofs. Raises TypeError for what is neither
    text nor a card.

    >>> known_device("NVIDIA H200").device.name
    'H200 SXM'
    >>> known_device("NVIDIA A100").reason
    "'NVIDIA A100' may be A100 SXM 40 GB or A100 SXM 80 GB, and they differ; say which"
    """
    if not isinstance(machine, str | MachineCard):
        raise TypeError(
            f"known_device takes a name or a machine card, not {machine!r:.40} "
            f"({type(machine).__name__})"
        )
    if isinstance(machine, str):
        name: str | None = machine
    else:
        name = machine.gpus[0].name if machine.gpus else machine.model
    if not name:
        return KnownDevice("", None, "the system does not say what its processor is called")
    try:
        entry = device(name)
    except ValueError as error:
        return KnownDevice(name, None, str(error))
    return KnownDevice(name, entry, f"{name!r} is {entry.name} in the table")


def ridge_flops_per_byte(device: Device, dtype: str, *, unit: str | None = None) -> float | None:
    """Return the arithmetic intensity at which ``device`` is as busy computing as moving: dense
    peak over bandwidth.

    The peak is that in ``dtype`` of ``unit``, as :meth:`Device.peak` gives it. None where it or the
    bandwidth is unknown. Raises TypeError for what is no device, ValueError as :meth:`Device.peak`.
    The ridge point of the roofline model (Williams, Waterman and Patterson 2009).

    >>> h200 = device("NVIDIA H200")
    >>> [round(ridge_flops_per_byte(h200, dtype)) for dtype in ("float32", "bfloat16")]
    [14, 206]
    """
    require_device(device)
    peak = device.peak(dtype, unit=unit)
    dense = None if peak is None else peak.dense_flops_per_s
    bandwidth = device.memory_bandwidth_bytes_per_s
    return dense / bandwidth if dense and bandwidth else None


def require_device(candidate: object) -> None:
    """Raise TypeError unless ``candidate`` is a device."""
    if not isinstance(candidate, Device):
        raise TypeError(
            "this takes a device of the table, such as device('NVIDIA H200'), not "
            f"{candidate!r:.40} ({type(candidate).__name__})"
        )


def _product(*factors: float | None) -> Any:
    return None if None in factors else math.prod(factors)


def _require(value: str, choices: Sequence[str], label: str) -> None:
    if value not in choices:
        raise ValueError(f"{label} {value!r} is not known; use one of {', '.join(choices)}")


def _origin(fact: Fact | Peak | None) -> list[str]:
    if fact is None:
        return [""] * 5
    source = fact.source
    return [source.title, source.kind, source.address, source.read, fact.note]


def read_toml(package: str, name: str) -> Mapping[str, Any]:
    """Return the data file ``name`` of ``package`` as it stands."""
    return tomllib.loads(resources.files(package).joinpath(name).read_text(encoding="utf-8"))


def device_sources(data: Mapping[str, Any]) -> dict[str, Source]:
    """Return the sources of a data file by key; one without a date of its own was read on the
    file's.
    """
    return {
        key: Source(title, address, kind, *(read_dates or [data["read"]]))
        for key, (title, address, kind, *read_dates) in data["sources"].items()
    }


def _device(entry: Mapping[str, Any], sources: Mapping[str, Source]) -> Device:
    facts = []
    for name in FIGURES:
        if name in entry:
            value, source, *note = entry[name]
            facts.append(Fact(name, amount(value), sources[source], *note))
    peaks = tuple(
        Peak(
            peak["dtype"],
            peak["unit"],
            amount(peak.get("dense")),
            amount(peak.get("sparse")),
            sources[peak["source"]],
            peak.get("note", ""),
        )
        for peak in entry["peaks"]
    )
    # each of its field's own type
    values: dict[str, Any] = {fact.name: fact.value for fact in facts}
    return Device(
        entry["name"],
        entry["kind"],
        **values,
        peaks=peaks,
        aliases=tuple(entry["aliases"]),
        facts=tuple(facts),
    )


def amount(value: Any) -> Any:
    """Return a figure of a data file: a number, a product ``[6144, 1024]``, or a sum of products
    ``[[192, 8], ...]``.

    A result that is whole comes back as an ``int``, text and None as they are.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        value = sum(map(amount, value)) if isinstance(value[0], list) else math.prod(value)
    return int(value) if float(value).is_integer() else float(value)


def _normal(name: str) -> str:
    words = re.sub(r"\d+-core|@.*|[()]", " ", name.lower())
    return "".join(word for word in re.findall(r"[a-z0-9.+]+", words) if word not in _MARKETING)


@functools.cache
def _by_name() -> dict[str, Device]:
    """Return the devices by each of their names, without makers, case and punctuation."""
    return {_normal(name): entry for entry in devices() for name in (*entry.aliases, entry.name)}


def _near(normal_name: str) -> list[str]:
    names = {normal: entry.name for normal, entry in _by_name().items()}
    begins = [
        name for normal, name in names.items() if normal_name and normal.startswith(normal_name)
    ]
    close = begins or [names[match] for match in difflib.get_close_matches(normal_name, names, n=3)]
    return list(dict.fromkeys(close))
