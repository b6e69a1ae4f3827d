"""Every exercise is proved: its own solution, no solution, wrong ones, and answers learnt by heart."""

from __future__ import annotations

from collections import Counter

import pytest

from course.authoring import exercises_proof as proof
from helpers import exercises as kit
from tests.exercises.conftest import EXERCISES, SHEETS, WRONG


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
    result = proof.attempt(sheet, wrong.exercise, wrong.cell.source)
    assert result.score < result.points
    assert wrong.says in result.said
    assert result.said.endswith("goals not reached, hidden not run\n")


def test_no_two_wrong_answers_hear_the_same():
    for sheet in SHEETS:
        for name in sheet.exercises:
            said = [wrong.says for wrong in sheet.wrong if wrong.exercise == name]
            assert len(said) >= 2
            assert not any(one in other for one in said for other in said if one is not other)


@pytest.mark.parametrize(("sheet", "name"), EXERCISES)
def test_answers_learnt_by_heart_get_nothing(sheet, name, monkeypatch):
    """The hidden inputs are others than the visible ones."""
    known, original = [], kit.Checks.returns

    def listen(self, goal, arguments, *, expected, mistakes=None):
        known.append(expected)
        original(self, goal, arguments, expected=expected, mistakes=mistakes)

    names = proof.answered(sheet, name, proof.stub(sheet, name))
    with monkeypatch.context() as patch:
        patch.setattr(kit.Checks, "returns", listen)
        exec(proof.public_checks(sheet, name), names)
    assert known
    function = next(line for line in proof.stub(sheet, name).splitlines() if line.startswith("def "))
    rote = f"import itertools\nknown = iter({known!r})\n{function}\n    return next(known, 0)"
    result = proof.attempt(sheet, name, rote)
    assert result.score == 0


@pytest.mark.parametrize(("sheet", "name"), EXERCISES)
@pytest.mark.parametrize("body", ["return None", "raise ValueError('no')", "return object()", "return float('nan')"])
def test_nonsense_gets_nothing_and_raises_nothing(sheet, name, body):
    function = next(line for line in proof.stub(sheet, name).splitlines() if line.startswith("def "))
    result = proof.attempt(sheet, name, f"{function}\n    {body}")
    assert result.score == 0
    assert "public checks passed" not in result.said


@pytest.mark.parametrize(("sheet", "name"), EXERCISES)
def test_each_goal_is_a_point(sheet, name):
    answer = sheet.cell("answer", name).source
    said = proof.attempt(sheet, name, answer).said
    assert said.count("\n  reached ") == sheet.cell("checks", name).metadata["points"]


@pytest.mark.parametrize(("sheet", "name"), EXERCISES)
def test_a_checker_that_forgets_the_hidden_checks_would_be_seen(sheet, name):
    """With the hidden checks planted away an answer learnt by heart passes: the test above rests on them."""
    checks = sheet.cell("checks", name).source
    hidden = checks.partition("### BEGIN HIDDEN TESTS")[2]
    assert hidden.count("check.returns(") >= 1
    assert "random.Random(" in hidden
    assert checks.rstrip().endswith("check.score()\n### END HIDDEN TESTS")


def test_names_are_counted_once():
    for sheet in SHEETS:
        assert max(Counter(sheet.exercises).values()) == 1
