"""Compiled programs read back as instructions: nvdisasm for a GPU's, objdump for this processor's."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

from helpers import storage
from helpers.checks import one_of
from helpers.native import elf, sass, x86
from helpers.native.cpp import Library
from helpers.native.nvrtc import Cubin
from helpers.native.tools import NativeError, find_nvdisasm, find_objdump, run_tool

Program = Cubin | Library | bytes | str | os.PathLike[str]

_LIMIT_S = 300
_CUDA_MACHINE = b"\xbe\x00"


def disassemble(program: Program, *, function: str | None = None) -> str:
    """Return the machine code of a Cubin, a Library, or the path or bytes of an object, as text.

    It is that of one function, or of all: a line an instruction, with its offset in bytes; in nvdisasm's words for a
    GPU, in Intel's for an x86-64 processor; for another processor the whole is objdump's own listing.

    Raises NativeError for what holds no machine code, MissingToolError without the disassembler, ValueError for a
    function that is not in it (with those that are), TypeError for another argument. Lesson 11.
    """
    if function is not None:
        one_of("function", function, str, "a function's name")
    if is_gpu(program):
        return _texts(gpu_functions(program), function)
    listing = _objdump(program)
    if not is_x86(listing) and function is None:
        return listing.strip()
    return _texts(x86.parse(listing), function)


def _texts(functions: dict[str, sass.Function] | dict[str, x86.Function], function: str | None) -> str:
    names = list(functions) if function is None else [pick(functions, function)]
    return "\n\n".join(functions[name].text() for name in names)


def is_gpu(program: Program) -> bool:
    """Return True for a GPU's program, False for a processor's. Raises as :func:`disassemble` does."""
    if isinstance(program, Cubin | Library):
        return isinstance(program, Cubin)
    start = _content(program)[:20]
    return start.startswith(b"\x7fELF") and start[18:] == _CUDA_MACHINE


def is_x86(listing: str) -> bool:
    """Return True when objdump's listing is of an x86-64 program."""
    return bool(re.search(r"file format .*x86-64", listing))


def image_of(program: Program) -> bytes:
    """Return the bytes of a GPU's program."""
    return program.image if isinstance(program, Cubin) else _content(program)


def gpu_functions(program: Program) -> dict[str, sass.Function]:
    """Return the functions of a cubin, read. Raises as :func:`disassemble` does."""
    return _read_gpu(image_of(program))


@functools.lru_cache(maxsize=8)  # several kernels of one program are asked for one after another
def _read_gpu(image: bytes) -> dict[str, sass.Function]:
    sizes = {name: len(body) for name, body in elf.read(image).sections.items()}
    tool = find_nvdisasm()
    with storage.temporary_folder("disassemble-") as folder:
        path = Path(folder, "program.cubin")
        path.write_bytes(image)
        functions = sass.parse(_output([tool, "-c", str(path)]))
    for section, size in sizes.items():
        name = section.removeprefix(".text.")
        listed = len(functions[name].instructions) if name in functions else 0
        if section.startswith(".text.") and listed * sass.INSTRUCTION_BYTES != size:
            problem = f"{name} has {size:,} bytes of code, in which nvdisasm's listing shows {listed:,} instructions"
            raise NativeError(
                f"{problem} of {sass.INSTRUCTION_BYTES} bytes", "use the nvdisasm that comes with torch's Triton"
            )
    return functions


def cpu_functions(program: Program) -> dict[str, x86.Function]:
    """Return the functions of an x86-64 library or object, read. Raises as :func:`disassemble` does."""
    listing = _objdump(program)
    if not is_x86(listing):
        form = re.search(r"file format (\S.*)", listing)
        raise NativeError(f"instructions are counted for x86-64, not for {form[1] if form else 'this program'}",
                          "read it with disassemble(), or count on an x86-64 machine")  # fmt: skip
    return x86.parse(listing)


def pick(functions: dict[str, sass.Function] | dict[str, x86.Function], function: str | None) -> str:
    """Return the full name of ``function`` (the plain name of a C++ function will do), or of the only one there is.

    Raises ValueError, naming the functions, when there is none of this name, several, or several to choose from.
    """
    listed = ", ".join(sorted(functions)) or "none"
    if function is None:
        if len(functions) == 1:
            return next(iter(functions))
        raise ValueError(f"say which function: function='...'; the program has {listed}")
    plain = [name for name in functions if name in (function, f"_{function}")]
    mangled = [name for name in functions if name.startswith(f"_Z{len(function)}{function}")]
    found = plain or mangled
    if len(found) != 1:
        many = f"{len(found)} functions named" if found else "no function"
        raise ValueError(f"the program has {many} {function!r}; it has {listed}")
    return found[0]


def _objdump(program: Program) -> str:
    tool = find_objdump()
    if isinstance(program, bytes):
        with storage.temporary_folder("disassemble-") as folder:
            path = Path(folder, "program.o")
            path.write_bytes(program)
            return _objdump(path)
    path = program.path if isinstance(program, Library) else Path(os.fspath(program))
    return _output([tool, "-d", "--no-show-raw-insn", "-M", "intel", str(path)])


def _output(command: list[str]) -> str:
    done = run_tool(command, limit_s=_LIMIT_S)
    if done.returncode != 0:
        reason = next(iter(done.stderr.strip().splitlines()), f"exit status {done.returncode}")
        reason = reason.replace(command[-1], Path(command[-1]).name)
        remedy = "give a Cubin, a Library, or a compiled file, for an architecture that this disassembler knows"
        raise NativeError(f"{Path(command[0]).name} cannot read the program: {reason}", remedy)
    return done.stdout


def _content(program: Program) -> bytes:
    if isinstance(program, bytes):
        return program
    if not isinstance(program, str | os.PathLike):
        raise TypeError(f"a Cubin, a Library, or a file's path or bytes is read, not {type(program).__name__}")
    try:
        return Path(program).read_bytes()
    except OSError as error:
        problem = f"the program {os.fspath(program)!r} cannot be read ({error.strerror})"
        raise NativeError(problem, "give a Cubin, a Library, or the path of a compiled file") from error
