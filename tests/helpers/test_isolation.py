"""Whatever becomes of a function in its own process, one typed answer tells, in the limits that
were set.

PyTorch is imported in a process only where a test is about PyTorch: `the_plain_process` keeps it
out elsewhere.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import gc
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from process_watch import is_running, wait_until

from helpers import isolation
from helpers.isolation import Outcome, _caller as caller, _child as child, run_limited

MB = 10**6
ROOT = Path(__file__).parents[2]
on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="the kernel's limit and /proc are Linux's"
)
on_posix = pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")


@pytest.fixture(autouse=True)
def the_plain_process(monkeypatch):
    monkeypatch.setattr(caller, "_has_torch", lambda: False)


@pytest.fixture
def unlimited_system(monkeypatch):
    """A system such as macOS, which does not hold a process to a memory limit: the caller has to
    watch.
    """
    code = (
        "\nimport helpers.isolation._child as child\nchild._memory_limiter = lambda memory_bytes: "
        "None\nserve(folder)\n"
    )
    monkeypatch.setattr(child, "BOOTSTRAP", child.BOOTSTRAP.replace("\nserve(folder)\n", code))


@dataclass(frozen=True)
class Point:
    x: int


# What comes back.


def test_a_value_comes_back_in_its_own_type():
    begun = time.perf_counter()
    outcome = run_limited(lambda first, second: [first, Point(second)], 1, 2)
    called_s = time.perf_counter() - begun
    assert (outcome.status, outcome.value, outcome.unwrap()) == (
        "returned",
        [1, Point(2)],
        [1, Point(2)],
    )
    assert 0 <= outcome.elapsed_s < called_s
    assert outcome.exit_code is None
    assert str(outcome).startswith("Outcome\n  status   returned\n")


def test_the_process_is_a_fresh_one_in_the_same_place(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COURSE_TEST", "seen")
    outcome = run_limited(
        lambda: (os.getpid(), os.getcwd(), os.environ["COURSE_TEST"], "pytest" in sys.modules)
    )
    process, *rest = outcome.unwrap()
    assert process != os.getpid()
    assert rest == [str(tmp_path), "seen", False]
    assert not is_running(process)


def test_variables_are_set_before_anything_is_imported(monkeypatch):
    monkeypatch.setenv("COURSE_TEST", "the caller's")
    before = {"COURSE_TEST": "its own", "PYTHONHASHSEED": "7"}
    found = run_limited(
        lambda: (os.environ["COURSE_TEST"], hash("text")), variables=before
    ).unwrap()
    assert (
        found
        == run_limited(lambda: (os.environ["COURSE_TEST"], hash("text")), variables=before).unwrap()
    )
    assert (found[0], os.environ["COURSE_TEST"]) == ("its own", "the caller's")


@pytest.mark.parametrize(
    "function",
    [functools.partial(divmod, 7), Point, "ab".join, max],
    ids=["partial", "class", "method", "built-in"],
)
def test_any_callable_will_do(function):
    argument = 3 if function is not max else [3, 1]
    argument = ["c", "d"] if getattr(function, "__name__", "") == "join" else argument
    assert run_limited(function, argument).unwrap() == function(argument)


def test_a_large_value_comes_back():
    assert len(run_limited(lambda: bytearray(100 * MB)).unwrap()) == 100 * MB


def test_an_exception_is_told_with_its_place_in_the_function():
    def ratio(above: int, below: int) -> float:
        return above / below  # the line that fails

    outcome = run_limited(ratio, 1, 0)
    assert (outcome.status, outcome.error_type, outcome.value) == (
        "raised",
        "ZeroDivisionError",
        None,
    )
    assert "division by zero" in outcome.message
    assert "return above / below  # the line that fails" in outcome.traceback
    assert "isolation" not in outcome.traceback.replace("test_isolation", "")
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError(.|\n)*the line that fails"):
        outcome.unwrap()


def test_an_exception_that_cannot_print_itself_is_told():
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def fail():
        raise Mute

    outcome = run_limited(fail)
    assert (outcome.status, outcome.error_type) == ("raised", "Mute")


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, RecursionError])
def test_other_exceptions_are_told_too(error):
    def fail():
        raise error("odd")

    outcome = run_limited(fail)
    assert (outcome.status, outcome.error_type) == ("raised", error.__name__)


def test_a_value_that_cannot_be_sent_back_is_told():
    outcome = run_limited(lambda: threading.Lock())
    assert outcome.status == "raised"
    assert "returned a lock, which cannot be sent back" in outcome.message


def test_a_value_that_cannot_be_loaded_here_is_told():
    class Trap:
        def __reduce__(self):
            return int, ("not a number",)

    outcome = run_limited(Trap)
    assert (outcome.status, outcome.error_type) == ("raised", "ValueError")
    assert "cannot be loaded here" in outcome.message


def test_a_function_that_the_process_cannot_load_is_told():
    class Trap:
        def __reduce__(self):
            return int, ("not a number",)

    outcome = run_limited(id, Trap())
    assert (outcome.status, outcome.error_type) == ("raised", "ValueError")
    assert "could not load the function or its arguments" in outcome.message


def test_an_outcome_of_plain_values_becomes_json():
    outcome = run_limited(lambda: 3)
    assert json.loads(outcome.to_json())["value"] == 3


# What is printed.


def test_what_is_printed_is_kept_in_order():
    def speak():
        print("one", flush=True)
        print("two µ", file=sys.stderr, flush=True)
        os.write(1, b"three \xff\n")
        os.system("echo four")
        print("five")

    assert run_limited(speak).output == "one\ntwo µ\nthree \N{REPLACEMENT CHARACTER}\nfour\nfive\n"


def test_of_a_flood_the_first_and_the_last_are_kept():
    def flood():
        print("first")
        for _ in range(300):
            print("x" * MB)
        print("last")

    outcome = run_limited(flood)
    assert outcome.status == "returned"
    assert len(outcome.output) < 101_000
    assert outcome.output.startswith("first\nxxx")
    assert outcome.output.endswith("xxx\nlast\n")
    assert "299,900,311 bytes left out" in outcome.output


def test_nothing_can_be_typed():
    assert run_limited(input).error_type == "EOFError"


# The limit on memory.


def take(amount: int) -> int:
    return len(bytearray(b"x" * amount))


@on_linux
def test_below_the_limit_it_runs_and_above_it_is_out_of_memory():
    fits = run_limited(lambda: len(b"x" * (90 * MB)), memory_bytes=100 * MB)
    assert (fits.status, fits.value) == ("returned", 90 * MB)
    assert fits.peak_bytes == pytest.approx(90 * MB, abs=3 * MB)
    fails = run_limited(lambda: len(b"x" * (110 * MB)), memory_bytes=100 * MB)
    assert (fails.status, fails.error_type) == ("out_of_memory", "MemoryError")
    assert fails.peak_bytes < 3 * MB
    with pytest.raises(MemoryError, match="MemoryError"):
        fails.unwrap()


@on_linux
def test_the_test_above_would_see_a_limit_that_is_not_set(monkeypatch):
    unlimited = "child._memory_limiter = lambda _: lambda: lambda: None"
    code = f"\nimport helpers.isolation._child as child\n{unlimited}\nserve(folder)\n"
    monkeypatch.setattr(child, "BOOTSTRAP", child.BOOTSTRAP.replace("\nserve(folder)\n", code))
    assert run_limited(lambda: len(b"x" * (110 * MB)), memory_bytes=100 * MB).status == "returned"


@on_linux
def test_the_limit_is_on_the_sum_and_is_lifted_to_tell_of_it():
    def hoard(kept: list) -> None:
        while True:
            kept.append(bytearray(100_000))

    outcome = run_limited(hoard, [], memory_bytes=50 * MB)
    assert outcome.status == "out_of_memory"
    assert outcome.peak_bytes == pytest.approx(50 * MB, abs=3 * MB)


@on_linux
def test_a_file_mapped_to_be_read_is_not_counted(tmp_path):
    import mmap

    (tmp_path / "weights").write_bytes(bytes(60 * MB))

    def read(path: str) -> int:
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as weights,
        ):
            return len(weights) + weights[-1]

    assert run_limited(read, str(tmp_path / "weights"), memory_bytes=20 * MB).unwrap() == 60 * MB


def test_without_a_limit_there_is_none():
    assert run_limited(take, 200 * MB).unwrap() == 200 * MB


def test_a_huge_limit_and_a_fractional_time_are_limits():
    assert run_limited(take, MB, memory_bytes=10**30, timeout_s=1e30).unwrap() == MB
    assert run_limited(take, MB, memory_bytes=1e9, timeout_s=30.5).unwrap() == MB


@on_linux
def test_torch_and_numpy_are_out_of_memory_in_their_own_words(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(caller, "_has_torch", lambda: True)

    def fill() -> int:
        import numpy
        import torch

        print(torch.ones(80 * MB, dtype=torch.uint8).numel(), flush=True)
        try:
            numpy.empty(200 * MB, numpy.uint8)
        except Exception as error:
            print(child.is_memory_error(error), flush=True)
        return torch.empty(200 * MB, dtype=torch.uint8).numel()

    limited = run_limited(fill, memory_bytes=100 * MB)
    assert (limited.status, limited.error_type, limited.output) == (
        "out_of_memory",
        "RuntimeError",
        "80000000\nTrue\n",
    )
    assert limited.peak_bytes == pytest.approx(80 * MB, abs=8 * MB)
    free = run_limited(fill)
    assert (free.status, free.value, free.output) == ("returned", 200 * MB, "80000000\n")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (
            RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
            ),
            True,
        ),
        (
            RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"),
            True,
        ),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("mat1 and mat2"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), True),
        (ValueError("out of memory"), False),
    ],
)
def test_which_errors_say_that_memory_ran_out(error, expected):
    assert child.is_memory_error(error) is expected


def test_torchs_own_error_says_that_memory_ran_out():
    torch = pytest.importorskip("torch")
    assert child.is_memory_error(torch.OutOfMemoryError("CUDA out of memory."))


@on_linux
def test_where_the_system_does_not_limit_the_caller_watches(unlimited_system):
    def hold(amount: int) -> None:
        kept = b"x" * amount
        time.sleep(80 if kept else 0)

    outcome = run_limited(hold, 80 * MB, memory_bytes=40 * MB, timeout_s=120)
    assert outcome.status == "out_of_memory"
    assert "held more than its limit of 40,000,000 bytes" in outcome.message
    assert outcome.elapsed_s < 60
    assert run_limited(take, MB, memory_bytes=40 * MB).unwrap() == MB


@on_linux
def test_where_nothing_can_limit_or_watch_that_is_an_error(unlimited_system, monkeypatch):
    code = "\nchild.resident_bytes = lambda process: None\nserve(folder)\n"
    monkeypatch.setattr(child, "BOOTSTRAP", child.BOOTSTRAP.replace("\nserve(folder)\n", code))
    with pytest.raises(RuntimeError, match="install psutil, or leave memory_bytes out"):
        run_limited(time.sleep, 20, memory_bytes=MB)
    outcome = run_limited(take, MB)
    assert (outcome.value, str(outcome).splitlines()[-1].split()) == (MB, ["peak", "unknown"])


# The limit on time.


@pytest.mark.timed
def test_a_function_that_goes_on_is_ended_and_its_place_told():
    """Within a quarter of a second its process must have written where it stands."""

    def go_on():
        print("begun", flush=True)
        while True:
            time.sleep(0.01)

    outcome = run_limited(go_on, timeout_s=0.3)
    assert (outcome.status, outcome.output, outcome.value) == ("timed_out", "begun\n", None)
    assert 0.3 < outcome.elapsed_s < 10
    assert "limit of 0.3 s" in outcome.message
    assert "in go_on" in outcome.traceback
    with pytest.raises(TimeoutError, match="in go_on"):
        outcome.unwrap()


@on_linux
def test_neither_an_ignored_signal_nor_a_grandchild_lives_on(tmp_path):
    def family(note: str) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
        Path(f"{note}.part").write_text(f"{os.getpid()} {grandchild.pid}")
        os.rename(f"{note}.part", note)
        time.sleep(100)

    for limit_s in (0.7, 7, 70):  # on a busy machine the family is complete later
        outcome = run_limited(family, str(tmp_path / "note"), timeout_s=limit_s)
        assert outcome.status == "timed_out"
        assert limit_s < outcome.elapsed_s < limit_s + 30
        if (tmp_path / "note").exists():
            break
    processes = [int(number) for number in (tmp_path / "note").read_text().split()]
    assert len(processes) == 2
    assert wait_until(lambda: not any(is_running(process) for process in processes))


@on_linux
def test_what_a_function_leaves_running_is_ended_when_it_returns():
    def leave() -> int:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]).pid

    outcome = run_limited(leave)
    assert outcome.status == "returned"
    assert wait_until(lambda: not is_running(outcome.value))


def test_a_function_that_ends_too_late_has_timed_out(monkeypatch):
    monkeypatch.setattr(caller, "_GRACE_S", 30.0)
    outcome = run_limited(lambda: time.sleep(0.3) or "late", timeout_s=0.1)
    assert (outcome.status, outcome.value) == ("timed_out", None)
    assert outcome.elapsed_s >= 0.3


def test_a_process_that_does_not_leave_has_answered_all_the_same(monkeypatch):
    monkeypatch.setattr(caller, "_EXIT_LIMIT_S", 0.2)

    def leave_a_thread() -> str:
        threading.Thread(target=time.sleep, args=(100,)).start()
        return "answer"

    assert run_limited(leave_a_thread, timeout_s=20).unwrap() == "answer"


def test_a_process_that_does_not_start_is_ended(monkeypatch):
    monkeypatch.setattr(caller, "_START_LIMIT_S", 0.2)
    monkeypatch.setattr(child, "BOOTSTRAP", "import time; time.sleep(100)")
    outcome = run_limited(take, 1)
    assert outcome.status == "timed_out"
    assert "was not ready" in outcome.message


# The process's own end.


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda: sys.exit(3), 3),
        (lambda: sys.exit(), 0),
        (lambda: os._exit(4), 4),
        (lambda: sys.exit("bye"), 1),
    ],
)
def test_a_function_that_ends_its_process_died(function, code):
    outcome = run_limited(function)
    assert (outcome.status, outcome.exit_code, outcome.signal) == ("died", code, None)
    assert f"exit code {code}" in outcome.message
    with pytest.raises(RuntimeError, match="before the function returned"):
        outcome.unwrap()


@on_posix
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGTERM])
def test_a_signal_is_named(number):
    outcome = run_limited(lambda: os.kill(os.getpid(), number))
    assert (outcome.status, outcome.signal, outcome.exit_code) == ("died", number.name, None)


@on_posix
def test_a_segmentation_fault_died_where_the_output_says():
    def fault():
        ctypes.string_at(0)

    outcome = run_limited(fault)
    assert (outcome.status, outcome.signal) == ("died", "SIGSEGV")
    assert "in fault" in outcome.output


@on_posix
def test_memory_is_blamed_for_a_death_only_on_evidence():
    common = {"elapsed_s": 1.0, "peak_bytes": None, "output": ""}
    bad_alloc = {
        **common,
        "output": "terminate called after throwing an instance of 'std::bad_alloc'",
    }
    assert caller._death_outcome(-9, 0, common).status == "died"
    assert caller._death_outcome(-9, 1, common).status == "out_of_memory"
    assert caller._death_outcome(-11, 1, common).status == "died"
    assert caller._death_outcome(-6, 0, common).status == "died"
    assert caller._death_outcome(-6, 0, bad_alloc).status == "out_of_memory"
    assert caller._death_outcome(-62, 0, common).signal == "signal 62"


# What is refused.


@pytest.mark.parametrize("function", [None, 3, "print"])
def test_only_what_can_be_called_is_run(function):
    with pytest.raises(TypeError, match="takes a function and its arguments"):
        run_limited(function)


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"memory_bytes": 0}, ValueError),
        ({"memory_bytes": -1}, ValueError),
        ({"memory_bytes": 0.5}, ValueError),
        ({"memory_bytes": float("nan")}, ValueError),
        ({"memory_bytes": "1 GB"}, TypeError),
        ({"memory_bytes": True}, TypeError),
        ({"timeout_s": 0}, ValueError),
        ({"timeout_s": -2.5}, ValueError),
        ({"timeout_s": float("inf")}, ValueError),
        ({"timeout_s": None}, TypeError),
        ({"timeout_s": "1 s"}, TypeError),
    ],
)
def test_limits_are_positive_numbers(limits, error):
    with pytest.raises(error, match=next(iter(limits))):
        run_limited(take, 1, **limits)


@pytest.mark.parametrize(("variables", "words"), [
    ("A=1", "variables='A=1' is text"), ({"A": 1}, "variables['A']=1 is an int; give a text"),
    ({1: "A"}, "variables[0]=1"),
])  # fmt: skip
def test_variables_are_texts(variables, words):
    with pytest.raises(TypeError, match=re.escape(words)):
        run_limited(take, 1, variables=variables)


def test_what_cannot_be_sent_is_refused():
    with pytest.raises(TypeError, match="make open files, locks, generators"):
        run_limited(len, threading.Lock())
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        run_limited(len, (n for n in itertools.count()))


def test_without_cloudpickle_a_module_s_function_runs_and_a_cell_s_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert run_limited(divmod, 7, 3).unwrap() == (2, 1)
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        run_limited(lambda: 1)

    def cell():
        return 1

    cell.__module__ = "__main__"
    with pytest.raises(TypeError, match="install it, or put the function in a module"):
        run_limited(cell)


# Where it is called from.


def script(tmp_path: Path, text: str) -> subprocess.Popen[str]:
    (tmp_path / "script.py").write_text(textwrap.dedent(text))
    # What is killed leaves its temporary folder.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    return subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_script_without_a_guard_runs_once(tmp_path):
    program = """
        from dataclasses import dataclass
        from helpers.isolation import run_limited
        print("top level")
        offset = 40

        @dataclass
        class Answer:
            value: int

        def add(number):
            return Answer(offset + number)

        outcome = run_limited(add, 2)
        print(outcome.unwrap() == Answer(42), outcome.output == "")
    """
    assert script(tmp_path, program).communicate(timeout=120) == ("top level\nTrue True\n", "")


WAITING = """
    import os, sys, time
    from helpers.isolation import run_limited

    def wait():
        with open("note.part", "w") as file:
            file.write(str(os.getpid()))
        os.rename("note.part", "note")
        time.sleep(100)

    run_limited(wait, timeout_s=90)
"""


@on_linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_process_ends_with_its_caller(tmp_path, number):
    parent = script(tmp_path, WAITING)
    assert wait_until((tmp_path / "note").exists)
    process = int((tmp_path / "note").read_text())
    assert is_running(process)
    parent.send_signal(number)
    error = parent.communicate(timeout=120)[1]
    assert ("KeyboardInterrupt" in error) == (number is signal.SIGINT)
    assert wait_until(lambda: not is_running(process))


def test_a_cell_s_function_runs_and_its_line_is_told(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    cells = [
        (
            "from helpers.isolation import run_limited\nclass Own:\n    size = 2\ndef fail(n):\n   "
            " return n / 0  # here\n"
        ),
        "print(type(run_limited(Own).unwrap()) is Own, '# here' in run_limited(fail, 1).traceback)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    at = {"metadata": {"path": str(ROOT)}}
    nbclient.NotebookClient(notebook, timeout=120, startup_timeout=120, resources=at).execute()
    assert [output.text for output in notebook.cells[1].outputs] == ["True True\n"]


def test_several_callers_at_once_get_their_own_answers():
    outcomes: dict[int, Outcome] = {}
    threads = [
        threading.Thread(target=lambda n=n: outcomes.update({n: run_limited(lambda: n * n)}))
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: outcome.unwrap() for n, outcome in outcomes.items()} == {0: 0, 1: 1, 2: 4}


def _descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd")) if sys.platform == "linux" else set()


def test_nothing_stays_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(caller.tempfile, "tempdir", str(tmp_path))
    gc.collect()  # what earlier tests left to it is not to go meanwhile
    descriptors = _descriptors()
    threads = set(threading.enumerate())
    run_limited(take, 1)
    run_limited(time.sleep, 100, timeout_s=0.1)
    assert list(tmp_path.iterdir()) == []
    assert wait_until(lambda: set(threading.enumerate()) <= threads)
    assert _descriptors() <= descriptors


def test_the_package_shows_two_names():
    assert isolation.__all__ == ["Outcome", "run_limited"]
