"""Nodes of a few real ranks, whose groups sum over links that sleep, and what each link has
carried.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from helpers.checks import whole_number
from helpers.links import Link, require_link
from helpers.studies.two_levels import Ring


class Wires:
    """The links of a rank among nodes of ``ranks_per_node`` neighbouring ranks: ``node`` within
    one, ``port`` beyond.

    Made on a rank, in a function that ``Ranks(...).run`` starts. ``node_bytes`` and ``port_bytes``
    count what this rank has sent over each link. Raises TypeError for what is no link. Lesson 08.

    >>> wires = Wires(ranks_per_node=2, node=Link(200e6), port=Link(10e6))  # doctest: +SKIP
    >>> total = wires.all_reduce(torch.ones(4), mesh.get_group("dp"))  # doctest: +SKIP
    """

    def __init__(self, *, ranks_per_node: int, node: Link, port: Link) -> None:
        self.ranks_per_node = whole_number("ranks_per_node", ranks_per_node)
        self.node, self.port = require_link("node", node), require_link("port", port)
        self.node_bytes = self.port_bytes = 0

    def all_reduce(self, tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """Return the sum of ``tensor``, 1-D, over the ranks of ``group``, all of which call it.

        The ring's real messages sleep as long as their link would need. Raises ValueError for a
        group with several ranks in a node and others beyond it, because that is a sum in two
        levels. Lesson 08.
        """
        members = dist.get_process_group_ranks(group)
        nodes = {rank // self.ranks_per_node for rank in members}
        if 1 < len(nodes) < len(members):
            raise ValueError(
                f"ranks {members} have neighbours in a node of {self.ranks_per_node} and others "
                "beyond it; sum inside the nodes first and then between them, in two groups"
            )
        in_node = len(nodes) == 1
        ring = Ring(self.node if in_node else self.port, group)
        total = ring.all_reduce(tensor)
        if in_node:
            self.node_bytes += ring.sent_bytes
        else:
            self.port_bytes += ring.sent_bytes
        return total
