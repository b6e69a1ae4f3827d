"""Reuse distances: against a stack that is searched line by line, and against simulated caches of every size."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.simulators import cache, reuse, streams
from helpers.simulators.streams import AddressStream


def by_stack(lines: list[int]) -> list[int]:
    """Mattson's stack, searched: the newest line first."""
    stack, found = [], []
    for line in lines:
        found.append(stack.index(line) if line in stack else reuse.FIRST_TOUCH)
        if line in stack:
            stack.remove(line)
        stack.insert(0, line)
    return found


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 9, 64, 500])
@pytest.mark.parametrize("spread", [1, 3, 20, 10_000])
def test_distances_are_those_of_a_searched_stack(size, spread):
    lines = np.random.default_rng(size + spread).integers(0, spread, size)
    assert reuse.reuse_distances(AddressStream(lines * 64)).tolist() == by_stack(lines.tolist())


SAMPLES = {
    "product": streams.matrix_product(13, 11, 12),
    "tiled product": streams.matrix_product(16, 16, 16, order="ikj", tile=4),
    "random": streams.random_accesses(3000, working_set_bytes=8192, write_share=0.3),
    "columns": streams.matrix_walk(40, 30, order="columns"),
    "crossing": AddressStream(np.random.default_rng(1).integers(0, 4096, 1000), False, 40),
}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("line_bytes", [16, 64])
def test_the_miss_curve_is_the_fully_associative_simulation_at_each_size(name, line_bytes):
    sizes = [line_bytes * lines for lines in (1, 2, 3, 4, 7, 8, 16, 31, 32, 64, 100, 300)]
    curve = reuse.miss_curve(SAMPLES[name], sizes, line_bytes=line_bytes)
    for size, point in zip(sizes, curve.points, strict=True):
        level = cache.simulate_caches(SAMPLES[name], [cache.CacheLevel(size, line_bytes)]).levels[0]
        assert (point.size_bytes, point.misses, point.miss_share) == (size, level.misses, level.miss_share)
        assert curve.touches == level.reads + level.writes
    assert curve.points[-1].misses >= curve.first_touches


@pytest.mark.parametrize("name", SAMPLES)
def test_the_histogram_counts_every_touch_once(name):
    distances = reuse.reuse_distances(SAMPLES[name])
    histogram = reuse.reuse_histogram(SAMPLES[name])
    assert histogram.first_touches + sum(row.touches for row in histogram.bins) == histogram.touches == distances.size
    for row in histogram.bins:
        assert row.touches == np.count_nonzero((distances >= row.from_lines) & (distances <= row.to_lines))
    assert [row.from_lines for row in histogram.bins] == [0, *(1 << bit for bit in range(len(histogram.bins) - 1))]


def test_a_second_lap_has_the_working_set_less_one_as_its_distance():
    lap = streams.sequential(100, element_bytes=64)
    assert reuse.reuse_distances(streams.join_streams([lap, lap])).tolist() == [-1] * 100 + [99] * 100
    histogram = reuse.reuse_histogram(streams.join_streams([lap, lap]))
    assert histogram.bins[-1] == reuse.ReuseBin(64, 127, 100)
    assert reuse.reuse_histogram(lap).bins == ()


def test_sizes_and_lines_that_are_none_are_refused():
    with pytest.raises(ValueError, match="whole lines of 64 bytes; 100 is not"):
        reuse.miss_curve(streams.sequential(3), [64, 100])
    with pytest.raises(ValueError, match="power of two"):
        reuse.reuse_distances(streams.sequential(3), line_bytes=48)
    with pytest.raises(TypeError, match="sizes_bytes is a list of sizes in bytes; got int 64"):
        reuse.miss_curve(streams.sequential(3), 64)
    with pytest.raises(TypeError, match="takes an address stream"):
        reuse.reuse_histogram([0, 64])
