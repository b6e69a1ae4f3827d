"""Parallelism within a layer: a matrix product split by rows, by columns, over the inner dimension;
threads; lanes.

Lesson 04.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers import console, native, timing
from helpers.checks import choice, whole_number
from helpers.results import Record, derived, row_of

WAYS = ("rows", "columns", "inner")
_BYTES = 4  # of a float32

_COMBINE = {
    "rows": "concatenate the rows",
    "columns": "concatenate the columns",
    "inner": "sum the partial products",
}


class ProductPart(Record):
    """The work of one part of a split product: what it reads, computes and writes. Lesson 04."""

    part: int
    a_bytes: int
    b_bytes: int
    output_bytes: int
    macs: int


class ProductSplit(Record):
    """A product (m, k) @ (k, n) split ``by`` rows of a, columns of b, or the inner dimension k.

    ``combine`` is what makes one whole output of the parts'; ``received_bytes`` is what one place
    must receive for it, the other parts' outputs, and ``additions`` are those of the sum.
    ``elementwise_before_combining`` tells whether an activation may run on each part first: it may
    on a slice of the output, and not on a term of a sum. ``copied_bytes`` are read by more than one
    part, beyond the first reading. Lesson 04.
    """

    by: str
    parts: int
    m: int
    k: int
    n: int
    combine: str
    received_bytes: int
    additions: int
    elementwise_before_combining: bool
    copied_bytes: int
    work: tuple[ProductPart, ...]


class ThreadPoint(Record):
    """One number of CPU threads: the time of a call, and the speedup over the sweep's first number
    of threads.

    ``efficiency_share`` is the speedup over the ratio of the two numbers of threads. ``stable`` and
    ``reason`` are the measurement's. Lesson 04.
    """

    threads: int
    median_s: float
    minimum_s: float
    speedup: float
    efficiency_share: float
    stable: bool
    reason: str


class ThreadSweep(Record):
    """A function timed with several numbers of threads.

    ``stable`` when every point is. Lesson 04.
    """

    name: str
    cores: int
    stable: bool
    points: tuple[ThreadPoint, ...]


def model_split(m: int, k: int, n: int, *, by: str, parts: int) -> ProductSplit:
    """Return the costs of splitting a product (``m``, ``k``) @ (k, ``n``) into ``parts``: bytes,
    MACs, what is combined.

    Pure arithmetic for float32, split ``by`` "rows", "columns" or "inner": the first parts are one
    row (column, inner element) larger where the size does not divide. Raises ValueError for a way
    that is not known, or more parts than there are rows (columns, inner elements). Lesson 04.
    """
    m, k, n = (whole_number(name, size) for name, size in (("m", m), ("k", k), ("n", n)))
    whole = {"rows": m, "inner": k, "columns": n}
    work = []
    for part, size in enumerate(_sizes(whole, by, parts)):
        own = whole | {by: size}
        rows, inner, columns = own["rows"], own["inner"], own["columns"]
        a_bytes, b_bytes = _BYTES * rows * inner, _BYTES * inner * columns
        output_bytes, macs = _BYTES * rows * columns, rows * inner * columns
        work.append(ProductPart(part, a_bytes, b_bytes, output_bytes, macs))
    read = sum(part.a_bytes + part.b_bytes for part in work)
    return ProductSplit(
        by=by,
        parts=len(work),
        m=m,
        k=k,
        n=n,
        combine=_COMBINE[by] if len(work) > 1 else "nothing",
        received_bytes=sum(part.output_bytes for part in work[1:]),
        additions=(len(work) - 1) * m * n if by == "inner" else 0,
        elementwise_before_combining=by != "inner" or len(work) == 1,
        copied_bytes=read - (m * k + k * n) * _BYTES,
        work=tuple(work),
    )


def partial_products(a: Tensor, b: Tensor, *, by: str, parts: int) -> list[Tensor]:
    """Return the product of each part of ``a @ b``, a (m, k) and b (k, n), computed one after
    another.

    >>> terms = partial_products(torch.ones(1, 4), torch.ones(4, 1), by="inner", parts=2)
    >>> [term.tolist() for term in terms]
    [[[2.0]], [[2.0]]]

    ``by`` and ``parts`` are as in :func:`model_split`. Split by rows they are row slices of the
    output, by columns its column slices, and over the inner dimension terms whose sum is the
    output. Raises what :func:`model_split` raises, and ValueError for other shapes. Lesson 04.
    """
    m, k, n = _shape(a, b)
    sizes = _sizes({"rows": m, "columns": n, "inner": k}, by, parts)
    if by == "rows":
        return [piece @ b for piece in a.split(sizes)]
    if by == "columns":
        return [a @ piece for piece in b.split(sizes, dim=1)]
    return [left @ right for left, right in zip(a.split(sizes, dim=1), b.split(sizes), strict=True)]


def combine(pieces: Sequence[Tensor], *, by: str) -> Tensor:
    """Return the whole product of the parts' products: concatenated by rows or by columns, or
    summed.

    Lesson 04.
    """
    choice("by", by, WAYS)
    if by == "inner":
        return torch.stack(list(pieces)).sum(0)
    return torch.cat(list(pieces), dim=0 if by == "rows" else 1)


def sweep_threads(fn: Callable[[], Any], *, name: str, budget_s: float) -> ThreadSweep:
    """Return the time of a call of ``fn`` with 1, 2, 4 ... CPU threads, and with one a core.

    ``speedup`` is the median with one thread over the median. ``budget_s`` is for each number of
    threads; ``name`` is what ``fn`` is called in the table. The number of threads is afterwards as
    it was. More threads than free cores may be far slower: what comes back is this machine now, to
    be drawn and not to be relied on.

    Raises what :func:`helpers.timing.measure` raises. Lesson 04.
    """
    cores = os.cpu_count() or 1
    points: list[ThreadPoint] = []
    for count in console.track(_thread_counts(cores), "threads", unit="setting"):
        with timing.fixed_threads(count):
            measured = timing.measure(fn, budget_s=budget_s, device="cpu")
        alone_s = points[0].median_s if points else measured.median_s
        speedup = alone_s / measured.median_s
        share = alone_s / (count * measured.median_s)
        points.append(
            derived(ThreadPoint, measured, threads=count, speedup=speedup, efficiency_share=share)
        )
    return ThreadSweep(name, cores, all(point.stable for point in points), tuple(points))


def _thread_counts(cores: int) -> list[int]:
    powers = (2**exponent for exponent in range(cores.bit_length()))
    return [*(count for count in powers if count < cores), cores]


def _shape(a: Tensor, b: Tensor) -> tuple[int, int, int]:
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(
            f"shapes {tuple(a.shape)} and {tuple(b.shape)} have no product; give (m, k) and (k, n)"
        )
    return a.shape[0], a.shape[1], b.shape[1]


def _sizes(lengths: dict[str, int], by: str, parts: int) -> list[int]:
    choice("by", by, WAYS)
    length, parts = lengths[by], whole_number("parts", parts)
    if parts > length:
        unit = {"rows": "rows", "columns": "columns", "inner": "inner elements"}[by]
        raise ValueError(
            f"parts={parts} is more than the {length} {unit} to split; give at most {length}"
        )
    return [length // parts + (part < length % parts) for part in range(parts)]


# SIMD: what one instruction does. Two C++ loops compiled with one lane and with many, counted and
# run.

DECLARATIONS = {
    "scaled_add": "void scaled_add(float a, const float* x, float* y, int64_t n)",
    "total": "float total(const float* x, int64_t n)",
}

_VECTORS = (*native.CPP_FLAGS, "-ftree-vectorize")
_REORDER = ("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno")
FLAGS = {
    "one lane": (*native.CPP_FLAGS, "-fno-tree-vectorize", "-fno-unroll-loops"),
    "vectors": _VECTORS,
    "vectors, sums reordered": (*_VECTORS, *_REORDER),
}


class LaneCount(Record):
    """The arithmetic that a compiler put into one function, counted in its program, each
    instruction once.

    ``one_lane`` instructions multiply or add one number, ``packed`` ones ``lanes`` (the widest
    register of ``vector_bits``, over the 32 bits of a float). Lesson 04.
    """

    function: str
    variant: str
    fmas: int
    multiplies: int
    adds: int
    one_lane: int
    packed: int
    vector_bits: int
    lanes: int


class LaneCensus(Record):
    """One source, compiled in several ways: what became of its loops. Lesson 04."""

    compiler: str
    rows: tuple[LaneCount, ...]

    def row(self, function: str, variant: str) -> LaneCount:
        """Return the row of a function and a variant; ValueError where there is none."""
        return row_of(self.rows, "row", function=function, variant=variant)


def compile_lanes() -> dict[str, native.Library]:
    """Return ``lanes.cpp`` compiled three ways (:data:`FLAGS`): one lane, vectors, vectors with
    sums reordered.

    ``scaled_add`` has independent iterations, so the compiler puts several into one instruction.
    ``total`` adds into one number, and the sum's order is part of the program's meaning: it may not
    be changed unless a flag allows it. Where the compiler cannot, nothing happens and nothing is
    said: count (:func:`count_lanes`).

    Raises what :func:`helpers.native.compile_cpp` raises, MissingToolError without a compiler.
    Lesson 04.
    """
    source = native.read_source(__package__, "lanes.cpp")
    return {variant: native.compile_cpp(source, flags=flags) for variant, flags in FLAGS.items()}


def count_lanes() -> LaneCensus:
    """Return how many arithmetic instructions of each width stand in each function of each variant.

    Raises NativeError for a processor that is not x86-64, MissingToolError without a compiler or a
    disassembler. Lesson 04.
    """
    libraries = compile_lanes()
    rows = [
        _count_function(function, variant, library)
        for function in DECLARATIONS
        for variant, library in libraries.items()
    ]
    return LaneCensus(compiler=libraries["vectors"].compiler, rows=tuple(rows))


def _count_function(function: str, variant: str, library: native.Library) -> LaneCount:
    census = native.census(library, function=function)
    packed = census.packed_fmas + census.packed_multiplies + census.packed_adds
    return derived(
        LaneCount,
        census,
        variant=variant,
        fmas=census.multiply_adds,
        multiplies=census.scalar_multiplies + census.packed_multiplies,
        adds=census.scalar_adds + census.packed_adds,
        one_lane=census.scalar_fmas + census.scalar_multiplies + census.scalar_adds,
        packed=packed,
        lanes=max(1, census.vector_bits // 32) if packed else 1,
    )


def lane_calls(function: str, n: int = 4096) -> dict[str, Callable[[], object]]:
    """Return one call for each variant of ``function`` on ``n`` floats, for
    :func:`helpers.timing.compare`.

    The default, 4,096 floats an array, stays in the first caches, so that arithmetic and not memory
    is timed. ``scaled_add`` is given a = 0, which leaves y as it is however often it is called.
    ``ctypes`` takes about as long as some hundred additions. Raises what :func:`compile_lanes`
    raises, ValueError for another function. Lesson 04.
    """
    choice("function", function, DECLARATIONS)
    n = whole_number("n", n)
    x, y = torch.ones(n), torch.ones(n)
    arguments = (0.0, x, y, n) if function == "scaled_add" else (x, n)
    return {
        variant: bind_call(library.function(DECLARATIONS[function]).raw, arguments)
        for variant, library in compile_lanes().items()
    }


def bind_call(function: Callable[..., Any], arguments: Sequence[Any]) -> Callable[[], Any]:
    """Return a call of ``function`` with these arguments; it keeps the tensors whose addresses are
    handed over.
    """
    addresses = [value.data_ptr() if isinstance(value, Tensor) else value for value in arguments]

    def call(_alive: Sequence[Any] = arguments) -> Any:
        return function(*addresses)

    return call
