"""What is kept of an operator's call, the shapes and types of its tensors; and the work that it is
counted as.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from helpers.operations._conventions import FREE, WITHOUT_PRODUCTS
from helpers.steps import ForwardError

META = torch.device("meta")

_VALUE_TAGS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
# Looked at first: to ask of every number whether it is a tensor takes longer than all else that is
# noted of it.
_PLAIN_TYPES = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})


class Spec(NamedTuple):
    """The shape, size and kind of a tensor that an operator reads or writes."""

    shape: tuple[int, ...]
    elements: int
    """Distinct elements: a dimension that is expanded (stride 0) counts once."""
    itemsize: int
    kind: str
    """"f" floating point, "c" complex, "i" integer or boolean."""
    needs_grad: bool
    is_weight: bool

    @property
    def numel(self) -> int:
        return functools.reduce(int.__mul__, self.shape, 1)

    @property
    def bytes(self) -> int:
        return self.elements * self.itemsize


class Call:
    """One operator as it was called: specs stand where tensors stood.

    ``inputs`` and ``outputs`` are the specs of its tensors in order, with ``shape``, ``numel`` and
    ``bytes``; ``args`` and ``kwargs`` hold its arguments, a spec in place of each tensor. Lesson
    11.
    """

    __slots__ = ("args", "causal", "inputs", "kwargs", "may_multiply", "name", "node_id",
                 "operator", "outputs", "owner")  # fmt: skip

    def __init__(
        self,
        operator: Operator,
        args: tuple,
        kwargs: dict,
        outputs: list[Spec],
        owner: int,
        node_id: int | None = None,
        causal: tuple[int, int] | None = None,
    ) -> None:
        self.operator, self.name = operator.text, operator.name
        self.may_multiply = operator.may_multiply
        self.args, self.kwargs, self.outputs = args, kwargs, outputs
        self.owner, self.node_id, self.causal = owner, node_id, causal
        named_inputs = [value for key, value in kwargs.items() if key != "out"]
        self.inputs = list(_specs_in((*args, *named_inputs)))

    @property
    def key(self) -> tuple:
        """Equal for two calls that cost the same."""
        return (
            self.operator,
            self.args,
            tuple(self.kwargs.items()),
            tuple(self.outputs),
            self.causal,
        )

    @property
    def needs_grad(self) -> bool:
        return any(spec.needs_grad for spec in self.inputs)

    @property
    def output(self) -> Spec:
        return self.outputs[0]


class Operator(NamedTuple):
    """The properties of an operator that never change: its names, the arguments it writes, what it
    depends on.
    """

    text: str
    name: str
    is_free: bool
    writes: tuple[int, ...]
    takes_device: bool
    is_random: bool
    reads_values: bool
    """Its result, or the shape of it, depends on the values of its operands."""
    may_multiply: bool
    """It may hold products of matrices: it is not known to hold none."""


@functools.cache
def operator_of(func: Any) -> Operator:
    """Return the properties of ``func``; an in-place operator has the name of its plain one."""
    schema = func._schema
    name = schema.name.removeprefix("aten::")
    writes = tuple(
        index
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info and argument.alias_info.is_write
    )
    if writes and name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    if "batch_norm" in name and len(schema.arguments) > 5:
        writes = (3, 4)  # the running statistics, which most of the schemas do not mention
    return Operator(
        text=str(func),
        name=name,
        is_free=name in FREE,
        writes=writes,
        takes_device=any(argument.name == "device" for argument in schema.arguments),
        is_random=torch.Tag.nondeterministic_seeded in func.tags,
        reads_values=name != "_ctc_loss" and not _VALUE_TAGS.isdisjoint(func.tags),
        may_multiply=torch.Tag.pointwise not in func.tags and name not in WITHOUT_PRODUCTS,
    )


def written_tensors(operator: Operator, args: tuple) -> Iterator[Tensor]:
    """Yield the tensors that an operator writes into."""
    for index in operator.writes:
        if index < len(args) and isinstance(args[index], Tensor):
            yield args[index]


def _specs_in(values: Any) -> Iterator[Spec]:
    for value in values:
        if isinstance(value, Spec):
            yield value
        elif type(value) is tuple:
            yield from _specs_in(value)


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Yield the tensors among an operator's arguments, those in lists and dictionaries too."""
    for value in values:
        kind = type(value)
        if kind is list or kind is tuple:
            yield from tensors_in(value)
        elif kind is dict:
            yield from tensors_in(value.values())
        elif kind not in _PLAIN_TYPES and isinstance(value, Tensor):
            yield value


def map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Apply ``function`` to the tensors of an operator's arguments; lists become tuples."""
    kind = type(value)
    if kind is list or kind is tuple:
        # most are numbers: no call for these
        return tuple(
            [item if type(item) in _PLAIN_TYPES else map_tensors(item, function) for item in value]
        )
    if kind is dict:
        return {key: map_tensors(item, function) for key, item in value.items()} if value else {}
    return function(value) if kind not in _PLAIN_TYPES and isinstance(value, Tensor) else value


def storage_of(tensor: Tensor) -> int:
    """Return a number that two tensors share when they share memory; ForwardError for a tensor that
    is not dense.
    """
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError as error:
        raise not_dense_error(tensor) from error


def is_dense(tensor: Tensor) -> bool:
    """Tell whether a tensor has the shape and the memory that are counted: it is neither sparse nor
    nested.
    """
    return tensor.layout == torch.strided and not tensor.is_nested


def are_dense(*values: Any) -> bool:
    """Tell whether all tensors among an operator's arguments or results are dense."""
    return all(map(is_dense, tensors_in(values)))


def not_dense_error(tensor: Tensor) -> ForwardError:
    """Return the error for a tensor of another layout."""
    layout = "quantized" if tensor.is_quantized else tensor.layout
    return ForwardError(
        f"a tensor is {layout}; only dense tensors are counted, as tensor.to_dense() makes them"
    )


def spec_of(tensor: Tensor, weights: set[int], *, grad: bool = False) -> Spec:
    """Return the spec of ``tensor``; ``weights`` are the storages of parameters and buffers."""
    is_weight = storage_of(tensor) in weights
    shape, elements, strides = tuple(tensor.shape), tensor.numel(), tensor.stride()
    if 0 in strides:
        elements = 1
        for size, stride in zip(shape, strides, strict=True):
            elements *= size if stride or not size else 1
    kind = "f" if tensor.is_floating_point() else "c" if tensor.is_complex() else "i"
    return Spec(
        shape, elements, tensor.dtype.itemsize, kind, grad and tensor.requires_grad, is_weight
    )


def shape_only(tensor: Tensor, *, requires_grad: bool = False) -> Tensor:
    """Return a tensor on the meta device with the shape, strides and type of ``tensor``."""
    return torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=META, requires_grad=requires_grad
    )


class Work(NamedTuple):
    """MACs executed and useful, FLOPs, and bytes: activations read, weights read, results
    written. Lesson 11.
    """

    macs: int = 0
    useful_macs: int = 0
    flops: int = 0
    input_bytes: int = 0
    weight_bytes: int = 0
    output_bytes: int = 0

    @property
    def read_bytes(self) -> int:
        return self.input_bytes + self.weight_bytes

    @property
    def written_bytes(self) -> int:
        return self.output_bytes

    @property
    def flops_per_byte(self) -> float | None:
        """The arithmetic intensity, None where nothing is moved."""
        moved_bytes = self.read_bytes + self.written_bytes
        return self.flops / moved_bytes if moved_bytes else None

    def __add__(self, other: tuple) -> Work:
        if self is NOTHING and isinstance(other, Work):  # most sums have one term
            return other
        a, b, c, d, e, f = self
        u, v, w, x, y, z = other
        return Work(a + u, b + v, c + w, d + x, e + y, f + z)


NOTHING = Work()


class Rule(NamedTuple):
    """How an operator is counted: a function for its forward and one for its backward pass, which
    returns None where it does not know.
    """

    forward: Callable[[Call], Work]
    backward: Callable[[Call], Work | None]


def traffic(operands: Sequence[Spec], results: Sequence[Spec], flops: int = 0) -> Work:
    """Return the work of reading each of ``operands`` once and writing each of ``results`` once,
    with ``flops`` on the way.
    """
    return Work(
        flops=flops,
        input_bytes=sum(spec.bytes for spec in operands if not spec.is_weight),
        weight_bytes=sum(spec.bytes for spec in operands if spec.is_weight),
        output_bytes=sum(spec.bytes for spec in results),
    )


def option(call: Call, name: str, position: int, default: object) -> object:
    """Return an operator's option, given by keyword or by place."""
    return call.kwargs.get(name, call.args[position] if len(call.args) > position else default)


def broadcast_gradient(gradient: Spec, operand: Spec) -> Work:
    """The gradient of an operand that was broadcast: a sum over the result; nothing where shapes
    agree.
    """
    if operand.numel >= gradient.numel:
        return NOTHING
    return traffic([gradient], [operand], gradient.numel)
