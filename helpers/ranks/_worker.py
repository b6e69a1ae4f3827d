"""A rank's side: join the group, run the function that comes, answer."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import pickle
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from helpers import _processes as processes
from helpers.ranks import _wire as wire

# The files of the pool's folder, by rank.
TASK, VALUE, OUTPUT, STACK = "task.pickle", "value-{}.pickle", "output-{}.txt", "stack-{}.txt"

_MOST_STEPS = 60
_LONGEST_MESSAGE = 5_000
# the limit of a run is the caller's; a collective has no own one
_COLLECTIVES_LIMIT = timedelta(hours=24)
_PEERS = re.compile(r"gloo|nccl|connection (closed|reset|refused)|socket", re.IGNORECASE)

current_rank: int | None = None  # the rank that this process is, None in the notebook


def serve(order: dict[str, Any]) -> None:
    """Be one rank until the notebook ends the connection: the program of the process."""
    global current_rank
    processes.end_with_parent(os.getppid())
    current_rank = rank = order["rank"]
    folder = Path(order["folder"])
    _capture(folder / OUTPUT.format(rank))
    with open(folder / STACK.format(rank), "w", encoding="utf-8") as stack:
        faulthandler.enable(file=sys.stderr, all_threads=False)
        if hasattr(faulthandler, "register"):  # POSIX: where a rank stands is asked with a signal
            faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
        hello = {"token": order["token"], "rank": rank, "pid": os.getpid()}
        control = wire.connect(order["port"], hello)
        try:
            _join(order)
        except Exception as error:
            wire.send(control, _failure(error))
            return
        wire.send(control, {"status": "ready"})
        with contextlib.suppress(EOFError, OSError):  # the notebook has closed the pool
            while True:
                _carry_out(wire.receive(control), order, control)


def _capture(path: Path) -> None:
    """Send the output of this process, also of its C code, to the file at ``path``."""
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
    for target in (1, 2):
        os.dup2(output, target)
    os.close(output)
    for name in ("stdout", "stderr"):
        stream = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
        setattr(sys, name, stream)


def _join(order: dict[str, Any]) -> None:
    import numpy as np
    import torch
    import torch.distributed as dist

    rank, world_size = order["rank"], order["world_size"]
    np.random.seed()  # forked ranks would share the keeper's state
    torch.set_num_threads(order["threads"])
    place = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(world_size))
    os.environ.update({**wire.loopback_variables(), **os.environ, **place, **sizes})
    backend = "gloo"
    if order["device"] == "cuda":
        torch.cuda.set_device(rank)
        backend = "cpu:gloo,cuda:nccl"
    tcp_store = dist.TCPStore(
        wire.LOOPBACK, order["store_port"], is_master=False, wait_for_workers=False
    )
    # Addresses of ranks that have ended stand in the store; under a prefix of its own no start
    # reads them.
    store = dist.PrefixStore(order["token"], tcp_store)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=_COLLECTIVES_LIMIT
    )


def _carry_out(task: dict[str, Any], order: dict[str, Any], control: Any) -> None:
    folder, rank = Path(order["folder"]), order["rank"]
    os.ftruncate(1, 0)
    sys.path[:] = task["path"]
    try:
        os.chdir(task["folder"])
        function, args = pickle.loads((folder / TASK).read_bytes())
        value = function(rank, order["world_size"], *args)
        answer = _pack(value, folder / VALUE.format(rank))
    except BaseException as error:
        answer = _failure(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError, OSError):  # the function has closed it
            stream.flush()
    wire.send(control, {**answer, "at_s": time.time()})


def _pack(value: Any, path: Path) -> dict[str, Any]:
    try:
        with open(path, "wb") as file:
            dump(value, file)
    except Exception as error:
        path.unlink(missing_ok=True)
        kind = type(value).__name__
        message = (
            f"returned a {kind}, which cannot be sent back ({type(error).__name__}: "
            f"{_message(error)})"
        )
        return refusal(message)
    return {"status": "returned"}


def refusal(message: str) -> dict[str, Any]:
    """Return the answer of a rank whose value did not come through."""
    return {"status": "raised", "what": message, "chain": [], "by_peers": False}


def dump(value: Any, file: Any) -> None:
    """Write ``value`` to ``file`` with cloudpickle; tensors go as copies on the CPU, with their own
    elements alone.

    A view would otherwise take its whole storage along. Raises what pickling raises.
    """
    import torch

    base = processes.pickler().Pickler

    class Pickler(base):  # type: ignore[misc, valid-type]  # of pickle, or of cloudpickle where that is installed
        def reducer_override(self, item: Any) -> Any:
            is_plain = type(item) is torch.Tensor and item.layout == torch.strided
            if is_plain and _is_far_or_view(item):
                copy = item.detach().to("cpu", copy=True).contiguous()
                copy.requires_grad_(item.requires_grad)
                return copy.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            inherited = getattr(super(), "reducer_override", None)
            return inherited(item) if inherited else NotImplemented

    Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)


def _is_far_or_view(tensor: Any) -> bool:
    if tensor.device.type == "cpu":
        return tensor.untyped_storage().nbytes() > tensor.nbytes
    return tensor.device.type != "meta"


def pack(value: Any) -> bytes:
    """Return the bytes that :func:`dump` writes."""
    buffer = io.BytesIO()
    dump(value, buffer)
    return buffer.getvalue()


def _failure(error: BaseException) -> dict[str, Any]:
    """Return the facts from which the notebook tells of ``error``; it has the cells' text, so it
    writes the traceback.
    """
    message = _message(error)
    return {
        "status": "raised",
        "what": f"raised {type(error).__name__}: {message}".rstrip(": "),
        "chain": [(_steps(link), _headline(link), words) for link, words in _chain(error)],
        "by_peers": isinstance(error, (RuntimeError, OSError))
        and _PEERS.search(message) is not None,
    }


def _chain(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """Yield ``error`` and its causes, the nearest first, at most three, each with the words that
    lead from it to the one before.
    """
    yield error, ""
    for _ in range(3):
        if error.__cause__ is not None:
            error, words = error.__cause__, "The above was the direct cause of what follows:"
        elif error.__context__ is not None and not error.__suppress_context__:
            error, words = error.__context__, "While this was handled, what follows happened:"
        else:
            return
        yield error, words


def _steps(error: BaseException) -> list[tuple[str, int | None, str]]:
    """Return (file, line, function) of each frame below this module's, the middle left out where
    there are many.
    """
    steps = [
        (frame.filename, frame.lineno, frame.name)
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__
    ]
    half = _MOST_STEPS // 2
    return steps if len(steps) <= _MOST_STEPS else steps[:half] + steps[-half:]


def _headline(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception_only(type(error), error))
    except Exception:  # the text of an exception of the user's may itself raise
        text = f"{type(error).__name__}: {_message(error)}"
    return text[:_LONGEST_MESSAGE].rstrip()


def _message(error: BaseException) -> str:
    return processes.message_of(error)[:_LONGEST_MESSAGE]
