"""Weights mapped from a file that is larger than the memory they may take: the cliff. Lesson 12.

A forward pass reads each layer's weights once, in order, and begins again. While all of them stay
in memory a layer takes as long as its bytes take from memory; once they do not, the layer that is
needed next is the one that was thrown out longest ago, and under the usual order of eviction (least
recently used) *every* layer comes from the disk again, not only the bytes over the limit.
"""

from __future__ import annotations

import math
import mmap
import os
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from helpers.checks import boolean, whole_number
from helpers.isolation import run_limited
from helpers.results import Record
from helpers.studies._page_cache import drop_from_page_cache
from helpers.studies.data_movement import _disk as disk
from helpers.timing import fixed_threads

METHOD = "evicted by the program, least recently used first (madvise, posix_fadvise DONTNEED)"
WIDTH = 1024
LAYER_BYTES = 4 * WIDTH * WIDTH

_ROOM_BYTES = 512 * 2**20
_LIMIT_S = 240.0


class MappedRow(Record):
    """A pass over weights of ``file_bytes``: per layer the time, per pass what was counted.

    ``missed_share`` is the part of the layers that had to be brought back, as the window counted;
    ``read_bytes`` what the system read from the disk for a pass (None where it does not tell).
    ``layer_s`` is the median over the passes of the mean layer. Lesson 12.
    """

    file_bytes: int
    layers: int
    missed_share: float
    layer_s: float
    read_bytes: float | None


class MappedWeights(Record):
    """Layers whose weights are mapped from a file, under a limit of ``limit_bytes`` on what of it
    is in memory.

    ``method`` says who holds the limit. ``resident_layer_s`` is a layer with weights in ordinary
    memory, and ``disk_bytes_per_s`` the file read in sequence past the page cache: a layer takes
    the one, and the missed share of its bytes over the other. Lesson 12.
    """

    method: str
    limit_bytes: int
    layer_bytes: int
    resident_layer_s: float
    disk_bytes_per_s: float
    rows: tuple[MappedRow, ...]


def measure_mapped_weights(
    file_bytes: Sequence[int] = (32 * 2**20, 60 * 2**20, 64 * 2**20, 68 * 2**20, 96 * 2**20),
    *,
    limit_bytes: int = 64 * 2**20,
    folder: str | os.PathLike[str] | None = None,
    passes: int = 3,
    by_turns: bool = False,
    staying: int = 0,
) -> MappedWeights:
    """Return the time of a layer of 1024 x 1024 float32 weights (4 MiB), by the size of the mapped
    file and the limit.

    The sizes are ``file_bytes``; the file is in ``folder``, by default that for temporary files. A
    process of its own, limited in memory and time, maps it and multiplies a vector by layer after
    layer. The program itself holds the limit of ``limit_bytes``: before a layer is read that is not
    in memory, the least recently used ones are unmapped and dropped from the page cache until it
    fits, so no privilege is needed, and what this costs is not timed. A control group's limit does
    the same inside the system, with its own order of eviction. ``passes`` passes over each size are
    counted, after one that is not; one thread. Every second pass goes backward if ``by_turns`` is
    true, and the first ``staying`` layers are never dropped. Takes some ten seconds; the file is
    removed.

    Raises ValueError for sizes that are no multiples of 4 MiB or over 256 MiB, for a limit below
    one layer, for as many staying layers as the limit holds, or a folder that is itself in memory;
    RuntimeError outside Linux; OSError without room; what :meth:`helpers.isolation.Outcome.unwrap`
    raises when the process did not get through. Lesson 12.
    """
    sizes = sorted(set(file_bytes))
    if not sizes or any(
        size < LAYER_BYTES or size > disk.MOST_FILE_BYTES or size % LAYER_BYTES for size in sizes
    ):
        raise ValueError(
            f"file_bytes are {tuple(file_bytes)}; give multiples of {LAYER_BYTES:,} up to "
            f"{disk.MOST_FILE_BYTES:,}"
        )
    if limit_bytes < LAYER_BYTES or passes < 1:
        raise ValueError(
            f"limit_bytes={limit_bytes}, passes={passes}: give at least one layer of "
            f"{LAYER_BYTES:,} bytes and one pass"
        )
    boolean("by_turns", by_turns)
    whole_number("staying", staying, at_least=0, at_most=limit_bytes // LAYER_BYTES - 1)
    if not hasattr(os, "posix_fadvise") or not hasattr(mmap, "MADV_DONTNEED"):
        raise RuntimeError(
            "this system cannot be told to drop a file from memory (posix_fadvise); the experiment "
            "runs on Linux"
        )
    generator = np.random.default_rng()
    with disk.temporary_file(
        sizes[-1], folder, content=lambda size: _weights(size, generator)
    ) as path:
        drop_from_page_cache(path)
        with disk.open_past_cache(path) as (descriptor, bypass):
            if bypass == disk.NOT_BYPASSED or disk.cached_share(path) == 1:
                raise ValueError(
                    "the folder of the temporary file is itself in memory, or keeps its own copy "
                    "there, so nothing would come from a disk; give folder=, on a disk"
                )
            disk_bytes_per_s = disk.read_rate(descriptor, sizes[-1])
        outcome = run_limited(
            _run_sizes,
            str(path),
            tuple(sizes),
            limit_bytes,
            _Order(passes, by_turns, staying),
            memory_bytes=_ROOM_BYTES + 2 * limit_bytes,
            timeout_s=_LIMIT_S,
        )
        resident_s, rows = outcome.unwrap()
    return MappedWeights(
        method=METHOD,
        limit_bytes=limit_bytes,
        layer_bytes=LAYER_BYTES,
        resident_layer_s=resident_s,
        disk_bytes_per_s=disk_bytes_per_s,
        rows=tuple(rows),
    )


class Window:
    """The layers in memory, at most ``capacity``; ``evict`` is called with each that goes.

    Layers with a number below ``staying`` never go once they are there.
    """

    def __init__(
        self, capacity: int, evict: Callable[[int], None] | None = None, *, staying: int = 0
    ) -> None:
        self._capacity, self._evict, self._staying = capacity, evict or (lambda _: None), staying
        self._resident: OrderedDict[int, None] = OrderedDict()

    def touch(self, layer: int) -> bool:
        """Make room for ``layer`` and count it as just used; return whether it was in memory."""
        present = layer in self._resident
        if not present:
            while len(self._resident) >= self._capacity:
                victim = next(resident for resident in self._resident if resident >= self._staying)
                del self._resident[victim]
                self._evict(victim)
            self._resident[layer] = None
        self._resident.move_to_end(layer)
        return present

    def clear(self) -> None:
        """Let every layer go."""
        while self._resident:
            self._evict(self._resident.popitem()[0])


@dataclass(frozen=True)
class _Order:
    passes: int
    by_turns: bool
    staying: int


def _run_sizes(
    path: str, sizes: tuple[int, ...], limit_bytes: int, order: _Order
) -> tuple[float, list[MappedRow]]:
    with fixed_threads(1), open(path, "r+b") as file:
        resident_s = _resident_layer_s(limit_bytes // LAYER_BYTES)
        with mmap.mmap(file.fileno(), sizes[-1]) as memory_map:
            return resident_s, [
                _run_size(memory_map, file.fileno(), size, limit_bytes, order) for size in sizes
            ]


def _run_size(
    memory_map: mmap.mmap, descriptor: int, size: int, limit_bytes: int, order: _Order
) -> MappedRow:
    # The tensors hold on to the map, which can be closed only when they are gone: they live in this
    # function alone.
    layers = [
        torch.frombuffer(memory_map, dtype=torch.float32, count=WIDTH * WIDTH, offset=start).view(
            WIDTH, WIDTH
        )
        for start in range(0, size, LAYER_BYTES)
    ]

    def evict(layer: int) -> None:
        memory_map.madvise(mmap.MADV_DONTNEED, layer * LAYER_BYTES, LAYER_BYTES)
        os.posix_fadvise(descriptor, layer * LAYER_BYTES, LAYER_BYTES, os.POSIX_FADV_DONTNEED)

    for layer in range(len(layers)):
        evict(layer)
    window = Window(limit_bytes // LAYER_BYTES, evict, staying=order.staying)
    _pass(layers, window)
    seconds: list[float] = []
    total_misses = 0
    read_before = _read_bytes()
    for number in range(order.passes):
        spent_s, misses = _pass(layers, window, backward=order.by_turns and number % 2 == 0)
        seconds.append(spent_s / len(layers))
        total_misses += misses
    read_after = _read_bytes()
    window.clear()
    return MappedRow(
        file_bytes=size,
        layers=len(layers),
        layer_s=statistics.median(seconds),
        missed_share=total_misses / (order.passes * len(layers)),
        read_bytes=None
        if read_before is None or read_after is None
        else (read_after - read_before) / order.passes,
    )


def _pass(
    layers: Sequence[torch.Tensor], window: Window, *, backward: bool = False
) -> tuple[float, int]:
    """Return the seconds of the layers, without those of evicting, and how many were not in
    memory.
    """
    x, spent_s, misses = torch.ones(WIDTH), 0.0, 0
    for index in reversed(range(len(layers))) if backward else range(len(layers)):
        misses += not window.touch(index)
        start_s = time.perf_counter()
        x = torch.mv(layers[index], x)
        spent_s += time.perf_counter() - start_s
    if not bool(torch.isfinite(x).all()):
        raise RuntimeError(
            "the pass over the mapped weights gave no finite number: the file was changed meanwhile"
        )
    return spent_s, misses


def _resident_layer_s(layers: int) -> float:
    """Return the median seconds of a layer whose weights are in ordinary memory, as many layers as
    the limit holds.
    """
    generator = np.random.default_rng()
    weights = [
        torch.frombuffer(bytearray(_weights(LAYER_BYTES, generator)), dtype=torch.float32).view(
            WIDTH, WIDTH
        )
        for _ in range(layers)
    ]
    window = Window(layers)
    _pass(weights, window)
    return statistics.median(_pass(weights, window)[0] / layers for _ in range(5))


def _weights(size: int, generator: np.random.Generator) -> bytes:
    """Return ``size`` bytes of float32 weights that keep a vector's length: normal, with variance 1
    / width.
    """
    values = generator.standard_normal(size // 4, dtype=np.float32)
    return (values / np.float32(math.sqrt(WIDTH))).tobytes()


def _read_bytes() -> int | None:
    """Return the bytes that the system has read from disks for this process, None where it tells
    not.
    """
    import psutil

    try:
        return psutil.Process().io_counters().read_bytes
    except (AttributeError, OSError, ValueError, RuntimeError, psutil.Error):  # macOS has none
        return None
