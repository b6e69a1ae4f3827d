"""The couplings of replicas in a stack: four fits by Adam, with one mistake planted at a time, and
clipping in two ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.checks import choice, whole_number
from helpers.studies.replicas import _problem as problems, _programs as programs
from helpers.studies.sgd_parallelism import _stacking as stacking

ClipEach = Callable[[list[Tensor], float], Sequence[Tensor]]

MISTAKES = ("one norm", "weight 0", "a mean", "one covariance", "padding free")
REPLICAS = ("ordinary", "stopped", "narrow", "loud")

_STEPS, _LIMIT, _RATE, _STOPS_AFTER = 30, 0.01, 0.002, 10
# neurons of replica 2: weights and biases of two layers, of 25 and 20 in the others
_NARROW = (12, 12, 10, 10)
_CHANGED = 1e-4

# of the collaboration's settings, and Keras's default
CLIP_NORM, _NADAM_RATE, _EPSILON = 6.073e-6, 2.621e-3, 1e-7


def change_fits(clip_each: ClipEach) -> Tensor:
    """Return the change that each of ``MISTAKES`` makes to the outputs of each of ``REPLICAS``,
    (mistakes, replicas).

    Four stacked networks with sigmoids train for 30 steps in float64, clipped by
    ``clip_each(gradients, limit)``. Replica 1 stops after 10 steps, replica 2 has 12 and 10
    neurons, padded with zeros to 25 and 20, and the data of replica 3 are five times as large. A
    mistake is one norm for the stack, a loss of weight 0 instead of an update that is left out, the
    mean of the losses instead of their sum, replica 0's covariance for all, or gradients that reach
    the padding. Lesson 19.
    """
    fits = _Fits(clip_each)
    correct = fits.train("")
    return torch.stack([(fits.train(mistake) - correct).abs().amax((1, 2)) for mistake in MISTAKES])


def is_changed(changes: Tensor) -> Tensor:
    """Return the mask of the changes of outputs that are more than rounding. Lesson 19."""
    return changes > _CHANGED


class _Fits:
    """Four fits in a stack, trained with a mistake that is named, or without."""

    def __init__(self, clip_each: ClipEach) -> None:
        self.clip_each = clip_each
        generator = torch.Generator().manual_seed(10)
        double: dict[str, Any] = {"dtype": torch.float64, "generator": generator}
        self.inputs = problems.make_problem().inputs
        points = len(self.inputs)
        with torch.no_grad():
            self.data = problems.net_of(100)(self.inputs) + 0.3 * torch.randn(
                4, points, 8, **double
            )
        self.data[3] *= 5
        shared = 0.3 * torch.randn(points, 3, **double)
        covariance = shared @ shared.T + 0.1 * torch.eye(points, dtype=torch.float64)
        masks = torch.stack(
            [torch.randperm(points, generator=generator) < 0.75 * points for _ in range(4)]
        )
        self.inverses = torch.stack([problems.inverse_of(covariance, mask) for mask in masks])
        stacked = stacking.stack_weights([problems.net_of(seed) for seed in range(4)])
        self.weights = [weight.clone() for weight in stacked.values()]
        for index, size in enumerate(_NARROW):
            self.weights[index][2, size:] = 0
        self.weights[2][2, :, _NARROW[0] :] = self.weights[4][2, :, _NARROW[2] :] = 0
        self.weight_masks = [torch.ones_like(weight) for weight in self.weights]
        for index, size in enumerate(_NARROW):
            self.weight_masks[index][2, size:] = 0
        self.weight_masks[2][2, :, _NARROW[0] :] = self.weight_masks[4][2, :, _NARROW[2] :] = 0

    def train(self, mistake: str) -> Tensor:
        """Return the outputs (4, x, 8) after the training."""
        weights = [weight.clone() for weight in self.weights]
        rates = torch.full((4,), _RATE, dtype=torch.float64)
        adam = stacking.StackedOptimizer(weights, rates, ["adam"] * 4)
        for step in range(1, _STEPS + 1):
            active = torch.tensor([True, step <= _STOPS_AFTER, True, True])
            gradients = self.gradients(mistake, weights, active)
            adam.step(gradients, None if mistake == "weight 0" else active)
        return self.outputs(weights)

    def outputs(self, weights: Sequence[Tensor]) -> Tensor:
        # (4, x, 8)
        return programs.stacked_net(weights, self.inputs, activation=torch.sigmoid)

    def gradients(self, mistake: str, weights: Sequence[Tensor], active: Tensor) -> list[Tensor]:
        """Return the clipped gradients of one step, with the mistake if it is about them."""
        leaves = [weight.detach().requires_grad_() for weight in weights]
        inverses = (
            self.inverses[:1].expand_as(self.inverses)
            if mistake == "one covariance"
            else self.inverses
        )
        residual = self.outputs(leaves) - self.data  # (4, x, 8)
        chi2 = torch.einsum("rxo,rxy,ryo->r", residual, inverses, residual)
        if mistake == "weight 0":
            chi2 = chi2 * active
        total = chi2.mean() if mistake == "a mean" else chi2.sum()
        gradients = list(torch.autograd.grad(total, leaves))
        if mistake != "padding free":
            gradients = [
                gradient * weight_mask
                for gradient, weight_mask in zip(gradients, self.weight_masks, strict=True)
            ]
        if mistake == "one norm":
            joined = self.clip_each([gradient.flatten()[None] for gradient in gradients], _LIMIT)
            return [
                flat.view_as(gradient) for flat, gradient in zip(joined, gradients, strict=True)
            ]
        return list(self.clip_each(gradients, _LIMIT))


def median_losses(norm: str, *, replicas: int = 100, steps: int = 100) -> list[float]:
    """Return the median loss of ``replicas`` stacked networks in each of ``steps`` steps of Nadam
    with clipping.

    Every weight tensor's gradient is clipped to 6.073e-6, the limit in the collaboration's
    settings: with ``norm`` "own" each replica's part of it by its own norm, with "stack" the whole
    tensor by one, as Keras does for a variable. The targets are the outputs of a network with
    noise. In float32. Raises ValueError for another ``norm``, TypeError or ValueError for sizes
    that are no integers of at least 1. Lesson 19.
    """
    choice("norm", norm, ("own", "stack"))
    replicas, steps = (
        whole_number("replicas", replicas, at_least=1),
        whole_number("steps", steps, at_least=1),
    )
    generator = torch.Generator().manual_seed(1)
    inputs = problems.make_problem().inputs.float()
    with torch.no_grad():
        targets = problems.net_of(1000).float()(inputs) + 0.1 * torch.randn(
            replicas, len(inputs), 8, generator=generator
        )
    stacked = stacking.stack_weights([problems.net_of(seed).float() for seed in range(replicas)])
    weights = [weight.requires_grad_() for weight in stacked.values()]
    nadam, medians = torch.optim.NAdam(weights, lr=_NADAM_RATE, eps=_EPSILON), []
    for _ in range(steps):
        losses = (programs.stacked_net(weights, inputs) - targets).square().mean((1, 2))
        medians.append(losses.median().item())
        for weight, gradient in zip(
            weights, torch.autograd.grad(losses.sum(), weights), strict=True
        ):
            # (R, numbers of a replica), or all numbers in one row
            flat = gradient.flatten(int(norm == "own"))
            norms = flat.norm(dim=-1, keepdim=True)
            weight.grad = (flat * (CLIP_NORM / norms).clamp(max=1)).view_as(gradient)
        nadam.step()
    return medians
