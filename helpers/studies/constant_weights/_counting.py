"""The census of a network's program: how its weights reach the multiply-adds, counted without any
GPU.

Lesson 17.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers import native, storage
from helpers.checks import boolean
from helpers.native import _machine_code as machine_code
from helpers.results import Record, derived, from_dict, row_of
from helpers.studies.constant_weights._programs import CudaProgram

INSTRUCTION_BYTES = 16  # from sm_70 on
_IMMEDIATE = re.compile(r"-?0x[0-9a-f]+")
CURRENT_ARCHITECTURES = ("sm_80", "sm_90")
OLD_ARCHITECTURES = ("sm_60", "sm_70")


class WeightCensus(Record):
    """A kernel's instructions, each counted once.

    Only "shared" loops, where a block's threads copy the weights: there a thread runs a few more
    than it has; elsewhere it runs each one once, or passes it over. ``total`` leaves out what is
    never reached at the end. ``multiply_adds`` are FFMA, FFMA2 and HFMA2, those of the activations
    among them, parted by what feeds them: an ``immediate`` in the instruction, a ``constant_bank``
    operand, a ``uniform_register`` or, of all operands, a ``register``. ``constant_loads`` bring
    ``constant_load_bytes`` into registers first. ``fp16_multiply_adds`` are HFMA2.
    ``spill_load_bytes`` is None where the compiler's word is not at hand. Lesson 17.
    """

    architecture: str
    compiler: str
    total: int
    multiply_adds: int
    immediate: int
    constant_bank: int
    uniform_register: int
    register: int
    global_loads: int
    shared_loads: int
    constant_loads: int
    constant_load_bytes: int
    fp16_multiply_adds: int
    fp16_immediate: int
    registers: int | None
    spill_load_bytes: int | None


class CppCensus(native.HostCensus):
    """A C++ program's function ``evaluate``, counted as :class:`helpers.native.HostCensus` says,
    each instruction once.

    The fields of :class:`WeightCensus` say what an x86-64 processor makes of them:
    ``multiply_adds``, fused ones, take no ``immediate`` and have no ``uniform_register``;
    ``constant_bank`` are those that read the program's own data at an address in the instruction,
    ``register`` all others, also those that read memory by a register's address. ``global_loads``
    are all loads but the ``constant_loads``; no memory is a ``shared`` one. Loops are not unrolled
    here as on a GPU, so the counts are of the program, not of a run. Lesson 17.
    """

    immediate: int
    constant_bank: int
    uniform_register: int
    register: int
    global_loads: int
    shared_loads: int


class PlacementCount(Record):
    """One placement's census: of a thread, which evaluates ``candidates`` at once.

    Fields as in WeightCensus.

    Lesson 17.
    """

    placement: str
    precision: str
    architecture: str
    candidates: int
    total: int
    multiply_adds: int
    immediate: int
    constant_bank: int
    uniform_register: int
    register: int
    global_loads: int
    shared_loads: int
    constant_loads: int


class PlacementCounts(Record):
    """The census of several placements and architectures, for a network of ``widths``; ``note``
    says what to know.

    Lesson 17.
    """

    compiler: str
    widths: tuple[int, ...]
    weights: int
    nonzero_weights: int
    counts: tuple[PlacementCount, ...]
    note: str = ""

    def count(
        self, placement: str, *, architecture: str, precision: str = "fp32"
    ) -> PlacementCount:
        """Return one row.

        Raises ValueError, with the rows that there are, when it was not counted.
        """
        return row_of(
            self.counts,
            "count",
            placement=placement,
            precision=precision,
            architecture=architecture,
        )


def census(built: Any) -> WeightCensus | CppCensus:
    """Return the census of a program from :func:`build`: a WeightCensus of a CUDA program, a
    CppCensus of a C++ one.

    Both have ``multiply_adds``, ``immediate``, ``constant_bank``, ``uniform_register``,
    ``register``, ``global_loads``, ``shared_loads`` and ``total``, whole numbers; a program that
    :func:`cpp_program` made will do. Raises TypeError for anything else, MissingToolError, with
    what to install, without a disassembler, and NativeError for C++ on a processor that is not
    x86-64.
    """
    if isinstance(built, CudaProgram):
        return cuda_census(built.cubin)
    library = built if isinstance(built, native.Library) else getattr(built, "library", None)
    if not isinstance(library, native.Library):
        raise TypeError(f"a census is taken of what build() returns, not of {type(built).__name__}")
    function = machine_code.host_function(library, "evaluate")
    host = machine_code.host_census(function)
    fused = [
        instruction
        for instruction in function.instructions
        if instruction.form and instruction.form[0] == "fma"
    ]
    immediate = sum(
        any(_IMMEDIATE.fullmatch(operand) for operand in instruction.operands)
        for instruction in fused
    )
    constant = sum(instruction.loads_constant for instruction in fused)
    return derived(
        CppCensus,
        host,
        immediate=immediate,
        constant_bank=constant,
        uniform_register=0,
        register=len(fused) - immediate - constant,
        global_loads=host.loads - host.constant_loads,
        shared_loads=0,
    )


def cuda_census(cubin: native.Cubin, *, function: str = "evaluate") -> WeightCensus:
    """Return the census of a kernel of a CUDA program. Raises as :func:`census` does."""
    kernel_census = native.census(cubin, function=function)
    constant = [
        row for row in kernel_census.accesses if (row.access, row.space) == ("load", "constant")
    ]
    halves = [row for row in kernel_census.kinds if row.kind == "HFMA2"]
    return derived(
        WeightCensus,
        kernel_census,
        compiler=cubin.compiler,
        total=kernel_census.total - kernel_census.padding,
        constant_load_bytes=sum(row.count * (row.width_bits or 0) // 8 for row in constant),
        fp16_multiply_adds=sum(row.count for row in halves),
        fp16_immediate=sum(row.immediate for row in halves),
    )


def recorded_counts(*, current: bool = False) -> PlacementCounts:
    """Return the census for sm_60 and sm_70, which today's NVRTC no longer compiles for: recorded
    with its compiler.

    ``current=True`` gives that of :data:`CURRENT_ARCHITECTURES`, in both precisions, for machines
    without NVRTC or nvdisasm. The network is ``standard_network(0)``; the date and the tools stand
    in ``note``. Raises FileNotFoundError where the library is installed without the course. Lesson
    17.
    """
    boolean("current", current)
    path = recorded_file(CURRENT_ARCHITECTURES if current else OLD_ARCHITECTURES)
    if not path.exists():
        raise FileNotFoundError(
            f"the recorded census {path.name} is not there; it is in the course's "
            "repository, under course/recorded/constant_weights"
        )
    return from_dict(PlacementCounts, json.loads(path.read_text(encoding="utf-8")))


def recorded_file(architectures: Sequence[str]) -> Path:
    """Return the file in which the census for ``architectures`` is recorded.

    Raises FileNotFoundError outside a course.
    """
    return storage.course_file(
        "recorded", "constant_weights", f"{'_and_'.join(architectures)}.json"
    )
