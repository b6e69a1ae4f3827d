"""The figures of the fused bias: what they fill, write and compute, and the layer that they are
drawn from.
"""

from __future__ import annotations

import math
import shutil

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import to_hex

from helpers import plotting, timing
from helpers.studies import fused_bias
from tests.explored import at

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


@pytest.fixture(autouse=True)
def _no_figure_stays_open():
    yield
    plt.close("all")


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def filled(figure, colour):
    wanted = to_hex(plotting.COLOURS[colour])
    return sum(to_hex(patch.get_facecolor()) == wanted for patch in figure.axes[0].patches)


@pytest.mark.parametrize("values", [1, 2, 8])
def test_passes_begin_untouched_and_end_when_memory_was_visited_twice_per_value(values):
    first, *_, last = fused_bias.pass_frames(values)
    assert texts(first) == ["y"] * 2 * values
    assert texts(last) == ["done"] * 2 * values
    assert filled(first, "computing") == 0
    assert filled(last, "computing") == 2 * values
    assert len(fused_bias.pass_frames(values)) == values + 1


def test_after_as_many_visits_as_values_one_pass_is_done_and_two_have_added_the_bias():
    middle = fused_bias.pass_frames(4)[2]
    assert texts(middle) == ["done"] * 4 + ["y + b"] * 4
    assert [label.get_text() for label in middle.axes[0].get_yticklabels()] == [
        "one pass",
        "two passes",
    ]


def test_passes_over_no_values_are_refused():
    with pytest.raises(ValueError, match="values=0 is too small"):
        fused_bias.pass_frames(0)


@pytest.mark.parametrize(
    ("blocks", "count", "busy"), [(16, 132, 16), (132, 132, 132), (500, 132, 132), (1, 2, 1)]
)
def test_a_block_keeps_one_multiprocessor_busy(blocks, count, busy):
    figure = fused_bias.draw_busy(blocks, multiprocessors=count, title="t")
    assert {f"busy: {busy}", f"idle: {count - busy}"} <= set(texts(figure))
    assert len(figure.axes[0].patches) == count + 2  # and the two of the key
    assert filled(figure, "computing") == busy + 1


@pytest.mark.parametrize(("blocks", "count"), [(0, 2), (2, 0)])
def test_no_blocks_and_no_multiprocessors_are_refused(blocks, count):
    with pytest.raises(ValueError, match="=0 is too small"):
        fused_bias.draw_busy(blocks, multiprocessors=count, title="t")


def test_gains_are_drawn_where_they_are():
    figure = fused_bias.draw_gains([1, 32], modelled=[2.0, 1.5], measured=[2.1, 1.4])
    modelled, measured, none = figure.axes[0].lines
    assert [list(line.get_ydata()) for line in (modelled, measured)] == [[2.0, 1.5], [2.1, 1.4]]
    assert list(measured.get_xdata()) == [1, 32]
    assert list(none.get_ydata()) == [1, 1]
    low, high = figure.axes[0].get_ylim()
    assert low < 1
    assert high > 2.1


def turned(monkeypatch):
    figure = {}
    monkeypatch.setattr(plotting, "explore", lambda **arguments: figure.update(arguments))
    fused_bias.explore_gain()
    return figure


def kernel_times_us(kernels, *, rate, size, images, channels, bandwidth, launch):
    """The times of the kernels of a layer, one, two or three: each a launch and the longer of work
    and bytes.
    """
    outputs = images * 16 * 28 * 28
    tensor_us = size * outputs / (bandwidth * 1e9) * 1e6
    work_us = 2 * 9 * channels * outputs / rate * 1e6
    return [launch + max(work_us, 2 * tensor_us)] + [launch + 2 * tensor_us] * (kernels - 1)


def test_the_figure_to_turn_adds_up_the_kernels(monkeypatch):
    figure = turned(monkeypatch)
    menu, *sliders = figure["inputs"]
    for number in range(300):
        label = list(menu.options)[number % len(menu.options)]
        setting = {
            slider.name: slider.values[number * step % len(slider.values)]
            for slider, step in zip(sliders, (1, 5, 3, 7), strict=True)
        }
        found = at(figure["inputs"], figure["formulas"], gpu=label, **setting)
        times = {
            count: math.fsum(kernel_times_us(count, **menu.options[label], **setting))
            for count in (1, 2, 3)
        }
        assert found["three"] == pytest.approx(times[3] / times[1])
        assert found["two"] == pytest.approx(times[2] / times[1])


def test_the_figure_to_turn_begins_at_the_lessons_border(monkeypatch):
    figure = turned(monkeypatch)
    start = at(figure["inputs"], figure["formulas"])
    assert start["three"] == pytest.approx(1 + 8 * 989e12 / 3.35e12 / (18 * 131), rel=1e-6)
    assert round(start["three"], 1) == 2
    single = at(figure["inputs"], figure["formulas"], images=1, launch=5)
    assert single["three"] == pytest.approx(3, abs=0.05)  # launches, and hardly any bytes


def test_the_figure_to_turn_is_displayed(capsys):
    fused_bias.explore_gain()
    assert "curves over the channels of a layer" in capsys.readouterr().out


@needs_compiler
@pytest.mark.parametrize("channels", [1, 3])
def test_the_first_layer_is_one_layer_in_one_two_and_three_kernels(channels, monkeypatch):
    monkeypatch.setattr(timing, "compare", lambda runs, **_: runs)
    runs = fused_bias.measure_layer(channels, 4, device="cpu")
    assert list(runs) == ["one kernel", "two kernels", "three kernels", "copy"]
    outputs = {name: run() for name, run in runs.items()}
    assert {output.shape for output in outputs.values()} == {(4, 16, 28, 28)}
    for name in ("one kernel", "two kernels"):
        torch.testing.assert_close(outputs[name], outputs["three kernels"], rtol=1e-4, atol=1e-5)
    assert (outputs["three kernels"] > 0).float().mean() > 0.2  # no layer of zeros
    assert not any(output.requires_grad for output in outputs.values())


@needs_compiler
def test_the_first_layer_is_measured_against_its_one_kernel():
    layer = fused_bias.measure_layer(1, 2, device="cpu", budget_s=0.05)
    assert (layer.baseline, layer.device) == ("one kernel", "cpu")
    assert layer.candidate("one kernel").time_ratio == 1


@pytest.mark.parametrize(("name", "sizes"), [("channels", (0, 4)), ("images", (1, 0))])
def test_a_layer_without_channels_or_images_is_refused(name, sizes):
    with pytest.raises(ValueError, match=f"{name}=0 is too small"):
        fused_bias.measure_layer(*sizes, device="cpu")
