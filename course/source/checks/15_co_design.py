"""The checks of lesson 15: what goes in, what must come out, and what common mistakes would give instead."""

from numbers import Real

import torch

from helpers.exercises import Checks


def tiles(checks: Checks) -> None:
    """Tiles of a matrix of weights"""
    checks.returns(
        "512 x 256 weights on an array of side 256",
        (512, 256, 256),
        expected=2,
        kind=Real,
        mistakes={3: "Full tiles need no further tile beside them."},
    )
    checks.returns(
        "a matrix that is larger than a tile in both directions, by a little",
        (288, 257, 256),
        expected=4,
        kind=Real,
        mistakes={
            1: "A tile that is only partly used takes as long as a full one, so round up.",
            2: "Round up the rows and the columns each, because tiles are squares on a grid.",
        },
    )


def block_cycles(checks: Checks) -> None:
    """Cycles of a block"""
    checks.returns(
        "2 tiles in 2 products, 3,136 rows: the rows decide",
        (2, 2, 3136),
        expected=7804,
        kind=Real,
        mistakes={
            6272: "Each product also fills and empties the array.",
            4230: "Here more rows pass than a tile's bytes take cycles, so the rows decide.",
            7038: "The array fills and empties once per product.",
        },
    )
    checks.returns(
        "12 tiles in 3 products, 49 rows: memory decides",
        (12, 3, 49),
        expected=18486,
        kind=Real,
        mistakes={2886: "A tile cannot be used before its bytes have arrived."},
    )


def two_of_four(checks: Checks) -> None:
    """Two of four"""
    weights = torch.tensor([[1.0, -4, 2, 3, 9, 8, 7, 6], [0.5, 0.1, -0.2, 0.3, 5, -6, -7, 4]])
    expected = [[False, True, False, True, True, True, False, False]]
    expected += [[True, False, False, True, False, True, True, False]]
    groups = weights.view(-1, 4)
    signed = (groups >= groups.topk(2).values[:, 1:]).view_as(weights)
    whole_row = weights.abs() >= weights.abs().topk(4).values[:, 3:]
    checks.returns(
        "two rows of eight weights",
        (weights,),
        expected=expected,
        mistakes={
            tuple(
                map(tuple, signed.tolist())
            ): "Compare magnitudes, since signs do not count.",
            tuple(map(tuple, whole_row.tolist())): "Choose within each group of four.",
        },
    )
