"""A mixture of experts, and its experts dealt out to ranks: tokens travel to their experts and back, by all_to_all.

A router gives every token its ``chosen`` experts (Shazeer et al., 2017); an expert takes at most ``capacity`` tokens of
each rank, so that all messages have a fixed size, and what comes after is dropped: the expert adds nothing to it
(Lepikhin et al., "GShard", 2020; Fedus, Zoph and Shazeer, "Switch transformers", 2021).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from helpers._checks import number, whole_number
from helpers.parallel._collectives import chunk
from helpers.parallel._counting import CollectiveCounter, count_collectives
from helpers.parallel._data_parallel import shard
from helpers.parallel._differences import Agreement, RankPass, agreement
from helpers.parallel._execution import RankPool, rank_device
from helpers.results import Result

Exchange = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Routing:
    """Which tokens go to which expert: ``chosen`` (tokens, k), the experts of each token, best first.

    ``gates`` (tokens, k) are by what the experts' outputs are multiplied, ``places`` (tokens, k) the place of the token
    in the expert's queue, and ``kept`` (tokens, k) whether that is within the capacity. Lesson 05.
    """

    chosen: torch.Tensor
    gates: torch.Tensor
    places: torch.Tensor
    kept: torch.Tensor


@dataclass(frozen=True)
class ExpertTraffic(Result):
    """What one rank sends to the others in a pass; its own experts' tokens stay. Lesson 05."""

    forward_bytes: int
    backward_bytes: int


@dataclass(frozen=True)
class ExpertLoad(Result):
    """How many tokens chose an expert, over all ranks, and how many of them it dropped. Lesson 05."""

    expert: int
    rank: int
    tokens: int
    dropped: int


@dataclass(frozen=True)
class ExpertRun(Result):
    """A mixture of experts on ranks, forward and back, against the same net in one process.

    ``sent`` is what was counted on rank 0 (every rank sends as much), ``dropped`` how many of all choices found their
    expert full. ``capacity`` is of one expert for the tokens of one rank. Lesson 05.
    """

    ranks: int
    experts: int
    chosen: int
    capacity: int
    agreement: Agreement
    dropped: int
    dropped_share: float
    rank_parameters: tuple[int, ...]
    sent: ExpertTraffic
    loads: tuple[ExpertLoad, ...]


class Experts(nn.Module):
    """``experts`` nets of two layers, ``width`` to ``hidden`` to ``width``, and a router: (n, width) to (n, width).

    A token's output is the sum over its ``chosen`` experts of gate x expert(token): the gate is the router's softmax,
    of more than one expert divided by their sum. ``capacity_factor`` c gives each expert places for c x chosen x n /
    experts tokens, rounded up; None has places for all. Of two tokens the earlier one, and any first choice before a
    second, gets the place. A dropped token's output is 0: what uses the layer adds the tokens to it (a residual).

    Raises TypeError or ValueError for numbers that cannot be. Lesson 05.
    """

    def __init__(
        self, width: int, hidden: int, *, experts: int, chosen: int = 1, capacity_factor: float | None = None
    ) -> None:
        super().__init__()
        self.width, self.hidden = whole_number("width", width), whole_number("hidden", hidden)
        self.experts = whole_number("experts", experts)
        self.chosen = whole_number("chosen", chosen, at_most=self.experts)
        if capacity_factor is not None:
            number("capacity_factor (None drops nothing)", capacity_factor, above=0)
        self.capacity_factor = capacity_factor
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, width, hidden).uniform_(-1, 1) / math.sqrt(width))
        self.down = nn.Parameter(torch.empty(experts, hidden, width).uniform_(-1, 1) / math.sqrt(hidden))

    def capacity(self, tokens: int) -> int:
        """Return how many of ``tokens`` an expert takes at most. Lesson 05."""
        if self.capacity_factor is None:
            return tokens
        places = Fraction(str(self.capacity_factor)) * self.chosen * tokens / self.experts  # 1.1 is 11/10, and no more
        return min(tokens, math.ceil(places))

    def forward(self, tokens: torch.Tensor, *, exchange: tuple[Exchange, Exchange] | None = None) -> torch.Tensor:
        """Return the experts' weighted outputs for ``tokens``, (n, width), which queue for the experts together.

        ``exchange`` is for experts that are elsewhere: what sends (experts, capacity, width) to them and what brings it
        back, as :func:`exchange_of`. Raises ValueError for tokens of another shape. Lesson 05.
        """
        self._check(tokens)
        routing = route(self.router(tokens), chosen=self.chosen, capacity=self.capacity(len(tokens)))
        places = self.capacity(len(tokens))
        row = (routing.chosen * places + routing.places)[routing.kept]  # in which row of all queues each choice stands
        token = torch.arange(len(tokens), device=tokens.device)[:, None].expand_as(routing.chosen)[routing.kept]
        queues = tokens.new_zeros(self.experts * places, self.width).index_copy(0, row, tokens[token])
        queues = queues.view(self.experts, places, self.width)
        outward, back = exchange or (_stay, _stay)
        answers = back((outward(queues) @ self.up).relu() @ self.down).flatten(0, 1)[row]
        return torch.zeros_like(tokens).index_add(0, token, answers * routing.gates[routing.kept][:, None])

    def part(self, rank: int, *, ranks: int) -> Experts:
        """Return a copy with the experts of ``rank`` alone, experts / ranks neighbours; the router is whole.

        Raises ValueError for experts that do not divide, and for a rank that is not there. Lesson 05.
        """
        _check_experts(self.experts, ranks)
        whole_number("rank", rank, at_least=0, at_most=ranks - 1)
        owned = slice(*chunk(rank, ranks, length=self.experts))
        own = copy.deepcopy(self)
        own.up, own.down = (nn.Parameter(weights.detach()[owned].clone()) for weights in (self.up, self.down))
        return own

    def _check(self, tokens: torch.Tensor) -> None:
        if tokens.ndim != 2 or tokens.shape[1] != self.width or not len(tokens):
            raise ValueError(f"tokens have the shape {tuple(tokens.shape)}; give (n, {self.width}), n above 0, such as "
                             "tokens.flatten(0, -2)")  # fmt: skip
        if tokens.dtype != self.up.dtype:
            raise ValueError(
                f"tokens are {tokens.dtype} and the experts {self.up.dtype}; give tokens.to({self.up.dtype})"
            )


def _check_experts(experts: int, ranks: int) -> None:
    """Raise ValueError unless each of ``ranks`` gets equally many of ``experts``, at least one."""
    whole_number("ranks", ranks)
    if experts % ranks:
        raise ValueError(f"{experts} experts do not divide among {ranks} ranks; take a multiple of {ranks}")


def route(logits: torch.Tensor, *, chosen: int, capacity: int) -> Routing:
    """Return where tokens with the router's ``logits``, (tokens, experts), go: see :class:`Experts`.

    Only ``gates`` has a gradient; a choice by itself has none. Raises ValueError for logits of another shape, and for
    more choices than experts.
    """
    if logits.ndim != 2 or not 1 <= chosen <= logits.shape[1]:
        raise ValueError(f"{chosen} of the experts cannot be chosen by logits of shape {tuple(logits.shape)}; give "
                         "(tokens, experts), and at least one choice and at most as many as experts")  # fmt: skip
    probabilities = logits.softmax(-1)
    gates, experts = probabilities.topk(chosen, dim=-1)
    if chosen > 1:
        gates = gates / gates.sum(-1, keepdim=True)
    # The queue of an expert: all first choices in the order of the tokens, then all second ones, and so on.
    order = nn.functional.one_hot(experts.T.reshape(-1), logits.shape[-1])
    places = ((order.cumsum(0) - 1) * order).sum(-1).view(chosen, len(logits)).T
    return Routing(experts, gates, places, places < capacity)


def exchange_of(group: dist.ProcessGroup | None = None) -> tuple[Exchange, Exchange]:
    """Return what takes a rank's queues to the experts' ranks, and what brings the answers back: an all_to_all each.

    The first makes of (experts, capacity, width) the rank's own experts' queues of all ranks, (experts / p, p x
    capacity, width); the second undoes it. Gradients go the opposite way.
    """
    ranks = dist.get_world_size(group)

    def outward(queues: torch.Tensor) -> torch.Tensor:
        arrived = _AllToAll.apply(queues, group)  # p blocks of (experts / p, capacity, width), one from each rank
        return torch.cat(arrived.chunk(ranks), dim=1)

    def back(answers: torch.Tensor) -> torch.Tensor:
        return _AllToAll.apply(torch.cat(answers.chunk(ranks, dim=1)), group)

    return outward, back


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, blocks: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        ctx.group = group
        arrived = torch.empty_like(blocks, memory_format=torch.contiguous_format)
        dist.all_to_all_single(arrived, blocks.contiguous(), group=group)
        return arrived

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _AllToAll.forward(ctx, gradient, ctx.group), None


def model_expert_traffic(net: Experts, *, tokens: int, ranks: int) -> ExpertTraffic:
    """Return what a rank with ``tokens`` tokens sends: twice (p - 1) / p of its queues, in either pass.

    The queues are experts x capacity x width numbers, full or not: their size is the same for any tokens, and grows
    with the capacity. Raises ValueError for experts that do not divide. Lesson 05.
    """
    _check_experts(net.experts, ranks)
    tokens = whole_number("tokens", tokens)
    queues = net.experts * net.capacity(tokens) * net.width * net.up.element_size()
    sent = 2 * (queues - queues // ranks)
    return ExpertTraffic(sent, sent)


def compare_experts(
    ranks: RankPool,
    net: Experts,
    tokens: torch.Tensor,
    *,
    exchange: Callable[[], tuple[Exchange, Exchange]] = exchange_of,
    tolerance: float = 1e-5,
    timeout_s: float = 120.0,
) -> ExpertRun:
    """Return how ``net`` on ``ranks``, its experts dealt out and ``tokens`` shared, compares with ``net`` here.

    Each rank has equally many of the tokens, (n, width), which queue by themselves, here as there. The gradients are
    those of a sum of the outputs with fixed weights, which tells every element apart. An expert's gradient is whole
    where the expert is, for all its tokens came there; the router's is summed over the ranks. ``exchange`` replaces
    :func:`exchange_of`, to see a wrong one.

    Raises ValueError for experts or tokens that do not divide among the ranks. Lesson 05.
    """
    _check_experts(net.experts, ranks.world_size)
    net._check(tokens)
    if len(tokens) % ranks.world_size:
        raise ValueError(f"{len(tokens)} tokens do not divide among {ranks.world_size} ranks; give a multiple of "
                         f"{ranks.world_size}")  # fmt: skip
    weights = torch.linspace(-1, 1, tokens.numel(), dtype=tokens.dtype, device=tokens.device).view_as(tokens)
    whole = tokens.detach().clone().requires_grad_()
    names = ("router.weight", "up", "down", "tokens")
    leaves = [net.router.weight, net.up, net.down, whole]
    expected = torch.cat([net(part) for part in whole.chunk(ranks.world_size)])
    wanted = dict(zip(names, torch.autograd.grad(expected, leaves, weights), strict=True))
    passes = ranks.run(_run, net, tokens.detach(), weights, exchange, timeout_s=timeout_s)
    gradients = {name: torch.cat([own.gradients[name] for own in passes]) for name in names[1:]}
    gradients["router.weight"] = sum(own.gradients["router.weight"] for own in passes)
    queued, dropped = (sum(own.counted[name] for own in passes) for name in ("queued", "dropped"))
    each_rank = net.experts // ranks.world_size
    return ExpertRun(
        ranks=ranks.world_size,
        experts=net.experts,
        chosen=net.chosen,
        capacity=net.capacity(len(tokens) // ranks.world_size),
        agreement=agreement([torch.cat([own.outputs for own in passes])], expected, gradients, wanted,
                            tolerance=tolerance),
        dropped=int(dropped.sum()),
        dropped_share=int(dropped.sum()) / int(queued.sum()),
        rank_parameters=tuple(own.counted["parameters"] for own in passes),
        sent=passes[0].counted["sent"],
        loads=tuple(ExpertLoad(expert, expert // each_rank, int(queued[expert]), int(dropped[expert]))
                    for expert in range(net.experts)),
    )  # fmt: skip


def _stay(queues: torch.Tensor) -> torch.Tensor:
    return queues


# What runs on a rank.


def _run(
    rank: int, world_size: int, net: Experts, tokens: torch.Tensor, weights: torch.Tensor,
    exchange: Callable[[], tuple[Exchange, Exchange]],
) -> RankPass:  # fmt: skip
    device = rank_device()
    own = net.part(rank, ranks=world_size).to(device)
    rank_tokens = shard(tokens, rank, world_size=world_size).to(device).requires_grad_()
    with count_collectives() as forward:
        outputs = own(rank_tokens, exchange=exchange())
    leaves = {"router.weight": own.router.weight, "up": own.up, "down": own.down, "tokens": rank_tokens}
    with count_collectives() as backward:
        found = torch.autograd.grad(outputs, list(leaves.values()),
                                    shard(weights, rank, world_size=world_size).to(device))  # fmt: skip
    routing = route(own.router(rank_tokens), chosen=net.chosen, capacity=net.capacity(len(rank_tokens)))
    queued = torch.bincount(routing.chosen.flatten(), minlength=net.experts)
    dropped = torch.bincount(routing.chosen[~routing.kept], minlength=net.experts)
    sent = ExpertTraffic(_sent_bytes(forward, world_size), _sent_bytes(backward, world_size))
    counted = {"parameters": sum(parameter.numel() for parameter in own.parameters()), "queued": queued.cpu(),
               "dropped": dropped.cpu(), "sent": sent}  # fmt: skip
    gradients = {name: gradient.cpu() for name, gradient in zip(leaves, found, strict=True)}
    return RankPass(outputs.detach().cpu(), gradients, counted)


def _sent_bytes(counter: CollectiveCounter, ranks: int) -> int:
    """Return what left this rank in all_to_alls: all of the buffers but the part that is its own."""
    size_bytes = counter.counts.size_bytes("all_to_all")
    return size_bytes - size_bytes // ranks
