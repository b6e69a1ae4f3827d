"""Checkpoints: what a save costs, how each way of saving stalls a training, and saves that go on
beside the training.

An asynchronous save has two parts. The *snapshot* copies every tensor, which stalls the training
for a copy in memory; the *write* serialises the copies and brings them to the disk in a thread.
Without the snapshot the thread would read tensors that the optimizer changes meanwhile: the file
then holds a state that no step ever had.

How often to save: the interval that loses the least time to saving and to failures. Saving takes
``save_s`` (what it stalls the training), failures come at random with a mean time ``mtbf_s``
between them (a Poisson process), and a restart takes ``restart_s``. All in seconds. J. W. Young, "A
first order approximation to the optimum checkpoint interval", Communications of the ACM 17 (9),
1974; J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
Future Generation Computer Systems 22, 2006.

Lesson 10.
"""

from __future__ import annotations

import io
import math
import os
import random
import re
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from helpers import console, storage
from helpers.checks import boolean, choice, number, random_seed, whole_number
from helpers.links import Link, require_link, sleep_for, sleep_until
from helpers.results import Record
from helpers.steps import tensors_of

_BISECTIONS = 200
_MOST_PIECES = 10_000_000


def young_interval_s(save_s: float, mtbf_s: float) -> float:
    """Return sqrt(2 save_s mtbf_s), the seconds of training between two saves: Young (1974), for
    save_s << mtbf_s.

    Raises ValueError for a time that is not above 0. Lesson 10.
    """
    _check(save_s=save_s, mtbf_s=mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s)


def daly_interval_s(save_s: float, mtbf_s: float) -> float:
    """Return Daly's (2006) higher-order estimate of the seconds of training between two saves.

    With d = save_s and M = mtbf_s: sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d where d <
    2 M, else M. Raises ValueError for a time that is not above 0. Lesson 10.
    """
    _check(save_s=save_s, mtbf_s=mtbf_s)
    part = save_s / (2 * mtbf_s)
    if part >= 1:
        return float(mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9) - save_s


def optimal_interval_s(save_s: float, mtbf_s: float) -> float:
    """Return the interval at which :func:`expected_run_s` is least: where its derivative is 0,
    found by bisection.

    The two estimates above approximate it; the restart does not enter. Raises ValueError for a time
    that is not above
    0. Lesson 10.
    """
    _check(save_s=save_s, mtbf_s=mtbf_s)
    low, high, saving = 0.0, 1.0, save_s / mtbf_s  # in units of mtbf_s
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        # d/dt of (e^(t + saving) - 1) / t has the sign of e^(t + saving) (t - 1) + 1: over e^(t +
        # saving), so that it does not overflow, and by expm1, so that short times are not lost
        # beside 1.
        if middle + math.expm1(-middle - saving) < 0:
            low = middle
        else:
            high = middle
    return high * mtbf_s


def expected_run_s(
    work_s: float, interval_s: float, *, save_s: float, mtbf_s: float, restart_s: float = 0.0
) -> float:
    """Return the expected seconds of a training of ``work_s`` that saves after every ``interval_s``
    of training.

    M e^(R / M) (e^((t + d) / M) - 1) work_s / t, with t = ``interval_s``, a save of d = ``save_s``,
    M = ``mtbf_s`` between failures in the mean, and a restart of R = ``restart_s``: Daly (2006).
    Failures come while training, saving and restarting; what was trained since the last save is
    lost. Infinite where it would not end within the largest float.

    Raises ValueError for a time that is not above 0 (a restart may be 0). Lesson 10.
    """
    _check(work_s=work_s, interval_s=interval_s, save_s=save_s, mtbf_s=mtbf_s)
    number("restart_s", restart_s, at_least=0)
    try:
        return (
            mtbf_s
            * math.exp(restart_s / mtbf_s)
            * math.expm1((interval_s + save_s) / mtbf_s)
            * work_s
            / interval_s
        )
    except OverflowError:
        return math.inf


def simulate_run_s(
    work_s: float,
    interval_s: float,
    *,
    save_s: float,
    mtbf_s: float,
    restart_s: float = 0.0,
    seed: int = 0,
) -> float:
    """Return the seconds of one simulated training whose failures are drawn with ``seed``: the
    formula's oracle.

    The ``work_s`` of training are cut into pieces of ``interval_s`` (the last may be shorter), each
    saved at its end. A save takes ``save_s``, a restart ``restart_s``; failures are ``mtbf_s``
    apart in the mean. Raises ValueError for a time that is not above 0 (a restart may be 0), and
    for a training of more pieces, those that fail and come again among them, than anybody would
    wait for. Lesson 10.
    """
    _check(work_s=work_s, interval_s=interval_s, save_s=save_s, mtbf_s=mtbf_s)
    number("restart_s", restart_s, at_least=0)
    whole_s = restart_s + min(interval_s, work_s) + save_s
    if math.log(max(1.0, work_s / interval_s)) + whole_s / mtbf_s > math.log(_MOST_PIECES):
        raise ValueError(
            f"with pieces of {interval_s:g} s of {work_s:g} s, and {mtbf_s:g} s between failures, "
            f"a simulation would run more than {_MOST_PIECES:,} pieces, for most of them fail or "
            "there are as many; take another interval_s, or expected_run_s, which is a formula"
        )
    draw = random.Random(random_seed(seed))
    now_s, saved_s, fails_s = 0.0, 0.0, draw.expovariate(1 / mtbf_s)
    needs_restart = False
    while saved_s < work_s - 1e-9 * work_s:
        piece_s = min(interval_s, work_s - saved_s)
        end_s = now_s + (restart_s if needs_restart else 0.0) + piece_s + save_s
        if end_s <= fails_s:
            now_s, saved_s, needs_restart = end_s, saved_s + piece_s, False
        else:
            now_s, needs_restart = fails_s, True
            fails_s += draw.expovariate(1 / mtbf_s)
    return now_s


def _check(**times_s: float) -> None:
    for name, value in times_s.items():
        number(name, value, above=0)


WAYS = ("none", "synchronous", "asynchronous", "torch async_save")
_LEARNING_RATE = 1e-3
_NAME, _STEP = "step_{:08d}.pt", re.compile(r"step_(\d{8,})\.pt")


def training_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, step: int = 0
) -> dict[str, Any]:
    """Return all that a training needs to go on: the states of ``model`` and ``optimizer`` and the
    ``step``, by reference.

    Nothing is copied: a later step changes the tensors in it. Lesson 10.
    """
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}


def state_bytes(state: object) -> int:
    """Return the bytes of all tensors in ``state``; one that is there twice (tied weights) counts
    once.

    They may be on the meta device. A view counts with all that it is a view of, which
    ``torch.save`` writes. Lesson 10.
    """
    storages = (tensor.untyped_storage() for tensor in tensors_of(state))
    return sum(
        {tensor_storage._cdata: tensor_storage.nbytes() for tensor_storage in storages}.values()
    )


def snapshot(state: Any) -> Any:
    """Return a copy of ``state`` on the CPU that no later step changes; tensors of one storage
    share one again.

    From CUDA the copies go through pinned memory, queued one after the other and waited for once.
    """
    copies: dict[int, torch.Tensor] = {}

    def copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()._cdata  # its address in PyTorch
        if storage not in copies:
            copies[storage] = _copy_storage(tensor)
        size, stride, offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        return torch.empty(0, dtype=tensor.dtype).set_(
            copies[storage].untyped_storage(), offset, size, stride
        )

    cpu_state = pytree.tree_map_only(torch.Tensor, copy_tensor, state)
    for device in {tensor.device for tensor in tensors_of(state) if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return cpu_state


def _copy_storage(tensor: torch.Tensor) -> torch.Tensor:
    source = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        tensor.detach().untyped_storage()
    )
    copy = torch.empty(len(source), dtype=torch.uint8, pin_memory=tensor.is_cuda)
    return copy.copy_(source, non_blocking=tensor.is_cuda)


class Checkpointer:
    """Saves training states to ``folder``, each file whole or not there; to be used in a ``with``,
    or closed.

    ``asynchronous`` saves take a :func:`snapshot`, return, and write in a thread, one at a time: a
    save that comes before the last one is written waits for it. What goes wrong in the thread is
    raised by the next save or by ``close``. ``takes_snapshot=False`` is the trap that the lesson
    shows: the thread reads the training's own tensors. ``disk`` makes the write last at least as
    long as a disk of that rate would need, by sleeping first.

    Raises FileNotFoundError for a folder that is missing, TypeError for a disk that is no link.
    Lesson 10.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        asynchronous: bool = True,
        takes_snapshot: bool = True,
        disk: Link | None = None,
    ) -> None:
        boolean("asynchronous", asynchronous)
        boolean("takes_snapshot", takes_snapshot)
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise FileNotFoundError(f"the folder {str(folder)!r} is not there; make it first")
        self.asynchronous, self.takes_snapshot = asynchronous, takes_snapshot
        self.disk = None if disk is None else require_link("disk", disk)
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif self._thread is not None:  # the block's own exception goes first
            self._thread.join()

    def save(self, state: Mapping[str, Any], step: int) -> float:
        """Save ``state`` as that of ``step``; return the seconds that this call kept the training
        waiting.

        Raises OSError, for this save or (asynchronously) for the one before, when the disk is full.
        Lesson 10.
        """
        start_s = time.perf_counter()
        path = self.path(step)
        if not self.asynchronous:
            self._write(state, path)
            return time.perf_counter() - start_s
        self.close()
        saved_state = snapshot(state) if self.takes_snapshot else state
        self._thread = threading.Thread(
            target=self._write_or_keep_error, args=(saved_state, path), name="checkpoint"
        )
        self._thread.start()
        return time.perf_counter() - start_s

    def close(self) -> None:
        """Wait until the last save is on the disk; raise what went wrong in it. Lesson 10."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def path(self, step: int) -> Path:
        """Return the file of ``step``. Lesson 10."""
        return self.folder / _NAME.format(whole_number("step", step, at_least=0))

    def load(self, step: int | None = None) -> dict[str, Any]:
        """Return the state saved at ``step`` (None: the last one), its tensors on the CPU.

        Raises FileNotFoundError, naming the steps that there are. Lesson 10.
        """
        matches = (_STEP.fullmatch(file.name) for file in self.folder.iterdir())
        saved_steps = sorted(int(match[1]) for match in matches if match is not None)
        if not saved_steps or (step is not None and step not in saved_steps):
            steps = ", ".join(map(str, saved_steps)) or "none"
            raise FileNotFoundError(
                f"no checkpoint of {'any step' if step is None else f'step {step}'} in "
                f"{str(self.folder)!r}; there are those of: {steps}"
            )
        return torch.load(
            self.path(saved_steps[-1] if step is None else step),
            map_location="cpu",
            weights_only=True,
        )

    def _write_or_keep_error(self, state: Mapping[str, Any], path: Path) -> None:
        try:
            self._write(state, path)
        except Exception as error:  # raised by the next save or by close
            self._error = error

    def _write(self, state: Mapping[str, Any], path: Path) -> None:
        if self.disk is not None:
            sleep_for(self.disk.transfer_s(state_bytes(state)))
        storage.write_atomically(path, serialise(state).getbuffer())


def serialise(state: Mapping[str, Any]) -> io.BytesIO:
    """Return ``state`` in memory as ``torch.save`` writes it."""
    content = io.BytesIO()
    torch.save(state, content)
    return content


# What saving costs, measured.


class SaveCost(Record):
    """The least seconds of each part of a save: ``snapshot_s`` alone stalls an asynchronous one.

    ``serialise_s`` is ``torch.save`` into memory, ``write_s`` hands the bytes to the system (the
    page cache), ``sync_s`` waits until they are on the disk (fsync). ``saved_bytes_per_s`` is of
    all three. Lesson 10.
    """

    state_bytes: int
    file_bytes: int
    snapshot_s: float
    serialise_s: float
    write_s: float
    sync_s: float
    save_s: float
    saved_bytes_per_s: float


def measure_save(
    state: Mapping[str, Any], folder: str | os.PathLike[str] | None = None, *, repeats: int = 3
) -> SaveCost:
    """Return the cost of saving ``state`` to ``folder`` (by default that for temporary files), part
    by part.

    Each part's least of ``repeats``; the file is removed. Raises ValueError for a state without
    tensors, OSError for a folder that is missing or full. Lesson 10.
    """
    size = state_bytes(state)
    if size == 0:
        raise ValueError(
            "the state holds no tensors; give one such as training_state(model, optimizer)"
        )
    parts: dict[str, list[float]] = {
        "snapshot_s": [],
        "serialise_s": [],
        "write_s": [],
        "sync_s": [],
    }
    with tempfile.TemporaryDirectory(prefix="save-", dir=folder) as directory:
        for _ in range(whole_number("repeats", repeats, at_least=1)):
            moments = [time.perf_counter()]
            snapshot(state)
            moments.append(time.perf_counter())
            content = serialise(state)
            moments.append(time.perf_counter())
            with open(Path(directory) / "state.pt", "wb") as file:
                file.write(content.getbuffer())
                file.flush()
                moments.append(time.perf_counter())
                os.fsync(file.fileno())
                moments.append(time.perf_counter())
            for name, start_s, end_s in zip(parts, moments, moments[1:], strict=False):
                parts[name].append(end_s - start_s)
            file_bytes = len(content.getbuffer())
    least = {name: min(taken_s) for name, taken_s in parts.items()}
    save_s = least["serialise_s"] + least["write_s"] + least["sync_s"]
    return SaveCost(
        state_bytes=size,
        file_bytes=file_bytes,
        **least,
        save_s=save_s,
        saved_bytes_per_s=size / save_s,
    )


class StallRow(Record):
    """A training with one way of saving: ``stall_s`` is the mean time that a save kept it waiting.

    Lesson 10.
    """

    way: str
    steps: int
    saves: int
    elapsed_s: float
    stall_s: float
    longest_stall_s: float
    stalled_share: float


class StallTable(Record):
    """The same training with each way of saving; a save's bytes, and the seconds of training
    between two saves.

    ``interval_s`` is what the steps were given; steps whose own work takes longer than that make it
    longer. Lesson 10.
    """

    state_bytes: int
    interval_s: float
    rows: tuple[StallRow, ...]

    def row(self, way: str) -> StallRow:
        """Return the row of ``way``; ValueError for one that is not there. Lesson 10."""
        rows = {row.way: row for row in self.rows}
        return rows[choice("way", way, rows)]


def modelled_stall_s(way: str, *, save_s: float, snapshot_s: float, interval_s: float) -> float:
    """Return the seconds that a save in the steady state stalls a training, by the ``way`` of
    saving.

    >>> modelled_stall_s("asynchronous", save_s=2, snapshot_s=0.25, interval_s=1.5)
    0.75

    "synchronous": the whole ``save_s``; "asynchronous" and "torch async_save": ``snapshot_s``, and
    what of the last save the ``interval_s`` between saves did not hide; "none": 0. Raises
    ValueError for an unknown way and a negative time. Lesson 10.
    """
    choice("way", way, WAYS)
    for name, value in (("save_s", save_s), ("snapshot_s", snapshot_s), ("interval_s", interval_s)):
        number(name, value, at_least=0)
    if way == "none":
        return 0.0
    return save_s if way == "synchronous" else snapshot_s + max(0.0, save_s - interval_s)


def measure_stalls(
    make_model: Callable[[], nn.Module],
    *,
    folder: str | os.PathLike[str] | None = None,
    ways: Sequence[str] = WAYS[:3],
    saves: int = 4,
    every: int = 5,
    step_s: float = 0.01,
    disk: Link | None = None,
    device: str | torch.device | None = None,
) -> StallTable:
    """Return how a training of ``saves`` x ``every`` steps with a save after each ``every`` is
    stalled by ``ways``.

    A step is Adam's on gradients of ones, for ``make_model()``, and lasts at least ``step_s``: the
    rest is slept, as by a host that waits for its accelerator. ``disk`` as in
    :class:`helpers.studies.input_pipeline.Checkpointer`: with it the table is the simulated tier's;
    "torch async_save" (torch.distributed.checkpoint) writes to the real disk only. ``folder`` (by
    default that for temporary files) holds the saves, ``device`` is CUDA if there is one unless
    given. The end of a training waits for its last save.

    Raises ValueError for no or an unknown way, or a ``disk`` with "torch async_save". Lesson 10.
    """
    if not ways:
        raise ValueError(f"ways names nothing to measure; use {', '.join(map(repr, WAYS))}")
    unknown = [way for way in ways if way not in WAYS]
    if unknown or (disk is not None and WAYS[3] in ways):
        why = f"{unknown[0]!r} is not known" if unknown else f"{WAYS[3]!r} cannot be given a disk"
        raise ValueError(f"{why}; use {', '.join(map(repr, WAYS))}, the last without disk")
    saves, every = (
        whole_number("saves", saves, at_least=1),
        whole_number("every", every, at_least=1),
    )
    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    rows, size = [], 0
    for way in console.track(tuple(ways), "one way of saving after the other", unit="way"):
        model = make_model().to(target)
        optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE)
        _step(model, optimizer, 0.0)  # Adam makes its moments in its first step
        size = state_bytes(training_state(model, optimizer))
        with (
            tempfile.TemporaryDirectory(prefix="stalls-", dir=folder) as scratch,
            warnings.catch_warnings(),
        ):
            # One process is meant; the warning comes from a thread, at any time until the last save
            # is written.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            rows.append(
                _row(
                    way,
                    model,
                    optimizer,
                    Path(scratch),
                    disk,
                    saves=saves,
                    every=every,
                    step_s=step_s,
                )
            )
    return StallTable(state_bytes=size, interval_s=every * step_s, rows=tuple(rows))


def _row(
    way: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    folder: Path,
    disk: Link | None,
    *,
    saves: int,
    every: int,
    step_s: float,
) -> StallRow:
    save, finish = _saver(way, folder, disk)
    stalls_s, start_s = [], time.perf_counter()
    try:
        for step in range(1, saves * every + 1):
            _step(model, optimizer, step_s)
            if step % every == 0 and way != "none":
                stalls_s.append(save(training_state(model, optimizer, step=step), step))
    finally:
        finish()
    elapsed_s = time.perf_counter() - start_s
    stalled_s = sum(stalls_s)
    return StallRow(
        way,
        saves * every,
        len(stalls_s),
        elapsed_s,
        stalled_s / max(1, len(stalls_s)),
        max(stalls_s, default=0.0),
        stalled_s / elapsed_s,
    )


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, step_s: float) -> None:
    end_s = time.perf_counter() + step_s
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    if torch.cuda.is_available() and any(parameter.is_cuda for parameter in model.parameters()):
        torch.cuda.synchronize()
    sleep_until(end_s)


def _saver(
    way: str, folder: Path, disk: Link | None
) -> tuple[Callable[[dict, int], float], Callable[[], None]]:
    if way == WAYS[3]:
        return _torch_saver(folder)
    checkpointer = Checkpointer(folder, asynchronous=way == "asynchronous", disk=disk)
    return checkpointer.save, checkpointer.close


def _torch_saver(folder: Path) -> tuple[Callable[[dict, int], float], Callable[[], None]]:
    """Save with torch.distributed.checkpoint.async_save in this one process; it stages to the CPU,
    then writes.
    """
    import torch.distributed.checkpoint as checkpoint

    running: list[Future] = []

    def finish() -> None:
        while running:
            running.pop().result()

    def save(state: dict, step: int) -> float:
        start_s = time.perf_counter()
        finish()
        answer = checkpoint.async_save(
            state, checkpoint_id=str(folder / f"step_{step:08d}"), no_dist=True
        )
        running.append(answer if isinstance(answer, Future) else answer.upload_completion)
        return time.perf_counter() - start_s

    return save, finish
