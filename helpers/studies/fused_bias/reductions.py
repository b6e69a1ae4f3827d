"""The bias gradient, a sum over batch and pixels, as five programs: one answer, very different times."""

from __future__ import annotations

from collections.abc import Callable

import torch

from helpers.studies.fused_bias import layouts, operators

Reduction = Callable[[torch.Tensor], torch.Tensor]


def reduction(name: str) -> Reduction:
    """Return the sum of a gradient (N, C, H, W) over all but the channels, (C,), as the program ``name`` computes it.

    - "per image": a loop over the images that adds each one's sum, as the oldest frameworks did.
    - "sum": ``grad.sum((0, 2, 3))``, what autograd does with a broadcast bias.
    - "two-step": pixels first, images then: ``grad.sum((2, 3)).sum(0)``.
    - "ones": a matrix product with a vector of ones, so that a library's product does the sum.
    - "one-pass": :func:`bias_gradient`, the C++ kernel on a CPU, Triton's on CUDA.

    As in any order of additions, the error of the sum of n numbers is at most (n - 1) u / (1 - (n - 1) u) times the sum
    of their absolute values, u the unit roundoff (Higham 2002, 4.2); that of "one-pass" is smaller.

    Raises ValueError for another name; when called, TypeError or ValueError for what is no (N, C, H, W). Lesson 12.
    """
    if name not in REDUCTIONS:
        raise ValueError(f"there is no reduction {name!r}; there are {', '.join(REDUCTIONS)}")
    compute = _PROGRAMS[name]

    def checked(grad: torch.Tensor) -> torch.Tensor:
        layouts.check_values(grad, "grad")
        if grad.dim() != 4:
            raise ValueError(f"grad is (N, C, H, W), not of the shape {tuple(grad.shape)}")
        return compute(grad)

    checked.__name__ = checked.__qualname__ = name
    return checked


def _per_image(grad: torch.Tensor) -> torch.Tensor:
    total = grad.new_zeros(grad.shape[1])
    for image in grad:
        total += image.sum((1, 2))
    return total


def _with_ones(grad: torch.Tensor) -> torch.Tensor:
    if layouts.is_channels_last(grad):
        rows = grad.permute(0, 2, 3, 1).reshape(-1, grad.shape[1])
        return grad.new_ones(len(rows)) @ rows
    planes = grad.flatten(0, 1).flatten(1)
    return (planes @ grad.new_ones(planes.shape[1])).view(grad.shape[:2]).sum(0)


_PROGRAMS: dict[str, Reduction] = {
    "per image": _per_image,
    "sum": lambda grad: grad.sum((0, 2, 3)),
    "two-step": lambda grad: grad.sum((2, 3)).sum(0),
    "ones": _with_ones,
    "one-pass": operators.bias_gradient,
}
REDUCTIONS = tuple(_PROGRAMS)
