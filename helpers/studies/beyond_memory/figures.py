"""The figures of lesson 12: layers taken in turn, epochs estimated, batches in shared memory, and
checkpointing's segments to turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from helpers import plotting
from helpers.checks import members, number
from helpers.plotting import COLOURS, Curves, Series, Slider
from helpers.studies._paper import (
    COMPUTING,
    DATA,
    EMPTY,
    INK,
    QUIET,
    SENDING,
    arrow,
    box,
    paper,
    write,
)
from helpers.studies.beyond_memory._estimate import TrainingEstimate
from helpers.studies.beyond_memory._layers import TurnSweep

_BATCH_IN, _LEFT_IN, _PROCESS_IN = 1.55, 1.35, 1.7


def draw_turns(sweep: TurnSweep) -> Figure:
    """Return the time of a layer by the number of layers in a loop, for both orders, as
    :func:`sweep_layers` measured.

    A line marks the number that the L2 cache holds, where its size is known. Lesson 12.
    """
    figure, axes = plotting.figure(title="One layer's time, by the layers in its loop")
    layers = [row.layers for row in sweep.rows]
    for label, colour, times in (
        ("forward only", COLOURS["sending"], [row.forward_s for row in sweep.rows]),
        (
            "forward and backward by turns",
            COLOURS["computing"],
            [row.by_turns_s for row in sweep.rows],
        ),
    ):
        axes.plot(
            layers,
            [1e6 * time_s for time_s in times],
            "o-",
            color=colour,
            markersize=4,
            label=label,
        )
    if sweep.cache_bytes:
        layers_in_cache = sweep.cache_bytes / sweep.layer_bytes
        axes.axvline(layers_in_cache, color=QUIET, linestyle="--", linewidth=1.2)
        axes.text(
            layers_in_cache + 0.15,
            0.02,
            "the L2 cache is full",
            transform=axes.get_xaxis_transform(),
            color=QUIET,
            size=10,
        )
    axes.set(xlabel="layers in the loop", ylabel="time of a layer, us (measured)", ylim=(0, None))
    axes.set_xlim(0, max(layers) + 1)
    axes.legend(loc="lower right")
    return figure


def draw_epoch_times(estimate: TrainingEstimate) -> Figure:
    """Return the seconds of one epoch over the width of the model: at the median step and at the
    slowest.

    >>> from helpers import LeNet
    >>> from helpers.studies.beyond_memory import estimate_training_for
    >>> estimate = estimate_training_for(LeNet, 2)  # doctest: +SKIP
    >>> draw_epoch_times(estimate).axes[0].get_xlabel()  # doctest: +SKIP
    'hidden units'
    """
    curves = {
        "estimated": [size.estimated_s / estimate.epochs for size in estimate.sizes],
        "at the slowest step": [size.high_s / estimate.epochs for size in estimate.sizes],
    }
    return plotting.draw_curves(
        [size.hidden for size in estimate.sizes],
        curves,
        unit="s",
        size_unit="",
        title=f"One epoch of {estimate.model}, estimated from a few steps",
        xlabel="hidden units",
        ylabel="time of an epoch",
    )


def draw_shared_batches(
    batches: Sequence[tuple[str, bool, bool]],
    *,
    room: float,
    worker: str = "worker",
    title: str = "",
) -> Figure:
    """Return a trainer and its worker above shared memory with ``room`` batches of space, and who
    holds which batch.

    Each of ``batches`` is its name, whether the trainer holds it, and whether the worker does. What
    lies beyond ``room`` is drawn as not fitting. An empty name of the ``worker`` leaves it out, and
    ``title`` is above the drawing. Raises ValueError for no batches, more than 6, or no room.
    Lesson 12.
    """
    batches = list(members("batches", batches, "(name, trainer holds it, worker holds it)"))
    if not 1 <= len(batches) <= 6:
        raise ValueError(f"{len(batches)} batches cannot be drawn; give 1 to 6")
    room = number("room", room, above=0)
    right = _LEFT_IN + max(len(batches), math.ceil(room)) * _BATCH_IN
    figure, axes = paper(right + 0.3, 2.75, title=title)
    processes = [("trainer", _LEFT_IN + _PROCESS_IN / 2, COMPUTING, -0.12)]
    if worker:
        processes.append((worker, right - _PROCESS_IN / 2, SENDING, 0.12))
    for name, x, colour, _ in processes:
        box(axes, x - _PROCESS_IN / 2, 0.2, _PROCESS_IN, 0.5, name, colour=colour)
    write(axes, _LEFT_IN - 0.15, 0.45, "processes", ha="right", bold=True)
    write(axes, _LEFT_IN - 0.15, 2.02, "/dev/shm", ha="right", bold=True)
    box(axes, _LEFT_IN - 0.06, 1.68, room * _BATCH_IN + 0.12, 0.7, colour="none", edge=INK)
    for index, (name, *holders) in enumerate(batches):
        left, fits = _LEFT_IN + index * _BATCH_IN, index + 1 <= room
        box(
            axes,
            left + 0.05,
            1.75,
            _BATCH_IN - 0.1,
            0.56,
            name,
            size=10,
            bold=not fits,
            colour=DATA if fits else EMPTY,
            edge="none" if fits else INK,
        )
        if not fits:
            write(axes, left + _BATCH_IN / 2, 2.55, "no room", size=10, bold=True)
        # a worker may be left out
        for (_, x, colour, offset), holds in zip(processes, holders, strict=False):
            if holds:
                arrow(
                    axes, (x, 0.74), (left + _BATCH_IN / 2 + offset, 1.72), thick=1.6, colour=colour
                )
    return figure


def explore_segments() -> None:
    """Display the activations of a checkpointed step of Llama 2 7B as a figure to turn, by the
    number of segments.

    A segment saves its input, and in the backward pass all activations of one segment are alive at
    once. A gated block of width 4,096 and feed-forward width 11,008 saves 153,600 bytes per token,
    its input 8,192 (lesson 11). Chen and others, 2016 (arXiv:1604.06174), has the method. Lesson
    12.
    """
    plotting.explore(
        title="Into how many segments do you cut 32 blocks?",
        alt="More segments save more inputs and hold less of one segment at once; the sum has a "
        "minimum.",
        inputs=[
            Slider("segments", "segments", [1, 2, 4, 8, 16, 32], 32),
            Slider("tokens", "tokens", [512, 1024, 2048, 4096, 8192, 16384], 4096),
        ],
        formulas={
            "inputs": "segments * 8192 * tokens / 1e9",
            "inside": "32 / segments * 153600 * tokens / 1e9",
            "total": "inputs + inside",
        },
        picture=Curves(
            along="segments",
            lines=[
                Series("inputs", "saved inputs of all segments, GB:", COLOURS["sending"]),
                Series("inside", "activations of one segment, GB:", COLOURS["data"]),
                Series("total", "both together, GB:", COLOURS["computing"]),
            ],
            xlabel="segments",
            ylabel="activations at the peak, GB",
            log_x=False,
            log_y=False,
        ),
    )
