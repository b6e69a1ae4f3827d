"""Blocks of 32 numbers with a scale in common: the MX formats."""

from __future__ import annotations

from dataclasses import field

import torch
from torch import Tensor

from helpers.checks import choice
from helpers.results import Record
from helpers.studies.numbers._formats import FORMATS, Format
from helpers.studies.numbers._tensors import as_float64, axis_of, exponent_of, power_of_two

_BLOCK = 32
_NVFP4_BLOCK = 16
_SCALE_BITS = 8
_SCALE_BIAS = 127
_NAN_SCALE = 2**_SCALE_BITS - 1
# The exponent of the largest power of two among the elements, and of what an element's value is
# multiplied by: MXINT8's whole numbers count 64ths.
_ELEMENTS = {"e4m3": (8, 0), "e5m2": (15, 0), "e2m1": (2, 0), "int8": (0, -6)}


class Blocks(Record):
    """A tensor in blocks of 32 along ``axis``, each with one scale; the last one is shorter where
    32 does not divide.

    ``codes`` are those of the elements, an int64 tensor of the tensor's shape. ``scale_codes`` has
    the blocks in place of ``axis``: code c means 2**(c - 127), and 255 NaN (E8M0). ``bits`` counts
    all codes and scales. Lesson 16.
    """

    element: str
    axis: int
    bits: int
    bits_per_value: float
    codes: Tensor = field(repr=False)
    scale_codes: Tensor = field(repr=False)

    def scales(self) -> Tensor:
        """Return the scales as a float64 tensor of the shape of ``scale_codes``. Lesson 16."""
        scales = power_of_two(self.scale_codes - _SCALE_BIAS)
        return scales.masked_fill(self.scale_codes == _NAN_SCALE, torch.nan)

    def decode(self) -> Tensor:
        """Return the values of the blocks as a float64 tensor of the shape of ``codes``.

        Lesson 16.
        """
        _, unit = _ELEMENTS[self.element]
        return (
            FORMATS[self.element].decode(self.codes)
            * 2.0**unit
            * _to_elements(self.scales(), self.codes, self.axis)
        )


def encode_blocks(
    values: Tensor,
    element: str,
    *,
    axis: int = -1,
    rounding: str = "nearest",
    generator: torch.Generator | None = None,
) -> Blocks:
    """Return ``values`` in blocks of 32 along ``axis`` whose elements are of the format
    ``element``.

    Elements are "e4m3" (MXFP8), "e5m2" (MXFP8), "e2m1" (MXFP4) or "int8" (MXINT8, whose whole
    numbers count 64ths). A block's scale is the largest power of two in its values over the largest
    power of two in the element's; the elements are rounded as :meth:`Format.encode` does with
    ``rounding`` and ``generator``, and saturate. The standard leaves open what becomes of a block
    of zeros, which gets the smallest scale here, and of one with NaN or an infinity, whose scale is
    NaN here.

    Raises TypeError for what is no tensor of real numbers, ValueError for another element, or where
    there is no such axis. Source: OCP Microscaling Formats Specification 1.0, section 6.3. Lesson
    16.
    """
    choice("element", element, _ELEMENTS)
    values = as_float64("values", values)
    axis = axis_of(values, axis)
    along = values.movedim(axis, -1)
    padded = torch.nn.functional.pad(along, (0, -along.shape[-1] % _BLOCK))
    largest = padded.abs().unflatten(-1, (-1, _BLOCK)).amax(-1).movedim(-1, axis)
    finite = largest.isfinite()
    highest, unit = _ELEMENTS[element]
    exponents = (exponent_of(torch.where(finite, largest, 0.0)) - highest).clamp(
        -_SCALE_BIAS, _SCALE_BIAS
    )
    scales = _to_elements(power_of_two(exponents + unit), values, axis)
    inside = _to_elements(finite, values, axis)
    format_: Format = FORMATS[element]
    codes = format_.encode(torch.where(inside, values / scales, 0.0), rounding, generator=generator)
    bits = codes.numel() * format_.bits + largest.numel() * _SCALE_BITS
    return Blocks(
        element,
        axis,
        bits,
        bits / codes.numel() if codes.numel() else float("nan"),
        codes,
        torch.where(finite, exponents + _SCALE_BIAS, _NAN_SCALE),
    )


def _to_elements(blocks: Tensor, elements: Tensor, axis: int) -> Tensor:
    """Return the entries of ``blocks``, one a block, repeated to one an element."""
    return blocks.repeat_interleave(_BLOCK, dim=axis).narrow(axis, 0, elements.shape[axis])


def round_nvfp4(values: Tensor) -> Tensor:
    """Return ``values`` as blocks of 16 along the last axis store them in NVFP4, in the type and
    shape of ``values``.

    An element is e2m1, and a block's scale is its largest magnitude over 6, rounded to e4m3. The
    second scale that NVFP4 has for a whole tensor is left out, so a block whose largest magnitude
    is below 6 * 2**-10 becomes zero.

    Raises TypeError for what is no tensor of real numbers, ValueError unless the last axis consists
    of whole blocks. Source: NVIDIA, "Introducing NVFP4 for Efficient and Accurate Low-Precision
    Inference" (2025).

    >>> round_nvfp4(torch.tensor([0.70, -0.33, 0.12, 0.04] * 4))[:4]
    tensor([ 0.7031, -0.3516,  0.1172,  0.0586])

    Lesson 16.
    """
    numbers = as_float64("values", values)
    if not numbers.ndim or numbers.shape[-1] % _NVFP4_BLOCK:
        raise ValueError(
            f"values has the shape {tuple(numbers.shape)}; its last axis must be a multiple of "
            f"{_NVFP4_BLOCK}, so pad it with zeros"
        )
    element, scale = FORMATS["e2m1"], FORMATS["e4m3"]
    blocks = numbers.unflatten(-1, (-1, _NVFP4_BLOCK))
    scales = scale.decode(scale.encode(blocks.abs().amax(-1, keepdim=True) / element.largest))
    codes = element.encode(blocks / torch.where(scales > 0, scales, 1.0))
    return (element.decode(codes) * scales).flatten(-2).to(values.dtype)
