"""The collectives of one group of ranks as rings of real messages, over a link of their own.

Lesson 07.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from helpers.links import Link
from helpers.parallel import collective
from helpers.studies.data_parallel._execution import execute

NODES = ((0, 1), (2, 3))  # the ranks of each node; those at the same position are partners


class Ring:
    """A ring through the ranks of ``group``, by default all of them, whose messages travel over
    ``link``.

    Each method sends real messages and sleeps until the link would have carried them; without a
    link it does not sleep. ``sent_bytes`` counts the bytes that this rank has sent. Tensors are
    1-D, and their length is a multiple of the number of ranks where a share is taken. Raises
    ValueError for another length. Lesson 07.
    """

    def __init__(self, link: Link | None = None, group: dist.ProcessGroup | None = None) -> None:
        self.link, self.group, self.sent_bytes = link, group, 0

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's share, one of as many as there are ranks, of the sum of their tensors.

        Lesson 07.
        """
        return self._run("reduce_scatter", tensor, len(tensor))

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of the tensors of all ranks of the ring. Lesson 07."""
        return self._run("all_reduce", tensor, len(tensor))

    def all_gather(self, share: torch.Tensor) -> torch.Tensor:
        """Return the shares of all ranks of the ring, one after the other in the order of the
        ranks.

        Lesson 07.
        """
        return self._run("all_gather", share, len(share) * dist.get_world_size(self.group))

    def _run(self, operation: str, tensor: torch.Tensor, length: int) -> torch.Tensor:
        ranks = dist.get_world_size(self.group)
        if length % ranks and operation != "all_reduce":
            raise ValueError(
                f"{length} elements cannot be divided among {ranks} ranks; give a multiple of "
                f"{ranks}"
            )
        plan = collective(
            operation, "ring", world_size=ranks, length=length, element_bytes=tensor.element_size()
        )
        self.sent_bytes += plan.ranks()[dist.get_rank(self.group)].sent_bytes
        return execute(plan, tensor, link=self.link, group=self.group)


@contextmanager
def node_rings(fast: Link | None = None, slow: Link | None = None) -> Iterator[tuple[Ring, Ring]]:
    """Give each of four ranks the ring inside its node, over ``fast``, and the ring of its
    partners, over ``slow``.

    Ranks 0 and 1 are one node, 2 and 3 the other. The partners are 0 and 2, and 1 and 3. Every rank
    takes part in making every group, as ``dist.new_group`` demands. Lesson 07.
    """
    groups = {ranks: dist.new_group(ranks) for ranks in (*NODES, *zip(*NODES, strict=True))}
    rank = dist.get_rank()
    inside, outside = (groups[ranks] for ranks in groups if rank in ranks)
    yield Ring(fast, inside), Ring(slow, outside)
    dist.barrier()  # no rank may still be sending; where one has raised, the pool ends them all
    for group in (inside, outside):
        dist.destroy_process_group(group)
