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
import time
from collections.abc import Sequence
from multiprocessing import connection
from typing import Any

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


def keep(order: dict[str, Any]) -> None:
    """Carry out the notebook's commands until it is gone: the program of the keeper.

    Commands: ``start`` (all ranks, with a token of their own), ``end`` (all ranks), ``stop``. It
    tells the end of every rank with its exit code, negative for a signal. The files of a notebook
    that was killed it removes.
    """
    notebook = os.getppid()
    # also where it will not fork: what a process with PyTorch takes is measured here
    _load(order["modules"])
    # forks are ordered on Linux alone, where the second says whether this is the only thread
    forks = order["forks"] and len(os.listdir("/proc/self/task")) == 1 and _fork_is_allowed()
    for name, value in order["restore"].items():  # it was for the imports
        os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
    hello = {"token": order["token"], "forks": forks, "private_bytes": _private_bytes()}
    control = wire.connect(order["port"], hello)
    ranks: dict[int, _Child] = {}
    is_stopped = False
    try:
        is_stopped = _obey(control, {**order, "forks": forks}, ranks, notebook=notebook)
    except (EOFError, OSError):  # the notebook has closed its end
        pass
    finally:
        _end(ranks)
    if not is_stopped and _is_gone(notebook):
        shutil.rmtree(order["folder"], ignore_errors=True)
    os._exit(0)  # PyTorch has nothing to put away that the system does not


def _obey(
    control: connection.Connection,
    order: dict[str, Any],
    ranks: dict[int, _Child],
    *,
    notebook: int,
) -> bool:
    """Carry out commands, and return True at the last one, False when the notebook is gone."""
    while os.getppid() == notebook:
        if connection.wait([control], _LOOK_S):
            command = wire.receive(control)
            if command["do"] == "stop":
                return True
            if command["do"] == "end":
                _end(ranks)
                wire.send(control, {"all_ended": True})
            if command["do"] == "start":
                order = {**order, "token": command["token"]}
                for rank in range(order["world_size"]):
                    ranks[rank] = _start({**order, "rank": rank}, control)
        _report_ended(ranks, order["token"], control)
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
    if private_bytes := processes.status_bytes(os.getpid()).get("RssAnon"):
        return private_bytes
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


_Child = _Forked | subprocess.Popen[str]


def _start(order: dict[str, Any], control: connection.Connection) -> _Child:
    try:
        return _fork(order, control) if order["forks"] else launch(_FRESH_RANK, order)
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


def launch(program: str, order: dict[str, Any], **options: Any) -> subprocess.Popen[str]:
    """Return a process of its own group that runs ``program``, and give it its ``order``.

    The ``options`` are those of ``subprocess.Popen``. The order goes through a pipe, because it
    holds the token: other users of the machine may read what stands in a command.
    """
    process = subprocess.Popen(
        processes.python(program),
        stdin=subprocess.PIPE,
        text=True,
        **options,
        **processes.OWN_GROUP,
    )
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(json.dumps(order) + "\n")
    return process


def _report_ended(ranks: dict[int, _Child], token: str, control: connection.Connection) -> None:
    for rank, child in list(ranks.items()):
        if (code := child.poll()) is not None:
            processes.end_group(child.pid)  # what the rank itself had started
            del ranks[rank]
            wire.send(control, {"ended": rank, "code": code, "token": token})


def _end(ranks: dict[int, _Child]) -> None:
    for child in ranks.values():
        processes.end_group(child.pid)
    for child in ranks.values():
        while child.poll() is None:
            connection.wait([], 0.005)
    ranks.clear()
