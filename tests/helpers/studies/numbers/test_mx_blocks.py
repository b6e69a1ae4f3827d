"""Blocks with a scale in common, against gfloat's, value by value."""

from __future__ import annotations

import math

import gfloat
import numpy as np
import pytest
import torch
from gfloat import compute_scale_amax, formats as described
from hypothesis import given, strategies as st
from number_samples import bits_of

from helpers.studies.numbers import FORMATS, encode_blocks
from tests.properties import repeatable

GFLOAT = {
    "e4m3": described.format_info_mxfp8_e4m3,
    "e5m2": described.format_info_mxfp8_e5m2,
    "e2m1": described.format_info_mxfp4_e2m1,
    "int8": described.format_info_mxint8,
}


def rows_of_blocks():
    """Return 200 rows of 32 values: of any size, with an outlier, powers of two, zeros, and too
    small for a scale.
    """
    draw = np.random.default_rng(0)
    values = draw.standard_normal((200, 32)) * np.exp2(draw.uniform(-40, 40, (200, 1)))
    values[20:40, 5] *= 1000
    values[40:60] = np.exp2(draw.integers(-9, 9, (20, 32)))
    values[60] = 0
    values[61:70] *= 2.0**-140
    values[70:80, 1:] = 0
    values[80:90] *= 2.0**140
    return values


def gfloats(values, element, compute_scale=compute_scale_amax):
    rows = [gfloat.quantize_block(GFLOAT[element], row, compute_scale) for row in values]
    return bits_of(np.stack(rows) + 0.0)


@pytest.mark.parametrize("element", GFLOAT)
def test_blocks_are_those_of_gfloat(element):
    values = rows_of_blocks()
    blocks = encode_blocks(torch.from_numpy(values), element)
    ours = bits_of(blocks.decode() + 0.0)
    assert ours == gfloats(values, element)
    emax = GFLOAT[element].etype.emax
    assert blocks.scales()[:, 0].tolist() == [compute_scale_amax(emax, row) for row in values]
    # The scale of half the size, of twice it, and one that rounds its exponent up.
    for wrong in (
        lambda e, row: compute_scale_amax(e + 1, row),
        lambda e, row: compute_scale_amax(e - 1, row),
        lambda e, row: compute_scale_amax(e, 1.5 * row),
    ):
        ordinary = values[:20]
        assert ours[:20] == gfloats(ordinary, element)
        assert ours[:20] != gfloats(ordinary, element, wrong)


@pytest.mark.parametrize(
    ("element", "bits"), [("e4m3", 264), ("e5m2", 264), ("e2m1", 136), ("int8", 264)]
)
def test_the_bits_of_a_block(element, bits):
    blocks = encode_blocks(torch.ones(4, 64), element)
    assert blocks.bits == 8 * bits
    assert blocks.bits_per_value == bits / 32
    assert blocks.codes.dtype == blocks.scale_codes.dtype == torch.int64
    assert blocks.codes.max() < 2 ** FORMATS[element].bits
    assert "bits per value" in str(blocks)
    assert encode_blocks(torch.empty(0), element).bits == 0


@repeatable(examples=40)
@given(
    st.sampled_from(sorted(GFLOAT)),
    st.integers(0, 70),
    st.lists(st.integers(0, 3), max_size=2),
    st.data(),
)
def test_blocks_lie_along_the_axis_and_the_last_may_be_short(element, length, others, data):
    """A block is what gfloat makes of its values alone."""
    axis = data.draw(st.integers(0, len(others)))
    shape = [*others[:axis], length, *others[axis:]]
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    sizes = torch.randint(-9, 9, shape, generator=generator, dtype=torch.float64).exp2()
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * sizes
    blocks = encode_blocks(
        values.requires_grad_(), element, axis=data.draw(st.sampled_from([axis, axis - len(shape)]))
    )
    lines = values.detach().movedim(axis, -1).reshape(math.prod(others), length)
    parts = [part for line in lines for part in line.split(32) if length]
    alone = np.concatenate(
        [
            np.zeros(0),
            *(
                gfloat.quantize_block(GFLOAT[element], part.numpy(), compute_scale_amax)
                for part in parts
            ),
        ]
    )
    assert blocks.axis == axis
    assert blocks.scale_codes.numel() == len(parts)
    assert blocks.bits == values.numel() * FORMATS[element].bits + 8 * len(parts)
    assert bits_of(blocks.decode().movedim(axis, -1).reshape(-1) + 0.0) == bits_of(alone + 0.0)


@pytest.mark.parametrize("element", GFLOAT)
def test_zeros_and_what_is_no_number(element):
    values = torch.ones(4, 64)
    values[0] = 0
    values[1, 3] = torch.nan
    values[2, 40] = -torch.inf
    blocks = encode_blocks(values, element)
    assert blocks.scale_codes[0].tolist() == [0, 0]
    whole = torch.tensor(
        [[True, True], [False, True], [True, False], [True, True]]
    ).repeat_interleave(32, 1)
    decoded = blocks.decode()
    assert torch.equal(decoded.isnan(), ~whole)
    assert torch.equal(decoded[whole], values[whole].double())


def test_chance_within_a_block():
    values = torch.full((3200,), 1.1)
    values[::32] = 4  # the scale is 1, and neighbours 1 and 1.5
    generator = torch.Generator().manual_seed(0)
    decoded = encode_blocks(values, "e2m1", rounding="stochastic", generator=generator).decode()
    found = decoded[values < 4]
    assert found.unique().tolist() == [1, 1.5]
    assert abs(found.mean() - 1.1) < 5 * 0.5 * (0.2 * 0.8 / 3100) ** 0.5


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("element", GFLOAT)
def test_blocks_stay_on_a_cuda_device(element):
    values = torch.from_numpy(rows_of_blocks())
    found = encode_blocks(values.cuda(), element).decode()
    assert found.is_cuda
    assert torch.equal(found.cpu(), encode_blocks(values, element).decode())
