"""The contents of a cubin, a 64-bit ELF file: kernels with their registers, stack and parameters,
and machine code.

The sections and their attributes are those of NVIDIA's ``.nv.info``;
``cuobjdump --dump-resource-usage`` reads the same ones. The machine code is read as nvdisasm prints
it: an operand's kind is what the course asks about. An *immediate* stands in the instruction
itself, a *constant bank* operand (``c[0x3][0x10]``) is read from constant memory by the
instruction, a *uniform register* (``UR4``) is one for the whole warp, a *register* one a thread.
Lesson 17.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from helpers.native._tools import NativeError

OPERAND_KINDS = ("immediate", "constant_bank", "uniform_register", "register")
MULTIPLY_ADDS = ("FFMA", "FFMA2", "HFMA2", "DFMA")

_CUDA_MACHINE = 190
_SHIFTED_FLAGS = 8  # the ELF version since CUDA 13
_FUNCTION, _ENTRY = 2, 0x10
_REGISTERS, _FRAME, _PARAMETER_BYTES = 0x2F, 0x11, 0x19
# the system's, in each kernel's size since sm_90
_RESERVED, _RESERVED_BYTES = ".nv.shared.reserved.0", 1024
_REMEDY = (
    "give a Cubin, or the path or bytes of a cubin that NVRTC or nvcc made (not PTX, not a fatbin)"
)
_SECTION = re.compile(r"\s*\.section\s+\.text\.([^,\s]+)\s*,")
_SECTION_BEGIN = re.compile(r"^(?=[ \t]*\.section\s)", re.M)
_LABEL = re.compile(r"(\S+):\s*$")
_INSTRUCTION = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(@\S+\s+)?([A-Z][A-Z0-9_.a-z]*)\s*([^;]*);")
# Besides comments: what nvdisasm 12.8 (that of torch 2.11's Triton) prints of the scheduling, as in
# "&req={2} ?trans1".
_COMMENT = re.compile(r"\(\*.*?\*\)|(?<!\S)[&?]\w+(=\S+)?")
_NUMBER = re.compile(r"[-+~]?(0x[0-9a-f]+|(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|INF|[QS]?NAN)", re.I)
_BANK = re.compile(r"[-+~|!]*cx?\[")
_UNIFORM = re.compile(r"[-+~|!]*UR\d+")
_REGISTER = re.compile(r"[-+~|!]*(R\d+|U?RZ)\b")  # URZ is zero, as RZ is: no register is read
_PREDICATE = re.compile(r"!?U?P(T|\d+)")
_LOADS = {
    "LDG": "global",
    "LDS": "shared",
    "LDSM": "shared",
    "LDL": "local",
    "LDC": "constant",
    "ULDC": "constant",
    "LDCU": "constant",
    "LD": "generic",
    "TEX": "texture",
    "TLD": "texture",
    "TLD4": "texture",
    "SULD": "surface",
}
_STORES = {
    "STG": "global",
    "STS": "shared",
    "STSM": "shared",
    "STL": "local",
    "ST": "generic",
    "SUST": "surface",
}
_ATOMICS = {
    "ATOM": "generic",
    "ATOMG": "global",
    "ATOMS": "shared",
    "RED": "global",
    "REDG": "global",
    "REDS": "shared",
}
_MATRIX = ("LDSM", "STSM")
_WIDTH = re.compile(r"[US]?(?:8|16)|F?64|128|256")
INSTRUCTION_BYTES = 16  # on every architecture since sm_70
_WORD_BITS = 32


@dataclass(frozen=True)
class Elf:
    """Sections (name -> content), symbols as (name, type, other, section's name, size), and the
    sections' sizes.

    A section such as a kernel's shared memory has a size and no content in the file.
    """

    sections: dict[str, bytes]
    symbols: tuple[tuple[str, int, int, str, int], ...]
    sizes: dict[str, int]


@dataclass(frozen=True)
class Resources:
    """The resources of a compiled kernel: registers and bytes of stack per thread, bytes of
    parameters (None: not said).

    ``shared_bytes`` is the shared memory of a block that the program declares; what a launch adds
    is not in it. Lessons 03 and 17.
    """

    registers: int | None
    stack_bytes: int | None
    parameter_bytes: int | None
    shared_bytes: int


def read(image: bytes) -> Elf:
    """Return the sections and symbols of a cubin.

    Raises NativeError for bytes that are none, or a part of one.
    """
    if image[:6] != b"\x7fELF\x02\x01" or len(image) < 64:
        raise NativeError("these bytes are no cubin", _REMEDY)
    if struct.unpack_from("<H", image, 18)[0] != _CUDA_MACHINE:
        raise NativeError("this ELF file is not for an NVIDIA GPU", _REMEDY)
    try:
        return _read(image)
    except (struct.error, IndexError, ValueError) as error:
        raise NativeError("the cubin is damaged or cut off", "compile it again") from error


def _read(image: bytes) -> Elf:
    table, size, count, names = (
        *struct.unpack_from("<Q", image, 40),
        *struct.unpack_from("<HHH", image, 58),
    )
    headers = [
        struct.unpack_from("<IIQQQQIIQQ", image, table + index * size) for index in range(count)
    ]
    bodies = [
        b"" if header[1] == 8 else image[header[4] : header[4] + header[5]] for header in headers
    ]
    labels = [_string(bodies[names], header[0]) for header in headers]
    symbols = []
    for header, body in zip(headers, bodies, strict=True):
        if header[1] == 2:
            for name, info, other, section, _, length in struct.iter_unpack("<IBBHQQ", body):
                section_name = labels[section] if section < len(labels) else ""
                symbols.append(
                    (_string(bodies[header[6]], name), info & 0xF, other, section_name, length)
                )
    sizes = {label: header[5] for label, header in zip(labels, headers, strict=True)}
    return Elf(dict(zip(labels, bodies, strict=True)), tuple(symbols), sizes)


def _string(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode("utf-8", "replace")


def architecture(image: bytes) -> str:
    """Return the architecture that a cubin is for, such as ``"sm_90"``, from its header's flags."""
    flags, version = struct.unpack_from("<I", image, 48)[0], image[8]
    return f"sm_{flags >> 8 & 0xFF if version >= _SHIFTED_FLAGS else flags & 0xFF}"


def kernels(elf: Elf) -> tuple[str, ...]:
    """Return the names of the kernels (global functions), sorted."""
    return tuple(
        sorted(
            name for name, kind, other, _, _ in elf.symbols if kind == _FUNCTION and other & _ENTRY
        )
    )


def resources(elf: Elf, function: str) -> Resources:
    """Return the resources of the kernel ``function`` as the cubin notes them."""
    symbols = [symbol[:2] for symbol in elf.symbols]
    index = symbols.index((function, _FUNCTION)) if (function, _FUNCTION) in symbols else -1
    # of all kernels a symbol's index and a number
    numbers = [
        (kind, *struct.unpack("<II", body))
        for form, kind, body in _items(elf.sections.get(".nv.info", b""))
        if form == 4 and len(body) == 8
    ]
    common = {kind: number for kind, symbol, number in numbers if symbol == index}
    parameter_bytes = [
        struct.unpack("<H", body)[0]
        for form, kind, body in _items(elf.sections.get(f".nv.info.{function}", b""))
        if (form, kind) == (3, _PARAMETER_BYTES)
    ]
    reserved_bytes = _RESERVED_BYTES if _RESERVED in elf.sizes else 0
    shared_bytes = max(0, elf.sizes.get(f".nv.shared.{function}", 0) - reserved_bytes)
    return Resources(
        common.get(_REGISTERS),
        common.get(_FRAME),
        parameter_bytes[-1] if parameter_bytes else None,
        shared_bytes,
    )


def _items(info: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (form, attribute, content): form 4 has a size and content, the others carry two
    bytes.
    """
    at = 0
    while at + 4 <= len(info):
        form, kind, size = struct.unpack_from("<BBH", info, at)
        begin, end = (at + 4, at + 4 + size) if form == 4 else (at + 2, at + 4)
        yield form, kind, info[begin:end]
        at = end


@dataclass(frozen=True)
class GpuInstruction:
    """One instruction: where it stands, its predicate (or ""), its opcode with modifiers, its
    operands.
    """

    offset: int
    predicate: str
    opcode: str
    operands: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The opcode without its modifiers: ``FFMA`` of ``FFMA.FTZ``."""
        return self.opcode.partition(".")[0]

    @property
    def operand_kind(self) -> str | None:
        """The first of :data:`OPERAND_KINDS` among its sources, addresses and predicates apart;
        None: none.
        """
        kinds = set(map(_operand_kind, _sources(self)))
        return next((kind for kind in OPERAND_KINDS if kind in kinds), None)

    @property
    def multiplies_and_adds(self) -> bool:
        """True for FFMA, FFMA2, HFMA2, DFMA, but not where zero times zero is a way to move a
        constant.
        """
        zeros = len(self.operands) > 2 and all(
            re.fullmatch(r"-?RZ(\.\w+)*", text) for text in self.operands[1:3]
        )
        return self.kind in MULTIPLY_ADDS and not zeros

    @property
    def accesses(self) -> tuple[tuple[str, str, int | None], ...]:
        """Its access to memory: (``load``, ``store`` or ``atomic``; the space; bits a thread, None:
        not said).
        """
        if self.kind == "LDGSTS":  # a copy from global to shared memory, past the registers
            return ("load", "global", self._width()), ("store", "shared", self._width())
        for access, spaces in (("load", _LOADS), ("store", _STORES), ("atomic", _ATOMICS)):
            if self.kind in spaces:
                space = spaces[self.kind]
                return (
                    (access, space, None if space in ("texture", "surface") else self._width()),
                )
        return ()

    def _width(self) -> int:
        modifiers = self.opcode.split(".")[1:]
        if self.kind in _MATRIX:  # a register for each of 1, 2 or 4 matrices
            return _WORD_BITS * (
                int(modifiers[-1]) if modifiers and modifiers[-1] in ("2", "4") else 1
            )
        widths = (int(text.lstrip("USF")) for text in modifiers if _WIDTH.fullmatch(text))
        return next(widths, _WORD_BITS)


@dataclass(frozen=True)
class GpuFunction:
    """A kernel's section: its instructions, called functions that stand in it included, and its
    labels' places.
    """

    name: str
    instructions: tuple[GpuInstruction, ...]
    labels: tuple[tuple[str, int], ...]

    @property
    def padding(self) -> int:
        """How many instructions at the end are never reached: a jump to itself, and NOPs up to a
        full line.
        """
        body = list(self.instructions)
        while body and body[-1].kind == "NOP":
            body.pop()
        if body and body[-1].kind == "BRA":
            offset = body[-1].offset
            own_labels = {f"`({label})" for label, place in self.labels if place == offset}
            if own_labels.intersection(body[-1].operands[:1]):
                body.pop()
        return len(self.instructions) - len(body)

    def text(self) -> str:
        """Return the listing: labels, and a line an instruction with its byte offset."""
        labels_at: dict[int, list[str]] = {}
        for label, offset in self.labels:
            labels_at.setdefault(offset, []).append(f"{label}:")
        lines = [f"{self.name}:"]
        for instruction in self.instructions:
            lines += labels_at.get(instruction.offset, [])
            operands = ", ".join(instruction.operands)
            words = " ".join(
                filter(None, (f"{instruction.predicate:>5}", instruction.opcode, operands))
            )
            lines.append(f"  {instruction.offset:04x} {words}")
        return "\n".join(lines)


def parse(listing: str) -> dict[str, GpuFunction]:
    """Return every function in the output of ``nvdisasm -c``, by its name."""
    functions = {}
    for section in _SECTION_BEGIN.split(listing):
        if match := _SECTION.match(section):
            functions[match[1]] = _function(match[1], section)
    return functions


def _function(name: str, section: str) -> GpuFunction:
    instructions: list[GpuInstruction] = []
    labels: list[tuple[str, int]] = []
    waiting: list[str] = []
    for line in section.splitlines():
        if match := _INSTRUCTION.match(line):
            offset = int(match[1], 16)
            labels += [(text, offset) for text in waiting]
            parts = _COMMENT.sub("", match[4]).split(",")
            operands = tuple(part.strip() for part in parts if part.strip())
            predicate = (match[2] or "").strip()
            instructions.append(GpuInstruction(offset, predicate, match[3], operands))
            waiting = []
        elif (label := _LABEL.match(line)) and label[1] not in (name, f".text.{name}"):
            waiting.append(label[1])
    return GpuFunction(name, tuple(instructions), tuple(labels))


def _sources(instruction: GpuInstruction) -> tuple[str, ...]:
    """Return the operands that are read: without the first where that is a register or predicate
    written to.
    """
    operands = instruction.operands
    first = operands[0] if operands else ""
    writes_first = bool(
        _REGISTER.match(first) or _UNIFORM.match(first) or _PREDICATE.fullmatch(first)
    )
    return operands[1:] if writes_first else operands


def _operand_kind(operand: str) -> str | None:
    """Return the kind of one operand; None for an address, a predicate, a label or a special
    register.
    """
    if _BANK.match(operand):
        return "constant_bank"
    if "[" in operand or _PREDICATE.fullmatch(operand):
        return None
    if _NUMBER.fullmatch(operand):
        return "immediate"
    if _UNIFORM.match(operand):
        return "uniform_register"
    return "register" if _REGISTER.match(operand) else None
