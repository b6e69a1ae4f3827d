"""Processes that end: with their parent, with their group, with all that they started.

For the library itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1  # prctl(2)
_LOOK_S = 0.5


def end_with_parent(parent: int, number: int = signal.SIGTERM) -> None:
    """End this process when the process ``parent``, which started it, is gone.

    On Linux the kernel sends the signal ``number`` (prctl(2), PR_SET_PDEATHSIG), also to a process that never comes
    back from C code. It does so when the *thread* that started this process ends, so the parent starts processes
    from a thread that lives as long as they shall; where the parent is killed it does so again for each of its threads
    that takes over. Elsewhere a thread looks twice a second and exits.
    For the library itself.
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


def end_group(process: int) -> None:
    """End ``process``, which leads its own group, and the group with it; what is gone already is no error.

    For the library itself.
    """
    if os.name == "posix":
        # macOS answers EPERM for a group in which every process has ended.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGKILL)
        return
    subprocess.run(["taskkill", "/F", "/T", "/PID", str(process)], capture_output=True, check=False)


def own_group() -> dict[str, object]:
    """Return the arguments of ``subprocess.Popen`` that put a process at the head of its own group.

    Then Ctrl-C in a terminal, and the interrupt that a notebook server sends, reach the caller alone.
    For the library itself.
    """
    return {"start_new_session": True} if os.name == "posix" else {"creationflags": 0x200}  # a new process group


def loopback_interface() -> str | None:
    """Return the name of the loopback's network interface, such as ``lo``, None where it has another name.

    Given to gloo and nccl, it keeps them from looking up the name of this machine. For the library itself.
    """
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
