"""The tiles of causal attention, held to a mask, the figure to turn, held to a played ring, and the
published rates.
"""

from __future__ import annotations

import pytest
import torch

from helpers import plotting
from helpers.studies import long_sequences
from helpers.studies.long_sequences import RING_RATES, count_tiles

TOKENS = 6  # of a piece


def masked(queries, keys, pieces=8):
    """Return the pairs that a causal mask leaves, in tiles: those of a token with itself count by
    half.
    """
    pairs = torch.ones(TOKENS * pieces, TOKENS * pieces).tril(-1) + 0.5 * torch.eye(TOKENS * pieces)
    tiles = pairs.view(pieces, TOKENS, pieces, TOKENS).sum(dim=(1, 3)) / TOKENS**2
    return float(sum(tiles[query, key] for query in queries for key in keys))


@pytest.mark.parametrize(
    ("queries", "keys"),
    [([0], [0]), ([3], range(8)), ([1, 6], [2, 5]), ([0, 7], [0, 7]), ([2, 5], [1, 6]), ([], [1])],
)
def test_tiles_are_the_pairs_that_a_causal_mask_leaves(queries, keys):
    assert count_tiles(queries, keys) == pytest.approx(masked(queries, keys))


def test_pieces_that_are_none_are_refused():
    with pytest.raises(ValueError, match=r"keys\[1\]=-1 is too small"):
        count_tiles([0], [0, -1])
    with pytest.raises(TypeError, match="queries=3 is an int; give a list of pieces"):
        count_tiles(3, [0])


def test_rates_are_the_shares_that_the_source_prints():
    shares = [
        (row.in_order / (row.one_gpu / 8), row.zigzag / (row.one_gpu / 8)) for row in RING_RATES
    ]
    # per cent, by the source's own rounding
    printed = [(53.9, 90.2), (52.1, 85.2), (52.5, 89.8), (51.4, 81.7)]
    for share, expected in zip(shares, printed, strict=True):
        assert [100 * part for part in share] == pytest.approx(expected, abs=0.4)


def played(blocks, message):
    """Return when a rank ends whose block of step i can begin after i messages, and after the block
    before it.
    """
    end = 0.0
    for step, block in enumerate(blocks):
        end = max(end, step * message) + block
    return end


def test_the_figure_to_turn_computes_the_end_of_a_played_ring(monkeypatch):
    figure = {}
    monkeypatch.setattr(plotting, "explore", lambda **arguments: figure.update(arguments))
    long_sequences.explore_ring()
    menu, *sliders = figure["inputs"]
    for number in range(200):
        shared, ranks, tokens = (
            slider.values[number * step % len(slider.values)]
            for slider, step in zip(sliders, (1, 5, 3), strict=True)
        )
        link = list(menu.options.values())[number % len(menu.options)]
        values = {
            "shared": shared,
            "ranks": ranks,
            "tokens": tokens,
            "link": type("Link", (), dict(link)),
            "max": max,
        }
        for name, formula in figure["formulas"].items():
            values[name] = eval(formula, values)
        whole_s = 4 * tokens**2 * 4096 / 400e12
        # keys and values, 2 bytes per element
        message = 2 * 2 * tokens * (4096 / shared) / link["B"] / whole_s
        orders = {
            "ordered": ([(rank,) for rank in range(ranks)], 1),
            "paired": ([(rank, 2 * ranks - 1 - rank) for rank in range(ranks)], 4),
        }
        for name, (pieces, per_tile) in orders.items():
            ends = [
                played(
                    [count_tiles(pieces[r], pieces[r - step]) / per_tile for step in range(ranks)],
                    message,
                )
                for r in range(ranks)
            ]
            even = (
                sum(count_tiles(own, [p for other in pieces for p in other]) for own in pieces)
                / per_tile
                / ranks
            )
            assert values[name] == pytest.approx(max(ends) / even)


def test_the_figure_to_turn_is_displayed(capsys):
    long_sequences.explore_ring()
    assert "in order stays near 2" in capsys.readouterr().out
