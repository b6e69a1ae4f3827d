"""Rounding by chance: its mean over 100,000 draws, its neighbours, and gfloat's decision draw by
draw.
"""

from __future__ import annotations

import math

import gfloat
import numpy as np
import pytest
import torch
from gfloat import RoundMode
from number_samples import DESCRIBED, FLOATING, LISTED, UNITS, bits_of, hard_values

from helpers.studies.numbers import FORMATS

DRAWS = 100_000


def drawn(of, value, seed=0, saturate=True):
    values = torch.full((DRAWS,), value, dtype=torch.float64)
    return of.decode(
        of.encode(
            values, "stochastic", saturate=saturate, generator=torch.Generator().manual_seed(seed)
        )
    )


def deviations(found, value):
    """Return how many standard deviations of their mean the draws are from ``value``."""
    below, above = found.min().item(), found.max().item()
    up = (value - below) / (above - below)
    return abs(found.mean().item() - value) / ((above - below) * math.sqrt(up * (1 - up) / DRAWS))


def spots(of):
    """Return values between two neighbours: subnormal, at both sides of a power of two, near the
    largest, negative.
    """
    codes = of.encode(torch.tensor([0.0, of.smallest_normal, 1.0, 2.0, -3.0], dtype=torch.float64))
    left = of.decode(codes)
    near_largest = of.largest - of.spacing(of.largest).item()
    return [
        (value + share * of.spacing(value).item() * (-1 if value < 0 else 1))
        for value in [*left.tolist(), near_largest]
        for share in (0.01, 0.3, 0.5, 0.97)
    ]


@pytest.mark.parametrize("key", FORMATS)
def test_the_mean_of_100_000_draws_is_the_value(key):
    of = FORMATS[key]
    for place, value in enumerate(spots(of)):
        found = drawn(of, value, seed=place)
        below, above = found.unique().tolist()  # two neighbours and no other
        assert above - below == of.spacing(min(abs(below), abs(above)))
        assert below < value < above
        assert deviations(found, value) < 5


def test_wrong_versions_are_seen():
    """The nearest value; a coin whatever the distance; one bit too few to draw; and draws of the
    sum of two.
    """
    of, value = FORMATS["bf16"], 1 + 0.3 * 2**-7
    scaled = torch.full((DRAWS,), 0.3, dtype=torch.float64)
    draw = torch.rand(DRAWS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wrong = {
        "a coin": draw < 0.5,
        "eight levels": (draw * 8).floor() / 8 < scaled,
        "upside down": draw > scaled,
        "triangular": (draw + draw.flip(0)) / 2 < scaled,
    }
    assert deviations(1 + (draw < scaled) * 2.0**-7, value) < 5
    for ups in wrong.values():
        assert deviations(1 + ups * 2.0**-7, value) > 20
    assert of.decode(
        of.encode(torch.full((DRAWS,), value, dtype=torch.float64))
    ).unique().tolist() == [1]


@pytest.mark.parametrize("key", [key for key in FORMATS if key != "fp32"])
def test_each_draw_decides_as_gfloat_does(key, monkeypatch):
    """With the same random bits on both sides. gfloat adds them to the remainder, and rounds up at
    one.
    """
    of, unit, bits = FORMATS[key], UNITS.get(key, 1), 45
    values = hard_values(of, seed=4, kind=np.float32).double()
    # 45 bits hold the remainder
    values = values[(values.abs() >= of.smallest_subnormal / 2**12) & values.isfinite()]
    random_bits = torch.from_numpy(np.random.default_rng(5).integers(0, 2**bits, len(values)))
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: random_bits / 2**bits)
    ours = of.decode(of.encode(values, "stochastic"))
    flipped = (2**bits - 1 - random_bits).numpy()

    def theirs(mode):
        return bits_of(
            gfloat.round_ndarray(DESCRIBED[key], values.numpy() / unit, mode, True, flipped, bits)
            * unit
        )

    assert bits_of(ours) == theirs(RoundMode.StochasticFastest)
    assert bits_of(ours) != theirs(RoundMode.TiesToEven)


@pytest.mark.parametrize("key", LISTED)
@pytest.mark.parametrize("saturate", [True, False])
def test_what_the_format_has_is_never_moved(key, saturate):
    of = FORMATS[key]
    values = of.values()
    for _ in range(5):
        assert torch.equal(of.decode(of.encode(values, "stochastic", saturate=saturate)), values)


@pytest.mark.parametrize("key", LISTED)
def test_not_even_by_a_draw_of_zero(key, monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda shape, **options: torch.zeros(shape))
    values = FORMATS[key].values()
    assert torch.equal(FORMATS[key].decode(FORMATS[key].encode(values, "stochastic")), values)
    above = values[:-1] + values.diff() / 1000
    assert not torch.equal(
        FORMATS[key].decode(FORMATS[key].encode(above, "stochastic")), values[:-1]
    )


@pytest.mark.parametrize("key", FLOATING)
def test_infinities_nan_and_the_largest_become_nothing_else(key):
    of = FORMATS[key]
    for sign in (1, -1):
        assert drawn(of, sign * torch.inf).unique().tolist() == [sign * of.largest]
        assert drawn(of, sign * of.largest, saturate=False).unique().tolist() == [sign * of.largest]
        if of.nan_codes:
            assert drawn(of, sign * torch.nan).isnan().all()
            beyond = drawn(of, sign * torch.inf, saturate=False)
            assert (beyond == sign * torch.inf).all() if of.infinities else beyond.isnan().all()


def test_beyond_the_largest_a_draw_goes_up_or_down_and_then_saturates():
    of, value = FORMATS["e4m3"], 448 + 0.25 * 32
    assert drawn(of, value).unique().tolist() == [448]
    found = drawn(of, value, saturate=False)
    assert abs(found.isnan().double().mean().item() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / DRAWS)
    assert found[~found.isnan()].unique().tolist() == [448]


def test_draws_come_from_the_generator_and_else_from_torchs_own():
    of, values = FORMATS["e2m1"], torch.rand(1000)
    first, second = (
        of.encode(values, "stochastic", generator=torch.Generator().manual_seed(7))
        for _ in range(2)
    )
    assert torch.equal(first, second)
    generator = torch.Generator().manual_seed(7)
    assert torch.equal(of.encode(values, "stochastic", generator=generator), first)
    assert not torch.equal(of.encode(values, "stochastic", generator=generator), first)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        state = torch.get_rng_state()
        of.encode(values, "stochastic", generator=generator)
        of.encode(values)
        assert torch.equal(torch.get_rng_state(), state)
        own = of.encode(values, "stochastic")
        torch.manual_seed(3)
        assert torch.equal(of.encode(values, "stochastic"), own)


def test_a_sum_that_stops_growing_grows_with_chance():
    """0.1, added 4,096 times to a sum in bf16: 32 to the nearest, because 0.1 is below half of 32's
    spacing.
    """
    of = FORMATS["bf16"]
    nearest = by_chance = torch.zeros(200, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4096):
        nearest = of.decode(of.encode(nearest + 0.1))
        by_chance = of.decode(of.encode(by_chance + 0.1, "stochastic", generator=generator))
    assert nearest.unique().tolist() == [32]
    error = by_chance.std().item() / math.sqrt(len(by_chance))
    assert abs(by_chance.mean().item() - 409.6) < 5 * error
    assert 5 * error < 40
