"""The disk: what is in the page cache counted page by page, files that are gone afterwards,
geometry by hand.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
from collections import OrderedDict
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from folders import skip_unless_on_disk

from helpers.studies._page_cache import drop_from_page_cache
from helpers.studies.data_movement import _disk as disk

MIB = 2**20
linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="mincore and posix_fadvise are Linux's here"
)


@contextmanager
def on_disk(folder, size=8 * MIB):
    """A temporary file on a disk, dropped from memory."""
    skip_unless_on_disk(folder)
    with disk.temporary_file(size, folder) as path:
        drop_from_page_cache(path)
        yield path


@linux
def test_the_page_cache_is_seen_to_empty_and_to_fill_page_by_page(tmp_path):
    with on_disk(tmp_path) as path:
        assert disk.cached_share(path) == 0
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
            os.pread(descriptor, 2 * MIB, 4 * MIB)
            assert disk.cached_share(path) == 0.25
            os.pread(descriptor, 8 * MIB, 0)
            assert disk.cached_share(path) == 1
        finally:
            os.close(descriptor)
        drop_from_page_cache(path)
        assert disk.cached_share(path) == 0


@linux
def test_a_direct_read_leaves_nothing_in_the_page_cache_and_reads_what_was_written(tmp_path):
    with on_disk(tmp_path) as path, disk.open_past_cache(path) as (descriptor, bypass):
        assert bypass == disk.DIRECT
        assert disk.read_rate(descriptor, 8 * MIB) > 0
        assert disk.random_read_seconds(descriptor, 8 * MIB) > 0
        assert disk.cached_share(path) == 0


def test_a_disk_is_measured_past_the_page_cache_and_nothing_stays_behind(tmp_path):
    reads = disk.measure_disk(tmp_path, file_bytes=16 * MIB)
    assert list(tmp_path.iterdir()) == []
    assert min(reads.sequential_bytes_per_s, reads.cached_bytes_per_s) > 0
    skip_unless_on_disk(tmp_path)
    assert (reads.bypass, reads.cached_share) == (disk.DIRECT, 0)


@pytest.mark.timed
def test_the_page_cache_is_faster_than_the_disk(tmp_path):
    skip_unless_on_disk(tmp_path)
    reads = disk.measure_disk(tmp_path, file_bytes=16 * MIB)
    assert reads.random_read_s > 2 * reads.cached_read_s


@linux
@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no folder in memory")
def test_a_folder_that_is_memory_is_not_taken_for_a_disk(monkeypatch):
    monkeypatch.setattr(disk, "_SPARE_BYTES", 0)  # a container's folder in memory has 64 MiB in all
    # other tests use the one above at the same time
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        reads = disk.measure_disk(folder, file_bytes=4 * MIB)
        assert os.listdir(folder) == []
    assert reads.bypass == disk.NOT_BYPASSED
    assert reads.cached_share == 1


@pytest.mark.parametrize("has_preadv", [True, False])
def test_what_is_read_is_what_the_file_holds(tmp_path, monkeypatch, has_preadv):
    if not has_preadv:
        monkeypatch.delattr(os, "preadv", raising=False)
    with (
        disk.temporary_file(MIB, tmp_path) as path,
        open(path, "rb") as file,
        mmap.mmap(-1, 4096) as buffer,
    ):
        assert disk._read_at(file.fileno(), buffer, 8192) == 4096
        assert buffer[:] == path.read_bytes()[8192:12288]
        assert disk._read_at(file.fileno(), buffer, MIB - 10) == 10


def test_the_file_has_its_size_and_goes_also_when_the_reader_fails(tmp_path):
    with pytest.raises(RuntimeError, match="stop"), disk.temporary_file(MIB + 5, tmp_path) as path:  # noqa: PT012
        assert path.stat().st_size == MIB + 5
        assert len(set(path.read_bytes()[:4096])) > 200  # not zeros, which a disk might not store
        raise RuntimeError("stop")
    assert list(tmp_path.iterdir()) == []


def test_without_room_or_folder_nothing_is_written(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="make it, or give another"):
        disk.measure_disk(tmp_path / "absent")
    for size in (10, 2**30, 1e7, True):
        with pytest.raises(ValueError, match="from 1,048,576 to 268,435,456"):
            disk.measure_disk(tmp_path, file_bytes=size)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda place: SimpleNamespace(free=10 * MIB))
    with pytest.raises(
        OSError, match=r"10,485,760 bytes are free.*smaller file_bytes or another folder"
    ):
        disk.measure_disk(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_direct_reads_the_result_says_so(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_DIRECT", raising=False)
    monkeypatch.setattr(disk.sys, "platform", "other")
    reads = disk.measure_disk(tmp_path, file_bytes=MIB)
    assert (reads.bypass, reads.cached_share) == (disk.NOT_BYPASSED, None)


class CachedDisk:
    """A disk with a cache of ``capacity`` MiB, least recently used: 1 MB/s from the platter, 10
    MB/s from the cache.
    """

    def __init__(self, capacity):
        self.capacity, self.cached = capacity, OrderedDict()

    def read_rate(self, descriptor, size, *, first=0):
        seconds = 0.0
        for block in range(first // MIB, (first + size) // MIB):
            seconds += 0.1 if block in self.cached else 1.0
            self.cached[block] = None
            self.cached.move_to_end(block)
            if len(self.cached) > self.capacity:
                self.cached.popitem(last=False)
        return size / seconds


@pytest.mark.parametrize(
    ("capacity", "wanted"), [(0, [1, 1, 1, 1]), (4, [10, 10, 1, 1]), (16, [10, 10, 10, 1])]
)
def test_a_disks_cache_of_a_known_size_is_found(tmp_path, monkeypatch, capacity, wanted):
    monkeypatch.setattr(disk, "read_rate", CachedDisk(capacity).read_rate)
    swept = disk.sweep_disk_cache(
        tmp_path,
        file_bytes=64 * MIB,
        region_bytes=[size * MIB for size in (1, 4, 16, 32)],
        repeats=2,
    )
    assert [row.speedup for row in swept.rows] == pytest.approx(wanted)
    assert list(tmp_path.iterdir()) == []


def test_regions_that_leave_no_room_are_refused(tmp_path):
    for regions in ((), (4096,), (5 * MIB,), (MIB + 1,)):
        with pytest.raises(ValueError, match="half of the file"):
            disk.sweep_disk_cache(tmp_path, file_bytes=8 * MIB, region_bytes=regions)


def test_one_turn_of_ten_thousand_a_minute_is_six_milliseconds():
    assert disk.revolution_s(10_000) == pytest.approx(0.006)
    assert disk.revolution_s(5_400) == pytest.approx(1 / 90)
    with pytest.raises(ValueError, match="above 0"):
        disk.revolution_s(0)


def test_a_ring_grows_with_its_radius_and_the_root_of_the_density():
    inch = 0.0254
    assert disk.ring_bytes(inch, 1e12) == pytest.approx(2 * math.pi * 1e6 / 8)
    assert disk.ring_bytes(inch, 5e12) / disk.ring_bytes(inch, 1e12) == pytest.approx(math.sqrt(5))
    assert disk.ring_bytes(2 * inch, 1e12) == pytest.approx(2 * disk.ring_bytes(inch, 1e12))
    # The rings side by side hold what the area holds: density times pi (R^2 - r^2).
    density, inner, outer = 1e10, 0.5, 1.2
    tracks_per_inch = math.sqrt(density)
    count = round((outer - inner) * tracks_per_inch)
    total = sum(
        disk.ring_bytes((inner + (k + 0.5) / tracks_per_inch) * inch, density) for k in range(count)
    )
    assert total == pytest.approx(density * math.pi * (outer**2 - inner**2) / 8, rel=1e-4)
    with pytest.raises(ValueError, match="radius_m"):
        disk.ring_bytes(0, 1e12)
