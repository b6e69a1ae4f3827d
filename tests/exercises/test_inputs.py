"""What an answer is given is a copy: one that uses it up gets its points, and one that makes it
trivial gains none.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import pytest

from helpers import exercises as kit
from helpers.exercises import _checks
from tests.exercises.conftest import EXERCISES, SHEETS
from tools.authoring.proof import run_cell
from tools.exercises import proof
from tools.grading import marker

# what the exercise asks for, and the points that it is worth
KEEPS_ITS_INPUT = {"cold_and_warm": 1}
# What an answer does with what it was given, once its result is copied: all three go down into
# lists and dicts.
SPOIL = """
def spoil_(value, way):
    if isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            spoil_(item, way)
    if isinstance(value, list) and value:
        value[:] = {"empty": [], "reverse": value[::-1], "replace": [value[0]] * len(value)}[way]
    elif isinstance(value, dict) and value:
        values = list(value.values())
        new = {"empty": [], "reverse": values[::-1], "replace": [values[0]] * len(values)}[way]
        keys = list(value)
        value.clear()
        value.update(zip(keys, new))
    elif hasattr(value, "dtype") and getattr(value, "ndim", 0):
        value[...] = {"empty": 0, "reverse": value.flip(0) if hasattr(value, "flip") else value[::-1].copy(),
                      "replace": 1}[way]
"""  # noqa: E501
WAYS = ("empty", "reverse", "replace")


def spoiling(sheet, name, ways):
    """Return the course's answer, which afterwards spoils what it was given, in one of ``ways``
    after the other.
    """
    called = marker.function_names(sheet.cell("answer", name))[0]
    return f"""{sheet.cell("answer", name).source}
{SPOIL}
import copy as copy_, itertools as itertools_
the_courses_, ways_ = {called}, itertools_.cycle({ways!r})
def {called}(*given):
    result = the_courses_(*given)
    result = result if hasattr(result, "__next__") else copy_.deepcopy(result)
    way = next(ways_)
    for one in given:
        spoil_(one, way)
    return result
"""


def score(sheet, name, answer):
    names = proof.run_answer(sheet, name, answer)
    with redirect_stdout(io.StringIO()):
        return run_cell(sheet.cell("checks", name).source, "checks", names)


def due(sheet, name):
    return sheet.cell("checks", name).metadata["points"] - KEEPS_ITS_INPUT.get(name, 0)


@pytest.mark.parametrize(("sheet", "name"), EXERCISES)
def test_an_answer_that_spoils_its_input_gets_what_it_gets_at_home(sheet, name):
    assert score(sheet, name, spoiling(sheet, name, WAYS)) == due(sheet, name)


USING_UP = {
    "mixed": """
def mixed(items, room, draws):
    buffer, out = [items.pop(0) for _ in range(room)], []
    for draw in draws:
        place = draw % len(buffer)
        out.append(buffer[place])
        if items:
            buffer[place] = items.pop(0)
        else:
            buffer.pop(place)
    return out
""",
    "stops": """
def stops(losses, patience):
    taken = []
    for _ in range(len(losses[0])):
        own, updates, waited, lowest = [row.pop(0) for row in losses], 0, 0, float("inf")
        while own and waited < patience:
            loss = own.pop(0)
            waited = 0 if loss < lowest else waited + 1
            lowest = min(lowest, loss)
            updates += waited < patience
        taken.append(updates)
    return taken, len(taken) * max(taken), sum(taken)
""",
}
# Each knows the visible cases by heart (KNOWN), and makes the inputs of the hidden ones so that a
# constant is right.
MAKING_TRIVIAL = {
    "mixed": "items[:] = [items[0]] * len(items)\n    return items[:1] * len(draws)",
    "stops": "losses[:] = [[1]]\n    return [1], 1, 1",
    "patch": (
        "old[:] = new[:] = [old[0]] * len(old)\n    return code if len(code) // 16 >= len(old) "
        "else None"
    ),
}


def sheet_of(name):
    return next(sheet for sheet in SHEETS if name in sheet.exercises)


def by_heart(sheet, name, otherwise):
    """Return an answer that has the course's results for what the visible checks ask, and else does
    ``otherwise``.
    """
    names, known = proof.run_answer(sheet, name, sheet.cell("answer", name).source), {}
    answer = names[name]

    def listen(*given):
        asked = repr(given)
        known[asked] = answer(*given)
        return known[asked]

    names[name] = listen
    with redirect_stdout(io.StringIO()):
        exec(proof.public_checks(sheet, name), names)
    parameters = answer.__code__.co_varnames[: answer.__code__.co_argcount]
    return (
        f"KNOWN = {known!r}\ndef {name}({', '.join(parameters)}):\n    asked = "
        f"repr(({', '.join(parameters)},))\n    if asked in KNOWN:\n        return KNOWN[asked]\n  "
        f"  {otherwise}\n"
    )


@pytest.mark.parametrize("name", USING_UP)
def test_a_right_answer_that_uses_up_its_input_is_right(name):
    assert score(sheet_of(name), name, USING_UP[name]) == due(sheet_of(name), name)


@pytest.mark.parametrize("name", MAKING_TRIVIAL)
def test_nobody_gains_by_making_the_hidden_inputs_trivial(name):
    sheet = sheet_of(name)
    answer = by_heart(sheet, name, MAKING_TRIVIAL[name])
    assert "public checks passed" in proof.attempt(sheet, name, answer).said
    assert score(sheet, name, answer) == 0


@pytest.mark.parametrize(("name", "gained"), [("mixed", 2), ("stops", 2), ("patch", 3)])
def test_without_copies_it_would_gain(name, gained, monkeypatch):
    """The wrong version, planted: it is the copies that the tests above see."""
    monkeypatch.setattr(_checks, "copy_data", lambda value: value)
    assert (
        score(sheet_of(name), name, by_heart(sheet_of(name), name, MAKING_TRIVIAL[name])) == gained
    )
    with pytest.raises((ZeroDivisionError, ValueError, IndexError, AssertionError)):
        assert score(sheet_of(name), name, spoiling(sheet_of(name), name, ["empty"])) == due(
            sheet_of(name), name
        )


def test_a_goal_may_ask_that_the_input_is_left_as_it_was(capsys):
    in_place = "turned [2, 1] into [1, 2]: leave what it is given as it is"
    for function, said in (
        (sorted, "  reached  "),
        (lambda values: values.sort() or values, in_place),
    ):
        checks = kit.Checks("Sorting", function)
        checks.returns("leaves the list", ([2, 1],), expected=[1, 2], unchanged=True)
        checks.report()
        assert said in capsys.readouterr().out
