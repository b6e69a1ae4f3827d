"""Count the operations of a model: the forward is followed on shapes, the rest is derived from its
record.
"""

from __future__ import annotations

import traceback
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from helpers import steps
from helpers.checks import boolean
from helpers.operations import _backward as backward, _tally as tally
from helpers.operations._meta import MetaTrace
from helpers.operations._optimizer import optimizer_calls
from helpers.operations._report import OperationProfile
from helpers.operations._specs import META
from helpers.operations._trace import OperatorTrace
from helpers.steps import ForwardError as ForwardError, ModelError as ModelError
from helpers.timing._runs import collector_off

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def profile_ops(
    model: nn.Module,
    inputs: steps.Inputs = None,
    *,
    shape: steps.Inputs = None,
    optimizer: steps.OptimizerFactory | None = None,
    inputs_need_grad: bool = False,
    values: bool = False,
) -> OperationProfile:
    """Count the operations and bytes of ``model`` for one input: forward, backward and optimizer,
    layer by layer.

    ``inputs`` (or ``shape``) is as in :mod:`helpers.steps`, nested as the forward wants it:
    ``profile_ops(model, (1, 3, 224, 224))``, ``profile_ops(model, dict(tokenizer(text)))``.
    ``optimizer`` is a ``torch.optim`` class or a function from a list of parameters to an
    optimizer; without one that phase is 0.

    Nothing is computed: the forward runs on shapes (torch's meta device), with the model's own
    mode, and the model comes back as it was. Integer and boolean inputs of up to 262,144 elements
    keep their values, and so does what follows from them alone: a mask can be asked whether it
    masks anything, a length can end a loop; an activation that is asked whether it is a finite
    number says yes. Parameters of more than 512 elements have no values. Where the forward needs
    other values (detection, routed experts), ``values=True`` runs it once on real tensors, on the
    model's device and under the same rules; from a ``shape`` it draws them from a normal
    distribution, always the same.

    Two columns, never mixed:

    * MACs are the multiply-accumulates of convolutions and matrix products, padding included, bias
      not.
    * FLOPs are 2 a MAC (which pays for a bias added by the same operator) plus the element-wise
      operations: additions, activations, normalisation, softmax, pooling, by
      :func:`convention_table`.

    Backward is the gradient of a loss on all outputs with respect to the parameters that need one;
    the inputs need none unless ``inputs_need_grad`` (a stage of a pipeline, a generator). Frozen
    parameters and what lies before the first trainable one get none, and gradients that meet are
    added. What a checkpoint would compute again is not in it; a reentrant one hides its parameters,
    so the optimizer is then taken to step on all that need a gradient. Bytes: each operator reads
    its operands and writes its result once; views are free; types are those of the model and its
    inputs, since autocast does not reach shapes. Attention is taken apart, so its scores are
    written and read: a fused kernel does the same products and moves less, at least its operands
    and its result. The optimizer's step is its second (its state exists), per parameter: SGD 2
    FLOP, with momentum 4, Adam 13, AdamW 14, counted from the operators that it runs; its MACs are
    0.

    An operator without a rule is named in ``not_counted``, and the totals then say "at least";
    :func:`register` gives it one. A count that depends on a random draw says so.

    Raises TypeError or ValueError for an argument that is not accepted, ModelError for a model that
    hides its layers or has none yet (TorchScript, quantised, lazy), and of its kinds
    :class:`ForwardError` where the forward cannot be followed (a wrong shape, an exception of its
    own, a step that needs values).

    >>> profile = profile_ops(nn.Linear(784, 10), (64, 784))
    >>> profile.forward_macs  # 64 x 784 x 10
    501760

    Lesson 11.
    """
    boolean("inputs_need_grad", inputs_need_grad)
    boolean("values", values)
    model = _unwrap(model)
    steps.check_model(model, compiled=True)
    arguments = steps.arguments_of(model, inputs, shape)
    steps.check_optimizer(optimizer)
    if values and _is_on_meta(model):
        raise ValueError(
            "values=True runs the forward on real tensors, and the model is on meta, which holds "
            "none; make the model on the CPU, or count it without values=True"
        )
    with (
        torch.inference_mode(False),
        # the collector would go through the record again and again, and a shape takes no memory
        nullcontext() if values else collector_off(),
        nullcontext() if values else steps.nothing_left(model),
        steps.preserved(model),
    ):
        return _count(
            model,
            arguments,
            OperatorTrace(model) if values else MetaTrace(model),
            optimizer,
            inputs_need_grad,
        )


def _count(
    model: nn.Module,
    caller_arguments: steps.Arguments,
    trace: OperatorTrace,
    optimizer: steps.OptimizerFactory | None,
    need_grad: bool,
) -> OperationProfile:
    arguments = _make_stand_ins(model, caller_arguments, trace, need_grad=need_grad)
    try:
        return _follow(
            model, arguments, trace, optimizer, is_from_shape=caller_arguments.is_from_shape
        )
    finally:
        trace.release(arguments)


def _follow(
    model: nn.Module,
    arguments: steps.Arguments,
    trace: OperatorTrace,
    optimizer: steps.OptimizerFactory | None,
    *,
    is_from_shape: bool,
) -> OperationProfile:
    try:
        with steps.in_one_thread(model), trace.recording():
            outputs = model(*arguments.positional, **arguments.named)
    except Exception as error:
        raise _explain(error, model, trace, arguments, is_from_shape) from error
    if not steps.tensors_of(outputs):
        raise steps.ModelError(
            f"the model returned {type(outputs).__name__} without a tensor, so that nothing is "
            "known of its backward; return what it computes, in any container or object"
        )
    backward_pass = backward.walk_graph(outputs, trace)
    trained_parameters = [
        parameter
        for parameter in model.parameters()
        if backward_pass.trains(parameter, trace.stand_in(parameter))
    ]
    sums = tally.sum_trace(trace, backward_pass)
    if optimizer is not None:
        owners = [trace.parameter_owner.get(id(parameter), 0) for parameter in trained_parameters]
        for call in optimizer_calls(trained_parameters, owners, optimizer):
            sums.add_executed(sums.price(call), call.owner, "optimizer")
    input_text = steps.described((*arguments.positional, arguments.named))
    return tally.build_profile(trace, sums, input_text, _name_of(optimizer))


def _unwrap(model: Any) -> Any:
    """Return the module inside the wrapper of torch.compile or DataParallel, else ``model``
    itself.
    """
    wrapped = model.module if isinstance(model, _WRAPPERS) else getattr(model, "_orig_mod", None)
    return _unwrap(wrapped) if isinstance(wrapped, nn.Module) else model


def _is_on_meta(model: nn.Module) -> bool:
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def _make_stand_ins(
    model: nn.Module, caller_arguments: steps.Arguments, trace: OperatorTrace, *, need_grad: bool
) -> steps.Arguments:
    """Return the tensors that compute in place of the caller's; shapes become tensors of the
    model's type.
    """
    is_real = type(trace) is OperatorTrace

    def stand_in(leaf: Any) -> torch.Tensor:
        if isinstance(leaf, steps.Shape) and is_real:
            generator = torch.Generator().manual_seed(0)
            random_input = steps.zeros_of(leaf, torch.float32, "cpu").normal_(generator=generator)
            device = next((parameter.device for parameter in model.parameters()), None)
            leaf = random_input.to(device, steps.dtype_of(model))
        elif isinstance(leaf, steps.Shape):
            leaf = steps.zeros_of(leaf, steps.dtype_of(model), META)
        return trace.stand_in_of_input(leaf, needs_grad=need_grad)

    return caller_arguments.replaced(stand_in)


def _name_of(optimizer: Any) -> str | None:
    if optimizer is None:
        return None
    return optimizer.__name__ if isinstance(optimizer, type) else "given by a function"


def _explain(
    error: Exception,
    model: nn.Module,
    trace: OperatorTrace,
    arguments: steps.Arguments,
    is_from_shape: bool,
) -> steps.ForwardError:
    """Return the error to raise: the layer that failed, its input, and what to do."""
    while isinstance(error.__cause__, steps.ForwardError):
        error = error.__cause__
    path, module, input_text = _failing_module(error, model, trace, arguments)
    kind = type(module).__name__
    where = f"layer {path!r} ({kind})" if path else f"the forward of {kind}"
    reason = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    if isinstance(error, steps.ForwardError):
        return steps.ForwardError(f"{where}: {reason}")
    if "meta" in reason and not _is_on_meta(model):
        return steps.ForwardError(
            f"{where} takes a step that shapes alone cannot follow ({type(error).__name__}); "
            "pass values=True to run the forward once on real tensors"
        )
    message = f"{where} failed on {input_text}: {type(error).__name__}: {reason}"
    if is_from_shape and any(word in reason for word in ("indices", "Long", "embedding")):
        message += (
            "; a shape makes floating-point input: pass inputs=torch.zeros(shape, dtype=torch.long)"
        )
    elif isinstance(error, NotImplementedError) and isinstance(trace, MetaTrace):
        message += "; pass values=True to run the forward once on real tensors"
    elif is_from_shape and isinstance(error, RuntimeError | IndexError | ValueError):
        message += f"; check the shape: the model was given {steps.described(arguments.positional)}"
    elif is_from_shape and isinstance(error, TypeError):
        message += "; a shape makes one tensor, so pass what the forward takes with inputs="
    return steps.ForwardError(message)


def _failing_module(
    error: Exception, model: nn.Module, trace: OperatorTrace, arguments: steps.Arguments
) -> tuple[str, nn.Module, str]:
    """Return the innermost module whose forward raised, with its path and a description of its
    inputs.
    """
    module, inputs = model, (*arguments.positional, arguments.named)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is nn.Module._call_impl.__code__:
            values = frame.f_locals
            module, inputs = values["self"], (*values["args"], values["kwargs"])
    return trace.path_of(module), module, steps.described(inputs)
