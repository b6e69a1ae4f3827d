"""A training script on several processes, through PyTorch's own engine: :func:`torchrun`.

The script is started as the command ``torchrun`` starts it, and runs under that command unchanged,
on one machine or on many; here every node is on this machine. What is added: a limit on the time,
each rank's output by itself, one error that names the rank and its line, and no process left
behind.

Lesson 05.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from helpers import _processes as processes, results
from helpers.checks import number, whole_number
from helpers.ranks import _failures as failures, _wire as wire

# The kernel sends a signal for each thread of the parent that ends, and until the last has ended
# the parent is still the parent: the engine hears of the first alone, and the folder goes when the
# parent is gone.
_AGENT = """
import os, shutil, signal, sys, time
sys.path[:] = {path!r}
from helpers._processes import end_with_parent
alone = False
def end_once(*_):
    global alone
    if not alone:
        alone = True
        signal.raise_signal(signal.SIGTERM)
number = getattr(signal, "SIGUSR2", signal.SIGTERM)
signal.signal(number, end_once)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
try:
    end_with_parent({parent}, number)
    from torch.distributed.run import main
    main(sys.argv[1:])
finally:
    limit_s = time.monotonic() + {parent_ends_s}
    while alone and os.getppid() == {parent} and time.monotonic() < limit_s:
        time.sleep({poll_s})
    if os.getppid() != {parent}:  # which would have removed it
        shutil.rmtree({folder!r}, ignore_errors=True)
"""
_PURPOSE = "torchrun ends what a script started with"
_PARENT_ENDS_S = 20.0  # to give its memory back, with gigabytes of tensors in it
_POLL_S = 0.05
_SETTLE_S = 5.0  # after one node has failed, for the others to notice
_DUMP_S = 0.5
_PEERS = re.compile(r"gloo/transport|Connection (closed|reset)|DistBackendError|DistNetworkError")
_FAILED_RANK = re.compile(
    r"^\s*rank\s*:\s*(\d+) \(local_rank.*\n\s*exitcode\s*:\s*(-?\d+)", re.MULTILINE
)
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ", re.MULTILINE)  # PyTorch's own, in a traceback


class RankOutput(results.Record):
    """The output of one rank of a script (``output``), and its standard error (``errors``).

    Lesson 05.
    """

    rank: int
    node: int
    output: str
    errors: str = field(default="", repr=False)


class ScriptRun(results.Record):
    """A script's run under :func:`torchrun`; ``ranks`` are in rank order.

    ``exit_code`` is that of the first node that failed, else 0; ``restarts`` counts how often all
    ranks were started again after a failure, and ``ranks`` tells of the last time. ``log`` is what
    the engine itself wrote. Lesson 05.
    """

    script: str
    nodes: int
    ranks_per_node: int
    exit_code: int
    restarts: int
    wall_s: float
    ranks: tuple[RankOutput, ...]
    log: str = field(default="", repr=False)


class TorchrunError(failures.RankError):
    """A script failed, or met its limit: see :class:`helpers.ranks.RankError`; ``run`` is its
    ScriptRun.

    ``rank`` is None where the engine failed before any rank ran. Lesson 05.
    """

    def __init__(
        self,
        message: str,
        rank: int | None,
        states: tuple[failures.RankState, ...],
        timed_out: bool,
        run: ScriptRun,
    ) -> None:
        RuntimeError.__init__(self, message, rank, states, timed_out, run)
        first = None if rank is None else states[rank]
        self.rank, self.states, self.timed_out, self.run = rank, states, timed_out, run
        self.file, self.line, self.text = (
            (first.file, first.line, first.text) if first else ("", None, "")
        )


def torchrun(
    script: str | os.PathLike[str],
    *,
    nproc_per_node: int,
    nnodes: int = 1,
    args: Sequence[str] = (),
    max_restarts: int = 0,
    timeout_s: float = 300.0,
) -> ScriptRun:
    """Run ``script`` with ``args`` on ``nnodes`` times ``nproc_per_node`` ranks, and return its
    :class:`ScriptRun`.

    It is what ``torchrun --nnodes=... --nproc-per-node=... script args`` does, with a node agent
    for each node, all on this machine, which meet through a store on the loopback at a port that
    the system chose. After a failure all ranks start again, at most ``max_restarts`` times; a start
    never reads what an earlier one left in the store (``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``:
    with the store shared, a restart may connect to ranks that are gone). Ranks compute with this
    process's threads divided among them, unless ``OMP_NUM_THREADS`` is set.

    Raises FileNotFoundError without the script, TypeError or ValueError for numbers that are not
    whole ones above 0, :class:`TorchrunError` when the script fails or has not ended within
    ``timeout_s``, RuntimeError without psutil. Nothing that was started is left running, also after
    Ctrl-C.

    >>> run = torchrun("train.py", nproc_per_node=2)  # doctest: +SKIP
    >>> run.exit_code, [rank.rank for rank in run.ranks]  # doctest: +SKIP
    (0, [0, 1])

    Lesson 05.
    """
    path = Path(script)
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no script {str(path)!r} in {os.getcwd()}; give the path of a Python file"
        )
    nodes, per_node = whole_number("nnodes", nnodes), whole_number("nproc_per_node", nproc_per_node)
    restarts = whole_number("max_restarts", max_restarts, at_least=0)
    limit_s = number("timeout_s", timeout_s, above=0)
    processes.psutil(_PURPOSE)
    with tempfile.TemporaryDirectory(prefix="torchrun-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        begun = time.monotonic()
        store = wire.open_store()
        options = [
            f"--nnodes={nodes}",
            f"--nproc-per-node={per_node}",
            f"--max-restarts={restarts}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={wire.LOOPBACK}:{store.port}",
            f"--rdzv-id={secrets.token_hex(4)}",
            "--rdzv-conf=is_host=0",
            f"--local-addr={wire.LOOPBACK}",
            "--redirects=3",
            "--monitor-interval=0.1",
        ]
        agents: list[subprocess.Popen[bytes]] = []
        try:
            for node in range(nodes):
                command = [*options, f"--log-dir={folder / str(node)}", str(path), *map(str, args)]
                agents.append(
                    _start(command, folder / f"agent-{node}.txt", _environment(nodes * per_node))
                )
            _wait(agents, begun + limit_s)
            codes = [agent.poll() for agent in agents]
        finally:
            _end(agents)
        wall_s = time.monotonic() - begun
        # The engine numbers nodes by address and process, and here the addresses are one.
        by_rank = sorted(range(nodes), key=lambda node: agents[node].pid)
        run = _read(folder, by_rank, per_node, script=str(path), codes=codes, wall_s=wall_s)
    if run.exit_code or None in codes:
        raise _error(run, None if run.exit_code else limit_s)
    return run


def _environment(ranks: int) -> dict[str, str]:
    import torch

    loopback = wire.loopback_interface()
    defaults = {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // ranks))}
    defaults |= {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback} if loopback else {}
    # With the last, a rank that is aborted at the limit writes where it stood.
    return {
        **defaults,
        **os.environ,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONFAULTHANDLER": "1",
    }


def _start(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    program = _AGENT.format(
        path=[str(entry) for entry in sys.path],
        parent=os.getpid(),
        folder=str(log.parent),
        parent_ends_s=_PARENT_ENDS_S,
        poll_s=_POLL_S,
    )
    with open(log, "wb") as file:
        return subprocess.Popen(
            processes.python(program, *command),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environment,
            **processes.own_group(),
        )


def _wait(agents: list[subprocess.Popen[bytes]], end_s: float) -> None:
    """Wait for all agents to end, until the limit, and no longer than a few seconds after one of
    them has failed.
    """
    has_failed = False
    while any(agent.poll() is None for agent in agents) and time.monotonic() < end_s:
        if not has_failed and any(agent.returncode for agent in agents):
            has_failed, end_s = True, min(end_s, time.monotonic() + _SETTLE_S)
        time.sleep(_POLL_S)


def _end(agents: list[subprocess.Popen[bytes]]) -> None:
    """End agents that still run and all that they started; they first stand still, so that they
    restart nothing.
    """
    psutil = processes.psutil(_PURPOSE)
    running = [psutil.Process(agent.pid) for agent in agents if agent.poll() is None]
    for agent in running:
        agent.suspend()
    ranks = [child for agent in running for child in agent.children()]
    children = [child for agent in running for child in agent.children(recursive=True)]
    if hasattr(signal, "SIGUSR1"):
        for rank in ranks:
            _ignore_dead(psutil, rank.send_signal, signal.SIGABRT)
        psutil.wait_procs(ranks, timeout=_DUMP_S)
    for process in (*running, *children):
        _ignore_dead(psutil, process.kill)
    for agent in agents:
        agent.wait()
    psutil.wait_procs(children, timeout=_DUMP_S)


def _ignore_dead(psutil: Any, act: Any, *arguments: Any) -> None:
    try:
        act(*arguments)
    except psutil.NoSuchProcess:
        return


def _read(
    folder: Path,
    by_rank: list[int],
    per_node: int,
    *,
    script: str,
    codes: list[int | None],
    wall_s: float,
) -> ScriptRun:
    ranks, restarts = [], 0
    for node_index, node in enumerate(by_rank):
        attempts = sorted(
            folder.glob(f"{node}/*/attempt_*"), key=lambda path: int(path.name.rpartition("_")[2])
        )
        restarts = max(restarts, len(attempts) - 1)
        for local in range(per_node):
            output, errors = (
                _text(attempts[-1] / str(local) / file) if attempts else ""
                for file in ("stdout.log", "stderr.log")
            )
            ranks.append(
                RankOutput(
                    rank=node_index * per_node + local,
                    node=node_index,
                    output=output,
                    errors=errors,
                )
            )
    return ScriptRun(
        script=script,
        nodes=len(by_rank),
        ranks_per_node=per_node,
        exit_code=next((code for code in codes if code), 0),
        restarts=max(0, restarts),
        wall_s=wall_s,
        ranks=tuple(ranks),
        log="".join(_text(folder / f"agent-{node}.txt") for node in by_rank),
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _error(run: ScriptRun, limit_s: float | None) -> TorchrunError:
    codes = {int(rank): int(code) for rank, code in _FAILED_RANK.findall(run.log)}
    states = tuple(
        _state(rank, codes.get(rank.rank), timed_out=limit_s is not None) for rank in run.ranks
    )
    if limit_s is None and not codes:
        message = (
            f"{run.script} did not run (exit code {run.exit_code}):\n{run.log[-3000:].rstrip()}"
        )
        return TorchrunError(message, None, states, False, run)
    error = failures.error(states, limit_s=limit_s, outcome="All ranks were ended.")
    return TorchrunError(f"{run.script}: {error}", error.rank, states, limit_s is not None, run)


def _state(rank: RankOutput, code: int | None, *, timed_out: bool) -> failures.RankState:
    if timed_out:
        return failures.running_state(rank.rank, rank.errors, rank.output)
    trace = _RANK_PREFIX.sub("", rank.errors).rpartition("Traceback (most recent call last):")
    if trace[1]:
        return failures.state_from_text(
            rank.rank,
            trace[1] + trace[2],
            rank.output,
            by_peers=_PEERS.search(trace[2]) is not None,
        )
    # with which the engine ends the ranks that did not fail
    if code is not None and code != -signal.SIGTERM:
        return failures.died_state(rank.rank, code, rank.errors)
    return failures.RankState(rank.rank, "returned", "did not fail by itself", output=rank.output)
