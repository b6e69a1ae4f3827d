"""DDP, FSDP2, accumulation and local splits end where one process ends, and each trap is one in which that can fail.

The oracle is PyTorch alone, in this process, on the whole batch; no helper takes part in it. All is float64, where the
right program is within 1e-12 and every planted wrong one is at least a million times further off.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.parallel import average_gradients, shard
from helpers.parallel._data_parallel import batch_weight

TOLERANCE, WRONG = 1e-12, 1e-6
STEPS, RATE, MOMENTUM = 4, 0.1, 0.9
EVEN, UNEVEN = (6, 6, 6, 6), (9, 7, 5, 3)
WAYS = ("ddp", "fsdp", "ring", "local")


class Tied(nn.Module):
    """Two layers with one weight, of which autograd adds up two gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(inputs)))


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8))


def frozen() -> nn.Module:
    model = plain()
    model[0].weight.requires_grad_(False)
    return model


MODELS = {"plain": plain, "tied": Tied, "frozen": frozen}


def seeded(name: str, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MODELS[name]().double()


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.randn(24, 8, generator=generator, dtype=torch.float64) for _ in range(2))


def optimizer_of(model: nn.Module, momentum: float = MOMENTUM) -> torch.optim.SGD:
    return torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=RATE, momentum=momentum)


def one_process(name: str, *, momentum: float = MOMENTUM) -> dict[str, torch.Tensor]:
    """The oracle."""
    model, (inputs, targets) = seeded(name), data()
    optimizer = optimizer_of(model, momentum)
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return {key: value.detach() for key, value in model.named_parameters()}


def on_a_rank(rank: int, world_size: int, way: str, name: str, how: dict) -> dict[str, torch.Tensor]:
    """Train on this rank's rows; ``how`` may plant an error: ``careless`` leaves out what the trap asks for."""
    sizes, parts, careless = how.get("sizes", EVEN), how.get("parts", 1), how.get("careless", False)
    inputs, targets = (shard(each, rank, world_size=world_size, sizes=sizes) for each in data())
    model = seeded(name, seed=rank if how.get("seeds_differ") else 0)
    if how.get("broadcast"):
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
    wrapped = model
    if way == "ddp":
        wrapped = nn.parallel.DistributedDataParallel(model)
    elif way == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        wrapped = fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
    optimizer = optimizer_of(model, 0.0 if way == "local" else MOMENTUM)
    weight = 1.0 if careless else batch_weight(len(inputs), sum(sizes), world_size=world_size)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for place, (part, wanted) in enumerate(
            zip(inputs.tensor_split(parts), targets.tensor_split(parts), strict=True)
        ):
            sends = place == parts - 1 and not how.get("never_sends")
            if way == "fsdp":
                wrapped.set_requires_gradient_sync(sends)
            share = 1 / parts if careless else len(part) / len(inputs)
            with wrapped.no_sync() if way == "ddp" and not sends else nullcontext():
                (nn.functional.mse_loss(wrapped(part), wanted) * weight * share).backward()
        if way == "ring" and not how.get("never_sends"):
            average_gradients(model, by="ring")
        optimizer.step()
        if way == "local":  # each steps alone, then they average their weights: after every step the same thing
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= world_size
    return {key: (each.full_tensor() if hasattr(each, "full_tensor") else each).detach()
            for key, each in model.named_parameters()}  # fmt: skip


def furthest(ranks, way: str, name: str = "plain", **how) -> float:
    alone = one_process(name, momentum=0.0 if way == "local" else MOMENTUM)
    together = ranks.run(on_a_rank, way, name, how, timeout_s=200)
    assert all(each.keys() == alone.keys() for each in together)
    return max((each[key] - alone[key]).abs().max().item() for each in together for key in alone)


def test_the_oracle_learns_and_a_frozen_weight_stays() -> None:
    for name in MODELS:
        before, after = dict(seeded(name).named_parameters()), one_process(name)
        moved = {key: (after[key] - before[key]).abs().max().item() for key in after}
        assert max(moved.values()) > 0.01
        assert (moved.get("0.weight") == 0) == (name == "frozen")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_ranks_end_where_one_process_ends(four_ranks, way, name) -> None:
    assert furthest(four_ranks, way, name) < TOLERANCE


@pytest.mark.parametrize("way", ["ddp", "fsdp", "ring", "local"])
def test_uneven_shards_do_when_they_are_weighed_and_do_not_else(four_ranks, way) -> None:
    assert furthest(four_ranks, way, sizes=UNEVEN) < TOLERANCE
    assert furthest(four_ranks, way, sizes=UNEVEN, careless=True) > WRONG


@pytest.mark.parametrize("way", ["ddp", "fsdp", "ring"])
def test_accumulation_does_also_over_unequal_parts(four_ranks, way) -> None:
    assert furthest(four_ranks, way, parts=3) < TOLERANCE
    assert furthest(four_ranks, way, "tied", sizes=UNEVEN, parts=2) < TOLERANCE
    assert furthest(four_ranks, way, sizes=UNEVEN, parts=2, careless=True) > WRONG


@pytest.mark.parametrize("way", ["ddp", "ring"])
def test_ranks_that_never_send_do_not(four_ranks, way) -> None:
    assert furthest(four_ranks, way, never_sends=True) > WRONG


def test_seeds_that_differ_are_mended_by_a_broadcast_and_by_ddp(four_ranks) -> None:
    assert furthest(four_ranks, "ddp", seeds_differ=True) < TOLERANCE
    for way in ("fsdp", "ring"):
        assert furthest(four_ranks, way, seeds_differ=True, broadcast=True) < TOLERANCE
        assert furthest(four_ranks, way, seeds_differ=True) > WRONG


def test_a_batch_smaller_than_the_ranks_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="a batch of 3 rows cannot give each of 4 ranks one"):
        shard(torch.zeros(3, 8), 0, world_size=4)
