"""Every exercise is proved: its own solution, no solution, wrong ones, and answers learnt by
heart.
"""

from __future__ import annotations

import ast
import io
import re
from contextlib import redirect_stdout
from dataclasses import replace

import pytest

from helpers import exercises as kit
from tests.exercises.conftest import EXERCISES, SHEETS, WRONG
from tools.authoring.proof import run_cell
from tools.exercises import proof

HIDDEN = re.compile(r"### BEGIN HIDDEN TESTS.*### END HIDDEN TESTS", re.DOTALL)


def test_there_is_something_to_prove():
    """Without it, sources that are not found would leave every test below without a case."""
    assert SHEETS
    assert EXERCISES
    assert {wrong.name for sheet in SHEETS for wrong in sheet.wrong} == {
        name for sheet in SHEETS for name in sheet.exercises
    }


@pytest.mark.parametrize(("sheet", "name"), EXERCISES)
def test_the_solution_gets_all_points_and_hears_that_hidden_checks_were_not_run(sheet, name):
    result = proof.attempt(sheet, name, sheet.cell("answer", name).source)
    assert result.score == result.points > 0
    assert "public checks passed, hidden not run" in result.said
    assert "all passed" not in result.said.lower()
    assert "not reached" not in result.said


@pytest.mark.parametrize(("sheet", "name"), EXERCISES)
def test_the_stub_gets_nothing_and_hears_not_yet(sheet, name):
    answer = proof.stub(sheet, name)
    assert answer.rstrip().endswith("return exercises.not_yet")
    result = proof.attempt(sheet, name, answer)
    assert result.score == 0
    assert result.said.endswith(": not yet\n")
    assert result.said.count("\n") == 1


@pytest.mark.parametrize(("sheet", "wrong"), WRONG)
def test_a_wrong_answer_loses_points_and_hears_why(sheet, wrong):
    result = proof.attempt(sheet, wrong.name, wrong.cell.source)
    assert result.score < result.points
    assert wrong.gets is None or result.score == wrong.gets
    assert wrong.says in result.said
    assert result.said.endswith("goals not reached, hidden not run\n")


def test_no_two_wrong_answers_hear_the_same():
    for sheet in SHEETS:
        for name in sheet.exercises:
            said = [wrong.says for wrong in sheet.wrong if wrong.name == name]
            assert len(said) >= 2
            assert not any(one in other for one in said for other in said if one is not other)


def learnt_by_heart(sheet, name, monkeypatch):
    """Return an answer that gives back, one after the other, what the visible checks expect, and
    then 0.
    """
    known, original = [], kit.Checks.returns

    def listen(self, goal, arguments, *, expected, **how):
        known.append(expected)
        original(self, goal, arguments, expected=expected, **how)

    names = proof.run_answer(sheet, name, proof.stub(sheet, name))
    with monkeypatch.context() as patch:
        patch.setattr(kit.Checks, "returns", listen)
        exec(proof.public_checks(sheet, name), names)
    assert known
    return f"known = iter({known!r})\n{signature(sheet, name)}\n    return next(known, 0)"


def signature(sheet, name):
    return next(line for line in proof.stub(sheet, name).splitlines() if line.startswith("def "))


@pytest.mark.parametrize(("sheet", "name"), EXERCISES)
def test_answers_learnt_by_heart_get_nothing(sheet, name, monkeypatch):
    """The hidden inputs are others than the visible ones, for every goal."""
    assert proof.attempt(sheet, name, learnt_by_heart(sheet, name, monkeypatch)).score == 0


FIRST = SHEETS[0]


@pytest.mark.parametrize(
    "name",
    [one for one in FIRST.exercises if "FakeMachine" not in FIRST.cell("checks", one).source],
)
def test_without_hidden_checks_they_would_get_all(name, monkeypatch):
    """The wrong version, planted: it is the hidden checks that the test above sees. (A machine's
    log sees it too.)
    """
    sheet = FIRST
    cells = tuple(
        replace(
            cell,
            source=HIDDEN.sub(
                "### BEGIN HIDDEN TESTS\ncheck.score()\n### END HIDDEN TESTS", cell.source
            ),
        )
        for cell in sheet.lesson.cells
    )
    weak = replace(sheet, lesson=replace(sheet.lesson, cells=cells))
    result = proof.attempt(weak, name, learnt_by_heart(weak, name, monkeypatch))
    assert result.score == result.points


@pytest.mark.parametrize(("sheet", "name"), EXERCISES)
@pytest.mark.parametrize(
    "body", ["return None", "raise ValueError('no')", "return object()", "return float('nan')"]
)
def test_nonsense_gets_nothing_and_raises_nothing(sheet, name, body):
    result = proof.attempt(sheet, name, f"{signature(sheet, name)}\n    {body}")
    assert result.score == 0
    assert "public checks passed" not in result.said


KNOW_NOTHING = ("0", "1", "-1", "0.0", "0.5", "True", "False", "''", "'never'", "[]", "()", "[0]",
                "[0, 0]", "[1]", "float('inf')", "'memory'", "{one}", "[{one}]", "list({one})",
                "len({one})", "sum({one})", "max({one})", "min({one})", "sorted({one})", "{one}[0]",
                "{one}[-1]", "[0] * len({one})")  # fmt: skip


def knowing_nothing(sheet, name):
    """Yield answers that return a constant, an argument, or what an argument gives without a
    thought.
    """
    yield from dict.fromkeys(
        form.format(one=one) for form in KNOW_NOTHING for one in arguments(sheet, name)
    )


def scores(sheet, name, bodies):
    """Return the points of each body that has any, with all checks, the given cells run once."""
    names = proof.run_answer(sheet, name, proof.stub(sheet, name))
    checks, found = sheet.cell("checks", name).source, {}
    for body in bodies:
        space = dict(names)
        exec(f"{signature(sheet, name)}\n    return {body}", space)
        with redirect_stdout(io.StringIO()):
            score = run_cell(checks, "checks", space)
        if score:
            found[body] = score
    return found


@pytest.mark.parametrize(("sheet", "name"), EXERCISES)
def test_an_answer_that_knows_nothing_earns_nothing(sheet, name):
    assert scores(sheet, name, knowing_nothing(sheet, name)) == {}


def test_a_function_that_never_cuts_earns_nothing():
    """It empties its inputs, from which the terms were once computed afterwards, and receives as
    many zeros.
    """
    sheet = next(one for one in SHEETS if "product" in one.exercises)
    answer = (
        f"{signature(sheet, 'product')}\n    found = a @ b\n    a.zero_(); b.zero_()\n"
        "    for _ in range(parts - 1): receive(0 * found)\n    return found\n"
    )
    assert proof.attempt(sheet, "product", answer).score == 0


PRODUCTS = {
    "strided": "    own, *rest = [a[:, p::parts] @ b[p::parts] for p in range(parts)]\n"
    "    return own + sum(receive(one) for one in rest)\n",
    "added in place": "    own, *rest = [x @ y for x, y in zip(a.tensor_split(parts, 1), "
    "b.tensor_split(parts))]\n"
    "    for one in rest:\n        got = receive(one)\n        got += own\n        own = got\n"
    "    return own\n",
}


@pytest.mark.parametrize("way", PRODUCTS)
def test_another_way_to_cut_a_product_is_right(way):
    sheet = next(one for one in SHEETS if "product" in one.exercises)
    assert (
        proof.attempt(sheet, "product", f"{signature(sheet, 'product')}\n{PRODUCTS[way]}").score
        == 3
    )


FLOAT32 = {"ranking", "units", "cold_and_warm", "roofline_time", "arrivals_s", "loss_weights",
           "forward_end", "steps_begin", "break_even", "end_to_end", "decode", "thresholds",
           "smallest_rate"}  # fmt: skip


@pytest.mark.parametrize(("sheet", "name"), [one for one in EXERCISES if one.values[1] in FLOAT32])
def test_a_right_answer_in_float32_is_right(sheet, name):
    called = signature(sheet, name).partition("(")[0].removeprefix("def ")
    answer = (
        f"{sheet.cell('answer', name).source}\n_right = {called}\n{signature(sheet, name)}\n"
        f"    return rounded(_right({', '.join(arguments(sheet, name))}))\n{ROUNDED}"
    )
    assert proof.attempt(sheet, name, answer).score == sheet.cell("checks", name).metadata["points"]


ROUNDED = """
import torch
def rounded(value):
    if isinstance(value, (list, tuple)):
        return type(value)(map(rounded, value))
    return torch.tensor(value).item() if isinstance(value, float) else value
"""


def arguments(sheet, name):
    return [one.arg for one in ast.parse(f"{signature(sheet, name)} pass").body[0].args.args]


@pytest.mark.parametrize(("sheet", "name"), EXERCISES)
def test_each_goal_is_a_point(sheet, name):
    answer = sheet.cell("answer", name).source
    said = proof.attempt(sheet, name, answer).said
    assert said.count("\n  reached ") == sheet.cell("checks", name).metadata["points"]


@pytest.mark.parametrize(("sheet", "name"), EXERCISES)
def test_hidden_inputs_come_from_a_seed(sheet, name):
    hidden = HIDDEN.search(sheet.cell("checks", name).source)[0]
    assert re.search(r"random\.Random\(\d+\)", hidden)
