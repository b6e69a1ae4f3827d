"""Whether an answer is the expected one, and the texts of both where they differ.

Lesson 00.
"""

from __future__ import annotations

import itertools
import math
import numbers
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_RELATIVE_TOLERANCE = 1e-9  # for the order in which numbers are added, not for another result
_FLOAT32_TOLERANCE = 1e-6  # the same for what was computed in float32, whose numbers have 24 bits
_MOST_SHOWN = 40
_DEEPEST_SHOWN = 8
_DIGITS = (6, 9, 12, 17)  # of a number, as many as show that two differ


def agree(got: object, expected: object) -> bool:
    """Return True when ``got`` is ``expected``, numbers to nine digits, sequences item by item.

    A number that float32 holds exactly may have been computed in it, as PyTorch does: six digits of
    a fraction are enough then. Whole numbers are exact. Of a class made from Python's own, such as
    torch.Size or a named tuple, what it holds counts, and nothing that it says of itself.

    >>> agree(0.1 + 0.2, 0.3), agree([1, 2], (1, 2)), agree(1_000_000, 1_000_001)
    (True, True, False)
    """
    got, expected = _plain(got), _plain(expected)
    if type(expected) is tuple and type(got) is tuple:
        return len(got) == len(expected) and all(
            agree(*pair) for pair in zip(got, expected, strict=True)
        )
    if isinstance(expected, bool) or isinstance(got, bool):
        return got is expected
    if isinstance(expected, numbers.Real) and isinstance(got, numbers.Real):
        return _close(got, expected)
    return type(got) is type(expected) and got == expected


def _close(got: Any, expected: Any) -> bool:
    if isinstance(got, int) and isinstance(expected, int):
        return int.__eq__(got, expected)  # not what a class made from it says of itself
    try:
        coarse = not isinstance(expected, numbers.Integral) and _is_float32(float(got))
        return math.isclose(
            got, expected, rel_tol=_FLOAT32_TOLERANCE if coarse else _RELATIVE_TOLERANCE
        )
    except OverflowError:  # a whole number beyond what a float holds is close to nothing but itself
        return type(got) is type(expected) and got == expected


def _is_float32(number: float) -> bool:
    try:
        return struct.unpack("<f", struct.pack("<f", number))[0] == number
    except OverflowError:
        return False


def _plain(value: Any) -> Any:
    """Return arrays, tensors, their scalars and what is made from Python's own as that, a list as a
    tuple.
    """
    if hasattr(value, "tolist") and not isinstance(value, type):
        value = value.tolist()
    kind = type(value)
    if issubclass(kind, list | tuple):
        return tuple(list.__iter__(value) if issubclass(kind, list) else tuple.__iter__(value))
    if issubclass(kind, str):
        return str.__str__(value)
    return dict(dict.items(value)) if issubclass(kind, dict) else value


def name(function: Callable[..., object]) -> str:
    """Return the name of a function."""
    return getattr(function, "__name__", type(function).__name__)


def tell_apart(got: object, expected: object) -> tuple[str, str]:
    """Return both with as many digits as it takes to see a difference."""
    for digits in _DIGITS:
        texts = short(got, digits=digits), short(expected, digits=digits)
        if texts[0] != texts[1]:
            break
    return texts


def short(value: object, depth: int = 0, digits: int = _DIGITS[0]) -> str:
    """Return a value in one line, cut where it is long; ``depth`` is its depth in the value that is
    shown.
    """
    if callable(value):
        return name(value)
    if isinstance(value, tuple | list):
        ends = ("(", ",)" if len(value) == 1 else ")") if isinstance(value, tuple) else "[]"
        items = _join_texts((short(item, depth + 1, digits) for item in value), depth)
        return f"{ends[0]}{items}{ends[1]}"
    if isinstance(value, Mapping):
        pairs = (
            f"{short(key, depth + 1, digits)}: {short(item, depth + 1, digits)}"
            for key, item in value.items()
        )
        return f"{{{_join_texts(pairs, depth)}}}"
    try:
        text = f"{value:.{digits}g}" if isinstance(value, float) else " ".join(repr(value).split())
    except Exception as error:
        # a whole number too long to print, or what a reader's own class raises
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _join_texts(texts: Iterable[str], depth: int) -> str:
    """Return the first items, and dots for those left out: no answer fills the page, however long
    or deep.
    """
    if depth == _DEEPEST_SHOWN:
        return "..."
    first_texts = list(itertools.islice(texts, _MOST_SHOWN + 1))
    return ", ".join(
        [*first_texts[:_MOST_SHOWN], *(["..."] if len(first_texts) > _MOST_SHOWN else [])]
    )
