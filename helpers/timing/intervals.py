"""The distribution-free interval of a median, by order statistics."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np


def median_interval(values: Sequence[float], alpha: float) -> tuple[float, float]:
    """Return the order-statistic interval that misses the population's median with probability alpha at most."""
    rank = _rank(len(values), alpha)
    ordered = np.sort(values)
    return (float(ordered[rank - 1]), float(ordered[-rank])) if rank else (0.0, math.inf)


@functools.cache
def _rank(count: int, alpha: float) -> int:
    """Return the largest k for which fewer than k heads in ``count`` fair tosses are as rare as alpha / 2."""
    tail = 0.0
    for heads in range(count + 1):
        ways = math.lgamma(count + 1) - math.lgamma(heads + 1) - math.lgamma(count - heads + 1)
        tail += math.exp(ways - count * math.log(2))
        if tail > alpha / 2:
            return heads
    raise ValueError(f"alpha must be below 2; got {alpha}")
