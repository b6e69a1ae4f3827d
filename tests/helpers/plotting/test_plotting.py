"""Figures: the alt text is never lost, the same drawing gives the same bytes, the colours can be
told apart.
"""

from __future__ import annotations

import itertools
import struct

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import rgb_to_hsv, to_hex, to_rgb, to_rgba

from helpers import plotting
from helpers.plotting import _bars as bars
from helpers.plotting._style import OTHERS, STYLE_FILE, contrast, ink_on, legible_colour, png
from helpers.studies.data_movement.figures._hierarchy import _SHADES
from helpers.studies.data_movement.figures._processors import _OFF_CHIP, _ON_CHIP


def sample(**changes):
    values = {"predicted": [None, 2.0], "modelled": [1.0, 2.0], "measured": [1.1, 2.3]} | changes
    return plotting.draw_three(["1", "2"], values, unit="s", title="Training", xlabel="epochs")


def relative_luminance(colour: str) -> float:
    """WCAG 2.2's relative luminance."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.fixture
def shown(monkeypatch) -> list:
    """What was displayed, each a pair of data and metadata."""
    outputs: list = []
    monkeypatch.setattr(
        "IPython.display.display", lambda data, metadata, **_: outputs.append((data, metadata))
    )
    return outputs


def test_alt_text_is_the_text_and_stands_in_the_metadata(shown):
    alt = "Measured time grows with the number of epochs."
    plotting.show(sample(), alt=alt)
    [(data, metadata)] = shown
    assert data["text/plain"] == alt
    assert metadata["image/png"]["alt"] == alt


def test_image_is_a_png_of_the_figures_shape(shown):
    plotting.show(sample(), alt="x")
    [(bundle, metadata)] = shown
    data, sizes = bundle["image/png"], metadata["image/png"]
    width, height = struct.unpack(">II", data[16:24])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert width / height == pytest.approx(sizes["width"] / sizes["height"], rel=0.01)


def test_show_closes_the_figure_so_that_it_is_not_drawn_twice(shown):
    before = plt.get_fignums()
    plotting.show(sample(), alt="x")
    assert len(shown) == 1
    assert plt.get_fignums() == before


@pytest.mark.parametrize("alt", ["", "  \n"])
def test_figure_without_alt_text_is_refused(alt):
    with pytest.raises(ValueError, match="needs an alt text"):
        plotting.show(sample(), alt=alt)


def test_same_drawing_gives_the_same_bytes_and_names_no_version():
    first, second = plotting.png(sample()), plotting.png(sample())
    assert first == second
    assert b"Matplotlib" not in first
    assert first != plotting.png(sample(measured=[1.1, 2.4]))


def test_the_users_own_style_is_left_alone():
    before = dict(plt.rcParams)
    plotting.png(sample())
    assert dict(plt.rcParams) == before


def test_bars_are_the_numbers():
    axes = sample().axes[0]
    heights = {c.get_label(): [bar.get_height() for bar in c] for c in axes.containers}
    assert heights == {"predicted": [0, 2.0], "modelled": [1.0, 2.0], "measured": [1.1, 2.3]}
    assert [text.get_text() for text in axes.texts if text.get_text()] == [
        "2.00 s",
        "1.00 s",
        "2.00 s",
        "1.10 s",
        "2.30 s",
    ]


def test_a_number_nobody_gave_has_no_bar():
    axes = sample(predicted=[None, None]).axes[0]
    assert [c.get_label() for c in axes.containers] == ["modelled", "measured"]


def test_what_was_found_has_one_colour_and_the_name_of_what_it_rests_on():
    values = {"modelled": [1.0], "simulated": [1.2]}
    axes = plotting.draw_three(["1"], values, unit="s", title="Training", xlabel="epochs").axes[0]
    assert [c.get_label() for c in axes.containers] == ["modelled", "simulated"]
    assert axes.containers[1].patches[0].get_facecolor() == to_rgba(plotting.MEASURED)
    with pytest.raises(ValueError, match="measured and simulated have one colour"):
        sample(simulated=[1.0, 2.0])


def test_wrong_names_and_lengths_are_refused():
    with pytest.raises(ValueError, match="not guessed"):
        sample(guessed=[1, 2])
    with pytest.raises(ValueError, match="modelled has another length"):
        sample(modelled=[1.0])


def test_points_on_a_logarithmic_axis_and_bars_on_a_linear_one():
    values = {"first call": 0.0157, "median": 7.7e-5}
    log = plotting.draw_bars(values, unit="s", title="t", log=True).axes[0]
    linear = plotting.draw_bars(values, unit="s", title="t").axes[0]
    assert list(log.lines[0].get_xdata()) == [0.0157, 7.7e-5]
    assert [bar.get_width() for bar in linear.patches] == [0.0157, 7.7e-5]
    assert not log.patches
    with pytest.raises(ValueError, match="above zero"):
        plotting.draw_bars({"nothing": 0.0}, unit="s", title="t", log=True)
    with pytest.raises(ValueError, match="nothing to draw"):
        plotting.draw_bars({}, unit="s", title="t")


def test_ticks_are_quantities():
    drawn = plotting.draw_bars({"a": 2e-3}, unit="s", title="t")
    drawn.canvas.draw()
    assert "1 ms" in [tick.get_text() for tick in drawn.axes[0].get_xticklabels()]
    with pytest.raises(ValueError, match="'x' or 'y'"):
        plotting.unit_axis(drawn.axes[0], "z", "s")


def test_the_three_colours_differ_in_lightness_and_text_is_readable():
    lightness = sorted(
        map(relative_luminance, (plotting.PREDICTED, plotting.MODELLED, plotting.MEASURED))
    )
    assert all(high - low > 0.05 for low, high in itertools.pairwise(lightness))
    with plt.style.context(STYLE_FILE):
        for key in ("xtick.color", "ytick.color", "axes.labelcolor", "text.color"):
            contrast = 1.05 / (relative_luminance(plt.rcParams[key]) + 0.05)
            assert contrast >= 4.5, key


@pytest.mark.parametrize(("settings", "rotated"), [(2, 0), (5, 90), (4, 90)])
def test_the_numbers_above_bars_stand_apart_and_can_be_read(settings, rotated):
    values = {name: [1.81e-3] * settings for name in ("predicted", "modelled", "measured")}
    names = [f"program {index}" for index in range(settings)]
    drawn = plotting.draw_three(names, values, unit="s", title="Bias gradient", xlabel="program")
    drawn.draw_without_rendering()
    (axes,) = drawn.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == 3 * settings
    half = 0 if rotated else bars._APART_PT / 2 / 72 * drawn.dpi
    wide = [box.padded(half, 0) for box in boxes]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(wide, 2))
    assert all(axes.bbox.y0 <= box.y0 and box.y1 <= axes.bbox.y1 for box in boxes)
    assert {text.get_rotation() for text in axes.texts} == {rotated}
    assert min(text.get_fontsize() for text in axes.texts) >= 9.5
    plt.close(drawn)


def test_numbers_that_would_nearly_touch_are_written_smaller():
    """Four pairs of eight characters: at their full size they would stand apart by less than a
    letter's width.
    """
    names = ["one-pass", "native", "in-place", "separate"]
    values = {name: [0.175e-9, 0.231e-9, 0.699e-9, 0.572e-9] for name in ("modelled", "measured")}
    drawn = plotting.draw_three(names, values, unit="s", title="Bias", xlabel="program")
    drawn.draw_without_rendering()
    texts = drawn.axes[0].texts
    assert {text.get_rotation() for text in texts} == {0}
    assert 9.5 <= texts[0].get_fontsize() < 11
    row = sorted((text.get_window_extent() for text in texts), key=lambda box: box.x0)
    gaps_pt = [(right.x0 - left.x1) * 72 / drawn.dpi for left, right in itertools.pairwise(row)]
    assert min(gaps_pt) >= bars._APART_PT
    plt.close(drawn)


@pytest.mark.parametrize(
    ("bars_drawn", "height_in"), [(2, 2.3), (5, 3.65), (6, 4), (10, 4), (12, 4.04), (20, 5.8)]
)
def test_a_figure_of_many_bars_is_no_higher_than_their_names_need(bars_drawn, height_in):
    drawn = plotting.draw_bars(
        {f"name {place}": place + 1.0 for place in range(bars_drawn)}, unit="s", title="t"
    )
    assert drawn.get_figheight() == pytest.approx(height_in)
    drawn.draw_without_rendering()
    boxes = [tick.get_window_extent() for tick in drawn.axes[0].get_yticklabels()]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    plt.close(drawn)


PALETTE = [*plotting.COLOURS.values(), *OTHERS]
# How far a channel of a bar with a label may be from the palette's: orange and olive are nearest to
# neither ink.
FARTHEST = {"#E69F00": 0.24, "#999933": 0.13}


@pytest.mark.parametrize("colour", [*PALETTE, *_SHADES, _ON_CHIP, _OFF_CHIP, "#FFFFFF", "#777777"])
def test_a_label_on_a_bar_can_be_read_on_a_light_and_on_a_dark_page_and_the_bar_keeps_its_colour(
    colour,
):
    shade = legible_colour(colour)
    assert contrast(shade, ink_on(shade)) >= 4.5
    assert contrast(shade, ink_on(shade)) == max(contrast(shade, ink) for ink in ("black", "white"))
    assert max(
        abs(one - other) for one, other in zip(to_rgb(colour), to_rgb(shade), strict=True)
    ) <= FARTHEST.get(colour, 0.1)
    assert rgb_to_hsv(to_rgb(shade))[0] == pytest.approx(rgb_to_hsv(to_rgb(colour))[0], abs=0.01)


@pytest.mark.parametrize("kind", [*plotting.COLOURS, "forward", "backward-weight", "one", "two"])
def test_every_bar_of_a_chart_carries_a_label_that_can_be_read(kind):
    kinds = [kind, f"{kind}, stage 1", f"{kind}, stage 2"]
    drawn = plotting.gantt([plotting.Span(name, 0, 1, name, "label") for name in kinds], title="t")
    for bar, text in zip(drawn.axes[0].patches, drawn.axes[0].texts, strict=True):
        assert contrast(to_hex(bar.get_facecolor()), text.get_color()) >= 4.5
    plt.close(drawn)


def test_a_pie_has_numbers_that_can_be_read():
    drawn = plotting.draw_shares({"all": {f"part {place}": 1.0 for place in range(14)}}, title="t")
    wedges, texts = (
        drawn.axes[0].patches,
        [text for text in drawn.axes[0].texts if "%" in text.get_text()],
    )
    assert len(texts) == 14
    for wedge, text in zip(wedges, texts, strict=True):
        assert contrast(to_hex(wedge.get_facecolor()), text.get_color()) >= 4.5
    plt.close(drawn)


def test_the_contrast_is_that_of_wcag_on_the_page_where_it_is_less():
    on_white = 1.05 / (relative_luminance("#D55E00") + 0.05)
    assert contrast("#D55E00", "black") < 2.6 < contrast("#D55E00", "white") < on_white


@pytest.mark.parametrize("words", [2, 12])
def test_a_title_that_would_run_out_of_the_figure_is_broken_into_lines(words):
    drawn = plotting.draw_bars({"a device": 1.0}, unit="s", title=" ".join(["weights"] * words))
    png(drawn)
    [axes] = drawn.axes
    assert axes.get_title(loc="left").split() == ["weights"] * words
    assert ("\n" in axes.get_title(loc="left")) == (words == 12)
    assert axes.get_tightbbox().x1 <= drawn.bbox.x1
