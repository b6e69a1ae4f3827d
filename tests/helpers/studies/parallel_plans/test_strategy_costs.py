"""Costs of strategies: bytes by hand and by real ranks, time by hand, by the models that stood
before, and by ranks.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from helpers.links import Link
from helpers.parallel import _costs as costs
from helpers.parallel._costs import LayerCost
from helpers.parallel.pipeline import _schedules as schedules
from helpers.studies import data_parallel
from helpers.studies.parallel_plans import Layout, _execution as execution
from helpers.studies.parallel_plans._choosing import layouts_of
from helpers.studies.parallel_plans._costs import (
    LayerWork,
    StrategyTraffic,
    strategy_step,
    strategy_traffic,
)
from helpers.studies.parallel_plans._execution import LEARNING_RATE, execute_strategies
from helpers.studies.parallel_plans._work import activation_bytes, layer_work, tensor_plan

WIDTH, HIDDEN, ROWS, DEPTH = 8, 32, 16, 4
ACTIVATION = 4 * ROWS * WIDTH
PARAMETERS = 4 * (2 * WIDTH * HIDDEN + WIDTH + HIDDEN)
LINK = Link(1e6, 1e-3)
MSE = nn.functional.mse_loss


def block(width: int = WIDTH, hidden: int = HIDDEN) -> nn.Sequential:
    parts = {"up": nn.Linear(width, hidden), "act": nn.ReLU(), "down": nn.Linear(hidden, width)}
    return nn.Sequential(OrderedDict(parts))


def net(depth: int = DEPTH) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(block() for _ in range(depth)))


def work(depth: int = DEPTH, rate: float = 1e7) -> tuple[LayerWork, ...]:
    model = net(depth)
    return layer_work(model, (ROWS, WIDTH), flops_per_s=rate, plan=tensor_plan(model))


def plain(
    *seconds: tuple[float, float], size_bytes: int = 0, output_bytes: int = 0
) -> list[LayerWork]:
    return [
        LayerWork("", forward, backward, size_bytes, size_bytes, output_bytes)
        for forward, backward in seconds
    ]


def link_s(row: StrategyTraffic) -> float:
    """Return the seconds that LINK is busy with ``row``, one call after the other."""
    steps = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}.get(row.collective, 0) * (
        row.ranks - 1
    ) or 1
    return row.calls * steps * LINK.latency_s + row.sent_bytes / LINK.bandwidth_bytes_per_s


# What a layer's work is.


def test_a_layers_work_is_what_its_shapes_say() -> None:
    """By hand: 2 x 2 x rows x width x hidden FLOPs forward, an addition a bias element, and one for
    each ReLU.
    """
    first, second = work(2, rate=1.0)
    products, rest = 2 * 2 * ROWS * WIDTH * HIDDEN, ROWS * HIDDEN
    assert first.forward_s == products + rest
    assert second.backward_s == pytest.approx(2 * second.forward_s, rel=0.05)
    assert (first.parameter_bytes, first.gradient_bytes, first.output_bytes) == (
        PARAMETERS,
        PARAMETERS,
        ACTIVATION,
    )
    assert first.parameter_bytes - first.split_parameter_bytes == 4 * WIDTH  # the row split's bias
    assert first.parameters_of(4) == 4 * WIDTH + (PARAMETERS - 4 * WIDTH) // 4
    assert first.split_share == 1
    # the batch needs no gradient
    assert (first.forward_sum_bytes, first.backward_sum_bytes) == ((ACTIVATION,), ())
    assert (second.forward_sum_bytes, second.backward_sum_bytes) == ((ACTIVATION,), (ACTIVATION,))


def test_a_frozen_layer_has_no_gradient_and_what_is_before_the_first_that_learns_sums_none() -> (
    None
):
    model = net(2)
    model[0].requires_grad_(requires_grad=False)
    first, second = layer_work(model, (ROWS, WIDTH), flops_per_s=1e6, plan=tensor_plan(model))
    assert (first.parameter_bytes, first.gradient_bytes, first.split_gradient_bytes) == (
        PARAMETERS,
        0,
        0,
    )
    assert second.backward_sum_bytes == ()


def test_a_plan_pairs_linears_with_nothing_but_elements_between() -> None:
    assert tensor_plan(net(1)) == {"0.up": "column", "0.down": "row"}
    flat = nn.Sequential(
        nn.Linear(4, 8),
        nn.ReLU(),
        nn.Linear(8, 4),
        nn.Linear(4, 4),
        nn.LayerNorm(4),
        nn.Linear(4, 2),
    )
    assert tensor_plan(flat) == {"0": "column", "2": "row"}
    assert tensor_plan(nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(4, 4))) == {}
    assert [
        each.split_share > 0
        for each in layer_work(flat, (2, 4), flops_per_s=1.0, plan=tensor_plan(flat))
    ] == [True, True, True, False, False, False]


def test_activations_are_those_that_a_run_on_fake_ranks_saves() -> None:
    """The other count cuts with DTensor and fully_shard, on a fake process group."""
    from helpers.studies.parallel_plans import estimate_footprint

    model = net()
    plan = tensor_plan(model)
    for layout, ranks in (
        (Layout(), (0,)),
        (Layout(pipeline=4), (0, 1, 3)),
        (Layout(1, 2, 2), (0, 2)),
    ):
        rows = ROWS // layout.pipeline
        mine = activation_bytes(
            model, (rows, WIDTH), stages=layout.pipeline, tensor=layout.tensor, plan=plan
        )
        run = estimate_footprint(model, layout, inputs=(ROWS, WIDTH), plan=plan, ranks=ranks)
        for each in run.ranks:
            live = layout.pipeline - each.stage
            assert each.activation_bytes == live * mine[each.stage]


# Bytes.


def test_tensor_ranks_sum_what_megatron_sums_and_sequence_parallel_sends_as_much() -> None:
    for ranks in (2, 4):
        whole = strategy_traffic(work(), Layout(tensor=ranks))
        parts = strategy_traffic(work(), Layout(tensor=ranks), sequence=True)
        (row,) = whole.rows
        assert (row.collective, row.calls) == ("all-reduce", 2 * DEPTH - 1)
        assert row.size_bytes == row.calls * ACTIVATION
        assert row.sent_bytes == 2 * (ranks - 1) / ranks * row.size_bytes
        assert [(each.collective, each.calls) for each in parts.rows] == [
            ("all-gather", 2 * DEPTH - 1),
            ("reduce-scatter", 2 * DEPTH - 1),
        ]
        assert parts.sent_bytes == whole.sent_bytes
        assert sum(link_s(each) for each in parts.rows) == pytest.approx(link_s(row))
        assert link_s(row) == pytest.approx(
            row.calls * costs.ring_all_reduce_s(ranks, ACTIVATION, link=LINK)
        )


def test_zero_1_and_2_send_as_much_as_data_parallel_and_zero_3_half_as_much_again() -> None:
    """Rajbhandari et al., section 7: 2, 2, 2 and 3 times the parameters."""
    found = {
        each: strategy_traffic(work(), Layout(4, sharded=each))
        for each in ("nothing", "optimizer", "gradients", "parameters")
    }
    in_models = {
        name: each.sent("data") / (DEPTH * PARAMETERS * 3 / 4) for name, each in found.items()
    }
    assert in_models == {"nothing": 2, "optimizer": 2, "gradients": 2, "parameters": 3}
    assert [(each.collective, each.calls) for each in found["parameters"].rows] == [
        ("all-gather", 2 * DEPTH),
        ("reduce-scatter", DEPTH),
    ]
    kept = strategy_traffic(work(), Layout(4, sharded="parameters"), reshard_after_forward=False)
    assert [each.calls for each in kept.rows] == [DEPTH, DEPTH]
    assert kept.sent_bytes == found["nothing"].sent_bytes


def test_stages_send_their_boundary_and_a_product_divides_everything() -> None:
    pipeline = strategy_traffic(work(), Layout(pipeline=4), stage=1, microbatches=8)
    assert [(each.collective, each.calls, each.sent_bytes) for each in pipeline.rows] == [
        ("send forward", 8, ACTIVATION),
        ("send backward", 8, ACTIVATION),
    ]
    ends = [
        strategy_traffic(work(), Layout(pipeline=4), stage=each, microbatches=8) for each in (0, 3)
    ]
    assert [each.sent_bytes for each in ends] == [ACTIVATION, ACTIVATION]
    product = strategy_traffic(work(), Layout(2, 2, 2), microbatches=4)
    assert product.sent("pipeline") == ACTIVATION / 2
    assert product.sent("tensor") == 3 * ACTIVATION / 2
    assert product.sent("data") == 2 * (4 * WIDTH + (PARAMETERS - 4 * WIDTH) // 2)


# Time, by hand and against what stood before.


def test_data_parallel_is_the_step_that_ddp_was_modelled_with() -> None:
    layers = work(8, rate=2e6)
    for cap in (1, 3 * PARAMETERS, 2**30):
        mine = strategy_step(layers, Layout(4), link=LINK, bucket_bytes=cap)
        given = [
            LayerCost(each.forward_s / 4, each.backward_s / 4, each.gradient_bytes)
            for each in layers
        ]
        other = data_parallel.ddp_step(given, world_size=4, link=LINK, bucket_bytes=cap)
        assert mine.step_s == pytest.approx(other.step_s)
        assert mine.exposed_s == pytest.approx(other.exposed_s)
        assert mine.data_link_s == pytest.approx(other.link_s)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_a_pipeline_is_the_schedule_that_was_timed_before(name: str) -> None:
    seconds = ((1.0, 2.0), (3.0, 1.0), (2.0, 2.0), (1.0, 5.0))
    layers = plain(*((8 * forward, 8 * backward) for forward, backward in seconds), output_bytes=8)
    mine = strategy_step(
        layers, Layout(pipeline=4), link=Link(math.inf, 0.25), microbatches=8, schedule=name
    )
    other = schedules.pipeline_schedule(
        name,
        ranks=4,
        microbatches=8,
        transfer_s=0.25,
        forward_s=[each[0] for each in seconds],
        backward_s=[each[1] for each in seconds],
    )
    assert mine.step_s == pytest.approx(other.duration_s)


def test_tensor_ranks_divide_what_is_split_and_wait_for_each_sum_of_each_microbatch() -> None:
    """A quarter of a batch of 8 + 16 seconds, of which half is split in two: 6 x 3/4 seconds a
    microbatch, twice.

    An all-reduce of 40 / 4 bytes in two steps of 0.5 + 5 / 10 seconds, and one of 80 / 4 bytes in
    two of 0.5 + 10 / 10.
    """
    layer = LayerWork(
        "", 8.0, 16.0, 0, 0, 0, split_share=0.5, forward_sum_bytes=(40,), backward_sum_bytes=(80,)
    )
    step = strategy_step([layer], Layout(2, 2), link=Link(10.0, 0.5), microbatches=2)
    assert (step.compute_s, step.tensor_s, step.step_s) == (9, 2 * (2 + 3), 19)
    assert (step.bubble_s, step.exposed_s, step.data_link_s) == (0, 0, 0)


def test_naive_model_parallelism_takes_all_the_work_and_every_message() -> None:
    layers = plain((1.0, 2.0), (1.0, 2.0), (1.0, 2.0), output_bytes=10)
    link = Link(10.0, 0.5)
    step = strategy_step(layers, Layout(pipeline=3), link=link, microbatches=1, schedule="gpipe")
    assert step.step_s == pytest.approx(9 + 4 * 1.5)


def test_gathering_ahead_hides_all_but_the_first_of_each_pass() -> None:
    """Two layers of 1 + 2 seconds on each of two ranks, each collective one second, by hand.

    Forward: gather 0-1, compute 1-2 and, gathered meanwhile, 2-3. Backward: gather 3-4, compute 4-6
    and 6-8; the second layer's gradients go at 6-7, those of the first at 8-9. Kept whole after the
    forward pass: a second less.
    """
    layers = plain((2.0, 4.0), (2.0, 4.0), size_bytes=2)
    layout, link = Layout(2, sharded="parameters"), Link(1.0)
    step = strategy_step(layers, layout, link=link)
    assert (step.step_s, step.compute_s, step.exposed_s, step.data_link_s) == (9, 6, 3, 6)
    kept = strategy_step(layers, layout, link=link, reshard_after_forward=False)
    assert (kept.step_s, kept.exposed_s, kept.data_link_s) == (8, 2, 4)


def test_zero_2_reduces_after_every_microbatch_and_zero_1_once() -> None:
    layers = plain((2.0, 4.0), size_bytes=2)
    times = {
        sharded: strategy_step(layers, Layout(2, sharded=sharded), link=Link(1.0), microbatches=2)
        for sharded in ("nothing", "optimizer", "gradients")
    }
    assert {name: (each.step_s, each.data_link_s) for name, each in times.items()} == {
        "nothing": (5, 2),
        "optimizer": (5, 2),
        "gradients": (5, 3),
    }


def test_the_parts_of_a_step_are_the_step_and_the_link_is_busy_with_what_was_counted() -> None:
    layers = work(8, rate=2e6)
    for layout in layouts_of(8):
        m = 2 * layout.pipeline
        step = strategy_step(layers, layout, link=LINK, microbatches=m)
        assert step.step_s == pytest.approx(
            step.compute_s + step.tensor_s + step.bubble_s + step.exposed_s
        )
        stages = [
            strategy_traffic(layers, layout, stage=each, microbatches=m)
            for each in range(layout.pipeline)
        ]
        busy = [sum(link_s(row) for row in each.rows if row.over == "data") for each in stages]
        assert any(step.data_link_s == pytest.approx(each) for each in busy)


def test_what_cannot_be_is_refused() -> None:
    layers = plain((1.0, 1.0), (1.0, 1.0), (1.0, 1.0))
    with pytest.raises(ValueError, match="3 layers do not divide into 2 stages"):
        strategy_step(layers, Layout(pipeline=2), link=LINK, microbatches=2)
    with pytest.raises(
        ValueError, match="at least as many microbatches as ranks; got 2 microbatches for 3 ranks"
    ):
        strategy_step(layers, Layout(pipeline=3), link=LINK, microbatches=2)
    with pytest.raises(
        ValueError, match="schedule='zero_bubble' is not known; give one of 'gpipe', '1f1b'"
    ):
        strategy_step(layers, Layout(), link=LINK, schedule="zero_bubble")
    with pytest.raises(ValueError, match="stage=3 is too large; give a whole number, 0 to 2"):
        strategy_traffic(layers, Layout(pipeline=3), stage=3)
    with pytest.raises(ValueError, match="at least one layer"):
        strategy_step([], Layout(), link=LINK)


# On real ranks.


def test_a_device_sleeps_for_its_share_of_a_layer(monkeypatch) -> None:
    """A quarter of 0.08 seconds, of which half is split in two; what tensor ranks wait for comes on
    top.
    """
    slept_until_s = []
    monkeypatch.setattr(execution, "time", SimpleNamespace(perf_counter=lambda: 100.0))
    monkeypatch.setattr(execution, "sleep_until", slept_until_s.append)
    member = object.__new__(execution._Member)
    member.layout, member.microbatches = Layout(2, 2), 2
    layer = LayerWork("", 0.08, 0.16, 0, 0, 0, split_share=0.5)
    for whole_s, waited_s in ((layer.forward_s, 0.0), (layer.backward_s, 7.0)):
        with member._device(layer, whole_s):
            member.ends_s += waited_s
    assert slept_until_s == [pytest.approx(100 + 0.015), pytest.approx(100 + 0.03 + 7)]


def train_alone(
    model: nn.Sequential, inputs: torch.Tensor, targets: torch.Tensor, steps: int
) -> dict:
    """Return the parameters after ``steps`` of plain SGD on the whole batch; ``model`` stays as it
    was.
    """
    own = copy.deepcopy(model)
    stepping = torch.optim.SGD(own.parameters(), lr=LEARNING_RATE)
    for _ in range(steps):
        stepping.zero_grad()
        MSE(own(inputs), targets).backward()
        stepping.step()
    return {name: parameter.detach() for name, parameter in own.named_parameters()}


def test_every_layout_trains_what_one_process_trains_and_sends_what_was_counted(four_ranks) -> None:
    model, layers = net(), work(rate=1e12)
    inputs, targets = 30 * torch.randn(2, ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    layouts = [each for each in layouts_of(4) if each.ranks == 4] + [
        Layout(2, sharded="parameters")
    ]
    cases = [
        (each, 2 * each.pipeline if each.data == 1 or each.pipeline > 1 else 2) for each in layouts
    ]
    runs = execute_strategies(
        four_ranks,
        model,
        cases,
        layers=layers,
        link=Link(1e9),
        inputs=inputs,
        targets=targets,
        loss=MSE,
        plan=tensor_plan(model),
        bucket_bytes=2 * PARAMETERS,
        repeats=1,
    )
    alone = train_alone(model, inputs, targets, steps=2)
    before = dict(model.named_parameters())
    for run, (layout, microbatches) in zip(runs, cases, strict=True):
        for name, wanted in alone.items():
            update, apart = (
                (before[name] - wanted).abs().max(),
                (run.parameters[name] - wanted).abs().max(),
            )
            assert apart <= 1e-4 * update, f"{layout} {name}: {apart} of {update}"
        counted = strategy_traffic(
            layers, layout, microbatches=microbatches, bucket_bytes=2 * PARAMETERS
        )
        sent = (run.data_bytes, run.tensor_bytes, run.pipeline_bytes)
        assert sent == tuple(counted.sent(over) for over in ("data", "tensor", "pipeline")), layout


def test_a_run_that_cannot_be_is_refused_in_a_sentence(four_ranks) -> None:
    inputs = torch.zeros(ROWS, WIDTH)

    def run(layout: Layout, microbatches: int = 1, model: nn.Sequential | None = None) -> None:
        model = net() if model is None else model
        execute_strategies(
            four_ranks,
            model,
            [(layout, microbatches)],
            layers=work(),
            link=LINK,
            inputs=inputs,
            targets=inputs,
            loss=MSE,
            plan=tensor_plan(model),
        )

    with pytest.raises(
        ValueError, match="a mesh of data 4 x tensor 2 x pipeline 1 needs 8 ranks, and there are 4"
    ):
        run(Layout(4, 2))
    with pytest.raises(
        ValueError, match="at least as many microbatches as ranks; got 2 microbatches for 4 ranks"
    ):
        run(Layout(pipeline=4), 2)
    with pytest.raises(ValueError, match="16 rows does not divide among 3 data ranks"):
        run(Layout(3))
    with pytest.raises(ValueError, match=r"32 outputs of '0\.up' do not divide by 3 tensor ranks"):
        run(Layout(tensor=3))
    with pytest.raises(ValueError, match="layers"):
        run(Layout(pipeline=3), 3)
    frozen = net()
    frozen[0].requires_grad_(requires_grad=False)
    with pytest.raises(ValueError, match=r"trains every parameter, and '0\.up\.weight' is frozen"):
        run(Layout(2), model=frozen)
