"""A build gives the same bytes twice, and whatever goes wrong leaves the old notebook as it was."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from tools.authoring import audit
from tools.authoring.build import build, keep, refresh
from tools.authoring.lesson import AuthoringError

SOURCE = "90_small_counts.py"
NOTEBOOK = "90_small_counts.ipynb"


def edit(course, old, new):
    path = course.source_folder / SOURCE
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def refused(course, **options):
    """Return the sentence with which a build is refused, having seen that it left every file as it
    was.
    """
    before = {
        path: path.read_bytes()
        for path in course.root.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    with pytest.raises(AuthoringError) as caught:
        build(course, **options)
    after = {
        path: path.read_bytes()
        for path in course.root.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert after == before
    return str(caught.value)


def test_the_same_outputs_give_the_same_bytes(small, monkeypatch):
    monkeypatch.setenv("TOY_SEED", "1")
    # no run is long enough to be stated
    monkeypatch.setattr(sys.modules[build.__module__], "_RUN_STEP_S", 3600)
    written = []
    for _ in range(2):
        assert build(small) == [small.folder / NOTEBOOK]
        written.append(
            [path.read_bytes() for path in (small.folder / NOTEBOOK, small.readme, small.functions)]
        )
    assert written[0] == written[1]
    monkeypatch.setenv("TOY_SEED", "2")
    build(small)
    assert (small.folder / NOTEBOOK).read_bytes() != written[0][0]


def test_a_built_course_breaks_no_rule(built):
    assert audit.lessons(built) + audit.shared_pages(built) == []


def test_the_readme_keeps_all_but_its_table(built):
    assert built.readme.read_text() == (
        "# A small course\n\n<!-- lessons -->\n| | Lesson | The question that it answers | Minutes "
        "| Needs |\n|--|--|--|--:|--|\n| 90 | [Small counts](course/90_small_counts.ipynb) |  | 5 "
        "| nothing |\n\nTogether the lessons take 5 minutes, which is 0.1 hours, without their "
        "exercises.\n<!-- /lessons -->\n\nThe end.\n"
    )
    assert audit.outdated_pages(built) == []
    edit(built, "title: Small counts", "title: Small | counts")
    assert [problem.where for problem in audit.outdated_pages(built)] == [
        "README.md",
        "index_of_functions.md",
    ]
    refresh(built)
    assert audit.outdated_pages(built) == []
    assert "[Small \\| counts]" in built.readme.read_text()


@pytest.mark.parametrize(
    "readme", ["", "<!-- /lessons --> <!-- lessons -->", "<!-- lessons -->" * 2]
)
def test_a_readme_without_markers_is_refused(small, readme):
    small.readme.write_text(readme)
    with pytest.raises(AuthoringError, match=r"README\.md must hold <!-- lessons -->"):
        refresh(small)
    assert small.readme.read_text() == readme


def test_a_lesson_that_raises_is_named_with_its_line(built):
    edit(built, "counting.halves(7)", "first = 1\ncounting.halves(7, 8)")
    said = refused(built)
    assert (
        "lesson 90: the cell at line 32 of 90_small_counts.py, its line 2, raised TypeError: "
        "halves() takes" in said
    )
    assert "\n" not in said


def test_a_claim_that_three_runs_do_not_decide_is_not_shipped(built, tmp_path):
    log = tmp_path / "runs"
    claims = (
        f"open({str(log)!r}, 'a').write('x')\nran = len(open({str(log)!r}).read())\nverdict = "
        "'this was not decided.' if ran % 4 else 'it is 9 times (measured), so this "
        "holds.'\nprint('it is slower (at least 2 times)\\nHere', verdict)\n"
    )
    edit(built, "counting.halves(7)", claims + "counting.halves(7)")
    said = refused(built)
    assert said.startswith(
        "lesson 90: in each of 3 runs the cell at line 32 of 90_small_counts.py shows a claim that"
    )
    assert log.read_text() == "xxx"
    build(built)
    assert log.read_text() == "xxxx"
    build(built, draft=True)
    assert log.read_text() == "xxxxx"
    assert "shows a claim that is not decided" in "".join(map(str, audit.lessons(built)))
    assert "Here this was not decided." in (built.folder / NOTEBOOK).read_text()


def test_a_cell_that_never_ends_is_ended(built):
    # The first cell: on a busy machine every cell before it may take longer than the second that
    # each is given.
    edit(built, "import base64\n", "import base64\nimport time\n\ntime.sleep(1000)\n")
    assert "the cell at line 19 of 90_small_counts.py ran longer than 1 s" in refused(
        built, cell_timeout_s=1
    )


def test_a_cell_that_kills_its_kernel_is_named(built):
    edit(built, "counting.halves(7)", "import os; os._exit(1)")
    assert "the cell at line 32 of 90_small_counts.py killed its kernel" in refused(built)


def test_a_trace_of_the_machine_is_refused(built):
    edit(built, "counting.halves(7)", "toy.__file__")
    said = refused(built)
    assert "the cell at line 32 of 90_small_counts.py shows the repository's folder: " in said
    assert "names no machine" in said


def test_a_notebook_is_kept_where_nothing_needs_to_run(built):
    before = json.loads((built.folder / NOTEBOOK).read_text())
    edit(built, "title: Small counts", "title: Small numbers")
    edit(built, "# # Small counts", "# # Small numbers")
    assert keep(built, ["90"]) == [built.folder / NOTEBOOK]
    after = json.loads((built.folder / NOTEBOOK).read_text())
    assert after["cells"][1:] == before["cells"][1:]
    assert after["metadata"]["lesson"]["title"] == "Small numbers"
    assert "[Small numbers](" in built.readme.read_text()
    assert audit.lessons(built) + audit.shared_pages(built) == []
    edit(built, "counting.halves(7)", "counting.halves(8)")
    with pytest.raises(
        AuthoringError, match=r"from line 32 of .* on, whose outputs cannot be kept"
    ):
        keep(built)
    assert json.loads((built.folder / NOTEBOOK).read_text()) == after


def test_the_seconds_of_the_run_are_kept_and_count(built, monkeypatch):
    times = iter([100.0, 697.0])
    monkeypatch.setattr(
        "tools.authoring.build.time", SimpleNamespace(monotonic=lambda: next(times))
    )
    build(built)
    [lesson] = built.lessons()
    assert (lesson.run_s, lesson.minutes) == (600, 15)
    assert ", about 15 minutes." in built.built(lesson).cells[0].source
    assert "| 15 |" in built.readme.read_text()
    keep(built)
    assert audit.lessons(built) + audit.shared_pages(built) == []
    assert built.lessons() == (lesson,)


def test_a_full_disk_leaves_the_old_notebook(built):
    edit(built, "counting.halves(7)", "print('x' * 20_000)")
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, limits[1]))
        said = refused(built)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert said.startswith("90_small_counts.ipynb: could not write ")
    assert "the old file is as it was" in said


def test_every_source_is_read_before_a_cell_runs(built):
    (built.source_folder / "91_broken.py").write_text("# %%\n1\n")
    assert "91_broken.py: begin it with a header" in refused(built)


def test_a_number_without_a_lesson_is_refused(built):
    assert refused(built, numbers=["05"]) == "no lesson 05; there are 90"


def test_two_lessons_with_one_number_are_refused(built):
    path = built.source_folder / SOURCE
    (built.source_folder / "90_again.py").write_text(path.read_text())
    assert "two sources have the number 90" in refused(built)


def test_a_notebook_without_a_source_and_a_need_without_a_lesson_are_found(built):
    (built.folder / "05_stray.ipynb").write_text("{}")
    edit(built, "needs: []", 'needs: ["91", "90", "patience"]')
    assert [str(problem) for problem in audit.strays(built)] == [
        (
            "05_stray.ipynb: no source makes this notebook; remove it, or write its source in "
            "course/source"
        )
    ]
    assert [problem.what.split(",")[0] for problem in audit.needs(built)] == [
        "needs lesson 91",
        "needs lesson 90",
    ]


def test_a_lesson_that_was_not_built_or_is_no_notebook_is_named(small):
    one = small.lessons()[0]
    with pytest.raises(AuthoringError, match="lesson 90 is not built; run make lessons LESSONS=90"):
        small.built(one)
    small.notebook(one).write_text("{")
    with pytest.raises(AuthoringError, match="is not a notebook"):
        small.built(one)
