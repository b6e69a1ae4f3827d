"""A reader's sum in two levels on four real ranks: its results, its bytes, and its times beside
those of one ring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from helpers.checks import whole_number
from helpers.links import Link
from helpers.results import Record
from helpers.studies.data_parallel._devices import step_times
from helpers.studies.data_parallel._execution import RankPool
from helpers.studies.two_levels._rings import NODES, Ring, node_rings

HierarchicalSum = Callable[[torch.Tensor, Ring, Ring], torch.Tensor]

_RANKS = sum(map(len, NODES))
_ELEMENT_BYTES = torch.float32.itemsize
_TIMEOUT_S = 30.0
_STABLE_SHARE = 0.1  # the two fastest of the repeats agree to this share


class RankSum(Record):
    """The part of a sum in two levels that is left on one rank, and the bytes that the rank has
    sent inside its node and outside.

    ``smallest`` and ``largest`` are the least and the greatest element of ``elements``. Lesson 07.
    """

    rank: int
    elements: int
    smallest: float
    largest: float
    inside_bytes: int
    outside_bytes: int


class ComparedAllReduces(Record):
    """The times of one ring through all ranks and of two levels, for a tensor of ``size_bytes``.

    The slowest rank counts, in the fastest of the repeats. ``stable`` says whether the two fastest
    agree. Lesson 07.
    """

    size_bytes: int
    ring_s: float
    two_levels_s: float
    ratio: float
    stable: bool


def sum_on_ranks(
    ranks: RankPool, hierarchical_all_reduce: HierarchicalSum, elements: int
) -> tuple[RankSum, ...]:
    """Return the sums that ``hierarchical_all_reduce`` leaves on each of four ``ranks``, of vectors
    of ones, tens, and so on.

    It is called as ``hierarchical_all_reduce(tensor, inside, outside)``, with a tensor of so many
    float32 ``elements`` and the :class:`Ring` of each level. Nothing sleeps. Raises ValueError
    unless there are four ranks, and :class:`helpers.ranks.RankError` where a rank raises, waits
    forever or returns no 1-D tensor. Lesson 07.
    """
    _refuse_others(ranks)
    return tuple(
        ranks.run(
            _sum, hierarchical_all_reduce, whole_number("elements", elements), timeout_s=_TIMEOUT_S
        )
    )


def compare_all_reduces(
    ranks: RankPool,
    hierarchical_all_reduce: HierarchicalSum,
    sizes_bytes: Sequence[int],
    *,
    fast: Link,
    slow: Link,
    repeats: int = 5,
) -> tuple[ComparedAllReduces, ...]:
    """Return the times of one ring and of ``hierarchical_all_reduce`` for float32 tensors of each
    of ``sizes_bytes``.

    Messages inside a node sleep as long as ``fast`` would need, those between the nodes as long as
    ``slow`` would. In the ring each rank has one neighbour in the other node, so that all its steps
    last as long as ``slow`` needs. Both take turns, ``repeats`` times. Raises ValueError unless
    there are four ``ranks``. Lesson 07.
    """
    _refuse_others(ranks)
    counts = [whole_number("size_bytes", size) // _ELEMENT_BYTES for size in sizes_bytes]
    repeats = whole_number("repeats", repeats, at_least=2)
    times = ranks.run(
        _times,
        hierarchical_all_reduce,
        counts,
        fast,
        slow,
        repeats,
        timeout_s=_TIMEOUT_S * len(counts),
    )
    return tuple(
        _compare_times(_ELEMENT_BYTES * count, [rank_times[index] for rank_times in times])
        for index, count in enumerate(counts)
    )


def _refuse_others(ranks: RankPool) -> None:
    if ranks.world_size != _RANKS:
        raise ValueError(
            f"two nodes of two need {_RANKS} ranks, not {ranks.world_size}: Ranks({_RANKS})"
        )


def _sum(
    rank: int, _world_size: int, hierarchical_all_reduce: HierarchicalSum, elements: int
) -> RankSum:
    with node_rings() as (inside, outside):
        total = hierarchical_all_reduce(torch.full((elements,), 10.0**rank), inside, outside)
        if not isinstance(total, torch.Tensor) or total.dim() != 1:
            description = (
                f"of {total.dim()} dimensions"
                if isinstance(total, torch.Tensor)
                else f"a {type(total).__name__}"
            )
            raise TypeError(
                "hierarchical_all_reduce must return a 1-D tensor, as inside.all_gather does, not "
                f"{description}"
            )
        least, most = total.aminmax()
        return RankSum(
            rank, len(total), least.item(), most.item(), inside.sent_bytes, outside.sent_bytes
        )


def _times(
    rank: int,
    _world_size: int,
    hierarchical_all_reduce: HierarchicalSum,
    counts: Sequence[int],
    fast: Link,
    slow: Link,
    repeats: int,
) -> list[list[list[float]]]:
    """Return, for each count of elements and each repeat, this rank's seconds of the ring and of
    the two levels.
    """
    with node_rings(fast, slow) as (inside, outside):
        programs = (
            Ring(slow).all_reduce,
            lambda tensor: hierarchical_all_reduce(tensor, inside, outside),
        )
        return [_turns_s(programs, torch.full((count,), 10.0**rank), repeats) for count in counts]


def _turns_s(
    programs: Sequence[Callable[[torch.Tensor], object]], tensor: torch.Tensor, repeats: int
) -> list[list[float]]:
    """Return the seconds of each program in each of ``repeats`` rounds, after a round that also
    connects the ranks.
    """
    calls = [partial(program, tensor) for program in programs]
    rounds = []
    for _ in range(1 + repeats):
        rounds.append([step_times(call, repeats=1, warm_ups=0)[0] for call in calls])
    return rounds[1:]


def _compare_times(size_bytes: int, times: list[list[list[float]]]) -> ComparedAllReduces:
    """Return the comparison of one size from the times of each rank: a pair for each repeat."""
    # (ranks, repeats, 2) -> (2, repeats), the fastest repeat first
    ring, two_levels = np.sort(np.max(times, axis=0), axis=0).T.tolist()
    stable = all(column[1] <= (1 + _STABLE_SHARE) * column[0] for column in (ring, two_levels))
    return ComparedAllReduces(size_bytes, ring[0], two_levels[0], ring[0] / two_levels[0], stable)
