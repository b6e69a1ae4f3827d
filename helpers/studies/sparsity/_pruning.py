"""Weights set to zero: which ones a pattern removes, and a model's copy without them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from helpers import steps
from helpers.checks import choice, members, number, short, whole_number
from helpers.results import Record

PATTERNS = ("unstructured", "2:4", "blocks", "neurons")
SCOPES = ("layer", "model")


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
    scope: str
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
    scope: str = "layer",
    block: Sequence[int] | None = None,
    layers: Iterable[str] | None = None,
) -> tuple[nn.Module, Pruning]:
    """Return a copy of ``model`` with the ``share`` of its weights that are nearest to zero
    removed, and a report.

    The model itself is not touched. ``pattern`` says what is removed together, and ranked by its
    mean magnitude:

    * "unstructured": single weights.
    * "2:4": the two smallest of every four neighbours in a row of :func:`weight_matrix`; its share
      is 0.5.
    * "blocks": blocks of that matrix, of ``block`` = (outputs, inputs).
    * "neurons": rows of it, each with its bias: the neuron's output is zero. A neuron of the last
      layer is an output of the model, so ``layers`` says in which ones.

    With ``scope`` "layer" each layer loses the share, with "model" the smallest of all layers go.
    Of n, round(share x n) are removed: zeros that are there already go first, and of equals those
    that stand first. Pruned are linear layers and convolutions (not transposed ones), or those of
    them that ``layers`` names; biases stay, but for neurons. A weight that several layers share is
    pruned once.

    The zeros stay in training, because their gradient is zero; in a copy of the copy they do not.

    Raises TypeError or ValueError for an argument that is not accepted, a pattern that does not fit
    a layer (4, or the block, does not divide its inputs), and a model without a layer to prune;
    ModelError for a model that cannot be copied, or whose weights have no values.
    """
    steps.check_model(model)
    share = number("share", share)
    tile = _tile(share, pattern, scope, block)
    pruned = steps.copied_model(model, torch.clone)
    parts = _choose_layers(pruned, layers, pattern)
    _check_fit(parts, pattern, tile)
    with torch.no_grad():
        sizes = [weight_matrix(layer).abs() for layer in parts.values()]
        removed = (
            [_two_of_four(size) for size in sizes]
            if pattern == "2:4"
            else _smallest(sizes, share, tile, scope)
        )
        for layer, rows in zip(parts.values(), removed, strict=True):
            _remove(layer.weight, rows.view(layer.weight.movedim(1, -1).shape).movedim(-1, 1))
            if pattern == "neurons" and layer.bias is not None:
                _remove(layer.bias, rows[:, 0])
    pruned_layers = tuple(_count_layer(name, layer) for name, layer in parts.items())
    weights, zeros = (
        sum(getattr(layer, field) for layer in pruned_layers) for field in ("weights", "zeros")
    )
    return pruned, Pruning(
        pattern, scope, weights, weights - zeros, zeros, zeros / weights, pruned_layers
    )


def _is_prunable(layer: nn.Module) -> TypeGuard[_ConvNd | nn.Linear]:
    return isinstance(layer, _ConvNd | nn.Linear) and not isinstance(layer, _ConvTransposeNd)


def _tile(share: float, pattern: Any, scope: Any, block: Any) -> tuple[int, int | None]:
    """Return the rows and columns that are removed together, None for all columns; check the
    arguments of ``prune``.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share={share:g}; give a number from 0 to 1 (0.9 keeps one in ten)")
    choice("pattern", pattern, PATTERNS)
    choice("scope", scope, SCOPES)
    if pattern == "2:4" and (share != 0.5 or scope != "layer"):
        raise ValueError(
            "pattern='2:4' removes two of every four weights, in each layer: give share=0.5 and no "
            "scope"
        )
    if (block is not None) != (pattern == "blocks"):
        raise ValueError(
            "block is the outputs and inputs of pattern='blocks', such as block=(4, 4); give it "
            f"there, and only there: pattern={pattern!r}, block={short(block)}"
        )
    return (
        checked_block(block)
        if pattern == "blocks"
        else (1, {"unstructured": 1, "2:4": 4}.get(pattern))
    )


def checked_block(block: Any) -> tuple[int, int]:
    """Return ``block`` as two sizes; raise TypeError or ValueError for another value."""
    sizes = members("block", block, "two sizes, such as (4, 4)")
    if len(sizes) != 2:
        raise ValueError(f"block={short(block)} has {len(sizes)} sizes; give two, such as (4, 4)")
    return whole_number("block[0]", sizes[0]), whole_number("block[1]", sizes[1])


def _choose_layers(model: nn.Module, layers: Any, pattern: str) -> dict[str, _ConvNd | nn.Linear]:
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
    if layers is None and pattern == "neurons":
        raise ValueError(
            "pattern='neurons' needs layers, because a neuron of the last one is an output of the "
            f"model; give some of {short(list(prunable))}"
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


def _check_fit(layers: dict[str, Any], pattern: str, tile: tuple[int, int | None]) -> None:
    """Raise ValueError, naming those that fit, where the tile does not divide a layer's outputs and
    its inputs.
    """
    rows, columns = tile
    fit = [
        name
        for name, layer in layers.items()
        if layer.weight.shape[0] % rows == 0 and layer.weight.shape[1] % (columns or 1) == 0
    ]
    wrong = next((name for name in layers if name not in fit), None)
    if wrong is not None:
        outputs, inputs = layers[wrong].weight.shape[:2]
        advice = (
            f"give layers={short(fit)}, where it does"
            if fit
            else "it does so in none of these layers"
        )
        raise ValueError(
            f"pattern={pattern!r} goes by {rows} x {columns} weights (outputs x inputs), which "
            f"does not divide the {outputs} x {inputs} of {wrong}; {advice}"
        )


def _two_of_four(sizes: Tensor) -> Tensor:
    """Return which weights go: of each group of four in a row the two smallest, of equals the
    first.
    """
    groups = sizes.unflatten(1, (-1, 4))
    smallest = groups.argsort(dim=2, stable=True)[:, :, :2]
    return torch.zeros_like(groups, dtype=torch.bool).scatter_(2, smallest, True).flatten(1)


def _smallest(
    sizes: list[Tensor], share: float, tile: tuple[int, int | None], scope: str
) -> list[Tensor]:
    """Return which weights of each matrix go: the share of its tiles, or of all tiles, with the
    smallest mean.
    """
    means = [
        split_tiles(matrix, (tile[0], tile[1] or matrix.shape[1])).mean((2, 3), dtype=torch.float64)
        for matrix in sizes
    ]
    ranked = [matrix.flatten().to(means[0].device) for matrix in means]
    groups = [torch.cat(ranked)] if scope == "model" else ranked
    lowest = torch.cat([_lowest(group, round(share * len(group))) for group in groups])
    removed = [
        part.view(mean.shape).to(mean.device)
        for part, mean in zip(lowest.split([len(matrix) for matrix in ranked]), means, strict=True)
    ]
    return [
        tile_mask.repeat_interleave(tile[0], 0).repeat_interleave(
            matrix.shape[1] // tile_mask.shape[1], 1
        )
        for tile_mask, matrix in zip(removed, sizes, strict=True)
    ]


def split_tiles(matrix: Tensor, tile: tuple[int, int]) -> Tensor:
    """Return a view of the matrix as (tiles down, tiles across, rows of a tile, columns of a
    tile).
    """
    (rows, columns), (down, across) = matrix.shape, tile
    return matrix.reshape(rows // down, down, columns // across, across).transpose(1, 2)


def _lowest(values: Tensor, count: int) -> Tensor:
    """Return which ``count`` of the values are lowest: of equals the first, and NaN last."""
    chosen = torch.zeros_like(values, dtype=torch.bool)
    chosen[values.argsort(stable=True)[:count]] = True
    return chosen


def _remove(parameter: Tensor, removed: Tensor) -> None:
    """Set the removed weights to zero, and their gradients in all training to come."""
    parameter.masked_fill_(removed, 0)
    requires_grad = (
        parameter.requires_grad
    )  # a frozen parameter takes no hook, and may be trained later
    parameter.requires_grad_(True).register_hook(
        lambda gradient: gradient.masked_fill(removed.to(gradient.device), 0)  # the model may move
    )
    parameter.requires_grad_(requires_grad)


def _count_layer(name: str, layer: Any) -> PrunedLayer:
    weights, zeros = layer.weight.numel(), int((layer.weight == 0).sum())
    return PrunedLayer(name, type(layer).__name__, weights, weights - zeros, zeros, zeros / weights)
