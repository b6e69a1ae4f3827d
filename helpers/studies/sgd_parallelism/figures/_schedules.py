"""Two workers and a training of two layers, cut in four ways: who computes what, and who waits for
whom.
"""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.checks import number
from helpers.plotting._style import COLOURS
from helpers.studies._paper import (
    COMPUTING,
    DATA,
    INK,
    QUIET,
    SENDING,
    arrow,
    box,
    keys,
    paper,
    tint,
    write,
)

_LEFT_IN, _PER_UNIT_IN, _WIDE_IN = 0.75, 0.74, 7.3
_LANE_IN, _HEAD_IN, _PANEL_IN = 0.3, 0.34, 1.2
_BETWEEN_IN = 0.13  # the two lanes: the weights that both have in common
UNITS = 8.0  # a worker alone makes two updates
_LAYERS = (("1", False), ("2", False), ("2", True), ("1", True))  # forward, then backward
_EXCHANGE = 0.25
_FORWARD, _BACKWARD = tint(COMPUTING, 0.35), tint(COLOURS["backward"], 0.35)


class _Task(NamedTuple):
    lane: int
    start: float
    length: float
    text: str
    backward: bool


class _Panel(NamedTuple):
    source: str
    says: str
    tasks: list[_Task]
    exchanges: list[float]  # in which both wait
    # a worker adds to the weights and fetches them, and waits for nobody
    messages: list[tuple[int, float]]


def draw_sources(
    *, until: float = UNITS, title: str = "Two workers share a training, four ways"
) -> Figure:
    """Return the four sources of parallelism as schedules of two workers, up to the time ``until``.

    A unit is one layer, forward or backward, of a whole batch on one worker; the network has two
    layers, and one worker alone makes two updates in 8 units. Half a layer and half of the images
    are half a unit. That an exchange takes a quarter of one is made up. Raises ValueError unless
    ``until`` is above 0 and at most 8. Lesson 04.
    """
    until = number("until", until, above=0)
    if until > UNITS:
        raise ValueError(f"until={until:g} is behind the end; give at most {UNITS:g} units")
    drawn, axes = paper(_WIDE_IN, 4 * _PANEL_IN + 0.45, title=title)
    for index, panel in enumerate(_PANELS):
        _draw(axes, panel, 0.06 + index * _PANEL_IN, until)
    now = _x_of(until)
    axes.plot([now, now], [0.1, 4 * _PANEL_IN], color=QUIET, linewidth=1, linestyle=":")
    legend = {"layer, forward": (_FORWARD, "none"), "layer, backward": (_BACKWARD, "none"),
             "both exchange": (SENDING, "none"), "weights in common": (DATA, "none")}  # fmt: skip
    keys(axes, 0.12, 4 * _PANEL_IN + 0.1, legend)
    return drawn


def _x_of(unit: float) -> float:
    return _LEFT_IN + unit * _PER_UNIT_IN


def _draw(axes: Axes, panel: _Panel, top: float, until: float) -> None:
    write(axes, 0.12, top + 0.15, panel.source, size=12, bold=True, ha="left")
    write(axes, 2.45, top + 0.15, panel.says, size=11, ha="left", colour=INK)
    tops = [top + _HEAD_IN, top + _HEAD_IN + _LANE_IN + _BETWEEN_IN]
    for lane, name in enumerate("AB"):
        write(axes, _LEFT_IN - 0.12, tops[lane] + _LANE_IN / 2, name, ha="right", colour=QUIET)
    between = tops[0] + _LANE_IN, tops[1]
    if panel.messages:
        width = UNITS * _PER_UNIT_IN
        box(axes, _x_of(0), between[0] + 0.015, width, _BETWEEN_IN - 0.03, colour=DATA)
    for task in panel.tasks:
        end = min(task.start + task.length, until)
        if task.start < end:
            left, right = _x_of(task.start) + 0.01, _x_of(end) - 0.01
            colour = _BACKWARD if task.backward else _FORWARD
            _bar(axes, left, right, tops[task.lane], _LANE_IN, colour)
            if end == task.start + task.length and task.length > 0.4:
                write(axes, (left + right) / 2, tops[task.lane] + _LANE_IN / 2, task.text, size=10)
    for start in panel.exchanges:
        end = min(start + _EXCHANGE, until)
        if start < end:
            _bar(axes, _x_of(start), _x_of(end), tops[0], 2 * _LANE_IN + _BETWEEN_IN, SENDING)
    for lane, when in panel.messages:
        if when <= until:
            outward, middle = (-0.22, 0.22)[lane], between[0] + _BETWEEN_IN / 2
            start_at = _x_of(when), between[lane] + outward
            arrow(axes, start_at, (_x_of(when), middle), thick=1.8)


def _bar(axes: Axes, left: float, right: float, top: float, height: float, colour: str) -> None:
    axes.add_patch(Rectangle((left, top), right - left, height, facecolor=colour, edgecolor="none"))


def _halves(source: str, says: str, text: str, exchanges_after: tuple[int, ...]) -> _Panel:
    """Return a panel of two workers that do half of each layer, and exchange after some of them."""
    tasks, exchanges, now = [], [], 0.0
    while now < UNITS:
        for index, (layer, backward) in enumerate(_LAYERS):
            tasks += [_Task(lane, now, 0.5, text + layer, backward) for lane in (0, 1)]
            now += 0.5
            if index in exchanges_after:
                exchanges.append(now)
                now += _EXCHANGE
    return _Panel(source, says, tasks, exchanges, [])


def _wholes(source: str, says: str, ahead: int, messages: list[tuple[int, float]]) -> _Panel:
    """Return a panel of two workers with trainings of their own, the second so many layers
    ``ahead``.
    """
    tasks = [
        _Task(lane, float(unit), 1.0, *_LAYERS[(unit + lane * ahead) % len(_LAYERS)])
        for lane in (0, 1)
        for unit in range(int(UNITS))
    ]
    return _Panel(source, says, tasks, [], messages)


_PANELS = (
    # nobody asks for the gradient of the images
    _halves("within a layer", "half of every layer; exchange between layers", "½ ", (0, 1, 2)),
    _halves("over examples", "half of the images; one exchange per update", "", (3,)),
    _wholes(
        "over updates",
        "own images, weights in common; nobody waits",
        2,
        [(0, 4.0), (0, 8.0), (1, 2.0), (1, 6.0)],
    ),
    _wholes("over models", "two trainings, which need nothing of each other", 0, []),
)
