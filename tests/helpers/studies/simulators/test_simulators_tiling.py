"""Products on recorders: the formulas to the element, and each mistake of a kernel refused by
name.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from helpers import results
from helpers.studies.simulators import _tiling as tiling
from helpers.studies.simulators._tiling import (
    KernelError,
    count_traffic,
    naive_traffic,
    tiled_traffic,
)
from tests.properties import repeatable

SIDES = st.integers(1, 10)


def naive_product(thread, a, b, c):
    """Compute one element of ``c = a @ b`` a thread, each factor read from global memory."""
    if thread.row < c.shape[0] and thread.column < c.shape[1]:
        total = 0.0
        for p in range(a.shape[1]):
            total += a[thread.row, p] * b[p, thread.column]
        c[thread.row, thread.column] = total


def tiled_product(thread, a, b, c):
    """Compute one element of ``c = a @ b`` a thread, the block's tiles of a and b passing through
    shared memory.

    A generator: each ``yield`` is a barrier.
    """
    tile, y, x = thread.tile, thread.thread_row, thread.thread_column
    a_tile, b_tile = thread.shared("a_tile", tile, tile), thread.shared("b_tile", tile, tile)
    (m, k), n = a.shape, b.shape[1]
    total = 0.0
    for start in range(0, k, tile):
        a_tile[y, x] = a[thread.row, start + x] if thread.row < m and start + x < k else 0.0
        b_tile[y, x] = b[start + y, thread.column] if start + y < k and thread.column < n else 0.0
        yield
        for p in range(tile):
            total += a_tile[y, p] * b_tile[p, x]
        yield
    if thread.row < m and thread.column < n:
        c[thread.row, thread.column] = total


@repeatable(examples=15)
@given(SIDES, SIDES, SIDES, st.integers(1, 5))
def test_the_formulas_are_what_the_recorders_count(m, n, k, tile):
    assert count_traffic(naive_product, m, n, k, tile=tile) == naive_traffic(m, n, k, tile=tile)
    assert count_traffic(tiled_product, m, n, k, tile=tile) == tiled_traffic(m, n, k, tile=tile)


def test_a_tile_divides_the_global_reads():
    naive, tiled = naive_traffic(64, 96, 32, tile=16), tiled_traffic(64, 96, 32, tile=16)
    assert naive.global_reads == 2 * 64 * 96 * 32 == 16 * tiled.global_reads
    assert (naive.global_writes, tiled.global_writes) == (64 * 96, 64 * 96)
    assert tiled.shared_block_bytes == 2 * 16 * 16 * 4
    assert tiled.shared_reads + tiled.shared_writes == 64 * 96 * 32 // 16 * (2 + 2 * 16)
    assert results.from_dict(tiling.ProductTraffic, tiled.to_dict()) == tiled


def test_a_product_worked_by_hand():
    # 2 x 2 by 2 x 2 in blocks of one thread: four threads, each two steps of one load of each
    # matrix.
    traffic = count_traffic(tiled_product, 2, 2, 2, tile=1)
    assert (traffic.blocks, traffic.threads, traffic.barriers) == (4, 4, 4)
    assert (traffic.global_reads, traffic.shared_writes, traffic.shared_reads) == (16, 16, 16)


def test_a_kernel_that_sums_in_global_memory_pays_for_it():
    def summing(thread, a, b, c):
        c[thread.row, thread.column] = 0.0
        for p in range(a.shape[1]):
            c[thread.row, thread.column] += a[thread.row, p] * b[p, thread.column]

    traffic = count_traffic(summing, 4, 4, 6, tile=2)
    assert (traffic.global_reads, traffic.global_writes) == (3 * 4 * 4 * 6, 4 * 4 * 7)


def with_change(old: str, new: str, kernel=tiled_product):
    """Return ``kernel`` with one piece of its source replaced: a planted mistake."""
    import inspect

    source = inspect.getsource(kernel)
    assert source.count(old) == 1
    space = dict(vars(tiling))
    exec("from __future__ import annotations\n" + source.replace(old, new), space)
    return space[kernel.__name__]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "0.0\n        yield\n",
            "0.0\n",
            r"reads a_tile\[0, 1\], which nothing was written to; .* put a yield before",
        ),
        (
            "x]\n        yield\n",
            "x]\n",
            r"race: thread \(0, 1\) .* reads a_tile\[0, 0\], which thread \(0, 0\) wrote",
        ),
        (
            "a_tile[y, x] =",
            "a_tile[y, 0] =",
            r"race: thread \(0, 1\) .* writes a_tile\[0, 0\], which .* let one",
        ),
        (
            " and start + x < k",
            "",
            r"thread \(0, 1\) of block \(0, 0\) uses A\[0, 3\], outside its 5 rows and 3 columns",
        ),
        (
            "if start + y < k and",
            "if",
            r"uses B\[3, 0\], outside its 3 rows and 4 columns; let a thread without work skip",
        ),
        (
            "    if thread.row < m and thread.column < n:\n        c[",
            "    if True:\n        c[",
            r"uses C\[5, 0\], out",
        ),
        (
            "range(tile):",
            "range(tile - 1):",
            r"C\[0, 0\] is \d+, and A @ B has \d+ there; 20 of 20 elements are wrong",
        ),
        (
            "    total = 0.0\n",
            "    total = 0.0\n    if thread.row >= m:\n        return\n",
            "waits at .* has ended",
        ),
        (
            "= total",
            "= c[thread.row, thread.column] + total",
            r"reads C\[0, 0\], which nothing was written to; a GPU's",
        ),
        (
            "c[thread.row, thread.column] = total",
            "c[0, 0] = total",
            r"race: .*\(0, 1\) of .* writes C\[0, 0\], which",
        ),
        (
            "c[thread.row, thread.column] = total",
            "a[0, 0] = total",
            r"writes A\[0, 0\], which is an input; write to C",
        ),
        (
            "c[thread.row, thread.column] = total",
            "c[thread.row] = total",
            r"uses C\[0\]; an element has two whole numbers",
        ),
        ("c[thread.row, thread.column] = total", "pass", r"C\[0, 0\] is never written"),
        (
            '"b_tile", tile, tile',
            '"a_tile", tile, tile + 1',
            r"shared 'a_tile' with \(2, 3\) .* asked for \(2, 2\)",
        ),
        ('"b_tile", tile, tile', '"b_tile", tile, 0', "give two whole numbers above 0"),
        ("total += ", "total = ", "elements are wrong"),
        ("= total", "= 'total'", r"writes 'total' to C\[0, 0\]; an element is one number"),
    ],
)
def test_each_mistake_is_refused_by_name(old, new, words):
    wrong = with_change(old, new)
    with pytest.raises(KernelError, match=words):
        count_traffic(wrong, 5, 4, 3, tile=2)


def test_a_race_is_found_whatever_the_order_of_the_threads():
    # the reader runs before the writer: the values would come out as wished
    def last_reads_first(thread, a, b, c):
        room = thread.shared("room", 1, 2)
        place = (thread.row, thread.column)
        if place == (0, 0):
            room[0, 0] = 1.0
        yield
        if place == (0, 0):
            c[0, 0] = room[0, 0] * a[0, 0] * b[0, 0]
        if place in readers:
            assert room[0, 0] == 1.0
        if place == (1, 1):
            room[0, 0] = 2.0
        yield

    readers = []
    with pytest.raises(
        KernelError,
        match=r"race: thread \(1, 1\) .* writes room\[0, 0\], which thread \(0, 0\) read w",
    ):
        count_traffic(last_reads_first, 1, 1, 1, tile=2)
    readers = [(0, 1), (1, 1)]
    with pytest.raises(
        KernelError, match=r"race: .* writes room\[0, 0\], which more than one thread read with no"
    ):
        count_traffic(last_reads_first, 1, 1, 1, tile=2)


@pytest.mark.parametrize(("row", "column"), [(-1, 0), (0, -1), (2, 0), (0, 3)])
def test_no_index_wraps_around(row, column):
    with pytest.raises(
        KernelError, match=rf"uses A\[{row}, {column}\], outside its 2 rows and 3 columns"
    ):
        count_traffic(lambda thread, a, b, c: a[row, column], 2, 1, 3, tile=1)


def test_one_thread_may_write_and_read_its_own_element_and_all_may_read_after_a_barrier():
    def kernel(thread, a, b, c):
        room = thread.shared("room", 2, 2)
        y, x = thread.thread_row, thread.thread_column
        room[y, x] = a[y, 0]
        room[y, x] = room[y, x] * 1.0
        yield
        c[y, x] = room[y, 0] * b[0, x]

    traffic = count_traffic(kernel, 2, 2, 1, tile=2)
    assert (traffic.shared_reads, traffic.shared_writes, traffic.barriers) == (8, 8, 1)


def test_wrong_arguments_and_exceptions_of_the_kernel():
    with pytest.raises(
        TypeError, match=r"kernel=3 is an int; give a function of \(thread, a, b, c\)"
    ):
        count_traffic(3, 1, 1, 1, tile=1)
    with pytest.raises(ValueError, match="tile=0 is too small; give a whole number, 1 or more"):
        count_traffic(naive_product, 1, 1, 1, tile=0)
    with pytest.raises(TypeError, match=r"m=.* is a float; give a whole number"):
        naive_traffic(2.0, 1, 1, tile=1)
    with pytest.raises(
        ValueError, match="134,217,728 multiply-adds, and at most 16,777,216 are simulated"
    ):
        count_traffic(naive_product, 512, 512, 512, tile=16)
    with pytest.raises(ZeroDivisionError):
        count_traffic(lambda thread, a, b, c: 1 / 0, 1, 1, 1, tile=1)


def test_every_sum_is_exact_so_a_correct_kernel_is_never_refused():
    def backwards(thread, a, b, c):
        if thread.row < c.shape[0] and thread.column < c.shape[1]:
            terms = [a[thread.row, p] * b[p, thread.column] for p in reversed(range(a.shape[1]))]
            c[thread.row, thread.column] = float(np.float32(0) + sum(map(np.float32, terms)))

    for seed in range(3):
        count_traffic(backwards, 6, 5, 50, tile=4, seed=seed)
