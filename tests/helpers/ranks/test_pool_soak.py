"""One pool for a long time: no call is lost, no process is left behind, whatever is killed in
between.

``make soak`` kills more often: ``COURSE_SOAK_KILLS`` says how many ranks, 3 by default. And the
road of a script: a training that is killed ends with the same bits as one that is not.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import socket
import sys
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.ranks import RankError, Ranks, _wire as wire, torchrun

CALLS = 100
KILLS = int(os.environ.get("COURSE_SOAK_KILLS", "3"))
SCRIPT = Path(__file__).parents[3] / "course" / "scripts" / "train_data_parallel.py"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX's")


def add_up(
    rank: int, world_size: int, call: int, values: torch.Tensor
) -> tuple[int, int, torch.Tensor]:
    """Every rank adds its own share, and all must get the sum of this call, not of another."""
    total = values + rank * call
    dist.all_reduce(total)
    return rank, call, total


def kill_yourself(rank: int, world_size: int, victim: int) -> None:
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def answered(ranks: Ranks, call: int) -> bool:
    values = torch.arange(50.0) + call
    expected = ranks.world_size * values + call * sum(range(ranks.world_size))
    found = ranks.run(add_up, call, values, timeout_s=60)
    return (
        all(
            (place, number) == (rank, call) and torch.equal(total, expected)
            for rank, (place, number, total) in enumerate(found)
        )
        and len(found) == ranks.world_size
    )


def started_by_this_process(before: frozenset[int] = frozenset()) -> frozenset[int]:
    """Living descendants, without those in ``before`` and their own, such as a browser's that
    another test started.
    """
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            line = {child.pid, *(parent.pid for parent in child.parents())}
            if child.status() != psutil.STATUS_ZOMBIE and not line & before:
                found.add(child.pid)
    return frozenset(found)


def test_a_hundred_calls_and_ranks_killed_between_them_lose_nothing_and_leave_nothing() -> None:
    before = started_by_this_process()
    open_before = psutil.Process().num_fds()
    lost, kill_after = [], {CALLS * (kill + 1) // (KILLS + 1): kill % 3 for kill in range(KILLS)}
    with Ranks(3, device="cpu", threads=1) as ranks:
        folder = ranks._pool.folder
        for call in range(CALLS):
            if call in kill_after:
                with pytest.raises(RankError, match=rf"rank {kill_after[call]} of 3 died.*SIGKILL"):
                    ranks.run(kill_yourself, kill_after[call], timeout_s=60)
            if not answered(ranks, call):
                lost.append(call)
        assert lost == []
        assert len(kill_after) == KILLS
        # A keeper and three ranks, however many were killed; what a rank leaves in the folder does
        # not add up.
        assert 3 <= len(started_by_this_process(before)) <= 1 + 3
        assert len(list(folder.iterdir())) <= 12
    assert started_by_this_process(before) == frozenset()
    assert not folder.exists()
    assert psutil.Process().num_fds() <= open_before + 2


def test_an_answer_of_another_call_would_be_noticed() -> None:
    """Planted: ranks that answer with what they were asked before."""

    class Stale:
        world_size = 3

        def run(self, function, call, values, timeout_s):
            return [(rank, call - 1, 3 * values + 3 * (call - 1)) for rank in range(3)]

    assert not answered(Stale(), 5)


def undisturbed(steps: int) -> str:
    """Return the hash of the parameters after the script's steps, computed here: the two ranks in
    turn, added up.
    """
    script = runpy.run_path(str(SCRIPT))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(2):
            inputs, targets = script["batch"](step, rank, 2)
            (nn.functional.mse_loss(net(inputs), targets) / 2).backward()
        optimizer.step()
    torch.set_num_threads(threads)
    return script["digest"](net)


@pytest.mark.ci  # lesson 05 kills this script in `make test`
@pytest.mark.slow
def test_a_killed_training_ends_with_the_bits_of_one_that_was_not(tmp_path, monkeypatch) -> None:
    """The script of lesson 05, killed after step 3 of 6 with a checkpoint after step 2; steps 3 to
    6 come again.
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the bits are those of the CPU
    args = [
        "--steps=6",
        "--checkpoint-every=2",
        f"--checkpoint={tmp_path / 'killed.pt'}",
        "--kill-after=3",
    ]
    killed = torchrun(SCRIPT, nproc_per_node=2, max_restarts=1, args=args, timeout_s=200)
    did = [rank.output.splitlines()[0] for rank in killed.ranks]
    assert did == [
        f"rank {rank} of 2: steps 3 to 6, parameters {undisturbed(6)}" for rank in range(2)
    ]
    assert killed.restarts == 1
    saved = torch.load(tmp_path / "killed.pt", weights_only=True)
    momenta = [state["momentum_buffer"] for state in saved["optimizer"]["state"].values()]
    assert (saved["step"], len(momenta)) == (6, len(saved["model"]))
    assert all(momentum.abs().max() > 0 for momentum in momenta)


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere the system may let two listen on one port"
)
def test_a_port_that_is_taken_says_so_in_one_line() -> None:
    """The pool itself asks the system for a free port; a port is only ever taken where a reader
    names one.
    """
    with socket.socket() as taken:
        taken.bind((wire.LOOPBACK, 0))
        taken.listen()
        with pytest.raises(RuntimeError, match=r"EADDRINUSE|address already in use"):
            dist.TCPStore(
                wire.LOOPBACK, taken.getsockname()[1], is_master=True, wait_for_workers=False
            )
        with Ranks(1, device="cpu", threads=1) as ranks:
            assert answered(ranks, 1)
