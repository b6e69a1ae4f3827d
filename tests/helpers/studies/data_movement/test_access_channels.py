"""Memory channels: the model by hand on small cases, the threads' parts exactly, the measured rows'
arithmetic.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from helpers.hardware._card import MachineCard
from helpers.studies.data_movement import _channels as channels
from helpers.studies.data_movement._order import kernels


def used(starts, **changes):
    arguments = {
        "bytes_each": 4096,
        "channels": 4,
        "interleave_bytes": 64,
        "units_in_flight": 4,
    } | changes
    return channels.model_channels(starts, **arguments)


def test_interleaving_gives_one_thread_all_channels_and_one_channel_an_array_does_not():
    assert used([0]).used_share == 1
    whole = used([0], interleave_bytes=4096)
    assert (whole.used_share, whole.most_on_one_channel, whole.steps) == (1 / 4, 1, 1)


def test_one_line_at_a_time_uses_one_channel_however_the_data_lie():
    alone = used([0], units_in_flight=1)
    assert (alone.units, alone.steps, alone.used_share) == (64, 64, 1 / 4)


def test_threads_in_step_on_one_channel_wait_and_staggered_ones_do_not():
    together = used([0, 4096, 8192, 12288], units_in_flight=1)
    assert (together.used_share, together.most_on_one_channel) == (1 / 4, 64)
    staggered = used([0, 4096 + 64, 8192 + 128, 12288 + 192], units_in_flight=1)
    assert (staggered.used_share, staggered.steps) == (1, 64)
    own = used([0, 4096, 8192, 12288], interleave_bytes=4096, units_in_flight=1)
    assert (own.used_share, own.steps) == (1, 1)


@pytest.mark.parametrize("seed", range(20))
def test_no_layout_serves_faster_than_its_busiest_channel(seed):
    random = np.random.default_rng(seed)
    found = channels.model_channels(
        (64 * random.integers(0, 100, random.integers(1, 6))).tolist(),
        bytes_each=int(random.integers(1, 2000)),
        channels=int(random.integers(1, 9)),
        interleave_bytes=64,
        units_in_flight=int(random.integers(1, 9)),
    )
    assert found.steps >= found.most_on_one_channel >= found.units / found.channels
    assert 0 < found.used_share <= 1


@pytest.mark.parametrize("layout", ["blocks", "turns"])
@pytest.mark.parametrize(("threads", "count"), [(1, 1), (3, 10), (4, 64), (7, 7)])
def test_over_all_threads_each_chunk_comes_once(layout, threads, count):
    parts = [
        channels.chunks_of(one, threads=threads, chunks=count, layout=layout)
        for one in range(threads)
    ]
    assert sorted(chunk for part in parts for chunk in part) == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("layout", ["blocks", "turns"])
def test_the_threads_read_the_whole_buffer(layout):
    data = np.random.default_rng(0).integers(0, 2**32, 1024 * 25, dtype=np.uint32)
    with ThreadPoolExecutor(3) as pool:
        read = channels._reader(kernels().read_chunks, pool, data, 25, layout, 3)
        assert read() == int(data.sum(dtype=np.uint64)) % 2**32


def test_a_sweeps_rows_follow_from_their_times():
    swept = channels.sweep_threads((1, 2), buffer_bytes=2**24, latency_s=1e-7, budget_s=0.3)
    assert [(row.layout, row.threads) for row in swept.rows] == [
        ("blocks", 1),
        ("blocks", 2),
        ("turns", 2),
    ]
    assert swept.buffer_bytes == 2**24
    for row in swept.rows:
        assert row.bandwidth_bytes_per_s == 2**24 / row.pass_s
        assert row.speedup == swept.rows[0].pass_s / row.pass_s
        assert row.lines_in_flight == pytest.approx(row.bandwidth_bytes_per_s * 1e-7 / 64)
    assert swept.rows[0].speedup == 1


def test_one_core_is_compared_with_itself_in_turns():
    swept = channels.sweep_threads(
        buffer_bytes=2**22, budget_s=0.1, card=MachineCard(usable_cores=1)
    )
    assert [(row.layout, row.threads) for row in swept.rows] == [("blocks", 1), ("turns", 1)]
    assert swept.rows[0].lines_in_flight is None


@pytest.mark.parametrize(
    ("cores", "wanted"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8]), (1.5, [1])]
)
def test_the_usual_threads_double_up_to_the_cores(cores, wanted):
    assert channels._usual_threads(MachineCard(usable_cores=cores)) == wanted


def test_bad_arguments_are_told_what_is_accepted():
    for threads in ((), (0, 1), (65,), (1.5, 2)):
        with pytest.raises(ValueError, match="from 1 to 64"):
            channels.sweep_threads(threads)
    for size in (-5, 8191, 1e8):
        with pytest.raises(ValueError, match="at least 8,192, a chunk for each of 2 threads"):
            channels.sweep_threads((1, 2), buffer_bytes=size)
    with pytest.raises(ValueError, match="interleave_bytes=0"):
        used([0], interleave_bytes=0)
    with pytest.raises(ValueError, match="multiple of the unit"):
        used([32])
    with pytest.raises(ValueError, match="starts is empty"):
        used([])
