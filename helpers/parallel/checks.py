"""What a reader gives to ranks and scripts, checked. For the library itself."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence

from helpers.checks import short, whole_number


def batch_shape(inputs: Sequence[int]) -> tuple[int, ...]:
    """Return the shape ``inputs`` of a batch. Raises TypeError or ValueError unless it is sizes above 0, one or more.

    For the library itself.
    """
    if isinstance(inputs, str) or not isinstance(inputs, Sequence) or not inputs:
        raise TypeError("inputs is the shape of the whole batch, such as (64, 1024), its rows first; the net reads "
                        f"numbers of its own type, so begin after an nn.Embedding. Got {short(inputs)}")  # fmt: skip
    return tuple(whole_number(f"inputs[{n}]", each) for n, each in enumerate(inputs))


def time_limit(timeout_s: float) -> float:
    """Return ``timeout_s`` as a float. Raises TypeError or ValueError unless it is a number of seconds above 0.

    For the library itself.
    """
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, numbers.Real):
        raise TypeError(f"timeout_s is a number of seconds, not {short(timeout_s)}")
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise ValueError(f"timeout_s is {timeout_s}; give a number of seconds above 0")
    return float(timeout_s)
