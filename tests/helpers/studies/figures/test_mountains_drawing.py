"""The mountains: the curves are the limits' points, the marks stand at the sizes given."""

from __future__ import annotations

import math

import pytest
from drawing_samples import KIB, MIB, limits, overlapping, settle

from helpers.hardware.limits._results import LatencyPoint
from helpers.studies.data_movement.figures._mountains import draw_bandwidths, draw_latencies

CACHES = {"L1d": 32 * KIB, "L2": MIB}


def vertical(axes, style: str) -> list[float]:
    return [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == style]


def test_latency_curve_caches_and_change_points_are_what_was_given():
    shuffled = tuple(reversed(limits().latencies))
    drawn = draw_latencies(shuffled, caches=CACHES, change_points=[30 * KIB, 900 * KIB])
    axes = drawn.axes[0]
    assert list(axes.lines[0].get_xdata()) == [
        point.working_set_bytes for point in limits().latencies
    ]
    assert list(axes.lines[0].get_ydata()) == [point.latency_s for point in limits().latencies]
    assert vertical(axes, "--") == [32 * KIB, MIB]
    assert vertical(axes, ":") == [30 * KIB, 900 * KIB]
    words = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert words == [
        "measured",
        "cache sizes, by the operating system",
        "found on the curve: 30 KiB, 900 KiB",
    ]
    assert [text.get_text() for text in axes.texts] == ["L1d\n32 KiB", "L2\n1 MiB"]


def test_a_simulated_curve_is_not_called_measured():
    drawn = draw_latencies(limits().latencies, caches=CACHES, origin="simulated")
    words = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert words == ["simulated", "cache sizes of the simulated machine"]
    measured = draw_latencies(limits().latencies).axes[0].lines[0].get_color()
    assert drawn.axes[0].lines[0].get_color() != measured


def test_many_change_points_are_counted_so_that_the_legend_fits():
    drawn = draw_latencies(limits().latencies, change_points=[2**power for power in range(12, 18)])
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == [
        "measured",
        "found on the curve: 6 rises",
    ]


def test_latency_axes_are_powers_of_two_and_of_ten_with_units():
    drawn = draw_latencies(limits().latencies, caches=CACHES)
    settle(drawn)
    axes = drawn.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert "4 KiB" in [tick.get_text() for tick in axes.get_xticklabels()]
    assert all(math.log2(tick).is_integer() for tick in axes.get_xticks())
    assert "1 ns" in [tick.get_text() for tick in axes.get_yticklabels()]
    assert overlapping([*axes.texts, axes.title, axes._left_title]) == []


def test_bandwidth_has_a_curve_a_kernel_from_zero():
    axes = draw_bandwidths(limits().bandwidths).axes[0]
    curves = {line.get_label(): set(line.get_ydata()) for line in axes.lines}
    assert {name: curves[name] for name in ("read", "write", "copy", "triad", "scale")} == {
        "read": {5e10},
        "write": {4e10},
        "copy": {8e10},
        "triad": {9e10},
        "scale": {7e10},
    }
    assert axes.get_ylim()[0] == 0
    assert (
        len({line.get_color() for line in axes.lines[:5]})
        == len({line.get_marker() for line in axes.lines[:5]})
        == 5
    )
    only = draw_bandwidths(limits().bandwidths, kernels=["triad"]).axes[0]
    assert [line.get_label() for line in only.lines] == ["triad"]


def test_a_compiled_triad_is_drawn_solid_and_pytorchs_curves_dashed_beside_it():
    axes = draw_bandwidths(
        limits().bandwidths, kernels=["triad"], compiled={2**22: 1e10, 2**14: 2e11}
    ).axes[0]
    pytorch, compiled = axes.lines[:2]
    assert (pytorch.get_label(), pytorch.get_linestyle()) == ("PyTorch's triad", "--")
    assert (compiled.get_label(), compiled.get_linestyle()) == ("compiled triad", "-")
    assert list(compiled.get_xydata().flatten()) == [2**14, 2e11, 2**22, 1e10]


def test_nothing_and_nonsense_are_refused():
    with pytest.raises(ValueError, match="the limits hold no latency"):
        draw_latencies([])
    with pytest.raises(ValueError, match="the limits hold no bandwidth"):
        draw_bandwidths([])
    with pytest.raises(ValueError, match="a latency must be a time above 0"):
        draw_latencies([LatencyPoint(4096, 0.0)])
    with pytest.raises(ValueError, match="origin='guessed' is not known"):
        draw_latencies(limits().latencies, origin="guessed")
    with pytest.raises(ValueError, match="kernels are read, write, copy, triad, scale; got daxpy"):
        draw_bandwidths(limits().bandwidths, kernels=["daxpy"])
