"""Products split three ways, SIMD lanes counted in compiled loops, threads, and the four sources' bytes."""

import platform
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from helpers import native, timing
from helpers.models import BasicFCModel, LeNet
from helpers.parallel import collective
from helpers.results import from_dict
from helpers.studies.sgd_parallelism import _four as sources, _within_layer as within_layer
from tests.properties import repeatable

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
needs_census = pytest.mark.skipif(
    shutil.which("g++") is None or shutil.which("objdump") is None or platform.machine() not in ("x86_64", "AMD64"),
    reason="needs g++, objdump and an x86-64 processor",
)


def whole_numbers(rows, columns, seed):
    """Floats that are small whole numbers: every sum of their products is exact in any order."""
    return torch.randint(-8, 9, (rows, columns), generator=torch.Generator().manual_seed(seed)).float()


@repeatable(examples=80)
@given(st.sampled_from(within_layer.WAYS), st.lists(st.integers(1, 24), min_size=3, max_size=3), st.data())
def test_a_split_product_is_the_product_and_its_bytes_are_those_of_its_tensors(by, sizes, data):
    m, k, n = sizes
    parts = data.draw(st.integers(1, {"rows": m, "columns": n, "inner": k}[by]))
    a, b = whole_numbers(m, k, 1), whole_numbers(k, n, 2)
    split = within_layer.model_split(m, k, n, by=by, parts=parts)
    pieces = within_layer.partial_products(a, b, by=by, parts=parts)
    assert torch.equal(within_layer.combine(pieces, by=by), torch.from_numpy(a.numpy() @ b.numpy()))
    assert [piece.nbytes for piece in pieces] == [part.output_bytes for part in split.work]
    assert sum(part.macs for part in split.work) == m * k * n
    assert split.received_bytes == sum(piece.nbytes for piece in pieces[1:])
    read = sum(part.a_bytes + part.b_bytes for part in split.work)
    assert read - a.nbytes - b.nbytes == split.copied_bytes
    assert from_dict(within_layer.ProductSplit, split.to_dict()) == split


def test_what_each_way_copies_and_combines_is_as_by_hand():
    """(4, 6) @ (6, 8) float32 in two parts."""
    rows, columns, inner = (within_layer.model_split(4, 6, 8, by=by, parts=2) for by in within_layer.WAYS)
    assert [split.copied_bytes for split in (rows, columns, inner)] == [6 * 8 * 4, 4 * 6 * 4, 0]
    assert [split.received_bytes for split in (rows, columns, inner)] == [2 * 8 * 4, 4 * 4 * 4, 4 * 8 * 4]
    assert [split.additions for split in (rows, columns, inner)] == [0, 0, 32]
    assert [split.combine.split()[0] for split in (rows, columns, inner)] == ["concatenate", "concatenate", "sum"]
    assert within_layer.model_split(4, 6, 8, by="inner", parts=1).combine == "nothing"


@pytest.mark.parametrize("by", within_layer.WAYS)
def test_an_activation_may_come_before_combining_exactly_where_it_is_said(by):
    a, b = whole_numbers(12, 10, 3), whole_numbers(10, 9, 4)
    pieces = within_layer.partial_products(a, b, by=by, parts=3)
    before = within_layer.combine([piece.relu() for piece in pieces], by=by)
    allowed = within_layer.model_split(12, 10, 9, by=by, parts=3).elementwise_before_combining
    assert torch.equal(before, (a @ b).relu()) is allowed


def test_the_inner_split_of_ordinary_numbers_is_right_to_rounding():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 64, generator=generator) for _ in range(2))
    exact = a.double() @ b.double()
    found = within_layer.combine(within_layer.partial_products(a, b, by="inner", parts=4), by="inner")
    # Higham's bound: the error of a sum of k products is at most about k u |a| |b|, however it is grouped.
    assert ((found - exact).abs() <= 64 * 2**-24 * (a.double().abs() @ b.double().abs())).all()


@pytest.mark.parametrize(("arguments", "problem"), [
    ({"by": "depth"}, "by='depth' is not known; give one of 'rows', 'columns', 'inner'"),
    ({"parts": 0}, "parts=0 is too small"),
    ({"parts": 5}, "parts=5 is more than the 4 rows"),
])  # fmt: skip
def test_wrong_splits_are_refused(arguments, problem):
    with pytest.raises(ValueError, match=problem):
        within_layer.model_split(4, 4, 4, **({"by": "rows", "parts": 2} | arguments))
    with pytest.raises(ValueError, match=r"shapes \(2, 3\) and \(2, 3\) have no product"):
        within_layer.partial_products(torch.ones(2, 3), torch.ones(2, 3), by="rows", parts=1)


def test_a_thread_sweep_uses_the_threads_it_reports_and_gives_them_back():
    seen, before = set(), torch.get_num_threads()
    sweep = within_layer.sweep_threads(lambda: seen.add(torch.get_num_threads()), threads=(1, 2), budget_s=0.02)
    assert seen == {1, 2}
    assert torch.get_num_threads() == before
    first, second = sweep.points
    assert (first.threads, first.speedup, first.efficiency_share) == (1, 1, 1)
    assert second.efficiency_share == pytest.approx(second.speedup / 2)
    assert second.speedup == pytest.approx(first.median_s / second.median_s)
    assert within_layer._thread_counts(6) == [1, 2, 4, 6]
    assert within_layer._thread_counts(1) == [1]
    with pytest.raises(ValueError, match="threads is empty"):
        within_layer.sweep_threads(lambda: None, threads=())


@needs_census
def test_independent_additions_are_packed_and_a_sum_only_when_it_may_be_reordered():
    found = within_layer.count_lanes()
    for function in within_layer.DECLARATIONS:
        alone = found.row(function, "one lane")
        assert (alone.packed, alone.lanes) == (0, 1)
        assert alone.one_lane >= 1
    assert found.row("scaled_add", "vectors").packed >= 1
    assert found.row("scaled_add", "vectors").lanes == found.row("scaled_add", "vectors").vector_bits // 32 >= 4
    assert found.row("total", "vectors").packed == 0
    assert found.row("total", "vectors, sums reordered").packed >= 1
    with pytest.raises(ValueError, match="no row"):
        found.row("scaled_add", "wide")


@needs_compiler
def test_every_variant_computes_the_same_and_reordering_changes_the_last_digits_at_most():
    n = 1003  # no multiple of a vector's lanes
    generator = torch.Generator().manual_seed(0)
    x, start = (torch.randn(n, generator=generator) for _ in range(2))
    results, totals = {}, {}
    for variant, library in within_layer.compile_lanes().items():
        y = start.clone()
        library.function(within_layer.DECLARATIONS["scaled_add"])(3.0, x, y, n)
        results[variant] = y
        totals[variant] = library.function(within_layer.DECLARATIONS["total"])(x, n)
    assert torch.equal(results["one lane"], results["vectors"])
    assert results["one lane"].numpy() == pytest.approx((3.0 * x.double() + start.double()).numpy(), rel=1e-6, abs=1e-6)
    assert totals["one lane"] == totals["vectors"] == np.cumsum(x.numpy())[-1]  # one after another, in float32
    bound = n * 2**-24 * float(x.double().abs().sum())
    assert abs(totals["vectors, sums reordered"] - float(x.double().sum())) <= bound


@needs_compiler
@pytest.mark.timed
def test_lanes_save_time_and_a_planted_copy_of_one_lane_does_not(monkeypatch):
    calls = within_layer.lane_calls("total", 4096)
    assert {name: call() for name, call in calls.items()} == dict.fromkeys(within_layer.FLAGS, 4096.0)
    chosen = {"one lane": calls["one lane"], "reordered": calls["vectors, sums reordered"]}
    assert timing.compare(chosen, budget_s=0.5).candidate("reordered").time_ratio < 0.8
    with monkeypatch.context() as patch:
        patch.setitem(chosen, "reordered", lambda: (calls["one lane"](), calls["one lane"]()))
        slower = timing.compare(chosen, budget_s=0.5)
    assert slower.candidate("reordered").time_ratio > 1
    with pytest.raises(ValueError, match="function='mean' is not known"):
        within_layer.lane_calls("mean")
    with pytest.raises(ValueError, match="variant='wide' is not known"):
        within_layer.lane_calls("total", variants=("wide",))


def test_a_machine_without_a_compiler_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(native.MissingToolError):
        within_layer.compile_lanes()


def test_the_four_sources_of_a_fully_connected_network_are_as_by_hand():
    """784 -> 32 -> 10 on 64 images, float32: outputs 32 and 10 a image, and the 32 inputs of the second layer."""
    found = sources.sources_of_parallelism(BasicFCModel(hidden=32, layers=2), (64, 784))
    weights = 4 * (784 * 32 + 32 + 32 * 10 + 10)
    assert [row.payload_bytes for row in found.rows] == [4 * 64 * (32 + 10 + 32), weights, 2 * weights, 0]
    assert [row.synchronisations for row in found.rows] == [3, 1, 0, 0]
    assert [row.summed_bytes for row in found.rows] == [4 * 64 * 32, weights, 0, 0]
    assert [row.waits for row in found.rows] == [True, True, False, False]
    assert (found.batch_size, found.parameter_bytes) == (64, weights)
    assert from_dict(sources.Sources, found.to_dict()) == found


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 108])
def test_a_worker_receives_what_the_messages_of_rings_bring_it(workers):
    """Oracle: the messages of the ring all-reduce and all-gather, one by one."""
    found = sources.sources_of_parallelism(BasicFCModel(hidden=32, layers=2), (64, 784))

    def ring(operation, size_bytes):
        planned = collective(operation, "ring", world_size=workers, length=size_bytes // 4)
        return sum(rank.received_bytes for rank in planned.ranks()) / workers

    outputs, slopes, weights = 4 * 64 * (32 + 10), 4 * 64 * 32, found.parameter_bytes
    within = ring("all_gather", outputs) + ring("all_reduce", slopes)
    # Weights spread over all: fetching gathers them, and each gradient's parts go to their owners.
    updates = ring("all_gather", weights) + ring("reduce_scatter", weights)
    wanted = [within, ring("all_reduce", weights), updates, 0]
    assert [row.received_bytes(workers) for row in found.rows] == pytest.approx(wanted)


def test_nobody_receives_where_nobody_is():
    row = sources.sources_of_parallelism(BasicFCModel(hidden=32, layers=2), (64, 784)).row("over examples")
    with pytest.raises(ValueError, match="workers=0"):
        row.received_bytes(0)


def test_convolutions_are_cut_and_only_what_a_layer_makes_counts():
    found = sources.sources_of_parallelism(LeNet(), torch.zeros(2, 1, 28, 28))
    outputs = 6 * 24 * 24 + 16 * 8 * 8 + 120 + 60 + 10
    inputs = 6 * 12 * 12 + 256 + 120 + 60  # of all but the first
    assert found.row("within a layer").payload_bytes == 4 * 2 * (outputs + inputs)
    assert found.row("within a layer").synchronisations == 2 * 5 - 1


def test_batch_norm_adds_its_statistics_and_frozen_weights_send_nothing():
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 26 * 26, 10))
    row = sources.sources_of_parallelism(model, (4, 1, 28, 28)).row("over examples")
    weights = 4 * sum(p.numel() for p in model.parameters())
    assert (row.synchronisations, row.payload_bytes) == (3, weights + 4 * 8 * 4)
    model[3].requires_grad_(False)
    frozen = sources.sources_of_parallelism(model, (4, 1, 28, 28)).row("over examples")
    assert row.payload_bytes - frozen.payload_bytes == 4 * (8 * 26 * 26 * 10 + 10)
    with pytest.raises(ValueError, match="source='luck' is not known; give one of 'within a layer'"):
        sources.sources_of_parallelism(model, (4, 1, 28, 28)).row("luck")


def test_the_cost_on_a_link_is_latency_and_bytes():
    found = sources.sources_of_parallelism(BasicFCModel(hidden=32, layers=2), (64, 784))
    table = sources.cost_on_link(found, link="test", compute_s=0.01, bandwidth_bytes_per_s=1e6, latency_s=1e-3)
    within, examples, updates, models = table.rows
    assert within.synchronise_s == pytest.approx(3e-3 + found.rows[0].payload_bytes / 1e6)
    assert examples.compute_share == pytest.approx(0.01 / (0.01 + 1e-3 + found.rows[1].payload_bytes / 1e6))
    assert updates.synchronise_s == pytest.approx(found.rows[2].payload_bytes / 1e6)
    assert (models.synchronise_s, models.compute_share) == (0, 1)
    with pytest.raises(ValueError, match="latency_s=0; give a finite number above 0"):
        sources.cost_on_link(found, link="test", compute_s=0.01, bandwidth_bytes_per_s=1e6, latency_s=0)
