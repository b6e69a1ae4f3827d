"""The kit of an exercise: what a reader is told, how points are counted, and a machine with a
made-up clock.
"""

from __future__ import annotations

import collections
import copy
import enum
import fractions
import linecache
import math

import numpy as np
import pytest
import torch

from helpers.exercises import Checks, FakeMachine, NotYet, agree, not_yet


def report(checks, capsys):
    checks.report()
    return capsys.readouterr().out


def test_an_unwritten_answer_says_not_yet_and_nothing_else(capsys):
    checks = Checks("One", lambda *_: not_yet)
    checks.returns("a", (1,), expected=not_yet)
    checks.holds("b", True, otherwise="no")
    assert report(checks, capsys) == "One: not yet\n"
    assert checks.score() == 0
    assert isinstance(copy.deepcopy(not_yet), NotYet)


def test_a_right_answer_is_told_that_hidden_checks_were_not_run(capsys):
    checks = Checks("One", lambda n: 2 * n)
    checks.returns("doubles", (2,), expected=4)
    checks.holds("stays even", True, otherwise="no")
    assert report(checks, capsys).splitlines() == [
        "One",
        "  reached      doubles",
        "  reached      stays even",
        "public checks passed, hidden not run",
    ]
    assert checks.score() == 2.0


def test_a_goal_is_reached_when_every_check_of_it_is(capsys):
    checks = Checks("One", lambda n: 4)
    checks.returns("doubles", (2,), expected=4)
    checks.returns("doubles", (3,), expected=6, mistakes={4: "That is always four"})
    checks.returns("doubles", (2,), expected=4)
    checks.returns("is four", (2,), expected=4)
    said = report(checks, capsys)
    assert (
        "  not reached  doubles\n               <lambda>(3) gave 4, expected 6\n               "
        "That is always" in said
    )
    assert said.endswith("1 of 2 goals not reached, hidden not run\n")
    assert checks.score() == 1


def test_an_answer_written_in_part_is_no_longer_not_yet(capsys):
    checks = Checks("One", lambda n: n if n else not_yet)
    checks.returns("a", (0,), expected=0)
    checks.returns("b", (1,), expected=1)
    said = report(checks, capsys)
    assert "still returns not_yet" in said
    assert checks.score() == 1


def test_an_exception_is_a_failed_check_with_the_readers_line(capsys):
    source = "def broken(n):\n    return n / 0\n"
    linecache.cache["<cell>"] = (len(source), None, source.splitlines(keepends=True), "<cell>")
    names: dict = {}
    exec(compile(source, "<cell>", "exec"), names)
    checks = Checks("One", names["broken"])
    checks.returns("a", (1,), expected=1)
    checks.holds("b", True, otherwise="unused")
    said = report(checks, capsys)
    assert (
        "broken(1) raised ZeroDivisionError: division by zero\n               in your line: return "
        "n / 0" in said
    )
    assert "the call above gave no answer" in said
    assert "not yet" not in said
    assert checks.score() == 0


def test_a_condition_before_any_call_is_not_reached(capsys):
    checks = Checks("One", lambda: 1)
    checks.holds("a", True, otherwise="unused")
    assert "the call above gave no answer" in report(checks, capsys)
    assert checks.score() == 0


def test_the_end_of_the_program_is_no_failed_check():
    def leave():
        raise SystemExit

    checks = Checks("One", leave)
    with pytest.raises(SystemExit):
        checks.returns("a", (), expected=1)


def test_an_answer_that_is_no_function_is_refused():
    with pytest.raises(TypeError, match="the answer to 'One' must be a function, not 3"):
        Checks("One", 3)


def test_a_forgotten_return_is_named(capsys):
    checks = Checks("One", lambda: None)
    checks.returns("a", (), expected=1, mistakes={2: "unused"})
    assert "gave None, expected 1\n               A function without return gives None" in report(
        checks, capsys
    )


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (1, 1.0),
        (0.1 + 0.2, 0.3),
        (np.float64(2.5), 2.5),
        (torch.tensor(3), 3),
        (fractions.Fraction(1, 2), 0.5),
        ([1, 2.0], (1.0, 2)),
        (np.array([1, 2]), [1, 2]),
        (torch.tensor([[1.0], [2.0]]), [[1], [2]]),
        ([], ()),
        ("a", "a"),
        (["a"], ["a"]),
        (True, True),
        (np.bool_(False), False),
        (math.inf, math.inf),
        (0, 0.0),
        (10**400, 10**400),
        (np.float32(1.073741824), 1.073741824),
        (torch.tensor([0.9, 0.02]), (0.9, 0.02)),
        (torch.tensor(0.021).item(), 0.021),
        (np.float32(134217728), 134217728),
        (torch.ones(2, 3).shape, (2, 3)),
        (collections.namedtuple("Pair", "a b")(1, "x"), (1, "x")),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (np.str_("a"), "a"),
        (enum.StrEnum("Kind", {"A": "a"}).A, "a"),
    ],
)
def test_what_agrees(got, expected):
    assert agree(got, expected)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (1.000001, 1.0),
        (math.nan, 1.0),
        (math.nan, math.nan),
        (None, 0),
        (True, 1),
        (1, True),
        ("1", 1),
        (1, "1"),
        ([1], 1),
        ([1, 2], [1]),
        ({1, 2}, [1, 2]),
        (10**400, 1.0),
        (math.inf, 1.0),
        (1.0, math.inf),
        (1 + 1j, 1),
        (np.ndarray, 1),
        (-1.0, 1.0),
        (1e-30, 0.0),
        (not_yet, 1),
        (np.float32(1.00001), 1.0),
        (0.90000001, 0.9),
        (10**12 + 1, 10**12),
        (np.float32(1_000_001), 1_000_000),
    ],
)
def test_what_does_not_agree(got, expected):
    assert not agree(got, expected)


@pytest.mark.parametrize(
    ("got", "shown"),
    [
        (0.90000001, "gave 0.90000001, expected 0.9"),
        ([1, 0.1 + 1e-7], "gave [1, 0.1000001], expected [1, 0.1]"),
        (1 / 3, "gave 0.333333, expected "),
    ],
)
def test_a_failed_check_shows_as_many_digits_as_differ(capsys, got, shown):
    checks = Checks("One", lambda: got)
    checks.returns("a", (), expected=[1, 0.1] if isinstance(got, list) else 0.9)
    assert shown in report(checks, capsys)


def test_what_an_answer_was_given_is_shown_whole(capsys):
    checks = Checks("One", lambda rows: None)
    checks.returns("a", ([({"device": "CPU", "batch": 128}, 1000, 4)],), expected=1)
    assert "([({'device': 'CPU', 'batch': 128}, 1000, 4)]) gave None" in report(checks, capsys)


class Agreeable(tuple):
    """A tuple that says of its length and its items whatever is asked."""

    def __len__(self):
        return 2

    def __iter__(self):
        return iter(())


class AnyNumber(int):
    """A number that equals all others and is too large for a float."""

    __hash__ = int.__hash__

    def __eq__(self, other):
        return True

    def __float__(self):
        raise OverflowError


class AnyList(list):
    def __iter__(self):
        return iter((1, 2))

    def __len__(self):
        return 2


@pytest.mark.parametrize(
    "got", [Agreeable(), Agreeable((1, 3)), AnyList(), AnyNumber(7), [AnyNumber(7), 2]]
)
@pytest.mark.parametrize("expected", [(1, 2), [1, 2], 1, 10**400])
def test_a_class_of_ones_own_does_not_agree_by_what_it_says_of_itself(got, expected):
    assert not agree(got, expected)


def cost_s(name, nth, total):
    return {"a": 1.0, "b": 2.0}[name] + 10 * (nth == 0) + 100 * total


def test_a_fake_machine_takes_the_time_that_it_is_told():
    machine = FakeMachine(cost_s)
    a, b = machine.function("a"), machine.function("b")
    assert machine.clock() == 0
    a()
    assert machine.clock() == 11
    b()
    a()
    assert machine.clock() == 11 + 112 + 201
    assert machine.log == ["clock", "a", "clock", "b", "a", "clock"]
    assert (machine.timed, machine.untimed) == (["a"], ["b", "a"])
    assert a.__name__ == "a"


@pytest.mark.parametrize(
    ("order", "turns"),
    [
        ("ab", True),
        ("abab", True),
        ("abba", True),
        ("baab", True),
        ("aabb", False),
        ("aba", False),
        ("aa", False),
        ("", False),
    ],
)
def test_taking_turns(order, turns):
    machine = FakeMachine(lambda *_: 1.0)
    functions = {name: machine.function(name) for name in "ab"}
    functions["a"]()
    for name in order:
        machine.clock()
        functions[name]()
        machine.clock()
    assert machine.takes_turns is turns


def test_one_reading_between_two_calls_times_both():
    machine = FakeMachine(lambda *_: 1.0)
    a = machine.function("a")
    machine.clock()
    for _ in range(3):
        a()
        machine.clock()
    a()
    assert (machine.timed, machine.untimed) == (["a"] * 3, ["a"])


def test_a_function_is_not_named_clock():
    with pytest.raises(ValueError, match="name the function otherwise"):
        FakeMachine(cost_s).function("clock")


@pytest.mark.parametrize(("value", "shown"), [
    ((3,), "(3,)"), ((3, 0.5), "(3, 0.5)"), ([3], "[3]"), ((), "()"),
    ([({"device": "CPU", "batch": 0.5}, 4)], "[({'device': 'CPU', 'batch': 0.5}, 4)]"),
])  # fmt: skip
def test_a_value_is_shown_as_python_writes_it(value, shown, capsys):
    checks = Checks("One", lambda: value)
    checks.returns("a", (), expected=None)
    assert f"() gave {shown}, expected None" in report(checks, capsys)


class Unshown:
    def __repr__(self) -> str:
        raise ValueError("no")


def nested(depth: int) -> list:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(("value", "shown"), [
    (10**5000, "<int, whose repr raises ValueError>"),
    (Unshown(), "<Unshown, whose repr raises ValueError>"),
    ([Unshown()], "[<Unshown, whose repr raises ValueError>]"),
    (list(range(50)), f"[{', '.join(map(str, range(40)))}, ...]"),
    (tuple(range(40)), f"({', '.join(map(str, range(40)))})"),
    (nested(400), f"{9 * '['}...{9 * ']'}"),
], ids=["digits", "own", "in a list", "long", "as long as is shown", "deep"])  # fmt: skip
def test_an_answer_that_is_long_deep_or_cannot_be_shown_is_still_one_line(value, shown, capsys):
    checks = Checks("One", lambda: value)
    checks.returns("a", (), expected=0)
    assert f"gave {shown}, expected 0" in report(checks, capsys)
