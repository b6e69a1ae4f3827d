"""Pipeline schedules: as data against closed forms and PyTorch's own orders; and the stages of a network."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from helpers.parallel.pipeline import _schedules as schedules
from helpers.parallel.pipeline._schedules import bubble_ratio, bubble_share, live_activations, pipeline_schedule
from helpers.parallel.pipeline._stages import split_stages
from helpers.plotting import gantt

NAMES = ("gpipe", "1f1b", "interleaved", "zero_bubble")
# Forward, backward and weight seconds for which the formulas hold; binary fractions, so that sums are exact.
TIMES = ((1.0, 2.0, 1.0), (1.0, 2.0, 0.5), (3.0, 5.0, 1.0), (2.0, 3.0, 1.5))

# As data.


def cases() -> list[tuple]:
    sizes = [(p, m) for p in (1, 2, 3, 4, 8) for m in (p, p + 1, 2 * p, 4 * p + 1, 16) if m >= p]
    chunked = [(name, p, m, v) for name in NAMES for p, m in sizes for v in ((2, 3) if name == "interleaved" else (1,))]
    return [each for each in chunked if each[0] != "interleaved" or each[2] % each[1] == 0]


def test_bubbles_and_live_activations_equal_the_closed_forms_for_any_ranks_microbatches_and_times() -> None:
    for (name, p, m, v), (forward, backward, weight) in itertools.product(cases(), TIMES):
        given = {"ranks": p, "microbatches": m, "chunks": v, "forward_s": forward, "backward_s": backward}
        given |= {"weight_s": weight} if name == "zero_bubble" else {}
        made = pipeline_schedule(name, **given)
        assert made.bubble_ratio == pytest.approx(bubble_ratio(name, **given), abs=1e-12), (name, given)
        assert made.bubble_share == pytest.approx(bubble_share(bubble_ratio(name, **given)), abs=1e-12)
        assert [each.live_activations for each in made.loads] == [
            live_activations(name, rank=rank, ranks=p, microbatches=m, chunks=v) for rank in range(p)
        ], (name, given)


def test_the_figures_of_the_papers() -> None:
    assert [bubble_ratio("gpipe", ranks=4, microbatches=m) for m in (4, 8, 16)] == [0.75, 0.375, 0.1875]
    assert bubble_share(bubble_ratio("gpipe", ranks=4, microbatches=8)) == pytest.approx(3 / 11)
    assert bubble_ratio("interleaved", ranks=4, microbatches=8, chunks=2) == 0.1875
    # Qi et al.: with F = B = W the bubble of ZB-H1 is a third of that of 1F1B.
    assert bubble_ratio("zero_bubble", ranks=4, microbatches=8) == pytest.approx(0.375 / 3)
    assert [each.live_activations for each in pipeline_schedule("1f1b", ranks=4, microbatches=16).loads] == [4, 3, 2, 1]
    assert {each.live_activations for each in pipeline_schedule("gpipe", ranks=4, microbatches=16).loads} == {16}


@pytest.mark.parametrize(("name", "p", "m", "v"), cases())
def test_every_pass_comes_once_and_after_what_it_needs(name: str, p: int, m: int, v: int) -> None:
    stages = p * v
    uneven = [1 + 0.5 * (stage % 3) for stage in range(stages)]
    made = pipeline_schedule(name, ranks=p, microbatches=m, chunks=v, transfer_s=0.25, forward_s=uneven,
                             backward_s=[2 * each for each in uneven])  # fmt: skip
    done = {(each.kind, each.stage, each.microbatch): each for each in made.actions}
    kinds = ("forward", "backward", *(("backward-weight",) if name == "zero_bubble" else ()))
    assert len(done) == len(made.actions) == len(kinds) * stages * m
    for each in made.actions:
        assert each.rank == each.stage % p
        takes_s = {
            "forward": uneven[each.stage],
            "backward": 2 * uneven[each.stage],
            "backward-weight": uneven[each.stage],
        }
        halved = name == "zero_bubble" and each.kind == "backward"
        assert each.end_s - each.start_s == takes_s[each.kind] / (1 + halved)
        delay_s = 0.25 if p > 1 else 0.0
        if each.kind == "forward" and each.stage:
            assert each.start_s >= done["forward", each.stage - 1, each.microbatch].end_s + delay_s
        if each.kind == "backward":
            assert each.start_s >= done["forward", each.stage, each.microbatch].end_s
            if each.stage < stages - 1:
                assert each.start_s >= done["backward", each.stage + 1, each.microbatch].end_s + delay_s
        if each.kind == "backward-weight":
            assert each.start_s >= done["backward", each.stage, each.microbatch].end_s
    for rank in range(p):
        mine = [each for each in made.actions if each.rank == rank]
        assert all(one.end_s <= other.start_s for one, other in itertools.pairwise(mine))


@pytest.mark.parametrize(("name", "kind"), [("interleaved", "ScheduleInterleaved1F1B"),
                                            ("zero_bubble", "ScheduleInterleavedZeroBubble")])  # fmt: skip
def test_the_orders_are_those_of_pytorch(name: str, kind: str) -> None:
    from torch.distributed import pipelining

    kinds = {"FORWARD": "forward", "FULL_BACKWARD": "backward", "BACKWARD_INPUT": "backward",
             "BACKWARD_WEIGHT": "backward-weight"}  # fmt: skip
    for _, p, m, v in (each for each in cases() if each[0] == name and each[2] % each[1] == 0):
        theirs = SimpleNamespace(n_local_stages=v, microbatches_per_round=p, pp_group_size=p, _n_microbatches=m)
        for rank in range(p):
            actions = getattr(pipelining, kind)._calculate_single_rank_operations(theirs, rank)
            order = [
                (kinds[a.computation_type.name], a.stage_index, a.microbatch_index) for a in actions if a is not None
            ]
            assert schedules.rank_order(name, rank=rank, ranks=p, microbatches=m, chunks=v) == order


def test_a_slow_stage_sets_the_pace_and_a_slow_link_lengthens_the_bubble() -> None:
    even = pipeline_schedule("1f1b", ranks=4, microbatches=16)
    slow = pipeline_schedule("1f1b", ranks=4, microbatches=16, forward_s=[1, 1, 3, 1], backward_s=[2, 2, 6, 2])
    assert slow.duration_s >= 16 * 9 > even.duration_s
    assert slow.loads[2].idle_share < min(slow.loads[rank].idle_share for rank in (0, 1, 3))
    delayed = pipeline_schedule("gpipe", ranks=4, microbatches=16, transfer_s=0.5)
    assert delayed.duration_s == 16 * 3 + 3 * 3 + 6 * 0.5


def test_a_schedule_draws_and_prints() -> None:
    made = pipeline_schedule("interleaved", ranks=2, microbatches=2, chunks=2)
    assert made.timeline.duration_s == made.duration_s
    assert made.timeline.busy_s("rank 1") == made.loads[1].busy_s
    drawn = {(each.lane, each.kind, each.label) for each in made.timeline.activities}
    assert drawn == {(f"rank {rank}", f"{way}{stage}", f"{microbatch}") for rank in range(2) for microbatch in range(2)
                     for way in ("forward", "backward") for stage in (", stages 0-1", ", stages 2-3")}  # fmt: skip
    assert gantt(made.timeline.activities, title="interleaved").axes
    assert "bubble share" in str(made)


@pytest.mark.parametrize(("name", "wrong", "message"), [
    ("2f2b", {}, "give one of 'gpipe', '1f1b', 'interleaved', 'zero_bubble'"),
    ("1f1b", {"microbatches": 3}, "at least as many microbatches as ranks; got 3 microbatches for 4 ranks"),
    ("zero_bubble", {"microbatches": 3}, "at least as many microbatches as ranks"),
    ("interleaved", {"microbatches": 10, "chunks": 2}, "10 do not divide by 4: take 8 or 12"),
    ("interleaved", {}, "give chunks=2 or more"),
    ("gpipe", {"chunks": 2}, "only 'interleaved' has more"),
    ("gpipe", {"microbatches": 0}, "whole number, 1 or more"),
    ("gpipe", {"weight_s": 1.0}, "only 'zero_bubble' splits"),
    ("zero_bubble", {"weight_s": 3.0}, "cannot be more"),
    ("gpipe", {"forward_s": [1, 2]}, "one for each of the 4 stages; got 2"),
    ("gpipe", {"backward_s": math.nan}, "give a finite number, 0 or more"),
    ("gpipe", {"transfer_s": -1.0}, "give a finite number, 0 or more"),
])  # fmt: skip
def test_what_cannot_be_scheduled_is_refused(name: str, wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pipeline_schedule(name, **({"ranks": 4, "microbatches": 8} | wrong))


def test_formulas_are_refused_where_they_do_not_hold() -> None:
    with pytest.raises(ValueError, match="this formula holds where"):
        bubble_ratio("zero_bubble", ranks=4, microbatches=8, forward_s=1, backward_s=4, weight_s=3)
    with pytest.raises(ValueError, match="rank=4 is too large; give a whole number, 0 to 3"):
        live_activations("gpipe", rank=4, ranks=4, microbatches=8)
    with pytest.raises(ValueError, match="give a finite number, 0 or more"):
        bubble_share(-0.1)
    assert pipeline_schedule("gpipe", ranks=3, microbatches=1).duration_s == 9  # fewer microbatches than ranks: naive


# Stages.


def net_of(layers: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(layers)))


LONGER = (1, 1, 1, 2, 2, 2, 4, 4, 4)  # what a busy machine adds to a sleep does not grow with the sleep


def test_a_pipeline_is_cut_into_equally_many_layers_and_what_cannot_be_cut_is_refused() -> None:
    stages = split_stages(net_of(8), 4)
    assert [list(stage._modules) for stage in stages] == [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]]
    with pytest.raises(ValueError, match="7 layers do not divide into 4 stages"):
        split_stages(net_of(7), 4)
    with pytest.raises(TypeError, match=r"cut out of an nn\.Sequential; got a Linear"):
        split_stages(nn.Linear(1, 1), 1)
    tied = net_of(4)
    tied[3][0].weight = tied[0][0].weight
    with pytest.raises(ValueError, match=r"stages 0 and 3 share the parameter '3\.0\.weight'"):
        split_stages(tied, 4)
