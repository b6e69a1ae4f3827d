"""AlexNet's two towers on two ranks: what each keeps, what they exchange, and that together they are the whole net.

A rank has one tower: its rows of every weight. Where a layer reads all towers (``AlexNet.CROSSING``), and for the
logits, the ranks gather what each has; everywhere else they do not hear of each other (Krizhevsky et al., 2012,
section 3.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from helpers._checks import whole_number
from helpers.models import AlexNet, TowerNorm
from helpers.parallel._collectives import chunk
from helpers.parallel._counting import CollectiveCounter, count_collectives
from helpers.parallel._differences import Agreement, Loss, RankPass, agreement, gradients_of
from helpers.parallel._execution import RankPool, rank_device
from helpers.parallel._footprint import OptimizerFactory, number_type, state_bytes, without_values
from helpers.results import Result

# "A single GTX 580 GPU has only 3GB of memory" (section 3.2); the optimizer and batches of 128 are those of section 5.
CARD_BYTES = 3 * 2**30
LOGITS = "logits"

Gather = Callable[[torch.Tensor, str], torch.Tensor]

# On a rank, while compare_towers runs: the ranks that have a tower.
_tower_ranks: ContextVar[dist.ProcessGroup | None] = ContextVar("_tower_ranks", default=None)


def sgd_with_momentum(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer with which AlexNet was trained: one state of the parameters' size. Lesson 05."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


@dataclass(frozen=True)
class TowerLayer(Result):
    """A layer whole and as one of the towers on a rank.

    ``reads`` is "own tower" or "all towers"; ``saved`` is what autograd keeps for the backward pass where this layer is
    the first to save it; ``moved_bytes`` is what all ranks together receive in a forward pass before the
    layer, and at fc8 also after it, the logits. Lesson 05.
    """

    layer: str
    reads: str
    whole_parameter_bytes: int
    rank_parameter_bytes: int
    whole_saved_bytes: int
    rank_saved_bytes: int
    moved_bytes: int


@dataclass(frozen=True)
class TowerModel(Result):
    """AlexNet whole against split by towers, counted from shapes for one batch.

    ``whole_bytes`` and ``rank_bytes`` are parameters, gradients, the optimizer's state and what autograd saves: a step
    needs more at its peak, and its convolutions a workspace. ``..._largest_batch`` is how many images ``card_bytes``
    hold so (0 where the parameters alone are too large). ``moved_bytes`` is the forward pass's, ``returned_bytes`` the
    backward pass's, of the whole batch and all ranks together. Lesson 05.
    """

    towers: int
    batch: int
    parameters: int
    rank_parameters: int
    whole_bytes: int
    rank_bytes: int
    card_bytes: int
    whole_largest_batch: int
    rank_largest_batch: int
    moved_bytes: int
    returned_bytes: int
    layers: tuple[TowerLayer, ...]


@dataclass(frozen=True)
class GatheredBytes(Result):
    """The bytes that all ranks together receive where they gather: before ``layer``, or of the logits. Lesson 05."""

    layer: str
    moved_bytes: int


@dataclass(frozen=True)
class TowerRun(Result):
    """One pass of a batch through the towers on ranks, forward and back, against the whole net in one process.

    ``gathered`` is what was counted on the ranks, in the order in which it happened, and ``moved_bytes`` its sum;
    ``returned_bytes`` were counted in the backward pass. Lesson 05.
    """

    towers: int
    batch: int
    agreement: Agreement
    rank_parameters: tuple[int, ...]
    moved_bytes: int
    returned_bytes: int
    gathered: tuple[GatheredBytes, ...]


class AlexNetTower(nn.Module):
    """The tower of ``model`` that rank ``rank`` has: its rows of every weight, copied, with the layers' names.

    ``gather(values, place)`` returns the values of all towers side by side, (N, ...) to (N, towers x ...) in dimension
    1; ``place`` is the layer that reads them, or ``LOGITS``. By default :func:`gather_towers` on all ranks does it.

    Raises ValueError for a rank that is not there, a net of one tower, and classes that do not divide. Lesson 05.
    """

    def __init__(self, model: AlexNet, rank: int, *, gather: Gather | None = None) -> None:
        super().__init__()
        _check(model)
        if not 0 <= rank < model.towers:
            raise ValueError(f"rank {rank} has no tower: this net has {model.towers}, counted from 0")
        self.crossing, self.gather = model.CROSSING, gather or (lambda values, place: gather_towers(values, place))
        for name, layer in model.named_children():
            self.add_module(name, _own_rows(layer, rank, model.towers))
        self._order = tuple(self._modules)
        self.train(model.training)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of all classes, (N, classes), of images (N, 3, size, size), on every rank. Lesson 05."""
        x = images
        for name in self._order:
            if name in self.crossing:
                x = self.gather(x, name)
            x = getattr(self, name)(x)
        return self.gather(x, LOGITS)


def gather_towers(values: torch.Tensor, place: str, *, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Return the values of all ranks side by side in dimension 1; every rank of ``group`` calls it with its own.

    ``group`` is by default all ranks that have a tower: those of :func:`compare_towers`, elsewhere all.
    Back comes the gradient of the rank's own part. Before a layer each rank knows what its own tower makes of the
    values, a term of a sum: the terms are added up (a reduce-scatter). Of the logits every rank computes the same loss,
    so that each has the whole gradient already and takes its part: adding would count it once a rank. Lesson 05.
    """
    return _Gather.apply(values, group or _tower_ranks.get(), place != LOGITS)


def model_towers(
    model: AlexNet,
    *,
    batch: int = 128,
    optimizer: OptimizerFactory | None = sgd_with_momentum,
    card_bytes: int = CARD_BYTES,
) -> TowerModel:
    """Return what each layer of ``model`` keeps whole, and as one tower on a rank, and what the towers move.

    Nothing is run: both go through autograd on meta tensors for a batch of ``batch`` images of the parameters' type.
    ``model`` may be on the meta device itself; what its mode (training or not) saves is counted.

    Raises ValueError for a net of one tower, for classes that do not divide, and where nothing learns. Lesson 05.
    """
    _check(model)
    whole_number("batch", batch)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("no parameter of this net requires a gradient: a step saves nothing, and any batch would fit")
    moved: dict[str, int] = {}

    def gather(values: torch.Tensor, place: str) -> torch.Tensor:
        gathered = torch.cat([values] * model.towers, dim=1)
        moved[place] = (model.towers - 1) * gathered.nbytes
        return gathered

    model = without_values(model)
    tower = AlexNetTower(model, 0, gather=gather)
    saved = {name: _saved_by_layer(net, model, batch) for name, net in (("whole", model), ("rank", tower))}
    owned = {name: _owned_by_layer(net) for name, net in (("whole", model), ("rank", tower))}
    kept = {name: _kept_bytes(net, optimizer) for name, net in (("whole", model), ("rank", tower))}
    last = tuple(model._modules)[-1]
    layers = tuple(
        TowerLayer(name, "all towers" if name in model.CROSSING else "own tower", owned["whole"][name],
                   owned["rank"][name], saved["whole"][name], saved["rank"][name],
                   moved.get(name, 0) + (moved[LOGITS] if name == last else 0))
        for name in model._modules
    )  # fmt: skip
    activations = {name: sum(by_layer.values()) for name, by_layer in saved.items()}
    return TowerModel(
        towers=model.towers,
        batch=batch,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        rank_parameters=sum(parameter.numel() for parameter in tower.parameters()),
        whole_bytes=kept["whole"] + activations["whole"],
        rank_bytes=kept["rank"] + activations["rank"],
        card_bytes=card_bytes,
        whole_largest_batch=max(0, (card_bytes - kept["whole"]) * batch // activations["whole"]),
        rank_largest_batch=max(0, (card_bytes - kept["rank"]) * batch // activations["rank"]),
        moved_bytes=sum(moved.values()),
        returned_bytes=sum(moved.values()) - moved[LOGITS],
        layers=layers,
    )


def compare_towers(
    ranks: RankPool,
    model: AlexNet,
    *,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    loss: Loss,
    gather: Gather = gather_towers,
    tolerance: float = 1e-5,
    timeout_s: float = 120.0,
) -> TowerRun:
    """Return how the towers of ``model``, one a rank, compare with the whole net here on one batch.

    Both go forward and back in evaluation mode, for each rank drops other neurons than the whole net does. Every rank
    has the whole batch; ``loss(outputs, targets)`` is computed on each. Ranks beyond the towers do nothing. ``gather``
    replaces :func:`gather_towers`, to see a wrong one. ``model`` and its gradients stay as they are.

    Raises ValueError for fewer ranks than towers, and classes that do not divide. Lesson 05.
    """
    _check(model)
    if ranks.world_size < model.towers:
        raise ValueError(f"{model.towers} towers need as many ranks, one each; here are {ranks.world_size}")
    training = model.training
    model.eval()
    try:
        outputs, alone = gradients_of(model, inputs, targets, loss)
        passes = ranks.run(_run, model, inputs, targets, loss, gather, timeout_s=timeout_s)[: model.towers]
    finally:
        model.train(training)
    together = {name: torch.cat([own.gradients[name] for own in passes]) for name in alone}
    gathered = tuple(
        GatheredBytes(place, sum(own.counted["received_bytes"][place] for own in passes))
        for place in passes[0].counted["received_bytes"]
    )
    return TowerRun(
        towers=model.towers,
        batch=len(inputs),
        agreement=agreement([own.outputs for own in passes], outputs, together, alone, tolerance=tolerance),
        rank_parameters=tuple(own.counted["parameters"] for own in passes),
        moved_bytes=sum(row.moved_bytes for row in gathered),
        returned_bytes=sum(own.counted["returned_bytes"] for own in passes),
        gathered=gathered,
    )


def _check(model: AlexNet) -> None:
    if not isinstance(model, AlexNet):
        raise TypeError(f"towers are those of helpers.models.AlexNet; got a {type(model).__name__}")
    if model.towers < 2:
        raise ValueError("this AlexNet is one tower, and there is nothing to split; make it with towers=2")
    if model.classes % model.towers:
        raise ValueError(f"{model.classes} classes do not divide among {model.towers} towers; add classes that do not "
                         "occur until they do")  # fmt: skip


def _own_rows(layer: nn.Module, rank: int, towers: int) -> nn.Module:
    """Return a tower's part of ``layer``: the rows of a grouped convolution read the tower's own maps alone."""
    if isinstance(layer, TowerNorm):
        return TowerNorm()
    if not isinstance(layer, nn.Conv2d | nn.Linear):
        return layer
    rows = slice(*chunk(rank, towers, length=len(layer.weight)))
    outputs, inputs = len(layer.weight) // towers, layer.weight.shape[1]
    if isinstance(layer, nn.Conv2d):
        own = nn.Conv2d(inputs, outputs, layer.kernel_size, layer.stride, layer.padding, device="meta")
    else:
        own = nn.Linear(inputs, outputs, device="meta")
    for name, parameter in layer.named_parameters():
        setattr(own, name, nn.Parameter(parameter.detach()[rows].clone(), requires_grad=parameter.requires_grad))
    return own


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: dist.ProcessGroup | None, summed: bool) -> torch.Tensor:
        ctx.group, ctx.summed = group, summed
        ctx.rank, ctx.ranks = dist.get_rank(group), dist.get_world_size(group)
        gathered = [torch.empty_like(values, memory_format=torch.contiguous_format) for _ in range(ctx.ranks)]
        dist.all_gather(gathered, values.contiguous(), group=group)
        return torch.cat(gathered, dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        parts = [part.contiguous() for part in gradient.chunk(ctx.ranks, dim=1)]
        if not ctx.summed:
            return parts[ctx.rank], None, None
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, parts, group=ctx.group)
        return own, None, None


# What a rank keeps, on meta tensors.


def _owned_by_layer(model: nn.Module) -> Counter[str]:
    return Counter({name: sum(parameter.nbytes for parameter in layer.parameters())
                    for name, layer in model.named_children()})  # fmt: skip


def _kept_bytes(model: nn.Module, optimizer: OptimizerFactory | None) -> int:
    """Return the bytes of parameters, gradients and the optimizer's state."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    state = state_bytes(tuple((tuple(parameter.shape), parameter.dtype) for parameter in learning), optimizer)
    return sum(parameter.nbytes for parameter in (*model.parameters(), *learning)) + state


def _saved_by_layer(model: nn.Module, whole: AlexNet, batch: int) -> Counter[str]:
    """Return the bytes that autograd saves in each layer of ``model``, besides parameters, and no storage twice."""
    running, saved = [""], Counter()
    seen = {parameter.untyped_storage()._cdata: parameter.untyped_storage() for parameter in model.parameters()}
    hooks = [layer.register_forward_pre_hook(lambda *_, name=name: running.append(name))
             for name, layer in model.named_children()]  # fmt: skip

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen[storage._cdata] = storage  # kept, so that no other storage comes to lie at this address
            saved[running[-1]] += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(torch.empty((batch, 3, whole.size, whole.size), dtype=number_type(whole), device="meta"))
    for hook in hooks:
        hook.remove()
    return saved


# What runs on a rank.


def _run(
    rank: int, world_size: int, model: AlexNet, inputs: torch.Tensor, targets: torch.Tensor, loss: Loss, gather: Gather
) -> RankPass | None:
    with _first_ranks(model.towers, world_size):
        return _tower_run(rank, model, inputs, targets, loss, gather) if rank < model.towers else None


@contextmanager
def _first_ranks(towers: int, world_size: int) -> Iterator[None]:
    """Make the first ``towers`` ranks those that gather; every rank calls it."""
    if towers == world_size:
        yield
        return
    group = dist.new_group(range(towers))
    before = _tower_ranks.set(group)
    try:
        yield
    finally:
        _tower_ranks.reset(before)
        if dist.get_rank() < towers:
            dist.destroy_process_group(group)


def _tower_run(
    rank: int, model: AlexNet, inputs: torch.Tensor, targets: torch.Tensor, loss: Loss, gather: Gather
) -> RankPass:
    device = rank_device()
    received: dict[str, int] = {}

    def counted(values: torch.Tensor, place: str) -> torch.Tensor:
        with count_collectives() as counter:
            gathered = gather(values, place)
        received[place] = _received_bytes(counter, model.towers)
        return gathered

    tower = AlexNetTower(model, rank, gather=counted).to(device)
    with count_collectives() as counter:
        outputs, gradients = gradients_of(tower, inputs.to(device), targets.to(device), loss)
    counted = {"parameters": sum(parameter.numel() for parameter in tower.parameters()), "received_bytes": received,
               "returned_bytes": _received_bytes(counter, model.towers) - sum(received.values())}  # fmt: skip
    return RankPass(outputs.cpu(), {name: gradient.cpu() for name, gradient in gradients.items()}, counted)


def _received_bytes(counter: CollectiveCounter, ranks: int) -> int:
    """Return what this rank received in all-gathers and reduce-scatters: all of the buffers but its own part."""
    counts = counter.counts
    return sum(counts.size_bytes(name) for name in ("all_gather", "reduce_scatter")) * (ranks - 1) // ranks
