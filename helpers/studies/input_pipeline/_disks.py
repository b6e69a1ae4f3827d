"""Files on a disk: where a folder lies, forgetting what memory holds of a file, and the time of a
read from the disk.

Lesson 10.
"""

from __future__ import annotations

import functools
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from helpers.checks import members
from helpers.results import Record
from helpers.studies._page_cache import drop_from_page_cache

MEMORY_FILESYSTEMS = ("tmpfs", "ramfs")
_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPES = {r"\040": " ", r"\011": "\t", r"\012": "\n", r"\134": "\\"}
_SMALL_BYTES, _LARGE_BYTES, _SMALL_FILES, _PLACES = 784, 64 * 2**20, 100, 500
_REPEATS = 3


def filesystem(folder: str | os.PathLike[str]) -> str:
    """Return the type of the file system that ``folder`` lies on, such as "ext4"; "" where the
    system does not say.

    Linux says it in ``/proc/self/mountinfo`` (the manual page proc_pid_mountinfo(5) has its form).
    The types of ``MEMORY_FILESYSTEMS`` keep their files in main memory, and no disk takes part.
    Raises FileNotFoundError for a folder that is not there. Lesson 10.

    >>> filesystem("/dev/shm")  # doctest: +SKIP
    'tmpfs'
    """
    path = Path(folder).resolve(strict=True)
    if not _MOUNTS.is_file():
        return ""
    kind, depth = "", -1
    for line in _MOUNTS.read_text(encoding="utf-8").splitlines():
        mount_fields, _, type_fields = line.partition(" - ")
        point = mount_fields.split()[4]
        for escape, character in _ESCAPES.items():
            point = point.replace(escape, character)
        # of two on one point, the later
        if path.is_relative_to(point) and len(Path(point).parts) >= depth:
            kind, depth = type_fields.split()[0], len(Path(point).parts)
    return kind


def _forget(paths: Iterable[str | os.PathLike[str]]) -> None:
    for path in paths:
        drop_from_page_cache(path)


def read_from_disk_s(read: Callable[[], object], paths: Iterable[str | os.PathLike[str]]) -> float:
    """Return the least seconds of three calls of ``read``, which reads the files ``paths``.

    Before each call the system is asked to forget the files, outside of the clock. Where it cannot
    be asked, or the files lie in main memory, they are read from there. The least counts, because a
    disturbance can only add time. Raises FileNotFoundError for a file that is not there. Lesson 10.
    """
    files, taken_s = members("paths", paths, "files"), []
    for _ in range(_REPEATS):
        _forget(files)
        start_s = time.perf_counter()
        read()
        taken_s.append(time.perf_counter() - start_s)
    return min(taken_s)


class DiskTimes(Record):
    """The times of one disk: of a small file of 784 bytes, the rate of a large one, and of items
    inside the large one.

    ``request_s`` is the median of small files, ``bandwidth_bytes_per_s`` that of a file of 64 MiB,
    and ``in_order_s`` and ``at_random_s`` the seconds of an item of 784 bytes of the large file.
    ``equal_bytes`` take as long as a request. ``filesystem`` is the type of the file system, ""
    where it is unknown. Lesson 10.
    """

    filesystem: str
    request_s: float
    bandwidth_bytes_per_s: float
    in_order_s: float
    at_random_s: float

    @property
    def equal_bytes(self) -> float:
        """The bytes of a file that take as long as its request. Lesson 10."""
        return self.request_s * self.bandwidth_bytes_per_s


def measure_disk(folder: str | os.PathLike[str]) -> DiskTimes:
    """Return the times of the disk under ``folder``, in which files are written, read and removed.

    Each read comes after the system has forgotten the file. Raises FileNotFoundError for a folder
    that is not there. Lesson 10.
    """
    kind = filesystem(folder)
    small = [Path(folder, f"small_{index:02}") for index in range(_SMALL_FILES)]
    large = Path(folder, "large")
    try:
        for path in small:
            path.write_bytes(random.Random(path.name).randbytes(_SMALL_BYTES))
        large.write_bytes(random.Random(0).randbytes(2**20) * (_LARGE_BYTES // 2**20))
        _forget(small)
        request_s = statistics.median(_read_s(path) for path in small)
        whole_s = read_from_disk_s(large.read_bytes, [large])
        in_order = range(0, _SMALL_BYTES * _PLACES, _SMALL_BYTES)
        at_random = random.Random(6).sample(range(_LARGE_BYTES - _SMALL_BYTES), _PLACES)
        in_order_s, at_random_s = (
            read_from_disk_s(functools.partial(_read_items, large, offsets), [large]) / _PLACES
            for offsets in (in_order, at_random)
        )
    finally:
        for path in (*small, large):
            path.unlink(missing_ok=True)
    return DiskTimes(kind, request_s, _LARGE_BYTES / whole_s, in_order_s, at_random_s)


def _read_s(path: Path) -> float:
    start_s = time.perf_counter()
    path.read_bytes()
    return time.perf_counter() - start_s


def _read_items(path: Path, offsets: Iterable[int]) -> None:
    with path.open("rb") as file:
        for offset in offsets:
            file.seek(offset)
            file.read(_SMALL_BYTES)
