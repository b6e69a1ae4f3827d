"""Counts for each implementation, costs that are fitted to them, and what they say of networks kept
out.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from scipy.optimize import nnls

from helpers import recorded
from helpers.studies.convolution_time import (
    COUNTINGS,
    MULTIPLICATIONS,
    ConvolutionShape,
    TimePart,
    count_terms,
    count_work,
    draw_patches,
    draw_ratios,
    draw_waves,
    errors,
    explain_time,
    hold_out_networks,
    implementation_of,
    predict_times,
)

LAYER = ConvolutionShape(1, 64, 56, 56, 64, kernel=3, stride=1, padding=1)
STEM = ConvolutionShape(1, 3, 224, 224, 64, kernel=7, stride=2, padding=3)


@functools.cache
def recording():
    return recorded.load("20-cpu").result("convolutions")


@functools.cache
def splits():
    return hold_out_networks(recording().shapes, recording().network_shapes)


@functools.cache
def predicted(counting):
    return np.concatenate([predict_times(recording(), split, counting) for split in splits()])


def measured(of="both"):
    rows = [index for split in splits() for index in split.test]
    return np.column_stack(
        [recording().times_s(name, of=of)[rows] for name in recording().algorithms]
    )


def rmspe(counting):
    known = np.isfinite(measured())
    return errors(predicted(counting)[known], measured()[known]).rmspe_share


def regret(counting):
    times_s = measured("second")
    chosen = np.where(np.isfinite(times_s), predicted(counting), np.inf).argmin(axis=1)
    return times_s[np.arange(len(chosen)), chosen].sum() / np.nanmin(times_s, axis=1).sum()


@pytest.mark.parametrize(
    ("kernel", "stride", "name"),
    [
        (3, 1, "Winograd"),
        (5, 1, "Fourier"),
        (1, 1, "direct product"),
        (3, 2, "matrix product"),
        (7, 2, "matrix product"),
    ],
)
def test_nnpack_has_four_implementations(kernel, stride, name):
    shape = ConvolutionShape(1, 8, 28, 28, 8, kernel=kernel, stride=stride, padding=0)
    assert implementation_of("nnpack", shape) == name


def test_the_implementation_is_named_for_every_algorithm():
    assert implementation_of("direct", LAYER) == implementation_of("im2col", LAYER) == "blocked"
    assert implementation_of("shifted", STEM) == "products, stride 2"
    assert implementation_of("winograd_2", LAYER) == "winograd_2"
    with pytest.raises(ValueError, match="algorithm"):
        implementation_of("cudnn", LAYER)


def test_nnpack_cuts_our_layer_into_a_hundred_tiles():
    counts = count_terms("nnpack", LAYER)
    assert counts["products of tiles"] == 100 * 8**2 * 64 * 64
    assert counts["bytes of input tiles"] == 4 * 100 * 8**2 * 64


@pytest.mark.parametrize("algorithm", ["winograd_2", "winograd_4"])
def test_tiles_of_winograd_multiply_as_often_as_the_operators(algorithm):
    shape = ConvolutionShape(2, 5, 13, 9, 7, kernel=3, stride=1, padding=1)
    assert (
        count_terms(algorithm, shape)["products of tiles"] == count_work(algorithm, shape).products
    )


@pytest.mark.parametrize(
    ("side", "kernel", "products"),
    [
        # a tile of 16 makes 12 x 12 outputs; of tiles of 8, for 4 x 4, nine are needed
        (10, 5, 256),
        (4, 5, 64),
        (12, 9, 4 * 256),  # a filter of 9 does not fit into a tile of 8
    ],
)
def test_nnpack_takes_large_tiles_if_they_are_few(side, kernel, products):
    shape = ConvolutionShape(1, 1, side, side, 1, kernel=kernel, stride=1, padding=kernel // 2)
    assert count_terms("nnpack", shape)["products of tiles"] == products


def test_countings_and_their_names():
    assert list(count_terms("direct", LAYER, counting=COUNTINGS[0])) == ["calls", "macs"]
    assert "products of tiles" not in count_terms("nnpack", LAYER, counting="all counts")
    assert set(MULTIPLICATIONS) & set(count_terms("nnpack", LAYER)) == {"macs", "products of tiles"}
    with pytest.raises(ValueError, match="counting"):
        count_terms("direct", LAYER, counting="everything")


def test_the_right_implementation_brings_the_pooled_error_below_seers():
    assert [round(100 * rmspe(counting)) for counting in COUNTINGS] == [46, 19, 13]
    assert np.isfinite(measured()).sum() == 1277


def test_regret_needs_the_implementation():
    """Fewer mistakes of the second model cost more than always channels-last, which has 1.066."""
    assert regret("all counts") > 1.10
    assert regret("by implementation") < 1.03


def test_errors_in_seconds_are_seen():
    def in_seconds(counts, times_s):
        return nnls(counts, times_s)[0]

    split = splits()[3]
    truth = recording().times_s("direct")[split.test]
    of_seconds = predict_times(recording(), split, "all counts", fit_costs=in_seconds)[:, 0]
    of_ratios = predict_times(recording(), split, "all counts")[:, 0]
    assert errors(of_seconds, truth).rmspe_share > 2 * errors(of_ratios, truth).rmspe_share


def test_parts_add_up_to_the_predicted_time():
    split = splits()[3]
    assert split.held_out == "resnet50"
    row = split.test.index(recording().shapes.index(LAYER))
    column = recording().algorithms.index("nnpack")
    parts = explain_time(recording(), split, "nnpack", LAYER)
    total_s = predict_times(recording(), split, "by implementation")[row, column]
    assert sum(part.time_s for part in parts) == pytest.approx(total_s)
    assert TimePart("calls", 3, 0.5).time_s == 1.5


def test_a_time_that_is_too_short_is_not_fitted():
    split = splits()[0]
    every, long = (
        predict_times(recording(), split, "FLOP only", shortest_s=seconds)
        for seconds in (0.0, 1e-3)
    )
    assert np.isfinite(every).sum() == np.isfinite(long).sum()
    assert not np.allclose(every[np.isfinite(every)], long[np.isfinite(long)])
    with pytest.raises(ValueError, match="0 shapes of direct are left to fit"):
        predict_times(recording(), split, "FLOP only", shortest_s=1e3)


def test_figures_show_what_they_are_given():
    patches = draw_patches(5, 3, 12, title="patches")
    texts = [text.get_text() for text in patches.axes[0].texts]
    assert texts.count("12") == 1 + 9
    assert len(texts) == 25 + 81 + 1
    waves = draw_waves([4, 5], [98, 123], resident=120, title="waves")
    assert list(waves.axes[0].lines[1].get_ydata()) == [1, 2]
    ratios = draw_ratios({"a": [0.5, np.nan, 2.0], "b": [1.0]}, title="ratios")
    assert [len(line.get_xdata()) for line in ratios.axes[0].lines[:2]] == [2, 1]


def test_figures_refuse_what_they_cannot_draw():
    with pytest.raises(ValueError, match="pixel"):
        draw_patches(5, 3, 25, title="patches")
    with pytest.raises(ValueError, match="2 images and 1 blocks"):
        draw_waves([4, 5], [98], resident=120, title="waves")
    with pytest.raises(ValueError, match="ratios above 0"):
        draw_ratios({"a": [0.0]}, title="ratios")
