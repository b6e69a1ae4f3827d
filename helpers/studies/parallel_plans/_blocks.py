"""Stacks of feed-forward blocks, the smallest models that tensor ranks and stages can cut."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from helpers.checks import whole_number


def make_blocks(depth: int, width: int, hidden: int) -> nn.Sequential:
    """Return ``depth`` feed-forward blocks in a row, each ``width`` to ``hidden`` elements, a ReLU,
    and back.

    A block is an nn.Sequential of ``up``, ``act`` and ``down``. Inputs and outputs have the shape
    (..., ``width``). On the meta device, ``with torch.device("meta")``, the blocks have shapes and
    no values. Raises ValueError or TypeError for a size that is not a whole number above 0.

    >>> [name for name, _ in make_blocks(2, 4, 16).named_parameters()][:2]
    ['0.up.weight', '0.up.bias']

    Lesson 06.
    """
    for name, size in (("depth", depth), ("width", width), ("hidden", hidden)):
        whole_number(name, size)
    return nn.Sequential(*(_block(width, hidden) for _ in range(depth)))


def _block(width: int, hidden: int) -> nn.Sequential:
    up, down = nn.Linear(width, hidden), nn.Linear(hidden, width)
    return nn.Sequential(OrderedDict(up=up, act=nn.ReLU(), down=down))
