"""Reuse distances, and what they tell at once of every size of cache.

The reuse distance of a touch is the number of other lines touched since the same line was touched last. A fully
associative cache that replaces the least recently used of its c lines holds the line exactly when the distance is
below c, so one pass over a stream gives the misses of all sizes: Mattson, Gecsei, Slutz and Traiger, "Evaluation
techniques for storage hierarchies", IBM Systems Journal 9(2), 1970. Lesson 01.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from helpers.results import Result
from helpers.simulators.cache import CacheLevel
from helpers.simulators.streams import AddressStream, list_of, require_stream

FIRST_TOUCH = -1


@dataclass(frozen=True)
class ReuseBin(Result):
    """The touches with a reuse distance of ``from_lines`` to ``to_lines``, both included. Lesson 01."""

    from_lines: int
    to_lines: int
    touches: int


@dataclass(frozen=True)
class ReuseHistogram(Result):
    """Touches by reuse distance, in bins that double; ``first_touches`` have none. Lesson 01."""

    line_bytes: int
    touches: int
    first_touches: int
    bins: tuple[ReuseBin, ...]


@dataclass(frozen=True)
class MissPoint(Result):
    """The misses of a fully associative cache of ``size_bytes``. Lesson 01."""

    size_bytes: int
    misses: int
    miss_share: float


@dataclass(frozen=True)
class MissCurve(Result):
    """Misses by the size of a fully associative cache; ``first_touches`` miss at every size. Lesson 01."""

    line_bytes: int
    touches: int
    first_touches: int
    points: tuple[MissPoint, ...]


def reuse_distances(stream: AddressStream, *, line_bytes: int = 64) -> np.ndarray:
    """Return the reuse distance of each touch of a line, in lines (int64); ``FIRST_TOUCH`` (-1) where there is none.

    In O(n log n). A line that is touched twice in a row has the distance 0. An access that crosses the border of a
    line is two touches. Raises TypeError for what is no stream, ValueError for a line that is no power of two bytes.
    For the library itself.
    """
    require_stream(stream)
    CacheLevel(line_bytes, line_bytes)  # refuses lines that are no lines
    lines, _ = stream.lines(line_bytes)
    before = _previous(lines)
    # Between a touch and the one before of the same line lie as many other lines as touches whose own previous touch
    # is earlier than that: each line's first in between. Up to that earlier touch, every touch has an earlier previous.
    earlier = _smaller_before(_ranked(before))
    return np.where(before == FIRST_TOUCH, FIRST_TOUCH, earlier - before - 1)


def reuse_histogram(stream: AddressStream, *, line_bytes: int = 64) -> ReuseHistogram:
    """Return how many touches have which reuse distance: 0, 1, 2 to 3, 4 to 7, ... lines. For the library itself."""
    distances = reuse_distances(stream, line_bytes=line_bytes)
    known = distances[distances != FIRST_TOUCH]
    edges = [0, 1]
    while known.size and edges[-1] <= known.max():
        edges.append(2 * edges[-1])
    counts, _ = np.histogram(known, bins=[*edges[:-1], edges[-1] - 0.5])
    bins = [ReuseBin(low, high - 1, int(count))
            for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)]  # fmt: skip
    return ReuseHistogram(line_bytes, distances.size, distances.size - known.size, tuple(bins) if known.size else ())


def miss_curve(stream: AddressStream, sizes_bytes: Sequence[int], *, line_bytes: int = 64) -> MissCurve:
    """Return the misses of a fully associative cache of each of ``sizes_bytes``, from one pass over ``stream``.

    Each is what :func:`helpers.simulators.cache.simulate_caches` counts at that size. Raises ValueError for a size
    that is not whole lines. For the library itself.
    """
    sizes_bytes = list_of("sizes_bytes", sizes_bytes, "sizes in bytes")
    held = np.array([CacheLevel(size, line_bytes).lines for size in sizes_bytes], np.int64)
    distances = reuse_distances(stream, line_bytes=line_bytes)
    known = np.sort(distances[distances != FIRST_TOUCH])
    first = distances.size - known.size
    misses = first + known.size - np.searchsorted(known, held)
    points = [MissPoint(int(size), int(missed), int(missed) / max(1, distances.size))
              for size, missed in zip(sizes_bytes, misses, strict=True)]  # fmt: skip
    return MissCurve(line_bytes, distances.size, first, tuple(points))


def _previous(lines: np.ndarray) -> np.ndarray:
    """Return for each touch the index of the last touch before it of the same line; FIRST_TOUCH where there is none."""
    order = np.argsort(lines, kind="stable")
    again = lines[order][1:] == lines[order][:-1]
    before = np.full(lines.size, FIRST_TOUCH, np.int64)
    before[order[1:][again]] = order[:-1][again]
    return before


def _ranked(values: np.ndarray) -> np.ndarray:
    """Return each value's place when all are sorted, equal ones in the order in which they stand."""
    ranks = np.empty(values.size, np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(values.size)
    return ranks


def _smaller_before(ranks: np.ndarray) -> np.ndarray:
    """Return for each member of a permutation of 0..n-1 how many smaller ones stand before it.

    Bit by bit from the highest: members that agree in the higher bits stand together, in their first order, at the
    places that their ranks will fill. One with the bit set stands behind as many smaller ones as have it unset before.
    """
    counts = np.zeros(ranks.size, np.int64)
    members, owners = ranks, np.arange(ranks.size)
    for bit in reversed(range(max(0, ranks.size - 1).bit_length())):
        has_bit = (members >> bit & 1).astype(bool)
        group_start = members >> (bit + 1) << (bit + 1)
        unset = np.concatenate([[0], np.cumsum(~has_bit)])
        unset_before = unset[:-1] - unset[group_start]
        counts[owners[has_bit]] += unset_before[has_bit]
        place = np.where(has_bit, np.arange(ranks.size) - unset_before + (1 << bit), group_start + unset_before)
        next_members, next_owners = np.empty_like(members), np.empty_like(owners)
        next_members[place], next_owners[place] = members, owners
        members, owners = next_members, next_owners
    return counts
