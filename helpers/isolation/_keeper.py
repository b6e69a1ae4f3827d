"""The process between the caller's and the function's: it outlives the function's, and ends all
that it has started.

On Linux a process whose parent has ended becomes a child of the keeper (prctl(2),
PR_SET_CHILD_SUBREAPER), whatever session it made for itself. So when the function's process has
ended the keeper finds all that is left of it. Lesson 08.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from helpers import _processes as processes

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_POLL_S = 0.005
_TIDY_LIMIT_S = 2.0
# They free the shared memory of processes that have ended, and end by themselves when those have.
_TIDY = (b"multiprocessing.resource_tracker", b"torch_shm_manager")


def go_on_in_a_child() -> None:
    """Return in a child of this process, which stays to end the child's leftovers, and ends as the
    child has ended.

    Asked to end (SIGTERM), also by the end of its parent, it ends the child first. Elsewhere than
    on Linux this process goes on itself, and ends with its parent.
    """
    caller, keeper = os.getppid(), os.getpid()
    if sys.platform != "linux":
        processes.end_with_parent(caller)
        return
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        processes.end_with_parent(keeper)
        return
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    processes.end_with_parent(caller, signal.SIGTERM)
    # it is there, and its number its own, while it can be ended
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _, status = os.waitpid(child, 0)
    _end_children()
    _end_as(status)


def _end_children() -> None:
    """End every child, and those that come to this process by their end; cleaners have a while to
    finish.
    """
    ends = time.monotonic() + _TIDY_LIMIT_S
    while _reap():
        for child in _children():
            if not _tidies(child) or time.monotonic() > ends:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        time.sleep(_POLL_S)


def _reap() -> bool:
    """Take note of children that have ended; return whether there are others."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


def _children() -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                yield int(folder.name)


def _tidies(process: int) -> bool:
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{process}/cmdline").read_bytes()
        return any(name in command for name in _TIDY)
    return False


def _end_as(status: int) -> None:
    """End this process with the exit code or the signal with which a child has ended."""
    if os.WIFSIGNALED(status):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left its own
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))
