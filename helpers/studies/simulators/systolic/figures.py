"""A systolic array in one cycle: what its elements hold, what waits at its edges, what has left at
the bottom.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from helpers.checks import one_of, whole_number
from helpers.studies._paper import (
    COMPUTING,
    DATA,
    INK,
    QUIET,
    SENDING,
    box,
    keys,
    paper,
    tint,
    write,
)
from helpers.studies.simulators.systolic._run import Frame, SystolicRun

MOST_LABELLED = 8  # elements along a side of an array whose elements are large enough to write in
_MOVES = {
    "weight": "b stays in the elements,\na moves right, sums move down",
    "output": "sums stay in the elements,\na moves right, b moves down",
    "input": "a stays in the elements,\nb moves right, sums move down",
}
_WAITING, _IDLE_EDGE = tint(DATA, 0.35), "#BBBBBB"
_MOST_OUTSIDE = {"left": 7, "top": 5, "bottom": 5}  # places at an edge
_GAP_IN = 0.2  # between two elements
_LEFT_IN, _TOP_IN, _BELOW_IN = 2.75, 0.75, 1.55  # least rooms round an array
_MARGIN_IN, _LINE_IN, _MORE_IN, _TRIANGLE_IN = 0.12, 0.27, 0.3, 0.1
_LABEL_IN, _TITLE_IN = 0.085, 0.108  # a character at 9.5 points, and of a title


def draw_array(run: SystolicRun, cycle: int, *, title: str = "") -> Figure:
    """Return the array of ``run`` in ``cycle``, which counts from 0: elements at work are coloured,
    idle ones empty.

    At the left and at the top operands wait, each as many places away as cycles; below are the
    results that have left. In each element stands what it holds: a02 is row 0, column 2 of a, and c
    is a @ b; a triangle shows what moved in this cycle. Every cycle of a run has the same size and
    everything in the same place, so the figures are frames for :func:`play`. ``title`` stands
    before the cycle. Raises ValueError for a run that was simulated without ``frames=True``, for an
    array of more than 8 x 8 elements and for a cycle that is not there, TypeError for what is no
    run. Lesson 14.
    """
    frame = _frame(run, cycle)
    before = f"{title}: " if title else ""
    view = _View(run, before)
    drawn, axes = paper(view.width, view.height, title=before + _describe_frame(run, frame))
    _write_keys(axes, frame, view)
    _draw_elements(axes, frame, view)
    _draw_outside(axes, frame, view)
    return drawn


def _frame(run: SystolicRun, cycle: int) -> Frame:
    one_of(
        "run",
        run,
        SystolicRun,
        "a run, such as systolic.simulate(a, b, rows=4, columns=4, frames=True)",
    )
    if not run.frames:
        raise ValueError("this run has no frames to draw; simulate it with frames=True")
    if max(run.rows, run.columns) > MOST_LABELLED:
        raise ValueError(
            f"the elements of an array of {run.rows} x {run.columns} are too small to write in; "
            f"give one of at most {MOST_LABELLED} x {MOST_LABELLED}"
        )
    return run.frames[whole_number("cycle", cycle, at_least=0, at_most=len(run.frames) - 1)]


def _describe_frame(run: SystolicRun, frame: Frame) -> str:
    return (
        f"Cycle {frame.cycle} of 0 to {len(run.frames) - 1}, {frame.phase}: "
        f"{np.count_nonzero(frame.active)} of {frame.active.size} at work"
    )


class _View:
    """Where things stand, in inches: the same for every cycle of a run."""

    def __init__(self, run: SystolicRun, title: str = "") -> None:
        self.run = run
        left, top = ("b", "a") if run.dataflow == "input" else ("a", "b")
        self.names = {"left": left, "top": top, "bottom": "c"}  # of the matrix that passes an edge
        self.edges = self._streams()
        self.room = _GAP_IN  # between the array and what is outside
        # how many places there are at each edge: as many as its longest stream needs, or as fit
        self.places = {
            edge: min(_MOST_OUTSIDE[edge], _longest_stream(trace))
            for edge, (trace, _) in self.edges.items()
        }
        matrices = {"a": (run.m, run.k), "b": (run.k, run.n), "c": (run.m, run.n)}
        longest = max(
            len(_label(run, name, high * wide - 1)) for name, (high, wide) in matrices.items()
        )
        self.label = _LABEL_IN * longest + 0.07
        # width and height of an element, and of a place outside, which is one cycle
        self.element = (2 * self.label + 0.14, 0.56)
        self.place = (self.label + 0.1, _LINE_IN)
        self.left = max(_LEFT_IN, _MORE_IN + self.places["left"] * self.place[0]) + self.room
        self.top = max(_TOP_IN, _MORE_IN + self.places["top"] * self.place[1]) + self.room
        self.right = self.corner(0, run.columns)[0] - _GAP_IN
        self.bottom = self.corner(run.rows, 0)[1] - _GAP_IN
        longest_title = max(len(title + _describe_frame(run, frame)) for frame in run.frames)
        self.width = max(self.right + _MARGIN_IN, 2 * _MARGIN_IN + _TITLE_IN * longest_title)
        below = self.room + self.places["bottom"] * self.place[1] + _MORE_IN
        self.height = self.bottom + max(_BELOW_IN, below)

    def operands(self, frame: Frame, edge: str) -> np.ndarray:
        """Return the places of what moves over the left edge, or the top one, in each element."""
        return frame.inputs if self.names[edge] == "a" else frame.filters

    def _streams(self) -> dict[str, tuple[np.ndarray, int]]:
        """Return the stream over each edge, an array of (cycles, rows or columns), and the way in
        time to what stands at the edge.

        At the left and the top it is what enters, in later cycles; below what has left, in earlier
        ones.
        """
        run, frames = self.run, self.run.frames
        empty = np.full(run.columns, -1)
        outputs_stay = run.dataflow == "output"
        leaving = "drain" if outputs_stay else "compute"
        into_left = [self.operands(frame, "left")[:, 0] for frame in frames]
        into_top = [
            self.operands(frame, "top")[0] if outputs_stay or frame.phase == "load" else empty
            for frame in frames
        ]
        out_of_last = [frame.sums[-1] if frame.phase == leaving else empty for frame in frames]
        return {
            "left": (np.array(into_left), 1),
            "top": (np.array(into_top), 1),
            "bottom": (np.array(out_of_last), -1),
        }

    def outside(self, cycle: int) -> dict[str, np.ndarray]:
        """Return the places that stand at each edge, an array of (places, rows or columns), and one
        place more than is shown.
        """
        return {
            edge: np.array(
                [
                    trace[at] if 0 <= at < len(trace) else np.full(trace.shape[1], -1)
                    for at in range(cycle + step, cycle + step * (self.places[edge] + 2), step)
                ]
            )
            for edge, (trace, step) in self.edges.items()
        }

    def corner(self, row: int, column: int) -> tuple[float, float]:
        """Return the upper left corner of an element."""
        return (
            self.left + column * (self.element[0] + _GAP_IN),
            self.top + row * (self.element[1] + _GAP_IN),
        )

    def corner_outside(self, edge: str, line: int, away: int) -> tuple[float, float]:
        """Return the upper left corner of a place in a row or column, ``away`` places from the
        array.
        """
        wide, high = self.place
        if edge == "left":
            return self.left - self.room - away * wide, self.corner(line, 0)[1] + (
                self.element[1] - high
            ) / 2
        x = self.corner(0, line)[0] + (self.element[0] - wide) / 2
        return (
            x,
            self.top - self.room - away * high
            if edge == "top"
            else self.bottom + self.room + (away - 1) * high,
        )


def _longest_stream(trace: np.ndarray) -> int:
    """Return for how many cycles at most something passes an edge without a pause."""
    busy = np.flatnonzero((trace >= 0).any(axis=1))
    return max(len(stream) for stream in np.split(busy, np.flatnonzero(np.diff(busy) > 1) + 1))


def _label(run: SystolicRun, name: str, place: int) -> str:
    row, column = divmod(place, run.k if name == "a" else run.n)
    return f"{name}{row},{column}" if max(run.m, run.n, run.k) > 10 else f"{name}{row}{column}"


def _write_keys(axes: Axes, frame: Frame, view: _View) -> None:
    run = view.run
    write(axes, _MARGIN_IN, 0.2, f"{run.dataflow}-stationary", ha="left", bold=True, size=11.5)
    tile = f"\ntile {frame.fold + 1} of {run.frames[-1].fold + 1}" if run.frames[-1].fold else ""
    write(
        axes,
        _MARGIN_IN,
        0.36,
        _MOVES[run.dataflow] + tile,
        ha="left",
        va="top",
        size=10,
        colour=QUIET,
    )
    legend = {
        "at work": (COMPUTING, "none"),
        "idle": ("white", _IDLE_EDGE),
        "waits to enter": (_WAITING, "none"),
        "has left": (DATA, INK),
    }
    y = view.bottom + 0.14
    for name, colours in legend.items():
        keys(axes, _MARGIN_IN, y, {name: colours})
        y += _LINE_IN
    _triangle(axes, _MARGIN_IN + 0.11, y + 0.11, right=True)
    write(axes, _MARGIN_IN + 0.3, y + 0.11, "moved in this cycle", size=10, ha="left")


def _draw_elements(axes: Axes, frame: Frame, view: _View) -> None:
    run, (wide, high) = view.run, view.element
    rightward, downward = view.operands(frame, "left"), view.operands(frame, "top")
    came_down = _came_down(frame, view)
    for row, column in np.ndindex(run.rows, run.columns):
        (x, y), active = view.corner(row, column), frame.active[row, column]
        box(
            axes,
            x,
            y,
            wide,
            high,
            colour=COMPUTING if active else "white",
            edge=INK if active else _IDLE_EDGE,
        )
        ink, half = INK if active else QUIET, view.label / 2 + 0.05
        for operands, name, middle in (
            (rightward, view.names["left"], x + half),
            (downward, view.names["top"], x + wide - half),
        ):
            if operands[row, column] >= 0:
                write(
                    axes,
                    middle,
                    y + 0.17,
                    _label(run, name, int(operands[row, column])),
                    size=9.5,
                    colour=ink,
                )
        if frame.sums[row, column] >= 0:
            label = _label(run, "c", int(frame.sums[row, column]))
            write(axes, x + wide / 2, y + high - 0.15, label, size=9.5, bold=True, colour=ink)
        if rightward[row, column] >= 0:
            _triangle(axes, x - _GAP_IN / 2, y + high / 2, right=True)
        if came_down[row, column]:
            _triangle(axes, x + wide / 2, y - _GAP_IN / 2, right=False)


def _came_down(frame: Frame, view: _View) -> np.ndarray:
    """Return into which elements something came from above in this cycle: an operand, or the sum of
    the one above.
    """
    run = view.run
    operands = frame.phase == "load" or (run.dataflow == "output" and frame.phase == "compute")
    before, now = (
        view.operands(step_frame, "top") if operands else step_frame.sums
        for step_frame in (run.frames[max(frame.cycle - 1, 0)], frame)
    )
    arrivals = (now >= 0) & ((now != before) | (frame.cycle == 0))
    return arrivals if operands else arrivals & (np.arange(run.rows)[:, None] > 0)


def _draw_outside(axes: Axes, frame: Frame, view: _View) -> None:
    wide, high = view.place
    for edge, places in view.outside(frame.cycle).items():
        colour, border = (DATA, INK) if edge == "bottom" else (_WAITING, "none")
        for away, line in np.argwhere(places >= 0):
            x, y = view.corner_outside(edge, line, away + 1)
            if away + 1 < len(places):
                label = _label(view.run, view.names[edge], places[away, line])
                box(
                    axes,
                    x + 0.02,
                    y + 0.02,
                    wide - 0.04,
                    high - 0.04,
                    label,
                    colour=colour,
                    edge=border,
                    thick=0.8,
                    size=9,
                )
            elif away and places[away - 1, line] >= 0:  # the stream goes on beyond the last place
                x, y = (
                    (x + wide - 0.12, y + high / 2)
                    if edge == "left"
                    else (x + wide / 2, y + (0.1 if edge == "bottom" else high - 0.1))
                )
                write(axes, x, y, "...", size=9, colour=QUIET)


def _triangle(axes: Axes, x: float, y: float, *, right: bool) -> None:
    """Draw a triangle round (x, y) that points to the right or down."""
    half = _TRIANGLE_IN / 2
    along, across = np.array([-half, half, -half]), np.array([-half, 0, half])
    corners = (x + along, y + across) if right else (x + across, y + along)
    axes.add_artist(Polygon(np.transpose(corners), facecolor=SENDING, edgecolor="none"))
