"""One step of a model, the same for the estimate and for the measurement: what is run, on what, and
in which order.

Everything here works on a copy of the model, so that the caller's model is never touched.

Lesson 11.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import _disable_current_modes

from helpers.checks import boolean, kind_of
from helpers.steps._inputs import (
    Arguments,
    ForwardError,
    Inputs,
    ModelError,
    Shape,
    arguments_of,
    check_model,
    described,
    device_of,
    dtype_of,
    first_line,
    zeros_of,
)
from helpers.steps._objects import State, reachable, tensors_of
from helpers.steps._preserve import undisturbed

Loss = Callable[[Any], torch.Tensor]
OptimizerFactory = Callable[[Any], torch.optim.Optimizer]
PARTS = {
    "forward": "model's forward pass",
    "loss": "loss",
    "backward": "backward pass",
    "optimizer": "optimizer's step",
}


class Options(TypedDict, total=False):
    """The further options of a step: :func:`helpers.memory.estimate_peak_memory` explains each."""

    optimizer: OptimizerFactory | None
    training: bool
    loss: Loss | None
    autocast: torch.dtype | None
    target: str | torch.device | None


@dataclass(frozen=True)
class Step:
    """One step to run: a model, its arguments, and for training a loss and an optimizer.

    ``device`` is the one whose memory is meant, and ``runs_on`` the one that its operators run on:
    a CPU stands in for a GPU that this machine does not have. ``assumed`` says what the caller did
    not. ``initial`` is the state in which each run of a copy begins.
    """

    model: nn.Module
    arguments: Arguments
    device: torch.device
    runs_on: torch.device
    assumed: tuple[str, ...]
    training: bool
    loss: Loss
    make_optimizer: OptimizerFactory | None
    autocast: torch.dtype | None
    optimizer: torch.optim.Optimizer | None = None
    initial: State | None = None

    @property
    def input_text(self) -> str:
        """The shapes and types of the model's inputs."""
        return ", ".join(described(part) for part in self.arguments if part)


def step(
    model: nn.Module,
    inputs: Inputs = None,
    shape: Inputs = None,
    *,
    optimizer: OptimizerFactory | None = None,
    training: bool = True,
    loss: Loss | None = None,
    autocast: torch.dtype | None = None,
    only_followed: bool = False,
    target: str | torch.device | None = None,
) -> Step:
    """Return the step of ``model`` that these arguments describe, checked.

    ``inputs`` (or ``shape``), ``optimizer``, ``training``, ``loss`` and ``autocast`` are those of
    :func:`helpers.memory.estimate_peak_memory`. A step that is ``only_followed`` may have its model
    on meta and another device for its ``target``.

    Raises TypeError or ValueError for an argument that is not accepted, and ModelError for a model
    that cannot be handled.

    >>> work = step(nn.Linear(4, 2), (8, 4), optimizer=torch.optim.Adam)
    >>> work.input_text, work.training, work.device, work.optimizer
    ('(8, 4)', True, device(type='cpu'), None)
    """
    boolean("only_followed", only_followed)
    boolean("training", training)
    check_model(model)
    arguments = arguments_of(model, inputs, shape)
    if not training and (optimizer is not None or loss is not None):
        raise ValueError(
            "inference has neither a loss nor an optimizer: leave them out, or set training=True"
        )
    check_optimizer(optimizer)
    if not (loss is None or callable(loss)):
        raise TypeError(
            f"loss is {type(loss).__name__}; give a callable from the model's outputs to one number"
        )
    if autocast is not None and not (
        isinstance(autocast, torch.dtype) and autocast.is_floating_point
    ):
        raise TypeError(
            f"autocast is {autocast!r}; give a floating-point dtype, such as torch.bfloat16"
        )
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        raise ModelError(
            f"the model lies on {', '.join(sorted(map(str, devices)))}; put it on one device"
        )
    model_device = device_of(model, arguments)
    if model_device.type not in ("cpu", "cuda", "meta") or (
        model_device.type == "meta" and not only_followed
    ):
        raise ModelError(
            f"the model is on the device {model_device}, and what runs needs cpu or cuda; "
            "estimate_peak_memory, fits and max_batch_size take a model on meta"
        )
    device = _target_device(model_device, target)
    runs_on = device if _is_here(device) else torch.device("cpu")
    return Step(
        model=model,
        arguments=arguments,
        device=device,
        runs_on=runs_on,
        assumed=tuple(_assumptions(model_device, device, runs_on, target, autocast)),
        training=training,
        loss=loss or sum_of_outputs,
        make_optimizer=optimizer,
        autocast=autocast,
    )


def _target_device(model_device: torch.device, target: str | torch.device | None) -> torch.device:
    """Return the device whose memory is meant: the target, else the model's own, else (on meta) the
    CPU.

    Raises ValueError for a target that is neither a CPU nor a CUDA device.
    """
    if target is None:
        return torch.device("cpu") if model_device.type == "meta" else model_device
    try:
        device = torch.device(target)
    except (RuntimeError, TypeError):
        device = None
    if isinstance(target, int) or device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"target is {target!r:.80}; give 'cpu' or 'cuda', the device that the step would run on"
        )
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    return device


def _is_here(device: torch.device) -> bool:
    return device.type == "cpu" or (
        torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    )


def _assumptions(
    model_device: torch.device,
    device: torch.device,
    runs_on: torch.device,
    target: Any,
    autocast: torch.dtype | None,
) -> Iterator[str]:
    if model_device.type == "meta" and target is None:
        yield "the model is on meta and no target is given: a CPU was assumed"
    if device.type != runs_on.type:
        yield (
            "this machine has no CUDA device: the operators are those that PyTorch picks on a CPU "
            "(attention with dropout keeps its scores there), and what a CUDA kernel takes inside "
            "is not counted (workspaces of cuDNN, copies of operands)"
        )
        if autocast is not None:
            yield (
                "autocast casts what it casts on a CPU; on CUDA it keeps more operators in float32"
            )


def sum_of_outputs(outputs: Any) -> torch.Tensor:
    """Return the sum of every floating-point tensor in ``outputs``: the loss where none is given.

    Raises ModelError when there is none.

    >>> sum_of_outputs({"logits": torch.ones(2, 3), "classes": torch.tensor([7, 7])})
    tensor(6.)
    """
    tensors = [
        tensor
        for tensor in tensors_of(outputs)
        if tensor.is_floating_point() or tensor.is_complex()
    ]
    if not tensors:
        raise ModelError(
            f"the model returned {type(outputs).__name__} without a floating-point tensor; give a "
            "loss"
        )
    total = tensors[0].sum()
    for tensor in tensors[1:]:
        total = total + tensor.sum()
    return total


def copied_model(
    model: nn.Module,
    copy_tensor: Callable[[torch.Tensor], torch.Tensor],
    memo: dict[int, Any] | None = None,
) -> nn.Module:
    """Return a copy of ``model``, without gradients; ``copy_tensor`` copies a tensor that was
    computed.

    ``memo`` has what is copied already, by id, as :func:`copy.deepcopy` takes it.

    Raises ModelError when the model cannot be copied.

    >>> model = nn.Linear(4, 2)
    >>> copy_of_model = copied_model(model, torch.clone)
    >>> copy_of_model.weight is model.weight, torch.equal(copy_of_model.weight, model.weight)
    (False, True)
    """
    memo = {} if memo is None else memo
    # A tensor that a module kept from an earlier forward pass (a cache, a weight made by a hook)
    # cannot be deep-copied.
    memo |= {
        id(tensor): copy_tensor(_detach(tensor))
        for tensor in tensors_of(model)
        if not tensor.is_leaf
    }
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise ModelError(
            f"the model cannot be copied (copy.deepcopy: {first_line(error)})"
        ) from error


def copied(
    work: Step,
    *,
    copy_tensor: Callable[[torch.Tensor], torch.Tensor],
    refill: Callable[[torch.Tensor, torch.Tensor], object] = torch.Tensor.copy_,
) -> Step:
    """Return ``work`` on a copy of its model and of all that its inputs hold; ``copy_tensor``
    copies one tensor.

    An input that is a view of something larger becomes a tensor of its own size, and one that is
    given twice, or that the model holds as well, stays one tensor. The copy is in training or in
    evaluation mode throughout and has no gradients. ``refill`` gives an input that was written its
    values back, from the caller's.

    Raises ModelError when the model or the inputs cannot be copied.

    >>> model = nn.Linear(4, 2)
    >>> work = copied(step(model, (8, 4)), copy_tensor=torch.clone)
    >>> work.arguments.positional[0].shape, work.model is model
    (torch.Size([8, 4]), False)
    """
    memo: dict[int, Any] = {}
    model = copied_model(work.model, copy_tensor, memo)
    model.train(work.training)

    # PyTorch reads them in memory, so they are real in every copy
    batch_size_ids = {
        id(value.batch_sizes)
        for value in reachable(work.arguments)
        if isinstance(value, PackedSequence)
    }

    def copy_leaf(leaf: torch.Tensor | Shape) -> torch.Tensor:
        if isinstance(leaf, Shape):
            return zeros_of(leaf, dtype_of(work.model), work.runs_on)
        if id(leaf) in batch_size_ids:
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                return leaf.clone()
        return copy_tensor(_detach(leaf)).requires_grad_(leaf.requires_grad)

    arguments = work.arguments.replaced(copy_leaf, memo)
    caller_tensors = tensors_of(work.arguments)
    state = State(
        arguments, originals={memo[id(tensor)]: tensor for tensor in caller_tensors}, refill=refill
    )
    copy_of_work = replace(work, model=model, arguments=arguments, initial=state)
    drop_gradients(copy_of_work)
    return copy_of_work


def _detach(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor without its graph, as it is: under fake tensors, which copying makes, it
    still has values.
    """
    with _disable_current_modes():
        return tensor.detach()


def with_optimizer(work: Step) -> Step:
    """Return ``work`` with its optimizer, made from the parameters of its model.

    Raises ModelError when it cannot be made, or is one that runs the model several times in a step.

    >>> work = step(nn.Linear(4, 2), (8, 4), optimizer=torch.optim.Adam)
    >>> type(with_optimizer(work).optimizer).__name__
    'Adam'
    """
    if work.make_optimizer is None:
        return work
    return replace(
        work, optimizer=made_optimizer(work.make_optimizer, list(work.model.parameters()))
    )


def check_optimizer(optimizer: Any) -> None:
    """Raise TypeError where ``optimizer`` is neither None nor what makes an optimizer of a list of
    parameters.

    >>> check_optimizer(torch.optim.Adam)
    >>> check_optimizer("Adam")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    TypeError: optimizer is ...; give a class such as torch.optim.Adam, or a function ...
    """
    if isinstance(optimizer, torch.optim.Optimizer) or not (
        optimizer is None or callable(optimizer)
    ):
        raise TypeError(
            f"optimizer is {kind_of(optimizer)}; give a class such as torch.optim.Adam, or a "
            "function from a list of parameters to an optimizer, such as lambda p: "
            "torch.optim.SGD(p, lr=0.1, momentum=0.9)"
        )


def made_optimizer(
    factory: OptimizerFactory, parameters: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """Return the optimizer of these parameters.

    Raises ModelError when it cannot be made, or is one that runs the model several times in a step.

    >>> optimizer = made_optimizer(torch.optim.Adam, list(nn.Linear(4, 2).parameters()))
    >>> optimizer.defaults["lr"]
    0.001
    """
    try:
        optimizer = factory(parameters)
    except Exception as error:
        raise ModelError(
            f"the optimizer could not be made from the parameters: {first_line(error)}"
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer(parameters) gave {type(optimizer).__name__}; it must give a "
            "torch.optim.Optimizer"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ModelError(
            "LBFGS runs the model several times in one step; give an optimizer with one pass a step"
        )
    return optimizer


def kept_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that modules keep as attributes, or in objects there, by name: they are
    memory of it too.

    >>> model = nn.Sequential(nn.Linear(4, 2))
    >>> model[0].mask = torch.ones(2)
    >>> list(kept_tensors(model))
    ['0.mask']
    """
    seen = set(map(id, (*model.modules(), *model.parameters(), *model.buffers())))
    tensor_of_path: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            path = f"{name}.{key}".lstrip(".")
            members = reachable(value, seen=seen)
            tensors = [member for member in members if isinstance(member, torch.Tensor)]
            tensor_of_path |= {
                path if tensor is value else f"{path}, {number}": tensor
                for number, tensor in enumerate(tensors, 1)
            }
    return tensor_of_path


def drop_gradients(work: Step) -> None:
    """Set the gradients of parameters and inputs to None, and give a copy its initial state: so
    each step begins.

    >>> work = step(nn.Linear(4, 2), torch.ones(8, 4))
    >>> run(work)
    >>> drop_gradients(work)
    >>> work.model.weight.grad is None
    True
    """
    if work.initial is not None:
        work.initial.restore()
    for tensor in (*work.model.parameters(), *tensors_of(work.arguments)):
        if tensor.is_leaf:
            tensor.grad = None


def run(work: Step, enter: Callable[[str], None] = lambda _phase: None) -> None:
    """Run one step; ``enter`` is told "forward", "loss", "backward" and "optimizer" as each begins.

    The model's outputs are dropped as soon as the loss has been computed from them.

    Raises ModelError, naming the part, when the model, the loss, the backward pass or the optimizer
    raises.

    >>> phases = []
    >>> work = step(nn.Linear(4, 2), torch.ones(8, 4), optimizer=torch.optim.Adam)
    >>> run(with_optimizer(work), phases.append)
    >>> phases
    ['forward', 'loss', 'backward', 'optimizer']
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
        kind, reason = type(error).__name__, first_line(error)
        error_text = f"{kind}: {reason}" if str(error).strip() else kind
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_of(work.arguments))
        raise ModelError(
            f"the {PARTS[phase]} raised {error_text} (inputs of shape {shapes})"
        ) from error


def _run_phases(work: Step, enter: Callable[[str], None]) -> None:
    positional, named = work.arguments
    autocast: AbstractContextManager = nullcontext()
    if work.autocast is not None:
        autocast = torch.autocast(work.runs_on.type, dtype=work.autocast)
    enter("forward")
    if not work.training:
        with autocast:
            work.model(*positional, **named)
        return
    with autocast:
        outputs = work.model(*positional, **named)
        enter("loss")
        loss = work.loss(outputs)
    del outputs
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ModelError(f"the loss must be a tensor with one number, and is {shape}")
    if not loss.requires_grad:
        raise ModelError(
            "the loss depends on no parameter that is trained; use training=False, or unfreeze one"
        )
    enter("backward")
    loss.backward()
    if work.optimizer is not None:
        enter("optimizer")
        work.optimizer.step()


@contextmanager
def in_one_thread(model: nn.Module) -> Iterator[None]:
    """Raise ForwardError at the end where another thread called a module of ``model``, which
    nothing here follows.

    A thread that the forward has begun is stopped there as well, before it changes anything. One
    that was there before may be another's, which uses the same model, so it is let run.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> model = nn.Linear(4, 2)
    >>> with ThreadPoolExecutor() as pool, in_one_thread(model):  # doctest: +ELLIPSIS
    ...     stopped = pool.submit(model, torch.ones(8, 4)).exception()
    Traceback (most recent call last):
    helpers.steps._inputs.ForwardError: the forward calls a Linear in another thread, ...
    """
    thread, earlier_threads = threading.get_ident(), set(threading.enumerate())
    module_ids = set(map(id, model.modules()))
    errors: list[ForwardError] = []

    def enter(module: nn.Module, _: Any) -> None:
        is_backward = torch._C._current_graph_task_id() != -1  # on CUDA it has a thread of its own
        if threading.get_ident() == thread or id(module) not in module_ids or is_backward:
            return
        errors.append(
            ForwardError(
                f"the forward calls a {type(module).__name__} in another thread, whose operators "
                "are not seen; let it call its layers one after another, and count a copy of a "
                "model that another thread uses"
            )
        )
        if threading.current_thread() not in earlier_threads:
            raise errors[-1]

    hook = torch.nn.modules.module.register_module_forward_pre_hook(enter)
    try:
        yield
    finally:
        hook.remove()
        if errors:
            raise errors[0]


@contextmanager
def warm_step(
    model: nn.Module,
    inputs: Inputs = None,
    shape: Inputs = None,
    *,
    training: bool = True,
    loss: Loss | None = None,
    optimizer: OptimizerFactory | None = None,
) -> Iterator[Step]:
    """Give the step on a copy of ``model``, run twice so that what happens once (caches, optimizer
    state) is over.

    ``inputs``, ``shape``, ``training``, ``loss`` and ``optimizer`` are those of :func:`step`.
    Inside, the garbage collector is off; at the end the random generators are as they were.

    Raises what :func:`step` raises, and ModelError where the step does.

    >>> model = nn.Linear(4, 2)
    >>> with warm_step(model, (8, 4), optimizer=torch.optim.Adam) as work:
    ...     len(work.optimizer.state)
    2
    >>> model.weight.grad is None
    True
    """
    boolean("training", training)
    work = step(model, inputs, shape, optimizer=optimizer, training=training, loss=loss)
    with undisturbed(), torch.inference_mode(False):
        work = with_optimizer(copied(work, copy_tensor=torch.clone))
        with in_one_thread(work.model):
            run(work)
        drop_gradients(work)
        run(work)
        drop_gradients(work)
        assert work.initial is not None  # it is a copy
        buffers = {buffer: buffer.detach().clone() for buffer in work.model.buffers()}
        yield replace(
            work,
            initial=State(work.model, work.arguments, originals=work.initial.originals | buffers),
        )
