"""How the order of addresses decides the time: order, stride, direction, alignment. Lesson 01.

Every experiment reads the same bytes, or as many, with the same instructions: only the addresses
differ. ``engine`` "native" is a compiled loop (C++, or numba without a compiler), "torch" is
``torch.take`` with an index of the same places, which also reads the index.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from helpers.checks import choice, whole_number
from helpers.hardware._card import MachineCard
from helpers.hardware._machine import machine_card
from helpers.native import MissingToolError, NativeError, compile_cpp, read_source
from helpers.results import Record
from helpers.timing import Comparison, compare

ENGINES = ("native", "torch")
ELEMENT_BYTES = 4
STRIDES = (1, 2, 4, 8, 16, 32, 64)

_LEAST_BYTES, _MOST_BYTES = 64 * 2**20, 256 * 2**20
_USUAL_LINE_BYTES, _PAGE_BYTES = 64, 4096
_LARGEST = 2**20  # of a line, an element and a stride, whose products fit into 64 bits
# Knuth and Lewis: a full period modulo every power of two (Press et al., Numerical Recipes, section
# 7.1).
_SHUFFLE = (1_664_525, 1_013_904_223)
_IN_SEQUENCE = (1, 1)
_PRECISION = 0.1  # what is looked for here is a factor
_LOADS = 4 * 200_000  # enough that the call itself, some 20 us, does not count


class StrideRow(Record):
    """One stride over the whole buffer: what the program reads, what the memory moves for it (whole
    lines), the time.

    ``element_s`` is the time of one element read; ``moved_bytes_per_s`` the rate of the lines that
    must come. ``used_share`` is the part of the moved bytes that the program reads. Lesson 01.
    """

    stride: int
    elements: int
    read_bytes: int
    lines: int
    moved_bytes: int
    used_share: float
    pass_s: float
    element_s: float
    read_bytes_per_s: float
    moved_bytes_per_s: float


class StrideSweep(Record):
    """The time of an element and of a byte moved as the stride grows; ``reason`` says why it is not
    ``stable``.

    Times are minima; the lines are counted, not measured. Lesson 01.
    """

    engine: str
    buffer_bytes: int
    element_bytes: int
    line_bytes: int
    stable: bool
    reason: str
    rows: tuple[StrideRow, ...]


def beyond_caches_bytes(card: MachineCard | None = None) -> int:
    """Return a buffer size, a power of two, that is twice the largest cache, from 64 MiB to 256
    MiB.

    Where the largest cache has over 128 MiB, 256 MiB do not hold twice of it: part of a walk then
    hits the cache. Lesson 01.
    """
    sizes = [cache.size_bytes or 0 for cache in (card or machine_card()).caches or ()]
    target_bytes = 2 * max(sizes, default=0)
    return min(_MOST_BYTES, max(_LEAST_BYTES, 2 ** math.ceil(math.log2(max(target_bytes, 1)))))


def line_size_bytes(card: MachineCard | None = None) -> int:
    """Return the bytes of a cache line: the largest that the system names, 64 where it names none.

    Lesson 01.
    """
    sizes = [
        cache.line_bytes for cache in (card or machine_card()).caches or () if cache.line_bytes
    ]
    return max(sizes, default=_USUAL_LINE_BYTES)


def lines_touched(
    elements: int,
    *,
    stride: int = 1,
    element_bytes: int = ELEMENT_BYTES,
    line_bytes: int = 64,
    offset_bytes: int = 0,
) -> int:
    """Return how many distinct lines hold ``elements`` elements, ``stride`` elements apart, from
    ``offset_bytes`` on.

    >>> lines_touched(16), lines_touched(16, stride=16)
    (1, 16)

    Counted exactly, also for elements that cross from one line into the next; an element has
    ``element_bytes`` (4) and a line ``line_bytes`` (64) unless given. ``stride`` may be negative
    (then they end at the offset). Raises ValueError for a count or size below 1, a stride of 0 or a
    negative offset. Lesson 01.
    """
    whole_number("elements", elements)
    for name, value in (("element_bytes", element_bytes), ("line_bytes", line_bytes)):
        whole_number(name, value, at_most=_LARGEST)
    whole_number("offset_bytes", offset_bytes, at_least=0, at_most=_LARGEST**2)
    if whole_number("stride", stride, at_least=-_LARGEST, at_most=_LARGEST) == 0:
        raise ValueError("stride=0 stays at one element; give another stride")
    step_bytes = abs(stride) * element_bytes
    # After so many elements the places stand within their lines as before, so each further round
    # adds as many lines.
    around = line_bytes // math.gcd(line_bytes, step_bytes)
    rounds, remainder = divmod(elements - 1, around)

    def lines(count: int) -> int:
        starts = offset_bytes + np.arange(count, dtype=np.int64) * step_bytes
        first_lines, last_lines = starts // line_bytes, (starts + element_bytes - 1) // line_bytes
        # Both rows ascend, so a line is counted where it is new: past the last line of the element
        # before.
        before = np.concatenate(([-1], last_lines[:-1]))
        return int(np.maximum(last_lines - np.maximum(first_lines, before + 1) + 1, 0).sum())

    return lines(remainder + 1) + rounds * (lines(remainder + 1 + around) - lines(remainder + 1))


def compare_order(
    *, engine: str = "native", buffer_bytes: int | None = None, budget_s: float = 3.0
) -> Comparison:
    """Return the time of reading a buffer once in random order against in sequence.

    Each element of 4 bytes is read once in both; ``buffer_bytes`` (by default
    :func:`beyond_caches_bytes`) is rounded up to a power of two. The addresses do not depend on
    what was read, so several misses are under way at once: the latency of one alone is the probe's
    chase. ``engine`` is "native" (a compiled loop) or "torch" (``torch.take``); ``budget_s`` are
    the seconds to time for.

    Raises ValueError for another engine or a buffer under 4 kB, MissingToolError without compiler
    and numba. Lesson 01.
    """
    data = _buffer(buffer_bytes, engine)
    if engine == "torch":
        tensor, indices = _as_tensor(data), torch.arange(len(data))
        shuffled_indices = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
        return _take({"in sequence": indices, "random": shuffled_indices}, tensor, budget_s)
    loops, mask = kernels(), len(data) - 1
    return compare(
        {
            "in sequence": lambda: loops.hop(data, mask, *_IN_SEQUENCE),
            "random": lambda: loops.hop(data, mask, *_SHUFFLE),
        },
        budget_s=budget_s,
        device="cpu",
        precision=_PRECISION,
    )


def compare_direction(
    *, engine: str = "native", buffer_bytes: int | None = None, budget_s: float = 1.5
) -> Comparison:
    """Return the time of reading a buffer backwards against forwards, element by element.

    NumPy cannot show it: it reads ``x[::-1].sum()`` forwards, since the order does not change the
    sum. ``budget_s`` are the seconds to time for; ``engine``, ``buffer_bytes`` and the errors are
    those of :func:`compare_order`. Lesson 01.
    """
    data = _buffer(buffer_bytes, engine)
    count = len(data)
    if engine == "torch":
        indices = torch.arange(count)
        return _take(
            {"forwards": indices, "backwards": indices.flip(0)}, _as_tensor(data), budget_s
        )
    loops = kernels()
    return compare(
        {
            "forwards": lambda: loops.walk(data, 0, 1, count),
            "backwards": lambda: loops.walk(data, count - 1, -1, count),
        },
        budget_s=budget_s,
        device="cpu",
        precision=_PRECISION,
    )


def sweep_stride(
    strides: Sequence[int] = STRIDES,
    *,
    engine: str = "native",
    buffer_bytes: int | None = None,
    budget_s: float = 3.0,
    card: MachineCard | None = None,
) -> StrideSweep:
    """Return the time of a pass over one buffer when only each ``stride``-th element of 4 bytes is
    read.

    Up to the line's size fewer elements are read and the same lines move, so the time of an element
    doubles with the stride; beyond it, lines are skipped. The ``strides`` are timed in turns for
    ``budget_s`` seconds (:func:`helpers.timing.compare`), minimum of many. ``engine`` and
    ``buffer_bytes`` are those of :func:`compare_order`; ``card`` (by default this machine's) says
    how long a line is.

    Raises ValueError for fewer than two strides or one below 1; else as :func:`compare_order`.
    Lesson 01.
    """
    if len(set(strides)) < 2 or any(
        not isinstance(stride, int) or stride < 1 for stride in strides
    ):
        raise ValueError(
            f"strides are {tuple(strides)}; give two or more different whole numbers of at least 1"
        )
    data, line_bytes = _buffer(buffer_bytes, engine), line_size_bytes(card)
    counts = {stride: -(-len(data) // stride) for stride in sorted(set(strides))}
    walks: dict[str, Callable[[], object]]
    if engine == "torch":
        tensor = _as_tensor(data)
        indexes = {stride: torch.arange(0, len(data), stride) for stride in counts}
        out = {stride: torch.empty(count, dtype=tensor.dtype) for stride, count in counts.items()}
        walks = {
            str(s): functools.partial(torch.take, tensor, indexes[s], out=out[s]) for s in counts
        }
        engine_name = "torch"
    else:
        loops = kernels()
        walks = {str(s): functools.partial(loops.walk, data, 0, s, counts[s]) for s in counts}
        engine_name = loops.engine
    comparison = compare(walks, budget_s=budget_s, device="cpu", precision=_PRECISION)
    rows = tuple(
        stride_row(stride, counts[stride], comparison.candidate(str(stride)).minimum_s, line_bytes)
        for stride in counts
    )
    return StrideSweep(
        engine=engine_name,
        buffer_bytes=data.nbytes,
        element_bytes=ELEMENT_BYTES,
        line_bytes=line_bytes,
        stable=comparison.stable,
        reason=comparison.reason,
        rows=rows,
    )


def stride_row(stride: int, elements: int, pass_s: float, line_bytes: int) -> StrideRow:
    """Return the row of a pass over ``elements`` elements that took ``pass_s``: its lines counted,
    its rates.
    """
    lines = lines_touched(elements, stride=stride, line_bytes=line_bytes)
    read_bytes, moved_bytes = elements * ELEMENT_BYTES, lines * line_bytes
    return StrideRow(
        stride=stride,
        elements=elements,
        read_bytes=read_bytes,
        lines=lines,
        moved_bytes=moved_bytes,
        used_share=read_bytes / moved_bytes,
        pass_s=pass_s,
        element_s=pass_s / elements,
        read_bytes_per_s=read_bytes / pass_s,
        moved_bytes_per_s=moved_bytes / pass_s,
    )


def compare_alignment(*, budget_s: float = 1.5) -> Comparison:
    """Return the time of 800,000 loads of 8 bytes from the first cache, by where they stand.

    "aligned" is at a multiple of 8; "misaligned" within one line; "across lines" has half of each
    load in the next line; "end of a page" is aligned in the last 8 bytes of a page of 4 KiB;
    "across pages" has half in the next page. All read four places over and over, so only the load
    itself is timed, not the way from memory.

    Raises MissingToolError without a C++ compiler: numba cannot be kept from moving the loads out
    of the loop. Lesson 01.
    """
    loops = kernels()
    if loops.load_four is None:
        raise MissingToolError(
            "loads at odd addresses need C++, and no compiler works here", "install g++ or clang++"
        )
    data, line = _aligned_bytes(8 * _PAGE_BYTES, _PAGE_BYTES), line_size_bytes()
    positions = {
        "aligned": (0, line),
        "misaligned": (4, line),
        "across lines": (line - 4, line),
        "end of a page": (_PAGE_BYTES - 8, _PAGE_BYTES),
        "across pages": (_PAGE_BYTES - 4, _PAGE_BYTES),
    }
    load, rounds = loops.load_four, _LOADS // 4
    runs = {
        name: lambda o=offset, s=step: load(data, o, s, rounds)
        for name, (offset, step) in positions.items()
    }
    return compare(runs, budget_s=budget_s, device="cpu", precision=_PRECISION)


def _take(indexes: dict[str, torch.Tensor], tensor: torch.Tensor, budget_s: float) -> Comparison:
    out = torch.empty_like(tensor)
    runs = {
        name: lambda index=index: torch.take(tensor, index, out=out)
        for name, index in indexes.items()
    }
    return compare(runs, budget_s=budget_s, device="cpu", precision=_PRECISION)


def _buffer(buffer_bytes: int | None, engine: str) -> np.ndarray:
    """Return a written uint32 buffer of a power of two of elements; ValueError or TypeError for a
    bad size or engine.
    """
    choice("engine", engine, ENGINES)
    size = beyond_caches_bytes() if buffer_bytes is None else buffer_bytes
    whole_number("buffer_bytes", size, at_least=_PAGE_BYTES)
    return np.arange(2 ** math.ceil(math.log2(size / ELEMENT_BYTES)), dtype=np.uint32)


def _as_tensor(data: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(data.view(np.int32))


def _aligned_bytes(size: int, boundary: int) -> np.ndarray:
    """Return ``size`` zero bytes, all written, whose first address is a multiple of
    ``boundary``.
    """
    store = np.zeros(size + boundary, dtype=np.uint8)
    store.fill(0)
    first = -store.ctypes.data % boundary
    return store[first : first + size]


_WALK = "uint32_t walk(const uint32_t* data, int64_t first, int64_t stride, int64_t count)"
_CHUNKS = (
    "uint32_t read_chunks(const uint32_t* data, int64_t chunk, int64_t first, int64_t step, "
    "int64_t count)"
)
_HOP = "uint32_t hop(const uint32_t* data, int64_t mask, uint64_t factor, uint64_t addend)"
_LOAD = "uint64_t load_four(const uint8_t* data, int64_t offset, int64_t step, int64_t rounds)"


@dataclass(frozen=True)
class Kernels:
    """The compiled loops; ``engine`` is "C++" or "numba".

    All let other Python threads run meanwhile. ``walk(data, first, stride, count)`` sums ``count``
    elements from ``data[first]`` on, ``stride`` apart (negative: backwards).
    ``hop(data, mask, factor, addend)`` sums ``mask + 1`` elements at the places of the recurrence
    ``place = (factor * place + addend) mod (mask + 1)``: (1, 1) is in sequence, and by the theorem
    of Hull and Dobell (1962) every place comes once where the addend is odd, factor - 1 divisible
    by 4 and mask + 1 a power of two. ``read_chunks(data, chunk, first, step, count)`` sums
    ``count`` chunks of ``chunk`` elements, ``step`` chunks apart from chunk ``first`` on, as fast
    as vector instructions do. ``load_four(data, offset, step, rounds)`` loads 8 bytes at four
    places ``step`` bytes apart, ``rounds`` times (None without a C++ compiler). Sums are modulo
    2**32, of ``load_four`` modulo 2**64.
    """

    engine: str
    walk: Callable[[np.ndarray, int, int, int], int]
    hop: Callable[[np.ndarray, int, int, int], int]
    read_chunks: Callable[[np.ndarray, int, int, int, int], int]
    load_four: Callable[[np.ndarray, int, int, int], int] | None


def kernels() -> Kernels:
    """Return the loops, compiled by C++ where there is a compiler that works and by numba else.

    Raises MissingToolError, with what to install, where there is neither.
    """
    try:
        library = compile_cpp(read_source(__package__, "walks.cpp"))
    except NativeError as missing:
        try:
            return numba_kernels()
        except ImportError as absent:
            problem = (
                "there is neither a C++ compiler that works nor numba "
                f"({missing.problem.splitlines()[0]})"
            )
            raise MissingToolError(problem, f"{missing.remedy}; or install numba") from absent
    functions = (library.function(text) for text in (_WALK, _HOP, _CHUNKS, _LOAD))
    return Kernels("C++", *functions)


@functools.cache
def numba_kernels() -> Kernels:
    """Return the loops compiled by numba, once a process. Raises ImportError without numba."""
    import numba

    @numba.njit("uint32(uint32[::1], int64, int64, int64)", nogil=True)
    def walk(data, first, stride, count):
        total = np.uint32(0)
        for step in range(count):
            total += data[first + step * stride]
        return np.uint32(total)

    @numba.njit("uint32(uint32[::1], int64, uint64, uint64)", nogil=True)
    def hop(data, mask, factor, addend):
        total, index = np.uint32(0), np.uint64(0)
        for _ in range(mask + np.int64(1)):
            index = (index * factor + addend) & np.uint64(mask)
            total += data[index]
        return np.uint32(total)

    @numba.njit("uint32(uint32[::1], int64, int64, int64, int64)", nogil=True)
    def read_chunks(data, chunk, first, step, count):
        total = np.uint32(0)
        for c in range(count):
            start = (first + c * step) * chunk
            for i in range(start, start + chunk):
                total += data[i]
        return np.uint32(total)

    return Kernels("numba", walk, hop, read_chunks, None)
