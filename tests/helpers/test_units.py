"""Quantities: what is printed is read back, and what is ambiguous or wrong is refused with its
reason.
"""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from helpers import units
from tests.properties import repeatable

PREFIXED = ("s", "B", "B/s", "FLOP", "FLOP/s", "MAC", "MAC/s", "FLOP/B", "Hz", "W", "J", "")


SIZES = st.floats(-12, 22).map(lambda power: 10**power)
QUANTITIES = st.builds(
    lambda size, sign: sign * size, SIZES, st.sampled_from([1, -1])
) | st.integers(-(2**62), 2**62)


@repeatable(examples=300)
@given(
    QUANTITIES, st.sampled_from([*((unit, False) for unit in PREFIXED), ("B", True), ("B/s", True)])
)
def test_what_is_printed_is_read_back_to_three_digits(value, printed):
    unit, binary = printed
    read = units.parse(units.text(value, unit, binary=binary), unit)
    assert abs(read - value) <= 0.005001 * abs(value)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (7.6e-05, "s", "76.0 us"),
        (999.96e-6, "s", "1.00 ms"),
        (999.4e-6, "s", "999 us"),
        (999.96, "s", "1,000 s"),
        (9.996e-3, "s", "10.0 ms"),
        (2e-13, "s", "0.0002 ns"),
        (0, "s", "0 s"),
        (-0.0, "s", "0 s"),
        (-0.0015, "s", "-1.50 ms"),
        (9_999, "B", "9,999 B"),
        (10_000, "B", "10.0 kB"),
        (0.5, "B", "0.5 B"),
        (3_140_000, "B", "3.14 MB"),
        (999_960, "B", "1.00 MB"),
        (295_700, "MAC", "296 kMAC"),
        (61_706, "", "61.7 k"),
        (34.1e9, "B/s", "34.1 GB/s"),
        (4.9e9, "Hz", "4.90 GHz"),
        (1e25, "B", "1e+07 EB"),
        (0.25, "FLOP/B", "0.25 FLOP/B"),
        (math.inf, "s", "inf s"),
        (-math.inf, "B", "-inf B"),
        (math.nan, "s", "unknown"),
        (None, "B", "unknown"),
    ],
)
def test_printed_values(value, unit, expected):
    assert units.text(value, unit) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (2**20 - 1, "1.00 MiB"),
        (24 * 2**30, "24.0 GiB"),
        (3 * 2**60, "3.00 EiB"),
    ],
)
def test_printed_binary_values(value, expected):
    assert units.text(value, "B", binary=True) == expected


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("24 GiB", "B", 24 * 2**30),
        ("24 GB", "B", 24 * 10**9),
        ("24GB", "B", 24 * 10**9),
        ("1 KB", "B", 1000),
        ("1 kB", "B", 1000),
        ("1 KiB", "B", 1024),
        ("1,024 B", "B", 1024),
        ("1_024 B", "B", 1024),
        ("12,345,678", "", 12_345_678),
        ("76 us", "s", 7.6e-05),
        ("76 µs", "s", 7.6e-05),
        ("76 \N{GREEK SMALL LETTER MU}s", "s", 7.6e-05),
        ("3 min", "s", 180),
        ("1.5 h", "s", 5400),
        (".5 s", "s", 0.5),
        ("-2 ms", "s", -0.002),
        ("1e3 B", "B", 1000),
        ("1 TFLOPS", "FLOP/s", 10**12),
        ("2 GFLOPs", "FLOP", 2 * 10**9),
        ("3 MMACs", "MAC", 3 * 10**6),
        ("4 FLOP/byte", "FLOP/B", 4),
        ("9007199254740993 B", "B", 9007199254740993),
        ("0.1 GB", "B", 10**8),
        ("inf s", "s", math.inf),
        ("0e999 s", "s", 0),
        ("1.23 M", "", 1_230_000),
    ],
)
def test_read_values(text, unit, expected):
    value = units.parse(text, unit)
    assert value == expected
    assert isinstance(value, int) == isinstance(expected, int)


PREFIXES = {
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": 1,
    "B": 1,
    "kB": 1000,
    "KiB": 1024,
    "GiB": 2**30,
}


@repeatable(examples=200)
@given(
    st.integers(-(10**12), 10**12),
    st.integers(0, 6),
    st.sampled_from(sorted(PREFIXES)),
    st.booleans(),
)
def test_decimal_text_is_read_without_the_error_of_a_product(digits, places, suffix, commas):
    exact = Fraction(digits, 10**places) * PREFIXES[suffix]
    whole, rest = divmod(abs(digits), 10**places)
    number = f"{'-' * (digits < 0)}{whole:{',' * commas}}" + f".{rest:0{places}}" * (places > 0)
    value = units.parse(f"{number} {suffix}", suffix[-1])
    assert value == (int(exact) if exact.denominator == 1 else float(exact))
    assert isinstance(value, int) == (exact.denominator == 1)


@pytest.mark.parametrize(
    ("text", "unit", "reason"),
    [
        ("3 Gb", "B", "bits"),
        ("3 Mbit/s", "B/s", "bits"),
        ("3 MAC", "FLOP", "flops_from_macs"),
        ("3 TFLOP/s", "FLOP", "rates"),
        ("3 TFLOPs", "FLOP/s", "counts"),
        ("3 mB", "B", "thousandth"),
        ("1,5 s", "s", "comma"),
        ("1,2345 B", "B", "comma"),
        ("", "s", "number"),
        ("fast", "s", "number"),
        ("1.2.3 s", "s", "number"),
        ("nan s", "s", "number"),
        ("5 m", "s", "3.5 ms"),
        ("3 KiFLOP", "FLOP", "MFLOP"),
        ("3 GB", "s", "3.5 ms"),
        ("1e999 s", "s", "1.8e308"),
        ("1e400 s", "s", "1.8e308"),
        ("3", "GB", "use one of"),
        ("3 km", "", "number alone"),
    ],
)
def test_what_is_no_quantity_is_refused_with_its_reason(text, unit, reason):
    with pytest.raises(ValueError, match=reason):
        units.parse(text, unit)


@pytest.mark.parametrize("value", [3, 2.5, None, b"3 s"])
def test_only_text_is_parsed(value):
    with pytest.raises(TypeError, match="reads text"):
        units.parse(value, "s")


def test_unknown_units_and_binary_seconds_are_refused():
    with pytest.raises(ValueError, match="not known"):
        units.text(1, "parsec")
    with pytest.raises(ValueError, match="binary prefixes are for bytes"):
        units.text(1, "s", binary=True)


def test_a_mac_is_two_flop():
    assert units.flops_from_macs(295_700) == 591_400
