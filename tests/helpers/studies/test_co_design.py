"""The figures of lesson 15: a packed tile, the border of a depthwise step, costs that disagree, a
block to turn.
"""

from __future__ import annotations

import itertools
import math

import pytest

from helpers import plotting
from helpers.plotting.explorer._formulas import evaluate
from helpers.studies import co_design
from helpers.studies.simulators import systolic


def test_a_packed_tile_holds_a_diagonal_of_kernels():
    """28 kernels of nine weights stand below each other, one a column; the other tile has nine rows
    a channel.
    """
    axes = co_design.draw_packed_tile(28, side=256).axes[0]
    *strips, full = [path.get_paths()[0].get_extents() for path in axes.collections]
    assert len(strips) == 28
    per_row = 2.5 / 256
    for above, below in itertools.pairwise(strips):
        assert below.y0 == pytest.approx(above.y1)
        assert below.x0 - above.x0 == pytest.approx(per_row)
    assert all(strip.height == pytest.approx(9 * per_row) for strip in strips)
    assert full.height == pytest.approx(252 * per_row)
    texts = [text.get_text() for text in axes.texts]
    assert "252 of 65,536 places hold a weight" in texts
    assert "64,512 of 65,536 places hold a weight" in texts


@pytest.mark.parametrize(
    ("channels", "side", "says"),
    [
        (29, 256, "29 channels need 261 rows, but a tile has 256; give at most 28"),
        (1, 8, "side=8"),
        (0, 256, "channels=0"),
    ],
)
def test_what_is_no_tile_is_refused(channels, side, says):
    with pytest.raises(ValueError, match=says):
        co_design.draw_packed_tile(channels, side=side)


@pytest.mark.parametrize("side", [128, 256])
def test_the_border_is_where_both_blocks_take_the_same_tiles(side):
    """The drawn ratio agrees with whole tiles of a block that has no rounding, and is 1 at 9/8 of
    the side.
    """
    axes = co_design.draw_border([24], sides=[side]).axes[0]
    line = axes.lines[0]
    ratio = dict(zip(line.get_xdata().tolist(), line.get_ydata().tolist(), strict=True))
    assert ratio[9 * side // 8] == pytest.approx(1)
    channels, width = side, 9 * side * side
    fused = math.ceil(9 * channels / side) * math.ceil(width / side)
    packed = math.ceil(9 * width / side)  # kernels down a diagonal that wastes no row
    assert ratio[channels] == pytest.approx(
        fused / (math.ceil(channels / side) * math.ceil(width / side) + packed)
    )


def test_a_border_needs_an_array():
    with pytest.raises(ValueError, match="sides is empty; give the side of an array"):
        co_design.draw_border([24], sides=[])


def test_costs_are_drawn_relative_to_the_first_layer():
    drawn = co_design.draw_costs(
        {"a": {"work": 4, "time": 2}, "b": {"work": 1, "time": 3}}, title="costs"
    )
    first, second = drawn.axes[0].lines
    assert (first.get_label(), list(first.get_ydata())) == ("a", [1, 1])
    assert (second.get_label(), list(second.get_ydata())) == ("b", [0.25, 1.5])
    assert drawn.axes[0].get_ylabel() == "relative to a"


@pytest.mark.parametrize(
    ("costs", "says"),
    [
        ({}, "0 layers cannot be drawn; give 1 to 6"),
        (
            {"a": {"work": 1}, "b": {"time": 1}},
            r"'b' has costs in \['time'\]; give all layers costs in \['work'\]",
        ),
        ({"a": {"work": 0}}, "above 0"),
    ],
)
def test_costs_that_cannot_be_compared_are_refused(costs, says):
    with pytest.raises(ValueError, match=says):
        co_design.draw_costs(costs, title="costs")


@pytest.fixture
def turned(monkeypatch):
    """Return what explore_block gives to the figure to turn."""
    shown = {}
    monkeypatch.setattr(plotting, "explore", lambda **given: shown.update(given))
    co_design.explore_block()
    return shown


@pytest.mark.parametrize(
    ("side", "channels"), [(256, 28), (256, 32), (256, 288), (128, 56), (512, 200)]
)
def test_the_block_to_turn_counts_as_the_simulator(turned, side, channels):
    """With so many rows that memory keeps up, the fused block takes the cycles of the simulated
    network.
    """
    from torch import nn

    block = nn.Sequential(nn.Conv2d(channels, 256, 3, padding=1), nn.Conv2d(256, channels, 1))
    run = systolic.simulate_network(
        block, (64, channels, 7, 7), rows=side, columns=side, double_buffered=True
    )
    given = {
        "array": {"S": side},
        "bits": {"b": 4 if side == 512 else 8},
        "digits": 64,
        "channels": channels,
    }
    assert evaluate(turned["formulas"], given)["fused"] == pytest.approx(run.cycles / 1000)


def test_the_block_to_turn_begins_at_the_lessons_block(turned):
    array, bits, digits, channels = turned["inputs"]
    assert (array.start, bits.start, digits.start, channels.start) == ("256", "8", 64, 28)
    given = {"array": {"S": 256}, "bits": {"b": 8}, "digits": 64, "channels": 28}
    values = evaluate(turned["formulas"], given)
    assert (values["fused_tiles"], values["mbconv_tiles"]) == (2, 12)
    assert values["mbconv"] == pytest.approx(39.930)
    one = evaluate(turned["formulas"], given | {"digits": 1})
    assert one["tile"] == pytest.approx(1349, abs=1)
    assert one["fused"] == pytest.approx(4.230, abs=0.003)
    assert evaluate(turned["formulas"], given | {"digits": 1, "bits": {"b": 4}})[
        "tile"
    ] == pytest.approx(675, abs=1)


def test_the_curve_of_the_block_to_turn_has_both_ends_of_every_step(turned):
    """Between two neighbouring channels of the slider the tiles do not change."""
    channels = turned["inputs"][3].values
    for side in (128, 256, 512):
        given = {"array": {"S": side}, "bits": {"b": 8}, "digits": 64}
        for lower, upper in itertools.pairwise(channels):
            tiles = {
                count: evaluate(turned["formulas"], given | {"channels": count})["fused_tiles"]
                for count in (lower, upper - 1, upper)
            }
            assert tiles[upper - 1] == tiles[lower]
