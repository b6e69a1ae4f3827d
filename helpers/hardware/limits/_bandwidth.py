"""Bytes moved a second by the five kernels of the probe: PyTorch's operators, and a compiled triad
for small caches.

The operators write into tensors that are there (``out=``, in place), so no page is fresh and
nothing is allocated; a rate holds the call's own overhead, which is what a caller gets. In a cache
the call takes long beside the data (in an L1 longer than the data), so a cache's own bandwidth
comes from a compiled triad, repeated inside one call. Inside an L1 the loop itself counts: on an
EPYC of Zen 3 the same five instructions move 148 GB/s where they stand badly and 278 on a line of
their own, and unrolled 205 or 308 from one run to the next. So the loops begin on a line, there are
three of them, unrolled or not, and the fastest counts, which comes within a tenth of the cache.
Bytes are counted as STREAM counts them (McCalpin 1995): what the program reads and writes, not the
line that a cache fetches before a write. Lesson 01.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from helpers import native
from helpers.hardware.limits._team import Start, repeat_s, team_s

KERNELS = ("read", "write", "copy", "triad", "scale")

_FLOAT_BYTES = 4
_ALIGNMENT = 64 // _FLOAT_BYTES
_RUN_S, _RUNS = 4e-4, 9
_UNROLLED = ("1", "2", "4")
_DECLARATION = (
    "void triad_{}(float* a, const float* b, const float* c, float s, int64_t n, int64_t repeats, "
    "int32_t* arrived, int32_t threads, int64_t* times)"
)
# With AVX-512 compilers choose vectors of half the length, which move half the bytes that an L1
# can.
_WIDEST = (
    ("-mprefer-vector-width=512",) if platform.machine().lower() in ("x86_64", "amd64") else ()
)
_FLAGS = (*native.CPP_FLAGS, "-falign-loops=64", *_WIDEST)


@dataclass(frozen=True)
class BandwidthKernel:
    """One kernel ready to be called: ``fn`` runs it once and moves ``moved_bytes``. Lesson 01."""

    fn: Callable[[], object]
    moved_bytes: int


def pool(size_bytes: int, device: torch.device) -> torch.Tensor:
    """Return float32 ones of ``size_bytes`` in all, every page written, for the arrays of
    :func:`operators`.
    """
    return torch.ones(size_bytes // _FLOAT_BYTES, device=device)


def arrays(pool: torch.Tensor, working_set_bytes: int, count: int) -> list[torch.Tensor]:
    """Return ``count`` arrays of ``pool``, each on a line of its own, together at most
    ``working_set_bytes``.

    Raises ValueError when the pool is smaller, or an array would be under a line.
    """
    length = working_set_bytes // _FLOAT_BYTES // count // _ALIGNMENT * _ALIGNMENT
    if length == 0 or count * length > len(pool):
        raise ValueError(
            f"{count} arrays do not fit: working_set_bytes={working_set_bytes:,} must be at least "
            f"{64 * count} and at most the pool's {_FLOAT_BYTES * len(pool):,}"
        )
    return [pool[index * length : (index + 1) * length] for index in range(count)]


def operators(pool: torch.Tensor, working_set_bytes: int) -> dict[str, BandwidthKernel]:
    """Return the kernels of :data:`KERNELS` as PyTorch operators whose arrays together hold
    ``working_set_bytes``.

    Read is a sum (n bytes of one array), write a fill (n), copy 2 n of two arrays, triad
    ``a = b + 1 c`` 3 n of three, scale ``a *= 1`` 2 n of one. The factor 1 keeps every value, and
    no operator looks at it. Lesson 01.
    """
    (single,), (target, source), (a, b, c) = (
        arrays(pool, working_set_bytes, count) for count in (1, 2, 3)
    )
    total = torch.empty((), device=pool.device)
    return {
        "read": BandwidthKernel(lambda: torch.sum(single, 0, out=total), single.nbytes),
        "write": BandwidthKernel(lambda: single.fill_(1.0), single.nbytes),
        "copy": BandwidthKernel(lambda: target.copy_(source), 2 * target.nbytes),
        "triad": BandwidthKernel(lambda: torch.add(b, c, alpha=1.0, out=a), 3 * a.nbytes),
        "scale": BandwidthKernel(lambda: single.mul_(1.0), 2 * single.nbytes),
    }


CompiledTriad = Callable[[int], float]


def _triads() -> str:
    """Return the program with a triad for each number of steps that its loop is unrolled by."""
    triad = native.read_source(__package__, "triad.cpp", generated={"team.h": ""})
    forms = (triad.replace("UNROLLED", steps) for steps in _UNROLLED)
    return native.read_source(__package__, "team.h") + "".join(forms)


def compiled_triad(threads: int) -> CompiledTriad | str:
    """Return a function from a working set in bytes to the bytes a second of the triad's fastest
    compiled form.

    Each of the ``threads`` threads has arrays of its own, an equal part of the working set; the
    time is from the first thread's begin to the last one's end. Where nothing can be compiled, the
    reason comes back instead, a line of text.

    >>> triad = compiled_triad(threads=1)  # doctest: +SKIP
    >>> triad(2**16) > triad(2**30)  # a cache is faster than main memory  # doctest: +SKIP
    True

    Lesson 01.
    """
    try:
        library = native.compile_cpp(_triads(), flags=_FLAGS)
    except native.NativeError as error:
        return error.problem.splitlines()[0]
    forms = [library.function(_DECLARATION.format(name)).raw for name in _UNROLLED]

    def fastest(working_set_bytes: int) -> float:
        share = working_set_bytes // threads
        parts = [arrays(pool(share, torch.device("cpu")), share, 3) for _ in range(threads)]
        return max(_bytes_per_s(raw, parts) for raw in forms)

    return fastest


def _bytes_per_s(raw: Callable[..., None], parts: Sequence[list[torch.Tensor]]) -> float:
    moved_bytes = sum(array.nbytes for part in parts for array in part)

    def run_s(repeats: int) -> float:
        def work(index: int, start: Start) -> None:
            a, b, c = parts[index]
            raw(a.data_ptr(), b.data_ptr(), c.data_ptr(), 1.0, len(a), repeats, *start)

        return team_s(work, len(parts))

    return moved_bytes / repeat_s(run_s, at_least_s=_RUN_S, runs=_RUNS)
