"""What a rank keeps: counted from shapes, run on a fake process group, handed out by the allocators
of real ranks.
"""

from __future__ import annotations

import time
from collections import OrderedDict

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, strategies as st
from torch import nn

from helpers.ranks import Ranks
from helpers.studies.parallel_plans import (
    Layout,
    count_footprint,
    estimate_footprint,
    measure_footprint,
)
from helpers.studies.parallel_plans._footprint import SHARDED, state_bytes
from tests.properties import repeatable

ADAM = torch.optim.Adam


def net_of(width: int, hidden: int, layers: int = 4) -> nn.Sequential:
    def layer() -> nn.Sequential:
        parts = {"up": nn.Linear(width, hidden), "act": nn.ReLU(), "down": nn.Linear(hidden, width)}
        return nn.Sequential(OrderedDict(parts))

    return nn.Sequential(*(layer() for _ in range(layers)))


def plan_of(layers: int = 4) -> dict[str, str]:
    return {
        f"{i}.{name}": way
        for i in range(layers)
        for name, way in (("up", "column"), ("down", "row"))
    }


def kept(each) -> tuple[int, int, int]:
    return each.parameter_bytes, each.gradient_bytes, each.optimizer_bytes


# Counted from shapes.


def test_zero_divides_what_the_paper_says_it_divides() -> None:
    """Rajbhandari et al., figure 1: 2, 2 and K bytes a parameter become (2+2+K), 2+2+K/N, 2+(2+K)/N
    and (2+2+K)/N.
    """
    net, parameters, ranks = net_of(64, 256).to(torch.bfloat16).to("meta"), 132_352, 64
    k = 2 * 2  # Adam's two moments, in bfloat16 here as the parameters are
    expected = {
        "nothing": (2 + 2 + k) * parameters,
        "optimizer": (2 + 2) * parameters + k * parameters / ranks,
        "gradients": 2 * parameters + (2 + k) * parameters / ranks,
        "parameters": (2 + 2 + k) * parameters / ranks,
    }
    for sharded, bytes_ in expected.items():
        rank = count_footprint(net, Layout(data=ranks, sharded=sharded), optimizer=ADAM).ranks[0]
        # Adam counts its steps, once a tensor
        steps = 4 * (16 if sharded in ("nothing", "parameters") else 1)
        assert rank.total_bytes - steps == bytes_, sharded


def momentum(parameters) -> torch.optim.Optimizer:
    """Return an optimizer that keeps as much as it is given."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@st.composite
def layouts(draw, most_data: int) -> Layout:
    """Draw a layout whose stages divide four layers."""
    data, tensor, pipeline = (
        draw(st.integers(1, most_data)),
        draw(st.integers(1, 4)),
        draw(st.sampled_from([1, 2, 4])),
    )
    return Layout(data, tensor, pipeline, draw(st.sampled_from(SHARDED)))


@repeatable(examples=60)
@given(layouts(7), st.integers(1, 20), st.integers(1, 20))
def test_any_layout_divides_what_it_says_and_keeps_the_rest_on_every_rank(
    layout, width, columns
) -> None:
    net, data = net_of(width, columns * layout.tensor), layout.data
    # the row split's bias is whole everywhere
    shapes = [(columns, width), (columns, 1), (width, columns), (width, 1)]
    layers = 4 // layout.pipeline
    elements = layers * sum(rows * inner for rows, inner in shapes)
    part = -(-elements // data)  # the last one is padded
    counted = count_footprint(net, layout, plan=plan_of(), optimizer=momentum)
    assert [each.rank for each in counted.ranks] == list(
        range(data * layout.tensor * layout.pipeline)
    )
    for place, rank in enumerate(counted.ranks):
        assert rank.stage == place // (data * layout.tensor)
        data_rank = place % (data * layout.tensor) // layout.tensor
        rows_kept = [(-(-rows // data), inner) for rows, inner in shapes]
        rows_stepped = [
            (min(kept, max(0, rows - data_rank * kept)), inner)
            for (rows, inner), (kept, _) in zip(shapes, rows_kept, strict=True)
        ]
        padded, stepped = (
            layers * sum(rows * inner for rows, inner in cut) for cut in (rows_kept, rows_stepped)
        )
        assert kept(rank) == tuple(
            4 * count
            for count in {
                "nothing": (elements, elements, elements),
                "optimizer": (elements, elements, part),
                "gradients": (elements, part, part),
                "parameters": (padded, padded, stepped),
            }[layout.sharded]
        )
        assert rank.activation_bytes is None


def test_frozen_parameters_have_neither_gradient_nor_state_and_buffers_are_everywhere() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    net[0].requires_grad_(requires_grad=False)
    rank = count_footprint(net, Layout(), optimizer=ADAM).ranks[0]
    assert kept(rank) == (4 * (64 + 8 + 16), 4 * 16, 2 * 4 * 16 + 2 * 4)
    assert rank.buffer_bytes == 4 * 16 + 8


def test_state_is_that_of_a_real_optimizer() -> None:
    for optimizer in (
        ADAM,
        torch.optim.SGD,
        torch.optim.Adagrad,
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    ):
        parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((3, 5), (7,), (3, 5), (0, 5))]
        for each in parameters:
            each.grad = torch.zeros_like(each)
        real = optimizer(parameters)
        real.step()
        tensors = [
            each
            for state in real.state.values()
            for each in state.values()
            if torch.is_tensor(each)
        ]
        shapes = tuple((tuple(each.shape), each.dtype) for each in parameters)
        assert state_bytes(shapes, optimizer) == sum(
            each.numel() * each.element_size() for each in tensors
        )


def test_an_optimizer_steps_once_on_each_kind_of_parameter() -> None:
    made = []

    def counted(parameters) -> torch.optim.Optimizer:
        made.append(ADAM(parameters))
        return made[-1]

    rank = count_footprint(net_of(64, 256, layers=24), Layout(pipeline=4), optimizer=counted).ranks[
        0
    ]
    assert rank.optimizer_bytes == 2 * rank.parameter_bytes + 4 * 4 * 6
    assert len(made) == 4  # two weights' shapes and two biases'


# On a fake process group.


@pytest.mark.parametrize(
    "layout",
    [
        Layout(),
        Layout(2),
        Layout(2, sharded="optimizer"),
        Layout(2, sharded="gradients"),
        Layout(4, sharded="parameters"),
        Layout(1, 2),
        Layout(pipeline=4),
        Layout(2, 2, 2, "parameters"),
        Layout(2, 2, 2, "gradients"),
    ],
)
def test_the_fake_group_keeps_what_was_counted(layout: Layout) -> None:
    net, ranks = net_of(62, 130), tuple({0: 0, layout.ranks - 1: 0})
    given = {"plan": plan_of(), "optimizer": ADAM}
    counted = {each.rank: each for each in count_footprint(net, layout, **given).ranks}
    for each in estimate_footprint(net, layout, inputs=(16, 62), ranks=ranks, **given).ranks:
        assert kept(each) == kept(counted[each.rank])
        assert each.stage == counted[each.rank].stage
    assert not dist.is_initialized()


def test_activations_are_those_of_the_rank_s_share_of_the_work() -> None:
    def activations(layout: Layout, rank: int = 0, **more: object) -> int:
        found = estimate_footprint(
            net_of(64, 256), layout, inputs=(16, 64), plan=plan_of(), ranks=(rank,), **more
        )
        return found.ranks[0].activation_bytes

    # By hand, a row: of each layer what ReLU leaves (256), and what goes into the next (64); of the
    # first, the batch is not counted. ReLU and the second nn.Linear save the same tensor.
    row = 4 * (4 * 256 + 3 * 64)
    assert activations(Layout()) == 16 * row
    assert activations(Layout(4)) == activations(Layout(4, sharded="parameters")) == 4 * row
    assert activations(Layout(tensor=4)) == 16 * 4 * (4 * 256 // 4 + 3 * 64)
    # Four stages, four microbatches of four rows: 1F1B has 4, 3, 2, 1 of them alive, GPipe all four
    # everywhere.
    stage, first = 4 * (256 + 64), 4 * 256
    assert [activations(Layout(pipeline=4), rank) for rank in range(4)] == [
        4 * 4 * first,
        3 * 4 * stage,
        2 * 4 * stage,
        4 * stage,
    ]
    assert activations(Layout(pipeline=4), 3, schedule="gpipe", microbatches=8) == 8 * 2 * stage


@pytest.mark.parametrize(
    ("layout", "more", "fullest"),
    [
        (Layout(pipeline=4), {"microbatches": 8}, 1),
        (Layout(pipeline=4), {"microbatches": 8, "schedule": "gpipe"}, 1),
        (Layout(2, 2, 2, "parameters"), {}, 0),
        (Layout(4, sharded="optimizer"), {}, 0),
    ],
)
def test_unless_told_which_ranks_the_one_that_keeps_most_is_among_them(
    layout: Layout, more: dict, fullest: int
) -> None:
    """Rank 0 alone would not do: the batch that enters stage 0 is not counted, what enters the
    others is.
    """
    net, given = net_of(62, 64), {"inputs": (64, 62), "plan": plan_of(), "optimizer": ADAM, **more}
    every = estimate_footprint(net, layout, ranks=range(layout.ranks), **given)
    found = estimate_footprint(net, layout, **given)
    assert [each.stage for each in found.ranks] == list(range(layout.pipeline))
    assert found.largest_bytes == every.largest_bytes
    assert max(found.ranks, key=lambda each: each.total_bytes).stage == fullest
    assert found.schedule == more.get("schedule", "1f1b")
    assert found.microbatches == more.get("microbatches", layout.pipeline)


@pytest.mark.timed
def test_any_of_1024_ranks_is_estimated_in_one_process_in_seconds() -> None:
    """The seconds are those of a processor: what else the machine does is not counted."""
    with torch.device("meta"):
        net = net_of(1024, 4096)
    for layout in (Layout(1024, sharded="parameters"), Layout(32, 8, 4, "parameters")):
        start_s = time.process_time()
        found = estimate_footprint(
            net, layout, inputs=(4096, 1024), plan=plan_of(), optimizer=ADAM, ranks=(0, 1023)
        )
        assert time.process_time() - start_s < 10
        assert kept(found.ranks[1]) == kept(
            count_footprint(net, layout, plan=plan_of(), optimizer=ADAM).ranks[1023]
        )


# On real ranks.


@pytest.mark.parametrize(
    ("sizes", "layout", "more"),
    [
        ((64, 256), Layout(2, sharded="parameters"), {}),
        ((61, 130), Layout(2, sharded="parameters"), {}),
        ((64, 256), Layout(tensor=2), {}),
        ((64, 256), Layout(pipeline=2), {"microbatches": 4}),
        ((64, 256), Layout(pipeline=2), {"microbatches": 4, "schedule": "gpipe"}),
    ],
)
def test_the_allocators_of_two_real_ranks_agree_within_two_per_cent(
    two_ranks: Ranks, sizes: tuple[int, int], layout: Layout, more: dict
) -> None:
    net = net_of(*sizes)
    given = {"inputs": (32, sizes[0]), "plan": plan_of(), "optimizer": ADAM, **more}
    measured = measure_footprint(two_ranks, net, layout, timeout_s=240, **given)
    estimated = estimate_footprint(net, layout, ranks=(0, 1), **given)
    for real, model in zip(measured.ranks, estimated.ranks, strict=True):
        assert real.stage == model.stage
        assert real.total_bytes == pytest.approx(model.total_bytes, rel=0.02)
        assert kept(real) == pytest.approx(kept(model), rel=0.02)
        assert real.activation_bytes == pytest.approx(model.activation_bytes, rel=0.02)
    # Planted: what one process keeps is not what two ranks keep.
    alone = estimate_footprint(net, Layout(), **given).ranks[0]
    assert measured.ranks[0].total_bytes != pytest.approx(alone.total_bytes, rel=0.02)
    assert all(each.grad is None for each in net.parameters())


# Refused.


@pytest.mark.parametrize(
    ("layout", "more", "message"),
    [
        (Layout(tensor=3), {}, "the 256 outputs of '0.up' do not divide by 3 tensor ranks"),
        (Layout(pipeline=3), {}, "4 layers do not divide into 3 stages"),
        (Layout(3), {}, "16 rows does not divide among 3 data ranks"),
        (
            Layout(pipeline=4),
            {"microbatches": 3},
            "does not divide among 1 data ranks and 3 microbatches",
        ),
        (Layout(pipeline=4), {"microbatches": 2}, "at least as many microbatches as ranks"),
        (Layout(pipeline=4), {"schedule": "interleaved"}, "here a rank has one stage"),
        (Layout(2), {"ranks": (2,)}, "rank=2 is too large; give a whole number, 0 to 1"),
        (Layout(2), {"ranks": ()}, "at least one"),
        (Layout(2), {"inputs": (16, 63)}, r"does not run on a rank's rows, \(8, 63\)"),
        (Layout(2), {"inputs": (0, 64)}, r"inputs\[0\]=0 is too small"),
        (Layout(2), {"plan": {"0.act": "column"}}, "'0.act', which is no nn.Linear"),
        (Layout(2), {"plan": {"0.up": "rows"}}, "give 'column' or 'row'"),
    ],
)
def test_what_cannot_be_laid_out_is_refused(layout: Layout, more: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate_footprint(
            net_of(64, 256), layout, **({"inputs": (16, 64), "plan": plan_of()} | more)
        )
    assert not dist.is_initialized()


def test_a_layout_a_measurement_and_a_scalar_parameter_are_refused_with_a_reason(
    two_ranks: Ranks,
) -> None:
    with pytest.raises(
        ValueError, match="give one of 'nothing', 'optimizer', 'gradients', 'parameters'"
    ):
        Layout(sharded="all")
    with pytest.raises(ValueError, match="tensor=0 is too small; give a whole number, 1 or more"):
        Layout(tensor=0)
    for layout, more, message in (
        (Layout(2, sharded="optimizer"), {}, "counted and not run"),
        (Layout(3), {}, "a layout of 3 ranks is measured on as many, and there are 2"),
        (Layout(pipeline=2), {"schedule": "zero_bubble"}, "'gpipe' and '1f1b' are run here"),
    ):
        with pytest.raises(ValueError, match=message):
            measure_footprint(two_ranks, net_of(4, 4), layout, inputs=(4, 4), **more)
    with pytest.raises(ValueError, match="on the meta device"):
        measure_footprint(two_ranks, net_of(4, 4).to("meta"), Layout(2), inputs=(4, 4))
    with pytest.raises(TypeError, match="inputs is the shape"):
        estimate_footprint(net_of(4, 4), Layout(), inputs=torch.zeros(4, 4))
    with pytest.raises(TypeError, match="a plan says how"):
        count_footprint(net_of(4, 4), Layout(), plan=[("0.up", "column")])
    with pytest.raises(ValueError, match="layers '0' and '1' are one ReLU"):
        count_footprint(nn.Sequential(*[nn.ReLU()] * 2), Layout())
    scalar = nn.Sequential(nn.Linear(4, 4))
    scalar[0].scale = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"'0\.scale' is one number"):
        count_footprint(scalar, Layout(2, sharded="parameters"))
