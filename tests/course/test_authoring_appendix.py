"""An appendix is built and checked as its lesson is, linked from it, and held to none of a lesson's
sizes.
"""

from __future__ import annotations

import pytest

from tools.authoring import __main__ as commands, audit, build, proof
from tools.authoring.lesson import APPENDIX, AuthoringError
from tools.authoring.rules import functions

NOTEBOOK = "appendix/90_small_counts.ipynb"
SOURCE = """# ---
# jupyter:
#   lesson:
#     number: "90"
#     title: More counts
# ---

# %% [markdown]
# # More counts
#
# A [pair](../glossary.md#pair) again.

# %%
from pathlib import Path

from toy import counting

print(Path.cwd().name, counting.halves(9))

# %% tags=["yours"] yours="twice"
def twice(n):
    \"\"\"Return two times n.\"\"\"
    return n + n

# %% checks="twice"
from helpers import exercises

asked = exercises.Checks("Twice", twice)
asked.returns("doubles", (3,), expected=6)
twice = asked.settle()

# %% wrong="twice" says="gave 5"
def twice(n):
    return n + 2

# %% wrong="twice" says="gave 9"
def twice(n):
    return n * n
"""
LINK = "Who wants more reads the [appendix](appendix/90_small_counts.ipynb)."


def write(course, source=SOURCE, name="90_small_counts.py"):
    path = course.source_folder / APPENDIX / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)


@pytest.fixture
def more(built):
    """The small course, built, whose lesson links its appendix, which is not built yet."""
    write(built)
    path = built.source_folder / "90_small_counts.py"
    text = path.read_text().replace("# A count is the same", f"# {LINK}\n# A count is the same")
    path.write_text(text)
    build.keep(built)
    return built


@pytest.fixture(scope="module")
def made_once():
    """The text of the built appendix, by what was built: a build takes seconds."""
    return {}


@pytest.fixture
def complete(more, made_once):
    """The same, its appendix built too."""
    if not made_once:
        assert build.build(more, ["90"], appendices=True) == [more.folder / NOTEBOOK]
        made_once[NOTEBOOK] = (more.folder / NOTEBOOK).read_text()
    (more.folder / APPENDIX).mkdir(exist_ok=True)
    (more.folder / NOTEBOOK).write_text(made_once[NOTEBOOK])
    return more


def problems(course):
    return [str(problem) for problem in audit.lessons(course) + audit.strays(course)]


def test_a_built_appendix_breaks_no_rule_works_in_its_folder_and_leads_back(complete):
    [appendix] = complete.appendices(["90"])
    cells = complete.built(appendix).cells
    assert cells[0].source.startswith(
        "# More counts\n\n*Appendix of [lesson 90](../90_small_counts.ipynb), about 10 "
        "minutes.*\n\nA [pair]("
    )
    assert cells[1].outputs[0].text.startswith("appendix ")
    assert problems(complete) == []
    assert proof.faults(appendix, proof.attempts(complete, appendix)) == []
    assert {"90_small_counts.ipynb"} == {path.name for path in complete.folder.glob("*.ipynb")}


def test_it_is_not_built_with_its_lesson_and_one_command_names_it(complete, monkeypatch, capsys):
    monkeypatch.setattr(commands, "HERE", complete)
    assert commands.main(["build", "90", "--keep", "--appendix"]) == 0
    assert capsys.readouterr().out == f"wrote course/{NOTEBOOK}\n0 problem(s)\n"
    assert commands.main(["table", "90"]) == 0
    assert "appendix/90_small_counts" in capsys.readouterr().out
    (complete.folder / NOTEBOOK).unlink()
    assert commands.main(["check", "90"]) == 1
    assert "error: appendix 90 is not built; run make lessons LESSONS=90" in capsys.readouterr().err


def test_what_differs_from_its_source_is_named(complete):
    write(complete, SOURCE.replace("halves(9)", "halves(8)"))
    [said] = problems(complete)
    assert said.startswith(
        f"{NOTEBOOK}, cell 1: 1 cell(s) differ from line 13 of appendix/90_small_counts.py on; "
    )


def test_a_lesson_links_its_appendix(complete):
    path = complete.source_folder / "90_small_counts.py"
    path.write_text(path.read_text().replace(f"# {LINK}\n", ""))
    build.keep(complete)
    what = f"does not link its appendix; write [...]({NOTEBOOK}) where a reader may want it"
    assert problems(complete) == [f"90_small_counts.ipynb: {what}"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("# A [pair](../glossary.md#pair)", "# A [pair](glossary.md#pair)", "leads to no file"),
        (
            "# %%\nfrom pathlib",
            '# %% tags=["slide"] minutes=1\nfrom pathlib',
            "unknown cell metadata minutes",
        ),
        (
            "# # More counts",
            "# # Counts",
            "begin with '# More counts', the title of the metadata, in the first cell",
        ),
    ],
)
def test_what_an_appendix_may_not_hold_is_named(complete, old, new, says):
    assert old in SOURCE
    write(complete, SOURCE.replace(old, new))
    build.keep(complete, appendices=True)
    assert any(says in said for said in problems(complete))


def test_its_header_is_number_and_title_and_its_name_its_lessons(more):
    write(
        more,
        SOURCE.replace("#     title: More counts\n", "#     title: More counts\n#     needs: []\n"),
    )
    with pytest.raises(
        AuthoringError, match=r"appendix/90_small_counts\.py: lesson metadata .* unknown: needs"
    ):
        more.appendices()
    (more.source_folder / APPENDIX / "90_small_counts.py").rename(
        more.source_folder / APPENDIX / "90_other.py"
    )
    write(more, name="90_other.py")
    with pytest.raises(AuthoringError, match=r"appendix/90_other\.py: no lesson has this name"):
        build.build(more, ["90"])


def test_a_notebook_without_a_source_is_found(complete):
    (complete.folder / APPENDIX / "91_stray.ipynb").write_text("{}")
    assert problems(complete)[0].startswith(
        "appendix/91_stray.ipynb: no source makes this notebook"
    )


def test_what_it_uses_counts_to_its_lesson(more):
    key = ("toy.counting", "never_shown")
    assert key not in functions.uses(more, more.lessons()).lessons["90"]
    write(more, SOURCE.replace("halves(9)", "never_shown(9)"))
    assert key in functions.uses(more, more.lessons()).lessons["90"]
