"""The figures of lesson 03: the requests, schedules and rules of this room, drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from helpers import plotting
from helpers.checks import members, named, number
from helpers.plotting import COLOURS, MEASURED, MODELLED, Curves, Menu, Series, Slider
from helpers.results import Record
from helpers.studies._paper import COMPUTING, EMPTY, INK, QUIET, WAITING, keys, paper, write
from helpers.studies.gpu_execution._launching import MemoryRequest
from helpers.studies.gpu_execution._occupancy import MULTIPROCESSORS
from helpers.studies.gpu_execution._published import TransposeTime
from helpers.studies.gpu_execution._requests import (
    BANKS,
    SECTOR_BYTES,
    WARP_LANES,
    WORD_BYTES,
    bank_passes,
    count_sectors,
    sectors,
)
from helpers.studies.gpu_execution._scheduling import Schedule

_LANE_IN, _ROW_IN, _NAME_IN, _LEFT_IN = 0.17, 0.26, 0.34, 1.75
_WORD_IN, _SECTOR_IN, _SECTOR_ROW_IN, _SECTORS_IN_ROW = 0.1, 0.88, 0.22, 8
_BANK_IN = 0.085  # the side of a word's square
_LEAST_IN = 3.6  # the width of a key
_STEP_IN = 0.42  # the height of a row of the way
_SECTOR_WORDS = SECTOR_BYTES // WORD_BYTES
_GPUS = {"V100": "7.0", "A100": "8.0", "RTX 3090": "8.6", "RTX 4090": "8.9", "H100": "9.0"}


def draw_lanes(requests: Mapping[str, Sequence[MemoryRequest]], *, title: str) -> Figure:
    """Return the lanes of a warp in each of its ``requests``, a row per request, for every kernel
    by its name.

    A lane is blue while it takes part, and grey while it is off. ``requests`` are those of one
    warp, such as ``[request for request in run.requests if request.warp == 0]`` of :func:`launch`.
    ``title`` stands above. Raises TypeError for no requests, ValueError for none at all or those of
    several warps. Lesson 03.
    """
    rows = {
        name: members(
            f"requests[{name!r}]", group, "requests, as a launch has them", kind=MemoryRequest
        )
        for name, group in named("requests", requests, "lists of requests").items()
    }
    mixed_name = next(
        (name for name, group in rows.items() if len({request.warp for request in group}) != 1),
        None,
    )
    if mixed_name is not None or not rows:
        raise ValueError(
            f"requests of {mixed_name!r} are of no warp or of several; give those of one, such as "
            "[request for request in run.requests if request.warp == 0]"
        )
    height = sum(_NAME_IN + _ROW_IN * len(group) + 0.1 for group in rows.values())
    figure, axes = paper(_LEFT_IN + WARP_LANES * _LANE_IN + 0.2, 0.1 + height + 0.4, title=title)
    y = 0.1
    for name, group in rows.items():
        write(axes, 0.12, y + _NAME_IN / 2, name, ha="left", bold=True)
        y += _NAME_IN
        for request in group:
            text = f"{request.access} {request.array}"
            write(axes, _LEFT_IN - 0.1, y + _ROW_IN / 2, text, ha="right")
            for lane in range(WARP_LANES):
                colour = COMPUTING if lane in request.lanes else WAITING
                x = _LEFT_IN + lane * _LANE_IN
                _fill(axes, x, y + 0.03, _LANE_IN - 0.03, _ROW_IN - 0.06, colour)
            y += _ROW_IN
        y += 0.1
    _key(axes, _LEFT_IN, y + 0.05, "takes part", "is off")
    return figure


def draw_sectors(requests: Mapping[str, Iterable[int]], *, title: str) -> Figure:
    """Return the sectors that each of ``requests`` touches, from left to right, eight in a row,
    each of 8 words.

    ``requests`` has the byte addresses of the lanes by a name, as :func:`sectors` takes them. A
    word that a lane wants is blue; the grey ones travel with it. ``title`` stands above. Raises
    ValueError for no request or an empty one, and as :func:`sectors` does. Lesson 03.
    """
    words = _words(requests)
    touched = {
        name: sorted({word // _SECTOR_WORDS for word in group}) for name, group in words.items()
    }
    rows = sum(-(-len(group) // _SECTORS_IN_ROW) for group in touched.values())
    width = 0.24 + _SECTORS_IN_ROW * _SECTOR_IN
    figure, axes = paper(
        width, 0.55 + (_NAME_IN + 0.14) * len(words) + _SECTOR_ROW_IN * rows, title=title
    )
    top = 0.1
    for name, group in touched.items():
        count = count_sectors(WORD_BYTES * word for word in words[name])
        write(axes, 0.12, top + _NAME_IN / 2, name, ha="left", bold=True)
        text = f"{count} sector{'s' if count > 1 else ''}"
        write(axes, _LEFT_IN, top + _NAME_IN / 2, text, ha="left", colour=QUIET)
        top += _NAME_IN
        for index, sector in enumerate(group):
            row, column = divmod(index, _SECTORS_IN_ROW)
            for word in range(_SECTOR_WORDS):
                is_used = sector * _SECTOR_WORDS + word in words[name]
                x, y = 0.12 + column * _SECTOR_IN + word * _WORD_IN, top + row * _SECTOR_ROW_IN
                colour = COMPUTING if is_used else WAITING
                _fill(axes, x, y, _WORD_IN - 0.015, _SECTOR_ROW_IN - 0.06, colour)
        top += _SECTOR_ROW_IN * (-(-len(group) // _SECTORS_IN_ROW)) + 0.14
    _key(axes, 0.12, top + 0.08, "wanted", "travels with it")
    return figure


def draw_banks(requests: Mapping[str, Iterable[int]], *, title: str) -> Figure:
    """Return the banks from which each of ``requests`` takes its words, a panel per request, and a
    square per word.

    ``requests`` has the byte addresses of the lanes by a name, as :func:`bank_passes` takes them. A
    word of the first pass is blue, and a word that waits for a later one is grey. ``title`` stands
    above. Raises ValueError for no request or an empty one, and as :func:`bank_passes` does. Lesson
    03.
    """
    lanes = _words(requests)
    side, gap = _BANK_IN * BANKS, 0.5
    figure, axes = paper(max(_LEAST_IN, 0.35 + (side + gap) * len(lanes)), side + 1.4, title=title)
    for index, (name, words) in enumerate(lanes.items()):
        left, top = 0.6 + index * (side + gap), 0.62
        passes = bank_passes(WORD_BYTES * word for word in words)
        write(axes, left, 0.18, name, ha="left", bold=True)
        write(
            axes, left, 0.42, f"{passes} pass{'es' if passes > 1 else ''}", ha="left", colour=QUIET
        )
        _fill(axes, left, top, side, side, EMPTY)
        first: dict[int, int] = {}
        for lane, word in enumerate(words):
            waits = first.setdefault(word % BANKS, word) != word
            x, y = left + word % BANKS * _BANK_IN, top + lane * _BANK_IN
            colour = WAITING if waits else COMPUTING
            _fill(axes, x, y, _BANK_IN, _BANK_IN, colour, edgecolor="white", linewidth=0.6)
        write(axes, left + side / 2, top + side + 0.16, "bank, 0 to 31", size=10, colour=QUIET)
    write(axes, 0.38, 0.62 + side / 2, "lane, 0 to 31", size=10, colour=QUIET, turned=True)
    _key(axes, 0.6, side + 1.0, "first pass", "a later pass")
    return figure


def draw_schedules(schedules: Mapping[str, Schedule], *, title: str, until: float) -> Figure:
    """Return the warps of each of ``schedules``, by their names, over cycles from 0 to ``until``: a
    bar per turn.

    A warp is blue while the scheduler issues its instructions, and grey while it waits for its
    data. ``title`` stands above. Raises ValueError for no schedule, TypeError for what is none.
    Lesson 03.
    """
    named_schedules = named("schedules", schedules, "schedules, as run_scheduler() returns them")
    members(
        "schedules",
        named_schedules.values(),
        "schedules, as run_scheduler() returns them",
        kind=Schedule,
    )
    if not named_schedules:
        raise ValueError(
            "no schedules; give at least one, as run_scheduler() returns it, with a name"
        )
    rows = sum(schedule.warps + 1 for schedule in named_schedules.values())
    figure, axes = plotting.figure(title=title, height_in=1.4 + 0.16 * rows)
    row = 0
    for name, schedule in named_schedules.items():
        for turn in schedule.turns:
            for begin, end, activity in (
                (turn.start, turn.stop, "computing"),
                (turn.stop, turn.ready, "waiting"),
            ):
                axes.broken_barh(
                    [(begin, end - begin)], (row + turn.warp, 0.8), color=COLOURS[activity]
                )
        label = f"{name}:\nbusy {100 * schedule.busy_share:.0f} %"
        axes.text(
            -0.01,
            row + schedule.warps / 2,
            label,
            ha="right",
            va="center",
            transform=axes.get_yaxis_transform(),
        )
        row += schedule.warps + 1
    axes.set(
        xlim=(0, number("until", until, above=0)),
        ylim=(row, -0.5),
        xlabel="cycles (simulated)",
        yticks=[],
    )
    axes.grid(visible=False)
    legend = {"issues instructions": "computing", "waits for its data": "waiting"}
    handles = [
        Patch(facecolor=COLOURS[activity], label=label) for label, activity in legend.items()
    ]
    figure.legend(
        handles=handles, ncols=len(handles), loc="outside lower center", frameon=False, fontsize=11
    )
    return figure


class TransposeStep(Record):
    """A kernel on the way from the one-line transpose to the fastest: its counts and its published
    time.

    ``sectors`` are those of a warp per 32 values, ``passes`` those of a column of its tile in
    shared memory, None without a tile. Lesson 03.
    """

    sectors: int
    passes: int | None
    published: TransposeTime


def draw_way(steps: Mapping[str, TransposeStep], *, least_s: float, title: str) -> Figure:
    """Return the ``steps`` by their names, a row per kernel, with its counts and a bar for its
    time.

    A count that differs from that of the row above is bold. The dashed line is ``least_s``, the
    least time by the roofline. ``title`` stands above. Raises TypeError for steps that are none,
    ValueError for no step or a least time that is not above 0. Lesson 03.
    """
    named_steps = named("steps", steps, "steps of the way")
    members(
        "steps",
        named_steps.values(),
        "steps of the way, as TransposeStep has them",
        kind=TransposeStep,
    )
    if not named_steps:
        raise ValueError("no steps; give at least one TransposeStep, with a name")
    columns = {
        "sectors per\n32 values": 2.75,
        "passes of\na column": 3.65,
        "values per\nthread": 4.5,
    }
    left, longest = 5.15, 1.9
    least_s = number("least_s", least_s, above=0)
    scale = longest / max(least_s, *(step.published.time_s for step in named_steps.values()))
    figure, axes = paper(left + longest + 0.9, 1.1 + _STEP_IN * len(named_steps), title=title)
    for heading, middle in columns.items():
        write(axes, middle, 0.3, heading, size=10, colour=QUIET)
    write(axes, left, 0.3, "time (published)", size=10, colour=QUIET, ha="left")
    previous_counts: tuple[int | None, ...] = ()
    for row, (name, step) in enumerate(named_steps.items()):
        top, time_s = 0.6 + _STEP_IN * row, step.published.time_s
        counts = step.sectors, step.passes, step.published.values_per_thread
        write(axes, 0.12, top + _STEP_IN / 2, name, ha="left")
        for index, (middle, count) in enumerate(zip(columns.values(), counts, strict=True)):
            is_new = bool(previous_counts) and count != previous_counts[index]
            text = "–" if count is None else str(count)
            write(
                axes, middle, top + _STEP_IN / 2, text, bold=is_new, colour=INK if is_new else QUIET
            )
        length, text = scale * time_s, f"{1e3 * time_s:.2f} ms"
        _fill(axes, left, top + 0.06, length, _STEP_IN - 0.12, MEASURED)
        write(axes, left + length + 0.08, top + _STEP_IN / 2, text, ha="left")
        previous_counts = counts
    limit_x, bottom = left + scale * least_s, 0.6 + _STEP_IN * len(named_steps)
    axes.plot(
        [limit_x, limit_x], [0.58, bottom + 0.1], color=MODELLED, linestyle="--", linewidth=1.6
    )
    text = f"roofline, {1e3 * least_s:.2f} ms (modelled)"
    write(axes, limit_x, bottom + 0.26, text, size=10, colour=MODELLED, ha="left")
    return figure


def explore_occupancy() -> None:
    """Display the occupancy of a GPU as a figure to turn: by a thread's registers, a block's
    threads and shared memory.

    The formulas are those of :func:`occupancy`, with registers in units of 256 per warp and in four
    partitions. Lesson 03.
    """
    options = {}
    for name, capability in _GPUS.items():
        room = MULTIPROCESSORS[capability]
        options[name] = {
            "warps": room.warps,
            "blocks": room.blocks,
            "shared": room.shared_bytes,
            "most": room.most_block_bytes,
            "reserved": room.reserved_bytes,
            "unit": room.unit_bytes,
        }
    plotting.explore(
        title="How many warps does a multiprocessor hold?",
        alt="A curve that falls in steps: the occupancy of a GPU over the registers of a thread.",
        inputs=[
            Menu("gpu", "GPU", options, "H100"),
            Slider(
                "threads",
                "threads per block",
                [32, 64, 96, 128, 192, 256, 384, 512, 640, 768, 896, 1024],
                1024,
            ),
            Slider("registers", "registers per thread", list(range(16, 129)), 32),
            Slider(
                "kib",
                "KiB of shared memory per block",
                [0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 99, 160, 227],
                4,
            ),
        ],
        formulas={
            "block": "ceil(threads / 32)",
            "partition": "floor(16384 / (256 * ceil(registers / 8)))",
            "taken": "gpu.unit * max(1, ceil((1024 * kib + gpu.reserved) / gpu.unit))",
            "stored": "(1024 * kib <= gpu.most) * floor(gpu.shared / taken)",
            "fitting": (
                "min(gpu.blocks, floor(gpu.warps / block), floor(4 * partition / block), stored)"
            ),
            "occupancy": "100 * fitting * block / gpu.warps",
        },
        picture=Curves(
            along="registers",
            lines=[Series("occupancy", "occupancy", MODELLED)],
            xlabel="registers per thread",
            ylabel="occupancy, %",
            log_x=False,
            log_y=False,
        ),
    )


def _fill(
    axes: Axes, left: float, top: float, width: float, height: float, colour: str, **style: Any
) -> None:
    axes.add_patch(Rectangle((left, top), width, height, facecolor=colour, **style))


def _key(axes: Axes, left: float, top: float, blue: str, grey: str) -> None:
    keys(axes, left, top, {blue: (COMPUTING, COMPUTING), grey: (WAITING, WAITING)})


def _words(requests: Mapping[str, Iterable[int]]) -> dict[str, list[int]]:
    """Return the word of each lane of each request, refused as :func:`sectors` refuses addresses,
    or because there is none.
    """
    addresses = {
        name: members(f"requests[{name!r}]", group, "byte addresses")
        for name, group in named("requests", requests, "byte addresses, one per lane").items()
    }
    empty = next((name for name, group in addresses.items() if not sectors(group)), None)
    if empty is not None or not addresses:
        raise ValueError(
            f"requests has {'no addresses of ' + repr(empty) if addresses else 'no request'}; give "
            "the byte addresses of at least one lane, by a name"
        )
    return {
        name: [int(address) // WORD_BYTES for address in group] for name, group in addresses.items()
    }
