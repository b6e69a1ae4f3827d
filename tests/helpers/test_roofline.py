"""The roofline: exact on machines made by hand, and on this one the lecture's faulty product is
found out.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from helpers.hardware._devices import Device, Peak, Source
from helpers.hardware.limits._results import MachineLimits, MemoryLevel
from helpers.models import LeNet
from helpers.operations import profile_ops
from helpers.profiling import LayerTime, TimeProfile
from helpers.results import from_dict
from helpers.roofline import (
    DatasheetRoof,
    RooflinePoint,
    Workload,
    datasheet_roof,
    model,
    roofline,
    workload_of,
)
from helpers.roofline._modelling import count, join
from tests.properties import repeatable

SOURCE = Source("made up for a test", "", "reference", "2026-01-01")
KIB, MIB = 2**10, 2**20
LEVELS = (
    MemoryLevel("L1", 32 * KIB, 1e-9, 200e9),
    MemoryLevel("L2", MIB, 4e-9, 100e9),
    MemoryLevel("memory", None, 100e-9, 25e9),
)


def limits(**changes) -> MachineLimits:
    """A machine of round numbers: ridge points at 0.5, 1 and 4 FLOP a byte in float32."""
    values = {
        "device": "cpu",
        "threads": torch.get_num_threads(),
        "date": "",
        "versions": {},
        "chase": "none",
        "memory_levels": LEVELS,
        "peak_flops": {"float32": 100e9, "float64": 50e9},
        "product_flops": {"float32": 80e9, "float64": 50e9},
        "call_overhead_s": 1e-6,
        "launch_s": None,
        "host_to_device_bytes_per_s": None,
        "device_to_host_bytes_per_s": None,
        "unstable": (),
        "notes": (),
        "latencies": (),
        "bandwidths": (),
    }
    return MachineLimits(**values | changes)


class Clock:
    """A clock that a function moves on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


# ---- the model -------------------------------------------------------------------------------------------------  # noqa: E501


def test_known_answers_on_both_sides_of_the_ridge():
    left = model(Workload("left", 2e9, 1e9), limits())
    assert (left.level, left.intensity_flops_per_byte, left.ridge_flops_per_byte) == (
        "memory",
        2,
        4,
    )
    assert (left.attainable_flops_per_s, left.regime) == (50e9, "memory-bound")
    assert (left.compute_s, left.memory_s) == (0.02, 0.04)
    assert left.modelled_s == pytest.approx(0.04 + 1e-6, rel=1e-12)
    right = model(Workload("right", 16e9, 1e9), limits())
    assert (right.attainable_flops_per_s, right.regime) == (100e9, "compute-bound")
    assert right.modelled_s == pytest.approx(0.16 + 1e-6, rel=1e-12)


RATES = st.floats(1e6, 1e15)


@repeatable(examples=100)
@given(
    st.floats(1, 1e15),
    st.floats(1, 1e12),
    RATES,
    RATES,
    st.integers(1, 1000),
    st.floats(0, 1e-3),
    st.booleans(),
)
def test_the_time_is_that_under_the_lower_roof_and_the_calls(
    flops, moved, peak, bandwidth, calls, call_s, on_cuda
):
    machine = limits(
        peak_flops={"float32": peak},
        memory_levels=(MemoryLevel("memory", None, 1e-7, bandwidth),),
        call_overhead_s=call_s,
        device="cuda:0" if on_cuda else "cpu",
    )
    point = model(Workload("w", flops, moved, calls=calls), machine)
    roof = min(peak, flops / moved * bandwidth)
    assert point.attainable_flops_per_s == pytest.approx(roof)
    assert point.modelled_s == pytest.approx(
        (max if on_cuda else float.__add__)(flops / roof, calls * call_s)
    )
    assert point.ridge_flops_per_byte == pytest.approx(peak / bandwidth)
    seconds = {
        "compute-bound": flops / peak,
        "memory-bound": moved / bandwidth,
        "overhead-bound": calls * call_s,
    }
    assert seconds[point.regime] == pytest.approx(max(seconds.values()))


def test_overhead_decides_where_it_is_longer_than_both():
    tiny = Workload("tiny", 1000, 1000)
    point = model(tiny, limits())
    assert point.regime == "overhead-bound"
    assert point.modelled_s == pytest.approx(1e-6 + 1e-8)
    assert point.modelled_flops_per_s < point.attainable_flops_per_s / 50
    assert model(dataclasses.replace(tiny, calls=7), limits()).overhead_s == pytest.approx(7e-6)


def test_on_cuda_calls_run_ahead_and_on_a_cpu_they_add():
    even = Workload("even", 1e5, 1e5 / 4, calls=1)  # 1 us of arithmetic, as long as the call
    assert model(even, limits()).modelled_s == pytest.approx(2e-6)
    assert model(even, limits(device="cuda:0")).modelled_s == pytest.approx(1e-6)


@repeatable(examples=100)
@given(st.lists(st.integers(1, 10**6), min_size=0, max_size=4, unique=True), st.data())
def test_the_level_is_the_smallest_that_holds_the_working_set(sizes, data):
    caches = [
        MemoryLevel(f"L{number}", size, 1e-9, 1e9)
        for number, size in enumerate(sorted(sizes), start=1)
    ]
    touched = data.draw(
        st.integers(1, 2 * 10**6) | st.sampled_from([*sizes, *(size + 1 for size in sizes), 1])
    )
    holding = [cache.name for cache in caches if cache.size_bytes >= touched]
    point = model(
        Workload("w", 1, data.draw(st.integers(touched, 10**7)), working_set_bytes=touched),
        limits(memory_levels=(*caches, LEVELS[-1])),
    )
    assert point.level == [*holding, "memory"][0]


def test_a_level_that_holds_less_than_its_size_is_left_where_it_is_full():
    shared = limits(
        memory_levels=(LEVELS[0], dataclasses.replace(LEVELS[1], holds_bytes=256 * KIB), LEVELS[2])
    )
    assert model(Workload("w", 1, 256 * KIB), shared).level == "L2"
    assert model(Workload("w", 1, 256 * KIB + 1), shared).level == "memory"
    assert model(Workload("w", 1, MIB), shared, level="L2").bandwidth_bytes_per_s == 100e9


def test_the_working_set_and_a_named_level_decide_before_the_bytes():
    again = Workload("ten passes", 1, 10 * 16 * KIB, working_set_bytes=16 * KIB)
    assert model(again, limits()).level == "L1"
    point = model(again, limits(), level="memory")
    assert (point.level, point.bandwidth_bytes_per_s) == ("memory", 25e9)


def test_a_level_without_a_bandwidth_is_passed_over_and_the_point_says_which_was_taken():
    unknown = limits(
        memory_levels=(MemoryLevel("L1", 32 * KIB, None, None), *LEVELS[1:]), notes=("no compiler",)
    )
    assert model(Workload("w", 1, 100), unknown).level == "L2"
    with pytest.raises(
        ValueError, match=r"bandwidth of L1 could not be measured here \(no compiler\)"
    ):
        model(Workload("w", 1, 100), unknown, level="L1")
    blind = limits(memory_levels=(MemoryLevel("memory", None, None, None),))
    with pytest.raises(ValueError, match="bandwidth of memory could not be measured"):
        model(Workload("w", 1, 100), blind)


def test_errors_name_what_there_is():
    with pytest.raises(ValueError, match=r"no peak was measured for 'int8'.*float32, float64"):
        model(Workload("w", 1, 1, "int8"), limits())
    with pytest.raises(ValueError, match="no level 'L7'; this machine has L1, L2, memory"):
        model(Workload("w", 1, 1), limits(), level="L7")
    with pytest.raises(ValueError, match="'w' moves no bytes, so it has no arithmetic intensity"):
        Workload("w", 1, 0)
    with pytest.raises(ValueError, match="flops of 'w'=-1; give a finite number, 0 or more"):
        Workload("w", -1, 1)
    with pytest.raises(ValueError, match="flops of 'w'=inf"):
        Workload("w", math.inf, 1)
    with pytest.raises(ValueError, match="calls of 'w'=0; give a finite number, 1 or more"):
        Workload("w", 1, 1, calls=0)
    with pytest.raises(ValueError, match="each byte of the working set moves at least once"):
        Workload("w", 1, 10, working_set_bytes=11)
    with pytest.raises(TypeError, match="moved_bytes of 'w'='3 MB' is text"):
        Workload("w", 1, "3 MB")
    with pytest.raises(TypeError, match="works on a Workload, not on LeNet"):
        model(LeNet(), limits())


def test_a_point_prints_its_units_and_comes_back_from_a_dictionary():
    point = model(Workload("w", 2e9, 1e9), limits())
    assert from_dict(RooflinePoint, point.to_dict()) == point
    assert "50.0 GFLOP/s" in str(point)
    assert "2 FLOP/B" in str(point).replace("2.00", "2")


def test_a_datasheet_roof_needs_both_numbers():
    assert DatasheetRoof("d", "float32", 8e12, 2e12).ridge_flops_per_byte == 4
    with pytest.raises(
        TypeError, match="the bandwidth_bytes_per_s of d=None is None; give a finite number above 0"
    ):
        DatasheetRoof("d", "float32", 8e12, None)


def test_the_datasheet_roof_of_a_device_is_its_dense_peak_and_its_bandwidth():
    sheet = Peak("float16", "matrix", 2e14, 4e14, SOURCE)
    known = Device("card", "gpu", memory_bandwidth_bytes_per_s=1e12, peaks=(sheet,))
    assert datasheet_roof(known, "float16") == DatasheetRoof("card", "float16", 2e14, 1e12)
    with pytest.raises(
        ValueError, match="dense peak of card in float32 is unknown; known are float16"
    ):
        datasheet_roof(known)
    with pytest.raises(ValueError, match="in float16 on its vector units is unknown"):
        datasheet_roof(known, "float16", unit="vector")
    with pytest.raises(ValueError, match="memory bandwidth of card is unknown"):
        datasheet_roof(dataclasses.replace(known, memory_bandwidth_bytes_per_s=None), "float16")


# ---- workloads from counts -------------------------------------------------------------------------------------  # noqa: E501


def test_workloads_of_a_linear_layer_are_those_by_hand():
    counted = profile_ops(nn.Sequential(nn.Linear(100, 50, bias=False)), (8, 100))
    work = workload_of(counted.layer("0"))
    assert (work.flops, work.moved_bytes, work.calls) == (
        2 * 8 * 100 * 50,
        4 * (8 * 100 + 100 * 50 + 8 * 50),
        1,
    )
    back = workload_of(counted.layer("0"), training=True)
    assert back.flops == 2 * work.flops  # the input needs no gradient: one product there, one back
    assert back.moved_bytes > work.moved_bytes
    assert back.calls == 3
    whole = workload_of(counted, name="net", dtype="float64")
    assert (whole.name, whole.flops, whole.moved_bytes, whole.dtype) == (
        "net",
        work.flops,
        work.moved_bytes,
        "float64",
    )
    product = next(row for row in counted.operators if row.phase == "forward" and row.macs)
    assert workload_of(product).flops == work.flops
    with pytest.raises(TypeError, match=r"workload_of takes what profile_ops returns.*not str"):
        workload_of("Linear")


def test_a_whole_profile_has_the_calls_of_its_operators():
    counted = profile_ops(LeNet(), (4, 1, 28, 28))
    forward = sum(row.calls for row in counted.operators if row.phase == "forward")
    assert workload_of(counted).calls == forward >= 11
    assert workload_of(counted, training=True).calls > forward


# ---- measured points -------------------------------------------------------------------------------------------  # noqa: E501


def test_limits_of_another_device_or_thread_count_are_refused():
    other = limits(threads=torch.get_num_threads() + 1)
    with pytest.raises(
        ValueError,
        match=r"measured with \d+ threads, and PyTorch now uses \d+; call probe\(\) again",
    ):
        roofline(LeNet(), (1, 1, 28, 28), other)
    with pytest.raises(
        ValueError,
        match="measured on cuda:0, and this runs on cpu; measure the limits of cpu first",
    ):
        roofline(LeNet(), (1, 1, 28, 28), limits(device="cuda:0"))
    # modelling another machine is what limits are for
    assert model(Workload("w", 1, 1), other).modelled_s > 0


def timed(rows, **changes) -> TimeProfile:
    values = {
        "model": "LeNet",
        "input": "",
        "device": "cpu",
        "threads": 1,
        "training": False,
        "rounds": 5,
        "step_s": 1.0,
        "forward_s": 1.0,
        "backward_s": 0.0,
        "hooked_step_s": 1.0,
        "plain_step_s": 1.0,
        "overhead_ratio": 1.0,
        "profiled_step_s": 1.0,
        "waiting_share": None,
        "operators": (),
    }
    layers = tuple(
        LayerTime(layer, "kind", depth, 1, total, 0.0, total, 0.1) for layer, depth, total in rows
    )
    return TimeProfile(**values | changes, layers=layers)


def test_counts_and_times_of_the_same_layers_come_together():
    counted = profile_ops(LeNet(), (1, 1, 28, 28))
    rows = [
        ("", 0, 6e-3),
        ("conv1", 1, 1e-3),
        ("flatten", 1, 2e-3),
        ("fc1", 1, 3e-3),
        ("(unaccounted)", 0, 4e-3),
    ]
    profile = join(counted, timed(rows), limits(), dtype="float32")
    assert [row.layer for row in profile.layers] == ["conv1", "fc1"]
    assert profile.left_out == ("flatten", "(unaccounted)")
    assert profile.left_out_s == pytest.approx(6e-3)
    assert profile.measured_s == pytest.approx(4e-3)
    conv = profile.layer("conv1")
    assert conv.flops == counted.layer("conv1").forward_flops
    assert conv.moved_bytes == 3136 + 624 + 13824  # batch 1: input, weights and bias, output
    assert conv.time_ratio == pytest.approx(
        1e-3 / model(workload_of(counted.layer("conv1")), limits()).modelled_s
    )
    with pytest.raises(KeyError, match="no layer 'fc9'; the layers are 'conv1', 'fc1'"):
        profile.layer("fc9")
    with pytest.raises(ValueError, match="no layer of Other both moves bytes and was timed"):
        join(counted, timed([("elsewhere", 0, 1.0)], model="Other"), limits(), dtype="float32")


@pytest.mark.parametrize("training", [False, True])
def test_every_layer_of_a_model_is_a_point_and_the_model_comes_back(training):
    net = LeNet()
    net.train(not training)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    profile = roofline(net, (8, 1, 28, 28), limits(), training, budget_s=0.05)
    counted = count(net, (8, 1, 28, 28), training=training)
    flops = counted.forward_flops + training * counted.backward_flops
    assert sum(row.flops for row in profile.layers) == flops
    assert {row.layer for row in profile.layers} >= {
        "conv1",
        "relu1",
        "pool1",
        "conv2",
        "fc1",
        "fc2",
        "fc3",
    }
    assert all(row.measured_s > 0 and row.modelled_s > 0 for row in profile.layers)
    assert profile.measured_s == pytest.approx(sum(row.measured_s for row in profile.layers))
    assert len(profile.table()) == len(profile.layers)
    assert all(module.training != training for module in net.modules())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_what_cannot_be_placed_is_refused_before_anything_is_timed(monkeypatch):
    def never(*_, **__):
        raise AssertionError("timed")

    monkeypatch.setattr("helpers.profiling.profile_time", never)
    with pytest.raises(
        ValueError,
        match="no peak was measured for 'float16' on this machine; there is one for float3",
    ):
        roofline(nn.Linear(8, 8).half(), torch.rand(4, 8).half(), limits())
    for call in (
        lambda: roofline(nn.Linear(8, 8), (4, 8), None),
        lambda: model(Workload("w", 1, 1), limits),
    ):
        with pytest.raises(
            TypeError, match=r"limits are what helpers\.probe\(\) returns, not (NoneType|function)"
        ):
            call()
    with pytest.raises(TypeError, match=r"a device of the table, such as .* not 'H200'"):
        datasheet_roof("H200")
    with pytest.raises(ValueError, match=r"calls of 'w' must be a whole number, got 1\.5"):
        Workload("w", 1, 1, calls=1.5)


def test_a_model_of_views_alone_is_told_so():
    with pytest.raises(ValueError, match="views alone move none"):
        roofline(nn.Flatten(), (4, 1, 8, 8), limits(), budget_s=0.02)


def test_dropout_counts_in_training_and_moves_nothing_in_evaluation():
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout())
    inputs = torch.rand(4, 8)
    assert "1" in roofline(net, inputs, limits(), budget_s=0.02).left_out
    assert "1" in {row.layer for row in roofline(net, inputs, limits(), True, budget_s=0.02).layers}
