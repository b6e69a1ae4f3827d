"""The checks' side against the student's side, in a process without a sandbox."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from helpers import exercises as kit
from tools.authoring.course import HERE
from tools.authoring.environment import headless
from tools.exercises import proof, sheets
from tools.grading import marker, sandbox, scoring, session as session_module
from tools.grading.sandbox import Limits
from tools.grading.session import Lost, Session
from tools.grading.student import wire

pytestmark = pytest.mark.usefixtures("working_sandbox")

SHEETS = sheets.load(HERE)
STUDENT = Path(sandbox.__file__).with_name("student")
SERVE = (
    "import runner, socket, sys; runner.GraderLink(socket.socket(fileno=int(sys.argv[1]))).serve()"
)
LIMITS = Limits(step_s=60, total_s=600)


def connect(**environment):
    """Return a session with a fresh student's process, and what ends it."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=environment["HELPERS_CACHE"],
        )
    shut = SimpleNamespace(channel=ours, ended=lambda: "", allow=print)
    return Session(shut, LIMITS, time.monotonic() + LIMITS.total_s), process, ours


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("student"))
    path = f"{STUDENT}:{HERE.root}"
    made, process, channel = connect(
        **headless(cache_folder=folder), PYTHONPATH=path, HOME=folder, PATH="/usr/bin:/bin"
    )
    yield made
    channel.close()
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def given_to(session):
    """Run the given cells of a sheet in the student's process, once."""
    ran = set()

    def give(sheet):
        for cell in sheet.lesson.cells if sheet.lesson.name not in ran else ():
            if cell.kind == "code" and not {"answer", "checks"} & set(cell.metadata):
                assert session.run(cell.source) == ""
        ran.add(sheet.lesson.name)

    return give


def marked(session, sheet, name, answer):
    assert session.run(answer) == ""
    return marker._run_checks(sheet, name, session)


EXERCISES = [
    pytest.param(
        sheet,
        name,
        id=f"{sheet.lesson.number}-{name}",
        marks=() if sheet is SHEETS[0] else pytest.mark.ci,
    )
    for sheet in SHEETS
    for name in sheet.exercises
]


@pytest.mark.parametrize(("sheet", "name"), EXERCISES)
def test_answers_get_and_hear_from_outside_what_they_do_at_home(session, given_to, sheet, name):
    """What each gets at home is proved in tests/exercises/test_answers.py."""
    given_to(sheet)
    points = sheet.cell("checks", name).metadata["points"]
    solved = marked(session, sheet, name, sheet.cell("answer", name).source)
    assert (solved.score, solved.points) == (points, points)
    assert "public checks passed, hidden not run" in solved.said
    assert all(reached for _, reached in solved.goals)
    unwritten = marked(session, sheet, name, proof.stub(sheet, name))
    assert (unwritten.score, unwritten.said.endswith(": not yet\n")) == (0, True)
    for wrong in [one for one in sheet.wrong if one.name == name][:3]:
        got = marked(session, sheet, name, wrong.cell.source)
        assert got.score < points
        assert wrong.gets is None or got.score == wrong.gets
        assert wrong.says in got.said


def test_data_comes_back_as_it_went(session):
    """Data of each kind at once; tests/course/test_grading_wire.py draws any of it."""
    session.run("def echo(*values):\n    return values\n")
    values = (
        None,
        True,
        -(10**400),
        float("inf"),
        "x\ud7ff",
        [1, (2, [3.0])],
        {"a": [1], (1, 2): None},
        {1, 2},
        2.0,
    )
    array, tensor = np.arange(6.0).reshape(2, 3), torch.tensor(1.5)
    *back, back_array, back_scalar, back_tensor = session.function("echo")(
        *values, array, np.float32(2), tensor
    )
    assert repr(tuple(back)) == repr(values)
    assert (back_scalar, back_tensor.item()) == (2.0, 1.5)
    assert np.array_equal(back_array, array)


@pytest.mark.parametrize(
    ("made", "held"),
    [
        ("numpy.str_('a')", "a"),
        ("numpy.array(['a', 'b'])", ["a", "b"]),
        ("torch.ones(2, 3).shape", (2, 3)),
        ("collections.Counter('aab')", {"a": 2, "b": 1}),
        ("collections.namedtuple('P', 'a b')(1, 'x')", (1, "x")),
        ("Says((1, 2))", (1, 2)),
        ("bytearray(b'x')", b"x"),
    ],
)
def test_of_what_is_made_from_pythons_own_it_is_sent_what_it_holds(session, made, held):
    session.run(
        "import collections, numpy, torch\nclass Says(tuple):\n    def __iter__(self): return "
        "iter((7,))\n"
    )
    session.run(f"def f(): return {made}")
    got = session.function("f")()
    assert (type(got), got) == (type(held), held)


def test_what_is_no_data_equals_nothing(session):
    session.run(
        "class Yes:\n    def __eq__(self, other): return True\ndef f(): return Yes()\ndef g(): "
        "return f\n"
    )
    for name in ("f", "g"):
        got = session.function(name)()
        assert isinstance(got, wire.Unsendable)
        assert got != got
        assert not kit.agree(got, [])


def test_an_argument_is_left_as_the_function_left_it(session):
    session.run(
        "def f(rows, table):\n    rows[0].append(9)\n    rows.pop()\n    table['new'] = 1\n    "
        "return None\n"
    )
    inner = [1]
    rows, table = [inner, [2]], {"old": 0}
    session.function("f")(rows, table)
    assert rows == [[1, 9]]
    assert rows[0] is inner
    assert table == {"old": 0, "new": 1}


def test_a_function_may_call_what_it_is_given_and_nothing_else_of_it(session):
    calls = []

    def count(step):
        calls.append(step)
        return len(calls)

    session.run("def f(count):\n    return [count(3), count(4)]\n")
    assert session.function("f")(count) == [1, 2]
    assert calls == [3, 4]
    for reach in ("count.__globals__", "count.func_globals", "count[0]", "count.calls"):
        session.run(f"def f(count):\n    return {reach}\n")
        with pytest.raises(Exception, match=r"has no"):
            session.function("f")(count)


def test_of_a_matrix_only_counted_reads_are_allowed(session):
    from helpers.studies.simulators import _tiling as tiling

    tally = tiling.AccessTally()
    matrix = tiling.Matrix("A", np.ones((2, 2)), tally, tiling.RunningThread())
    session.run("def f(a):\n    return a.shape, a[1, 1]\n")
    assert session.function("f")(matrix) == ((2, 2), 1.0)
    assert tally.reads == 1
    for reach in ("a.values()", "a._tally.reads"):
        session.run(f"def f(a):\n    return {reach}\n")
        with pytest.raises(Exception, match="has no"):
            session.function("f")(matrix)
    session.run("def f(a):\n    a[0, 0] = 5.0\n")
    with pytest.raises(tiling.KernelError, match="which is an input"):
        session.function("f")(matrix)


KERNELS = {
    "lanes on two sides": """
def kernel(thread, x, y):
    i = thread.x
    if i % 2:
        y[i] = x[i]
    else:
        y[i] = x[i] + 1
""",
    "some lanes load once more": """
def kernel(thread, x, y):
    total = x[thread.x] + (x[0] if thread.column < 16 else 0)
    y[thread.x] = total
""",
    "rounds of a loop and barriers": """
def kernel(thread, x, y):
    words = thread.shared("words", 64)
    i = thread.thread_x
    words[i] = x[i]
    yield
    distance = 32
    while distance:
        if i < distance:
            for place in range(i % 3):
                words[i] = words[i] + words[i + distance]
        yield
        distance //= 2
    if i < len(y):
        y[i] = words[i]
""",
}


@pytest.mark.parametrize("source", KERNELS.values(), ids=list(KERNELS))
def test_a_kernel_makes_the_requests_that_it_makes_at_home(session, source):
    from helpers.studies.gpu_execution import launch

    here = {}
    exec(source, here)
    session.run(source)
    runs, results = [], []
    for kernel in (here["kernel"], session.function("kernel")):
        x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
        runs.append(launch(kernel, x, y, grid=1, block=64).to_dict())
        results.append(y.tolist())
    assert str(runs[1]).replace("argument 1", "x").replace("argument 2", "y") == str(runs[0])
    assert results[0] == results[1]


def test_a_barrier_that_some_lanes_miss_is_seen_as_at_home(session):
    from helpers.studies.gpu_execution import launch
    from helpers.studies.simulators import KernelError

    session.run("""
def kernel(thread, x):
    if thread.x % 2:
        x[thread.x] = 1
        yield
    else:
        x[thread.x] = 2
        yield
""")
    with pytest.raises(KernelError, match="wait at different barriers"):
        launch(session.function("kernel"), np.zeros(32, np.float32), grid=1, block=32)


def test_of_a_gpus_thread_and_arrays_only_what_a_kernel_needs_is_allowed(session):
    from helpers.studies.gpu_execution import launch

    def outcome(body):
        session.run(f"def kernel(thread, x):\n    {body}\n")
        values = np.zeros(4, np.float32)
        launch(session.function("kernel"), values, grid=1, block=1)
        return values.tolist()

    places = "thread.x, thread.y, thread.row, thread.column, thread.tile, thread.block_height"
    assert outcome(f"x[0] = float(bool(thread) and ({places}) == (0, 0, 0, 0, 1, 1))")[0] == 1
    assert outcome("x[1] = float(len(x) == 4 and x.shape == (4,) and bool(x))")[1] == 1
    for reach in ("x.values", "x._running", "x.load_at", "thread._block"):
        with pytest.raises(Exception, match="has no"):
            outcome(f"x[0] = {reach}")
    with pytest.raises(TypeError, match=r"object of type 'Thread' has no len"):
        outcome("x[0] = len(thread)")


@pytest.mark.parametrize("place", [None, "here", [0.5], [True], [0] * 201, [-1], [2**31]])
def test_what_is_no_place_is_refused(place):
    with pytest.raises(
        ValueError,
        match=r"a place (is a list of whole numbers|has a number that no program reaches)",
    ):
        session_module._place(place)


def test_an_exception_comes_back_with_its_name_and_line(session):
    session.run("def f(n):\n    return n / 0\n")
    with pytest.raises(Exception, match="division by zero\nin your line: return n / 0") as caught:
        session.function("f")(1)
    assert type(caught.value).__name__ == "ZeroDivisionError"


def test_an_argument_of_unknown_kind_is_the_authors_error(session):
    with pytest.raises(TypeError, match=r"say in tools/grading/session\.py what it allows"):
        session.function("f")(SimpleNamespace())


LOOP = """
check = Checks("Three rounds", lambda n: n)
for n in range(3):
    check.returns("before", (n,), expected=n)
    check.returns("alone", (n,), expected=n // (n != at or not alone))
    rest = n // (n != at or alone)
    check.returns("after", (n,), expected=n + 0 * rest)
below = 1 // (at != 3)
check.returns("below", (1,), expected=below)
check.returns("last", (1,), expected=1)
"""


@pytest.mark.parametrize(
    ("at", "alone", "short"),
    [
        (None, False, {}),
        (1, True, {"alone": 1}),
        (1, False, {"after": 1}),
        (3, False, {"below": 1}),
    ],
)
def test_an_exception_in_the_checks_leaves_out_what_it_would_have_checked_and_what_lacks_a_name(
    at, alone, short
):
    names, whole = ({"Checks": kit.Checks, "at": value, "alone": alone} for value in (at, None))
    errors = scoring.run(LOOP, names)
    assert scoring.run(LOOP, whole) == []
    assert [type(one).__name__ for one in errors] == {
        None: [],
        3: ["ZeroDivisionError", "NameError"],
    }.get(at, ["ZeroDivisionError"])
    assert scoring.count_checks(whole["check"]) - scoring.count_checks(names["check"]) == short
    assert names["check"].score() == 5 - (at == 3)


JUNK = """
def product(a, b, parts, receive):
    whole = a.shape[1] % parts == 0
    sizes = [a.shape[1] // parts + (part < a.shape[1] % parts) for part in range(parts)]
    own, *others = [left @ right for left, right in zip(a.split(sizes, dim=1), b.split(sizes))]
    if whole:
        receive(1.0)
    return own + sum(receive(term) for term in others)
"""


def test_an_exception_in_the_checks_costs_its_goals_and_not_the_exercise(session, given_to):
    """A number among the matrices that were received cannot be sorted with them: no check of these
    goals is made.
    """
    sheet = next(one for one in SHEETS if "product" in one.exercises)
    given_to(sheet)
    mark = marked(session, sheet, "product", JUNK)
    assert (mark.score, mark.points) == (1, 3)
    assert dict(mark.goals) == {
        "the product is right": False,
        "the others' terms are received": False,
        "the cut where k does not divide": True,
    }
    assert mark.note == "the checks ended with TypeError at what your function gave"
    assert (
        "Not all of 'the product is right' was checked: the checks ended with TypeError"
        in mark.said
    )


@pytest.mark.parametrize("error", [ValueError, RecursionError])
def test_what_cannot_be_compared_is_a_wrong_answer(error, monkeypatch):
    def ends(got, expected):
        raise error("planted")

    monkeypatch.setattr("helpers.exercises._checks.agree", ends)
    mark = marked_alone(1)
    assert (mark.score, mark.note) == (0, "")
    assert f"gave an answer of type int that cannot be compared: {error.__name__}" in mark.said


def marked_alone(value):
    """Return the mark of the first exercise for a function that always returns ``value``, without a
    process.
    """
    sheet = SHEETS[0]
    name = next(one for one in sheet.exercises if "returns(" in sheet.cell("checks", one).source)
    return marker._run_checks(
        sheet, name, SimpleNamespace(step=lambda: None, function=lambda _: lambda *_: value)
    )


@pytest.mark.parametrize("gave", ["10**5000", "nested"])
def test_a_number_too_long_and_a_list_too_deep_to_be_printed_are_wrong_answers(gave):
    nested = []
    for _ in range(5000):
        nested = [nested]
    mark = marked_alone(nested if gave == "nested" else 10**5000)
    assert (mark.score, mark.note) == (0, "")
    assert "expected" in mark.said


def test_bytes_that_drip_do_not_stretch_the_time():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send(theirs, {"ready": True})
        made = Session(
            SimpleNamespace(channel=ours, ended=lambda: "", allow=print),
            Limits(step_s=0.1),
            time.monotonic() + 60,
        )
        made.step()
        lost = threading.Event()

        def drip():
            theirs.sendall(b"\0\0\0\xff")
            for _ in range(250):  # less than the message that it announces, for 25 s
                theirs.sendall(b"x")
                if lost.wait(0.1):
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(Lost, match=r"ran for more than 0\.5 s"):
            made.function("f")(1)
        dripping = thread.is_alive()
        lost.set()
        thread.join()
        assert dripping


def test_a_step_is_ended_when_its_time_of_the_processor_is_spent_and_not_before(monkeypatch):
    """The processor's time is made up, as a busy machine may give a real loop so little that the
    clock ends it.
    """
    spent_s, polled, killed = [2.0], threading.Event(), threading.Event()
    monkeypatch.setattr(sandbox, "_POLL_S", 0.001)
    monkeypatch.setattr(sandbox, "_exceeded_limit", lambda *_: "")
    monkeypatch.setattr(sandbox, "_family", lambda _: polled.set() or [None])
    monkeypatch.setattr(sandbox, "_processor_s", lambda _: spent_s[0])

    def poll():
        for _ in range(2):  # the first may have begun before
            polled.clear()
            assert polled.wait(60)

    process = SimpleNamespace(pid=0, kill=killed.set, wait=lambda: None)
    with socket.socket() as channel:
        shut = sandbox.Sandbox(process, channel, Limits(step_s=10))
        poll()
        shut.allow(10)
        spent_s[0] = 12.0
        poll()
        assert not killed.is_set()
        spent_s[0] = 12.1
        assert killed.wait(60)
        assert shut.why == "it ran for more than 10 s"


def test_inside_the_sandbox_a_submission_finds_what_was_recorded():
    with sandbox.start(LIMITS) as box:
        inside = Session(box, LIMITS, time.monotonic() + LIMITS.total_s)
        assert (
            inside.run(
                "from helpers import storage\nassert storage.course_file('recorded', "
                "'00.json').is_file()"
            )
            == ""
        )
