"""The keeper: a process that starts the ranks of a pool, sees them end, and ends them when the
notebook is gone.

It imports PyTorch once and forks a rank in milliseconds. That is safe because it has one thread,
and has run no operation of PyTorch and none of CUDA, when it forks: fork copies only the calling
thread, and a lock that another one held stays locked in the child (fork(2)). Where there is no fork
that can be trusted (macOS, Windows), where it is forbidden, or importing started a thread, each
rank is a fresh interpreter that imports PyTorch by itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any, Protocol

from helpers import _processes as processes
from helpers.ranks import _wire as wire

_LOOK_S = 0.1
# a connection of a process that is killed closes a moment before the process has ended
_GONE_S = 2.0
_BOOTSTRAP = """
import json, sys
order = json.loads(sys.stdin.readline())
sys.path[:] = order["path"]
from helpers.ranks._{module} import {function}
{function}(order)
"""
KEEPER = _BOOTSTRAP.format(module="keeper", function="keep")
_FRESH_RANK = _BOOTSTRAP.format(module="worker", function="serve")


class _Child(Protocol):
    pid: int

    def poll(self) -> int | None: ...


def keep(order: dict[str, Any]) -> None:
    """Carry out the notebook's commands until it is gone: the program of the keeper.

    Commands: ``start`` (ranks by their orders), ``end`` (all ranks), ``stop``. It tells the end of
    every rank with its exit code, negative for a signal. The files of a notebook that was killed it
    removes.
    """
    notebook = os.getppid()
    # also where it will not fork: what a process with PyTorch takes is measured here
    _load(order["modules"])
    forks = order["forks"] and _threads() == 1 and _fork_is_allowed()
    for name, value in order["restore"].items():  # it was for the imports
        os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
    control = wire.connect(order["port"], {"token": order["token"], "pid": os.getpid()})
    ranks: dict[int, _Child] = {}
    is_stopped = False
    try:
        wire.send(control, {"forks": forks, "private_bytes": _private_bytes()})
        is_stopped = _obey(control, ranks, notebook=notebook, forks=forks)
    except (EOFError, OSError):  # the notebook has closed its end
        pass
    finally:
        _end(ranks)
    if not is_stopped and _is_gone(notebook):
        shutil.rmtree(order["folder"], ignore_errors=True)
    os._exit(0)  # PyTorch has nothing to put away that the system does not


def _obey(
    control: connection.Connection, ranks: dict[int, _Child], *, notebook: int, forks: bool
) -> bool:
    """Carry out commands, and return True at the last one, False when the notebook is gone."""
    current_round = 0
    while os.getppid() == notebook:
        if connection.wait([control], _LOOK_S):
            command = wire.receive(control)
            if command["do"] == "stop":
                return True
            if command["do"] == "end":
                _end(ranks)
                wire.send(control, {"all_ended": True})
            for order in command.get("orders", ()):
                current_round = order["round"]
                ranks[order["rank"]] = _start(order, control, forks=forks)
        _report_ended(ranks, current_round, control)
    return False


def _is_gone(notebook: int) -> bool:
    end_s = time.monotonic() + _GONE_S
    while os.getppid() == notebook and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
    return os.getppid() != notebook


def _load(modules: Sequence[str]) -> None:
    """Import the modules that a rank needs, and the notebook's ``modules``: here once, in place of
    once a rank.
    """
    with contextlib.suppress(ModuleNotFoundError):  # without it, functions of modules can be sent
        import cloudpickle  # noqa: F401
    import numpy  # noqa: F401
    import torch  # noqa: F401

    from helpers.ranks import _worker as worker  # noqa: F401

    for name in modules:
        importlib.import_module(name)
    gc.collect()
    # a collection in a rank would write to, and so copy, every page that holds an object
    gc.freeze()


def _threads() -> int:
    """Return the number of threads of this process, on Linux."""
    return len(os.listdir("/proc/self/task"))


def _fork_is_allowed() -> bool:
    """Return whether a fork works, tried with a child that ends at once."""
    try:
        process = os.fork()
    except OSError:
        return False
    if not process:
        os._exit(0)
    os.waitpid(process, 0)
    return True


def _private_bytes() -> int | None:
    """Return the resident memory that this process shares with no file and no other process; None
    if unknown.
    """
    if sys.platform == "linux":
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    try:
        import psutil
    except ModuleNotFoundError:
        return None
    return psutil.Process().memory_full_info().uss


class _Forked:
    """A forked rank, asked in the words of ``subprocess.Popen``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            process, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if process else None
        return self._code


def _start(order: dict[str, Any], control: connection.Connection, *, forks: bool) -> _Child:
    try:
        return _fork(order, control) if forks else _spawn(order)
    except OSError as error:  # as it is, it would read as a lost connection
        raise RuntimeError(
            f"this machine did not start a process for rank {order['rank']}: {error}"
        ) from error


def _fork(order: dict[str, Any], control: connection.Connection) -> _Child:
    process = os.fork()
    if process:
        with contextlib.suppress(OSError):  # the child has done it already, or has ended
            os.setpgid(process, process)
        return _Forked(process)
    code = 1
    try:
        os.setpgid(0, 0)
        control.close()
        from helpers.ranks import _worker as worker

        worker.serve(order)
        code = 0
    finally:
        os._exit(code)  # never back into the keeper's own loop


def _spawn(order: dict[str, Any]) -> _Child:
    command = processes.python(_FRESH_RANK)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, **processes.own_group())
    assert process.stdin is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.close()
    return process


def _report_ended(
    ranks: dict[int, _Child], current_round: int, control: connection.Connection
) -> None:
    for rank, child in list(ranks.items()):
        if (code := child.poll()) is not None:
            processes.end_group(child.pid)  # what the rank itself had started
            del ranks[rank]
            wire.send(control, {"ended": rank, "code": code, "round": current_round})


def _end(ranks: dict[int, _Child]) -> None:
    for child in ranks.values():
        processes.end_group(child.pid)
    for child in ranks.values():
        while child.poll() is None:
            connection.wait([], 0.005)
    ranks.clear()
