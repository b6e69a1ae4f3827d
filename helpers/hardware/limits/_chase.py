"""A walk through memory in which each load reads the address of the next: the latency of one load.

**What the figure holds.** One element a cache line, in a random order that visits every line once
before it comes back to the first (one cycle, so no short loop is possible): no prefetcher can
follow, and a load cannot begin before the one before it has ended. The lines are linked in the
order in which they are walked, so that the caches stand at the first step as they stand after a
whole round.

**Pages.** Where the system gives pages of 2 MiB on demand (Linux, ``madvise``), the buffer is in
such pages, and the translation of addresses costs next to nothing up to gigabytes. Elsewhere pages
are of 4 KiB: beyond the reach of the TLB (some 2,000 pages, 8 MiB) a load then holds a walk of the
page table too, as a random access of an ordinary tensor does. :func:`huge_pages` tells which it
was. DRAM's latency further holds the misses of every cache on the way. Lesson 01 asks for either
size, to see what the translation costs, and throws a buffer out of every cache, to see whether a
cache held it.

Lesson 01.
"""

from __future__ import annotations

import contextlib
import mmap
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helpers import native
from helpers.checks import boolean, whole_number

LINE_BYTES = 64

_HUGE_PAGE_BYTES = 2 * 2**20
_ELEMENT_BYTES = 8
_RUN_S = 3e-4
_RUNS = 7
_FEWEST_STEPS = 2000
_DECLARATION = "uint64_t chase(const uint64_t* next, uint64_t index, uint64_t steps)"
_FLUSH = "void flush(const char* begin, uint64_t bytes, uint64_t line_bytes)"

# of a mapping its two addresses, and below them among its figures that of its huge pages
_HUGE_PAGES_OF_MAPPING = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) .*\n(?:[A-Z].*\n)*?AnonHugePages:\s+(\d+) kB", re.MULTILINE
)

Walk = Callable[[np.ndarray, int, int], int]


@dataclass(frozen=True)
class Walker:
    """A function that walks: ``walk(buffer, index, steps)`` returns the last index.

    ``name`` is "C++", "numba" or "none". ``version`` is the compiler's; ``reason`` says why nothing
    better was at hand, "" where nothing is. Lesson 01.
    """

    name: str
    walk: Walk | None
    version: str = ""
    reason: str = ""


def find_walker() -> Walker:
    """Return the best walker there is here: compiled C++, else numba's, else one named "none" that
    cannot walk.

    A loop in Python takes longer for a step than main memory for a load, and so would time Python;
    hence "none". Lesson 01.
    """
    try:
        library = native.compile_cpp(native.read_source(__package__, "chase.cpp"))
    except native.NativeError as error:
        reason = error.problem.splitlines()[0]
    else:
        raw = library.function(_DECLARATION).raw
        return Walker(
            "C++",
            lambda buffer, index, steps: raw(buffer.ctypes.data, index, steps),
            library.compiler,
        )
    try:
        return _numba_walker(reason)
    except ModuleNotFoundError:
        return Walker("none", None, reason=f"{reason}, and numba is not installed")
    except ImportError as error:  # numba refuses a NumPy that is too new for it
        return Walker(
            "none", None, reason=f"{reason}, and numba does not load ({str(error).splitlines()[0]})"
        )


def _numba_walker(reason: str) -> Walker:
    import numba

    # An unsigned index: with a signed one numba adds, at every step, a test for an index that
    # counts from the end.
    @numba.njit("uint64(uint64[::1], uint64, uint64)", nogil=True)
    def chase(following: np.ndarray, index: np.uint64, steps: np.uint64) -> np.uint64:
        for _ in range(steps):
            index = following[index]
        return index

    def walk(buffer: np.ndarray, index: int, steps: int) -> int:
        return int(chase(buffer, np.uint64(index), np.uint64(steps)))

    return Walker("numba", walk, f"numba {numba.__version__}", reason)


def chase_buffer(size_bytes: int, *, huge: bool = True) -> np.ndarray:
    """Return ``size_bytes`` of zeros as a uint64 array, in pages of 2 MiB where the system gives
    them on demand.

    With ``huge=False`` the pages are the system's small ones, usually of 4 KiB, also where the
    system would group them by itself. :func:`huge_pages` says which the buffer has. Every page is
    written once, so that no later access faults. Raises MemoryError or OSError when there is not
    enough memory.

    >>> chase_buffer(2**20, huge=False).nbytes
    1048576

    Lesson 01.
    """
    boolean("huge", huge)
    whole_number("size_bytes", size_bytes)
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        buffer = np.empty(size_bytes // _ELEMENT_BYTES, dtype=np.uint64)
    else:
        pages = mmap.mmap(
            -1, size_bytes + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        # a kernel built without them; huge_pages() then tells so
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        elements = np.frombuffer(pages, dtype=np.uint64)
        begin = -elements.ctypes.data % _HUGE_PAGE_BYTES // _ELEMENT_BYTES
        buffer = elements[begin : begin + size_bytes // _ELEMENT_BYTES]
    buffer.fill(0)
    return buffer


def huge_pages(buffer: np.ndarray, *, maps: Path = Path("/proc/self/smaps")) -> bool | None:
    """Return whether most of ``buffer`` is in huge pages; None where the system does not tell (only
    Linux does).

    It is what ``AnonHugePages`` of the mapping says, see proc_pid_smaps(5).

    >>> huge_pages(chase_buffer(2**22, huge=False)) in (False, None)
    True

    Lesson 01.
    """
    try:
        text = maps.read_text()
    except OSError:
        return None
    address = buffer.ctypes.data
    for begin, end, kibibytes in _HUGE_PAGES_OF_MAPPING.findall(text):
        if int(begin, 16) <= address < int(end, 16):
            return int(kibibytes) * 1024 > buffer.nbytes / 2
    return None


def flush_caches(buffer: np.ndarray) -> None:
    """Throw the lines of a contiguous ``buffer`` out of every cache, so that the next load of each
    is from main memory.

    It is an instruction per line, CLFLUSH(OPT) on x86-64 and DC CIVAC on 64-bit ARM. Raises
    :class:`helpers.native.NativeError` where there is no compiler, or the processor is another, and
    ValueError for a buffer with gaps.

    >>> flush_caches(np.zeros(2**16))  # doctest: +SKIP

    Lesson 01.
    """
    if not buffer.flags.c_contiguous:
        raise ValueError(
            f"a buffer with strides {buffer.strides} has gaps, but it must be contiguous: give a "
            "copy"
        )
    flush = native.compile_cpp(native.read_source(__package__, "flush.cpp")).function(_FLUSH).raw
    flush(buffer.ctypes.data, buffer.nbytes, LINE_BYTES)


def link(
    buffer: np.ndarray, working_set_bytes: int, *, line_bytes: int = LINE_BYTES, seed: int = 0
) -> np.ndarray:
    """Link the first ``working_set_bytes`` of ``buffer`` into one random cycle, one element a line,
    from element 0.

    The element of a line is its first, and holds the index of the next line's; those indexes come
    back in the order of the walk. Raises ValueError for a working set under two lines or over the
    buffer. Lesson 01.
    """
    lines, stride = working_set_bytes // line_bytes, line_bytes // _ELEMENT_BYTES
    if lines < 2 or working_set_bytes > buffer.nbytes:
        raise ValueError(
            f"a working set of {working_set_bytes:,} bytes cannot be linked: give at least two "
            f"lines ({2 * line_bytes} bytes) and at most the buffer's {buffer.nbytes:,}"
        )
    # from here on in place: fresh pages would take most of the time
    positions = np.arange(lines)
    np.random.default_rng(seed).shuffle(positions[1:])
    positions *= stride
    # NumPy writes one after another, in the order of the walk.
    buffer[positions[:-1]] = positions[1:]
    buffer[positions[-1]] = positions[0]
    return positions


def walk_s(walk: Walk, buffer: np.ndarray, *, runs: int = _RUNS, run_s: float = _RUN_S) -> float:
    """Return the seconds of one load of the linked ``buffer``: the smallest mean of ``runs`` runs
    of some ``run_s``.

    Each run goes on where the one before it stopped, so that a large buffer is not walked on its
    first lines alone. Link the buffer anew before another call: the first lines of this one are in
    a cache by then. Lesson 01.
    """
    index, taken_s = _run(walk, buffer, 0, _FEWEST_STEPS)
    steps = (
        max(_FEWEST_STEPS, int(_FEWEST_STEPS * run_s / taken_s)) if taken_s else 100 * _FEWEST_STEPS
    )
    runs_s = []
    for _ in range(runs):
        index, taken_s = _run(walk, buffer, index, steps)
        runs_s.append(taken_s)
    return min(runs_s) / steps


def _run(walk: Walk, buffer: np.ndarray, index: int, steps: int) -> tuple[int, float]:
    begin_s = time.perf_counter()
    index = walk(buffer, index, steps)
    return index, time.perf_counter() - begin_s
