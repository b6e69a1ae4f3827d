"""Layers as the matrix products that an array computes, and a network as their sum, by the
formulas.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from helpers import steps
from helpers.checks import batch_shape, boolean
from helpers.operations import profile_ops
from helpers.results import Record
from helpers.studies.simulators.systolic._model import model_accesses, model_cycles


class Gemm(Record):
    """A layer as ``products`` products of m x k with k x n matrices, one for each group of a
    convolution.

    Lesson 14.
    """

    m: int
    n: int
    k: int
    products: int

    @property
    def macs(self) -> int:
        """The layer's multiply-accumulates."""
        return self.products * self.m * self.n * self.k


class LayerOnArray(Record):
    """One call of a layer on an array: its product, and what the formulas say of it. Lesson 14."""

    layer: str
    kind: str
    m: int
    n: int
    k: int
    products: int
    macs: int
    cycles: int
    utilisation_share: float
    input_reads: int
    filter_reads: int
    output_writes: int
    partial_sum_reads: int


class NetworkRun(Record):
    """A network's forward on an array of ``rows`` x ``columns`` elements, layer after layer.

    ``other_macs`` are multiply-accumulates outside its convolutions and linear layers (attention,
    recurrent cells): the cycles do not hold them. Lesson 14.
    """

    rows: int
    columns: int
    dataflow: str
    macs: int
    cycles: int
    utilisation_share: float
    other_macs: int
    layers: tuple[LayerOnArray, ...]


def gemm_of(layer: nn.Module, shape: Sequence[int]) -> Gemm:
    """Return the product that ``layer`` computes for an input of ``shape``, the batch first.

    A convolution's m is the batch times the positions of its output, its n the output channels of a
    group and its k the input channels of a group times the kernel; a depthwise convolution has as
    many products as channels, with n = 1. A linear layer's m is all but the last size.

    >>> gemm_of(nn.Conv2d(96, 256, 5, padding=2, groups=2), (1, 96, 27, 27))
    Gemm(m=729, n=128, k=1200, products=2)

    Raises TypeError for another layer (a transposed convolution too), ModelError for a lazy layer
    and ValueError for a shape that the layer refuses. Lesson 14.
    """
    if not _is_product(layer):
        raise TypeError(
            f"a {type(layer).__name__} is not one product; give a convolution or a linear layer"
        )
    steps.check_model(layer)
    sizes = batch_shape(shape)
    weights = {
        name: torch.empty_like(weight, device="meta") for name, weight in layer.named_parameters()
    }
    inputs = torch.empty(sizes, dtype=steps.dtype_of(layer), device="meta")
    try:
        output = torch.func.functional_call(layer, weights, inputs)
    except RuntimeError as problem:
        raise ValueError(
            f"{layer} does not take an input of shape {sizes}: {steps.first_line(problem)}"
        ) from None
    return _product(layer, output.shape)


def simulate_network(
    model: nn.Module,
    inputs: steps.Inputs = None,
    *,
    rows: int,
    columns: int,
    dataflow: str = "weight",
    double_buffered: bool = False,
) -> NetworkRun:
    """Return the cycles of the model's forward on an array: its convolutions and linear layers, one
    after another.

    ``inputs`` is as for :func:`.operations.profile_ops`, such as a shape with the batch first.
    Cycles and accesses come from :func:`model_cycles` and :func:`model_accesses`, so nothing is
    computed and no size is too large. A layer that is called twice has two rows. Raises as those
    functions do, and ValueError for a model without such a layer. Lesson 14.
    """
    boolean("double_buffered", double_buffered)
    cycles_of = functools.partial(
        model_cycles, rows=rows, columns=columns, dataflow=dataflow, double_buffered=double_buffered
    )
    accesses_of = functools.partial(model_accesses, rows=rows, columns=columns, dataflow=dataflow)
    cycles_of(1, 1, 1)  # refuses the array
    steps.check_model(model)
    calls: list[tuple[str, str, Gemm]] = []

    def record_call(name: str, layer: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        calls.append((name, type(layer).__name__, _product(layer, output.shape)))

    hooks = [
        layer.register_forward_hook(functools.partial(record_call, name or type(layer).__name__))
        for name, layer in model.named_modules()
        if _is_product(layer)
    ]
    try:
        total_macs = profile_ops(model, inputs).forward_macs
    finally:
        for hook in hooks:
            hook.remove()
    if not calls:
        raise ValueError(
            f"{type(model).__name__} calls no convolution and no linear layer; give a model that "
            "does"
        )
    layers = []
    for name, kind, gemm in calls:
        cycles = gemm.products * cycles_of(gemm.m, gemm.n, gemm.k)
        accesses = accesses_of(gemm.m, gemm.n, gemm.k).to_dict()
        layers.append(
            LayerOnArray(
                name,
                kind,
                **gemm.to_dict(),
                macs=gemm.macs,
                cycles=cycles,
                utilisation_share=gemm.macs / (cycles * rows * columns),
                **{access: gemm.products * count for access, count in accesses.items()},
            )
        )
    macs, cycles = (sum(getattr(layer, name) for layer in layers) for name in ("macs", "cycles"))
    share = macs / (cycles * rows * columns)
    return NetworkRun(
        rows, columns, dataflow, macs, cycles, share, total_macs - macs, tuple(layers)
    )


def _is_product(layer: nn.Module) -> bool:
    return isinstance(layer, _ConvNd | nn.Linear) and not isinstance(layer, _ConvTransposeNd)


def _product(layer: Any, output: Sequence[int]) -> Gemm:
    if isinstance(layer, nn.Linear):
        return Gemm(math.prod(output[:-1]), layer.out_features, layer.in_features, 1)
    spatial = len(layer.kernel_size)
    batch = output[0] if len(output) > spatial + 1 else 1
    k = layer.in_channels // layer.groups * math.prod(layer.kernel_size)
    return Gemm(
        batch * math.prod(output[-spatial:]), layer.out_channels // layer.groups, k, layer.groups
    )
