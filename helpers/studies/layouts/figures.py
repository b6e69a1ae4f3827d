"""The figures of lesson 08: two orders of a mesh's names, the layouts of a cluster, and the fastest
of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from helpers import plotting
from helpers.checks import choice, number, whole_number
from helpers.plotting import COLOURS, Curves, Menu, Series, Slider
from helpers.studies._paper import DATA, EMPTY, INK, QUIET, SENDING, box, keys, paper, tint, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Layout = tuple[int, int, int]  # data ranks, tensor ranks and stages

NAMES = ("dp", "tp")
_KINDS_OF = {"dp": "data", "tp": "tensor"}
_TENSOR, _DATA, _BOTH = tint(SENDING, 0.35), DATA, "#999933"
_CELL_IN, _ROW_IN, _LEFT_IN, _TOP_IN, _PANEL_GAP_IN = 0.4, 0.36, 0.95, 0.62, 1.0

_KINDS = {  # of a layout with several GPUs: its colour
    "data alone": tint(COLOURS["computing"], 0.3),
    "two tensor ranks": tint(COLOURS["predicted"], 0.2),
    "more tensor ranks": tint(COLOURS["backward"], 0.2),
    "stages": tint("#332288", 0.45),
}

# The worked example: Llama 2 7B in sequences of 4,096 tokens, on H100 of 400 TFLOP/s in nodes of
# eight.
_SEQUENCE_S = 6 * 7e9 * 4096 / 400e12  # computing with a sequence on one GPU
_GRADIENTS_GB = 14  # of a whole copy
_BOUNDARY_GB = 8192 * 4096 / 1e9  # of a sequence, between two stages and in one direction
_SUMS_GB = 4 * 32 * _BOUNDARY_GB  # that tensor ranks add up for a sequence
_PARTS = ("computing", "waiting", "sums", "node", "ports", "boundary")  # of a step
_CUTS = {
    "whole": ("no cut", 1, "1", "#0072B2"),
    "pair": ("2 tensor ranks", 2, "1", "#E69F00"),
    "node": ("8 tensor ranks", 8, "1", "#D55E00"),
    "staged": ("8 tensor ranks and up to 8 stages", 8, "min(8, nodes)", "#332288"),
}


def draw_names(names: tuple[str, str]) -> Figure:
    """Return the 64 GPUs of eight nodes in a mesh of 8 x 8, with the two groups of GPU 0.

    ``names`` are those of the mesh's dimensions, ``("dp", "tp")`` or ``("tp", "dp")``. A row is a
    node. Raises ValueError for other names. Lesson 08.
    """
    choice("names", names, (NAMES, NAMES[::-1]))
    side = 8
    wide = _LEFT_IN + side * _CELL_IN + 2.55
    drawn, axes = paper(
        wide,
        _TOP_IN + side * (_ROW_IN + 0.1) + 0.2,
        title=f"mesh_dim_names={names}".replace("'", '"'),
    )
    column_group, row_group = (_KINDS_OF[name] for name in names)
    write(
        axes,
        _LEFT_IN + side * _CELL_IN / 2,
        0.25,
        f"a row is a {row_group} group, a column a {column_group} group",
    )
    group_colours = {"dp": _DATA, "tp": _TENSOR}
    for node in range(side):
        y = _TOP_IN + node * (_ROW_IN + 0.1)
        box(
            axes,
            _LEFT_IN - 0.06,
            y - 0.04,
            side * _CELL_IN + 0.12,
            _ROW_IN + 0.08,
            colour="none",
            edge=QUIET,
        )
        write(axes, _LEFT_IN - 0.15, y + _ROW_IN / 2, f"node {node}", ha="right", colour=QUIET)
        for column in range(side):
            in_row, in_column = node == 0, column == 0
            colour = group_colours[names[1]] if in_row else group_colours[names[0]]
            if in_row and in_column:
                colour = _BOTH
            box(
                axes,
                _LEFT_IN + column * _CELL_IN + 0.02,
                y,
                _CELL_IN - 0.04,
                _ROW_IN,
                str(8 * node + column),
                colour=colour if in_row or in_column else EMPTY,
                bold=in_row or in_column,
            )
    named_colours = {
        "tensor group of GPU 0": _TENSOR,
        "data group of GPU 0": _DATA,
        "GPU 0, in both": _BOTH,
    }
    for line, (name, colour) in enumerate(named_colours.items()):
        keys(
            axes, _LEFT_IN + side * _CELL_IN + 0.25, _TOP_IN + 0.4 * line, {name: (colour, "none")}
        )
    return drawn


def draw_layouts(steps_s: Mapping[Layout, float], *, title: str) -> Figure:
    """Return the layouts of a cluster as a triangle: tensor ranks to the right, stages upwards, the
    time as colour.

    ``steps_s`` has the seconds of a step by (data ranks, tensor ranks, stages), each a power of
    two. A cell has its milliseconds and its data ranks, and the fastest is framed. ``title`` stands
    above. Raises ValueError for none, and for times that are not above 0. Lesson 08.
    """
    if not steps_s:
        raise ValueError(
            "no layouts to draw; give the seconds of a step by (data ranks, tensor ranks, stages)"
        )
    for layout, step_s in steps_s.items():
        number(f"steps_s[{layout}]", step_s, above=0)
    tensors, stages = (sorted({layout[axis] for layout in steps_s}) for axis in (1, 2))
    fastest = min(steps_s, key=lambda layout: steps_s[layout])
    cell, row, left = 1.0, 0.58, 1.3
    drawn, axes = paper(left + cell * len(tensors) + 0.2, row * len(stages) + 0.95, title=title)
    for line, count in enumerate(reversed(stages)):
        write(
            axes,
            left - 0.12,
            0.1 + row * (line + 0.5),
            f"{count} stage{'s' if count > 1 else ''}",
            ha="right",
        )
    for column, count in enumerate(tensors):
        write(axes, left + cell * (column + 0.5), 0.1 + row * len(stages) + 0.2, str(count))
    write(axes, left + cell * len(tensors) / 2, 0.1 + row * len(stages) + 0.55, "tensor ranks")
    for layout, step_s in steps_s.items():
        x = left + cell * tensors.index(layout[1])
        y = 0.1 + row * (len(stages) - 1 - stages.index(layout[2]))
        share = min(1.0, steps_s[fastest] / step_s)  # 1 for the fastest, towards 0 for slow ones
        box(
            axes,
            x + 0.03,
            y + 0.03,
            cell - 0.06,
            row - 0.06,
            colour=tint(COLOURS["measured"], 1 - share**2),
            edge=INK if layout == fastest else "none",
            thick=2.4,
        )
        write(axes, x + cell / 2, y + 0.2, f"{1e3 * step_s:,.0f} ms", bold=True)
        write(axes, x + cell / 2, y + 0.41, f"{layout[0]} data", size=9.5, colour=INK)
    return drawn


def draw_fastest(fastest: Mapping[tuple[int, int], Layout], *, title: str) -> Figure:
    """Return a map of nodes and sequences per step, coloured by the kind of the fastest layout.

    ``fastest`` has the layout as (data ranks, tensor ranks, stages) by (nodes, sequences). A cell
    says its tensor ranks and stages. ``title`` stands above. Raises ValueError for none. Lesson 08.
    """
    if not fastest:
        raise ValueError(
            "no layouts to draw; give (data ranks, tensor ranks, stages) by (nodes, sequences)"
        )
    nodes, sequences = (sorted({key[axis] for key in fastest}) for axis in (0, 1))
    cell, row, left = 0.68, 0.42, 1.05
    width = left + cell * len(sequences) + 0.2
    drawn, axes = paper(width, row * len(nodes) + 1.35, title=title)
    for line, count in enumerate(reversed(nodes)):
        write(
            axes,
            left - 0.12,
            0.1 + row * (line + 0.5),
            f"{count} node{'s' if count > 1 else ''}",
            ha="right",
        )
    for column, count in enumerate(sequences):
        write(axes, left + cell * (column + 0.5), 0.1 + row * len(nodes) + 0.2, f"{count:,}")
    write(
        axes, left + cell * len(sequences) / 2, 0.1 + row * len(nodes) + 0.52, "sequences per step"
    )
    for (count, batch), layout in fastest.items():
        x, y = (
            left + cell * sequences.index(batch),
            0.1 + row * (len(nodes) - 1 - nodes.index(count)),
        )
        box(
            axes,
            x + 0.02,
            y + 0.02,
            cell - 0.04,
            row - 0.04,
            f"{layout[1]} x {layout[2]}",
            colour=_KINDS[kind(layout)],
        )
    keys(
        axes,
        0.2,
        0.1 + row * len(nodes) + 0.85,
        {name: (colour, "none") for name, colour in _KINDS.items()},
    )
    return drawn


def kind(layout: Layout) -> str:
    """Return the kind of parallelism that a layout adds to that of data, a key of the map's
    colours.
    """
    _, tensor, stages = (whole_number("layout", count) for count in layout)
    if stages > 1:
        return "stages"
    return (
        "data alone" if tensor == 1 else "two tensor ranks" if tensor == 2 else "more tensor ranks"
    )


def explore_layouts() -> None:
    """Display the step of four ways to cut a copy as a figure to turn: sequences per step, nodes
    and ports.

    The model, the GPUs and the sums in two levels are those of the lesson. A copy takes whole
    sequences, so that copies without one do nothing. Lesson 08.
    """
    formulas = {"ideal": f"sequences * {_SEQUENCE_S} / (8 * nodes)"}
    for name, (_, tensor, stages, _) in _CUTS.items():
        formulas |= _step(name, tensor, stages)
    plotting.explore(
        title="A step of Llama 2 7B on nodes of eight H100, relative to computing alone",
        alt="Four curves of the time of a step over the sequences in it; each falls and becomes "
        "flat, data alone last.",
        inputs=[
            Slider("sequences", "sequences per step", [2**power for power in range(3, 13)], 64),
            Slider("nodes", "nodes", [2**power for power in range(7)], 8),
            Menu(
                "port",
                "port of a GPU",
                {f"{rate} GB/s": {"B": rate} for rate in (12.5, 25, 50, 100)},
                "50 GB/s",
            ),
        ],
        formulas=formulas,
        picture=Curves(
            along="sequences",
            lines=[Series(name, label, colour) for name, (label, _, _, colour) in _CUTS.items()],
            xlabel="sequences per step",
            ylabel="time of a step over computing alone",
        ),
    )


def _step(name: str, tensor: int, stages: str) -> dict[str, str]:
    """Return the formulas of one way to cut a copy; the last one is the step relative to computing
    alone.
    """
    in_node = 8 // tensor  # data ranks of a node, if there are so many
    copies, batch, inside = f"{name}_copies", f"{name}_own", f"{name}_inside"
    gradients = f"{_GRADIENTS_GB} / ({tensor} * {stages})"
    return {
        copies: f"8 * nodes / ({tensor} * {stages})",
        batch: f"ceil(sequences / {copies})",  # sequences of a copy
        inside: f"min({in_node}, {copies})",  # data ranks in the same node
        f"{name}_computing": f"{batch} * {_SEQUENCE_S} / ({tensor} * {stages})",
        f"{name}_sums": f"2 * {(tensor - 1) / tensor} * {_SUMS_GB} / ({stages}) * {batch} / 450",
        f"{name}_waiting": f"({stages} - 1) / {batch} * ({name}_computing + {name}_sums)",
        f"{name}_node": f"2 * ({inside} - 1) / {inside} * {gradients} / 450",
        f"{name}_ports": f"2 * (1 - {inside} / {copies}) * {gradients} / {inside} / port.B",
        f"{name}_boundary": (
            f"2 * ({stages} - 1) / ({stages}) * {_BOUNDARY_GB} * {batch} / {tensor} / port.B"
        ),
        name: f"({' + '.join(f'{name}_{part}' for part in _PARTS)}) / ideal",
    }
