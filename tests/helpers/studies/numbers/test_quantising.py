"""Whole numbers and their scale against torch's fake quantisation, the saturating product against
torch's kernel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from helpers.studies.numbers import FORMATS, quantise, saturating_product
from tests.properties import repeatable


def weights(rows=40, columns=50):
    """Return float32 rows whose largest magnitudes are 127 times a power of two, so that torch's
    scale is exact.
    """
    draw = np.random.default_rng(0)
    integers = draw.integers(-127, 128, (rows, columns)) + draw.choice(
        [-0.5, 0, 0.25, 0.5], (rows, columns)
    )
    integers = integers.clip(-127, 127)
    integers[:, 3] = 127 * draw.choice([-1, 1], rows)
    scales = np.exp2(draw.integers(-9, 1, rows))
    scales[0] = 1
    return torch.from_numpy(integers * scales[:, None]).float(), torch.from_numpy(scales).float()


def test_one_scale_is_torchs():
    values, _ = weights()
    found = quantise(values, 8)
    theirs = torch.fake_quantize_per_tensor_affine(values, 1.0, 0, -127, 127)
    assert found.scale.shape == (1, 1)
    assert found.scale.item() == 1
    assert torch.equal(found.decode(), theirs.double())
    assert found.integers.dtype == torch.int64
    assert found.decode().dtype == torch.float64


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_a_scale_for_each_index_along_the_axis_is_torchs(axis):
    values, scales = weights()
    rows = axis % 2 == 0
    values = values if rows else values.T.contiguous()
    zeros = torch.zeros(len(scales), dtype=torch.int32)
    theirs = torch.fake_quantize_per_channel_affine(values, scales, zeros, axis % 2, -127, 127)
    found = quantise(values, 8, axis)
    assert found.axis == axis % 2
    assert found.scale.shape == ((40, 1) if rows else (1, 40))
    assert torch.equal(found.decode(), theirs.double())
    for other in (None, 1 - axis % 2):
        assert not torch.equal(quantise(values, 8, other).decode(), theirs.double())


@repeatable(examples=150)
@given(
    st.integers(2, 32), st.lists(st.floats(-1e30, 1e30) | st.floats(-8, 8), min_size=1, max_size=12)
)
def test_each_number_is_the_nearest_of_whole_multiples(bits, values):
    limit, largest = 2 ** (bits - 1) - 1, max(map(abs, values))
    quantised = quantise(torch.tensor(values, dtype=torch.float64), bits)
    # of a quotient, relative to it
    scale, ulp = Fraction(quantised.scale.item()), Fraction(2) ** -53
    if largest / limit >= np.finfo(np.float64).tiny:
        assert abs(scale - Fraction(largest) / limit) <= scale * ulp * 2
        assert quantised.integers.abs().max() == limit
    for value, integer in zip(values, quantised.integers.tolist(), strict=True):
        multiple = Fraction(value) / scale
        assert abs(integer) <= limit
        assert abs(integer - multiple) <= Fraction(1, 2) + abs(multiple) * ulp
        assert integer % 2 == 0 or abs(integer - multiple) != Fraction(1, 2)


def test_the_noise_is_a_step_over_the_root_of_twelve():
    values = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    for bits, low, high in ((8, 0.99, 1.01), (4, 0.99, 1.01), (2, 0, 0.9)):
        found = quantise(values, bits)
        noise = (found.decode() - values).square().mean().sqrt() / (found.scale / 12**0.5)
        assert low < noise < high


def test_eight_and_four_bits_have_codes():
    values = torch.randn(100)
    for bits in (4, 8):
        of, found = FORMATS[f"int{bits}"], quantise(values, bits)
        assert torch.equal(
            of.decode(of.encode(found.integers, saturate=False)).long(), found.integers
        )


def test_quantise_at_the_edges():
    assert quantise(torch.zeros(3), 8).scale.tolist() == [1]
    found = quantise(torch.tensor([[0.0, 0.0], [1.0, -2.0]]), 8, 0)
    assert found.scale.tolist() == [[1], [2 / 127]]
    assert found.integers.tolist() == [[0, 0], [64, -127]]
    for smallest in (5e-324, 1e-310, 1e308):
        found = quantise(torch.tensor([smallest, 0, -smallest], dtype=torch.float64), 8)
        assert found.integers[1] == 0
        assert found.integers.abs().max() <= 127
        assert found.decode().isfinite().all()
    assert quantise(torch.tensor(3.0, requires_grad=True), 8).decode() == 3
    assert quantise(torch.tensor([1, -4, 3]), 4).scale.item() == 4 / 7
    assert quantise(torch.tensor([1, 2], dtype=torch.float16), 2).integers.tolist() == [0, 1]
    for shape in ((0,), (0, 5), (5, 0), (3, 0, 2)):
        for axis in (None, *range(len(shape))):
            assert quantise(torch.ones(shape), 8, axis).decode().shape == shape
    assert "bits  8" in str(quantise(torch.ones(3), 8))


SHAPES = (
    (1, 1, 1),
    (3, 2, 5),
    (4, 3, 4),
    (2, 5, 3),
    (8, 31, 16),
    (16, 64, 20),
    (5, 257, 33),
    (64, 512, 10),
)


def factors(m, k, n):
    draw = np.random.default_rng(m + k + n)
    left, right = draw.integers(0, 256, (m, k)), draw.integers(-128, 128, (k, n))
    left[0], right[:, 0] = 255, 127
    right[:, -1] = -128
    return torch.from_numpy(left), torch.from_numpy(right)


def pair_by_pair(left, right):
    """The same in Python's whole numbers, as the instruction's description reads."""
    rows = []
    for row in left.tolist():
        sums = []
        for column in right.T.tolist():
            products = [a * b for a, b in zip(row, column, strict=True)]
            pairs = [sum(products[place : place + 2]) for place in range(0, len(products), 2)]
            sums.append(sum(min(max(pair, -32_768), 32_767) for pair in pairs))
        rows.append(sums)
    return rows


SIDES = st.integers(0, 9)


def matrices(rows, columns, lowest, highest):
    """Draw a matrix in which one number in three is the lowest or the highest."""
    numbers = (
        st.sampled_from([lowest, highest])
        | st.integers(lowest, highest)
        | st.integers(lowest, highest)
    )
    size = {"min_size": rows * columns, "max_size": rows * columns}
    return st.lists(numbers, **size).map(
        lambda drawn: torch.tensor(drawn, dtype=torch.int64).view(rows, columns)
    )


@repeatable(examples=60)
@given(SIDES, SIDES, SIDES, st.data())
def test_the_saturating_product_is_that_of_python(m, k, n, data):
    left, right = data.draw(matrices(m, k, 0, 255)), data.draw(matrices(k, n, -128, 127))
    product = saturating_product(left, right)
    assert product.dtype == torch.int64
    assert product.shape == (m, n)
    assert product.tolist() == pair_by_pair(left, right)
    assert torch.equal(saturating_product(left.to(torch.uint8), right.to(torch.int8)), product)
    half = left // 2  # 7 bits: 127 * 128 * 2 is below 2**15
    assert torch.equal(saturating_product(half, right), half @ right)


def test_the_known_example():
    """64 products of 255 and 127: each pair is 64,770 and becomes 32,767."""
    left, right = torch.full((1, 64), 255), torch.full((64, 1), 127)
    assert (left @ right).item() == 32 * 64_770
    assert saturating_product(left, right).item() == 32 * 32_767


def test_a_large_product_goes_through_in_parts(monkeypatch):
    left, right = factors(37, 64, 20)
    whole = saturating_product(left, right)
    monkeypatch.setattr("helpers.studies.numbers._integers._AT_ONCE", 32 * 20 * 5)
    assert torch.equal(saturating_product(left, right), whole)


KERNEL = """
import json, sys, torch
torch.set_num_threads(1)
found = []
for left, right in json.load(sys.stdin):
    left, right = torch.tensor(left), torch.tensor(right)
    if "fbgemm" in torch.backends.quantized.supported_engines:
        torch.backends.quantized.engine = "fbgemm"
        columns = torch._make_per_tensor_quantized_tensor(right.T.contiguous().to(torch.int8), 1.0, 0)
        packed = torch.ops.quantized.linear_prepack(columns, None)
        rows = left.float()
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(rows, 1.0, 0, packed)
        found.append(product.long().tolist())
print(json.dumps(found))
"""  # noqa: E501


@pytest.fixture(scope="module", params=["all", "AVX2"])
def kernel_products(request):
    """The products of torch's own kernel, with all of the processor's instructions and without
    those after AVX2.
    """
    given = json.dumps(
        [[left.tolist(), right.tolist()] for left, right in (factors(*shape) for shape in SHAPES)]
    )
    environment = {} if request.param == "all" else {"FBGEMM_ENABLE_INSTRUCTIONS": request.param}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KERNEL],
        input=given,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return [torch.tensor(product) for product in json.loads(done.stdout)]


def test_the_kernel_gives_the_saturating_product_or_the_exact_one(kernel_products):
    """Which of the two it is, the processor decides; it is one of them in every number of every
    product.
    """
    both = [
        (left @ right, saturating_product(left, right))
        for left, right in (factors(*shape) for shape in SHAPES)
    ]
    exact, saturating = ([pair[which] for pair in both][: len(kernel_products)] for which in (0, 1))

    def equal(one, other):
        return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))

    assert equal(kernel_products, exact) or equal(kernel_products, saturating)
    assert sum((a != b).sum().item() for a, b in both) > 400  # so that no kernel is both
    left, right = factors(*SHAPES[-1])
    left, right = (
        torch.nn.functional.pad(left, (1, 0)),
        torch.nn.functional.pad(right, (0, 0, 1, 0)),
    )
    # pairs of k = 1 and 2, of 3 and 4, and so on
    assert not torch.equal(saturating_product(left, right), both[-1][1])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_whole_numbers_stay_on_a_cuda_device():
    left, right = factors(8, 31, 16)
    found = saturating_product(left.cuda(), right.cuda())
    assert found.is_cuda
    assert torch.equal(found.cpu(), saturating_product(left, right))
    values = torch.randn(30, 20, generator=torch.Generator().manual_seed(0))
    on_device = quantise(values.cuda(), 4, 0)
    assert on_device.scale.is_cuda
    assert torch.equal(on_device.integers.cpu(), quantise(values, 4, 0).integers)
