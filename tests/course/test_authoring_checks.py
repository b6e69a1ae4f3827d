"""Each rule is broken alone, in a notebook that keeps all the others."""

from __future__ import annotations

import dataclasses

import nbformat
import pytest
from nbformat.v4 import new_output

from slides import rules as slides
from tools.authoring import notebook
from tools.authoring.rules import checks


@pytest.fixture(scope="module")
def lesson_and_built(built_once):
    from tools.authoring.course import Course

    course = Course(built_once.parent, package="toy")
    lesson = course.lessons()[0]
    return lesson, course.built(lesson)


@pytest.fixture
def lesson(lesson_and_built):
    return lesson_and_built[0]


@pytest.fixture
def good(lesson_and_built):
    return nbformat.from_dict(lesson_and_built[1])


def broken(lesson, built):
    """Return the names of the rules that a notebook breaks, and all that they say."""
    names = [rule.__name__ for rule in checks.CHECKS if rule(lesson, built)]
    return names, "\n".join(
        str(problem) for rule in checks.CHECKS for problem in rule(lesson, built)
    )


def code(built, index=0):
    return [cell for cell in built.cells if cell.cell_type == "code"][index]


def picture_output(built):
    return next(
        out
        for cell in built.cells
        for out in cell.get("outputs", [])
        if "image/png" in out.get("data", {})
    )


def test_a_good_notebook_breaks_no_rule(lesson, good):
    assert checks.check(lesson, good) == []


def no_count(built):
    code(built, 1).execution_count = None


def skipped_count(built):
    code(built, -1).execution_count = 9


def no_alt(built):
    picture_output(built).metadata = {}


def other_alt(built):
    picture_output(built).metadata["image/png"]["alt"] = "Another dot."


def figure_text(built):
    shown = picture_output(built)
    shown.data["text/plain"] = shown.metadata["image/png"]["alt"] = (
        "<Figure size 640x480 with 1 Axes>"
    )


def html_picture(built):
    code(built, 1).outputs.append(
        new_output("display_data", {"text/html": "<p><img src='x.png'></p>"})
    )


def markdown_picture(built):
    built.cells[2].source += "\n\n![](x.png)"


def long_cell(built):
    code(built).source = "\n".join(["pass"] * 31)


def no_recap(built):
    built.cells[-1].metadata.tags = []


def two_recaps(built):
    built.cells[2].metadata.tags = ["predict", "recap"]


def changed_recap(built):
    built.cells[-1].source = built.cells[-1].source.replace(
        "counted the pairs", "counted some pairs"
    )


def changed_objectives(built):
    built.cells[0].source += " and a rate"


def recap_first(built):
    built.cells.insert(1, built.cells.pop())
    built.cells.insert(0, built.cells.pop(1))
    built.cells[1].source, built.cells[0].source = (
        built.cells[1].source,
        f"# Small counts\n\n{built.cells[0].source}",
    )
    built.cells[1].source = built.cells[1].source.replace("# Small counts\n\n", "")


def other_title(built):
    built.cells[0].source = built.cells[0].source.replace("# Small counts", "# Large counts")


def second_title(built):
    built.cells[2].source = "# Another\n\n" + built.cells[2].source


def misspelt_tag(built):
    built.cells[2].metadata.tags = ["predict", "formulaz"]


def tag_twice(built):
    built.cells[2].metadata.tags = ["predict", "slide", "slide"]


def unknown_metadata(built):
    built.cells[2].metadata["minuts"] = 2


def comment_marker(built):
    code(built, 1).source += "\n# NBVAL_IGNORE_OUTPUT"


def tag_on_text(built):
    built.cells[2].metadata.tags = ["predict", "nbval-ignore-output"]


def look_first(built):
    code(built, 1).metadata.tags = ["look"]


def run_first(built):
    built.cells[2].metadata.tags = ["run"]


def two_steps(built):
    code(built, 1).metadata.tags = ["run", "look"]


def no_end(built):
    for cell in built.cells:
        cell.metadata["tags"] = [tag for tag in cell.metadata.get("tags", []) if tag != "explain"]


def backwards(built):
    code(built, 3).metadata.tags = ["run", "nbval-ignore-output"]


def error_output(built):
    code(built, 1).outputs.append(
        new_output("error", ename="ValueError", evalue="no", traceback=[])
    )


def stderr_output(built):
    code(built, 1).outputs.append(new_output("stream", name="stderr", text="UserWarning: old"))


def no_error(built):
    code(built, -1).outputs = []


def unstable_result(built):
    shown = new_output(
        "execute_result",
        {"text/plain": "Comparison(baseline='a', stable=False)"},
        execution_count=2,
    )
    code(built, 1).outputs.append(shown)


def unstable_print(built):
    code(built, 1).outputs.append(
        new_output("stream", text="Comparison\n  rounds  9\n  stable  no\n")
    )


def undecided_claim(built):
    code(built, 1).outputs.append(
        new_output("stream", text="it is slower (at least 2 times)\nHere this was not decided.\n")
    )


def placeholder(built):
    code(built, 1).outputs.append(new_output("stream", text="run: python -m helpers.recorded 01"))


def path_in_output(built):
    code(built, 1).outputs.append(new_output("stream", name="stdout", text="/home/ann/x"))


def path_in_code(built):
    code(built, 1).source = "open('/mnt/x')"


def path_in_text(built):
    built.cells[2].source = "See /Users/ann/x."


@pytest.mark.parametrize(
    ("fault", "rule", "says"),
    [
        (no_count, "execution_counts", "execution count is None, not 2"),
        (skipped_count, "execution_counts", "execution count is 9, not 7"),
        (no_alt, "alt_texts", "use plotting.show(figure, alt=...)"),
        (other_alt, "alt_texts", "use plotting.show(figure, alt=...)"),
        (figure_text, "alt_texts", "<Figure size"),
        (html_picture, "alt_texts", "<img> without alt text"),
        (markdown_picture, "alt_texts", "the picture x.png has no alt text"),
        (long_cell, "lengths", "31 lines of code, at most 30"),
        (no_recap, "objectives", "0 cells are tagged recap"),
        (two_recaps, "objectives", "2 cells are tagged recap"),
        (changed_recap, "objectives", "does not end with the objectives"),
        (changed_objectives, "objectives", "does not end with the objectives"),
        (recap_first, "objectives", "the recap stands before the objectives"),
        (other_title, "title", "begin with '# Small counts'"),
        (second_title, "title", "a second title, '# Another'"),
        (misspelt_tag, "tags", "tags formulaz are unknown or stand twice"),
        (tag_twice, "tags", "stand twice"),
        (unknown_metadata, "tags", "unknown cell metadata minuts"),
        (comment_marker, "tags", "use the tag nbval-ignore-output instead"),
        (tag_on_text, "tags", "a tag of nbval on a markdown cell"),
        (look_first, "stages", "look after predict"),
        (run_first, "stages", "run after nothing"),
        (two_steps, "stages", "is tagged run and look"),
        (no_end, "stages", "ends with look; end it with explain"),
        (backwards, "stages", "run after look"),
        (error_output, "outputs", "shows ValueError"),
        (stderr_output, "outputs", "'UserWarning: old' on stderr"),
        (no_error, "outputs", "tagged raises-exception but raises none"),
        (
            unstable_result,
            "decisions",
            'shows a comparison that is not stable ("Comparison(baseline',
        ),
        (unstable_print, "decisions", "shows a comparison that is not stable"),
        (
            undecided_claim,
            "decisions",
            "shows a claim that is not decided ('it is slower (at least 2 times)')",
        ),
        (placeholder, "placeholders", "show published figures"),
        (path_in_output, "machine", "a path of a machine: '/home/ann/x'"),
        (path_in_code, "machine", "a path of a machine: '/mnt/x'"),
        (path_in_text, "machine", "a path of a machine: '/Users/ann/x.'"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_notebook_that_breaks_one_rule_breaks_only_that(lesson, good, fault, rule, says):
    fault(good)
    names, said = broken(lesson, good)
    assert names == [rule]
    assert says in said
    assert said.startswith("90_small_counts.ipynb")


def test_every_rule_is_broken_by_a_fault_above():
    marks = test_a_notebook_that_breaks_one_rule_breaks_only_that.pytestmark
    assert {rule for _, rule, _ in marks[0].args[1]} == {rule.__name__ for rule in checks.CHECKS}


def test_thirty_lines_are_allowed(lesson, good):
    code(good).source = "\n".join(["pass"] * 30)
    assert checks.lengths(lesson, good) == []


def test_after_explain_one_may_run_or_look_again(lesson, good):
    for again in ("predict", "run", "look"):
        assert checks.stages(
            lesson, with_stages(good, ["predict", "run", "look", "explain", again])
        ) == [
            checks.Problem(
                lesson.notebook_name,
                None,
                f"the last experiment ends with {again}; end it with explain",
            )
        ]


def with_stages(built, stages):
    cells = [nbformat.v4.new_markdown_cell("text", metadata={"tags": [stage]}) for stage in stages]
    return nbformat.v4.new_notebook(cells=cells, metadata=built.metadata)


def test_outputs_are_no_drift(lesson, good):
    for cell in good.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    assert checks.drift(lesson, good) == []


@pytest.mark.parametrize(
    ("change", "cell"),
    [
        (lambda built: built.cells[3].update(source="other"), 3),
        (lambda built: built.cells[3].metadata.update(minutes=2), 3),
        (lambda built: built.cells[3].metadata.update(tags=["look"]), 3),
        (lambda built: built.cells[3].update(id="other"), 3),
        (lambda built: built.cells.pop(3), 3),
        (lambda built: built.cells.insert(3, built.cells[5]), 3),
        (lambda built: built.cells.append(built.cells[2]), 11),
        (lambda built: built.metadata.lesson.update(minutes=9), None),
        (lambda built: built.metadata.language_info.update(version="3.12"), None),
        (lambda built: built.metadata.kernelspec.update(name="mine"), None),
    ],
)
def test_drift_is_found_where_it_begins(lesson, good, change, cell):
    change(good)
    problems = checks.drift(lesson, good)
    assert [problem.cell for problem in problems] == [cell]
    assert "run make lessons LESSONS=90" in problems[0].what


def test_drift_of_the_source_is_found(lesson, good):
    later = dataclasses.replace(lesson, title="Other counts")
    assert checks.drift(later, good) != []
    assert checks.drift(dataclasses.replace(lesson, cells=lesson.cells[:-1]), good) != []


def test_a_notebook_that_was_built_by_hand_has_drifted(lesson):
    assert checks.drift(lesson, nbformat.v4.new_notebook()) != []
    assert checks.drift(lesson, notebook.unexecuted(lesson)) == []


def test_the_tags_of_slides_are_known():
    assert set(slides.TAGS) <= checks.TAGS
