"""Bars of layers, pies of shares, Gantt charts: the geometry is the numbers."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex, to_rgb

from helpers import plotting

SPANS = [
    plotting.Span("rank 0", 0, 2, "forward", "F0"),
    plotting.Span("rank 1", 2, 3, "forward"),
    plotting.Span("rank 0", 4, 9, "backward", "a label far too long for its bar" * 3),
]


def test_gantt_draws_each_span_in_its_lane_from_start_to_end():
    axes = plotting.gantt(SPANS, title="t", unit="s").axes[0]
    bars = [
        (bar.get_x(), bar.get_width(), round(bar.get_y() + bar.get_height() / 2))
        for bar in axes.patches
    ]
    assert bars == [(0, 2, 0), (2, 1, 1), (4, 5, 0)]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["rank 0", "rank 1"]


def test_gantt_gives_one_colour_a_kind_and_a_legend():
    drawn = plotting.gantt(SPANS, title="t")
    first, second, third = (bar.get_facecolor() for bar in drawn.axes[0].patches)
    assert first == second != third
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["forward", "backward"]


def test_gantt_writes_a_label_within_its_bar():
    axes = plotting.gantt(SPANS, title="t").axes[0]
    first, second = axes.texts
    assert first.get_text() == "F0"
    assert second.get_text().startswith("a label far")
    assert second.get_text().endswith("…")
    bars = [axes.patches[0], axes.patches[2]]
    for text, bar in zip((first, second), bars, strict=True):
        assert text.get_window_extent().width < bar.get_window_extent().width


def test_a_label_that_fits_nowhere_makes_the_others_no_smaller():
    spans = [
        plotting.Span("a", 0, 9, "send", "fits"),
        plotting.Span("a", 9.97, 10, "send", "fits nowhere"),
    ]
    axes = plotting.gantt(spans, title="t").axes[0]
    assert [text.get_fontsize() for text in axes.texts if text.get_text()] == [11]


def test_the_legend_of_many_long_kinds_stays_on_the_figure():
    spans = [
        plotting.Span("a", place, place + 1, f"forward, of the stage {place}") for place in range(5)
    ]
    drawn = plotting.gantt(spans, title="t")
    drawn.draw_without_rendering()
    assert drawn.legends[-1].get_window_extent().x1 <= drawn.bbox.x1
    assert len(drawn.legends) == 1


def test_gantt_cuts_labels_that_end_in_a_number_to_it():
    spans = [
        plotting.Span("rank 0", place, place + 1, "send", f"bucket number {place}")
        for place in range(12)
    ]
    axes = plotting.gantt(spans, title="t").axes[0]
    assert [text.get_text() for text in axes.texts] == [str(place) for place in range(12)]


def test_gantt_gives_a_kind_the_colour_of_its_meaning_and_a_further_one_of_it_a_darker_shade():
    spans = [
        plotting.Span("a", 0, 1, kind)
        for kind in ("forward", "forward, stages 4-7", "waiting", "of its own")
    ]
    axes = plotting.gantt(spans, title="t").axes[0]
    drawn = [to_hex(bar.get_facecolor()).upper() for bar in axes.patches]
    assert drawn[0] == plotting.COLOURS["computing"]
    assert drawn[2] == plotting.COLOURS["waiting"]
    assert sum(to_rgb(drawn[1])) < sum(to_rgb(drawn[0]))
    assert len(set(drawn)) == 4


def test_of_kinds_of_one_meaning_the_one_with_the_smaller_numbers_is_the_lighter():
    spans = [plotting.Span("a", 0, 1, f"backward, stages {first}") for first in ("4-7", "0-3")]
    axes = plotting.gantt(spans, title="t").axes[0]
    later, earlier = (sum(to_rgb(bar.get_facecolor())) for bar in axes.patches)
    assert later < earlier


def test_a_gantt_chart_ends_where_it_is_told_to_and_labels_what_is_left_of_a_bar():
    spans = [plotting.Span("a", 0, 2, "send", "left"), plotting.Span("a", 2, 8, "send", "cut"),
             plotting.Span("a", 8, 9, "send", "beyond")]  # fmt: skip
    axes = plotting.gantt(spans, title="t", until=4).axes[0]
    assert axes.get_xlim() == (0, 4)
    assert [(text.get_text(), text.get_position()[0]) for text in axes.texts] == [
        ("left", 1),
        ("cut", 3),
    ]


def test_a_bar_that_goes_on_beyond_the_axis_has_an_arrowhead_and_no_other_has():
    spans = [plotting.Span("a", 0, 4, "send"), plotting.Span("b", 0, 5, "send")]
    heads = plotting.gantt(spans, title="t", until=4).axes[0].lines[-1]
    assert (list(heads.get_xdata()), list(heads.get_ydata())) == ([4], [1])


def test_spans_in_a_row_follow_one_another_from_nought_in_each_lane():
    made = plotting.spans_in_a_row(
        {"a": {"send": 2, "wait": 0, "compute": 1.5}, "b": {"send": 4}}, label=".1f"
    )
    assert [(span.lane, span.start, span.end, span.kind, span.label) for span in made] == [
        ("a", 0, 2, "send", "2.0"),
        ("a", 2, 2, "wait", "0.0"),
        ("a", 2, 3.5, "compute", "1.5"),
        ("b", 0, 4, "send", "4.0"),
    ]
    assert [span.label for span in plotting.spans_in_a_row({"a": {"send": 2}})] == [""]


def test_gantt_of_one_instant_is_drawn():
    plotting.gantt([plotting.Span("a", 1, 1, "k", "x")], title="t")


def test_gantt_refuses_nothing_and_spans_that_run_backwards():
    with pytest.raises(ValueError, match="at least one span"):
        plotting.gantt([], title="t")
    with pytest.raises(ValueError, match="'late' ends before it starts"):
        plotting.gantt([plotting.Span("a", 2, 1, "k", "late")], title="t")


def test_layers_are_stacked_and_their_sums_written():
    axes = plotting.draw_layers(
        ["a", "b"], {"in": [100, 0], "out": [50, 7]}, unit="B", title="t"
    ).axes[0]
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [
        (0, 100),
        (0, 0),
        (100, 50),
        (0, 7),
    ]
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
