"""What only CI runs, and whether the tests run in CI, where nobody reads of a test that did not.

What takes long beside what it adds is marked ``ci``: planted bugs of some lessons, decks of all but
one, and most of what needs a browser, a server, a class or the site as Sphinx builds it. What
repeats at length what a shorter test has proved is marked ``release``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import pytest

Case = TypeVar("Case")


def in_ci() -> bool:
    """Return whether ``CI`` is set, to anything but 0 and false."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def one_in_test(
    cases: Iterable[Case],
    *,
    name: Callable[[Case], str],
    lesson: str,
    ci: Collection[str] | None = None,
) -> list:
    """Return the cases of lessons as parameters with names: that of ``lesson`` is for `make test`,
    the others for CI.

    Lessons are named without their numbers, such as "decoding". Where ``ci`` names some, only these
    are for CI, and the rest is for `make release`. Raises ValueError for a name that no case has.
    """
    named = {name(case): case for case in cases}
    titles = {title: re.sub(r"^\d\d_", "", title) for title in named}
    unknown = {lesson, *(ci or ())} - set(titles.values())
    if unknown:
        raise ValueError(
            f"{', '.join(sorted(unknown))}: not among {', '.join(named)}; name lessons without "
            "numbers"
        )
    return [
        pytest.param(case, id=title, marks=_mark(titles[title], lesson, ci))
        for title, case in named.items()
    ]


def _mark(title: str, lesson: str, ci: Collection[str] | None) -> pytest.MarkDecorator:
    if title == lesson:
        return pytest.mark.in_test
    return pytest.mark.ci if ci is None or title in ci else pytest.mark.release
