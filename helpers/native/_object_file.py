"""Machine code without a file around it, and the object file that a disassembler reads it from.

Lesson 15.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

_HEADER_BYTES, _SECTION_BYTES, _SYMBOL_BYTES = 64, 64, 24
_X86_64 = 62


@dataclass(frozen=True)
class MachineCode:
    """x86-64 instructions as a generator of code wrote them: one function, which begins at the
    first byte.

    Behind its last instruction may stand the constants that it reads; they are neither listed nor
    counted. Lesson 15.
    """

    name: str
    code: bytes = field(repr=False)


def object_file(program: MachineCode) -> bytes:
    """Return ``program`` as an object file with one function.

    The form is that of the System V ABI, chapter 4 (elf(5)): a header, the section .text, its one
    symbol, the strings, and the table of these sections. GNU's and LLVM's objdump read it, of which
    LLVM's reads no bare code.
    """
    name, size = program.name.encode(), len(program.code)
    strings = b"\0.text\0.symtab\0.strtab\0" + name + b"\0"
    code = program.code + bytes(-size % 8)
    function = struct.pack("<IBBHQQ", len(strings) - len(name) - 1, 0x12, 0, 1, 0, size)
    symbols = bytes(_SYMBOL_BYTES) + function
    parts = (code, symbols, strings)
    starts = [_HEADER_BYTES + sum(map(len, parts[:index])) for index in range(4)]
    sections = [  # name, kind, flags, address, start, size, link, info, alignment, an entry's size
        (0,) * 10,
        (strings.index(b".text"), 1, 6, 0, starts[0], size, 0, 0, 16, 0),
        (strings.index(b".symtab"), 2, 0, 0, starts[1], len(symbols), 3, 1, 1, _SYMBOL_BYTES),
        (strings.index(b".strtab"), 3, 0, 0, starts[2], len(strings), 0, 0, 1, 0),
    ]
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        1,
        _X86_64,
        1,
        0,
        0,
        starts[3],
        0,
        _HEADER_BYTES,
        0,
        0,
        _SECTION_BYTES,
        len(sections),
        3,
    )
    table = [struct.pack("<IIQQQQIIQQ", *section) for section in sections]
    return b"".join((header, *parts, *table))
