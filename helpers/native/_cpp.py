"""C++ compiled here and now into a library that Python calls, kept under the hash of all that it
depends on.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers import storage
from helpers.checks import members, one_of
from helpers.native import _tools as tools
from helpers.native._signatures import Signature, parse_signature, to_c
from helpers.native._tools import (
    CompilationError,
    MissingToolError,
    NativeError,
    compilation_error,
    find_compiler,
    reason_of,
    run_tool,
)

CPP_FLAGS = ("-O3", "-march=native", "-std=c++17")

_LIMIT_S = 600
_SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
_ALWAYS = ("-shared", *(() if sys.platform == "win32" else ("-fPIC",)))
_FILE = "source.cpp"
_ERROR = re.compile(
    r"^(?P<place>[^:\n]*):(?:(?P<line>\d+):(?:\d+:)?)? *(?:fatal )?error: (?P<message>.*)$", re.M
)
_CPU_FACT = re.compile(
    r"^(?:vendor_id|cpu family|model|model name|flags|Features|CPU implementer|CPU part)\s*:.*$",
    re.M,
)
_LINK_ERROR = re.compile(
    r"undefined reference to .*|(?:ld|collect2|lld): .*|Undefined symbols for .*\n.*"
)


@dataclass(frozen=True)
class CppFunction:
    """A function of a library: called with checked arguments, or without checks as ``raw``, ctypes'
    own.
    """

    signature: Signature
    raw: Any = field(repr=False)

    @property
    def __name__(self) -> str:
        return self.signature.name

    def __call__(self, *values: Any) -> Any:
        return self.raw(*to_c(self.signature, values, device="cpu"))


@dataclass(frozen=True)
class Library:
    """A compiled C++ program, loaded: ``function`` gives what it declares, ``raw`` is ctypes' own
    library.

    ``was_cached`` tells that nothing was compiled, ``compile_s`` how long the compiler took (0
    then). Lesson 17.
    """

    path: Path
    compiler: str
    flags: tuple[str, ...]
    was_cached: bool = field(compare=False)
    compile_s: float = field(compare=False)
    source: str = field(repr=False)
    raw: ctypes.CDLL = field(repr=False, compare=False)

    def function(self, declaration: str) -> CppFunction:
        """Return the function of a C declaration,
        ``"void add(const float* x, float* y, int64_t n)"``.

        It takes tensors and NumPy arrays as pointers, after checking type, device and layout
        (:func:`helpers.native._signatures.to_c`), and is not checked against the compiled code,
        which knows no types. Its attribute ``raw`` is the bare ``ctypes`` function: addresses as
        ints, nothing checked, for timing.

        Raises ValueError for a declaration that cannot be read, or a name that the library does not
        hold. Lesson 17.
        """
        signature = parse_signature(declaration)
        structures = [
            parameter.type for parameter in signature.parameters if parameter.c_type is None
        ]
        if structures:
            raise ValueError(
                f"{signature.name} takes a {structures[0]} by value; on the CPU let it take a "
                "pointer"
            )
        try:
            # a new object: two declarations of a function do not share their types
            raw = self.raw[signature.name]
        except AttributeError:
            raise ValueError(
                f"the library has no function {signature.name!r}; a C++ function keeps its "
                'plain name when it is not static and stands under extern "C"'
            ) from None
        raw.argtypes = [parameter.c_type for parameter in signature.parameters]
        raw.restype = None if signature.returns is None else signature.returns.c_type
        return CppFunction(signature, raw)


def compile_cpp(
    source: str, *, flags: Sequence[str] = CPP_FLAGS, folder: Path | None = None
) -> Library:
    """Return the library compiled from C++ ``source`` by the compiler of CXX or the PATH (g++,
    clang++, c++), loaded.

    ``flags`` stand in place of :data:`CPP_FLAGS`; what makes a library of it is added. The library
    is kept in the cache (or in ``folder``) under a hash of the source, the flags, the compiler and
    its version, and with ``-march=native`` this processor; a damaged one is compiled again, and two
    processes may ask at once. Its file is not named by the source alone because a process that has
    loaded a path keeps what it loaded there.

    Raises CompilationError with the compiler's first error and the source's line, MissingToolError
    without a compiler, NativeError when the library does not load, OSError where the disk is full
    or the folder cannot be written to, TypeError or ValueError for other arguments.

    >>> source = 'extern "C" double half(double x) { return x / 2; }'
    >>> half = compile_cpp(source).function("double half(double x)")  # doctest: +SKIP
    >>> half(5)  # doctest: +SKIP
    2.5

    Lesson 17.
    """
    if not isinstance(source, str):
        raise TypeError(f"source is the text of a C++ program, not {type(source).__name__}")
    if not source.strip():
        raise ValueError(
            f"source={source!r} holds no program; give the text of one, with its functions"
        )
    flags = tuple(members("flags", flags, "texts, such as ('-O3', '-march=native')", kind=str))
    if any(flag.startswith("-o") for flag in flags):
        raise ValueError(
            f"flags={flags!r} names the output with -o; leave it out, because the library has a "
            "name"
        )
    if folder is not None:
        one_of("folder", folder, str | os.PathLike, "a path")
    command = find_compiler()
    version = _version(*command)
    machine = (
        _processor() if any(flag.endswith("=native") for flag in flags) else platform.machine()
    )
    key = tools.digest(source, repr(flags), repr(command), version, machine)
    begun = time.perf_counter()
    path, was_cached = tools.fetch(
        key, _SUFFIX, lambda target: _compile(command, flags, source, target), folder=folder
    )
    compile_s = 0.0 if was_cached else time.perf_counter() - begun
    return Library(path, version, flags, was_cached, compile_s, source, _load(path))


def _compile(command: Sequence[str], flags: Sequence[str], source: str, target: Path) -> None:
    # In a folder of its own and by a relative name: no path of this machine gets into the library
    # or a message.
    with storage.temporary_folder("compile-") as build_folder:
        Path(build_folder, _FILE).write_text(source, encoding="utf-8")
        # The libraries among the flags (-lm) must stand behind the source that needs them.
        process = run_tool(
            [*command, *_ALWAYS, _FILE, *flags, "-o", str(target)],
            folder=build_folder,
            limit_s=_LIMIT_S,
        )
    if process.returncode != 0 and (full := os.strerror(errno.ENOSPC)) in process.stderr:
        raise OSError(errno.ENOSPC, full)
    if process.returncode != 0 or not target.exists():
        raise _refusal(
            Path(command[0]).name, source, process.stderr + process.stdout, process.returncode
        )


def _refusal(compiler: str, source: str, log: str, status: int) -> CompilationError:
    """Return the error for the compiler's output: its first error, and the source's line that it is
    about.
    """
    errors = list(_ERROR.finditer(log))
    own_errors = (error for error in errors if error["place"].endswith(_FILE) and error["line"])
    if linker := _LINK_ERROR.search(log):
        reason = linker.group()
    else:
        reason = errors[0]["message"] if errors else log.strip().partition("\n")[0]
    otherwise = f"{compiler} fails: {reason or f'exit status {status}'}"
    return compilation_error(
        compiler, source, log, error=next(own_errors, None), otherwise=otherwise
    )


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        remedy = (
            "set HELPERS_CACHE to a folder from which programs may run, give the libraries that it "
            "needs among the flags (-lm), and compile for this Python's processor"
        )
        raise NativeError(f"what was compiled does not load: {error}", remedy) from error


def _version(*command: str) -> str:
    """Return the first line that the compiler prints about itself; asked once a process for one
    executable.
    """
    status = os.stat(command[0])
    return _query_version(command, status.st_size, status.st_mtime_ns)


@functools.cache
def _query_version(command: tuple[str, ...], size: int, changed_ns: int) -> str:  # noqa: ARG001
    process = run_tool([*command, "--version"], limit_s=60)
    if process.returncode != 0:
        raise MissingToolError(
            f"{Path(command[0]).name} fails: {reason_of(process)}",
            "install the compiler again, or set CXX",
        )
    return process.stdout.strip().partition("\n")[0] or "unknown compiler"


@functools.cache
def _processor() -> str:
    """Return the facts on which -march=native depends: the processor's name and every instruction
    set that it reports.
    """
    facts = [platform.machine(), platform.processor()]
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        facts += _CPU_FACT.findall(cpuinfo.read_text(errors="replace").partition("\n\n")[0])
    return "\n".join(facts)
