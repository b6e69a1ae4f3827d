"""A script under PyTorch's own engine: each rank's output, one error with the rank's line, nothing
left running.

Only one script here imports PyTorch; what the others need of the engine is their rank's number.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from process_watch import is_running, wait_until

from helpers.ranks import TorchrunError, _scripts as scripts, torchrun

ROOT = Path(__file__).parents[3]
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


@pytest.fixture
def script(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write


def test_ranks_train_together(script):
    path = script("""
        import sys
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.tensor([float(1 + dist.get_rank())])
        dist.all_reduce(total)
        print("rank", dist.get_rank(), "of", dist.get_world_size(), "sum", int(total), *sys.argv[1:])
        print("done", file=sys.stderr)
        dist.destroy_process_group()
    """)  # noqa: E501
    run = torchrun(path, nproc_per_node=2, args=["--steps", "3"], timeout_s=240)
    assert (run.exit_code, run.restarts) == (0, 0)
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert [rank.output for rank in run.ranks] == [
        f"rank {rank} of 2 sum 3 --steps 3\n" for rank in (0, 1)
    ]
    assert all(rank.errors.endswith("done\n") for rank in run.ranks)
    assert 0 < run.wall_s < 240
    assert str(run).startswith("ScriptRun\n  script ")


def test_ranks_start_again_after_one_was_killed_and_share_no_store(script):
    path = script("""
        import os, signal
        attempt, rank = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK"))
        print("attempt", attempt, os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"], os.environ["MASTER_ADDR"])
        if (attempt, rank) == (0, 1):
            os.kill(os.getpid(), signal.SIGKILL)
    """)  # noqa: E501
    run = torchrun(path, nproc_per_node=2, max_restarts=1, timeout_s=240)
    assert (run.exit_code, run.restarts) == (0, 1)
    assert [rank.output for rank in run.ranks] == ["attempt 1 1 127.0.0.1\n"] * 2


def test_an_exception_names_the_rank_and_the_line(script):
    path = script("""
        import os, pathlib, time
        def ratio(below):
            return 1 / below  # this one
        print("rank", os.environ["RANK"], flush=True)
        printed = pathlib.Path(__file__).with_name("printed")
        if os.environ["RANK"] == "1":
            while not printed.exists(): time.sleep(0.01)
            ratio(0)
        printed.touch()
        time.sleep(600)
    """)
    with pytest.raises(TorchrunError) as caught:
        torchrun(path, nproc_per_node=2, timeout_s=240)
    error = caught.value
    assert (error.rank, error.line, error.timed_out, error.file) == (1, 4, False, str(path))
    assert error.text == "return 1 / below  # this one"
    message = str(error)
    assert (
        "rank 1 of 2 raised ZeroDivisionError: division by zero\n  at line 4 of train.py: return 1 "
        "/ b" in message
    )
    assert "rank 0: did not fail by itself" in message
    assert "line 9, in <module>\n    ratio(0)" in message
    assert [rank.output for rank in error.run.ranks] == ["rank 0\n", "rank 1\n"]
    assert error.run.exit_code == 1


@pytest.mark.timed
def test_a_hang_is_ended_at_the_limit_and_nothing_is_left_running(script):
    path = script("""
        import os, subprocess, sys, time
        own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(os.getpid(), own.pid, flush=True)
        while os.environ["RANK"] == "1": pass  # this one
        time.sleep(600)
    """)
    for limit_s in (5, 15, 45):  # on a busy machine the ranks run later
        begun = time.monotonic()
        with pytest.raises(
            TorchrunError, match=rf"rank \d of 2 did not return within {limit_s} s"
        ) as caught:
            torchrun(path, nproc_per_node=2, timeout_s=limit_s)
        assert limit_s <= time.monotonic() - begun < limit_s + 20
        assert caught.value.timed_out
        pids = [int(pid) for rank in caught.value.run.ranks for pid in rank.output.split()]
        if len(pids) == 4 and all(state.line for state in caught.value.states):
            break
    assert len(pids) == 4
    if sys.platform == "linux":
        assert wait_until(lambda: not any(map(is_running, pids)))
    assert [(state.line, state.text) for state in caught.value.states] == [
        (6, "time.sleep(600)"),
        (5, 'while os.environ["RANK"] == "1": pass  # this one'),
    ]


@on_linux
def test_a_script_ends_when_the_notebook_is_killed(script, tmp_path):
    path = script(f"""
        import os, pathlib, time
        part = pathlib.Path({str(tmp_path / "part")!r})
        part.write_text(str(os.getpid()))
        part.rename(part.with_name("pid"))
        time.sleep(600)
    """)
    program = f"from helpers.parallel import torchrun; torchrun({str(path)!r}, nproc_per_node=1)"
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as run:
        try:
            assert wait_until(lambda: (tmp_path / "pid").exists(), limit_s=180)
            process = int((tmp_path / "pid").read_text())
            assert is_running(process)
        finally:
            run.kill()
    assert wait_until(lambda: not is_running(process))
    assert wait_until(lambda: not list(tmp_path.glob("torchrun-*")))


def test_bad_input_is_refused(script, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no script 'none\.py' in"):
        torchrun("none.py", nproc_per_node=2)
    path = script("")
    with pytest.raises(ValueError, match="nproc_per_node=0 is too small"):
        torchrun(path, nproc_per_node=0)
    with pytest.raises(TypeError, match=r"nproc_per_node=.* give a whole number"):
        torchrun(path, nproc_per_node=1.5)
    with pytest.raises(ValueError, match="max_restarts=-1 is too small"):
        torchrun(path, nproc_per_node=1, max_restarts=-1)
    with pytest.raises(ValueError, match="timeout_s=0"):
        torchrun(path, nproc_per_node=1, timeout_s=0)


def run_of(*errors: str, log: str = "") -> scripts.ScriptRun:
    ranks = tuple(scripts.RankOutput(rank, "", text) for rank, text in enumerate(errors))
    return scripts.ScriptRun("train.py", 1, 0, 1.0, ranks, log)


def failed(rank: int, code: int) -> str:
    return (
        f"  time      : now\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: "
        "1)\n"
    )


LOST = """[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 3, in <module>
[rank0]: RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer
"""


def test_the_rank_that_was_killed_comes_before_the_one_that_lost_it():
    error = scripts._error(run_of(LOST, "", log=failed(0, 1) + failed(1, -signal.SIGKILL)), None)
    assert error.rank == 1
    assert "rank 1 of 2 died: its process was ended by SIGKILL" in str(error)
    assert "rank 0: raised RuntimeError: [/gloo/transport" in str(error)
    assert "[rank0]" not in str(error)


def test_a_rank_that_the_engine_ended_has_not_failed():
    error = scripts._error(run_of("", LOST, log=failed(0, -signal.SIGTERM) + failed(1, 1)), None)
    assert error.rank == 1
    assert "rank 0: did not fail by itself" in str(error)


def test_an_engine_that_fails_before_any_rank_ran_says_so():
    error = scripts._error(run_of("", "", log="no such option"), None)
    assert error.rank is None
    assert "train.py did not run (exit code 1):\nno such option" in str(error)
