"""Data parallel by hand: shard a batch, average the gradients, and compare ranks with one process, digit for digit."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from helpers._checks import boolean, choice, number, one_of, whole_number
from helpers.links import Link, Recorder
from helpers.parallel import _collectives as collectives
from helpers.parallel._comparing import Loss
from helpers.parallel._execution import RankPool, execute, rank_device
from helpers.results import Record

LEARNING_RATE = 0.1
WAYS = ("ddp", "fsdp", "all_reduce", *collectives.ALGORITHMS)


def shard(batch: torch.Tensor, rank: int, *, world_size: int, sizes: Sequence[int] | None = None) -> torch.Tensor:
    """Return the rows of ``batch`` that ``rank`` works on: neighbours, the first ranks one row more than the last.

    >>> [shard(torch.arange(7), rank, world_size=3).tolist() for rank in range(3)]
    [[0, 1, 2], [3, 4], [5, 6]]

    ``sizes`` gives each of the ``world_size`` ranks its number of rows instead. Raises ValueError for a batch with
    fewer rows than ranks, for a rank that is not there, and for sizes that do not make up the batch.
    """
    whole_number("rank", rank, at_least=0, at_most=world_size - 1)
    if len(batch) < world_size:
        raise ValueError(f"a batch of {len(batch)} rows cannot give each of {world_size} ranks one: "
                         "take a larger batch or fewer ranks")  # fmt: skip
    if sizes is None:
        return batch[slice(*collectives.chunk(rank, world_size, length=len(batch)))]
    if len(sizes) != world_size or sum(sizes) != len(batch) or min(sizes) < 1:
        raise ValueError(f"sizes must be one number of at least 1 a rank, {len(batch)} together; got {tuple(sizes)} "
                         f"for {world_size} ranks")  # fmt: skip
    return batch.split(list(sizes))[rank]


def average_gradients(
    model: nn.Module, *, by: str = "ring", link: Link | None = None, recorder: Recorder | None = None
) -> None:
    """Replace every gradient of ``model`` by its mean over the ranks; every rank calls it after its backward pass.

    All gradients go as one flat buffer. ``by`` is "all_reduce" for torch.distributed's own, or one of
    ``collectives.ALGORITHMS``; only these go over a ``link`` and are noted by ``recorder``. Frozen parameters are left
    alone, a tied one goes once, and a parameter without a gradient counts as zero. The ranks' mean is the batch's mean
    only where all shards are equally long: see :func:`batch_weight`.

    Raises ValueError for another way, for a link with "all_reduce", and for a model in which nothing learns.
    """
    choice("by", by, ("all_reduce", *collectives.ALGORITHMS))
    if by == "all_reduce" and (link is not None or recorder is not None):
        raise ValueError("torch.distributed's own all_reduce takes no link and no recorder; "
                         f"give by one of {', '.join(collectives.ALGORITHMS)}")  # fmt: skip
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not learning:
        raise ValueError("no parameter of this model requires a gradient: there is nothing to average")
    grads = [parameter.grad if parameter.grad is not None else torch.zeros_like(parameter) for parameter in learning]
    flat = torch.cat([grad.detach().flatten() for grad in grads])
    if by == "all_reduce":
        dist.all_reduce(flat)
    else:
        planned = collectives.collective(
            "all_reduce", by, world_size=dist.get_world_size(), length=flat.numel(), element_bytes=flat.element_size()
        )
        flat = execute(planned, flat, link=link, recorder=recorder)
    flat /= dist.get_world_size()
    for parameter, mean in zip(learning, flat.split([parameter.numel() for parameter in learning]), strict=True):
        parameter.grad = mean.view_as(parameter).to(parameter.dtype).clone()


def batch_weight(samples: int, total: int, *, world_size: int) -> float:
    """Return by what a rank multiplies its mean loss so that the ranks' mean gradient is the whole batch's.

    ``samples`` of ``total`` are this rank's: world_size x samples / total, which is 1 where all shards are equal.
    Raises ValueError for samples outside 0 to ``total``. Lesson 05.
    """
    if total < 1 or not 0 <= samples <= total:
        raise ValueError(f"samples must be between 0 and the total, and that at least 1; got {samples} of {total}")
    return world_size * samples / total


class Equality(Record):
    """Whether training on ranks gave the parameters that one process gives.

    ``largest_difference`` is over all parameters and ranks against one process, ``between_ranks`` of a rank against
    rank 0; ``largest_update`` is how far one process moved a parameter, for the scale. ``equal`` says that the first is
    at most ``tolerance``. A parameter that is NaN anywhere is infinitely far from its peers. Lesson 05.
    """

    way: str
    world_size: int
    steps: int
    equal: bool
    tolerance: float
    largest_difference: float
    between_ranks: float
    largest_update: float
    parameter: str


@dataclass(frozen=True)
class _Plan:
    """How :func:`equal_to_single_process` trains; picklable, for it goes to the ranks."""

    make_model: Callable[[], nn.Module]
    loss: Loss
    way: str
    steps: int
    learning_rate: float
    sizes: tuple[int, ...] | None
    weighted: bool
    micro_batches: int
    seed: int
    seeds_differ: bool


def equal_to_single_process(
    ranks: RankPool,
    make_model: Callable[[], nn.Module],
    *,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    loss: Loss,
    way: str = "ddp",
    steps: int = 3,
    learning_rate: float = LEARNING_RATE,
    sizes: Sequence[int] | None = None,
    weighted: bool = False,
    micro_batches: int = 1,
    seeds_differ: bool = False,
    seed: int = 0,
    tolerance: float = 1e-6,
    timeout_s: float = 120.0,
) -> Equality:
    """Train on ``ranks`` and in this process on the same batch, and return how far the parameters are apart.

    Each of the ``steps`` is one of plain SGD, at ``learning_rate``, on the whole batch of ``inputs`` and ``targets``,
    of which every rank takes its shard (``sizes``: see :func:`shard`) in ``micro_batches`` accumulated parts. ``way``
    is "ddp" (DistributedDataParallel), "fsdp" (``fully_shard``), "all_reduce" or a way of :func:`average_gradients`.
    ``loss(outputs, targets)`` is a mean; ``weighted`` multiplies it by :func:`batch_weight`. ``make_model`` is called
    on each rank after seeding with ``seed``, and with ``seeds_differ`` with ``seed`` plus the rank. It and the loss go
    to the ranks pickled, and ``timeout_s`` limits the training there. Equal is what differs by ``tolerance`` at most.

    Raises ValueError for another way, for shards that cannot be, and for fewer than 1 step or micro-batch.
    """
    boolean("seeds_differ", seeds_differ)
    boolean("weighted", weighted)
    choice("way", way, WAYS)
    whole_number("micro_batches", micro_batches)
    if len(inputs) != len(targets):
        raise ValueError(f"inputs and targets must be equally long; got {len(inputs)} and {len(targets)}")
    rows = [len(shard(inputs, rank, world_size=ranks.world_size, sizes=sizes)) for rank in range(ranks.world_size)]
    if min(rows) < micro_batches:
        raise ValueError(f"{micro_batches} micro-batches need as many rows on each rank; the smallest has {min(rows)}")
    plan = _Plan(make_model, loss, way, steps, learning_rate, None if sizes is None else tuple(sizes), weighted,
                micro_batches, seed, seeds_differ)  # fmt: skip
    before, alone = _trained_alone(plan, inputs, targets)
    together = ranks.run(_trained, plan, inputs, targets, timeout_s=timeout_s)
    worst = max(alone, key=lambda name: max(_apart(trained[name], alone[name]) for trained in together))
    difference = max(_apart(trained[worst], alone[worst]) for trained in together)
    return Equality(
        way=way,
        world_size=ranks.world_size,
        steps=steps,
        equal=difference <= tolerance,
        tolerance=tolerance,
        largest_difference=difference,
        between_ranks=max(_apart(trained[name], together[0][name]) for trained in together for name in alone),
        largest_update=max(_apart(alone[name], before[name]) for name in alone),
        parameter=worst,
    )


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference of two tensors; where one has no number (NaN), they are infinitely far apart."""
    return (one - other).abs().nan_to_num(nan=math.inf, posinf=math.inf).max().item() if one.numel() else 0.0


def _seeded_model(plan: _Plan, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return plan.make_model()


def _trained_alone(
    plan: _Plan, inputs: torch.Tensor, targets: torch.Tensor
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    model = _seeded_model(plan, plan.seed).to(inputs.device)
    before = {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}
    after = train_alone(model, inputs=inputs, targets=targets, loss=plan.loss, steps=plan.steps,
                        learning_rate=plan.learning_rate)  # fmt: skip
    return before, {name: trained.cpu() for name, trained in after.items()}


def train_alone(
    net: nn.Module, *, inputs: torch.Tensor, targets: torch.Tensor, loss: Loss, steps: int,
    learning_rate: float = LEARNING_RATE,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Return the parameters after ``steps`` of plain SGD on the whole batch, here; ``net`` stays as it was.

    What ``execute_strategies`` with ``repeats`` has after ``repeats + 1`` steps.
    """
    one_of("net", net, nn.Module, "a module")
    one_of("loss", loss, Callable, "a function of outputs and targets, such as nn.functional.mse_loss")
    for name, batch in (("inputs", inputs), ("targets", targets)):
        one_of(name, batch, torch.Tensor, "a tensor with all rows of the batch")
    number("learning_rate", learning_rate, at_least=0)
    own = copy.deepcopy(net)
    stepping = torch.optim.SGD(own.parameters(), lr=learning_rate)
    for _ in range(whole_number("steps", steps)):
        stepping.zero_grad()
        loss(own(inputs), targets).backward()
        stepping.step()
    return {name: parameter.detach() for name, parameter in own.named_parameters()}


def _trained(
    rank: int, world_size: int, plan: _Plan, inputs: torch.Tensor, targets: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Train this rank's shard as ``plan`` says, and return its parameters on the CPU."""
    device = rank_device()
    own = [shard(whole, rank, world_size=world_size, sizes=plan.sizes).to(device) for whole in (inputs, targets)]
    weight = batch_weight(len(own[0]), len(inputs), world_size=world_size) if plan.weighted else 1.0
    model = _seeded_model(plan, plan.seed + rank * plan.seeds_differ).to(device)
    wrapped = _wrapped(model, plan.way, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=plan.learning_rate)
    for _ in range(plan.steps):
        optimizer.zero_grad()
        parts = list(zip(*(rows.tensor_split(plan.micro_batches) for rows in own), strict=True))
        for place, (part, wanted) in enumerate(parts):
            last = place == len(parts) - 1
            if plan.way == "fsdp":
                wrapped.set_requires_gradient_sync(last)
            with nullcontext() if last or plan.way != "ddp" else wrapped.no_sync():
                share = len(part) / len(own[0])  # the mean of means would be wrong where the parts are not equal
                (plan.loss(wrapped(part), wanted) * (weight * share)).backward()
        if plan.way not in ("ddp", "fsdp"):
            average_gradients(model, by=plan.way)
        optimizer.step()
    return {name: _whole(parameter.detach()).cpu() for name, parameter in model.named_parameters()}


def _wrapped(model: nn.Module, way: str, device: torch.device) -> nn.Module:
    if way == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        return fully_shard(model, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))
    return nn.parallel.DistributedDataParallel(model) if way == "ddp" else model


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
