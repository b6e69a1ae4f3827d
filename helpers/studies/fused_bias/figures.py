"""Kernels and the memory that they read and write, as a drawing."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers import units
from helpers.checks import members, named
from helpers.results import Record
from helpers.studies._paper import COMPUTING, DATA, EMPTY, INK, QUIET, arrow, box, paper, write  # fmt: skip

_ARROW_IN = 0.66  # between two arrows of one tensor
_PANEL_GAP_IN, _KERNEL_IN = 0.35, 0.55


class Kernel(Record):
    """A kernel: the bytes that it reads and writes of each tensor in device memory, by name. Lesson 18."""

    name: str
    reads: Mapping[str, int]
    writes: Mapping[str, int]

    @property
    def moved_bytes(self) -> int:
        """All bytes that it reads and writes."""
        return sum(self.reads.values()) + sum(self.writes.values())


def draw_kernels(programs: Mapping[str, Sequence[Kernel]], *, title: str = "") -> Figure:
    """Return a panel a program: its tensors in memory above, its kernels below, an arrow for each read and write.

    The same tensors stand in every panel; a program that leaves one out never has it in memory. The panel's heading
    has the sum of its bytes. Raises ValueError for no programs and one without a kernel. Lesson 18.
    """
    given = {name: members(f"programs[{name!r}]", kernels, "Kernels", kind=Kernel)
             for name, kernels in named("programs", programs, "lists of Kernels").items()}  # fmt: skip
    if not given or not all(given.values()):
        raise ValueError("nothing to draw: give at least one program, and each at least one Kernel")
    tensors = list(dict.fromkeys(name for kernels in given.values() for kernel in kernels
                                 for name in (*kernel.reads, *kernel.writes)))  # fmt: skip
    touched = [[tensor for kernel in kernels for tensor in (*kernel.reads, *kernel.writes)]
               for kernels in given.values()]  # fmt: skip
    rooms = {tensor: max(0.94, _ARROW_IN * max(names.count(tensor) for names in touched)) for tensor in tensors}
    drawing = _Program(rooms)
    widths = 0.24 + len(given) * drawing.width_in + (len(given) - 1) * _PANEL_GAP_IN
    rows = max(len(drawing.rows(kernels)) for kernels in given.values())
    drawn, axes = paper(widths, 2.75 + _KERNEL_IN * rows, title=title)
    for place, (name, kernels) in enumerate(given.items()):
        left = 0.12 + place * (drawing.width_in + _PANEL_GAP_IN)
        moved = units.text(sum(kernel.moved_bytes for kernel in kernels), "B")
        write(axes, left, 0.25, f"{name}: {moved} moved", ha="left", bold=True, size=12)
        drawing.draw(axes, left, kernels)
    return drawn


@dataclass(frozen=True)
class _Program:
    """Where a program's tensors, arrows and kernels stand in its panel."""

    rooms_in: Mapping[str, float]  # the width of each tensor's part

    @property
    def width_in(self) -> float:
        return sum(self.rooms_in.values()) + 0.2

    def middle(self, tensor: str) -> float:
        """Return the middle of the tensor's part, from the panel's left edge."""
        before = itertools.takewhile(lambda name: name != tensor, self.rooms_in)
        return 0.1 + sum(self.rooms_in[name] for name in before) + self.rooms_in[tensor] / 2

    def places(self, kernels: Sequence[Kernel]) -> list[list[tuple[float, str, int, bool]]]:
        """Return for each kernel its arrows: x, tensor, bytes, whether it is a read; a tensor's are side by side."""
        found = [[(tensor, size, sizes is kernel.reads) for sizes in (kernel.reads, kernel.writes)
                  for tensor, size in sizes.items()] for kernel in kernels]  # fmt: skip
        everyone = [tensor for arrows in found for tensor, *_ in arrows]
        met: Counter[str] = Counter()
        placed = []
        for arrows in found:
            row = []
            for tensor, size, read in arrows:
                shift = _ARROW_IN * (met[tensor] - (everyone.count(tensor) - 1) / 2)
                met[tensor] += 1
                row.append((self.middle(tensor) + shift, tensor, size, read))
            placed.append(row)
        return placed

    def rows(self, kernels: Sequence[Kernel]) -> list[list[int]]:
        """Return which kernels stand in each row: as few rows as none of them overlap in."""
        spans = [(min(x for x, *_ in arrows), max(x for x, *_ in arrows)) for arrows in self.places(kernels)]
        rows: list[list[int]] = []
        for place, (begin, end) in enumerate(spans):
            free = (row for row in rows if all(end < spans[other][0] or spans[other][1] < begin for other in row))
            row = next(free, None)
            if row is None:
                rows.append([place])
            else:
                row.append(place)
        return rows

    def draw(self, axes: Axes, left: float, kernels: Sequence[Kernel]) -> None:
        """Draw the memory with its tensors, the kernels, and the arrows between."""
        placed = self.places(kernels)
        box(axes, left, 0.5, self.width_in, 0.78, colour=EMPTY)
        write(axes, left + 0.1, 0.63, "memory", ha="left", size=9.5, colour=QUIET)
        for tensor in dict.fromkeys(tensor for arrows in placed for _, tensor, *_ in arrows):
            box(axes, left + self.middle(tensor) - 0.4, 0.8, 0.8, 0.36, tensor, colour=DATA)
        for row, there in enumerate(self.rows(kernels)):
            for kernel in there:
                low = 2.55 + _KERNEL_IN * row
                begin, end = (f(x for x, *_ in placed[kernel]) for f in (min, max))
                box(axes, left + begin - 0.24, low, end - begin + 0.48, 0.42, kernels[kernel].name, colour=COMPUTING,
                    bold=True)  # fmt: skip
                for x, _, size, read in placed[kernel]:
                    ends = [(left + x, 1.32), (left + x, low - 0.03)]
                    arrow(axes, *(ends if read else ends[::-1]))
                    axes.text(left + x, 1.92, f"{'read' if read else 'write'}\n{units.text(size, 'B')}", fontsize=9,
                              ha="center", va="center", color=INK,
                              bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5})  # fmt: skip
