"""What is set for a steadier measurement: the number of threads, and how the C library keeps memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from helpers.checks import whole_number
from helpers.results import Result

_MOST_THREADS = 4096  # many more, and OpenMP ends the process for want of memory


@contextmanager
def fixed_threads(threads: int) -> Iterator[None]:
    """Compute with ``threads`` CPU threads inside the block, then with as many as before, also after an exception.

    Raises TypeError or ValueError when ``threads`` is no whole number from 1 to 4,096. Lesson 02.
    """
    threads = whole_number("threads", threads, at_most=_MOST_THREADS)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class AllocatorSetting(Result):
    """What :func:`steady_allocator` found and did: the C library, whether a setting was made, what follows."""

    library: str
    changed: bool
    effect: str


def steady_allocator() -> AllocatorSetting:
    """Make the C library keep freed memory, so that a large CPU tensor does not start on fresh pages every time.

    By default glibc maps each large block anew and gives it back when freed; writing a fresh page faults, and page
    faults, not arithmetic, then decide the time of an element-wise operation. Here ``mallopt`` sets M_MMAP_MAX to 0 (no
    block is mapped) and M_TRIM_THRESHOLD to -1 (the heap never shrinks) for the rest of the process: see mallopt(3).
    Call it before the first tensor. The first calls after it still fault, until the heap has its shape (up to eight on
    glibc 2.36), and the process keeps the memory of its peak. Calling it again changes nothing. Where the C library is
    not glibc, nothing is set, and the result says so.

    Raises RuntimeError when glibc refuses the setting. Lesson 01.
    """
    library = _glibc()
    if library is None:
        return AllocatorSetting(sys.platform, False, "not glibc: unchanged")
    for name, parameter, value in (("M_MMAP_MAX", -4, 0), ("M_TRIM_THRESHOLD", -1, -1)):
        if library.mallopt(parameter, value) != 1:
            raise RuntimeError(f"glibc refused mallopt({name}, {value}); timings of large tensors hold page faults")
    library.gnu_get_libc_version.restype = ctypes.c_char_p
    version = library.gnu_get_libc_version().decode()
    return AllocatorSetting(f"glibc {version}", True, "freed memory stays with the process")


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None
