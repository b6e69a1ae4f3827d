"""The figures of lesson 01: they draw what others have measured, counted or published."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers import hardware, plotting
from helpers.plotting import COLOURS, MEASURED, MODELLED, Curves, Menu, Series, Slider
from helpers.studies.memory_hierarchy._gpus import gpu_wait
from helpers.studies.memory_hierarchy._measuring import Waits

_KIB = 2**10
_FLUSHED, _IN_ORDER, _GREY = "#882255", "#882255", "#555555"
_GPU_COLOURS = ("#332288", "#8C510A", "#999933", "#000000")
_TICKS = [_KIB * 8**power for power in range(8)]
# the GPU, the chip whose published wait it has, the threads that a multiprocessor holds
_EXPLORED = {
    "V100": ("V100 SXM2", "GV100", 2048),
    "RTX 3090": ("GeForce RTX 3090", "GA102", 1536),
    "A100 80 GB": ("A100 SXM 80 GB", "GA100", 2048),
    "H100": ("H100 SXM 80 GB", "GH100", 2048),
}


def draw_waits(waits: Waits, *, caches: Mapping[str, int]) -> Figure:
    """Return the time of a load over the size of the buffer, and the same after a flush where it
    was measured.

    An arrow marks the largest buffer of which a cache holds a large part, and says how many times
    as long a load takes after the flush. ``caches`` are the sizes in bytes that the system states,
    drawn as broken lines. Lesson 01.
    """
    figure, axes = plotting.figure(title="How long a load of the chase waits")
    if waits.flushed_s:
        label = "after the lines were thrown out of all caches (measured)"
        axes.plot(waits.sizes_bytes, waits.flushed_s, "s--", ms=5, color=_FLUSHED, label=label)
    _draw_chase(axes, waits, label="round and round (measured)")
    _axes_of_waits(axes, waits.sizes_bytes)
    if waits.held_bytes:
        held_index = waits.sizes_bytes.index(waits.held_bytes)
        _draw_ratio(
            axes,
            waits.held_bytes,
            waits.chase_s[held_index],
            waits.flushed_s[held_index],
            digits=1,
            side="right",
        )
    for name, size_bytes in caches.items():
        axes.axvline(size_bytes, color=_GREY, linestyle=":", linewidth=1)
        axes.text(
            size_bytes, 1.02, name, transform=axes.get_xaxis_transform(), ha="center", color=_GREY
        )
    axes.set_title(axes.get_title(), pad=24)
    axes.legend(loc="lower right")
    return figure


def draw_pages(paged: Mapping[str, Waits], *, covered_bytes: int) -> Figure:
    """Return the time of a load over the size of the buffer, a curve for each kind of pages.

    ``covered_bytes`` is the buffer whose small pages fill the TLB, by a published count of its
    entries. Lesson 01.
    """
    figure, axes = plotting.figure(title="The same chase in two kinds of pages")
    for (name, waits), look in zip(paged.items(), ("^-", "o-"), strict=True):
        colour = COLOURS["sending"] if look == "^-" else MEASURED
        _draw_chase(axes, waits, look, colour=colour, label=f"pages of {name} (measured)")
    _axes_of_waits(axes, [size for waits in paged.values() for size in waits.sizes_bytes])
    axes.set(yscale="linear", ylim=(0, None))
    plotting.unit_axis(axes, "y", "s")
    axes.axvline(covered_bytes, color=_GREY, linestyle=":", linewidth=1)
    axes.text(
        covered_bytes, 0.02, " 2,048 small pages", transform=axes.get_xaxis_transform(), color=_GREY
    )
    axes.legend(loc="upper left")
    return figure


def draw_orders(waits: Waits) -> Figure:
    """Return the times of a load in a chase and in the order of the addresses, over the size of the
    buffer.

    An arrow says how many times as long the chase takes, in a buffer of the first cache and in the
    largest. Lesson 01.
    """
    figure, axes = plotting.figure(title="Two walks through the same lines, one load from each")
    label = "chase: random order, each address from the load before (measured)"
    _draw_chase(axes, waits, label=label)
    label = "loop: in order, all addresses known (measured)"
    axes.plot(waits.sizes_bytes, waits.in_order_s, "s-", ms=5, color=_IN_ORDER, label=label)
    _axes_of_waits(axes, waits.sizes_bytes)
    for index in (0, len(waits.sizes_bytes) - 1):
        side = "left" if index == 0 else "right"
        _draw_ratio(
            axes,
            waits.sizes_bytes[index],
            waits.in_order_s[index],
            waits.chase_s[index],
            digits=0,
            side=side,
        )
    low_s, high_s = axes.get_ylim()
    axes.set_ylim(low_s, 6 * high_s)  # room for the legend
    axes.legend(loc="upper left")
    return figure


def _draw_chase(
    axes: Axes, waits: Waits, look: str = "o-", *, label: str, colour: str = MEASURED
) -> None:
    axes.plot(waits.sizes_bytes, waits.chase_s, look, ms=5, color=colour, label=label)


def _draw_ratio(
    axes: Axes, size_bytes: int, low_s: float, high_s: float, *, digits: int, side: str
) -> None:
    """Draw an arrow between two times at ``size_bytes``, with their ratio; the arrow is on ``side``
    of the text.
    """
    axes.annotate(
        "",
        (size_bytes, low_s),
        (size_bytes, high_s),
        arrowprops={"arrowstyle": "<->", "color": _GREY},
    )
    text = f" {high_s / low_s:.{digits}f} times "
    axes.text(size_bytes, (low_s * high_s) ** 0.5, text, va="center", ha=side)


def _axes_of_waits(axes: Axes, sizes_bytes: Sequence[int]) -> None:
    axes.set(xscale="log", yscale="log", xlabel="size of the buffer", ylabel="time of a load")
    axes.set_xticks([tick for tick in _TICKS if min(sizes_bytes) <= tick <= max(sizes_bytes)])
    axes.minorticks_off()
    plotting.unit_axis(axes, "x", "B", binary=True)
    plotting.unit_axis(axes, "y", "s")


def draw_lines() -> Figure:
    """Return two tables of 16 lines with 16 values each: a row takes one whole line, a column one
    value of each.

    Lesson 01.
    """
    line, position = np.mgrid[:16, :16]
    shades = np.array(["white", COLOURS["waiting"], COLOURS["computing"]])
    figure, axes = plotting.figure(
        title="Blue: the 16 values used. Grey: values moved with them", height_in=4.4
    )
    for left, name, is_used, is_moved in (
        (0, "a row: 1 line", line == 5, line == 5),
        (19, "a column: 16 lines", position == 5, line >= 0),
    ):
        colours = shades[1 * is_moved + is_used]
        axes.scatter(
            left + position,
            line,
            c=colours.ravel(),
            marker="s",
            s=110,
            edgecolors="#777777",
            linewidths=0.5,
        )
        axes.text(left + 7.5, 17.5, name, ha="center")
    # no margin, so that the title begins at the left table
    axes.set(xlim=(-0.5, 34.5), ylim=(18.5, -0.5))
    axes.set_aspect("equal")
    axes.axis("off")
    return figure


def draw_chases(chases: Sequence[int], *, measured: Sequence[float], buffers: int) -> Figure:
    """Return the time of a step of so many ``chases`` at once, relative to one chase, beside the
    model.

    ``measured`` has a ratio for each. By the model a step takes once the wait for every full set of
    ``buffers`` fill buffers. Lesson 01.
    """
    modelled = [max(1, count / buffers) for count in chases]
    figure, axes = plotting.figure(title="Time of a step of several chases, relative to one chase")
    label = f"modelled: {buffers} line fill buffers"
    axes.plot(chases, modelled, color=MODELLED, label=label)
    axes.plot(chases, measured, "o", color=MEASURED, label="measured")
    axes.set(
        xscale="log", yscale="log", xlabel="chases at once", ylabel="time relative to one chase"
    )
    axes.set_xticks(chases, [f"{count}" for count in chases])
    top = max(*modelled, *measured)
    ticks = [tick for tick in (1, 2, 4, 8, 16, 32) if tick <= 2 * top]
    axes.set_yticks(ticks, [f"{tick}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(0.7, 1.5 * top)
    axes.legend(loc="upper left")
    return figure


def draw_threads() -> Figure:
    """Return 1, 4 and 10 threads that each compute for one step and then wait for nine.

    Lesson 01.
    """
    figure, axes = plotting.figure(
        title="Threads that compute for 1 step (blue), wait for 9 (grey)", height_in=3.4
    )
    row = 0
    for threads in (1, 4, 10):
        for thread in range(threads):
            for turn in range(0, 40, 10):
                for begin, steps, activity in (
                    (thread, 1, "computing"),
                    (thread + 1, 9, "waiting"),
                ):
                    axes.broken_barh([(turn + begin, steps)], (row, 0.8), color=COLOURS[activity])
            row += 1
        label = f"{threads} thread{'s' if threads > 1 else ''}:\nbusy {10 * threads} %"
        axes.text(-1, row - threads / 2, label, ha="right", va="center")
        row += 1
    axes.set(xlim=(0, 40), ylim=(row, -0.5), xlabel="steps (modelled)", yticks=[])
    axes.grid(visible=False)
    return figure


def draw_gpus(core: Waits, gpus: Mapping[str, hardware.MachineLimits]) -> Figure:
    """Return the chase of this machine's ``core``, a published one on the chip of an RTX 3090, and
    those of ``gpus``.

    Lesson 01.
    """
    published, card = gpu_wait("GA102"), hardware.device("GeForce RTX 3090")
    figure, axes = plotting.figure(title="The same chase on a core and on a GPU")
    assert card.core_l1_bytes is not None
    assert card.l2_bytes is not None  # the file of devices has both
    sizes = [2 * _KIB, *np.repeat([card.core_l1_bytes, card.l2_bytes], 2), 2**30]
    waits = np.repeat([published.l1_s, published.l2_s, published.memory_s], 2)
    label = f"{published.device}, the chip of an RTX 3090 (published, steps at its cache sizes)"
    axes.plot(sizes, waits, color=_GPU_COLOURS[0], label=label)
    for colour, (name, limits) in zip(
        itertools.cycle(_GPU_COLOURS[1:]), gpus.items(), strict=False
    ):
        points = [(point.working_set_bytes, point.latency_s) for point in limits.latencies]
        axes.plot(*zip(*points, strict=True), "D-", ms=4, color=colour, label=f"{name} (measured)")
    _draw_chase(axes, core, label="this core (measured)")
    _axes_of_waits(axes, [int(sizes[0]), int(sizes[-1]), *core.sizes_bytes])
    low_s, high_s = axes.get_ylim()
    axes.set_ylim(low_s / 4, high_s)  # room for the legend
    axes.legend(loc="lower right")
    return figure


def explore_threads() -> None:
    """Display the bandwidth that a GPU reaches as a figure to turn, by how many of its threads wait
    for a load.

    What is in flight, divided by the published wait, is what arrives per second, up to the
    published bandwidth. Lesson 01.
    """
    options = {}
    for name, (device_name, chip, threads_per_core) in _EXPLORED.items():
        card, wait = hardware.device(device_name), gpu_wait(chip)
        assert card.memory_bandwidth_bytes_per_s is not None
        assert card.cores is not None  # the file of devices has both
        options[name] = {
            "B": card.memory_bandwidth_bytes_per_s / 1e9,
            "wait": round(1e9 * wait.memory_s),
            "threads": card.cores * threads_per_core,
        }
    plotting.explore(
        title="How much of its bandwidth does a GPU reach?",
        alt="Two curves over the share of threads that wait: the bandwidth that they reach, and "
        "the published one.",
        inputs=[
            Menu("gpu", "GPU", options, "RTX 3090"),
            Menu(
                "load",
                "each waits for",
                {
                    f"{count} float32" if count > 1 else "one float32": {"bytes": 4 * count}
                    for count in (1, 2, 4)
                },
                "one float32",
            ),
            Slider("share", "waiting threads, %", list(range(5, 101, 5)), 60),
        ],
        formulas={
            "flight": "gpu.threads * share / 100 * load.bytes",
            "reached": "min(gpu.B, flight / gpu.wait)",
            "published": "gpu.B * 1",
        },
        picture=Curves(
            along="share",
            lines=[
                Series("published", "published", COLOURS["waiting"]),
                Series("reached", "reached at most", MODELLED),
            ],
            xlabel="waiting threads, % of all that the GPU holds",
            ylabel="bytes per second, in GB/s",
            log_x=False,
            log_y=False,
        ),
    )
