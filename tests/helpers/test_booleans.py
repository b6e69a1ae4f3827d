"""A text such as "no" counts as true in Python: whatever is declared a bool is refused unless it is
one.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import numpy as np
import pytest

import helpers
from helpers import checks


def public() -> Iterator[tuple[object, str, inspect.Parameter]]:
    """Yield what is public in the library and can be called, its name, and a parameter that is
    declared a bool.
    """
    names = [one.name for one in pkgutil.walk_packages(helpers.__path__, "helpers.")]
    # whose face is the room's
    names = [name for name in names if "._" not in name and not name.endswith(".figures")]
    for module in map(importlib.import_module, names):
        for value in (getattr(module, name) for name in dir(module) if not name.startswith("_")):
            called = (
                [value]
                if inspect.isfunction(value)
                else of_class(value)
                if inspect.isclass(value)
                else []
            )
            for function in (one for one in called if one.__module__.startswith("helpers.")):
                for parameter in inspect.signature(function).parameters.values():
                    if str(parameter.annotation) in ("bool", "<class 'bool'>"):
                        yield function, f"{function.__module__}.{function.__qualname__}", parameter


def of_class(value: type) -> list[object]:
    """Return the public methods of a class, and the class itself where it is the reader who makes
    one.
    """
    methods = [
        one
        for name, one in vars(value).items()
        if inspect.isfunction(one) and not name.startswith("_")
    ]
    is_made = issubclass(value, Exception | dict) or hasattr(value, "__dataclass_fields__")
    return methods if is_made or not value.__module__.startswith("helpers.") else [value, *methods]


FOUND = list(
    {
        (name, parameter.name): (function, parameter) for function, name, parameter in public()
    }.items()
)


def test_there_are_many():
    assert len(FOUND) > 40


@pytest.mark.parametrize(
    ("function", "parameter"),
    [one for _, one in FOUND],
    ids=[f"{name}({parameter})" for (name, parameter), _ in FOUND],
)
def test_a_text_is_no_bool(function, parameter):
    """It is the first thing that is looked at, so all else may be None."""
    required = [
        one
        for one in inspect.signature(function).parameters.values()
        if one.default is inspect.Parameter.empty
        and one.name != parameter.name
        and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    positional = [None for one in required if one.kind is not one.KEYWORD_ONLY]
    named = {one.name: None for one in required if one.kind is one.KEYWORD_ONLY}
    with pytest.raises(
        TypeError, match=f"^{parameter.name}='no' is text, as str; give True or False"
    ):
        begun(function(*positional, **named, **{parameter.name: "no"}))


def begun(result: object) -> object:
    """Return a result, of a generator or a context the first that it gives: before that it has
    looked at nothing.
    """
    if inspect.isgenerator(result):
        return next(result)
    return result.__enter__() if hasattr(result, "__enter__") else result


@pytest.mark.parametrize("value", [True, np.True_, np.bool_(1)])
def test_a_bool_of_numpy_is_one(value):
    assert checks.boolean("training", value) is True


@pytest.mark.parametrize("value", [1, 0, None, "", [True], np.array([True])])
def test_what_counts_as_true_or_false_is_none(value):
    with pytest.raises(TypeError, match="give True or False"):
        checks.boolean("training", value)
