"""Convolution, bias and ReLU in seven ways that compute the same: what people do today, and the
one-pass kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from helpers.checks import choice
from helpers.studies.fused_bias import (
    _cpp_kernels as cpp_kernels,
    _layouts as layouts,
    _operators as operators,
)

Layer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Reduction = Callable[[torch.Tensor], torch.Tensor]

_ONES = [1, 1]  # the stride, the padding and the dilation of each convolution


@dataclass(frozen=True)
class Gradients:
    """The gradients of one layer: of its input, its weight and its bias; ``x`` is None where none
    was asked for.

    Lesson 18.
    """

    x: torch.Tensor | None
    weight: torch.Tensor
    bias: torch.Tensor


def layer(variant: str) -> Layer:
    """Return relu(conv(x, weight) + bias) as ``variant`` computes it: a function of x, weight and
    bias with gradients.

    The convolution has stride 1 and pads with 1: x (N, C_in, H, W), weight (C_out, C_in, 3, 3) and
    bias (C_out,) give (N, C_out, H, W). ``variant`` is one of :data:`VARIANTS`:

    - "separate": convolution, add, ReLU, each with a new tensor; what the three operators of
      PyTorch do.
    - "broadcast": convolution, then bias and ReLU in one kernel, with a new tensor:
      :func:`bias_relu`. What the story's framework ran, whose profile shows one kernel of bias and
      activation for each convolution.
    - "in-place": the three kernels of "separate", the last two written over the convolution's
      output.
    - "native": the bias handed to the convolution, ReLU in place; what PyTorch's layers do.
    - "post-op": bias and ReLU inside the convolution: oneDNN's post-operations on a CPU, cuDNN's on
      CUDA. Not for float64; oneDNN's ReLU may make a NaN zero, where the other variants keep it.
    - "compiled": "separate" under ``torch.compile``; its first call takes tens of seconds.
    - "one-pass": convolution, and then :func:`bias_relu_` over its output.

    In float32 on a CPU the error of an output is at most n u / (1 - n u) times the sum of the
    absolute values of its 9 C_in products and its bias, n = 9 C_in + 1, u = 2^-24: that of an inner
    product in any order (Higham 2002, 3.1).

    Raises ValueError for another name; the function raises TypeError or ValueError for tensors that
    do not fit, and what the kernels raise (MissingToolError without a compiler for "broadcast" and
    "one-pass" on a CPU).
    """
    compute = _FUNCTIONS[choice("variant", variant, VARIANTS)]

    def checked_layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        layouts.check_layer(x, weight, bias)
        return compute(x, weight, bias)

    checked_layer.__name__ = checked_layer.__qualname__ = variant
    return checked_layer


def gradients(
    variant: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    grad_output: torch.Tensor,
) -> Gradients:
    """Return the gradients of ``variant`` for ``grad_output``, that of its output, (N, C_out, H,
    W).

    ``x``, ``weight`` and ``bias`` are as in :func:`layer`. The gradient of x is None where x
    requires none, as in a network's first layer. Raises as :func:`layer`.
    """
    weight, bias = (tensor.detach().requires_grad_() for tensor in (weight, bias))
    inputs = (weight, bias, x) if x.requires_grad else (weight, bias)
    with torch.enable_grad():
        y = layer(variant)(x, weight, bias)
    of_weight, of_bias, *of_x = torch.autograd.grad(y, inputs, grad_output)
    return Gradients(of_x[0] if of_x else None, of_weight, of_bias)


def reduction(name: str) -> Reduction:
    """Return the sum of a gradient (N, C, H, W) over all but the channels, (C,), as the program
    ``name`` computes it.

    - "per image": a loop over the images that adds each one's sum, as the oldest frameworks did.
    - "sum": ``grad.sum((0, 2, 3))``, what autograd does with a broadcast bias.
    - "two-step": pixels first, images then: ``grad.sum((2, 3)).sum(0)``.
    - "ones": a matrix product with a vector of ones, so that a library's product does the sum.
    - "one-pass": :func:`bias_gradient`, the C++ kernel on a CPU, Triton's on CUDA.

    As in any order of additions, the error of the sum of n numbers is at most (n - 1) u / (1 - (n -
    1) u) times the sum of their absolute values, u the unit roundoff (Higham 2002, 4.2); that of
    "one-pass" is smaller.

    Raises ValueError for another name; when called, TypeError or ValueError for what is no (N, C,
    H, W). Lesson 18.
    """
    compute = _REDUCTIONS[choice("name", name, REDUCTIONS)]

    def checked_reduction(grad: torch.Tensor) -> torch.Tensor:
        layouts.check_values(grad, "grad")
        if grad.dim() != 4:
            raise ValueError(f"grad is (N, C, H, W), not of the shape {tuple(grad.shape)}")
        return compute(grad)

    checked_reduction.__name__ = checked_reduction.__qualname__ = name
    return checked_reduction


def missing(variant: str, device: str | torch.device = "cpu") -> str:
    """Return the reason why ``variant`` cannot run on ``device``, "" where it can: no oneDNN, no
    cuDNN, no compiler, no Triton.

    For the C++ compiler this compiles the kernels, which takes seconds once: one that is there may
    be broken. Raises ValueError for an unknown variant. Lesson 18.
    """
    from helpers.native import NativeError, _tools as tools

    layer(variant)
    on_cpu = torch.device(device).type == "cpu"
    if variant == "post-op":
        available = (
            torch.backends.mkldnn.is_available() if on_cpu else torch.backends.cudnn.is_available()
        )
        return "" if available else f"this torch has no {'oneDNN' if on_cpu else 'cuDNN'}"
    if variant in ("broadcast", "compiled", "one-pass"):
        try:
            if on_cpu:
                tools.find_compiler()
                cpp_kernels.compile_program()
            else:
                from helpers.studies.fused_bias import _triton_kernels as triton_kernels

                triton_kernels.programs()
        except (NativeError, OSError) as error:  # OSError: no folder to keep it in
            return str(error)
    return ""


def _convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    return functional.conv2d(x, weight, bias, padding=1)


def _separate(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(_convolution(x, weight) + bias.view(1, -1, 1, 1))


def _one_pass(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = _convolution(x, weight)
    return operators.bias_relu_(y, bias) if layouts.is_dense(y) else operators.bias_relu(y, bias)


def _post_op(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    reason = missing("post-op", x.device)
    if reason:
        raise RuntimeError(
            f"{reason}, which 'post-op' needs; take another variant: {', '.join(VARIANTS)}"
        )
    if x.dtype == torch.float64:
        raise TypeError(
            "neither oneDNN nor cuDNN fuses float64; give float32, or take another variant"
        )
    return _PostOp.apply(x, weight, bias)


class _PostOp(torch.autograd.Function):
    """The convolution whose library adds the bias and applies the ReLU before it writes; torch has
    no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        sizes = (_ONES, _ONES, _ONES, 1)  # the last one are the groups
        if x.device.type == "cuda":
            y = torch.cudnn_convolution_relu(x, weight, bias, *sizes)
        else:
            y = torch.ops.mkldnn._convolution_pointwise(x, weight, bias, *sizes, "relu", [], "")
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
        x, weight, y = ctx.saved_tensors
        masked_grad = torch.ops.aten.threshold_backward(grad, y, 0)
        mask = [ctx.needs_input_grad[0], True, True]
        return torch.ops.aten.convolution_backward(
            masked_grad, x, weight, [len(weight)], _ONES, _ONES, _ONES, False, [0, 0], 1, mask
        )


@functools.lru_cache(maxsize=1)
def _compile_separate() -> Layer:
    return torch.compile(_separate, dynamic=False)


def _per_image(grad: torch.Tensor) -> torch.Tensor:
    total = grad.new_zeros(grad.shape[1])
    for image in grad:
        total += image.sum((1, 2))  # (C,), of (C, H, W)
    return total


def _with_ones(grad: torch.Tensor) -> torch.Tensor:
    if layouts.is_channels_last(grad):
        rows = grad.permute(0, 2, 3, 1).reshape(-1, grad.shape[1])  # (N H W, C)
        return grad.new_ones(len(rows)) @ rows
    planes = grad.flatten(0, 1).flatten(1)  # (N C, H W)
    return (planes @ grad.new_ones(planes.shape[1])).view(grad.shape[:2]).sum(0)


_FUNCTIONS: dict[str, Layer] = {
    "separate": _separate,
    "broadcast": lambda x, weight, bias: operators.bias_relu(_convolution(x, weight), bias),
    "in-place": lambda x, weight, bias: (
        _convolution(x, weight).add_(bias.view(1, -1, 1, 1)).relu_()
    ),
    "native": lambda x, weight, bias: _convolution(x, weight, bias).relu_(),
    "post-op": _post_op,
    "compiled": lambda x, weight, bias: _compile_separate()(x, weight, bias),
    "one-pass": _one_pass,
}
VARIANTS = tuple(_FUNCTIONS)
_REDUCTIONS: dict[str, Reduction] = {
    "per image": _per_image,
    "sum": lambda grad: grad.sum((0, 2, 3)),
    "two-step": lambda grad: grad.sum((2, 3)).sum(0),
    "ones": _with_ones,
    "one-pass": operators.bias_gradient,
}
REDUCTIONS = tuple(_REDUCTIONS)
