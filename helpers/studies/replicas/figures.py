"""The figures of lesson 19: a loop and a stack, gaps between epochs, the ladder, and where replicas
are coupled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from helpers import plotting
from helpers.checks import members, named, whole_number
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
    paper,
    tint,
    write,
)
from helpers.studies.replicas._epochs import EpochTimes
from helpers.studies.replicas._mistakes import MISTAKES, REPLICAS, is_changed

_NAME_IN, _STAGE_IN, _GAP_IN, _ROW_IN, _TOP_IN, _MOST = 1.05, 0.95, 0.3, 0.42, 0.62, 12


def draw_replicas(stages: Sequence[str], *, replicas: int = 4, title: str) -> Figure:
    """Return a step of ``stages`` for all replicas in a loop, and below it in a stack: each box is
    a call, numbered.

    ``title`` stands above both.

    Raises TypeError or ValueError for stages that are no texts, and unless ``replicas`` are 2 to
    12. Lesson 19.
    """
    stages, replicas = _check(stages, replicas)
    height = replicas * _ROW_IN
    figure, axes = paper(_width(stages), 2 * (_TOP_IN + height) + 0.5, title=title)
    for looped, top in ((True, _TOP_IN), (False, 2 * _TOP_IN + height + 0.3)):
        calls = len(stages) * (replicas if looped else 1)
        heading = f"{'a loop' if looped else 'a stack'}: {calls} calls"
        write(axes, 0.12, top - 0.42, heading, size=13, bold=True, ha="left")
        _lanes(axes, stages, replicas, top)
        for index in range(len(stages)):
            if looped:
                for replica in range(replicas):
                    number = str(replica * len(stages) + index + 1)
                    _stage(axes, index, top + replica * _ROW_IN, number, tint(COMPUTING, 0.35))
            else:
                left, number = _left(index), str(index + 1)
                colour = tint(COMPUTING, 0.35)
                box(axes, left, top + 0.02, _STAGE_IN, height - 0.04, number, colour=colour)
    return figure


def draw_couplings(
    stages: Sequence[str], couplings: Mapping[str, str], *, replicas: int = 4, title: str
) -> Figure:
    """Return a stack's step: a lane a replica, and a bar across them at each of ``stages`` that
    ``couplings`` names.

    A coupling's text, below its bar, says what passes from replica to replica there; ``title``
    stands above all. Raises TypeError or ValueError for stages that are no texts, couplings of no
    stage, and unless ``replicas`` are 2 to 12. Lesson 19.
    """
    stages, replicas = _check(stages, replicas)
    named("couplings", couplings, "texts by their stages")
    unknown = next((name for name in couplings if name not in stages), None)
    if unknown is not None:
        raise ValueError(
            f"couplings has {unknown!r}, which is no stage; the stages are {', '.join(stages)}"
        )
    height = replicas * _ROW_IN
    figure, axes = paper(_width(stages), _TOP_IN + height + 0.75, title=title)
    _lanes(axes, stages, replicas, _TOP_IN)
    for index, stage in enumerate(stages):
        for replica in range(replicas):
            colour = tint(DATA, 0.45) if index == 0 else EMPTY
            _stage(axes, index, _TOP_IN + replica * _ROW_IN, "", colour)
        if stage in couplings:
            x = _left(index) + _STAGE_IN / 2
            box(axes, x - 0.14, _TOP_IN + 0.02, 0.28, height - 0.04, colour=SENDING)
            write(axes, x, _TOP_IN + height + 0.14, couplings[stage], size=10, va="top", colour=INK)
    return figure


def draw_epochs(runs: Mapping[str, EpochTimes], *, title: str) -> Figure:
    """Return the steps and the gaps of ``runs``, by name, each in a lane of its own under
    ``title``.

    All lanes end with the shortest run, and gaps of less than a hundredth of this time are left
    out. Lesson 19.
    """
    until = min(run.steps_s[-1][1] for run in runs.values())
    spans = []
    for name, run in runs.items():
        ended = 0.0
        for begin, end in run.steps_s:
            if ended >= until:
                break
            if begin - ended > until / 100:
                spans.append(plotting.Span(name, ended, min(begin, until), "waiting, no step runs"))
            if begin < until:
                spans.append(plotting.Span(name, begin, min(end, until), "computing, a step"))
            ended = end
    return plotting.gantt(spans, title=title, xlabel="time since the first epoch began")


def draw_ladder(
    times_s: Mapping[int, Mapping[str, float]],
    *,
    title: str,
    ylabel: str = "times as fast as the first program",
) -> Figure:
    """Return each program's speed relative to the first one, a line for each number of replicas.

    ``times_s`` holds the seconds of a step, by number of replicas and then by the text that names
    the program below the axis, from left to right and the same for all. ``title`` stands above,
    ``ylabel`` at the axis. Raises ValueError for numbers of replicas with other programs. Lesson
    19.
    """
    labels = list(next(iter(times_s.values())))
    figure, axes = plotting.figure(title=title, height_in=4.4)
    for (replicas, row), marker in zip(times_s.items(), "^so", strict=False):
        if list(row) != labels:
            raise ValueError(
                f"{replicas} replicas have the programs {list(row)}, the first {labels}; give the "
                "same"
            )
        speeds = [row[labels[0]] / time_s for time_s in row.values()]
        label = "1 replica" if replicas == 1 else f"{replicas} replicas"
        axes.semilogy(range(len(labels)), speeds, marker + "--", linewidth=1, label=label)
    axes.axhline(1, color=QUIET)
    axes.set_xticks(range(len(labels)), labels, fontsize=9)
    axes.minorticks_off()
    ticks = [0.1, 0.3, 1, 3, 10, 30, 100]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set(ylabel=ylabel)
    axes.legend()
    return figure


def draw_changes(changes: Tensor, *, title: str) -> Figure:
    """Return a square for each mistake and replica of ``changes``, coloured where the fit has
    changed.

    ``changes`` are those of :func:`change_fits`, and ``title`` stands above. Lesson 19.
    """
    figure, axes = plotting.figure(title=title, height_in=4.2)
    for (row, replica), changed in np.ndenumerate(is_changed(changes).numpy()):
        colour, text = (SENDING, "changed") if changed else (WAITING, "same")
        axes.scatter(replica, row, s=1700, marker="s", color=colour)
        axes.text(replica, row, text, ha="center", va="center", fontsize=9)
    axes.set_xticks(range(len(REPLICAS)), REPLICAS)
    axes.set_yticks(range(len(MISTAKES)), MISTAKES)
    axes.set(xlim=(-0.5, len(REPLICAS) - 0.5), ylim=(len(MISTAKES) - 0.5, -0.5))
    axes.grid(visible=False)
    return figure


def draw_clipping(losses: Mapping[str, Sequence[float]], *, title: str) -> Figure:
    """Return the median losses of :func:`median_losses` over the steps, a line for each name.

    Lesson 19.
    """
    figure, axes = plotting.figure(title=title)
    for (name, values), style in zip(losses.items(), ("-", "--", "-.", ":"), strict=False):
        axes.semilogy(values, style, label=name)
    axes.set_yticks([0.01, 0.03, 0.1, 0.3], ["0.01", "0.03", "0.1", "0.3"])
    axes.minorticks_off()
    axes.set(xlabel="step", ylabel="median loss of all replicas")
    axes.legend()
    return figure


def _check(stages: Sequence[str], replicas: int) -> tuple[list[str], int]:
    return list(members("stages", stages, "names", kind=str)), whole_number(
        "replicas", replicas, at_least=2, at_most=_MOST
    )


def _width(stages: Sequence[str]) -> float:
    return _left(len(stages)) - _GAP_IN + 0.15


def _left(index: int) -> float:
    return _NAME_IN + index * (_STAGE_IN + _GAP_IN)


def _stage(axes: Axes, index: int, top: float, number: str, colour: str) -> None:
    """Draw the box of one replica's stage."""
    box(axes, _left(index), top + 0.05, _STAGE_IN, _ROW_IN - 0.1, number, colour=colour)


def _lanes(axes: Axes, stages: Sequence[str], replicas: int, top: float) -> None:
    """Write the names of stages and replicas, and draw the arrows from stage to stage."""
    for index, stage in enumerate(stages):
        write(axes, _left(index) + _STAGE_IN / 2, top - 0.12, stage, size=10, colour=QUIET)
    for replica in range(replicas):
        middle, name = top + (replica + 0.5) * _ROW_IN, f"replica {replica}"
        write(axes, _NAME_IN - 0.12, middle, name, size=10, ha="right", colour=QUIET)
        for index in range(1, len(stages)):
            start, end = (_left(index) - _GAP_IN, middle), (_left(index), middle)
            arrow(axes, start, end, colour=QUIET, thick=1)
