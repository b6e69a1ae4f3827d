"""To which layer and to which node of the backward graph an operator belongs, and what C++ keeps
unseen.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_ATEN = torch.ops.aten
_KEEPS_ITS_NUMBER = (_ATEN.mul.Tensor, _ATEN.mul_.Tensor, _ATEN.div.Tensor, _ATEN.div_.Tensor)
_NUMBER_BYTES = {bool: 1, int: 8, float: 8, complex: 16}


# by phase: the layer of what no module runs
OUTSIDE_MODEL = {"loss": "(loss)", "optimizer": "(optimizer)"}


class Layers:
    """Which module an operator belongs to: the innermost that runs, or in backward the one that
    made the node.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._parameters = {
            id(tensor): name.rpartition(".")[0] for name, tensor in model.named_parameters()
        }
        # the paths of the modules that are running, the outermost first
        self.around: list[str] = []
        # the backward graph's first sequence number, and the layer of its nodes from there on
        self._owners: list[tuple[int, str]] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Follow the modules by global hooks: some modules take another path when they have hooks
        of their own.
        """
        module = torch.nn.modules.module
        with (
            module.register_module_forward_pre_hook(self._enter),
            module.register_module_forward_hook(self._leave, always_call=True),
        ):
            yield

    def _enter(self, module: nn.Module, _inputs: Any) -> None:
        path = self.path_of(module)
        if path is not None:
            self.push(path)

    def _leave(self, module: nn.Module, _inputs: Any, _outputs: Any) -> None:
        if self.path_of(module) is not None:
            self.pop()

    def push(self, name: str) -> None:
        """Let what follows belong to ``name``, until the matching :meth:`pop`."""
        self.around.append(name)
        self._note()

    def pop(self) -> None:
        """Go back to what was running before the last :meth:`push`."""
        self.around.pop()
        self._note()

    def path_of(self, module: nn.Module) -> str | None:
        """Return the module's path in the model, None for one that is no part of it."""
        return self._names.get(id(module))

    def _note(self) -> None:
        self._owners.append((torch._C._autograd._get_sequence_nr(), self.running))

    @property
    def running(self) -> str:
        """The path of the innermost module that runs, the empty string outside."""
        return self.around[-1] if self.around else ""

    def of_operator(self) -> str:
        """Return the path of the layer to which the operator that is running belongs."""
        node = torch._C._current_autograd_node()
        if self.around or node is None:
            return self.running
        if hasattr(node, "variable"):
            return self._parameters.get(id(node.variable), "")
        position = bisect.bisect_right(
            self._owners, node._sequence_nr(), key=operator.itemgetter(0)
        )
        return self._owners[position - 1][1] if position else ""


class BackwardNodes:
    """Which node of the backward graph runs, and whether gradients already wait where it sends its
    own.
    """

    def __init__(self) -> None:
        self._count = 0
        self._clear()

    def _clear(self) -> None:
        self.segment, self.may_accumulate = 0, False
        self._current: Any = None
        self._targets: set[Any] = set()
        self._filled: set[Any] = set()

    def observe(self) -> Any:
        """Look which node runs; return the key of the one that has just ended, None while it goes
        on.
        """
        node = torch._C._current_autograd_node()
        key = None if node is None else _node_key(node)
        if key == self._current:
            return None
        ended_key = self._current
        if node is None:
            self._clear()
            return ended_key
        self._filled |= self._targets
        self._count += 1
        self._current, self.segment = key, self._count
        self._targets = {
            (_node_key(target), slot) for target, slot in node.next_functions if target is not None
        }
        self.may_accumulate = bool(self._targets & self._filled)
        return ended_key


def _node_key(node: Any) -> Any:
    """Return a key that tells a node from every other: its number, and for a parameter's node the
    parameter.
    """
    return ("parameter", id(node.variable)) if hasattr(node, "variable") else node._sequence_nr()


def saved_number_bytes(function: Any, args: tuple[Any, ...]) -> int:
    """Return the size of the Python number that this operator keeps for backward, 0 if it keeps
    none.

    In C++ such a number is a tensor of its own, which no fake tensor shows.
    """
    if function not in _KEEPS_ITS_NUMBER or not torch.is_grad_enabled():
        return 0
    tensor, number, *_ = args
    keeps = isinstance(tensor, torch.Tensor) and tensor.requires_grad
    return _NUMBER_BYTES.get(type(number), 0) if keeps else 0
