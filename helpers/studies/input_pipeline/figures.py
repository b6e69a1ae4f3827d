"""A drawing of workers that make batches, a queue, and the trainer that takes them. Lesson 10."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from helpers.checks import members, whole_number
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


def draw_loader(
    making: Sequence[int | None], ready: Sequence[int], computing: int | None, *, places: int, title: str = ""
) -> Figure:
    """Return workers that make batches, the queue in shared memory, and the trainer that takes them.

    ``making`` has the batch of each worker (None: it waits), ``ready`` the batches in the queue, the next one first,
    ``computing`` the batch in the trainer (None: it waits), ``places`` how many the queue holds. ``title`` stands above
    the drawing. Raises ValueError for no or more than 8 workers, and more ready batches than places. Lesson 12.
    """
    making = [None if batch is None else whole_number(f"making[{worker}]", batch, at_least=0)
              for worker, batch in enumerate(members("making", making, "batches or None"))]  # fmt: skip
    ready = [whole_number(f"ready[{place}]", batch, at_least=0) for place, batch in enumerate(
             members("ready", ready, "batches"))]  # fmt: skip
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
        box(axes, 0.15, middle - 0.36 + 0.24 * level, 0.62, 0.22, colour=tint(DATA, 0.5), edge=QUIET, thick=0.8)
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
            axes, (2.59, y), (queue - 0.1, middle + 0.3 * (y - middle)), colour=SENDING if busy else WAITING, thick=1.4
        )
    box(axes, queue - 0.06, middle - 0.29, slot * places + 0.12, 0.58, colour="none", edge=INK)
    for place in range(places):
        x = queue + slot * (places - 1 - place)
        held = place < len(ready)
        box(axes, x + 0.03, middle - 0.2, slot - 0.06, 0.4, str(ready[place]) if held else "", bold=True,
            colour=DATA if held else EMPTY)  # fmt: skip
    taken = bool(ready) or computing is not None
    arrow(axes, (queue + slot * places + 0.12, middle), (trainer - 0.06, middle), colour=SENDING if taken else WAITING)
    box(axes, trainer, middle - 0.36, 1.5, 0.72, "waits" if computing is None else f"batch {computing}",
        colour=WAITING if computing is None else COMPUTING, bold=True)  # fmt: skip
    keys(axes, 0.15, top + height + 0.28, {"computing": (COMPUTING, "none"), "sending": (SENDING, "none"),
                                           "batch": (DATA, "none"), "waiting": (WAITING, "none")})  # fmt: skip
    return drawn
