"""Sectors and passes of one request: the published rules, and a memory that is walked byte by
byte.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from helpers.studies.gpu_execution import bank_passes, sectors
from tests.properties import repeatable

LANES = range(32)
SIZES = st.sampled_from([1, 2, 4, 8, 16])


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        # CUDA C++ Best Practices Guide: "coalesce into four 32-byte transactions"
        ([4 * lane for lane in LANES], 4),
        # the same, "sequential but misaligned": five segments
        ([4 * lane + 4 for lane in LANES], 5),
        ([8 * lane for lane in LANES], 8),  # the same, a stride of two: 50 % load efficiency
        ([4 * (31 - lane) for lane in LANES], 4),  # in any order
        ([32 * lane for lane in LANES], 32),
        ([131_072 * lane for lane in LANES], 32),
        ([64] * 32, 1),
        ([12 * lane for lane in LANES], 12),  # the first number of 32 structures of three
        ([28, 32], 2),
        ([], 0),
    ],
)
def test_sectors_are_those_of_the_guide(addresses, expected):
    assert sectors(addresses) == expected


def test_lanes_may_take_more_or_less_than_a_word():
    assert [sectors([size * lane for lane in LANES], size) for size in (1, 2, 4, 8, 16)] == [
        1,
        2,
        4,
        8,
        16,
    ]


@st.composite
def requests(draw, sizes=SIZES):
    size = draw(sizes)
    return [size * number for number in draw(st.lists(st.integers(0, 600), max_size=32))], size


@repeatable(examples=50)
@given(requests())
def test_sectors_are_the_pieces_of_a_memory_that_is_marked_byte_by_byte(request):
    addresses, size = request
    memory = np.zeros((16 * 700 // 32, 32), dtype=bool)
    for address in addresses:
        memory.reshape(-1)[address : address + size] = True
    assert sectors(addresses, size) == memory.any(axis=1).sum()


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        # CUDA C++ Programming Guide, "Shared Memory", its figure of strides: one,
        ([4 * lane for lane in LANES], 1),
        ([8 * lane for lane in LANES], 2),  # two words: a two-way conflict,
        ([12 * lane for lane in LANES], 1),  # three words: none
        ([64] * 32, 1),  # its figure of irregular accesses: a broadcast
        ([4 * (lane % 2) for lane in LANES], 1),  # two words in two banks, each broadcast
        ([128 * (lane % 2) for lane in LANES], 2),  # two words in one bank, each broadcast
        ([128 * lane for lane in LANES], 32),
        ([], 0),
    ],
)
def test_passes_are_those_of_the_guide(addresses, expected):
    assert bank_passes(addresses) == expected


@pytest.mark.parametrize("words", [*range(1, 70)])
def test_a_column_takes_as_many_passes_as_the_row_and_the_banks_have_in_common(words):
    assert bank_passes([4 * words * lane for lane in LANES]) == math.gcd(words, 32)


@pytest.mark.parametrize("words", [32, 33])
def test_a_row_of_any_tile_takes_one_pass(words):
    assert {bank_passes([4 * (words * row + lane) for lane in LANES]) for row in range(32)} == {1}


def test_a_swizzle_needs_no_padding():
    """Word x of row y is kept at x xor y: rows and columns take one pass (CUTLASS keeps its tiles
    so).
    """
    assert {bank_passes([4 * (32 * y + (x ^ y)) for x in LANES]) for y in LANES} == {1}
    assert {bank_passes([4 * (32 * y + (x ^ y)) for y in LANES]) for x in LANES} == {1}


@repeatable(examples=50)
@given(requests(st.just(4)))
def test_passes_are_those_of_banks_that_give_a_word_at_a_time(request):
    addresses, _ = request
    wanted = [{address for address in addresses if address // 4 % 32 == bank} for bank in range(32)]
    passes = 0
    while any(wanted):
        for words in wanted:
            if words:
                words.pop()
        passes += 1
    assert bank_passes(addresses) == passes


def test_addresses_may_come_from_numpy_and_torch():
    assert sectors(4 * np.arange(32)) == sectors(4 * torch.arange(32)) == 4
    assert bank_passes(128 * np.arange(32)) == bank_passes(128 * torch.arange(32)) == 32


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (
            lambda: sectors([4 * lane for lane in range(33)]),
            ValueError,
            "addresses has 33 addresses, but a warp has 32 lanes; give those of one request",
        ),
        (
            lambda: sectors([0, 6]),
            ValueError,
            "addresses[1]=6 must be a multiple of the 4 bytes that a lane takes",
        ),
        (lambda: sectors([8], 16), ValueError, "addresses[0]=8 must be a multiple of the 16 bytes"),
        (
            lambda: sectors([0], 3),
            ValueError,
            "size_bytes=3 is not known; give one of 1, 2, 4, 8, 16",
        ),
        (
            lambda: sectors([0.5]),
            TypeError,
            "addresses[0]=0.5 is a float; give a whole number, 0 or more",
        ),
        (lambda: sectors([-4]), ValueError, "addresses[0]=-4 is too small"),
        (
            lambda: sectors(64),
            TypeError,
            "addresses=64 is an int; give a list of byte addresses, one per lane",
        ),
        (lambda: bank_passes([2]), ValueError, "addresses[0]=2 must be a multiple of the 4 bytes"),
        (lambda: bank_passes("0 4"), TypeError, "addresses='0 4' is text, as str"),
        (lambda: bank_passes([0] * 33), ValueError, "but a warp has 32 lanes"),
    ],
)
def test_refused(call, kind, words):
    with pytest.raises(kind) as raised:
        call()
    assert words in str(raised.value)
