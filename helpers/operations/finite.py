"""What a forward is told that asks whether its activations are finite numbers: yes, as in a run that works.

DETR and T5 ask it of what they compute, to clamp what has overflowed. Such a question has one answer for every
element, so that no values are needed to reduce it to one. For the library itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

_BOTH = frozenset({"mul", "logical_and", "bitwise_and", "__and__"})
_EITHER = frozenset({"logical_or", "bitwise_or", "__or__"})


def everywhere(name: str, args: tuple, answers: Callable[[Tensor], bool | None]) -> bool | None:
    """Return what every element of an operator's result is, None where nothing is known of it.

    ``answers`` tells it of an operand. PyTorch takes ``isfinite`` apart: x == x and abs(x) != inf. Only activations are
    taken to be finite, which need a gradient: a mask of the caller's may hold infinities.
    """
    first, second = (*args, None, None)[:2]
    if not isinstance(first, Tensor):
        return None
    if name in ("isnan", "isinf", "eq", "ne") and first.requires_grad:
        if name in ("isnan", "isinf"):
            return False
        if second is first or (isinstance(second, float) and second == math.inf):
            return (second is first) == (name == "eq")
    if name in ("all", "any"):
        return answers(first) if first.numel() else None
    if (name in _BOTH or name in _EITHER) and isinstance(second, Tensor):
        pair = (answers(first), answers(second))
        return None if None in pair else all(pair) if name in _BOTH else any(pair)
    return None
