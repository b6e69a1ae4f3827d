"""Kernels that have the large packages from the start: forked from one process that has imported
them.

A kernel spends most of a short run on importing PyTorch, pandas and matplotlib. For many runs of a
few cells each, :func:`kernels` imports them once. The library under test is not among them: each
kernel finds its own on PYTHONPATH. This file is also the program that starts each kernel, and
therefore imports nothing but the standard library.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "warm"
_LOOK_S = 1.0
PACKAGES = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.utils.data",
    "torch.utils.flop_counter",
    "numpy",
    "pandas",
    "matplotlib.pyplot",
    "matplotlib_inline.backend_inline",
    "IPython.display",
    "ipykernel.ipkernel",
    "ipykernel.kernelapp",
    "ipywidgets",
    "psutil",
    "PIL.JpegImagePlugin",
)


@contextmanager
def kernels() -> Iterator[Path]:
    """Yield a folder that makes ``NAME`` a kernel when it stands in ``JUPYTER_PATH``; at the end no
    kernel remains.

    What depends on the environment while a package is imported (threads, CUDA) is as it is now.
    """
    with tempfile.TemporaryDirectory(prefix="course-warm-", ignore_cleanup_errors=True) as folder:
        address = os.path.join(folder, "socket")
        program = [sys.executable, "-P", __file__]
        specification = Path(folder, "kernels", NAME, "kernel.json")
        specification.parent.mkdir(parents=True)
        argv = [sys.executable, "-S", "-P", __file__, address, "{connection_file}"]
        text = json.dumps(
            {"argv": argv, "display_name": NAME, "language": "python", "interrupt_mode": "message"}
        )
        specification.write_text(text, encoding="utf-8")
        with subprocess.Popen(
            [*program, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as server:
            assert server.stdin is not None
            assert server.stdout is not None  # both are pipes
            if not server.stdout.readline():
                raise RuntimeError(
                    "the process that warm kernels are forked from has ended, see its output: "
                    f"{program}"
                )
            yield Path(folder)
            server.stdin.close()


def _serve(address: str) -> None:
    """Fork a kernel for everyone who connects, until who started this closes the standard input."""
    for package in PACKAGES:
        importlib.import_module(package)
    # As where a kernel imports it: pandas asks at its import whether it writes to a terminal.
    sys.modules["pandas"].set_option("display.max_columns", 20)
    gc.collect()
    # a collection in a kernel would write to, and so copy, every page that holds an object
    gc.freeze()
    signal.signal(signal.SIGCHLD, _bury)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _become_a_kernel(connection)
            connection.close()


def _bury(_number: int, _frame: object) -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def _become_a_kernel(connection: socket.socket) -> None:
    """Take over the environment and the folder of who connected, and run a kernel until it is told
    to end.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    null_device = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null_device, descriptor)
    request = json.loads(connection.makefile("rb").readline())
    os.environ.clear()
    os.environ.update(request["environment"])
    # the parent is another one: the connection tells that it has ended
    os.environ.pop("JPY_PARENT_PID", None)
    os.chdir(request["folder"])
    sys.path[:0] = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    application = importlib.import_module("ipykernel.kernelapp").IPKernelApp
    try:
        application.launch_instance(argv=["-f", request["connection_file"]])
    finally:
        os._exit(0)


def _end_with(connection: socket.socket) -> None:
    while connection.recv(1):
        pass
    os._exit(1)


def _start(address: str, connection_file: str) -> None:
    """Ask for a kernel, and stay as long as it and who started this do."""
    parent = os.getppid()
    request = {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "connection_file": connection_file,
    }
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        connection.sendall(json.dumps(request).encode() + b"\n")
        while os.getppid() == parent and not select.select([connection], [], [], _LOOK_S)[0]:
            pass


if __name__ == "__main__":
    _start(*sys.argv[1:]) if len(sys.argv) > 2 else _serve(sys.argv[1])
