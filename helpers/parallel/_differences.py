"""How far what ranks computed is from what one process computes: outputs and gradients, relative to their size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from helpers.results import Result

_LEAST_SHARE = 1e-3

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Agreement(Result):
    """Whether ranks computed what one process computes, on the same batch with the same parameters.

    Each difference is the largest of any element, over the largest magnitude in the one process' tensor (of a gradient
    that is all but zero, over a thousandth of the largest in all gradients). ``worst_gradient`` names the gradient that
    differs most. ``equal`` says that no difference is above ``tolerance``; what is not finite (on either side), missing
    or of another shape is infinitely far away. Lesson 05.
    """

    equal: bool
    tolerance: float
    output_difference: float
    gradient_difference: float
    worst_gradient: str


@dataclass(frozen=True)
class RankPass:
    """What a rank brings back of a pass: outputs and gradients on the CPU, and what was counted on the way, by name."""

    outputs: torch.Tensor | None
    gradients: dict[str, torch.Tensor]
    counted: dict[str, Any]


def agreement(
    outputs: Sequence[torch.Tensor],
    expected: torch.Tensor,
    gradients: Mapping[str, torch.Tensor],
    wanted: Mapping[str, torch.Tensor],
    *,
    tolerance: float,
) -> Agreement:
    """Return how far the ``outputs`` (one or several, each against ``expected``) and the ``gradients`` are away."""
    finite = (gradient for gradient in wanted.values() if gradient.isfinite().all())
    least = _LEAST_SHARE * max(map(_largest, finite), default=0.0)
    apart = {name: relative_difference(gradients.get(name), gradient, least=least) for name, gradient in wanted.items()}
    worst = max(apart, key=apart.__getitem__)
    output_apart = max(relative_difference(output, expected) for output in outputs)
    return Agreement(max(output_apart, apart[worst]) <= tolerance, tolerance, output_apart, apart[worst], worst)


def relative_difference(one: torch.Tensor | None, other: torch.Tensor, *, least: float = 0.0) -> float:
    """Return the largest difference of any element over the largest magnitude in ``other``, or over ``least`` if more.

    Where both are 0 it is the difference itself; infinite without a value, and where either holds NaN or an infinity.
    """
    if one is None or one.shape != other.shape or not (one.isfinite().all() and other.isfinite().all()):
        return math.inf
    if not other.numel():
        return 0.0
    one, other = one.detach().cpu(), other.detach().cpu()
    apart = _largest(one - other)
    return apart / (max(_largest(other), least) or 1.0)


def _largest(tensor: torch.Tensor) -> float:
    return tensor.detach().abs().max().item() if tensor.numel() else 0.0


def gradients_of(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, loss: Loss
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the outputs and the gradient of each parameter that learns, by name; ``.grad`` stays as it is.

    A parameter that the loss does not depend on has a gradient of zeros.
    """
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not learning:
        raise ValueError("no parameter of this model requires a gradient: there is nothing to compare")
    outputs = model(inputs)
    found = torch.autograd.grad(loss(outputs, targets), list(learning.values()), allow_unused=True)
    return outputs.detach(), {
        name: torch.zeros_like(parameter) if grad is None else grad.detach()
        for (name, parameter), grad in zip(learning.items(), found, strict=True)
    }
