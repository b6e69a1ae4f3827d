"""Parallelism within a layer: a matrix product split by rows, by columns, over the inner dimension;
threads; lanes.

Lesson 04.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers import console, native, timing
from helpers.checks import choice, whole_number
from helpers.results import Record, row_of

WAYS = ("rows", "columns", "inner")

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


def model_split(m: int, k: int, n: int, *, by: str, parts: int, itemsize: int = 4) -> ProductSplit:
    """Return the costs of splitting a product (``m``, ``k``) @ (k, ``n``) into ``parts``: bytes,
    MACs, what is combined.

    Pure arithmetic, split ``by`` "rows", "columns" or "inner": the first parts are one row (column,
    inner element) larger where the size does not divide. ``itemsize`` is the bytes of a number.
    Raises ValueError for a way that is not known, or more parts than there are rows (columns, inner
    elements). Lesson 04.
    """
    m, k, n = (
        whole_number(name, size, at_least=1) for size, name in ((m, "m"), (k, "k"), (n, "n"))
    )
    itemsize = whole_number("itemsize", itemsize, at_least=1)
    sizes = _sizes({"rows": m, "columns": n, "inner": k}, by, parts)
    work = []
    for part, size in enumerate(sizes):
        rows, inner, columns = {
            "rows": (size, k, n),
            "columns": (m, k, size),
            "inner": (m, size, n),
        }[by]
        work.append(
            ProductPart(
                part,
                rows * inner * itemsize,
                inner * columns * itemsize,
                rows * columns * itemsize,
                rows * inner * columns,
            )
        )
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
        copied_bytes=read - (m * k + k * n) * itemsize,
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


def sweep_threads(
    fn: Callable[[], Any],
    *,
    threads: Sequence[int] | None = None,
    name: str = "fn",
    budget_s: float = 0.5,
) -> ThreadSweep:
    """Return the time of a call of ``fn`` with each number of CPU ``threads``, by default 1, 2, 4
    ... and all cores.

    ``speedup`` is the median with the first number of threads over the median; give 1 first.
    ``budget_s`` is for each number; ``name`` is what ``fn`` is called in the table. The number of
    threads is afterwards as it was. More threads than free cores may be far slower: what comes back
    is this machine now, to be drawn and not to be relied on.

    Raises ValueError for a number of threads that is not accepted, and what
    :func:`helpers.timing.measure` raises. Lesson 04.
    """
    cores = os.cpu_count() or 1
    counts = (
        _thread_counts(cores)
        if threads is None
        else [whole_number("threads", t, at_least=1) for t in threads]
    )
    if not counts:
        raise ValueError("threads is empty; give numbers of threads, such as (1, 2, 4)")
    timings = []
    for count in console.track(counts, "threads", unit="setting"):
        with timing.fixed_threads(count):
            timings.append(timing.measure(fn, budget_s=budget_s, device="cpu"))
    alone_s = timings[0].median_s * counts[0]
    points = tuple(
        ThreadPoint(
            count,
            measurement.median_s,
            measurement.minimum_s,
            timings[0].median_s / measurement.median_s,
            alone_s / (count * measurement.median_s),
            measurement.stable,
            measurement.reason,
        )
        for count, measurement in zip(counts, timings, strict=True)
    )
    return ThreadSweep(
        name=name, cores=cores, stable=all(point.stable for point in points), points=points
    )


def _thread_counts(cores: int) -> list[int]:
    powers = itertools.takewhile(
        lambda count: count < cores, (2**exponent for exponent in itertools.count())
    )
    return [*powers, cores]


def _shape(a: Tensor, b: Tensor) -> tuple[int, int, int]:
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(
            f"shapes {tuple(a.shape)} and {tuple(b.shape)} have no product; give (m, k) and (k, n)"
        )
    return a.shape[0], a.shape[1], b.shape[1]


def _sizes(lengths: dict[str, int], by: str, parts: int) -> list[int]:
    choice("by", by, WAYS)
    length, parts = lengths[by], whole_number("parts", parts, at_least=1)
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

_BASE = ("-O3", "-march=native", "-std=c++17")
_ONE_LANE = ("-fno-tree-vectorize", "-fno-unroll-loops")
_REORDER = ("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno")
FLAGS = {
    "one lane": (*_BASE, *_ONE_LANE),
    "vectors": (*_BASE, "-ftree-vectorize"),
    "vectors, sums reordered": (*_BASE, "-ftree-vectorize", *_REORDER),
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


def count_lanes(libraries: dict[str, native.Library] | None = None) -> LaneCensus:
    """Return how many arithmetic instructions of each width stand in each function of each variant.

    Raises NativeError for a processor that is not x86-64, MissingToolError without a compiler or a
    disassembler. Lesson 04.
    """
    libraries = compile_lanes() if libraries is None else libraries
    rows = [
        _count_function(function, variant, library)
        for function in DECLARATIONS
        for variant, library in libraries.items()
    ]
    return LaneCensus(compiler=next(iter(libraries.values())).compiler, rows=tuple(rows))


def _count_function(function: str, variant: str, library: native.Library) -> LaneCount:
    census = native.census(library, function=function)
    one_lane = census.scalar_fmas + census.scalar_multiplies + census.scalar_adds
    packed = census.packed_fmas + census.packed_multiplies + census.packed_adds
    return LaneCount(
        function=function,
        variant=variant,
        fmas=census.multiply_adds,
        multiplies=census.scalar_multiplies + census.packed_multiplies,
        adds=census.scalar_adds + census.packed_adds,
        one_lane=one_lane,
        packed=packed,
        vector_bits=census.vector_bits,
        lanes=max(1, census.vector_bits // 32) if packed else 1,
    )


def lane_calls(
    function: str,
    n: int = 4096,
    *,
    variants: Sequence[str] = ("one lane", "vectors", "vectors, sums reordered"),
) -> dict[str, Callable[[], object]]:
    """Return one call for each of ``variants`` of ``function`` on ``n`` floats, for
    :func:`helpers.timing.compare`.

    The default, 4,096 floats an array, stays in the first caches, so that arithmetic and not memory
    is timed. ``scaled_add`` is given a = 0, which leaves y as it is however often it is called.
    ``ctypes`` takes about as long as some hundred additions. Raises what :func:`compile_lanes`
    raises, ValueError for another function. Lesson 04.
    """
    choice("function", function, DECLARATIONS)
    n = whole_number("n", n, at_least=1)
    libraries = compile_lanes()
    x, y = torch.ones(n), torch.ones(n)
    calls: dict[str, Callable[[], object]] = {}
    for variant in variants:
        choice("variant", variant, libraries)
        raw = libraries[variant].function(DECLARATIONS[function]).raw
        arguments = (
            (0.0, x.data_ptr(), y.data_ptr(), n) if function == "scaled_add" else (x.data_ptr(), n)
        )
        calls[variant] = _keep_alive(raw, arguments, (x, y))
    return calls


def _keep_alive(
    raw: Callable[..., object], arguments: tuple, tensors: tuple
) -> Callable[[], object]:
    # the default keeps the tensors whose addresses are handed over
    def call(_alive: tuple = tensors) -> object:
        return raw(*arguments)

    return call
