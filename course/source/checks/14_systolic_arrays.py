"""The checks of lesson 14: what goes in, what must come out, and what common mistakes would give instead."""

from numbers import Integral

import numpy as np

from helpers.exercises import Checks

_SEQUENCE = (tuple, list, np.ndarray)


def element(checks: Checks) -> None:
    """One PE in one cycle"""
    checks.returns(
        "an input and an unfinished sum come",
        (3, 2, 10),
        expected=(2, 16),
        kind=_SEQUENCE,
        mistakes={
            (
                16,
                2,
            ): "The value that the PE passes to the right comes first, then the one that it passes down.",
            (2, 6): "Your PE forgets the sum that came from above.",
            (2, 10): "Add the product to the sum that came from above.",
            (6, 16): "The right neighbour needs the input itself, and not the product.",
            (
                3,
                16,
            ): "To the right goes the input that came from the left, whereas the weight stays.",
        },
    )
    checks.returns(
        "two PEs on top of each other, with the weights 3 and 5 and the inputs 2 and 4",
        ((3, 5), (2, 4)),
        call=_column,
        expected=26,
        mistakes={20: "The lower PE gets the sum of the upper one and must add to it."},
    )


def _column(function, weights, inputs):
    """Return the sum that leaves a column of PEs at the bottom."""
    total = 0
    for weight, value in zip(weights, inputs, strict=True):
        _, total = function(weight, value, total)
    return total


def cycles_weight_stationary(checks: Checks) -> None:
    """Cycles if the weights stay"""
    crossing = "The last row is out only after it has crossed the columns and its sum has crossed the rows."
    checks.returns(
        "32 rows of 20 inputs and 20 x 4 weights, on 4 x 4 PEs",
        (32, 4, 20, 4, 4),
        expected=210,
        mistakes={
            190: "Before the first row enters, the weights have to come in, one row of the tile per cycle.",
            180: crossing,
            220: "From the first column to the last one it is one step less than there are columns, and so for rows.",
            42: "That is one tile, so multiply by the number of tiles.",
            560: "The weights stay here, so the tiles are cut from them and not from the inputs.",
        },
    )
    partial = "A tile that is only partly filled takes as long as a full one, so round the number of tiles up."
    checks.returns(
        "9 x 5 weights need 3 x 2 tiles",
        (4, 5, 9, 4, 4),
        expected=84,
        mistakes={28: partial, 39.375: partial, 42: partial},
    )
    checks.returns(
        "an array of 4 x 8 PEs",
        (5, 16, 8, 4, 8),
        expected=76,
        mistakes={
            92: "The weights come in one row of the tile per cycle, so loading takes `rows` cycles.",
            68: "The sum crosses the rows, and the input crosses the columns.",
            152: "The rows of weights lie along the rows of the array, and their columns along its columns.",
        },
    )


def written_too_early(checks: Checks) -> None:
    """Results written too early"""
    writes = [(3, 0, 0), (5, 1, 1), (4, 1, 1), (2, 0, 0)]
    checks.returns(
        "of four pairs, PE (0, 0) gets the last one in cycle 3 and PE (1, 1) in cycle 5",
        (writes, 4),
        expected=2,
        kind=Integral,
        mistakes={
            4: "The last of k pairs comes k - 1 cycles after the first one.",
            1: "The first pair has a way to go, and it reaches PE (row, column) in cycle row + column.",
            0: "Hold each write against the cycle in which its last pair comes, and count those that are earlier.",
            ((4, 1, 1), (2, 0, 0)): "Return one number, how many writes come too early.",
        },
    )
    checks.returns(
        "with three pairs one of the writes is early",
        ([*writes[1:], (2, 0, 1)], 3),
        expected=1,
        kind=Integral,
    )


def as_product(checks: Checks) -> None:
    """A convolution as a product"""
    checks.returns(
        "2 images, 6 channels, 8 x 8 positions, 16 filters of 5 x 5",
        (2, 6, 8, 16, 5),
        expected=(128, 16, 150),
        kind=_SEQUENCE,
        mistakes={
            (64, 16, 150): "Each image of the batch has its own patches.",
            (
                16,
                16,
                150,
            ): "The positions form a square, so the side of the output counts twice.",
            (128, 16, 25): "A filter covers all channels.",
            (128, 16, 30): "A kernel is a square, so its side counts twice.",
            (128, 150, 16): "Return m, n and k in this order: the filters are the n columns.",
        },
    )


def tile_shares(checks: Checks) -> None:
    """Where the time of a tile goes"""
    checks.returns(
        "10 rows, an array of side 4, a tile every 20 cycles",
        (10, 4, 20),
        expected=(0.5, 0.2, 0.3),
        kind=_SEQUENCE,
        mistakes={
            (10, 4, 6): "These are cycles, so divide by those of a tile.",
            (50, 20, 30): "These are percentages, and the cells below need shares of 1.",
            (
                0.5,
                0.2,
                0.5,
            ): "While weights move in the array does not wait, so the three shares add up to 1.",
            (
                0.5,
                0.8,
                -0.3,
            ): "The weights come in one row of the tile per cycle, so a tile takes `side` cycles.",
        },
    )
