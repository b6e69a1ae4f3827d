"""SIMD: what one instruction does. Two C++ loops compiled with one lane and with many, counted and run. Lesson 03."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from helpers import native
from helpers.checks import whole_number
from helpers.results import Result

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


@dataclass(frozen=True)
class LaneCount(Result):
    """The arithmetic that a compiler put into one function, counted in its program, each instruction once.

    ``one_lane`` instructions multiply or add one number, ``packed`` ones ``lanes`` (the widest register of
    ``vector_bits``, over the 32 bits of a float). Lesson 03.
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


@dataclass(frozen=True)
class LaneCensus(Result):
    """One source, compiled in several ways: what became of its loops. Lesson 03."""

    compiler: str
    rows: tuple[LaneCount, ...]

    def row(self, function: str, variant: str) -> LaneCount:
        """Return the row of a function and a variant; ValueError where there is none."""
        for row in self.rows:
            if (row.function, row.variant) == (function, variant):
                return row
        raise ValueError(f"no row ({function!r}, {variant!r}); functions: {', '.join(DECLARATIONS)}; "
                         f"variants: {', '.join(FLAGS)}")  # fmt: skip


def compile_lanes() -> dict[str, native.Library]:
    """Return ``lanes.cpp`` compiled three ways (:data:`FLAGS`): one lane, vectors, vectors with sums reordered.

    ``scaled_add`` has independent iterations, so the compiler puts several into one instruction. ``total`` adds into
    one number, and the sum's order is part of the program's meaning: it may not be changed unless a flag allows it.
    Where the compiler cannot, nothing happens and nothing is said: count (:func:`count_lanes`).

    Raises what :func:`helpers.native.compile_cpp` raises, MissingToolError without a compiler. Lesson 03.
    """
    source = native.read_source(__package__, "lanes.cpp")
    return {variant: native.compile_cpp(source, flags=flags) for variant, flags in FLAGS.items()}


def count_lanes(libraries: dict[str, native.Library] | None = None) -> LaneCensus:
    """Return how many arithmetic instructions of each width stand in each function of each variant.

    Raises NativeError for a processor that is not x86-64, MissingToolError without a compiler or a disassembler.
    Lesson 03.
    """
    libraries = compile_lanes() if libraries is None else libraries
    rows = [_counted(function, variant, library) for function in DECLARATIONS for variant, library in libraries.items()]
    return LaneCensus(compiler=next(iter(libraries.values())).compiler, rows=tuple(rows))


def _counted(function: str, variant: str, library: native.Library) -> LaneCount:
    found = native.census(library, function=function)
    one_lane = found.scalar_fmas + found.scalar_multiplies + found.scalar_adds
    packed = found.packed_fmas + found.packed_multiplies + found.packed_adds
    return LaneCount(
        function=function,
        variant=variant,
        fmas=found.multiply_adds,
        multiplies=found.scalar_multiplies + found.packed_multiplies,
        adds=found.scalar_adds + found.packed_adds,
        one_lane=one_lane,
        packed=packed,
        vector_bits=found.vector_bits,
        lanes=max(1, found.vector_bits // 32) if packed else 1,
    )


def lane_calls(
    function: str, n: int = 4096, *, variants: Sequence[str] = ("one lane", "vectors", "vectors, sums reordered")
) -> dict[str, Callable[[], object]]:
    """Return one call a variant of ``function`` on ``n`` floats, for :func:`helpers.timing.compare`.

    The default, 4,096 floats an array, stays in the first caches, so that arithmetic and not memory is timed.
    ``scaled_add`` is given a = 0, which leaves y as it is however often it is called. ``ctypes`` takes about as long
    as some hundred additions. Raises what :func:`compile_lanes` raises, ValueError for another function. Lesson 03.
    """
    if function not in DECLARATIONS:
        raise ValueError(f"function={function!r} is not known; use {' or '.join(repr(name) for name in DECLARATIONS)}")
    n = whole_number("n", n, at_least=1)
    libraries = compile_lanes()
    x, y = torch.ones(n), torch.ones(n)
    calls: dict[str, Callable[[], object]] = {}
    for variant in variants:
        if variant not in libraries:
            raise ValueError(f"variant {variant!r} is not known; use {', '.join(repr(name) for name in libraries)}")
        raw = libraries[variant].function(DECLARATIONS[function]).raw
        arguments = (0.0, x.data_ptr(), y.data_ptr(), n) if function == "scaled_add" else (x.data_ptr(), n)
        calls[variant] = _keeping(raw, arguments, (x, y))
    return calls


def _keeping(raw: Callable[..., object], arguments: tuple, tensors: tuple) -> Callable[[], object]:
    def call(_alive: tuple = tensors) -> object:  # the default keeps the tensors whose addresses are handed over
        return raw(*arguments)

    return call
