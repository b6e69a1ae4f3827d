"""Bias and ReLU in one pass, as PyTorch operators with gradients: ``fused_bias::...`` of
``torch.library``.

On a CPU the kernels are C++, on CUDA Triton's. What they compute, element by element, is torch's
own result: the sum is rounded once, relu(NaN) is NaN. The sums of a gradient are accurate to the
bounds of :func:`bias_gradient`. Gradients are those of the reverse mode, twice as well. Forward
mode and the gradients of ``torch.func`` have no rule for them and are refused (NotImplementedError,
RuntimeError).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.autograd import forward_ad

from helpers.checks import choice
from helpers.studies.fused_bias import (
    _cpp_kernels as cpp_kernels,
    _layouts as layouts,
    _triton_kernels as triton_kernels,
)

ALGORITHMS = ("direct", "Winograd")

_DEVICES = ("cpu", "cuda")


def bias_relu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return relu(x + bias) for ``x`` (N, C, ...) and ``bias`` (C,): one kernel that reads x once
    and writes once.

    float32, float64 and bfloat16, on CUDA float16 as well; NCHW or channels-last, which the result
    keeps. A view with gaps is copied first, which is one more pass. Equal to
    ``torch.relu(x + bias)`` bit for bit, NaN and infinities too, except that a zero is always +0
    where torch's may be -0. Gradients flow to both.

    Raises TypeError or ValueError for what does not fit together or is of another dtype,
    NotImplementedError for tangents of forward mode, MissingToolError on a CPU without a C++
    compiler.
    """
    _check(x, bias)
    return _bias_relu(x, bias)


def bias_relu_(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Replace ``x`` (N, C, ...) by relu(x + bias) where it lies in memory, and return it; else as
    :func:`bias_relu`.

    Raises ValueError for a view with gaps or in another order than NCHW or channels-last, and what
    :func:`bias_relu` raises. As in torch, RuntimeError where autograd could not follow: for a leaf
    that requires a gradient, a view of one, one of the views that ``split`` or ``unbind`` return,
    and for a tensor of inference mode outside of it. A bias that shares memory with ``x`` is read
    before it is overwritten.
    """
    _check(x, bias)
    if not torch.compiler.is_compiling() and x.is_neg():  # a compiler cannot ask it of a tensor
        raise ValueError(
            "x is a view that negates what lies in memory; give x.resolve_neg() (a copy), or use "
            "bias_relu"
        )
    if not layouts.is_dense(x):
        raise ValueError(
            f"x of shape {tuple(x.shape)} and strides {x.stride()} lies in memory with gaps or in "
            "another order; give x.contiguous() (a copy), or use bias_relu"
        )
    if torch.is_grad_enabled() and (x.requires_grad or bias.requires_grad):
        _refuse_as_autograd_will(x)
        return _InPlace.apply(x, bias)
    _bias_relu_(x, bias)
    return x


def bias_gradient(grad_output: torch.Tensor) -> torch.Tensor:
    """Return the bias gradient (C,): the sum of ``grad_output`` (N, C, ...) over all but the
    channels, in one read.

    In float32 each partial sum holds at most 36 roundings before it is added in float64, and the
    total is rounded once, so the error is at most 37 u / (1 - 37 u) times the sum of the absolute
    values, u = 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, chapter
    4), where no partial sum overflows. bfloat16 is summed so as well, and rounded to bfloat16 at
    the end. float64 is summed in float64: for n numbers a channel the bound has n - 1 for 37, and u
    = 2^-53. On CUDA partial sums are of float32 (float64 for float64) in the order of a tree. The
    same call gives the same bits.

    Raises TypeError or ValueError for what is no tensor (N, C, ...) of such numbers,
    NotImplementedError for tangents of forward mode, MissingToolError on a CPU without a C++
    compiler.
    """
    layouts.check_values(grad_output, "grad_output")
    _check_device(grad_output)
    _refuse_tangents(grad_output)
    return _bias_gradient(grad_output)


def relu_bias_backward(
    grad_output: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of x, (N, C, ...), and of the bias, (C,), from y = relu(x + bias) and
    its gradient.

    One pass: reads both, writes one, and adds up what it writes. As torch does, it passes the
    gradient where y is NaN. The sums are as accurate as those of :func:`bias_gradient`. The result
    lies in memory as ``y`` does.

    Raises ValueError for different shapes or dtypes, and what :func:`bias_gradient` raises.
    """
    layouts.check_values(grad_output, "grad_output")
    layouts.check_values(y, "y")
    _check_device(y)
    _refuse_tangents(grad_output, y)
    if (grad_output.shape, grad_output.dtype, grad_output.device) != (y.shape, y.dtype, y.device):
        raise ValueError(
            "grad_output and y have one shape, dtype and device; they are "
            f"{tuple(grad_output.shape)} {grad_output.dtype} on {grad_output.device} and "
            f"{tuple(y.shape)} {y.dtype} on {y.device}"
        )
    return _relu_bias_backward(grad_output, y)


def bias_relu_pool(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return the 2 x 2 maxima (stride 2) of relu(x + bias), (N, C, H // 2, W // 2), reading x (N,
    C, H, W) once.

    float32 or float64 on a CPU. Equal to ``max_pool2d(relu(x + bias), 2)`` as :func:`bias_relu` is
    to the ReLU, of which it writes a quarter of the bytes; for the backward pass it keeps one byte
    an output, the place of the largest. Gradients flow to both.

    Raises as :func:`bias_relu`, ValueError for images under 2 x 2 pixels, NotImplementedError on
    CUDA.
    """
    _check(x, bias)
    _check_pooled(x, "bias_relu_pool", "on CUDA pool bias_relu(x, bias)")
    return _bias_relu_pool(x, bias)[0]


def conv_bias_relu_pool(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, algorithm: str = "direct"
) -> torch.Tensor:
    """Return max_pool2d(relu(conv2d(x, weight, bias, padding=1)), 2), (N, C_out, H // 2, W // 2),
    channels-last.

    For ``x`` (N, C_in, H, W), which is copied unless it lies channels-last, ``weight`` (C_out,
    C_in, 3, 3) and ``bias`` (C_out,), float32 or float64, on a CPU. Between the layers nothing is
    written to memory, and outputs that no pooling window holds are not computed. ``algorithm`` is
    one of :data:`ALGORITHMS`:

    - "direct": sums of 9 C_in products: in any order of addition the error is at most n u / (1 - n
      u) times the sum of the absolute values, n = 9 C_in + 1, u the unit roundoff (Higham 2002,
      3.1).
    - "Winograd": F(2 x 2, 3 x 3), which takes 16 products instead of 36 (Lavin and Gray 2016). The
      same bound holds with n = C_in + 12 and, for the sum, Winograd's own formula with absolute
      values in all its matrices and numbers: a tile's inputs are added up before the product, so
      one large value costs its tile's other outputs accuracy, and an infinity makes all of them
      NaN.

    For gradients one byte an output is kept, the place of the largest. Gradients flow to all three
    tensors.

    Raises TypeError or ValueError for what does not fit together, NotImplementedError on CUDA and
    for tangents of forward mode, MissingToolError without a C++ compiler.
    """
    choice("algorithm", algorithm, ALGORITHMS)
    layouts.check_layer(x, weight, bias)
    _check_pooled(x, "conv_bias_relu_pool", "take another rung on CUDA")
    tensors = (x, weight, bias)
    _refuse_tangents(*tensors)
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return _conv_bias_relu_pool(x, weight, bias, algorithm == "Winograd", needs_grad)[0]


def _refuse_tangents(*tensors: torch.Tensor) -> None:
    """Raise NotImplementedError for a tangent of forward-mode differentiation, which an operator
    would drop.
    """
    for tensor in tensors:
        if forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(
                "the one-pass kernels have gradients in reverse mode alone (backward, torch."
                "autograd.grad); for forward mode and torch.func.jvp take torch.relu and "
                "sum"
            )


def _check(x: torch.Tensor, bias: torch.Tensor) -> None:
    layouts.check_values(x, "x")
    layouts.check_bias(bias, x, channels=x.shape[1])
    _check_device(x)
    _refuse_tangents(x, bias)


def _check_pooled(x: torch.Tensor, name: str, remedy: str) -> None:
    if x.dim() != 4 or min(x.shape[2:]) < 2:
        raise ValueError(
            f"x is (N, C, H, W) with images of 2 x 2 pixels or more; this is {tuple(x.shape)}"
        )
    if x.device.type != "cpu":
        raise NotImplementedError(f"{name} is a C++ kernel for the CPU; {remedy}")


def _check_device(x: torch.Tensor) -> None:
    if x.device.type not in _DEVICES:
        raise ValueError(
            f"the kernels run on {' and '.join(_DEVICES)}, not on {x.device.type}; give x.to('cpu')"
        )


def _refuse_as_autograd_will(x: torch.Tensor) -> None:
    """Raise RuntimeError for what autograd refuses to change in place, which it says after the
    kernel has run.
    """
    owner = x if x._base is None else x._base
    if owner.is_leaf and owner.requires_grad:
        raise RuntimeError(
            "x is a leaf Variable that requires grad, or a view of one, and cannot be changed in "
            "place; use bias_relu, or give x.detach()"
        )
    # a compiler's graph changes nothing in place
    if x._base is None or torch.compiler.is_compiling():
        return
    autograd = torch._C._autograd
    if autograd._get_creation_meta(x) != autograd.CreationMeta.DEFAULT:
        raise RuntimeError(
            "x is one of several views that one call has returned (split, unbind), or was made "
            "under no_grad, and autograd cannot follow a change of it in place; use bias_relu"
        )


def _dense(x: torch.Tensor) -> torch.Tensor:
    return x if layouts.is_dense(x) else x.contiguous()


def _empty_like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, memory_format=layouts.memory_format(x))


def _per_channel(values: torch.Tensor, dimensions: int) -> torch.Tensor:
    return values.view(1, -1, *[1] * (dimensions - 2))


def _kernels(x: torch.Tensor) -> ModuleType:
    return cpp_kernels if x.device.type == "cpu" else triton_kernels


_LIBRARY = torch.library.Library("fused_bias", "DEF")


def _operator(schema: str, *, keys: tuple[str, ...] = ("CPU", "CUDA")) -> Callable[..., Any]:
    """Register a kernel under a schema; return the operator.

    A call costs a third of ``torch.library.custom_op``'s.
    """

    def register(kernel: Callable[..., Any]) -> Any:
        name = schema.partition("(")[0]
        _LIBRARY.define(schema, tags=torch.Tag.pt2_compliant_tag)
        for key in keys:
            _LIBRARY.impl(name, kernel, key)
        return getattr(torch.ops.fused_bias, name).default

    return register


@_operator("bias_relu(Tensor x, Tensor bias) -> Tensor")
def _bias_relu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    x, out = _dense(x), _empty_like(x)
    _kernels(x).bias_relu(x, bias, out)
    return out


@_operator("bias_relu_(Tensor(a!) x, Tensor bias) -> ()")
def _bias_relu_(x: torch.Tensor, bias: torch.Tensor) -> None:
    if x.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError(
            "x was made in inference mode, outside of which it cannot be changed in place; use "
            "bias_relu, or give x.clone()"
        )
    bias_bytes = ((len(bias) - 1) * bias.stride(0) + 1) * bias.element_size()
    if bias.data_ptr() < x.data_ptr() + x.nbytes and x.data_ptr() < bias.data_ptr() + bias_bytes:
        bias = bias.clone()
    _kernels(x).bias_relu(x, bias, x)
    if not x.is_inference():
        torch.autograd.graph.increment_version(x)  # what autograd saved of x is no longer there


@_operator("bias_gradient(Tensor grad) -> Tensor")
def _bias_gradient(grad: torch.Tensor) -> torch.Tensor:
    return _kernels(grad).bias_gradient(_dense(grad))


@_operator("relu_bias_backward(Tensor grad, Tensor y) -> (Tensor, Tensor)")
def _relu_bias_backward(grad: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = _dense(y)
    grad_x = _empty_like(y)
    return grad_x, _kernels(y).relu_bias_backward(layouts.dense_like(grad, y), y, grad_x)


@_operator("bias_relu_pool(Tensor x, Tensor bias) -> (Tensor, Tensor)", keys=("CPU",))
def _bias_relu_pool(x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = _dense(x)
    pooled, place = _pooled_like(x, x.shape[1], layouts.memory_format(x))
    cpp_kernels.bias_relu_pool(x, bias, pooled, place)
    return pooled, place


@_operator(
    "bias_relu_pool_backward(Tensor grad, Tensor place, SymInt height, SymInt width) -> (Tensor, "
    "Tensor)",
    keys=("CPU",),
)
def _bias_relu_pool_backward(
    grad: torch.Tensor, place: torch.Tensor, height: int, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_x = _unpooled_like(grad, place, height, width)
    return grad_x, cpp_kernels.bias_relu_pool_backward(
        layouts.dense_like(grad, grad_x), place, grad_x
    )


def _pooled_like(
    x: torch.Tensor, channels: int, layout: torch.memory_format
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return room for the pooled ``x``, of ``channels``, and for the place of each number."""
    shape = (x.shape[0], channels, x.shape[2] // 2, x.shape[3] // 2)
    pooled = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)
    return pooled, torch.empty_like(pooled, dtype=torch.uint8)


def _unpooled_like(
    grad: torch.Tensor, place: torch.Tensor, height: int, width: int
) -> torch.Tensor:
    shape = (*place.shape[:2], height, width)
    return torch.empty(
        shape, dtype=grad.dtype, device=grad.device, memory_format=layouts.memory_format(place)
    )


@_operator(
    "conv_bias_relu_pool(Tensor x, Tensor weight, Tensor bias, bool tiled, bool places) -> "
    "(Tensor, Tensor)",
    keys=("CPU",),
)
def _conv_bias_relu_pool(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, tiled: bool, places: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    pooled, place = _outputs_of_layer(x, weight, bias, tiled, places)
    x = x.contiguous(memory_format=torch.channels_last)
    cpp_kernels.convolution(x, weight, bias, pooled, place, tiled=tiled)
    return pooled, place


def _outputs_of_layer(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,  # noqa: ARG001
    tiled: bool,  # noqa: ARG001
    places: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    pooled, place = _pooled_like(x, weight.shape[0], torch.channels_last)
    return pooled, place if places else place.new_empty(0)


_FAKES: dict[str, Callable[..., object]] = {
    "bias_relu": lambda x, bias: _empty_like(x),  # noqa: ARG005
    "bias_relu_": lambda x, bias: None,  # noqa: ARG005
    "bias_gradient": lambda grad: grad.new_empty(grad.shape[1]),
    "relu_bias_backward": lambda grad, y: (_empty_like(y), grad.new_empty(grad.shape[1])),
    "bias_relu_pool": lambda x, bias: _pooled_like(  # noqa: ARG005
        x, x.shape[1], layouts.memory_format(x)
    ),
    "bias_relu_pool_backward": lambda grad, place, height, width: (
        _unpooled_like(grad, place, height, width),
        grad.new_empty(grad.shape[1]),
    ),
    "conv_bias_relu_pool": _outputs_of_layer,
}
for _name, _fake in _FAKES.items():
    torch.library.register_fake(f"fused_bias::{_name}", _fake, lib=_LIBRARY)


def _keep_output(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(output)


def _backward_of_bias_relu(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _relu_bias_backward(grad, *ctx.saved_tensors)


def _keep_second_input(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001
    ctx.save_for_backward(inputs[1])


def _backward_of_backward(
    ctx: Any, grad_x: torch.Tensor, grad_bias: torch.Tensor
) -> tuple[torch.Tensor, None]:
    (y,) = ctx.saved_tensors
    both = grad_x + _per_channel(grad_bias, y.dim())
    return both.masked_fill(y <= 0, 0), None


def _keep_shape(ctx: Any, inputs: tuple[torch.Tensor], output: Any) -> None:  # noqa: ARG001
    ctx.shape = inputs[0].shape


def _backward_of_bias_gradient(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return _per_channel(grad, len(ctx.shape)).expand(ctx.shape)


def _keep_place(
    ctx: Any, inputs: tuple[torch.Tensor, ...], output: tuple[torch.Tensor, torch.Tensor]
) -> None:
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.size = inputs[0].shape[2:]


def _backward_of_pool(ctx: Any, grad: torch.Tensor, _: object) -> tuple[torch.Tensor, torch.Tensor]:
    return _bias_relu_pool_backward(grad, *ctx.saved_tensors, *ctx.size)


def _backward_of_pool_backward(
    ctx: Any, grad_x: torch.Tensor, grad_bias: torch.Tensor
) -> tuple[torch.Tensor, None, None, None]:
    (place,) = ctx.saved_tensors
    rows, columns = place.shape[2:]
    both = grad_x[:, :, : 2 * rows, : 2 * columns] + _per_channel(grad_bias, 4)
    # 4 x (N, C, H // 2, W // 2), one for each place in a window
    four = [both[:, :, row::2, column::2] for row in range(2) for column in range(2)]
    four.append(torch.zeros_like(four[0]))  # place 4: nothing passes the ReLU
    return torch.stack(four).gather(0, place.long().unsqueeze(0)).squeeze(0), None, None, None


def _keep_layer(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]
) -> None:
    x, weight, _, _, places = inputs
    if not places:
        raise RuntimeError(
            "conv_bias_relu_pool was called for no gradient, but one is wanted; give places=True"
        )
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, weight, output[1])


def _backward_of_layer(ctx: Any, grad: torch.Tensor, _: object) -> tuple[torch.Tensor | None, ...]:
    x, weight, place = ctx.saved_tensors
    passed, grad_bias = _bias_relu_pool_backward(grad, place, *x.shape[2:])
    mask, ones = [*ctx.needs_input_grad[:2], False], [1, 1]
    grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
        passed, x, weight, None, ones, ones, ones, False, [0, 0], 1, mask
    )
    return grad_x, grad_weight, grad_bias, None, None


_GRADIENTS: dict[str, tuple[Callable[..., object], Callable[..., None]]] = {
    "bias_relu": (_backward_of_bias_relu, _keep_output),
    "relu_bias_backward": (_backward_of_backward, _keep_second_input),
    "bias_gradient": (_backward_of_bias_gradient, _keep_shape),
    "bias_relu_pool": (_backward_of_pool, _keep_place),
    "bias_relu_pool_backward": (_backward_of_pool_backward, _keep_second_input),
    "conv_bias_relu_pool": (_backward_of_layer, _keep_layer),
}
for _name, (_backward, _setup) in _GRADIENTS.items():
    torch.library.register_autograd(
        f"fused_bias::{_name}", _backward, setup_context=_setup, lib=_LIBRARY
    )


class _InPlace(torch.autograd.Function):
    """The operator that changes x, which torch.library cannot give a gradient, made
    differentiable.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        _bias_relu_(x, bias)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    backward = staticmethod(_backward_of_bias_relu)
