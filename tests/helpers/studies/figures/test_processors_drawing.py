"""Schematic processors: areas are the shares exactly; the memory spaces are the table of NVIDIA's
guide.
"""

from __future__ import annotations

import collections
import itertools

import pytest
from drawing_samples import overlapping, settle
from matplotlib.transforms import Bbox

from helpers.studies.data_movement.figures._processors import (
    MEMORY_SPACES,
    PARTS,
    SCHEMATIC_DIES,
    die_boxes,
    draw_dies,
    draw_memory_spaces,
)


@pytest.mark.parametrize("die", SCHEMATIC_DIES, ids=lambda die: die.name)
def test_the_area_of_each_part_is_its_share_and_the_boxes_fill_the_die(die):
    areas = collections.Counter()
    for part, (_, _, width, height) in die_boxes(die):
        areas[part] += width * height
    assert dict(areas) == pytest.approx(die.shares())
    assert sum(areas.values()) == pytest.approx(1)


@pytest.mark.parametrize("die", SCHEMATIC_DIES, ids=lambda die: die.name)
def test_boxes_of_a_die_lie_in_it_and_not_on_one_another(die):
    boxes = [Bbox.from_bounds(*box).shrunk(0.999, 0.999) for _, box in die_boxes(die)]
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= 1 and box.y1 <= 1 for box in boxes)
    pairs = itertools.combinations(boxes[:120], 2)
    assert not any(a.x0 < b.x1 and b.x0 < a.x1 and a.y0 < b.y1 and b.y0 < a.y1 for a, b in pairs)


def test_the_cpu_has_fewer_and_larger_cores_and_the_gpu_more_arithmetic():
    cpu, gpu = SCHEMATIC_DIES
    units = [sum(part == "arithmetic" for part, _ in die_boxes(die)) for die in SCHEMATIC_DIES]
    assert cpu.rows * cpu.columns < gpu.rows * gpu.columns
    assert units == [2 * 2 * 2 * 2, 8 * 2 * 2 * 16]
    assert gpu.arithmetic_share > 2 * cpu.arithmetic_share
    assert cpu.control_share > 2 * gpu.control_share


def test_the_drawing_says_that_it_is_schematic_and_explains_its_colours():
    drawn = draw_dies()
    assert "schematic" in drawn._suptitle.get_text()
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == list(PARTS)
    assert len(set(PARTS.values())) == len(PARTS)


def test_memory_spaces_are_the_guides_table():
    table = {
        space.name: (
            space.on_chip,
            space.scope,
            space.lifetime,
            "write" in space.thread_may,
            "write" in space.host_may,
        )
        for space in MEMORY_SPACES
    }
    assert table == {
        "register": (True, "thread", "the thread", True, False),
        "local": (False, "thread", "the thread", True, False),
        "shared": (True, "block", "the block", True, False),
        "constant": (False, "grid", "the allocation", False, True),
        "texture": (False, "grid", "the allocation", False, True),
        "global": (False, "grid", "the allocation", True, True),
    }


def test_a_box_is_as_wide_as_the_scope_of_its_space():
    drawn = draw_memory_spaces()
    settle(drawn)
    axes = drawn.axes[0]
    rows = collections.defaultdict(list)
    for patch in axes.patches:
        rows[int(patch.get_y())].append(round(patch.get_width(), 2))
    assert [len(rows[row]) for row in range(6)] == [4, 4, 2, 1, 1, 1]
    assert [rows[row][0] for row in range(6)] == [0.94, 0.94, 1.94, 3.94, 3.94, 3.94]
    assert overlapping(axes.texts) == []
