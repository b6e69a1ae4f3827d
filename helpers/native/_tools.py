"""What compiling takes: sources in files, the programs that compile and disassemble, and what to say without them."""

from __future__ import annotations

import importlib.resources
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_PLATFORM = "darwin" if sys.platform == "darwin" else "win32" if sys.platform == "win32" else "linux"
_COMPILER_REMEDY = {
    "darwin": "install Apple's compiler: `xcode-select --install`",
    "win32": "install a compiler into the environment: `conda install -c conda-forge cxx-compiler`",
    "linux": "install g++: `sudo apt install g++` (Debian, Ubuntu) or `sudo dnf install gcc-c++` (Fedora)",
}[_PLATFORM]
_OBJDUMP_REMEDY = {
    "darwin": "install Apple's tools: `xcode-select --install`",
    "win32": "install it into the environment: `conda install -c conda-forge binutils`",
    "linux": "install it: `sudo apt install binutils` (Debian, Ubuntu) or `sudo dnf install binutils`",
}[_PLATFORM]
_NVDISASM_REMEDY = "install a CUDA build of torch (no GPU needed), whose Triton brings nvdisasm"
_INCLUDE = re.compile(r'#include "(?P<name>.+)"\n')
_ONCE = "#pragma once\n"


class NativeError(RuntimeError):
    """What kept a program from being compiled, loaded or read: the ``problem``, and the ``remedy``. Lesson 11."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem, self.remedy = problem, remedy

    def __str__(self) -> str:
        border = "\n" if "\n" in self.problem else ". "
        return f"{self.problem}{border}To mend it: {self.remedy}."


class MissingToolError(NativeError):
    """A compiler, a disassembler or a library that is not installed here, or does not start. Lesson 11."""


class CompilationError(NativeError):
    """A program that a compiler refuses: its first message, with the source's line; ``log`` has all. Lesson 11."""

    def __init__(self, problem: str, remedy: str, log: str) -> None:
        super().__init__(problem, remedy)
        self.args = (problem, remedy, log)  # what pickle builds it from again
        self.log = log


def read_source(package: str, name: str, *, generated: Mapping[str, str] | None = None) -> str:
    """Return the program of the file ``name`` of ``package`` as one text, which needs no other file of the course.

    In the place of an ``#include "name"`` stands the file of that name in the same folder, each the first time that it
    is named, or the text that ``generated`` has for it. Raises FileNotFoundError for a file that is not there.
    """
    texts = dict(generated or {})
    folder, _, _ = name.rpartition("/")

    def read(path: str) -> str:
        text = importlib.resources.files(package).joinpath(folder, path).read_text(encoding="utf-8")
        return "".join(included(line) for line in text.splitlines(keepends=True) if line != _ONCE)

    def included(line: str) -> str:
        match = _INCLUDE.fullmatch(line)
        if match is None:
            return line
        text = texts.get(match["name"])
        texts[match["name"]] = ""
        return read(match["name"]) if text is None else text

    return read(name.rpartition("/")[2])


def refused_line(compiler: str, source: str, number: int, message: str, log: str) -> CompilationError:
    """Return the error of a compiler that refuses a line of ``source`` (the first is 1), with that line's text."""
    line = source.splitlines()[number - 1].rstrip()
    problem = f"{compiler} refuses line {number}: {message}\n    {number} | {line}"
    return CompilationError(problem, f"correct line {number} of the source (.log has every message)", log)


def package_folders(package: str) -> list[Path]:
    """Return the folders of a top-level package without importing it; none where it is not installed."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return [Path(place) for place in spec.submodule_search_locations or ()] if spec else []


def find_compiler() -> list[str]:
    """Return the command of the C++ compiler: what CXX names, or the first of g++, clang++ and c++ on the PATH.

    CXX may hold words, as in ``ccache g++``. Raises MissingToolError with what to install. Lesson 11.
    """
    try:
        words = shlex.split(os.environ.get("CXX", ""), posix=os.name == "posix")
    except ValueError as error:  # an open quote, or a lone backslash
        raise MissingToolError(f"CXX is {os.environ['CXX']!r}, which is no command: {str(error).lower()}",
                               "mend CXX, or unset it") from error  # fmt: skip
    names = (words[0],) if words else ("g++", "clang++", "c++")
    path = next((path for path in map(shutil.which, names) if path), None)
    if path is None:
        named = f"CXX is {os.environ['CXX']!r}, and " if words else ""
        remedy = (
            f"set CXX to a compiler that is here, or unset it; or {_COMPILER_REMEDY}" if words else _COMPILER_REMEDY
        )
        raise MissingToolError(f"there is no C++ compiler: {named}the PATH has no {' or '.join(names)}", remedy)
    return [os.path.abspath(path), *words[1:]]


def find_objdump() -> str:
    """Return objdump's path: GNU's, LLVM's, or the one of a conda environment. Raises MissingToolError."""
    path = _first_tool(("objdump", "llvm-objdump", "x86_64-conda-linux-gnu-objdump"), ())
    if path is None:
        raise MissingToolError("objdump is not on the PATH", _OBJDUMP_REMEDY)
    return path


def find_nvdisasm() -> str:
    """Return nvdisasm's path: Triton's, that of NVIDIA's wheels, a conda environment's, or one on the PATH.

    Raises MissingToolError. Lesson 11.
    """
    folders = [place / "backends" / "nvidia" / "bin" for place in package_folders("triton")]
    folders += [folder for place in package_folders("nvidia") for folder in sorted(place.glob("*/bin"))]
    path = _first_tool(("nvdisasm",), [*folders, Path(sys.prefix, "bin"), Path(sys.prefix, "Library", "bin")])
    if path is None:
        raise MissingToolError("nvdisasm is neither in Triton's wheel nor on the PATH", _NVDISASM_REMEDY)
    return path


def _first_tool(names: Iterable[str], folders: Iterable[Path]) -> str | None:
    places = os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")])
    return next((path for path in (shutil.which(name, path=places) for name in names) if path), None)


def run_tool(command: Sequence[str], *, folder: Path | None = None, limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run a compiler or disassembler, with its messages in English, and return what it printed and its exit status.

    Raises MissingToolError when it does not start, and NativeError when it takes longer than ``limit_s``.
    """
    name = Path(command[0]).name
    try:
        return subprocess.run(
            command, cwd=folder, env={**os.environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, capture_output=True,
            encoding="utf-8", errors="replace", timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        remedy = "give it a smaller program, or wait until the machine is less busy"
        raise NativeError(f"{name} did not end within {limit_s:g} s", remedy) from error
    except OSError as error:
        remedy = f"install {name} again: it is found, but cannot be started"
        raise MissingToolError(f"{name} does not run ({error.strerror})", remedy) from error
