"""A net split over ranks is the net in one process, and calls the collectives that the papers count and no others."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from helpers.parallel import FlopCount, compare_tensor_parallel, model_tensor_traffic, split_layers
from helpers.parallel._tensor_parallel import check_mesh, make_mesh

TOLERANCE = 1e-12
PAIR = {"up": "column", "down": "row"}
PLANS = {
    "column and row": (PAIR, False),
    "gathered": ({"up": "gathered", "down": "gathered"}, False),
    "sequence": ({"norm": "sequence", **PAIR}, True),
}


class Block(nn.Module):
    """A normalisation and two layers, added to what comes in."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm, self.act = nn.LayerNorm(width), nn.GELU()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.down(self.act(self.up(self.norm(inputs))))


class Attention(nn.Module):
    """Three layers that read the same, attention over as many heads as this rank has, and a layer that joins them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.join = nn.Linear(width, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        normal = self.norm(inputs)
        parts = (layer(normal).unflatten(-1, (-1, self.size)).transpose(1, 2)
                 for layer in (self.query, self.key, self.value))  # fmt: skip
        return self.join(nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))


def seeded(make) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return make().double()


def plain(width: int = 8, hidden: int = 32) -> nn.Module:
    layers = {"norm": nn.LayerNorm(width), "up": nn.Linear(width, hidden), "act": nn.ReLU(),
              "down": nn.Linear(hidden, width)}  # fmt: skip
    return seeded(lambda: nn.Sequential(OrderedDict(layers)))


def batch(rows: int = 4, tokens: int = 8, width: int = 8) -> dict:
    generator = torch.Generator().manual_seed(2)
    inputs, targets = (torch.randn(rows, tokens, width, generator=generator, dtype=torch.float64) for _ in range(2))
    return {"inputs": inputs, "targets": targets, "loss": mse_loss}


def compared(ranks, net, plan, *, sequence: bool = False, data: int = 1, **given):
    return compare_tensor_parallel(ranks, net, plan=plan, sequence=sequence, data=data, tolerance=TOLERANCE, **given)


@pytest.mark.parametrize("data", [1, 2, 4])
@pytest.mark.parametrize("name", PLANS)
def test_a_split_net_is_the_whole_one_on_every_mesh(four_ranks, name, data) -> None:
    plan, sequence = PLANS[name]
    run = compared(four_ranks, plain(), plan, sequence=sequence, data=data, **batch())
    assert run.agreement.equal
    assert (run.data, run.tensor) == (data, 4 // data)
    modelled = model_tensor_traffic(plain(), plan, inputs=(4 // data, 8, 8), tensor=4 // data, sequence=sequence)
    assert run.traffic == modelled
    assert run.averaged_bytes == (8 * run.rank_parameters[0] if data > 1 else 0)


def test_the_collectives_are_those_of_the_papers(four_ranks) -> None:
    """In bytes: t tokens of 8 numbers are n = 2,048 B, of 32 numbers 8,192 B; the hidden values are not sent but by
    "gathered"."""
    calls = {}
    for name, (plan, sequence) in PLANS.items():
        traffic = compared(four_ranks, plain(), plan, sequence=sequence, **batch()).traffic
        calls[name] = {kind: tuple((each.calls(kind), each.size_bytes(kind))
                                   for each in (traffic.forward, traffic.backward))
                       for kind in ("all_reduce", "all_gather", "reduce_scatter")}  # fmt: skip
    n, hidden = 4 * 8 * 8 * 8, 4 * 8 * 32 * 8
    assert calls["column and row"] == {
        "all_reduce": ((1, n), (1, n)), "all_gather": ((0, 0),) * 2, "reduce_scatter": ((0, 0),) * 2,
    }  # fmt: skip
    assert calls["gathered"] == {
        "all_gather": ((2, hidden + n), (0, 0)), "all_reduce": ((0, 0), (2, hidden + n)),
        "reduce_scatter": ((0, 0),) * 2,
    }  # fmt: skip
    assert calls["sequence"] == {
        "all_gather": ((2, 2 * n), (1, n)), "reduce_scatter": ((1, n), (1, n)), "all_reduce": ((0, 0),) * 2,
    }  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_several_blocks_with_residuals_and_a_head_left_whole(four_ranks, name) -> None:
    plan, sequence = PLANS[name]
    net = seeded(lambda: nn.Sequential(*(Block(12, 20) for _ in range(3))))
    plan = {f"{place}.{layer}": way for place in range(3) for layer, way in plan.items()}
    given = batch(tokens=4, width=12)
    run = compared(four_ranks, net, plan, sequence=sequence, data=2, **given)
    assert run.agreement.equal
    assert run.traffic == model_tensor_traffic(net, plan, inputs=(2, 4, 12), tensor=2, sequence=sequence)
    if not sequence:
        headed = nn.Sequential(net, seeded(lambda: nn.Linear(12, 12)))
        assert compared(four_ranks, headed, {f"0.{key}": way for key, way in plan.items()}, **given).agreement.equal


@pytest.mark.parametrize("sequence", [False, True])
def test_attention_splits_by_heads(four_ranks, sequence) -> None:
    net = seeded(lambda: Attention(16, 4))
    plan = {"query": "column", "key": "column", "value": "column", "join": "row"}
    plan |= {"norm": "sequence"} if sequence else {}
    run = compared(four_ranks, net, plan, sequence=sequence, **batch(width=16))
    assert run.agreement.equal
    assert run.traffic == model_tensor_traffic(net, plan, inputs=(4, 8, 16), tensor=4, sequence=sequence)


def test_what_a_rank_holds_and_computes_is_its_part(four_ranks) -> None:
    run = compared(four_ranks, plain(), PAIR, **batch())
    assert run.rank_parameters == (16 + (8 * 32 + 32) // 4 + 32 * 8 // 4 + 8,) * 4
    whole = 2 * 4 * 8 * (8 * 32 + 32 * 8) * 3  # two FLOPs a multiply-add, forward and two products back
    assert run.flop_counter_flops == whole
    assert run.rank_flops == whole // 4


def flops_of_an_ordinary_net(_rank: int, _world_size: int) -> tuple[int, int]:
    from torch.utils.flop_counter import FlopCounterMode

    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 6 * 6, 5))
    own, theirs = FlopCount(), FlopCounterMode(display=False)
    for counter in (own, theirs):
        with counter:
            net(torch.zeros(2, 3, 8, 8)).sum().backward()
    return own.flops, theirs.get_total_flops()


def test_the_count_of_flops_is_pytorch_s_where_nothing_is_split(four_ranks) -> None:
    for own, theirs in four_ranks.run(flops_of_an_ordinary_net):
        assert own == theirs > 0


def partial_gradient(_rank: int, _world_size: int, net: nn.Module, given: dict) -> tuple[torch.Tensor, ...]:
    """The trap: in sequence parallel a normalisation's gradient is a term of a sum."""
    split = split_layers(net, PLANS["sequence"][0], make_mesh(tensor=4), sequence=True)
    given["loss"](split(given["inputs"]), given["targets"]).backward()
    gradient = split.norm.weight.grad
    return gradient.to_local(), gradient.full_tensor()


def test_a_sequence_layer_s_gradient_is_whole_only_when_it_is_added_up(four_ranks) -> None:
    net, given = plain(), batch()
    told = four_ranks.run(partial_gradient, net, given)
    mse_loss(net(given["inputs"]), given["targets"]).backward()
    for local, full in told:
        torch.testing.assert_close(full, net.norm.weight.grad)
        assert (local - net.norm.weight.grad).abs().max() > 1e-6
    torch.testing.assert_close(sum(local for local, _ in told), net.norm.weight.grad)


def wrong_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The trap: a sum over rows, of which the average over data ranks is not the whole."""
    return ((outputs - targets) ** 2).sum()


def test_a_summed_loss_over_data_ranks_is_seen(four_ranks) -> None:
    given = batch() | {"loss": wrong_loss}
    assert compared(four_ranks, plain(), PAIR, data=1, **given).agreement.equal
    assert compared(four_ranks, plain(), PAIR, data=2, **given).agreement.gradient_difference == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("plan", "sequence", "message"),
    [
        ({"up": "column"}, False, "the outputs of 'up' stay split, and 'down' reads them whole"),
        ({"down": "column"}, False, "stay split at the end of the net"),
        ({"down": "row"}, False, "'down' is split by 'row' and reads inputs that are split"),
        ({"up": "columns"}, False, "the plan splits 'up' by 'columns'"),
        ({"side": "column"}, False, "the plan names 'side', which is no nn.Linear"),
        ({"norm": "sequence", **PAIR}, False, "takes sequence=True"),
        (PAIR, True, "'norm' would see a part of the sequence"),
        ({"norm": "sequence", "up": "gathered", "down": "gathered"}, True, "no rank has all tokens"),
    ],
)
def test_plans_that_cannot_be_are_refused(four_ranks, plan, sequence, message) -> None:
    with pytest.raises(ValueError, match=message):
        compared(four_ranks, plain(), plan, sequence=sequence, **batch())


def test_sizes_that_cannot_be_are_refused(four_ranks) -> None:
    with pytest.raises(ValueError, match="the 30 outputs of 'up' do not divide by 4 tensor ranks"):
        compared(four_ranks, plain(hidden=30), PAIR, **batch())
    with pytest.raises(ValueError, match="a mesh of 2 data x 4 tensor ranks has 8, and here are 4"):
        compare_tensor_parallel(four_ranks, plain(), plan=PAIR, data=2, tensor=4, **batch())
    with pytest.raises(ValueError, match="a mesh of 8 data x 1 tensor ranks has 8, and here are 4"):
        compared(four_ranks, plain(), PAIR, data=8, **batch())
    with pytest.raises(ValueError, match="3 rows do not divide among 2 data ranks"):
        compared(four_ranks, plain(), PAIR, data=2, **batch(rows=3))
    with pytest.raises(ValueError, match=r"divides among 4 tensor ranks; give \(rows, a multiple of 4"):
        compared(four_ranks, plain(), PLANS["sequence"][0], sequence=True, **batch(tokens=6))
    with pytest.raises(ValueError, match=r"the first nn.Linear reads 8 numbers a token, and inputs of shape \(4, 7\)"):
        model_tensor_traffic(plain(), PAIR, inputs=(4, 7), tensor=2)
    with pytest.raises(TypeError, match="inputs is the shape"):
        model_tensor_traffic(plain(), PAIR, inputs=(), tensor=2)
    with pytest.raises(ValueError, match="tensor=0 is too small"):
        model_tensor_traffic(plain(), PAIR, inputs=(4, 8), tensor=0)
    with pytest.raises(RuntimeError, match="a mesh is made of ranks"):
        make_mesh(tensor=4)
    check_mesh(4, data=2, tensor=2)
