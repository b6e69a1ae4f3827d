"""The values of a figure that a reader turns, at a setting that a test chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from helpers.plotting.explorer._explore import Input, _choices, _start
from helpers.plotting.explorer._formulas import evaluate


def at(inputs: Sequence[Input], formulas: Mapping[str, str], **setting: Any) -> dict[str, float]:
    """Return the values of the formulas at a setting: the start, but for the inputs that
    ``setting`` names.

    A menu takes the label of an option, a slider a number.
    """
    by_name = {control.name: control for control in inputs}
    for name, value in setting.items():
        assert value in _choices(by_name[name]), f"{name} cannot be {value!r}"
        by_name[name] = replace(by_name[name], start=value)
    return evaluate(formulas, _start(tuple(by_name.values())))
