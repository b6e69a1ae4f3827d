"""Count one step of an optimizer by letting it step on parameters that have shapes only."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import steps
from helpers.operations._specs import Call, Operator, mapped, operator_of, shape_only, spec_of, storage_of, tensors_in


def optimizer_calls(
    parameters: Sequence[Tensor], owners: Sequence[int], optimizer: steps.OptimizerFactory
) -> list[Call]:
    """Return the operators of the second step (state exists, every gradient is given), each with its owner.

    Raises what :func:`helpers.steps.made_optimizer` raises, and ValueError where the optimizer cannot step on
    parameters without data.
    """
    if not parameters:
        return []
    copies = [nn.Parameter(shape_only(parameter)) for parameter in parameters]
    built = steps.made_optimizer(optimizer, copies)
    recorder = _StepRecorder(dict(zip(map(storage_of, copies), owners, strict=True)))
    try:
        for step in range(2):
            for copy in copies:
                copy.grad = shape_only(copy)
                recorder.keep(copy.grad, recorder.owner_of[storage_of(copy)])
            with recorder:
                built.step()
            if step == 0:
                _learn_state(built, recorder.owner_of)
                recorder.calls.clear()
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        name, reason = type(built).__name__, steps.first_line(error)
        if "supported devices" in reason:
            raise ValueError(
                f"{name} cannot step on shapes with options for a device (fused, capturable); give it without them: "
                "the operations of a step are the same"
            ) from error
        raise ValueError(f"{name} cannot step on shapes alone ({reason}); count the model without it") from error
    return recorder.calls


def _learn_state(built: torch.optim.Optimizer, owner_of: dict[int, int]) -> None:
    for parameter, state in built.state.items():
        for value in state.values():
            if isinstance(value, Tensor) and value.numel() == parameter.numel():
                owner_of[storage_of(value)] = owner_of[storage_of(parameter)]


class _StepRecorder(TorchDispatchMode):
    """Note the operators of a step; a result belongs to the parameter of the first tensor it was made from.

    A number that the step reads (a norm that bounds the rate) is taken to be 1: no count depends on it.
    """

    def __init__(self, owner_of: dict[int, int]) -> None:
        super().__init__()
        self.owner_of = owner_of
        self.calls: list[Call] = []
        self._weights = set(owner_of)
        self._temporary: dict[int, Tensor] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        operator = operator_of(func)
        if operator.name == "_local_scalar_dense" and args[0].is_meta:
            return args[0].new_ones((), device="cpu").item()
        owner = next((self.owner_of[storage_of(tensor)] for tensor in tensors_in(args)
                      if storage_of(tensor) in self.owner_of), 0)  # fmt: skip
        noted = functools.partial(spec_of, weights=self._weights)
        specs, keyword_specs = mapped(args, noted), {key: mapped(value, noted) for key, value in kwargs.items()}
        result = func(*args, **kwargs)
        if not any(tensor.is_meta for tensor in tensors_in(args)):
            return result  # the count of steps and the profiler's marks
        results = list(tensors_in((result,)))
        owners = [self.owner_of[storage_of(tensor)] for tensor in args[0]] if isinstance(args[0], list | tuple) else []
        for place, tensor in enumerate(results):
            self.keep(tensor, owners[place] if place < len(owners) else owner)
        if operator.name.startswith("_foreach_"):
            self._note_each(operator, args, specs, keyword_specs)
        elif not operator.is_free:
            outputs = [noted(tensor) for tensor in results]
            self.calls.append(Call(operator, specs, keyword_specs, outputs, owner))
        return result

    def keep(self, tensor: Tensor, owner: int) -> None:
        """Keep a tensor of the step, so that no other takes its place in memory, and whose it is."""
        self._temporary[storage_of(tensor)] = tensor
        self.owner_of.setdefault(storage_of(tensor), owner)

    def _note_each(self, operator: Operator, args: tuple, specs: tuple, options: dict) -> None:
        """Note an operator over lists of tensors as one call of the plain operator for each."""
        name = operator.name.removeprefix("_foreach_")
        for place, tensor in enumerate(args[0]):
            own = tuple(value[place] if isinstance(value, tuple) else value for value in specs)
            owner = self.owner_of[storage_of(tensor)]
            if name in ("addcmul", "addcdiv") and len(own) > 3:
                options = {"value": own[3]}
            self.calls.append(Call(operator._replace(name=name), own, options, [own[0]], owner))
