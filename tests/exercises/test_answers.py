"""Every exercise is proved: its own solution, no solution, wrong ones, and answers learnt by heart."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from course.authoring import exercises_proof as proof
from helpers import exercises as kit
from tests.exercises.conftest import EXERCISES, SHEETS, WRONG

HIDDEN = re.compile(r"### BEGIN HIDDEN TESTS.*### END HIDDEN TESTS", re.DOTALL)


def test_there_is_something_to_prove():
    """Without it, sources that are not found would leave every test below without a case."""
    assert SHEETS
    assert EXERCISES
    assert {wrong.exercise for sheet in SHEETS for wrong in sheet.wrong} == {
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
    result = proof.attempt(sheet, wrong.exercise, wrong.cell.source)
    assert result.score < result.points
    assert wrong.gets is None or result.score == wrong.gets
    assert wrong.says in result.said
    assert result.said.endswith("goals not reached, hidden not run\n")


def test_no_two_wrong_answers_hear_the_same():
    for sheet in SHEETS:
        for name in sheet.exercises:
            said = [wrong.says for wrong in sheet.wrong if wrong.exercise == name]
            assert len(said) >= 2
            assert not any(one in other for one in said for other in said if one is not other)


def learnt_by_heart(sheet, name, monkeypatch):
    """Return an answer that gives back, one after the other, what the visible checks expect, and then 0."""
    known, original = [], kit.Checks.returns

    def listen(self, goal, arguments, *, expected, mistakes=None):
        known.append(expected)
        original(self, goal, arguments, expected=expected, mistakes=mistakes)

    names = proof.answered(sheet, name, proof.stub(sheet, name))
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
    "name", [one for one in FIRST.exercises if "FakeMachine" not in FIRST.cell("checks", one).source]
)
def test_without_hidden_checks_they_would_get_all(name, monkeypatch):
    """The wrong version, planted: it is the hidden checks that the test above sees. (A machine's log sees it too.)"""
    sheet = FIRST
    cells = tuple(
        replace(cell, source=HIDDEN.sub("### BEGIN HIDDEN TESTS\ncheck.score()\n### END HIDDEN TESTS", cell.source))
        for cell in sheet.lesson.cells
    )
    weak = replace(sheet, lesson=replace(sheet.lesson, cells=cells))
    result = proof.attempt(weak, name, learnt_by_heart(weak, name, monkeypatch))
    assert result.score == result.points


@pytest.mark.parametrize(("sheet", "name"), EXERCISES)
@pytest.mark.parametrize("body", ["return None", "raise ValueError('no')", "return object()", "return float('nan')"])
def test_nonsense_gets_nothing_and_raises_nothing(sheet, name, body):
    result = proof.attempt(sheet, name, f"{signature(sheet, name)}\n    {body}")
    assert result.score == 0
    assert "public checks passed" not in result.said


@pytest.mark.parametrize(("sheet", "name"), EXERCISES)
def test_each_goal_is_a_point(sheet, name):
    answer = sheet.cell("answer", name).source
    said = proof.attempt(sheet, name, answer).said
    assert said.count("\n  reached ") == sheet.cell("checks", name).metadata["points"]


@pytest.mark.parametrize(("sheet", "name"), EXERCISES)
def test_hidden_inputs_come_from_a_seed(sheet, name):
    hidden = HIDDEN.search(sheet.cell("checks", name).source)[0]
    assert re.search(r"random\.Random\(\d+\)", hidden)
