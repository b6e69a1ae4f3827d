"""Numbers to draw, as several drawings take and refuse them."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

from helpers.checks import members, named, number


def lists_of_numbers(name: str, lists: Any) -> dict[str, list[float | None]]:
    """Return ``lists``, an argument of the ``name``, as a list of finite numbers for each name;
    None leaves a place free.
    """
    return {
        label: [
            None if value is None else number(f"{name}[{label!r}][{index}]", value)
            for index, value in enumerate(members(f"{name}[{label!r}]", values, "numbers"))
        ]
        for label, values in named(name, lists, "lists of numbers").items()
    }


def require_lengths(lists: Mapping[str, Sized], length: int, needed: str) -> None:
    """Raise ValueError unless each of ``lists`` has the ``length``; ``needed`` says what so many
    things need.
    """
    uneven = [name for name, values in lists.items() if len(values) != length]
    if uneven:
        raise ValueError(f"{length} {needed}; {', '.join(uneven)} has another length")
