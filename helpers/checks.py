"""Checks of arguments, each refusal in one sentence: the value that came, and the accepted ones."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Kind = type | UnionType | tuple[type, ...]

_short = reprlib.Repr()
_short.maxother = _short.maxstring = 80


def short(value: Any) -> str:
    """Return ``repr(value)`` in one line, at most about 80 characters long.

    >>> short(list(range(1000)))
    '[0, 1, 2, 3, 4, 5, ...]'
    """
    return " ".join(line.strip() for line in _short.repr(value).splitlines())


def whole_number(name: str, value: Any, *, at_least: int = 1, at_most: int | None = None) -> int:
    """Return ``value`` as an int; raise TypeError unless it is a whole number, ValueError out of
    the bounds.

    ``name`` is the argument's, for the error; the bounds are ``at_least`` and ``at_most``. True and
    False are refused, and so is 64.0, because both are slips more often than numbers.

    >>> whole_number("epochs", 0)
    Traceback (most recent call last):
    ValueError: epochs=0 is too small; give a whole number, 1 or more
    """
    accepted = f"give a whole number, {at_least:,} " + (
        "or more" if at_most is None else f"to {at_most:,}"
    )
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={short(value)} is {kind_of(value)}; {accepted}") from None
    # NumPy's bool is its own type, and an index
    if isinstance(value, bool) or type(value).__name__ == "bool":
        raise TypeError(f"{name}={value} is a bool; {accepted}")
    if number < at_least:
        raise ValueError(f"{name}={short(number)} is too small; {accepted}")
    if at_most is not None and number > at_most:
        raise ValueError(f"{name}={short(number)} is too large; {accepted}")
    return number


def real(name: str, value: Any, accepted: str = "give a number") -> float:
    """Return ``value`` as a float: one number of Python, NumPy or PyTorch, also NaN or infinite.

    ``name`` is the argument's, and ``accepted`` what to give instead, for the error. Raises
    TypeError for what is no number, ValueError for one that a float cannot hold.

    >>> real("value", 3), real("value", math.inf)
    (3.0, inf)
    """
    if isinstance(value, str | bytes | bool) or value is None:
        raise TypeError(f"{name}={short(value)} is {kind_of(value)}; {accepted}")
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name}={short(value)} is {kind_of(value)}; {accepted}") from None
    except OverflowError:
        raise ValueError(f"{name}={short(value)} is too large; {accepted}") from None


def number(
    name: str, value: Any, *, at_least: float = -math.inf, above: float = -math.inf
) -> float:
    """Return ``value`` as :func:`real` does, finite, ``at_least`` so much and ``above`` a bound;
    ValueError otherwise.

    ``name`` is the argument's, for the error.

    >>> number("budget_s", 0, above=0)
    Traceback (most recent call last):
    ValueError: budget_s=0; give a finite number above 0
    """
    bound = (
        f", {at_least:g} or more"
        if at_least > -math.inf
        else f" above {above:g}"
        if above > -math.inf
        else ""
    )
    accepted = f"give a finite number{bound}"
    scalar = real(name, value, accepted)
    if not math.isfinite(scalar) or scalar < at_least or scalar <= above:
        raise ValueError(f"{name}={scalar:g}; {accepted}")
    return scalar


def members(name: str, values: Any, what: str, *, kind: Kind = object) -> list[Any]:
    """Return ``values`` as a list; raise TypeError for text, a mapping, or a value without members.

    ``what`` says what its members are; each must be a ``kind``. ``name`` is the argument's, for the
    error.

    >>> members("sizes", "64", "sizes", kind=int)
    Traceback (most recent call last):
    TypeError: sizes='64' is text, as str; give a list of sizes
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{name}={short(values)} is {kind_of(values)}; give a list of {what}")
    items = list(values)
    wrong_index = next(
        (index for index, member in enumerate(items) if not isinstance(member, kind)), None
    )
    if wrong_index is not None:
        raise TypeError(
            f"{name}[{wrong_index}]={short(items[wrong_index])} is {kind_of(items[wrong_index])}; "
            f"give a list of {what}"
        )
    return items


def numbers(
    name: str, values: Any, *, at_least: float = -math.inf, above: float = -math.inf
) -> list[float]:
    """Return ``values`` as floats, each as :func:`number` takes it with ``name``, ``at_least`` and
    ``above``.

    >>> numbers("shares", (0, 0.5, 1), at_least=0)
    [0.0, 0.5, 1.0]
    """
    items = members(name, values, "numbers")
    return [
        number(f"{name}[{index}]", value, at_least=at_least, above=above)
        for index, value in enumerate(items)
    ]


def named(name: str, values: Any, what: str) -> Mapping[Any, Any]:
    """Return ``values``, an argument of the ``name``; raise TypeError unless it is a mapping from
    names to ``what``.

    >>> named("sizes", [64], "numbers")
    Traceback (most recent call last):
    TypeError: sizes=[64] is a list; give a dictionary from names to numbers
    """
    if not isinstance(values, Mapping):
        raise TypeError(
            f"{name}={short(values)} is {kind_of(values)}; give a dictionary from names to {what}"
        )
    return values


def one_of(name: str, value: Any, kind: Kind, accepted: str) -> Any:
    """Return ``value``, an argument of the ``name``; raise TypeError, with ``accepted``, unless it
    is a ``kind``.

    >>> one_of("name", 3, str, "a name as text")
    Traceback (most recent call last):
    TypeError: name=3 is an int; give a name as text
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name}={short(value)} is {kind_of(value)}; give {accepted}")
    return value


def function(name: str, value: Any, accepted: str) -> Callable[..., Any]:
    """Return ``value``, an argument of the ``name``; raise TypeError, with ``accepted``, unless it
    can be called.

    >>> function("fn", 3, "a function without arguments")
    Traceback (most recent call last):
    TypeError: fn=3 is an int; give a function without arguments
    """
    if not callable(value):
        raise TypeError(f"{name}={short(value)} is {kind_of(value)}; give {accepted}")
    return value


def boolean(name: str, value: Any, accepted: str = "give True or False") -> bool:
    """Return ``value`` as a bool; raise TypeError unless it is True or False, as "no" would count
    as true.

    ``name`` is the argument's, and ``accepted`` what to give instead, for the error.

    >>> boolean("binary", "no")
    Traceback (most recent call last):
    TypeError: binary='no' is text, as str; give True or False
    """
    if type(value).__name__ not in ("bool", "bool_"):  # Python's, and NumPy's of both its versions
        raise TypeError(f"{name}={short(value)} is {kind_of(value)}; {accepted}")
    return bool(value)


def random_seed(value: Any) -> int:
    """Return ``value``, an argument of the name seed, as a whole number that every generator takes:
    0 to 2**63 - 1.

    >>> random_seed(-1)
    Traceback (most recent call last):
    ValueError: seed=-1 is too small; give a whole number, 0 to 9,223,372,036,854,775,807
    """
    return whole_number("seed", value, at_least=0, at_most=2**63 - 1)


def batch_shape(inputs: Sequence[int]) -> tuple[int, ...]:
    """Return the shape ``inputs`` of a batch; raise TypeError or ValueError unless it is sizes
    above 0, one or more.

    >>> batch_shape([64, 1024])
    (64, 1024)
    """
    if isinstance(inputs, str) or not isinstance(inputs, Sequence) or not inputs:
        raise TypeError(
            "inputs is the shape of the whole batch, such as (64, 1024), its rows first; the net "
            f"reads numbers of its own type, so begin after an nn.Embedding. Got {short(inputs)}"
        )
    return tuple(whole_number(f"inputs[{index}]", size) for index, size in enumerate(inputs))


def choice(name: str, value: Any, accepted: Iterable[object]) -> Any:
    """Return ``value``, an argument of the ``name``; raise ValueError unless it is one of
    ``accepted``.

    >>> choice("split", "training", ("train", "test"))
    Traceback (most recent call last):
    ValueError: split='training' is not known; give one of 'train', 'test'
    """
    choices = list(accepted)
    try:
        is_known = value in choices
    except (RuntimeError, ValueError):  # an array, of which == is an array again
        is_known = False
    if not is_known:
        raise ValueError(
            f"{name}={short(value)} is not known; give one of {', '.join(map(repr, choices))}"
        )
    return value


def cpu_or_cuda(device: str | torch.device) -> torch.device:
    """Return ``device``, an argument of that name; raise ValueError unless it is a CPU or a CUDA
    device.

    Of CUDA devices it is the name that is checked, and not whether the machine has one.

    >>> cpu_or_cuda("cuda:1")
    device(type='cuda', index=1)
    """
    import torch

    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        # a name that torch does not know, no name, a number too large
        chosen = None
    if chosen is None or chosen.type not in ("cpu", "cuda"):
        raise ValueError(
            f"device={short(str(device))} is neither a CPU nor a CUDA device; give 'cpu' or "
            "'cuda', or one of several, such as 'cuda:1'"
        )
    return chosen


def kind_of(value: Any) -> str:
    """Return the class of ``value`` as a sentence names it, with its article.

    >>> kind_of(3.5), kind_of("3.5"), kind_of(None)
    ('a float', 'text, as str', 'None')
    """
    if value is None:
        return "None"
    kind = type(value).__name__
    return (
        f"text, as {kind}"
        if isinstance(value, str | bytes)
        else f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"
    )
