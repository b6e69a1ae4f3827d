"""Weights mapped under a limit: the order of eviction against functools.lru_cache, bytes counted by
the system.
"""

from __future__ import annotations

import functools
import os
import random
import sys
from pathlib import Path

import pytest
from folders import skip_unless_on_disk

from helpers.studies.data_movement import _disk as disk, _mapped as mapped

LAYER = mapped.LAYER_BYTES


@pytest.mark.parametrize("seed", range(10))
def test_the_window_forgets_as_pythons_own_lru_cache(seed):
    dice = random.Random(seed)
    capacity, evicted = dice.randint(1, 6), []
    window, oracle = (
        mapped.Window(capacity, evicted.append),
        functools.lru_cache(maxsize=capacity)(lambda layer: layer),
    )
    for _ in range(300):
        layer = dice.randint(0, 8)
        hits = oracle.cache_info().hits
        oracle(layer)
        assert window.touch(layer) == (oracle.cache_info().hits > hits)
    assert oracle.cache_info().misses - oracle.cache_info().currsize == len(evicted)
    window.clear()
    assert len(evicted) == oracle.cache_info().misses


def test_layers_that_stay_are_never_forgotten():
    evicted = []
    window = mapped.Window(8, evicted.append, staying=7)
    reads = [sum(not window.touch(layer) for layer in range(9)) for _ in range(4)]
    assert reads == [9, 2, 2, 2]
    assert set(evicted) == {7, 8}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mapped")
    skip_unless_on_disk(folder)
    result = mapped.measure_mapped_weights(
        (2 * LAYER, 4 * LAYER, 5 * LAYER), limit_bytes=4 * LAYER, folder=folder
    )
    assert list(folder.iterdir()) == []
    return result


def test_within_the_limit_nothing_is_read_again_and_beyond_it_everything(measured):
    rows = measured.rows
    assert [row.file_bytes for row in rows] == [2 * LAYER, 4 * LAYER, 5 * LAYER]
    assert [row.missed_share for row in rows] == [0, 0, 1]
    assert [row.layers for row in rows] == [2, 4, 5]
    # The system's own count, which knows nothing of the window: it may read some bytes more (the
    # program itself, where memory is short), not less.
    if rows[0].read_bytes is not None:
        assert max(rows[0].read_bytes, rows[1].read_bytes) < LAYER
        assert 5 * LAYER <= rows[2].read_bytes < 6 * LAYER
        # far more than the bytes over the limit
        assert rows[2].read_bytes > 4 * (rows[2].file_bytes - measured.limit_bytes)


@pytest.mark.parametrize(
    ("how", "reads"), [({"by_turns": True}, 1), ({"staying": 3}, 2)], ids=["by turns", "staying"]
)
def test_another_order_reads_less_with_the_same_room(tmp_path, how, reads):
    skip_unless_on_disk(tmp_path)
    result = mapped.measure_mapped_weights(
        (5 * LAYER,), limit_bytes=4 * LAYER, folder=tmp_path, passes=4, **how
    )
    (row,) = result.rows
    assert row.missed_share == reads / 5
    if row.read_bytes is not None:
        assert reads * LAYER <= row.read_bytes < (reads + 1) * LAYER


@pytest.mark.timed
def test_beyond_the_limit_a_layer_takes_far_longer(measured):
    _, within, beyond = measured.rows
    assert beyond.layer_s > 2 * within.layer_s


def test_bad_sizes_are_refused(tmp_path):
    for sizes in ((), (LAYER + 1,), (2**30,), (0,)):
        with pytest.raises(ValueError, match="give multiples of 4,194,304 up to 268,435,456"):
            mapped.measure_mapped_weights(sizes, folder=tmp_path)
    with pytest.raises(ValueError, match="at least one layer"):
        mapped.measure_mapped_weights((LAYER,), limit_bytes=100, folder=tmp_path)
    with pytest.raises(ValueError, match="staying"):
        mapped.measure_mapped_weights((LAYER,), limit_bytes=2 * LAYER, staying=2, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_another_system_is_told_where_it_runs(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    with pytest.raises(RuntimeError, match="runs on Linux"):
        mapped.measure_mapped_weights((LAYER,), folder=tmp_path)


@pytest.mark.skipif(
    not Path("/dev/shm").is_dir() or not sys.platform.startswith("linux"), reason="no such folder"
)
def test_a_folder_in_memory_cannot_show_it_and_is_refused(monkeypatch):
    monkeypatch.setattr(disk, "_SPARE_BYTES", 0)  # a container's folder in memory has 64 MiB in all
    with pytest.raises(ValueError, match="itself in memory"):
        mapped.measure_mapped_weights((LAYER,), limit_bytes=LAYER, folder="/dev/shm")
