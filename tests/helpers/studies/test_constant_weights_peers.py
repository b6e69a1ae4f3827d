"""The comparison with PyTorch and ONNX Runtime: what is measured is right, what is absent is named,
ratios exact.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
from types import SimpleNamespace

import pytest
import torch

from helpers import native, results
from helpers.studies.constant_weights import _peers as peers
from helpers.studies.constant_weights._network import (
    ACTIVATIONS,
    Dense,
    Network,
    exact_outputs,
    random_network,
)
from helpers.studies.constant_weights._programs import cpp_program
from tests.benchmarks import constant_weights as benchmark

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
NETWORK = random_network((4, 5, 2), ("relu", "sigmoid"), seed=2)
THREE = {name: peers.RAW[name] for name in (peers.CONSTEXPR, peers.SIZES, peers.TENTH)}


def _fails(network):
    raise OSError("no compiler\nand more lines")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_eager_fills_the_callers_tensor_whatever_its_last_activation(activation):
    network = random_network((4, 5, 3), ("relu", activation), seed=1)
    x, out = torch.randn(6, 4), torch.full((6, 3), torch.nan)
    with torch.inference_mode():
        peers._make_eager(network)(x, out)
    assert torch.allclose(out.double(), exact_outputs(network, x), atol=1e-6)


def test_a_network_of_one_layer_without_activation_has_an_eager_way():
    network = random_network((4, 3), ("identity",))
    x, out = torch.randn(6, 4), torch.full((6, 3), torch.nan)
    with torch.inference_mode():
        peers._make_eager(network)(x, out)
    assert torch.allclose(out.double(), exact_outputs(network, x), atol=1e-6)


def test_a_peer_that_does_not_work_is_named_and_one_that_is_wrong_stops_the_measurement(
    monkeypatch,
):
    monkeypatch.setattr(peers, "_make_compiled", _fails)
    monkeypatch.setattr(peers, "_make_onnx", _fails)
    x, out, absent = torch.randn(3, 4), torch.empty(3, 2), {}
    with torch.inference_mode():
        assert list(peers._peers(NETWORK, x, out, absent)) == [peers.EAGER]
        assert absent == dict.fromkeys((peers.COMPILED, peers.FROZEN, peers.ONNX), "no compiler")
        monkeypatch.setattr(
            peers, "_make_onnx", lambda network: lambda x, out: network.module()(x).numpy() + 1e-4
        )
        with pytest.raises(
            AssertionError, match=r"ONNX Runtime is 0\.0001 from float64, more than 1e-05"
        ):
            peers._peers(NETWORK, x, out, {})


def test_without_onnx_runtime_the_group_that_brings_it_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ModuleNotFoundError,
        match=r"onnxruntime and onnx not installed; .* installs the group peers",
    ):
        peers._make_onnx(NETWORK)


# the group peers; not in CI, so no skip
if all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime")):

    @pytest.mark.parametrize("activation", ACTIVATIONS)
    def test_the_onnx_model_is_the_network(activation):
        network = random_network((4, 5, 3), ("tanh", activation), seed=3)
        x = torch.randn(6, 4)
        found = torch.as_tensor(peers._make_onnx(network)(x, torch.empty(6, 3)))
        assert torch.allclose(found.double(), exact_outputs(network, x), atol=1e-6)


def test_the_figures_to_reach_are_ratios_of_what_was_measured_and_leave_out_what_was_not():
    """Those of a benchmark: what a lesson shows of a recorded run holds no figure that this project
    set itself.
    """
    ways = {
        "raw, ready addresses": {
            peers.OURS: 1.0,
            peers.CONSTEXPR: 0.96,
            peers.SIZES: 2.9,
            peers.TENTH: 0.12,
        },
        "from Python, 1 at once": {peers.OURS: 1.0, peers.EAGER: 12.5},
        "from Python, 4,096 at once": {
            peers.OURS: 1.0,
            peers.EAGER: 1.3,
            peers.FROZEN: 1.4,
            peers.ONNX: 1.25,
        },
    }
    rows = [
        SimpleNamespace(called=called, way=way, time_ratio=ratio)
        for called, ratios in ways.items()
        for way, ratio in ratios.items()
    ]
    found = benchmark.targets(
        SimpleNamespace(times=rows, reached_flops_per_s=79.0, peak_flops_per_s=100.0)
    )
    assert {target.figure: (target.measured_ratio, target.reached) for target in found} == {
        "from a file: the speed of constexpr": (0.96, True),
        "from a file: over sizes at run time": (2.9, False),
        "candidates on lanes: of the core's peak": (0.79, False),
        "10 % of the weights: over all of them": (pytest.approx(8), True),
        f"batch of 1: over {peers.EAGER}": (12.5, True),
        f"batch of 4,096: over {peers.EAGER}": (1.3, False),
        f"batch of 4,096: over {peers.FROZEN}": (1.4, True),
        f"batch of 4,096: over {peers.ONNX}": (1.25, True),
    }
    assert not {"targets", "reached", "needed_ratio"} & {
        field.name for field in dataclasses.fields(peers.PeerTimes)
    }


@pytest.fixture
def three(monkeypatch):
    """Three programs to call raw, a peak of 2 and a product of 1 GFLOP/s, and no peer that takes
    long to compile.
    """
    monkeypatch.setattr(peers, "_make_compiled", _fails)
    monkeypatch.setattr(peers, "_make_onnx", _fails)
    monkeypatch.setattr(peers, "RAW", THREE)
    monkeypatch.setattr(peers, "standard_network", lambda: NETWORK)
    monkeypatch.setattr(peers, "_peak", lambda: 2e9)
    monkeypatch.setattr(peers, "_product", lambda: 1e9)


@needs_compiler
def test_a_measurement_has_every_way_and_its_json_gives_it_back(three):
    threads = torch.get_num_threads()
    found = peers.measure_peers(budget_s=0.1)
    assert torch.get_num_threads() == threads
    called = [(row.called, row.way) for row in found.times]
    assert called == [
        (f"from Python, {batch} at once", way)
        for batch in ("1", "4,096")
        for way in (peers.OURS, peers.EAGER)
    ] + [("raw, ready addresses", way) for way in (peers.OURS, *THREE)]
    assert found.macs == 30
    assert found.absent.count("no compiler") == 3
    constexpr = next(row for row in found.times if row.way == peers.CONSTEXPR)
    assert found.reached_flops_per_s == pytest.approx(60 / constexpr.minimum_s)
    assert (found.peak_flops_per_s, found.product_flops_per_s) == (2e9, 1e9)
    assert results.from_dict(peers.PeerTimes, json.loads(found.to_json())) == found
    older = json.loads(found.to_json())
    older["peak_flops_per_s"] = older.pop(
        "product_flops_per_s"
    )  # what the peak was called before the core was measured
    assert results.from_dict(peers.PeerTimes, older) == dataclasses.replace(
        found, peak_flops_per_s=None
    )


@needs_compiler
def test_the_peak_is_the_cores_own_and_not_the_products(monkeypatch):
    monkeypatch.setattr(torch, "mm", lambda a, b, out: out)
    assert peers._product() > 10 * peers._peak() > 0


@needs_compiler
@pytest.mark.timed
def test_sizes_at_run_time_take_longer(three):
    found = peers.measure_peers(budget_s=0.1)
    assert {row.way: row.time_ratio for row in found.times}[peers.SIZES] > 1


@needs_compiler
def test_a_wrong_program_is_not_timed(monkeypatch):
    layer = NETWORK.layers[0]
    wrong = Network(
        (
            Dense(layer.weights * layer.weights.dtype.type(1.5), layer.bias, "relu"),
            NETWORK.layers[1],
        )
    )

    made = dataclasses.replace(cpp_program(wrong, "runtime_sizes"), network=NETWORK)
    monkeypatch.setattr(peers, "cpp_program", lambda *given, **named: made)
    ours = SimpleNamespace(network=NETWORK, serving=SimpleNamespace(placement="lanes"))
    with torch.inference_mode(), pytest.raises(AssertionError, match="leaves its error bound"):
        peers._compare_raw(NETWORK, ours, 0.1)


def test_without_a_compiler_it_says_what_to_install(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(native.MissingToolError, match="CXX is 'no-such-compiler'"):
        peers.measure_peers(budget_s=0.1)
