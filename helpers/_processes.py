"""Processes that end with their parent and with their group, and their input and output.

For :mod:`helpers.isolation` and the ranks. It imports nothing heavy: a fresh process loads it
before its limit is set.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

from helpers.checks import short

KEPT_OUTPUT_BYTES = 50_000  # at the beginning, and as much at the end

_PR_SET_PDEATHSIG = 1  # prctl(2)
_LOOK_S = 0.5
_REFUSAL_LIMIT_S = 20.0


def end_with_parent(parent: int, number: int = getattr(signal, "SIGKILL", signal.SIGTERM)) -> None:
    """End this process when the process ``parent``, which started it, is gone.

    On Linux the kernel sends the signal ``number`` (prctl(2), PR_SET_PDEATHSIG), also to a process
    that never comes back from C code. It does so when the *thread* that started this process ends,
    so the parent starts processes from a thread that lives as long as they shall; where the parent
    is killed it does so again for each of its threads that takes over. Elsewhere a thread looks
    twice a second and exits.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it was gone before the kernel was asked
            os.kill(os.getpid(), number)
        return

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


class _OwnGroup(TypedDict):
    start_new_session: bool
    creationflags: int


# The arguments of ``subprocess.Popen`` that put a process at the head of its own group, the first
# on POSIX, the second on Windows. Then Ctrl-C in a terminal, and the interrupt that a notebook
# server sends, reach the caller alone.
OWN_GROUP: _OwnGroup = {
    "start_new_session": True,
    "creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
}


def end_group(process: int) -> None:
    """End ``process``, which leads its own group, and the group with it; what is gone already is no
    error.
    """
    if os.name == "posix":
        # macOS answers EPERM for a group in which every process has ended.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGKILL)
        return
    subprocess.run(["taskkill", "/F", "/T", "/PID", str(process)], capture_output=True, check=False)


def python(code: str, *arguments: str) -> list[str]:
    """Return the command that runs ``code`` in a fresh interpreter; RuntimeError where Python does
    not know itself.
    """
    if not sys.executable:
        raise RuntimeError(
            "this Python does not know its own program (sys.executable), so it cannot start another"
        )
    return [sys.executable, "-P", "-c", code, *arguments]


# What goes to a process, and what comes back.


def import_path() -> list[str]:
    """Return the places from which this process imports, for another one."""
    return [str(entry) for entry in sys.path]


def read_text(path: Path) -> str:
    """Return the text that a process has written to ``path``, "" where there is no file."""
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def pickler() -> ModuleType:
    """Return cloudpickle, which sends functions by value, or without it Python's own pickle."""
    try:
        import cloudpickle
    except ModuleNotFoundError:
        return pickle
    return cloudpickle


def pack_call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    caller: str,
    pack: Callable[[Any], bytes] | None = None,
) -> bytes:
    """Return the call as bytes, by ``pack`` or :func:`pickler`; raise TypeError where it cannot be
    sent.
    """
    if not callable(function):
        raise TypeError(f"{caller} takes a function and its arguments, not {short(function)}")
    if pickler() is pickle and getattr(function, "__module__", None) == "__main__":
        raise TypeError(
            "a function defined in a notebook or a script can be sent to another process only with "
            "the package cloudpickle; install it, or put the function in a module"
        )
    try:
        return (pack or pickler().dumps)((function, args))
    except Exception as error:
        raise TypeError(
            f"{short(function)} or one of its arguments cannot be sent to another process "
            f"({error}); make open files, locks, generators and the like inside the function"
        ) from None


def psutil(purpose: str) -> ModuleType:
    """Return the package psutil; raise RuntimeError, with its ``purpose``, where it is not
    installed.
    """
    try:
        import psutil
    except ModuleNotFoundError as error:
        raise RuntimeError(f"{purpose} psutil, which is not installed; install it") from error
    return psutil


def message_of(error: BaseException) -> str:
    """Return the text of ``error``, also where it has none that can be read."""
    try:
        return str(error)
    except Exception as second:
        return f"(its message cannot be read: {type(second).__name__})"


def status_bytes(process: int) -> dict[str, int]:
    """Return the sizes in Linux's status of ``process`` by their names, such as VmRSS (proc(5)).

    Empty where the process is gone, and on other systems.
    """
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return {}
    sizes = re.findall(r"^(\w+):\s+(\d+) kB", status, flags=re.MULTILINE)
    return {name: 1024 * int(kib) for name, kib in sizes}


def signal_name(code: int) -> str:
    """Return the name of the signal that ended a process with the negative exit ``code``."""
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"


def join_output(head: bytes, left_out_bytes: int, tail: bytes) -> str:
    """Return the beginning and the end of an output as text, with the number of bytes left out
    between.
    """
    parts = (
        [head, f"\n... {left_out_bytes:,} bytes left out ...\n".encode(), tail]
        if left_out_bytes
        else [head + tail]
    )
    return "".join(part.decode("utf-8", errors="replace") for part in parts)


def refusal(command: Sequence[str]) -> str:
    """Run ``command``; return "" where it ended well, else why not: its last line."""
    try:
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_REFUSAL_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{command[0]} had not ended after {_REFUSAL_LIMIT_S:g} s"
    except OSError as error:
        return f"{command[0]}: {error}"
    lines = process.stderr.strip().splitlines() or [f"{command[0]} ended with {process.returncode}"]
    return lines[-1] if process.returncode else ""
