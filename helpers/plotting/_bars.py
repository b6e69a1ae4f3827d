"""Bars: the three numbers of an experiment side by side, and candidates of one comparison."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import NullFormatter

from helpers import units
from helpers.checks import boolean, members, named, number
from helpers.plotting._arguments import lists_of_numbers, require_lengths
from helpers.plotting._style import (
    FOUND,
    MEASURED,
    MODELLED,
    PREDICTED,
    decades,
    figure,
    name_rows,
    unit_axis,
)

_COLOURS = {"predicted": PREDICTED, "modelled": MODELLED, **dict.fromkeys(FOUND, MEASURED)}
_GROUP_WIDTH = 0.9
_LARGEST_PT, _SMALLEST_PT = 11, 9.5  # of the numbers above bars
_APART_PT = 4  # between two of them that stand side by side, at least
# of height for each horizontal bar: what it has, what its name needs
_BAR_IN, _LEAST_BAR_IN = 0.45, 0.22
# of height around the bars, and what a slide draws without making it much smaller
_AROUND_IN, _SLIDE_IN = 1.4, 4.0


def draw_three(
    settings: Sequence[str],
    numbers: Mapping[str, Sequence[float | None]],
    *,
    unit: str,
    title: str,
    xlabel: str,
    log: bool = False,
) -> Figure:
    """Return grouped bars: for each of ``settings`` the predicted and modelled numbers and those
    that were found.

    ``numbers`` maps 'predicted', 'modelled' and one of 'measured', 'counted', 'simulated',
    'published' or 'stated' to one value in ``unit`` a setting; None leaves the place free, as where
    the reader made no prediction. ``title`` and ``xlabel`` are the texts of the axes; ``log=True``
    makes the values' axis logarithmic.

    Raises TypeError or ValueError for what cannot be drawn.

    >>> numbers = {"predicted": [None, 1e-3], "modelled": [2e-6, 2e-3], "measured": [3e-6, 4e-3]}
    >>> fig = draw_three(["L1", "DRAM"], numbers, unit="s", title="A copy", xlabel="from", log=True)
    >>> [text.get_text() for text in fig.legends[0].get_texts()]
    ['predicted', 'modelled', 'measured']

    Lesson 01.
    """
    boolean("log", log)
    settings = members("settings", settings, "names")
    numbers = lists_of_numbers("numbers", numbers)
    if not settings or not numbers:
        raise ValueError("nothing to draw: give at least one setting and one name with its numbers")
    unknown = sorted(set(numbers) - set(_COLOURS))
    if unknown:
        raise ValueError(
            f"an experiment has the numbers {', '.join(_COLOURS)}, not {', '.join(unknown)}"
        )
    if len(found_names := [name for name in FOUND if name in numbers]) > 1:
        raise ValueError(
            f"{' and '.join(found_names)} have one colour; draw one of them beside the model"
        )
    require_lengths(numbers, len(settings), "settings need as many numbers")
    fig, axes = figure(title=title)
    names = [
        name
        for name in _COLOURS
        if name in numbers and any(value is not None for value in numbers[name])
    ]
    width = _GROUP_WIDTH / max(1, len(names))
    annotations: list[Annotation] = []
    for name_index, name in enumerate(names):
        values = numbers[name]
        shift = (name_index - (len(names) - 1) / 2) * width
        bars = axes.bar(
            [index + shift for index in range(len(settings))],
            [0 if value is None else value for value in values],
            width=0.92 * width,
            color=_COLOURS[name],
            label=name,
        )
        texts = ["" if value is None else units.text(value, unit) for value in values]
        annotations += axes.bar_label(
            bars, labels=texts, padding=2, fontsize=_LARGEST_PT, color="#222222"
        )
    if log:
        axes.set_yscale("log")
    unit_axis(axes, "y", unit)
    axes.grid(axis="x", visible=False)
    axes.margins(x=0.02, y=0.12)
    axes.set_xticks(range(len(settings)), settings)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(_axis_name(unit))
    fig.legend(loc="outside lower left", ncols=3, fontsize=11, frameon=False)
    if not _separate_labels(annotations, fig):
        for text in annotations:
            text.set(rotation=90, fontsize=_LARGEST_PT)
        axes.margins(y=0.35)
    return fig


def _separate_labels(texts: Sequence[Annotation], fig: Figure) -> bool:
    """Write ``texts`` smaller, in half points, until all of them stand apart; return whether that
    was enough.
    """
    beside = _APART_PT / 2 / 72 * fig.dpi
    for half_points in range(2 * _LARGEST_PT, int(2 * _SMALLEST_PT) - 1, -1):
        for text in texts:
            text.set_fontsize(half_points / 2)
        fig.draw_without_rendering()
        boxes = [text.get_window_extent().padded(beside, 1) for text in texts if text.get_text()]
        if not any(box.overlaps(neighbour) for box, neighbour in itertools.combinations(boxes, 2)):
            return True
    return False


def draw_bars(values: Mapping[str, float], *, unit: str, title: str, log: bool = False) -> Figure:
    """Return one horizontal line a name, in the given order from the top; ``values`` in ``unit``.

    ``title`` stands above them. On a linear axis they are bars from zero. A logarithmic axis
    (``log=True``) has no zero for a bar to start from, so there they are points. Raises TypeError
    or ValueError for what cannot be drawn.

    >>> fig = draw_bars({"cache": 4e-9, "memory": 9e-8}, unit="s", title="One load", log=True)
    >>> [text.get_text() for text in fig.axes[0].texts]
    ['4.00 ns', '90.0 ns']

    Lesson 10.
    """
    boolean("log", log)
    values = {
        name: number(f"values[{name!r}]", value)
        for name, value in named("values", values, "numbers").items()
    }
    if not values:
        raise ValueError("nothing to draw: give at least one name and value")
    if log and min(values.values()) <= 0:
        raise ValueError(
            "a logarithmic axis shows numbers above zero only; draw these with log=False"
        )
    fig, axes = figure(title=title, height_in=_height_in(len(values)))
    positions, numbers = range(len(values)), list(values.values())
    if log:
        axes.set_xscale("log")
        axes.plot(numbers, positions, "o", color=MEASURED, markersize=11)
        axes.set_xlim(decades(numbers, room=2))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.barh(positions, numbers, color=MEASURED, height=0.65)
        axes.margins(x=0.15)
    for position, value in zip(positions, numbers, strict=True):
        axes.annotate(
            units.text(value, unit),
            (value, position),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            fontsize=11,
        )
    name_rows(axes, list(values))
    unit_axis(axes, "x", unit)
    axes.set_xlabel(
        _axis_name(unit) + (" (each labelled line is ten times the one before)" if log else "")
    )
    return fig


def _height_in(bars: int) -> float:
    """Return the height of a figure of so many horizontal bars: up to a slide's, and above that as
    the names need.
    """
    return min(_AROUND_IN + _BAR_IN * bars, max(_SLIDE_IN, _AROUND_IN + _LEAST_BAR_IN * bars))


def _axis_name(unit: str) -> str:
    names = {
        "s": "time",
        "B": "bytes",
        "B/s": "bandwidth",
        "FLOP": "operations",
        "FLOP/s": "operations a second",
    }
    return names.get(unit, unit)
