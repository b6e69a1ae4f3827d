"""The levels below a call, and the tile in the registers: everything given is written once, in its
place.
"""

from __future__ import annotations

import pytest
from drawing_samples import overlapping, settle

from helpers.studies import stack

LEVELS = {
    "Python": ["conv(x)"],
    "operators": ["aten::conv2d", "aten::convolution"],
    "instructions": ["vfmadd231ps"],
}
SUMS = [["ymm0", "ymm2"], ["ymm1", "ymm3"], ["ymm4", "ymm5"]]


def placed(drawn) -> dict[str, tuple[float, float]]:
    return {text.get_text(): text.get_position() for text in drawn.axes[0].texts if text.get_text()}


def test_levels_stand_below_each_other_with_their_lines():
    drawn = stack.draw_levels(LEVELS, title="One line")
    settle(drawn)
    at = placed(drawn)
    lines = [line for found in LEVELS.values() for line in found]
    assert sorted(at) == sorted([*LEVELS, *lines])
    assert [at[line][1] for line in lines] == sorted(at[line][1] for line in lines)
    assert at["operators"][1] == pytest.approx(
        (at["aten::conv2d"][1] + at["aten::convolution"][1]) / 2
    )
    assert overlapping(drawn.axes[0].texts) == []


def test_the_longest_line_ends_inside_the_paper():
    drawn = stack.draw_levels(
        {"instructions": ["vfmadd231ps zmm7, zmm28, DWORD BCST [r14+rbp*1-0x1c0]"]}, title=""
    )
    settle(drawn)
    assert all(text.get_window_extent().x1 < drawn.bbox.x1 for text in drawn.axes[0].texts)


def test_a_sum_stands_in_the_row_of_its_input_and_the_column_of_its_filters():
    drawn = stack.draw_tile(SUMS, ["in0", "in1", "in2"], ["f0", "f1"], title="A tile")
    settle(drawn)
    at = placed(drawn)
    for row, held in enumerate(SUMS):
        for column, name in enumerate(held):
            assert at[name] == pytest.approx((at[f"f{column}"][0], at[f"in{row}"][1]))
    assert overlapping(drawn.axes[0].texts) == []


def test_what_is_no_tile_and_no_level_is_refused():
    with pytest.raises(ValueError, match=r"have \[2, 2, 2\] registers; give \[1, 1, 1\]"):
        stack.draw_tile(SUMS, ["in0", "in1", "in2"], ["f0"], title="")
    with pytest.raises(TypeError, match="give a dictionary from names to levels"):
        stack.draw_levels(["conv(x)"], title="")
    with pytest.raises(TypeError, match=r"levels\['Python'\]='conv\(x\)' is "):
        stack.draw_levels({"Python": "conv(x)"}, title="")
