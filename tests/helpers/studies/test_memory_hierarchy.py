"""The room of lesson 01: a simulated machine is measured, published waits are computed by hand,
figures are read.
"""

import statistics
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from helpers import hardware, native, plotting
from helpers.hardware._devices import devices
from helpers.studies import memory_hierarchy, sending
from helpers.studies.memory_hierarchy import Waits, _measuring as measuring
from tests.explored import at

KIB, MIB = 2**10, 2**20
SIZES = [256 * KIB, MIB, 4 * MIB]


class Machine:
    """A machine whose one cache holds 1 MiB: a load takes 10 ns from it, 100 ns from memory, 2 ns
    in order.

    ``slow`` makes every load of the pass with that number twice as slow.
    """

    def __init__(self, monkeypatch, *, held_bytes=MIB, slow=None):
        self.now_s, self.held_bytes, self.slow, self.links = 0.0, held_bytes, slow, []
        self.orders = []
        self.out_of_caches = 0  # lines that were flushed and not walked since
        monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: self.now_s))

    def flush(self, lines):
        self.out_of_caches = len(lines)

    def link(self, lines, random):
        self.links.append(lines.nbytes)

    def walk(self, lines, line, loads):
        cold = min(loads, self.out_of_caches)
        self.out_of_caches -= cold
        warm_s = 10e-9 if lines.nbytes <= self.held_bytes else 100e-9
        passed = (len(self.links) - 1) // len(SIZES)
        self.now_s += (cold * 100e-9 + (loads - cold) * warm_s) * (2 if passed == self.slow else 1)
        return (line + loads) % len(lines)

    def in_order(self, lines, times):
        self.now_s += 2e-9 * len(lines) * times

    def gather(self, lines, order):
        self.orders.append(order)
        self.now_s += 7e-9 * len(order)


def measured(machine, **options) -> Waits:
    buffers = {"only": np.zeros((4 * MIB // 64, 8), np.uint64)}
    return memory_hierarchy.measure_waits(
        machine.walk, machine.link, buffers, sizes_bytes=SIZES, **options
    )["only"]


def test_the_waits_are_those_of_the_machine(monkeypatch):
    machine = Machine(monkeypatch)
    waits = measured(machine, flush=machine.flush, in_order=machine.in_order)
    assert waits.sizes_bytes == tuple(SIZES)
    assert waits.chase_s == pytest.approx((10e-9, 10e-9, 100e-9))
    assert waits.flushed_s == pytest.approx((100e-9,) * 3)
    assert waits.in_order_s == pytest.approx((2e-9,) * 3)
    assert (waits.held_bytes, waits.memory_s, waits.stable) == (MIB, pytest.approx(100e-9), True)
    assert machine.links == 2 * SIZES


def test_a_known_random_order_reads_every_line_once_a_pass(monkeypatch):
    machine = Machine(monkeypatch)
    waits = measured(machine, gather=machine.gather)
    assert waits.gathered_s == pytest.approx((7e-9,) * 3)
    assert [len(order) for order in machine.orders] == 2 * [size // 64 for size in SIZES]
    for order in machine.orders:
        assert sorted(order.tolist()) == list(range(len(order)))
        # two random places
        assert abs(np.diff(order)).mean() == pytest.approx(len(order) / 3, rel=0.1)


def test_a_long_known_order_is_read_in_pieces_that_share_no_line(monkeypatch):
    machine = Machine(monkeypatch)
    monkeypatch.setattr(measuring, "_GATHERED", 1000)
    waits = measured(machine, gather=machine.gather, passes=1)
    assert waits.gathered_s == pytest.approx((7e-9,) * 3)
    assert {len(order) for order in machine.orders} == {1000}
    assert len(machine.orders) == 4 + 16 + 25
    assert len(set(np.concatenate(machine.orders[-25:]).tolist())) == 25_000


def test_without_a_flush_nothing_is_said_of_caches(monkeypatch):
    waits = measured(Machine(monkeypatch))
    assert (waits.flushed_s, waits.in_order_s, waits.held_bytes) == ((), (), None)
    assert waits.memory_s == pytest.approx(100e-9)


def test_where_nothing_can_be_flushed_the_chase_is_measured_all_the_same(monkeypatch):
    machine = Machine(monkeypatch)

    def refuse(_):
        raise native.MissingToolError("no compiler", "install one")

    waits = measured(machine, flush=refuse)
    assert (waits.flushed_s, waits.held_bytes, len(waits.chase_s)) == ((), None, 3)


def test_a_flush_that_changes_nothing_names_no_cache(monkeypatch):
    machine = Machine(monkeypatch, held_bytes=0)
    assert measured(machine, flush=machine.flush).held_bytes is None


def test_a_slow_pass_leaves_the_fastest_and_is_not_stable(monkeypatch):
    waits = measured(Machine(monkeypatch, slow=1))
    assert waits.chase_s == pytest.approx((10e-9, 10e-9, 100e-9))
    assert not waits.stable


def test_a_cache_ends_at_the_first_size_that_a_flush_does_not_slow():
    waits = Waits((1, 2, 4, 8), (1.0, 1.0, 1.0, 0.5), (9.0, 1.5, 1.4, 2.0))
    assert waits.held_bytes == 2


def test_the_published_waits_are_cycles_over_the_clock():
    chip = memory_hierarchy.gpu_wait("GA102")
    assert [round(1e9 * seconds, 1) for seconds in (chip.l1_s, chip.l2_s, chip.memory_s)] == [
        19.2,
        143.9,
        319.8,
    ]
    with pytest.raises(
        ValueError,
        match=r"no chase on 'GA104' is published here; there is one on GV100, GA100, GA102",
    ):
        memory_hierarchy.gpu_wait("GA104")


class Limits(SimpleNamespace):
    """In place of the probe's result."""


def limits(latencies):
    return Limits(latencies=latencies)


def test_gpus_are_this_machines_and_those_that_were_sent_in(monkeypatch):
    recordings = [
        SimpleNamespace(lesson=lesson, result=lambda name, lesson=lesson: limits([name, lesson]))
        for lesson in ("00", "01")
    ]
    monkeypatch.setattr(
        sending, "gpus", lambda: (SimpleNamespace(device="T4", recordings=recordings),)
    )
    monkeypatch.setattr(hardware, "MachineLimits", Limits)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert {name: found.latencies for name, found in memory_hierarchy.gpu_limits().items()} == {
        "T4 (sent in)": ["limits", "01"]
    }
    monkeypatch.setattr(sending, "gpus", lambda: ())
    assert memory_hierarchy.gpu_limits() == {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H100")
    for latencies, names in (([1], ["H100 (here)"]), ([], [])):
        monkeypatch.setattr(
            hardware, "probe", lambda *, device, latencies=latencies: limits(latencies)
        )
        assert list(memory_hierarchy.gpu_limits()) == names


def explored(monkeypatch, **setting):
    figure = {}
    monkeypatch.setattr(plotting, "explore", lambda **given: figure.update(given))
    memory_hierarchy.explore_threads()
    return at(figure["inputs"], figure["formulas"], **setting)


@pytest.mark.parametrize(
    ("gpu", "load", "share", "reaches"),
    [
        ("RTX 3090", "one float32", 60, True),
        ("RTX 3090", "one float32", 55, False),
        ("H100", "one float32", 100, False),
        ("H100", "4 float32", 30, True),
        ("H100", "4 float32", 25, False),
        ("A100 80 GB", "one float32", 100, True),
        ("V100", "one float32", 100, True),
    ],
)
def test_of_the_gpus_to_turn_only_the_h100_has_too_few_threads(
    monkeypatch, gpu, load, share, reaches
):
    values = explored(monkeypatch, gpu=gpu, load=load, share=share)
    assert (values["reached"] == values["published"]) is reaches


def test_the_figure_to_turn_can_be_shown():
    memory_hierarchy.explore_threads()


WAITS = Waits(
    (32 * KIB, MIB, 64 * MIB), (1e-9, 5e-9, 9e-8), (8e-8, 8e-8, 9e-8), (5e-10, 1e-9, 4e-9)
)


def labels(drawn):
    return [text.get_text() for text in drawn.axes[0].get_legend().get_texts()]


def test_the_chase_is_drawn_with_the_flush_and_the_stated_caches():
    drawn = memory_hierarchy.draw_waits(WAITS, caches={"L1": 48 * KIB, "L2": 2 * MIB})
    assert len(labels(drawn)) == 2
    # 80 over 5 in 1 MiB
    assert {"L1", "L2", " 16.0 times "} <= {text.get_text() for text in drawn.axes[0].texts}
    alone = Waits(WAITS.sizes_bytes, WAITS.chase_s)
    assert labels(memory_hierarchy.draw_waits(alone, caches={})) == ["round and round (measured)"]


def test_both_kinds_of_pages_are_drawn():
    drawn = memory_hierarchy.draw_pages({"4 KiB": WAITS, "2 MiB": WAITS}, covered_bytes=8 * MIB)
    assert labels(drawn) == ["pages of 4 KiB (measured)", "pages of 2 MiB (measured)"]
    assert drawn.axes[0].yaxis.get_major_formatter()(5e-8, 0) == "50 ns"


def test_the_arrows_say_how_many_times_as_long_the_chase_takes():
    texts = [text.get_text().strip() for text in memory_hierarchy.draw_orders(WAITS).axes[0].texts]
    assert [text for text in texts if text] == ["2 times", "22 times"]  # 1 / 0.5, and 90 / 4


def test_the_model_of_the_chases_is_a_round_for_each_set_of_buffers():
    drawn = memory_hierarchy.draw_chases((1, 16, 32, 64), measured=[1, 1.2, 2.1, 4.4], buffers=16)
    modelled, points = drawn.axes[0].lines
    assert modelled.get_ydata().tolist() == [1, 1, 2, 4]
    assert points.get_ydata().tolist() == [1, 1.2, 2.1, 4.4]


def test_a_thread_computes_for_one_step_in_ten():
    bars = memory_hierarchy.draw_threads().axes[0].collections
    widths = [np.ptp(bar.get_paths()[0].vertices[:, 0]) for bar in bars]
    assert len(bars) == 2 * 4 * (1 + 4 + 10)
    assert sum(widths[::2]) * 9 == sum(widths[1::2])


def test_a_row_is_one_line_and_a_column_sixteen():
    assert {"a row: 1 line", "a column: 16 lines"} == {
        text.get_text() for text in memory_hierarchy.draw_lines().axes[0].texts
    }


def test_the_published_gpu_is_drawn_beside_the_core_and_the_gpus_that_were_measured():
    points = [SimpleNamespace(working_set_bytes=size, latency_s=3e-7) for size in (MIB, 64 * MIB)]
    drawn = memory_hierarchy.draw_gpus(WAITS, {"T4 (sent in)": limits(points)})
    assert labels(drawn)[1:] == ["T4 (sent in) (measured)", "this core (measured)"]
    steps = drawn.axes[0].lines[0]
    assert steps.get_xdata().tolist()[1:5] == [128 * KIB, 128 * KIB, 6 * MIB, 6 * MIB]
    assert steps.get_ydata()[-1] == pytest.approx(319.8e-9, rel=1e-3)


def test_the_inversion_is_computed_and_ends_where_second_levels_grew():
    known = [one for one in devices() if one.register_bytes is not None]
    rows = memory_hierarchy.memory_inversion([one.name for one in known])
    assert [row.name for row in rows] == [one.name for one in known]
    ratios = {row.name: row.registers_to_l2_ratio for row in rows}
    assert ratios["V100 SXM2"] == pytest.approx(20480 / 6144)
    assert ratios["A100 SXM 40 GB"] == pytest.approx(27648 / 40960)
    for name in ("GeForce GTX 580", "V100 SXM2", "GeForce RTX 3090"):
        assert ratios[name] > 1
    for name in ("A100 SXM 40 GB", "GeForce RTX 4090", "B200 SXM"):
        assert ratios[name] < 1
    gpus, processors = ([row for row in rows if row.kind == kind] for kind in ("gpu", "cpu"))
    assert len(gpus) >= 8
    assert len(processors) >= 2
    assert all(row.registers_to_l2_ratio < 1 for row in processors)
    of_gpus, of_processors = (
        statistics.median(row.registers_to_l2_ratio for row in kind if row.registers_to_l2_ratio)
        for kind in (gpus, processors)
    )
    assert of_gpus > 20 * of_processors


def test_an_inversion_that_is_unknown_is_printed_so_and_one_name_is_no_list():
    (unknown,) = memory_hierarchy.memory_inversion(["EPYC 9654"])
    assert unknown.registers_to_l2_ratio is None
    assert "unknown" in str(unknown)
    with pytest.raises(TypeError, match=r"a list of names, such as \['H200'\]"):
        memory_hierarchy.memory_inversion("H200")
