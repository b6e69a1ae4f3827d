"""The fresh process's side: load the function, set the limit, run it, write the answer.

Lesson 12.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import json
import linecache
import mmap
import os
import pickle
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers import _processes as processes

# The files of the folder that the two sides share.
ORDER, TASK, START, TRACE, END, VALUE, ANSWER = (
    "order.json",
    "task.pickle",
    "start.json",
    "trace.txt",
    "end.json",
    "value.pickle",
    "answer.json",
)
BOOTSTRAP = f"""
import json, pathlib, sys
folder = pathlib.Path(sys.argv.pop())
sys.path[:] = json.loads((folder / {ORDER!r}).read_text(encoding="utf-8"))["path"]
from helpers.isolation._keeper import go_on_in_a_child
go_on_in_a_child()
from helpers.isolation._child import serve
serve(folder)
"""

_LONGEST_ALARM_S = 1e6
_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|not enough "
    r"memory|bad_alloc|ALLOC_FAILED",
    re.IGNORECASE,
)


def serve(folder: Path) -> None:
    """Carry out the order in ``folder`` and write the answer there; the program of the fresh
    process.
    """
    faulthandler.enable()
    order = json.loads((folder / ORDER).read_text(encoding="utf-8"))
    for file, lines in order["source"].items():
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
    try:
        function, args = pickle.loads((folder / TASK).read_bytes())
        if order["needs_torch"] or "torch" in sys.modules:
            _start_torch()
    except Exception as error:
        _write(
            folder / ANSWER,
            _failure(error, "the fresh process could not load the function or its arguments"),
        )
        return
    with open(folder / TRACE, "w", encoding="utf-8") as trace:
        faulthandler.dump_traceback_later(min(order["timeout_s"], _LONGEST_ALARM_S), file=trace)
        _write(folder / ANSWER, _carry_out(folder, function, args, order["memory_bytes"]))
        faulthandler.cancel_dump_traceback_later()


def _carry_out(
    folder: Path, function: Callable[..., Any], args: tuple[Any, ...], memory_bytes: int | None
) -> dict[str, Any]:
    limit = None if memory_bytes is None else _memory_limiter(memory_bytes)
    _restart_peak()
    resident = resident_bytes(os.getpid())
    baseline = None if resident is None else resident[0]
    _write(
        folder / START,
        {"process": os.getpid(), "baseline_bytes": baseline, "is_limited": limit is not None},
    )
    lift = limit() if limit else lambda: None
    begun = time.perf_counter()
    failure = None
    try:
        value = function(*args)
    except SystemExit:
        raise
    except BaseException as error:
        failure = error
    finally:
        elapsed_s = time.perf_counter() - begun
        lift()  # what follows takes memory, also to tell of an error
        _write(folder / END, {"elapsed_s": elapsed_s, "peak_bytes": _peak_over(baseline)})
    if failure is not None:
        return _failure(failure, "the function raised an exception")
    return _send(folder, value)


def _peak_over(baseline_bytes: int | None) -> int | None:
    """Return the kernel's peak over the baseline; None where only the caller, who looks now and
    then, has one.
    """
    peak_bytes = processes.status_bytes(os.getpid()).get("VmHWM")
    if peak_bytes is None or baseline_bytes is None:
        return None
    return max(0, peak_bytes - baseline_bytes)


def _send(folder: Path, value: Any) -> dict[str, Any]:
    try:
        with open(folder / VALUE, "wb") as file:
            processes.pickler().dump(value, file, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        (folder / VALUE).unlink(missing_ok=True)  # so that a full disk has room for the answer
        kind = type(value).__name__
        return _failure(
            error, f"the function returned a {kind}, which cannot be sent back to the caller"
        )
    return {"status": "returned", "message": ""}


def _failure(error: BaseException, context: str) -> dict[str, Any]:
    """Return the part of an answer that tells of ``error``, without this module's own frames."""
    steps = error.__traceback__
    while steps is not None and steps.tb_frame.f_code.co_filename == __file__:
        steps = steps.tb_next
    return {
        "status": "out_of_memory" if is_memory_error(error) else "raised",
        "message": f"{context}: {type(error).__name__}: {processes.message_of(error)}".rstrip(": "),
        "error_type": type(error).__name__,
        "traceback": "".join(traceback.format_exception(type(error), error, steps)),
    }


def is_memory_error(error: BaseException) -> bool:
    """Return whether ``error`` says that memory ran out: Python's, NumPy's, PyTorch's on CPU and
    CUDA, the system's.

    PyTorch's CPU allocator raises a bare RuntimeError, so there the message decides.
    """
    if isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    ):
        return True
    return (
        isinstance(error, RuntimeError)
        and _OUT_OF_MEMORY.search(processes.message_of(error)) is not None
    )


def resident_bytes(process: int) -> tuple[int, int] | None:
    """Return the memory that a process holds now and the most it has held, or None where nothing
    tells.
    """
    if sys.platform == "linux":
        sizes = processes.status_bytes(process)
        return (sizes["VmRSS"], sizes["VmHWM"]) if "VmHWM" in sizes else None
    try:
        import psutil
    except ModuleNotFoundError:
        return None
    try:
        resident = psutil.Process(process).memory_info().rss
    except psutil.Error:
        return None
    return resident, resident


def _restart_peak() -> None:
    """Let the kernel's peak of this process begin here (proc(5), clear_refs; where it may not, it
    does not).
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _memory_limiter(memory_bytes: int) -> Callable[[], Callable[[], None]] | None:
    """Return a function that sets a limit of ``memory_bytes`` over the present use and returns one
    that lifts it.

    None where the system does not hold the limit, which is tried by asking for a little too much.
    """
    sizes = processes.status_bytes(os.getpid())
    if "VmData" not in sizes:
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    present_limits = [value for value in (soft, hard) if value != resource.RLIM_INFINITY]
    limit = min([sizes["VmData"] + memory_bytes, *present_limits])

    def lift() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    def set_limit() -> Callable[[], None]:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
        return lift

    set_limit()
    try:
        mmap.mmap(
            -1, memory_bytes + mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        ).close()
    except OSError:
        return set_limit
    finally:
        lift()
    return None


def _start_torch() -> None:
    """Import PyTorch and start its threads, so that neither they nor their stacks count as the
    function's memory.
    """
    import torch

    if torch.get_num_threads() > 1:
        torch.ones(1 << 20).sum()


def _write(path: Path, content: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content), encoding="utf-8")
    os.replace(part, path)
