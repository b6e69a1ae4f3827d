"""What students get: built the same twice, held to its source, without a solution or a hidden
test.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import nbformat
import pytest

from tests.exercises.conftest import SHEETS
from tools.authoring.__main__ import main
from tools.authoring.course import HERE
from tools.authoring.lesson import AuthoringError
from tools.authoring.rules import links
from tools.exercises import handout, proof, sheets

NAME = "00_start_here_exercises"
SECRETS = ("BEGIN SOLUTION", "BEGIN HIDDEN", "cold_s, *warm_s = durations_s\n", "Random(1009)",
           "hidden_cost_s", "comparable = [", "in 3 GiB the Gi stands for 2**30\")", "wrong=")  # fmt: skip  # noqa: E501


def edit(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def source(course):
    return course.folder / "instructor" / "exercises" / f"{NAME}.py"


def test_a_second_build_gives_the_same_bytes(built_twice):
    _, written = built_twice
    assert written[0] == written[1]


def test_the_untouched_notebook_ran_and_says_not_yet_for_each_exercise(built_twice):
    course, _ = built_twice
    cells = nbformat.read(course.folder / "exercises" / f"{NAME}.ipynb", as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    (sheet,) = sheets.load(course)
    said = [proof.attempt(sheet, name, proof.stub(sheet, name)).said for name in sheet.exercises]
    assert len(said) >= 4
    assert [output.text for output in outputs if output.output_type == "stream"] == said
    assert all(text.startswith("Exercise ") and text.endswith(": not yet\n") for text in said)
    assert not any(output.output_type == "error" for output in outputs)
    assert all(cell.execution_count for cell in cells if cell.cell_type == "code")


def test_the_tree_holds_no_secret_and_its_pages_are_true(tmp_path):
    tree = tmp_path / "student"
    handout.fill(HERE, tree)
    assert handout.leaks(tree, SHEETS) == []
    files = [path for path in tree.rglob("*") if path.is_file()]
    names = {path.relative_to(tree).as_posix() for path in files}
    assert {
        f"course/exercises/{NAME}.ipynb",
        "course/00_start_here.ipynb",
        "helpers/exercises/_checks.py",
        "Makefile",
        "pyproject.toml",
        "requirements.lock",
        "overrides.txt",
        "README.md",
    } <= names
    assert not any(
        "instructor" in name or "tests/" in name or "authoring" in name for name in names
    )
    assert "CONTRIBUTING.md" not in names
    pages_are_true(tree)
    for lesson in tree.glob("course/*.ipynb"):
        cells = nbformat.read(lesson, as_version=4).cells
        assert not [cell for cell in cells if cell.get("outputs")], (
            f"{lesson.name} has answers under its questions"
        )
    for path in files:
        text = path.read_bytes().decode(errors="ignore").replace('\\"', '"').replace("\\n", "\n")
        assert not [secret for secret in SECRETS if secret in text], path.name


def pages_are_true(tree):
    """Every make target named in the README exists and can be planned, and no page leads
    nowhere.
    """
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", (tree / "README.md").read_text(), re.MULTILINE))
    assert {"lab", "help"} <= named
    defined = set(re.findall(r"^([a-z]+):", (tree / "Makefile").read_text(), re.MULTILINE))
    assert named <= defined == {"help", "setup", "lab"}
    for target in sorted(defined):
        done = subprocess.run(
            ["make", "-n", target], cwd=tree, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    shown = subprocess.run(
        ["make", "help"], cwd=tree, capture_output=True, text=True, check=True
    ).stdout
    assert [line.split()[1] for line in shown.splitlines()] == ["help", "setup", "lab"]
    pages = [tree / "README.md", *sorted((tree / "course").glob("*.md"))]
    assert len(pages) >= 2
    assert [problem for page in pages for problem in links.check_page(page, root=tree)] == []
    ours, theirs = (
        tomllib.loads((root / "pyproject.toml").read_text()) for root in (HERE.root, tree)
    )
    assert theirs == {key: ours[key] for key in ("build-system", "project")} | {
        "tool": {"hatch": ours["tool"]["hatch"]}
    }


@pytest.fixture(scope="module")
def problems():
    """The problems of all exercises of this course."""
    return sheets.problems(HERE)


def test_the_students_commands_are_those_of_the_course():
    students = Path(handout.__file__).with_name("students")
    names = ("Makefile", "README.md")
    # in their tree course has the reader's form already
    theirs = [(students / name).read_text() for name in names]
    ours = [(HERE.root / name).read_text().replace("my_course", "course") for name in names]
    known = {line.replace("lab: copy ", "lab: setup ") for line in ours[0].splitlines()}
    assert [line for line in theirs[0].splitlines() if line not in known] == [
        ".PHONY: help setup lab"
    ]
    printed = ours[1] + (HERE.folder / "support.md").read_text()
    blocks = [
        re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S) for text in (printed, theirs[1])
    ]
    known = {line for block in blocks[0] for line in block.splitlines()}
    assert blocks[1]
    assert [line for block in blocks[1] for line in block.splitlines() if line not in known] == []


@pytest.mark.parametrize("sheet", [pytest.param(sheet, id=sheet.lesson.name) for sheet in SHEETS])
def test_what_git_would_hand_on_is_what_the_source_gives(sheet, problems):
    assert [problem for problem in problems if problem.where.startswith(sheet.lesson.name)] == []


def test_git_would_hand_on_no_notebook_without_a_source(problems):
    names = tuple(sheet.lesson.name for sheet in SHEETS)
    assert names
    assert [problem for problem in problems if not problem.where.startswith(names)] == []


def test_a_secret_is_found_by_its_content(built, tmp_path):
    tree = handout.student(built, tmp_path / "student")
    known = sheets.load(built)
    assert handout.leaks(tree, known) == []
    notebook = tree / "course" / "exercises" / f"{NAME}.ipynb"
    clean = notebook.read_text()
    for line in (
        "return cold_s, min(warm_s), statistics.median(warm_s)",
        "draw = random.Random(1013)",
        "medians_s.append(statistics.median(times_s))",
        "### BEGIN SOLUTION",
    ):
        content = json.loads(clean)
        content["cells"][-1]["source"] = ["Look:\n", f"    {line}\n"]
        notebook.write_text(json.dumps(content))
        (found,) = handout.leaks(tree, known)
        assert line in found.what
        notebook.write_text(clean)
        (tree / "helpers" / "notes.py").write_text(f"def f():\n    {line}\n")
        (found,) = handout.leaks(tree, known)
        assert found.where == "helpers/notes.py"
        for hidden_in in (
            f"Try `{line}`, it works.",
            f"- {line}",
            f"x = 1  # {line}",
            f"> * {line};",
        ):
            (tree / "helpers" / "notes.py").write_text(f"{hidden_in}\n")
            assert [found.where for found in handout.leaks(tree, known)] == ["helpers/notes.py"]
        (tree / "helpers" / "notes.py").unlink()
    (tree / "helpers" / "notes.py").write_text("first()\nstatistics.median([1])\n")
    assert handout.leaks(tree, known) == []
    (tree / "helpers" / "notes.py").unlink()
    (tree / "course" / "instructor").mkdir()
    (tree / "course" / "instructor" / "marks.txt").write_text("ann 13\n")
    assert [found.where for found in handout.leaks(tree, known)] == ["course/instructor/marks.txt"]


def test_a_leak_leaves_the_old_tree(built, tmp_path):
    tree = handout.student(built, tmp_path / "student")
    before = sorted(path.relative_to(tree) for path in tree.rglob("*"))
    (built.root / "helpers" / "notes.py").write_text("    draw = random.Random(1013)\n")
    with pytest.raises(
        AuthoringError, match=r"helpers/notes\.py: shows a solution or a hidden test"
    ):
        handout.student(built, tree)
    assert sorted(path.relative_to(tree) for path in tree.rglob("*")) == before
    assert list(tmp_path.glob(".student-*")) == []


def test_a_later_tree_takes_the_place_of_the_old_one(built, tmp_path):
    tree = handout.student(built, tmp_path / "student")
    (tree / "stale.txt").write_text("old")
    assert not (handout.student(built, tree) / "stale.txt").exists()


def test_a_changed_source_is_seen(built):
    assert sheets.problems(built) == []
    edit(source(built), "# ## Exercise 2: cold against warm\n", "# ## Exercise 2: cold and warm\n")
    (found,) = sheets.problems(built)
    assert found.what.startswith("differs from line ")
    assert found.what.endswith("run make student")


def test_a_changed_text_keeps_the_outputs_and_changed_code_does_not(built):
    made = built.folder / "exercises" / f"{NAME}.ipynb"
    before = nbformat.read(made, as_version=4)
    edit(source(built), "# ## Exercise 2: cold against warm\n", "# ## Exercise 2: cold and warm\n")
    assert sheets.update_keeping_outputs(built) == [made]
    assert sheets.problems(built) == []
    after = nbformat.read(made, as_version=4)
    shown = [
        [cell.outputs for cell in one.cells if cell.cell_type == "code"] for one in (before, after)
    ]
    assert shown[0] == shown[1]
    edit(
        source(built),
        "from helpers import exercises, plotting",
        "import math\nfrom helpers import exercises, plotting",
    )
    with pytest.raises(
        AuthoringError, match="has other code than its source has; run make student"
    ):
        sheets.update_keeping_outputs(built)


def test_a_changed_hidden_test_alone_is_seen_by_its_cell_id(built):
    edit(source(built), "random.Random(1013)", "random.Random(7)")
    assert len(sheets.problems(built)) == 1


def test_a_notebook_of_no_source_and_an_absent_one_are_found(built):
    made = built.folder / "exercises" / f"{NAME}.ipynb"
    shutil.move(made, made.with_name("05_stray_exercises.ipynb"))
    assert [str(problem) for problem in sheets.problems(built)] == [
        f"{NAME}.ipynb: is not built; run make student",
        "05_stray_exercises.ipynb: no source makes this notebook; remove it, or write its source "
        "in course/instructor/exercises",
    ]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("<details><summary>Hint 3: sort</summary>", "Hint 3: sort", "ranking: 2 folded hints"),
        ('wrong="ranking"', 'wrong="units"', "ranking: 0 wrong answers, write at least 2"),
        ("# |---|---|--:|---|", "#", "units: show a picture or a table"),
    ],
)
def test_an_exercise_without_its_parts_is_found(built, old, new, what):
    sheet = sheets.read(built, f"{NAME}.py", source(built).read_text().replace(old, new))
    assert any(what in problem.what for problem in sheets.find_rule_problems(sheet))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('answer="units"', 'answer="Units"', "needs a name of its own, lower case"),
        ('answer="units"', 'answer="ranking"', "needs a name of its own, lower case"),
        (
            'answer="units"',
            'answer="other"',
            "other, units needs one cell answer=... and one cell checks=...",
        ),
        (
            '# %% answer="units"',
            "# %%",
            "no region '### BEGIN SOLUTION' to '### END SOLUTION' belongs here",
        ),
        ("    ### END SOLUTION\n", "", "exactly one region '### BEGIN SOLUTION'"),
        ("### BEGIN HIDDEN TESTS\n", "", "exactly one region '### BEGIN HIDDEN TESTS'"),
        ('checks="units" points=3', 'checks="units"', "points=None; checks need points"),
        ('checks="units" points=3', 'checks="units" points=0', "points=0; checks need points"),
        (
            'checks="units" points=3',
            'checks="units" answer="units"',
            "a code cell is either an answer or checks",
        ),
        ('says="That counts a MAC as one operation"', "", "a wrong answer is a code cell"),
        ('wrong="units" says="in', 'wrong="unit" says="in', "unit needs one cell answer=..."),
        ("gets=2", 'gets="2"', "gets='2'; state the points that are left"),
        ("gets=2", "gets=-1", "gets=-1; state the points that are left"),
    ],
)
def test_what_nbgrader_would_take_otherwise_is_refused(built_twice, old, new, said):
    course, _ = built_twice
    script = source(course).read_text()
    assert old in script
    with pytest.raises(AuthoringError) as caught:
        sheets.read(course, f"{NAME}.py", script.replace(old, new, 1))
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{NAME}.py")


@pytest.mark.parametrize(
    "name", ["00_start_here.py", "07_none_exercises.py", "00_else_exercises.py", "exercises.py"]
)
def test_a_source_that_belongs_to_no_lesson_is_refused(built_twice, name):
    course, _ = built_twice
    with pytest.raises(AuthoringError, match=name):
        sheets.read(course, name, source(course).read_text())


def test_an_exercise_is_added_by_editing_the_source_alone(built_twice):
    course, _ = built_twice
    more = """
# %% [markdown]
# ## Exercise 5: twice
#
# | n | twice |
# |--|--|
# | 2 | 4 |
#
# <details><summary>Hint</summary>Add.</details>

# %% answer="twice"
def twice(n):
    ### BEGIN SOLUTION
    return n + n
    ### END SOLUTION

# %% checks="twice" points=1
check = exercises.Checks("Exercise 5, twice", twice)
check.returns("twice", (2,), expected=4)
check.report()
### BEGIN HIDDEN TESTS
check.returns("twice", (7,), expected=14)
check.score()
### END HIDDEN TESTS
"""
    sheet = sheets.read(course, f"{NAME}.py", source(course).read_text() + more)
    assert sheet.exercises[-1] == "twice"
    assert [problem.what[:30] for problem in sheets.find_rule_problems(sheet)] == [
        "twice: 1 folded hints (<detail",
        "twice: 0 wrong answers, write ",
    ]
    *_, answer, checks = sheets.released(sheet).cells
    assert answer.source == "def twice(n):\n    return exercises.not_yet"
    assert checks.source.endswith("check.report()")
    assert (answer.metadata.deletable, answer.metadata.get("editable", True)) == (False, True)
    assert (checks.metadata.deletable, checks.metadata.editable) == (False, False)


def test_every_cell_but_the_answers_is_locked(built_twice):
    course, _ = built_twice
    (sheet,) = sheets.load(course)
    cells = sheets.released(sheet).cells
    open_to_edit = [
        cell.metadata.nbgrader.grade_id for cell in cells if cell.metadata.get("editable", True)
    ]
    assert tuple(open_to_edit) == (*sheet.exercises, *sheet.written)
    assert not any(cell.metadata.get("deletable", True) for cell in cells)
    tables = [cell for cell in cells if cell.cell_type == "markdown" and "|--" in cell.source]
    assert tables
    assert all(cell.metadata.nbgrader.locked for cell in tables)


def test_the_folder_for_nbgrader_stays_outside_git_and_keeps_what_is_in_it(built, tmp_path):
    with pytest.raises(AuthoringError, match="it will hold solutions"):
        handout.nbgrader_folder(built, built.folder / "class")
    target = tmp_path / "class"
    path, config = handout.nbgrader_folder(built, target)
    assert "### BEGIN SOLUTION" in path.read_text()
    config.write_text(config.read_text() + "c.Execute.timeout = 5\n")
    assert handout.nbgrader_folder(built, target) == [path]
    assert "timeout = 5" in config.read_text()
    assert handout.nbgrader_folder(built, built.root / "_build" / "class")


def test_the_command_says_what_it_wrote(tmp_path, capsys):
    folder = ["--folder", str(tmp_path / "class")]
    assert main(["nbgrader", "00", *folder]) == 0
    assert f"{NAME}.ipynb" in capsys.readouterr().out
    assert main(["nbgrader", "55", *folder]) == 1
    assert capsys.readouterr().err.startswith("error: no lesson 55")
