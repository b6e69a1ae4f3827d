"""Ranks and what moves between them: the ring, the mesh, a product in parts, ring attention, tokens
to experts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Polygon, Rectangle
from matplotlib.path import Path

from helpers.checks import boolean, choice, members, one_of, whole_number
from helpers.plotting._style import mix_colours
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
    tint,
    write,
)

if TYPE_CHECKING:
    from helpers.studies.parallel_plans import Layout

MOST_RANKS = 8
_WRITTEN_INCHES = 0.14  # a number of the smallest size needs this height
_DARKER = 0.3  # of a group's colour that was there before
_AXES = ("data", "tensor", "pipeline")
_PARTS = tuple(
    tint(colour, 0.45)
    for colour in (
        "#0072B2",
        "#E69F00",
        "#009E73",
        "#CC79A7",
        "#56B4E9",
        "#D55E00",
        "#999933",
        "#882255",
    )
)


def draw_ring(
    chunks: Sequence[Sequence[Collection[int]]],
    *,
    moves: Sequence[tuple[int, int, int]] = (),
    title: str = "",
) -> Figure:
    """Return ranks as columns and chunks as rows; each box has the numbers of the ranks whose terms
    its sum holds.

    ``chunks[rank][chunk]`` are these ranks. ``moves`` are (source, target, chunk) of what is sent
    in this step, arrows; a chunk with the terms of all ranks is framed. ``title`` stands above the
    drawing. ``data_parallel.ring_frames(4)`` has all of them, a frame a step. Raises ValueError for
    more than 8 ranks, and for a rank or a chunk that is not there. Lesson 05.
    """
    state = _state(chunks)
    ranks, rows = len(state), len(state[0])
    moves = [
        _move(index, move, ranks, rows)
        for index, move in enumerate(members("moves", moves, "moves"))
    ]
    across = ranks if ranks <= 4 else (ranks + 1) // 2
    down = -(-ranks // across)
    slot, gap, left, top = 0.24, 0.5, 1.4, 0.42
    width, height, pitch = slot * across + 0.1, slot * down + 0.1, slot * down + 0.3
    drawn, axes = paper(left + ranks * (width + gap), top + rows * pitch + 0.42, title=title)
    for chunk in range(rows):
        write(
            axes,
            left - gap + 0.02,
            top + chunk * pitch + height / 2,
            f"chunk {chunk}",
            ha="right",
            colour=QUIET,
        )
    for rank in range(ranks):
        x = left + rank * (width + gap)
        write(axes, x + width / 2, top - 0.2, f"rank {rank}", bold=True)
        for chunk in range(rows):
            terms, y = state[rank][chunk], top + chunk * pitch
            is_complete = len(terms) == ranks
            box(
                axes,
                x,
                y,
                width,
                height,
                colour="white" if not is_complete else DATA,
                edge=INK if is_complete else "#CCCCCC",
                thick=2.2 if is_complete else 1.0,
            )
            for term in range(ranks):
                cell = (x + 0.05 + slot * (term % across), y + 0.05 + slot * (term // across))
                if not is_complete:
                    axes.add_patch(
                        Rectangle(
                            (cell[0] + 0.015, cell[1] + 0.015),
                            slot - 0.03,
                            slot - 0.03,
                            facecolor=tint(DATA, 0.35) if term in terms else EMPTY,
                        )
                    )
                if term in terms:
                    write(
                        axes,
                        cell[0] + slot / 2,
                        cell[1] + slot / 2,
                        str(term),
                        bold=is_complete,
                        colour="black",
                    )
    for source, target, chunk in moves:
        y = top + chunk * pitch + height / 2
        begin, end = left + source * (width + gap) + width, left + target * (width + gap)
        if target == source + 1:
            arrow(axes, (begin + 0.03, y), (end - 0.03, y))
        elif source == ranks - 1 and target == 0:
            arrow(axes, (begin + 0.03, y), (begin + gap - 0.08, y))
            arrow(axes, (left - gap + 0.08, y), (left - 0.03, y))
        else:
            arrow(
                axes,
                (left + source * (width + gap) + width / 2, y),
                (left + target * (width + gap) + width / 2, y),
                bend=-0.25,
            )
    legend = {"terms held": (tint(DATA, 0.35), "none"), "sum of all ranks": (DATA, INK)}
    keys(axes, 0.15, top + rows * pitch + 0.05, legend | {"sent in this step": (SENDING, "none")})
    return drawn


def _state(chunks: object) -> list[list[set[int]]]:
    rows = [
        members(f"chunks[{rank}]", row, "chunks, each the ranks whose terms it holds")
        for rank, row in enumerate(members("chunks", chunks, "ranks, each a list of chunks"))
    ]
    if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
        raise ValueError(
            "every rank has the same number of chunks, at least one; give chunks[rank][chunk]"
        )
    if len(rows) > MOST_RANKS:
        raise ValueError(f"{len(rows)} ranks are too many to read; draw at most {MOST_RANKS}")
    return [
        [
            {
                whole_number(f"chunks[{rank}][{chunk}]", term, at_least=0, at_most=len(rows) - 1)
                for term in members(f"chunks[{rank}][{chunk}]", terms, "ranks")
            }
            for chunk, terms in enumerate(row)
        ]
        for rank, row in enumerate(rows)
    ]


def _move(index: int, move: object, ranks: int, chunks: int) -> tuple[int, int, int]:
    numbers = members(f"moves[{index}]", move, "source, target and chunk")
    if len(numbers) != 3:
        raise ValueError(
            f"moves[{index}]={move!r} is not a source, a target and a chunk, such as (0, 1, 3)"
        )
    limits = (ranks - 1, ranks - 1, chunks - 1)
    names = ("source", "target", "chunk")
    source, target, chunk = (
        whole_number(f"moves[{index}], {name}", value, at_least=0, at_most=limit)
        for name, value, limit in zip(names, numbers, limits, strict=True)
    )
    return source, target, chunk


def draw_mesh(layout: Layout, *, along: str | None = None, title: str = "") -> Figure:
    """Return the ranks of ``layout``: a box a pipeline stage, in it a row a data rank and a column
    a tensor rank.

    ``along`` ("data", "tensor" or "pipeline") gives the ranks that differ in nothing else, a group,
    one colour. ``title`` stands above the drawing. Raises ValueError for another name, and for more
    than 64 ranks. Lesson 08.
    """
    from helpers.studies.parallel_plans import Layout

    one_of("layout", layout, Layout, "a layout, such as parallel_plans.Layout(data=2, tensor=4)")
    if along is not None:
        choice("along", along, _AXES)
    if layout.ranks > 64:
        raise ValueError(f"{layout.ranks} ranks are too many to read; draw a layout of at most 64")
    cell, row, pad, gap, left, top = 0.5, 0.42, 0.14, 0.5, 0.85, 0.42
    stage_width, stage_height = cell * layout.tensor + 2 * pad, row * layout.data + 2 * pad
    width = left + layout.pipeline * stage_width + (layout.pipeline - 1) * gap + 0.2
    drawn, axes = paper(max(width, 5.2), top + stage_height + 0.85, title=title)
    colours: dict[tuple, str] = {}
    for stage in range(layout.pipeline):
        x = left + stage * (stage_width + gap)
        box(axes, x, top, stage_width, stage_height, colour="none", edge=QUIET)
        write(axes, x + stage_width / 2, top - 0.17, f"stage {stage}", bold=True)
        for column in range(layout.tensor):
            write(
                axes,
                x + pad + cell * (column + 0.5),
                top + stage_height + 0.15,
                str(column),
                size=10,
                colour=QUIET,
            )
        if stage:
            arrow(
                axes, (x - gap + 0.05, top + stage_height / 2), (x - 0.05, top + stage_height / 2)
            )
    for data in range(layout.data):
        write(
            axes,
            left - 0.1,
            top + pad + row * (data + 0.5),
            f"data {data}",
            size=10,
            ha="right",
            colour=QUIET,
        )
    write(axes, left - 0.1, top + stage_height + 0.15, "tensor", size=10, ha="right", colour=QUIET)
    for rank in range(layout.ranks):
        stage, data, tensor = coordinates = layout.place(rank)
        group = tuple(
            coordinate
            for coordinate, name in zip(coordinates, ("pipeline", "data", "tensor"), strict=True)
            if name != along
        )
        darker = _DARKER * (len(colours) // len(_PARTS))
        colour = colours.setdefault(
            group, mix_colours(_PARTS[len(colours) % len(_PARTS)], "#000000", darker)
        )
        box(
            axes,
            left + stage * (stage_width + gap) + pad + cell * tensor + 0.03,
            top + pad + row * data + 0.03,
            cell - 0.06,
            row - 0.06,
            str(rank),
            bold=True,
            colour=EMPTY if along is None else colour,
        )
    caption = f"{layout.data} data x {layout.tensor} tensor x {layout.pipeline} pipeline"
    caption += (
        f" = {layout.ranks} ranks"
        if along is None
        else f"; one colour, one {along} group of {getattr(layout, along)}"
    )
    write(axes, 0.12, top + stage_height + 0.58, caption, ha="left", size=10.5)
    return drawn


def draw_column_row(parts: int = 2, *, title: str = "") -> Figure:
    """Return two layers split over ``parts`` ranks: f(X U) D, with U cut by columns and D by rows,
    a colour a rank.

    Each rank has a term of the whole output; one all-reduce adds them up. Raises ValueError for
    more than 4 parts. Lesson 06.
    """
    whole_number("parts", parts, at_most=4)
    side, short, top = 1.2, 0.8, 0.5
    lift = 0.17
    drawn, axes = paper(8.4 + lift * parts, 2.7, title=title)
    colours = [_PARTS[part] for part in range(parts)]
    x, middle = 0.2, top + side / 2

    def matrix(name: str, width: float, height: float, cut: str = "", under: str = "") -> None:
        nonlocal x
        y = middle - height / 2
        for part, colour in enumerate(colours if cut else [EMPTY]):
            share = 1 / parts if cut else 1
            rectangle = (
                (x + part * share * width, y, share * width, height)
                if cut != "rows"
                else (x, y + part * share * height, width, share * height)
            )
            axes.add_patch(
                Rectangle(
                    rectangle[:2],
                    *rectangle[2:],
                    facecolor=colour,
                    edgecolor="white",
                    linewidth=1.5,
                )
            )
            if cut:
                write(
                    axes,
                    rectangle[0] + rectangle[2] / 2,
                    rectangle[1] + rectangle[3] / 2,
                    str(part),
                    colour="black",
                )
        write(axes, x + width / 2, top - 0.28, name, bold=True, size=12)
        write(axes, x + width / 2, middle + side / 2 + 0.22, under, size=10, colour=QUIET)
        x += width

    def sign(text: str, room: float = 0.34) -> None:
        nonlocal x
        write(axes, x + room / 2, middle, text, size=13)
        x += room

    matrix("X", short, short, under="on every rank")
    sign("·")
    matrix("U", side, short, "columns", "cut by columns")
    write(axes, x + 0.32, middle - 0.2, "f", bold=True, size=12)
    arrow(axes, (x + 0.07, middle), (x + 0.57, middle), colour=COMPUTING)
    x += 0.64
    matrix("f(X U)", side, short, "columns", "stays cut")
    sign("·")
    matrix("D", short, side, "rows", "cut by rows")
    sign("=")
    begin = x
    for part in reversed(range(parts)):
        corner = (x + part * lift, middle - short / 2 + (part - (parts - 1) / 2) * lift)
        axes.add_patch(
            Rectangle(
                corner, short, short, facecolor=colours[part], edgecolor="white", linewidth=1.5
            )
        )
        write(
            axes,
            corner[0] + short - 0.085,
            corner[1] + short - 0.09,
            str(part),
            size=10,
            colour="black",
        )
    x += short + (parts - 1) * lift
    write(axes, (begin + x) / 2, top - 0.28, "terms", bold=True, size=12)
    write(axes, (begin + x) / 2, middle + side / 2 + 0.22, "one per rank", size=10, colour=QUIET)
    write(axes, x + 0.42, middle - 0.22, "all-reduce", size=10)
    arrow(axes, (x + 0.07, middle), (x + 0.78, middle))
    x += 0.86
    matrix("Y", short, short, under="on every rank")
    write(
        axes,
        0.2,
        middle + side / 2 + 0.68,
        "Number and colour: the rank. Nothing is sent before the all-reduce.",
        ha="left",
        size=10.5,
    )
    return drawn


def draw_blocks(
    ranks: int, step: int, *, causal: bool = False, balanced: bool = False, title: str = ""
) -> Figure:
    """Return ring attention in ``step``: a row a rank's queries, a column a rank's keys, the blocks
    that meet now.

    In step s rank r has the keys of rank (r - s) mod ``ranks``. With ``causal`` a block of later
    keys has nothing to do, and its rank waits. ``balanced`` is causal as well: the sequence is cut
    into twice as many pieces, rank r has pieces r and 2 ``ranks`` - 1 - r, and nobody waits.
    ``title`` stands above the drawing. Raises ValueError for a step that is not there, more than 8
    ranks. Lesson 09.
    """
    boolean("balanced", balanced)
    boolean("causal", causal)
    whole_number("ranks", ranks, at_most=MOST_RANKS)
    whole_number("step", step, at_least=0, at_most=ranks - 1)
    owners = [*range(ranks), *reversed(range(ranks))] if balanced else list(range(ranks))
    cell, left, top = 0.28 if balanced else 0.5, 1.45, 0.75
    right = left + len(owners) * cell
    drawn, axes = paper(right + 1.95, top + len(owners) * cell + 0.2, title=title)
    write(axes, (left + right) / 2, 0.2, "keys and values of rank", size=11)
    write(axes, left - 0.12, top - 0.22, "queries of", ha="right")
    bottom = top + len(owners) * cell
    axes.add_patch(
        Rectangle((left, top), right - left, bottom - top, facecolor="white", edgecolor="none")
    )
    for row, rank in enumerate(owners):
        write(axes, left + (row + 0.5) * cell, top - 0.22, str(rank), bold=True)
        write(axes, left - 0.12, top + (row + 0.5) * cell, f"rank {rank}", bold=True, ha="right")
        for column, source in enumerate(owners):
            x, y = left + column * cell, top + row * cell
            meeting_step, masked = (rank - source) % ranks, (causal or balanced) and column > row
            waits = masked and meeting_step == step and not balanced
            if waits or not masked:
                colour = (
                    COMPUTING
                    if meeting_step == step
                    else tint(COMPUTING, 0.65)
                    if meeting_step < step
                    else EMPTY
                )
                corners = [(x, y), (x, y + cell), (x + cell, y + cell), (x + cell, y)]
                halves = corners[:3] if (causal or balanced) and row == column else corners
                axes.add_patch(
                    Polygon(halves, facecolor=WAITING if waits else colour, edgecolor="none")
                )
            if meeting_step == step and not (masked and balanced):
                axes.add_patch(
                    Rectangle(
                        (x, y), cell, cell, facecolor="none", linewidth=2.4, edgecolor=INK, zorder=3
                    )
                )
    edges = range(len(owners) + 1)
    axes.hlines([top + edge * cell for edge in edges], left, right, color="#AAAAAA", linewidth=0.8)
    axes.vlines([left + edge * cell for edge in edges], top, bottom, color="#AAAAAA", linewidth=0.8)
    legend = {
        "now": (COMPUTING, INK),
        "merged": (tint(COMPUTING, 0.65), "none"),
        "still to come": (EMPTY, "none"),
    }
    legend |= {"waits": (WAITING, INK)} if causal and not balanced else {}
    legend |= {"masked": ("white", "#AAAAAA")} if causal or balanced else {}
    for index, (name, colours) in enumerate(legend.items()):
        keys(axes, right + 0.3, top + 0.36 * index, {name: colours})
    return drawn


def draw_all_to_all(counts: Sequence[Sequence[int]], *, title: str = "") -> Figure:
    """Return the tokens that go from each rank, on the left, to each expert, on the right; widths
    are counts.

    A count is written where it fits. ``counts[rank][expert]`` are tokens that chose the expert; the
    experts are dealt out to the ranks in order, equally many each. ``title`` stands above the
    drawing. Raises ValueError for experts that do not divide, for no tokens and more than 8 ranks.
    Lesson 09.
    """
    rows = [
        [
            whole_number(f"counts[{rank}][{expert}]", count, at_least=0)
            for expert, count in enumerate(members(f"counts[{rank}]", row, "tokens by expert"))
        ]
        for rank, row in enumerate(members("counts", counts, "ranks, each its tokens by expert"))
    ]
    if not rows or any(len(row) != len(rows[0]) for row in rows) or not sum(map(sum, rows)):
        raise ValueError(
            "nothing to draw: give counts[rank][expert], equally many experts for each rank, and a "
            "token"
        )
    ranks, experts = len(rows), len(rows[0])
    if ranks > MOST_RANKS or experts % ranks:
        raise ValueError(
            f"{experts} experts on {ranks} ranks cannot be drawn; give at most {MOST_RANKS} ranks "
            "and a multiple of them"
        )
    return _tokens(rows, title=title)


def _tokens(rows: list[list[int]], *, title: str) -> Figure:
    ranks, experts, tokens = len(rows), len(rows[0]), sum(map(sum, rows))
    token, gap = 3.2 / tokens, 0.24
    top, left, right, wide = 0.42, 1.1, 4.3, 0.26
    height = token * tokens + gap * (max(ranks, experts) - 1)
    drawn, axes = paper(7.0, top + height + 0.55, title=title)
    write(axes, left + wide, 0.2, "tokens of", ha="right", bold=True)
    write(axes, right, 0.2, "experts", ha="left", bold=True)
    ends = _experts(
        axes,
        rows,
        (right, top + (height - token * tokens - gap * (experts - 1)) / 2),
        token=token,
        gap=gap,
        wide=wide,
    )
    y = top + (height - token * tokens - gap * (ranks - 1)) / 2
    for rank, row in enumerate(rows):
        write(axes, left - 0.12, y + token * sum(row) / 2, f"rank {rank}", ha="right", bold=True)
        for expert, count in enumerate(row):
            if count:
                colour = WAITING if expert // (experts // ranks) == rank else SENDING
                _ribbon(
                    axes,
                    (left + wide, y),
                    (right, ends[rank, expert]),
                    token * count,
                    colour=colour,
                )
                _bar(axes, left, y, wide, token * count)
                if token * count >= _WRITTEN_INCHES:
                    write(axes, left + wide / 2, y + token * count / 2, str(count), size=9)
                _bar(axes, right, ends[rank, expert], wide, token * count)
            y += token * count
        y += gap
    legend = {
        "sent": (tint(SENDING, 0.45), "none"),
        "stays on its rank": (tint(WAITING, 0.45), "none"),
    }
    keys(axes, 0.15, top + height + 0.22, legend)
    return drawn


def _experts(
    axes: Axes,
    rows: list[list[int]],
    corner: tuple[float, float],
    *,
    token: float,
    gap: float,
    wide: float,
) -> dict[tuple[int, int], float]:
    """Draw the experts, and return where the tokens of each (rank, expert) begin in them."""
    ranks, experts, (x, y), begins = len(rows), len(rows[0]), corner, {}
    for expert in range(experts):
        size, inside = sum(row[expert] for row in rows), y
        middle = y + token * size / 2
        for rank, row in enumerate(rows):
            begins[rank, expert] = inside
            inside += token * row[expert]
        axes.add_patch(
            Rectangle(
                (x, y), wide, token * size, facecolor="none", edgecolor=INK, linewidth=1.4, zorder=3
            )
        )
        owner = f"expert {expert} on rank {expert // (experts // ranks)}"
        write(axes, x + wide + 0.12, middle, owner, ha="left", bold=True, size=10.5)
        y += token * size + gap
    return begins


def _bar(axes: Axes, x: float, y: float, width: float, height: float) -> None:
    axes.add_patch(
        Rectangle((x, y), width, height, facecolor=DATA, edgecolor="white", linewidth=0.8)
    )


def _ribbon(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], thick: float, *, colour: str
) -> None:
    (x, y), (to_x, to_y) = start, end
    half = (x + to_x) / 2
    points = [
        (x, y),
        (half, y),
        (half, to_y),
        (to_x, to_y),
        (to_x, to_y + thick),
        (half, to_y + thick),
        (half, y + thick),
        (x, y + thick),
        (x, y),
    ]
    codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
    axes.add_patch(
        PathPatch(
            Path(points, codes),
            facecolor=tint(colour, 0.45),
            edgecolor="white",
            linewidth=0.5,
            alpha=0.85,
        )
    )
