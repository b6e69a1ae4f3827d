"""The index finds every function and every lesson that uses it, and faults of docstrings are
found.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import re

import pytest

import helpers
from tools.authoring import lesson
from tools.authoring.course import HERE
from tools.authoring.lesson import AuthoringError
from tools.authoring.rules import functions

HEADER = """# ---
# jupyter:
#   lesson: {number: "90", title: Uses, needs: [], objectives: ["use|used it"]}
# ---
"""


def used(*cells):
    script = HEADER + "".join(
        f"\n# %%\n{cell}\n" if not cell.startswith("#") else f"\n# %% [markdown]\n{cell}\n"
        for cell in cells
    )
    return {
        name
        for _, name in functions.used_keys(lesson.parse(script, number="90", slug="uses"), "toy")
    }


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (["import toy", "toy.pairs(3)"], {"pairs"}),
        (["import toy.counting as c", "%time c.halves(3)\nc.halves(3)"], {"halves"}),
        (
            ["from toy import counting", "[counting.pairs(n) for n in counting.halves(3)]"],
            {"pairs", "halves"},
        ),
        (["from toy.counting import halves as split", "split"], {"halves"}),
        (["import toy", "toy.counting.never_shown(1)"], {"never_shown"}),
        (["import toy", "# See `toy.pairs` and `toy.counting.halves(3)`."], {"pairs", "halves"}),
        (["from toy import counting", "# See `counting.halves`, not `pairs`."], {"halves"}),
        (["import toy", "pairs = 3\nother.pairs(3)\ntoy.missing\nf'{toy}'"], set()),
        (["import math\nmath.comb(3, 2)", "!ls"], set()),
        (["import toy", "rest = (\n    toy.pairs(3)\n    % 2\n)"], {"pairs"}),
        (["%%timeit\n1 +"], set()),
        (["from toy import lazy", "lazy.thirds(3)\nlazy.parts.deep(3)"], {"thirds", "deep"}),
        (["from toy.questions import dice", "# See `dice.faces`."], {"faces"}),
    ],
)
def test_what_a_lesson_uses_is_found(small, cells, names):
    assert used(*cells) == names


def test_a_cell_that_is_not_python_is_named(small):
    with pytest.raises(AuthoringError, match="lesson 90: the cell at line 6 is not Python"):
        used("1 +")


def test_every_public_function_is_listed_as_a_notebook_calls_it(small):
    assert [(entry.call, entry.taught, entry.own) for entry in functions.entries(small)] == [
        ("counting.halves", "90", True),
        ("counting.never_shown", "90", False),
        ("counting.pretended_time_s", "90", True),
        ("dice.faces", "90", False),
        ("lazy.thirds", "90", False),
        ("toy.pairs", "90", True),
    ]


def test_what_a_lesson_reaches_past_a_packages_face_is_listed_by_its_whole_path(small):
    [deep] = set(functions.entries(small, [("toy.lazy.parts", "deep")])) - set(
        functions.entries(small)
    )
    assert (deep.call, deep.taught) == ("lazy.parts.deep", "90")


def faults(small, old, new, *, file="counting.py"):
    path = small.root / "toy" / file
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    return [problem.what.partition(";")[0] for problem in functions.check(small, small.lessons())]


def test_a_good_library_has_no_fault(small):
    assert functions.check(small, small.lessons()) == []


def test_a_function_that_its_lesson_does_not_use_is_a_fault(small):
    assert faults(small, "no lesson shows.", "no lesson shows. Lesson 90.") == [
        "counting.never_shown names lesson 90, which does not use it"
    ]


def test_a_function_of_a_lazy_package_that_its_lesson_does_not_use_is_a_fault(small):
    old = "add up to ``number``."
    assert faults(small, old, "add up to ``number``. Lesson 90.", file="lazy/parts.py") == [
        "lazy.thirds names lesson 90, which does not use it"
    ]


def test_a_function_of_a_lesson_to_come_is_no_fault(small):
    assert faults(small, "no lesson shows.", "no lesson shows. Lesson 95.") == []


def test_a_function_without_a_lesson_has_that_of_its_module(small):
    assert faults(small, "the larger one last. Lesson 90.", "the larger one last.") == []


def test_a_function_without_a_lesson_in_a_module_without_one_is_a_fault(small):
    text = (small.root / "toy" / "counting.py").read_text()
    (small.root / "toy" / "counting.py").write_text(
        text.replace("the larger one last. Lesson 90.", "the larger one last.")
    )
    assert faults(small, "Exact counts. Lesson 90.", "Exact counts.") == [
        "counting.halves names no lesson"
    ]


def test_a_library_from_elsewhere_is_refused(small, tmp_path):
    elsewhere = type(small)(tmp_path / "elsewhere", package="toy")
    with pytest.raises(AuthoringError, match="toy is imported from elsewhere"):
        functions.entries(elsewhere)


def test_the_page_leads_both_ways(built):
    page = built.functions.read_text()
    assert (
        "- [90 Small counts](90_small_counts.ipynb): [`counting.halves`](../toy/counting.py), "
        in page
    )
    assert "never_shown" not in page
    row = next(line for line in page.splitlines() if line.startswith("| [`toy.pairs`]"))
    assert row.endswith(
        "| Return the number of pairs among ``number`` things. | [90](90_small_counts.ipynb) "
        "| [90](90_small_counts.ipynb) |"
    )


def test_the_page_has_what_an_exercise_uses(built):
    folder = built.folder / "instructor" / "exercises"
    folder.mkdir(parents=True)
    (folder / "90_small_counts_exercises.py").write_text(
        "# %%\nfrom toy import lazy\n\nlazy.thirds(3)\n"
    )
    page = functions.page(built, built.lessons())
    row = next(line for line in page.splitlines() if "`lazy.thirds`" in line)
    assert row.endswith("| [90](90_small_counts.ipynb) | exercises 90 |")


LESSONS = HERE.lessons()
WHOLE_PAGE = HERE.functions.read_text(encoding="utf-8")


def rows() -> set[str]:
    """Return the names in the page's table, as a notebook calls them."""
    return {
        line.partition("`")[2].partition("`")[0]
        for line in WHOLE_PAGE.splitlines()
        if line.startswith("| [`")
    }


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.number)
def test_every_name_that_a_lesson_or_its_exercises_use_is_in_the_index(lesson):
    """An oracle of its own: a name is looked up where the text has it, through the modules that the
    cells import.
    """
    [exercises] = (HERE.folder / "instructor" / "exercises").glob(f"{lesson.number}_*.py")
    text = "\n".join(
        cell.source for cell in lesson.cells if cell.kind == "code"
    ) + exercises.read_text(encoding="utf-8")
    imported = set(re.findall(r"(?m)^ *from helpers import (.+)$", text))
    modules = {name.strip() for names in imported for name in names.strip("()").split(",")}
    found = set()
    for module, name in re.findall(r"\b([a-z_]+)\.([A-Za-z_]\w*)\b", text):
        package = (
            getattr(helpers, module, None)
            if module in modules and module in helpers.__all__
            else None
        )
        thing = getattr(package, name, None) if inspect.ismodule(package) else None
        if (inspect.isfunction(thing) or inspect.isclass(thing)) and thing.__module__.startswith(
            "helpers."
        ):
            found.add(thing.__name__)
    assert len(found) >= 3
    assert found - {row.rpartition(".")[2] for row in rows()} == set()


def test_the_index_has_only_what_a_lesson_or_an_exercise_uses():
    assert "doctor.Diagnosis" not in rows()
    table = [line for line in WHOLE_PAGE.splitlines() if line.startswith("| [`")]
    assert [line for line in table if line.endswith("|  |")] == []


FUNCTIONS = {entry.call: entry.key for entry in functions.entries(HERE) if entry.is_function}
# imperatives; other words in -s are taken for "Returns", "Gives"
ENDING_IN_S = {"Express", "Pass", "Press", "Process"}


@pytest.mark.parametrize("call", FUNCTIONS)
def test_a_public_docstring_begins_with_an_imperative_and_names_each_of_more_than_two_arguments(
    call,
):
    """A page of the reference shows the docstring: its reader learns there what a function does
    with each argument.
    """
    module, name = FUNCTIONS[call]
    function = getattr(importlib.import_module(module), name)
    said = inspect.getdoc(function) or ""
    first = said.partition(" ")[0]
    assert re.fullmatch("[A-Z][a-z]+", first), f"{call}: {said.partition(chr(10))[0]}"
    assert not first.endswith("s") or first in ENDING_IN_S
    arguments = [
        argument
        for argument in inspect.signature(function).parameters
        if argument not in ("args", "kwargs")
    ]
    named = set(re.findall(r"\w+", " ".join(re.findall(r"``(.+?)``", said, flags=re.DOTALL))))
    assert len(arguments) <= 2 or set(arguments) <= named


def test_the_examples_of_public_docstrings_are_true():
    runner, named = doctest.DocTestRunner(verbose=False), doctest.DocTestFinder(recurse=False)
    for call, (module, name) in FUNCTIONS.items():
        own = importlib.import_module(module)
        for examples in named.find(inspect.unwrap(getattr(own, name)), call, globs=dict(vars(own))):
            runner.run(examples)
    assert runner.tries > 10
    assert runner.failures == 0
