"""A memory that holds a part of a file: what is there, and what comes from the disk."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from helpers.checks import boolean, members, whole_number
from helpers.studies._paper import (
    COMPUTING,
    DATA,
    EMPTY,
    QUIET,
    SENDING,
    arrow,
    box,
    keys,
    paper,
    tint,
    write,
)

_CELL_IN, _LEFT_IN, _MEMORY_IN, _FILE_IN, _KEYS_IN = 0.62, 1.05, 0.42, 1.5, 5.0


def draw_window(layers: int, kept: Sequence[int], *, used: int, read: bool) -> Figure:
    """Return a file of ``layers``, and above it the memory with those ``kept``: the one used
    longest ago first.

    ``used`` is the layer in use; with ``read`` an arrow says that it came from the disk. Raises
    TypeError and ValueError for layers that the file does not have, twice the same, or a ``used``
    that is not kept. Lesson 12.
    """
    boolean("read", read)
    whole_number("layers", layers, at_most=16)
    kept = [
        whole_number(f"kept[{slot}]", layer, at_least=0, at_most=layers - 1)
        for slot, layer in enumerate(members("kept", kept, "layers"))
    ]
    if len(set(kept)) < len(kept) or used not in kept:
        raise ValueError(
            f"kept is {kept} and used is {used}; give each layer once, and the one in use among "
            "them"
        )
    drawn, axes = paper(max(_LEFT_IN + layers * _CELL_IN, _KEYS_IN) + 0.2, 2.35, title="")

    def left(slot: int) -> float:
        return _LEFT_IN + slot * _CELL_IN

    write(axes, _LEFT_IN - 0.15, _MEMORY_IN + 0.21, "memory", ha="right", bold=True)
    write(axes, _LEFT_IN - 0.15, _FILE_IN + 0.21, "file", ha="right", bold=True)
    for slot, layer in enumerate(kept):
        box(
            axes,
            left(slot) + 0.03,
            _MEMORY_IN,
            _CELL_IN - 0.06,
            0.42,
            str(layer),
            bold=layer == used,
            colour=COMPUTING if layer == used else DATA,
        )
    for layer in range(layers):
        there = layer in kept
        box(
            axes,
            left(layer) + 0.03,
            _FILE_IN,
            _CELL_IN - 0.06,
            0.42,
            str(layer),
            colour=tint(DATA, 0.6) if there else EMPTY,
        )
    if read:
        at = left(kept.index(used)) + _CELL_IN / 2
        arrow(axes, (left(used) + _CELL_IN / 2, _FILE_IN - 0.03), (at, _MEMORY_IN + 0.46))
    write(
        axes,
        _LEFT_IN,
        _MEMORY_IN - 0.2,
        "used longest ago: goes next",
        ha="left",
        size=10,
        colour=QUIET,
    )
    keys(
        axes,
        0.15,
        2.05,
        {
            "in use": (COMPUTING, "none"),
            "in memory": (DATA, "none"),
            "on disk only": (EMPTY, "none"),
            "read": (SENDING, "none"),
        },
    )
    return drawn
