"""Who was busy, or alive, from when to when: one lane a device, a rank or a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from helpers._checks import members, number
from helpers.plotting._style import STYLE_FILE, figure, ink_on, unit_axis
from helpers.results import Result

_LANE_INCHES = 0.22
_LABEL_SHARE = 0.0165  # of the axis that a character of a label needs
_READ = ("lane", "start", "end", "kind", "label")


@dataclass(frozen=True)
class Span(Result):
    """One bar: what ``kind`` of thing filled ``lane`` from ``start`` to ``end``, both in the figure's unit."""

    lane: str
    start: float
    end: float
    kind: str
    label: str = ""


def gantt(spans: Sequence[Span], *, title: str, unit: str = "s", xlabel: str = "time") -> Figure:
    """Return a Gantt chart of ``spans``: lanes from the top in the order they first appear, a colour a kind.

    ``unit`` is one of ``units.BASE_UNITS``; "" counts steps. A label is written where its bar has room for it.
    Raises TypeError for what is no span, ValueError for no spans and a span that ends before it starts. Lesson 07.
    """
    spans = members("spans", spans, "Spans")
    strange = next((span for span in spans if not all(hasattr(span, name) for name in _READ)), None)
    if strange is not None:
        raise TypeError(f"spans holds {strange!r}, which has no {', '.join(_READ)}; give a list of Spans")
    if not spans:
        raise ValueError("nothing to draw: give at least one span")
    for place, span in enumerate(spans):
        number(f"spans[{place}].start", span.start)
        number(f"spans[{place}].end", span.end)
    backwards = next((span for span in spans if span.end < span.start), None)
    if backwards:
        raise ValueError(f"the span {backwards.label or backwards.kind!r} ends before it starts: {backwards}")
    lanes, kinds = list(dict.fromkeys(s.lane for s in spans)), list(dict.fromkeys(s.kind for s in spans))
    with plt.style.context(STYLE_FILE):
        palette = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    colours = {kind: palette[place % len(palette)] for place, kind in enumerate(kinds)}
    drawn, axes = figure(title=title, height_in=1.5 + _LANE_INCHES * len(lanes))
    whole = max(span.end for span in spans) - min(span.start for span in spans) or 1
    for span in spans:
        length, lane = span.end - span.start, lanes.index(span.lane)
        axes.barh(
            lane, length, left=span.start, height=0.78, color=colours[span.kind], edgecolor="white", linewidth=0.8
        )
        if span.label and length / whole > _LABEL_SHARE * len(span.label):
            axes.text(
                span.start + length / 2,
                lane,
                span.label,
                ha="center",
                va="center",
                fontsize=11,
                color=ink_on(colours[span.kind]),
            )
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(xlabel)
    if unit:
        unit_axis(axes, "x", unit)
    handles = [Patch(color=colours[kind], label=kind) for kind in kinds]
    drawn.legend(handles=handles, ncols=min(5, len(kinds)), loc="outside lower left", frameon=False, fontsize=11)
    return drawn
