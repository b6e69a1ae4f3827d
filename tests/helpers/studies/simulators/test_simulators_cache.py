"""Caches: hand-worked streams, closed forms, and an oracle that follows one access at a time
through all levels.
"""

from __future__ import annotations

import importlib.util
import time

import numpy as np
import product_streams
import pytest
from hypothesis import given, strategies as st

from helpers import results
from helpers.studies.simulators import _cache as cache
from helpers.studies.simulators._cache import (
    AddressStream,
    CacheLevel,
    simulate_caches,
    simulate_latency,
)
from tests.properties import repeatable

has_numba = importlib.util.find_spec("numba") is not None
needs_numba = pytest.mark.skipif(not has_numba, reason="no numba")


class Oracle:
    """The rules as they stand in the module's docstring: one access at a time, each level asking
    the next.
    """

    def __init__(self, levels: list[CacheLevel]) -> None:
        self.levels = levels
        # a set: [line, dirty], oldest first
        self.sets = [[[] for _ in range(level.sets)] for level in levels]
        self.counts = [
            dict.fromkeys(("reads", "writes", "hits", "misses", "evictions", "write_backs"), 0)
            for _ in levels
        ]
        self.read, self.written = [0] * len(levels), [0] * len(levels)

    def touch(self, index: int, address: int, write: bool, width: int) -> None:
        """Touch the line of ``address`` at a level; ``width`` bytes are asked for or brought."""
        if index == len(self.levels):
            return
        level, count = self.levels[index], self.counts[index]
        line = address // level.line_bytes
        count["writes" if write else "reads"] += 1
        lines = self.sets[index][line % level.sets]
        found = next((entry for entry in lines if entry[0] == line), None)
        if found:
            count["hits"] += 1
            lines.remove(found)
            lines.append([line, found[1] or write])
            return
        count["misses"] += 1
        if not (write and width == level.line_bytes and index > 0):
            self.read[index] += level.line_bytes
            self.touch(index + 1, line * level.line_bytes, False, level.line_bytes)
        if len(lines) == (level.ways or level.lines):
            victim, dirty = lines.pop(0)
            count["evictions"] += 1
            if dirty:
                count["write_backs"] += 1
                self.written[index] += level.line_bytes
                self.touch(index + 1, victim * level.line_bytes, True, level.line_bytes)
        lines.append([line, write])

    def run(self, stream: AddressStream) -> None:
        width, line_bytes = stream.access_bytes, self.levels[0].line_bytes
        for address, write in zip(stream.addresses.tolist(), stream.writes.tolist(), strict=True):
            for line in range(address // line_bytes, (address + width - 1) // line_bytes + 1):
                self.touch(0, line * line_bytes, write, width)


THREE_LEVELS = [CacheLevel(256, 32, 2), CacheLevel(1024, 32, 4), CacheLevel(4096, 32, 8)]


@st.composite
def hierarchies(draw) -> list[CacheLevel]:
    """Draw one to three levels: lines that grow outwards, any sets and ways, also smaller levels
    outside.
    """
    levels, line_bytes = [], draw(st.sampled_from([16, 32]))
    for _ in range(draw(st.integers(1, 3))):
        sets, ways = draw(st.integers(1, 5)), draw(st.integers(1, 8))
        levels.append(
            CacheLevel(sets * ways * line_bytes, line_bytes, ways if draw(st.booleans()) else None)
        )
        line_bytes *= draw(st.sampled_from([1, 1, 2]))
    return levels


@st.composite
def streams(draw) -> AddressStream:
    """Draw reads and writes of a width of their own, in a small or in a large space, some of them
    far apart.
    """
    space, apart = draw(st.sampled_from([(300, 1), (3000, 1), (30, 1 << 40)]))
    addresses = draw(st.lists(st.integers(0, space), min_size=1, max_size=120))
    chance = np.random.default_rng(draw(st.integers(0, 99))).random(len(addresses))
    writes = chance < draw(st.sampled_from([0.0, 0.3, 1.0]))
    return AddressStream(np.array(addresses) * apart, writes, draw(st.integers(1, 48)))


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_numba)])
@repeatable(examples=60)
@given(hierarchies(), streams())
def test_every_count_is_the_oracles(compiled, levels, stream):
    oracle = Oracle(levels)
    oracle.run(stream)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "_COMPILED_FROM", 0 if compiled else 10**9)
        run = simulate_caches(stream, levels)
    for index, level in enumerate(run.levels):
        assert {name: getattr(level, name) for name in oracle.counts[index]} == oracle.counts[index]
        assert (level.read_bytes, level.written_bytes) == (
            oracle.read[index],
            oracle.written[index],
        )
        assert level.dirty_lines == sum(entry[1] for lines in oracle.sets[index] for entry in lines)
    assert (run.memory_read_bytes, run.memory_written_bytes) == (
        oracle.read[-1],
        oracle.written[-1],
    )
    assert run.accesses == len(stream)


def test_a_stream_worked_by_hand():
    # Two sets of two lines of 16 bytes. Lines 0, 2, 4 belong to set 0; line 1 to set 1.
    level = CacheLevel(64, 16, 2)
    lines = [0, 2, 0, 4, 2, 1, 0]
    writes = [True, False, False, False, False, True, False]
    run = simulate_caches(AddressStream(np.array(lines) * 16, np.array(writes), 4), [level])
    # 0 miss, 2 miss, 0 hit, 4 misses and evicts 2 (clean), 2 misses and evicts 0 (dirty), 1 misses,
    # 0 misses and evicts 4: six misses, three evictions, one write-back, line 1 still dirty.
    assert run.levels == (
        cache.LevelCounts(
            "L1",
            64,
            16,
            2,
            reads=5,
            writes=2,
            hits=1,
            misses=6,
            miss_share=6 / 7,
            evictions=3,
            write_backs=1,
            dirty_lines=1,
            read_bytes=96,
            written_bytes=16,
        ),
    )
    assert (run.asked_bytes, run.memory_read_bytes, run.memory_written_bytes) == (28, 96, 16)


def test_of_a_line_written_back_whole_nothing_is_read():
    # L1 holds one line, L2 two. Write line 0; read 1 (0 goes to L2, which holds it already); read
    # 2, 3: L2 drops 0.
    levels = [CacheLevel(64), CacheLevel(128)]
    run = simulate_caches(
        AddressStream([0, 64, 128, 192], np.array([True, False, False, False])), levels
    )
    assert (run.levels[0].write_backs, run.levels[1].writes, run.levels[1].write_backs) == (1, 1, 1)
    assert (run.memory_read_bytes, run.memory_written_bytes) == (4 * 64, 64)
    tiny = simulate_caches(
        AddressStream([0, 64, 128], np.array([True, False, False])), [CacheLevel(64)] * 2
    )
    # Each level holds one line. Line 1 replaces 0 in both before 0 comes back from L1: it misses,
    # and is not read.
    assert (tiny.levels[1].misses, tiny.levels[1].read_bytes) == (4, 3 * 64)


@pytest.mark.parametrize("line_bytes", [32, 64, 128])
def test_a_sequence_misses_once_a_line(line_bytes):
    run = simulate_caches(cache.sequential(10_000), [CacheLevel(1024, line_bytes, 2)])
    assert run.levels[0].misses == -(-10_000 * 4 // line_bytes)
    written = simulate_caches(
        AddressStream(4 * np.arange(10_000), True), [CacheLevel(1024, line_bytes, 2)]
    )
    assert written.levels[0].write_backs + written.levels[0].dirty_lines == written.levels[0].misses


def test_a_walk_down_the_columns_misses_always_unless_a_column_of_lines_fits():
    # 32 lines; a column of the matrix touches 64
    rows, columns, level = 64, 32, CacheLevel(2048, 64)
    addresses = 4 * np.arange(rows * columns).reshape(rows, columns)
    by_columns = AddressStream(addresses.T.ravel())
    assert simulate_caches(by_columns, [level]).levels[0].misses == rows * columns
    assert (
        simulate_caches(by_columns, [CacheLevel(4096, 64)]).levels[0].misses == rows * columns // 16
    )
    by_rows = AddressStream(addresses.ravel())
    assert simulate_caches(by_rows, [level]).levels[0].misses == rows * columns // 16


def test_a_stride_of_the_sets_uses_one_set_alone():
    level = CacheLevel(32 * 1024, 64, 8)  # 64 sets: a stride of 4,096 bytes stays in one
    walk = [cache.strided(16, stride_bytes=4096)] * 10
    assert simulate_caches(cache.join_streams(walk), [level]).levels[0].misses == 160
    beside = [cache.strided(16, stride_bytes=4096 + 64)] * 10
    assert simulate_caches(cache.join_streams(beside), [level]).levels[0].misses == 16


@pytest.mark.parametrize("side", [64, 96])
def test_a_tiled_product_moves_what_the_formula_says(side):
    # Lines of 32 bytes are a tile's rows. 64 lines hold a step's three tiles and the next two, and
    # no panel of A.
    tile = line_elements = 8
    level = CacheLevel(64 * 32, 32)
    run = simulate_caches(
        product_streams.matrix_product(side, side, side, order="ikj", tile=tile), [level]
    ).levels[0]
    a = b = side**3 // tile
    c = zeros = side**2
    assert run.misses == (a + b + c + zeros) // line_elements
    assert run.write_backs + run.dirty_lines == (c + zeros) // line_elements
    untiled = simulate_caches(
        product_streams.matrix_product(side, side, side, order="ikj"), [level]
    ).levels[0]
    assert untiled.misses > 3 * run.misses


def test_an_access_across_a_border_touches_two_lines():
    aligned, shifted = (
        AddressStream(64 * np.arange(1000), access_bytes=64),
        AddressStream(64 * np.arange(1000) + 4, access_bytes=64),
    )
    level = CacheLevel(1024, 64)
    assert simulate_caches(aligned, [level]).split_accesses == 0
    run = simulate_caches(shifted, [level])
    assert (run.split_accesses, run.levels[0].reads, run.levels[0].misses) == (1000, 2000, 1001)


def test_a_chase_is_served_where_the_working_set_fits():
    levels = [CacheLevel(1024, 64, 2), CacheLevel(8192, 64, 4)]
    curve = simulate_latency(levels, (1e-9, 4e-9, 100e-9), [512, 1024, 2048, 8192, 16384])
    assert [point.latency_s for point in curve.points] == pytest.approx(
        [1e-9, 1e-9, 4e-9, 4e-9, 100e-9], rel=1e-12
    )
    assert [point.memory_share for point in curve.points] == [0, 0, 0, 0, 1]
    # 20 lines in 8 sets of 2 ways: sets 0 to 3 are asked for three lines each and lose all, the
    # others hold two.
    partly = simulate_latency([CacheLevel(1024, 64, 2)], (1e-9, 100e-9), [20 * 64])
    assert partly.points[0].memory_share == 12 / 20
    longer = simulate_latency(
        [CacheLevel(512, 64), CacheLevel(4096, 128)], (1e-9, 4e-9, 100e-9), [2048]
    )
    assert longer.points[0].latency_s == pytest.approx(4e-9)
    assert results.from_dict(cache.LatencyCurve, curve.to_dict()) == curve
    assert list(curve.table()) == ["working_set_bytes", "latency_s", "memory_share"]


@needs_numba
@pytest.mark.timed
def test_a_million_accesses_take_under_a_second():
    side = 79
    stream = product_streams.matrix_product(side, side, side)
    levels = [
        CacheLevel(8 * 1024, 64, 8),
        CacheLevel(64 * 1024, 64, 8),
        CacheLevel(1 << 20, 64, 16),
    ]
    simulate_caches(stream, levels)
    assert stream.addresses.size > 990_000

    def seconds() -> float:
        begun = time.thread_time()  # of this thread alone: other programs do not count
        simulate_caches(stream, levels)
        return time.thread_time() - begun

    assert min(seconds() for _ in range(3)) < 1


def test_without_numba_the_counts_are_the_same(monkeypatch):
    import sys

    stream, levels = product_streams.matrix_product(7, 9, 5, order="ikj", tile=3), THREE_LEVELS
    expected = simulate_caches(stream, levels)
    monkeypatch.setattr(cache, "_COMPILED_FROM", 0)
    monkeypatch.setitem(sys.modules, "numba", None)
    cache._compile_walk.cache_clear()
    try:
        assert simulate_caches(stream, levels) == expected
        assert cache._compile_walk() is None
    finally:
        cache._compile_walk.cache_clear()


def test_an_empty_stream_counts_nothing():
    run = simulate_caches(AddressStream([]), THREE_LEVELS)
    assert run.accesses == run.levels[0].misses == run.memory_read_bytes == 0
    assert results.from_dict(cache.CacheRun, run.to_dict()) == run


def test_the_product_streams_are_the_loops():
    m, n, k, tile = 3, 5, 4, 2
    a, b, c = (
        (lambda i, p: 4 * (i * k + p)),
        (lambda p, j: 4096 + 4 * (p * n + j)),
        lambda i, j: 8192 + 4 * (i * n + j),
    )
    naive, tiled = [], [(c(i, j), True) for i in range(m) for j in range(n)]
    for i in range(m):
        for j in range(n):
            for p in range(k):
                naive += [(a(i, p), False), (b(p, j), False)]
            naive.append((c(i, j), True))
    for i0 in range(0, m, tile):
        for j0 in range(0, n, tile):
            for p0 in range(0, k, tile):
                for i in range(i0, min(i0 + tile, m)):
                    for p in range(p0, min(p0 + tile, k)):
                        tiled.append((a(i, p), False))
                        for j in range(j0, min(j0 + tile, n)):
                            tiled += [(b(p, j), False), (c(i, j), False), (c(i, j), True)]
    for expected, stream in [
        (naive, product_streams.matrix_product(m, n, k)),
        (tiled, product_streams.matrix_product(m, n, k, order="ikj", tile=tile)),
    ]:
        assert list(zip(stream.addresses.tolist(), stream.writes.tolist(), strict=True)) == expected
    whole = product_streams.matrix_product(m, n, k, order="ikj")
    assert np.array_equal(
        whole.addresses, product_streams.matrix_product(m, n, k, order="ikj", tile=5).addresses
    )


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: CacheLevel(1000, 64, 2), ValueError, "whole lines of 64 bytes; 1,000 is not"),
        (lambda: CacheLevel(960, 48, 2), ValueError, r"power of two .*got 48"),
        (lambda: CacheLevel(1024, 64, 3), ValueError, "16 lines do not divide into sets of 3 ways"),
        (
            lambda: CacheLevel(1024, 64, 0),
            ValueError,
            "ways=0 is too small; give a whole number, 1 or more",
        ),
        (
            lambda: CacheLevel(1e6),
            TypeError,
            "size_bytes=1000000.0 is a float; give a whole number",
        ),
        (
            lambda: simulate_caches(cache.sequential(3), []),
            ValueError,
            "levels is empty; give a list of CacheLevel",
        ),
        (
            lambda: simulate_caches(cache.sequential(3), CacheLevel(64)),
            TypeError,
            r"levels=CacheLevel\(.* is a CacheLevel; give a list of CacheLevel",
        ),
        (
            lambda: simulate_caches(cache.sequential(3), [32]),
            TypeError,
            r"levels\[0\]=32 is an int; give a list of CacheLevel",
        ),
        (
            lambda: simulate_caches(
                cache.sequential(3), [CacheLevel(128, 128), CacheLevel(512, 64)]
            ),
            ValueError,
            r"at least as long .*got \[128, 64\]",
        ),
        (
            lambda: simulate_latency([CacheLevel(64)], [1e-9], [64]),
            ValueError,
            "give 2 latencies in seconds",
        ),
        (
            lambda: simulate_latency([CacheLevel(64)], [2e-9, 1e-9], [64]),
            ValueError,
            "not below the one before",
        ),
        (lambda: AddressStream([0.5]), TypeError, "addresses are whole numbers in one row"),
        (lambda: AddressStream([-4]), ValueError, "0 or more; the smallest given is -4"),
        (
            lambda: AddressStream([0, 4], np.array([True])),
            TypeError,
            "writes is one bool, or one for each of the 2",
        ),
        (lambda: cache.join_streams([]), ValueError, "these have none bytes"),
        (
            lambda: cache.join_streams(cache.sequential(3)),
            TypeError,
            r"streams=AddressStream\(.* is an AddressStream; give a list of address streams",
        ),
        (
            lambda: cache.join_streams([[0, 64]]),
            TypeError,
            r"streams\[0\]=\[0, 64\] is a list; give a list of address streams",
        ),
        (
            lambda: simulate_caches([0, 64], [CacheLevel(64)]),
            TypeError,
            r"stream=\[0, 64\] is a list; give an address stream, such as sequential\(100\)",
        ),
        (
            lambda: simulate_latency([CacheLevel(64)], [1e-9, 2e-9], 64),
            TypeError,
            "working_sets_bytes=64 is an int; give a list of sizes",
        ),
        (
            lambda: simulate_latency([CacheLevel(64)], 1e-9, [64]),
            TypeError,
            "latencies_s=1e-09 is a float; give a list",
        ),
        (
            lambda: AddressStream(np.array([2**63 + 5], np.uint64)),
            ValueError,
            r"below 2\^63; .* 9223372036854775813",
        ),
        (
            lambda: cache.pointer_chase(32),
            ValueError,
            "working_set_bytes=32 is too small; give a whole",
        ),
    ],
)
def test_wrong_arguments_are_told_what_is_accepted(call, error, words):
    with pytest.raises(error, match=words):
        call()
