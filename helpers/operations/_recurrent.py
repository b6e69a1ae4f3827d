"""A recurrent layer as one operator: every further step costs the same, so a few steps tell the cost of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from helpers.operations._specs import META, mapped, shape_only, tensors_in

_FUNCTIONS = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
_FEW = 2  # from here on a further step adds the same; the first and the last differ from those between them


class Share(NamedTuple):
    """The record of a short sequence, and how many times it counts in the whole."""

    times: int
    trace: Any
    outputs: tuple[Tensor, ...]


def is_recurrence(name: str, args: tuple) -> bool:
    """Tell whether this is a call of ``torch.lstm`` or its kind on sequences of one length (not on packed ones)."""
    return name in _FUNCTIONS and len(args) == 9 and isinstance(args[3], bool)


class Recurrence:
    """One call of a recurrent layer, followed step by step for two short sequences only.

    A sequence of n steps costs (short) + (n - 2) ((short with one step more) - (short)), exactly.
    """

    def __init__(self, func: Callable[..., Any], args: tuple, owner: int) -> None:
        self.func, self.args, self.owner = func, args, owner
        self.shares: list[Share] = []

    def follow(self, record: Callable[[tuple], tuple[Any, Any]]) -> None:
        """Let ``record(arguments)`` run the short sequences."""
        length = self.args[0].shape[1 if self.args[8] else 0]
        further = max(0, length - _FEW)
        for times, steps in ((1 - further, min(length, _FEW)), (further, _FEW + 1)):
            if times:
                trace, outputs = record(self._of_length(steps))
                self.shares.append(Share(times, trace, tuple(outputs)))

    def _of_length(self, steps: int) -> tuple:
        """Return the arguments on shapes for so many steps, each tensor a leaf of its own graph."""
        grad = torch.is_grad_enabled()
        fresh: dict[int, Tensor] = {}

        def made(tensor: Tensor) -> Tensor:
            return fresh.setdefault(id(tensor), shape_only(tensor, requires_grad=grad and tensor.requires_grad))

        data, shape = self.args[0], list(self.args[0].shape)
        shape[1 if self.args[8] else 0] = steps
        short = torch.empty(shape, dtype=data.dtype, device=META, requires_grad=grad and data.requires_grad)
        return (short, *mapped(self.args[1:], made))

    def result(self, compute: Callable[[], Sequence[Tensor]]) -> tuple[Tensor, ...]:
        """Return what ``compute`` makes, as the results of one node of autograd's graph."""
        return _Node.apply(self, compute, *tensors_in(self.args))

    def shapes(self) -> tuple[Tensor, ...]:
        """Return the results on shapes: what comes out at every step, and the last hidden state (and cell)."""
        data, hidden = self.args[0], list(tensors_in((self.args[1],)))
        directions = 2 if self.args[7] else 1
        every = data.new_empty((*data.shape[:-1], directions * hidden[0].shape[-1]))
        return (every, *[torch.empty_like(tensor) for tensor in hidden])


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recurrence: Recurrence, compute: Callable[[], Sequence[Tensor]], *_: Tensor) -> Any:
        ctx.recurrence = recurrence
        with _disable_current_modes():
            return tuple(compute())
