"""What each code means, and the code of each value, against ml_dtypes, gfloat, NumPy and
PyTorch.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import gfloat
import ml_dtypes
import numpy as np
import pytest
import torch
from gfloat import RoundMode
from hypothesis import given, strategies as st
from number_samples import DESCRIBED, FLOATING, LISTED, UNITS, bits_of, hard_values

from helpers import results
from helpers.studies.numbers import FORMATS, Format
from helpers.studies.numbers._formats import _float_format
from tests.properties import repeatable

# A type of NumPy's with the same codes, and the type of its codes.
TYPES = {
    "fp32": (np.float32, np.uint32),
    "bf16": (ml_dtypes.bfloat16, np.uint16),
    "fp16": (np.float16, np.uint16),
    "e4m3": (ml_dtypes.float8_e4m3fn, np.uint8),
    "e5m2": (ml_dtypes.float8_e5m2, np.uint8),
    "e2m1": (ml_dtypes.float4_e2m1fn, np.uint8),
    "int8": (np.int8, np.uint8),
    "int4": (ml_dtypes.int4, np.uint8),
}
TORCH = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}


def codes_of(key):
    """Return every code, or of fp32 the first and last ones of each exponent and 100,000 others."""
    of = FORMATS[key]
    if of.bits <= 20:
        return torch.arange(2**of.bits)
    ends = torch.arange(2**9)[:, None] * 2**23 + torch.tensor([0, 1, 2**22, 2**23 - 1])
    return torch.cat(
        [ends.flatten(), torch.from_numpy(np.random.default_rng(0).integers(0, 2**32, 100_000))]
    )


def test_the_formats_of_the_course():
    assert {key: each.bits for key, each in FORMATS.items()} == {
        "fp32": 32,
        "tf32": 19,
        "bf16": 16,
        "fp16": 16,
        "e4m3": 8,
        "e5m2": 8,
        "e2m1": 4,
        "int8": 8,
        "int4": 4,
    }
    assert all(each.key == key for key, each in FORMATS.items())
    assert (FORMATS["tf32"].exponent_bits, FORMATS["tf32"].mantissa_bits) == (8, 10)
    for each in FORMATS.values():
        assert results.from_dict(Format, each.to_dict()) == each


@pytest.mark.parametrize("key", TYPES)
def test_every_code_means_what_numpy_and_ml_dtypes_say(key):
    kind, code_type = TYPES[key]
    codes = codes_of(key)
    values = FORMATS[key].decode(codes)
    assert values.dtype == torch.float64
    with np.errstate(invalid="ignore"):  # a NaN that signals
        expected = codes.numpy().astype(code_type).view(kind).astype(np.float64)
    assert bits_of(values) == bits_of(expected)


@pytest.mark.parametrize("key", FORMATS)
def test_every_code_means_what_gfloat_says(key):
    codes = codes_of(key)
    expected = gfloat.decode_ndarray(DESCRIBED[key], codes.numpy()) * UNITS.get(key, 1)
    assert bits_of(FORMATS[key].decode(codes)) == bits_of(expected)


@pytest.mark.parametrize("key", FLOATING)
def test_another_bias_or_rule_of_nan_is_noticed(key):
    """A format that is one off in any of its numbers does not mean what gfloat says."""
    of = FORMATS[key]
    codes = codes_of(key)
    expected = bits_of(of.decode(codes))
    wrong = [replace(of, bias=of.bias + 1), replace(of, mantissa_bits=of.mantissa_bits + 1),
             replace(of, nan_codes=of.nan_codes + 2), replace(of, infinities=not of.infinities)]  # fmt: skip  # noqa: E501
    assert all(bits_of(each.decode(codes)) != expected for each in wrong)


@pytest.mark.parametrize("key", [key for key in TYPES if key not in ("int8", "int4")])
def test_the_range_is_that_of_ml_dtypes(key):
    of, info = FORMATS[key], ml_dtypes.finfo(TYPES[key][0])
    assert (of.largest, of.lowest) == (float(info.max), float(info.min))
    assert of.smallest_normal == float(info.smallest_normal)
    assert of.smallest_subnormal == float(info.smallest_subnormal)
    assert of.bits == info.bits


@pytest.mark.parametrize("key", FORMATS)
def test_the_range_is_that_of_gfloat(key):
    of, info = FORMATS[key], DESCRIBED[key]
    unit = UNITS.get(key, 1)
    assert (of.bits, of.largest, of.lowest) == (info.k, info.max * unit, info.min * unit)
    assert of.smallest_subnormal == info.smallest * unit
    assert of.infinities == (info.num_infs > 0)
    assert of.nan_codes == info.num_nans


def test_the_numbers_of_the_fp8_paper():
    """Micikevicius and others, FP8 Formats for Deep Learning, 2022, table 1."""
    e4m3, e5m2 = FORMATS["e4m3"], FORMATS["e5m2"]
    assert (e4m3.largest, e4m3.smallest_normal, e4m3.smallest_subnormal) == (448, 2**-6, 2**-9)
    assert (e5m2.largest, e5m2.smallest_normal, e5m2.smallest_subnormal) == (57_344, 2**-14, 2**-16)
    assert e4m3.decode(torch.tensor([0x7F, 0xFF])).isnan().all()
    assert e5m2.decode(torch.tensor([0x7C, 0xFC])).tolist() == [torch.inf, -torch.inf]


@pytest.mark.parametrize("key", LISTED)
def test_values_are_the_finite_ones_ascending_and_once(key):
    of = FORMATS[key]
    values = of.values()
    every = of.decode(torch.arange(2**of.bits))
    assert values.dtype == torch.float64
    assert set(values.tolist()) == set(every[every.isfinite()].tolist())
    assert (values.diff() > 0).all()
    assert not values[values == 0].signbit().any()
    twice_zero = of.exponent_bits > 0
    assert len(values) == 2**of.bits - of.nan_codes - 2 * of.infinities - twice_zero


def test_values_of_four_bits():
    half = [0.5, 1, 1.5, 2, 3, 4, 6]
    assert FORMATS["e2m1"].values().tolist() == [*(-value for value in reversed(half)), 0, *half]
    assert FORMATS["int4"].values().tolist() == list(range(-8, 8))


@pytest.mark.parametrize("key", LISTED)
def test_the_spacing_is_the_way_to_the_next_value(key):
    of = FORMATS[key]
    positive = of.values()[of.values() >= 0]
    assert torch.equal(of.spacing(positive[:-1]), positive.diff())
    between = positive[:-1] + positive.diff() * 0.75
    assert torch.equal(of.spacing(-between), positive.diff())
    beyond = torch.tensor([torch.nan, torch.inf, -torch.inf, np.nextafter(of.largest, np.inf)])
    assert of.spacing(beyond).isnan().all()
    assert not of.spacing(torch.tensor([of.lowest, of.largest], dtype=torch.float64)).isnan().any()


def test_the_spacing_is_numpys():
    for key, kind in (("fp32", np.float32), ("fp16", np.float16)):
        values = np.random.default_rng(1).standard_normal(1000).astype(kind)
        assert (
            FORMATS[key].spacing(torch.from_numpy(values)).tolist()
            == np.abs(np.spacing(values)).tolist()
        )
    assert FORMATS["bf16"].spacing(1.0) == 2**-7
    assert FORMATS["fp32"].spacing(2.0) == 2**-22
    assert FORMATS["int8"].spacing(100) == 1
    assert FORMATS["fp16"].spacing(torch.empty(0, 2)).shape == (0, 2)


@pytest.mark.parametrize("key", FORMATS)
def test_every_code_comes_back(key):
    of, codes = FORMATS[key], codes_of(key)
    values = of.decode(codes)
    numbers = ~values.isnan()
    for rounding in ("nearest", "stochastic"):
        again = of.encode(values, rounding, saturate=False)
        assert again.dtype == torch.int64
        assert torch.equal(again[numbers], codes[numbers])
        assert of.decode(again[~numbers]).isnan().all()


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("key", FORMATS)
def test_values_are_rounded_as_gfloat_rounds(key, saturate):
    of = FORMATS[key]
    values = hard_values(of)
    if not saturate and not of.nan_codes:  # what is too large is refused
        values = values.clamp(of.lowest, of.largest)
    assert len(values) >= 100_000

    def rounded(mode, **changed):
        unit = UNITS.get(key, 1)
        scaled = values.numpy() / unit
        return bits_of(
            gfloat.round_ndarray(replace(DESCRIBED[key], **changed), scaled, mode, saturate) * unit
        )

    ours = bits_of(of.decode(of.encode(values, saturate=saturate)))
    assert ours == rounded(RoundMode.TiesToEven)
    assert ours != rounded(RoundMode.TiesToAway)
    assert ours != rounded(RoundMode.TowardZero)
    if key != "fp32":
        # rounded twice
        assert ours != bits_of(of.decode(of.encode(values.float(), saturate=saturate)))
    if of.exponent_bits:
        assert ours != rounded(RoundMode.TiesToEven, has_subnormals=False)


def same_codes(of, ours, theirs):
    """NaN has many codes, and each library its own."""
    nan = of.decode(theirs).isnan()
    return torch.equal(ours[~nan], theirs[~nan]) and of.decode(ours[nan]).isnan().all()


@pytest.mark.parametrize("key", [key for key in FLOATING if key in TYPES])
def test_values_get_the_codes_of_ml_dtypes(key):
    """From float32, because ml_dtypes 0.6 rounds a float64 to float32 first."""
    of, (kind, code_type) = FORMATS[key], TYPES[key]
    values = hard_values(of, seed=1, kind=np.float64 if key == "fp32" else np.float32)
    with np.errstate(over="ignore", under="ignore"):
        codes = torch.from_numpy(values.numpy().astype(kind).view(code_type).astype(np.int64))
    # e2m1 of ml_dtypes saturates, because it has nothing else.
    assert same_codes(of, of.encode(values, saturate=not of.nan_codes), codes)


@pytest.mark.parametrize("key", TORCH)
def test_values_get_the_codes_of_torch(key):
    of = FORMATS[key]
    values = hard_values(of, seed=2, kind=np.float32)
    values = values.clamp(of.lowest, of.largest)  # torch 2.13 saturates e4m3, and 2.12 does not
    codes = values.to(TORCH[key]).view(torch.uint8 if of.bits == 8 else torch.int16).long() & (
        2**of.bits - 1
    )
    assert same_codes(of, of.encode(values), codes)


@pytest.mark.parametrize(("key", "lowest", "largest"), [("int8", -128, 127), ("int4", -8, 7)])
def test_integers_are_twos_complement_and_the_lowest_has_a_code(key, lowest, largest):
    of, half = FORMATS[key], largest + 1
    assert of.decode(torch.tensor([0, largest, half, 2 * half - 1])).tolist() == [
        0,
        largest,
        lowest,
        -1,
    ]
    assert (
        of.encode(torch.tensor([lowest, lowest - 0.5, lowest - 9e9, -torch.inf])).tolist()
        == [half] * 4
    )
    assert of.encode(torch.tensor([largest + 0.5, 9e9, torch.inf])).tolist() == [largest] * 3
    assert of.encode(torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -0.0])).tolist() == [
        0,
        2,
        2,
        0,
        2 * half - 2,
        0,
    ]
    assert of.encode(torch.tensor([largest + 0.49, lowest - 0.5]), saturate=False).tolist() == [
        largest,
        half,
    ]


def test_what_is_beyond_saturates_or_becomes_what_the_format_has():
    beyond = torch.tensor([1e300, torch.inf, -torch.inf], dtype=torch.float64)
    for key in ("fp32", "tf32", "bf16", "fp16", "e5m2"):
        of = FORMATS[key]
        for rounding in ("nearest", "stochastic"):
            assert of.decode(of.encode(beyond, rounding)).tolist() == [
                of.largest,
                of.largest,
                of.lowest,
            ]
            kept = of.decode(of.encode(beyond, rounding, saturate=False))
            assert kept.tolist() == [torch.inf, torch.inf, -torch.inf]
    of = FORMATS["e4m3"]
    assert of.encode(beyond).tolist() == [0x7E, 0x7E, 0xFE]
    assert of.encode(beyond, saturate=False).tolist() == [0x7F, 0x7F, 0xFF]
    tie = torch.tensor([464.0, 464.001])  # the largest of e4m3 is 448, and 480 would be the next
    assert of.encode(tie, saturate=False).tolist() == [0x7E, 0x7F]
    assert FORMATS["e2m1"].encode(beyond).tolist() == [0x7, 0x7, 0xF]


@st.composite
def any_format(draw) -> Format:
    """Draw a floating-point format of 4 to 10 bits that nobody may have built, with or without
    infinities and NaN.
    """
    exponent_bits, mantissa_bits = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    infinities, nans = draw(st.booleans()), draw(st.integers(0, 2 ** (mantissa_bits - 1)))
    return _float_format(
        "drawn",
        exponent_bits,
        mantissa_bits,
        infinities=infinities,
        nan_codes=2 * max(nans, infinities),
    )


@repeatable(examples=100)
@given(
    any_format() | st.sampled_from([FORMATS[key] for key in FLOATING if FORMATS[key].bits <= 16]),
    st.data(),
)
def test_a_value_gets_the_nearest_code_and_keeps_its_sign(of, data):
    """Of two that are equally near the even one; beyond the largest by half a step and more what
    the format has.
    """
    codes = torch.arange(2 ** (of.bits - 1))  # of the sign +; they are as large as their values
    listed = of.decode(codes)
    finite = listed[listed.isfinite()]
    between = st.integers(0, len(finite) - 2).map(
        lambda code: float(finite[code] + finite[code + 1]) / 2
    )
    size = data.draw(
        between | st.floats(0, 1.2 * of.largest) | st.sampled_from([0.0, of.largest, torch.inf])
    )
    negative, saturate = data.draw(st.booleans()), data.draw(st.booleans()) or not of.nan_codes
    (code,) = of.encode(
        torch.tensor([-size if negative else size], dtype=torch.float64), saturate=saturate
    )
    assert (code >> (of.bits - 1) == 1) == negative
    value = float(listed[code & (2 ** (of.bits - 1) - 1)])
    tie = of.largest + float(of.spacing(of.largest)) / 2
    # the last finite code is odd
    if not saturate and (size > tie or (size == tie and len(finite) % 2 == 0)):
        assert value == torch.inf if of.infinities else math.isnan(value)
        return
    # the first code that is no less
    above = min(int(torch.searchsorted(finite, size)), len(finite) - 1)
    distances = {
        code: abs(Fraction(float(finite[code])) - Fraction(min(size, of.largest)))
        for code in (max(0, above - 1), above)
    }
    assert value == finite[min(distances, key=lambda code: (distances[code], code % 2))]


@repeatable(examples=60)
@given(
    st.sampled_from([key for key in FLOATING if key != "e2m1"]), st.booleans(), st.floats(0, 0.5)
)
def test_nan_and_the_sign_of_what_becomes_zero_are_kept(key, saturate, share):
    of = FORMATS[key]
    small = share * of.smallest_subnormal
    values = of.decode(
        of.encode(
            torch.tensor([torch.nan, -torch.nan, small, -small], dtype=torch.float64),
            saturate=saturate,
        )
    )
    assert values[:2].isnan().all()
    assert values[2:].tolist() == [0, 0]
    assert values[2:].signbit().tolist() == [False, True]


KINDS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
         torch.float8_e5m2, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]  # fmt: skip  # noqa: E501


@repeatable(examples=100)
@given(
    st.sampled_from(sorted(FORMATS)),
    st.sampled_from(KINDS),
    st.integers(0, 3),
    st.integers(0, 3),
    st.data(),
)
def test_every_type_of_real_numbers_in_any_shape_is_taken(key, kind, rows, columns, data):
    of, numbers = FORMATS[key], st.sampled_from([0, 1, 2, 3, 4, 6])
    drawn = data.draw(st.lists(numbers, min_size=rows * columns, max_size=rows * columns))
    values = torch.tensor(drawn, dtype=torch.float64).view(rows, columns).to(kind)
    codes = of.encode(values)
    assert codes.dtype == torch.int64
    assert torch.equal(of.decode(codes.to(torch.uint8) if of.bits <= 8 else codes), values.double())
    assert torch.equal(of.encode(values.T), codes.T)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("key", FORMATS)
def test_empty_tensors_single_numbers_and_gradients(key, rounding):
    of = FORMATS[key]
    assert of.encode(torch.empty(0, 3), rounding).shape == (0, 3)
    assert of.decode(torch.empty(0, 3, dtype=torch.int64)).shape == (0, 3)
    with_gradient = torch.tensor(1.0, requires_grad=True)
    code = of.encode(with_gradient, rounding)
    assert code.shape == ()
    assert of.decode(code) == 1
    assert not of.decode(code).requires_grad
    assert with_gradient.grad is None


def test_large_whole_numbers_are_rounded_once():
    whole = 2**61 + np.random.default_rng(3).integers(0, 2**40, 50_000)
    ties = 2**61 + 2**37 + 2**38 * np.arange(100)
    whole = np.concatenate(
        [whole, ties, ties + 1, ties - 1, [2**53 + 1, 2**63 - 1, -(2**63), 2**53]]
    )
    whole = np.concatenate([whole, -whole])
    expected = whole.astype(np.float32).view(np.uint32).astype(np.int64)
    of = FORMATS["fp32"]
    assert np.array_equal(of.encode(torch.from_numpy(whole)).numpy(), expected)
    # rounded twice
    assert not np.array_equal(of.encode(torch.from_numpy(whole).double()).numpy(), expected)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("key", FORMATS)
def test_codes_and_values_stay_on_a_cuda_device(key):
    of = FORMATS[key]
    values = hard_values(of)
    codes = of.encode(values.cuda())
    assert codes.is_cuda
    assert torch.equal(codes.cpu(), of.encode(values))
    assert bits_of(of.decode(codes).cpu()) == bits_of(of.decode(codes.cpu()))
    assert bits_of(of.spacing(values.cuda()).cpu()) == bits_of(of.spacing(values))
    assert of.encode(values.cuda(), "stochastic", generator=torch.Generator("cuda")).is_cuda
    with pytest.raises(ValueError, match="generator draws on cpu and values is on cuda"):
        of.encode(values.cuda(), "stochastic", generator=torch.Generator())
