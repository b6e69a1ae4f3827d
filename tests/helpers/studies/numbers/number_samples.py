"""What the tests of formats share: values that are hard to round, and the formats as gfloat
describes them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from gfloat import formats as described

from helpers.studies.numbers import FORMATS, Format

DESCRIBED = {
    "fp32": described.format_info_binary32,
    "tf32": replace(
        described.format_info_bfloat16, name="tf32", k=19, precision=11, num_high_nans=2**10 - 1
    ),
    "bf16": described.format_info_bfloat16,
    "fp16": described.format_info_binary16,
    "e4m3": described.format_info_ocp_e4m3,
    "e5m2": described.format_info_ocp_e5m2,
    "e2m1": described.format_info_ocp_e2m1,
    "int8": described.format_info_ocp_int8,
    "int4": replace(described.format_info_ocp_int8, name="int4", k=4, precision=4),
}
UNITS = {"int8": 64, "int4": 4}  # gfloat's integers are fractions, as those of MX
FLOATING = [key for key, each in FORMATS.items() if each.exponent_bits]
LISTED = [key for key, each in FORMATS.items() if each.bits <= 20]


def bits_of(values: torch.Tensor | np.ndarray) -> list[int]:
    """Return float64 values as their bits, so that -0.0 is not 0.0; NaN of any kind as one."""
    values = torch.as_tensor(values)
    return values.masked_fill(values.isnan(), torch.nan).view(torch.int64).tolist()


def hard_values(of: Format, *, seed: int = 0, kind: type = np.float64) -> torch.Tensor:
    """Return about 100,000 values of NumPy's ``kind``, from far below the smallest of ``of`` to far
    above its largest.

    Two thirds are anywhere on a scale of logarithms; the others are ties, and what is beside them.
    Infinities are among them, and NaN where ``of`` has it.
    """
    draw = np.random.default_rng(seed)
    low, high = np.log2([of.smallest_subnormal / 8, of.largest * 8])
    anywhere = np.exp2(draw.uniform(low, high, 67_000))
    largest_code = int(of.encode(torch.tensor(of.largest)))
    codes = torch.from_numpy(draw.integers(0, largest_code, 11_000))
    ties = ((of.decode(codes) + of.decode(codes + 1)) / 2).numpy()
    ties = np.append(ties, of.largest + float(of.spacing(of.largest)) / 2)
    ties = ties.astype(kind)
    beside = [np.nextafter(ties, kind(np.inf)), np.nextafter(ties, kind(0))]
    values = np.concatenate([anywhere, ties, *beside, [0.0, of.largest]]) * draw.choice(
        [-1, 1], 100_005
    )
    special = [np.inf, -np.inf, *([np.nan, -np.nan] if of.nan_codes else [])]
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.concatenate([values, special]).astype(kind))
