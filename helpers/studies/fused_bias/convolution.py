"""A whole layer of the study's net in one kernel: 3 x 3 convolution, bias, ReLU and 2 x 2 max pooling, as an operator.

The C++ kernel of :mod:`cpp_convolution_source`, for a CPU; the backward pass is the pooling kernel's and torch's own.
"""

from __future__ import annotations

from typing import Any

import torch

from helpers.studies.fused_bias import cpp_kernels, layouts, operators

ALGORITHMS = ("direct", "Winograd")


def conv_bias_relu_pool(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, algorithm: str = "direct"
) -> torch.Tensor:
    """Return max_pool2d(relu(conv2d(x, weight, bias, padding=1)), 2), (N, C_out, H // 2, W // 2), channels-last.

    For x (N, C_in, H, W), which is copied unless it lies channels-last, weight (C_out, C_in, 3, 3) and bias (C_out,),
    float32 or float64, on a CPU. Between the layers nothing is written to memory, and outputs that no pooling window
    holds are not computed. ``algorithm`` is one of :data:`ALGORITHMS`:

    - "direct": sums of 9 C_in products: in any order of addition the error is at most n u / (1 - n u) times the sum of
      the absolute values, n = 9 C_in + 1, u the unit roundoff (Higham 2002, 3.1).
    - "Winograd": F(2 x 2, 3 x 3), which takes 16 products instead of 36 (Lavin and Gray 2016). The same bound holds
      with n = C_in + 12 and, for the sum, Winograd's own formula with absolute values in all its matrices and numbers:
      a tile's inputs are added up before the product, so one large value costs its tile's other outputs accuracy, and
      an infinity makes all of them NaN.

    For gradients one byte an output is kept, the place of the largest. Gradients flow to all three tensors.

    Raises TypeError or ValueError for what does not fit together, NotImplementedError on CUDA and for tangents of
    forward mode, MissingToolError without a C++ compiler. For the library itself.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"there is no algorithm {algorithm!r}; there are {' and '.join(ALGORITHMS)}")
    layouts.check_layer(x, weight, bias)
    if min(x.shape[2:]) < 2:
        raise ValueError(f"x is (N, C, H, W) with images of 2 x 2 pixels or more; this is {tuple(x.shape)}")
    if x.device.type != "cpu":
        raise NotImplementedError("conv_bias_relu_pool is a C++ kernel for the CPU; take another rung on CUDA")
    operators.refuse_tangents(x, weight, bias)
    wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, weight, bias))
    return _conv_bias_relu_pool(x, weight, bias, algorithm == "Winograd", wanted)[0]


@operators._operator(
    "conv_bias_relu_pool(Tensor x, Tensor weight, Tensor bias, bool tiled, bool places) -> (Tensor, Tensor)",
    keys=("CPU",),
)
def _conv_bias_relu_pool(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, tiled: bool, places: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    pooled, place = _outputs(x, weight, bias, tiled, places)
    x = x.contiguous(memory_format=torch.channels_last)
    cpp_kernels.convolution(x, weight, bias, pooled, place if places else None, tiled=tiled)
    return pooled, place


def _outputs(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,  # noqa: ARG001
    tiled: bool,  # noqa: ARG001
    places: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (x.shape[0], weight.shape[0], x.shape[2] // 2, x.shape[3] // 2)
    pooled = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    return pooled, torch.empty_like(pooled, dtype=torch.uint8) if places else pooled.new_empty(0, dtype=torch.uint8)


torch.library.register_fake("fused_bias::conv_bias_relu_pool", _outputs, lib=operators._LIBRARY)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, weight, _, _, places = inputs
    if not places:
        raise RuntimeError("conv_bias_relu_pool was called for no gradient, but one is wanted; give places=True")
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, weight, output[1])


def _backward(ctx: Any, grad: torch.Tensor, _: object) -> tuple[torch.Tensor | None, ...]:
    x, weight, place = ctx.saved_tensors
    passed, grad_bias = operators._bias_relu_pool_backward(grad, place, *x.shape[2:])
    mask, one = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], False], [1, 1]
    grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
        passed, x, weight, None, one, one, one, False, [0, 0], 1, mask
    )
    return grad_x, grad_weight, grad_bias, None, None


torch.library.register_autograd(
    "fused_bias::conv_bias_relu_pool", _backward, setup_context=_keep, lib=operators._LIBRARY
)
