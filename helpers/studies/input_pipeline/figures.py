"""The figures of lesson 10: a loader with its queue, steps in turn and overlapped, and a loader to
turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from helpers import plotting
from helpers.checks import members, whole_number
from helpers.plotting import COLOURS, Curves, Series, Slider, Span
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
from helpers.studies.input_pipeline._pipeline import simulate_feeding


def draw_loader(
    making: Sequence[int | None],
    ready: Sequence[int],
    computing: int | None,
    *,
    places: int,
    title: str = "",
) -> Figure:
    """Return workers that make batches, the queue in shared memory, and the trainer that takes
    them.

    ``making`` has the batch of each worker (None: it waits), ``ready`` the batches in the queue,
    the next one first, ``computing`` the batch in the trainer (None: it waits), ``places`` how many
    the queue holds. ``title`` stands above the drawing. Raises ValueError for no or more than 8
    workers, and more ready batches than places. Lesson 10.
    """
    making = [
        None if batch is None else whole_number(f"making[{worker}]", batch, at_least=0)
        for worker, batch in enumerate(members("making", making, "batches or None"))
    ]
    ready = [
        whole_number(f"ready[{index}]", batch, at_least=0)
        for index, batch in enumerate(members("ready", ready, "batches"))
    ]
    whole_number("places", places, at_most=8)
    if not 1 <= len(making) <= 8:
        raise ValueError(f"{len(making)} workers cannot be drawn; give what each of 1 to 8 makes")
    if len(ready) > places:
        raise ValueError(f"{len(ready)} batches are ready in {places} places; give more places")
    if computing is not None:
        whole_number("computing", computing, at_least=0)
    row, top, slot = 0.5, 0.5, 0.46
    height = max(row * len(making), 0.9)
    middle = top + height / 2
    queue, begin = 3.3, middle - row * len(making) / 2
    trainer = queue + max(slot * places + 1.0, 2.45)
    drawn, axes = paper(trainer + 1.75, top + height + 0.65, title=title)
    write(axes, 0.15, 0.22, "storage", ha="left", bold=True)
    write(axes, 1.25, 0.22, "workers", ha="left", bold=True)
    write(axes, queue, 0.22, "queue in shared memory", ha="left", bold=True)
    write(axes, trainer, 0.22, "trainer", ha="left", bold=True)
    for level in range(3):
        box(
            axes,
            0.15,
            middle - 0.36 + 0.24 * level,
            0.62,
            0.22,
            colour=tint(DATA, 0.5),
            edge=QUIET,
            thick=0.8,
        )
    for worker, batch in enumerate(making):
        y = begin + row * worker + row / 2
        busy = batch is not None
        box(
            axes,
            1.25,
            y - 0.19,
            1.3,
            0.38,
            f"makes {batch}" if busy else "waits",
            colour=COMPUTING if busy else WAITING,
        )
        if busy:
            arrow(axes, (0.8, middle + 0.2 * (y - middle)), (1.21, y), thick=1.4)
        arrow(
            axes,
            (2.59, y),
            (queue - 0.1, middle + 0.3 * (y - middle)),
            colour=SENDING if busy else WAITING,
            thick=1.4,
        )
    box(axes, queue - 0.06, middle - 0.29, slot * places + 0.12, 0.58, colour="none", edge=INK)
    for index in range(places):
        x = queue + slot * (places - 1 - index)
        is_ready = index < len(ready)
        box(
            axes,
            x + 0.03,
            middle - 0.2,
            slot - 0.06,
            0.4,
            str(ready[index]) if is_ready else "",
            bold=True,
            colour=DATA if is_ready else EMPTY,
        )
    arrow(
        axes,
        (queue + slot * places + 0.12, middle),
        (trainer - 0.06, middle),
        colour=WAITING if computing is None else SENDING,
    )
    box(
        axes,
        trainer,
        middle - 0.36,
        1.5,
        0.72,
        "waits" if computing is None else f"batch {computing}",
        colour=WAITING if computing is None else COMPUTING,
        bold=True,
    )
    keys(
        axes,
        0.15,
        top + height + 0.28,
        {
            "computing": (COMPUTING, "none"),
            "sending": (SENDING, "none"),
            "batch": (DATA, "none"),
            "waiting": (WAITING, "none"),
        },
    )
    return drawn


def draw_overlap(produce_s: float, device_s: float, *, steps: int) -> Figure:
    """Return a timeline of ``steps`` steps whose batches are made in turn with them, and by a
    thread beside them.

    A batch takes ``produce_s`` seconds, a step of the GPU ``device_s`` (:func:`simulate_feeding`).
    Lesson 10.
    """
    lanes = {"host": "the loop", "worker 0": "the thread", "device": "the GPU"}
    spans = [
        Span(f"{mode}: {lanes[bar.lane]}", bar.start_s, bar.end_s, bar.kind, bar.label)
        for mode, workers in {"in turn": 0, "overlapped": 1}.items()
        for bar in simulate_feeding(
            produce_s, device_s, steps=steps, workers=workers
        ).timeline.activities
    ]
    return plotting.gantt(spans, title=f"{steps} batches and {steps} steps (modelled)")


def explore_loader() -> None:
    """Display the busy share of a GPU as a figure to turn: workers, prefetch factor, and the time
    of a late batch.

    A step takes 20 ms, a batch 10 ms, and every seventh batch is late; the figure begins at the
    bet. For its values the formulas give what :func:`simulate_feeding` does. Lesson 10.
    """
    plotting.explore(
        title="For which share of the time does the GPU compute?",
        alt="The busy share of a GPU rises with the prefetch factor, up to the share that the "
        "average allows.",
        inputs=[
            Slider("workers", "workers", [1, 2, 3, 4, 5, 6, 8], 2),
            Slider("factor", "prefetch factor", [1, 2, 3, 4, 5, 6, 7, 8], 1),
            Slider("late", "ms for every seventh batch", list(range(10, 161, 10)), 100),
        ],
        formulas={
            "mean": "max(20, (60 + late) / 7 / workers)",
            "wait": "max(0, late - 20 * workers * factor)",
            "step": "max(mean, 20 + wait / 7)",
            "average": "100 * 20 / mean",
            "busy": "100 * 20 / step",
        },
        picture=Curves(
            along="factor",
            lines=[
                Series("average", "if every batch took the average time, %:", COLOURS["waiting"]),
                Series("busy", "in order, with the late batch, %:", COLOURS["computing"]),
            ],
            xlabel="prefetch factor",
            ylabel="busy share of the GPU, %",
            log_x=False,
            log_y=False,
        ),
    )
