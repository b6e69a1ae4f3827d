"""What a model is given: shapes and tensors as the caller wrote them, and what refuses them.

Lesson 11.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence

from helpers.checks import boolean, one_of, short
from helpers.steps._objects import duplicate, reachable, tensors_of

# a shape, several, a tensor, a tuple of positional arguments, a dict of keyword arguments or of
# shapes
Inputs = Any
_ACCEPTED = (
    "give a shape such as (64, 1, 28, 28), a tuple of shapes, a tensor, a tuple of positional "
    "arguments with a tensor among them, or a dict of keyword arguments or of shapes"
)


class ModelError(RuntimeError):
    """The model, its loss or its optimizer raised, or cannot be handled; the message says which,
    and why.

    Lesson 11.
    """


class ForwardError(ModelError):
    """The model's forward cannot be followed on shapes; the message says where and what to do.

    Lesson 11.
    """


@dataclass(frozen=True)
class Shape:
    """A tensor of the model's type, of which only the shape is given."""

    shape: tuple[int, ...]


class Arguments(NamedTuple):
    """The arguments of a forward; a :class:`Shape` stands where only the sizes of a tensor are
    given.
    """

    positional: tuple[Any, ...]
    named: dict[str, Any]

    @property
    def is_from_shape(self) -> bool:
        """Whether only shapes were given, and no tensor."""
        return any(isinstance(value, Shape) for value in (*self.positional, *self.named.values()))

    @property
    def leaves(self) -> list[Any]:
        """The distinct tensors and shapes, in order."""
        return [value for value in reachable(self) if isinstance(value, Tensor | Shape)]

    def replaced(
        self, function: Callable[[Any], Any], memo: dict[int, Any] | None = None
    ) -> Arguments:
        """Return a copy of the arguments, at every depth, with ``function(leaf)`` for each tensor
        and shape.

        One that stands in several places is replaced once: a model may ask whether two are the
        same. ``memo`` is that of a copy that was made before, of what the arguments may hold as
        well.

        Raises ModelError when they cannot be copied.
        """
        memo = {} if memo is None else memo
        memo |= {id(leaf): function(leaf) for leaf in self.leaves if id(leaf) not in memo}
        try:
            return duplicate(self, memo)
        except Exception as error:
            raise ModelError(
                f"the inputs cannot be copied (copy.deepcopy: {first_line(error)}); leave out what "
                "holds no tensors"
            ) from error


def arguments_of(model: nn.Module, inputs: Inputs = None, shape: Inputs = None) -> Arguments:
    """Return the arguments that ``inputs``, or ``shape``, or else the ``example_shape`` of
    ``model`` stands for.

    Raises TypeError for what is neither a shape nor tensors, ValueError for both at once or a
    negative size.

    >>> arguments_of(nn.Linear(4, 2), (8, 4))
    Arguments(positional=(Shape(shape=(8, 4)),), named={})
    >>> arguments_of(nn.Linear(4, 2), {"input": (8, 4)}).named
    {'input': Shape(shape=(8, 4))}
    """
    if inputs is not None and shape is not None:
        raise ValueError("both a shape and inputs are given; give one of them")
    source = inputs if inputs is not None else shape
    if source is None:
        source = getattr(model, "example_shape", None)
    if source is None:
        raise TypeError(
            f"neither a shape nor inputs are given, and {type(model).__name__} has no "
            "example_shape; " + _ACCEPTED
        )
    if isinstance(source, Arguments):
        return source
    if isinstance(source, Tensor | PackedSequence):
        return Arguments((source,), {})
    if isinstance(source, Mapping) and source:
        named = {str(key): value for key, value in source.items()}
        if all(map(_is_shape, named.values())):
            named = {key: _shape_of(value) for key, value in named.items()}
        return Arguments((), named)
    shapes = (source,) if _is_shape(source) else source
    if isinstance(shapes, tuple | list) and shapes:
        if all(map(_is_shape, shapes)):
            return Arguments(tuple(map(_shape_of, shapes)), {})
        arguments = Arguments(tuple(shapes), {})
        if arguments.leaves:
            return arguments
    raise TypeError(f"{short(source)} is neither a shape nor inputs; {_ACCEPTED}")


def _is_shape(value: Any) -> bool:
    if not isinstance(value, tuple | list) or not value:
        return False
    return all(isinstance(size, Integral) and not isinstance(size, bool) for size in value)


def _shape_of(sizes: Any) -> Shape:
    if min(sizes) < 0:
        raise ValueError(
            f"shape {tuple(sizes)} has a negative size; every size is a whole number from 0"
        )
    return Shape(tuple(map(int, sizes)))


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the type of the model's first parameter that holds floating-point or complex numbers,
    else float32.

    That is the type of an input of which only the shape is given.

    >>> dtype_of(nn.Linear(4, 2).bfloat16()), dtype_of(nn.ReLU())
    (torch.bfloat16, torch.float32)
    """
    types = (parameter.dtype for parameter in model.parameters())
    return next(
        (dtype for dtype in types if dtype.is_floating_point or dtype.is_complex), torch.float32
    )


def zeros_of(shape: Shape, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Return the zeros of a ``dtype`` on a ``device`` that a ``shape`` stands for; ValueError where
    memory ends.

    >>> zeros_of(Shape((2, 3)), torch.float32, "cpu")
    tensor([[0., 0., 0.],
            [0., 0., 0.]])
    """
    try:
        return torch.zeros(shape.shape, dtype=dtype, device=device)
    except RuntimeError as error:
        raise ValueError(
            f"inputs={shape.shape} does not fit into memory; give a smaller shape"
        ) from error


def device_of(model: nn.Module, arguments: Arguments | None = None) -> torch.device:
    """Return the model's device; without parameters and buffers that of the inputs, and else CUDA
    if there is one.

    >>> device_of(nn.Linear(4, 2, device="meta"))
    device(type='meta')
    """
    tensors = (*model.parameters(), *model.buffers(), *tensors_of(arguments))
    if tensors:
        return tensors[0].device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def check_model(model: Any, *, compiled: bool = False) -> None:
    """Raise TypeError for what is no model, ModelError for one whose operators or tensors cannot be
    seen.

    A model that torch.compile has made is accepted where it is ``compiled`` all the same.

    >>> check_model(nn.Linear(4, 2))
    >>> check_model(nn.Linear)
    Traceback (most recent call last):
    TypeError: Linear is a class; give a model made of it, Linear(...)
    """
    boolean("compiled", compiled)
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise TypeError(
            f"{model.__name__} is a class; give a model made of it, {model.__name__}(...)"
        )
    one_of("model", model, nn.Module, "a torch.nn.Module")
    try:
        modules = list(model.named_modules())
    except AttributeError as error:
        raise ModelError(
            f"a module has no parts ({error}); begin its __init__ with super().__init__()"
        ) from error
    for name, module in modules:
        module_text = f"the module {name!r}" if name else "the model"
        if isinstance(module, torch.jit.ScriptModule):
            raise ModelError(
                f"{module_text} is a TorchScript module, whose operators cannot be seen; give "
                "the Python model"
            )
        is_compiled = (
            hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        )
        if is_compiled and not compiled:
            raise ModelError(
                f"{module_text} is compiled, and what the compiler fuses is neither stored nor run "
                "layer by layer; give the model as it was before torch.compile (kernel_table times "
                "the compiled one)"
            )
        if "quantized" in type(module).__module__.split("."):
            raise ModelError(
                f"{module_text} is quantised ({type(module).__name__}): its packed weights are not "
                "tensors of PyTorch; give the model as it was before quantisation"
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ModelError(
                f"{name} has no shape yet (a lazy module); run the model once on one batch first"
            )
        is_wrapper = torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor)
        if tensor.layout != torch.strided or tensor.is_quantized or is_wrapper:
            storage_text = (
                type(tensor).__name__ if is_wrapper else f"{tensor.layout}, {tensor.dtype}"
            )
            raise ModelError(f"{name} is stored as {storage_text}; only dense tensors are handled")


def described(values: Any) -> str:
    """Return the shapes and types of a call's arguments, as a student would write them.

    >>> described({"x": torch.ones(8, 4), "mask": None, "causal": True})
    'x=(8, 4) float32, causal=bool'
    """
    if isinstance(values, Tensor):
        return f"{tuple(values.shape)} {str(values.dtype).removeprefix('torch.')}"
    if isinstance(values, Shape):
        return str(values.shape)
    if isinstance(values, Mapping):
        return ", ".join(
            f"{key}={described(value)}" for key, value in values.items() if value is not None
        )
    if isinstance(values, list | tuple):
        return ", ".join(filter(None, map(described, values))) or "nothing"
    return type(values).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its type's name when it has none.

    >>> first_line(ValueError("no such layer; there are:")), first_line(KeyError())
    ('no such layer; there are:', 'KeyError')
    """
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
