"""A training script on several processes, through PyTorch's own engine: :func:`torchrun`.

The script is started as the command ``torchrun`` starts it, and runs under that command unchanged,
on one machine or on many; here it runs on this one. What is added: a limit on the time, each rank's
output by itself, one error that names the rank and its line, and no process left behind.

Lesson 05.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

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
_AGENT_LOG, _LOGS = "agent.txt", "logs"  # in the folder of a run: a file, and the ranks' folder
_PURPOSE = "torchrun ends what a script started with"
_PARENT_ENDS_S = 20.0  # to give its memory back, with gigabytes of tensors in it
_POLL_S = 0.05
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
    output: str
    errors: str = field(default="", repr=False)


class ScriptRun(results.Record):
    """A script's run under :func:`torchrun`; ``ranks`` are in rank order.

    ``exit_code`` is the engine's; ``restarts`` counts how often all ranks were started again after
    a failure, and ``ranks`` tells of the last time. ``log`` is what the engine itself wrote. Lesson
    05.
    """

    script: str
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

    run: ScriptRun


def torchrun(
    script: str | os.PathLike[str],
    *,
    nproc_per_node: int,
    args: Sequence[str] = (),
    max_restarts: int = 0,
    timeout_s: float = 300.0,
) -> ScriptRun:
    """Run ``script`` with ``args`` on ``nproc_per_node`` ranks, and return its :class:`ScriptRun`.

    It is what ``torchrun --nproc-per-node=... script args`` does, on this machine, with a store on
    the loopback at a port that the system chose. After a failure all ranks start again, at most
    ``max_restarts`` times; a start never reads what an earlier one left in the store
    (``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``: with the store shared, a restart may connect to ranks
    that are gone). Ranks compute with this process's threads divided among them, unless
    ``OMP_NUM_THREADS`` is set.

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
    ranks = whole_number("nproc_per_node", nproc_per_node)
    restarts = whole_number("max_restarts", max_restarts, at_least=0)
    limit_s = number("timeout_s", timeout_s, above=0)
    processes.psutil(_PURPOSE)
    with tempfile.TemporaryDirectory(prefix="torchrun-", ignore_cleanup_errors=True) as name:
        folder, begun = Path(name), time.monotonic()
        store = wire.open_store()
        command = [
            f"--nproc-per-node={ranks}",
            f"--max-restarts={restarts}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={wire.LOOPBACK}:{store.port}",
            f"--rdzv-id={secrets.token_hex(4)}",
            "--rdzv-conf=is_host=0",
            f"--local-addr={wire.LOOPBACK}",
            "--redirects=3",
            "--monitor-interval=0.1",
            f"--log-dir={folder / _LOGS}",
            str(path),
            *map(str, args),
        ]
        agent = _start(command, folder, _environment(ranks))
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(begun + limit_s - time.monotonic())
            code = agent.poll()
        finally:
            _end(agent)
        run = _read(folder, ranks, str(path), exit_code=code or 0, wall_s=time.monotonic() - begun)
    if code != 0:
        raise _error(run, limit_s if code is None else None)
    return run


def _environment(ranks: int) -> dict[str, str]:
    import torch

    defaults = {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // ranks))}
    # With the last, a rank that is aborted at the limit writes where it stood.
    return {
        **defaults,
        **wire.loopback_variables(),
        **os.environ,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONFAULTHANDLER": "1",
    }


def _start(
    command: list[str], folder: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    program = _AGENT.format(
        path=processes.import_path(),
        parent=os.getpid(),
        folder=str(folder),
        parent_ends_s=_PARENT_ENDS_S,
        poll_s=_POLL_S,
    )
    with open(folder / _AGENT_LOG, "wb") as log:
        return subprocess.Popen(
            processes.python(program, *command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            **processes.OWN_GROUP,
        )


def _end(agent: subprocess.Popen[bytes]) -> None:
    """End an agent that still runs and all that it started; it first stands still, so that it
    restarts nothing.
    """
    if agent.poll() is not None:
        return
    psutil = processes.psutil(_PURPOSE)
    engine = psutil.Process(agent.pid)
    engine.suspend()
    ranks, children = engine.children(), engine.children(recursive=True)
    if hasattr(signal, "SIGUSR1"):
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.send_signal(signal.SIGABRT)
        psutil.wait_procs(ranks, timeout=_DUMP_S)
    for process in (engine, *children):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    agent.wait()
    psutil.wait_procs(children, timeout=_DUMP_S)


def _read(folder: Path, ranks: int, script: str, *, exit_code: int, wall_s: float) -> ScriptRun:
    attempts = sorted(
        folder.glob(f"{_LOGS}/*/attempt_*"), key=lambda path: int(path.name.rpartition("_")[2])
    )
    last_attempt = attempts[-1] if attempts else folder
    return ScriptRun(
        script=script,
        exit_code=exit_code,
        restarts=max(0, len(attempts) - 1),
        wall_s=wall_s,
        ranks=tuple(
            RankOutput(
                rank,
                output=processes.read_text(last_attempt / str(rank) / "stdout.log"),
                errors=processes.read_text(last_attempt / str(rank) / "stderr.log"),
            )
            for rank in range(ranks)
        ),
        log=processes.read_text(folder / _AGENT_LOG),
    )


def _error(run: ScriptRun, limit_s: float | None) -> TorchrunError:
    timed_out = limit_s is not None
    codes = {int(rank): int(code) for rank, code in _FAILED_RANK.findall(run.log)}
    states = tuple(_state(rank, codes.get(rank.rank), timed_out=timed_out) for rank in run.ranks)
    if timed_out or codes:
        first = failures.error(states, limit_s=limit_s, outcome="All ranks were ended.")
        error = TorchrunError(f"{run.script}: {first}", first.rank, states, timed_out)
    else:
        message = f"did not run (exit code {run.exit_code}):\n{run.log[-3000:].rstrip()}"
        error = TorchrunError(f"{run.script} {message}", None, states, timed_out)
    error.run = run
    return error


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
