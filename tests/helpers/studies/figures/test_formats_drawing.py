"""Formats as drawings: a box a bit, and the numbers that a format has beside those that a network
needs.
"""

from __future__ import annotations

import pytest
import torch
from matplotlib.colors import to_hex

from helpers.studies import numbers
from helpers.studies.numbers import FORMATS

TENSORS = {
    "weights": torch.tensor([0.5, -0.75, 1.5, 0.0]),
    "gradients": torch.tensor([2.0**-30, 2.0**-50]),
}


def boxes(drawn, row: int) -> list[str]:
    """The colours of the boxes of one row, from the left."""
    row_of = [
        patch
        for patch in drawn.axes[0].patches
        if patch.get_width() > 0 and round(patch.get_y() + 0.36) == row
    ]
    return [
        to_hex(patch.get_facecolor()) for patch in sorted(row_of, key=lambda patch: patch.get_x())
    ]


def test_a_format_has_a_box_a_bit_and_a_colour_a_part():
    drawn = numbers.draw_bits([FORMATS["bf16"], FORMATS["e4m3"], FORMATS["int8"]])
    rows = [boxes(drawn, row) for row in range(3)]
    assert [len(row) for row in rows] == [16, 8, 8]
    assert [[row.count(colour) for colour in dict.fromkeys(rows[0])] for row in rows] == [
        [1, 8, 7],
        [1, 4, 3],
        [1, 0, 7],
    ]
    assert [label.get_text() for label in drawn.axes[0].get_yticklabels()] == [
        "bf16",
        "e4m3",
        "int8",
    ]


def test_the_numbers_of_a_small_format_are_drawn_one_by_one():
    codes, steps, _ = numbers.draw_format(FORMATS["e4m3"], TENSORS).axes
    [lines] = codes.collections[:1]
    places = [segment[0][0] for segment in lines.get_segments()]
    assert len(places) == 126
    assert (places[0], places[-1]) == (-9, pytest.approx(torch.tensor(448.0).log2().item()))
    powers, ratios = steps.lines[0].get_data()
    assert ratios[list(powers).index(0)] == 2**-3
    assert ratios[list(powers).index(-9)] == 1


def test_a_large_format_is_a_strip_as_wide_as_its_reach():
    strip = numbers.draw_format(FORMATS["fp16"], TENSORS).axes[0].patches[0]
    assert strip.get_x() == -24
    assert strip.get_x() + strip.get_width() == pytest.approx(16, abs=1e-3)


def test_shares_are_of_what_is_not_zero_and_the_rest_stands_at_the_edge():
    shares = numbers.draw_format(FORMATS["fp32"], TENSORS).axes[2]
    drawn = {line.get_label(): dict(zip(*line.get_data(), strict=True)) for line in shares.lines}
    held = {
        name: {place: share for place, share in line.items() if share}
        for name, line in drawn.items()
    }
    assert held == {
        "weights": {-1: pytest.approx(2 / 3), 0: pytest.approx(1 / 3)},
        "gradients": {-40: 0.5, -30: 0.5},
    }


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="give at least one format"):
        numbers.draw_bits([])
    with pytest.raises(TypeError, match=r"numbers\.FORMATS"):
        numbers.draw_format("e4m3", TENSORS)
    with pytest.raises(ValueError, match="room for 4 tensors, not 5"):
        numbers.draw_format(FORMATS["e4m3"], {str(each): torch.ones(1) for each in range(5)})
