"""The notebook's side of a pool: memory for the ranks, their start and the keeper's, their
connections, their end.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from multiprocessing import connection
from pathlib import Path
from typing import Any

from helpers import _processes as processes, console, storage, units
from helpers.hardware._machine import read_memory_limit
from helpers.ranks import _keeper as keeper, _wire as wire, _worker as worker

_START_LIMIT_S = 600.0  # seconds on a free machine, minutes on one whose cores are all taken
_END_LIMIT_S = 10.0
_STACK_LIMIT_S = 2.0
_QUIET_S = 0.05
_CODE_LIMIT_S = 10.0
_POLL_S = 0.1
_LEFT_SHARE = 0.1  # of what is free: the notebook and the rest of the machine go on
_USAGE_FILES = ("sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory/memory.usage_in_bytes")
# Seconds to import, and needed in a rank by DTensor, FSDP, and the first autograd.Function alike.
_HEAVY_MODULES = ("torch._dynamo", "torch.distributed.tensor.parallel", "torch.distributed.fsdp")


def may_fork() -> bool:
    """Return whether ranks may be forked here: on Linux alone, where the keeper can count its
    threads.
    """
    return sys.platform == "linux"


class Pool:
    """The processes of a :class:`helpers.ranks.Ranks`: at most one keeper, and one start of its
    ranks.

    ``ranks`` maps a rank to its connection while the ranks run.
    """

    def __init__(self, world_size: int, *, threads: int, device: str) -> None:
        self.world_size, self.threads, self.device = world_size, threads, device
        storage.remove_leftovers(tempfile.gettempdir(), "ranks-")
        self.folder = Path(tempfile.mkdtemp(prefix=storage.own_prefix("ranks-")))
        self.ranks: dict[int, connection.Connection] = {}
        self.pids: dict[int, int] = {}
        self.codes: dict[int, int] = {}  # how ranks of this start have ended
        self.forks: bool | None = None
        # Of the keeper's start, or the ranks': who shows another is of a start that was broken off.
        self._token = ""
        self._server: socket.socket | None = None
        self._store: Any = None
        self._keeper: subprocess.Popen[str] | None = None
        self._control: connection.Connection | None = None
        self._private_bytes: int | None = None

    def start(self) -> None:
        """Start the processes that do not run yet, so that every rank has joined the group.

        Raises MemoryError when the ranks would not fit, RuntimeError when they do not start.
        """
        if self.ranks:
            return
        steps: Iterable[int] = range(self.world_size)
        end_s = time.monotonic() + _START_LIMIT_S
        try:
            if self._keeper is None or self._keeper.poll() is not None:
                steps = console.track(steps, "starting the ranks", unit="rank")
                heavy = [name for name in _HEAVY_MODULES if name in sys.modules]
                self._start_keeper(end_s, heavy)
                if heavy and may_fork() and not self.forks:  # it may be they that started a thread
                    self._start_keeper(end_s, [])
                self._notice_slow_start()
            if self._private_bytes is not None:
                _require_room(self.world_size, self._private_bytes, free_bytes())
            joining = self._gather_ranks(end_s)
            for _ in steps:
                joining.discard(self._next_ready(joining, end_s))
        except BaseException:  # also Ctrl-C: a half of the ranks is of no use
            self.end_ranks()
            raise

    def read_output(self, rank: int) -> str:
        """Return the output of ``rank`` since its function began, the middle left out if it is
        long.
        """
        path = self.folder / worker.OUTPUT.format(rank)
        if not path.exists():
            return ""
        with open(path, "rb") as file:
            head = file.read(processes.KEPT_OUTPUT_BYTES)
            file.seek(max(len(head), file.seek(0, os.SEEK_END) - processes.KEPT_OUTPUT_BYTES))
            return processes.join_output(head, file.tell() - len(head), file.read())

    def stacks(self, ranks: list[int]) -> dict[int, str]:
        """Ask ``ranks`` where they stand; return their stacks by rank, "" where nothing came."""
        paths = {rank: self.folder / worker.STACK.format(rank) for rank in ranks}
        if hasattr(signal, "SIGUSR1"):
            for rank in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pids[rank], signal.SIGUSR1)
            end_s = time.monotonic() + _STACK_LIMIT_S
            previous_sizes: list[int] = []
            while time.monotonic() < end_s:
                sizes = [path.stat().st_size for path in paths.values()]
                if all(sizes) and sizes == previous_sizes:
                    break
                previous_sizes = sizes
                time.sleep(_QUIET_S)  # what still grows is still being written
        return {rank: processes.read_text(path) for rank, path in paths.items()}

    def wait(self, waiting: set[int], limit_s: float) -> list[int]:
        """Return the ranks among ``waiting`` from which something came within ``limit_s``, and note
        ends of processes.

        Raises RuntimeError when the keeper itself is gone.
        """
        assert self._control is not None  # ranks run, so their keeper does
        channels = [self.ranks[rank] for rank in waiting]
        ready = connection.wait([*channels, self._control], max(0.0, limit_s))
        if self._control in ready:
            self._read_control()
        return sorted(rank for rank in waiting if self.ranks[rank] in ready)

    def answer(self, rank: int) -> dict[str, Any]:
        """Return the next message of ``rank``, whose ``status`` is "died" where none will come."""
        try:
            return wire.receive(self.ranks[rank])
        except (EOFError, OSError):
            return {"status": "died"}

    def wait_for_code(self, rank: int) -> int | None:
        """Return the exit code of a rank that has closed its connection, None if it is not told
        within ten seconds.
        """
        assert self._control is not None  # ranks ran, so their keeper does
        end_s = time.monotonic() + _CODE_LIMIT_S
        while rank not in self.codes and time.monotonic() < end_s:
            if self._control.poll(_POLL_S):
                self._read_control()
        return self.codes.get(rank)

    def end_ranks(self) -> None:
        """End all ranks of this start; the keeper stays, and starts the next."""
        for channel in self.ranks.values():
            channel.close()
        self.ranks, self.pids = {}, {}
        if self._control is None:
            self._end_keeper()
            return
        try:
            wire.send(self._control, {"do": "end"})
            end_s = time.monotonic() + _END_LIMIT_S
            while self._control.poll(max(0.0, end_s - time.monotonic())):
                if "all_ended" in wire.receive(self._control):
                    return
        except (EOFError, OSError):
            pass  # the keeper is gone, and on Linux its ranks with it
        self._end_keeper()

    def close(self) -> None:
        """End all processes and remove the files; again is no error."""
        self.end_ranks()
        self._end_keeper()
        self._store = None
        if self._server is not None:
            self._server.close()
            self._server = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start_keeper(self, end_s: float, modules: list[str]) -> None:
        self._end_keeper()
        if self._server is None:
            self._server = wire.listen()
            self._store = wire.open_store()
        # NumPy would start threads on import, and a process with threads cannot fork
        single = {"OPENBLAS_NUM_THREADS": "1"}
        self._token = secrets.token_hex(16)
        order = {
            "path": processes.import_path(),
            "port": self._server.getsockname()[1],
            "token": self._token,
            "store_port": self._store.port,
            "folder": str(self.folder),
            "world_size": self.world_size,
            "threads": self.threads,
            "device": self.device,
            "forks": may_fork(),
            "modules": modules,
            "restore": {name: os.environ.get(name) for name in single},
        }
        with open(self.folder / "keeper.txt", "wb") as log:
            self._keeper = keeper.launch(
                keeper.KEEPER, order, stdout=log, stderr=log, env={**os.environ, **single}
            )
        self._control, hello = self._accept(end_s)
        self.forks, self._private_bytes = hello["forks"], hello["private_bytes"]

    def _notice_slow_start(self) -> None:
        if may_fork() and not self.forks:
            console.notice(
                "ranks cannot be forked here (importing PyTorch starts threads, or fork is "
                "forbidden), so each imports PyTorch by itself: a slower start"
            )

    def _gather_ranks(self, end_s: float) -> set[int]:
        """Let the keeper start the ranks, and return them when all have connected."""
        assert self._control is not None  # the keeper was started
        self.codes, self._token = {}, secrets.token_hex(16)
        wire.send(self._control, {"do": "start", "token": self._token})
        while len(self.ranks) < self.world_size:
            channel, hello = self._accept(end_s)
            self.ranks[hello["rank"]], self.pids[hello["rank"]] = channel, hello["pid"]
        return set(self.ranks)

    def _next_ready(self, joining: set[int], end_s: float) -> int:
        while time.monotonic() < end_s:
            self._require_started()
            for rank in self.wait(joining, _POLL_S):
                answer = self.answer(rank)
                if answer["status"] == "ready":
                    return rank
                died = answer["status"] == "died"
                reason = "its process ended" if died else f"it {answer['what']}"
                raise RuntimeError(f"rank {rank} did not start: {reason}\n{self.read_output(rank)}")
        raise self._start_timeout()

    def _accept(self, end_s: float) -> tuple[connection.Connection, dict[str, Any]]:
        assert self._server is not None
        while time.monotonic() < end_s:
            if connection.wait([self._server], _POLL_S):
                if (arrival := wire.accept(self._server, self._token)) is not None:
                    return arrival
            elif self._control is not None and self._control.poll():
                self._read_control()
            self._require_started()
        raise self._start_timeout()

    def _require_started(self) -> None:
        assert self._keeper is not None
        if self._keeper.poll() is not None:
            raise RuntimeError(
                f"the ranks' keeper ended (exit code {self._keeper.returncode})\n{self._log()}"
            )
        if self.codes:
            rank, code = next(iter(self.codes.items()))
            raise RuntimeError(
                f"rank {rank} ended while it started (exit code {code})\n{self.read_output(rank)}"
            )

    def _start_timeout(self) -> RuntimeError:
        return RuntimeError(
            f"the ranks were not ready after {_START_LIMIT_S:.0f} s, and were ended\n{self._log()}"
        )

    def _log(self) -> str:
        return processes.read_text(self.folder / "keeper.txt")[-3000:].rstrip()

    def _read_control(self) -> None:
        assert self._control is not None
        try:
            message = wire.receive(self._control)
        except (EOFError, OSError) as error:
            raise RuntimeError(f"the ranks' keeper ended\n{self._log()}") from error
        if message.get("token") == self._token:  # else of ranks that were ended before
            self.codes[message["ended"]] = message["code"]

    def _end_keeper(self) -> None:
        if self._control is not None and self._keeper is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                wire.send(self._control, {"do": "stop"})
                self._keeper.wait(_END_LIMIT_S)
            self._control.close()
            self._control = None
        if self._keeper is not None:
            processes.end_group(self._keeper.pid)
            self._keeper.wait()
            self._keeper = None


# The memory for so many ranks: they may outnumber the machine's cores, and never fill its memory.


def free_bytes(root: Path = Path("/")) -> int:
    """Return the memory that new processes may take: the machine's, or the container's where that
    is less.

    Raises RuntimeError without psutil.
    """
    free = processes.psutil("how much memory is free is read with").virtual_memory().available
    limit = read_memory_limit(root)
    used_bytes = next(
        (int(path.read_text()) for name in _USAGE_FILES if (path := root / name).exists()), None
    )
    if limit is None or used_bytes is None:
        return free
    # Pages of files that were read once are the first to go when memory is needed.
    statistics = root / "sys/fs/cgroup/memory.stat"
    lines = statistics.read_text().splitlines() if statistics.exists() else []
    cached_bytes = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return max(0, min(free, limit - used_bytes + cached_bytes))


def _require_room(world_size: int, rank_bytes: int, free: int) -> None:
    """Raise MemoryError when ``world_size`` processes of ``rank_bytes`` need over nine tenths of
    ``free`` bytes.
    """
    most_ranks = int(free * (1 - _LEFT_SHARE)) // rank_bytes
    if world_size > most_ranks:
        size, needed_text, free_text = (
            units.text(value, "B") for value in (rank_bytes, world_size * rank_bytes, free)
        )
        fewer = f"take at most {most_ranks} ranks, or " if most_ranks else ""
        raise MemoryError(
            f"{world_size} ranks of {size} each, as a process with PyTorch was measured here, need "
            f"{needed_text}; {free_text} of memory are free, of which a tenth stays so: {fewer}"
            "close other programs"
        )
