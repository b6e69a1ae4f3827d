"""Bars of layers, pies of shares, Gantt charts: the geometry is the numbers."""

from __future__ import annotations

import pytest

from helpers import plotting

SPANS = [
    plotting.Span("rank 0", 0, 2, "forward", "F0"),
    plotting.Span("rank 1", 2, 3, "forward"),
    plotting.Span("rank 0", 4, 9, "backward", "a label far too long for its bar" * 3),
]


def test_gantt_draws_each_span_in_its_lane_from_start_to_end():
    axes = plotting.gantt(SPANS, title="t", unit="s").axes[0]
    bars = [(bar.get_x(), bar.get_width(), round(bar.get_y() + bar.get_height() / 2)) for bar in axes.patches]
    assert bars == [(0, 2, 0), (2, 1, 1), (4, 5, 0)]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["rank 0", "rank 1"]


def test_gantt_gives_one_colour_a_kind_and_a_legend():
    drawn = plotting.gantt(SPANS, title="t")
    first, second, third = (bar.get_facecolor() for bar in drawn.axes[0].patches)
    assert first == second != third
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["forward", "backward"]


def test_gantt_writes_a_label_only_where_it_fits():
    axes = plotting.gantt(SPANS, title="t").axes[0]
    assert [text.get_text() for text in axes.texts] == ["F0"]


def test_gantt_of_one_instant_is_drawn():
    plotting.gantt([plotting.Span("a", 1, 1, "k", "x")], title="t")


def test_gantt_refuses_nothing_and_spans_that_run_backwards():
    with pytest.raises(ValueError, match="at least one span"):
        plotting.gantt([], title="t")
    with pytest.raises(ValueError, match="'late' ends before it starts"):
        plotting.gantt([plotting.Span("a", 2, 1, "k", "late")], title="t")


def test_layers_are_stacked_and_their_sums_written():
    axes = plotting.draw_layers(["a", "b"], {"in": [100, 0], "out": [50, 7]}, unit="B", title="t").axes[0]
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 100), (0, 0), (100, 50), (0, 7)]
    assert [text.get_text() for text in axes.texts] == ["150 B", "7 B"]


def test_layers_refuse_uneven_and_empty_parts():
    with pytest.raises(ValueError, match="out has another length"):
        plotting.draw_layers(["a"], {"out": [1, 2]}, unit="B", title="t")
    with pytest.raises(ValueError, match="at least one layer"):
        plotting.draw_layers([], {}, unit="B", title="t")


def test_pies_share_colours_and_leave_small_parts_without_a_number():
    wholes = {"inference": {"conv": 90, "fc": 9, "relu": 1}, "training": {"fc": 50, "conv": 50}}
    first, second = plotting.draw_shares(wholes, title="t").axes
    assert [text.get_text() for text in first.texts if text.get_text()] == ["90 %", "9 %"]
    assert first.patches[0].get_facecolor() == second.patches[1].get_facecolor()
    with pytest.raises(ValueError, match="'empty' has nothing to share"):
        plotting.draw_shares({"empty": {"conv": 0}}, title="t")
