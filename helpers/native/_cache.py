"""Compiled programs kept under their content's hash: found whole or built again, also by two processes at once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from helpers import _console as console, storage

_DIGITS = 16  # of a SHA-256 in a file's name
_WAIT_S = 300
_BUILDING = ".building-"


def digest(*parts: str | bytes) -> str:
    """Return a hash of the parts, in which their borders count."""
    whole = hashlib.sha256()
    for part in parts:
        content = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        whole.update(len(content).to_bytes(8, "big") + content)
    return whole.hexdigest()[:_DIGITS]


def native_folder() -> Path:
    """Return the folder of compiled programs in the library's cache, made if it is not there.

    Raises OSError when it cannot be made.
    """
    folder = storage.cache_folder().absolute() / "native"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise _unkept(error, folder) from error
    return folder


def fetch(key: str, suffix: str, build: Callable[[Path], None], *, folder: Path | None = None) -> tuple[Path, bool]:
    """Return the file that ``build`` makes for ``key``, and whether it was there before.

    Its name ends in the hash of its content: a damaged file no longer fits its name and is built again, and a file
    of other content never takes the name of one that a process has loaded. ``build`` writes to the path that it is
    given; the file takes its name in one step, so that without the lock as well nobody sees half of one.

    Raises what ``build`` raises (then nothing is kept), and OSError when the folder cannot be written to.
    """
    folder = native_folder() if folder is None else Path(folder).absolute()
    try:
        found = _whole_file(folder, key, suffix)
        if found is not None:
            return found, True
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # where nothing can be made, the lock would be waited for in vain
        with _one_at_a_time(folder / f".{key}.lock"):
            found = _whole_file(folder, key, suffix)
            return (found, True) if found is not None else (_built(folder, key, suffix, build), False)
    except OSError as error:
        raise _unkept(error, folder) from error


def _unkept(error: OSError, folder: Path) -> OSError:
    remedy = "free some space, or set HELPERS_CACHE (and TMPDIR) to a folder that you may write to, with free space"
    problem = f"a compiled program could not be kept ({error.strerror or error}); {remedy}"
    return OSError(error.errno, problem, str(folder))


def _built(folder: Path, key: str, suffix: str, build: Callable[[Path], None]) -> Path:
    storage.remove_leftovers(folder, _BUILDING)
    temporary = folder / f"{storage.own_prefix(_BUILDING)}{secrets.token_hex(8)}{suffix}"
    try:
        build(temporary)
        path = folder / f"{key}-{digest(temporary.read_bytes())}{suffix}"
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _whole_file(folder: Path, key: str, suffix: str) -> Path | None:
    for path in sorted(folder.glob(f"{key}-*{suffix}")):
        with contextlib.suppress(FileNotFoundError):  # another process may just have removed it
            if path.name == f"{key}-{digest(path.read_bytes())}{suffix}":
                return path
            console.notice(f"The compiled program {path.name} is damaged: it is compiled again.")
            path.unlink()
    return None


@contextlib.contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Hold the lock ``path``, which spares a second process the same work; what is built is safe without it."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    with contextlib.suppress(Timeout, NotImplementedError):  # a stuck process, a file system without locks
        lock.acquire(timeout=_WAIT_S)
    try:
        yield
    finally:
        if lock.is_locked:
            with contextlib.suppress(OSError):  # Windows keeps an open file; on others it must go while it is held
                path.unlink()
        lock.release()
