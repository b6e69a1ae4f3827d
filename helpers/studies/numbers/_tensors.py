"""The tensors that the functions of this room take, refused or made float64, and powers of two that
are exact.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from helpers.checks import one_of, short, whole_number

_EXACT = 2**53  # float64 holds every whole number up to here
_EXCESS_BITS = 11  # of an int64 beyond what float64 holds


def checked_tensor(name: str, values: Any) -> Tensor:
    """Return the tensor ``values`` without its gradient.

    Raises TypeError unless it holds real numbers.
    """
    one_of(name, values, Tensor, "a tensor (torch.tensor([1.0, 2.0]))")
    kind = str(values.dtype).removeprefix("torch.")
    if (
        values.dtype == torch.bool
        or values.is_complex()
        or values.is_quantized
        or values.layout != torch.strided
    ):
        description = (
            str(values.layout).removeprefix("torch.") if values.layout != torch.strided else kind
        )
        raise TypeError(
            f"{name} is a tensor of {description}; give a dense tensor of floats or whole numbers"
        )
    return values.detach()


def as_float64(name: str, values: Any) -> Tensor:
    """Return the tensor ``values`` as float64. Raises TypeError unless it holds real numbers.

    A whole number beyond 2**53 becomes that neighbour in float64 whose last bit is one (rounding to
    odd), because a second rounding to fewer bits then ends where a single one would.
    """
    values = checked_tensor(name, values)
    if values.dtype != torch.int64:
        return values.to(torch.float64)
    odd = (values >> _EXCESS_BITS) | (values & (2**_EXCESS_BITS - 1)).ne(0)
    beyond = (values > _EXACT) | (values < -_EXACT)
    return torch.where(beyond, odd.to(torch.float64) * 2**_EXCESS_BITS, values.to(torch.float64))


def whole_numbers(
    name: str, values: Any, accepted_kind: str, *, lowest: int, largest: int
) -> Tensor:
    """Return the tensor ``values`` as int64.

    Raises TypeError unless it is of a type of whole numbers, ValueError for one that is not in the
    range.
    """
    accepted = f"give {accepted_kind}, whole numbers from {lowest:,} to {largest:,}"
    values = checked_tensor(name, values)
    if values.is_floating_point():
        kind = str(values.dtype).removeprefix("torch.")
        raise TypeError(f"{name} is a tensor of {kind}; {accepted}, as torch.int64")
    values = values.to(torch.int64)
    outside = values[(values < lowest) | (values > largest)]
    if len(outside):
        raise ValueError(f"{name} holds {short(outside[0].item())}; {accepted}")
    return values


def power_of_two(exponents: Tensor) -> Tensor:
    """Return 2**exponents as float64, for int64 exponents from -1,022 to 1,023, exactly: ``exp2``
    may miss a bit.
    """
    return ((exponents + 1023) << 52).view(torch.float64)


def exponent_of(magnitudes: Tensor) -> Tensor:
    """Return floor(log2(magnitudes)) as int64, for finite float64 of at least 2**-1022; -1,023 for
    smaller ones.
    """
    return (magnitudes.view(torch.int64) >> 52) - 1023


def axis_of(values: Tensor, axis: Any) -> int:
    """Return ``axis`` counted from the front.

    Raises TypeError unless it is a whole number, ValueError where ``values`` has no such axis.
    """
    if not values.ndim:
        raise ValueError(
            f"axis={short(axis)}, but a tensor of one number has no axis; give one of shape (n,) "
            "or more"
        )
    return whole_number("axis", axis, at_least=-values.ndim, at_most=values.ndim - 1) % values.ndim
