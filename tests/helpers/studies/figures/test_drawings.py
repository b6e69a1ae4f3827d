"""Drawings of the thing itself: what they write is what they were given."""

from __future__ import annotations

from collections import Counter

import pytest
from drawing_samples import overlapping, settle
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, Polygon
from matplotlib.text import Text

from helpers import plotting
from helpers.studies import (
    attention,
    data_movement,
    data_parallel,
    fused_bias,
    gpu_execution,
    input_pipeline,
    matrix_product,
    parallel_plans,
)

COLUMNS = {
    f"{words} words per row": [4 * words * lane for lane in range(32)] for words in (32, 33, 34)
}
LANES = [gpu_execution.MemoryRequest(0, "left", "global", "load", (1, 3), (4, 12))] * 3
RING = data_parallel.ring_frames(4)
EIGHT_EXPERTS = [[(3 * rank + 5 * expert) % 7 for expert in range(8)] for rank in range(4)]
EAGER = [
    fused_bias.Kernel("bias", {"x": 4_000}, {"y": 4_000}),
    fused_bias.Kernel("relu", {"y": 4_000}, {"z": 4_000}),
]
FUSED = [fused_bias.Kernel("bias_relu", {"x": 4_000}, {"z": 4_000})]


def texts(drawn) -> list[str]:
    return [text.get_text() for text in drawn.axes[0].texts]


def test_ring_frames_end_with_every_sum_on_every_rank():
    assert len(RING) == 7
    assert not RING[-1].moves
    assert all(held == frozenset(range(4)) for row in RING[-1].chunks for held in row)
    written = texts(parallel_plans.draw_ring(RING[-1].chunks))
    assert [written.count(str(rank)) for rank in range(4)] == [16] * 4


def test_mesh_writes_each_rank_once():
    written = texts(
        parallel_plans.draw_mesh(
            parallel_plans.Layout(data=2, tensor=3, pipeline=2), along="tensor"
        )
    )
    assert [written.count(str(rank)) for rank in range(3, 12)] == [1] * 9


def test_column_row_numbers_the_parts_of_each_matrix():
    written = texts(parallel_plans.draw_column_row(3))
    assert [written.count(str(part)) for part in range(4)] == [4, 4, 4, 0]


def test_a_rank_waits_in_ring_attention_only_with_a_causal_mask():
    assert "waits" in texts(parallel_plans.draw_blocks(4, 1, causal=True))
    assert "waits" not in texts(parallel_plans.draw_blocks(4, 1))
    assert "waits" not in texts(parallel_plans.draw_blocks(4, 1, causal=True, balanced=True))


@pytest.mark.parametrize("step", range(4))
def test_each_rank_of_a_balanced_ring_computes_two_small_blocks_in_every_step(step):
    drawn = parallel_plans.draw_blocks(4, step, balanced=True)
    filled = [
        patch
        for patch in drawn.axes[0].patches
        if type(patch) is Polygon
        and to_hex(patch.get_facecolor()).upper() == plotting.COLOURS["computing"]
    ]
    rows = Counter(
        min(row, 7 - row)
        for row in (round((patch.get_xy()[0][1] - 0.75) / 0.28) for patch in filled)
    )
    halves = sum(len(patch.get_xy()) == 4 for patch in filled)  # a triangle, closed
    assert rows == dict.fromkeys(range(4), 3 if step == 0 else 2)
    assert halves == (8 if step == 0 else 0)


def test_all_to_all_writes_a_count_where_its_band_is_high_enough():
    written = texts(parallel_plans.draw_all_to_all([[30, 1], [16, 17]]))
    assert {"30", "16", "17"} <= set(written)
    assert "1" not in written


def test_kernels_sum_the_bytes_that_each_program_moves():
    written = texts(fused_bias.draw_kernels({"eager": EAGER, "fused": FUSED}))
    assert "eager: 16.0 kB moved" in written
    assert "fused: 8,000 B moved" in written


def test_loader_writes_the_batch_of_each_worker_and_of_the_trainer():
    written = texts(input_pipeline.draw_loader([3, None], [1, 2], None, places=3))
    assert {"makes 3", "1", "2"} <= set(written)
    assert written.count("waits") == 2


@pytest.mark.parametrize(("computing", "colour"), [(1, "sending"), (None, "waiting")])
def test_the_arrow_to_the_trainer_says_whether_a_batch_goes_there(computing, colour):
    axes = input_pipeline.draw_loader([3], [2], computing, places=3).axes[0]
    *_, to_trainer = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    assert to_hex(to_trainer.get_facecolor()).upper() == plotting.COLOURS[colour]


def test_a_window_has_the_kept_layers_in_their_order_and_an_arrow_for_what_was_read():
    read, there = (
        data_movement.draw_window(4, [2, 3, 0], used=0, read=read) for read in (True, False)
    )
    kept = [text for text in texts(read) if text.isdigit()]
    assert kept == ["2", "3", "0", "0", "1", "2", "3"]
    arrows = [
        sum(isinstance(each, FancyArrowPatch) for each in drawn.axes[0].patches)
        for drawn in (read, there)
    ]
    assert arrows == [1, 0]


def test_products_colour_what_one_number_meets_and_makes():
    drawn = matrix_product.draw_products(5)
    coloured = [to_hex(patch.get_facecolor()).upper() for patch in drawn.axes[0].patches]
    data, made = (coloured.count(plotting.COLOURS[name]) for name in ("data", "computing"))
    assert (data, made) == ((1 + 1) + (1 + 5), 1 + 5)  # of a * b, then of a @ b
    assert "an element of a takes part in 5 results" in texts(drawn)


def test_tiles_colour_what_a_thread_reads_and_what_a_block_has_in_shared_memory():
    def coloured(step):
        drawn = matrix_product.draw_tiles(8, 12, 20, tile=4, block=(1, 2), step=step)
        faces = [to_hex(patch.get_facecolor()).upper() for patch in drawn.axes[0].patches]
        # one in the key
        return tuple(faces.count(plotting.COLOURS[name]) - 1 for name in ("data", "computing"))

    assert coloured(None) == (20, 2)  # the row of A that both read
    assert coloured(3) == (4 * 4 + 4 * 4, 4 * 4)


def test_score_tiles_colour_what_a_tile_needs_what_is_done_and_what_is_never_made():
    def coloured(causal, step):
        order = attention.tiles_of(4, rows=1, columns=1, causal=causal)
        drawn = attention.draw_score_tiles(order, step)
        faces = [to_hex(patch.get_facecolor()).upper() for patch in drawn.axes[0].patches]
        # one in the key
        counts = [faces.count(plotting.COLOURS[name]) - 1 for name in ("data", "computing")]
        return *counts, max(0, faces.count("#FFFFFF") - 1), "never" in texts(drawn)

    assert coloured(False, 5) == (2, 2, 0, False)
    assert coloured(True, 5) == (2, 2, 6, True)


@pytest.mark.parametrize(
    ("order", "step", "expected"),
    [
        ("queries outside", 5, [1, 1, 1, 2, 2, 1, 1]),  # Q0, O0, Q1, and K and V
        ("queries outside", 15, [1, 1] * 4 + [4] * 4),
        ("keys outside", 5, [2, 2, 2, 2, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_score_tiles_say_how_often_a_block_is_read(order, step, expected):
    drawn = attention.draw_score_tiles(attention.tiles_of(4, rows=1, columns=1, order=order), step)
    assert [int(text) for text in texts(drawn) if text.isdigit()] == expected


DRAWINGS = {
    "score tiles": lambda: attention.draw_score_tiles(
        [(i, j) for i in range(4) for j in range(4)], 5, title="t"
    ),
    "many score tiles": lambda: attention.draw_score_tiles(
        [(i, j) for j in range(12) for i in range(j, 12)], 40
    ),
    "one score tile": lambda: attention.draw_score_tiles([(0, 0)], 0, title="t"),
    "ring": lambda: parallel_plans.draw_ring(RING[2].chunks, moves=RING[2].moves),
    "ring of eight": lambda: parallel_plans.draw_ring(
        data_parallel.ring_frames(8)[5].chunks, title="t"
    ),
    "mesh": lambda: parallel_plans.draw_mesh(
        parallel_plans.Layout(data=2, tensor=2, pipeline=2), along="data", title="t"
    ),
    "large mesh": lambda: parallel_plans.draw_mesh(
        parallel_plans.Layout(data=4, tensor=4, pipeline=4), along="data"
    ),
    "two parts": lambda: parallel_plans.draw_column_row(2, title="t"),
    "four parts": lambda: parallel_plans.draw_column_row(4),
    "blocks": lambda: parallel_plans.draw_blocks(4, 2, title="t"),
    "causal blocks": lambda: parallel_plans.draw_blocks(4, 2, causal=True),
    "balanced blocks": lambda: parallel_plans.draw_blocks(4, 2, balanced=True),
    "eight causal blocks": lambda: parallel_plans.draw_blocks(8, 7, causal=True),
    "eight balanced blocks": lambda: parallel_plans.draw_blocks(8, 7, balanced=True),
    "tokens": lambda: parallel_plans.draw_all_to_all(EIGHT_EXPERTS, title="t"),
    "kernels": lambda: fused_bias.draw_kernels({"eager": EAGER, "fused": FUSED}, title="t"),
    "busy": lambda: fused_bias.draw_busy(16, multiprocessors=132, title="t"),
    "all busy": lambda: fused_bias.draw_busy(2, multiprocessors=5, title="t"),
    "loader": lambda: input_pipeline.draw_loader(
        [5, 6, None, 7], [2, 3, 4], 1, places=4, title="t"
    ),
    "small loader": lambda: input_pipeline.draw_loader([0], [], None, places=1),
    "window": lambda: data_movement.draw_window(9, [*range(1, 9)], used=8, read=True),
    "small window": lambda: data_movement.draw_window(2, [1], used=1, read=True),
    "products": lambda: matrix_product.draw_products(4),
    "small products": lambda: matrix_product.draw_products(2),
    "naive": lambda: matrix_product.draw_tiles(12, 16, 12, tile=4, block=(1, 2), title="t"),
    "tiles": lambda: matrix_product.draw_tiles(12, 16, 12, tile=4, block=(2, 3), step=1, title="t"),
    "sectors": lambda: gpu_execution.draw_sectors(COLUMNS, title="t"),
    "one sector": lambda: gpu_execution.draw_sectors({"one lane": [0]}, title="t"),
    "banks": lambda: gpu_execution.draw_banks(COLUMNS, title="t"),
    "one bank": lambda: gpu_execution.draw_banks({"one lane": [0]}, title="t"),
    "lanes": lambda: gpu_execution.draw_lanes(
        {"odd and even threads": LANES, "whole warps": LANES[:1]}, title="t"
    ),
    "few tiles": lambda: matrix_product.draw_tiles(4, 4, 4, tile=2, step=0),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_texts_stand_on_the_paper_and_not_on_one_another(name):
    drawn = DRAWINGS[name]()
    settle(drawn)
    written = [
        text for text in drawn.axes[0].get_children() if isinstance(text, Text) and text.get_text()
    ]
    assert overlapping(written) == []
    boxes = {text.get_text(): text.get_window_extent() for text in written}
    outside = [
        text
        for text, box in boxes.items()
        if min(box.x0, box.y0, drawn.bbox.x1 - box.x1, drawn.bbox.y1 - box.y1) < 0
    ]
    assert outside == []
    assert min(text.get_fontsize() for text in written) >= 9


def test_groups_along_a_dimension_have_a_colour_each():
    layout = parallel_plans.Layout(data=4, tensor=4, pipeline=4)
    axes = parallel_plans.draw_mesh(layout, along="data").axes[0]
    colours = [to_hex(patch.get_facecolor()) for patch in axes.patches][4 + 3 :]
    assert {colours.count(colour) for colour in colours} == {4}
