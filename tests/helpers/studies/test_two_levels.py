"""Sums in two levels on real ranks, published times, and the figures of lesson 07."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers import parallel, plotting
from helpers.links import Link
from helpers.ranks import RankError
from helpers.studies import two_levels
from helpers.studies.two_levels import A3_MEGA, B200_FOUR_NODES, B200_ONE_NODE, Ring, figures
from helpers.studies.two_levels._measuring import _compare_times
from helpers.studies.two_levels._rings import node_rings

FAST, SLOW = Link(400e6, 0.1e-3), Link(20e6, 2e-3)


def in_two_levels(tensor, inside, outside):
    return inside.all_gather(outside.all_reduce(inside.reduce_scatter(tensor)))


# --- rings ---


def as_torch_distributed(rank, _world_size):
    """Hold each collective of each ring to torch.distributed's own, and return the members of the
    two groups.
    """
    torch.manual_seed(rank)
    tensor = torch.randint(-99, 99, (12,)).double()
    with node_rings() as rings:
        for ring in (*rings, Ring()):
            whole = tensor.clone()
            dist.all_reduce(whole, group=ring.group)
            number, count = dist.get_rank(ring.group), dist.get_world_size(ring.group)
            assert torch.equal(ring.all_reduce(tensor), whole)
            assert torch.equal(ring.reduce_scatter(tensor), whole.chunk(count)[number])
            gathered = [torch.empty_like(tensor) for _ in range(count)]
            dist.all_gather(gathered, tensor, group=ring.group)
            assert torch.equal(ring.all_gather(tensor), torch.cat(gathered))
        return [dist.get_process_group_ranks(ring.group) for ring in rings]


def test_rings_do_what_torch_distributed_does(four_ranks):
    members = four_ranks.run(as_torch_distributed)
    assert members == [[[0, 1], [0, 2]], [[0, 1], [1, 3]], [[2, 3], [0, 2]], [[2, 3], [1, 3]]]


def bytes_of(rank, _world_size):
    ring, sent = Ring(), []
    for operation in ("reduce_scatter", "all_gather", "all_reduce"):
        before = ring.sent_bytes
        getattr(ring, operation)(torch.ones(8))
        sent.append(ring.sent_bytes - before)
    return sent, ring.sent_bytes


def test_a_ring_counts_the_bytes_that_its_rank_sends(four_ranks):
    # three quarters of 32 bytes, three times 32 bytes, and twice three quarters of 32 bytes
    assert four_ranks.run(bytes_of) == [([24, 96, 48], 168)] * 4


def scatter_six(_rank, _world_size):
    Ring().reduce_scatter(torch.ones(6))


def test_a_share_needs_a_length_that_can_be_divided(four_ranks):
    with pytest.raises(
        RankError, match="6 elements cannot be divided among 4 ranks; give a multiple of 4"
    ):
        four_ranks.run(scatter_six)


# --- sums and times ---


def test_a_sum_in_two_levels_has_all_ranks_and_sends_a_share_outside(four_ranks):
    rows = two_levels.sum_on_ranks(four_ranks, in_two_levels, 8)
    assert [row.rank for row in rows] == [0, 1, 2, 3]
    assert {(row.elements, row.smallest, row.largest) for row in rows} == {(8, 1111.0, 1111.0)}
    assert {(row.inside_bytes, row.outside_bytes) for row in rows} == {(32, 16)}


@pytest.mark.parametrize(
    ("result", "what"), [([1.0], "a list"), (torch.ones(2, 2), "of 2 dimensions")]
)
def test_a_sum_that_is_no_vector_is_refused(four_ranks, result, what):
    with pytest.raises(
        RankError, match=f"must return a 1-D tensor, as inside.all_gather does, not {what}"
    ):
        two_levels.sum_on_ranks(four_ranks, lambda tensor, inside, outside: result, 8)


def test_links_are_waited_for(four_ranks):
    [row] = two_levels.compare_all_reduces(
        four_ranks, in_two_levels, [40_000], fast=FAST, slow=SLOW, repeats=2
    )
    assert row.size_bytes == 40_000
    assert row.ring_s >= 6 * (2e-3 + 10_000 / 20e6)  # a sleep never ends early
    assert row.two_levels_s >= 2 * (0.1e-3 + 20_000 / 400e6) + 2 * (2e-3 + 10_000 / 20e6)
    assert row.ratio == row.ring_s / row.two_levels_s


def test_other_numbers_of_ranks_are_refused():
    two_ranks = SimpleNamespace(world_size=2)
    for call in (
        lambda: two_levels.sum_on_ranks(two_ranks, in_two_levels, 8),
        lambda: two_levels.compare_all_reduces(two_ranks, in_two_levels, [8], fast=FAST, slow=SLOW),
    ):
        with pytest.raises(ValueError, match=r"two nodes of two need 4 ranks, not 2: Ranks\(4\)"):
            call()


def test_the_slowest_rank_of_the_fastest_repeat_counts():
    ranks = [[(5.0, 2.0), (4.0, 3.0), (9.0, 2.0)], [(4.0, 2.1), (4.2, 1.0), (1.0, 2.2)]]
    row = _compare_times(8, ranks)  # the slowest: (5, 2.1), (4.2, 3), (9, 2.2)
    assert (row.ring_s, row.two_levels_s, row.ratio) == (4.2, 2.1, 2.0)
    assert not row.stable  # 5 is 19 % above 4.2
    assert _compare_times(8, [[(4.0, 2.1), (4.2, 2.0)]]).stable


# --- published ---


@pytest.mark.parametrize(
    ("size", "printed"), [(2**33, 338.82), (2**25, 59.36), (2**20, 9.68), (2**14, 0.22)]
)
def test_bus_bandwidths_of_the_a3_mega_are_those_that_its_report_prints(size, printed):
    # times and rates are rounded
    assert A3_MEGA.bus_bandwidth(size) / 1e9 == pytest.approx(printed, abs=0.01)


def test_times_of_the_b200_give_back_the_printed_bus_bandwidths():
    for times, printed in (
        (B200_ONE_NODE, {2**15: 1.20, 2**32: 740.64}),
        (B200_FOUR_NODES, {2**32: 377.34, 2**34: 381.8}),
    ):
        assert list(times.times_s) == [2**power for power in range(15, 35)]
        for size, rate in printed.items():
            assert times.bus_bandwidth(size) == pytest.approx(1e9 * rate)
    assert B200_ONE_NODE.times_s[2**32] == pytest.approx(2 * 7 / 8 * 2**32 / 740.64e9)


def test_further_v100_nodes_add_the_same_wait():
    two, four, eight = (row.times_s[8] for row in two_levels.V100)
    assert [row.nodes for row in two_levels.V100] == [2, 4, 8]
    assert eight == pytest.approx(four + 2 * (four - two), rel=0.001)


# --- figures ---


def share_by_share(rank, _world_size):
    tensor = torch.full((2,), 10.0**rank)
    with node_rings() as (inside, outside):
        share = inside.reduce_scatter(tensor)
        total = outside.all_reduce(share)
        return [tensor.tolist(), share.tolist(), total.tolist(), inside.all_gather(total).tolist()]


def test_the_drawn_vectors_are_those_of_real_ranks(four_ranks):
    on_ranks = [list(rows) for rows in zip(*four_ranks.run(share_by_share), strict=True)]
    drawn = [
        [[value for value in halves if value is not None] for halves in state]
        for state in figures.vectors()
    ]
    assert drawn == on_ranks
    held = [
        [[half is not None for half in halves] for halves in state] for state in figures.vectors()
    ]
    assert held[1] == held[2] == [[True, False], [False, True]] * 2


def test_the_steps_are_drawn_with_their_values():
    written = Counter(text.get_text() for text in two_levels.draw_steps().axes[0].texts)
    assert written["1,111"] == 4 + 8
    assert (written["11"], written["1,100"], written["10"], written["1,000"]) == (2, 2, 2, 2)
    assert {"GPU 3", "node 1", "reduce-scatter", "a node's sum"} <= set(written)


def test_sizes_are_drawn_as_they_are_given():
    sizes = [2**20, 2**30]
    drawn = two_levels.draw_sizes(
        {"one": {2**20: 1e-3, 2**30: 1e-2}, "four": {2**20: 2e-3, 2**30: 2e-2}},
        bounds={2**20: (1e-4, 2e-4), 2**30: (1e-2, 3e-2)},
        line={2**30: 0.02, 2**20: 0.001},
    )
    axes = drawn.axes[0]
    lines = {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines
    }
    assert lines["one (published)"] == (sizes, [1e-3, 1e-2])
    assert lines["four (published)"] == (sizes, [2e-3, 2e-2])
    assert lines["a latency and a rate (modelled)"] == (sizes, [0.001, 0.02])
    [band] = axes.collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    assert {(2**20, 1e-4), (2**20, 2e-4), (2**30, 1e-2), (2**30, 3e-2)} == corners


def ring_bytes(ranks, elements):
    planned = parallel.collective("all_reduce", "ring", world_size=ranks, length=elements)
    return planned.ranks()[0].sent_bytes


def test_the_figure_to_turn_counts_messages_and_pieces(monkeypatch):
    figure = {}
    monkeypatch.setattr(plotting, "explore", lambda **arguments: figure.update(arguments))
    two_levels.explore_leaving()
    sliders = {slider.name: slider for slider in figure["inputs"]}
    for number in range(60):
        chosen = {
            name: slider.values[number * step % len(slider.values)]
            for (name, slider), step in zip(sliders.items(), (1, 5, 2, 3), strict=True)
        }
        values = dict(chosen, max=max)
        for name, formula in figure["formulas"].items():
            values[name] = eval(formula, {"__builtins__": {}}, values)
        nodes, gpus, inside, port = (chosen[name] for name in ("nodes", "gpus", "inside", "port"))
        elements = nodes * gpus * gpus
        near_s = ring_bytes(gpus, elements) / inside
        far_s = ring_bytes(nodes, elements // gpus) / port
        assert values["all_reduce"] == pytest.approx((near_s + far_s) / near_s)
        # of GPU 0, to the same node or not
        pieces = Counter(other // gpus == 0 for other in range(1, nodes * gpus))
        alone_s = (gpus - 1) * nodes / inside  # in one node a piece is as long as these together
        assert values["all_to_all"] == pytest.approx(
            max(pieces[True] / inside, pieces[False] / port) / alone_s
        )


def test_the_figure_to_turn_is_displayed(capsys):
    two_levels.explore_leaving()
    assert "an all-to-all becomes far longer than in one node" in capsys.readouterr().out
