"""Replicas in one stack: many models of one structure train as one, and none notices the others.

Every parameter of the stack has the replicas as its first dimension. Each replica has its own data,
its own rate, optimizer, mask, clipping and stopping. Lesson 19.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import stack_module_state

from helpers.checks import choice, members, number, one_of, whole_number

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
}

_CLIP_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_


def stack_weights(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Return every parameter of the models stacked, (models, ...) each, detached from them.

    Raises ValueError for models that differ in structure, that hold buffers, or of which a part is
    frozen.
    """
    models = members("models", models, "models, each a torch.nn.Module", kind=nn.Module)
    if not models:
        raise ValueError("models is empty; give at least one to stack")
    layers = {
        (type(model), *((name, weight.shape) for name, weight in model.named_parameters()))
        for model in models
    }
    if len(layers) > 1:
        raise ValueError(
            "the models differ in their layers; give models of one class and one size to stack them"
        )
    if any(list(model.buffers()) for model in models):
        raise ValueError(
            f"{type(models[0]).__name__} holds buffers (batch normalisation has some), which a "
            "step changes one network at a time; give models without, or train them in a loop"
        )
    if any(not weight.requires_grad for model in models for weight in model.parameters()):
        raise ValueError(
            "a part of the models is frozen; give models of which every parameter is trained"
        )
    weights, _ = stack_module_state(models)
    return {name: weight.detach() for name, weight in weights.items()}


def rows(values: Tensor, like: Tensor) -> Tensor:
    """Return ``values`` (replicas,) so shaped that they meet each its replica's row of ``like``
    (replicas, ...).
    """
    return values.reshape(-1, *[1] * (like.ndim - 1))


class StackedOptimizer:
    """torch's optimizers on a stack, each replica with its own rate: ``weights`` (replicas, ...)
    change in place.

    ``kinds`` names each replica's optimizer. torch's has one rate for all, so it takes steps of
    rate 1 from zero, and each replica's row of that move is scaled by its own rate: the same
    numbers, because neither Adam nor SGD looks at the weights, and both moves are proportional to
    the rate. (A factor on the *loss* would scale SGD's move alone.)
    """

    def __init__(
        self, weights: Sequence[Tensor], rates: Tensor, kinds: Sequence[str], *, fused: bool = False
    ) -> None:
        self.weights = list(weights)
        self.groups = []
        for kind in dict.fromkeys(kinds):
            moves = [torch.zeros_like(weight) for weight in self.weights]
            own_rates = rates * rates.new_tensor([replica_kind == kind for replica_kind in kinds])
            self.groups.append((moves, OPTIMIZERS[kind](moves, lr=1.0, fused=fused), own_rates))

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], active: Tensor | None = None) -> None:
        """Move every replica by its own rate; those that are not ``active`` (replicas,) stay where
        they are.

        A replica whose loss has weight 0 would not stay: Adam's momentum moves it on.
        """
        for moves, optimizer, rates in self.groups:
            scale = rates if active is None else rates * active
            torch._foreach_zero_(moves)
            for move, gradient in zip(moves, gradients, strict=True):
                move.grad = gradient.contiguous()  # the fused kernel reads it as it lies in memory
            optimizer.step()
            for weight, move in zip(self.weights, moves, strict=True):
                weight.addcmul_(move, rows(scale, move))


def clip_each(gradients: Sequence[Tensor], limits: Tensor) -> None:
    """Scale in place each replica's gradient, over all its parameters, to a norm of at most its own
    of ``limits``.

    The factor is that of ``torch.nn.utils.clip_grad_norm_`` for a model alone. One norm over the
    whole stack would scale every replica by the worst one's gradient.
    """
    squares = torch.stack([gradient.square().flatten(1).sum(1) for gradient in gradients])
    factors = (limits / (squares.sum(0).sqrt() + _CLIP_EPSILON)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(rows(factors, gradient))


class Stopping:
    """Early stopping of each replica by its own validation loss, and the weights of its lowest one.

    A replica stops, before its update, once it has seen as many losses without a new lowest as its
    ``patience`` (replicas,). ``active`` (replicas,) are those that have not stopped,
    ``steps_taken`` the updates of each.
    """

    def __init__(self, weights: Sequence[Tensor], patience: Tensor) -> None:
        self.patience, self.weights = patience, weights
        self.best = [weight.detach().clone() for weight in weights]
        self.lowest = torch.full_like(patience, math.inf, dtype=weights[0].dtype)
        self.waited, self.steps_taken = torch.zeros_like(patience), torch.zeros_like(patience)
        self.active = torch.ones_like(patience, dtype=torch.bool)

    @torch.no_grad()
    def look(self, validation_losses: Tensor) -> None:
        """Take in the validation losses (replicas,) of the weights as they are."""
        better = self.active & (validation_losses < self.lowest)
        self.lowest = torch.where(better, validation_losses, self.lowest)
        self.waited = torch.where(better, 0, self.waited + 1)
        for best, weight in zip(self.best, self.weights, strict=True):
            best.copy_(torch.where(rows(better, weight), weight, best))
        self.active = self.active & (self.waited < self.patience)
        self.steps_taken = self.steps_taken + self.active


class Settings(NamedTuple):
    """The settings that differ from replica to replica beyond its data, one entry each, checked."""

    rates: list[float]
    optimizers: list[str]
    clip_norms: list[float] | None
    patience: list[int] | None


def settings_of(
    replicas: int, *, rate: Any, optimizer: Any, clip_norm: Any, patience: Any
) -> Settings:
    """Return the settings of ``replicas``: each is given once for all or once a replica.

    Raises TypeError or ValueError for a setting that is not accepted, or of another length.
    """
    return Settings(
        rates=_per_replica("rate", rate, replicas, number, above=0),
        optimizers=_per_replica("optimizer", optimizer, replicas, choice, accepted=OPTIMIZERS),
        clip_norms=None
        if clip_norm is None
        else _per_replica("clip_norm", clip_norm, replicas, number, above=0),
        patience=None
        if patience is None
        else _per_replica("patience", patience, replicas, whole_number),
    )


def _per_replica(
    name: str, value: Any, replicas: int, check: Callable[..., Any], **accepted: Any
) -> list[Any]:
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, str) or not isinstance(value, Iterable):
        values = [value] * replicas
    else:
        values = members(name, value, f"one {name} a replica")
    if len(values) != replicas:
        raise ValueError(
            f"{name} has {len(values)} entries for {replicas} replicas; give one for all, or one "
            "each"
        )
    return [check(name, value, **accepted) for value in values]


def check_masks(masks: Any, shape: tuple[int, int]) -> Tensor:
    """Return ``masks``; raise TypeError or ValueError unless each row trains on some and validates
    on some.
    """
    one_of("masks", masks, Tensor, f"a boolean tensor of shape {shape}")
    if masks.dtype is not torch.bool or tuple(masks.shape) != shape:
        raise ValueError(
            f"masks has shape {tuple(masks.shape)} of {masks.dtype}; give {shape} of torch.bool"
        )
    counts = masks.sum(1)
    if wrong := ((counts == 0) | (counts == shape[1])).nonzero().flatten().tolist():
        raise ValueError(
            f"masks[{wrong[0]}] has {counts[wrong[0]]} of {shape[1]} True; give some of each: a "
            "replica trains on what is True and validates on the rest"
        )
    return masks
