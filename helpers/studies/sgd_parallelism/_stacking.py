"""Replicas in one stack: many models of one structure train as one, and none notices the others.

Every parameter of the stack has the replicas as its first dimension. Each replica has its own data,
its own rate, optimizer, mask, clipping and stopping. Lesson 19.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

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
    shapes = [
        [(name, weight.shape) for name, weight in model.named_parameters()] for model in models
    ]
    if (
        any(model_shapes != shapes[0] for model_shapes in shapes)
        or len({type(model) for model in models}) > 1
    ):
        raise ValueError(
            "the models differ in their layers; give models of one class and one size to stack them"
        )
    if any(True for model in models for _ in model.buffers()):
        raise ValueError(
            f"{type(models[0]).__name__} holds buffers (batch normalisation has some), which a "
            "step changes one network at a time; give models without, or train them in a loop"
        )
    if any(not weight.requires_grad for model in models for weight in model.parameters()):
        raise ValueError(
            "a part of the models is frozen; give models of which every parameter is trained"
        )
    weights, _ = stack_module_state(list(models))
    return {name: weight.detach() for name, weight in weights.items()}


def unstack_weights(weights: dict[str, Tensor], models: Sequence[nn.Module]) -> None:
    """Copy each row of the stacked ``weights`` into the parameters of its model."""
    with torch.no_grad():
        for member, model in enumerate(models):
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name][member])


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
            group_rates = rates * torch.tensor([replica_kind == kind for replica_kind in kinds]).to(
                rates
            )
            self.groups.append((moves, OPTIMIZERS[kind](moves, lr=1.0, fused=fused), group_rates))

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
        self.patience, self.weights = patience, list(weights)
        self.best = [weight.detach().clone() for weight in self.weights]
        self.lowest = torch.full_like(patience, math.inf, dtype=self.weights[0].dtype)
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


@dataclass(frozen=True)
class Settings:
    """The settings that differ from replica to replica beyond its data, one entry each: checked,
    and ready for the stack.
    """

    rates: list[float]
    optimizers: list[str]
    clip_norms: list[float] | None
    patience: list[int] | None

    def tensors(self, like: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return rates, clip norms and patience as tensors (replicas,) on the device of
        ``like``.
        """
        norms = None if self.clip_norms is None else like.new_tensor(self.clip_norms)
        patience = (
            None if self.patience is None else torch.tensor(self.patience, device=like.device)
        )
        return like.new_tensor(self.rates), norms, patience


def settings_of(
    replicas: int, *, rate: Any, optimizer: Any, clip_norm: Any, patience: Any
) -> Settings:
    """Return the settings of ``replicas``: each is given once for all or once a replica.

    Raises TypeError or ValueError for a setting that is not accepted, or of another length.
    """
    return Settings(
        rates=[number("rate", value, above=0) for value in _per_replica("rate", rate, replicas)],
        optimizers=[
            choice("optimizer", value, OPTIMIZERS)
            for value in _per_replica("optimizer", optimizer, replicas)
        ],
        clip_norms=None
        if clip_norm is None
        else [
            number("clip_norm", value, above=0)
            for value in _per_replica("clip_norm", clip_norm, replicas)
        ],
        patience=None
        if patience is None
        else [
            whole_number("patience", value, at_least=1)
            for value in _per_replica("patience", patience, replicas)
        ],
    )


def _per_replica(name: str, value: Any, replicas: int) -> list[Any]:
    if (
        isinstance(value, str)
        or not isinstance(value, Iterable)
        or (isinstance(value, Tensor) and value.ndim == 0)
    ):
        return [value] * replicas
    values = (
        value.tolist()
        if isinstance(value, Tensor)
        else members(name, value, f"one {name} a replica")
    )
    if len(values) != replicas:
        raise ValueError(
            f"{name} has {len(values)} entries for {replicas} replicas; give one for all, or one "
            "each"
        )
    return values


def append_losses(
    train_losses: list,
    val_losses: list,
    train_loss: Tensor,
    val_loss: Tensor,
    stopping: Stopping | None,
) -> None:
    """Append a step's losses (replicas,), NaN for replicas that had stopped before it, and let
    ``stopping`` look.
    """
    train_loss, val_loss = train_loss.detach(), val_loss.detach()
    if stopping is not None:
        train_loss, val_loss = (
            torch.where(stopping.active, loss, math.nan) for loss in (train_loss, val_loss)
        )
        stopping.look(val_loss)
    train_losses.append(train_loss)
    val_losses.append(val_loss)


def pad_with_nan(losses: Sequence[Tensor], steps: int) -> Tensor:
    """Return ``losses`` as (steps, replicas), NaN for steps that no replica took."""
    stacked = torch.stack(list(losses))
    return torch.cat(
        [stacked, stacked.new_full((steps - len(stacked), stacked.shape[1]), math.nan)]
    )


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
