"""Tensors as whole numbers with a scale, and the product of bytes that saturates."""

from __future__ import annotations

from dataclasses import field

import torch
from torch import Tensor

from helpers.checks import whole_number
from helpers.results import Record
from helpers.studies.numbers._tensors import as_float64, axis_of, checked_tensor, whole_numbers

_AT_ONCE = 2**22  # sums of pairs that are held at a time


class Quantised(Record):
    """A tensor as ``integers`` (int64, of its shape) times ``scale`` (float64, which broadcasts
    over them).

    ``axis`` is the one along which each index has a scale of its own, or None where all share one.
    Lesson 16.
    """

    bits: int
    axis: int | None = field(repr=False)
    integers: Tensor = field(repr=False)
    scale: Tensor = field(repr=False)

    def decode(self) -> Tensor:
        """Return ``integers`` times ``scale``: the values that stand for the tensor's, in float64.

        Lesson 16.
        """
        return self.integers * self.scale


def quantise(tensor: Tensor, bits: int, axis: int | None = None) -> Quantised:
    """Return ``tensor`` as whole numbers of ``bits`` bits and their scale, symmetric around zero.

    The whole numbers go from -(2**(bits - 1) - 1) to 2**(bits - 1) - 1: the scale is the largest
    magnitude over that limit, and each number is the nearest multiple of it, of two equally near
    ones the even. There is one scale for the tensor, or with ``axis`` one for each index along it
    (``axis=0`` of a weight matrix: a scale a row). It is 1 where all values are zero.

    Raises TypeError for what is no tensor of real numbers, ValueError for bits other than 2 to 32,
    where there is no such axis, and for NaN and infinities. Lesson 16.
    """
    values = as_float64("tensor", tensor)
    bits = whole_number("bits", bits, at_least=2, at_most=32)
    if not values.isfinite().all():
        raise ValueError(
            "tensor holds NaN or an infinity, which no whole number stands for; replace it first"
        )
    axis = None if axis is None else axis_of(values, axis)
    limit = 2 ** (bits - 1) - 1
    shape = [size if dimension == axis else 1 for dimension, size in enumerate(values.shape)]
    rows = (
        values.abs().reshape(1, -1)
        if axis is None
        else values.abs().movedim(axis, 0).unsqueeze(-1).flatten(1)
    )
    largest = torch.cat([rows, rows.new_zeros(len(rows), 1)], dim=1).amax(1).reshape(shape)
    tiny = torch.finfo(torch.float64).tiny
    scale = torch.where(largest > 0, (largest / limit).clamp_min(tiny), 1.0)
    return Quantised(bits, axis, (values / scale).round().to(torch.int64), scale)


def saturating_product(activations: Tensor, weights: Tensor) -> Tensor:
    """Return ``activations @ weights`` as a processor computes it whose byte product adds pairs in
    16 bits.

    ``activations`` is m x k, whole numbers from 0 to 255, ``weights`` k x n, from -128 to 127; the
    result is an int64 tensor, m x n. The products of k = 0 and 1, of 2 and 3, and so on, are added
    two by two, what is beyond -32,768 to 32,767 becomes that bound (x86's instruction
    ``vpmaddubsw``), and these sums are added exactly. Processors with VNNI or with another
    instruction set add all products exactly.

    Raises TypeError for tensors of other types, ValueError for other numbers and for shapes that do
    not fit. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, PMADDUBSW. Lesson
    16.
    """
    for name, matrix in (("activations", activations), ("weights", weights)):
        if checked_tensor(name, matrix).ndim != 2:
            raise ValueError(
                f"{name} has the shape {tuple(matrix.shape)}; give a matrix, such as of shape (64, "
                "64)"
            )
    left = whole_numbers("activations", activations, "bytes without a sign", lowest=0, largest=255)
    right = whole_numbers("weights", weights, "bytes with a sign", lowest=-128, largest=127)
    if left.shape[1] != right.shape[0]:
        raise ValueError(
            f"activations has the shape {tuple(left.shape)} and weights {tuple(right.shape)}; give "
            "activations as many columns as weights has rows"
        )
    if left.device != right.device:
        raise ValueError(
            f"activations is on {left.device} and weights on {right.device}; give both on one "
            "device"
        )
    odd = left.shape[1] % 2
    left, right = (
        torch.nn.functional.pad(left, (0, odd)),
        torch.nn.functional.pad(right, (0, 0, 0, odd)),
    )
    rows = max(1, _AT_ONCE // max(1, right.numel() // 2))
    return torch.cat([_saturating_rows(part, right) for part in left.split(rows)])


def _saturating_rows(left: Tensor, right: Tensor) -> Tensor:
    pairs = left[:, 0::2, None] * right[0::2] + left[:, 1::2, None] * right[1::2]
    return pairs.clamp(-(2**15), 2**15 - 1).sum(1)
