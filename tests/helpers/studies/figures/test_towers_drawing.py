"""Towers of memories: every memory stands in its tower and its row, above or below the chip's
edge.
"""

from __future__ import annotations

import pytest
from drawing_samples import overlapping, settle

from helpers.studies import data_movement

TOWERS = {
    "a CPU": [("registers", "6 KiB"), ("L1", "32 KiB"), ("memory", "51 GB/s"), ("swap", "a disk")],
    "a GPU": [("register file", "256 KiB"), ("L2", "6 MiB"), ("device memory", "936 GB/s"), None],
}


def placed(drawn) -> dict[str, tuple[float, float]]:
    return {text.get_text(): text.get_position() for text in drawn.axes[0].texts if text.get_text()}


def test_memories_of_a_row_stand_side_by_side_below_their_machine():
    drawn = data_movement.draw_towers(TOWERS, on_chip=2, bus=(2, "PCIe"), title="Two machines")
    settle(drawn)
    at = placed(drawn)
    for row, (left, right) in enumerate(zip(*TOWERS.values(), strict=True)):
        x, y = at[": ".join(left)]
        assert x == at["a CPU"][0]
        if right:
            assert at[": ".join(right)] == pytest.approx((at["a GPU"][0], y))
        above = row < 2
        assert (y < at["outside"][1]) == above
        assert (y > at["on the chip"][1]) == (not above)
    assert at["a CPU"][0] < at["PCIe"][0] < at["a GPU"][0]
    assert overlapping(drawn.axes[0].texts) == []


def widths(drawn) -> list[float]:
    return [patch.get_width() for patch in drawn.axes[0].patches]


def test_a_bar_is_as_wide_as_the_logarithm_of_its_bytes():
    """8 KiB, 64 KiB and 512 KiB are equal steps; what has no bytes is as wide as the widest; order
    does not count.
    """
    tower = [
        ("L3", "512 KiB", 2**19),
        ("L1", "8 KiB", 2**13),
        ("L2", "64 KiB", 2**16),
        ("memory", "51 GB/s"),
    ]
    drawn = data_movement.draw_towers({"a CPU": tower}, on_chip=3, bus=(3, ""), title="")
    widest, narrow, middle, outside = widths(drawn)
    assert widest == outside > middle > narrow > 0
    assert middle - narrow == pytest.approx(widest - middle)
    settle(drawn)
    at = placed(drawn)
    assert at["L3: 512 KiB"][0] == at["a CPU"][0] < at["L1: 8 KiB"][0]
    assert overlapping(drawn.axes[0].texts) == []


def test_a_memory_that_a_machine_has_not_leaves_its_row_free():
    drawn = data_movement.draw_towers(TOWERS, on_chip=2, bus=(2, "PCIe"), title="")
    boxes = len(drawn.axes[0].patches)
    filled = {**TOWERS, "a GPU": [*TOWERS["a GPU"][:-1], ("host memory", "far")]}
    assert (
        len(data_movement.draw_towers(filled, on_chip=2, bus=(2, "PCIe"), title="").axes[0].patches)
        == boxes + 1
    )


def test_what_are_no_towers_is_refused():
    with pytest.raises(ValueError, match=r"towers of \[4, 1\] rows cannot stand side by side"):
        data_movement.draw_towers({**TOWERS, "a GPU": [None]}, on_chip=2, bus=(2, "PCIe"), title="")
    with pytest.raises(TypeError, match="give a dictionary from names to lists of memories"):
        data_movement.draw_towers([("registers", "6 KiB")], on_chip=0, bus=(0, ""), title="")
    with pytest.raises(ValueError, match="on_chip"):
        data_movement.draw_towers(TOWERS, on_chip=5, bus=(2, "PCIe"), title="")
