"""What a reader gives, refused in one sentence: what was given, what is accepted."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Iterable
from typing import Any

_short = reprlib.Repr()
_short.maxother = _short.maxstring = 80


def short(value: Any) -> str:
    """Return ``repr(value)``, at most about 80 characters long. For the library itself."""
    return _short.repr(value)


def whole_number(name: str, value: Any, *, at_least: int = 1) -> int:
    """Return ``value`` as an int; raise TypeError unless it is a whole number, ValueError below ``at_least``.

    True and False are refused, and so is 64.0: both are slips more often than numbers. For the library itself.
    """
    accepted = f"give a whole number, {at_least:,} or more"
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={short(value)} is a {type(value).__name__}; {accepted}") from None
    if isinstance(value, bool) or type(value).__name__ == "bool":  # NumPy's bool is its own type, and an index
        raise TypeError(f"{name}={value} is a bool; {accepted}")
    if number < at_least:
        raise ValueError(f"{name}={short(number)} is too small; {accepted}")
    return number


def number(name: str, value: Any, *, at_least: float = -math.inf, above: float = -math.inf) -> float:
    """Return ``value`` as a float: a finite number of Python, NumPy or PyTorch (one element), within the bounds.

    Raises TypeError for what is no number, ValueError for one that is not finite or out of bounds. For the library
    itself.
    """
    bound = f", {at_least:g} or more" if at_least > -math.inf else f" above {above:g}" if above > -math.inf else ""
    accepted = f"give a finite number{bound}"
    if isinstance(value, str | bytes | bool) or value is None:
        raise TypeError(f"{name}={short(value)} is {_kind(value)}; {accepted}")
    try:
        found = float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name}={short(value)} is {_kind(value)}; {accepted}") from None
    except OverflowError:
        raise ValueError(f"{name}={short(value)} is too large; {accepted}") from None
    if not math.isfinite(found) or found < at_least or found <= above:
        raise ValueError(f"{name}={found:g}; {accepted}")
    return found


def members(name: str, values: Any, what: str) -> list[Any]:
    """Return ``values`` as a list; raise TypeError for text, a mapping, or what cannot be gone through.

    ``what`` says what its members are. For the library itself.
    """
    if isinstance(values, str | bytes | dict) or not isinstance(values, Iterable):
        raise TypeError(f"{name}={short(values)} is {_kind(values)}; give a list of {what}")
    return list(values)


def _kind(value: Any) -> str:
    return "None" if value is None else f"text, as {type(value).__name__}" if isinstance(value, str | bytes) else (
        f"a {type(value).__name__}")  # fmt: skip
