"""The life of every tensor of a step, found without computing anything.

The step runs on fake tensors (torch._subclasses.FakeTensorMode): they have a shape, a type and a
storage of their own, and no data. PyTorch's own Python, C++ and autograd engine decide when each is
made and dropped, so the order of allocations and releases is theirs, not a model of it. What fake
tensors cannot show is what an operator takes inside itself: that is :mod:`helpers.memory._probing`.
Nor have they values: :mod:`helpers.memory._values` has those that a model may ask for.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.nn.utils import rnn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from helpers import steps
from helpers.memory import _attribution as attribution, _disguise as disguise
from helpers.memory._events import (
    Layouts,
    MadeStorage,
    Release,
    StepTrace,
    TensorSpec,
    TracedOperator,
    key_of,
    leaves_of,
    strides_of,
)
from helpers.memory._values import KnownValues, key_of_storage, written_tensors
from helpers.operations._shapes import MATRIX_PRODUCTS, batch_sizes, check_positions, check_types

_NOT_OPERATORS = ("prim", "profiler")  # namespaces that only ask or annotate
_CONSTANTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)
_BY_VALUES = (
    torch.ops.aten.index_put_.default,
    torch.ops.aten.index_put.default,
    torch.ops.aten._pack_padded_sequence.default,
)
_BACKWARD_BY_VALUES = ("prod", "cumprod")
_GROUPED_PRODUCTS = ("_grouped_mm", "_scaled_grouped_mm")

Observe = Callable[["Tracer"], AbstractContextManager]


def trace_step(
    step: steps.Step, observe: Observe = nullcontext, layouts: Layouts | None = None
) -> StepTrace:
    """Run two steps like ``step`` on fake copies and return the life of every tensor.

    ``observe(tracer)`` is a context around the second step, for those who want to see more
    of it. ``layouts`` has the strides that an operator's results really have, where PyTorch's fake
    ones have others.

    Raises ModelError when the step raises, or when what it does depends on the values of a tensor.
    """
    with steps.undisturbed(), torch.inference_mode(False), steps.nothing_left(step.model):
        return _trace_undisturbed(step, observe, layouts or {})


def _trace_undisturbed(step: steps.Step, observe: Observe, layouts: Layouts) -> StepTrace:
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    values = KnownValues()
    copier = _Copier(fake_mode, step.runs_on, values)
    with copier, fake_mode, _copy_generators():
        fake_step = steps.copied(step, copy_tensor=copier.copy_tensor, refill=values.learn)
    layers = attribution.Layers(fake_step.model)
    tracer = Tracer(fake_mode, layers, step, values, layouts)
    opaque_sentences = (
        f"a {name} cannot be looked into: tensors that it holds are not counted"
        for name in steps.opaque_classes(step.model, step.arguments)
    )
    tracer.trace.uncertain.update(step.assumed, opaque_sentences)
    with (
        steps.in_one_thread(fake_step.model),
        steps.uncompiled(),
        disguise.quiet_fakes(),
        disguise.hide_fakes(),
        disguise.foreach_as_real(step),
        disguise.see_generator_states(tracer.write_state),
        _write_lengths(tracer),
        disguise.see_sizes(tracer.write_resized),
        fake_mode,
        tracer,
        layers.watch(),
    ):
        return _run_two_steps(fake_step, tracer, observe(tracer))


def _copy_generators() -> AbstractContextManager:
    """Let :func:`copy.deepcopy` copy a random generator where its state would be a fake tensor."""

    def copy_generator(generator: torch.Generator, memo: dict[int, Any]) -> torch.Generator:
        with _disable_current_modes():
            return memo.setdefault(id(generator), generator.clone_state())

    return mock.patch.dict(vars(copy)["_deepcopy_dispatch"], {torch.Generator: copy_generator})


class _Copier(TorchFunctionMode):
    """Copy tensors into fake ones on ``device``, wherever they lie, and keep the values of small
    integer tensors.
    """

    def __init__(
        self, fake_mode: FakeTensorMode, device: torch.device, values: KnownValues
    ) -> None:
        super().__init__()
        self._fake_mode, self._device, self._values = fake_mode, device, values

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch._C.TensorBase.clone:  # a parameter's deepcopy asks for one
            return self.copy_tensor(args[0])
        if function is torch.Tensor.__deepcopy__:
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = self._values.learn(self._make_fake(tensor), tensor)
            return memo[id(tensor)]
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    def copy_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake copy in memory of its own."""
        with torch._C.DisableTorchFunction():
            return self._values.learn(self._make_fake(tensor).clone(), tensor)

    def _make_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == self._device:
            return self._fake_mode.from_tensor(tensor, static_shapes=True)
        strided = torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device=self._device
        )
        return strided.requires_grad_(tensor.requires_grad)


@dataclass
class _Alive:
    """A storage that is alive: its number, what tells of its end, and its size."""

    number: int
    end: weakref.ref
    size_bytes: int
    is_free: bool


class Tracer(TorchDispatchMode):
    """Write down each operator, the storages it made, and each release, in order."""

    supports_higher_order_operators = True

    def __init__(
        self,
        fake_mode: FakeTensorMode,
        layers: attribution.Layers,
        step: steps.Step,
        values: KnownValues,
        layouts: Layouts,
    ) -> None:
        super().__init__()
        self.trace = StepTrace()
        self.phase = "preparation"
        self.makes_lengths = False  # PyTorch writes them in memory, without an operator
        self._fake_mode, self.layers = fake_mode, layers
        self._values, self._layouts = values, layouts
        self._device, self._runs_on = step.device, step.runs_on
        self._nodes = attribution.BackwardNodes()
        # the storages of numbers that a node of the backward graph still keeps
        self._saved_numbers: dict[Any, list[int]] = defaultdict(list)
        self._alive: dict[int, _Alive] = {}
        self._outside: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self._release(self._saved_numbers.pop(self._nodes.observe(), []))
        if function.namespace in _NOT_OPERATORS:
            return function(*args, **kwargs)
        if function.__name__.startswith("_nested_"):
            raise steps.ModelError(
                "the step makes a nested tensor, and only dense tensors are handled: give "
                "nn.TransformerEncoder enable_nested_tensor=False, or measure the step with "
                "measure_peak_memory"
            )
        if isinstance(function, torch._ops.HigherOrderOperator):
            self.trace.uncertain.add(
                f"{function} is followed operator by operator: compiled it may keep others alive"
            )
            with self:
                return function.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd](
                    *args, **kwargs
                )
        if function not in _CONSTANTS:
            args, kwargs = pytree.tree_map_only(torch.Tensor, self._fake_twin, (args, kwargs))
        if (
            torch.Tag.data_dependent_output in function.tags
            and getattr(args[0], "constant", None) is None
        ):
            known_values = self._values.compute(function, args, kwargs)
            self._note_draws(args, kwargs)
            if self._values.takes_finite:
                self.trace.uncertain.add(
                    "the model asks whether its activations are finite numbers: they are taken so"
                )
            return known_values[0] if known_values else self._unknown_value(function, args[0])
        self._check_operands(function, args)
        self._note_values(function, args)
        describe = functools.partial(self._describe, function)
        argument_specs = pytree.tree_map_only(torch.Tensor, describe, (args, kwargs))
        outputs = self._outputs(function, args, kwargs, argument_specs)
        pytree.tree_map_only(torch.Tensor, _check_dense, outputs)
        if function in _CONSTANTS:
            self._values.keep(outputs, args[0])
        else:
            self._values.follow(function, args, kwargs, outputs)
        made_storages = tuple(
            MadeStorage(
                self.add(leaf, is_free=self._is_free(leaf, function)), position, strides_of(leaf)
            )
            for position, leaf in enumerate(pytree.tree_leaves(outputs))
            if isinstance(leaf, torch.Tensor) and not self.knows(leaf)
        )
        resized_storages, gone = self._note_resized(function, args, kwargs, outputs)
        self.write(function, (*made_storages, *resized_storages), argument_specs)
        self._release(gone)
        number_bytes = attribution.saved_number_bytes(function, args)
        if number_bytes and self._device.type == "cpu":
            storage = self._new_storage(number_bytes)
            self.write(None, (MadeStorage(storage),))
            last_node = torch._C._autograd._get_sequence_nr() - 1  # that autograd made
            self._saved_numbers[last_node].append(storage)
        return outputs

    def _note_resized(
        self, function: Any, args: Any, kwargs: Any, outputs: Any
    ) -> tuple[list[MadeStorage], list[int]]:
        """Return the storages to which ``function`` gave another size, as they are now, and the
        numbers of what they were: each is a new one, and the old one is gone.
        """
        resized_storages, gone = [], []
        for tensor in written_tensors(function, args, kwargs):
            numbers = self._renumber(tensor.untyped_storage())
            if numbers is None:
                continue
            gone.append(numbers[0])
            made_storage = MadeStorage(numbers[1])
            for position, leaf in enumerate(leaves_of(torch.Tensor, outputs)):
                if key_of_storage(leaf) == key_of_storage(tensor):
                    made_storage = MadeStorage(numbers[1], position, strides_of(leaf))
                    break
            resized_storages.append(made_storage)
        return resized_storages, gone

    def _renumber(self, storage: torch.UntypedStorage) -> tuple[int, int] | None:
        """Return the old and the new number of a storage that has another size than before, None
        where it has not.
        """
        alive = self._alive.get(storage._cdata)
        if alive is None or alive.size_bytes == storage.nbytes():
            return None
        alive.size_bytes = storage.nbytes()
        old = alive.number
        alive.number = self._new_storage(0 if alive.is_free else alive.size_bytes)
        if old in self.trace.names:
            self.trace.names[alive.number] = self.trace.names[old]
        return old, alive.number

    def write_resized(self, storage: torch.UntypedStorage) -> None:
        """Write down that the model gave a storage another size itself, which no operator shows."""
        numbers = self._renumber(storage)
        if numbers is not None:
            self._values.forget(storage._cdata)
            self.write(None, (MadeStorage(numbers[1]),))
            self._release([numbers[0]])

    def _check_operands(self, function: Any, args: tuple[Any, ...]) -> None:
        """Raise where a real run would: fake tensors multiply any types, and look up any row of a
        table and any class.
        """
        name, _, overload = function.__name__.partition(".")
        if name.rstrip("_") in MATRIX_PRODUCTS and overload == "default":
            check_types(function, leaves_of(torch.Tensor, args))
        if name == "embedding":
            check_positions(args[1])
            looked_up, size, ignored_index = "rows of an embedding", args[0].shape[0], None
        elif name in ("nll_loss_forward", "nll_loss2d_forward"):
            looked_up, ignored_index = "classes of a loss", args[4]
            size = args[0].shape[-1 if args[0].dim() == 1 else 1]
        else:
            return
        values = self._values.of(args[1])
        if values is None:
            return
        with _disable_current_modes():
            indices = values.unique().tolist()
        for index in indices:
            if not 0 <= index < size and index != ignored_index:
                raise IndexError(
                    f"index {index} is out of range: the {looked_up} are 0 to {size - 1}"
                )

    def _outputs(self, function: Any, args: Any, kwargs: Any, argument_specs: Any) -> Any:
        """Return the operator's fake results: as many and as large as the known values make them,
        and as laid out.
        """
        try:
            outputs = self._fake_outputs(function, args, kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException) as error:
            outputs = self._outputs_by_values(function, args, kwargs)
            if outputs is None:
                raise self._data_dependent_error(function) from error
            self._note_draws(args, kwargs)
        strides = self._layouts and self._layouts.get(
            key_of(function, torch.is_grad_enabled(), argument_specs)
        )
        if not strides:
            return outputs
        leaves, shape = pytree.tree_flatten(outputs)
        for position, real_strides in strides.items():
            leaves[position] = leaves[position].new_empty_strided(
                leaves[position].size(), real_strides
            )
        return pytree.tree_unflatten(leaves, shape)

    def _note_draws(self, args: Any, kwargs: Any) -> None:
        if self._values.are_drawn(args, kwargs):
            self.trace.uncertain.add(
                "the step asks what a random draw gave: one draw was taken, another may differ"
            )

    def _note_values(self, function: Any, args: Any) -> None:
        """Note what takes memory by the values that it is given, and what was assumed of them."""
        name = function._schema.name.removeprefix("aten::")
        if name == "linalg_matrix_exp":
            self.trace.uncertain.add(
                f"{function} takes inside what the values of its operand ask for: counted at zeros"
            )
        if name in _BACKWARD_BY_VALUES and torch.is_grad_enabled() and args[0].requires_grad:
            self.trace.uncertain.add(
                f"the backward pass of {function} takes less where no factor is zero: counted as "
                "if one is"
            )

    def _fake_outputs(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Return PyTorch's fake results; it knows those of grouped products in bfloat16
        only.
        """
        if (
            self.makes_lengths
            and function is torch.ops.aten.empty.memory_format
            and kwargs.get("dtype") == torch.int64
        ):
            with _disable_current_modes():
                return function(*args, **kwargs)
        is_grouped = function.__name__.partition(".")[0] in _GROUPED_PRODUCTS
        if not is_grouped or args[0].dtype == torch.bfloat16:
            return function(*args, **kwargs)
        bfloat16_operands = [operand.to(torch.bfloat16) for operand in args[:2]]
        product = function(*bfloat16_operands, *args[2:], **kwargs)
        return product.new_empty_strided(product.size(), product.stride(), dtype=args[0].dtype)

    def _outputs_by_values(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Return fake results whose sizes hang on values that are known; None where they are
        not.
        """
        if function is torch.ops.aten._pack_padded_sequence.default:
            return self._pack(*args)
        known_values = self._values.compute(function, args, kwargs)
        if known_values is not None:
            return pytree.tree_map_only(torch.Tensor, self._fake_like, known_values[0])
        if function is not torch.ops.aten.index.Tensor:
            return None
        indices: list[torch.Tensor | None] = []
        for index in args[1]:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                indices.append(index)
            elif (mask := self._values.of(index)) is not None:
                with _disable_current_modes():
                    positions = mask.nonzero(as_tuple=True)
                indices += map(self._fake_like, positions)
            else:
                return None
        return function(args[0], indices)

    def _pack(self, data: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
        """Return packed data, and real sizes: PyTorch reads them in memory, without an operator."""
        known_lengths = self._values.of(lengths)
        if known_lengths is None:
            return None
        with _disable_current_modes():
            sizes = batch_sizes(data, known_lengths.tolist(), batch_first)
            real_sizes = torch.tensor(sizes)
        return data.new_empty((sum(sizes), *data.shape[2:])), real_sizes

    def _fake_like(self, real: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(
            real.size(), real.stride(), dtype=real.dtype, device=self._runs_on
        )

    def write(
        self, function: Any, made_storages: tuple[MadeStorage, ...], arguments: Any = ((), {})
    ) -> None:
        """Write down that ``function`` ran now and made these storages; None for what is no
        operator.
        """
        self.trace.events.append(
            TracedOperator(
                function=function,
                arguments=arguments,
                made_storages=made_storages,
                phase=self.phase,
                layer=self.layers.of_operator(),
                grad_mode=torch.is_grad_enabled(),
                segment=self._nodes.segment,
                may_accumulate=self._nodes.may_accumulate,
            )
        )

    def write_state(self, state: torch.Tensor) -> None:
        """Write down that a state of the CPU's generator was made, which takes nothing of a GPU."""
        self.write(None, (MadeStorage(self.add(state, is_free=self._device.type != "cpu")),))

    def enter(self, phase: str) -> None:
        """Begin a phase of the step; what only the backward graph kept ends with it."""
        if phase not in ("loss", "backward"):
            for storages in self._saved_numbers.values():
                self._release(storages)
            self._saved_numbers.clear()
        if self.phase in attribution.OUTSIDE_MODEL:
            self.layers.pop()
        if phase in attribution.OUTSIDE_MODEL:
            self.layers.push(attribution.OUTSIDE_MODEL[phase])
        self.phase = phase

    def _unknown_value(self, function: Any, tensor: torch.Tensor) -> float:
        """Answer an optimizer that reads a number it computed: it scales its update by it, whatever
        it is.
        """
        if self.phase != "optimizer" or function is not torch.ops.aten._local_scalar_dense.default:
            raise self._data_dependent_error(function)
        self.trace.uncertain.add(
            "the optimizer reads a value that only the step would compute: 1 was taken for it"
        )
        return 1.0 if tensor.is_floating_point() else 1

    def _data_dependent_error(self, function: Any) -> steps.ModelError:
        part = steps.PARTS.get(self.phase, "step")
        return steps.ModelError(
            f"the {part} looks at the values of a tensor ({function}), so what it stores depends "
            "on the data and cannot be told beforehand; measure_peak_memory measures it on your "
            "inputs"
        )

    def _release(self, storages: list[int]) -> None:
        self.trace.events.extend(Release(storage) for storage in storages)

    def _fake_twin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor's fake twin; one that was there before the step is known to be no part
        of the count.
        """
        twin = tensor if isinstance(tensor, FakeTensor) else self._fake_mode.from_tensor(tensor)
        if not self.knows(twin):
            self._values.learn(twin, tensor)
            self._outside[key_of_storage(twin)] = twin.untyped_storage()
        return twin

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor's storage has been seen."""
        _check_dense(tensor)
        key = key_of_storage(tensor)
        return key in self._alive or key in self._outside

    def number(self, value: Any) -> int | None:
        """Return the number of a tensor's storage, None for one that is not counted and for what is
        no tensor.
        """
        if not isinstance(value, torch.Tensor):
            return None
        alive = self._alive.get(key_of_storage(value))
        return alive.number if alive else None

    def _is_free(self, tensor: torch.Tensor, function: Any) -> bool:
        """Return whether the tensor takes nothing of the device.

        It stands for zeros without having them, or is on the CPU, as an optimizer's count of steps
        is, and not on the GPU that is meant.
        """
        if function is torch.ops.aten._efficientzerotensor.default:
            return True
        if self._device.type == self._runs_on.type:
            return tensor.device.type != self._device.type
        # a CPU stands in for the GPU: the numbers that nobody moved there
        return function in _CONSTANTS

    def add(self, tensor: torch.Tensor, *, is_free: bool = False) -> int:
        """Count the tensor's storage from now until its last reference is gone; return its
        number.
        """
        storage = tensor.untyped_storage()
        key, number = storage._cdata, self._new_storage(0 if is_free else storage.nbytes())

        def note_release(_: weakref.ref) -> None:
            self.trace.events.append(Release(self._alive.pop(key).number))
            self._values.forget(key)

        self._alive[key] = _Alive(
            number, weakref.ref(storage, note_release), storage.nbytes(), is_free
        )
        return number

    def _new_storage(self, size_bytes: int) -> int:
        number = len(self.trace.storage_bytes)
        self.trace.storage_bytes[number] = size_bytes
        return number

    def alive(self) -> list[int]:
        """Return the numbers of the storages that are alive."""
        return [alive.number for alive in self._alive.values()]

    def _describe(self, function: Any, tensor: torch.Tensor) -> TensorSpec:
        content, room_bytes = None, 0
        if torch.Tag.dynamic_output_shape in function.tags or function in _BY_VALUES:
            content = self._values.content(tensor)
        if function._schema.is_mutable and not tensor.numel():
            room_bytes = tensor.untyped_storage().nbytes()
        return TensorSpec(
            sizes=tuple(tensor.size()),
            strides=tuple(tensor.stride()),
            dtype=tensor.dtype,
            device=tensor.device,
            is_conj=tensor.is_conj(),
            is_neg=tensor.is_neg(),
            room_bytes=room_bytes,
            content=content,
            storage=self.number(tensor),
            is_view=tensor._is_view(),
        )


def _check_dense(tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        raise steps.ModelError(
            f"the step uses a tensor of layout {tensor.layout}; only dense tensors are handled"
        )


def _run_two_steps(
    fake_step: steps.Step, tracer: Tracer, observe_second: AbstractContextManager
) -> StepTrace:
    trace = tracer.trace
    _name_carried(fake_step, tracer)
    fake_step = steps.with_optimizer(fake_step)

    def enter(phase: str) -> None:
        tracer.enter(phase)
        if phase == "optimizer":
            _name_gradients(fake_step.model, tracer)

    for observer in (nullcontext(), observe_second):
        # the caller's own autocast would keep the casts of the step before
        torch.clear_autocast_cache()
        steps.drop_gradients(fake_step)
        tracer.enter("preparation")
        _name_optimizer_state(fake_step, tracer)
        trace.gradients.clear()
        trace.carried, trace.start = tracer.alive(), len(trace.events)
        with observer:
            steps.run(fake_step, enter)
    _name_gradients(fake_step.model, tracer)
    torch.clear_autocast_cache()
    # the copy's own releases, which follow, are no part of it
    return replace(trace, events=list(trace.events))


def _name_carried(fake_step: steps.Step, tracer: Tracer) -> None:
    model, inputs = fake_step.model, enumerate(steps.tensors_of(fake_step.arguments))
    groups = {
        "parameter": model.named_parameters(),
        "buffer": model.named_buffers(),
        "other": steps.kept_tensors(model).items(),
        "input": ((f"input {position}", tensor) for position, tensor in inputs),
    }
    for category, named_tensors in groups.items():
        for name, tensor in named_tensors:
            if not tracer.knows(tensor):
                tracer.trace.names[tracer.add(tensor)] = (category, *_split(name))


def _name_optimizer_state(fake_step: steps.Step, tracer: Tracer) -> None:
    if fake_step.optimizer is None:
        return
    names: dict[torch.Tensor, str] = {
        parameter: name for name, parameter in fake_step.model.named_parameters()
    }
    for parameter, state in fake_step.optimizer.state.items():
        layer, name = _split(names.get(parameter, "parameter"))
        for key, value in state.items():
            number = tracer.number(value)
            if number is not None:
                tracer.trace.names.setdefault(number, ("optimizer state", layer, f"{name}: {key}"))


def _name_gradients(model: nn.Module, tracer: Tracer) -> None:
    for name, parameter in model.named_parameters():
        number = tracer.number(parameter.grad)
        if number is not None:
            tracer.trace.gradients.setdefault(number, _split(name))


def _split(name: str) -> tuple[str, str]:
    layer, _, leaf = name.rpartition(".")
    return layer, leaf


def _write_lengths(tracer: Tracer) -> AbstractContextManager:
    """Let the function that pads a packed sequence write its lengths into a real tensor."""
    real_pad = rnn._VF._pad_packed_sequence

    def pad(*args: Any) -> Any:
        with mock.patch.object(tracer, "makes_lengths", True):
            return real_pad(*args)

    return mock.patch.object(rnn._VF, "_pad_packed_sequence", pad, create=True)
