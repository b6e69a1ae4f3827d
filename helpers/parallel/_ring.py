"""Ring attention: a sequence split over ranks, each with its own queries, while keys and values go round the ring.

No rank ever holds the whole sequence, nor a row of attention weights: what a block of keys adds is merged into what the
blocks before it gave, by the softmax's running sum (Milakov and Gimelshein, 2018; FlashAttention: Dao et al., 2022;
Liu, Zaharia and Abbeel, "Ring attention with blockwise transformers", 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from helpers._checks import batch_shape, whole_number
from helpers.parallel._collectives import chunk
from helpers.parallel._counting import CollectiveCounter, count_collectives
from helpers.parallel._differences import Agreement, RankPass, agreement
from helpers.parallel._execution import RankPool, rank_device
from helpers.results import Result

_NAMES = ("query", "key", "value")

# What a merge takes and returns: the blocks' output so far and the logarithm of its softmax sum, then the next block's.
Merge = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class RingTraffic(Result):
    """What one rank sends in a pass: to its neighbour alone, whatever the number of ranks. Lesson 05."""

    forward_bytes: int
    backward_bytes: int


@dataclass(frozen=True)
class RingRun(Result):
    """Ring attention on ranks, forward and back, against PyTorch's attention in one process.

    ``sent`` is what was counted on rank 0 (every rank sends as much). ``blocks`` is how many blocks of scores each rank
    computed in the forward pass: with a causal mask the last rank has all to do, and the first waits. Lesson 05.
    """

    ranks: int
    causal: bool
    agreement: Agreement
    sent: RingTraffic
    blocks: tuple[int, ...]


def ring_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    causal: bool = False,
    group: dist.ProcessGroup | None = None,
    merge: Merge | None = None,
) -> torch.Tensor:
    """Return softmax(query key^T / sqrt(d)) value for this rank's queries and the keys and values of all ranks.

    All three are (batch, heads, tokens, d) with this rank's part of the sequence, in rank order and equally long on all
    ranks of ``group``, each of which calls this; the result is as long. ``causal`` hides later tokens. Sums are float32
    for shorter types. ``merge`` replaces :func:`merge_blocks`, to see a wrong one. Gradients go round the ring with the
    keys and values that they belong to.

    Raises ValueError for tensors of other shapes, and for parts of the sequence that are not equally long.
    """
    _check_shapes(query, key, value)
    _check_lengths(query, group)
    return _Ring.apply(query, key, value, causal, group, merge or merge_blocks)


def merge_blocks(
    output: torch.Tensor, log_sum: torch.Tensor, more: torch.Tensor, more_log_sum: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention over two sets of keys from the attention over each, and the logarithm of its softmax's sum.

    Outputs are (..., tokens, d), ``log_sum`` is log sum exp(scores) over a set's keys, (..., tokens, 1). Each output
    counts by its share of the sum of both; logarithms keep exp from overflowing. A set of no keys has -inf; of two such
    sets there is no attention: NaN.
    """
    both = torch.logaddexp(log_sum, more_log_sum)
    return output * (log_sum - both).exp() + more * (more_log_sum - both).exp(), both


def split_sequence(tokens: torch.Tensor, rank: int, *, ranks: int, dim: int = 2) -> torch.Tensor:
    """Return the part of the sequence, dimension ``dim`` of ``tokens``, that ``rank`` of ``ranks`` has.

    Raises ValueError for a sequence that does not divide, and for a rank or a dimension that is not there.
    """
    whole_number("ranks", ranks)
    if not -tokens.ndim <= dim < tokens.ndim:
        raise ValueError(f"tokens of shape {tuple(tokens.shape)} have no dimension {dim}; give dim, the sequence's")
    length = tokens.shape[dim]
    whole_number("rank", rank, at_least=0, at_most=ranks - 1)
    if not length or length % ranks:
        raise ValueError(f"a sequence of {length} tokens does not divide among {ranks} ranks; pad it to "
                         f"{ranks * max(1, math.ceil(length / ranks))}, or take other ranks")  # fmt: skip
    start, stop = chunk(rank, ranks, length=length)
    return tokens.narrow(dim, start, stop - start)


def model_ring_traffic(shape: Sequence[int], *, ranks: int, itemsize: int = 4) -> RingTraffic:
    """Return what a rank sends for keys of ``shape``, (batch, heads, tokens, d) of the whole sequence.

    A block of keys is n = itemsize x batch x heads x tokens / p x d bytes. Forward, keys and values take p - 1 steps:
    2 (p - 1) n. Back they do so again, and their gradients (of float32 at least) take all p steps, home: 2 (p - 1) n +
    2 p n. On one rank nothing is sent. Raises TypeError or ValueError for another shape, and ValueError for a sequence
    that does not divide. Lesson 05.
    """
    itemsize, sizes = whole_number("itemsize", itemsize), batch_shape(shape)
    if len(sizes) != 4:
        raise ValueError(f"keys have the shape (batch, heads, tokens, d), four sizes; got {sizes}")
    part = split_sequence(torch.empty(sizes, device="meta"), 0, ranks=ranks)
    block, gradient = part.numel() * itemsize, part.numel() * max(itemsize, 4)
    if ranks == 1:
        return RingTraffic(0, 0)
    forward = 2 * (ranks - 1) * block
    return RingTraffic(forward, forward + 2 * ranks * gradient)


def compare_ring_attention(
    ranks: RankPool,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    causal: bool = False,
    merge: Merge | None = None,
    tolerance: float = 1e-5,
    timeout_s: float = 120.0,
) -> RingRun:
    """Return how ring attention on ``ranks`` compares with ``scaled_dot_product_attention`` here, forward and back.

    The tensors, (batch, heads, tokens, d), have the whole sequence; each rank gets its part. The gradients are those of
    a sum of the outputs with fixed weights, which tells every element apart. Raises ValueError for tensors of other
    shapes, and for a sequence that does not divide. Lesson 05.
    """
    _check_shapes(query, key, value)
    split_sequence(query, 0, ranks=ranks.world_size)
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (query, key, value)]
    weights = torch.linspace(-1, 1, query.numel(), dtype=query.dtype, device=query.device).view_as(query)
    expected = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
    wanted = dict(zip(_NAMES, torch.autograd.grad(expected, leaves, weights), strict=True))
    passes = ranks.run(_run, [tensor.detach() for tensor in leaves], weights, causal, merge, timeout_s=timeout_s)
    gradients = {name: torch.cat([own.gradients[name] for own in passes], dim=2) for name in _NAMES}
    outputs = torch.cat([own.outputs for own in passes], dim=2)
    return RingRun(
        ranks=ranks.world_size,
        causal=causal,
        agreement=agreement([outputs], expected, gradients, wanted, tolerance=tolerance),
        sent=passes[0].counted["sent"],
        blocks=tuple(sum(_sees(rank, source, causal) for source in range(len(passes))) for rank in range(len(passes))),
    )


def _check_shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    if query.ndim != 4 or key.shape != query.shape or value.shape != query.shape:
        raise ValueError("query, key and value are (batch, heads, tokens, d), all of one shape; got "
                         f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}")  # fmt: skip


def _check_lengths(query: torch.Tensor, group: dist.ProcessGroup | None) -> None:
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError("ring attention runs on ranks: call it in a function that Ranks(...).run or torchrun starts")
    shapes = torch.empty(dist.get_world_size(group), 4, dtype=torch.int64, device=query.device)
    dist.all_gather(list(shapes.unbind()), torch.tensor(query.shape, device=query.device), group=group)
    if (shapes != shapes[0]).any():
        given = ", ".join(str(tuple(shape)) for shape in shapes.tolist())
        raise ValueError(f"the ranks' parts of the sequence have the shapes {given}; give all the same, and pad the "
                         "sequence until it divides")  # fmt: skip


def _sees(rank: int, source: int, causal: bool) -> bool:
    """Whether any query of ``rank`` may look at the keys of ``source``."""
    return not causal or source <= rank


def _scores(query: torch.Tensor, key: torch.Tensor, *, masked: bool) -> torch.Tensor:
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if masked:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool,
        group: dist.ProcessGroup | None, merge: Merge,
    ) -> torch.Tensor:  # fmt: skip
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        wide = torch.promote_types(query.dtype, torch.float32)
        wide_query, block = query.to(wide), torch.stack((key, value))
        output = torch.zeros_like(wide_query)
        log_sum = torch.full_like(wide_query[..., :1], -math.inf)
        for step in range(ranks):
            source = (rank - step) % ranks  # whose keys and values are here now
            if _sees(rank, source, causal):
                scores = _scores(wide_query, block[0].to(wide), masked=causal and source == rank)
                sums = scores.logsumexp(-1, keepdim=True)
                output, log_sum = merge(output, log_sum, (scores - sums).exp() @ block[1].to(wide), sums)
            if step < ranks - 1:
                block = _passed_on(block, group)
        ctx.save_for_backward(query, key, value, output, log_sum)
        ctx.causal, ctx.group = causal, group
        return output.to(query.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        query, key, value, output, log_sum = ctx.saved_tensors
        rank, ranks = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        gradient, wide_query, block = gradient.to(output), query.to(output), torch.stack((key, value))
        scale = 1 / math.sqrt(query.shape[-1])
        row = (gradient * output).sum(-1, keepdim=True)  # FlashAttention's D: what the softmax's normalisation takes
        query_gradient = torch.zeros_like(output)
        travelling = torch.zeros((2, *output.shape), dtype=output.dtype, device=output.device)
        for step in range(ranks):
            source = (rank - step) % ranks
            if _sees(rank, source, ctx.causal):
                wide_key, wide_value = block.to(output)
                weights = (_scores(wide_query, wide_key, masked=ctx.causal and source == rank) - log_sum).exp()
                scores_gradient = weights * (gradient @ wide_value.transpose(-2, -1) - row) * scale
                query_gradient += scores_gradient @ wide_key
                travelling[0] += scores_gradient.transpose(-2, -1) @ wide_query
                travelling[1] += weights.transpose(-2, -1) @ gradient
            if step < ranks - 1:
                block = _passed_on(block, ctx.group)
            travelling = _passed_on(travelling, ctx.group)  # after the last step they are at home
        key_gradient, value_gradient = travelling.to(key.dtype)
        return query_gradient.to(query.dtype), key_gradient, value_gradient, None, None, None


def _passed_on(block: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Send ``block`` to the next rank of the ring, and return what the rank before sent."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if ranks == 1:
        return block
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    if group is not None:
        after, before = dist.get_global_rank(group, after), dist.get_global_rank(group, before)
    arrived, block = torch.empty_like(block), block.contiguous()
    requests = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, block, after, group), dist.P2POp(dist.irecv, arrived, before, group)]
    )
    for request in requests:
        request.wait()
    return arrived


# What runs on a rank.


def _run(
    rank: int, world_size: int, tensors: Sequence[torch.Tensor], weights: torch.Tensor, causal: bool,
    merge: Merge | None,
) -> RankPass:  # fmt: skip
    def own(whole: torch.Tensor) -> torch.Tensor:
        return split_sequence(whole, rank, ranks=world_size).contiguous().to(rank_device())

    leaves = [own(tensor).requires_grad_() for tensor in tensors]
    with count_collectives() as forward:
        outputs = ring_attention(*leaves, causal=causal, merge=merge)
    with count_collectives() as backward:
        gradients = torch.autograd.grad(outputs, leaves, own(weights))
    sent = RingTraffic(_sent_bytes(forward), _sent_bytes(backward))
    own_gradients = {name: gradient.cpu() for name, gradient in zip(_NAMES, gradients, strict=True)}
    return RankPass(outputs.detach().cpu(), own_gradients, {"sent": sent})


def _sent_bytes(counter: CollectiveCounter) -> int:
    return counter.counts.size_bytes("send")
