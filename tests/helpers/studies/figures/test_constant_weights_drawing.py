"""The figures of lesson 17: what they show is what was counted."""

from __future__ import annotations

from collections import Counter

import pytest
from drawing_samples import overlapping, settle
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, Rectangle

from helpers import plotting
from helpers.studies import constant_weights as cw
from tests.explored import at

CODE = bytes.fromhex("23780f0f7710a6be0000000000c40f00")
LINE = "FFMA R15, R15, -0.32434436678886413574, R0"
YELLOW, BLUE, GREY = (plotting.COLOURS[name] for name in ("data", "computing", "waiting"))


def colours(drawn):
    return Counter(
        to_hex(patch.get_facecolor()).upper()
        for patch in drawn.axes[0].patches
        if isinstance(patch, Rectangle)
    )


def texts(drawn):
    return [text.get_text() for text in drawn.axes[0].texts]


def test_the_weight_of_an_instruction_is_four_yellow_bytes_and_each_register_stands_below_its_byte():  # noqa: E501
    drawn = cw.draw_instruction(CODE, LINE, title="t")
    assert colours(drawn)[YELLOW] == 4
    places = {text.get_text(): text.get_position()[0] for text in drawn.axes[0].texts}
    by_index = {
        text.get_text(): text.get_position()[0]
        for text in drawn.axes[0].texts
        if text.get_text().isdigit() and text.get_fontsize() == 9
    }
    assert places["R0"] == pytest.approx(by_index["8"])
    assert "read from the last byte to the first: be a6 10 77, the float32 -0.32434437" in texts(
        drawn
    )
    settle(drawn)
    assert overlapping(drawn.axes[0].texts) == []


@pytest.mark.parametrize(
    ("code", "line"), [(CODE[:8], LINE), (CODE, LINE.replace("R0", "R1")), (CODE, "NOP")]
)
def test_bytes_that_are_not_the_instruction_are_refused(code, line):
    with pytest.raises(ValueError, match="give the 16 bytes of an FFMA with an immediate"):
        cw.draw_instruction(code, line, title="t")


def test_a_way_has_an_arrow_per_stop_and_an_orange_one_where_a_load_is():
    ways = {
        "const": cw.WeightWay((), "", "FFMA R0, R1, 0.5, R0"),
        "operand": cw.WeightWay(("constant memory",), "", "FFMA R0, R1, c[0x3][0x3c], R0"),
        "in the memory of an H100": cw.WeightWay(
            ("global memory", "register"), "LDG.E R2, [R4.64+0x3c]", "FFMA R0, R1, R2, R0"
        ),
    }
    drawn = cw.draw_ways(ways, title="t")
    arrows = [
        artist for artist in drawn.axes[0].get_children() if isinstance(artist, FancyArrowPatch)
    ]
    assert Counter(to_hex(arrow.get_facecolor()).upper() for arrow in arrows) == {
        "#222222": 2,
        "#D55E00": 1,
    }
    assert {"LDG.E R2, [R4.64+0x3c]", "constant memory", "const"} <= set(texts(drawn))
    settle(drawn)
    assert overlapping(drawn.axes[0].texts) == []
    with pytest.raises(ValueError, match="no ways; give at least one"):
        cw.draw_ways({}, title="t")
    with pytest.raises(TypeError, match="ways of a weight"):
        cw.draw_ways({"x": "y"}, title="t")


def test_the_longest_bar_of_a_program_is_blue_and_bars_are_as_long_as_their_cycles():
    drawn = cw.draw_cycles({"a": {"x": 100, "y": 25}, "b": {"x": 50, "y": 200}}, title="t")
    bars = [patch for patch in drawn.axes[0].patches if isinstance(patch, Rectangle)]
    assert [bar.get_width() / bars[3].get_width() for bar in bars] == pytest.approx(
        [0.5, 0.125, 0.25, 1]
    )
    assert [to_hex(bar.get_facecolor()).upper() for bar in bars] == [BLUE, GREY, GREY, BLUE]
    assert {"100", "25", "50", "200", "a", "b"} <= set(texts(drawn))
    with pytest.raises(ValueError, match="give each program the cycles"):
        cw.draw_cycles({"a": {}}, title="t")


def test_stacked_counts_reach_their_total_and_say_what_feeds_the_multiply_adds():
    counts = cw.recorded_counts(current=True)
    groups = {
        name: [counts.count(name, architecture="sm_90")] for name in ("const", "constant", "device")
    }
    drawn = cw.draw_placements(groups, title="t")
    tops = Counter()
    for bar in drawn.axes[0].patches:
        tops[round(bar.get_x(), 3)] += bar.get_height()
    assert list(tops.values()) == [1980, 3756, 3783]
    said = [text for text in texts(drawn) if "register" in text or text == "immediate"]
    assert said == ["immediate", "uniform register", "register"]
    with pytest.raises(ValueError, match="no counts; give at least one group"):
        cw.draw_placements({}, title="t")
    with pytest.raises(TypeError, match="as recorded_counts"):
        cw.draw_placements({"a": [1]}, title="t")


def turned(monkeypatch, **setting):
    """Return what the formulas of the figure of zeros give at a setting."""
    shown = {}
    monkeypatch.setattr(plotting, "explore", lambda **given: shown.update(given))
    cw.explore_zeros()
    return at(shown["inputs"], shown["formulas"], **setting)


@pytest.mark.parametrize(
    ("kept", "counted"), [(100, 1792), (75, 1154), (50, 631), (25, 228), (10, 40)]
)
def test_weights_at_random_places_are_in_use_about_as_often_as_the_lessons_own(
    monkeypatch, kept, counted
):
    found = turned(monkeypatch, kept=kept)
    assert found["nonzero"] == pytest.approx(kept / 100 * 1792)
    assert found["used"] == pytest.approx(counted, rel=0.15)


def test_with_many_outputs_the_weights_in_use_are_those_that_are_not_zero(monkeypatch):
    found = turned(monkeypatch, outputs=8)
    assert found["used"] > 0.99 * found["nonzero"]
    assert turned(monkeypatch)["used"] < 0.75 * turned(monkeypatch)["nonzero"]
