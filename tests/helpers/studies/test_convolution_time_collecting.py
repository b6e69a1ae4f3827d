"""What is collected: times of a processor, both passes, programs by oneDNN's log; kept and read
back unchanged.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import time

import numpy as np
import pytest
import torch

from helpers import recorded, results, timing
from helpers.isolation import Outcome
from helpers.studies.convolution_time import (
    ALGORITHMS,
    TERMS,
    WINOGRAD,
    ConvolutionShape,
    _collecting as collecting,
    collect,
    errors,
    fit,
    hold_out_networks,
    program_of,
    random_shapes,
    recorded_shapes,
    why_not,
)

SMALL = ConvolutionShape(1, 8, 8, 8, 8, kernel=3, stride=1, padding=1)
PRODUCT = ConvolutionShape(2, 16, 8, 8, 16, kernel=1, stride=1, padding=0)
BLOCKED = ConvolutionShape(2, 16, 12, 12, 16, kernel=3, stride=2, padding=1)


@pytest.fixture(scope="module")
def times():
    return collect([SMALL, PRODUCT, BLOCKED], networks={"a": [BLOCKED, SMALL, BLOCKED]})


def test_every_program_that_serves_is_timed_twice(times):
    assert times.shapes == [SMALL, PRODUCT, BLOCKED]
    for name in ALGORITHMS:
        served = [not why_not(name, shape) for shape in times.shapes]
        first, second, both = (times.times_s(name, of=of) for of in ("first", "second", "both"))
        assert (np.isfinite(first) == served).all()
        assert (np.isfinite(second) == served).all()
        assert (both[served] == np.minimum(first, second)[served]).all()
        assert (both[served] > 1e-7).all()
    assert (
        times.timed
        == times.noise.predictions
        == sum(not why_not(n, s) for n in ALGORITHMS for s in times.shapes)
    )


def test_which_program_ran_is_that_of_the_log(times):
    if not torch.backends.mkldnn.is_available():
        assert set(times.programs("direct")) == {"unknown"}
        return
    assert times.instruction_set != "unknown"
    for name in ("direct", "channels_last"):
        own, product, blocked = times.programs(name)
        assert (own, product) == ("im2col and product", "matrix product")
        assert blocked.endswith(" reorders")
    assert times.programs("fft") == ["fft"] * 3


def test_networks_and_table(times):
    assert times.network_shapes == {"a": [BLOCKED, SMALL, BLOCKED]}
    table = times.table()
    assert list(table["kernel"]) == [3, 1, 3]
    assert list(table["direct_s"]) == list(times.times_s("direct"))
    assert math.isnan(table["winograd_2_s"][1])


def test_a_recording_brings_the_same_times_back(times):
    module, function = recorded.RECORDERS["20-cpu"]["convolutions"].split(":")
    assert getattr(importlib.import_module(module), function) is collecting.measure_networks
    kept = recorded._public_name(type(times))
    assert kept == "helpers.studies.convolution_time:ConvolutionTimes"
    again = results.from_dict(recorded._result_type(kept), json.loads(times.to_json()))
    assert again == times
    assert again.network_shapes == times.network_shapes


LOG = """
convolution_time 0 direct
onednn_verbose,v1,info,oneDNN v3.12.0 (commit 80afa71)
onednn_verbose,v1,info,cpu,isa:Intel AVX2
onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,prop_kind,memory_descriptors,\
attributes,auxiliary,problem_desc,exec_time
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:abcd::f0 dst:f32::blocked:Acdb8a::f0,,,\
64x3x7x7,0.03
onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx2,forward_training,src:f32:a:blocked:abcd::f0 \
wei:f32:a:blocked:Acdb8a::f0 dst:f32:a:blocked:aBcd8b::f0,,alg:convolution_direct,mb1_ic3oc64,4.5
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:blk,undef,src:f32::blocked:aBcd8b::f0 dst:f32::blocked:abcd::f0,,,\
1x64x112x112,2.3

convolution_time 0 channels_last
onednn_verbose,v1,primitive,exec,cpu,convolution,brg_conv_fwd:avx2,forward_training,src:f32::blocked:acdb::f0 \
wei:f32:a:blocked:Acdb8a::f0 dst:f32::blocked:acdb::f0,,alg:convolution_direct,mb1_ic3oc64,4.2

convolution_time 1 direct

convolution_time 1 channels_last
"""  # noqa: E501


def test_a_log_is_read_call_by_call():
    found, instruction_set = collecting._read_programs([LOG], [SMALL, PRODUCT])
    assert instruction_set == "Intel AVX2"
    assert found == [
        ["jit:avx2 + 2 reorders", "brg_conv_fwd:avx2 + 0 reorders"],
        ["matrix product"] * 2,
    ]
    assert collecting._read_programs([""], [SMALL])[0] == [["unknown"] * 2]


def test_times_are_the_processors_and_not_the_clocks(monkeypatch):
    def asleep():
        time.sleep(0.01)

    assert collecting._least_s(asleep) < 0.005
    monkeypatch.setattr(collecting.time, "process_time", time.perf_counter)
    assert collecting._least_s(asleep) >= 0.01


@pytest.fixture
def _as_it_is(monkeypatch):
    """Let what is meant for a process of its own change nothing of this one."""
    monkeypatch.setattr(timing, "steady_allocator", lambda: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(collecting.gc, "disable", lambda: None)


@pytest.mark.usefixtures("_as_it_is")
def test_the_second_pass_goes_the_other_way_round():
    first, second = (
        collecting._time_shapes([SMALL], ["direct", "im2col", "fft"], which)
        for which in (True, False)
    )
    assert [list(found) for (found,) in (first, second)] == [
        ["direct", "im2col", "fft"],
        ["fft", "im2col", "direct"],
    ]


@pytest.mark.usefixtures("_as_it_is")
def test_a_wrong_program_is_not_timed(monkeypatch):
    wrong = [[list(row) for row in matrix] for matrix in WINOGRAD[2]]
    wrong[0][1][1] = -1
    monkeypatch.setitem(WINOGRAD, 2, wrong)
    with pytest.raises(
        RuntimeError, match=r"winograd_2 is .* of the largest output .*; nothing was timed"
    ):
        collecting._time_shapes([SMALL], ["direct", "winograd_2"], True)


def test_both_passes_are_over_all_and_apart(monkeypatch):
    asked = []

    def answered(function, shapes, names, is_first, *, timeout_s):
        asked.append((is_first, len(shapes)))
        value = [dict.fromkeys(names, 2e-3 if is_first else 1e-3) for _ in shapes]
        return Outcome(status="returned", message="", elapsed_s=0.0, peak_bytes=0, value=value)

    monkeypatch.setattr(collecting.isolation, "run_limited", answered)
    found = collect(random_shapes(60), algorithms=["direct", "fft"])
    assert asked == [(which, size) for which in (True, False) for size in (24, 24, 12)]
    assert (found.timed, found.noise.mape_share) == (120, 1.0)
    assert set(found.times_s("fft")) == {1e-3}


def test_the_limit_is_for_all_together(monkeypatch):
    clock = iter(range(0, 1000, 40))
    monkeypatch.setattr(collecting.time, "monotonic", lambda: next(clock))
    left = []

    def answered(function, shapes, names, is_first, *, timeout_s):
        left.append(timeout_s)
        status = "returned" if timeout_s > 1 else "timed_out"
        value = [dict.fromkeys(names, 1e-3) for _ in shapes]
        return Outcome(status=status, message="", elapsed_s=0.0, peak_bytes=0, value=value)

    monkeypatch.setattr(collecting.isolation, "run_limited", answered)
    with pytest.raises(
        TimeoutError, match=r"after limit_s=100 2 of 6 parts were timed; give fewer shapes"
    ):
        collect(random_shapes(60), algorithms=["direct"], limit_s=100)
    assert left == [60, 20, 1e-3]


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: collect([]), ValueError, "shapes is empty"),
        (
            lambda: collect([SMALL, SMALL]),
            ValueError,
            "of the 2 shapes 1 stand there twice; give each once",
        ),
        (
            lambda: collect([SMALL], algorithms=["direct", "gemm"]),
            ValueError,
            "algorithms='gemm' is not known",
        ),
        (
            lambda: collect([SMALL], algorithms=[]),
            ValueError,
            "algorithms=[] serve none of the shapes; give some",
        ),
        (
            lambda: collect([PRODUCT], algorithms=["winograd_4"]),
            ValueError,
            "['winograd_4'] serve none of the shapes",
        ),
        (lambda: collect([SMALL], algorithms="fft"), TypeError, "algorithms='fft' is text"),
        (
            lambda: collect([SMALL], networks={"a": [BLOCKED]}),
            ValueError,
            "1 convolutions of a are not among",
        ),
        (
            lambda: collect([SMALL], limit_s=0),
            ValueError,
            "limit_s=0; give a finite number above 0",
        ),
    ],
)
def test_refused(call, kind, words):
    with pytest.raises(kind) as raised:
        call()
    assert words in str(raised.value)


def test_what_was_not_collected_is_refused(times):
    with pytest.raises(ValueError, match="algorithm='gemm' is not known; give one of 'direct'"):
        times.times_s("gemm")
    with pytest.raises(
        ValueError, match="of='third' is not known; give one of 'first', 'second', 'both'"
    ):
        times.times_s("direct", of="third")


# The recording's size, and the lesson's way through it, on a machine that is known.

RATES = dict(
    zip(
        TERMS,
        (5e-6, 1e-11, 1e-11, 3e-12, 1e-10, 5e-11, 2e-10, 3e-11, 4e-12, 1e-12, 2e-12),
        strict=True,
    )
)
SPEEDS = dict(zip(ALGORITHMS, (1, 0.9, 1.5, 1.7, 9, 1.2, 1.1, 0.8), strict=True))


@pytest.fixture(scope="module")
def synthetic():
    """336 shapes of a machine that does not exist: known coefficients, 3 % of noise, three
    programs.
    """
    pytest.importorskip("torchvision")
    shapes, networks = recorded_shapes()
    draw = np.random.default_rng(0)
    rows = []
    for shape in shapes:
        slow = {"blocked": 1, "matrix product": 0.4, "im2col and product": 2}[program_of(shape)]
        exact_s = slow * sum(seconds * TERMS[term](shape) for term, seconds in RATES.items())
        pairs = [
            None if why_not(name, shape) else tuple(exact_s * speed * draw.lognormal(0, 0.03, 2))
            for name, speed in SPEEDS.items()
        ]
        rows.append(collecting._row(shape, pairs, ["brgconv_1x1:avx512_core + 3 reorders"] * 2))
    return collecting.ConvolutionTimes(
        algorithms=tuple(ALGORITHMS),
        timed=0,
        elapsed_s=1.0,
        instruction_set="none",
        noise=errors([1], [1]),
        networks=collecting._locate_networks(shapes, networks),
        rows=tuple(rows),
    )


def test_the_recording_stays_below_100_kb(synthetic):
    assert len(synthetic.shapes) == len(set(synthetic.shapes)) == 336
    assert len({shape for owned in synthetic.network_shapes.values() for shape in owned}) == 186
    entry = {"type": "", "values": synthetic.to_dict()}
    # the machine's card is 2 kB
    assert len(json.dumps({"entries": {"convolutions": entry}}, indent=1)) < 95_000
    assert results.from_dict(type(synthetic), json.loads(synthetic.to_json())) == synthetic


def test_what_is_recorded_holds_the_cores_peak_before_or_after_and_none_without_a_compiler(
    synthetic, monkeypatch
):
    peaks = iter([2e9, 3e9])
    monkeypatch.setattr(collecting, "collect", lambda *_, **__: synthetic)
    monkeypatch.setattr(collecting.multiply_adds, "compile_forms", dict)
    monkeypatch.setattr(collecting.multiply_adds, "core_flops", lambda *_, **__: next(peaks))
    assert collecting.measure_networks() == dataclasses.replace(synthetic, peak_flops_per_s=3e9)
    monkeypatch.undo()
    monkeypatch.setattr(collecting, "collect", lambda *_, **__: synthetic)
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    assert collecting.measure_networks().peak_flops_per_s is None
    older = {
        name: value for name, value in synthetic.to_dict().items() if name != "peak_flops_per_s"
    }
    assert results.from_dict(type(synthetic), older) == synthetic


def test_held_out_networks_are_predicted_within_the_noise_and_chosen_for(synthetic):
    """Physical models come within the noise; FLOPs alone stay far above; the program that is
    fastest is chosen.
    """
    shapes = synthetic.shapes
    direct, flops, physical = synthetic.times_s("direct", of="first"), [], []
    for split in hold_out_networks(shapes, synthetic.network_shapes):
        train, test = ([shapes[place] for place in places] for places in (split.train, split.test))
        for name, found in (("flops", flops), ("physical", physical)):
            model = fit(name, train, direct[split.train])
            found.append(
                errors(model.predict(test), synthetic.times_s("direct", of="second")[split.test])
            )
    assert max(each.rmspe_share for each in physical) < 0.08
    assert min(each.rmspe_share for each in flops) > 0.15
    assert all(abs(each.total_share) < 0.1 for each in physical)
    offered = ("direct", "channels_last", "im2col")
    models = {
        name: fit("physical", shapes, synthetic.times_s(name, of="first")) for name in offered
    }
    predicted = np.array([models[name].predict(shapes) for name in offered])
    chosen = [offered[place] for place in predicted.argmin(axis=0)]
    second = {name: synthetic.times_s(name, of="second") for name in offered}
    fastest_s = sum(map(min, *second.values()))
    chosen_s = sum(second[name][place] for place, name in enumerate(chosen))
    assert chosen_s < 1.03 * fastest_s < sum(second["direct"])
