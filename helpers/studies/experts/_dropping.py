"""How many tokens an expert drops if they choose at random. Lesson 09."""

from __future__ import annotations

import math

from helpers.checks import number, whole_number


def expect_dropped(tokens: int, probability: float, *, capacity: int) -> float:
    """Return the mean number of tokens that find no place at an expert, of ``tokens`` that choose
    independently.

    Each token chooses the expert with ``probability``, so their number is binomial, and those
    beyond ``capacity`` are dropped. Raises TypeError or ValueError for ``tokens`` or a ``capacity``
    that is no whole number of at least 0, and for a probability that is not between 0 and 1. Lesson
    09.

    >>> expect_dropped(2, 0.5, capacity=1)  # only if both choose it
    0.25
    """
    tokens = whole_number("tokens", tokens, at_least=0)
    capacity = whole_number("capacity", capacity, at_least=0)
    probability = number("probability", probability, above=0)
    if probability >= 1:
        raise ValueError(
            f"probability={probability:g} must be below 1, such as 1/8 for one of eight experts"
        )
    # a power would be 0 for thousands of tokens
    logarithms = math.log(probability), math.log1p(-probability)

    def chance(choosing: int) -> float:
        log_binomial = (
            math.lgamma(tokens + 1) - math.lgamma(choosing + 1) - math.lgamma(tokens - choosing + 1)
        )
        return math.exp(
            log_binomial + choosing * logarithms[0] + (tokens - choosing) * logarithms[1]
        )

    return math.fsum(
        (choosing - capacity) * chance(choosing) for choosing in range(capacity + 1, tokens + 1)
    )
