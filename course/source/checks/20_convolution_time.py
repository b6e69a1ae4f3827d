"""The checks of lesson 20: what goes in, what must come out, and what common mistakes would give instead."""

from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional as F

from helpers.exercises import Checks
from helpers.studies.convolution_time import ConvolutionShape


def im2col(checks: Checks) -> None:
    """Patches as columns"""
    image = torch.arange(24.0).view(2, 3, 4)
    windows = image.unfold(1, 2, 1).unfold(2, 2, 1)
    columns = F.unfold(image[None], 2)[0]
    checks.returns(
        "two channels with stride 1 give a column for each of six positions",
        (image, 2, 1),
        expected=columns,
        kind=torch.Tensor,
        mistakes={
            _hashable(columns.T): "A window is a column here, not a row.",
            _hashable(windows.reshape(8, 6)): (
                "Reorder the dimensions first, so that the channel and the two of the kernel come "
                "before those of the positions."
            ),
            _hashable(windows.permute(3, 4, 0, 1, 2).reshape(8, 6)): (
                "The whole window of channel 0 comes first, and that of channel 1 below it."
            ),
        },
    )
    wide = torch.arange(35.0).view(1, 5, 7)
    checks.returns(
        "an image that is no square works with stride 2",
        (wide, 3, 2),
        expected=F.unfold(wide[None], 3, stride=2)[0],
        kind=torch.Tensor,
    )


def winograd(checks: Checks) -> None:
    """Two outputs with four multiplications"""
    mistakes = {
        ((321.0, 532.0), 6): (
            "Six multiplications are those of the definition. Use the four products m."
        ),
        ((321.0, 623.0), 4): (
            "Multiply out m3, and ask which sign it has in the second output."
        ),
        ((321.0, -68.0), 4): (
            "Multiply out m4, and ask which sign it has in the second output."
        ),
    }
    checks.returns(
        "two outputs are right, and four multiplications made them",
        ((1.0, 2.0, 3.0, 5.0), (1.0, 10.0, 100.0)),
        expected=([321.0, 532.0], 4),
        mistakes=mistakes,
        call=_count_products,
    )


class _Counted:
    """A number that counts how often it, or a sum of such numbers, is multiplied."""

    products = 0

    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return _Counted(self.value + _value(other))

    def __sub__(self, other):
        return _Counted(self.value - _value(other))

    def __rsub__(self, other):
        return _Counted(_value(other) - self.value)

    def __neg__(self):
        return _Counted(-self.value)

    def __mul__(self, weight):
        _Counted.products += 1
        return _Counted(self.value * _value(weight))

    __radd__, __rmul__ = __add__, __mul__


def _value(number):
    return number.value if isinstance(number, _Counted) else number


def _count_products(function, d, g):
    """Return the outputs of ``function``, and the multiplications by values of d that it did."""
    _Counted.products = 0
    outputs = function([_Counted(value) for value in d], list(g))
    return [_value(output) for output in outputs], _Counted.products


def asks_onednn(checks: Checks) -> None:
    """Who computes?"""
    mistakes = {
        (True, False, False): "With stride 2, oneDNN is asked for 1 x 1 as well.",
        (False, True, False): "From a batch of 16 on, oneDNN is asked for every kernel.",
    }
    product = {"kernel": 1, "padding": 0, "batch": 2}
    checks.returns(
        "filters of 1 x 1, with a batch of 16, with stride 2, and with neither",
        (product | {"batch": 16}, product | {"stride": 2}, product),
        expected=[True, True, False],
        mistakes=mistakes,
        call=_each,
    )
    checks.returns(
        "an image of 20,480 values, two of them, and filters of 5 x 5",
        ({}, {"batch": 2}, {"kernel": 5}),
        expected=[False, True, True],
        mistakes={
            (True, True, True): (
                "Up to 20,480 values are meant, so an image of 20,480 counts as small, too."
            ),
            (False, False, True): "With two images oneDNN is asked, however small they are.",
        },
        call=_each,
    )


def _each(function, *changes):
    """Return what ``function`` says of a small shape after each of ``changes``."""
    small = ConvolutionShape(1, 80, 16, 16, 8, kernel=3, stride=1, padding=1)
    return [bool(function(replace(small, **change))) for change in changes]


def fit_costs(checks: Checks) -> None:
    """Costs by relative errors"""
    checks.returns(
        "a layer of 1 unit in 2 s and one of 1,000 units in 1,000 s",
        (np.array([[1.0], [1000.0]]), np.array([2.0, 1000.0])),
        expected=[1.2],
        mistakes={
            (1.000001,): (
                "Those are the least errors in seconds, for which the long layer decides alone. "
                "Divide each row by its own time."
            ),
            (1.5,): "That is the mean of the costs, and not the least sum of squared errors.",
        },
    )
    counts = np.array([[1.0, 10.0], [1.0, 1000.0], [1.0, 20.0]])
    checks.returns(
        "times that are made from two costs give these costs back",
        (counts, counts @ [3.0, 0.5]),
        expected=[3.0, 0.5],
    )
    counts, times_s = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 4.0]]), np.array([4.0, 3.0, 1.0])
    rows = counts / times_s[:, None]
    free = np.linalg.lstsq(rows, np.ones(3), rcond=None)[0]
    checks.returns(
        "no cost is negative, although the times fall as a count grows",
        (counts, times_s),
        expected=[rows[:, 0].sum() / (rows[:, 0] ** 2).sum(), 0.0],
        mistakes={
            tuple(free): "One cost is negative here. Take `nnls`, which allows none.",
            tuple(free.clip(min=0)): (
                "A cost that is set to 0 after the fit leaves the others wrong. Take `nnls`."
            ),
        },
    )


def regret(checks: Checks) -> None:
    """What choices cost"""
    times_s = np.array([[1.0, 2.0, np.nan], [8.0, 4.0, 6.0], [5.0, 10.0, 10.0]])
    of_ratios = "That is the mean of the ratios, but a long time must weigh more."
    checks.returns(
        "three layers, one of them not with its fastest algorithm",
        (times_s, [0, 2, 0]),
        expected=12 / 10,
        mistakes={
            7 / 6: of_ratios,
            12 / 14: "Compare with the fastest of each row, not with the best single column.",
            2 / 10: "Return the ratio itself, which is 1 for perfect choices.",
        },
    )
    checks.returns("the fastest each time", (times_s, [0, 1, 0]), expected=1.0)
    checks.returns(
        "a long time weighs more",
        (times_s, [1, 0, 0]),
        expected=15 / 10,
        mistakes={5 / 3: of_ratios},
    )


def _hashable(tensor):
    """Return a matrix as nested tuples, which can be the key of a mistake."""
    return tuple(map(tuple, tensor.tolist()))
