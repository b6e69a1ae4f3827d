"""Files that are whole or not there: atomic writes, the folders of the cache and the course, cached
results.

A measurement is worth keeping only for the machine and the versions that it was made with, so a
cached result carries a key and a checksum; one that does not fit is named in a line and measured
again.

Lesson 00.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from helpers import console, results

_COURSE = "deep-learning-hardware-course"
_OF_A_COURSE = Path("recorded", "00.json")  # by this file a folder is known to be the course's
_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_WRITING = ".writing-"
_NO_GPU = ("", "-1", "none", "NoDevFiles")


def cache_folder() -> Path:
    """Return the folder for measurements that can be made again, made if it is not there.

    The environment variable HELPERS_CACHE names it; without it, it is the course's own folder in
    the platform's folder for caches (XDG_CACHE_HOME or ~/.cache, ~/Library/Caches, LOCALAPPDATA).

    Raises OSError, with what to do, when the folder cannot be made.

    >>> from unittest.mock import patch
    >>> with temporary_folder("demo-") as folder, patch.dict(os.environ, HELPERS_CACHE=str(folder)):
    ...     print(cache_folder() == folder)
    True
    """
    configured = os.environ.get("HELPERS_CACHE", "")
    folder = Path(configured).expanduser() if configured else _user_caches() / _COURSE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remedy = "set the environment variable HELPERS_CACHE to a folder that you may write to"
        raise OSError(
            error.errno, f"no cache folder could be made ({error.strerror}); {remedy}", str(folder)
        ) from error
    return folder


def _user_caches() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    xdg_folder = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification tells programs to ignore a relative path here.
    return Path(xdg_folder) if os.path.isabs(xdg_folder) else Path.home() / ".cache"


def course_folder() -> Path | None:
    """Return the folder of the course's lessons: the working folder, one above it, or ``course`` in
    one of these.

    A notebook works in its own folder, so that its lesson finds what was recorded, and the reader's
    predictions, wherever the library is installed. None outside a course.

    >>> (course_folder() / "recorded" / "00.json").exists()  # doctest: +SKIP
    True
    """
    working_folder = Path.cwd()
    candidates = (
        folder / name
        for folder in (working_folder, *working_folder.parents)
        for name in ("", "course")
    )
    return next((folder for folder in candidates if (folder / _OF_A_COURSE).is_file()), None)


def course_file(*parts: str) -> Path:
    """Return the path of a file in the course's folder, there or not.

    Raises FileNotFoundError, with what to do, outside a course.
    """
    folder = course_folder()
    if folder is None:
        raise FileNotFoundError(
            f"{'/'.join(parts)} is in the course's folder, and this notebook is in none; open it "
            "from a clone of the course, for example with `make lab`"
        )
    return folder.joinpath(*parts)


def write_atomically(path: str | os.PathLike[str], data: str | bytes | memoryview) -> None:
    """Write ``data`` to ``path`` in one step: afterwards the file is whole and new, or it is as it
    was.

    The data goes to a temporary file in the same folder, to the disk, and then takes the name. A
    new file has the usual permissions, an old one keeps its own; a symbolic link stays and its
    target is written. Text is written as UTF-8, its line ends as they are.

    Raises TypeError for other data, and OSError, saying what was being written and what to do, when
    the folder is missing or the disk is full; whatever is raised, no temporary file stays behind,
    and one that a killed process left in the folder is removed.

    >>> with temporary_folder("demo-") as folder:
    ...     write_atomically(folder / "answer.txt", "42")
    ...     print(os.listdir(folder), (folder / "answer.txt").read_text())
    ['answer.txt'] 42
    """
    if not isinstance(data, str | bytes | bytearray | memoryview):
        raise TypeError(
            f"a file holds text or bytes, not {type(data).__name__}; turn it into one of them first"
        )
    content = data.encode("utf-8") if isinstance(data, str) else bytes(data)
    target = Path(os.path.realpath(path))
    remove_leftovers(target.parent, _WRITING)
    temporary = target.with_name(f"{own_prefix(_WRITING)}{secrets.token_hex(8)}.tmp")
    try:
        _write_and_rename(temporary, target, content)
    except OSError as error:
        consequence = (
            "the old file is as it was" if os.path.lexists(target) else "nothing was written"
        )
        problem = (
            f"could not write {len(content):,} bytes: {error.strerror}; {consequence}. "
            f"{_remedy(target)}"
        )
        raise OSError(error.errno, problem, str(path)) from error
    finally:
        if temporary.exists():
            temporary.unlink()


def own_prefix(prefix: str) -> str:
    """Return ``prefix`` with this process's mark, for names that :func:`remove_leftovers` may
    remove one day.

    The mark is the process's number, and where that number counts: this machine and its namespace
    of processes, so that containers may share a folder.
    """
    return f"{prefix}{_machine_mark()}-{os.getpid()}-"


def remove_leftovers(folder: str | os.PathLike[str], prefix: str) -> None:
    """Remove the leftovers of killed processes in ``folder``, under names from :func:`own_prefix`
    with ``prefix``.

    What another user, another machine or a living process made stays.
    """
    if os.name != "posix":  # elsewhere to ask after a process may end it
        return
    pattern = re.compile(rf"{re.escape(prefix + _machine_mark())}-(\d+)-.*")
    # A folder that is not there, or that another process cleans up as well, is no leftover's
    # problem.
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = pattern.fullmatch(entry.name)
            if (
                match
                and entry.stat(follow_symlinks=False).st_uid == os.getuid()
                and _is_gone(int(match[1]))
            ):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    Path(entry.path).unlink(missing_ok=True)


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Give a folder that is gone afterwards, and remove those of ``prefix`` that killed processes
    left.

    >>> with temporary_folder("demo-") as folder:
    ...     print(folder.is_dir())
    True
    >>> folder.exists()
    False
    """
    remove_leftovers(tempfile.gettempdir(), prefix)
    with tempfile.TemporaryDirectory(prefix=own_prefix(prefix), ignore_cleanup_errors=True) as name:
        yield Path(name)


def _machine_mark() -> str:
    namespace = Path("/proc/self/ns/pid")
    parts = (platform.node(), os.stat(namespace).st_ino if namespace.exists() else 0)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:6]


def _is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's, who has taken the number
        return False
    return False


def _write_and_rename(temporary: Path, target: Path, content: bytes) -> None:
    with open(temporary, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileNotFoundError):
        os.chmod(temporary, stat.S_IMODE(os.stat(target).st_mode))
    os.replace(temporary, target)
    if os.name == "posix":
        _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name itself last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some network and FUSE file systems cannot do this for a folder; the file itself is on the
        # disk by now.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remedy(target: Path) -> str:
    if not target.parent.is_dir():
        return f"The folder {str(target.parent)!r} is not there: make it first."
    if target.is_dir():
        return "A folder has this name: give the name of a file."
    return (
        "Free some space on the disk or choose a folder that you may write to, then run it again."
    )


def machine_key() -> str:
    """Return the facts on which a measurement here depends, as one readable line, the same in every
    process.

    It names the operating system, the processor, the cores this process may use, OMP_NUM_THREADS if
    it is set, the GPUs that are not hidden, and the versions of Python and PyTorch. It takes
    milliseconds and imports nothing.

    >>> [fact.split()[0] for fact in machine_key().split("; ")[-2:]]
    ['Python', 'torch']
    """
    facts = [
        f"{platform.system()} {platform.machine()}",
        _processor(),
        f"{_cores()} cores",
        *(
            [f"OMP_NUM_THREADS {os.environ['OMP_NUM_THREADS']}"]
            if os.environ.get("OMP_NUM_THREADS")
            else []
        ),
        *_gpus(),
        f"Python {platform.python_version()}",
        f"torch {_torch_version()}",
    ]
    return "; ".join(facts)


@functools.cache
def _processor() -> str:
    model = ""
    if sys.platform == "linux":
        model = _cpuinfo_model(Path("/proc/cpuinfo").read_text(errors="replace"))
    elif sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        model = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=10
        ).stdout.strip()
    return model or platform.processor() or "unknown processor"


def _cpuinfo_model(cpuinfo: str) -> str:
    """Return the processor's name, or on Arm, where Linux gives none, the numbers of its maker and
    part.
    """
    values = dict(re.findall(r"^([^\t:]+?)\s*:[ \t]*(.*?)\s*$", cpuinfo, flags=re.MULTILINE))
    if "model name" in values:
        return values["model name"]
    return " ".join(
        f"{name} {values[name]}" for name in ("CPU implementer", "CPU part") if name in values
    )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _gpus() -> list[str]:
    """Return the names of the GPUs that CUDA may show here, without starting CUDA."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in _NO_GPU:
        return []
    names = (
        _driver_gpus(Path("/proc/driver/nvidia/gpus")) if sys.platform == "linux" else _torch_gpus()
    )
    return [*names, *([f"CUDA_VISIBLE_DEVICES {visible}"] if names and visible else [])]


def _driver_gpus(folder: Path) -> list[str]:
    """Return the GPUs that the driver lists: asking CUDA itself would take seconds and GPU
    memory.
    """
    models = [
        re.search(r"^Model:\s*(.+?)\s*$", file.read_text(errors="replace"), flags=re.MULTILINE)
        for file in sorted(folder.glob("*/information"))
    ]
    return [model.group(1) if model else "unknown GPU" for model in models]


def _torch_gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:  # built from source and not installed
        import torch

        return torch.__version__


def store(name: str, result: results.Result, *, key: str) -> Path:
    """Keep ``result`` in the cache folder under ``name``, for :func:`load_cached` with the same
    ``key``.

    The key says what the result depends on: :func:`machine_key`, with whatever else its value rests
    on (the problem's size, the version of the program that measured it). Returns the file's path.

    Raises ValueError for a name that is not made of letters, digits, '.', '_' and '-', and OSError
    as :func:`write_atomically` does.

    >>> from unittest.mock import patch
    >>> from helpers.links import Link
    >>> with temporary_folder("demo-") as folder, patch.dict(os.environ, HELPERS_CACHE=str(folder)):
    ...     print(store("ethernet", Link(12.5e6), key=machine_key()).name)
    ethernet.json
    """
    path = _cache_file(name, key)
    content = json.loads(result.to_json())
    envelope = {
        "format": _FORMAT,
        "type": _type_name(type(result)),
        "key": key,
        "sha256": _checksum(content),
        "result": content,
    }
    write_atomically(path, json.dumps(envelope, indent=1) + "\n")
    return path


def load_cached(
    name: str, result_type: type[results.ResultType], *, key: str
) -> results.ResultType | None:
    """Return the ``result_type`` that :func:`store` kept under ``name`` for ``key``, or None when
    it must be measured.

    None comes back when nothing was stored, and, with a line that says so, when the file is
    corrupt, of another key (another machine, other versions) or of another form.

    Raises ValueError for a name that :func:`store` would not take, and OSError when the file cannot
    be read.

    >>> from unittest.mock import patch
    >>> from helpers.links import Link
    >>> with temporary_folder("demo-") as folder, patch.dict(os.environ, HELPERS_CACHE=str(folder)):
    ...     path = store("ethernet", Link(12.5e6), key=machine_key())
    ...     print(load_cached("ethernet", Link, key=machine_key()) == Link(12.5e6))
    True
    """
    path = _cache_file(name, key)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return _open_envelope(content, result_type, key)
    except (ValueError, KeyError, TypeError) as problem:
        reason = f"{problem.args[0] if problem.args else problem}"
        console.notice(
            f"The cached {name} is not used: {reason}. It is measured again. (The file is {path}.)"
        )
        return None


def _open_envelope(
    content: bytes, result_type: type[results.ResultType], key: str
) -> results.ResultType:
    try:
        envelope = json.loads(content.decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"the file is damaged ({type(error).__name__})") from error
    if not isinstance(envelope, dict) or envelope.keys() != {
        "format",
        "type",
        "key",
        "sha256",
        "result",
    }:
        raise ValueError("the file is not a cached result of this course")
    if envelope["format"] != _FORMAT or envelope["type"] != _type_name(result_type):
        raise ValueError(
            f"it holds a {envelope['type']} in format {envelope['format']}, from another version"
        )
    if envelope["sha256"] != _checksum(envelope["result"]):
        raise ValueError("the file is damaged (its checksum does not fit)")
    if envelope["key"] != key:
        raise ValueError(f"it was made for {envelope['key']!r}, and this is {key!r}")
    return results.from_dict(result_type, envelope["result"])


def _cache_file(name: str, key: str) -> Path:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} does not name a cached result; use up to 100 letters, digits, '.', '_' and "
            "'-'"
        )
    if not isinstance(key, str):
        raise TypeError(f"key is text such as storage.machine_key(), not {type(key).__name__}")
    return cache_folder() / f"{name}.json"


def _type_name(result_type: type) -> str:
    return f"{result_type.__module__}:{result_type.__qualname__}"


def _checksum(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8")).hexdigest()
