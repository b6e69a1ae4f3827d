"""Levels, working sets and notes that the probe derives before and after it measures.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from helpers.hardware._card import MachineCard, binary
from helpers.hardware.limits._results import LatencyPoint

UNKNOWN_LAST_CACHE_BYTES = 2**25
MOST_BYTES = 2**29  # with 1 GiB the time allowed holds one pass in place of two

_BEYOND_CACHES = 4
_PART_OF_MEMORY = 8
_OUTSIDE = (4, 2, 1)
_TOLD_APART = 1.5


@dataclass(frozen=True)
class ProbedCache:
    """A cache that the probe looks into: the size that one core reaches, and the number of logical
    processors that share it.

    ``holds_bytes`` is what the bandwidth shows of that, where it is less than half.
    """

    name: str
    size_bytes: int
    shared_by: int
    holds_bytes: int | None = None


def card_levels(card: MachineCard) -> tuple[ProbedCache, ...]:
    """Return the caches for data of ``card``, smallest first: of each level the first sort listed;
    () if unknown.
    """
    levels: dict[int, ProbedCache] = {}
    for cache in card.caches or ():
        if cache.kind != "instruction" and cache.size_bytes:
            level = ProbedCache(f"L{cache.level}", cache.size_bytes, cache.shared_by or 1)
            levels.setdefault(cache.level, level)
    return tuple(levels[number] for number in sorted(levels))


def curve_levels(latencies: Sequence[LatencyPoint], threads: int) -> tuple[ProbedCache, ...]:
    """Return the caches that the latency curve shows, named in order; the last of three or more
    taken as shared.
    """
    sizes = find_change_points(latencies) if len(latencies) >= 3 else ()
    return tuple(
        ProbedCache(f"L{number}", size, threads if number == len(sizes) >= 3 else 1)
        for number, size in enumerate(sizes, start=1)
    )


def largest_bytes(levels: Sequence[ProbedCache], threads: int, free_bytes: int | None) -> int:
    """Return the largest working set: four times the last cache, at most an eighth of memory and
    512 MiB.

    The last cache is taken for 32 MiB at least, since a system may list its smaller ones alone. The
    result is a power of two: the next above four times the cache, or the last within the limit.
    """
    last_cache_bytes = max(
        UNKNOWN_LAST_CACHE_BYTES, total_bytes(levels[-1], threads) if levels else 0
    )
    limit = min(MOST_BYTES, (free_bytes or _PART_OF_MEMORY * MOST_BYTES) // _PART_OF_MEMORY)
    return 2 ** min(
        math.ceil(math.log2(_BEYOND_CACHES * last_cache_bytes)), int(math.log2(max(2**20, limit)))
    )


def size_notes(levels: Sequence[ProbedCache], most_bytes: int, threads: int) -> tuple[str, ...]:
    """Return a note where the largest working set is under four times the known size of the last
    cache.
    """
    if not levels:
        return ()
    holding = replace(levels[-1], size_bytes=levels[-1].holds_bytes or levels[-1].size_bytes)
    if most_bytes >= _BEYOND_CACHES * total_bytes(holding, threads):
        return ()
    return (
        f"the largest working set, {binary(most_bytes)}, is under four times the "
        f"{levels[-1].name}: main memory's figures hold hits in the cache",
    )


def total_bytes(level: ProbedCache, threads: int) -> int:
    """Return the bytes of a cache that ``threads`` threads reach together, each on a processor of
    its own.
    """
    return level.size_bytes * math.ceil(threads / min(threads, level.shared_by))


def grid(
    least_bytes: int, most_bytes: int, *, per_octave: int, dense_until_bytes: int
) -> tuple[int, ...]:
    """Return working sets from ``least_bytes`` to ``most_bytes``, whole lines, ``per_octave`` to
    each doubling.

    Above ``dense_until_bytes`` there is one to each doubling.
    """
    octaves = round(math.log2(most_bytes / least_bytes))
    every = {
        least_bytes * 2 ** (step / per_octave): step % per_octave
        for step in range(octaves * per_octave + 1)
    }
    return tuple(
        round(size) // 64 * 64
        for size, within in every.items()
        if within == 0 or size <= dense_until_bytes
    )


def triad_bytes(levels: Sequence[ProbedCache], index: int, threads: int) -> int:
    """Return a working set well inside a cache and well outside the one below: the geometric mean
    of their sizes.

    Both sizes are what all threads reach together; for the first cache it is half of its size.
    """
    size = total_bytes(levels[index], threads)
    lower_bytes = total_bytes(levels[index - 1], threads) if index else size / 4
    return int(math.sqrt(lower_bytes * size)) // (192 * threads) * 192 * threads


def narrow_last_level(
    levels: Sequence[ProbedCache],
    inside_bytes_per_s: float,
    triads: Mapping[int, float],
    threads: int,
) -> tuple[tuple[ProbedCache, ...], tuple[str, ...]]:
    """Return the levels, the last with the size that the bandwidth shows if that is under half, and
    a note of it.

    ``inside_bytes_per_s`` is the triad's rate well inside the last cache, ``triads`` its rate by
    working set, the largest in main memory. Shown to be held is the largest working set whose rate
    is nearer to the first than to that of main memory, by ratio; the curve has one to each
    doubling, so it is good to a factor of two. It tells nothing where the two rates are within a
    half of each other. The last cache alone is looked at, for it is the one that is shared. The
    latency does not decide: at random addresses it also rises where the pages outnumber the TLB,
    which a guest meets early (its large pages may be small ones of the host).
    """
    last_level, memory_bytes_per_s = levels[-1], triads[max(triads)]
    if inside_bytes_per_s < _TOLD_APART * memory_bytes_per_s:
        return tuple(levels), ()
    between = math.sqrt(inside_bytes_per_s * memory_bytes_per_s)
    total = total_bytes(last_level, threads)
    held_bytes = max((size for size, rate in triads.items() if rate >= between), default=total)
    lower_bytes = total_bytes(levels[-2], threads) if len(levels) > 1 else 0
    if held_bytes <= lower_bytes or 2 * held_bytes >= total:
        return tuple(levels), ()
    share = held_bytes * last_level.size_bytes // total
    note = (
        f"the system names an {last_level.name} of {binary(last_level.size_bytes)}, and the "
        f"bandwidth falls after {binary(share)}: the models take it to hold that"
    )
    return (*levels[:-1], replace(last_level, holds_bytes=share)), (note,)


def latency_point(
    latencies: Sequence[LatencyPoint], inside: tuple[int, int | None]
) -> LatencyPoint | None:
    """Return the fastest point well inside a level, ``inside`` being the size of the cache below
    (0: none) and its own.

    Well inside is from four times (else twice, else once) the cache below to half of its own size,
    which is None for main memory. Noise only adds time, so the fastest point is the best. None
    comes back where the curve has no such point.
    """
    lower_bytes, cache_bytes = inside
    for factor in _OUTSIDE:
        chosen = [
            point
            for point in latencies
            if factor * lower_bytes
            <= point.working_set_bytes
            <= (cache_bytes / 2 if cache_bytes else math.inf)
        ]
        if chosen:
            return min(chosen, key=lambda point: point.latency_s)
    return None


def disagreements(
    levels: Sequence[ProbedCache], latencies: Sequence[LatencyPoint]
) -> tuple[str, ...]:
    """Return a note for each cache at whose size, within a factor of two, the latency does not
    rise.
    """
    if len(latencies) < 3:
        return ()
    change_points = find_change_points(latencies)
    notes = []
    for index, level in enumerate(levels):
        if any(level.size_bytes / 2 <= size <= level.size_bytes * 2 for size in change_points):
            continue
        lower_bytes = 2 * levels[index - 1].size_bytes if index else 0
        earlier = [size for size in change_points if lower_bytes < size < level.size_bytes / 2]
        observation = (
            f"the latency rises after {binary(earlier[-1])}: other programs (or other guests of "
            "this computer) take a part of it, or the TLB reaches no further"
            if earlier
            else "the latency does not rise there"
        )
        notes.append(
            f"the system names an {level.name} of {binary(level.size_bytes)}, and {observation}"
        )
    return tuple(notes)


# In natural logarithms: what the steepness must change by to tell two rises apart, and the least
# rise that counts.
_JUMP_TOLD_APART = 0.08
_LEAST_RISE = 0.22


def find_change_points(latencies: Sequence[LatencyPoint]) -> tuple[int, ...]:
    """Return the working sets, in bytes and ascending, after which the latency rises: the sizes of
    caches.

    Each is the last working set before the steepest step of a rise, so it is one of the sizes that
    were measured. On a curve without noise, of two to four points an octave, whose cache sizes are
    among the measured ones, the answer is exact where each cache has at least twice the size of the
    one below and each level takes at least twice as long; a size between two of them is known to
    one step of the grid. A real cache also holds other programs' data and replaces lines
    imperfectly, so on a real curve the answer is good to a factor of two.

    The points may come in any order. Noise adds time and never takes any, so a point counts as the
    smallest latency at its size or above. A rise of less than a quarter is never seen; one that is
    spread over some octaves, because the cache's hits end gradually, is told from a slope only if
    it is higher: about 1.6 times at four points an octave, and 2.5 times at eight. Where memory is
    in small pages, the reach of the TLB is a step as well, and is returned like a cache.

    Raises ValueError for fewer than three sizes, a size that occurs twice, or a latency that is not
    above 0.

    >>> curve = {16384: 1e-9, 32768: 1e-9, 65536: 4e-9, 131072: 4e-9}
    >>> find_change_points([LatencyPoint(size_bytes, curve[size_bytes]) for size_bytes in curve])
    (32768,)

    Lesson 01.
    """
    points = sorted(latencies, key=lambda point: point.working_set_bytes)
    sizes = [point.working_set_bytes for point in points]
    times_s = np.array([point.latency_s for point in points], dtype=float)
    if len(set(sizes)) < max(3, len(sizes)):
        raise ValueError(
            f"{len(sizes)} points of {len(set(sizes))} sizes do not make a curve; give three or "
            "more points, each of another working set"
        )
    if not np.all(np.isfinite(times_s) & (times_s > 0)):
        raise ValueError(
            "a latency of the curve is not above 0; give the seconds of one load at each working "
            "set"
        )
    floor = np.minimum.accumulate(times_s[::-1])[::-1]
    steps = np.diff(np.log(floor))
    return tuple(sizes[peak] for peak in _rises(steps))


def _rises(steps: np.ndarray) -> list[int]:
    """Return the index of the steepest step of every rise that is large enough; a valley of
    steepness parts two.
    """
    borders: list[int] = [0]
    peaks: list[int] = []
    extreme, sign = 0, 1  # the steepest step so far, or with -1 the flattest since the last peak
    for index, step in enumerate(steps):
        if sign * step > sign * steps[extreme]:
            extreme = index
        elif sign * (steps[extreme] - step) > _JUMP_TOLD_APART:
            turning_points = peaks if sign == 1 else borders
            turning_points.append(extreme)
            extreme, sign = index, -sign
    if sign == 1 and steps[extreme] > _JUMP_TOLD_APART:
        peaks.append(extreme)
    spans = zip(peaks, borders, [*borders[1:], len(steps)], strict=False)
    return [peak for peak, begin, end in spans if steps[begin:end].sum() >= _LEAST_RISE]
