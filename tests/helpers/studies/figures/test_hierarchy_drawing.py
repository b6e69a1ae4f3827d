"""Ladder, links and inversion: sizes are drawn, what is unknown is written, never made up."""

from __future__ import annotations

import math

import pytest
from drawing_samples import KIB, LEVELS, MIB, overlapping, settle

from helpers.hardware._devices import devices
from helpers.hardware.limits._results import MemoryLevel
from helpers.plotting._style import mix_colours
from helpers.studies.data_movement._copies import MeasuredLink
from helpers.studies.data_movement.figures._hierarchy import (
    draw_hierarchy,
    draw_inversion,
    draw_links,
)
from helpers.studies.memory_hierarchy._inversion import OnChipMemory, memory_inversion


def words(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def widths(axes) -> list[float]:
    return [patch.get_xy()[2][0] - patch.get_xy()[3][0] for patch in axes.patches]


def test_steps_widen_by_the_logarithm_of_their_size():
    axes = draw_hierarchy(LEVELS).axes[0]
    first, second, third = widths(axes)
    logs = [math.log(level.size_bytes) for level in LEVELS]
    assert (second - first) / (third - first) == pytest.approx(
        (logs[1] - logs[0]) / (logs[2] - logs[0])
    )
    assert third == pytest.approx(1)


def test_every_level_has_its_numbers_and_its_ratio_to_the_one_above():
    drawn = draw_hierarchy(LEVELS)
    settle(drawn)
    axes = drawn.axes[0]
    for text in (
        "L1",
        "32.0 KiB",
        "1.00 ns",
        "200 GB/s",
        "L2",
        "1.00 MiB",
        "4.0x",
        "memory",
        "8.00 GiB",
        "25.0x",
    ):
        assert text in words(axes)
    assert overlapping(axes.texts) == []


def test_what_is_unknown_is_written_so():
    axes = draw_hierarchy(
        [MemoryLevel("L1", None, None, None), MemoryLevel("memory", MIB, 1e-7, None)]
    ).axes[0]
    assert words(axes).count("unknown") == 5  # size, latency, bandwidth; bandwidth; ratio
    with pytest.raises(ValueError, match="at least one memory level"):
        draw_hierarchy([])


def test_links_have_a_point_a_known_number_and_say_unknown_else():
    drawn = draw_links(
        [
            MeasuredLink("memory to core", 30e9, 1e-7, "", ""),
            MeasuredLink("disk to memory", 1e9, None, "", ""),
        ]
    )
    speed, delay = drawn.axes
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in speed.lines] == [
        (30e9, 0),
        (1e9, 1),
    ]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in delay.lines] == [(1e-7, 0)]
    assert words(speed) == ["30.0 GB/s", "1.00 GB/s"]
    assert words(delay) == ["100 ns", "unknown"]
    assert len(draw_links([MeasuredLink("bus", 1e9, None, "", "")]).axes) == 1
    for wrong, message in (
        ([], "at least one link"),
        ([MeasuredLink("bus", None, None, "", "")], "no link has"),
        ([MeasuredLink("bus", 0, None, "", "")], "bus"),
    ):
        with pytest.raises(ValueError, match=message):
            draw_links(wrong)


def chip(name: str, kind: str, registers, l1, shared, l2, l3) -> OnChipMemory:
    return OnChipMemory(name, kind, None, registers, l1, shared, l2, l3, None)


def test_inversion_draws_a_line_a_processor_with_gaps_where_unknown():
    gpu = chip("GPU", "gpu", 20 * MIB, 10 * MIB, 8 * MIB, 6 * MIB, None)
    cpu = chip("CPU", "cpu", 8 * KIB, 512 * KIB, None, None, 64 * MIB)
    axes = draw_inversion([gpu, cpu]).axes[0]
    falling, rising = axes.lines[:2]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        "registers",
        "L1, shared",
        "L2",
        "L3",
    ]
    assert list(falling.get_ydata())[:3] == [20 * MIB, 10 * MIB, 6 * MIB]
    assert [math.isnan(value) for value in rising.get_ydata()] == [False, False, True, False]
    assert (falling.get_linestyle(), rising.get_linestyle()) == ("-", "--")
    assert words(axes) == ["GPU", "CPU"]
    assert (
        axes.texts[0].get_color()
        == mix_colours(falling.get_color(), "#000000", 0.3)
        != axes.texts[1].get_color()
    )
    with pytest.raises(ValueError, match="at least one processor"):
        draw_inversion([chip("CPU", "cpu", None, None, None, None, None)])


def test_a_name_stands_nearer_to_its_own_end_than_to_another_line():
    """The H200's line ends at an L2 of 50 MiB, close above the 32 MiB through which two others
    pass.
    """
    names = ["GTX 580", "V100", "H200", "MI300X", "Ryzen 9 5950X", "EPYC 7713"]
    drawn = draw_inversion(memory_inversion(names))
    settle(drawn)
    axes = drawn.axes[0]
    box = next(text for text in axes.texts if text.get_text() == "H200 SXM").get_window_extent()

    def distance(level: int, size_bytes: int) -> float:
        across, up = axes.transData.transform((level, size_bytes))
        return math.hypot(
            across - min(max(across, box.x0), box.x1), up - min(max(up, box.y0), box.y1)
        )

    assert distance(2, 50 * MIB) < distance(2, 32 * MIB)


def test_the_table_of_devices_can_be_drawn():
    known = [one.name for one in devices() if one.register_bytes is not None]
    drawn = draw_inversion(memory_inversion(known)[:6])
    settle(drawn)
    assert overlapping(drawn.axes[0].texts) == []
