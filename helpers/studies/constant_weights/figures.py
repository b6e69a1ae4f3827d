"""The figures of lesson 17: they draw machine code, counts and models that others have made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers import plotting
from helpers.checks import members, named
from helpers.plotting import COLOURS, MODELLED, Curves, Series, Slider
from helpers.results import Record
from helpers.studies._paper import (
    COMPUTING,
    DATA,
    EMPTY,
    INK,
    QUIET,
    SENDING,
    WAITING,
    arrow,
    box,
    keys,
    paper,
    write,
)
from helpers.studies.constant_weights._counting import INSTRUCTION_BYTES, PlacementCount

_BYTE_IN = 0.42
_NUMBER_BYTES = range(4, 8)  # of an instruction: its 32-bit immediate
# of an FFMA with an immediate: the registers that it names, in the order of its operands
_REGISTER_BYTES = (2, 3, 8)
_STOP_IN, _WAY_IN, _FFMA_IN = 1.75, 0.84, 2.75
_BAR_IN, _CYCLES_IN = 0.3, 4.2


class WeightWay(Record):
    """The way of a weight to the FFMA that uses it: the ``stops`` where it is stored on the way,
    first to last.

    ``load`` is the instruction that brings it to the last stop, "" where none does. ``ffma`` is the
    instruction that uses the weight; without a stop the weight is in it. Lesson 17.
    """

    stops: tuple[str, ...]
    load: str
    ffma: str


def draw_instruction(code: bytes, line: str, *, title: str) -> Figure:
    """Return a picture of ``code``, the 16 bytes of an FFMA, whose immediate, bytes 4 to 7, is
    yellow.

    ``line`` is the same instruction as text, such as "FFMA R15, R15, -0.324, R0"; the bytes that
    name its registers have their names below. ``title`` stands above. Raises ValueError for code of
    another length, or a line whose registers are not those of the code. Lesson 17.
    """
    registers = re.findall(r"\bR(?:\d+|Z)\b", line)
    coded = [
        "RZ" if code[index] == 255 else f"R{code[index]}"
        for index in _REGISTER_BYTES
        if index < len(code)
    ]
    if len(code) != INSTRUCTION_BYTES or registers != coded:
        raise ValueError(
            f"{len(code)} bytes with registers {coded} are not the instruction {line!r}; give the "
            "16 bytes of an FFMA with an immediate, and its own line"
        )
    figure, axes = paper(0.4 + INSTRUCTION_BYTES * _BYTE_IN, 1.9, title=title)
    write(axes, 0.2, 0.2, line, ha="left", bold=True)
    for index, byte in enumerate(code):
        left, is_number = 0.2 + index * _BYTE_IN, index in _NUMBER_BYTES
        axes.add_patch(
            Rectangle(
                (left + 0.02, 0.62), _BYTE_IN - 0.04, 0.4, facecolor=DATA if is_number else EMPTY
            )
        )
        write(axes, left + _BYTE_IN / 2, 0.82, f"{byte:02x}")
        write(axes, left + _BYTE_IN / 2, 0.5, str(index), size=9, colour=QUIET)
    for index, name in zip((0, *_REGISTER_BYTES), ("FFMA", *coded), strict=True):
        write(axes, 0.2 + (index + 0.5) * _BYTE_IN, 1.2, name, size=10, colour=QUIET)
    number = np.frombuffer(code, "<f4", 1, _NUMBER_BYTES.start)[0]
    backward = code[_NUMBER_BYTES.start : _NUMBER_BYTES.stop][::-1].hex(" ")
    middle = 0.2 + _BYTE_IN * (_NUMBER_BYTES.start + _NUMBER_BYTES.stop) / 2
    write(
        axes,
        middle,
        1.55,
        f"read from the last byte to the first: {backward}, the float32 {number:.8f}",
        size=10,
    )
    return figure


def draw_ways(ways: Mapping[str, WeightWay], *, title: str) -> Figure:
    """Return the way of a weight in each of several programs, a row per program, from where it is
    stored to its FFMA.

    Yellow is where the weight is stored in the beginning. An orange arrow is a load, with its
    instruction, and a black arrow is an operand of the FFMA. ``title`` stands above. Raises
    ValueError for no way, TypeError for what is none. Lesson 17.
    """
    weight_ways = named("ways", ways, "ways of a weight")
    members("ways", weight_ways.values(), "ways of a weight, as WeightWay has them", kind=WeightWay)
    if not weight_ways:
        raise ValueError("no ways; give at least one WeightWay, with the name of its program")
    gap = 1.15
    ffma_left = 0.15 + 2 * (_STOP_IN + gap)
    figure, axes = paper(ffma_left + _FFMA_IN + 0.15, 0.5 + _WAY_IN * len(weight_ways), title=title)
    for row, (name, way) in enumerate(weight_ways.items()):
        top = 0.05 + _WAY_IN * row
        write(axes, 0.15, top + 0.11, name, ha="left", bold=True)
        boxes = [*((stop, _STOP_IN) for stop in way.stops), (way.ffma, _FFMA_IN)]
        left = ffma_left - (_STOP_IN + gap) * len(way.stops)
        for index, (text, width) in enumerate(boxes):
            colour = EMPTY if index else DATA
            box(axes, left, top + 0.25, width, 0.34, text, colour=colour, size=10)
            if index == len(way.stops):
                break
            begin, left = left + _STOP_IN, left + _STOP_IN + gap
            is_load = index + 1 < len(way.stops)
            colour = SENDING if is_load else INK
            arrow(axes, (begin, top + 0.42), (left, top + 0.42), colour=colour)
            if is_load:
                write(axes, (begin + left) / 2, top + 0.72, way.load, size=9, colour=QUIET)
    meanings = {"the weight is stored here": (DATA, DATA), "a load brings it": (SENDING, SENDING)}
    keys(axes, 0.15, 0.12 + _WAY_IN * len(weight_ways), meanings)
    return figure


def draw_cycles(programs: Mapping[str, Mapping[str, float]], *, title: str) -> Figure:
    """Return for each of ``programs`` how many cycles each unit of a multiprocessor needs for one
    warp, as bars.

    ``programs`` maps a program's name to the cycles of each unit by the unit's name. The longest
    bar of a program is the time that it needs, and is blue; the others are grey. ``title`` stands
    above. Raises ValueError for no program, or one without units. Lesson 17.
    """
    units_by_program = named("programs", programs, "cycles by the name of a unit")
    if not units_by_program or not all(units_by_program.values()):
        raise ValueError("no cycles to draw; give each program the cycles of at least one unit")
    rows = sum(len(units) for units in units_by_program.values())
    most = max(cycles for units in units_by_program.values() for cycles in units.values())
    left = 2.1
    figure, axes = paper(
        left + _CYCLES_IN + 0.9, 0.15 + _BAR_IN * rows + 0.42 * len(units_by_program), title=title
    )
    top = 0.05
    for name, units in units_by_program.items():
        write(axes, 0.15, top + 0.16, name, ha="left", bold=True)
        top += 0.34
        longest = max(units.values())
        for unit, cycles in units.items():
            length = _CYCLES_IN * cycles / most
            colour = COMPUTING if cycles == longest else WAITING
            write(axes, left - 0.1, top + _BAR_IN / 2, unit, ha="right", size=10)
            axes.add_patch(Rectangle((left, top + 0.04), length, _BAR_IN - 0.08, facecolor=colour))
            write(
                axes, left + length + 0.08, top + _BAR_IN / 2, f"{cycles:,.0f}", ha="left", size=10
            )
            top += _BAR_IN
        top += 0.08
    return figure


def draw_placements(counts: Mapping[str, Sequence[PlacementCount]], *, title: str) -> Figure:
    """Return stacked bars of the instructions of a thread, a group for each of ``counts``, a bar
    per architecture.

    ``counts`` has by the name of a place of the weights its count for each architecture. A bar has
    the multiply-adds, in which the place that feeds them is written, the loads, and the others.
    ``title`` stands above. Raises ValueError for no counts, TypeError for others. Lesson 17.
    """
    groups = named("counts", counts, "counts of a place of the weights")
    rows = [
        row
        for name, group in groups.items()
        for row in members(
            f"counts[{name!r}]", group, "counts, as recorded_counts() has them", kind=PlacementCount
        )
    ]
    if not rows:
        raise ValueError(
            "no counts; give at least one group of them, as recorded_counts() has them"
        )
    figure, axes = plotting.figure(title=title, height_in=4.8)
    x: list[int] = []
    for index, (name, group) in enumerate(groups.items()):
        places = range(len(x) + index, len(x) + index + len(group))
        axes.text(float(np.mean(places)), 4500, name, ha="center", weight="bold", size=11)
        x += places
    adds = np.array([row.multiply_adds for row in rows])
    loads = np.array([row.global_loads + row.constant_loads for row in rows])
    totals = np.array([row.total for row in rows])
    for label, bottoms, tops, colour in (
        ("multiply-adds", 0, adds, COMPUTING),
        ("loads", adds, adds + loads, SENDING),
        ("others", adds + loads, totals, "white"),
    ):
        axes.bar(
            x,
            tops - bottoms,
            bottom=bottoms,
            label=label,
            color=colour,
            edgecolor=INK,
            linewidth=0.5,
        )
    for position, row in zip(x, rows, strict=True):
        axes.text(
            position, 80, _fed_by(row), rotation=90, ha="center", va="bottom", color=INK, size=9.5
        )
        axes.text(position, row.total + 60, f"{row.total:,}", ha="center", size=8)
    axes.set_xticks(x, [row.architecture.removeprefix("sm_") for row in rows])
    axes.set(
        ylim=(0, 5600), ylabel="instructions of a thread (counted)", xlabel="instruction set, sm_"
    )
    axes.legend(loc="upper center", ncols=3, fontsize=9)
    return figure


def _fed_by(row: PlacementCount) -> str:
    """Return the words for the operand that feeds most of the multiply-adds."""
    kinds = {"immediate": row.immediate, "constant memory": row.constant_bank,
             "uniform register": row.uniform_register, "register": row.register}  # fmt: skip
    return max(kinds, key=kinds.__getitem__)


def explore_zeros() -> None:
    """Display which weights of a pruned network are in use as a figure to turn, over the share of
    weights kept.

    The network has 23 inputs, two layers of a width and some outputs, and each layer keeps a share
    of its weights, at random places. A unit of which ``n`` weights are read on average, each kept
    with the probability ``k``, is read with the probability ``1 - (1 - k) ** n``, because it is not
    read only if all of them are zero. Lesson 17.
    """
    plotting.explore(
        title="Which weights of a pruned network are in use?",
        alt="Two curves over the share of weights kept: the weights that are not zero, and below "
        "it those in use.",
        inputs=[
            Slider("kept", "weights kept, %", list(range(5, 101, 5)), 50),
            Slider("width", "width of the layers", [8, 16, 32, 64, 128], 32),
            Slider("outputs", "outputs", [1, 2, 4, 8, 16, 32], 1),
        ],
        formulas={
            "k": "kept / 100",
            "second": "width * (1 - (1 - k) ** outputs)",
            "first": "width * (1 - (1 - k) ** second)",
            "nonzero": "k * (23 * width + width * width + width * outputs)",
            "used": "k * (23 * first + width * second + width * outputs)",
        },
        picture=Curves(
            along="kept",
            lines=[
                Series("nonzero", "not zero", COLOURS["waiting"]),
                Series("used", "in use (modelled)", MODELLED),
            ],
            xlabel="weights kept, %",
            ylabel="weights",
            log_x=False,
            log_y=False,
        ),
    )
