"""CUDA C++ compiled to a GPU's machine code by NVRTC, which comes in torch's own wheels: no GPU is
needed.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.checks import choice
from helpers.native import _cubin as cubin, _tools as tools
from helpers.native._tools import (
    CompilationError,
    MissingToolError,
    NativeError,
    compilation_error,
    package_folders,
)

if TYPE_CHECKING:
    from helpers.native._driver import Module

_REMEDY = "install a CUDA build of torch, which brings NVRTC (no GPU is needed for it)"
_ARCHITECTURE = re.compile(r"sm_(\d+)[af]?")
_FILE = "source.cu"
_FIRST_ERROR = re.compile(
    rf"^{re.escape(_FILE)}\((?P<line>\d+)\): (?:catastrophic )?error: (?P<message>.*)$", re.M
)
_SPILLS = re.compile(
    r"Function properties for (?P<name>\S+)\s*\n[^\n]*?(?P<stack>\d+) bytes stack frame, "
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
)


@dataclass(frozen=True)
class Cubin:
    """A compiled CUDA program: the machine code of one architecture, and what the compiler said
    about it.

    ``image`` is the ELF file's bytes, ``log`` NVRTC's and ptxas' messages, ``kernels`` the names of
    its kernels; ``was_cached`` tells that nothing was compiled, ``compile_s`` how long it took (0
    then). Lesson 17.
    """

    architecture: str
    compiler: str
    options: tuple[str, ...]
    was_cached: bool = field(compare=False)
    compile_s: float = field(compare=False)
    image: bytes = field(repr=False)
    log: str = field(repr=False)
    source: str = field(repr=False)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the kernels, as the compiler wrote them (plain only under ``extern
        "C"``).
        """
        return cubin.kernels(cubin.read(self.image))

    def resources(self, kernel: str) -> cubin.Resources:
        """Return the registers per thread of ``kernel``, the shared memory per block, and what else
        it takes.

        They are read from the machine code, so no GPU is needed. Raises ValueError, with the names
        of the kernels, for another name. Lesson 03.
        """
        elf = cubin.read(self.image)
        return cubin.resources(elf, choice("kernel", kernel, cubin.kernels(elf)))

    def load(self, device: Any = None) -> Module:
        """Return the program on a CUDA device (torch's current one), ready to run. Needs a GPU.

        Raises NativeError, saying why, where there is no GPU or it is not of this architecture.
        Lesson 17.
        """
        from helpers.native._driver import load

        return load(self.image, architecture=self.architecture, device=device)


def compile_cuda(
    source: str,
    *,
    architecture: str = "sm_90",
    options: Sequence[str] = (),
    folder: Path | None = None,
) -> Cubin:
    """Return CUDA C++ ``source`` compiled for ``architecture`` by the NVRTC that is installed with
    torch.

    ``options`` are NVRTC's (``"--maxrregcount=32"``, ``"--use_fast_math"``). CUDA's headers are
    found when they are installed (``cuda_fp16.h``). The same program is compiled once and then read
    from the cache (or from ``folder``).

    Raises CompilationError with the first error and the source's line, ValueError for an
    architecture that this NVRTC does not know, MissingToolError without NVRTC, TypeError for other
    arguments.

    >>> source = 'extern "C" __global__ void twice(float* x) { x[0] *= 2; }'
    >>> cubin = compile_cuda(source, architecture="sm_90")  # doctest: +SKIP
    >>> cubin.kernels, cubin.resources("twice").parameter_bytes  # doctest: +SKIP
    (('twice',), 8)

    Lesson 03.
    """
    if not isinstance(source, str):
        raise TypeError(f"source is the text of a CUDA C++ program, not {type(source).__name__}")
    if isinstance(options, str) or not all(isinstance(option, str) for option in options):
        raise TypeError(
            f"options is a tuple of texts such as ('--maxrregcount=32',), not {options!r:.60}"
        )
    if "\0" in source:
        raise ValueError(
            "source holds a NUL character, at which the compiler would stop reading; take it out"
        )
    options = tuple(options)
    path = find_nvrtc()
    library = _library(path)
    version = nvrtc_version()
    architectures = supported_architectures()
    match = _ARCHITECTURE.fullmatch(architecture) if isinstance(architecture, str) else None
    if match is None or f"sm_{match[1]}" not in architectures:
        raise ValueError(
            f"architecture {architecture!r} is not known to NVRTC {version}; it knows "
            f"{', '.join(architectures)}"
        )
    compiler_options = (
        f"--gpu-architecture={architecture}",
        "--ptxas-options=-v",
        *_include_options(path),
        *options,
    )
    key = tools.digest(source, architecture, repr(options), version, path.name)

    def build(target: Path) -> None:
        image, log = _compile(library, source, compiler_options)
        target.write_bytes(log.encode() + b"\0" + image)

    begun = time.perf_counter()
    file, was_cached = tools.fetch(key, ".nvrtc", build, folder=folder)
    log, _, image = file.read_bytes().partition(b"\0")
    compile_s = 0.0 if was_cached else time.perf_counter() - begun
    return Cubin(
        architecture,
        f"NVRTC {version}",
        options,
        was_cached,
        compile_s,
        image,
        log.decode(),
        source,
    )


def nvrtc_version() -> str:
    """Return the version of the NVRTC that compiles here, such as ``"13.0"``.

    Raises MissingToolError.

    >>> nvrtc_version()  # doctest: +SKIP
    '13.0'
    """
    library = _library(find_nvrtc())
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call(library, "nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def supported_architectures() -> tuple[str, ...]:
    """Return the architectures that this NVRTC compiles for, ``"sm_75"`` and up.

    Raises MissingToolError.

    >>> "sm_90" in supported_architectures()  # doctest: +SKIP
    True
    """
    library = _library(find_nvrtc())
    count = ctypes.c_int()
    _call(library, "nvrtcGetNumSupportedArchs", ctypes.byref(count))
    numbers = (ctypes.c_int * count.value)()
    _call(library, "nvrtcGetSupportedArchs", numbers)
    return tuple(f"sm_{number}" for number in numbers)


def spills(log: str) -> dict[str, tuple[int, int]]:
    """Return, of each function in ptxas' messages, the bytes of spill stores and of spill loads."""
    return {
        match["name"]: (int(match["stores"]), int(match["loads"]))
        for match in _SPILLS.finditer(log)
    }


def _compile(library: ctypes.CDLL, source: str, options: Sequence[str]) -> tuple[bytes, str]:
    program = ctypes.c_void_p()
    _call(
        library,
        "nvrtcCreateProgram",
        ctypes.byref(program),
        source.encode(),
        _FILE.encode(),
        0,
        None,
        None,
    )
    try:
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = library.nvrtcCompileProgram(program, len(options), words)
        log = _text(library, program, "ProgramLog").rstrip(b"\0").decode("utf-8", "replace")
        # the same program has the same log
        log = re.sub(r"ptxas info *: Compile time = .*\n", "", log)
        if status != 0:
            raise _refusal(library, status, source, log)
        return _text(library, program, "CUBIN"), log
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(library: ctypes.CDLL, program: ctypes.c_void_p, kind: str) -> bytes:
    size = ctypes.c_size_t()
    _call(library, f"nvrtcGet{kind}Size", program, ctypes.byref(size))
    content = ctypes.create_string_buffer(size.value)
    _call(library, f"nvrtcGet{kind}", program, content)
    return content.raw


def _refusal(library: ctypes.CDLL, status: int, source: str, log: str) -> CompilationError:
    words = re.search(r"error\s*: (.*)", log)
    reason = words[1] if words else library.nvrtcGetErrorString(status).decode()
    return compilation_error(
        "NVRTC", source, log, error=_FIRST_ERROR.search(log), otherwise=f"NVRTC refuses: {reason}"
    )


def _call(library: ctypes.CDLL, name: str, *arguments: Any) -> None:
    status = getattr(library, name)(*arguments)
    if status != 0:
        raise NativeError(f"{name}: {library.nvrtcGetErrorString(status).decode()}", _REMEDY)


@functools.cache
def _library(path: Path) -> ctypes.CDLL:
    try:
        for builtins in sorted(path.parent.glob("*nvrtc-builtins*")):
            # NVRTC asks for it by name alone: it must be loaded before
            if ".alt." not in builtins.name:
                ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(path))
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise MissingToolError(
            f"{path.name} does not load ({str(error).splitlines()[0]})", _REMEDY
        ) from error
    return library


def find_nvrtc() -> Path:
    """Return NVRTC's path: of torch's wheels (CUDA 12 or 13), a conda environment, or CUDA_HOME, in
    this order.

    Among several in one of these places the one of torch's own CUDA version is taken. Raises
    MissingToolError. Lesson 17.
    """
    import torch

    release = (torch.version.cuda or "").split(".")[0]
    for folders in _library_folders():
        libraries = {
            path
            for folder in folders
            for pattern in ("libnvrtc.so*", "nvrtc64_*.dll", "libnvrtc*.dylib")
            for path in folder.glob(pattern)
            if ".alt." not in path.name
        }
        if libraries:
            return min(
                libraries,
                key=lambda path: (not re.search(rf"(so\.|64_){release}", path.name), str(path)),
            )
    raise MissingToolError("there is no NVRTC beside torch", _REMEDY)


def _library_folders() -> list[list[Path]]:
    wheels = [
        folder
        for package_folder in package_folders("nvidia")
        for kind in ("*/lib", "*/bin", "*/bin/x64")
        for folder in sorted(package_folder.glob(kind))
    ]
    wheels += [package_folder / "lib" for package_folder in package_folders("torch")]
    conda = [Path(sys.prefix, part) for part in ("lib", "Library/bin", "Library/bin/x64")]
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    toolkit = [home / part for home in homes for part in ("lib64", "lib", "bin", "bin/x64")]
    return [wheels, conda, toolkit]


def _include_options(nvrtc: Path) -> list[str]:
    """Return the option that names the folder of CUDA's headers, which lies beside NVRTC or in a
    wheel of its own.
    """
    toolkit = nvrtc.parent.parent
    folders = [
        toolkit / "include",
        *(folder / "cuda_runtime" / "include" for folder in package_folders("nvidia")),
        *sorted(toolkit.glob("targets/*/include")),
    ]
    complete = [folder for folder in folders if (folder / "cuda_fp16.h").is_file()]
    return [f"--include-path={folder}" for folder in complete[:1]]
