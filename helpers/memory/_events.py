"""The events of a traced step: its operators and the releases of its storages, on fake tensors.

A :class:`StepTrace` has every operator with what it was given and made, and every release, in
order.

Autograd writes into a tensor that nobody else holds, except when a dispatch mode is on, as it is
while tracing. There are two such places, and in both the operand that is written into ends with the
operator in the trace: :func:`as_without_mode` gives the trace as it is without.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch.utils import _pytree as pytree

Leaf = TypeVar("Leaf")
# by an operator's key: position of a result, its strides
Layouts = dict[Any, dict[int, tuple[int, ...]]]


@dataclass(frozen=True)
class TensorSpec:
    """All of a tensor but its data; ``storage`` is the trace's number for its storage, None for one
    not counted.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    is_conj: bool  # a view that conjugates or negates when it is read: some kernels copy it first
    is_neg: bool
    # of the storage of an empty tensor, which an operator may fill without asking for more
    room_bytes: int
    content: bytes | None  # its values, where the operator's results have the sizes that they say
    storage: int | None = field(compare=False)
    is_view: bool = field(compare=False)

    @property
    def nbytes(self) -> int:
        """The bytes of its elements, as of a torch.Tensor."""
        return math.prod(self.sizes) * self.dtype.itemsize


def leaves_of(kind: type[Leaf], values: Any) -> list[Leaf]:
    """Return what of ``kind`` is in nested ``values``, in order."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, kind)]


def written_values(function: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return those of the arguments that ``function`` writes."""
    arguments = function._schema.arguments
    values = dict(zip((argument.name for argument in arguments), args, strict=False)) | kwargs
    return [
        values[argument.name]
        for argument in arguments
        if argument.alias_info is not None
        and argument.alias_info.is_write
        and argument.name in values
    ]


def strides_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of ``tensor``, 0 along a dimension of one, where they mean nothing."""
    return tuple(
        stride if size > 1 else 0
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def key_of(function: Any, grad_mode: bool, arguments: Any) -> Any:
    """Return a key that is equal for two calls that make and take the same."""
    leaves, shape = pytree.tree_flatten(arguments)
    leaf_keys = tuple(
        leaf if isinstance(leaf, TensorSpec) else (type(leaf), repr(leaf)) for leaf in leaves
    )
    return function, grad_mode, repr(shape), leaf_keys


class MadeStorage(NamedTuple):
    """A storage that an operator made: its number, and of the value that has it the position and
    the strides.
    """

    storage: int
    position: int = 0
    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class TracedOperator:
    """One operator that ran: its arguments with tensors as :class:`TensorSpec`, and the storages it
    made.
    """

    function: torch._ops.OpOverload | None  # None for an allocation outside PyTorch's operators
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    made_storages: tuple[MadeStorage, ...]
    phase: str
    layer: str
    grad_mode: bool  # some kernels keep more when gradients are recorded
    segment: int  # counts the nodes of the backward graph as they run; 0 outside
    may_accumulate: bool  # an earlier node has already sent a gradient to where this one's goes

    @property
    def name(self) -> str:
        """The operator's name without its namespace and overload: ``convolution``."""
        return (
            self.function._schema.name.rpartition("::")[2]
            if self.function is not None
            else "outside"
        )

    @functools.cached_property
    def operands(self) -> list[TensorSpec]:
        """The tensors among its arguments, in order."""
        return leaves_of(TensorSpec, self.arguments)

    @functools.cached_property
    def key(self) -> Any:
        """Equal for two operators that make and take the same."""
        return key_of(self.function, self.grad_mode, self.arguments)

    @property
    def only_views(self) -> bool:
        """Whether all that it returns are other views of its arguments, which takes no memory."""
        if self.made_storages or self.function is None or self.function._schema.is_mutable:
            return False
        return all(value.alias_info is not None for value in self.function._schema.returns)


@dataclass(frozen=True)
class Release:
    """A storage whose last reference is gone."""

    storage: int


@dataclass
class StepTrace:
    """Two steps, the second from ``start`` in ``events``; bytes and names by a storage's number."""

    events: list[TracedOperator | Release] = field(default_factory=list)
    storage_bytes: dict[int, int] = field(default_factory=dict)
    carried: list[int] = field(default_factory=list)  # alive when the second step starts
    # carried: category, layer, name
    names: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    # of parameters: layer, name
    gradients: dict[int, tuple[str, str]] = field(default_factory=dict)
    uncertain: set[str] = field(default_factory=set)  # what had to be assumed
    start: int = 0

    @property
    def second_step(self) -> list[TracedOperator | Release]:
        """The events of the second step, which counts."""
        return self.events[self.start :]

    def made_bytes(self, operator: TracedOperator) -> list[int]:
        """Return the bytes of the storages that ``operator`` made."""
        return [self.storage_bytes[result.storage] for result in operator.made_storages]


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


def as_without_mode(trace: StepTrace) -> StepTrace:
    """Return the trace of the second step with the operators that really write in place as such.

    The operator then makes nothing: its result is the storage of its first operand, which lives on.
    """
    makers = {
        storage: event
        for event in trace.events
        if isinstance(event, TracedOperator)
        for storage, _, _ in event.made_storages
    }
    real_storages: dict[int, int] = {}  # a result's storage: the one that it really is
    events: list[TracedOperator | Release] = list(trace.events[: trace.start])
    second_step = trace.second_step
    continued: set[int] = set()
    for position, event in enumerate(second_step):
        if isinstance(event, Release):
            if event.storage not in continued:
                events.append(Release(real_storages.get(event.storage, event.storage)))
            continue
        later_events = itertools.islice(second_step, position + 1, None)
        function = _in_place_operator(event, later_events, makers, trace)
        if function is None:
            events.append(event)
            continue
        operand_storage = event.arguments[0][0].storage
        continued.add(operand_storage)
        real_storages[event.made_storages[0].storage] = real_storages.get(
            operand_storage, operand_storage
        )
        events.append(replace(event, function=function, made_storages=()))
    return replace(
        trace,
        events=events,
        gradients={
            real_storages.get(storage, storage): name for storage, name in trace.gradients.items()
        },
    )


def _in_place_operator(
    event: TracedOperator,
    later_events: Iterator[TracedOperator | Release],
    makers: dict[int, TracedOperator],
    trace: StepTrace,
) -> torch._ops.OpOverload | None:
    """Return the operator that really ran, None where it is the one in the trace."""
    operand = event.arguments[0][0] if event.arguments[0] else None
    if event.segment == 0 or not isinstance(operand, TensorSpec) or operand.is_view:
        return None
    if operand.storage is None or operand.storage not in makers:
        return None
    if trace.made_bytes(event) != [trace.storage_bytes[operand.storage]]:
        return None
    # the operand is released before the next operator
    if Release(operand.storage) not in itertools.takewhile(
        lambda later: isinstance(later, Release), later_events
    ):
        return None
    maker = makers[operand.storage]
    if _is_accumulation(event, maker):
        return _ATEN.add_.Tensor
    if event.function is not None and maker.segment == event.segment and maker.name in _ZEROS:
        return _WRITES_INTO_ZEROS.get(event.function)
    return None


def _is_accumulation(event: TracedOperator, maker: TracedOperator) -> bool:
    """Return whether the engine adds a second gradient to a first that waits at the same place.

    It does so in place if nobody else holds the first (``can_accumulate_inplace`` in PyTorch's
    torch/csrc/autograd/input_buffer.cpp): its storage has one owner, it is dense and no view. The
    first was made by an earlier node and ends with the sum, which no operand of a sum inside a
    node's own formula does.
    """
    is_plain_sum = event.function is _ADD and len(event.operands) == 2 and not event.arguments[1]
    return is_plain_sum and event.may_accumulate and maker.segment != event.segment
