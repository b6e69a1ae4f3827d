"""What a function leaves behind is ended and freed, however it ends: processes of other sessions,
shared memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from process_watch import is_running, wait_until

from helpers.isolation import _caller as caller, _child as child, run_limited

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sessions are looked for on Linux")
ROOT = Path(__file__).parents[2]
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture(autouse=True)
def the_plain_process(monkeypatch):
    monkeypatch.setattr(caller, "_has_torch", lambda: False)


def own_session() -> int:
    return subprocess.Popen(SLEEP, start_new_session=True).pid


def own_session_and_environment() -> int:
    return subprocess.Popen(SLEEP, start_new_session=True, env={}).pid


def forked_twice() -> int:
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            os.execv(SLEEP[0], SLEEP)
        os._exit(0)
    os.wait()
    return int(os.read(reader, 20))


def chain_of_three() -> int:
    """Return the number of a process whose parent and grandparent have sessions of their own, and
    wait for it.
    """
    code = f"import subprocess, sys; subprocess.Popen({SLEEP!r}, start_new_session=True).wait()"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    for _ in range(2000):
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                grandparent = int(
                    Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1]
                )
            except (OSError, IndexError):
                continue
            if words[:3] == [word.encode() for word in SLEEP] and grandparent == os.getpid():
                return int(folder.name)
        time.sleep(0.01)
    raise RuntimeError("it did not start")


def returns() -> None:
    return None


def raises() -> None:
    raise ValueError("planted")


def exits() -> None:
    os._exit(3)


def kills_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crashes() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def waits() -> None:
    time.sleep(600)


def stops() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)


ENDS = {
    returns: "returned",
    raises: "raised",
    exits: "died",
    kills_itself: "died",
    crashes: "died",
    waits: "timed_out",
    stops: "timed_out",
}


def left_by(start, end, tmp_path: Path):
    """Run a function that starts a process and then ends so; return the outcome and the process."""
    note = tmp_path / "process"

    def function():
        note.write_text(str(start()))
        return end()

    outcome = run_limited(function, timeout_s=3.0 if ENDS[end] == "timed_out" else 60.0)
    return outcome, int(note.read_text())


@pytest.mark.parametrize(
    "start", [own_session, own_session_and_environment, forked_twice, chain_of_three]
)
def test_a_process_of_another_session_is_ended_with_the_function(start, tmp_path):
    outcome, process = left_by(start, returns, tmp_path)
    assert outcome.status == "returned"
    assert not is_running(process)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_however_the_function_ends(end, tmp_path):
    outcome, process = left_by(own_session, end, tmp_path)
    assert outcome.status == ENDS[end]
    assert (outcome.exit_code, outcome.signal) == {
        exits: (3, None),
        kills_itself: (None, "SIGKILL"),
        crashes: (None, "SIGSEGV"),
    }.get(end, (None, None))
    assert not is_running(process)


def test_without_the_keeper_it_would_live_on(tmp_path, monkeypatch):
    """The wrong version, planted: it is the keeper that the tests above see."""
    monkeypatch.setattr(child, "BOOTSTRAP", child.BOOTSTRAP.replace("\ngo_on_in_a_child()\n", "\n"))
    _, process = left_by(own_session, returns, tmp_path)
    assert is_running(process)
    os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize("end", [returns, exits, kills_itself, waits], ids=lambda end: end.__name__)
def test_shared_memory_of_the_function_is_freed(end, tmp_path):
    def share() -> int:
        from multiprocessing import shared_memory

        block = shared_memory.SharedMemory(create=True, size=2**20)
        (tmp_path / "name").write_text(block.name)
        assert Path("/dev/shm", block.name).exists()
        return own_session()

    outcome, process = left_by(share, end, tmp_path)
    assert outcome.status == ENDS[end]
    assert not Path("/dev/shm", (tmp_path / "name").read_text()).exists()
    assert not is_running(process)


CALLER = """
import os, sys
sys.path.insert(0, {folder!r})
from helpers import isolation
import test_isolation_leftovers as module
note = {note!r}

def function():
    with open(f"{{note}}.part", "w") as file:
        file.write(str(module.own_session()))
    os.rename(f"{{note}}.part", note)
    module.waits()
isolation.run_limited(function, timeout_s=300)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_so_it_is_when_the_caller_ends(number, tmp_path):
    note = tmp_path / "process"
    code = CALLER.format(folder=str(Path(__file__).parent), note=str(note))
    parent = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    assert wait_until(note.exists)
    process = int(note.read_text())
    assert is_running(process)
    parent.send_signal(number)
    error = parent.communicate(timeout=60)[1]
    assert ("KeyboardInterrupt" in error) == (number is signal.SIGINT)
    assert wait_until(lambda: not is_running(process))
