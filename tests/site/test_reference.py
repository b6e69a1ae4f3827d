"""The reference of the library: where a function stands, and what its index leads to."""

from __future__ import annotations

import re

import pytest

from tools.authoring.course import HERE
from tools.authoring.lesson import AuthoringError
from tools.authoring.rules import functions
from tools.site import reference


@pytest.fixture(scope="module")
def made() -> reference.Reference:
    return reference.of(HERE, HERE.lessons(["00"]))


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("memory", "fits"),
        ("memory", "estimate_peak_memory"),
        ("profiling", "profile_time"),
        ("timing", "measure"),
        ("operations", "count_ops"),
    ],
)
def test_a_function_stands_on_the_page_of_its_package_before_the_classes(made, package, name):
    page = made.pages[f"api/helpers.{package}.md"]
    assert f".. autofunction:: helpers.{package}.{name}\n" in page
    assert f"Import it as `helpers.{name}` too." in page
    assert page.index(f".. autofunction:: helpers.{package}.{name}\n") < page.index("## Classes")
    assert made.paths[f"helpers.{name}"] == f"helpers.{package}.{name}"
    assert f"<helpers.{package}.{name}>`" in made.pages["api/helpers.md"]


def test_the_index_finds_functions_by_task_and_keeps_the_studies_apart(made):
    index = made.pages["api/index.md"]
    own, for_lessons = index.split("## Packages that serve the lessons")
    assert "{py:obj}`memory.fits <helpers.memory.fits>`" in own
    assert ("](helpers.memory.md)" in own, "](helpers.memory.md)" in for_lessons) == (True, False)
    assert "helpers.studies" not in own
    assert "](helpers.studies.serving.md)" in for_lessons


def test_a_task_that_names_a_missing_function_is_refused(monkeypatch):
    monkeypatch.setitem(reference.TASKS, "Count sheep", ("memory.sheep",))
    with pytest.raises(AuthoringError, match=r"memory\.sheep, which helpers does not have"):
        reference.of(HERE, HERE.lessons(["00"]))


def test_no_role_of_a_docstring_stands_as_text_on_a_page_of_markdown(made):
    assert (
        re.findall(r":[a-z]+:`", re.sub(r"```\{eval-rst\}.*?```\n", "", made.pages["api/index.md"]))
        == []
    )
    assert re.findall(r":[a-z]+:`", HERE.functions.read_text(encoding="utf-8")) == []
    assert functions.plain("As :func:`~a.b` and :func:`.c` do") == "As ``a.b`` and ``c`` do"
