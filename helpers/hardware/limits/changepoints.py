"""The sizes of the caches, read off a curve of latency by working set: :func:`find_change_points`. Lesson 01."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from helpers.hardware.limits.results import LatencyPoint

# In natural logarithms: what the steepness must change by to tell two rises apart, and the least rise that counts.
_TOLD_APART = 0.08
_LEAST_RISE = 0.22


def find_change_points(latencies: Sequence[LatencyPoint]) -> tuple[int, ...]:
    """Return the working sets, in bytes and ascending, after which the latency rises: what the caches hold.

    Each is the last working set before the steepest step of a rise, so it is one of the sizes that were measured. On
    a curve without noise, of two to four points an octave, whose cache sizes are among the measured ones, the answer
    is exact where each cache has at least twice the size of the one below and each level takes at least twice as long;
    a size between two of them is known to one step of the grid. A real cache also holds other programs' data and
    replaces lines imperfectly, so on a real curve the answer is good to a factor of two.

    The points may come in any order. Noise adds time and never takes any, so a point counts as the smallest latency at
    its size or above. A rise of less than a quarter is never seen; one that is spread over some octaves, because the
    cache's hits end gradually, is told from a slope only if it is higher: about 1.6 times at four points an octave, and
    2.5 times at eight. Where memory is in small pages, the reach of the TLB is a step as well, and is returned like a
    cache.

    Raises ValueError for fewer than three sizes, a size that occurs twice, or a latency that is not above 0. Lesson 01.
    """
    ordered = sorted(latencies, key=lambda point: point.working_set_bytes)
    sizes = [point.working_set_bytes for point in ordered]
    times_s = np.array([point.latency_s for point in ordered], dtype=float)
    if len(set(sizes)) < max(3, len(sizes)):
        raise ValueError(f"{len(sizes)} points of {len(set(sizes))} sizes do not make a curve; give three or more "
                         "points, each of another working set")  # fmt: skip
    if not np.all(np.isfinite(times_s) & (times_s > 0)):
        raise ValueError("a latency of the curve is not above 0; give the seconds of one load at each working set")
    floor = np.minimum.accumulate(times_s[::-1])[::-1]
    steps = np.diff(np.log(floor))
    return tuple(sizes[peak] for peak in _rises(steps))


def _rises(steps: np.ndarray) -> list[int]:
    """Return the index of the steepest step of every rise that is large enough; a valley of steepness parts two."""
    borders, peaks, low, high = [0], [], 0, 0
    climbing = True
    for index in range(len(steps)):
        if climbing:
            high = index if steps[index] > steps[high] else high
            if steps[index] < steps[high] - _TOLD_APART:
                peaks.append(high)
                climbing, low = False, index
        else:
            low = index if steps[index] < steps[low] else low
            if steps[index] > steps[low] + _TOLD_APART:
                borders.append(low)
                climbing, high = True, index
    if climbing and steps[high] > _TOLD_APART:
        peaks.append(high)
    ends = [*borders[1:], len(steps)]
    spans = zip(peaks, borders, ends, strict=False)
    return [peak for peak, begin, end in spans if steps[begin:end].sum() >= _LEAST_RISE]
