"""Ranks for notebook cells: a function on several processes that talk to each other through
torch.distributed.

    with Ranks(4) as ranks:
        ranks.run(function, argument)      # calls function(rank, 4, argument) on each rank

The first run starts the ranks, and they stay for the next ones: a run then takes milliseconds. The
function may be defined in a cell, and everything that it needs goes with it, by value: what it
changes, it changes in its rank alone, and what it returns comes back by value, tensors as copies on
the CPU.

Ranks are made for a time: they end with the pool, and with the notebook's kernel, whatever ends
that. A rank that raises, dies or hangs surfaces as one :class:`helpers.ranks.RankError`, and the
next run starts all ranks afresh. For a script see :func:`helpers.ranks.torchrun`.

Lesson 05.
"""

from __future__ import annotations

import os
import pickle
import time
import weakref
from collections.abc import Callable
from typing import Any

from helpers import _processes as processes
from helpers.checks import number, whole_number
from helpers.ranks import _failures as failures, _wire as wire, _worker as worker
from helpers.ranks._pool import Pool

_SETTLE_S = 0.5  # after a failure, for the others to fail as well, or to be done
_POLL_S = 0.25
_MOST_RANKS = 1024


class Ranks:
    """``world_size`` processes that wait for a function: see :meth:`run`.

    To be used in a ``with``, or closed. ``device`` is ``"cuda"`` (each rank has the GPU of its
    number as its current device, and nccl beside gloo) or ``"cpu"`` (gloo); by default CUDA where
    there is a GPU for every rank. ``threads`` is what each rank computes with: by default the
    threads of the notebook (``torch.get_num_threads()``) divided among the ranks, at least one. A
    rank's NumPy has one thread. Nothing is started before the first run; ``output`` holds what each
    rank printed in the last.

    Raises TypeError or ValueError for a number that is not a whole one above 0, ValueError for a
    device that is not there, and RuntimeError in a rank, which cannot start ranks of its own.
    Lesson 05.
    """

    def __init__(
        self, world_size: int, *, device: str | None = None, threads: int | None = None
    ) -> None:
        import torch

        if worker.current_rank is not None:
            raise RuntimeError(
                f"this is rank {worker.current_rank} of other ranks already, and a rank cannot "
                "start ranks; start them in the notebook, and use torch.distributed.new_group for "
                "parts of them"
            )
        self.world_size = whole_number("world_size", world_size, at_most=_MOST_RANKS)
        thread_share = max(1, torch.get_num_threads() // self.world_size)
        self.threads = thread_share if threads is None else whole_number("threads", threads)
        self.device = _device(device, self.world_size)
        self.output: tuple[str, ...] = ("",) * self.world_size
        self._pool = Pool(self.world_size, threads=self.threads, device=self.device)
        # At the end of the program, and when nobody holds the ranks any more; not in a process
        # forked from this one.
        self._close = weakref.finalize(self, _close, self._pool, os.getpid())

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = (
            "closed" if not self._close.alive else "running" if self._pool.ranks else "not started"
        )
        return f"Ranks({self.world_size}, device={self.device!r}, threads={self.threads}) [{state}]"

    def close(self) -> None:
        """End the ranks; a second time is no error. Lesson 05."""
        self._close()

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 60.0) -> list[Any]:
        """Call ``function(rank, world_size, *args)`` on every rank and return the results in rank
        order.

        ``torch.distributed`` is initialised in each rank. What ranks print is shown after the run,
        rank by rank, and kept in ``output``. ``timeout_s`` limits the function, not the start of
        the ranks (ten minutes). What a function needs of a module is imported in the ranks once:
        after a change to the module, make new ranks.

        Raises :class:`helpers.ranks.RankError` when a rank raises, dies, or has not returned at the
        limit; TypeError for what is no function or cannot be sent; ValueError for a limit that is
        not above 0; MemoryError when the ranks would not fit into the free memory; RuntimeError
        when they are closed, or do not start. Lesson 05.
        """
        if not self._close.alive:
            raise RuntimeError("these ranks are closed; make new ones: Ranks(world_size)")
        limit_s = number("timeout_s", timeout_s, above=0)
        task = processes.pack_call(function, args, caller="run", pack=worker.pack)
        pool = self._pool
        pool.start()
        try:
            (pool.folder / worker.TASK).write_bytes(task)
            order = {"path": processes.import_path(), "folder": os.getcwd()}
            states, values = _collect(pool, order, limit_s)
        except BaseException:  # Ctrl-C, a full disk: what the ranks now do is of no use
            pool.end_ranks()
            raise
        self.output = tuple(state.output for state in states)
        _show(self.output)
        if any(state.status != "returned" for state in states):
            pool.end_ranks()
            raise failures.error(states, limit_s=limit_s)
        return values


def _close(pool: Pool, process: int) -> None:
    if os.getpid() == process:
        pool.close()


def _device(device: str | None, world_size: int) -> str:
    import torch

    has_nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    gpus = torch.cuda.device_count() if has_nccl else 0
    if device is None:
        return "cuda" if gpus >= world_size else "cpu"
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}; give 'cpu' or 'cuda'")
    if device == "cuda" and gpus < world_size:
        raise ValueError(
            f"{world_size} ranks on CUDA need a GPU each, and nccl; here are {gpus}; give "
            "device='cpu'"
        )
    return device


def _collect(
    pool: Pool, order: dict[str, Any], limit_s: float
) -> tuple[list[failures.RankState], list[Any]]:
    """Give the order to all ranks, and return the state of each and, where all returned, their
    values.
    """
    for channel in pool.ranks.values():
        try:
            wire.send(channel, order)
        except OSError:  # it has died since the last run: reading from it will tell
            continue
    end_s = time.monotonic() + limit_s
    waiting, answers = set(pool.ranks), {}
    while waiting and (left_s := end_s - time.monotonic()) > 0:
        for rank in pool.wait(waiting, min(left_s, _POLL_S)):
            answers[rank] = pool.answer(rank)
        # A process can end while one that it started holds its connection open: then only the
        # keeper tells.
        for rank in waiting & set(pool.codes):
            answers.setdefault(rank, {"status": "died"})
        waiting -= set(answers)
        if any(answer["status"] != "returned" for answer in answers.values()):
            end_s = min(end_s, time.monotonic() + _SETTLE_S)
    values: list[Any] = [None] * pool.world_size
    for rank, answer in answers.items():
        if answer["status"] == "returned" and not waiting:
            values[rank] = _value(pool, rank, answer)
    stacks = pool.stacks(sorted(waiting)) if waiting else {}
    states = [
        _state(pool, rank, answers.get(rank), stacks.get(rank, ""))
        for rank in range(pool.world_size)
    ]
    return states, values


def _value(pool: Pool, rank: int, answer: dict[str, Any]) -> Any:
    """Return the value of ``rank``; where it cannot be loaded here, ``answer`` becomes an
    exception.
    """
    path = pool.folder / worker.VALUE.format(rank)
    try:
        return pickle.loads(path.read_bytes())
    except Exception as error:
        kind = type(error).__name__
        answer |= worker.refusal(f"returned a value that cannot be loaded here ({kind}: {error})")
    finally:
        path.unlink()


def _state(pool: Pool, rank: int, answer: dict[str, Any] | None, stack: str) -> failures.RankState:
    output = pool.read_output(rank)
    if answer is None:
        return failures.running_state(rank, stack, output)
    if answer["status"] == "died":
        return failures.died_state(rank, pool.wait_for_code(rank), output)
    if answer["status"] == "raised":
        return failures.raised_state(rank, answer, output)
    return failures.RankState(rank, "returned", "returned", output=output)


def _show(output: tuple[str, ...]) -> None:
    """Print the ranks' output, rank after rank, each line with its rank's number."""
    for rank, text in enumerate(output):
        for line in text.splitlines():
            print(f"[rank {rank}] {line}")
