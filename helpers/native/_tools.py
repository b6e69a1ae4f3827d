"""The tools of compiling: sources in files, the compilers, the errors without them, and a cache of
programs.

A compiled program is kept under its content's hash: found whole or built again, also by two
processes at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.resources
import importlib.util
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from helpers import console, storage

_COMPILER_REMEDY = {
    "darwin": "install Apple's compiler: `xcode-select --install`",
    "win32": "install a compiler into the environment: `conda install -c conda-forge cxx-compiler`",
}.get(
    sys.platform,
    "install g++: `sudo apt install g++` (Debian, Ubuntu) or `sudo dnf install gcc-c++` (Fedora)",
)
_OBJDUMP_REMEDY = {
    "darwin": "install Apple's tools: `xcode-select --install`",
    "win32": "install it into the environment: `conda install -c conda-forge binutils`",
}.get(
    sys.platform,
    "install it: `sudo apt install binutils` (Debian, Ubuntu) or `sudo dnf install binutils`",
)
_NVDISASM_REMEDY = "install a CUDA build of torch (no GPU needed), whose Triton brings nvdisasm"
_INCLUDE = re.compile(r'^#include "(?P<name>.+)"\n', re.M)
_ONCE = re.compile(r"^#pragma once\n", re.M)


class NativeError(RuntimeError):
    """The reason why a program is not compiled, loaded or read: the ``problem``, and the
    ``remedy``.

    Lesson 17.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem, self.remedy = problem, remedy

    def __str__(self) -> str:
        border = "\n" if "\n" in self.problem else ". "
        return f"{self.problem}{border}To mend it: {self.remedy}."


class MissingToolError(NativeError):
    """A compiler, a disassembler or a library that is not installed here, or does not start.

    Lesson 17.
    """


class CompilationError(NativeError):
    """A program that a compiler refuses: its first message, with the source's line; ``log`` has
    all.

    Lesson 17.
    """

    def __init__(self, problem: str, remedy: str, log: str) -> None:
        super().__init__(problem, remedy)
        self.args = (problem, remedy, log)  # what pickle builds it from again
        self.log = log


def read_source(package: str, name: str, *, generated: Mapping[str, str] | None = None) -> str:
    """Return the program of the file ``name`` of ``package`` as one text, which needs no other file
    of the course.

    In the place of an ``#include "name"`` stands the file of that name in the same folder, each the
    first time that it is named, or the text that ``generated`` has for it. Raises FileNotFoundError
    for a file that is not there.

    >>> read_source("helpers.hardware.limits", "flush.cpp").splitlines()[0]
    '#include <cstdint>'
    >>> '#include "team.h"' in read_source("helpers.hardware.limits", "triad.cpp")
    False
    """
    texts = dict(generated or {})
    folder, _, main = name.rpartition("/")

    def read(file: str) -> str:
        text = importlib.resources.files(package).joinpath(folder, file).read_text(encoding="utf-8")
        return _INCLUDE.sub(include, _ONCE.sub("", text))

    def include(match: re.Match[str]) -> str:
        text = texts.get(match["name"])
        texts[match["name"]] = ""
        return read(match["name"]) if text is None else text

    return read(main)


def compilation_error(
    compiler: str, source: str, log: str, *, error: re.Match[str] | None, otherwise: str
) -> CompilationError:
    """Return the error of a compiler that refuses the line of ``source`` that ``error`` names (the
    first is 1), with that line's text; where it names none, the error whose problem is
    ``otherwise``.
    """
    lines = source.splitlines()
    number = int(error["line"]) if error else 0
    if error is None or not 1 <= number <= len(lines):
        return CompilationError(otherwise, "read the compiler's whole output in .log", log)
    return CompilationError(
        f"{compiler} refuses line {number}: {error['message']}\n"
        f"    {number} | {lines[number - 1].rstrip()}",
        f"correct line {number} of the source (.log has every message)",
        log,
    )


def package_folders(package: str) -> list[Path]:
    """Return the folders of a top-level package without importing it; none where it is not
    installed.
    """
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return [Path(location) for location in spec.submodule_search_locations or ()] if spec else []


def find_compiler() -> list[str]:
    """Return the command of the C++ compiler: what CXX names, or the first of g++, clang++ and c++
    on the PATH.

    CXX may hold words, as in ``ccache g++``. Raises MissingToolError with what to install.

    >>> find_compiler()  # doctest: +SKIP
    ['/usr/bin/g++']

    Lesson 17.
    """
    try:
        words = shlex.split(os.environ.get("CXX", ""), posix=os.name == "posix")
    except ValueError as error:  # an open quote, or a lone backslash
        raise MissingToolError(
            f"CXX is {os.environ['CXX']!r}, which is no command: {str(error).lower()}",
            "mend CXX, or unset it",
        ) from error
    names = words[:1] or ["g++", "clang++", "c++"]
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        problem, remedy = f"the PATH has no {' or '.join(names)}", _COMPILER_REMEDY
        if words:
            problem = f"CXX is {os.environ['CXX']!r}, and {problem}"
            remedy = f"set CXX to a compiler that is here, or unset it; or {remedy}"
        raise MissingToolError(f"there is no C++ compiler: {problem}", remedy)
    return [os.path.abspath(path), *words[1:]]


def find_objdump() -> str:
    """Return objdump's path: GNU's, LLVM's, or the one of a conda environment.

    Raises MissingToolError.

    >>> find_objdump()  # doctest: +SKIP
    '/usr/bin/objdump'
    """
    path = _first_tool(("objdump", "llvm-objdump", "x86_64-conda-linux-gnu-objdump"), ())
    if path is None:
        raise MissingToolError("objdump is not on the PATH", _OBJDUMP_REMEDY)
    return path


def find_nvdisasm() -> str:
    """Return nvdisasm's path: Triton's, that of NVIDIA's wheels, a conda environment's, or one on
    the PATH.

    Raises MissingToolError.

    >>> Path(find_nvdisasm()).name  # doctest: +SKIP
    'nvdisasm'
    """
    folders = [folder / "backends/nvidia/bin" for folder in package_folders("triton")]
    for package_folder in package_folders("nvidia"):
        folders += sorted(package_folder.glob("*/bin"))
    folders += [Path(sys.prefix, "bin"), Path(sys.prefix, "Library", "bin")]
    path = _first_tool(["nvdisasm"], folders)
    if path is None:
        raise MissingToolError(
            "nvdisasm is neither in Triton's wheel nor on the PATH", _NVDISASM_REMEDY
        )
    return path


def _first_tool(names: Iterable[str], folders: Iterable[Path]) -> str | None:
    search_path = os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")])
    paths = (shutil.which(name, path=search_path) for name in names)
    return next(filter(None, paths), None)


def run_tool(
    command: Sequence[str], *, folder: Path | None = None, limit_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a compiler or disassembler, with its messages in English, and return its output and its
    exit status.

    Raises MissingToolError when it does not start, and NativeError when it takes longer than
    ``limit_s``.
    """
    name = Path(command[0]).name
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        remedy = "give it a smaller program, or wait until the machine is less busy"
        raise NativeError(f"{name} did not end within {limit_s:g} s", remedy) from error
    except OSError as error:
        remedy = f"install {name} again: it is found, but cannot be started"
        raise MissingToolError(f"{name} does not run ({error.strerror})", remedy) from error


def reason_of(process: subprocess.CompletedProcess[str]) -> str:
    """Return why a tool failed: the first line of what it says, or its exit status."""
    return process.stderr.strip().partition("\n")[0] or f"exit status {process.returncode}"


_DIGITS = 16  # of a SHA-256 in a file's name
_WAIT_S = 300
_BUILDING = ".building-"


def digest(*parts: str | bytes) -> str:
    """Return a hash of the parts, in which their borders count."""
    hasher = hashlib.sha256()
    for part in parts:
        content = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        hasher.update(len(content).to_bytes(8, "big") + content)
    return hasher.hexdigest()[:_DIGITS]


def fetch(
    key: str, suffix: str, build: Callable[[Path], None], *, folder: Path | None = None
) -> tuple[Path, bool]:
    """Return the file that ``build`` makes for ``key``, and whether it was there before.

    Its name ends in the hash of its content: a damaged file no longer fits its name and is built
    again, and a file of other content never takes the name of one that a process has loaded.
    ``build`` writes to the path that it is given; the file takes its name in one step, so that
    without the lock as well nobody sees half of one.

    Raises what ``build`` raises (then nothing is kept), and OSError when the folder cannot be
    written to.
    """
    folder = Path(storage.cache_folder() / "native" if folder is None else folder).absolute()
    try:
        if path := _whole_file(folder, key, suffix):
            return path, True
        folder.mkdir(parents=True, exist_ok=True)
        # where nothing can be made, the lock would be waited for in vain
        tempfile.TemporaryFile(dir=folder).close()
        with _hold_lock(folder / f".{key}.lock"):
            path = _whole_file(folder, key, suffix)
            return (path, True) if path is not None else (_build(folder, key, suffix, build), False)
    except OSError as error:
        remedy = (
            "free some space, or set HELPERS_CACHE (and TMPDIR) to a folder that you may write to, "
            "with free space"
        )
        problem = f"a compiled program could not be kept ({error.strerror or error}); {remedy}"
        raise OSError(error.errno, problem, str(folder)) from error


def _build(folder: Path, key: str, suffix: str, build: Callable[[Path], None]) -> Path:
    storage.remove_leftovers(folder, _BUILDING)
    temporary = folder / f"{storage.own_prefix(_BUILDING)}{secrets.token_hex(8)}{suffix}"
    try:
        build(temporary)
        path = folder / f"{key}-{digest(temporary.read_bytes())}{suffix}"
        return temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _whole_file(folder: Path, key: str, suffix: str) -> Path | None:
    for path in sorted(folder.glob(f"{key}-*{suffix}")):
        with contextlib.suppress(FileNotFoundError):  # another process may just have removed it
            if path.name == f"{key}-{digest(path.read_bytes())}{suffix}":
                return path
            console.notice(f"The compiled program {path.name} is damaged: it is compiled again.")
            path.unlink()
    return None


@contextlib.contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock ``path``, which spares a second process the same work; the build is safe
    without it.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    # a stuck process, a file system without locks
    with contextlib.suppress(Timeout, NotImplementedError):
        lock.acquire(timeout=_WAIT_S)
    try:
        yield
    finally:
        if lock.is_locked:
            # Windows keeps an open file; on others it must go while it is held
            with contextlib.suppress(OSError):
                path.unlink()
        lock.release()
