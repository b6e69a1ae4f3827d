"""What a cubin, a 64-bit ELF file, says about its kernels: names, registers, stack, parameters.

The sections and their attributes are those of NVIDIA's ``.nv.info``; ``cuobjdump --dump-resource-usage`` reads the
same ones. Lesson 11.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from helpers.native.tools import NativeError

_CUDA_MACHINE = 190
_SHIFTED_FLAGS = 8  # the ELF version since CUDA 13
_FUNCTION, _ENTRY = 2, 0x10
_REGISTERS, _FRAME, _PARAMETER_BYTES = 0x2F, 0x11, 0x19
_REMEDY = "give a Cubin, or the path or bytes of a cubin that NVRTC or nvcc made (not PTX, not a fatbin)"


@dataclass(frozen=True)
class Elf:
    """Sections (name -> content), and symbols as (name, type, other, section's name, size)."""

    sections: dict[str, bytes]
    symbols: tuple[tuple[str, int, int, str, int], ...]


@dataclass(frozen=True)
class Resources:
    """Registers a thread, bytes of stack a thread, bytes of parameters (None: not said)."""

    registers: int | None
    stack_bytes: int | None
    parameter_bytes: int | None


def read(image: bytes) -> Elf:
    """Return the sections and symbols of a cubin. Raises NativeError for bytes that are none, or a part of one."""
    if image[:6] != b"\x7fELF\x02\x01" or len(image) < 64:
        raise NativeError("these bytes are no cubin", _REMEDY)
    if struct.unpack_from("<H", image, 18)[0] != _CUDA_MACHINE:
        raise NativeError("this ELF file is not for an NVIDIA GPU", _REMEDY)
    try:
        return _read(image)
    except (struct.error, IndexError, ValueError) as error:
        raise NativeError("the cubin is damaged or cut off", "compile it again") from error


def _read(image: bytes) -> Elf:
    table, size, count, names = (*struct.unpack_from("<Q", image, 40), *struct.unpack_from("<HHH", image, 58))
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, table + index * size) for index in range(count)]
    bodies = [b"" if header[1] == 8 else image[header[4] : header[4] + header[5]] for header in headers]
    labels = [_string(bodies[names], header[0]) for header in headers]
    symbols = []
    for header, body in zip(headers, bodies, strict=True):
        if header[1] == 2:
            for name, info, other, section, _, length in struct.iter_unpack("<IBBHQQ", body):
                place = labels[section] if section < len(labels) else ""
                symbols.append((_string(bodies[header[6]], name), info & 0xF, other, place, length))
    return Elf(dict(zip(labels, bodies, strict=True)), tuple(symbols))


def _string(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode("utf-8", "replace")


def architecture(image: bytes) -> str:
    """Return the architecture that a cubin is for, such as ``"sm_90"``, from its header's flags."""
    flags, version = struct.unpack_from("<I", image, 48)[0], image[8]
    return f"sm_{flags >> 8 & 0xFF if version >= _SHIFTED_FLAGS else flags & 0xFF}"


def kernels(elf: Elf) -> tuple[str, ...]:
    """Return the names of the kernels (global functions), sorted."""
    return tuple(sorted(name for name, kind, other, _, _ in elf.symbols if kind == _FUNCTION and other & _ENTRY))


def resources(elf: Elf, function: str) -> Resources:
    """Return what the cubin says of the kernel ``function``."""
    index = next(
        (index for index, symbol in enumerate(elf.symbols) if symbol[0] == function and symbol[1] == _FUNCTION), -1
    )
    common = dict(_attributes(elf.sections.get(".nv.info", b""), index))
    own = dict(_halfwords(elf.sections.get(f".nv.info.{function}", b"")))
    return Resources(common.get(_REGISTERS), common.get(_FRAME), own.get(_PARAMETER_BYTES))


def _attributes(info: bytes, symbol: int) -> list[tuple[int, int]]:
    """Return (attribute, value) of the sized attributes that are a symbol's index and a number."""
    return [(kind, struct.unpack("<II", body)[1]) for form, kind, body in _items(info)
            if form == 4 and len(body) == 8 and struct.unpack("<II", body)[0] == symbol]  # fmt: skip


def _halfwords(info: bytes) -> list[tuple[int, int]]:
    return [(kind, struct.unpack("<H", body)[0]) for form, kind, body in _items(info) if form == 3]


def _items(info: bytes) -> list[tuple[int, int, bytes]]:
    """Return (form, attribute, content): form 4 has a size and content, the others carry two bytes."""
    items, at = [], 0
    while at + 4 <= len(info):
        form, kind, value = struct.unpack_from("<BBH", info, at)
        length = value if form == 4 else 0
        body = info[at + 4 : at + 4 + length] if form == 4 else info[at + 2 : at + 4]
        items.append((form, kind, body))
        at += 4 + length
    return items
