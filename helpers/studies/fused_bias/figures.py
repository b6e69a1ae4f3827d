"""The figures of lesson 18: kernels with the memory that they read and write, passes, gains, busy
multiprocessors.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers import plotting, units
from helpers.checks import members, named, whole_number
from helpers.plotting import COLOURS, Curves, Menu, Series, Slider
from helpers.results import Record
from helpers.studies._paper import (
    COMPUTING,
    DATA,
    EMPTY,
    INK,
    QUIET,
    arrow,
    box,
    keys,
    paper,
    write,
)

_ARROW_IN = 0.66  # between two arrows of one tensor
_PANEL_GAP_IN, _KERNEL_IN = 0.35, 0.55
_SQUARE_IN, _SQUARES_PER_ROW = 0.36, 22  # a multiprocessor
_ROUNDS = {"one pass": 1, "two passes": 2}
_STATES = ("y", "y + b", "done")

# FLOP per second by the data sheets, and the bytes of a value.
_ARITHMETIC = {
    "H100, bfloat16": {"rate": 989e12, "size": 2},
    "H100, float32": {"rate": 67e12, "size": 4},
    "V100, float32": {"rate": 15.7e12, "size": 4},
}


class Kernel(Record):
    """A kernel: the bytes that it reads and writes of each tensor in device memory, by name.

    Lesson 18.
    """

    name: str
    reads: Mapping[str, int]
    writes: Mapping[str, int]

    @property
    def moved_bytes(self) -> int:
        """All bytes that it reads and writes."""
        return sum(self.reads.values()) + sum(self.writes.values())


def draw_kernels(programs: Mapping[str, Sequence[Kernel]], *, title: str = "") -> Figure:
    """Return a figure with one panel per program, with its tensors above, its kernels below and
    arrows between them.

    An arrow is a read or a write. Every panel has room for the tensors of all programs and shows
    those that its own kernels touch. Its heading has the sum of its bytes. Raises ValueError if
    there is no program, or one without a kernel. Lesson 18.
    """
    kernels_by_program = {
        name: members(f"programs[{name!r}]", kernels, "Kernels", kind=Kernel)
        for name, kernels in named("programs", programs, "lists of Kernels").items()
    }
    if not kernels_by_program or not all(kernels_by_program.values()):
        raise ValueError("nothing to draw: give at least one program, and each at least one Kernel")
    most: Counter[str] = Counter()  # the arrows of a tensor in the panel with most of them
    for kernels in kernels_by_program.values():
        most |= _count_arrows(kernels)
    middles, right = {}, 0.1  # of each tensor's part, from the panel's left edge
    for tensor, count in most.items():
        room = max(0.94, _ARROW_IN * count)
        middles[tensor] = right + room / 2
        right += room
    panel_in = right + 0.1
    step_in = panel_in + _PANEL_GAP_IN
    arrows = [_place_arrows(kernels, middles) for kernels in kernels_by_program.values()]
    rows = [_choose_rows(of_program) for of_program in arrows]
    width_in = 0.24 + len(rows) * step_in - _PANEL_GAP_IN
    height_in = 2.75 + _KERNEL_IN * (1 + max(map(max, rows)))
    figure, axes = paper(width_in, height_in, title=title)
    for panel, (name, kernels) in enumerate(kernels_by_program.items()):
        left = 0.12 + panel * step_in
        moved = units.text(sum(kernel.moved_bytes for kernel in kernels), "B")
        write(axes, left, 0.25, f"{name}: {moved} moved", ha="left", bold=True, size=12)
        box(axes, left, 0.5, panel_in, 0.78, colour=EMPTY)
        write(axes, left + 0.1, 0.63, "memory", ha="left", size=9.5, colour=QUIET)
        for tensor in _count_arrows(kernels):
            box(axes, left + middles[tensor] - 0.4, 0.8, 0.8, 0.36, tensor, colour=DATA)
        for row, kernel, of_kernel in sorted(
            zip(rows[panel], kernels, arrows[panel], strict=True), key=itemgetter(0)
        ):
            _draw_kernel(axes, left, 2.55 + _KERNEL_IN * row, kernel.name, of_kernel)
    return figure


class _Arrow(NamedTuple):
    """A read or a write of ``size`` bytes, ``x`` inches from the panel's left edge."""

    x: float
    size: int
    is_read: bool


def _count_arrows(kernels: Sequence[Kernel]) -> Counter[str]:
    """Return the number of reads and writes of each tensor, in the order of the first ones."""
    return Counter(tensor for kernel in kernels for tensor in (*kernel.reads, *kernel.writes))


def _place_arrows(kernels: Sequence[Kernel], middles: Mapping[str, float]) -> list[list[_Arrow]]:
    """Return the arrows of each kernel, those of a tensor side by side around its middle."""
    totals = _count_arrows(kernels)
    before: Counter[str] = Counter()  # arrows of each tensor so far
    arrows = []
    for drawn_kernel in kernels:
        of_kernel = []
        for sizes in (drawn_kernel.reads, drawn_kernel.writes):
            is_read = sizes is drawn_kernel.reads
            for tensor, size in sizes.items():
                shift = _ARROW_IN * (before[tensor] - (totals[tensor] - 1) / 2)
                before[tensor] += 1
                of_kernel.append(_Arrow(middles[tensor] + shift, size, is_read))
        arrows.append(of_kernel)
    return arrows


def _choose_rows(arrows: Sequence[Sequence[_Arrow]]) -> list[int]:
    """Return the row of each kernel: the first in which no other one stands across its arrows."""
    spans = [(min(of_kernel)[0], max(of_kernel)[0]) for of_kernel in arrows]
    rows: list[int] = []
    for begin, end in spans:
        taken = {
            row
            for row, other in zip(rows, spans, strict=False)
            if begin <= other[1] and other[0] <= end
        }
        rows.append(next(row for row in itertools.count() if row not in taken))
    return rows


def _draw_kernel(axes: Axes, left: float, top: float, name: str, arrows: Sequence[_Arrow]) -> None:
    begin, end = min(arrows)[0], max(arrows)[0]
    width = end - begin + 0.48
    box(axes, left + begin - 0.24, top, width, 0.42, name, colour=COMPUTING, bold=True)
    for x, size, is_read in arrows:
        ends = [(left + x, 1.32), (left + x, top - 0.03)]
        arrow(axes, *(ends if is_read else ends[::-1]))
        axes.text(
            left + x,
            1.92,
            f"{'read' if is_read else 'write'}\n{units.text(size, 'B')}",
            fontsize=9,
            ha="center",
            va="center",
            color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )


def pass_frames(values: int = 8) -> list[Figure]:
    """Return frames of a tensor of ``values`` elements to which bias and ReLU are applied in one
    pass and in two.

    A frame shows both programs after as many visits to memory, from none to two per element, in
    steps of two. A visit reads an element and writes it back. Raises ValueError for no elements.
    Lesson 18.
    """
    count = whole_number("values", values, at_least=1)
    return [_draw_passes(count, visits) for visits in range(0, 2 * count + 1, 2)]


def _draw_passes(count: int, visits: int) -> Figure:
    figure, axes = plotting.figure(title="", height_in=2.3)
    colours = ["white", COLOURS["data"], COLOURS["computing"]]
    for lane, rounds in enumerate(_ROUNDS.values()):
        for element in range(count):
            passes = sum(visits > element + count * number for number in range(rounds))
            state = 2 // rounds * passes
            axes.barh(lane, 0.92, 0.7, element, color=colours[state], edgecolor="#666666")
            axes.text(element + 0.46, lane, _STATES[state], ha="center", va="center")
    axes.set_yticks(range(len(_ROUNDS)), list(_ROUNDS))
    axes.set(xticks=[], xlim=(-0.1, count))
    axes.grid(visible=False)
    return figure


def draw_gains(
    channels: Sequence[int], *, modelled: Sequence[float], measured: Sequence[float]
) -> Figure:
    """Return a plot of the time of three kernels over that of one, by the ``channels`` that the
    layer reads.

    ``modelled`` and ``measured`` have a ratio for each number of channels. Lesson 18.
    """
    figure, axes = plotting.figure(title="Time of three kernels, relative to one kernel")
    axes.plot(
        channels, modelled, "s", color=plotting.MODELLED, label="modelled: two copies of the output"
    )
    axes.plot(channels, measured, "o", color=plotting.MEASURED, label="measured")
    axes.axhline(1, color=QUIET, linestyle="--", label="no gain")
    axes.set_xscale("log", base=2)
    axes.set_xticks(channels, [f"{count}" for count in channels])
    axes.set(
        xlabel="channels that the layer reads",
        ylabel="time relative to one kernel",
        ylim=(0.8, 1.1 * max(*modelled, *measured)),
    )
    axes.legend()
    return figure


def draw_busy(blocks: int, *, multiprocessors: int, title: str) -> Figure:
    """Return a figure of a GPU with ``multiprocessors``, of which each of ``blocks`` keeps one
    busy.

    ``title`` stands above it. Raises ValueError for a count below 1. Lesson 18.
    """
    count = whole_number("multiprocessors", multiprocessors, at_least=1)
    busy = min(whole_number("blocks", blocks, at_least=1), count)
    rows = -(-count // _SQUARES_PER_ROW)
    width_in = max(3.2, 0.24 + _SQUARE_IN * min(count, _SQUARES_PER_ROW))
    figure, axes = paper(width_in, 0.62 + _SQUARE_IN * rows, title=title)
    for number in range(count):
        row, column = divmod(number, _SQUARES_PER_ROW)
        left, top, side = 0.12 + _SQUARE_IN * column, 0.1 + _SQUARE_IN * row, _SQUARE_IN - 0.06
        box(axes, left, top, side, side, colour=COMPUTING if number < busy else EMPTY)
    states = {f"busy: {busy}": (COMPUTING, "none"), f"idle: {count - busy}": (EMPTY, "none")}
    keys(axes, 0.17, 0.25 + _SQUARE_IN * rows, states)
    return figure


def explore_gain() -> None:
    """Display the gain of fusion on a GPU as a figure to turn: size of the output, channels,
    bandwidth and launch.

    A layer writes as many channels as it reads. One kernel takes one launch and the longer of its
    arithmetic at the GPU's peak and its bytes; three kernels take two launches and four passes over
    the output more. Lesson 18.
    """
    plotting.explore(
        title="What do kernels of their own for bias and ReLU cost?",
        alt="Two curves over the channels of a layer: three kernels and two kernels, relative to "
        "one. Both fall to 1.",
        inputs=[
            Menu("gpu", "arithmetic", _ARITHMETIC, "H100, bfloat16"),
            Slider(
                "images",
                "images of 16 x 28 x 28 outputs",
                [1, 3, 10, 30, 100, 300, 1000, 3000, 10000],
                1000,
            ),
            Slider(
                "channels",
                "channels that the layer reads",
                [1, 2, 4, 8, 16, 32, 64, 96, 131, 192, 256, 512, 1024, 2048],
                131,
            ),
            Slider("bandwidth", "bandwidth, GB/s", [320, 900, 2039, 3350, 4800, 8000], 3350),
            Slider("launch", "µs per launch", [0, 1, 2, 5, 10, 20], 0),
        ],
        formulas={
            "outputs": "12544 * images",
            "copy": "2 * gpu.size * outputs / (1000 * bandwidth)",
            "arithmetic": "18 * channels * outputs / gpu.rate * 1e6",
            "one": "launch + max(arithmetic, copy)",
            "two": "(one + launch + copy) / one",
            "three": "(one + 2 * launch + 2 * copy) / one",
            "none": "one / one",
        },
        picture=Curves(
            along="channels",
            lines=[
                Series("three", "three kernels (modelled)", plotting.MODELLED),
                Series("two", "two kernels, as in Flux (modelled)", COLOURS["sending"]),
                Series("none", "one kernel", COLOURS["waiting"]),
            ],
            xlabel="channels that the layer reads (and writes)",
            ylabel="time relative to one kernel",
            log_y=False,
        ),
    )
