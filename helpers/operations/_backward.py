"""Which operators a backward pass visits, read from the graph that autograd built; nothing runs
backward.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from helpers import steps
from helpers.operations._specs import Call
from helpers.operations._trace import OperatorTrace

# Its node is joined to the inputs of the segment alone: the parameters inside are met only when it
# runs again.
_REENTRANT = "CheckpointFunctionBackward"


class Accumulation(NamedTuple):
    """Gradients that meet: one tensor used in several places receives a gradient from each, and
    they are added.
    """

    owner: int
    additions: int
    elements: int
    itemsize: int


class Custom(NamedTuple):
    """A ``torch.autograd.Function`` in the graph: what its backward runs, None where that cannot be
    followed.
    """

    name: str
    calls: list[Call] | None


class Reached(NamedTuple):
    """What a backward pass from the outputs visits."""

    sequences: frozenset[int]
    parameters: frozenset[int]
    custom: dict[int, Custom]
    accumulations: list[Accumulation]
    recurrences: dict[int, set[int]]

    def trains(self, parameter: Tensor, stand_in: Tensor) -> bool:
        """Tell whether a parameter gets a gradient; behind a reentrant checkpoint, all that need
        one may get it.
        """
        if parameter.requires_grad and any(
            custom.name == _REENTRANT for custom in self.custom.values()
        ):
            return True
        return bool(self.parameters & {id(parameter), id(stand_in)})


def reached(outputs: Any, trace: OperatorTrace) -> Reached:
    """Walk autograd's graph from ``outputs`` to the parameters.

    ``sequences`` are the numbers autograd gave the operators' nodes, ``parameters`` the ids of the
    tensors that receive a gradient, ``custom`` the ``torch.autograd.Function`` nodes, whose
    backward is code (by number), ``recurrences`` the results of each recurrent layer (by its id)
    that are used.
    """
    tensors = steps.tensors_of(outputs)
    roots = [(tensor.grad_fn, tensor.output_nr) for tensor in tensors if tensor.grad_fn is not None]
    leaves = {id(tensor) for tensor in tensors if tensor.grad_fn is None and tensor.requires_grad}
    uses: Counter = Counter(set(roots))
    seen, waiting = {node for node, _ in roots}, [node for node, _ in dict.fromkeys(roots)]
    waiting = list(dict.fromkeys(waiting))
    sequences: set[int] = set()
    functions: set = set()
    recurrences: set = set()
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
            continue
        sequences.add(node._sequence_nr())
        if hasattr(node, "recurrence"):
            recurrences.add(node)
        elif not type(node).__module__.startswith("torch._C") and hasattr(node, "saved_tensors"):
            functions.add(node)
        for following, place in node.next_functions:
            if following is None:
                continue
            uses[following, place] += 1
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    custom = {
        node._sequence_nr(): Custom(node.name(), _followed(node, uses, trace)) for node in functions
    }
    used = {
        id(node.recurrence): {place for user, place in uses if user is node} for node in recurrences
    }
    return Reached(
        frozenset(sequences), frozenset(leaves), custom, list(_accumulations(uses, trace)), used
    )


def _followed(node: Any, uses: Counter, trace: OperatorTrace) -> list[Call] | None:
    """Run a backward that is code, on gradients of ones; return its operators, None where it
    raises.

    Zeros would be no gradients of a loss, and the code may skip them. A result that nothing uses
    has no gradient, or one of zeros where the code has not asked to be told.
    """
    if node.name() == _REENTRANT:
        return None
    ones = [
        torch.ones(result.shape, dtype=result.dtype, device=result.device)
        for result in node._input_metadata
    ]
    is_used = [bool(uses[node, place]) for place in range(len(ones))]
    noted = [gradient if used else None for gradient, used in zip(ones, is_used, strict=True)]
    filled = [
        gradient if used else torch.zeros_like(gradient)
        for gradient, used in zip(ones, is_used, strict=True)
    ]
    before = trace.calls, trace.free.copy(), trace.draws.copy()
    for given in noted, filled:
        trace.calls = []
        try:
            with trace.recording(), torch.no_grad():
                node.apply(*given)
            return trace.calls
        except Exception:  # whatever code of its own may raise; it is named as not counted
            continue
        finally:
            trace.calls, trace.free, trace.draws = before
    return None


def _accumulations(uses: Counter, trace: OperatorTrace) -> Iterator[Accumulation]:
    for (node, place), count in uses.items():
        if count < 2:
            continue
        if hasattr(node, "variable"):
            tensor, owner = node.variable, trace.parameter_owner.get(id(node.variable), 0)
            yield Accumulation(owner, count - 1, tensor.numel(), tensor.dtype.itemsize)
        else:
            metadata = node._input_metadata[place]
            owner = trace.owner_of.get(node._sequence_nr(), 0)
            yield Accumulation(owner, count - 1, math.prod(metadata.shape), metadata.dtype.itemsize)
