"""Schematic drawings: what a CPU and a GPU spend their area on, and the memory spaces that a GPU's
threads see.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from helpers.plotting._style import STYLE_FILE, figure, ink_on
from helpers.results import Record

PARTS = {
    "control": "#E69F00",
    "arithmetic": "#009E73",
    "core cache": "#56B4E9",
    "shared cache": "#0072B2",
    "memory and links": "#8F8F8F",
}
_ON_CHIP, _OFF_CHIP = "#56B4E9", "#E5BCD3"
_THREADS, _BLOCKS = 4, 2  # drawn
_COLUMNS = (
    (5.15, "where it lies"),
    (7.0, "lives as long as"),
    (8.75, "a thread may"),
    (10.2, "the host may"),
)


class Die(Record):
    """A processor's area as it is drawn: shares that add up to 1, in ``rows`` x ``columns`` cores.

    ``units`` (rows, columns) are the arithmetic units in a core. Lesson 01.
    """

    name: str
    rows: int
    columns: int
    units: tuple[int, int]
    control_share: float
    arithmetic_share: float
    core_cache_share: float
    shared_cache_share: float
    memory_and_links_share: float

    def shares(self) -> dict[str, float]:
        """Return the share of the area by part, in the order of the legend."""
        values = (
            self.control_share,
            self.arithmetic_share,
            self.core_cache_share,
            self.shared_cache_share,
            self.memory_and_links_share,
        )
        return dict(zip(PARTS, values, strict=True))


# A drawing, not a measurement: no processor has exactly these shares.
SCHEMATIC_DIES = (
    Die(
        "CPU: few cores, each strong",
        2,
        2,
        (2, 2),
        control_share=0.20,
        arithmetic_share=0.15,
        core_cache_share=0.15,
        shared_cache_share=0.35,
        memory_and_links_share=0.15,
    ),
    Die(
        "GPU: many cores, each simple",
        8,
        2,
        (2, 16),
        control_share=0.06,
        arithmetic_share=0.62,
        core_cache_share=0.10,
        shared_cache_share=0.10,
        memory_and_links_share=0.12,
    ),
)


class MemorySpace(Record):
    """A memory space of CUDA: ``scope`` is who sees one instance ("thread", "block" or "grid"), the
    rest is text.

    Lesson 01.
    """

    name: str
    scope: str
    on_chip: bool
    place: str
    lifetime: str
    thread_may: str
    host_may: str


# Source: NVIDIA, CUDA C++ Best Practices Guide, table "Salient Features of Device Memory"; who may
# write constant memory from the host: CUDA C++ Programming Guide, cudaMemcpyToSymbol.
MEMORY_SPACES = (
    MemorySpace("register", "thread", True, "on the chip", "the thread", "read, write", "nothing"),
    MemorySpace("local", "thread", False, "device memory", "the thread", "read, write", "nothing"),
    MemorySpace("shared", "block", True, "on the chip", "the block", "read, write", "nothing"),
    MemorySpace(
        "constant", "grid", False, "device memory", "the allocation", "read", "read, write"
    ),
    MemorySpace("texture", "grid", False, "device memory", "the allocation", "read", "read, write"),
    MemorySpace(
        "global", "grid", False, "device memory", "the allocation", "read, write", "read, write"
    ),
)


def draw_dies() -> Figure:
    """Return one square a die of ``SCHEMATIC_DIES``, in which each part's area is its share; cores,
    and the units in them, are outlined.

    The shares are a drawing's, not a processor's, and the title says so. Lesson 01.
    """
    with plt.style.context(STYLE_FILE):
        drawn, axes_row = plt.subplots(
            1, len(SCHEMATIC_DIES), figsize=(3.6 * len(SCHEMATIC_DIES), 3.9)
        )
        drawn.suptitle(
            "What the area is spent on (schematic)",
            x=0.01,
            ha="left",
            fontsize=14,
            fontweight="bold",
        )
    for axes, die in zip(axes_row, SCHEMATIC_DIES, strict=True):
        for part, box in die_boxes(die):
            axes.add_patch(
                Rectangle(
                    box[:2], *box[2:], facecolor=PARTS[part], edgecolor="white", linewidth=0.7
                )
            )
        for x, y, width, height in _cores(die):
            axes.add_patch(
                Rectangle((x, y), width, height, fill=False, edgecolor="#222222", linewidth=1.4)
            )
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
        axes.axis("off")
        axes.set_title(die.name, fontsize=11, loc="center")
    handles = [Patch(facecolor=colour, label=part) for part, colour in PARTS.items()]
    drawn.legend(
        handles=handles,
        ncols=len(PARTS),
        loc="outside lower left",
        frameon=False,
        fontsize=10,
        columnspacing=1.2,
        handlelength=1.4,
    )
    return drawn


def die_boxes(die: Die) -> Iterator[tuple[str, tuple[float, float, float, float]]]:
    """Yield part and box (x, y, width, height) for every box of a die in the unit square: areas are
    the shares.

    From the bottom: memory and links, the shared cache, then the cores; in a core control over
    cache on the left, the arithmetic units on the right.
    """
    edge, shared = die.memory_and_links_share, die.shared_cache_share
    yield "memory and links", (0.0, 0.0, 1.0, edge)
    yield "shared cache", (0.0, edge, 1.0, shared)
    in_cores = 1 - edge - shared
    right = die.arithmetic_share / in_cores
    upper = die.control_share / (die.control_share + die.core_cache_share)
    down, across = die.units
    for x, y, width, height in _cores(die):
        left_width = (1 - right) * width
        yield "core cache", (x, y, left_width, (1 - upper) * height)
        yield "control", (x, y + (1 - upper) * height, left_width, upper * height)
        unit_width, unit_height = right * width / across, height / down
        for row in range(down):
            for column in range(across):
                yield (
                    "arithmetic",
                    (
                        x + left_width + column * unit_width,
                        y + row * unit_height,
                        unit_width,
                        unit_height,
                    ),
                )


def draw_memory_spaces() -> Figure:
    """Return a row a space of ``MEMORY_SPACES``: boxes as wide as its scope (a thread, a block,
    all), and beside them the rest.

    Two blocks of two threads are drawn. Lesson 01.
    """
    instances = {"thread": _THREADS, "block": _BLOCKS, "grid": 1}
    drawn, axes = figure(
        title="Memory spaces of a GPU (CUDA)",
        width_in=8.4,
        height_in=1.3 + 0.3 * len(MEMORY_SPACES),
    )
    _draw_owners(axes)
    write = partial(axes.text, ha="center", va="center", fontsize=10)
    for row, space in enumerate(MEMORY_SPACES):
        colour = _ON_CHIP if space.on_chip else _OFF_CHIP
        width = _THREADS / instances[space.scope]
        for instance in range(instances[space.scope]):
            axes.add_patch(
                Rectangle(
                    (instance * width + 0.03, row + 0.08), width - 0.06, 0.84, facecolor=colour
                )
            )
            write((instance + 0.5) * width, row + 0.5, space.name, color=ink_on(colour))
        cells = (space.place, space.lifetime, space.thread_may, space.host_may)
        for (across, _), cell in zip(_COLUMNS, cells, strict=True):
            write(across, row + 0.5, cell)
    for across, name in _COLUMNS:
        _write_heading(axes, across, -0.2, name)
    axes.set(xlim=(-0.02, 10.9), ylim=(len(MEMORY_SPACES) + 0.05, -1.7))
    axes.axis("off")
    handles = [
        Patch(facecolor=_ON_CHIP, label="on the chip"),
        Patch(facecolor=_OFF_CHIP, label="in device memory"),
    ]
    drawn.legend(handles=handles, ncols=2, loc="outside lower left", frameon=False, fontsize=10)
    return drawn


def _draw_owners(axes: Axes) -> None:
    per_block = _THREADS // _BLOCKS
    for thread in range(_THREADS):
        _write_heading(axes, thread + 0.5, -0.2, f"thread {thread % per_block}")
    for block in range(_BLOCKS):
        start = block * per_block
        axes.plot(
            [start + 0.05, start + per_block - 0.05], [-0.85, -0.85], color="#555555", linewidth=1
        )
        _write_heading(axes, start + per_block / 2, -0.93, f"block {block}")


def _write_heading(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, ha="center", va="bottom", fontsize=10, color="#555555")


def _cores(die: Die) -> Iterator[tuple[float, float, float, float]]:
    below = die.memory_and_links_share + die.shared_cache_share
    width, height = 1 / die.columns, (1 - below) / die.rows
    for row in range(die.rows):
        for column in range(die.columns):
            yield column * width, below + row * height, width, height
