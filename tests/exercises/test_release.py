"""What students get: built the same twice, held to its source, without a solution or a hidden test."""

from __future__ import annotations

import json
import shutil

import nbformat
import pytest

from course.authoring import exercises, exercises_tree
from course.authoring.__main__ import main
from course.authoring.course import HERE
from course.authoring.lesson import AuthoringError

NAME = "00_start_here_exercises"
SECRETS = ("BEGIN SOLUTION", "BEGIN HIDDEN", "cold_s, *warm_s = durations_s\n", "Random(1009)", "hidden_cost_s",
           "comparable = [", "in 3 GiB the Gi stands for 2**30\")", "wrong=")  # fmt: skip


def edit(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def source(course):
    return course.folder / "instructor" / "exercises" / f"{NAME}.py"


def test_a_second_build_gives_the_same_bytes(built_twice):
    _, written = built_twice
    assert written[0] == written[1]


def test_the_untouched_notebook_ran_and_says_not_yet_four_times(built_twice):
    course, _ = built_twice
    cells = nbformat.read(course.folder / "exercises" / f"{NAME}.ipynb", as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert [output.text for output in outputs if output.output_type == "stream"] == [
        f"Exercise {number}: not yet\n" for number in ("1, time_s", "2, cold_and_warm", "3, ranking", "4, fair_ratio")
    ]
    assert not any(output.output_type == "error" for output in outputs)
    assert all(cell.execution_count for cell in cells if cell.cell_type == "code")


def test_the_committed_exercises_break_no_rule_and_their_tree_holds_no_secret(tmp_path):
    tree = exercises_tree.student(HERE, tmp_path / "student")
    files = [path for path in tree.rglob("*") if path.is_file()]
    names = {path.relative_to(tree).as_posix() for path in files}
    assert {f"course/exercises/{NAME}.ipynb", "course/00_start_here.ipynb", "helpers/exercises.py", "Makefile",
            "pyproject.toml", "requirements.lock", "README.md"} <= names  # fmt: skip
    assert not any("instructor" in name or "tests/" in name or "authoring" in name for name in names)
    for path in files:
        text = path.read_bytes().decode(errors="ignore").replace('\\"', '"').replace("\\n", "\n")
        assert not [secret for secret in SECRETS if secret in text], path.name


def test_what_git_would_hand_on_is_what_the_sources_give():
    assert exercises.problems(HERE) == []


def test_a_secret_is_found_by_its_content(built, tmp_path):
    tree = exercises_tree.student(built, tmp_path / "student")
    known = exercises.sheets(built)
    assert exercises_tree.leaks(tree, known) == []
    notebook = tree / "course" / "exercises" / f"{NAME}.ipynb"
    clean = notebook.read_text()
    for line in ("return cold_s, min(warm_s), statistics.median(warm_s)", "draw = random.Random(1013)",
                 "medians_s.append(statistics.median(times_s))", "### BEGIN SOLUTION"):  # fmt: skip
        content = json.loads(clean)
        content["cells"][-1]["source"] = ["Look:\n", f"    {line}\n"]
        notebook.write_text(json.dumps(content))
        (found,) = exercises_tree.leaks(tree, known)
        assert line in found.what
        notebook.write_text(clean)
        (tree / "helpers" / "notes.py").write_text(f"def f():\n    {line}\n")
        (found,) = exercises_tree.leaks(tree, known)
        assert found.where == "helpers/notes.py"
        (tree / "helpers" / "notes.py").unlink()
    (tree / "course" / "instructor").mkdir()
    (tree / "course" / "instructor" / "marks.txt").write_text("ann 13\n")
    assert [found.where for found in exercises_tree.leaks(tree, known)] == ["course/instructor/marks.txt"]


def test_a_leak_leaves_the_old_tree(built, tmp_path):
    tree = exercises_tree.student(built, tmp_path / "student")
    before = sorted(path.relative_to(tree) for path in tree.rglob("*"))
    (built.root / "helpers" / "notes.py").write_text("    draw = random.Random(1013)\n")
    with pytest.raises(AuthoringError, match=r"helpers/notes\.py: shows a solution or a hidden test"):
        exercises_tree.student(built, tree)
    assert sorted(path.relative_to(tree) for path in tree.rglob("*")) == before
    assert list(tmp_path.glob(".student-*")) == []


def test_a_later_tree_takes_the_place_of_the_old_one(built, tmp_path):
    tree = exercises_tree.student(built, tmp_path / "student")
    (tree / "stale.txt").write_text("old")
    assert not (exercises_tree.student(built, tree) / "stale.txt").exists()


def test_a_changed_source_is_seen(built):
    assert exercises.problems(built) == []
    edit(source(built), "# ## Exercise 2: cold against warm\n", "# ## Exercise 2: cold and warm\n")
    (found,) = exercises.problems(built)
    assert found.what.startswith("differs from line ")
    assert found.what.endswith("run make student")


def test_a_changed_hidden_test_alone_is_seen_by_its_cell_id(built):
    edit(source(built), "random.Random(1013)", "random.Random(7)")
    assert len(exercises.problems(built)) == 1


def test_a_notebook_of_no_source_and_an_absent_one_are_found(built):
    made = built.folder / "exercises" / f"{NAME}.ipynb"
    shutil.move(made, made.with_name("05_stray_exercises.ipynb"))
    assert [str(problem) for problem in exercises.problems(built)] == [
        f"{NAME}.ipynb: is not built; run make student",
        "05_stray_exercises.ipynb: no source makes this notebook; remove it, or write its source in "
        "course/instructor/exercises",
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
    sheet = exercises.read(built, f"{NAME}.py", source(built).read_text().replace(old, new))
    assert any(what in problem.what for problem in exercises.rules(sheet))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('answer="units"', 'answer="Units"', "needs a name of its own, lower case"),
        ('answer="units"', 'answer="ranking"', "needs a name of its own, lower case"),
        ('answer="units"', 'answer="other"', "other, units needs one cell answer=... and one cell checks=..."),
        ('# %% answer="units"', "# %%", "no region '### BEGIN SOLUTION' to '### END SOLUTION' belongs here"),
        ("    ### END SOLUTION\n", "", "exactly one region '### BEGIN SOLUTION'"),
        ("### BEGIN HIDDEN TESTS\n", "", "exactly one region '### BEGIN HIDDEN TESTS'"),
        ('checks="units" points=3', 'checks="units"', "points=None; checks need points"),
        ('checks="units" points=3', 'checks="units" points=0', "points=0; checks need points"),
        ('checks="units" points=3', 'checks="units" answer="units"', "a code cell is either an answer or checks"),
        ('says="That counts a MAC as one operation"', "", "a wrong answer is a code cell"),
        ('wrong="units" says="in', 'wrong="unit" says="in', "unit needs one cell answer=..."),
    ],
)
def test_what_nbgrader_would_take_otherwise_is_refused(built_twice, old, new, said):
    course, _ = built_twice
    script = source(course).read_text()
    assert old in script
    with pytest.raises(AuthoringError) as caught:
        exercises.read(course, f"{NAME}.py", script.replace(old, new, 1))
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{NAME}.py")


@pytest.mark.parametrize("name", ["00_start_here.py", "07_none_exercises.py", "00_else_exercises.py", "exercises.py"])
def test_a_source_that_belongs_to_no_lesson_is_refused(built_twice, name):
    course, _ = built_twice
    with pytest.raises(AuthoringError, match=name):
        exercises.read(course, name, source(course).read_text())


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
    sheet = exercises.read(course, f"{NAME}.py", source(course).read_text() + more)
    assert sheet.exercises[-1] == "twice"
    assert [problem.what[:30] for problem in exercises.rules(sheet)] == [
        "twice: 1 folded hints (<detail", "twice: 0 wrong answers, write "]  # fmt: skip
    *_, answer, checks = exercises.released(sheet).cells
    assert answer.source == "def twice(n):\n    return exercises.not_yet"
    assert checks.source.endswith("check.report()")
    assert (answer.metadata.deletable, answer.metadata.get("editable", True)) == (False, True)
    assert (checks.metadata.deletable, checks.metadata.editable) == (False, False)


def test_the_folder_for_nbgrader_stays_outside_git_and_keeps_what_is_in_it(built, tmp_path):
    with pytest.raises(AuthoringError, match="it will hold solutions"):
        exercises_tree.nbgrader_folder(built, built.folder / "class")
    target = tmp_path / "class"
    path, config = exercises_tree.nbgrader_folder(built, target)
    assert "### BEGIN SOLUTION" in path.read_text()
    config.write_text(config.read_text() + "c.Execute.timeout = 5\n")
    assert exercises_tree.nbgrader_folder(built, target) == [path]
    assert "timeout = 5" in config.read_text()
    assert exercises_tree.nbgrader_folder(built, built.root / "_build" / "class")


def test_the_command_says_what_it_wrote(tmp_path, capsys):
    folder = ["--folder", str(tmp_path / "class")]
    assert main(["nbgrader", "00", *folder]) == 0
    assert f"{NAME}.ipynb" in capsys.readouterr().out
    assert main(["nbgrader", "55", *folder]) == 1
    assert capsys.readouterr().err.startswith("error: no lesson 55")
