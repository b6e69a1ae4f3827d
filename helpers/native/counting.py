"""The census of a compiled function: how many instructions of each kind, what feeds them, and what they load and store.

It counts instructions as they stand in the program, each once, however often it runs. Lesson 11.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from helpers.native import disassembly, elf, nvrtc, sass, x86
from helpers.results import Result


@dataclass(frozen=True)
class KindCount(Result):
    """A GPU's instructions of one kind, by the nearest thing that they read: immediate first, register last.

    What is left of ``count`` reads none of the four (a jump, a load by address). Lesson 11.
    """

    kind: str
    count: int
    immediate: int
    constant_bank: int
    uniform_register: int
    register: int


@dataclass(frozen=True)
class AccessCount(Result):
    """Loads, stores or atomics of one memory space and width, in bits a thread (None: not said). Lesson 11."""

    access: str
    space: str
    width_bits: int | None
    count: int


@dataclass(frozen=True)
class Census(Result):
    """A GPU function's instructions, counted in its program.

    ``total`` are all, of which ``padding`` at the end are never reached. ``multiply_adds`` are FFMA, FFMA2, HFMA2 and
    DFMA (two results an FFMA2 or HFMA2; those that only move a constant are left out), divided by what feeds them
    into ``immediate`` + ``constant_bank`` + ``uniform_register`` + ``register``: the nearest of their operands.
    Functions that are called and not inlined stand in the kernel's code and are counted. ``spill_*_bytes`` is
    ptxas' word, so known of a Cubin alone: in the program a spill looks like any local array. Lesson 11.
    """

    function: str
    architecture: str
    total: int
    padding: int
    registers: int | None
    stack_bytes: int | None
    spill_store_bytes: int | None
    spill_load_bytes: int | None
    multiply_adds: int
    immediate: int
    constant_bank: int
    uniform_register: int
    register: int
    global_loads: int
    global_stores: int
    shared_loads: int
    shared_stores: int
    local_loads: int
    local_stores: int
    constant_loads: int
    kinds: tuple[KindCount, ...]
    accesses: tuple[AccessCount, ...]


@dataclass(frozen=True)
class MnemonicCount(Result):
    """A processor's instructions of one mnemonic. Lesson 11."""

    mnemonic: str
    count: int


@dataclass(frozen=True)
class HostCensus(Result):
    """An x86-64 function's instructions, counted in its program.

    ``total`` are all, of which ``padding`` at the end are never reached. Floating-point arithmetic is scalar or
    packed (several numbers in a vector register, the widest of which has ``vector_bits``; 0: none). An instruction
    that reads and writes memory counts as a load and a store. ``constant_loads`` are the loads that name a place in
    the program itself, where the compiler keeps its constants. Functions that are called are not counted. Lesson 11.
    """

    function: str
    architecture: str
    total: int
    padding: int
    scalar_fmas: int
    packed_fmas: int
    scalar_multiplies: int
    packed_multiplies: int
    scalar_adds: int
    packed_adds: int
    vector_bits: int
    loads: int
    constant_loads: int
    stores: int
    branches: int
    kinds: tuple[MnemonicCount, ...]

    @property
    def multiply_adds(self) -> int:
        """Fused multiply-adds, scalar and packed."""
        return self.scalar_fmas + self.packed_fmas


def census(program: disassembly.Program, *, function: str | None = None) -> Census | HostCensus:
    """Return the census of one function of a Cubin, a Library, or the path or bytes of a compiled file.

    A GPU's program gives a :class:`Census`, an x86-64 one a :class:`HostCensus`; ``function`` may be left out where
    there is only one. Raises as :func:`helpers.native.disassemble` does, and NativeError for a processor that is not
    x86-64. Lesson 02.
    """
    if disassembly.is_gpu(program):
        return _gpu_census(program, function)
    functions = disassembly.cpu_functions(program)
    return count_host(functions[disassembly.pick(functions, function)])


def _gpu_census(program: disassembly.Program, function: str | None) -> Census:
    functions = disassembly.gpu_functions(program)
    name = disassembly.pick(functions, function)
    image = disassembly.image_of(program)
    found = elf.resources(elf.read(image), name)
    log = program.log if isinstance(program, nvrtc.Cubin) else ""
    architecture = program.architecture if isinstance(program, nvrtc.Cubin) else elf.architecture(image)
    stores, loads = nvrtc.spills(log).get(name, (None, None))
    return Census(
        function=name, architecture=architecture, registers=found.registers,
        stack_bytes=found.stack_bytes, spill_store_bytes=stores, spill_load_bytes=loads, **_counts(functions[name]),
    )  # fmt: skip


def _counts(function: sass.Function) -> dict[str, int | tuple[KindCount, ...] | tuple[AccessCount, ...]]:
    fed = Counter(one.operand_kind for one in function.instructions if one.multiplies_and_adds)
    accesses = Counter(access for one in function.instructions for access in one.accesses)
    spaces = Counter((access, space) for (access, space, _), count in accesses.items() for _ in range(count))
    rows = tuple(AccessCount(*access, count) for access, count in sorted(accesses.items(), key=_by_space))
    return {
        "total": len(function.instructions),
        "padding": function.padding,
        "multiply_adds": fed.total(),
        **{kind: fed[kind] for kind in sass.OPERAND_KINDS},
        **{f"{space}_loads": spaces["load", space] for space in ("global", "shared", "local", "constant")},
        **{f"{space}_stores": spaces["store", space] for space in ("global", "shared", "local")},
        "kinds": _kinds(function.instructions),
        "accesses": rows,
    }


def _kinds(instructions: Iterable[sass.Instruction]) -> tuple[KindCount, ...]:
    operands: dict[str, Counter[str | None]] = {}
    for one in instructions:
        operands.setdefault(one.kind, Counter())[one.operand_kind] += 1
    ordered = sorted(operands.items(), key=lambda item: (-item[1].total(), item[0]))
    return tuple(
        KindCount(kind, found.total(), *(found[name] for name in sass.OPERAND_KINDS)) for kind, found in ordered
    )


def _by_space(item: tuple[tuple[str, str, int | None], int]) -> tuple[str, str, int]:
    access, space, width = item[0]
    return access, space, width or 0


def count_host(function: x86.Function) -> HostCensus:
    """Return the census of an x86-64 function that was read. Lesson 11."""
    instructions = function.instructions
    forms = Counter(form for one in instructions if (form := one.form))
    kinds = Counter(one.mnemonic for one in instructions)
    packed = [one.vector_bits for one in instructions if one.form and one.form[1] == "packed"]
    return HostCensus(
        function=function.name,
        architecture="x86-64",
        total=len(instructions),
        padding=function.padding,
        scalar_fmas=forms["fma", "scalar"],
        packed_fmas=forms["fma", "packed"],
        scalar_multiplies=forms["multiply", "scalar"],
        packed_multiplies=forms["multiply", "packed"],
        scalar_adds=forms["add", "scalar"],
        packed_adds=forms["add", "packed"],
        vector_bits=max(packed, default=0),
        loads=sum(one.loads for one in instructions),
        constant_loads=sum(one.loads_constant for one in instructions),
        stores=sum(one.stores for one in instructions),
        branches=sum(one.is_branch for one in instructions),
        kinds=tuple(
            MnemonicCount(kind, count) for kind, count in sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
        ),
    )
