"""The convnet under compilers: what does not run is named, what is wrong is not timed.

Stand-ins for the compilers.
"""

from __future__ import annotations

import pytest

from helpers.studies.fused_bias import _compilers as compilers


@pytest.fixture
def stand_ins(monkeypatch):
    """torch.compile gives the net itself; ONNX Runtime is not there."""

    def absent(net):
        raise ModuleNotFoundError("onnx not installed")

    for name in ("_make_compiled", "_make_frozen"):
        monkeypatch.setattr(compilers, name, lambda net: net)
    monkeypatch.setattr(compilers, "_make_onnx", absent)


def test_every_way_that_runs_is_timed_and_the_others_are_named(stand_ins):
    found = compilers.measure_compilers(batch=2, budget_s=0.1)
    assert [row.way for row in found.ways] == [
        compilers.EAGER,
        compilers.COMPILED,
        compilers.FROZEN,
    ]
    assert found.absent == "ONNX Runtime: onnx not installed"
    assert all(
        row.prepared_s > 0 and row.low_speedup <= row.speedup <= row.high_speedup
        for row in found.ways
    )
    assert found.ways[0].speedup == 1


def test_a_way_with_wrong_logits_is_not_timed(stand_ins, monkeypatch):
    monkeypatch.setattr(compilers, "_make_frozen", lambda net: lambda images: net(images) * 1.001)
    with pytest.raises(RuntimeError, match="frozen weights is off by"):
        compilers.measure_compilers(batch=2, budget_s=0.1)


@pytest.mark.parametrize("batch", [0, -1, 2.0, True])
def test_a_batch_that_is_no_positive_number_is_refused(batch):
    with pytest.raises((TypeError, ValueError), match=r"batch=.*; give a whole number, 1 or more"):
        compilers.measure_compilers(batch=batch)
