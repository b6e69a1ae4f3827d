"""The card against oracles we did not write (lscpu, getconf, psutil, torch), and on machines made
of files.
"""

import getpass
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import pandas as pd
import pytest
import torch

from helpers.hardware import (
    Cache,
    Gpu,
    MachineCard,
    _card as card,
    _machine as machine,
    machine_card,
)
from helpers.results import from_dict

KIB, MIB, GIB = 2**10, 2**20, 2**30
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and /sys")


def write(root: Path, files: dict[str, object]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text) if isinstance(text, bytes) else path.write_text(f"{text}\n")
    return root


def processor(
    cpu: int, core: str, caches: dict[int, tuple[int, str, str, int, int, str]]
) -> dict[str, object]:
    """Files of one processor: its core's siblings, and caches by index (level, type, size, line,
    ways, sharing).
    """
    folder = f"sys/devices/system/cpu/cpu{cpu}"
    names = (
        "level",
        "type",
        "size",
        "coherency_line_size",
        "ways_of_associativity",
        "shared_cpu_list",
    )
    files: dict[str, object] = {f"{folder}/topology/thread_siblings_list": core}
    for index, values in caches.items():
        files |= {
            f"{folder}/cache/index{index}/{name}": value
            for name, value in zip(names, values, strict=True)
        }
    return files


def hybrid(root: Path) -> Path:
    """Two large cores with two threads each (0-3), four small ones that share a second level
    (4-7).
    """
    files: dict[str, object] = {"sys/devices/system/cpu/online": "0-7"}
    for cpu in range(8):
        core = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" if cpu < 4 else str(cpu)
        first = (1, "Data", "48K", 64, 12, core) if cpu < 4 else (1, "Data", "32K", 64, 8, core)
        second = (
            (2, "Unified", "1280K", 64, 10, core)
            if cpu < 4
            else (2, "Unified", "2048K", 64, 16, "4-7")
        )
        files |= processor(
            cpu, core, {0: first, 2: second, 3: (3, "Unified", "12M", 64, 12, "0-7")}
        )
        files[f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq"] = (
            4_700_000 if cpu < 4 else 3_600_000
        )
        files[f"sys/devices/system/cpu/cpu{cpu}/cpufreq/base_frequency"] = (
            2_100_000 if cpu < 4 else 1_600_000
        )
    return write(root, files)


def cgroup(root: Path, membership: str, mount: str, files: dict[str, object]) -> Path:
    return write(root, {"proc/self/cgroup": membership, "proc/self/mountinfo": mount, **files})


V2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_MEMORY = "35 31 0:32 {} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
V1_CPU = "32 31 0:29 {} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
V1_NO_LIMIT = 9223372036854771712


# --- this machine, against oracles


def lscpu_caches() -> dict[tuple[int, str], dict[str, str]]:
    listing = json.loads(
        subprocess.run(
            ["lscpu", "-C", "-J", "-B"], capture_output=True, text=True, check=True
        ).stdout
    )
    return {(int(row["level"]), row["type"].lower()): row for row in listing["caches"]}


def assert_agrees_with_lscpu(caches: tuple[Cache, ...]) -> None:
    oracle = lscpu_caches()
    assert {(cache.level, cache.kind) for cache in caches} == set(oracle)
    for cache in caches:
        row = oracle[cache.level, cache.kind]
        assert cache.size_bytes == int(row["one-size"])
        assert cache.instances in (None, int(row["all-size"]) // int(row["one-size"]))
        assert cache.ways in (None, int(row["ways"] or 0))
        assert cache.line_bytes in (None, int(row["coherency-size"] or 0))


@on_linux
@pytest.mark.skipif(shutil.which("lscpu") is None, reason="no lscpu")
def test_caches_are_those_of_lscpu_and_a_wrong_kilobyte_is_seen(monkeypatch):
    caches = machine_card().caches
    if caches is None or len({(cache.level, cache.kind) for cache in caches}) < len(caches):
        pytest.skip("no caches in /sys, or a hybrid processor, which lscpu does not tell apart")
    assert_agrees_with_lscpu(caches)
    monkeypatch.setattr(machine, "_cache_bytes", lambda text: int(text.rstrip("K")) * 1000)
    with pytest.raises(AssertionError):
        assert_agrees_with_lscpu(machine_card().caches)


@on_linux
@pytest.mark.skipif(shutil.which("lscpu") is None, reason="no lscpu")
def test_processor_and_cores_are_those_of_lscpu():
    listing = json.loads(
        subprocess.run(["lscpu", "-J"], capture_output=True, text=True, check=True).stdout
    )
    pairs = {row["field"].rstrip(":"): row["data"] for row in listing["lscpu"]}
    this = machine_card()
    assert this.architecture == pairs["Architecture"]
    assert this.vendor in (None, pairs.get("Vendor ID"))
    if this.architecture == "x86_64":
        assert this.model == pairs["Model name"]
        assert this.physical_cores == int(pairs["Core(s) per socket"]) * int(pairs["Socket(s)"])


@on_linux
@pytest.mark.skipif(shutil.which("getconf") is None, reason="no getconf")
@pytest.mark.parametrize(
    ("name", "level", "kind"), [("LEVEL1_DCACHE", 1, "data"), ("LEVEL2_CACHE", 2, "unified")]
)
def test_caches_are_those_of_getconf(name, level, kind):
    done = subprocess.run(["getconf", f"{name}_SIZE"], capture_output=True, text=True, check=False)
    answer = int(done.stdout.strip() or 0) if done.stdout.strip() != "undefined" else 0
    sizes = {
        cache.size_bytes
        for cache in machine_card().caches or ()
        if (cache.level, cache.kind) == (level, kind)
    }
    if not answer or not sizes:
        pytest.skip("getconf or /sys does not know this cache")
    assert answer in sizes


@on_linux
def test_caches_and_extensions_are_those_of_torch():
    known = machine._capabilities()
    this = machine_card()
    if not known or this.caches is None:
        pytest.skip("torch or /sys does not know this processor")
    sizes = {cache.size_bytes for cache in this.caches}
    assert {known["l1d_cache_size"], known["l2_cache_size"]} <= sizes
    assert this.extensions == machine.extensions_among(
        {name for name, has in known.items() if has is True}
    )


def test_cores_and_memory_are_those_of_psutil():
    psutil = pytest.importorskip("psutil")
    this = machine_card()
    assert this.logical_cores == psutil.cpu_count(logical=True)
    assert this.physical_cores == psutil.cpu_count(logical=False)
    assert this.ram_bytes == psutil.virtual_memory().total
    assert this.swap_bytes == psutil.swap_memory().total
    assert 0 < this.ram_available_bytes <= this.ram_bytes


@on_linux
def test_affinity_limits_the_usable_cores():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert (machine_card().allowed_cores, machine_card().usable_cores <= 1) == (1, True)
    finally:
        os.sched_setaffinity(0, allowed)
    assert machine_card().allowed_cores == len(allowed)


def test_starts_no_process(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a process was started")

    for owner, name in ((subprocess, "Popen"), (os, "system"), (os, "fork"), (os, "posix_spawn")):
        monkeypatch.setattr(owner, name, refuse, raising=False)
    machine_card()


@pytest.mark.timed
def test_takes_under_50_ms():
    assert min(seconds(machine_card) for _ in range(9)) < 0.050


def many_processors(root: Path) -> Path:
    files: dict[str, object] = {
        "sys/devices/system/cpu/online": "0-255",
        "proc/cpuinfo": cpuinfo(256),
    }
    for cpu in range(256):
        core, quad = f"{cpu % 128},{cpu % 128 + 128}", f"{cpu // 16 * 16}-{cpu // 16 * 16 + 15}"
        files |= processor(
            cpu,
            core,
            {
                0: (1, "Data", "32K", 64, 8, core),
                2: (2, "Unified", "1024K", 64, 8, core),
                3: (3, "Unified", "32768K", 64, 16, quad),
            },
        )
    return write(root, files)


def test_256_processors_are_counted(tmp_path):
    root = many_processors(tmp_path)
    big = machine.linux_card(root, allowed_cores=256)
    assert (big.physical_cores, big.logical_cores) == (128, 256)
    assert [cache.instances for cache in big.caches] == [128, 128, 16]


@pytest.mark.timed
def test_256_processors_are_read_in_under_50_ms(tmp_path):
    root = many_processors(tmp_path)
    assert (
        min(
            seconds(lambda: machine.linux_card(root, allowed_cores=256), time.process_time)
            for _ in range(7)
        )
        < 0.050
    )


def seconds(function, clock=time.perf_counter) -> float:
    start = clock()
    function()
    return clock() - start


def cpuinfo(
    count: int, *, flags: str = "fpu sse2 avx2 fma f16c avx512f avx512_vnni amx_tile"
) -> str:
    record = (
        "processor\t: {}\nvendor_id\t: GenuineIntel\nmodel name\t: A Processor @ "
        "2.00GHz\nflags\t\t: {}\n"
    )
    return "\n".join(record.format(cpu, flags) for cpu in range(count))


# --- how a card is shown and kept


def test_a_card_survives_json_and_holds_no_name_of_the_machine_or_its_user():
    this = machine_card()
    assert from_dict(MachineCard, json.loads(this.to_json())) == this
    for text in (this.to_json(), str(this), this._repr_html_()):
        for private in {socket.gethostname(), getpass.getuser(), str(Path.home())} - {
            "localhost",
            "/",
        }:
            assert not re.search(rf"(?<![\w-]){re.escape(private)}(?![\w-])", text)


def test_an_empty_card_says_unknown_and_never_0():
    empty = machine.linux_card(Path("/nonexistent"), allowed_cores=None)
    assert [name for name, value in empty.to_dict().items() if value not in (None, [])] == [
        "architecture"
    ]
    bare = MachineCard()
    assert not re.search(r"\b0\b", str(bare))
    assert str(bare).count("unknown") >= 12
    assert "unknown" in bare._repr_html_()
    assert bare.table().empty
    assert from_dict(MachineCard, bare.to_dict()) == bare


def test_a_card_prints_binary_sizes_in_aligned_columns(tmp_path):
    gpu = Gpu("Tesla T4", "CUDA", 40, 15 * GIB, 4 * MIB, "7.5", 1.59e9, "550.54")
    text = str(
        machine.replace(
            machine.linux_card(hybrid(tmp_path), allowed_cores=8), gpus=(gpu,), notes=("a note",)
        )
    )
    assert "L2 unified  1.25 MiB  2          64 B  10    2" in text
    assert (
        "GPU 0         Tesla T4 (CUDA): 40 multiprocessors, memory 15 GiB, L2 4 MiB, capability 7.5"
        in text
    )
    assert "clock         base 2.10 GHz, maximum 4.70 GHz" in text
    assert text.splitlines()[-1] == "  note          a note"
    assert all(line == line.rstrip() for line in text.splitlines())


def test_html_escapes_and_has_no_colour_of_its_own():
    html = MachineCard(model="<b>&", notes=("<i>",))._repr_html_()
    assert "&lt;b&gt;&amp;" in html
    assert "&lt;i&gt;" in html
    assert "color" not in html
    assert "background" not in html


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "unknown"),
        (32 * KIB, "32 KiB"),
        (1280 * KIB, "1.25 MiB"),
        (100 * MIB, "100 MiB"),
        (64, "64 B"),
        (25276514304, "23.5 GiB"),
    ],
)
def test_sizes_are_printed_in_powers_of_two(size, text):
    assert card.binary(size) == text


def test_the_table_holds_the_caches_as_plain_numbers(tmp_path):
    frame = machine.linux_card(hybrid(tmp_path), allowed_cores=8).table()
    assert isinstance(frame, pd.DataFrame)
    assert frame["size_bytes"].tolist() == [48 * KIB, 32 * KIB, 2 * MIB, 1280 * KIB, 12 * MIB]


# --- processors made of files


def test_a_hybrid_processor_has_a_row_for_each_sort_of_cache(tmp_path):
    this = machine.linux_card(hybrid(tmp_path), allowed_cores=8)
    assert this.caches == (
        Cache(1, "data", 48 * KIB, 64, 12, 2, 2),
        Cache(1, "data", 32 * KIB, 64, 8, 1, 4),
        Cache(2, "unified", 2 * MIB, 64, 16, 4, 1),
        Cache(2, "unified", 1280 * KIB, 64, 10, 2, 2),
        Cache(3, "unified", 12 * MIB, 64, 12, 8, 1),
    )
    assert (this.physical_cores, this.logical_cores) == (6, 8)
    assert (this.base_hz, this.maximum_hz) == (2.1e9, 4.7e9)


def test_an_offline_processor_counts_nowhere(tmp_path):
    root = write(hybrid(tmp_path), {"sys/devices/system/cpu/online": "0-2,4-7"})
    folder = root / "sys/devices/system/cpu"
    for index in (0, 2):
        write(
            folder,
            {
                f"cpu2/cache/index{index}/shared_cpu_list": 2,
                "cpu2/topology/thread_siblings_list": 2,
            },
        )
    assert machine.read_cores(root) == (6, 7)
    first = machine.read_caches(root)[0][0]
    assert (first.size_bytes, first.instances, first.shared_by) == (48 * KIB, 2, 2)
    (folder / "online").unlink()
    write(folder, {"cpu3/online": 0, "cpufreq/policy0/x": 1})
    assert machine.read_cores(root) == (6, 7)


def test_an_l3_for_each_complex_of_an_amd_processor(tmp_path):
    files: dict[str, object] = {"sys/devices/system/cpu/online": "0-15"}
    for cpu in range(16):
        half = "0-7" if cpu < 8 else "8-15"
        files |= processor(cpu, str(cpu), {3: (3, "Unified", "32768K", 64, 16, half)})
    assert machine.read_caches(write(tmp_path, files))[0] == (
        Cache(3, "unified", 32 * MIB, 64, 16, 8, 2),
    )


def test_arm_without_a_model_name(tmp_path):
    record = (
        "processor\t: {}\nFeatures\t: fp asimd asimdhp asimddp{}\nCPU implementer\t: 0x41\nCPU "
        "part\t: {}\n"
    )
    text = "\n".join(
        [
            record.format(0, "", "0xd05"),
            record.format(1, " sve bf16", "0xd0b"),
            "Hardware\t: A Board",
        ]
    )
    this = machine.linux_card(write(tmp_path, {"proc/cpuinfo": text}), allowed_cores=2)
    assert (this.model, this.vendor) == ("Cortex-A55 + Cortex-A76", "ARM")
    assert this.extensions == ("NEON", "FP16", "dot product")  # what both sorts of core have
    assert (this.physical_cores, this.logical_cores, this.caches) == (None, 2, None)


def test_an_arm_part_we_do_not_know_is_given_as_it_is(tmp_path):
    text = "processor: 0\nFeatures: asimd sve2 sme i8mm\nCPU implementer: 0x99\nCPU part: 0x123"
    this = machine.linux_card(write(tmp_path, {"proc/cpuinfo": text}), allowed_cores=None)
    assert (this.model, this.vendor) == ("implementer 0x99 part 0x123", None)
    assert this.extensions == ("NEON", "I8MM", "SVE2", "SME")


def test_extensions_none_and_unknown_differ(tmp_path):
    assert (
        machine.linux_card(
            write(tmp_path, {"proc/cpuinfo": cpuinfo(1, flags="fpu")}), allowed_cores=1
        ).extensions
        == ()
    )
    assert machine.linux_card(tmp_path / "none", allowed_cores=1).extensions is None


def test_cores_without_topology_come_from_cpuinfo(tmp_path):
    record = "processor: {}\nphysical id: {}\ncore id: {}\n"
    text = "\n".join(record.format(cpu, cpu // 4, cpu % 2) for cpu in range(8))
    assert machine.read_cores(write(tmp_path, {"proc/cpuinfo": text})) == (4, 8)


def test_a_cache_without_sharing_has_an_unknown_number_of_instances(tmp_path):
    root = hybrid(tmp_path)
    (root / "sys/devices/system/cpu/cpu5/cache/index3/shared_cpu_list").unlink()
    assert machine.read_caches(root)[0][-1].instances == 1  # another processor tells
    for cpu in range(8):
        (root / f"sys/devices/system/cpu/cpu{cpu}/cache/index3/shared_cpu_list").unlink(
            missing_ok=True
        )
    assert machine.read_caches(root)[0][-1] == Cache(3, "unified", 12 * MIB, 64, 12, None, None)


def test_a_cache_without_a_level_is_left_out_and_noted(tmp_path):
    root = hybrid(tmp_path)
    (root / "sys/devices/system/cpu/cpu0/cache/index3/level").unlink()
    this = machine.linux_card(root, allowed_cores=8)
    assert [cache.level for cache in this.caches] == [1, 1, 2, 2]
    assert this.notes == ("left out 1 cache entries without a level or a type",)


GARBAGE = (
    "",
    "0",
    "-1",
    "abc",
    "9" * 30,
    b"\x00\xff\xfe",
    "max max max",
    "1-",
    "K",
    "0-999999999",
    "::",
    "a:b:c",
    "- -",
)


def test_garbage_in_any_file_never_raises_and_never_becomes_0(tmp_path):
    files = {
        "proc/cpuinfo": cpuinfo(2),
        "proc/meminfo": "MemTotal: 1024 kB\nMemAvailable: 512 kB\nSwapTotal: 8 kB",
        "etc/os-release": 'PRETTY_NAME="A System"',
        "proc/sys/kernel/osrelease": "6.1",
        "proc/driver/nvidia/version": "NVRM",
        "sys/fs/cgroup/a/memory.max": "1",
        "sys/fs/cgroup/a/cpu.max": "1 1",
    }
    root = write(cgroup(hybrid(tmp_path), "0::/a", V2, {}), files)
    paths = [
        path
        for path in root.rglob("*")
        if path.is_file() and not re.search(r"/cpu[1-35-7]/", str(path))
    ]
    assert len(paths) > 40
    for path in paths:
        before = path.read_bytes()
        for garbage in GARBAGE:
            path.write_bytes(garbage if isinstance(garbage, bytes) else garbage.encode())
            this = machine.linux_card(root, allowed_cores=2)
            machine.nvidia_driver(root)
            values = [
                *this.to_dict().values(),
                *(value for cache in this.caches or () for value in cache.to_dict().values()),
            ]
            assert not [value for value in values if value == 0 and value is not False], (
                path,
                garbage,
            )
            str(this)
        path.write_bytes(before)


def test_a_folder_where_a_file_should_be_is_unknown(tmp_path):
    (tmp_path / "proc/meminfo").mkdir(parents=True)
    assert machine.linux_card(tmp_path, allowed_cores=None).ram_bytes is None


def test_memory_and_system(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/meminfo": "MemTotal:  2048 kB\nMemAvailable: 1024 kB\nSwapTotal: 0 kB",
            "etc/os-release": 'NAME=x\nPRETTY_NAME="A System 1"',
            "proc/sys/kernel/osrelease": "6.1.0",
        },
    )
    this = machine.linux_card(root, allowed_cores=1)
    assert (this.ram_bytes, this.ram_available_bytes, this.swap_bytes) == (2 * MIB, MIB, 0)
    assert this.system == "A System 1, Linux 6.1.0"
    assert "swap          none" in str(this)


# --- control groups made of files


def test_the_smallest_limit_up_a_version_2_hierarchy(tmp_path):
    root = cgroup(
        tmp_path,
        "0::/a/b/c",
        V2,
        {
            "sys/fs/cgroup/a/memory.max": GIB,
            "sys/fs/cgroup/a/b/memory.max": 4 * GIB,
            "sys/fs/cgroup/a/b/c/memory.max": "max",
            "sys/fs/cgroup/a/cpu.max": "max 100000",
            "sys/fs/cgroup/a/b/cpu.max": "150000 100000",
            "sys/fs/cgroup/a/b/c/cpu.max": "50000 20000",
            "sys/fs/cgroup/other/memory.max": 5,
            "sys/fs/cgroup/other/cpu.max": "1 9",
        },
    )
    assert machine.read_memory_limit(root) == GIB
    assert machine.read_quota(root) == 1.5
    this = machine.linux_card(root, allowed_cores=8)
    assert (this.allowed_cores, this.quota_cores, this.usable_cores) == (8, 1.5, 1.5)
    assert "1.5 usable (a quota of 1.5)" in str(this)
    assert machine.linux_card(root, allowed_cores=1).usable_cores == 1


def test_a_container_with_its_own_version_2_namespace(tmp_path):
    root = cgroup(
        tmp_path,
        "0::/",
        V2,
        {"sys/fs/cgroup/memory.max": 512 * MIB, "sys/fs/cgroup/cpu.max": "200000 100000"},
    )
    assert (machine.read_memory_limit(root), machine.read_quota(root)) == (512 * MIB, 2.0)


@pytest.mark.parametrize("path", ["/docker/abc", "/../../x", "/"])
def test_a_container_that_sees_only_its_own_version_1_group(tmp_path, path):
    membership = f"4:memory:{path}\n3:cpu,cpuacct:{path}\n1:name=systemd:/"
    mounts = V1_MEMORY.format("/docker/abc") + "\n" + V1_CPU.format("/docker/abc")
    root = cgroup(
        tmp_path,
        membership,
        mounts,
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 3 * GIB,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": 50000,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": 100000,
        },
    )
    assert (machine.read_memory_limit(root), machine.read_quota(root)) == (3 * GIB, 0.5)


def test_version_1_without_limits_and_with_one_above_what_is_visible(tmp_path):
    folder = "sys/fs/cgroup/memory/x"
    root = cgroup(
        tmp_path,
        "4:memory:/x\n2:cpu,cpuacct:/x",
        V1_MEMORY.format("/") + "\n" + V1_CPU.format("/"),
        {
            f"{folder}/memory.limit_in_bytes": V1_NO_LIMIT,
            "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": -1,
            "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": 100000,
            f"{folder}/memory.stat": f"cache 1\nhierarchical_memory_limit {V1_NO_LIMIT}",
        },
    )
    assert (machine.read_memory_limit(root), machine.read_quota(root)) == (None, None)
    assert "memory limit  none seen" in str(machine.linux_card(root, allowed_cores=2))
    write(root, {f"{folder}/memory.stat": f"cache 1\nhierarchical_memory_limit {2 * GIB}"})
    assert machine.read_memory_limit(root) == 2 * GIB


def test_both_versions_at_once_take_the_smaller(tmp_path):
    mounts = V2.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ") + "\n" + V1_MEMORY.format("/")
    root = cgroup(
        tmp_path,
        "4:memory:/a\n0::/b",
        mounts,
        {
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": 7 * GIB,
            "sys/fs/cgroup/unified/b/memory.max": 6 * GIB,
        },
    )
    assert machine.read_memory_limit(root) == 6 * GIB


# --- GPUs and other systems


def properties(**changes) -> types.SimpleNamespace:
    values = {
        "name": "NVIDIA H200",
        "multi_processor_count": 132,
        "total_memory": 140 * GIB,
        "L2_cache_size": 60 * MIB,
        "major": 9,
        "minor": 0,
        "clock_rate": 1_980_000,
    }
    return types.SimpleNamespace(**{**values, **changes})


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 "
                "UTC 2023"
            ),
            "535.104.05",
        ),
        (
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build "
                " (dvs-builder@U16)"
            ),
            "565.57.01",
        ),
        ("NVRM version: something else", None),
    ],
)
def test_gpus_are_described_by_torch_and_the_driver(tmp_path, monkeypatch, line, version):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    described = [properties(), properties(name="Old", L2_cache_size=0, clock_rate=0)]
    monkeypatch.setattr(torch.cuda, "get_device_properties", described.__getitem__)
    gpus, notes = machine.read_gpus(write(tmp_path, {"proc/driver/nvidia/version": line}))
    assert gpus[0] == Gpu("NVIDIA H200", "CUDA", 132, 140 * GIB, 60 * MIB, "9.0", 1.98e9, version)
    assert (gpus[1].l2_bytes, gpus[1].clock_hz, notes) == (None, None, ())


def test_nvml_tells_the_driver_where_it_is_installed(tmp_path, monkeypatch):
    class NVMLError(Exception):
        pass

    def fail():
        raise NVMLError

    nvml = types.SimpleNamespace(
        nvmlInit=lambda: None, nvmlSystemGetDriverVersion=lambda: b"550.1", NVMLError=NVMLError
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert machine._driver(tmp_path) == "550.1"
    nvml.nvmlInit = fail
    assert machine._driver(tmp_path) is None


def test_a_driver_that_does_not_answer_is_noted_and_the_gpus_are_unknown(monkeypatch):
    def fail(*_):
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.\nmore")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", fail)
    this = machine_card()
    assert this.gpus is None
    assert (
        this.notes[-1]
        == "the GPU driver does not answer: Cannot re-initialize CUDA in forked subprocess."
    )
    assert "GPU           unknown" in str(this)


def test_without_caches_of_the_system_torch_is_asked_and_this_is_noted():
    known = {"l1d_cache_size": 64 * KIB, "l2_cache_size": 0, "neon": True, "sve": False}
    this = machine._complete_card(MachineCard(), known)
    assert this.caches == (Cache(1, "data", 64 * KIB),)
    assert this.extensions == ("NEON",)
    assert "torch.cpu.get_capabilities" in this.notes[0]
    assert machine._complete_card(MachineCard(), {}) == MachineCard()


def number(value: int) -> bytes:
    return value.to_bytes(8, "little")


def test_an_apple_processor_from_sysctl():
    answers = {
        "hw.nperflevels": number(2),
        "hw.cachelinesize": number(128),
        "machdep.cpu.brand_string": b"Apple M2\0",
    }
    for level, (l1, l2, cores) in enumerate([(128 * KIB, 16 * MIB, 4), (64 * KIB, 4 * MIB, 4)]):
        answers |= {
            f"hw.perflevel{level}.{name}": number(value)
            for name, value in {
                "l1dcachesize": l1,
                "l2cachesize": l2,
                "cpusperl2": 4,
                "physicalcpu": cores,
                "logicalcpu": cores,
            }.items()
        }
    this = machine.macos_card(answers.get, MachineCard(extensions=("NEON",)))
    assert (this.model, this.vendor, this.extensions) == ("Apple M2", "Apple", ("NEON",))
    assert this.caches == (
        Cache(1, "data", 128 * KIB, 128, None, 1, 4),
        Cache(1, "data", 64 * KIB, 128, None, 1, 4),
        Cache(2, "unified", 16 * MIB, 128, None, 4, 1),
        Cache(2, "unified", 4 * MIB, 128, None, 4, 1),
    )


def test_an_intel_mac_has_one_sort_of_core_and_a_silent_sysctl_leaves_all_unknown():
    answers = {"hw.l1dcachesize": number(32 * KIB), "machdep.cpu.vendor": b"GenuineIntel\0"}
    this = machine.macos_card(answers.get, MachineCard())
    assert (this.vendor, this.caches) == ("GenuineIntel", (Cache(1, "data", 32 * KIB),))
    assert machine.macos_card(lambda _: None, MachineCard()) == MachineCard()


def test_the_portable_card_agrees_and_does_without_psutil(monkeypatch):
    pytest.importorskip("psutil")
    this, portable = machine_card(), machine._portable_card(machine._capabilities())
    assert portable.ram_bytes == this.ram_bytes
    assert portable.logical_cores >= this.allowed_cores
    monkeypatch.setitem(sys.modules, "psutil", None)
    bare = machine._portable_card({})
    assert (bare.ram_bytes, bare.notes) == (
        None,
        ("the memory is unknown: psutil is not installed",),
    )


def test_the_card_is_read_where_pytorch_does_not_load():
    program = """
import sys
sys.modules["torch"] = None
from helpers.hardware._machine import linux_card
from helpers.hardware import Cache, MachineCard
print(MachineCard.__name__, Cache.__name__, callable(linux_card))
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["MachineCard", "Cache", "True"]
