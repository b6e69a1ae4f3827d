"""Which lessons a test runs in `make test`, which in CI and which before a release."""

from __future__ import annotations

import pytest

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
