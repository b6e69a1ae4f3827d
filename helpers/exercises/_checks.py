"""The checks of one function that the reader writes, and their messages.

``report`` says which goals are reached, and that the hidden checks were not run; ``score`` counts
the goals that every check, hidden ones included, found reached; ``settle`` says which version of
the function a lesson goes on with.

Lesson 00.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from helpers.checks import boolean, one_of
from helpers.exercises import _worked as worked
from helpers.exercises._agreement import agree, name, short, tell_apart
from helpers.exercises._copies import copy_data


class NotYet:
    """The value that an exercise's function returns before it is written."""

    def __repr__(self) -> str:
        return "not_yet"


not_yet = NotYet()


@dataclass(frozen=True)
class _Outcome:
    goal: str
    problem: str  # "" where the check passed
    unwritten: bool


class Checks:
    """The checks of the reader's ``function``; ``title`` heads the report."""

    def __init__(self, title: str, function: Callable[..., object]) -> None:
        if not callable(function):
            raise TypeError(
                f"the answer to {title!r} must be a function, not {function!r}: run its cell again"
            )
        self._title = title
        self._function = function
        self._is_stub = worked.is_stub(function)
        self._is_from_course = worked.is_from_course(function)
        self._outcomes: list[_Outcome] = []
        self._answered = False

    def returns(
        self,
        goal: str,
        arguments: Sequence[object],
        *,
        expected: object,
        mistakes: Mapping[Any, str] | None = None,
        call: Callable[..., object] | None = None,
        kind: type | tuple[type, ...] = object,
        unchanged: bool = False,
    ) -> None:
        """Call the function with copies of ``arguments`` and hold its answer to ``expected``.

        Numbers agree as in :func:`agree`; a list, a tuple and an array agree when their items do.
        ``mistakes`` maps what a common mistake returns to the sentence that explains it. An
        exception in the function is a failed check. ``call(function, *arguments)`` calls it in
        another way, such as on ranks. ``kind`` is what the lesson goes on with, for example a
        tensor: a right value of another type has not reached the goal, and the report says which
        type is needed. With ``unchanged`` the function must leave lists, dicts, sets and arrays as
        they were; the caller's own stay so in any case. A function without a body, and the course's
        version, are not called. Raises TypeError where ``arguments`` is no list and no tuple.
        """
        boolean("unchanged", unchanged)
        one_of(
            "arguments", arguments, (list, tuple), "what the function is called with, such as (5,)"
        )
        if self._is_from_course:
            return
        call_text = (
            f"{name(self._function)}({', '.join(short(argument) for argument in arguments)})"
        )
        if self._is_stub:
            self._note(goal, f"{call_text} does nothing yet", unwritten=True)
            return
        copies = [copy_data(argument) for argument in arguments]
        try:
            got = call(self._function, *copies) if call else self._function(*copies)
        except Exception as error:
            self._answered = False
            values = (self._function, *arguments)
            self._note(goal, f"{call_text} raised {_describe_error(error, values)}")
            return
        self._answered = not isinstance(got, NotYet)
        if not self._answered:
            self._note(goal, f"{call_text} still returns not_yet", unwritten=True)
            return
        try:
            problem = (
                _difference(call_text, got, expected, mistakes or {})
                or _type_problem(call_text, got, kind)
                or (_change(arguments, copies) if unchanged else "")
            )
        except Exception as error:
            # of what the reader returned, such as a tensor without elements to read
            of_type = f"an answer of type {type(got).__name__}"
            problem = f"{call_text} gave {of_type} that cannot be compared: {type(error).__name__}"
        self._note(goal, problem)

    def holds(self, goal: str, condition: object, *, otherwise: str) -> None:
        """Hold the last call to ``condition``, such as a count of its operations; ``otherwise``
        says what to mend.

        A call that raised or returned ``not_yet`` has not reached the goal, whatever the condition
        says.
        """
        if not self._answered:
            otherwise = "the call above gave no answer"
        passed = bool(condition) and self._answered
        self._note(goal, "" if passed else otherwise, unwritten=self._all_unwritten())

    def _note(self, goal: str, problem: str, *, unwritten: bool = False) -> None:
        self._outcomes.append(_Outcome(goal, problem, unwritten))

    def report(self) -> None:
        """Print "not yet", or a line a goal with its problem, and in the end that the hidden checks
        were not run.
        """
        if self._all_unwritten():
            print(f"{self._title}: not yet")
            return
        missed_count = self._print_goals()
        public = (
            f"{missed_count} of {len(self._problems())} goals not reached"
            if missed_count
            else "public checks passed"
        )
        print(f"{public}, hidden not run")

    def settle(self) -> Callable[..., Any]:
        """Print "not written yet" or a line a goal, then which version the cells below use, and
        return that one.

        It is the reader's where all goals are reached, else the course's, which lies in the
        reader's copy of the lesson. A live notebook shows the course's below, folded. Raises
        LookupError where it is needed and no notebook in the working folder holds it.
        """
        if self._is_from_course:
            print(
                f"{self._title}: this is the course's version already; to check yours, run the "
                "cell above first"
            )
            worked.show(worked.own_source(self._function))
            return self._function
        if self._is_stub or self._all_unwritten():
            print(f"{self._title}: not written yet")
            reached = False
        else:
            reached = self._print_goals() == 0
        function_name, source = worked.source_of(self._function) or (name(self._function), "")
        if not reached and not source:
            raise LookupError(
                f"the notebooks in this folder do not hold the course's {function_name}: open your "
                f"copy of the lesson in its own folder (make lab), or mend your {function_name}"
            )
        whose = "your" if reached else "the course's"
        print(f"Below, {whose} {function_name} is used.")
        if source:
            worked.show(source)
        return (
            self._function
            if reached
            else worked.compile_source(function_name, source, self._function)
        )

    def _print_goals(self) -> int:
        """Print the title and a line a goal with its problem; return the number of goals that are
        not reached.
        """
        problems = self._problems()
        print(self._title)
        for goal, problem in problems.items():
            print(f"  {'not reached' if problem else 'reached':<11}  {goal}")
            for line in problem.splitlines():
                print(f"               {line}")
        return sum(map(bool, problems.values()))

    def score(self) -> float:
        """Return the number of goals that every check so far found reached: the points that
        nbgrader takes.
        """
        return float(list(self._problems().values()).count(""))

    def _problems(self) -> dict[str, str]:
        """Return each goal with the first problem that a check found, "" where none did."""
        problems: dict[str, str] = {}
        for outcome in self._outcomes:
            problems[outcome.goal] = problems.get(outcome.goal) or outcome.problem
        return problems

    def _all_unwritten(self) -> bool:
        return bool(self._outcomes) and all(outcome.unwritten for outcome in self._outcomes)


def _difference(call_text: str, got: object, expected: object, mistakes: Mapping[Any, str]) -> str:
    """Return the difference of ``got`` from ``expected``, "" where there is none, and the sentence
    on a common mistake.
    """
    if agree(got, expected):
        return ""
    got_text, expected_text = tell_apart(got, expected)
    sentence = (
        "A function without return gives None"
        if got is None
        else next((mistakes[mistaken] for mistaken in mistakes if agree(got, mistaken)), "")
    )
    difference = f"{call_text} gave {got_text}, expected {expected_text}"
    return f"{difference}\n{sentence}" if sentence else difference


def _change(arguments: Sequence[object], copies: Sequence[object]) -> str:
    """Return a sentence on the first of ``arguments`` that is another in ``copies``, "" where none
    is.
    """
    for before, after in zip(arguments, copies, strict=True):
        if not agree(after, before):
            return (
                f"Your function turned {short(before)} into {short(after)}: leave what it is given "
                "as it is"
            )
    return ""


def _type_problem(call_text: str, got: object, kind: type | tuple[type, ...]) -> str:
    """Return a sentence about a right value of a type with which the lesson cannot go on, "" for
    another.
    """
    if isinstance(got, kind):
        return ""
    needed_types = " or ".join(map(_type_name, kind if isinstance(kind, tuple) else (kind,)))
    return (
        f"{call_text} gave the right value as {_type_name(type(got))}, but the cells below need "
        f"{needed_types}: return that"
    )


def _type_name(kind: type) -> str:
    """Return the name of a type with its module: int, but torch.Tensor and numpy.ndarray."""
    return f"{kind.__module__.split('.')[0]}.{kind.__name__}".removeprefix("builtins.")


def _describe_error(error: Exception, values: Sequence[object]) -> str:
    """Return the exception in one line, and below it the reader's own line where it happened.

    ``values`` is what was called and its arguments: the cells in which its functions stand are the
    reader's. Ranks say themselves what happened in which line.
    """
    from helpers.ranks import RankError

    if isinstance(error, RankError):
        message, line = str(error).splitlines()[0], error.text or ""
    else:
        cells = {value.__code__.co_filename for value in values if hasattr(value, "__code__")}
        frames = traceback.extract_tb(error.__traceback__)
        own_lines = [frame.line or "" for frame in frames if frame.filename in cells]
        message, line = " ".join(str(error).split()), own_lines[-1] if own_lines else ""
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"{text}\nin your line: {line}" if line else text
