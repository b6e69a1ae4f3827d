"""The life of every tensor of a step, found without computing anything.

The step runs on fake tensors (torch._subclasses.FakeTensorMode): they have a shape, a type and a storage of their
own, and no data. PyTorch's own Python, C++ and autograd engine decide when each is made and dropped, so the order
of allocations and releases is theirs, not a model of it. What fake tensors cannot show is what an operator takes
inside itself: that is :mod:`helpers.memory.probing`.
"""

from __future__ import annotations

import bisect
import gc
import importlib
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.memory import steps

_NOT_OPERATORS = ("prim", "profiler")  # namespaces that only ask or annotate
_CONSTANTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)


@dataclass(frozen=True)
class TensorSpec:
    """All of a tensor but its data; ``storage`` is the trace's number for its storage, None for one not counted."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    storage: int | None = field(compare=False)
    is_view: bool = field(compare=False)


@dataclass(frozen=True)
class Operator:
    """One operator that ran: its arguments with tensors as :class:`TensorSpec`, and the storages it made."""

    function: torch._ops.OpOverload | None  # None for an allocation outside PyTorch's operators
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    made: tuple[tuple[int, int], ...]  # (storage, its position among the tensors that the operator returned)
    phase: str
    layer: str
    grad_mode: bool  # some kernels keep more when gradients are recorded
    segment: int  # counts the nodes of the backward graph as they run; 0 outside
    may_accumulate: bool  # an earlier node has already sent a gradient to where this one's goes


@dataclass(frozen=True)
class Release:
    """A storage whose last reference is gone."""

    storage: int


@dataclass
class Trace:
    """Two steps, the second from ``start`` in ``events``; ``storage_bytes`` by storage number."""

    events: list[Operator | Release] = field(default_factory=list)
    storage_bytes: dict[int, int] = field(default_factory=dict)
    names: dict[int, tuple[str, str, str]] = field(default_factory=dict)  # carried: category, layer, name
    gradients: dict[int, tuple[str, str]] = field(default_factory=dict)  # of parameters: layer, name
    carried: list[int] = field(default_factory=list)  # alive when the second step starts
    start: int = 0


class _Tracer(TorchDispatchMode):
    """Write down each operator, the storages it made, and each release, in order."""

    def __init__(self, fake_mode: FakeTensorMode, layers: _Layers) -> None:
        super().__init__()
        self.trace = Trace()
        self._fake_mode, self._layers = fake_mode, layers
        self._alive: dict[int, tuple[int, weakref.ref]] = {}
        self._outside: dict[int, torch.UntypedStorage] = {}
        self._backward = _BackwardNodes()
        self._next = 0
        self.phase = "prepare"

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # noqa: ANN001, ANN204, ARG002
        kwargs = kwargs or {}
        self._backward.observe()
        if function.namespace in _NOT_OPERATORS:
            return function(*args, **kwargs)
        if function not in _CONSTANTS:
            args, kwargs = pytree.tree_map_only(torch.Tensor, self._settled, (args, kwargs))
        if self.phase != "prepare" and torch.Tag.data_dependent_output in function.tags:
            _check_known(function, args, self.phase)
        described = pytree.tree_map_only(torch.Tensor, self.describe, (args, kwargs))
        outputs = function(*args, **kwargs)
        made = tuple(
            (self.add(leaf), position)
            for position, leaf in enumerate(pytree.tree_leaves(outputs))
            if isinstance(leaf, torch.Tensor) and not self.knows(leaf)
        )
        self.write(function, described, made)
        self._numbers.observe(function, args)
        return outputs

    def write(self, function: Any, arguments: Any, made: tuple[tuple[int, int], ...]) -> None:
        layer = self._layers.of_operator()
        nodes = self._backward
        self.trace.events.append(
            Operator(function, arguments, made, self.phase, layer, torch.is_grad_enabled(), nodes.segment, nodes.may_accumulate)
        )

    def _settled(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake twin of a tensor; one that was there before the step is known to be no part of the count."""
        twin = tensor if isinstance(tensor, FakeTensor) else self._fake_mode.from_tensor(tensor)
        if not self.knows(twin):
            self._outside[twin.untyped_storage()._cdata] = twin.untyped_storage()
        return twin

    def knows(self, tensor: torch.Tensor) -> bool:
        key = tensor.untyped_storage()._cdata
        return key in self._alive or key in self._outside

    def number(self, tensor: torch.Tensor) -> int | None:
        known = self._alive.get(tensor.untyped_storage()._cdata)
        return known[0] if known else None

    def add(self, tensor: torch.Tensor) -> int:
        """Count the tensor's storage from now until its last reference is gone; return its number."""
        storage = tensor.untyped_storage()
        key, number = storage._cdata, self._next
        self._next += 1
        self.trace.storage_bytes[number] = storage.nbytes()

        def gone(_: weakref.ref) -> None:
            del self._alive[key]
            self.trace.events.append(Release(number))

        self._alive[key] = (number, weakref.ref(storage, gone))
        return number

    def alive(self) -> list[int]:
        return [number for number, _ in self._alive.values()]

    def describe(self, tensor: torch.Tensor) -> TensorSpec:
        if tensor.layout != torch.strided:
            raise steps.ModelError(f"the step makes a {tensor.layout} tensor; only dense tensors are handled")
        return TensorSpec(
            tuple(tensor.size()),
            tuple(tensor.stride()),
            tensor.dtype,
            tensor.device,
            storage=self.number(tensor),
            is_view=tensor._is_view(),
        )


class _BackwardNodes:
    """Which node of the backward graph runs, and whether gradients already wait where it sends its own."""

    def __init__(self) -> None:
        self.segment = 0
        self.may_accumulate = False
        self.sequence_number: int | None = None
        self._count = 0
        self._current: Any = None
        self._targets: set[Any] = set()
        self._filled: set[Any] = set()

    def observe(self) -> None:
        node = torch._C._current_autograd_node()
        if node is None:
            self.__init_outside()
            return
        key = (node.name(), _node_key(node))
        if key == self._current:
            return
        self._filled |= self._targets
        self._current = key
        self._count += 1
        self.segment = self._count
        self.sequence_number = node._sequence_nr()
        self._targets = {(_node_key(target), slot) for target, slot in node.next_functions if target is not None}
        self.may_accumulate = bool(self._targets & self._filled)

    def __init_outside(self) -> None:
        self.segment, self.may_accumulate, self.sequence_number = 0, False, None
        self._current, self._targets, self._filled = None, set(), set()


def _node_key(node: Any) -> Any:
    """Return what tells a node from every other: its number, and for a parameter's node the parameter."""
    return id(node.variable) if hasattr(node, "variable") else node._sequence_nr()


class _Layers:
    """Which module an operator belongs to: the innermost that runs, or in backward the one that made the node."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._running: list[str] = []
        self._starts: list[int] = []  # of the backward graph's sequence numbers
        self._owners: list[str] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Follow the modules by hooks that are global: a hook of its own would change what some modules do."""
        module = torch.nn.modules.module
        before = module.register_module_forward_pre_hook(self._enter)
        after = module.register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _enter(self, module: nn.Module, _inputs: Any) -> None:
        if id(module) in self._names:
            self._running.append(self._names[id(module)])
            self._note()

    def _leave(self, module: nn.Module, _inputs: Any, _outputs: Any) -> None:
        if id(module) in self._names:
            self._running.pop()
            self._note()

    def _note(self) -> None:
        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._owners.append(self._running[-1] if self._running else "")

    def of_operator(self) -> str:
        node = torch._C._current_autograd_node()
        if self._running or node is None:
            return self._running[-1] if self._running else ""
        found = bisect.bisect_right(self._starts, node._sequence_nr()) - 1
        return self._owners[found] if 0 <= found else ""


def _check_known(function: Any, args: tuple[Any, ...], phase: str) -> None:
    value = args[0] if args else None
    if isinstance(value, FakeTensor) and value.constant is not None:
        return
    where = "optimizer" if phase == "optimizer" else "model or its loss"
    raise steps.ModelError(
        f"the {where} looks at the values of a tensor ({function}), so what it stores depends on the data and cannot "
        "be told beforehand; measure_peak_memory measures it on your inputs"
    )


def traced(work: steps.Workload) -> Trace:
    """Run two steps of ``work`` on fake copies and return the life of every tensor.

    Raises ModelError when the step raises, or when what it does depends on the values of a tensor.
    """
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    with _without_garbage_collection(), steps.preserved_generators(work.device), torch.inference_mode(False):
        with FakeCopyMode(fake_mode), fake_mode:
            fake = steps.copied(work, copy_tensor=lambda tensor: fake_mode.from_tensor(tensor).clone())
        layers = _Layers(fake.model)
        tracer = _Tracer(fake_mode, layers)
        with _foreach_as_real(), _seen_generator_states(tracer), fake_mode, tracer, layers.watched():
            return _two_steps(fake, tracer)


def _two_steps(fake: steps.Workload, tracer: _Tracer) -> Trace:
    trace = tracer.trace
    _name_carried(fake, tracer)

    def enter(phase: str) -> None:
        tracer.phase = phase
        if phase == "optimizer":
            _name_gradients(fake.model, tracer)

    for _ in range(2):
        steps.drop_gradients(fake.model)
        _name_optimizer_state(fake, tracer)
        trace.gradients.clear()
        trace.carried, trace.start = tracer.alive(), len(trace.events)
        steps.run(fake, enter)
    _name_gradients(fake.model, tracer)
    return replace(trace, events=list(trace.events))  # the releases of the copy itself, which follow, are no part of it


def _name_carried(fake: steps.Workload, tracer: _Tracer) -> None:
    groups = {"parameter": fake.model.named_parameters(), "buffer": fake.model.named_buffers()}
    named = [(category, *_split(name), tensor) for category, pairs in groups.items() for name, tensor in pairs]
    inputs = [leaf for leaf in pytree.tree_leaves(fake.arguments) if isinstance(leaf, torch.Tensor)]
    named += [("input", "", f"input {position}", tensor) for position, tensor in enumerate(inputs)]
    for category, layer, name, tensor in named:
        if not tracer.knows(tensor):
            tracer.trace.names[tracer.add(tensor)] = (category, layer, name)


def _name_optimizer_state(fake: steps.Workload, tracer: _Tracer) -> None:
    if fake.optimizer is None:
        return
    owners = {id(parameter): _split(name) for name, parameter in fake.model.named_parameters()}
    for parameter, state in fake.optimizer.state.items():
        layer, name = owners.get(id(parameter), ("", "parameter"))
        for key, value in state.items():
            number = tracer.number(value) if isinstance(value, torch.Tensor) else None
            if number is not None:
                tracer.trace.names.setdefault(number, ("optimizer state", layer, f"{name}: {key}"))


def _name_gradients(model: nn.Module, tracer: _Tracer) -> None:
    for name, parameter in model.named_parameters():
        number = None if parameter.grad is None else tracer.number(parameter.grad)
        if number is not None:
            tracer.trace.gradients.setdefault(number, _split(name))


def _split(name: str) -> tuple[str, str]:
    layer, _, leaf = name.rpartition(".")
    return layer, leaf


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Keep the collector from running at a moment of its own choice, in the estimate as in the measurement."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


without_garbage_collection = _without_garbage_collection


@contextmanager
def _foreach_as_real() -> Iterator[None]:
    """Let optimizers choose for fake parameters the implementation that they choose for real ones."""
    module = importlib.import_module("torch.optim.optimizer")  # torch.optim hides the module's name
    with mock.patch.object(module, "_foreach_supported_types", [*module._foreach_supported_types, FakeTensor]):
        yield


@contextmanager
def _seen_generator_states(tracer: _Tracer) -> Iterator[None]:
    """See the states of the random generator that checkpointing keeps: no operator makes them."""
    real = torch.get_rng_state

    def get_rng_state() -> torch.Tensor:
        with torch.utils._python_dispatch._disable_current_modes():
            state = real()
        tracer.write(None, ((), {}), ((tracer.add(state), 0),))
        return state

    with mock.patch.object(torch, "get_rng_state", get_rng_state):
        yield
