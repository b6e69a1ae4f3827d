"""One step of a model, the same for the estimate and for the measurement: what is run, on what, and in which order.

Everything here works on a copy of the model, so that the caller's model is never touched.
"""

from __future__ import annotations

import copy
import gc
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from helpers.operations.inputs import dtype_of

Loss = Callable[[Any], torch.Tensor]
OptimizerFactory = Callable[[Any], torch.optim.Optimizer]
Inputs = Any  # a shape, a tensor, a tuple of positional arguments, or a dict of keyword arguments
_ACCEPTED_INPUTS = (
    "give a shape such as (64, 1, 28, 28), a tensor, a tuple of positional arguments with a tensor among them, "
    "or a dict of keyword arguments"
)


class ModelError(RuntimeError):
    """The model, its loss or its optimizer raised, or cannot be handled; the message says which, and why."""


@dataclass(frozen=True)
class Shape:
    """A tensor of zeros that is made, on the model's device and in its type, when the step is prepared."""

    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Workload:
    """What one step runs: a model, its arguments, and for training a loss and an optimizer.

    ``device`` is the one whose memory is meant, and ``runs_on`` the one that its operators run on: a CPU stands in for
    a GPU that this machine does not have. ``assumed`` says what the caller did not.
    """

    model: nn.Module
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    device: torch.device
    runs_on: torch.device
    assumed: tuple[str, ...]
    training: bool
    loss: Loss
    make_optimizer: OptimizerFactory | None
    autocast: torch.dtype | None
    optimizer: torch.optim.Optimizer | None = None


def workload(
    model: nn.Module,
    inputs: Inputs | None,
    *,
    optimizer: OptimizerFactory | None,
    training: bool,
    loss: Loss | None,
    autocast: torch.dtype | None,
    only_followed: bool = False,
    target: str | torch.device | None = None,
) -> Workload:
    """Return the step that the arguments of ``estimate_peak_memory`` describe, checked.

    ``inputs`` is by default the shape that the model itself names, ``example_shape``. A step that is ``only_followed``
    may have its model on meta and another device for its ``target``.

    Raises TypeError or ValueError for an argument that is not accepted, and ModelError for a model whose memory
    cannot be known beforehand.
    """
    check_model(model)
    inputs = _example_shape(model) if inputs is None else inputs
    if not isinstance(training, bool):
        raise TypeError(f"training is {training!r:.80}; give True for a training step, False for inference")
    if not training and (optimizer is not None or loss is not None):
        raise ValueError("inference has neither a loss nor an optimizer: leave them out, or set training=True")
    for name, value in (("optimizer", optimizer), ("loss", loss)):
        if isinstance(value, torch.optim.Optimizer) or not (value is None or callable(value)):
            accepted = "torch.optim.Adam, or a callable from parameters to an optimizer" if name == "optimizer" else (
                "a callable from the model's outputs to one number")  # fmt: skip
            raise TypeError(f"{name} is {type(value).__name__}; give {accepted}")
    if autocast is not None and not (isinstance(autocast, torch.dtype) and autocast.is_floating_point):
        raise TypeError(f"autocast is {autocast!r}; give a floating-point dtype, such as torch.bfloat16")
    own = device_of(model, inputs)
    if own.type not in ("cpu", "cuda", "meta") or (own.type == "meta" and not only_followed):
        raise ModelError(
            f"the model is on the device {own}, and what runs needs cpu or cuda; estimate_peak_memory, fits and "
            "max_batch_size take a model on meta"
        )
    device = _device_meant(own, target)
    runs_on = device if _is_here(device) else torch.device("cpu")
    return Workload(
        model=model,
        arguments=arguments_of(inputs),
        device=device,
        runs_on=runs_on,
        assumed=tuple(_assumed(own, device, runs_on, target, autocast)),
        training=training,
        loss=loss or sum_of_outputs,
        make_optimizer=optimizer,
        autocast=autocast,
    )


def check_model(model: nn.Module) -> None:
    """Raise TypeError or ModelError for a model whose memory cannot be told from its operators."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {type(model).__name__}; give a torch.nn.Module")
    for name, module in model.named_modules():
        where = f"the module {name!r}" if name else "the model"
        if isinstance(module, torch.jit.ScriptModule):
            raise ModelError(f"{where} is a TorchScript module, whose operators cannot be seen; give the Python model")
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise ModelError(
                f"{where} is compiled, and what the compiler fuses is never stored; give the model as it was before "
                "torch.compile"
            )
        if "quantized" in type(module).__module__.split("."):
            raise ModelError(
                f"{where} is quantised ({type(module).__name__}): its packed weights are not tensors of PyTorch; "
                "give the model as it was before quantisation"
            )
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, tensor in tensors.items():
        if is_lazy(tensor):
            raise ModelError(f"{name} has no shape yet (a lazy module); run the model once on one batch first")
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise ModelError(f"{name} is stored as {tensor.layout}, {tensor.dtype}; only dense tensors are handled")
    devices = {tensor.device for tensor in tensors.values()}
    if len(devices) > 1:
        raise ModelError(f"the model lies on {', '.join(sorted(map(str, devices)))}; put it on one device")


def _device_meant(own: torch.device, target: str | torch.device | None) -> torch.device:
    """Return the device whose memory is meant: the target, else the model's own, else (on meta) the CPU.

    Raises ValueError for a target that is neither a CPU nor a CUDA device.
    """
    if target is None:
        return torch.device("cpu") if own.type == "meta" else own
    try:
        device = torch.device(target)
    except (RuntimeError, TypeError):
        device = None
    if isinstance(target, int) or device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"target is {target!r:.80}; give 'cpu' or 'cuda', the device that the step would run on")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    return device


def _is_here(device: torch.device) -> bool:
    return device.type == "cpu" or (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count())


def _assumed(
    own: torch.device, device: torch.device, runs_on: torch.device, target: Any, autocast: torch.dtype | None
) -> Iterator[str]:
    if own.type == "meta" and target is None:
        yield "the model is on meta and no target is given: a CPU was assumed"
    if device.type != runs_on.type:
        yield (
            "this machine has no CUDA device: the operators are those that PyTorch picks on a CPU (attention with "
            "dropout keeps its scores there), and what a CUDA kernel takes inside is not counted (workspaces of cuDNN, "
            "copies of operands)"
        )
        if autocast is not None:
            yield "autocast casts what it casts on a CPU; on CUDA it keeps more operators in float32"


def device_of(model: nn.Module, inputs: Inputs = None) -> torch.device:
    """Return the model's device; without parameters and buffers that of the inputs, and else CUDA if there is one."""
    tensors = [*model.parameters(), *model.buffers(), *pytree.tree_leaves(inputs)]
    devices = [tensor.device for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return devices[0] if devices else torch.device("cuda" if torch.cuda.is_available() else "cpu")


def arguments_of(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the named arguments that ``inputs`` stands for.

    Raises TypeError or ValueError for what is neither a shape nor tensors.
    """
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping) and inputs:
        return (), dict(inputs)
    if isinstance(inputs, tuple | list) and inputs:
        if all(isinstance(size, int) and not isinstance(size, bool) for size in inputs):
            if min(inputs) < 0:
                raise ValueError(f"a shape has no negative sizes, got {tuple(inputs)}")
            return (Shape(tuple(inputs)),), {}
        if any(isinstance(item, torch.Tensor) for item in pytree.tree_leaves(inputs)):
            return tuple(inputs), {}
    raise TypeError(f"inputs is {inputs!r:.80}; {_ACCEPTED_INPUTS}")


def _example_shape(model: nn.Module) -> tuple[int, ...]:
    shape = getattr(model, "example_shape", None)
    if shape is None:
        raise TypeError(f"no inputs are given, and {type(model).__name__} has no example_shape; {_ACCEPTED_INPUTS}")
    return shape


def sum_of_outputs(outputs: Any) -> torch.Tensor:
    """Return the sum of every floating-point tensor in ``outputs``: the loss where none is given.

    Raises ModelError when there is none. For the library itself.
    """
    tensors = [
        leaf
        for leaf in pytree.tree_leaves(outputs)
        if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    ]
    if not tensors:
        raise ModelError(f"the model returned {type(outputs).__name__} without a floating-point tensor; give a loss")
    total = tensors[0].sum()
    for tensor in tensors[1:]:
        total = total + tensor.sum()
    return total


def copied(work: Workload, *, copy_tensor: Callable[[torch.Tensor], torch.Tensor]) -> Workload:
    """Return ``work`` on a copy of its model and inputs; ``copy_tensor`` copies one input.

    An input that is a view of something larger becomes a tensor of its own size, and an input that is given twice
    stays one tensor. The copy is in training or in evaluation mode throughout and has no gradients.

    Raises ModelError when the model cannot be copied.
    """
    # A tensor that a module kept from an earlier forward pass (a cache, a weight made by a hook) cannot be deep-copied.
    kept = [tensor for tensor in kept_tensors(work.model).values() if not tensor.is_leaf]
    try:
        model = copy.deepcopy(work.model, {id(tensor): copy_tensor(_detached(tensor)) for tensor in kept})
    except Exception as error:
        raise ModelError(f"the model cannot be copied (copy.deepcopy: {first_line(error)})") from error
    model.train(work.training)
    copies: dict[int, torch.Tensor] = {}

    def copy_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Shape):
            try:
                return torch.zeros(leaf.sizes, dtype=dtype_of(work.model), device=work.runs_on)
            except RuntimeError as error:
                shape = tuple(leaf.sizes)
                raise ValueError(f"inputs={shape} does not fit into memory; give a smaller shape") from error
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in copies:
            copies[id(leaf)] = copy_tensor(_detached(leaf)).requires_grad_(leaf.requires_grad)
        return copies[id(leaf)]

    copy_of_work = replace(work, model=model, arguments=pytree.tree_map(copy_leaf, work.arguments))
    drop_gradients(copy_of_work)
    return copy_of_work


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor without its graph, as it is: under fake tensors, which copying makes, it still has values."""
    with _disable_current_modes():
        return tensor.detach()


def with_optimizer(work: Workload) -> Workload:
    """Return ``work`` with its optimizer, made from the parameters of its model.

    Raises ModelError when it cannot be made, or is one that runs the model several times in a step.
    """
    if work.make_optimizer is None:
        return work
    try:
        optimizer = work.make_optimizer(work.model.parameters())
    except Exception as error:
        raise ModelError(f"the optimizer could not be made from the parameters: {first_line(error)}") from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer(parameters) gave {type(optimizer).__name__}; it must give a torch.optim.Optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ModelError("LBFGS runs the model several times in one step; give an optimizer with one pass a step")
    return replace(work, optimizer=optimizer)


def kept_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that modules keep as plain attributes, by name: they are memory of the model as well."""
    return {
        f"{name}.{key}".lstrip("."): value
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    }


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in nested tuples, lists and dicts, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def drop_gradients(work: Workload) -> None:
    """Set the gradients of parameters and inputs to None, as each step finds them."""
    for tensor in (*work.model.parameters(), *tensors_of(work.arguments)):
        if tensor.is_leaf:
            tensor.grad = None


def run(work: Workload, enter: Callable[[str], None] = lambda _phase: None) -> None:
    """Run one step; ``enter`` is told "forward", "loss", "backward" and "optimizer" as each begins.

    The model's outputs are dropped as soon as the loss has been computed from them.

    Raises ModelError, naming the part, when the model, the loss, the backward pass or the optimizer raises.
    """
    phase = "forward"

    def begin(name: str) -> None:
        nonlocal phase
        phase = name
        enter(name)

    try:
        with torch.inference_mode(False), torch.set_grad_enabled(work.training):
            _run_phases(work, begin)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"the {PARTS[phase]} raised {_described(error)}{_given(work.arguments)}") from error


PARTS = {
    "forward": "model's forward pass",
    "loss": "loss",
    "backward": "backward pass",
    "optimizer": "optimizer's step",
}


def _run_phases(work: Workload, enter: Callable[[str], None]) -> None:
    positional, named = work.arguments
    enter("forward")
    if not work.training:
        with _autocast(work):
            work.model(*positional, **named)
        return
    with _autocast(work):
        outputs = work.model(*positional, **named)
        enter("loss")
        loss = work.loss(outputs)
    del outputs
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ModelError(f"the loss must be a tensor with one number, and is {shape}")
    if not loss.requires_grad:
        raise ModelError("the loss depends on no parameter that is trained; use training=False, or unfreeze one")
    enter("backward")
    loss.backward()
    if work.optimizer is not None:
        enter("optimizer")
        work.optimizer.step()


def _autocast(work: Workload) -> AbstractContextManager:
    return torch.autocast(work.runs_on.type, dtype=work.autocast) if work.autocast is not None else nullcontext()


def _given(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> str:
    shapes = [tuple(tensor.shape) for tensor in tensors_of(arguments)]
    return f" (inputs of shape {', '.join(map(str, shapes))})"


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its type's name when it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}" if str(error).strip() else type(error).__name__


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Give back the random generators as they were, and keep the garbage collector from a moment of its own choice."""
    collects = gc.isenabled()
    gc.disable()
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if collects:
            gc.enable()
