"""The table of links: every link has a row, what is not here says so, and a core's share of a copy
is right.
"""

from __future__ import annotations

import struct
import time
from types import SimpleNamespace

import pytest
import torch
from folders import skip_unless_on_disk

from helpers.hardware.limits._results import MachineLimits, MemoryLevel
from helpers.studies.data_movement import _copies as copies, _disk as disk

MIB = 2**20
BUS = [
    "host to device, pinned",
    "host to device, pageable",
    "device to host, pinned",
    "device to host, pageable",
]


def limits():
    levels = (MemoryLevel("L1", 32_768, 1e-9, 2e11), MemoryLevel("memory", None, 1e-7, 3e10))
    return MachineLimits(
        device="cpu",
        threads=1,
        date="",
        versions={},
        chase="C++",
        memory_levels=levels,
        peak_flops={"float32": 1e11},
        product_flops={"float32": 1e11},
        call_overhead_s=1e-6,
        launch_s=None,
        host_to_device_bytes_per_s=None,
        device_to_host_bytes_per_s=None,
        unstable=(),
        notes=(),
        latencies=(),
        bandwidths=(),
    )


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    folder = tmp_path_factory.mktemp("links")
    measured = copies.measure_links(folder, file_bytes=8 * MIB, limits=limits(), budget_s=0.2)
    assert list(folder.iterdir()) == []
    return measured


def test_every_link_has_a_row_from_the_farthest_to_the_nearest(system):
    names = [link.link for link in system.links]
    assert names[:4] == ["loopback socket", "disk", "page cache", "memory to memory, 1 thread"]
    assert [name for name in names if "device" in name] == [*BUS, "device to device"]
    assert names[-2:] == ["memory", "L1"]
    for name in ("loopback socket", "disk", "page cache"):
        assert system.link(name).bandwidth_bytes_per_s > 0
        assert system.link(name).latency_s > 0
    assert (system.link("L1").latency_s, system.link("memory").bandwidth_bytes_per_s) == (
        1e-9,
        3e10,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is shown without CUDA")
def test_without_cuda_the_bus_is_unknown_with_a_note(system):
    for name in [*BUS, "device to device"]:
        link = system.link(name)
        assert (link.bandwidth_bytes_per_s, link.latency_s) == (None, None)
        assert link.note == "this machine has no CUDA device"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda_the_bus_is_measured(system):
    for name in BUS:
        assert system.link(name).bandwidth_bytes_per_s > 0
        assert system.link(name).latency_s > 0
    assert (
        system.link("device to device").bandwidth_bytes_per_s
        > system.link(BUS[0]).bandwidth_bytes_per_s
    )


def test_the_words_are_this_processs(system):
    assert system.pointer_bits == 8 * struct.calcsize("P")
    assert system.simd_bits in (128, 256, 512, None)
    assert system.line_bytes in (32, 64, 128, 256)
    with pytest.raises(ValueError, match="there is no link 'tape'; there are 'loopback socket'"):
        system.link("tape")


@pytest.mark.parametrize(
    ("name", "bits"),
    [("DEFAULT", 128), ("NO AVX", 128), ("AVX2", 256), ("AVX512", 512), ("NEW", None)],
)
def test_a_level_that_is_not_known_has_no_width(monkeypatch, name, bits):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: name)
    assert copies.simd_width() == (name, bits)


def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


class Clocks:
    """A clock on the wall, one of the processor and what the system says of waiting, which only
    moves set.
    """

    def __init__(self, monkeypatch, waiting_share):
        self.elapsed_s = self.cpu_s = 0.0
        clocks = SimpleNamespace(
            perf_counter=lambda: self.elapsed_s, process_time=lambda: self.cpu_s
        )
        monkeypatch.setattr(copies, "time", clocks)
        monkeypatch.setattr(copies, "watch_waiting", lambda clock: lambda: waiting_share)

    def move(self, elapsed_s, cpu_s):
        def moved():
            self.elapsed_s += elapsed_s
            self.cpu_s += cpu_s

        return moved


@pytest.mark.parametrize(
    ("waiting_share", "cpu_share"), [(None, 0.25), (0.0, 0.25), (0.5, 0.5), (0.75, 1.0)]
)
def test_a_cores_share_is_of_the_time_in_which_it_had_a_processor(
    monkeypatch, waiting_share, cpu_share
):
    row = copies._copy_row("a quarter", 10, 3, Clocks(monkeypatch, waiting_share).move(4.0, 1.0))
    assert (row.moved_bytes, row.elapsed_s, row.cpu_s) == (30, 12, 3)
    assert (row.waiting_share, row.cpu_share) == (waiting_share, cpu_share)


@pytest.mark.timed
def test_a_cores_share_is_nothing_asleep_and_all_at_work():
    asleep = copies._copy_row("asleep", 10, 3, lambda: time.sleep(0.03))
    at_work = copies._copy_row("at work", 10, 3, lambda: work(0.03))
    half = copies._copy_row("half", 10, 3, lambda: (work(0.03), time.sleep(0.03)))
    assert asleep.cpu_share < 0.1
    assert at_work.cpu_share > 0.6
    assert asleep.cpu_share < half.cpu_share < at_work.cpu_share
    assert at_work.cpu_s == pytest.approx(0.09, rel=0.3)


def test_what_is_copied_leaves_nothing_behind_and_a_disk_is_read_past_the_page_cache(tmp_path):
    costs = copies.measure_copy_costs(tmp_path, moved_bytes=MIB, passes=1)
    assert list(tmp_path.iterdir()) == []
    assert [row.moved_bytes for row in costs.rows] == [MIB] * len(costs.rows)
    with pytest.raises(ValueError, match="passes=0 is too small"):
        copies.measure_copy_costs(tmp_path, passes=0)
    skip_unless_on_disk(tmp_path)
    assert costs.bypass == disk.DIRECT
    assert any("DMA" in row.how for row in costs.rows)


@pytest.mark.timed
def test_a_core_copies_and_a_disk_fetches_by_itself(tmp_path):
    costs = copies.measure_copy_costs(tmp_path, moved_bytes=32 * MIB)
    copied = costs.rows[:2]
    assert all(row.cpu_share > 0.5 for row in copied)
    skip_unless_on_disk(tmp_path)
    fetched = next(row for row in costs.rows if "disk to memory" in row.how)
    assert fetched.cpu_share < 0.8 * min(row.cpu_share for row in copied)
