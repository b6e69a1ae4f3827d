"""The probe: kept and measured again, honest about what it cannot measure, its stages, its levels,
its result.
"""

import dataclasses
import json
import math
import shutil
import sys
import time

import pytest
import torch

import helpers
from helpers import hardware, storage
from helpers.hardware import (
    BandwidthPoint,
    Cache,
    LatencyPoint,
    MachineCard,
    MachineLimits,
    MemoryLevel,
    probe,
)
from helpers.hardware.limits import (
    _cpu as probe_cpu,
    _levels as probe_levels,
    _library as library,
    _multiply_adds as multiply_adds,
    _passes as probe_repeats,
)
from helpers.hardware.limits._cpu import assemble_limits
from helpers.hardware.limits._levels import ProbedCache
from helpers.results import from_dict
from helpers.timing import fixed_threads
from helpers.timing._runs import MOST_WAITING, watch_waiting

KIB, MIB, GIB = 2**10, 2**20, 2**30
CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

SMALL = probe_cpu.ProbePlan(
    latency_s=0,
    whole_s=0,
    per_octave=2,
    kernel_s=0,
    most_bytes=4 * MIB,
    types=("float32",),
    products=library.Budget(size_s=0, call_s=0.001),
)
LIMITS = MachineLimits(
    device="cpu",
    threads=1,
    date="2026-01-02",
    versions={"torch": "2"},
    chase="C++",
    memory_levels=(
        MemoryLevel("L1", 32 * KIB, 1e-9, 2e11),
        MemoryLevel("DRAM", 8 * GIB, 1e-7, 2e10),
    ),
    peak_flops={"float32": 2e11},
    product_flops={"float32": 1e11},
    call_overhead_s=1e-6,
    launch_s=None,
    host_to_device_bytes_per_s=None,
    device_to_host_bytes_per_s=None,
    unstable=("L1 latency",),
    notes=("one <note>", "another"),
    latencies=(LatencyPoint(4 * KIB, 1e-9),),
    bandwidths=(BandwidthPoint(16 * KIB, 1e9, 2e9, 3e9, 4e9, 5e9),),
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A whole probe of this machine, the seconds it took, and the share of them in which a thread
    waited.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELPERS_CACHE", str(tmp_path_factory.mktemp("whole")))
        begin_s, waiting = time.perf_counter(), watch_waiting(time.perf_counter)
        return probe(device="cpu"), time.perf_counter() - begin_s, waiting()


@pytest.fixture
def counted(monkeypatch):
    """A measurement that takes no time; the list grows with each."""
    calls = []

    def measure_cpu(plan):
        calls.append(plan)
        return dataclasses.replace(
            LIMITS, threads=torch.get_num_threads(), notes=(f"number {len(calls)}",)
        )

    monkeypatch.setattr(probe_cpu, "measure_cpu", measure_cpu)
    return calls


# --- the whole probe of this machine


def test_the_whole_probe_has_every_level_in_order(whole):
    limits = whole[0]
    caches = probe_levels.card_levels(hardware.machine_card())
    if caches:
        assert [level.name for level in limits.memory_levels] == [
            *(cache.name for cache in caches),
            "DRAM",
        ]
        assert [level.size_bytes for level in limits.memory_levels[:-1]] == [
            cache.size_bytes for cache in caches
        ]
        *below, last, memory = limits.memory_levels
        assert all(level.holds_bytes == level.size_bytes for level in (*below, memory))
        assert last.holds_bytes == last.size_bytes or last.holds_bytes < last.size_bytes / 2
        assert any("the bandwidth falls after" in note for note in limits.notes) == (
            last.holds_bytes < last.size_bytes
        )
    assert limits.memory.size_bytes == hardware.machine_card().ram_bytes
    assert (limits.device, limits.threads) == ("cpu", torch.get_num_threads())
    assert (
        limits.launch_s,
        limits.host_to_device_bytes_per_s,
        limits.device_to_host_bytes_per_s,
    ) == (None,) * 3
    assert limits.versions["torch"] == torch.__version__
    assert limits.peak_flops["float32"] > 0
    assert limits.product_flops["float32"] > 0
    assert limits.peak_flops.keys() >= limits.product_flops.keys()
    assert all(limits.peak_flops[name] >= rate for name, rate in limits.product_flops.items())
    assert 0 < limits.call_overhead_s < limits.memory.latency_s * 1e4
    assert from_dict(MachineLimits, json.loads(limits.to_json())) == limits


@pytest.mark.timed
def test_the_whole_probe_takes_under_20_s(whole):
    _, taken_s, waiting_share = whole
    # What other programs took is not the probe's; a share as small as on a machine at rest does not
    # count.
    taken_s *= 1 - waiting_share if waiting_share and waiting_share > MOST_WAITING else 1
    assert taken_s < 20


@needs_compiler
@pytest.mark.timed
def test_latency_grows_and_bandwidth_falls_from_l1_to_memory(whole):
    first, last = whole[0].memory_levels[0], whole[0].memory
    assert last.latency_s > 10 * first.latency_s  # tens are usual
    assert first.bandwidth_bytes_per_s > 2 * last.bandwidth_bytes_per_s  # about ten is usual


def test_every_curve_is_whole_and_finite(whole):
    limits = whole[0]
    sizes = [point.working_set_bytes for point in limits.latencies]
    assert sizes == sorted(set(sizes))
    values = [
        value
        for point in (*limits.latencies, *limits.bandwidths)
        for value in dataclasses.astuple(point)
    ]
    assert all(math.isfinite(value) and value > 0 for value in values)
    assert limits.bandwidths[-1].triad_bytes_per_s == limits.memory.bandwidth_bytes_per_s


# --- kept, and measured again


def test_a_probe_is_kept_until_it_is_refreshed_or_the_threads_change(counted):
    assert helpers.probe is probe
    first = probe(device="cpu")
    assert probe(device="cpu") == first
    assert len(counted) == 1
    assert probe(refresh=True, device="cpu") != first
    with fixed_threads(first.threads + 1):
        other = probe(device="cpu")
    assert (len(counted), other.threads) == (3, first.threads + 1)
    assert probe(device="cpu").notes == ("number 2",)


@pytest.mark.parametrize("damage", [
    (lambda text: text[: len(text) // 2], "damaged"),
    (lambda text: text.replace('"C++"', '"C--"'), "checksum"),
    (lambda text: text.replace("torch ", "torch 0"), "it was made for"),
    (lambda text: text.replace(":MachineLimits", ":Other"), "from another version"),
])  # fmt: skip
def test_a_damaged_or_foreign_cache_is_measured_again_with_one_line(
    damage, counted, monkeypatch, capsys
):
    monkeypatch.setenv("HELPERS_HEADLESS", "0")
    change, words = damage
    probe(device="cpu")
    (path,) = storage.cache_folder().glob("limits-*.json")
    path.write_text(change(path.read_text()))
    assert probe(device="cpu").notes == ("number 2",)
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert "measured again" in line
    assert probe(device="cpu").notes == ("number 2",)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_here_is_refused(counted):
    with pytest.raises(RuntimeError, match="not here"):
        probe(device="cuda")
    with pytest.raises(ValueError, match="give 'cpu' or 'cuda'"):
        probe(device="mps")
    assert counted == []


def test_a_device_in_the_place_of_refresh_is_refused(counted):
    with pytest.raises(TypeError, match=r"refresh='cpu' is text.*probe\(device='cpu'\)"):
        probe("cpu")
    assert counted == []


# --- without a compiler, numba, or the system's caches


def take_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    monkeypatch.setenv("PATH", str(tmp_path))


def test_without_a_compiler_numba_walks_and_small_caches_have_no_bandwidth(monkeypatch, tmp_path):
    pytest.importorskip("numba")
    take_compiler(monkeypatch, tmp_path)
    limits = probe_cpu.measure_cpu(SMALL)
    assert limits.chase == "numba"
    assert limits.versions["chase"].startswith("numba ")
    assert limits.latencies
    assert limits.memory_levels[0].latency_s > 0
    assert any("numba" in note and "no C++ compiler" in note for note in limits.notes)
    silent = [level.name for level in limits.memory_levels if level.bandwidth_bytes_per_s is None]
    assert "DRAM" not in silent
    assert limits.peak_flops["float32"] >= limits.product_flops["float32"]
    (note,) = [
        note for note in limits.notes if note.startswith("each peak is what the library reaches")
    ]
    assert "no C++ compiler" in note
    for name in silent:
        assert any(note.startswith(f"{name}: no bandwidth") for note in limits.notes)


def test_without_a_compiler_and_numba_no_latency_is_made_up(monkeypatch, tmp_path):
    take_compiler(monkeypatch, tmp_path)
    monkeypatch.setitem(sys.modules, "numba", None)
    limits = probe_cpu.measure_cpu(SMALL)
    assert (limits.chase, limits.latencies) == ("none", ())
    assert {level.latency_s for level in limits.memory_levels} == {None}
    assert limits.memory.bandwidth_bytes_per_s > 0
    assert limits.peak_flops["float32"] > 0
    (note,) = [note for note in limits.notes if note.startswith("no latency")]
    assert "no C++ compiler" in note
    assert "numba is not installed" in note
    assert "probe(refresh=True)" in note
    assert "unknown" in str(limits)
    assert from_dict(MachineLimits, json.loads(limits.to_json())) == limits


@pytest.mark.parametrize("has_walker", [True, False])
def test_without_the_systems_caches_they_are_read_off_the_curve_or_missing(
    has_walker, monkeypatch, tmp_path
):
    card = dataclasses.replace(hardware.machine_card(), caches=None)
    monkeypatch.setattr(probe_cpu, "machine_card", lambda: card)
    if not has_walker:
        take_compiler(monkeypatch, tmp_path)
        monkeypatch.setitem(sys.modules, "numba", None)
    limits = probe_cpu.measure_cpu(SMALL)
    found = hardware.find_change_points(limits.latencies) if limits.latencies else ()
    assert [level.size_bytes for level in limits.memory_levels] == [*found, card.ram_bytes]
    names = [f"L{number}" for number in range(1, len(found) + 1)]
    assert [level.name for level in limits.memory_levels] == [*names, "DRAM"]
    assert any("the system lists no caches" in note for note in limits.notes)
    assert limits.memory.bandwidth_bytes_per_s > 0
    if not has_walker:
        assert len(limits.memory_levels) == 1


def test_a_type_without_a_product_or_with_a_slow_one_is_a_note(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("not implemented for 'Half'\nmore")

    monkeypatch.setattr(torch, "mm", refuse)
    reason = library.product_flops("float16", CPU, budget=library.Budget())
    assert reason == "there is no matrix product of float16 here: not implemented for 'Half'"
    monkeypatch.setattr(torch, "mm", lambda a, b, out: time.sleep(0.01))
    assert "too slow" in library.product_flops("float64", CPU, budget=library.Budget())
    reasons = {}
    plan = dataclasses.replace(SMALL, types=("float64", "float32"), products=library.Budget())
    slow, always = probe_cpu.product_stages(plan, CPU, reasons)
    assert slow() == {}
    assert "too slow" in reasons["float64"]
    assert always()["product", "float32"] > 0
    assert list(reasons) == ["float64"]


def test_a_device_that_others_have_filled_is_timed_by_its_smaller_products(monkeypatch):
    room, ones = [512], torch.ones

    def few_ones(rows, columns, **kind):
        if rows > room[0]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return ones(rows, columns, **kind)

    monkeypatch.setattr(torch, "ones", few_ones)
    monkeypatch.setattr(library, "fastest_s", lambda *_, **__: 1e-3)
    assert library.product_flops("float32", CPU, budget=library.Budget()) == 2 * 512**3 / 1e-3
    room[0] = 64
    with pytest.raises(torch.OutOfMemoryError):
        library.product_flops("float32", CPU, budget=library.Budget())


def test_a_product_counts_two_operations_a_mac_and_leaves_the_precision_as_it_was(monkeypatch):
    before, seen = torch.get_float32_matmul_precision(), []
    monkeypatch.setattr(library, "_LARGEST_SIDE", {"cpu": 512})
    monkeypatch.setattr(
        library,
        "fastest_s",
        lambda *_, **__: seen.append(torch.get_float32_matmul_precision()) or 1e-3,
    )
    rate = library.product_flops("float32", CPU, budget=library.Budget())
    assert rate == 2 * 512**3 / 1e-3
    assert set(seen) == {"highest"}
    library.product_flops("tfloat32", CPU, budget=library.Budget())
    assert seen[-1] == "high"
    assert torch.get_float32_matmul_precision() == before


# --- passes


def test_what_repeats_runs_twice_and_what_does_not_four_times():
    times, shaky = {"steady": 0, "shaky": 0}, iter([1.0, 2.0, 4.0, 8.0])

    def stage(name, value):
        times[name] += 1
        return {(name,): value()}

    stages = [
        lambda: stage("steady", lambda: 1.05 if times["steady"] == 2 else 1.0),
        lambda: stage("shaky", lambda: next(shaky)),
    ]
    values = probe_repeats.run_in_passes(stages, end_s=math.inf, label="test")
    assert times == {"steady": 2, "shaky": 4}
    assert values == {("steady",): [1.0, 1.05], ("shaky",): [1.0, 2.0, 4.0, 8.0]}


def test_past_the_end_each_stage_still_runs_once():
    values = probe_repeats.run_in_passes(
        [lambda: {("a",): 1.0}, lambda: {("b",): 1.0}], end_s=-math.inf, label="test"
    )
    assert values == {("a",): [1.0], ("b",): [1.0]}


@pytest.mark.parametrize(
    ("times", "repeats"),
    [([1.0], False), ([1.0, 1.09], True), ([1.0, 1.11], False), ([1.05, 9.0, 1.0], True)],
)
def test_two_smallest_times_within_a_tenth_repeat(times, repeats):
    assert probe_repeats.agree(times) is repeats


# --- levels and working sets


DESKTOP = (
    ProbedCache("L1", 32 * KIB, 1),
    ProbedCache("L2", 512 * KIB, 1),
    ProbedCache("L3", 32 * MIB, 16),
)


def test_a_card_gives_its_data_caches_in_order():
    caches = (
        Cache(3, "unified", 32 * MIB, shared_by=16),
        Cache(1, "instruction", 64 * KIB),
        Cache(2, "unified", None),
        Cache(1, "data", 48 * KIB, shared_by=2),
        Cache(1, "data", 32 * KIB),
    )
    found = probe_levels.card_levels(MachineCard(caches=caches))
    assert found == (ProbedCache("L1", 48 * KIB, 2), ProbedCache("L3", 32 * MIB, 16))
    assert probe_levels.card_levels(MachineCard()) == ()


def test_working_sets_of_the_triad_lie_between_the_caches():
    for threads in (1, 2, 16, 64):
        sizes = [probe_levels.triad_bytes(DESKTOP, index, threads) for index in range(3)]
        totals = [0, *(probe_levels.total_bytes(level, threads) for level in DESKTOP)]
        assert all(
            below < size < own for below, size, own in zip(totals, sizes, totals[1:], strict=False)
        )
    assert 0 <= 4 * 16 * KIB - probe_levels.triad_bytes(DESKTOP, 0, 4) < 4 * 192
    assert probe_levels.total_bytes(DESKTOP[2], 64) == 4 * 32 * MIB


def test_a_working_set_too_small_for_main_memory_is_noted():
    (note,) = probe_levels.size_notes(DESKTOP, 32 * MIB, 1)
    assert note.startswith("the largest working set, 32 MiB, is under four times the L3")
    assert (
        probe_levels.size_notes(DESKTOP, 128 * MIB, 1) == probe_levels.size_notes((), MIB, 1) == ()
    )
    shared = (*DESKTOP[:2], dataclasses.replace(DESKTOP[2], holds_bytes=8 * MIB))
    assert probe_levels.size_notes(shared, 32 * MIB, 1) == ()
    assert probe_levels.size_notes(shared, 16 * MIB, 1)


@pytest.mark.parametrize(
    ("free", "threads", "most"),
    [
        (64 * GIB, 1, 128 * MIB),
        (64 * GIB, 32, 256 * MIB),
        (64 * GIB, 1024, 512 * MIB),
        (400 * MIB, 1, 32 * MIB),
    ],
)
def test_the_largest_working_set_is_four_times_the_last_cache_within_memory(free, threads, most):
    assert probe_levels.largest_bytes(DESKTOP, threads, free) == most


def test_caches_that_the_system_does_not_list_are_left_behind_too():
    assert probe_levels.largest_bytes(DESKTOP[:2], 1, 64 * GIB) == 128 * MIB


def test_a_grid_is_dense_and_then_doubles():
    sizes = probe_levels.grid(4 * KIB, 64 * KIB, per_octave=2, dense_until_bytes=16 * KIB)
    assert sizes == (4 * KIB, 5760, 8 * KIB, 11584, 16 * KIB, 32 * KIB, 64 * KIB)


def test_a_levels_latency_is_the_fastest_point_well_inside_it():
    times_s = {16: 1.0, 32: 1.1, 64: 4.0, 128: 5.0, 256: 4.5, 512: 9.0, 2048: 20.0, 4096: 19.0}
    points = [LatencyPoint(*point) for point in times_s.items()]
    assert probe_levels.latency_point(points, (0, 32)).latency_s == 1.0
    assert probe_levels.latency_point(points, (32, 512)).latency_s == 4.5
    assert probe_levels.latency_point(points, (512, None)).latency_s == 19.0
    assert probe_levels.latency_point(points, (32, 128)).latency_s == 4.0
    assert probe_levels.latency_point([], (0, 32)) is None


def test_a_cache_that_the_curve_does_not_show_is_noted():
    sizes = probe_levels.grid(4 * KIB, 128 * MIB, per_octave=4, dense_until_bytes=128 * MIB)

    def step_curve(last):
        return [
            LatencyPoint(
                size,
                1e-9 * (1 + 3 * (size > 32 * KIB) + 11 * (size > 512 * KIB) + 95 * (size > last)),
            )
            for size in sizes
        ]

    assert probe_levels.disagreements(DESKTOP, step_curve(32 * MIB)) == ()
    assert probe_levels.disagreements(DESKTOP, step_curve(16 * MIB)) == ()
    (note,) = probe_levels.disagreements(DESKTOP, step_curve(4 * MIB))
    assert note.startswith("the system names an L3 of 32 MiB, and the latency rises after 4 MiB")
    (note,) = probe_levels.disagreements(DESKTOP, step_curve(GIB))
    assert note.endswith("the latency does not rise there")


# What the probe of a guest gave: an Intel Xeon (Sapphire Rapids) whose system names an L3 of 260
# MiB, one thread. A product of a matrix and a vector ran there at 27 to 29 GB/s up to 48 MiB, and
# at half of that and less from 64 MiB on.
GUEST = (
    ProbedCache("L1", 48 * KIB, 1),
    ProbedCache("L2", 2 * MIB, 1),
    ProbedCache("L3", 260 * MIB, 2),
)
GUEST_TRIADS = {
    MIB: 88.6e9,
    2 * MIB: 44.1e9,
    4 * MIB: 27.1e9,
    8 * MIB: 26.6e9,
    16 * MIB: 27.1e9,
    32 * MIB: 27.5e9,
    64 * MIB: 24.1e9,
    128 * MIB: 18.1e9,
    256 * MIB: 14.4e9,
    512 * MIB: 14.0e9,
    GIB: 13.9e9,
}


def test_the_last_cache_holds_what_its_bandwidth_shows_where_that_is_less_than_half():
    levels, (note,) = probe_levels.narrow_last_level(GUEST, 28e9, GUEST_TRIADS, 1)
    assert levels == (*GUEST[:2], ProbedCache("L3", 260 * MIB, 2, holds_bytes=64 * MIB))
    assert note == (
        "the system names an L3 of 260 MiB, and the bandwidth falls after 64 MiB: the models take "
        "it to hold that"
    )


def step_triads(last_bytes):
    return {MIB * 2**step: 60e9 if MIB * 2**step <= last_bytes else 20e9 for step in range(8)}


@pytest.mark.parametrize(
    ("falls_after", "holds"), [(64, None), (32, None), (16, None), (8, 8), (2, 2), (0, None)]
)
def test_a_cache_that_the_bandwidth_shows_to_a_factor_of_two_keeps_its_size(falls_after, holds):
    levels, notes = probe_levels.narrow_last_level(DESKTOP, 60e9, step_triads(falls_after * MIB), 1)
    assert levels[-1].holds_bytes == (holds and holds * MIB)
    assert levels[:-1] == DESKTOP[:-1]
    assert len(notes) == (holds is not None)


def test_what_threads_reach_together_of_two_caches_is_parted_between_them():
    flat = (DESKTOP[0], DESKTOP[2])
    assert probe_levels.narrow_last_level(flat, 60e9, step_triads(16 * MIB), 16) == (flat, ())
    assert (
        probe_levels.narrow_last_level(flat, 60e9, step_triads(16 * MIB), 32)[0][-1].holds_bytes
        == 8 * MIB
    )
    # what the L1s hold says nothing
    assert probe_levels.narrow_last_level(flat, 60e9, step_triads(MIB), 32) == (flat, ())


def test_a_bandwidth_near_that_of_main_memory_shows_no_capacity():
    assert probe_levels.narrow_last_level(DESKTOP, 29e9, step_triads(4 * MIB), 1) == (DESKTOP, ())
    assert (
        probe_levels.narrow_last_level(DESKTOP, 31e9, step_triads(4 * MIB), 1)[0][-1].holds_bytes
        == 4 * MIB
    )


# --- whose peak it is


def peaks(core, convolution, product):
    """Return values of these rates in GFLOP/s, each a type's name to one."""
    rates = {"core": core, "convolution": convolution, "product": product}
    return {
        (source, name): [1 / rate]
        for source, named in rates.items()
        for name, rate in named.items()
    }


def test_the_peak_is_the_cores_own_and_a_line_says_where_it_is_not():
    values = peaks(
        {"float32": 258, "float64": 50},
        {"bfloat16": 70},
        {"float32": 113, "float64": 60, "bfloat16": 90},
    )
    assert probe_cpu.peaks_of(values) == {
        "float32": ("core", "float32"),
        "float64": ("product", "float64"),
        "bfloat16": ("product", "bfloat16"),
    }
    absent, faster = probe_cpu.peak_notes(values, "")
    assert absent.startswith(
        "the core has no multiply-adds of its own for bfloat16: the peak is what the library"
    )
    assert faster.startswith(
        "the peak of float64 is that of the library's product, 1.2 times that of the core's own"
    )
    # two measurements of one rate
    assert probe_cpu.peak_notes(peaks({"float32": 100}, {}, {"float32": 109}), "") == ()


def test_without_a_compiler_the_peak_is_the_faster_of_product_and_convolution_and_a_line_says_so():
    values = peaks({}, {"float32": 230}, {"float32": 113, "int8": 900})
    assert probe_cpu.peaks_of(values) == {
        "float32": ("convolution", "float32"),
        "int8": ("product", "int8"),
    }
    (note,) = probe_cpu.peak_notes(values, "there is no C++ compiler")
    assert note.endswith(
        "the core may do more, because its own multiply-adds were not measured: there is no C++ "
        "compiler"
    )


def test_a_convolution_is_timed_where_the_core_has_no_multiply_adds_of_a_type(monkeypatch):
    monkeypatch.setattr(library, "product_flops", lambda *_, **__: 1e9)
    monkeypatch.setattr(
        library, "convolution_flops", lambda name, **_: 3e9 if name == "bfloat16" else "slow"
    )
    monkeypatch.setattr(multiply_adds, "form_flops", lambda form, *_, **__: form)
    plan = dataclasses.replace(SMALL, types=("float32", "bfloat16", "float16", "int8"))
    stages = probe_cpu._compute_stages(
        plan, {"float32_in_256": 4e9, "float32_in_128": 2e9, "int8_in_tiles": 0.0}, 1, {}
    )
    values = probe_repeats.run_in_passes(stages[:-1], end_s=-math.inf, label="test")
    assert {key: 1 / seconds for key, (seconds,) in values.items() if key[0] != "product"} == {
        ("core", "float32"): pytest.approx(4e9),
        ("convolution", "bfloat16"): pytest.approx(3e9),
    }
    assert [key[1] for key in values if key[0] == "product"] == list(plan.types)


def test_a_convolution_counts_two_operations_a_mac_and_its_refusal_is_no_error(monkeypatch):
    monkeypatch.setattr(library, "_LARGEST_SIDE", {"cpu": 256})
    monkeypatch.setattr(library, "fastest_s", lambda fn, *_, **__: fn() is not None and 1e-3)
    assert (
        library.convolution_flops("float32", budget=library.Budget()) == 2 * 16 * 64 * 256**2 / 1e-3
    )

    def refuse(*_):
        raise RuntimeError("not implemented for 'Half'")

    monkeypatch.setattr(torch, "conv2d", refuse)
    assert library.convolution_flops("float16", budget=library.Budget()).startswith(
        "there is no convolution of float16"
    )


def test_limits_of_before_the_core_was_measured_are_read_and_say_what_they_lack():
    older = json.loads(LIMITS.to_json())
    products = older.pop("product_flops")
    older |= {"peak_flops": products, "unstable": ["float32 peak", "L1 latency"]}
    limits = from_dict(MachineLimits, older)
    assert (limits.peak_flops, limits.product_flops) == ({}, {"float32": 1e11})
    assert limits.unstable == ("float32 product", "L1 latency")
    assert limits.notes[:-1] == LIMITS.notes
    assert limits.notes[-1].startswith("no peak was measured: these limits were recorded before")
    gpu = from_dict(MachineLimits, {**older, "device": "cuda:0"})
    # a GPU's peak was and is its product
    assert gpu.peak_flops == gpu.product_flops == {"float32": 1e11}
    assert gpu.notes == LIMITS.notes
    with pytest.raises(ValueError, match=r"missing \['peak_flops', 'product_flops'\]"):
        from_dict(
            MachineLimits, {name: value for name, value in older.items() if name != "peak_flops"}
        )


# --- the result


def assembled(levels):
    kernels = ("read", "write", "copy", "triad", "scale")
    values = {
        ("latency", 16 * KIB): [1e-9, 1e-9],
        ("latency", 256 * MIB): [1e-7, 2e-7],
        ("level", "L1"): [5e-12, 5e-12],
        ("call",): [1e-6, 1e-6],
        ("product", "float32"): [2e-11, 2e-11],
        ("core", "float32"): [1e-11, 1.05e-11],
        **{("bandwidth", 256 * MIB, kernel): [1e-10, 1e-10] for kernel in kernels},
    }
    return assemble_limits(
        "cpu",
        values,
        levels=levels,
        memory=("DRAM", GIB),
        chase="C++",
        versions={"chase": "g++"},
        notes=["a"],
    )


def test_limits_are_the_fastest_pass_and_name_what_does_not_repeat():
    limits = assembled(DESKTOP[:1])
    assert (limits.notes, limits.chase, limits.versions["chase"]) == (("a",), "C++", "g++")
    assert limits.level("L1") == MemoryLevel("L1", 32 * KIB, 1e-9, 1 / 5e-12)
    assert limits.memory == MemoryLevel("DRAM", GIB, 1e-7, 1e10)
    assert limits.peak_flops == {"float32": 1 / 1e-11}
    assert limits.product_flops == {"float32": 1 / 2e-11}
    assert limits.unstable == ("DRAM latency", "latency curve")
    assert limits.level_of(32 * KIB).name == "L1"
    assert limits.level_of(32 * KIB + 1).name == "DRAM"
    with pytest.raises(ValueError, match="there is no level 'L2'; this machine has L1, DRAM"):
        limits.level("L2")


def test_a_level_holds_its_size_or_what_was_found_of_it_and_prints_both():
    levels = (*DESKTOP[:2], dataclasses.replace(DESKTOP[2], holds_bytes=8 * MIB))
    limits = assembled(levels)
    assert [level.size_bytes for level in limits.memory_levels] == [
        32 * KIB,
        512 * KIB,
        32 * MIB,
        GIB,
    ]
    assert [level.holds_bytes for level in limits.memory_levels] == [
        32 * KIB,
        512 * KIB,
        8 * MIB,
        GIB,
    ]
    assert limits.level_of(8 * MIB).name == "L3"
    assert limits.level_of(8 * MIB + 1).name == "DRAM"
    (line,) = [line for line in str(limits).splitlines() if line.strip().startswith("L3")]
    assert "33.6 MB" in line
    assert "8.39 MB" in line
    assert from_dict(MachineLimits, json.loads(limits.to_json())) == limits


def test_a_busy_machine_is_noted():
    (note,) = probe_cpu.busy_notes(0.4)
    assert "waited for a processor during 40.0 % of the time" in note
    assert note.endswith("call probe(refresh=True)")
    assert probe_cpu.busy_notes(0.05) == probe_cpu.busy_notes(None) == ()


def test_limits_print_rates_as_rates_and_a_line_a_note():
    text = str(LIMITS)
    assert "peak            float32: 200 GFLOP/s" in text
    assert "product         float32: 100 GFLOP/s" in text
    assert text.splitlines()[0] == "MachineLimits"
    assert text.splitlines()[-2:] == ["  note: one <note>", "  note: another"]
    assert "working set" not in text
    html = LIMITS._repr_html_()
    assert "<li>one &lt;note&gt;</li>" in html
    assert "<b>MachineLimits</b>" in html


def test_limits_of_which_any_did_not_repeat_contradict_no_claim():
    assert not LIMITS.stable
    assert dataclasses.replace(LIMITS, unstable=()).stable
    assert not LIMITS.resting_on("L1 latency", "float32 peak").stable
    assert LIMITS.resting_on("float32 peak", "float32 product").stable
    with pytest.raises(ValueError, match="L7 latency"):
        LIMITS.resting_on("L7 latency")
