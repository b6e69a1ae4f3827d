"""The room of lesson 08: real ranks sum over the link of their group, and its figures show what
they are given.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter

import matplotlib.pyplot as plt
import pytest
import torch
import torch.distributed as dist
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch
from torch.distributed.device_mesh import init_device_mesh

from helpers import plotting
from helpers.links import Link
from helpers.parallel import collective
from helpers.plotting._style import legible_colour
from helpers.ranks import RankError, Ranks
from helpers.studies import layouts, parallel_plans
from helpers.studies.layouts import figures
from tests.explored import at

NODE, PORT = Link(1e9, 0.001), Link(1e9, 0.03)


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4, device="cpu") as started:
        yield started


@pytest.fixture(autouse=True)
def _figures_closed():
    yield
    plt.close("all")


def sums_of(rank, _world_size, names):
    """Return for each dimension of a mesh of 2 x 2 the sum of 10 ** rank, the bytes by link, and
    the seconds.
    """
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    results = {}
    for name in names:
        wires = layouts.Wires(ranks_per_node=2, node=NODE, port=PORT)
        dist.barrier()
        start_s = time.perf_counter()
        for _ in range(2):
            total = wires.all_reduce(torch.full((6,), 10.0**rank), mesh.get_group(name))
        taken_s = time.perf_counter() - start_s
        results[name] = total.tolist(), wires.node_bytes, wires.port_bytes, taken_s
    return results


@pytest.mark.parametrize("names", [("dp", "tp"), ("tp", "dp")])
def test_the_last_name_is_summed_in_the_node_and_the_first_through_the_ports(ranks, names):
    outer, inner = names
    for rank, results in enumerate(ranks.run(sums_of, names)):
        total, node_bytes, port_bytes, taken_s = results[inner]
        node = rank // 2
        assert total == [10.0 ** (2 * node) + 10.0 ** (2 * node + 1)] * 6  # 0 and 1, or 2 and 3
        assert (node_bytes, port_bytes) == (48, 0)  # two sums of 24 bytes, 2 (2 - 1) / 2 of each
        assert taken_s >= 2 * 2 * 0.001
        total, node_bytes, port_bytes, taken_s = results[outer]
        place = rank % 2
        assert total == [10.0**place + 10.0 ** (place + 2)] * 6
        assert (node_bytes, port_bytes) == (0, 48)
        assert taken_s >= 2 * 2 * 0.03


def sum_of_all(_rank, _world_size, per_node):
    wires = layouts.Wires(ranks_per_node=per_node, node=NODE, port=PORT)
    total = wires.all_reduce(torch.ones(8, dtype=torch.float64), dist.group.WORLD)
    return total.tolist(), wires.node_bytes, wires.port_bytes


@pytest.mark.parametrize(("per_node", "sent_bytes"), [(4, (96, 0)), (1, (0, 96))])
def test_a_group_of_four_sends_three_quarters_twice(ranks, per_node, sent_bytes):
    assert ranks.run(sum_of_all, per_node) == [([4.0] * 8, *sent_bytes)] * 4


def test_a_group_of_two_levels_is_refused(ranks):
    with pytest.raises(
        RankError, match=r"ranks \[0, 1, 2, 3\] have neighbours in a node of 2 and others beyond it"
    ):
        ranks.run(sum_of_all, 2)


def test_links_and_nodes_that_are_none_are_refused():
    with pytest.raises(TypeError, match=r"port is a helpers\.links\.Link"):
        layouts.Wires(ranks_per_node=2, node=NODE, port=50e9)
    with pytest.raises(ValueError, match="ranks_per_node"):
        layouts.Wires(ranks_per_node=0, node=NODE, port=PORT)


def test_published_layouts_are_on_the_published_numbers_of_gpus():
    gpus = [model.data * model.tensor * model.stages for model in layouts.MODELS]
    assert gpus == [32, 64, 128, 256, 512, 1024, 1536, 1920, 2520, 3072]
    assert all(model.sequences % model.data == 0 for model in layouts.MODELS)


def boxes(drawn):
    """Return the texts of the boxes by their colour, a box without a text as an empty one."""
    [axes] = drawn.axes
    texts = [(text.get_position(), text.get_text()) for text in axes.texts]
    found = []
    for patch in (artist for artist in axes.get_children() if isinstance(artist, FancyBboxPatch)):
        box = patch.get_bbox()
        inside = [text for (x, y), text in texts if box.x0 < x < box.x1 and box.y0 < y < box.y1]
        found.append((to_hex(patch.get_facecolor(), keep_alpha=True), tuple(inside)))
    return found


@pytest.mark.parametrize(
    ("names", "row", "column"), [(("dp", "tp"), "tensor", "data"), (("tp", "dp"), "data", "tensor")]
)
def test_the_groups_of_gpu_0_are_its_row_and_its_column(names, row, column):
    drawn = layouts.draw_names(names)
    colours = {"tensor": legible_colour(figures._TENSOR), "data": legible_colour(figures._DATA)}
    numbers = {
        kind: {
            int(text[0])
            for colour, text in boxes(drawn)
            if colour == to_hex(colours[kind], keep_alpha=True)
            and len(text) == 1
            and text[0].isdigit()
        }
        for kind in colours
    }
    assert numbers[row] == set(range(1, 8))
    assert numbers[column] == set(range(8, 64, 8))
    texts = [text.get_text() for text in drawn.axes[0].texts]
    assert f"a row is a {row} group, a column a {column} group" in texts
    with pytest.raises(ValueError, match="names"):
        layouts.draw_names(("pp", "tp"))


def test_the_triangle_has_each_layout_at_its_place_and_frames_the_fastest():
    steps_s = {(4, 1, 1): 0.2, (2, 2, 1): 0.1, (1, 4, 1): 0.4, (2, 1, 2): 0.3}
    drawn = layouts.draw_layouts(steps_s, title="t")
    cells = [(colour, text) for colour, text in boxes(drawn) if text]
    assert {text for _, text in cells} == {
        ("200 ms", "4 data"),
        ("100 ms", "2 data"),
        ("400 ms", "1 data"),
        ("300 ms", "2 data"),
    }
    depth = {
        text[0]: sum(int(colour[place : place + 2], 16) for place in (1, 3, 5))
        for colour, text in cells
    }
    # the fastest is darkest
    assert sorted(depth, key=depth.get) == ["100 ms", "200 ms", "300 ms", "400 ms"]
    framed = [
        patch
        for patch in drawn.axes[0].get_children()
        if isinstance(patch, FancyBboxPatch) and patch.get_edgecolor()[3] == 1
    ]
    assert len(framed) == 1
    place = {text.get_text(): text.get_position() for text in drawn.axes[0].texts}
    assert place["300 ms"][0] == place["200 ms"][0] < place["100 ms"][0] < place["400 ms"][0]
    # more stages are higher up
    assert place["300 ms"][1] < place["200 ms"][1] == place["400 ms"][1]
    assert place["2 stages"][1] < place["200 ms"][1]
    [at_x] = [text.get_position()[0] for text in drawn.axes[0].texts if text.get_text() == "100 ms"]
    assert framed[0].get_bbox().x0 < at_x < framed[0].get_bbox().x1
    with pytest.raises(ValueError, match="no layouts to draw"):
        layouts.draw_layouts({}, title="t")
    with pytest.raises(ValueError, match=r"steps_s\[\(1, 1, 1\)\]=0"):
        layouts.draw_layouts({(1, 1, 1): 0}, title="t")


def test_the_map_colours_each_cell_by_the_kind_of_its_layout():
    fastest = {(1, 8): (8, 1, 1), (1, 4): (4, 2, 1), (2, 8): (4, 4, 1), (2, 4): (1, 8, 2)}
    drawn = layouts.draw_fastest(fastest, title="t")
    shown = {text[0]: colour for colour, text in boxes(drawn) if text}
    kinds = {
        "1 x 1": "data alone",
        "2 x 1": "two tensor ranks",
        "4 x 1": "more tensor ranks",
        "8 x 2": "stages",
    }
    assert shown == {
        cell: to_hex(legible_colour(figures._KINDS[kind]), keep_alpha=True)
        for cell, kind in kinds.items()
    }
    with pytest.raises(ValueError, match="no layouts to draw"):
        layouts.draw_fastest({}, title="t")


def group_of(layout, axis):
    """Return the ranks that differ from rank 0 in one of (stage, data rank, tensor rank) alone, or
    in none.
    """
    return [
        rank
        for rank in range(layout.ranks)
        if all(place == 0 for at_axis, place in enumerate(layout.place(rank)) if at_axis != axis)
    ]


def two_level_bytes(group, size_bytes):
    """Return what rank 0 sends in its node of eight and beyond, by the messages of the rings of a
    sum in two levels.
    """
    by_node = Counter(rank // 8 for rank in group)
    [in_node] = set(by_node.values())
    inside, beyond = 0.0, 0.0
    if in_node > 1:
        ring = collective("all_reduce", "ring", world_size=in_node, length=in_node)
        inside = ring.ranks()[0].sent_bytes / (4 * in_node) * size_bytes
    if len(by_node) > 1:
        ring = collective("all_reduce", "ring", world_size=len(by_node), length=len(by_node))
        beyond = ring.ranks()[0].sent_bytes / (4 * len(by_node)) * size_bytes / in_node
    return inside, beyond


def relative_step(nodes, sequences, port, *, tensor, stages):
    """Return a step over its computing, where rank 0's groups are listed and its messages
    counted.
    """
    layout = parallel_plans.Layout(
        data=8 * nodes // (tensor * stages), tensor=tensor, pipeline=stages
    )
    own = -(-sequences // layout.data)  # sequences of the fullest copy
    computing_s = 6 * 7e9 / (tensor * stages) * own * 4096 / 400e12
    vectors = 2 * 4096 * 4096 * own
    sums = two_level_bytes(group_of(layout, 2), 4 * 32 / stages * vectors)
    gradients = two_level_bytes(group_of(layout, 1), 14e9 / (tensor * stages))
    boundary = 2 * (stages - 1) / stages * vectors / tensor
    stage_s = computing_s + sums[0] / 450e9 + sums[1] / port
    step_s = (
        stage_s * (1 + (stages - 1) / own) + gradients[0] / 450e9 + (gradients[1] + boundary) / port
    )
    return step_s / (6 * 7e9 * 4096 * sequences / (8 * nodes) / 400e12)


def explored(monkeypatch):
    figure = {}
    monkeypatch.setattr(plotting, "explore", lambda **given: figure.update(given))
    layouts.explore_layouts()
    return figure


def test_the_figure_to_turn_has_the_step_of_groups_that_are_listed(monkeypatch):
    figure = explored(monkeypatch)
    for nodes, sequences, rate in itertools.product((1, 2, 8, 64), (8, 64, 2048), (12.5, 50)):
        values = at(
            figure["inputs"],
            figure["formulas"],
            nodes=nodes,
            sequences=sequences,
            port=f"{rate} GB/s",
        )
        cuts = {"whole": (1, 1), "pair": (2, 1), "node": (8, 1), "staged": (8, min(8, nodes))}
        for name, (tensor, stages) in cuts.items():
            truth = relative_step(nodes, sequences, rate * 1e9, tensor=tensor, stages=stages)
            assert values[name] == pytest.approx(truth), (name, nodes, sequences, rate)


def test_data_alone_is_faster_than_a_cut_node_from_one_sequence_per_gpu_on_whatever_the_port(
    monkeypatch,
):
    figure = explored(monkeypatch)
    for nodes, port in itertools.product((1, 4, 8, 32), ("12.5 GB/s", "100 GB/s")):
        for share, is_faster in ((2, True), (1, True), (0.5, False)):
            sequences = int(share * 8 * nodes)
            if sequences >= 8:
                values = at(
                    figure["inputs"],
                    figure["formulas"],
                    nodes=nodes,
                    sequences=sequences,
                    port=port,
                )
                assert (values["whole"] < values["node"]) is is_faster


def test_the_figure_to_turn_can_be_shown(capsys):
    layouts.explore_layouts()
    assert "Four curves of the time of a step" in capsys.readouterr().out
