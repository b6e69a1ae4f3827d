"""Copies of an answer's arguments, which it may use up or change.

Lesson 00.
"""

from __future__ import annotations

import copy
from typing import Any


def copy_data(value: Any) -> Any:
    """Return a copy of data: lists, tuples, dicts and sets with their members, arrays and tensors;
    else ``value``.

    A function, and an object that counts what is done with it, is handed on as it is.
    """
    if type(value) in (list, tuple, set):
        return type(value)(copy_data(item) for item in value)
    if type(value) is dict:
        return {key: copy_data(item) for key, item in value.items()}
    if isinstance(value, bytearray):
        return value[:]
    if type(value).__module__.partition(".")[0] in ("numpy", "torch") and hasattr(value, "shape"):
        # PyTorch copies no other
        return copy.deepcopy(value) if getattr(value, "is_leaf", True) else value.clone()
    return value
