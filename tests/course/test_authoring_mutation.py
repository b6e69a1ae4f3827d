"""A planted bug that a lesson shows is caught, one that it does not show is not, and neither is a
broken tool.
"""

from __future__ import annotations

import os
import tempfile

import pytest

from tools.authoring import mutation
from tools.authoring.lesson import AuthoringError
from tools.authoring.mutation import Mutation

SANITIZE = mutation.SANITIZE
MODULE = "toy/counting.py"
PAIRS = Mutation("90", MODULE, "number - 1", "number + 1", "a pair with itself")
TIME = Mutation("90", MODULE, "uniform(1e-3, 2e-3)", "uniform(3e-3, 4e-3)", "another time")


def test_a_bug_is_caught_where_it_shows(built, kernels):
    table = mutation.attempt_all(built, [PAIRS], sanitize=SANITIZE, kernels=kernels)
    assert [(one.cell, one.caught_by) for one in table.mutations] == [
        (1, "code cell 1: its output differs")
    ]
    assert (built.root / MODULE).read_text().count("number - 1") == 1


CELLS = (
    "import math\nside = 2",
    "side = 3",
    "def area(factor, power=math.tau):\n    return [side * factor for _ in range(2)]",
    "table = area(1)\nprint(table)",
    "table = area(2)\nfor row in table:\n    print(row)",
    "later = 5",
)


@pytest.mark.parametrize(
    ("shown_by", "cells"),
    [
        (["area(2)"], {0, 1, 2, 4}),  # the first side is of no use, nor is the other table
        (["area(1)"], {0, 1, 2, 3}),
        (["side = 2"], {0}),
        (["later", "side = 3"], {1, 5}),
    ],
)
def test_a_cell_runs_with_those_that_it_takes_names_from(shown_by, cells):
    assert mutation.needed_cells(CELLS, shown_by) == cells


@pytest.mark.parametrize("text", ["table = ", "not there"])
def test_a_text_that_does_not_name_one_cell_is_refused(text):
    with pytest.raises(AuthoringError, match="code cells, not in one"):
        mutation.needed_cells(CELLS, [text])


def test_cells_that_a_bug_does_not_need_are_not_run(built, kernels):
    """Cell 1 would fail without a bug; cell 2 takes nothing from it."""
    path = built.notebook(built.lessons()[0])
    path.write_text(path.read_text().replace("10 pairs", "11 pairs"))
    bug = Mutation(
        "90",
        MODULE,
        "number // 2, ",
        "number // 3, ",
        "a half that is a third",
        "counting.halves(7)",
    )
    table = mutation.attempt_all(built, [bug], sanitize=SANITIZE, kernels=kernels)
    assert [caught.cell for caught in table.mutations] == [2]


def test_a_run_leaves_nothing_in_the_temporary_folder(built, kernels, tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    mutation.attempt(built, built.lessons()[0], PAIRS, sanitize=SANITIZE, kernels=kernels)
    assert list(folder.iterdir()) == []


def test_a_bug_that_raises_is_caught_by_its_exception(built, kernels):
    bug = Mutation("90", MODULE, "return number // 2", "return number // 0", "a division by zero")
    environment = dict(os.environ)
    caught = mutation.attempt(built, built.lessons()[0], bug, sanitize=SANITIZE, kernels=kernels)
    assert (caught.cell, caught.caught_by) == (2, "code cell 2: raised ZeroDivisionError")
    assert dict(os.environ) == environment


def test_a_bug_that_shows_in_masked_times_alone_is_not_caught(built, kernels, tmp_path):
    nothing_masked = tmp_path / "nothing.cfg"
    nothing_masked.write_text("")
    assert (
        mutation.attempt(
            built, built.lessons()[0], TIME, sanitize=nothing_masked, kernels=kernels
        ).cell
        == 1
    )
    assert (
        mutation.attempt(
            built, built.lessons()[0], TIME, sanitize=SANITIZE, kernels=kernels
        ).caught_by
        == "no cell"
    )


def test_a_lesson_that_fails_without_a_bug_proves_nothing(built, kernels):
    path = built.notebook(built.lessons()[0])
    path.write_text(path.read_text().replace("10 pairs", "11 pairs"))
    with pytest.raises(
        AuthoringError, match="lesson 90 fails without a mutation too, at code cell 1: its"
    ):
        mutation.attempt_all(built, [PAIRS], sanitize=SANITIZE, kernels=kernels)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"old": "number * 7"}, "stands there 0 times, not once"),
        ({"old": "number"}, "times, not once"),
        ({"new": "number - 1"}, "changes nothing"),
        ({"new": "number -"}, "is not Python any more"),
    ],
)
def test_a_mutation_that_no_longer_applies_is_refused(small, change, says):
    stated = {
        "lesson": "90",
        "module": MODULE,
        "old": "number - 1",
        "new": "number + 1",
        "what": "a bug",
    } | change
    with pytest.raises(AuthoringError, match=says):
        mutation.plant((small.root / MODULE).read_text(), Mutation(**stated))


def test_a_mutation_of_no_file_or_no_lesson_is_refused(built, kernels):
    lesson = built.lessons()[0]
    with pytest.raises(AuthoringError, match=r"toy/missing\.py, which is no file"):
        mutation.attempt(
            built,
            lesson,
            Mutation("90", "toy/missing.py", "a", "b", "a bug"),
            sanitize=SANITIZE,
            kernels=kernels,
        )
    with pytest.raises(AuthoringError, match="mutations of lesson 91, which does not exist"):
        mutation.attempt_all(
            built, [Mutation("91", MODULE, "a", "b", "a bug")], sanitize=SANITIZE, kernels=kernels
        )


def test_a_run_that_compares_nothing_is_no_catch(built, kernels, tmp_path):
    with pytest.raises(AuthoringError, match="could not be compared"):
        mutation.first_failure(
            tmp_path / "missing.ipynb", tmp_path, sanitize=SANITIZE, kernels=kernels
        )
