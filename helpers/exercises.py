"""What an exercise checks with: the reader's own function on known inputs, and on a machine with a made-up clock.

The checks of an exercise stand in its notebook, one call a line: what is asked (the *goal*), the arguments, what must
come back, and what a common mistake would give instead. ``report`` says which goals are reached, and that the hidden
checks were not run; ``score`` counts the goals that every check, hidden ones included, found reached.

Lesson 00.
"""

from __future__ import annotations

import itertools
import math
import numbers
import struct
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_RELATIVE_TOLERANCE = 1e-9  # for the order in which numbers are added, not for another result
_FLOAT32_TOLERANCE = 1e-6  # the same for what was computed in float32, whose numbers have 24 bits
_MOST_SHOWN = 40
_DEEPEST_SHOWN = 8
_DIGITS = (6, 9, 12, 17)  # of a number, as many as show that two differ


class NotYet:
    """What an exercise's function returns before it is written."""

    def __repr__(self) -> str:
        return "not_yet"


not_yet = NotYet()


@dataclass(frozen=True)
class _Outcome:
    goal: str
    problem: str  # "" where the check passed
    unwritten: bool = False


class Checks:
    """The checks of one exercise on the reader's ``function``; ``title`` heads the report."""

    def __init__(self, title: str, function: Callable[..., object]) -> None:
        if not callable(function):
            raise TypeError(f"the answer to {title!r} must be a function, not {function!r}: run its cell again")
        self._title = title
        self._function = function
        self._outcomes: list[_Outcome] = []
        self._answered = False

    def returns(
        self,
        goal: str,
        arguments: Sequence[object],
        *,
        expected: object,
        mistakes: Mapping[Any, str] | None = None,
    ) -> None:
        """Call the function with ``arguments`` and hold what it returns to ``expected``.

        Numbers agree as in :func:`agree`; a list, a tuple and an array agree when their items do. ``mistakes`` maps
        what a common mistake returns to the sentence that explains it. An exception in the function is a failed check.
        """
        call = f"{_name(self._function)}({', '.join(_short(argument) for argument in arguments)})"
        try:
            got = self._function(*arguments)
        except Exception as error:
            self._answered = False
            self._outcomes.append(_Outcome(goal, f"{call} raised {_raised(error, (self._function, *arguments))}"))
            return
        self._answered = not isinstance(got, NotYet)
        if not self._answered:
            self._outcomes.append(_Outcome(goal, f"{call} still returns not_yet", unwritten=True))
        elif agree(got, expected):
            self._outcomes.append(_Outcome(goal, ""))
        else:
            why = _explanation(got, mistakes or {})
            gave, wanted = _apart(got, expected)
            self._outcomes.append(_Outcome(goal, f"{call} gave {gave}, expected {wanted}{why}"))

    def holds(self, goal: str, condition: bool, *, otherwise: str) -> None:
        """Hold the last call to ``condition``, such as a count of what it did; ``otherwise`` says what to mend.

        A call that raised or returned ``not_yet`` has not reached the goal, whatever the condition says.
        """
        if not self._answered:
            otherwise = "the call above gave no answer"
        passed = bool(condition) and self._answered
        self._outcomes.append(_Outcome(goal, "" if passed else otherwise, unwritten=self._all_unwritten()))

    def report(self) -> None:
        """Print "not yet", or a line a goal with what is wrong, and in the end that the hidden checks were not run."""
        if self._all_unwritten():
            print(f"{self._title}: not yet")
            return
        problems = self._problems()
        print(self._title)
        for goal, problem in problems.items():
            print(f"  {'not reached' if problem else 'reached':<11}  {goal}")
            for line in problem.splitlines():
                print(f"               {line}")
        missed = sum(bool(problem) for problem in problems.values())
        public = f"{missed} of {len(problems)} goals not reached" if missed else "public checks passed"
        print(f"{public}, hidden not run")

    def score(self) -> float:
        """Return how many goals every check so far found reached: what nbgrader takes as the points."""
        return float(sum(not problem for problem in self._problems().values()))

    def _problems(self) -> dict[str, str]:
        """Return each goal with the first problem that a check found, "" where none did."""
        problems: dict[str, str] = {}
        for outcome in self._outcomes:
            problems[outcome.goal] = problems.get(outcome.goal) or outcome.problem
        return problems

    def _all_unwritten(self) -> bool:
        return bool(self._outcomes) and all(outcome.unwritten for outcome in self._outcomes)


def agree(got: object, expected: object) -> bool:
    """Return True when ``got`` is ``expected``, numbers to nine digits, sequences item by item.

    A number that float32 holds exactly may have been computed in it, as PyTorch does: six digits of a fraction are
    enough then. Whole numbers are exact. Of a class made from Python's own, such as torch.Size or a named tuple, what
    it holds counts, and nothing that it says of itself.
    """
    got, expected = _plain(got), _plain(expected)
    if type(expected) is tuple and type(got) is tuple:
        return len(got) == len(expected) and all(agree(*pair) for pair in zip(got, expected, strict=True))
    if isinstance(expected, bool) or isinstance(got, bool):
        return got is expected
    if isinstance(expected, numbers.Real) and isinstance(got, numbers.Real):
        return _close(got, expected)
    return type(got) is type(expected) and got == expected


def _close(got: Any, expected: Any) -> bool:
    if isinstance(got, int) and isinstance(expected, int):
        return int.__eq__(got, expected)  # not what a class made from it says of itself
    try:
        coarse = not isinstance(expected, numbers.Integral) and _is_float32(float(got))
        return math.isclose(got, expected, rel_tol=_FLOAT32_TOLERANCE if coarse else _RELATIVE_TOLERANCE)
    except OverflowError:  # a whole number beyond what a float holds is close to nothing but itself
        return type(got) is type(expected) and got == expected


def _is_float32(number: float) -> bool:
    try:
        return struct.unpack("<f", struct.pack("<f", number))[0] == number
    except OverflowError:
        return False


def _plain(value: object) -> object:
    """Return arrays, tensors, their scalars and what is made from Python's own as that, a list as a tuple."""
    if hasattr(value, "tolist") and not isinstance(value, type):
        value = value.tolist()
    kind = type(value)
    if issubclass(kind, list | tuple):
        return tuple((list if issubclass(kind, list) else tuple).__iter__(value))
    if issubclass(kind, str):
        return str.__str__(value)
    return dict(dict.items(value)) if issubclass(kind, dict) else value


def _explanation(got: object, mistakes: Mapping[Any, str]) -> str:
    if got is None:
        return "\nA function without return gives None"
    for mistaken, sentence in mistakes.items():
        if agree(got, mistaken):
            return f"\n{sentence}"
    return ""


def _name(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _apart(got: object, expected: object) -> tuple[str, str]:
    """Return both with as many digits as it takes to see a difference."""
    for digits in _DIGITS:
        shown = _short(got, digits=digits), _short(expected, digits=digits)
        if shown[0] != shown[1]:
            break
    return shown


def _short(value: object, depth: int = 0, digits: int = _DIGITS[0]) -> str:
    if callable(value):
        return _name(value)
    if isinstance(value, tuple | list):
        ends = ("(", ",)" if len(value) == 1 else ")") if isinstance(value, tuple) else "[]"
        return f"{ends[0]}{_joined((_short(item, depth + 1, digits) for item in value), depth)}{ends[1]}"
    if isinstance(value, Mapping):
        pairs = (f"{_short(key, depth + 1, digits)}: {_short(item, depth + 1, digits)}" for key, item in value.items())
        return f"{{{_joined(pairs, depth)}}}"
    try:
        shown = f"{value:.{digits}g}" if isinstance(value, float) else repr(value)
    except Exception as error:  # a whole number too long to print, or what a reader's own class raises
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _joined(shown: Iterable[str], depth: int) -> str:
    """Return the first items, and dots for what is left out: no answer fills the page, however long or deep."""
    if depth == _DEEPEST_SHOWN:
        return "..."
    first = list(itertools.islice(shown, _MOST_SHOWN + 1))
    return ", ".join([*first[:_MOST_SHOWN], *(["..."] if len(first) > _MOST_SHOWN else [])])


def _raised(error: Exception, given: Sequence[object]) -> str:
    """Return the exception in one line, and below it the reader's own line where it happened.

    ``given`` is what was called and its arguments: the cells in which its functions stand are the reader's.
    """
    cells = {value.__code__.co_filename for value in given if hasattr(value, "__code__")}
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in cells]
    line = f"\nin your line: {own[-1].line}" if own and own[-1].line else ""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {said}' if said else ''}{line}"


class FakeMachine:
    """A machine whose time is made up: a clock, functions that take as long as they are told, and a log of both.

    ``cost_s(name, nth, total)`` is the seconds that the ``nth`` call of the function ``name`` takes when the machine
    has made ``total`` calls before it (both from 0). ``log`` holds the functions' names and ``"clock"``, in order.
    """

    def __init__(self, cost_s: Callable[[str, int, int], float]) -> None:
        self._cost_s = cost_s
        self._now_s = 0.0
        self.log: list[str] = []

    def function(self, name: str) -> Callable[[], None]:
        """Return a function without arguments that takes its time on this machine; ValueError for the name "clock"."""
        if name == "clock":
            raise ValueError("the log calls a reading of the clock 'clock'; name the function otherwise")

        def call() -> None:
            self._now_s += self._cost_s(name, self.log.count(name), len(self.log) - self.log.count("clock"))
            self.log.append(name)

        call.__name__ = name
        return call

    def clock(self) -> float:
        """Return the seconds since the machine started, and write the reading into the log."""
        self.log.append("clock")
        return self._now_s

    @property
    def timed(self) -> list[str]:
        """The calls made with a reading of the clock just before and just after, in order."""
        return [name for index, name in self._calls() if self._is_timed(index)]

    @property
    def untimed(self) -> list[str]:
        """All other calls, in order."""
        return [name for index, name in self._calls() if not self._is_timed(index)]

    @property
    def takes_turns(self) -> bool:
        """True when the timed calls change from one function to another in each pair: a b, a b or a b, b a."""
        timed = self.timed
        pairs = list(pairwise(timed))[::2]
        return len(timed) % 2 == 0 and bool(pairs) and all(first != second for first, second in pairs)

    def _calls(self) -> list[tuple[int, str]]:
        return [(index, name) for index, name in enumerate(self.log) if name != "clock"]

    def _is_timed(self, index: int) -> bool:
        return index > 0 and self.log[index - 1] == "clock" and self.log[index + 1 : index + 2] == ["clock"]
