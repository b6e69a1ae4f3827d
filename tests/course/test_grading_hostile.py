"""A class of hostile submissions, graded at once: each ends as it shall, and its neighbours lose
nothing.
"""

from __future__ import annotations

import csv
import json
import re
import socket
from pathlib import Path

import nbformat
import psutil
import pytest

from tests.course.grading_samples import (
    ASSIGNMENT,
    FIRST,
    FORKS,
    FULL,
    GUARDED,
    HEAD,
    KERNEL,
    LAST,
    LAVISH,
    LIMITS,
    PATCH,
    SEARCH,
    SHEET,
    STOPPED,
    first,
    hand_in,
    notebook,
    solution,
)
from tools.authoring.course import HERE
from tools.exercises import sheets
from tools.grading import cgroup, grade, sandbox

pytestmark = [
    pytest.mark.usefixtures("working_sandbox"),
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.filterwarnings("ignore:Object of type:Warning"),
]
WRONG = next(one for one in SHEET.wrong if one.name == FIRST and one.gets is not None)
# one of each mechanism; CI grades the whole class
IN_TEST = {"honest", "partly", "ends", "claims", "patches", "text"}


def students(names):
    """Return names of submissions as parameters, those that `make test` leaves out marked
    ``ci``.
    """
    return [pytest.param(name, marks=() if name in IN_TEST else pytest.mark.ci) for name in names]


@pytest.fixture(scope="module")
def graded(request, tmp_path_factory):
    """The folder into which everything was graded; the submissions lie in ``submitted`` in it.

    Where no test that is marked ``ci`` was collected, only the submissions of ``IN_TEST`` are
    handed in.
    """
    whole = any(
        item.path == request.path and item.get_closest_marker("ci")
        for item in request.session.items
    )
    root = tmp_path_factory.mktemp("class")
    folder = root / "submitted"
    by_heart = (
        "known = {2000: (2.25, 'compute'), 8000: (2.5, 'memory')}\nreturn known.get(flops, "
        "known.get(moved_bytes, "
    )
    named = "class Odd:\n    def __repr__(self): return '\\ud83d'\nreturn Odd()"
    paths = [
        str(HERE.folder / "instructor"),
        str(HERE.root / "tests"),
        str(HERE.root / ".git"),
        str(folder),
        str(root),
        str(root / "gradebook.db"),
        "/etc/passwd",
        "/etc/shadow",
        str(Path.home() / ".ssh"),
    ]
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_SECRET", "a token")
        search = SEARCH.format(paths=paths, port=server.getsockname()[1])
        handed_in = {
            "honest": notebook(),
            "partly": notebook({FIRST: WRONG.cell.source}),
            **{name: notebook(answers) for name, (answers, _) in (STOPPED | GUARDED).items()},
            "by_heart": notebook(first(f"{by_heart}(1.75, 'overhead')))")),
            "half": notebook(first("raise ValueError('\\ud83d \U0001f600')")),
            "half_named": notebook(first(named)),
            "blank": notebook(before="\n " * 200_000 + "\nx = 1"),
            **({"forks": notebook(FORKS)} if cgroup.bounded() else {}),
            "above": notebook({FIRST: f"import os\nos._exit(0)\n{HEAD}    return 1.0, 'memory'"}),
            "lavish": notebook(LAVISH),
            "marks": notebook(first("### BEGIN HIDDEN TESTS\nreturn 10**5000")),
            "patches": notebook(first("return 'patched'"), before=PATCH),
            "reads": notebook(first("return sorted(seen)"), before=search),
            "text": b"def roofline_time(): pass\n",
            "strange": json.dumps(
                {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}
            ).encode(),
            "old": json.dumps({"nbformat": 3, "worksheets": []}).encode(),
            "damaged": json.dumps({"nbformat": 4, "cells": [{"source": 5}]}).encode(),
            "nested": b"[" * 100_000,
        }
        assert handed_in.keys() >= IN_TEST
        for student, content in handed_in.items():
            if whole or student in IN_TEST:
                hand_in(folder, student, content)
        (folder / "empty").mkdir()
        (folder / "link").symlink_to("/root")
        done = grade.grade(folder, root, jobs=2, limits=LIMITS)
    assert done.new == done.submissions
    return root, done


def marks(graded, student):
    root, _ = graded
    return json.loads((root / "marks" / student / f"{ASSIGNMENT}.json").read_text())["marks"]


def scores(graded, student):
    return {one["exercise"]: one["score"] for one in marks(graded, student)["marks"]}


def said(graded, student, exercise=FIRST):
    return next(
        one["said"] for one in marks(graded, student)["marks"] if one["exercise"] == exercise
    )


def page(graded, student):
    return (graded[0] / "feedback" / student / ASSIGNMENT / f"{ASSIGNMENT}.html").read_text()


def row(graded, student):
    with (graded[0] / "grades.csv").open() as file:
        return next(row for row in csv.DictReader(file) if row["student"] == student)


def test_the_honest_get_what_they_earned(graded):
    assert scores(graded, "honest") == FULL
    assert scores(graded, "partly") == FULL | {FIRST: WRONG.gets}
    assert float(row(graded, "honest")["score"]) == sum(FULL.values())


@pytest.mark.parametrize("student", students(STOPPED))
def test_what_is_stopped_loses_its_exercise_alone(graded, student):
    assert scores(graded, student) == FULL | {FIRST: 0}
    assert STOPPED[student][1] in said(graded, student)
    assert STOPPED[student][1] in row(graded, student)["note"]


@pytest.mark.ci
def test_a_cell_that_ends_outside_its_function_is_named_to_both(graded):
    assert scores(graded, "above") == FULL | {FIRST: 0}
    assert said(graded, "above").startswith(
        "A cell above was stopped: it ended its own process (exit code 0)\n"
    )
    assert (
        row(graded, "above")["note"] == "a cell was stopped: it ended its own process (exit code 0)"
    )


@pytest.mark.ci
def test_a_loop_is_ended_by_the_processors_time_or_where_there_is_little_of_it_by_the_clocks(
    graded,
):
    limits_s = {f"{LIMITS.step_s:.3g}", f"{LIMITS.patience * LIMITS.step_s:.3g}"}
    assert re.search(r"it ran for more than (\d+) s\.", said(graded, "hangs"))[1] in limits_s


@pytest.mark.parametrize("student", students(GUARDED))
def test_what_is_guarded_against_comes_back_as_a_wrong_answer(graded, student):
    assert scores(graded, student) == FULL | {FIRST: 0}
    assert GUARDED[student][1] in said(graded, student)


@pytest.mark.ci
@pytest.mark.skipif(
    not cgroup.bounded(), reason="root has no control group here, and forks would stop the machine"
)
def test_forks_without_end_are_ended(graded):
    assert scores(graded, "forks") == FULL | {FIRST: 0}
    assert "it ran" in said(graded, "forks")


@pytest.mark.ci
def test_memory_on_the_checks_side_is_limited_too(graded):
    assert scores(graded, "lavish") == FULL | {KERNEL: 0}
    assert "raised MemoryError" in said(graded, "lavish", KERNEL)


@pytest.mark.ci
def test_what_cannot_be_printed_and_nbgraders_own_marks_stop_nobody_else(graded):
    assert scores(graded, "marks") == FULL | {FIRST: 0}
    assert "gave <int, whose repr raises ValueError>, expected" in said(graded, "marks")
    assert "### BEGIN HIDDEN TESTS" in page(graded, "marks")


def test_patched_checks_change_no_score(graded):
    """Everything in the submission's own process says yes; its first answer is wrong, and so are
    the two it sends.
    """
    assert scores(graded, "patches")[FIRST] == 0
    assert "gave 'patched', expected" in said(graded, "patches")
    assert sum(scores(graded, "patches").values()) <= sum(FULL.values())


@pytest.mark.ci
def test_nothing_of_others_can_be_read(graded):
    assert "gave [], expected" in said(graded, "reads")
    assert scores(graded, "reads") == FULL | {FIRST: 0}


NO_NOTEBOOKS = {
    "text": "it holds no JSON",
    "nested": "it holds no JSON",
    "old": "not a notebook of format 4",
    "strange": "no notebook of",
    "damaged": "a damaged notebook",
}


@pytest.mark.parametrize("student", students(NO_NOTEBOOKS))
def test_what_is_no_notebook_of_ours_gets_nothing_and_hears_why(graded, student):
    problem = NO_NOTEBOOKS[student]
    assert set(scores(graded, student).values()) == {0}
    assert problem in marks(graded, student)["problem"]
    assert problem in page(graded, student)
    assert problem in row(graded, student)["note"]


def test_what_is_no_submission_is_named(graded):
    assert [line.split("'")[1] for line in graded[1].skipped] == ["empty", "link"]


def test_everybody_has_a_row_and_a_page_without_hidden_tests(graded):
    hidden = SHEET.cell("checks", FIRST).source.partition("### BEGIN HIDDEN TESTS")[2]
    sources = [SHEET.cell("checks", name).source for name in (FIRST, KERNEL, LAST)]
    lines = {
        line.strip()
        for one in sources
        for line in one.partition("### BEGIN HIDDEN TESTS")[2].splitlines()
    }
    visible = "\n".join(cell.source for cell in sheets.released(SHEET).cells)
    secret = [line for line in lines if len(line) > 15 and line not in visible]
    assert "2003" in hidden
    assert len(secret) > 10
    students = {path.name for path in (graded[0] / "submitted").iterdir()} - {"empty", "link"}
    for student in students:
        text = page(graded, student)
        assert "points" in text or "Nothing was run" in text
        assert "Random(20" not in text
        assert not [line for line in secret if line.replace('"', "&quot;") in text or line in text]
        assert row(graded, student)["max_score"]


@pytest.mark.ci
def test_the_page_says_which_goals_the_hidden_inputs_missed(graded):
    text = page(graded, "by_heart")
    assert (
        "public checks passed\nOn the hidden inputs:\n  not reached  waits for arithmetic\n" in text
    )
    assert f"0 of {FULL[FIRST]} points" in text
    assert "On the hidden inputs" not in page(graded, "honest")


@pytest.mark.ci
def test_half_an_emoji_ends_its_own_exercise_and_nobody_elses(graded):
    """No file takes half a surrogate pair: written unread it would end the marking of the whole
    class.
    """
    assert scores(graded, "half") == FULL | {FIRST: 0}
    assert "raised ValueError: ? \U0001f600" in said(graded, "half")
    assert scores(graded, "half_named") == FULL | {FIRST: 0}
    assert said(graded, "half_named").count("?") >= 1


@pytest.mark.ci
def test_a_notebook_that_takes_hours_to_colour_is_marked_and_shown(graded):
    assert scores(graded, "blank") == FULL
    assert "[400001 blanks]" in page(graded, "blank")


def test_nothing_is_left_running(graded):
    left = [
        one
        for one in psutil.process_iter(["cmdline"])
        if "bwrap" in " ".join(one.info["cmdline"] or [])[:30]
    ]
    ours = {one.pid for one in psutil.Process().children(recursive=True)}
    assert not [one for one in left if one.pid in ours]


def test_the_files_of_the_machine_are_as_they_were(graded):
    assert (graded[0] / "submitted" / "honest" / f"{ASSIGNMENT}.ipynb").is_file()
    assert solution(FIRST).startswith(HEAD)
    assert (HERE.folder / "instructor" / "instructor.md").is_file()
    assert all((one / ".").exists() for one in sandbox.visible_folders())


def test_a_second_run_marks_nothing_again(graded):
    root, done = graded
    before = (root / "grades.csv").read_text()
    again = grade.grade(root / "submitted", root, limits=LIMITS)
    assert (again.new, again.unchanged) == (0, done.submissions)
    assert (root / "grades.csv").read_text() == before


def test_the_notebook_for_the_lecturer_opens(graded):
    path = graded[0] / "autograded" / "patches" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    nbformat.validate(nbformat.read(path, as_version=4))
