"""Layers taken in turn, batches in shared memory, and the figures of lesson 12."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from helpers import native, plotting, run_limited
from helpers.plotting.explorer._formulas import evaluate
from helpers.studies import beyond_memory
from helpers.studies.beyond_memory import TurnRow, TurnSweep, _batches as batches, _layers as layers

MIB = 2**20


# --- layers in turn ---


def test_the_loop_multiplies_by_the_layers_in_their_order():
    """The result left behind is that of the last use, as NumPy computes it."""
    weights = np.random.default_rng(1).standard_normal((3, 5, layers.COLUMNS), dtype=np.float32)
    x = np.random.default_rng(2).standard_normal(layers.COLUMNS, dtype=np.float32)
    take = native.compile_cpp(
        native.read_source("helpers.studies.beyond_memory", "layers.cpp")
    ).function(layers._DECLARATION)
    for order in ([0], [2, 1], [1, 2, 0, 2]):
        y = np.full(5, np.nan, dtype=np.float32)
        last = take(weights, np.array(order, dtype=np.int32), len(order), 5, layers.COLUMNS, x, y)
        np.testing.assert_allclose(y, weights[order[-1]] @ x, rtol=1e-4, atol=1e-4)
        assert last == y[0]


@pytest.mark.parametrize("count", [1, 2, 9, 24])
def test_a_call_takes_whole_passes(count):
    forward, turned = (layers._uses(count, order).tolist() for order in layers.ORDERS)
    there = list(range(count))
    assert forward[: 2 * count] == there * 2
    assert turned[: 2 * count] == there + there[::-1]
    for uses in (forward, turned):
        assert len(uses) >= layers._USES
        assert [uses.count(layer) for layer in there] == [len(uses) / count] * count


@pytest.mark.parametrize(
    ("l2_bytes", "layer_bytes"), [(2 * MIB, MIB // 4), (MIB // 2, MIB // 16), (None, MIB // 8)]
)
def test_a_layer_is_an_eighth_of_the_cache(monkeypatch, l2_bytes, layer_bytes):
    caches = [
        SimpleNamespace(level=1, size_bytes=32768),
        SimpleNamespace(level=2, size_bytes=l2_bytes),
    ]
    monkeypatch.setattr(layers, "machine_card", lambda: SimpleNamespace(caches=caches))
    sweep = beyond_memory.sweep_layers([3, 1], budget_s=0.01)
    assert (sweep.layer_bytes, sweep.cache_bytes) == (layer_bytes, l2_bytes)
    assert [row.layers for row in sweep.rows] == [3, 1]
    assert all(0 < time_s < 1 for row in sweep.rows for time_s in (row.forward_s, row.by_turns_s))
    with pytest.raises(ValueError, match="there is no row of 7 layers; there are 3, 1"):
        sweep.row(7)


def test_without_a_compiler_pytorch_multiplies(monkeypatch):
    def missing(*_):
        raise native.MissingToolError("no C++ compiler", "install one")

    monkeypatch.setattr(layers.native, "compile_cpp", missing)
    sweep = beyond_memory.sweep_layers([2], budget_s=0.01)
    assert sweep.engine == "torch.mv"
    assert sweep.row(2).forward_s > 0


def longer(monkeypatch, rows=None):
    """Return the time of a layer of four times the bytes over that of a smaller one, or of its
    first ``rows`` alone.
    """
    least_s, engine = [], layers._engine
    monkeypatch.setattr(
        layers, "_engine", lambda weights: engine(np.ascontiguousarray(weights[:, :rows]))
    )
    for l2_bytes in (MIB // 4, MIB):
        card = SimpleNamespace(caches=[SimpleNamespace(level=2, size_bytes=l2_bytes)])
        monkeypatch.setattr(layers, "machine_card", lambda card=card: card)
        least_s.append(beyond_memory.sweep_layers([2], budget_s=0.3).row(2).forward_s)
    return least_s[1] / least_s[0]


@pytest.mark.timed
def test_four_times_the_bytes_take_longer_and_a_loop_that_leaves_rows_out_is_seen(monkeypatch):
    with monkeypatch.context() as patch:
        assert longer(patch) > 2
    with monkeypatch.context() as patch:
        assert longer(patch, rows=16) < 2


@pytest.mark.parametrize("counts", [[], [0], [65], [2.5]])
def test_counts_that_cannot_be_swept_are_refused(counts):
    with pytest.raises((ValueError, TypeError), match="counts"):
        beyond_memory.sweep_layers(counts)


# --- batches in shared memory ---


def limited(function, *arguments):
    try:
        return run_limited(function, *arguments, shared_memory_bytes=64 * MIB, timeout_s=180)
    except RuntimeError as why:
        pytest.skip(str(why))


@pytest.mark.parametrize(("workers", "prefetch_factor", "expected"), [(2, 2, 5), (1, 5, 6)])
def test_a_loader_keeps_its_prefetched_batches_and_the_one_in_use(
    workers, prefetch_factor, expected
):
    counted = limited(batches.count_batches, workers, prefetch_factor).unwrap()
    assert expected <= counted < expected + 0.5


def two_epochs(lets_go):
    from torch.utils.data import DataLoader

    loader = DataLoader(
        batches.SlowDigits(18), batch_size=6, num_workers=1, multiprocessing_context="fork"
    )
    for epoch in (1, 2):
        for images, labels in loader:
            batches.wait_for_workers()
            if lets_go:
                del images, labels
        print(f"epoch {epoch}", flush=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lets_go", "status", "epochs"), [(False, "raised", 1), (True, "returned", 2)]
)
def test_a_forked_worker_keeps_the_last_batch_of_the_epoch_before(lets_go, status, epochs):
    ended = limited(two_epochs, lets_go)
    assert ended.status == status
    assert len(ended.output.splitlines()) == epochs


def test_digits_come_by_the_thousand():
    digits = beyond_memory.SlowDigits(18)
    images, labels = digits[3]
    assert len(digits) == 18
    assert (images.nbytes + labels.nbytes) / 1000 == 28 * 28 * 4 + 8
    with pytest.raises(ValueError, match="thousands"):
        beyond_memory.SlowDigits(0)


# --- figures ---


def words(drawn):
    return {text.get_text() for axes in drawn.axes for text in axes.texts} - {""}


def test_the_sweep_is_drawn_with_the_place_at_which_the_cache_is_full():
    rows = tuple(TurnRow(count, 1e-6 * count, 0.5e-6 * count) for count in (1, 4, 12))
    drawn = beyond_memory.draw_turns(TurnSweep("C++", 1000, 8000, rows))
    (axes,) = drawn.axes
    forward, turned, full = axes.lines
    assert list(forward.get_xdata()) == [1, 4, 12]
    assert list(forward.get_ydata()) == pytest.approx([1, 4, 12])
    assert list(turned.get_ydata()) == pytest.approx([0.5, 2, 6])
    assert set(full.get_xdata()) == {8}
    assert len(beyond_memory.draw_turns(TurnSweep("C++", 1000, None, rows)).axes[0].lines) == 2


def test_a_batch_that_does_not_fit_is_drawn_as_such():
    held = [("a", True, False), ("b", False, True), ("c", False, True), ("d", False, True)]
    drawn = beyond_memory.draw_shared_batches(held, room=3.5, title="full")
    assert {"a", "b", "c", "d", "no room", "trainer", "worker"} <= words(drawn)
    enough = beyond_memory.draw_shared_batches(held, room=4)
    assert "no room" not in words(enough)
    alone = beyond_memory.draw_shared_batches([("a", True, True)], room=3.5, worker="")
    assert "worker" not in words(alone)
    assert alone.get_size_inches()[0] == drawn.get_size_inches()[0]  # frames of one player


@pytest.mark.parametrize(
    ("held", "room"),
    [([], 3), ([("a", True, True)] * 7, 3), ([("a", True, True)], 0)],
    ids=["none", "many", "no room"],
)
def test_drawings_that_cannot_be_made_are_refused(held, room):
    with pytest.raises(ValueError, match=r"batches cannot be drawn|room"):
        beyond_memory.draw_shared_batches(held, room=room)


def test_the_segments_add_up_what_lesson_11_counts(monkeypatch):
    """A block's input has 4,096 values per token and its inside 8 * 4,096 + 4 * 11,008, each of 2
    bytes.
    """
    shown = {}
    monkeypatch.setattr(plotting, "explore", lambda **figure: shown.update(figure))
    beyond_memory.explore_segments()
    segments, tokens = shown["inputs"]
    assert (segments.start, tokens.start) == (32, 4096)
    totals = {}
    for count in segments.values:
        values = evaluate(shown["formulas"], {"segments": count, "tokens": 4096})
        blocks = 32 // count
        saved = count * 2 * 4096 * 4096 + blocks * 2 * (8 * 4096 + 4 * 11_008) * 4096
        assert values["total"] == pytest.approx(saved / 1e9)
        totals[count] = values["total"]
    assert min(totals, key=totals.get) == 32
