"""Which lessons a test runs in `make test`, which in CI and which before a release."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests import long
from tests.ci import one_in_test

CASES = ("04_sums", "05_rings", "appendix/05_rings")


def marks(**options) -> dict[str, str]:
    return {case.id: case.marks[0].name for case in one_in_test(CASES, name=str, **options)}


def test_one_lesson_is_for_make_test_and_the_others_for_ci():
    assert marks(lesson="sums") == {
        "04_sums": "in_test",
        "05_rings": "ci",
        "appendix/05_rings": "ci",
    }


def test_where_ci_names_some_the_rest_waits_for_a_release():
    assert marks(lesson="sums", ci=["rings"]) == {
        "04_sums": "in_test",
        "05_rings": "ci",
        "appendix/05_rings": "release",
    }


@pytest.mark.parametrize(("lesson", "ci"), [("05_rings", None), ("", None), ("sums", ["ring"])])
def test_a_name_that_no_lesson_has_is_refused(lesson, ci):
    with pytest.raises(ValueError, match="name lessons without numbers"):
        marks(lesson=lesson, ci=ci)


def marked(node: str, names: set[str], **marks) -> list[str]:
    added: list[str] = []
    item = SimpleNamespace(nodeid=node, add_marker=added.append, get_closest_marker=marks.get)
    long.mark([item], frozenset(names), are_whole_files=True)
    return added


def test_a_test_that_takes_long_is_for_ci_as_a_whole_or_in_one_case():
    assert marked("a.py::f[x]", {"a.py::f"}) == ["ci"]
    assert marked("a.py::f[x]", {"a.py::f[x]"}) == ["ci"]
    assert marked("tests/long.py::f[x]", {"tests/ci.py::f[y]"}) == []
    assert marked("a.py::f", {"a.py::f"}, in_test=True) == []


@pytest.mark.parametrize("name", ["tests/long.py::f[y]", "tests/long.py::g", "gone.py::f"])
def test_a_name_of_no_test_is_refused(name):
    with pytest.raises(pytest.UsageError, match="and there is no such test; take the line out"):
        marked("tests/long.py::f[x]", {name})


def test_of_each_file_the_shortest_test_stays():
    times_s = {"a.py::f": 9.0, "a.py::g[x]": 8.0, "a.py::g[y]": 7.0, "b.py::f[x]": 0.1}
    assert long.choose(times_s) == ["a.py::f", "a.py::g[x]"]
    assert long.update(["c.py::h", "b.py::f"], times_s) == ["a.py::f", "a.py::g[x]", "c.py::h"]


@pytest.mark.ci
def test_each_name_in_the_list_is_one_of_a_test():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-n0", "tests"]
    done = subprocess.run(command, cwd=long.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
