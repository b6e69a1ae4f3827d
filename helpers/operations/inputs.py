"""What is given to be counted, and what is said when it cannot be."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence

from helpers.operations.known import OnShapes
from helpers.operations.specs import META, ForwardError
from helpers.operations.trace import Trace, described

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


class Arguments(NamedTuple):
    """Stand-ins of the arguments of a forward."""

    positional: tuple
    named: dict[str, Any]
    from_shape: bool


def checked_model(model: Any) -> nn.Module:
    """Return the module to count, without the wrapper of torch.compile or DataParallel.

    Raises TypeError or ValueError, in one sentence, for what cannot be counted.
    """
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise TypeError(f"{model.__name__} is a class; pass a model made of it, {model.__name__}(...)")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; pass a torch.nn.Module")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError("the model is a TorchScript module and hides its layers; pass the module it was made from")
    if isinstance(model, _WRAPPERS):
        return checked_model(model.module)
    if isinstance(getattr(model, "_orig_mod", None), nn.Module):
        return checked_model(model._orig_mod)
    for path, module in model.named_modules():
        _check_module(path or type(model).__name__, module)
    return model


def _check_module(path: str, module: nn.Module) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError(f"layer {path!r} is a TorchScript module and hides its operators; use the one it was made from")
    if "quantized" in type(module).__module__.split(".") and type(module).__module__.startswith("torch"):
        raise TypeError(
            f"layer {path!r} is quantized ({type(module).__name__}), and its packed weights have no shapes to count; "
            "count the floating-point model: its operations are the same in number"
        )
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is None:
            continue
        if is_lazy(tensor):
            raise ValueError(
                f"layer {path!r} is lazy and its {name} has no shape yet; run the model once on a real input first"
            )
        if torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor):
            raise TypeError(f"{name} of layer {path!r} is a {type(tensor).__name__}; only plain tensors are counted")


def check_values(model: nn.Module) -> None:
    """Raise ValueError where a model cannot run on real tensors."""
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise ValueError("values=True runs the forward on real tensors, and the model is on meta, which holds none; "
                         "make the model on the CPU, or count it without values=True")  # fmt: skip


def as_arguments(model: nn.Module, shape: Any, inputs: Any, trace: Trace, *, inputs_need_grad: bool) -> Arguments:
    """Return stand-ins for what the caller gave: a shape, or inputs of any nesting; else the model's example_shape."""
    if shape is None and inputs is None:
        shape = getattr(model, "example_shape", None)
    if (shape is None) == (inputs is None):
        given = "neither a shape nor inputs is" if shape is None else "both a shape and inputs are"
        raise ValueError(f"{given} given; give one of them, such as profile_ops(model, (1, 3, 224, 224))")
    if shape is not None and _is_shape(shape):
        shape = (shape,)
    if isinstance(shape, tuple | list) and shape and all(_is_shape(item) for item in shape):
        made = tuple(_of_shape(model, item, is_real=type(trace) is Trace) for item in shape)
        return Arguments(tuple(trace.stand_in_of_input(one, needs_grad=inputs_need_grad) for one in made), {}, True)
    given = shape if inputs is None else inputs
    is_nothing_known = shape is not None and not isinstance(given, Tensor | tuple | list | Mapping)
    if isinstance(given, int | float) or is_nothing_known or _is_numbers(shape):
        raise TypeError(
            f"{given!r} is neither a shape nor inputs; pass a tuple of whole numbers such as (1, 3, 224, 224), "
            "or inputs= with a tensor, a tuple of arguments or a mapping of keyword arguments"
        )
    made: dict[int, Tensor] = {}

    def stand_in(value: Any) -> Any:
        """Return ``value`` with stand-ins for its tensors, one for each: a model may ask whether two are the same."""
        if isinstance(value, Tensor):
            if id(value) not in made:
                made[id(value)] = trace.stand_in_of_input(value, needs_grad=inputs_need_grad)
            return made[id(value)]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return tuple.__new__(type(value), map(stand_in, value))  # a packed sequence refuses lengths on meta
        if isinstance(value, tuple | list):
            return type(value)(map(stand_in, value))
        if isinstance(value, Mapping):
            items = {key: stand_in(item) for key, item in value.items()}
            return type(value)(**items) if dataclasses.is_dataclass(value) else items
        return value

    if isinstance(given, Mapping):
        return Arguments((), {str(key): stand_in(value) for key, value in given.items()}, False)
    many = given if isinstance(given, tuple | list) and not isinstance(given, PackedSequence) else (given,)
    return Arguments(tuple(map(stand_in, many)), {}, False)


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(n, Integral) and not isinstance(n, bool) for n in value)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, tuple | list) and bool(value) and all(isinstance(n, Real) for n in value)


def _of_shape(model: nn.Module, shape: Any, *, is_real: bool) -> Tensor:
    if any(size < 0 for size in shape):
        raise ValueError(f"shape {tuple(shape)} has a negative size; every size is a whole number from 0")
    sizes = tuple(map(int, shape))
    if not is_real:
        return torch.empty(sizes, dtype=dtype_of(model), device=META)
    drawn = torch.randn(sizes, generator=torch.Generator().manual_seed(0))
    return drawn.to(next((parameter.device for parameter in model.parameters()), None), dtype_of(model))


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the type of the model's first parameter that holds floating-point or complex numbers, else float32.

    That is the type of an input of which only the shape is given. For the library itself.
    """
    types = (parameter.dtype for parameter in model.parameters())
    return next((dtype for dtype in types if dtype.is_floating_point or dtype.is_complex), torch.float32)


def explained(error: Exception, model: nn.Module, trace: Trace, arguments: Arguments) -> ForwardError:
    """Return the error to raise: which layer failed, on what input, and what to do."""
    while isinstance(error.__cause__, ForwardError):
        error = error.__cause__
    path, module, given = _place(error, model, trace, arguments)
    where = f"layer {path!r} ({type(module).__name__})" if path else f"the forward of {type(module).__name__}"
    reason = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    if isinstance(error, ForwardError):
        return ForwardError(f"{where}: {reason}")
    if "meta" in reason and not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        return ForwardError(f"{where} takes a step that shapes alone cannot follow ({type(error).__name__}); "
                            "pass values=True to run the forward once on real tensors")  # fmt: skip
    message = f"{where} failed on {given}: {type(error).__name__}: {reason}"
    if arguments.from_shape and any(word in reason for word in ("indices", "Long", "embedding")):
        message += "; a shape makes floating-point input: pass inputs=torch.zeros(shape, dtype=torch.long)"
    elif isinstance(error, NotImplementedError) and isinstance(trace, OnShapes):
        message += "; pass values=True to run the forward once on real tensors"
    elif arguments.from_shape and isinstance(error, RuntimeError | IndexError | ValueError):
        message += f"; check the shape: the model was given {described(arguments.positional)}"
    elif arguments.from_shape and isinstance(error, TypeError):
        message += "; a shape makes one tensor, so pass what the forward takes with inputs="
    return ForwardError(message)


def _place(error: Exception, model: nn.Module, trace: Trace, arguments: Arguments) -> tuple[str, nn.Module, str]:
    if trace.failure is not None and trace.failure[0] is error:
        _, row, given = trace.failure
        return trace.paths[row], trace.modules[row], given
    return "", model, described((*arguments.positional, *arguments.named.values()))
