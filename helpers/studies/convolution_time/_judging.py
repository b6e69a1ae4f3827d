"""The quality of predictions and choices, and the data for it: errors, hits, regret, splits.

Lesson 20.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from helpers.checks import named, number, numbers, random_seed
from helpers.results import Record
from helpers.studies.convolution_time._shapes import ConvolutionShape, shapes_of


class PredictionErrors(Record):
    """The errors of some predictions, of which ``e`` is predicted over measured, less one.

    ``mape_share`` is the mean of abs(e), ``rmspe_share`` the root of the mean of e squared, which
    one bad prediction decides (SEER's 14.71 %), ``total_share`` the error of the sum, in which
    layers' errors cancel. Lesson 20.
    """

    predictions: int
    mape_share: float
    rmspe_share: float
    worst_share: float
    total_share: float


class Split(Record):
    """Places of the shapes to fit on and to test on; ``leaked`` of the test stand among the fitted
    too.

    Lesson 20.
    """

    held_out: str
    leaked: int
    train: list[int] = field(repr=False)
    test: list[int] = field(repr=False)


def errors(predicted_s: Sequence[float], measured_s: Sequence[float]) -> PredictionErrors:
    """Return the errors of ``predicted_s`` against ``measured_s``, one a shape.

    Raises TypeError or ValueError for no numbers, a measured time that is not above 0, or two
    lengths. Lesson 20.
    """
    predicted = np.array(numbers("predicted_s", predicted_s))
    measured = np.array(numbers("measured_s", measured_s, above=0))
    if len(predicted) != len(measured) or not len(measured):
        raise ValueError(
            f"{len(predicted)} predicted and {len(measured)} measured times; give one pair a shape"
        )
    relative = predicted / measured - 1
    return PredictionErrors(
        predictions=len(relative),
        mape_share=float(np.abs(relative).mean()),
        rmspe_share=float(np.sqrt((relative**2).mean())),
        worst_share=float(relative[np.abs(relative).argmax()]),
        total_share=float(predicted.sum() / measured.sum() - 1),
    )


def hold_out_networks(
    shapes: Sequence[ConvolutionShape], networks: Mapping[str, Sequence[ConvolutionShape]]
) -> tuple[Split, ...]:
    """Return a split of ``shapes`` for each network: to test on its shapes, and to fit on those
    that it does not have.

    A shape that another network has too is not fitted on, so nothing leaks. Raises TypeError or
    ValueError for other arguments, and for a network of which ``shapes`` has all or none. Lesson
    20.
    """
    shape_list = shapes_of(shapes)
    splits = []
    if not named("networks", networks, "their shapes"):
        raise ValueError("networks is empty; give at least one name and its shapes")
    for name, network_shapes in networks.items():
        own_shapes = set(shapes_of(network_shapes))
        test = [index for index, shape in enumerate(shape_list) if shape in own_shapes]
        if not 0 < len(test) < len(shape_list):
            raise ValueError(
                f"of the {len(shape_list)} shapes, {len(test)} are of {name}; give shapes of it "
                "and of others"
            )
        train = [index for index, shape in enumerate(shape_list) if shape not in own_shapes]
        splits.append(Split(name, _count_leaked(shape_list, train, test), train, test))
    return tuple(splits)


def random_split(
    shapes: Sequence[ConvolutionShape], *, test_share: float = 0.3, seed: int = 0
) -> Split:
    """Return a split that puts ``test_share`` of ``shapes`` aside at random, as SEER's first test
    set does.

    ``seed`` decides which. Where a shape stands in ``shapes`` twice, as in the layers of a network,
    it may be on both sides: ``leaked`` counts those. Raises TypeError or ValueError for other
    arguments, or where a side is empty. Lesson 20.
    """
    shape_list = shapes_of(shapes)
    count = round(number("test_share", test_share, above=0) * len(shape_list))
    if not 0 < count < len(shape_list):
        raise ValueError(
            f"test_share={test_share} puts {count} of {len(shape_list)} shapes aside; leave some "
            "on both sides"
        )
    indices = random.Random(random_seed(seed)).sample(range(len(shape_list)), len(shape_list))
    train, test = sorted(indices[count:]), sorted(indices[:count])
    return Split(f"{count} at random", _count_leaked(shape_list, train, test), train, test)


def _count_leaked(
    shapes: Sequence[ConvolutionShape], train: Sequence[int], test: Sequence[int]
) -> int:
    fitted = {shapes[index] for index in train}
    return sum(shapes[index] in fitted for index in test)
