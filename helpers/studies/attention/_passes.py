"""Passes of a program over the whole matrix of scores, one PyTorch operator after the other.

Lesson 21.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.checks import function as checked_function, whole_number
from helpers.results import Record


class OperatorPasses(Record):
    """The number of whole score matrices that an operator reads, and that it writes. Lesson 21."""

    operator: str
    reads: int
    writes: int


def count_passes(
    function: Callable[..., object], *tensors: torch.Tensor, scores: int
) -> tuple[OperatorPasses, ...]:
    """Return the reads and writes of each operator of ``function(*tensors)`` of tensors with
    ``scores`` elements.

    A tensor counts by its number of elements, so the sizes are chosen such that no other tensor has
    as many. A view moves nothing and is left out. What an operator changes in place counts as read
    and as written, also by ``copy_`` and ``zero_``, which only write it. Operators inside a fused
    kernel cannot be seen. Raises TypeError for what cannot be called, ValueError for less than one
    score.

    >>> rows = count_passes(lambda x: (x / 2).exp(), torch.ones(3, 3), scores=9)
    >>> [(row.operator, row.reads, row.writes) for row in rows]
    [('div', 1, 1), ('exp', 1, 1)]

    Lesson 21.
    """
    checked_function("function", function, "a function of the tensors, such as plain attention")
    with _Watch(whole_number("scores", scores)) as watch:
        function(*tensors)
    return tuple(watch.rows)


class _Watch(TorchDispatchMode):
    """Notes each operator with the number of score matrices that it reads and writes."""

    def __init__(self, scores: int) -> None:
        super().__init__()
        self.scores, self.rows = scores, list[OperatorPasses]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        read, written = _tensors((args, kwargs)), _tensors(result)
        memory = {tensor.untyped_storage().data_ptr() for tensor in read}
        if func._schema.is_mutable or any(
            tensor.untyped_storage().data_ptr() not in memory for tensor in written
        ):
            counts = (
                sum(tensor.numel() == self.scores for tensor in side) for side in (read, written)
            )
            self.rows.append(OperatorPasses(str(func).split(".")[1], *counts))
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
