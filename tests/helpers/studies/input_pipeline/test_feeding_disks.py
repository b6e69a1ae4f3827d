"""Where a folder lies, what memory still holds of a file, and a disk's times, held to what the
system's tools say.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from helpers.studies import input_pipeline
from helpers.studies._page_cache import drop_from_page_cache
from helpers.studies.input_pipeline import _disks as disks

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/mountinfo is Linux's")


@LINUX
@pytest.mark.parametrize("folder", ["/", "/proc", "/dev/shm", "/sys", str(Path(__file__).parent)])
def test_a_file_system_has_the_type_that_df_prints(folder: str) -> None:
    if not Path(folder).is_dir():
        pytest.skip(f"there is no {folder} here")
    printed = subprocess.run(
        ["df", "--output=fstype", folder], check=True, capture_output=True, text=True
    ).stdout
    assert disks.filesystem(folder) == printed.split()[-1]


MOUNTS = """\
22 1 8:1 / ROOT rw,relatime shared:1 - ext4 /dev/sda rw
23 22 0:5 / ROOT/home rw - btrfs /dev/sdb rw
24 22 0:6 / ROOT/home rw - xfs /dev/sdc rw
25 22 0:7 / ROOT/with\\040blank rw shared:2 master:1 - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("home", "xfs"),
        ("home/deep", "xfs"),
        ("homeless", "ext4"),
        ("with blank/inside", "tmpfs"),
        ("", "ext4"),
    ],
)
def test_the_deepest_mount_counts_and_of_two_the_later_one(
    tmp_path, monkeypatch, folder: str, kind: str
) -> None:
    inside = tmp_path / folder
    inside.mkdir(parents=True, exist_ok=True)
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.replace("ROOT", str(tmp_path.resolve())), encoding="utf-8")
    monkeypatch.setattr(disks, "_MOUNTS", mounts)
    assert disks.filesystem(inside) == kind


def test_a_system_without_mounts_says_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(disks, "_MOUNTS", tmp_path / "none")
    assert disks.filesystem(tmp_path) == ""


def test_a_folder_that_is_not_there_is_refused(tmp_path) -> None:
    for function in (disks.filesystem, input_pipeline.measure_disk):
        with pytest.raises(FileNotFoundError):
            function(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        input_pipeline.read_from_disk_s(str, [tmp_path / "none"])


def cached_bytes(path: Path) -> int:
    printed = subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return int(printed)


@LINUX
@pytest.mark.skipif(
    shutil.which("fincore") is None, reason="fincore says what the page cache holds"
)
def test_nothing_is_left_in_the_page_cache_but_of_a_file_in_memory() -> None:
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        path = Path(folder, "file")
        path.write_bytes(bytes(1_000_000))
        assert cached_bytes(path) >= 1_000_000
        if disks.filesystem(folder) in input_pipeline.MEMORY_FILESYSTEMS:
            pytest.skip("the repository lies in memory")
        drop_from_page_cache(path)
        assert cached_bytes(path) == 0


def test_the_least_of_three_reads_counts_and_each_file_is_forgotten_before_outside_of_the_clock(
    monkeypatch,
) -> None:
    events, clock = [], iter([0.0, 0.5, 1.0, 1.2, 2.0, 2.3])

    def tick() -> float:
        events.append("clock")
        return next(clock)

    monkeypatch.setattr(disks, "drop_from_page_cache", events.append)
    monkeypatch.setattr(disks.time, "perf_counter", tick)
    assert input_pipeline.read_from_disk_s(
        lambda: events.append("read"), ["a", "b"]
    ) == pytest.approx(0.2)
    assert events == ["a", "b", "clock", "read", "clock"] * 3


def test_a_disk_is_measured_in_a_folder_that_stays_empty(tmp_path) -> None:
    times = input_pipeline.measure_disk(tmp_path)
    assert list(tmp_path.iterdir()) == []
    # 784 bytes of a large file against a file of their own
    assert 0 < times.in_order_s < times.request_s
    assert times.equal_bytes > 784
    assert times.filesystem == disks.filesystem(tmp_path)
