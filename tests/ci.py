"""What only CI runs, and whether the tests run in CI, where nobody reads of a test that did not.

What takes long beside what it adds is marked ``ci``: planted bugs, decks and copies of all lessons but one, and most
of what needs a browser, a server, a class or the site as Sphinx builds it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

Case = TypeVar("Case")


def in_ci() -> bool:
    """Return whether ``CI`` is set, to anything but 0 and false."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def one_in_test(cases: Iterable[Case], *, name: Callable[[Case], str], lesson: str) -> list:
    """Return the cases of lessons as parameters with names: that of ``lesson`` is for `make test`, the others for CI.

    ``lesson`` is the name without the number, such as "decoding". Raises ValueError where no case has it.
    """
    named = {name(case): case for case in cases}
    chosen = [each for each in named if re.fullmatch(rf"\d\d_{lesson}", each)]
    if len(chosen) != 1:
        raise ValueError(f"lesson={lesson!r} is none of {', '.join(named)}; name one, for `make test` to run")
    return [pytest.param(case, id=each, marks=pytest.mark.in_test if each in chosen else pytest.mark.ci)
            for each, case in named.items()]  # fmt: skip
