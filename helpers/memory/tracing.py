"""The life of every tensor of a step, found without computing anything.

The step runs on fake tensors (torch._subclasses.FakeTensorMode): they have a shape, a type and a storage of their
own, and no data. PyTorch's own Python, C++ and autograd engine decide when each is made and dropped, so the order
of allocations and releases is theirs, not a model of it. What fake tensors cannot show is what an operator takes
inside itself: that is :mod:`helpers.memory.probing`.
"""

from __future__ import annotations

import importlib
import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from helpers.memory import attribution, steps
from helpers.memory.trace import Operator, Release, TensorSpec, Trace
from helpers.operations.shapes import check_positions

_NOT_OPERATORS = ("prim", "profiler")  # namespaces that only ask or annotate
_MATRIX_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot")
_CONSTANTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)


Observe = Callable[["Tracer", attribution.Layers], AbstractContextManager]


def traced(work: steps.Workload, observe: Observe = lambda _tracer, _layers: nullcontext()) -> Trace:
    """Run two steps of ``work`` on fake copies and return the life of every tensor.

    ``observe(tracer, layers)`` is a context around the second step, for those who want to see more of it.

    Raises ModelError when the step raises, or when what it does depends on the values of a tensor.
    """
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    with steps.undisturbed(work.device), torch.inference_mode(False):
        with FakeCopyMode(fake_mode), fake_mode:
            fake = steps.copied(work, copy_tensor=lambda tensor: fake_mode.from_tensor(tensor).clone())
        layers = attribution.Layers(fake.model)
        tracer = Tracer(fake_mode, layers)
        with _quiet_fakes(), _foreach_as_real(), _seen_generator_states(tracer), fake_mode, tracer, layers.watched():
            return _two_steps(fake, tracer, observe(tracer, layers))


class Tracer(TorchDispatchMode):
    """Write down each operator, the storages it made, and each release, in order."""

    def __init__(self, fake_mode: FakeTensorMode, layers: attribution.Layers) -> None:
        super().__init__()
        self.trace = Trace()
        self.phase = "preparation"
        self._fake_mode, self._layers = fake_mode, layers
        self._nodes, self._numbers = attribution.BackwardNodes(), attribution.SavedNumbers()
        self._alive: dict[int, tuple[int, weakref.ref]] = {}
        self._outside: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self._release(self._numbers.dropped_by(self._nodes.observe()))
        if function.namespace in _NOT_OPERATORS:
            return function(*args, **kwargs)
        if function not in _CONSTANTS:
            args, kwargs = pytree.tree_map_only(torch.Tensor, self._settled, (args, kwargs))
        if torch.Tag.data_dependent_output in function.tags and not _is_known(args):
            return self._unknown_value(function, args[0])
        _check_types(function, args)
        described = pytree.tree_map_only(torch.Tensor, self._described, (args, kwargs))
        try:
            outputs = function(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException) as error:
            raise self._data_dependent(function) from error
        made = tuple(
            (self.add(leaf), position)
            for position, leaf in enumerate(pytree.tree_leaves(outputs))
            if isinstance(leaf, torch.Tensor) and not self.knows(leaf)
        )
        self.write(function, made, described)
        number_bytes = self._numbers.saved_bytes(function, args)
        if number_bytes:
            storage = self._new_storage(number_bytes)
            self.write(None, ((storage, 0),))
            self._numbers.keep(storage)
        return outputs

    def write(self, function: Any, made: tuple[tuple[int, int], ...], arguments: Any = ((), {})) -> None:
        """Write down that ``function`` ran now and made these storages; None for what is no operator."""
        self.trace.events.append(
            Operator(
                function=function,
                arguments=arguments,
                made=made,
                phase=self.phase,
                layer=self._layers.of_operator(),
                grad_mode=torch.is_grad_enabled(),
                segment=self._nodes.segment,
                may_accumulate=self._nodes.may_accumulate,
            )
        )

    def enter(self, phase: str) -> None:
        """Begin a phase of the step; what only the backward graph kept ends with it."""
        if phase not in ("loss", "backward"):
            self._release(self._numbers.dropped_at_end())
        if self.phase in attribution.OUTSIDE_MODEL:
            self._layers.pop()
        if phase in attribution.OUTSIDE_MODEL:
            self._layers.push(attribution.OUTSIDE_MODEL[phase])
        self.phase = phase

    def _unknown_value(self, function: Any, tensor: torch.Tensor) -> float:
        """Answer an optimizer that reads a number it computed: it scales its update by it, whatever it is."""
        if self.phase != "optimizer" or function is not torch.ops.aten._local_scalar_dense.default:
            raise self._data_dependent(function)
        self.trace.uncertain.add("the optimizer reads a value that only the step would compute: 1 was taken for it")
        return 1.0 if tensor.is_floating_point() else 1

    def _data_dependent(self, function: Any) -> steps.ModelError:
        part = steps.PARTS.get(self.phase, "step")
        return steps.ModelError(
            f"the {part} looks at the values of a tensor ({function}), so what it stores depends on the data "
            "and cannot be told beforehand; measure_peak_memory measures it on your inputs"
        )

    def _release(self, storages: list[int]) -> None:
        self.trace.events.extend(Release(storage) for storage in storages)

    def _settled(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor's fake twin; one that was there before the step is known to be no part of the count."""
        twin = tensor if isinstance(tensor, FakeTensor) else self._fake_mode.from_tensor(tensor)
        if not self.knows(twin):
            self._outside[twin.untyped_storage()._cdata] = twin.untyped_storage()
        return twin

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor's storage has been seen."""
        _check_dense(tensor)
        key = tensor.untyped_storage()._cdata
        return key in self._alive or key in self._outside

    def number(self, tensor: torch.Tensor) -> int | None:
        """Return the number of the tensor's storage, None for one that is not counted."""
        known = self._alive.get(tensor.untyped_storage()._cdata)
        return known[0] if known else None

    def add(self, tensor: torch.Tensor) -> int:
        """Count the tensor's storage from now until its last reference is gone; return its number."""
        storage = tensor.untyped_storage()
        key, number = storage._cdata, self._new_storage(storage.nbytes())

        def gone(_: weakref.ref) -> None:
            del self._alive[key]
            self.trace.events.append(Release(number))

        self._alive[key] = (number, weakref.ref(storage, gone))
        return number

    def _new_storage(self, size_bytes: int) -> int:
        number = len(self.trace.storage_bytes)
        self.trace.storage_bytes[number] = size_bytes
        return number

    def alive(self) -> list[int]:
        """Return the numbers of the storages that are alive."""
        return [number for number, _ in self._alive.values()]

    def _described(self, tensor: torch.Tensor) -> TensorSpec:
        return TensorSpec(
            sizes=tuple(tensor.size()),
            strides=tuple(tensor.stride()),
            dtype=tensor.dtype,
            device=tensor.device,
            is_conj=tensor.is_conj(),
            is_neg=tensor.is_neg(),
            storage=self.number(tensor),
            is_view=tensor._is_view(),
        )


def _check_dense(tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        raise steps.ModelError(f"the step uses a tensor of layout {tensor.layout}; only dense tensors are handled")


def _check_types(function: Any, args: tuple[Any, ...]) -> None:
    """Raise where a real run would: fake tensors multiply bfloat16 by float32, and look floats up, without a word."""
    name, _, overload = function.__name__.partition(".")
    if name == "embedding":
        check_positions(args[1])
    if name.rstrip("_") not in _MATRIX_PRODUCTS or overload != "default":
        return
    types = sorted({str(leaf.dtype).removeprefix("torch.") for leaf in args if isinstance(leaf, torch.Tensor)})
    if len(types) > 1:
        raise RuntimeError(
            f"{function} is given {' and '.join(types)}, and a matrix product needs one type: give inputs of the "
            "model's type, such as x.to(model.weight.dtype)"
        )


def _is_known(args: tuple[Any, ...]) -> bool:
    """Return whether a fake tensor's value is known nevertheless, as that of a constant is."""
    return bool(args) and isinstance(args[0], FakeTensor) and args[0].constant is not None


def _two_steps(fake: steps.Workload, tracer: Tracer, second: AbstractContextManager) -> Trace:
    trace = tracer.trace
    _name_carried(fake, tracer)
    fake = steps.with_optimizer(fake)

    def enter(phase: str) -> None:
        tracer.enter(phase)
        if phase == "optimizer":
            _name_gradients(fake.model, tracer)

    for observed in (nullcontext(), second):
        steps.drop_gradients(fake)
        tracer.enter("preparation")
        _name_optimizer_state(fake, tracer)
        trace.gradients.clear()
        trace.carried, trace.start = tracer.alive(), len(trace.events)
        with observed:
            steps.run(fake, enter)
    _name_gradients(fake.model, tracer)
    return replace(trace, events=list(trace.events))  # the copy's own releases, which follow, are no part of it


def _name_carried(fake: steps.Workload, tracer: Tracer) -> None:
    groups = {
        "parameter": fake.model.named_parameters(),
        "buffer": fake.model.named_buffers(),
        "other": steps.kept_tensors(fake.model).items(),
    }
    named = [(category, *_split(name), tensor) for category, pairs in groups.items() for name, tensor in pairs]
    inputs = steps.tensors_of(fake.arguments)
    named += [("input", "", f"input {position}", tensor) for position, tensor in enumerate(inputs)]
    for category, layer, name, tensor in named:
        if not tracer.knows(tensor):
            tracer.trace.names[tracer.add(tensor)] = (category, layer, name)


def _name_optimizer_state(fake: steps.Workload, tracer: Tracer) -> None:
    if fake.optimizer is None:
        return
    owners = {id(parameter): _split(name) for name, parameter in fake.model.named_parameters()}
    for parameter, state in fake.optimizer.state.items():
        layer, name = owners.get(id(parameter), ("", "parameter"))
        for key, value in state.items():
            number = tracer.number(value) if isinstance(value, torch.Tensor) else None
            if number is not None:
                tracer.trace.names.setdefault(number, ("optimizer state", layer, f"{name}: {key}"))


def _name_gradients(model: nn.Module, tracer: Tracer) -> None:
    for name, parameter in model.named_parameters():
        number = None if parameter.grad is None else tracer.number(parameter.grad)
        if number is not None:
            tracer.trace.gradients.setdefault(number, _split(name))


def _split(name: str) -> tuple[str, str]:
    layer, _, leaf = name.rpartition(".")
    return layer, leaf


@contextmanager
def _quiet_fakes() -> Iterator[None]:
    """Keep PyTorch from logging the traceback of an error that is raised anyway."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    with mock.patch.object(logger, "disabled", True):
        yield


@contextmanager
def _foreach_as_real() -> Iterator[None]:
    """Let optimizers choose for fake parameters the implementation that they choose for real ones."""
    module = importlib.import_module("torch.optim.optimizer")  # torch.optim hides the module's name
    with mock.patch.object(module, "_foreach_supported_types", [*module._foreach_supported_types, FakeTensor]):
        yield


@contextmanager
def _seen_generator_states(tracer: Tracer) -> Iterator[None]:
    """See the states of the random generator that checkpointing keeps: no operator makes them."""
    real = torch.get_rng_state

    def get_rng_state() -> torch.Tensor:
        with _disable_current_modes():
            state = real()
        tracer.write(None, ((tracer.add(state), 0),))
        return state

    with mock.patch.object(torch, "get_rng_state", get_rng_state):
        yield
