"""Curves over a size: what is drawn is what was given, with gaps, marks, and the looks of model and
measurement.
"""

from __future__ import annotations

import pytest

from helpers.plotting import MEASURED, MODELLED, draw_curves

SIZES = [2**10, 2**12, 2**14]
WORDS = {"unit": "s", "title": "A title", "xlabel": "bytes", "ylabel": "time"}


def test_points_are_those_given_and_none_leaves_a_gap():
    drawn = draw_curves(
        SIZES, {"modelled": [1, 2, 3], "measured": [1.5, None, 3.5]}, marks={"L1": 2**11}, **WORDS
    )
    model, points, mark = drawn.axes[0].lines
    assert (list(model.get_xdata()), list(model.get_ydata())) == (SIZES, [1, 2, 3])
    assert (list(points.get_xdata()), list(points.get_ydata())) == ([2**10, 2**14], [1.5, 3.5])
    assert (model.get_color(), points.get_color()) == (MODELLED, MEASURED)
    assert (model.get_linestyle(), points.get_linestyle(), points.get_marker()) == (
        "-",
        "None",
        "o",
    )
    assert mark.get_xdata()[0] == 2**11
    assert [text.get_text() for text in drawn.axes[0].texts] == ["L1"]
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["modelled", "measured"]


def test_bytes_are_binary_and_plain_sizes_plain():
    drawn = draw_curves(SIZES, {"measured": [1, 2, 3]}, **WORDS)
    assert drawn.axes[0].xaxis.get_major_formatter()(2**12, 0) == "4 KiB"
    drawn = draw_curves([1, 4, 1024], {"measured": [1, 2, 3]}, size_unit="", log=False, **WORDS)
    axis = drawn.axes[0].xaxis
    assert [axis.get_major_formatter()(place, 0) for place in axis.get_major_locator()()] == [
        "1",
        "4",
        "1,024",
    ]
    assert drawn.axes[0].get_ylim()[0] == 0


def test_two_other_curves_have_looks_of_their_own():
    drawn = draw_curves(
        SIZES, {"modelled": [1, 2, 3], "other": [2, 2, 2], "third": [1, 1, 1]}, **WORDS
    )
    looks = {(line.get_color(), line.get_linestyle()) for line in drawn.axes[0].lines}
    assert len(looks) == 3


@pytest.mark.parametrize(
    ("curves", "told"),
    [
        ({"measured": [1, 2]}, "measured has another length"),
        ({"measured": [None, None, None]}, "nothing to draw"),
        ({}, "nothing to draw"),
        ({"measured": [1, 0, 2]}, "give numbers above 0, or log=False"),
        ({name: [1, 1, 1] for name in "abc"}, "room for 2 curves"),
    ],
)
def test_what_cannot_be_drawn_is_refused(curves, told):
    with pytest.raises(ValueError, match=told):
        draw_curves(SIZES, curves, **WORDS)
