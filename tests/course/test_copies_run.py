"""Who writes nothing comes through a lesson: its reader's copy runs to the end, on the course's
versions.
"""

from __future__ import annotations

import nbformat
import pytest

from tests.ci import one_in_test
from tools.authoring import notebook, proof, run, yours
from tools.authoring.course import HERE
from tools.authoring.environment import EARLY_END
from tools.authoring.lesson import AuthoringError, parse
from tools.copies import form, update


def written(lesson):
    """Return the names of the functions that a lesson's reader writes."""
    return [cell.metadata["yours"] for cell in lesson.cells if "yours" in cell.metadata]


def ran(lesson, folder):
    """Run a lesson's copy as it lies in the copy of the course, and return what its checks printed,
    by function.
    """
    made = nbformat.read(folder / lesson.notebook_name, as_version=4)
    assert len(made.cells) == len(lesson.cells), (
        f"{lesson.name} is not built: make lessons LESSONS={lesson.number}"
    )
    cells = run.run(made, lesson, folder=(folder / lesson.notebook_name).parent).cells
    return {
        cell.metadata["checks"]: "".join(output.get("text", "") for output in cell.outputs)
        for cell in cells
        if "checks" in cell.metadata
    }


@pytest.fixture(autouse=True)
def early_ends(monkeypatch):
    """No time is compared here, so each measurement ends early."""
    for name, value in EARLY_END.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """The reader's copy of this course."""
    folder = tmp_path_factory.mktemp("copies") / "my_course"
    update.update(folder, form.files(HERE.folder))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "lesson",
    one_in_test(
        (*HERE.lessons(), *HERE.appendices()),
        name=lambda lesson: lesson.name,
        lesson="systolic_arrays",
        ci=["data_parallel"],
    ),
)
def test_a_lesson_runs_to_its_end_on_untouched_stubs(lesson, ours):
    """Each lesson's checks are proved on its stubs in test_authoring_proof.py, and its cells by
    nbval.
    """
    said = ran(lesson, ours)
    assert list(said) == written(lesson)
    for name, text in said.items():
        assert "not written yet" in text
        assert f"Below, the course's {name} is used.\n" in text


def in_a_style():
    """Return a parameter for each lesson whose source has right answers in other styles, and each
    style.
    """
    return [
        pytest.param(one, style, id=f"{one.name}-style-{style}")
        for one in HERE.lessons()
        if one.right
        for style in yours.STYLES
    ]


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("lesson", "style"), in_a_style())
def test_a_lesson_runs_to_its_end_on_right_answers_in_another_style(lesson, style, ours):
    """Without an error (it would end the run) and without a word on stderr, such as a warning."""
    answers = proof.in_style(lesson, style)
    made = nbformat.read(ours / lesson.notebook_name, as_version=4)
    for cell in made.cells:
        if "yours" in cell.metadata:
            cell.source = answers[cell.metadata["yours"]]
    cells = run.run(made, lesson, folder=(ours / lesson.notebook_name).parent).cells
    said = [
        output
        for cell in cells
        for output in cell.get("outputs", [])
        if output.get("name") == "stderr"
    ]
    assert said == []
    for cell in cells:
        if "checks" in cell.metadata:
            text = "".join(output.get("text", "") for output in cell.outputs)
            assert f"Below, your {cell.metadata['checks']} is used.\n" in text


SOURCE = '''# ---
# jupyter:
#   lesson:
#     number: "90"
#     title: Sums
#     needs: []
#     objectives: ["write|wrote a sum"]
# ---

# %% tags=["raises-exception"]
1 / 0

# %%
from helpers import exercises

# %% tags=["yours"] yours="twice"
def twice(n):
    """Return two times n."""
    return n + n

# %% checks="twice"
asked = exercises.Checks("Twice", twice)
asked.returns("doubles", (3,), expected=6)
twice = asked.settle()

# %% wrong="twice" says="gave 5"
def twice(n):
    return n + 2

# %% wrong="twice" says="gave 9"
def twice(n):
    return n * n

# %%
assert twice(21) == 42
'''


def copied(source, folder):
    """Write the reader's copy of a lesson to a folder, and return the lesson."""
    lesson = parse(source, number="90", slug="sums")
    copy = yours.as_copy(notebook.unexecuted(lesson))
    (folder / lesson.notebook_name).write_text(nbformat.writes(copy))
    return lesson


def test_what_follows_a_stub_takes_the_courses_version(tmp_path):
    assert ran(copied(SOURCE, tmp_path), tmp_path) == {
        "twice": "Twice: not written yet\nBelow, the course's twice is used.\n"
    }


def test_a_copy_that_stops_before_its_end_is_seen(tmp_path):
    lesson = copied(SOURCE.replace("twice(21) == 42", "twice(21) == 43"), tmp_path)
    with pytest.raises(
        AuthoringError, match=r"line 34 of 90_sums\.py, its line 1, raised AssertionError"
    ):
        ran(lesson, tmp_path)
