"""The caller's side: send the function, watch its process, end it, and report its outcome.

Lesson 12.
"""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from helpers import _processes as processes, results
from helpers.checks import members, named, number, one_of, short
from helpers.isolation import _child as child

Status = Literal["returned", "raised", "out_of_memory", "timed_out", "died"]

_START_LIMIT_S = 120.0  # for the interpreter, the imports and the function's data
_SEND_LIMIT_S = 120.0
_GRACE_S = 0.25  # the process writes down where it stands before it is ended
_EXIT_LIMIT_S = 5.0  # for a process that has answered to end by itself
_POLL_S = 0.01
_READER_LIMIT_S = 2.0
_LARGEST_LIMIT_BYTES = 2**62
_BAD_ALLOC = "std::bad_alloc"
# The commands that may put what follows them into a namespace of mounts: as the user, and as root.
_NAMESPACES = (("unshare", "--user", "--map-root-user", "--mount"), ("unshare", "--mount"))
_MOUNT = 'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'


class Outcome(results.Record):
    """The outcome of a function that :func:`run_limited` ran; ``status`` is one of five.

    ``returned``: it returned ``value``. ``raised``: an exception (``error_type``, ``traceback``),
    also when its value cannot be sent back. ``out_of_memory``: it asked for more than the limit or
    than the machine has. ``timed_out``: it was ended; ``traceback`` says where it stood. ``died``:
    the process ended without an answer (``exit_code``, or ``signal``). ``message`` is one sentence
    on it, ``output`` what was printed, in order, the middle left out if it is long.

    ``peak_bytes`` is the largest resident memory over the process's own before the function began
    (the kernel's figure, within about a megabyte), None where the system does not tell. Lesson 12.
    """

    status: Status
    message: str
    elapsed_s: float
    peak_bytes: int | None
    value: Any = field(default=None, repr=False)
    error_type: str | None = field(default=None, repr=False)
    traceback: str = field(default="", repr=False)
    output: str = field(default="", repr=False)
    exit_code: int | None = field(default=None, repr=False)
    signal: str | None = field(default=None, repr=False)

    def unwrap(self) -> Any:
        """Return the value of a function that returned.

        Raises MemoryError when it was out of memory, TimeoutError when it timed out, and
        RuntimeError, with the traceback of its process, when it raised or died.
        """
        if self.status == "returned":
            return self.value
        kinds = {"out_of_memory": MemoryError, "timed_out": TimeoutError}
        details = self.traceback or self.output[-2000:]
        raise kinds.get(self.status, RuntimeError)(f"{self.message}\n{details}".rstrip())


def run_limited(
    function: Callable[..., Any],
    *args: Any,
    memory_bytes: float | None = None,
    shared_memory_bytes: float | None = None,
    timeout_s: float = 60.0,
    variables: Mapping[str, str] | None = None,
) -> Outcome:
    """Run ``function(*args)`` in a fresh process and return its :class:`Outcome`.

    ``memory_bytes`` limits its memory over the process's own (see the module's text), None does
    not; ``timeout_s`` limits the function, not the start of its process, nor the sending of its
    value (two minutes each). At the end the process and all that it started are ended, on Linux
    also what has a session of its own (elsewhere what is in its group), and Python frees the shared
    memory of its processes; so it is on Ctrl-C. ``shared_memory_bytes`` gives it a /dev/shm of its
    own of that size (whole pages), as a container has; None leaves it the system's. ``variables``
    are set in its environment before anything is imported, over those of this process.

    Raises TypeError when ``function`` is not callable or cannot be sent to another process, or
    ``variables`` are no dictionary of texts, ValueError for limits that are not positive numbers,
    and RuntimeError where memory can be neither limited nor watched, or where the system does not
    allow a private /dev/shm (it needs Linux and a mount namespace).

    >>> outcome = run_limited(sum, [1, 2, 3], timeout_s=60)
    >>> outcome.status, outcome.value
    ('returned', 6)

    Lesson 12.
    """
    task = processes.pack_call(function, args, caller="run_limited")
    memory = _whole_bytes("memory_bytes", memory_bytes)
    if memory is not None:
        memory = min(memory, _LARGEST_LIMIT_BYTES)
    limit_s = number("timeout_s", timeout_s, above=0)
    environment = {**os.environ, **_texts({} if variables is None else variables)}
    shared_memory = _whole_bytes("shared_memory_bytes", shared_memory_bytes)
    entrance = [] if shared_memory is None else _shared_memory_entrance(shared_memory)
    with tempfile.TemporaryDirectory(prefix="isolated-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _write_task(folder / child.TASK, task)
        order = {
            "path": processes.import_path(),
            "needs_torch": _has_torch(),
            "memory_bytes": memory,
            "timeout_s": limit_s,
            "source": _source(function),
        }
        (folder / child.ORDER).write_text(json.dumps(order), encoding="utf-8")
        return _run(folder, memory, limit_s, entrance, environment)


def _whole_bytes(name: str, value: float | None) -> int | None:
    return None if value is None else int(number(name, value, at_least=1))


def _texts(variables: Mapping[str, str]) -> dict[str, str]:
    members("variables", list(named("variables", variables, "texts")), "names", kind=str)
    return {
        name: one_of(f"variables[{name!r}]", value, str, "a text")
        for name, value in variables.items()
    }


def _write_task(path: Path, task: bytes) -> None:
    try:
        path.write_bytes(task)
    except OSError as error:
        raise OSError(
            error.errno,
            f"the function and its arguments, {len(task):,} bytes, cannot be written for the new "
            f"process ({error.strerror}); free space in the folder of temporary files, or set "
            "TMPDIR to another one",
        ) from error


def _shared_memory_entrance(size_bytes: int) -> list[str]:
    """Return the words before a command that give it a private, empty /dev/shm of ``size_bytes``.

    They make a mount namespace (mount_namespaces(7)), as the user or as root, so that nobody else
    sees the mount and it ends with the process. tmpfs rounds up to whole pages (tmpfs(5)). Each way
    is tried before it is given.

    Raises RuntimeError where no way works, with the reason of each.
    """
    missing_tools = [tool for tool in ("unshare", "mount", "sh") if shutil.which(tool) is None]
    if not sys.platform.startswith("linux"):
        reasons = [f"it needs Linux's namespaces, and this is {sys.platform}"]
    elif missing_tools:
        reasons = [f"not installed: {', '.join(missing_tools)}"]
    else:
        reasons = []
        for namespace in _NAMESPACES:
            words = [*namespace, "sh", "-c", _MOUNT.format(size=size_bytes), "sh"]
            reason = processes.refusal([*words, "true"])
            if not reason:
                return words
            reasons.append(f"{' '.join(namespace)}: {reason}")
    raise RuntimeError(
        f"this system gives no private /dev/shm ({'; '.join(reasons)}); run it as "
        "root, or where unprivileged user namespaces are allowed, or leave shared_memory_bytes out"
    )


def _has_torch() -> bool:
    return "torch" in sys.modules


def _source(function: Callable[..., Any]) -> dict[str, list[str]]:
    """Return the lines of the notebook's cell that defines the function, which no file holds, for
    the traceback.
    """
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    return {file: linecache.getlines(file)} if file and not os.path.exists(file) else {}


def _run(
    folder: Path,
    memory_bytes: int | None,
    timeout_s: float,
    entrance: list[str],
    environment: dict[str, str],
) -> Outcome:
    kills_before = _system_memory_kills()
    process = subprocess.Popen(
        [*entrance, *processes.python(child.BOOTSTRAP, str(folder))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        env=environment,
        **processes.OWN_GROUP,
    )
    capture = _OutputCapture()
    reader = threading.Thread(target=capture.drain, args=(process.stdout,), daemon=True)
    try:
        reader.start()
        observation = _watch(process, folder, memory_bytes, timeout_s)
    finally:
        # its keeper ends the function's process and all that it started
        if sys.platform == "linux":
            process.terminate()
            _has_ended(process, _EXIT_LIMIT_S)
        processes.end_group(process.pid)
        process.wait()
        reader.join(_READER_LIMIT_S)
    kills = _system_memory_kills() - kills_before
    return _outcome(
        observation,
        folder,
        capture.text(),
        code=process.returncode,
        kills=kills,
        memory_bytes=memory_bytes,
        timeout_s=timeout_s,
    )


class _OutputCapture:
    """The first and the last of what a process prints; the rest is read and dropped, so that it
    never waits.
    """

    def __init__(self) -> None:
        self._head, self._tail, self._dropped = bytearray(), bytearray(), 0

    def drain(self, stream: IO[bytes]) -> None:
        with stream:
            while chunk := stream.read(1 << 16):
                space = processes.KEPT_OUTPUT_BYTES - len(self._head)
                self._head += chunk[:space]
                self._tail += chunk[space:]
                excess = max(0, len(self._tail) - processes.KEPT_OUTPUT_BYTES)
                self._dropped += excess
                del self._tail[:excess]

    def text(self) -> str:
        return processes.join_output(bytes(self._head), self._dropped, bytes(self._tail))


@dataclass
class _Observation:
    """The caller's view of the running process."""

    start: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    answer: dict[str, Any] | None = None
    elapsed_s: float = 0.0
    peak_bytes: int | None = None
    ended_for: Literal["time", "memory"] | None = None

    @property
    def phase(self) -> Literal["starting", "running", "sending", "leaving"]:
        if self.answer is not None:
            return "leaving"
        if self.end is not None:
            return "sending"
        return "starting" if self.start is None else "running"


def _watch(
    process: subprocess.Popen[bytes], folder: Path, memory_bytes: int | None, timeout_s: float
) -> _Observation:
    """Wait until the process has ended or must be ended, and return the observation of it."""
    limits_s = {
        "starting": _START_LIMIT_S,
        "running": timeout_s + _GRACE_S,
        "sending": _SEND_LIMIT_S,
        "leaving": _EXIT_LIMIT_S,
    }
    observation, since = _Observation(), time.monotonic()
    while not _has_ended(process, _POLL_S):
        phase = observation.phase
        _read_progress(observation, folder)
        since = since if observation.phase == phase else time.monotonic()
        if observation.phase == "running" and observation.start is not None:
            observation.elapsed_s = time.monotonic() - since
            _look_at_memory(observation, observation.start, memory_bytes)
        if time.monotonic() - since > limits_s[observation.phase]:
            observation.ended_for = "time"
        if observation.ended_for:
            return observation
    _read_progress(observation, folder)
    return observation


def _read_progress(observation: _Observation, folder: Path) -> None:
    observation.start = observation.start or _read_json(folder / child.START)
    observation.end = observation.end or _read_json(folder / child.END)
    observation.answer = observation.answer or _read_json(folder / child.ANSWER)


def _has_ended(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _look_at_memory(
    observation: _Observation, start: dict[str, Any], memory_bytes: int | None
) -> None:
    """Note the peak, and where the system does not hold the limit, hold it."""
    limit_bytes = None if start["is_limited"] else memory_bytes
    if limit_bytes is not None and start["baseline_bytes"] is None:
        raise RuntimeError(
            "this system does not limit a process's memory, and psutil, which could watch it, is "
            "not installed; install psutil, or leave memory_bytes out"
        )
    resident = child.resident_bytes(start["process"])
    if resident is None or start["baseline_bytes"] is None:
        return
    current, peak = (amount - start["baseline_bytes"] for amount in resident)
    observation.peak_bytes = max(observation.peak_bytes or 0, peak)
    if limit_bytes is not None and current > limit_bytes:
        observation.ended_for = "memory"


def _system_memory_kills() -> int:
    """Return the number of processes that the kernel has ended for want of memory since it started
    (Linux; else 0).
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _outcome(
    observation: _Observation,
    folder: Path,
    output: str,
    *,
    code: int,
    kills: int,
    memory_bytes: int | None,
    timeout_s: float,
) -> Outcome:
    measurement = observation.end or {"elapsed_s": observation.elapsed_s, "peak_bytes": None}
    peak = (
        observation.peak_bytes if measurement["peak_bytes"] is None else measurement["peak_bytes"]
    )
    common = {"elapsed_s": measurement["elapsed_s"], "peak_bytes": peak, "output": output}
    if observation.ended_for == "memory":
        message = f"the function was ended: it held more than its limit of {memory_bytes:,} bytes"
        return Outcome(status="out_of_memory", message=message, **common)
    if measurement["elapsed_s"] > timeout_s or (
        observation.ended_for == "time" and observation.phase != "leaving"
    ):
        return _timeout_outcome(observation, folder, common, timeout_s)
    if observation.answer is None:
        return _death_outcome(code, kills, common)
    if observation.answer["status"] != "returned":
        return Outcome(**observation.answer, **common)
    return _return_outcome(folder, common)


def _timeout_outcome(
    observation: _Observation, folder: Path, common: dict[str, Any], timeout_s: float
) -> Outcome:
    if observation.phase == "starting":
        message = f"the fresh process was not ready after {_START_LIMIT_S:.0f} s, and was ended"
    elif common["elapsed_s"] <= timeout_s:
        message = (
            f"the function's value could not be sent within {_SEND_LIMIT_S:.0f} s, and the process "
            "was ended"
        )
    else:
        message = f"the function ran longer than its limit of {timeout_s:g} s, and was ended"
    stack = processes.read_text(folder / child.TRACE)
    return Outcome(status="timed_out", message=message, traceback=stack, **common)


def _return_outcome(folder: Path, common: dict[str, Any]) -> Outcome:
    try:
        with open(folder / child.VALUE, "rb") as file:
            value = pickle.load(file)
    except Exception as error:
        kind = type(error).__name__
        message = f"the function returned, but its value cannot be loaded here: {kind}: {error}"
        return Outcome(status="raised", message=message, error_type=kind, **common)
    message = f"the function returned {' '.join(short(value).split())}"
    return Outcome(status="returned", message=message, value=value, **common)


def _death_outcome(code: int, kills: int, common: dict[str, Any]) -> Outcome:
    """Return the outcome of a process that left no answer; out of memory only where something shows
    it.
    """
    if code < 0:
        name = processes.signal_name(code)
        status: Status = "out_of_memory"
        if name == "SIGKILL" and kills > 0:
            message = "the system's memory ran out, and its kernel ended the process (SIGKILL)"
        elif name == "SIGABRT" and _BAD_ALLOC in common["output"]:
            message = "the process was out of memory in C++ (std::bad_alloc) and aborted (SIGABRT)"
        else:
            status = "died"
            message = f"the process was ended by {name} before the function returned"
        return Outcome(status, message, signal=name, **common)
    message = f"the process ended with exit code {code} before the function returned"
    return Outcome(status="died", message=message, exit_code=code, **common)


def _read_json(path: Path) -> dict[str, Any] | None:
    """Return the file's contents, None while it is not there: the process renames it into place
    when it is whole.
    """
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
