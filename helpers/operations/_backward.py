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


class CustomFunction(NamedTuple):
    """A ``torch.autograd.Function`` in the graph: the operators that its backward runs, None where
    it cannot be followed.
    """

    name: str
    calls: list[Call] | None


class BackwardPass(NamedTuple):
    """The nodes, parameters and results that a backward pass from the outputs visits."""

    visited_node_ids: set[int]
    parameters: set[int]
    custom: dict[int, CustomFunction]
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


def walk_graph(outputs: Any, trace: OperatorTrace) -> BackwardPass:
    """Walk autograd's graph from ``outputs`` to the parameters.

    ``visited_node_ids`` are the numbers autograd gave the operators' nodes, ``parameters`` the ids
    of the tensors that receive a gradient, ``custom`` the ``torch.autograd.Function`` nodes, whose
    backward is code (by number), ``recurrences`` the results of each recurrent layer (by its id)
    that are used.
    """
    tensors = steps.tensors_of(outputs)
    roots = [(tensor.grad_fn, tensor.output_nr) for tensor in tensors if tensor.grad_fn is not None]
    leaves = {id(tensor) for tensor in tensors if tensor.grad_fn is None and tensor.requires_grad}
    uses: Counter = Counter(set(roots))
    waiting = list(dict.fromkeys(node for node, _ in roots))
    seen = set(waiting)
    visited_node_ids: set[int] = set()
    custom_nodes: set = set()
    recurrent_nodes: set = set()
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
            continue
        visited_node_ids.add(node._sequence_nr())
        if hasattr(node, "recurrence"):
            recurrent_nodes.add(node)
        elif not type(node).__module__.startswith("torch._C") and hasattr(node, "saved_tensors"):
            custom_nodes.add(node)
        for next_node, result_index in node.next_functions:
            if next_node is None:
                continue
            uses[next_node, result_index] += 1
            if next_node not in seen:
                seen.add(next_node)
                waiting.append(next_node)
    custom = {
        node._sequence_nr(): CustomFunction(node.name(), _run_custom_backward(node, uses, trace))
        for node in custom_nodes
    }
    used_results = {
        id(node.recurrence): {result_index for user, result_index in uses if user is node}
        for node in recurrent_nodes
    }
    accumulations = list(_accumulations(uses, trace))
    return BackwardPass(visited_node_ids, leaves, custom, accumulations, used_results)


def _run_custom_backward(node: Any, uses: Counter, trace: OperatorTrace) -> list[Call] | None:
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
    trace_before = trace.calls, trace.zero_cost_calls.copy(), trace.draws.copy()
    for fill in (lambda _: None, torch.zeros_like):
        gradients = [
            gradient if uses[node, result_index] else fill(gradient)
            for result_index, gradient in enumerate(ones)
        ]
        trace.calls = []
        try:
            with trace.recording(), torch.no_grad():
                node.apply(*gradients)
            return trace.calls
        except Exception:  # whatever code of its own may raise; it is named as not counted
            continue
        finally:
            trace.calls, trace.zero_cost_calls, trace.draws = trace_before
    return None


def _accumulations(uses: Counter, trace: OperatorTrace) -> Iterator[Accumulation]:
    for (node, result_index), use_count in uses.items():
        if use_count < 2:
            continue
        if hasattr(node, "variable"):
            result, owner = node.variable, trace.parameter_owner.get(id(node.variable), 0)
        else:
            result = node._input_metadata[result_index]
            owner = trace.owner_of.get(node._sequence_nr(), 0)
        yield Accumulation(owner, use_count - 1, math.prod(result.shape), result.dtype.itemsize)
