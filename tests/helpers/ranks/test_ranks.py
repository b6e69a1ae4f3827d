"""A function on several ranks: its results in order, or one error that names the rank and the line,
and no orphan.

A rank runs what stands in a cell, so the functions here come from text that no module holds, as a
notebook's do.
"""

from __future__ import annotations

import linecache
import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from process_watch import is_running, wait_until

from helpers.ranks import (
    RankError,
    Ranks,
    _failures as failures,
    _pool as pool,
    _wire as wire,
    _worker as worker,
)

ROOT = Path(__file__).parents[3]
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
on_posix = pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")


def cell(text: str, name: str = "cell-1.py") -> Callable:
    """Return the function ``f`` of ``text`` as a notebook makes it: in ``__main__``, its text in
    linecache alone.
    """
    text = textwrap.dedent(text)
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), space)
    return space["f"]


EMPTY = cell("def f(rank, world_size): return rank", "empty.py")
# What ends a run before its limit ends it long before: a third of the limit is far more than even a
# busy machine needs.
LIMIT_S = 90
AT_ONCE_S = LIMIT_S / 3


def line_of(text: str, marked: str) -> int:
    return 1 + next(
        index for index, line in enumerate(textwrap.dedent(text).splitlines()) if marked in line
    )


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    """One pool for all tests here, more ranks than this course's smallest machine has cores;
    nothing outlives it.
    """
    with Ranks(3, device="cpu") as ranks:
        yield ranks
        ranks.run(EMPTY)
        processes = [ranks._pool._keeper.pid, *ranks._pool.pids.values()]
        assert all(map(is_running, processes)) or sys.platform != "linux"
    assert not any(map(is_running, processes))
    assert not ranks._pool.folder.exists()


@pytest.fixture(autouse=True)
def the_pool_recovers(request):
    """After every test that uses the pool, whatever it did, a plain run answers in rank order."""
    yield
    if "three" in request.fixturenames:
        assert request.getfixturevalue("three").run(EMPTY, timeout_s=LIMIT_S) == [0, 1, 2]


# What comes back.


def test_results_stand_in_rank_order_and_the_group_is_initialised(three):
    f = cell("""
        import os, time
        import torch, torch.distributed as dist
        def f(rank, world_size, factor):
            time.sleep(0.1 * (world_size - rank))  # the last rank is the first to be done
            total = torch.full((2,), float(rank))
            dist.all_reduce(total)
            return rank, world_size, dist.get_rank(), dist.get_backend(), os.environ["WORLD_SIZE"], total * factor
    """)  # noqa: E501
    results = three.run(f, 10)
    assert [result[:5] for result in results] == [(rank, 3, rank, "gloo", "3") for rank in range(3)]
    assert all(torch.equal(result[5], torch.tensor([30.0, 30.0])) for result in results)


def test_a_warm_run_starts_nothing(three):
    three.run(EMPTY)
    pids, token = dict(three._pool.pids), three._pool._token
    three.run(EMPTY)
    assert (three._pool.pids, three._pool._token) == (pids, token)


@pytest.mark.timed
def test_a_warm_run_takes_a_moment(three):
    """A run that starts the ranks again is the wrong version: it takes several times as long."""

    def spent_s() -> float:
        begun = time.perf_counter()
        three.run(EMPTY)
        return time.perf_counter() - begun

    three.run(EMPTY)
    warm_s, cold_s = [], []
    for _ in range(4):
        warm_s.append(spent_s())
        three._pool.end_ranks()
        cold_s.append(spent_s())
    assert 5 * min(warm_s) < min(cold_s)


def test_ranks_are_processes_of_their_own_with_the_agreed_threads(three):
    f = cell("""
        import os, torch
        def f(rank, world_size): return os.getpid(), torch.get_num_threads()
    """)
    pids, threads = zip(*three.run(f), strict=True)
    assert len({*pids, os.getpid()}) == 4
    assert set(threads) == {three.threads} == {max(1, torch.get_num_threads() // 3)}


def test_forked_ranks_do_not_share_numpys_random_state(three):
    f = cell("""
        import numpy as np
        def f(rank, world_size): return np.random.random()
    """)
    assert len(set(three.run(f))) == 3


def test_a_cells_own_classes_and_globals_go_along(three):
    text = """
        from dataclasses import dataclass
        @dataclass
        class Point:
            x: int
        origin = Point(40)
        def moved(by): return Point(origin.x + by)
        def f(rank, world_size): return moved(rank)
    """
    assert [result.x for result in three.run(cell(text))] == [40, 41, 42]


def test_a_view_comes_back_without_the_storage_it_looks_into(three):
    f = cell("""
        import torch
        def f(rank, world_size):
            large = torch.arange(1_000_000, requires_grad=False)
            return large[rank::500_000], torch.nn.Parameter(torch.ones(2)), large.reshape(1000, 1000).T[:2, :2]
    """)  # noqa: E501
    for rank, (view, parameter, turned) in enumerate(three.run(f)):
        assert view.tolist() == [rank, rank + 500_000]
        assert view.untyped_storage().nbytes() == 2 * view.element_size()
        assert isinstance(parameter, torch.nn.Parameter)
        assert parameter.requires_grad
        assert turned.tolist() == [[0, 1000], [1, 1001]]


def test_tensors_packed_alone_keep_what_they_are():
    leaf = torch.arange(6.0)[2:4].requires_grad_()
    again = pickle.loads(worker.pack(leaf))
    assert torch.equal(again, leaf)
    assert again.requires_grad
    assert (
        len(worker.pack(torch.zeros(1_000_000)[:1]))
        < 10_000
        < len(pickle.dumps(torch.zeros(1_000_000)[:1]))
    )


def test_large_values_pass_in_both_directions(three):
    f = cell("def f(rank, world_size, data): return data + rank")
    data = np.zeros(2_000_000)
    assert [result.mean() for result in three.run(f, data)] == [0, 1, 2]


def test_prints_are_shown_by_rank_and_kept(three, capfd):
    f = cell("""
        import os, sys, time
        def f(rank, world_size):
            for number in range(2):
                print("step", number)
                time.sleep(0.02)
            os.write(2, b"from C\\n")
    """)
    three.run(f)
    assert three.output == ("step 0\nstep 1\nfrom C\n",) * 3
    lines = [
        f"[rank {rank}] {line}" for rank in range(3) for line in ("step 0", "step 1", "from C")
    ]
    assert capfd.readouterr().out.splitlines() == lines
    three.run(EMPTY)
    assert three.output == ("", "", "")


def test_long_output_keeps_its_ends(three, capsys):
    f = cell("def f(rank, world_size): print('begin', 'x' * 300_000 * (rank == 1), 'end')")
    three.run(f)
    assert three.output[0] == "begin  end\n"
    assert len(three.output[1]) < 110_000
    assert three.output[1].startswith("begin xxx")
    assert "200,011 bytes left out" in three.output[1]
    assert three.output[1].endswith("xxx end\n")


def test_ranks_work_in_the_folder_of_the_notebook(three, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    f = cell("""
        import os
        def f(rank, world_size): return os.getcwd()
    """)
    assert three.run(f) == [str(tmp_path)] * 3


# What goes wrong.


@pytest.mark.timed
def test_an_exception_names_the_rank_and_the_cells_line(three):
    """Half a second after it the other ranks must stand where they wait for this one."""
    text = """
        import torch, torch.distributed as dist
        def ratio(below):
            return 1 / below  # this one
        def f(rank, world_size):
            if rank == 1:
                ratio(rank - 1)
            dist.all_reduce(torch.ones(1))
    """
    begun = time.monotonic()
    with pytest.raises(RankError) as caught:
        three.run(cell(text), timeout_s=30)
    assert time.monotonic() - begun < 10
    error = caught.value
    assert (error.rank, error.file, error.line, error.timed_out) == (
        1,
        "cell-1.py",
        line_of(text, "this one"),
        False,
    )
    assert error.text == "return 1 / below  # this one"
    message = str(error)
    assert message.startswith(
        "rank 1 of 3 raised ZeroDivisionError: division by zero\n  at line 4 of cell-1.py: ret"
    )
    assert (
        "ranks 0 and 2: was still running at line 8 of cell-1.py: dist.all_reduce(torch.ones(1))"
        in message
    )
    assert 'File "cell-1.py", line 7, in f\n    ratio(rank - 1)' in message
    assert "_worker.py" not in message
    assert [state.status for state in error.states] == ["running", "raised", "running"]
    assert error._render_traceback_() == [f"RankError: {message}"]


def test_the_same_exception_on_all_ranks_is_told_once(three, monkeypatch):
    # the last of them may be late to raise
    monkeypatch.setattr("helpers.ranks._ranks._SETTLE_S", LIMIT_S)
    f = cell("def f(rank, world_size): return undefined_name")
    with pytest.raises(RankError, match=r"rank \d of 3 raised NameError") as caught:
        three.run(f)
    assert str(caught.value).count("raised NameError") == 1
    assert ": the same" in str(caught.value)


def test_the_cause_of_an_exception_is_told(three):
    text = """
        def f(rank, world_size):
            try:
                int("x")
            except ValueError as error:
                raise KeyError("second") from error
    """
    with pytest.raises(
        RankError, match=r"(?s)ValueError: invalid literal.*direct cause.*KeyError: 'second'"
    ):
        three.run(cell(text))


@pytest.mark.parametrize("error", ["SystemExit(3)", "KeyboardInterrupt()"])
def test_other_exceptions_are_told_too(three, error):
    with pytest.raises(RankError, match=f"raised {error.partition('(')[0]}"):
        three.run(cell(f"def f(rank, world_size): raise {error}"))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("os._exit(7)", "exit code 7"),
        pytest.param("os.kill(os.getpid(), 9)", "ended by SIGKILL", marks=on_posix),
        pytest.param("ctypes.string_at(0)", "ended by SIGSEGV", marks=on_posix),
    ],
)
def test_a_rank_that_dies_is_the_one_that_is_named(three, how, told):
    """Its peers fail too, of the lost connection, and often sooner: they are not the cause."""
    text = f"""
        import ctypes, os
        import torch, torch.distributed as dist
        def f(rank, world_size):
            print("before", flush=True)
            if rank == 2:
                {how}
            dist.all_reduce(torch.ones(1))
    """
    begun = time.monotonic()
    with pytest.raises(RankError) as caught:
        three.run(cell(text), timeout_s=LIMIT_S)
    assert time.monotonic() - begun < AT_ONCE_S
    assert caught.value.rank == 2
    assert "rank 2 of 3 died: its process " in str(caught.value).partition("\n")[0]
    assert told in str(caught.value).partition("\n")[0]
    assert caught.value.states[2].output.startswith("before")
    if "string_at" in how:
        assert caught.value.line == line_of(text, how)


@pytest.mark.timed
def test_a_rank_that_hangs_is_ended_at_the_limit(three):
    """Within the limit all ranks must have come to where they hang."""
    text = """
        import time
        import torch, torch.distributed as dist
        def f(rank, world_size):
            if rank == 1:
                time.sleep(600)
            dist.all_reduce(torch.ones(1))
    """
    three.run(EMPTY)
    pids = list(three._pool.pids.values())
    begun = time.monotonic()
    with pytest.raises(RankError) as caught:
        three.run(cell(text), timeout_s=1.0)
    assert 1.0 <= time.monotonic() - begun < 10
    error = caught.value
    assert (error.rank, error.timed_out, error.line) == (1, True, line_of(text, "time.sleep"))
    assert str(error).startswith(
        "rank 1 of 3 did not return within 1 s\n  at line 6 of cell-1.py: time.sleep(600)"
    )
    assert "ranks 0 and 2: was still running at line 7 of cell-1.py" in str(error)
    if sys.platform == "linux":
        assert not any(map(is_running, pids))


@on_linux
@pytest.mark.timed
def test_a_rank_that_stands_still_does_not_hold_up_a_run(three):
    """Stopped, it neither reads what it is sent nor answers when asked where it stands."""
    three.run(EMPTY)
    os.kill(three._pool.pids[0], signal.SIGSTOP)
    with pytest.raises(
        RankError, match=r"rank 0 of 3 did not return within 1 s(.|\n)*ranks 1 and 2: returned"
    ):
        three.run(
            cell("def f(rank, world_size, data): return 0"), np.zeros(1_000_000), timeout_s=1.0
        )


@on_linux
def test_a_rank_that_died_between_runs_is_told(three):
    three.run(EMPTY)
    os.kill(three._pool.pids[1], signal.SIGKILL)
    with pytest.raises(RankError, match="rank 1 of 3 died: its process was ended by SIGKILL"):
        three.run(EMPTY)


@on_linux
def test_the_ranks_start_again_when_their_keeper_was_killed_and_the_start_interrupted(
    three, monkeypatch
):
    three.run(EMPTY)
    pids = list(three._pool.pids.values())
    three._pool._keeper.kill()
    assert wait_until(lambda: not any(map(is_running, pids)))
    with pytest.raises(RuntimeError, match="the ranks' keeper ended"):
        three.run(EMPTY)
    gather = pool.Pool._gather_ranks

    def interrupted(*arguments) -> set[int]:
        gather(*arguments)
        return signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(pool.Pool, "_gather_ranks", interrupted)
        with pytest.raises(KeyboardInterrupt):
            three.run(EMPTY)
    assert three._pool.ranks == {}


@on_posix
def test_an_interrupt_reaches_the_notebook_and_leaves_the_pool_usable(three):
    three.run(EMPTY)
    pids = list(three._pool.pids.values())
    f = cell("""
        import os, signal, time
        def f(rank, world_size, notebook):
            if rank == 2:  # it gets its order last
                os.kill(notebook, signal.SIGINT)
            time.sleep(600)
    """)
    with pytest.raises(KeyboardInterrupt):
        three.run(f, os.getpid(), timeout_s=LIMIT_S)
    assert not any(map(is_running, pids)) or sys.platform != "linux"


def test_a_result_that_cannot_be_sent_back_is_told(three):
    f = cell("def f(rank, world_size): return (n for n in range(rank))")
    with pytest.raises(RankError, match="returned a generator, which cannot be sent back"):
        three.run(f)


def test_a_result_that_cannot_be_loaded_here_is_told(three):
    text = """
        class Trap:
            def __reduce__(self): return (divmod, (1, 0))
        def f(rank, world_size): return Trap()
    """
    with pytest.raises(
        RankError, match=r"returned a value that cannot be loaded here .ZeroDivisionError"
    ):
        three.run(cell(text))


@on_posix
def test_what_a_rank_had_started_ends_with_it(three):
    """Its child holds the rank's connection open as well, so that only the keeper can tell of the
    end.
    """
    text = """
        import os, time
        def f(rank, world_size):
            if rank == 0:
                own = os.fork()
                if own:
                    print(own, flush=True)
                    os._exit(1)
                time.sleep(600)
    """
    begun = time.monotonic()
    with pytest.raises(
        RankError, match="rank 0 of 3 died: its process ended with exit code 1"
    ) as caught:
        three.run(cell(text), timeout_s=LIMIT_S)
    assert time.monotonic() - begun < AT_ONCE_S
    if sys.platform == "linux":
        assert wait_until(lambda: not is_running(int(caught.value.states[0].output.split()[-1])))


# Bad input.


@pytest.mark.parametrize("number", [0, -1])
def test_no_rank_at_all_is_refused(number):
    with pytest.raises(
        ValueError, match=f"world_size={number} is too small; give a whole number, 1 to 1,024"
    ):
        Ranks(number)


def test_more_ranks_than_a_machine_has_room_for_are_refused():
    with pytest.raises(ValueError, match="is too large; give a whole number, 1 to 1,024"):
        Ranks(10**400)


@pytest.mark.parametrize("number", [2.0, "2", True, None])
def test_a_world_size_that_is_no_whole_number_is_refused(number):
    with pytest.raises(TypeError, match=r"world_size=.*; give a whole number, 1 to 1,024"):
        Ranks(number)


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="99 ranks on CUDA need a GPU each, and nccl; here are"):
        Ranks(99, device="cuda")
    with pytest.raises(ValueError, match="device is 'tpu'; give 'cpu' or 'cuda'"):
        Ranks(1, device="tpu")


def test_bad_calls_are_refused_before_anything_is_sent(three):
    with pytest.raises(TypeError, match="run takes a function and its arguments, not 3"):
        three.run(3)
    with pytest.raises(
        TypeError, match=r"cannot be sent to another process(.|\n)*inside the function"
    ):
        three.run(EMPTY, (n for n in range(3)))
    for limit, kind in ((0, ValueError), (float("nan"), ValueError), ("1", TypeError)):
        with pytest.raises(kind, match="timeout_s="):
            three.run(EMPTY, timeout_s=limit)


def test_one_error_tells_that_a_function_cannot_be_sent_or_a_port_cannot_be_had(three, monkeypatch):
    def occupied(*arguments, **options):
        raise OSError(98, "Address already in use")

    with pytest.raises(TypeError, match=r"cannot pickle '_thread.lock' object") as caught:
        three.run(lambda rank, world_size, lock: None, threading.Lock())
    # a notebook would show the pickler's frames, and the reader's last
    assert caught.value.__suppress_context__
    with monkeypatch.context() as patch, Ranks(2, device="cpu") as ranks:
        patch.setattr(socket, "create_server", occupied)
        with pytest.raises(RuntimeError, match=r"no free port.*Address already in use"):
            ranks.run(EMPTY)


def test_a_port_that_the_environment_names_and_another_program_holds_is_not_used(
    three, monkeypatch
):
    with wire.listen() as taken:
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        three._pool.end_ranks()
        assert three.run(EMPTY) == [0, 1, 2]


def test_a_rank_cannot_start_ranks(three):
    f = cell("""
        from helpers.parallel import Ranks
        def f(rank, world_size): Ranks(2)
    """)
    with pytest.raises(RankError, match="a rank cannot start ranks"):
        three.run(f)


def test_closed_ranks_say_so():
    ranks = Ranks(2)
    assert repr(ranks).endswith("[not started]")
    ranks.close()
    ranks.close()
    with pytest.raises(RuntimeError, match=r"closed; make new ones: Ranks\(world_size\)"):
        ranks.run(EMPTY)
    assert repr(ranks).endswith("[closed]")
    assert not ranks._pool.folder.exists()


# Memory.


def test_ranks_that_do_not_fit_are_refused(three, monkeypatch):
    three._pool.end_ranks()
    with monkeypatch.context() as patch:
        patch.setattr(pool, "free_bytes", lambda: 1000)
        with pytest.raises(
            MemoryError, match=r"3 ranks of .* MB each(.|\n)*1,000 B of memory are free"
        ):
            three.run(EMPTY)
        assert three._pool.ranks == {}


def test_the_room_is_what_a_tenth_leaves():
    pool._require_room(9, 10, 100)
    with pytest.raises(
        MemoryError,
        match=r"10 ranks of 10 B each.* need 100 B; 100 B of memory are free.*at most 9",
    ):
        pool._require_room(10, 10, 100)


def test_the_size_of_a_rank_is_measured_on_a_process_with_pytorch(three):
    three.run(EMPTY)
    assert 50e6 < three._pool._private_bytes < 2e9
    assert pool.free_bytes() > 0


def test_a_container_has_the_room_of_its_limit(monkeypatch, tmp_path):
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("700\n")
    (group / "memory.stat").write_text("anon 600\ninactive_file 100\n")
    monkeypatch.setattr(pool, "read_memory_limit", lambda root: 1000)
    assert pool.free_bytes(tmp_path) == 400
    monkeypatch.setattr(pool, "read_memory_limit", lambda root: None)
    assert pool.free_bytes(tmp_path) > 1000


@on_linux
def test_what_is_slow_to_import_is_imported_once_and_only_where_the_notebook_has_it(
    monkeypatch, tmp_path
):
    f = cell("""
        import sys
        def f(rank, world_size): return [name in sys.modules for name in ("quiet_import", "thread_import", "not_here")]
    """)  # noqa: E501
    (tmp_path / "quiet_import.py").write_text("")
    starts_a_thread = (
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), "
        "daemon=True).start()"
    )
    (tmp_path / "thread_import.py").write_text(starts_a_thread)
    monkeypatch.syspath_prepend(tmp_path)
    for name, found in (
        ("quiet_import", [True, False, False]),
        ("thread_import", [False, False, False]),
    ):
        monkeypatch.setattr(pool, "_HEAVY_MODULES", (name, "not_here"))
        monkeypatch.setitem(sys.modules, name, object())  # the notebook has it
        with Ranks(1, device="cpu") as ranks:
            assert ranks.run(f) == [found]
            # a thread would forbid it, so a keeper without the module was started
            assert ranks._pool.forks


# Processes.


NOTEBOOK = """
    import sys
    from helpers.parallel import Ranks
    ranks = Ranks({count}, device="cpu")
    {fresh}
    ranks.run(lambda rank, world_size: None)
    assert ranks._pool._private_bytes > 50e6  # of a process with PyTorch, also where the keeper forks none
    print(ranks._pool.folder, ranks._pool._keeper.pid, *ranks._pool.pids.values(), ranks._pool.forks, flush=True)
    {then}
"""  # noqa: E501
HANG = "ranks.run(lambda rank, world_size: __import__('time').sleep(600), timeout_s=600)"
FRESH = "import helpers.ranks._pool as pool; pool.may_fork = lambda: False"


@on_linux
@pytest.mark.parametrize(
    ("count", "fresh", "then"), [(2, "", HANG), (1, FRESH, "input()")], ids=["forked", "fresh"]
)
def test_ranks_end_when_the_notebook_is_killed(count, fresh, then):
    """Forked ranks that are busy, and fresh ones that wait: none outlives the kernel, whatever
    ended it.
    """
    program = textwrap.dedent(NOTEBOOK).format(count=count, fresh=fresh, then=then)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as notebook:
        folder, keeper, *pids, forks = notebook.stdout.readline().split()
        processes = [int(keeper), *map(int, pids)]
        assert forks == str(not fresh)
        assert len(processes) == 1 + count
        assert all(map(is_running, processes))
        time.sleep(0.2)
        notebook.kill()
    assert wait_until(lambda: not any(map(is_running, processes)))
    assert not Path(folder).exists()


@on_linux
def test_ranks_start_where_fork_is_forbidden_and_cloudpickle_is_not_installed(tmp_path):
    (tmp_path / "cloudpickle.py").write_text("raise ModuleNotFoundError('not installed')")
    (tmp_path / "sitecustomize.py").write_text("""
import os
def refused(): raise PermissionError(1, "Operation not permitted")
os.fork = refused
""")
    program = """
        import operator
        from helpers.parallel import Ranks
        with Ranks(1, device="cpu") as ranks:
            print(ranks.run(operator.add), ranks._pool.forks)
    """
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "HELPERS_HEADLESS": "0"}
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("[1] False\n")
    assert "ranks cannot be forked here" in ended.stderr


def test_a_stranger_without_the_token_is_turned_away():
    server = wire.listen()
    assert server.getsockname()[0] == "127.0.0.1"
    for hello in ({"token": "guess"}, {}, ["token"]):
        stranger = wire.connect(server.getsockname()[1], hello)
        assert wire.accept(server, "secret") is None
        with pytest.raises((EOFError, OSError)):
            wire.receive(stranger)
    friend = wire.connect(server.getsockname()[1], {"token": "secret", "rank": 3})
    joined, hello = wire.accept(server, "secret")
    assert hello["rank"] == 3
    friend.close()
    joined.close()
    server.close()


def test_the_first_to_fail_is_no_rank_that_tells_of_its_peers():
    """Known states, in every order of arrival."""
    lost = failures.RankState(0, "raised", "raised lost", raised_at_s=1.0, by_peers=True)
    own = failures.RankState(1, "raised", "raised own", raised_at_s=3.0)
    later = failures.RankState(2, "raised", "raised later", raised_at_s=4.0)
    gone = failures.RankState(2, "died", "died")
    assert failures.error([lost, own, later], limit_s=None).rank == 1
    assert failures.error([lost, own, gone], limit_s=None).rank == 2
    done = failures.RankState(1, "returned", "returned")
    assert failures.error([lost, done], limit_s=None).rank == 0
    waits = failures.RankState(0, "running", "was still running", by_peers=True)
    assert failures.error([waits, failures.running_state(1, "", "")], limit_s=2.5).rank == 1
    assert "did not return within 2.5 s" in str(failures.error([waits, done], limit_s=2.5))
    again = pickle.loads(pickle.dumps(failures.error([lost, own, gone], limit_s=None)))
    assert (again.rank, str(again)) == (2, str(failures.error([lost, own, gone], limit_s=None)))


def test_a_fork_is_only_for_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not pool.may_fork()
