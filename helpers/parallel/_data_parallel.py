"""Data parallel by hand: the rows of a batch that a rank works on."""

from __future__ import annotations

import torch

from helpers.checks import one_of, whole_number


def shard(batch: torch.Tensor, rank: int, *, world_size: int) -> torch.Tensor:
    """Return the rows of ``batch`` that ``rank`` works on: neighbours, the first ranks one row more
    than the last.

    >>> [shard(torch.arange(7), rank, world_size=3).tolist() for rank in range(3)]
    [[0, 1, 2], [3, 4], [5, 6]]

    There are ``world_size`` ranks. Raises ValueError for a batch with fewer rows than ranks, and
    for a rank that is not there.
    """
    one_of("batch", batch, torch.Tensor, "a tensor, its rows first")
    whole_number("rank", rank, at_least=0, at_most=whole_number("world_size", world_size) - 1)
    if len(batch) < world_size:
        raise ValueError(
            f"a batch of {len(batch)} rows cannot give each of {world_size} ranks one: "
            "take a larger batch or fewer ranks"
        )
    return batch.tensor_split(world_size)[rank]
