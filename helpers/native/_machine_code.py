"""Compiled programs read back as instructions, and counted by kind, operands, loads and stores.

nvdisasm reads a GPU's machine code, objdump this processor's. Counted are instructions as they
stand in the program, each once, however often it runs. Lesson 17.
"""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, overload

from helpers import storage
from helpers.checks import one_of
from helpers.native import _cubin as cubin, _nvrtc as nvrtc, _x86 as x86
from helpers.native._cpp import Library
from helpers.native._nvrtc import Cubin
from helpers.native._object_file import MachineCode, object_file
from helpers.native._tools import NativeError, find_nvdisasm, find_objdump, reason_of, run_tool
from helpers.results import Record

Compiled = Cubin | Library | MachineCode | bytes | str | os.PathLike[str]

_LIMIT_S = 300
_CUDA_MACHINE = b"\xbe\x00"
Function = TypeVar("Function", cubin.GpuFunction, x86.HostFunction)


class KindCount(Record):
    """A GPU's instructions of one kind, by the nearest thing that they read: immediate first,
    register last.

    What is left of ``count`` reads none of the four (a jump, a load by address). Lesson 17.
    """

    kind: str
    count: int
    immediate: int
    constant_bank: int
    uniform_register: int
    register: int


class AccessCount(Record):
    """Loads, stores or atomics of one memory space and width, in bits a thread (None: not said).

    Lesson 17.
    """

    access: str
    space: str
    width_bits: int | None
    count: int


class Census(Record):
    """A GPU function's instructions, counted in its program.

    ``total`` are all, of which ``padding`` at the end are never reached. ``multiply_adds`` are
    FFMA, FFMA2, HFMA2 and DFMA (two results an FFMA2 or HFMA2; those that only move a constant are
    left out), divided by what feeds them into ``immediate`` + ``constant_bank`` +
    ``uniform_register`` + ``register``: the nearest of their operands. Functions that are called
    and not inlined stand in the kernel's code and are counted. ``spill_*_bytes`` is ptxas' word, so
    known of a Cubin alone: in the program a spill looks like any local array. Lesson 17.
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


class MnemonicCount(Record):
    """A processor's instructions of one mnemonic. Lesson 17."""

    mnemonic: str
    count: int


class HostCensus(Record):
    """An x86-64 function's instructions, counted in its program.

    ``total`` are all, of which ``padding`` at the end are never reached. Floating-point arithmetic
    is scalar or packed (several numbers in a vector register, the widest of which has
    ``vector_bits``; 0: none). An instruction that reads and writes memory counts as a load and a
    store. ``constant_loads`` are the loads that name a place in the program itself, where the
    compiler keeps its constants. Functions that are called are not counted. Lesson 17.
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


@dataclass(frozen=True)
class _Program(Generic[Function]):
    """Machine code that was read: its functions by their full names."""

    functions: dict[str, Function]

    def function(self, name: str | None) -> Function:
        """Return the function ``name`` (the plain name of a C++ function will do), or the only one
        there is.

        Raises ValueError, naming the functions, when there is none of this name, several, or
        several to choose from.
        """
        known_names = ", ".join(sorted(self.functions)) or "none"
        if name is None:
            if len(self.functions) == 1:
                return next(iter(self.functions.values()))
            raise ValueError(f"say which function: function='...'; the program has {known_names}")
        plain = [full for full in self.functions if full in (name, f"_{name}")]
        matches = plain or [
            full for full in self.functions if full.startswith(f"_Z{len(name)}{name}")
        ]
        if len(matches) != 1:
            count_text = f"{len(matches)} functions named" if matches else "no function"
            raise ValueError(f"the program has {count_text} {name!r}; it has {known_names}")
        return self.functions[matches[0]]


@dataclass(frozen=True)
class GpuProgram(_Program[cubin.GpuFunction]):
    """The program of a GPU, and its bytes, the ``image``."""

    image: bytes


@dataclass(frozen=True)
class HostProgram(_Program[x86.HostFunction]):
    """The program of a processor: objdump's ``listing`` of it, and ``form``, the file format that
    it names.
    """

    listing: str

    @property
    def form(self) -> str:
        match = re.search(r"file format (\S.*)", self.listing)
        return match[1] if match else ""


def disassemble(program: Compiled, *, function: str | None = None) -> str:
    """Return the machine code of a Cubin, a Library, or the path or bytes of an object, as text.

    A MachineCode is read as well. It is that of one function, or of all: a line an instruction,
    with its offset in bytes; in nvdisasm's words for a GPU, in Intel's for an x86-64 processor; for
    another processor the whole is objdump's own listing.

    Raises NativeError for what holds no machine code, MissingToolError without the disassembler,
    ValueError for a function that is not in it (with those that are), TypeError for another
    argument.

    >>> one = MachineCode("one", bytes.fromhex("b8 01 00 00 00 c3"))
    >>> print(disassemble(one))  # doctest: +SKIP
    one:
      0000  mov eax, 0x1
      0005  ret
    """
    if function is not None:
        one_of("function", function, str, "a function's name")
    contents = read_program(program)
    if function is not None:
        return contents.function(function).text()
    if isinstance(contents, GpuProgram) or "x86-64" in contents.form:
        return "\n\n".join(body.text() for body in contents.functions.values())
    return contents.listing.strip()


@overload
def census(program: Cubin, *, function: str | None = None) -> Census: ...
@overload
def census(program: Library | MachineCode, *, function: str | None = None) -> HostCensus: ...
@overload
def census(
    program: bytes | str | os.PathLike[str], *, function: str | None = None
) -> Census | HostCensus: ...
def census(program: Compiled, *, function: str | None = None) -> Census | HostCensus:
    """Return the census of one function of a Cubin, a Library, a MachineCode, or the path or bytes
    of a compiled file.

    A GPU's program gives a :class:`Census`, an x86-64 one a :class:`HostCensus`; ``function`` may
    be left out where there is only one. Raises as :func:`disassemble` does, and NativeError for a
    processor that is not x86-64.

    >>> add = MachineCode("add", bytes.fromhex("c5 fc 58 c1 c3"))
    >>> counts = census(add)  # doctest: +SKIP
    >>> counts.total, counts.packed_adds, counts.vector_bits  # doctest: +SKIP
    (2, 1, 256)

    Lesson 02.
    """
    contents = read_program(program)
    if isinstance(contents, HostProgram):
        return host_census(_require_countable(contents).function(function))
    body = contents.function(function)
    resources = cubin.resources(cubin.read(contents.image), body.name)
    log, architecture = "", cubin.architecture(contents.image)
    if isinstance(program, Cubin):
        log, architecture = program.log, program.architecture
    stores, loads = nvrtc.spills(log).get(body.name, (None, None))
    return Census(
        function=body.name,
        architecture=architecture,
        registers=resources.registers,
        stack_bytes=resources.stack_bytes,
        spill_store_bytes=stores,
        spill_load_bytes=loads,
        **_counts(body),
        kinds=_kinds(body.instructions),
        accesses=_access_counts(body),
    )


def read_program(program: Compiled) -> GpuProgram | HostProgram:
    """Return a compiled program's functions. Raises as :func:`disassemble` does."""
    if isinstance(program, Cubin):
        return _read_gpu(program.image)
    if isinstance(program, MachineCode):
        return _read_code(program)
    if isinstance(program, Library):
        program = program.path
    content = _content(program)
    if content.startswith(b"\x7fELF") and content[18:20] == _CUDA_MACHINE:
        return _read_gpu(content)
    listing = _objdump(program)
    return HostProgram(x86.parse(listing), listing)


def host_function(library: Library, name: str) -> x86.HostFunction:
    """Return a function of an x86-64 library. Raises as :func:`census` does."""
    contents = read_program(library)
    assert isinstance(contents, HostProgram)  # a library is a processor's
    return _require_countable(contents).function(name)


def _require_countable(program: HostProgram) -> HostProgram:
    if "x86-64" not in program.form:
        raise NativeError(
            f"instructions are counted for x86-64, not for {program.form or 'this program'}",
            "read it with disassemble(), or count on an x86-64 machine",
        )
    return program


@functools.lru_cache(maxsize=8)  # several kernels of one program are asked for one after another
def _read_gpu(image: bytes) -> GpuProgram:
    sections = cubin.read(image).sections
    functions = cubin.parse(_listing([find_nvdisasm(), "-c"], image))
    for section, code in sections.items():
        name = section.removeprefix(".text.")
        instruction_count = len(functions[name].instructions) if name in functions else 0
        if name != section and instruction_count * cubin.INSTRUCTION_BYTES != len(code):
            raise NativeError(
                f"{name} has {len(code):,} bytes of code, in which nvdisasm's listing shows "
                f"{instruction_count:,} instructions of {cubin.INSTRUCTION_BYTES} bytes",
                "use the nvdisasm that comes with torch's Triton",
            )
    return GpuProgram(functions, image)


@functools.lru_cache(maxsize=1)  # it is listed and counted, one after the other
def _read_code(program: MachineCode) -> HostProgram:
    listing = _objdump(object_file(program))
    return HostProgram(
        {name: body.without_data() for name, body in x86.parse(listing).items()}, listing
    )


def _objdump(program: bytes | str | os.PathLike[str]) -> str:
    return _listing([find_objdump(), "-d", "--no-show-raw-insn", "-M", "intel"], program)


def _listing(command: list[str], program: bytes | str | os.PathLike[str]) -> str:
    """Return what ``command`` prints of a program, given as its bytes or its path."""
    if not isinstance(program, bytes):
        return _output([*command, os.fspath(program)])
    with storage.temporary_folder("disassemble-") as folder:
        path = Path(folder, "program")
        path.write_bytes(program)
        return _output([*command, str(path)])


def _output(command: list[str]) -> str:
    process = run_tool(command, limit_s=_LIMIT_S)
    if process.returncode != 0:
        reason = reason_of(process).replace(command[-1], Path(command[-1]).name)
        remedy = (
            "give a Cubin, a Library, or a compiled file, for an architecture that this "
            "disassembler knows"
        )
        raise NativeError(f"{Path(command[0]).name} cannot read the program: {reason}", remedy)
    return process.stdout


def _content(program: bytes | str | os.PathLike[str]) -> bytes:
    if isinstance(program, bytes):
        return program
    if not isinstance(program, str | os.PathLike):
        raise TypeError(
            f"a Cubin, a Library, or a file's path or bytes is read, not {type(program).__name__}"
        )
    try:
        return Path(program).read_bytes()
    except OSError as error:
        problem = f"the program {os.fspath(program)!r} cannot be read ({error.strerror})"
        raise NativeError(
            problem, "give a Cubin, a Library, or the path of a compiled file"
        ) from error


def _counts(function: cubin.GpuFunction) -> dict[str, int]:
    operand_kinds = Counter(
        instruction.operand_kind
        for instruction in function.instructions
        if instruction.multiplies_and_adds
    )
    spaces = Counter(
        access[:2] for instruction in function.instructions for access in instruction.accesses
    )
    moved = {
        f"{space}_{access}s": spaces[access, space]
        for access, names in (
            ("load", ("global", "shared", "local", "constant")),
            ("store", ("global", "shared", "local")),
        )
        for space in names
    }
    return {
        "total": len(function.instructions),
        "padding": function.padding,
        "multiply_adds": operand_kinds.total(),
        **{kind: operand_kinds[kind] for kind in cubin.OPERAND_KINDS},
        **moved,
    }


def _access_counts(function: cubin.GpuFunction) -> tuple[AccessCount, ...]:
    accesses = Counter(
        access for instruction in function.instructions for access in instruction.accesses
    )
    rows = [AccessCount(*access, count) for access, count in accesses.items()]
    return tuple(sorted(rows, key=lambda row: (row.access, row.space, row.width_bits or 0)))


def _kinds(instructions: Iterable[cubin.GpuInstruction]) -> tuple[KindCount, ...]:
    pairs = Counter((instruction.kind, instruction.operand_kind) for instruction in instructions)
    return tuple(
        KindCount(kind, count, *(pairs[kind, name] for name in cubin.OPERAND_KINDS))
        for kind, count in _by_frequency(instruction.kind for instruction in instructions)
    )


def _by_frequency(names: Iterable[str]) -> list[tuple[str, int]]:
    """Return names with their numbers, the most frequent first and equal ones in their order."""
    return Counter(sorted(names)).most_common()


def host_census(function: x86.HostFunction) -> HostCensus:
    """Return the census of an x86-64 function that was read. Lesson 17."""
    instructions = function.instructions
    forms = Counter(instruction.form for instruction in instructions)
    packed_bits = [
        instruction.vector_bits
        for instruction in instructions
        if instruction.form and instruction.form[1] == "packed"
    ]
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
        vector_bits=max(packed_bits, default=0),
        loads=sum(instruction.loads for instruction in instructions),
        constant_loads=sum(instruction.loads_constant for instruction in instructions),
        stores=sum(instruction.stores for instruction in instructions),
        branches=sum(instruction.is_branch for instruction in instructions),
        kinds=tuple(
            MnemonicCount(*kind)
            for kind in _by_frequency(instruction.mnemonic for instruction in instructions)
        ),
    )
