"""The fresh process's side: call the function once a level, and note the calls on each level.

Lesson 15.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers import _processes as processes
from helpers.native import MachineCode
from helpers.results import Record
from helpers.steps import described

VARIABLES = {
    "ONEDNN_VERBOSE": "1",
    "ONEDNN_VERBOSE_TIMESTAMP": "0",
    "ONEDNN_JIT_DUMP": "1",
    "MKL_VERBOSE": "1",
}
MODES = {
    "with autograd": torch.enable_grad,
    "without autograd": torch.no_grad,
    "in inference mode": torch.inference_mode,
}

_LOG = "log.txt"
_DUMP = re.compile(r"dnnl_dump_cpu_(?P<name>.+)\.(?P<number>\d+)\.bin")


class DispatchedOperator(Record):
    """One call of an operator: its name, its arguments, and how many other operators' calls it
    stands in.

    Lesson 15.
    """

    name: str
    inputs: str
    depth: int = 0


@dataclass(frozen=True)
class Followed:
    """The observations of the fresh process; ``operators`` holds for each of :data:`MODES` the
    calls, or why there are none.
    """

    log: str
    kernels: tuple[MachineCode, ...]
    operators: dict[str, tuple[DispatchedOperator, ...] | str]
    nested: tuple[DispatchedOperator, ...]
    devices: tuple[str, ...]
    has_onednn: bool
    has_mkl: bool


def follow(packed: bytes, folder: str, threads: int) -> Followed:
    """Unpack a call and make it five times in ``folder``, each time on fresh copies; return the
    observations.

    The first time only the libraries log and write their kernels, which they do not do again for
    the same sizes.
    """
    torch.set_num_threads(threads)
    os.chdir(folder)
    with _diverted_output(Path(_LOG)):
        _call(packed)
    log = Path(_LOG).read_text(encoding="utf-8", errors="replace")
    kernels = _kernels(Path())
    with _diverted_output(Path(os.devnull)):
        recorders = {mode: _Recorder() for mode in MODES}
        problems = {mode: _try(packed, enter(), recorders[mode]) for mode, enter in MODES.items()}
        nested = _profile_nested(packed)
    return Followed(
        log=log,
        kernels=kernels,
        operators={mode: problems[mode] or tuple(recorders[mode].calls) for mode in MODES},
        nested=nested,
        devices=tuple(sorted(set().union(*(recorder.devices for recorder in recorders.values())))),
        has_onednn=torch.backends.mkldnn.is_available(),
        has_mkl=torch.backends.mkl.is_available(),
    )


def _call(packed: bytes) -> None:
    function, inputs = pickle.loads(packed)
    function(*inputs)


def _try(packed: bytes, *modes: contextlib.AbstractContextManager[Any]) -> str:
    """Make the call in ``modes``; return "" or, where it fails there, why."""
    function, inputs = pickle.loads(packed)
    try:
        with contextlib.ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode)
            function(*inputs)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(processes.message_of(error).split())}"
    return ""


class _Recorder(TorchDispatchMode):
    """Notes every operator that the dispatcher hands on below autograd, and the devices of its
    tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[DispatchedOperator] = []
        self.devices: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # wrapping the dispatch for torch.compile imports torch._dynamo, which takes seconds
        return False

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        self.calls.append(DispatchedOperator(function._schema.name, described(tensors)))
        results = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        self.devices |= {tensor.device.type for tensor in (*tensors, *results)}
        return output


def _profile_nested(packed: bytes) -> tuple[DispatchedOperator, ...]:
    """Return the profiler's events of the call: each operator after the one that calls it."""
    function, inputs = pickle.loads(packed)
    with profile(record_shapes=True) as profiler:
        function(*inputs)
    events = [
        event for event in profiler.function_events if "::" in event.name and not event.is_async
    ]
    events.sort(key=lambda event: (event.time_range.start, -event.time_range.end))
    event_ids = set(map(id, events))
    return tuple(
        DispatchedOperator(
            event.name,
            _shapes(event.input_shapes),
            sum(id(caller) in event_ids for caller in _callers(event)),
        )
        for event in events
    )


def _callers(event: Any) -> Iterator[Any]:
    while (event := event.cpu_parent) is not None:
        yield event


def _shapes(shapes: list[list[int]]) -> str:
    return ", ".join(str(tuple(shape)) for shape in shapes if shape) or "nothing"


def _kernels(folder: Path) -> tuple[MachineCode, ...]:
    """Return the kernels that oneDNN wrote into ``folder``, in the order in which it made them."""
    dumps = [(match, path) for path in folder.iterdir() if (match := _DUMP.fullmatch(path.name))]
    dumps.sort(key=lambda pair: int(pair[0]["number"]))
    return tuple(MachineCode(match["name"], path.read_bytes()) for match, path in dumps)


@contextlib.contextmanager
def _diverted_output(path: Path) -> Iterator[None]:
    """Let C code print into the file ``path`` and Python into nothing, so that neither breaks the
    other's lines.
    """
    sys.stdout.flush()
    stdout_copy = os.dup(1)
    try:
        with open(path, "wb") as log, open(os.devnull, "w", encoding="utf-8") as nothing:
            os.dup2(log.fileno(), 1)
            with contextlib.redirect_stdout(nothing):
                yield
            _flush_c()
    finally:
        os.dup2(stdout_copy, 1)
        os.close(stdout_copy)


def _flush_c() -> None:
    ctypes.CDLL("ucrtbase" if os.name == "nt" else None).fflush(None)
