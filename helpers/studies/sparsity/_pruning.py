"""Weights set to zero: which ones a pattern removes, and a model's copy without them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from helpers import steps
from helpers.checks import choice, members, number, short
from helpers.results import Record

PATTERNS = ("unstructured", "2:4")


class PrunedLayer(Record):
    """A pruned layer's weights, without its bias, as counted: ``zeros`` are equal to zero, ``kept``
    are not.

    Lesson 15.
    """

    layer: str
    kind: str
    weights: int
    kept: int
    zeros: int
    zeros_share: float


class Pruning(Record):
    """The result of :func:`prune`, in all and by layer; a weight that several layers share is
    counted once.

    Lesson 15.
    """

    pattern: str
    weights: int
    kept: int
    zeros: int
    zeros_share: float
    layers: tuple[PrunedLayer, ...]


def weight_matrix(layer: nn.Module) -> Tensor:
    """Return a linear layer's or a convolution's weights as the matrix of the product that computes
    it.

    Its shape is (outputs, inputs): one row a neuron. A convolution's rows hold the input channels
    of the first place of the kernel, then those of the next, so that four neighbours are four
    channels at one place. It is without a gradient and, for a linear layer, the weights themselves
    and no copy.

    Raises TypeError for another layer.
    """
    if not _is_prunable(layer):
        raise TypeError(
            f"a {type(layer).__name__} has no matrix of weights; give a convolution or a linear "
            "layer"
        )
    return layer.weight.detach().movedim(1, -1).flatten(1)


def prune(
    model: nn.Module,
    share: float,
    *,
    pattern: str = "unstructured",
    layers: Iterable[str] | None = None,
) -> tuple[nn.Module, Pruning]:
    """Return a copy of ``model`` with the ``share`` of its weights that are nearest to zero
    removed, and a report.

    The model itself is not touched. ``pattern`` says what is removed of each layer:

    * "unstructured": the smallest weights.
    * "2:4": the two smallest of every four neighbours in a row of :func:`weight_matrix`; its share
      is 0.5.

    Of n, round(share x n) are removed: zeros that are there already go first, and of equals those
    that stand first. Pruned are linear layers and convolutions (not transposed ones), or those of
    them that ``layers`` names; biases stay. A weight that several layers share is pruned once.

    The zeros stay in training, because their gradient is zero; in a copy of the copy they do not.

    Raises TypeError or ValueError for an argument that is not accepted, a pattern that does not fit
    a layer (4 does not divide its inputs), and a model without a layer to prune; ModelError for a
    model that cannot be copied, or whose weights have no values.
    """
    steps.check_model(model)
    share = number("share", share)
    if not 0 <= share <= 1:
        raise ValueError(f"share={share:g}; give a number from 0 to 1 (0.9 keeps one in ten)")
    choice("pattern", pattern, PATTERNS)
    if pattern == "2:4" and share != 0.5:
        raise ValueError(
            "pattern='2:4' removes two of every four weights, in each layer: give share=0.5"
        )
    pruned = steps.copied_model(model, torch.clone)
    parts = _choose_layers(pruned, layers)
    if pattern == "2:4":
        _check_fours(parts)
    with torch.no_grad():
        for layer in parts.values():
            sizes = weight_matrix(layer).abs()
            removed = _two_of_four(sizes) if pattern == "2:4" else _smallest(sizes, share)
            _remove(layer.weight, removed.view(layer.weight.movedim(1, -1).shape).movedim(-1, 1))
    pruned_layers = tuple(_count_layer(name, layer) for name, layer in parts.items())
    weights, zeros = (
        sum(getattr(layer, field) for layer in pruned_layers) for field in ("weights", "zeros")
    )
    return pruned, Pruning(pattern, weights, weights - zeros, zeros, zeros / weights, pruned_layers)


def _is_prunable(layer: nn.Module) -> TypeGuard[_ConvNd | nn.Linear]:
    return isinstance(layer, _ConvNd | nn.Linear) and not isinstance(layer, _ConvTransposeNd)


def _choose_layers(model: nn.Module, layers: Any) -> dict[str, _ConvNd | nn.Linear]:
    """Return the layers to prune by their names, one for each weight."""
    prunable = {
        name or type(layer).__name__: layer
        for name, layer in model.named_modules(remove_duplicate=False)
        if _is_prunable(layer)
    }
    if not prunable:
        raise ValueError(
            f"{type(model).__name__} has no convolution and no linear layer; give a model that has "
            "one"
        )
    names = (
        list(prunable) if layers is None else members("layers", layers, "names of layers", kind=str)
    )
    unknown = [name for name in names if name not in prunable]
    if unknown or not names:
        problem = f"{short(unknown[0])}, which is no layer to prune" if unknown else "none"
        raise ValueError(f"layers names {problem}; give some of {short(list(prunable))}")
    name_of_weight: dict[int, str] = {}
    for name in names:
        weight = prunable[name]._parameters.get("weight")
        if weight is None:
            raise steps.ModelError(
                f"the weight of {name} is computed from other tensors (a parametrization, or "
                "torch.nn.utils.prune); make it a parameter again first"
            )
        if weight.is_meta or not weight.numel():
            raise steps.ModelError(
                f"the weight of {name} has no values ({tuple(weight.shape)} on {weight.device}); "
                "give a model with values"
            )
        name_of_weight.setdefault(id(weight), name)
    return {name: prunable[name] for name in name_of_weight.values()}


def _check_fours(layers: dict[str, _ConvNd | nn.Linear]) -> None:
    """Raise ValueError, naming those that fit, where 4 does not divide a layer's inputs."""
    fit = [name for name, layer in layers.items() if layer.weight.shape[1] % 4 == 0]
    wrong = next((name for name in layers if name not in fit), None)
    if wrong is not None:
        outputs, inputs = layers[wrong].weight.shape[:2]
        advice = (
            f"give layers={short(fit)}, where it does"
            if fit
            else "it does so in none of these layers"
        )
        raise ValueError(
            "pattern='2:4' goes by 1 x 4 weights (outputs x inputs), which does not divide the "
            f"{outputs} x {inputs} of {wrong}; {advice}"
        )


def _two_of_four(sizes: Tensor) -> Tensor:
    """Return which weights go: of each group of four in a row the two smallest, of equals the
    first.
    """
    groups = sizes.unflatten(1, (-1, 4))
    smallest = groups.argsort(dim=2, stable=True)[:, :, :2]
    return torch.zeros_like(groups, dtype=torch.bool).scatter_(2, smallest, True).flatten(1)


def _smallest(sizes: Tensor, share: float) -> Tensor:
    """Return which weights go: the share of them that is smallest, of equals the first, and NaN
    last.
    """
    smallest = torch.zeros(sizes.numel(), dtype=torch.bool, device=sizes.device)
    smallest[sizes.flatten().argsort(stable=True)[: round(share * len(smallest))]] = True
    return smallest.view_as(sizes)


def _remove(parameter: Tensor, removed: Tensor) -> None:
    """Set the removed weights to zero, and their gradients in all training to come."""
    parameter.masked_fill_(removed, 0)
    # a frozen parameter takes no hook, and may be trained later
    requires_grad = parameter.requires_grad
    parameter.requires_grad_(True).register_hook(
        lambda gradient: gradient.masked_fill(removed.to(gradient.device), 0)  # the model may move
    )
    parameter.requires_grad_(requires_grad)


def _count_layer(name: str, layer: Any) -> PrunedLayer:
    weights, zeros = layer.weight.numel(), int((layer.weight == 0).sum())
    return PrunedLayer(name, type(layer).__name__, weights, weights - zeros, zeros, zeros / weights)
