"""The most that a core does with its own multiply-adds, by type of number: no library takes part.

A chain of multiply-adds waits for its own last result, some four cycles. So multiply_adds.cpp keeps
as many chains at once as hide that latency, and does nothing else. Which vectors are the fastest
depends on the core: those of 512 bits do twice the work of those of 256 bits on some, and the same
on others, which have one such unit or take two cycles for each (AMD's Zen 4). So each width is a
form, and the fastest form counts. bfloat16 and int8 have instructions of their own, which add two,
four or a tile of products at once. Lesson 02.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import torch

from helpers import native
from helpers.hardware.limits._team import Start, repeat_s, team_s

FORMS = {
    "float32": ("float32_in_512", "float32_in_256", "float32_in_128"),
    "float64": ("float64_in_512", "float64_in_256", "float64_in_128"),
    "bfloat16": (
        "bfloat16_in_tiles",
        "bfloat16_in_512",
        "bfloat16_in_256",
        "bfloat16_in_products",
        "bfloat16_in_128",
    ),
    "float16": ("float16_in_tiles", "float16_in_512", "float16_in_256", "float16_in_128"),
    "int8": ("int8_in_tiles", "int8_in_512", "int8_in_256", "int8_in_products", "int8_in_128"),
}

_DECLARATION = (
    "int64_t {}(const void* factors, int64_t repeats, int32_t* arrived, int32_t threads, int64_t* "
    "times)"
)
_FLAGS = (*native.CPP_FLAGS, "-ffp-contract=fast")  # a * b + c is one instruction
_FACTORS_BYTES = 1024  # a tile
_RUN_S, _RUNS = 1e-3, 15
_VECTOR_BITS = (32, 128, 256, 512)

Function = Callable[..., int]


def source() -> str:
    """Return the program's text."""
    return native.read_source(__package__, "multiply_adds.cpp")


def compile_forms() -> Mapping[str, Function]:
    """Return, by name, the forms of multiply_adds.cpp that this core has.

    Raises NativeError without a compiler.
    """
    library = native.compile_cpp(source(), flags=_FLAGS)
    names = ("float32_in_32", *itertools.chain.from_iterable(FORMS.values()))
    return {
        name: library.function(_DECLARATION.format(name)).raw
        for name in names
        if hasattr(library.raw, name)
    }


def form_flops(function: Function, dtype: torch.dtype, *, threads: int) -> float:
    """Return FLOP/s of one form on ``threads`` threads, two operations a multiply-add, in the
    fastest of its runs.

    0 where the system does not let a process use the form.
    """
    factors = torch.full(
        (_FACTORS_BYTES // dtype.itemsize,), 1 if dtype == torch.int8 else 0.5, dtype=dtype
    )
    multiply_adds = []

    def run_s(repeats: int) -> float:
        def work(_: int, start: Start) -> None:
            multiply_adds.append(function(factors.data_ptr(), repeats, *start))

        multiply_adds.clear()
        return team_s(work, threads)

    run_s(1)
    flops = 2 * sum(multiply_adds)
    return flops / repeat_s(run_s, at_least_s=_RUN_S, runs=_RUNS) if flops else 0.0


def core_flops(forms: Mapping[str, Function], name: str, *, threads: int) -> float:
    """Return FLOP/s of the fastest form of the type ``name``, "float32" ...; 0 where the core has
    none.

    Lesson 02.
    """
    rates = [
        form_flops(forms[form], getattr(torch, name), threads=threads)
        for form in FORMS[name]
        if form in forms
    ]
    return max(rates, default=0.0)


def vector_flops() -> dict[int, float]:
    """Return FLOP/s of one thread's independent float32 multiply-adds, by the bits of their
    vectors.

    32 bits are one number; of 128, 256 and 512 bits those stand there that this core has. Two
    widths with one rate say that the core starts half as many of the wider ones in a cycle. It
    takes some 0.1 s. Raises NativeError without a C++ compiler.

    >>> flops = vector_flops()  # doctest: +SKIP
    >>> flops[128] > flops[32]  # doctest: +SKIP
    True

    Lesson 02.
    """
    forms = compile_forms()
    return {
        bits: form_flops(forms[name], torch.float32, threads=1)
        for bits in _VECTOR_BITS
        if (name := f"float32_in_{bits}") in forms
    }
