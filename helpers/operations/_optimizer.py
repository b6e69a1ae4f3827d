"""Count one step of an optimizer by letting it step on parameters that have shapes only."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import steps
from helpers.operations._specs import (
    Call,
    Operator,
    is_dense,
    map_tensors,
    operator_of,
    shape_only,
    spec_of,
    storage_of,
    tensors_in,
)


def optimizer_calls(
    parameters: Sequence[Tensor], owners: Sequence[int], factory: steps.OptimizerFactory
) -> list[Call]:
    """Return the operators of the second step (state exists, every gradient is given), each with
    its owner.

    Raises what :func:`helpers.steps.made_optimizer` raises, and ValueError where the optimizer
    cannot step on parameters without data.
    """
    if not parameters:
        return []
    copies = [nn.Parameter(shape_only(parameter)) for parameter in parameters]
    optimizer = steps.made_optimizer(factory, copies)
    owner_of = dict(zip(map(id, copies), owners, strict=True))
    try:
        for _ in range(2):
            for copy in copies:
                copy.grad = shape_only(copy)
            recorder = OptimizerRecorder(owners_of_storages(optimizer, owner_of))
            with recorder:
                optimizer.step()
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        name, reason = type(optimizer).__name__, steps.first_line(error)
        if "supported devices" in reason:
            raise ValueError(
                f"{name} cannot step on shapes with options for a device (fused, capturable); give "
                "it without them: the operations of a step are the same"
            ) from error
        raise ValueError(
            f"{name} cannot step on shapes alone ({reason}); count the model without it"
        ) from error
    return recorder.calls


def owners_of_storages(
    optimizer: torch.optim.Optimizer, owner_of: Mapping[int, int]
) -> dict[int, int]:
    """Return whose each storage is that a step begins with: a parameter's, its gradient's, its
    state's.

    ``owner_of`` has the owners by the parameters' ids; one that is not there belongs to 0.
    """
    owners: dict[int, int] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state_tensors = [
                value
                for value in optimizer.state.get(parameter, {}).values()
                if isinstance(value, Tensor) and value.numel() == parameter.numel()
            ]
            for tensor in (parameter, parameter.grad, *state_tensors):
                if tensor is not None and is_dense(tensor):
                    owners[storage_of(tensor)] = owner_of.get(id(parameter), 0)
    return owners


class OptimizerRecorder(TorchDispatchMode):
    """Note the operators of a step; a result belongs to the parameter of the first tensor it was
    made from.

    What is made of no parameter, gradient or state is not noted: the count of steps, the profiler's
    marks. A number that a step on shapes reads (a norm that bounds the rate) is taken to be 1: no
    count depends on it.
    """

    def __init__(self, owner_of: dict[int, int]) -> None:
        super().__init__()
        self.owner_of = owner_of
        self.calls: list[Call] = []
        self._weights = set(owner_of)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        operator = operator_of(func)
        if operator.name == "_local_scalar_dense" and args[0].is_meta:
            return args[0].new_ones((), device="cpu").item()
        storages = [storage_of(tensor) for tensor in tensors_in(args)]
        owners = [self.owner_of[storage] for storage in storages if storage in self.owner_of]
        make_spec = functools.partial(spec_of, weights=self._weights)
        specs, keyword_specs = map_tensors((args, kwargs), make_spec)
        result = func(*args, **kwargs)
        results = list(tensors_in((result,)))
        if not all(map(is_dense, results)):  # whoever counts names it
            return result
        if not owners:
            # it may stand where a temporary of a parameter stood
            for tensor in results:
                self.owner_of.pop(storage_of(tensor), None)
            return result
        has_owner_each = 1 < len(results) <= len(owners)
        for index, tensor in enumerate(results):
            self.owner_of[storage_of(tensor)] = owners[index if has_owner_each else 0]
        if not operator.is_free:
            outputs = [make_spec(tensor) for tensor in results]
            self.calls += split_foreach(
                Call(operator, specs, keyword_specs, outputs, owners[0]), operator, owners
            )
        return result


def split_foreach(call: Call, operator: Operator, owners: Sequence[int]) -> Iterator[Call]:
    """Yield the call; one over lists of tensors as a call of the plain operator for each, with an
    owner each.
    """
    name = operator.name.removeprefix("_foreach_")
    if name == operator.name:
        yield call
        return
    for index in range(len(call.args[0])):
        args = tuple(value[index] if isinstance(value, tuple) else value for value in call.args)
        options = (
            {"value": args[3]} if name in ("addcmul", "addcdiv") and len(args) > 3 else call.kwargs
        )
        owner = owners[index] if index < len(owners) else call.owner
        yield Call(operator._replace(name=name), args, options, [args[0]], owner)
