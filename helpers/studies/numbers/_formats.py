"""Formats of few bits: the value of every code, and the code of every value."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from helpers.checks import boolean, choice, one_of, real, short
from helpers.results import Record
from helpers.studies.numbers._tensors import as_float64, exponent_of, power_of_two, whole_numbers

_LISTED_BITS = 20
_BEYOND_ALL = 2.0**1000  # stands for infinity: larger than every value here, and finite


class Format(Record):
    """A format of numbers: ``2**bits`` codes, and what each of them means.

    A floating-point code is a sign, ``exponent_bits`` and ``mantissa_bits``, the highest bit first.
    An exponent e > 0 means (1 + mantissa / 2**mantissa_bits) * 2**(e - bias), and e = 0 the
    subnormal numbers mantissa / 2**mantissa_bits * 2**(1 - bias). Of the largest codes of either
    sign one may be an infinity and ``nan_codes`` in all are NaN. An integer format has no exponent;
    its codes are two's complement, and both its smallest numbers are 1.

    Sources: IEEE 754-2019 (fp32, fp16), the OCP 8-bit Floating Point Specification 1.0 (e4m3
    without infinities, e5m2), the OCP Microscaling Formats Specification 1.0 (e2m1). bf16 and tf32
    are fp32 with a shorter mantissa. Lesson 16.
    """

    key: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    largest: float
    lowest: float
    smallest_normal: float
    smallest_subnormal: float
    infinities: bool
    nan_codes: int

    def values(self) -> Tensor:
        """Return every finite value once, ascending, as a float64 tensor on the CPU.

        Raises ValueError for a format of more than 20 bits. Lesson 16.
        """
        if self.bits > _LISTED_BITS:
            raise ValueError(
                f"{self.key} has {2**self.bits:,} codes, too many to list; give some to decode(), "
                f"or list a format of at most {_LISTED_BITS} bits"
            )
        values = self.decode(torch.arange(2**self.bits))
        return (values[values.isfinite()] + 0.0).unique()  # -0.0 + 0.0 is 0.0

    def decode(self, codes: Tensor) -> Tensor:
        """Return the values of ``codes`` as a float64 tensor of their shape on their device.

        Codes are whole numbers from 0 to 2**bits - 1. Raises TypeError for a tensor of another
        type, ValueError for another code. Lesson 16.
        """
        codes = whole_numbers(
            "codes", codes, f"codes of {self.key}", lowest=0, largest=2**self.bits - 1
        )
        if not self.exponent_bits:
            return torch.where(codes > self.largest, codes - 2**self.bits, codes).to(torch.float64)
        magnitudes = codes & (2 ** (self.bits - 1) - 1)
        exponents = magnitudes >> self.mantissa_bits
        mantissas = magnitudes & (2**self.mantissa_bits - 1)
        units = mantissas + ((exponents > 0).to(torch.int64) << self.mantissa_bits)
        values = units * power_of_two(exponents.clamp_min(1) - self.bias - self.mantissa_bits)
        beyond = magnitudes - self._largest_code
        values = values.masked_fill(beyond > 0, torch.nan)
        if self.infinities:
            values = values.masked_fill(beyond == 1, torch.inf)
        return torch.where(codes >> (self.bits - 1) == 1, -values, values)

    def encode(
        self,
        values: Tensor,
        rounding: str = "nearest",
        *,
        saturate: bool = True,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the codes of ``values``, rounded once, as an int64 tensor of their shape on their
        device.

        ``rounding="nearest"`` takes the nearest value, and of two equally near ones that with an
        even code. ``"stochastic"`` takes one of the two neighbours, each with the probability of
        its nearness, so that the mean of many draws is the value itself; the draws come from
        ``generator``, by default from torch's own.

        What is too large after rounding, an infinity too, becomes the largest value with
        ``saturate=True``; with ``saturate=False`` it becomes an infinity, or NaN in a format that
        has NaN and no infinity. NaN stays NaN and keeps its sign, as -0.0 does in a floating-point
        format.

        Raises TypeError for what is no tensor of real numbers, ValueError where the format has no
        code for NaN or for what is too large. Lesson 16.
        """
        choice("rounding", rounding, ("nearest", "stochastic"))
        boolean("saturate", saturate)
        values = as_float64("values", values)
        if not self.nan_codes and values.isnan().any():
            raise ValueError(
                f"values holds NaN, and {self.key} has no code for it; replace it, as "
                "torch.nan_to_num does"
            )
        magnitudes = values.abs().nan_to_num(nan=0.0).clamp_max(_BEYOND_ALL)
        steps = self._step_exponents(magnitudes)
        scaled = magnitudes / power_of_two(steps)  # exact: a power of two
        rounded = scaled.round() if rounding == "nearest" else _round_by_chance(scaled, generator)
        if not self.exponent_bits:
            signed = torch.where(values < 0, -rounded, rounded)
            if not saturate:
                self._refuse_too_large((signed < self.lowest) | (signed > self.largest), values)
            return signed.clamp(self.lowest, self.largest).to(torch.int64) & (2**self.bits - 1)
        codes = (steps - self._smallest_step << self.mantissa_bits) + rounded.to(torch.int64)
        if not saturate and not self.nan_codes:
            self._refuse_too_large(codes > self._largest_code, values)
        codes = codes.clamp_max(self._largest_code if saturate else self._largest_code + 1)
        codes = codes.masked_fill(values.isnan(), self._nan_code)
        return codes | (values.signbit().to(torch.int64) << (self.bits - 1))

    def spacing(self, values: Tensor | float) -> Tensor:
        """Return the step from one value of the format to the next at ``values`` (the ulp), in
        float64.

        At a power of two it is the step away from zero. It is NaN for NaN and beyond ``largest``; a
        number is given as a tensor without axes. Raises TypeError for what is no number and no
        tensor of them. Lesson 16.
        """
        if not isinstance(values, Tensor):
            values = torch.tensor(
                real("values", values, "give a number or a tensor"), dtype=torch.float64
            )
        values = as_float64("values", values)
        inside = (values >= self.lowest) & (values <= self.largest)
        steps = power_of_two(self._step_exponents(torch.where(inside, values.abs(), 0.0)))
        return steps.masked_fill(~inside, torch.nan)

    @property
    def _largest_code(self) -> int:
        return 2 ** (self.bits - 1) - 1 - self.infinities - self.nan_codes // 2

    @property
    def _nan_code(self) -> int:
        # the highest bit of the mantissa: IEEE 754's quiet NaN
        quiet = self.infinities << (self.mantissa_bits - 1)
        return self._largest_code + 1 + quiet

    @property
    def _smallest_step(self) -> int:
        return 1 - self.bias - self.mantissa_bits

    def _step_exponents(self, magnitudes: Tensor) -> Tensor:
        """Return the exponents of two of the steps at ``magnitudes``, finite and not negative."""
        if not self.exponent_bits:
            return torch.zeros_like(magnitudes, dtype=torch.int64)
        return (exponent_of(magnitudes) - self.mantissa_bits).clamp_min(self._smallest_step)

    def _refuse_too_large(self, which: Tensor, values: Tensor) -> None:
        if which.any():
            raise ValueError(
                f"values holds {values[which][0].item():g}, and {self.key} goes from "
                f"{self.lowest:g} to {self.largest:g} without a code for what is beyond; give "
                "saturate=True"
            )


def _round_by_chance(scaled: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return one of the whole numbers beside each of ``scaled``, with the probability of its
    nearness.
    """
    one_of(
        "generator",
        generator,
        (torch.Generator, type(None)),
        "a torch.Generator, or None for torch's own",
    )
    if generator is not None and generator.device.type != scaled.device.type:
        raise ValueError(
            f"generator draws on {generator.device.type} and values is on {scaled.device.type}; "
            f"give torch.Generator({scaled.device.type!r})"
        )
    floors = scaled.floor()
    draws = torch.rand(scaled.shape, dtype=torch.float64, device=scaled.device, generator=generator)
    return floors + (draws < scaled - floors)


def _float_format(
    key: str, exponent_bits: int, mantissa_bits: int, *, infinities: bool, nan_codes: int
) -> Format:
    bias = 2 ** (exponent_bits - 1) - 1
    # Codes are ordered as their values are, so the largest is what stands below the infinity and
    # NaN.
    code = 2 ** (exponent_bits + mantissa_bits) - 1 - infinities - nan_codes // 2
    exponent, mantissa = code >> mantissa_bits, code % 2**mantissa_bits
    largest = (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)
    return Format(
        key,
        1 + exponent_bits + mantissa_bits,
        exponent_bits,
        mantissa_bits,
        bias,
        largest,
        -largest,
        smallest_normal=2.0 ** (1 - bias),
        smallest_subnormal=2.0 ** (1 - bias - mantissa_bits),
        infinities=infinities,
        nan_codes=nan_codes,
    )


def _ieee(key: str, exponent_bits: int, mantissa_bits: int) -> Format:
    """Return the format whose largest exponent is infinity and NaN, of either sign."""
    return _float_format(
        key, exponent_bits, mantissa_bits, infinities=True, nan_codes=2 * (2**mantissa_bits - 1)
    )


def _integer(bits: int) -> Format:
    half = 2.0 ** (bits - 1)
    return Format(f"int{bits}", bits, 0, bits - 1, 0, half - 1, -half, 1.0, 1.0, False, 0)


class _Formats(dict[str, Format]):
    def __missing__(self, key: object) -> Format:
        raise KeyError(f"there is no format {short(key)}; there are {', '.join(self)}")


_ALL = (
    _ieee("fp32", 8, 23),
    _ieee("tf32", 8, 10),
    _ieee("bf16", 8, 7),
    _ieee("fp16", 5, 10),
    _float_format("e4m3", 4, 3, infinities=False, nan_codes=2),
    _ieee("e5m2", 5, 2),
    _float_format("e2m1", 2, 1, infinities=False, nan_codes=0),
    _integer(8),
    _integer(4),
)

FORMATS: Mapping[str, Format] = MappingProxyType(_Formats({entry.key: entry for entry in _ALL}))
"""The formats by their key. An unknown one raises KeyError, which says the known. Lesson 16."""
