"""The disk under the file system: read past the page cache, its own cache, and the geometry of one
that spins.

Every experiment works on one temporary file of at most 256 MiB, looks for room first, and removes
it. What is read is what was written, random, so that nothing between here and the disk can have
compressed it. Lesson 01.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import mmap
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from helpers.checks import number, whole_number
from helpers.results import Record
from helpers.studies._page_cache import drop_from_page_cache

BLOCK_BYTES = 4096
CHUNK_BYTES = 2**20
LEAST_FILE_BYTES, MOST_FILE_BYTES = 2**20, 256 * 2**20

DIRECT = "O_DIRECT: past the page cache"
NO_CACHE = "F_NOCACHE: past the page cache"
NOT_BYPASSED = "page cache not bypassed"

_READ_LIMIT_S = 10.0
_SPARE_BYTES = 2**28
_RANDOM_READS, _RANDOM_LIMIT_S = 300, 2.0
_M_PER_INCH = 0.0254


class DiskReads(Record):
    """One file read from the disk and then from the page cache; ``bypass`` says how far the page
    cache was avoided.

    ``random_read_s`` is the median of single reads of 4 KiB at random places, one at a time.
    ``cached_share`` is the part of the file that was in the page cache just before the disk was
    read (None where the system does not tell): in a folder that is itself memory it stays 1. Rates
    are those of one thread, reading 1 MiB at a time. A virtual disk may answer from its host's
    memory: no program inside can see that. Lesson 01.
    """

    file_bytes: int
    bypass: str
    cached_share: float | None
    sequential_bytes_per_s: float
    random_read_s: float
    cached_bytes_per_s: float
    cached_read_s: float


class DiskCacheRow(Record):
    """A region read twice in a row past the page cache: a faster second pass says that something
    kept it.

    Lesson 01.
    """

    region_bytes: int
    first_bytes_per_s: float
    second_bytes_per_s: float
    speedup: float


class DiskCacheSweep(Record):
    """Whether repeated reads get faster, by the size of what is read: the disk's own cache, if
    there is.

    Lesson 01.
    """

    file_bytes: int
    bypass: str
    rows: tuple[DiskCacheRow, ...]


def measure_disk(
    folder: str | os.PathLike[str] | None = None, *, file_bytes: int = 128 * 2**20
) -> DiskReads:
    """Return how fast a file of ``file_bytes`` in ``folder`` (by default the one for temporary
    files) is read.

    The file is written, forced to the disk, dropped from the page cache, read in sequence past it
    (O_DIRECT on Linux, F_NOCACHE on macOS; elsewhere ``bypass`` says that the cache was not
    avoided), read at random places, and read twice through the page cache, of which the second
    counts. A read stops after 10 s and the rate is of what was read by then. Takes a few seconds.

    Raises ValueError for a size outside 1 MiB to 256 MiB, OSError for a folder that is missing or
    has no room.
    """
    with temporary_file(file_bytes, folder) as path:
        drop_from_page_cache(path)
        share = cached_share(path)
        with open_past_cache(path) as (descriptor, bypass):
            sequential = read_rate(descriptor, file_bytes)
            drop_from_page_cache(path)
            random_read_s = random_read_seconds(descriptor, file_bytes)
        with open_descriptor(path) as descriptor:
            read_rate(descriptor, file_bytes)
            cached_bytes_per_s = read_rate(descriptor, file_bytes)
            cached_read_s = random_read_seconds(descriptor, file_bytes)
    return DiskReads(
        file_bytes=file_bytes,
        bypass=bypass,
        cached_share=share,
        sequential_bytes_per_s=sequential,
        random_read_s=random_read_s,
        cached_bytes_per_s=cached_bytes_per_s,
        cached_read_s=cached_read_s,
    )


def sweep_disk_cache(
    folder: str | os.PathLike[str] | None = None,
    *,
    file_bytes: int = 64 * 2**20,
    region_bytes: Sequence[int] = (2**20, 4 * 2**20, 16 * 2**20, 32 * 2**20),
    repeats: int = 5,
) -> DiskCacheSweep:
    """Return the rates of reading each region twice past the page cache: the search for a disk's
    own cache.

    The file of ``file_bytes`` is in ``folder``, by default that for temporary files; a region is as
    much of its start as one of ``region_bytes`` says. Before each the rest of the file is read, so
    that a small cache holds nothing of it; a cache larger than the file answers both passes alike.
    Half of the file is left for that at least. Each rate is the median of ``repeats``. Where the
    page cache cannot be avoided, ``bypass`` says so, and the rows are the page cache's.

    Raises ValueError for regions outside 1 MiB to half of the file, or that are no multiples of 4
    KiB, or no repeat; else as :func:`measure_disk`. Lesson 01.
    """
    if not region_bytes or any(
        size < CHUNK_BYTES or size > file_bytes // 2 or size % BLOCK_BYTES for size in region_bytes
    ):
        raise ValueError(
            f"region_bytes are {tuple(region_bytes)}; give multiples of {BLOCK_BYTES:,} bytes from "
            f"{CHUNK_BYTES:,} to half of the file's {file_bytes:,}"
        )
    whole_number("repeats", repeats)
    rows = []
    with temporary_file(file_bytes, folder) as path:
        drop_from_page_cache(path)
        with open_past_cache(path) as (descriptor, bypass):
            for size in region_bytes:
                passes = []
                for _ in range(repeats):
                    read_rate(descriptor, file_bytes - size, first=size)
                    passes.append([read_rate(descriptor, size) for _ in range(2)])
                first, second = (statistics.median(rates) for rates in zip(*passes, strict=True))
                rows.append(DiskCacheRow(size, first, second, second / first))
    return DiskCacheSweep(file_bytes=file_bytes, bypass=bypass, rows=tuple(rows))


def revolution_s(revolutions_per_minute: float) -> float:
    """Return the seconds of one turn of a disk: its longest wait for data with the head in place;
    the mean is half.

    ``revolution_s(10_000)`` is 6 ms. Raises ValueError for no positive speed. Lesson 01.
    """
    return 60 / number("revolutions_per_minute", revolutions_per_minute, above=0)


def ring_bytes(radius_m: float, bits_per_square_inch: float) -> float:
    """Return the bytes on one ring of a disk at ``radius_m``: its length times the bits along an
    inch of it.

    A bit is as long as a track is wide, so that an inch of track holds the square root of
    ``bits_per_square_inch``: a ring grows with its radius, and with the root of the density only.
    Raises ValueError for a number that is not above 0. Lesson 01.
    """
    number("radius_m", radius_m, above=0)
    number("bits_per_square_inch", bits_per_square_inch, above=0)
    return 2 * math.pi * radius_m / _M_PER_INCH * math.sqrt(bits_per_square_inch) / 8


@contextlib.contextmanager
def temporary_file(
    file_bytes: int,
    folder: str | os.PathLike[str] | None = None,
    *,
    content: Callable[[int], bytes] | None = None,
) -> Iterator[Path]:
    """Give a file of ``file_bytes``, on the disk by then, and remove it with its folder afterwards.

    ``content`` gives as many bytes as it is asked for, 1 MiB at most; by default random ones.
    Raises as :func:`measure_disk` says.
    """
    if (
        isinstance(file_bytes, bool)
        or not isinstance(file_bytes, int)
        or not (LEAST_FILE_BYTES <= file_bytes <= MOST_FILE_BYTES)
    ):
        raise ValueError(
            f"file_bytes is {file_bytes!r}; give a whole number from {LEAST_FILE_BYTES:,} to "
            f"{MOST_FILE_BYTES:,}"
        )
    directory = Path(tempfile.gettempdir() if folder is None else folder)
    if not directory.is_dir():
        problem = "there is no such folder for the temporary file; make it, or give another"
        raise FileNotFoundError(errno.ENOENT, problem, str(directory))
    free = shutil.disk_usage(directory).free
    if free < file_bytes + _SPARE_BYTES:
        problem = (
            f"{free:,} bytes are free and {file_bytes + _SPARE_BYTES:,} are wanted (the file, and "
            "a reserve for others); give a smaller file_bytes or another folder"
        )
        raise OSError(errno.ENOSPC, problem, str(directory))
    with tempfile.TemporaryDirectory(prefix="links-", dir=directory) as name:
        path = Path(name) / "data"
        make = content or np.random.default_rng().bytes
        with open(path, "wb") as file:
            for start in range(0, file_bytes, CHUNK_BYTES):
                file.write(make(min(CHUNK_BYTES, file_bytes - start)))
            file.flush()
            os.fsync(file.fileno())
        yield path


def cached_share(path: Path) -> float | None:
    """Return the part of the file's pages that is in the page cache (mincore(2)); None outside
    Linux.

    Lesson 01.
    """
    size = path.stat().st_size
    if not sys.platform.startswith("linux") or size == 0:
        return None
    library = ctypes.CDLL(None, use_errno=True)
    library.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    pages = -(-size // mmap.PAGESIZE)
    with (
        open(path, "r+b") as file,
        mmap.mmap(file.fileno(), size, access=mmap.ACCESS_WRITE) as memory_map,
    ):
        seen = (ctypes.c_ubyte * pages)()
        view = ctypes.c_char.from_buffer(memory_map)
        try:
            failed = library.mincore(ctypes.addressof(view), size, ctypes.addressof(seen))
        finally:
            del view
    if failed:
        raise OSError(
            ctypes.get_errno(),
            "the system did not tell which pages of the file are cached",
            str(path),
        )
    return float(np.mean(np.ctypeslib.as_array(seen) & 1))


@contextlib.contextmanager
def open_past_cache(path: Path) -> Iterator[tuple[int, str]]:
    """Give a descriptor that reads past the page cache, and how; or an ordinary one and
    ``NOT_BYPASSED``.
    """
    flag = getattr(os, "O_DIRECT", None)
    if flag is not None:
        try:
            descriptor = os.open(path, os.O_RDONLY | flag)
        except OSError as error:
            # a file system without direct reads, such as one in memory
            if error.errno != errno.EINVAL:
                raise
        else:
            try:
                yield descriptor, NOT_BYPASSED if cached_share(path) == 1 else DIRECT
            finally:
                os.close(descriptor)
            return
    with open_descriptor(path) as descriptor:
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(descriptor, fcntl.F_NOCACHE, 1)
            yield descriptor, NO_CACHE
        else:
            yield descriptor, NOT_BYPASSED


def read_rate(
    descriptor: int, size: int, *, first: int = 0, chunk_bytes: int = CHUNK_BYTES
) -> float:
    """Return the bytes a second of reading ``size`` bytes in sequence from ``first`` on, for 10 s
    at most.
    """
    with mmap.mmap(-1, chunk_bytes) as buffer:  # page-aligned, as a direct read needs it
        buffer.write(bytes(chunk_bytes))
        start_s, read_bytes = time.perf_counter(), 0
        while read_bytes < size and time.perf_counter() - start_s < _READ_LIMIT_S:
            got = _read_at(descriptor, buffer, first + read_bytes)
            if got == 0:
                break
            read_bytes += got
        elapsed_s = time.perf_counter() - start_s
    if read_bytes == 0:
        raise OSError(
            errno.EIO,
            "the temporary file ended before anything was read; something else changed it",
        )
    return read_bytes / elapsed_s


def random_read_seconds(descriptor: int, size: int) -> float:
    """Return the median seconds of one read of 4 KiB at a random place: up to 300 reads, for 2 s at
    most.
    """
    blocks = random.Random(0).sample(
        range(size // BLOCK_BYTES), min(_RANDOM_READS, size // BLOCK_BYTES)
    )
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    seconds: list[float] = []
    with mmap.mmap(-1, BLOCK_BYTES) as buffer:
        buffer.write(bytes(BLOCK_BYTES))
        end = time.perf_counter() + _RANDOM_LIMIT_S
        for block in blocks:
            start_s = time.perf_counter()
            _read_at(descriptor, buffer, block * BLOCK_BYTES)
            seconds.append(time.perf_counter() - start_s)
            if time.perf_counter() > end:
                break
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_NORMAL)
    return statistics.median(seconds)


def _read_at(descriptor: int, buffer: mmap.mmap, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [buffer], offset)
    os.lseek(descriptor, offset, os.SEEK_SET)  # Windows
    data = os.read(descriptor, len(buffer))
    buffer[: len(data)] = data
    return len(data)


@contextlib.contextmanager
def open_descriptor(path: Path) -> Iterator[int]:
    """Give a descriptor that reads ``path``, and close it."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        yield descriptor
    finally:
        os.close(descriptor)
