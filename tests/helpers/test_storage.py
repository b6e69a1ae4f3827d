"""A file is whole or as it was, also on a full disk; a cached result that does not fit is named and
not used.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers import results, storage

ROOT = Path(__file__).parents[2]
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


@dataclass(frozen=True)
class Peak(results.Result):
    bandwidth_bytes_per_s: float
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class OtherPeak(results.Result):
    bandwidth_bytes_per_s: float


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("HELPERS_CACHE", str(folder))
    return folder


@pytest.fixture
def notices(monkeypatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(storage.console, "notice", lines.append)
    return lines


def python(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


# The cache folder.


def test_the_named_folder_is_made(cache):
    assert not cache.exists()
    assert storage.cache_folder() == cache
    assert cache.is_dir()
    assert storage.cache_folder() == cache


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "{home}/xdg"}, "xdg"),
        ("linux", {}, ".cache"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, ".cache"),
        ("darwin", {"XDG_CACHE_HOME": "{home}/xdg"}, "Library/Caches"),
        ("win32", {"LOCALAPPDATA": "{home}/local"}, "local"),
        ("win32", {}, "AppData/Local"),
    ],
)
def test_without_a_name_it_is_the_platforms_folder(
    tmp_path, monkeypatch, platform, variables, expected
):
    for name in ("HELPERS_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(home=tmp_path))
    monkeypatch.setattr(storage.sys, "platform", platform)
    monkeypatch.setattr(storage.Path, "home", lambda: tmp_path)
    folder = storage.cache_folder()
    assert folder.parent == tmp_path / expected
    assert folder.is_dir()


def test_a_cache_folder_that_cannot_be_made_says_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(OSError, match="HELPERS_CACHE"):
        storage.cache_folder()


# Atomic files.


@pytest.mark.parametrize(
    "data", ["", "µs\r\nend", b"", b"\x00\xff", bytearray(b"ab"), memoryview(b"cd")]
)
def test_what_is_written_is_read_back(tmp_path, data):
    path = tmp_path / "file"
    path.write_text("old")
    storage.write_atomically(path, data)
    assert path.read_bytes() == (data.encode() if isinstance(data, str) else bytes(data))
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("data", [None, 3, ["line"], {"a": 1}])
def test_other_data_is_refused_before_anything_happens(tmp_path, data):
    with pytest.raises(TypeError, match="text or bytes"):
        storage.write_atomically(tmp_path / "file", data)
    assert list(tmp_path.iterdir()) == []


def test_text_that_utf8_cannot_hold_leaves_nothing(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        storage.write_atomically(tmp_path / "file", "\ud800")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="permission bits are POSIX's")
def test_permissions_are_the_usual_ones_or_the_old_ones(tmp_path):
    umask = os.umask(0o027)
    try:
        storage.write_atomically(tmp_path / "new", "x")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o600)
    storage.write_atomically(tmp_path / "new", "y")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600


def test_a_symbolic_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "file")
    storage.write_atomically(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "file").read_text() == "x"


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_at_any_step_leaves_the_old_file_alone(tmp_path, monkeypatch, step, error):
    def fail(*_):
        raise error

    path = tmp_path / "results.json"
    path.write_text("old")
    monkeypatch.setattr(storage.os, step, fail)
    with pytest.raises(type(error)) as caught:
        storage.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.json"]
    if isinstance(error, OSError):
        assert caught.value.errno == 28
        for words in (
            "3 bytes",
            "No space left",
            "the old file is as it was",
            "Free some space",
            "results.json",
        ):
            assert words in str(caught.value)


def test_this_test_would_see_a_file_that_is_written_in_place(tmp_path, monkeypatch):
    def in_place(path, data):
        with open(path, "w") as file:
            file.write(data[:1])
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "write_atomically", in_place)
    with pytest.raises(AssertionError):
        test_a_failure_at_any_step_leaves_the_old_file_alone(
            tmp_path, monkeypatch, "fsync", OSError(28, "No space left")
        )


def test_a_disk_that_takes_no_more_leaves_the_old_file_alone(tmp_path):
    """The kernel itself stops the write in the middle: RLIMIT_FSIZE, as a full disk does."""
    pytest.importorskip("resource")
    path = tmp_path / "file"
    path.write_text("old")
    program = """
        import resource, sys
        from helpers import storage
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        storage.write_atomically(sys.argv[1], b"x" * 1_000_000)
    """
    error = python(program, path).communicate(timeout=60)[1]
    assert "could not write 1,000,000 bytes: File too large; the old file is as it was" in error
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path, monkeypatch):
    asked = (
        "from helpers import storage; print(storage.own_prefix('ranks-'), "
        "storage.own_prefix('.writing-'))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True
    )
    folder, file = (tmp_path / f"{prefix}0a1b" for prefix in ended.stdout.split())
    kept = [
        tmp_path / name
        for name in (
            f"{storage.own_prefix('ranks-')}0a1b",
            "ranks-abc",
            "ranks-ffffff-1234567-0a1b",
        )
    ]
    for left in (folder, *kept):
        left.mkdir()
        (left / "inside").touch()
    file.touch()
    storage.write_atomically(tmp_path / "results", "x")
    assert folder.exists()
    assert not file.exists()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with storage.temporary_folder("ranks-") as own:
        assert own.parent == tmp_path
    assert sorted(tmp_path.iterdir()) == sorted([*kept, tmp_path / "results"])


def test_a_missing_folder_and_a_folder_for_a_file_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not there: make it first"):
        storage.write_atomically(tmp_path / "none" / "file", "x")
    with pytest.raises(OSError, match="give the name of a file"):
        storage.write_atomically(tmp_path, "x")
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError, match="make it first"):
        storage.write_atomically(tmp_path / "file" / "inner", "x")


@pytest.mark.skipif(os.name != "posix" or IS_ROOT, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_named(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError, match="choose a folder that you may write to"):
            storage.write_atomically(tmp_path / "file", "x")
    finally:
        tmp_path.chmod(0o700)


def test_two_processes_at_once_leave_one_whole_file(tmp_path):
    path = tmp_path / "file"
    program = """
        import sys
        from helpers import storage
        for _ in range(30):
            storage.write_atomically(sys.argv[1], sys.argv[2] * 200_000)
    """
    storage.write_atomically(path, "a" * 200_000)
    writers = [python(program, path, letter) for letter in "ab"]
    while any(writer.poll() is None for writer in writers):
        content = path.read_text()
        assert len(content) == 200_000
        assert len(set(content)) == 1
    assert [writer.communicate()[1] for writer in writers] == ["", ""]
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


# The machine's key.


def test_the_key_is_the_same_in_another_process_and_imports_nothing():
    program = (
        "import sys; from helpers import storage; print(storage.machine_key(), 'torch' in "
        "sys.modules)"
    )
    assert python(program).communicate(timeout=60)[0] == f"{storage.machine_key()} False\n"


def test_the_key_changes_with_what_a_measurement_depends_on(monkeypatch):
    keys = [storage.machine_key()]
    monkeypatch.setenv("OMP_NUM_THREADS", "13")
    keys.append(storage.machine_key())
    monkeypatch.setattr(storage, "_cores", lambda: 99)
    keys.append(storage.machine_key())
    monkeypatch.setattr(storage.importlib.metadata, "version", lambda _: "9.9")
    keys.append(storage.machine_key())
    monkeypatch.setattr(storage, "_processor", lambda: "another")
    keys.append(storage.machine_key())
    monkeypatch.setattr(storage, "_driver_gpus", lambda _: ["NVIDIA X"])
    monkeypatch.setattr(storage.sys, "platform", "linux")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    keys.append(storage.machine_key())
    assert len(set(keys)) == len(keys)
    assert "NVIDIA X" in keys[-1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert storage.machine_key() == keys[-2]


def test_the_driver_names_the_gpus(tmp_path):
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 12\n")
    assert storage._driver_gpus(tmp_path) == ["NVIDIA H200", "NVIDIA H200"]
    assert storage._driver_gpus(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (
            "processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC 9R14\nstepping\t: 1\n",
            "AMD EPYC 9R14",
        ),
        (
            "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n",
            "CPU implementer 0x41 CPU part 0xd40",
        ),
        ("", ""),
    ],
)
def test_linux_names_the_processor(cpuinfo, expected):
    assert storage._cpuinfo_model(cpuinfo) == expected


# Cached results.


def test_a_stored_result_comes_back_for_its_key_alone(cache, notices):
    peak = Peak(34.1e9, (1, 2))
    assert storage.load_cached("peak", Peak, key="here") is None
    assert notices == []
    path = storage.store("peak", peak, key="here")
    assert path.parent == cache
    assert storage.load_cached("peak", Peak, key="here") == peak
    assert notices == []
    assert storage.load_cached("peak", Peak, key="there") is None
    assert "made for 'here', and this is 'there'" in notices[0]


def test_what_is_not_finite_is_kept(cache, notices):
    storage.store("peak", Peak(float("inf")), key="k")
    assert storage.load_cached("peak", Peak, key="k") == Peak(float("inf"))
    assert notices == []


def test_a_result_of_another_type_or_format_is_noticed(cache, notices):
    path = storage.store("peak", Peak(1.0), key="k")
    assert storage.load_cached("peak", OtherPeak, key="k") is None
    path.write_text(path.read_text().replace('"format": 1', '"format": 0'))
    assert storage.load_cached("peak", Peak, key="k") is None
    assert len(notices) == 2
    assert all("another version" in line for line in notices)


def test_every_truncation_is_noticed(cache, notices):
    path = storage.store("peak", Peak(34.1e9, (1, 2)), key="k")
    whole = path.read_bytes()
    for length in range(len(whole.rstrip())):
        path.write_bytes(whole[:length])
        assert storage.load_cached("peak", Peak, key="k") is None
    assert len(notices) == len(whole.rstrip())


def test_every_changed_digit_is_noticed(cache, notices):
    path = storage.store("peak", Peak(34.1e9, (1, 2)), key="k")
    whole = path.read_text()
    digits = [place for place, letter in enumerate(whole) if letter.isdigit()]
    for place in digits:
        path.write_text(whole[:place] + str((int(whole[place]) + 1) % 10) + whole[place + 1 :])
        assert storage.load_cached("peak", Peak, key="k") is None
    assert len(notices) == len(digits) > 40


@pytest.mark.parametrize(
    "content", ["", "null", "[]", "{}", "3", "\x00", '{"format": 1}', "[" * 100_000]
)
def test_a_file_that_is_no_cached_result_is_noticed(cache, notices, content):
    storage.cache_folder()
    (cache / "peak.json").write_text(content)
    assert storage.load_cached("peak", Peak, key="k") is None
    assert len(notices) == 1
    assert "measured again" in notices[0]


def test_bytes_that_are_no_text_are_noticed(cache, notices):
    storage.cache_folder()
    (cache / "peak.json").write_bytes(b"\xff\xfe\x00")
    assert storage.load_cached("peak", Peak, key="k") is None
    assert "damaged" in notices[0]


def test_a_field_that_the_type_no_longer_has_is_noticed(cache, notices):
    path = storage.store("peak", Peak(1.0), key="k")
    envelope = json.loads(path.read_text())
    envelope["result"]["old_field"] = 1
    envelope["sha256"] = storage._checksum(envelope["result"])
    path.write_text(json.dumps(envelope))
    assert storage.load_cached("peak", Peak, key="k") is None
    assert "unknown ['old_field']" in notices[0]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a b", ".hidden", "x" * 101, 3, None]
)
def test_a_name_stays_within_the_folder(cache, name):
    with pytest.raises(ValueError, match="does not name a cached result"):
        storage.store(name, Peak(1.0), key="k")
    with pytest.raises(ValueError, match="does not name a cached result"):
        storage.load_cached(name, Peak, key="k")


def test_a_key_is_text(cache):
    with pytest.raises(TypeError, match="machine_key"):
        storage.store("peak", Peak(1.0), key=None)
