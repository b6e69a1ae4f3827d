"""Pipeline schedules: as data against closed forms and PyTorch's own orders; and the stages of a
network.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from helpers.parallel.pipeline import _schedules as schedules
from helpers.parallel.pipeline._schedules import (
    bubble_ratio,
    bubble_share,
    live_activations,
    pipeline_schedule,
)
from helpers.parallel.pipeline._stages import split_stages
from helpers.plotting import gantt
from tests.properties import repeatable

NAMES = ("gpipe", "1f1b", "interleaved", "zero_bubble")
QUARTERS = st.integers(1, 20).map(lambda quarters: quarters / 4)  # seconds whose sums are exact

# As data.


@st.composite
def sizes(draw, name: str) -> dict[str, int]:
    """Draw ranks, microbatches and chunks that the schedule ``name`` takes."""
    ranks = draw(st.integers(1, 8))
    if name == "interleaved":
        return {
            "ranks": ranks,
            "microbatches": ranks * draw(st.integers(1, 3)),
            "chunks": draw(st.integers(2, 3)),
        }
    return {"ranks": ranks, "microbatches": ranks + draw(st.integers(0, 17)), "chunks": 1}


@pytest.mark.parametrize("name", NAMES)
@repeatable(examples=30)
@given(st.data(), QUARTERS, st.tuples(QUARTERS, QUARTERS))
def test_bubbles_and_live_activations_equal_the_closed_forms(
    name: str, data, weight_s, longer_s
) -> None:
    size = data.draw(sizes(name))
    times = {"forward_s": weight_s + longer_s[0], "backward_s": 2 * weight_s + longer_s[1]}
    times |= {"weight_s": weight_s} if name == "zero_bubble" else {}
    made = pipeline_schedule(name, **size, **times)
    ratio = bubble_ratio(name, **size, **times)
    assert made.bubble_ratio == pytest.approx(ratio, abs=1e-12)
    assert made.bubble_share == pytest.approx(bubble_share(ratio), abs=1e-12)
    assert [each.live_activations for each in made.loads] == [
        live_activations(name, rank=rank, **size) for rank in range(size["ranks"])
    ]


def test_the_figures_of_the_papers() -> None:
    assert [bubble_ratio("gpipe", ranks=4, microbatches=m) for m in (4, 8, 16)] == [
        0.75,
        0.375,
        0.1875,
    ]
    assert bubble_share(bubble_ratio("gpipe", ranks=4, microbatches=8)) == pytest.approx(3 / 11)
    assert bubble_ratio("interleaved", ranks=4, microbatches=8, chunks=2) == 0.1875
    # Qi et al.: with F = B = W the bubble of ZB-H1 is a third of that of 1F1B.
    assert bubble_ratio("zero_bubble", ranks=4, microbatches=8) == pytest.approx(0.375 / 3)
    assert [
        each.live_activations for each in pipeline_schedule("1f1b", ranks=4, microbatches=16).loads
    ] == [4, 3, 2, 1]
    assert {
        each.live_activations for each in pipeline_schedule("gpipe", ranks=4, microbatches=16).loads
    } == {16}


@pytest.mark.parametrize("name", NAMES)
@repeatable(examples=20)
@given(st.data())
def test_every_pass_comes_once_and_starts_when_its_rank_and_its_inputs_are_ready(
    name: str, data
) -> None:
    size, split = data.draw(sizes(name)), name == "zero_bubble"
    stages = size["ranks"] * size["chunks"]
    forward_s, weight_s, input_s = (
        data.draw(st.lists(QUARTERS, min_size=stages, max_size=stages)) for _ in range(3)
    )
    delay_s = data.draw(QUARTERS)
    whole_s = [weight + rest for weight, rest in zip(weight_s, input_s, strict=True)]
    made = pipeline_schedule(
        name,
        **size,
        forward_s=forward_s,
        backward_s=whole_s,
        transfer_s=delay_s,
        **({"weight_s": weight_s} if split else {}),
    )
    takes_s = {"forward": forward_s, "backward": input_s if split else whole_s}
    takes_s |= {"backward-weight": weight_s} if split else {}
    passes = {(action.kind, action.stage, action.microbatch): action for action in made.actions}
    assert len(passes) == len(made.actions) == len(takes_s) * stages * size["microbatches"]
    free_s = [0.0] * size["ranks"]
    for action in made.actions:
        rank, stage = action.rank, action.stage
        assert rank == stage % size["ranks"]
        inputs = {
            "forward": [("forward", stage - 1)] if stage else [],
            "backward": [
                ("forward", stage),
                *([("backward", stage + 1)] if stage < stages - 1 else []),
            ],
            "backward-weight": [("backward", stage)],
        }[action.kind]
        ready_s = [
            passes[kind, other, action.microbatch].end_s + delay_s * (other % size["ranks"] != rank)
            for kind, other in inputs
        ]
        assert action.start_s == max(free_s[rank], *ready_s, 0.0)
        assert action.end_s - action.start_s == takes_s[action.kind][stage]
        free_s[rank] = action.end_s


@pytest.mark.parametrize(
    ("name", "kind"),
    [("interleaved", "ScheduleInterleaved1F1B"), ("zero_bubble", "ScheduleInterleavedZeroBubble")],
)
@repeatable(examples=40)
@given(st.integers(1, 8), st.integers(1, 4), st.integers(2, 3))
def test_the_orders_are_those_of_pytorch(
    name: str, kind: str, ranks: int, rounds: int, chunks: int
) -> None:
    from torch.distributed import pipelining

    kinds = {"FORWARD": "forward", "FULL_BACKWARD": "backward", "BACKWARD_INPUT": "backward",
             "BACKWARD_WEIGHT": "backward-weight"}  # fmt: skip
    microbatches, chunks = ranks * rounds, chunks if name == "interleaved" else 1
    theirs = SimpleNamespace(
        n_local_stages=chunks,
        microbatches_per_round=ranks,
        pp_group_size=ranks,
        _n_microbatches=microbatches,
    )
    for rank in range(ranks):
        actions = getattr(pipelining, kind)._calculate_single_rank_operations(theirs, rank)
        order = [
            (kinds[a.computation_type.name], a.stage_index, a.microbatch_index)
            for a in actions
            if a is not None
        ]
        size = {"ranks": ranks, "microbatches": microbatches, "chunks": chunks}
        assert schedules.rank_order(name, rank=rank, **size) == order


def test_a_slow_stage_sets_the_pace_and_a_slow_link_lengthens_the_bubble() -> None:
    even = pipeline_schedule("1f1b", ranks=4, microbatches=16)
    slow = pipeline_schedule(
        "1f1b", ranks=4, microbatches=16, forward_s=[1, 1, 3, 1], backward_s=[2, 2, 6, 2]
    )
    assert slow.duration_s >= 16 * 9 > even.duration_s
    assert slow.loads[2].idle_share < min(slow.loads[rank].idle_share for rank in (0, 1, 3))
    delayed = pipeline_schedule("gpipe", ranks=4, microbatches=16, transfer_s=0.5)
    assert delayed.duration_s == 16 * 3 + 3 * 3 + 6 * 0.5


def test_a_schedule_draws_and_prints() -> None:
    made = pipeline_schedule("interleaved", ranks=2, microbatches=2, chunks=2)
    assert made.timeline.duration_s == made.duration_s
    assert made.timeline.busy_s("rank 1") == made.loads[1].busy_s
    drawn = {(each.lane, each.kind, each.label) for each in made.timeline.activities}
    assert drawn == {
        (f"rank {rank}", f"{way}{stage}", f"{microbatch}")
        for rank in range(2)
        for microbatch in range(2)
        for way in ("forward", "backward")
        for stage in (", stages 0-1", ", stages 2-3")
    }
    assert gantt(made.timeline.activities, title="interleaved").axes
    assert "bubble share" in str(made)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("2f2b", {}, "give one of 'gpipe', '1f1b', 'interleaved', 'zero_bubble'"),
        (
            "1f1b",
            {"microbatches": 3},
            "at least as many microbatches as ranks; got 3 microbatches for 4 ranks",
        ),
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
    ],
)
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
    # fewer microbatches than ranks: naive
    assert pipeline_schedule("gpipe", ranks=3, microbatches=1).duration_s == 9


# Stages.


def net_of(layers: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(layers)))


# what a busy machine adds to a sleep does not grow with the sleep
LONGER = (1, 1, 1, 2, 2, 2, 4, 4, 4)


def test_a_pipeline_is_cut_into_equally_many_layers_and_what_cannot_be_cut_is_refused() -> None:
    stages = split_stages(net_of(8), 4)
    assert [list(stage._modules) for stage in stages] == [
        ["0", "1"],
        ["2", "3"],
        ["4", "5"],
        ["6", "7"],
    ]
    with pytest.raises(ValueError, match="7 layers do not divide into 4 stages"):
        split_stages(net_of(7), 4)
    with pytest.raises(TypeError, match=r"cut out of an nn\.Sequential; got a Linear"):
        split_stages(nn.Linear(1, 1), 1)
    tied = net_of(4)
    tied[3][0].weight = tied[0][0].weight
    with pytest.raises(ValueError, match=r"stages 0 and 3 share the parameter '3\.0\.weight'"):
        split_stages(tied, 4)
