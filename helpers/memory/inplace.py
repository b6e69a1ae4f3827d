"""Where autograd writes in place, and under fake tensors does not: the trace as it is without them.

Autograd writes into a tensor that nobody else holds, except when a dispatch mode is on, as it is while tracing.
There are two such places, and in both the operand that is written into ends with the operator in the trace.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch.utils import _pytree as pytree

from helpers.memory.trace import Operator, Release, TensorSpec, Trace

_ATEN = torch.ops.aten
_ADD = _ATEN.add.Tensor
_WRITES_INTO_ZEROS = {
    _ATEN.index_put.default: _ATEN.index_put_.default,
    _ATEN.scatter.src: _ATEN.scatter_.src,
    _ATEN.scatter.value: _ATEN.scatter_.value,
    _ATEN.scatter_add.default: _ATEN.scatter_add_.default,
    _ATEN.index_add.default: _ATEN.index_add_.default,
    _ATEN.put.default: _ATEN.put_.default,
}
_ZEROS = ("zeros", "zeros_like", "new_zeros")


def as_without_mode(trace: Trace) -> Trace:
    """Return the trace of the second step with the operators that really write in place as such.

    The operator then makes nothing: its result is the storage of its first operand, which lives on.
    """
    makers = {storage: event for event in _operators(trace.events) for storage, _, _ in event.made}
    same: dict[int, int] = {}  # a result's storage: the one that it really is
    events: list[Operator | Release] = list(trace.events[: trace.start])
    second_step = trace.events[trace.start :]
    continued: set[int] = set()
    for position, event in enumerate(second_step):
        if isinstance(event, Release):
            if event.storage in continued:
                continued.remove(event.storage)
            else:
                events.append(Release(same.get(event.storage, event.storage)))
            continue
        function = _in_place(event, makers, trace) if _ends_with(event, second_step, position) else None
        if function is None:
            events.append(event)
            continue
        first = event.arguments[0][0].storage
        continued.add(first)
        same[event.made[0].storage] = same.get(first, first)
        events.append(replace(event, function=function, made=()))
    gradients = {same.get(storage, storage): name for storage, name in trace.gradients.items()}
    return replace(trace, events=events, gradients=gradients)


def _operators(events: list[Operator | Release]) -> Iterator[Operator]:
    return (event for event in events if isinstance(event, Operator))


def _ends_with(event: Operator, events: list[Operator | Release], position: int) -> bool:
    """Return whether the first operand is released before the next operator."""
    following = itertools.takewhile(lambda later: isinstance(later, Release), events[position + 1 :])
    first = _first(event)
    return first is not None and any(release.storage == first.storage for release in following)


def _first(event: Operator) -> TensorSpec | None:
    operand = event.arguments[0][0] if event.arguments[0] else None
    return operand if isinstance(operand, TensorSpec) and operand.storage is not None else None


def _in_place(
    event: Operator, makers: dict[int, Operator], trace: Trace
) -> torch._ops.OpOverload | None:  # fmt: skip
    """Return the operator that really ran, None where it is the one in the trace."""
    first = _first(event)
    maker = makers.get(first.storage)
    if event.segment == 0 or maker is None or first.is_view or len(event.made) != 1:
        return None
    if trace.storage_bytes[event.made[0].storage] != trace.storage_bytes[first.storage]:
        return None
    if _is_accumulation(event, maker):
        return _ATEN.add_.Tensor
    if maker.segment == event.segment and maker.name in _ZEROS:
        return _WRITES_INTO_ZEROS.get(event.function)
    return None


def _is_accumulation(event: Operator, maker: Operator) -> bool:
    """Return whether the engine adds a second gradient to a first that waits at the same place.

    It does so in place if nobody else holds the first (``can_accumulate_inplace`` in PyTorch's
    torch/csrc/autograd/input_buffer.cpp): its storage has one owner, it is dense and no view. The first was made by
    an earlier node and ends with the sum, which no operand of a sum inside a node's own formula does.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(event.arguments) if isinstance(leaf, TensorSpec)]
    plain = event.function is _ADD and len(tensors) == 2 and not event.arguments[1]
    return plain and event.may_accumulate and maker.segment != event.segment
