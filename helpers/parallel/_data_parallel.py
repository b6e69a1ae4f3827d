"""Data parallel by hand: the rows of a batch that a rank works on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from helpers.checks import one_of, whole_number
from helpers.parallel import _collectives as collectives


def shard(
    batch: torch.Tensor, rank: int, *, world_size: int, sizes: Sequence[int] | None = None
) -> torch.Tensor:
    """Return the rows of ``batch`` that ``rank`` works on: neighbours, the first ranks one row more
    than the last.

    >>> [shard(torch.arange(7), rank, world_size=3).tolist() for rank in range(3)]
    [[0, 1, 2], [3, 4], [5, 6]]

    ``sizes`` gives each of the ``world_size`` ranks its number of rows instead. Raises ValueError
    for a batch with fewer rows than ranks, for a rank that is not there, and for sizes that do not
    make up the batch.
    """
    one_of("batch", batch, torch.Tensor, "a tensor, its rows first")
    whole_number("rank", rank, at_least=0, at_most=whole_number("world_size", world_size) - 1)
    if len(batch) < world_size:
        raise ValueError(
            f"a batch of {len(batch)} rows cannot give each of {world_size} ranks one: "
            "take a larger batch or fewer ranks"
        )
    if sizes is None:
        return batch[slice(*collectives.chunk(rank, world_size, length=len(batch)))]
    if len(sizes) != world_size or sum(sizes) != len(batch) or min(sizes) < 1:
        raise ValueError(
            f"sizes must be one number of at least 1 a rank, {len(batch)} together; got "
            f"{tuple(sizes)} for {world_size} ranks"
        )
    return batch.split(list(sizes))[rank]
