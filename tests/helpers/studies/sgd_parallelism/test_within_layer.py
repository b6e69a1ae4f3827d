"""Products split three ways, SIMD lanes counted in compiled loops, threads, and the four sources'
bytes.
"""

import os
import platform
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from helpers import native, timing
from helpers.results import from_dict
from helpers.studies.sgd_parallelism import _within_layer as within_layer
from tests.properties import repeatable

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
needs_census = pytest.mark.skipif(
    shutil.which("g++") is None
    or shutil.which("objdump") is None
    or platform.machine() not in ("x86_64", "AMD64"),
    reason="needs g++, objdump and an x86-64 processor",
)


def whole_numbers(rows, columns, seed):
    """Floats that are small whole numbers: every sum of their products is exact in any order."""
    return torch.randint(
        -8, 9, (rows, columns), generator=torch.Generator().manual_seed(seed)
    ).float()


@repeatable(examples=80)
@given(
    st.sampled_from(within_layer.WAYS),
    st.lists(st.integers(1, 24), min_size=3, max_size=3),
    st.data(),
)
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
    rows, columns, inner = (
        within_layer.model_split(4, 6, 8, by=by, parts=2) for by in within_layer.WAYS
    )
    assert [split.copied_bytes for split in (rows, columns, inner)] == [6 * 8 * 4, 4 * 6 * 4, 0]
    assert [split.received_bytes for split in (rows, columns, inner)] == [
        2 * 8 * 4,
        4 * 4 * 4,
        4 * 8 * 4,
    ]
    assert [split.additions for split in (rows, columns, inner)] == [0, 0, 32]
    assert [split.combine.split()[0] for split in (rows, columns, inner)] == [
        "concatenate",
        "concatenate",
        "sum",
    ]
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
    found = within_layer.combine(
        within_layer.partial_products(a, b, by="inner", parts=4), by="inner"
    )
    # Higham's bound: the error of a sum of k products is at most about k u |a| |b|, however it is
    # grouped.
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


def test_a_thread_sweep_uses_the_threads_it_reports_and_gives_them_back(monkeypatch):
    seen, before = set(), torch.get_num_threads()
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    sweep = within_layer.sweep_threads(
        lambda: seen.add(torch.get_num_threads()), name="seen", budget_s=0.02
    )
    assert seen == {1, 2}
    assert torch.get_num_threads() == before
    first, second = sweep.points
    assert (first.threads, first.speedup, first.efficiency_share) == (1, 1, 1)
    assert second.efficiency_share == pytest.approx(second.speedup / 2)
    assert second.speedup == pytest.approx(first.median_s / second.median_s)
    assert within_layer._thread_counts(6) == [1, 2, 4, 6]
    assert within_layer._thread_counts(4) == [1, 2, 4]
    assert within_layer._thread_counts(1) == [1]


@needs_census
def test_independent_additions_are_packed_and_a_sum_only_when_it_may_be_reordered():
    found = within_layer.count_lanes()
    for function in within_layer.DECLARATIONS:
        alone = found.row(function, "one lane")
        assert (alone.packed, alone.lanes) == (0, 1)
        assert alone.one_lane >= 1
    assert found.row("scaled_add", "vectors").packed >= 1
    assert (
        found.row("scaled_add", "vectors").lanes
        == found.row("scaled_add", "vectors").vector_bits // 32
        >= 4
    )
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
    assert results["one lane"].numpy() == pytest.approx(
        (3.0 * x.double() + start.double()).numpy(), rel=1e-6, abs=1e-6
    )
    # one after another, in float32
    assert totals["one lane"] == totals["vectors"] == np.cumsum(x.numpy())[-1]
    bound = n * 2**-24 * float(x.double().abs().sum())
    assert abs(totals["vectors, sums reordered"] - float(x.double().sum())) <= bound


@needs_compiler
@pytest.mark.timed
def test_lanes_save_time_and_a_planted_copy_of_one_lane_does_not(monkeypatch):
    calls = within_layer.lane_calls("total", 4096)
    assert {name: call() for name, call in calls.items()} == dict.fromkeys(
        within_layer.FLAGS, 4096.0
    )
    chosen = {"one lane": calls["one lane"], "reordered": calls["vectors, sums reordered"]}
    assert timing.compare(chosen, budget_s=0.5).candidate("reordered").time_ratio < 0.8
    with monkeypatch.context() as patch:
        patch.setitem(chosen, "reordered", lambda: (calls["one lane"](), calls["one lane"]()))
        slower = timing.compare(chosen, budget_s=0.5)
    assert slower.candidate("reordered").time_ratio > 1
    with pytest.raises(ValueError, match="function='mean' is not known"):
        within_layer.lane_calls("mean")


def test_a_machine_without_a_compiler_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(native.MissingToolError):
        within_layer.compile_lanes()
