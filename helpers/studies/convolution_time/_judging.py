"""How good are predictions and choices, and on which data: errors, hits, regret, splits.

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
    given = shapes_of(shapes)
    splits = []
    if not named("networks", networks, "their shapes"):
        raise ValueError("networks is empty; give at least one name and its shapes")
    for name, owned in networks.items():
        own = set(shapes_of(owned))
        test = [place for place, shape in enumerate(given) if shape in own]
        if not 0 < len(test) < len(given):
            raise ValueError(
                f"of the {len(given)} shapes, {len(test)} are of {name}; give shapes of it and of "
                "others"
            )
        train = [place for place, shape in enumerate(given) if shape not in own]
        splits.append(Split(name, _leaked(given, train, test), train, test))
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
    given = shapes_of(shapes)
    count = round(number("test_share", test_share, above=0) * len(given))
    if not 0 < count < len(given):
        raise ValueError(
            f"test_share={test_share} puts {count} of {len(given)} shapes aside; leave some on "
            "both sides"
        )
    places = random.Random(random_seed(seed)).sample(range(len(given)), len(given))
    train, test = sorted(places[count:]), sorted(places[:count])
    return Split(f"{count} at random", _leaked(given, train, test), train, test)


def _leaked(shapes: Sequence[ConvolutionShape], train: Sequence[int], test: Sequence[int]) -> int:
    fitted = {shapes[place] for place in train}
    return sum(shapes[place] in fitted for place in test)
