"""The whole system under the notebook: each link between disk, memory, device and network,
measured.

A link's bandwidth counts each byte once, from one end to the other; its latency is the time of the
smallest useful transfer, alone. The caches are the probe's
(:class:`helpers.hardware.MachineLimits`), and join the table when they are given. Lesson 01.
"""

from __future__ import annotations

import functools
import os
import struct
import time
from collections.abc import Callable

import torch

from helpers.checks import whole_number
from helpers.console import track
from helpers.hardware._card import MachineCard
from helpers.hardware._machine import machine_card
from helpers.hardware.limits._results import MachineLimits
from helpers.results import Record, row_of
from helpers.studies._page_cache import drop_from_page_cache
from helpers.studies.data_movement import _disk as disk
from helpers.studies.data_movement._network import STREAM_BYTES, loopback_rate, measure_loopback
from helpers.studies.data_movement._order import line_size_bytes
from helpers.timing import fixed_threads, measure
from helpers.timing._runs import watch_waiting

COPY_BYTES = 64 * 2**20

_SIMD_BITS = {
    "DEFAULT": 128,
    "NO AVX": 128,
    "AVX512": 512,
    "AVX2": 256,
    "AVX": 256,
    "ZVECTOR": 128,
    "VSX": 128,
    "SVE256": 256,
    "SVE128": 128,
}
_SMALL_BYTES = 4
# a request of the direct reads: few, so that the disk's work is seen and not the requests'
_DMA_BYTES = 8 * 2**20


class MeasuredLink(Record):
    """One link: bytes a second of a long transfer, the time of the smallest, and ``how`` both were
    found.

    None is not measured; ``note`` says why, or what to know about it. Lesson 01.
    """

    link: str
    bandwidth_bytes_per_s: float | None
    latency_s: float | None
    how: str
    note: str


class SystemLinks(Record):
    """The links of one machine from the farthest to the nearest, and its words.

    ``pointer_bits`` is an address, ``simd_bits`` the widest vector that PyTorch uses here (None
    where PyTorch names a level that is not known), ``line_bytes`` what moves between caches and
    memory. Lesson 01.
    """

    pointer_bits: int
    simd: str
    simd_bits: int | None
    line_bytes: int
    links: tuple[MeasuredLink, ...]

    def link(self, name: str) -> MeasuredLink:
        """Return the link called ``name``; ValueError, with the names there are, for another."""
        return row_of(self.links, "link", link=name)


class CopyRow(Record):
    """One way to move bytes: ``cpu_share`` is the processor time over the time that the process had
    a processor.

    ``waiting_share`` is the part of ``elapsed_s`` in which other programs had it, and is taken off
    for the share (None where the system does not tell: then nothing is taken off). Lesson 01.
    """

    how: str
    moved_bytes: int
    elapsed_s: float
    cpu_s: float
    waiting_share: float | None
    cpu_share: float


class CopyCosts(Record):
    """The cost to a core of moving bytes, copied by the core itself or fetched by the device (DMA).

    Lesson 01.
    """

    bypass: str
    rows: tuple[CopyRow, ...]


def measure_links(
    folder: str | os.PathLike[str] | None = None,
    *,
    file_bytes: int = 128 * 2**20,
    limits: MachineLimits | None = None,
    budget_s: float = 0.5,
    card: MachineCard | None = None,
) -> SystemLinks:
    """Return the bandwidth and latency of every link that is here, from the disk to the device.

    ``folder`` holds the temporary file of ``file_bytes`` for the disk
    (:func:`helpers.studies.data_movement._disk.measure_disk`); ``budget_s`` is per copy that is
    timed. Host copies are of 64 MiB, with one thread and with PyTorch's. On CUDA the bus is
    measured both ways from pinned and pageable memory, and a device's copy within itself; elsewhere
    these rows are None with a note. With ``limits`` the measured caches and main memory stand in
    the table as well; ``card`` (by default this machine's) says how long a line is. About ten
    seconds.

    Raises as :func:`helpers.studies.data_movement._disk.measure_disk`, OSError where the loopback
    cannot be used. Lesson 01.
    """
    card = card or machine_card()
    simd, bits = simd_width()
    parts: list[Callable[[], list[MeasuredLink]]] = [
        lambda: _network(budget_s),
        lambda: _disk(folder, file_bytes),
        lambda: _host_copies(budget_s),
        lambda: _device_copies(budget_s),
        lambda: _caches(limits),
    ]
    links = [link for part in track(parts, "links") for link in part()]
    return SystemLinks(
        pointer_bits=8 * struct.calcsize("P"),
        simd=simd,
        simd_bits=bits,
        line_bytes=line_size_bytes(card),
        links=tuple(links),
    )


def simd_width() -> tuple[str, int | None]:
    """Return the vector instructions that PyTorch uses on this CPU, and their bits (None for an
    unknown name).

    PyTorch's own answer (``torch.backends.cpu.get_cpu_capability``); "DEFAULT" is 128 bits: SSE2 of
    every x86-64, Neon of every 64-bit Arm. Lesson 01.
    """
    name = torch.backends.cpu.get_cpu_capability()
    return name, _SIMD_BITS.get(name)


def measure_copy_costs(
    folder: str | os.PathLike[str] | None = None, *, moved_bytes: int = 64 * 2**20, passes: int = 5
) -> CopyCosts:
    """Return the part of a core that each way of moving ``moved_bytes`` takes: why devices write to
    memory themselves.

    A core copies between two places in memory, and from the page cache when a file (in ``folder``,
    by default that for temporary files) is read a second time; past the page cache the disk's
    controller writes to memory (direct memory access) while the core waits. On CUDA also a copy to
    the device from pageable memory, which a core stages, and from pinned memory, which the device
    fetches. CPU time is this process's, all threads (times(2)); of each way ``passes`` are added
    up. The share of a direct read also holds what the system does for each request, and its
    processor time may exceed a copy's where the page cache is fast: what matters is that the core
    is free meanwhile.

    Raises as :func:`helpers.studies.data_movement._disk.measure_disk`, ValueError for no pass.
    Lesson 01.
    """
    whole_number("passes", passes)
    with disk.temporary_file(moved_bytes, folder) as path, fixed_threads(1):
        source = torch.zeros(moved_bytes, dtype=torch.uint8)
        target = torch.ones_like(source)
        rows = [
            _copy_row(
                "memory to memory, a core copies", moved_bytes, passes, lambda: target.copy_(source)
            )
        ]
        with disk.open_descriptor(path) as descriptor:
            disk.read_rate(descriptor, moved_bytes)
            rows.append(
                _copy_row(
                    "page cache to memory, a core copies",
                    moved_bytes,
                    passes,
                    lambda: disk.read_rate(descriptor, moved_bytes),
                )
            )
        drop_from_page_cache(path)
        with disk.open_past_cache(path) as (descriptor, bypass):
            if bypass != disk.NOT_BYPASSED:
                directly = functools.partial(
                    disk.read_rate, descriptor, moved_bytes, chunk_bytes=_DMA_BYTES
                )
                rows.append(
                    _copy_row(
                        "disk to memory, the disk writes (DMA)", moved_bytes, passes, directly
                    )
                )
        if torch.cuda.is_available():
            rows += _cuda_costs(source, passes)
    return CopyCosts(bypass=bypass, rows=tuple(rows))


def _copy_row(how: str, moved_bytes: int, passes: int, move: Callable[[], object]) -> CopyRow:
    move()
    waiting = watch_waiting(time.perf_counter)
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    for _ in range(passes):
        move()
    elapsed_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
    waiting_share = waiting()
    had_s = elapsed_s * (1 - (waiting_share or 0))
    return CopyRow(
        how=how,
        moved_bytes=passes * moved_bytes,
        elapsed_s=elapsed_s,
        cpu_s=cpu_s,
        waiting_share=waiting_share,
        cpu_share=cpu_s / had_s,
    )


def _cuda_costs(pageable: torch.Tensor, passes: int) -> list[CopyRow]:
    pinned, there = pageable.pin_memory(), pageable.to("cuda")
    # the core sleeps until the device is done, and does not poll
    event = torch.cuda.Event(blocking=True)

    def copy(source: torch.Tensor) -> None:
        there.copy_(source, non_blocking=True)
        event.record()
        event.synchronize()

    ways = {
        "pageable memory to device, a core stages": pageable,
        "pinned memory to device, the device fetches (DMA)": pinned,
    }
    return [
        _copy_row(how, pageable.nbytes, passes, functools.partial(copy, source))
        for how, source in ways.items()
    ]


def _network(budget_s: float) -> list[MeasuredLink]:
    trip = measure_loopback((1,), budget_s=budget_s).row("TCP", 1)
    how = f"TCP: {STREAM_BYTES // 2**20} MiB one way; half a round trip of 1 byte"
    return [
        MeasuredLink(
            "loopback socket",
            loopback_rate(),
            trip.round_trip_s / 2,
            how,
            "no card, no wire: the system's copies and wake-ups",
        )
    ]


def _disk(folder: str | os.PathLike[str] | None, file_bytes: int) -> list[MeasuredLink]:
    reads = disk.measure_disk(folder, file_bytes=file_bytes)
    size = f"{file_bytes // 2**20} MiB, 1 MiB at a time; one read of 4 KiB"
    notes = {
        disk.NOT_BYPASSED: f"{disk.NOT_BYPASSED}: this is memory, not a disk",
        disk.DIRECT: "a virtual disk may answer from its host's memory",
    }
    disk_note = notes.get(reads.bypass, reads.bypass)
    file, again = f"a file, {size} ({reads.bypass})", f"the file again, {size}"
    cache_note = "memory, and a system call for each read"
    return [
        MeasuredLink("disk", reads.sequential_bytes_per_s, reads.random_read_s, file, disk_note),
        MeasuredLink(
            "page cache", reads.cached_bytes_per_s, reads.cached_read_s, again, cache_note
        ),
    ]


def _host_copies(budget_s: float) -> list[MeasuredLink]:
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8)
    target = torch.ones_like(source)
    links = []
    for threads in dict.fromkeys((1, torch.get_num_threads())):
        with fixed_threads(threads):
            measurement = measure(lambda: target.copy_(source), budget_s=budget_s, device="cpu")
        links.append(
            MeasuredLink(
                f"memory to memory, {threads} thread{'s' if threads > 1 else ''}",
                COPY_BYTES / measurement.minimum_s,
                None,
                "a copy of 64 MiB, pageable",
                "each byte is read and written: twice this moves",
            )
        )
    return links


def _device_copies(budget_s: float) -> list[MeasuredLink]:
    cases = [
        (f"{direction}, {kind}", direction, kind)
        for direction in ("host to device", "device to host")
        for kind in ("pinned", "pageable")
    ]
    if not torch.cuda.is_available():
        names = [name for name, _, _ in cases] + ["device to device"]
        note = "this machine has no CUDA device"
        return [MeasuredLink(name, None, None, "not measured", note) for name in names]
    links = []
    for name, direction, kind in cases:
        times = [
            _bus_seconds(direction, size, kind == "pinned", budget_s)
            for size in (COPY_BYTES, _SMALL_BYTES)
        ]
        links.append(
            MeasuredLink(
                name,
                COPY_BYTES / times[0],
                times[1],
                "a copy of 64 MiB; one of 4 bytes, waited for",
                "staged by a core" if kind == "pageable" else "fetched by the device",
            )
        )
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    seconds = measure(lambda: target.copy_(source), budget_s=budget_s, device="cuda").minimum_s
    links.append(
        MeasuredLink(
            "device to device",
            COPY_BYTES / seconds,
            None,
            "a copy of 64 MiB within the device",
            "each byte is read and written in the device's memory",
        )
    )
    return links


def _bus_seconds(direction: str, size: int, is_pinned: bool, budget_s: float) -> float:
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=is_pinned)
    device = torch.zeros(size, dtype=torch.uint8, device="cuda")
    source, target = (host, device) if direction == "host to device" else (device, host)

    def copy() -> None:
        target.copy_(source, non_blocking=True)
        # each copy is waited for: the latency of one is wanted, not of a queue
        torch.cuda.synchronize()

    return measure(copy, budget_s=budget_s, device="cuda").minimum_s


def _caches(limits: MachineLimits | None) -> list[MeasuredLink]:
    if limits is None:
        return []
    how = f"the probe's triad and chase, {limits.threads} threads"
    return [
        MeasuredLink(
            level.name,
            level.bandwidth_bytes_per_s,
            level.latency_s,
            how,
            "counted as STREAM counts",
        )
        for level in reversed(limits.memory_levels)
    ]
