"""The record of a step: every operator with what it was given and made, and every release, in order."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class TensorSpec:
    """All of a tensor but its data; ``storage`` is the trace's number for its storage, None for one not counted."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    is_conj: bool  # a view that conjugates or negates when it is read: some kernels copy it first
    is_neg: bool
    content: bytes | None  # its values, where the operator's results have the sizes that they say
    storage: int | None = field(compare=False)
    is_view: bool = field(compare=False)


def strides_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of ``tensor``, 0 along a dimension of one, where they mean nothing."""
    return tuple(stride if size > 1 else 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def key_of(function: Any, grad_mode: bool, arguments: Any) -> Any:
    """Return what is equal for two calls that make and take the same."""
    leaves, shape = pytree.tree_flatten(arguments)
    given = tuple(leaf if isinstance(leaf, TensorSpec) else (type(leaf), repr(leaf)) for leaf in leaves)
    return function, grad_mode, repr(shape), given


class Made(NamedTuple):
    """A storage that an operator made: its number, and of the value that has it the position and the strides."""

    storage: int
    position: int = 0
    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Operator:
    """One operator that ran: its arguments with tensors as :class:`TensorSpec`, and the storages it made."""

    function: torch._ops.OpOverload | None  # None for an allocation outside PyTorch's operators
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    made: tuple[Made, ...]
    phase: str
    layer: str
    grad_mode: bool  # some kernels keep more when gradients are recorded
    segment: int  # counts the nodes of the backward graph as they run; 0 outside
    may_accumulate: bool  # an earlier node has already sent a gradient to where this one's goes

    @property
    def name(self) -> str:
        """The operator's name without its namespace and overload: ``convolution``."""
        return self.function._schema.name.rpartition("::")[2] if self.function is not None else "outside"

    @functools.cached_property
    def key(self) -> Any:
        """Equal for two operators that make and take the same."""
        return key_of(self.function, self.grad_mode, self.arguments)

    @property
    def only_views(self) -> bool:
        """Whether all that it returns are other views of its arguments, which takes no memory."""
        if self.made or self.function is None or self.function._schema.is_mutable:
            return False
        return all(value.alias_info is not None for value in self.function._schema.returns)


@dataclass(frozen=True)
class Release:
    """A storage whose last reference is gone."""

    storage: int


@dataclass
class Trace:
    """Two steps, the second from ``start`` in ``events``; bytes and names by a storage's number."""

    events: list[Operator | Release] = field(default_factory=list)
    storage_bytes: dict[int, int] = field(default_factory=dict)
    carried: list[int] = field(default_factory=list)  # alive when the second step starts
    names: dict[int, tuple[str, str, str]] = field(default_factory=dict)  # carried: category, layer, name
    gradients: dict[int, tuple[str, str]] = field(default_factory=dict)  # of parameters: layer, name
    uncertain: set[str] = field(default_factory=set)  # what had to be assumed
    start: int = 0
