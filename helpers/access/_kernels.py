"""The loops that walk through memory, compiled: C++ where a compiler works, else numba, else an error that says so.

A walk never keeps what it reads but for a sum, so that nothing but the order of the addresses differs between two
walks. In C++ an empty assembler statement after each addition keeps the compiler from turning one walk into vector
instructions and not the other; numba has none, and vectorises where the stride is 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from helpers.native import MissingToolError, NativeError, compile_cpp, read_source

_WALK = "uint32_t walk(const uint32_t* data, int64_t first, int64_t stride, int64_t count)"
_CHUNKS = "uint32_t read_chunks(const uint32_t* data, int64_t chunk, int64_t first, int64_t step, int64_t count)"
_HOP = "uint32_t hop(const uint32_t* data, int64_t mask, uint64_t factor, uint64_t addend)"
_LOAD = "uint64_t load_four(const uint8_t* data, int64_t offset, int64_t step, int64_t rounds)"


@dataclass(frozen=True)
class Kernels:
    """The compiled loops; ``engine`` is "C++" or "numba". All let other Python threads run meanwhile.

    ``walk(data, first, stride, count)`` sums ``count`` elements from ``data[first]`` on, ``stride`` apart (negative:
    backwards). ``hop(data, mask, factor, addend)`` sums ``mask + 1`` elements at the places of the recurrence
    ``place = (factor * place + addend) mod (mask + 1)``: (1, 1) is in sequence, and by the theorem of Hull and Dobell
    (1962) every place comes once where the addend is odd, factor - 1 divisible by 4 and mask + 1 a power of two.
    ``read_chunks(data, chunk, first, step, count)`` sums ``count`` chunks of ``chunk`` elements, ``step`` chunks apart
    from chunk ``first`` on, as fast as vector instructions do.
    ``load_four(data, offset, step, rounds)`` loads 8 bytes at four places ``step`` bytes apart, ``rounds`` times (None
    without a C++ compiler). Sums are modulo 2**32, of ``load_four`` modulo 2**64.
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
            problem = f"there is neither a C++ compiler that works nor numba ({missing.problem.splitlines()[0]})"
            raise MissingToolError(problem, f"{missing.remedy}; or install numba") from absent
    declared = (library.function(text) for text in (_WALK, _HOP, _CHUNKS, _LOAD))
    return Kernels("C++", *declared)


@functools.cache
def numba_kernels() -> Kernels:
    """Return the loops compiled by numba, once a process. Raises ImportError without numba."""
    import numba

    @numba.njit(nogil=True)
    def walk(data, first, stride, count):
        total = np.uint32(0)
        for step in range(count):
            total += data[first + step * stride]
        return np.uint32(total)

    @numba.njit(nogil=True)
    def hop(data, mask, factor, addend):
        total, place = np.uint32(0), np.uint64(0)
        for _ in range(mask + np.int64(1)):
            place = (place * factor + addend) & np.uint64(mask)
            total += data[place]
        return np.uint32(total)

    @numba.njit(nogil=True)
    def read_chunks(data, chunk, first, step, count):
        total = np.uint32(0)
        for c in range(count):
            start = (first + c * step) * chunk
            for i in range(start, start + chunk):
                total += data[i]
        return np.uint32(total)

    def chunks_with_types(data: np.ndarray, chunk: int, first: int, step: int, count: int) -> int:
        return int(read_chunks(data, np.int64(chunk), np.int64(first), np.int64(step), np.int64(count)))

    def hop_with_types(data: np.ndarray, mask: int, factor: int, addend: int) -> int:
        return int(hop(data, np.int64(mask), np.uint64(factor), np.uint64(addend)))

    def walk_with_types(data: np.ndarray, first: int, stride: int, count: int) -> int:
        return int(walk(data, np.int64(first), np.int64(stride), np.int64(count)))

    return Kernels("numba", walk_with_types, hop_with_types, chunks_with_types, None)
