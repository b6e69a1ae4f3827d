"""Who was busy, or alive, from when to when: one lane a device, a rank or a tensor."""

from __future__ import annotations

import bisect
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath

from helpers.checks import members, named, number
from helpers.plotting._style import (
    COLOURS,
    OTHERS,
    STYLE_FILE,
    figure,
    ink_on,
    legible_colour,
    mix_colours,
    name_rows,
    unit_axis,
)
from helpers.results import Record

_LANE_INCHES, _LEGEND_ROW_INCHES = 0.22, 0.24
_LANE_PT = 12  # of a bar across
_SIZES_PT = (11, 10.5, 10, 9.5, 9, 8.5, 8, 7.5, 7)  # of labels: all of a figure have one size
_LEAST_WHOLE_PT = 9  # below it a shorter label is read more easily than a smaller one
_FILLED = 0.8  # of a bar, by its label at most
_DARKER = 0.38  # each further kind of one meaning
_READ = ("lane", "start", "end", "kind", "label")

# What a kind of span means, where its name does not say so.
_MEANINGS = {
    "compute": "computing",
    "forward": "computing",
    "backward-weight": "backward",
    "send": "sending",
    "receive": "sending",
    "reduce": "sending",
    "copy": "sending",
    "all-reduce": "sending",
    "hand-over": "sending",
    "waiting for a batch": "waiting",
    "making a batch": "data",
}


class Span(Record):
    """One bar: a ``kind`` of activity that fills ``lane`` from ``start`` to ``end``, both in the
    figure's unit.
    """

    lane: str
    start: float
    end: float
    kind: str
    label: str = ""


def gantt(
    spans: Sequence[Span],
    *,
    title: str,
    unit: str = "s",
    xlabel: str = "time",
    until: float | None = None,
) -> Figure:
    """Return a Gantt chart of ``spans``: lanes from the top in the order they first appear, a
    colour a kind.

    A kind that has a meaning of ``COLOURS`` has its colour, in a shade that can carry a label;
    "forward, stages 4-7" is a darker "forward". Labels have the largest size at which they fit; one
    that does not is cut to its number ("bucket 3" to "3") or its beginning. ``unit`` is one of
    ``units.BASE_UNITS``; "" counts steps. ``title`` stands above the chart, ``xlabel`` below it.
    The axis of time ends at ``until``, and bars with it, as frames of one player need, with an
    arrowhead where one goes on; without it, behind the last span. Raises TypeError for what is no
    span, ValueError for no spans, a span that ends before it starts, and an ``until`` at or before
    the first start.

    >>> spans = [Span("device", 0.0, 3e-3, "compute"), Span("link", 1e-3, 4e-3, "send", "bucket 0")]
    >>> fig = gantt(spans, title="A step")
    >>> [label.get_text() for label in fig.axes[0].get_yticklabels()]
    ['device', 'link']

    Lesson 11.
    """
    spans = members("spans", spans, "Spans")
    strange = next((span for span in spans if not all(hasattr(span, name) for name in _READ)), None)
    if strange is not None:
        raise TypeError(
            f"spans holds {strange!r}, which has no {', '.join(_READ)}; give a list of Spans"
        )
    if not spans:
        raise ValueError("nothing to draw: give at least one span")
    for index, span in enumerate(spans):
        number(f"spans[{index}].start", span.start)
        number(f"spans[{index}].end", span.end)
    backwards = next((span for span in spans if span.end < span.start), None)
    if backwards:
        raise ValueError(
            f"the span {backwards.label or backwards.kind!r} ends before it starts: {backwards}"
        )
    if until is not None:
        number("until", until, above=min(span.start for span in spans))
    lanes = list(dict.fromkeys(span.lane for span in spans))
    colours = colours_of(dict.fromkeys(span.kind for span in spans))
    fig, axes = figure(title=title, height_in=1.5 + _LANE_INCHES * len(lanes))
    for span in spans:
        axes.barh(
            lanes.index(span.lane),
            span.end - span.start,
            left=span.start,
            height=0.78,
            color=colours[span.kind],
            edgecolor="white",
            linewidth=0.8,
        )
    name_rows(axes, lanes, end=0.6)
    axes.set_xlabel(xlabel)
    axes.set_xlim(right=until)
    beyond = {lanes.index(span.lane) for span in spans if until is not None and span.end > until}
    if until is not None and beyond:  # a line without points would change the picture
        axes.plot(
            [until] * len(beyond),
            sorted(beyond),
            ">",
            color="#222222",
            markersize=7,
            clip_on=False,
            zorder=5,
        )
    if unit:
        unit_axis(axes, "x", unit)
    handles = [Patch(color=colour, label=kind) for kind, colour in colours.items()]
    for columns in range(min(5, len(handles)), 0, -1):
        legend = fig.legend(
            handles=handles, ncols=columns, loc="outside lower left", frameon=False, fontsize=11
        )
        if columns == 1 or legend.get_window_extent().width < fig.bbox.width:
            break
        legend.remove()
    further_rows = math.ceil(len(handles) / columns) - 1
    fig.set_figheight(fig.get_figheight() + _LEGEND_ROW_INCHES * further_rows)
    _label(fig, axes, spans, lanes, colours)
    return fig


def spans_in_a_row(lanes: Mapping[str, Mapping[str, float]], *, label: str = "") -> list[Span]:
    """Return the spans that follow one another from 0 in each lane: ``{lane: {kind: length}}``, for
    :func:`gantt`.

    ``label`` is the format of a length on its bar, such as ".2f"; without it bars have none. Raises
    TypeError for what is no mapping, ValueError for a length below 0.

    >>> spans = spans_in_a_row({"rank 0": {"forward": 1, "backward": 2}}, label=".1f")
    >>> [(span.kind, span.start, span.end, span.label) for span in spans]
    [('forward', 0.0, 1.0, '1.0'), ('backward', 1.0, 3.0, '2.0')]
    """
    spans = []
    for lane, parts in named("lanes", lanes, "dictionaries from kinds to lengths").items():
        end = 0.0
        for kind, value in named(f"lanes[{lane!r}]", parts, "lengths").items():
            length = number(f"lanes[{lane!r}][{kind!r}]", value, at_least=0)
            spans.append(Span(lane, end, end + length, kind, f"{length:{label}}" if label else ""))
            end += length
    return spans


def colours_of(kinds: Iterable[str]) -> dict[str, str]:
    """Return the colour of each of ``kinds``: that of its meaning, else one without a meaning.

    What stands before a comma is the meaning; further kinds of one meaning are darker, one after
    the other, in the order of their numbers. A colour is the shade of its own that can carry a
    label on light and dark pages.
    """
    meaning_counts: Counter[str] = Counter()
    other_colours: dict[str, str] = {}
    colours = {}
    for kind in sorted(kinds, key=_sort_key):  # the sort is stable
        base = kind.partition(",")[0]
        meaning = _MEANINGS.get(base, base)
        colour = COLOURS.get(meaning) or other_colours.setdefault(
            meaning, OTHERS[len(other_colours) % len(OTHERS)]
        )
        colours[kind] = legible_colour(
            mix_colours(colour, "#000000", 1 - (1 - _DARKER) ** meaning_counts[meaning])
        )
        meaning_counts[meaning] += 1
    return colours


def _sort_key(kind: str) -> tuple[bool, list[int]]:
    """Return whether a kind has a part behind a comma, and that part's numbers."""
    return "," in kind, [int(number) for number in re.findall(r"\d+", kind.partition(",")[2])]


def _label(
    fig: Figure, axes: Axes, spans: Sequence[Span], lanes: Sequence[str], colours: dict[str, str]
) -> None:
    """Write the labels of ``spans``, all in one size."""
    fig.draw_without_rendering()
    begins, ends = axes.get_xlim()
    per_unit = axes.get_window_extent().width / (ends - begins) * 72 / fig.dpi
    labelled = [span for span in spans if span.label.strip() and span.start < ends]
    rooms = [(min(span.end, ends) - span.start) * per_unit for span in labelled]
    fitted_texts = {
        size: [
            _fit_label(span.label, room, size) for span, room in zip(labelled, rooms, strict=True)
        ]
        for size in _SIZES_PT
    }

    def score(size: float) -> tuple[int, int]:
        """Return the number of labels, and the number of whole ones."""
        texts = fitted_texts[size]
        whole_count = sum(text == span.label for text, span in zip(texts, labelled, strict=True))
        return sum(map(bool, texts)), whole_count if size >= _LEAST_WHOLE_PT else 0

    size = max(_SIZES_PT, key=score)
    for text, span, room in zip(fitted_texts[size], labelled, rooms, strict=True):
        is_turned = not text and room > size
        text = text or _fit_label(span.label, _LANE_PT, size) if is_turned else text
        axes.text(
            (span.start + min(span.end, ends)) / 2,
            lanes.index(span.lane),
            text,
            ha="center",
            va="center" if is_turned else "center_baseline",
            rotation=90 if is_turned else 0,
            fontsize=size,
            color=ink_on(colours[span.kind]),
        )


def _fit_label(label: str, room_pt: float, size: float) -> str:
    """Return as much of ``label`` as ``room_pt`` points hold: all, its last word if that is a
    number, its beginning.
    """
    most_em, last_word = _FILLED * room_pt / size, label.split()[-1]
    if _width_em(label) <= most_em:
        return label
    if last_word.isdigit():
        return last_word if _width_em(last_word) <= most_em else ""
    if room_pt <= 3 * size:
        return ""
    ends = range(3, len(label))  # a longer beginning is wider
    fitting = bisect.bisect_right(ends, most_em, key=lambda end: _width_em(_shorten(label, end)))
    return _shorten(label, ends[fitting - 1]) if fitting else ""


def _shorten(label: str, end: int) -> str:
    return f"{label[:end].rstrip()}…"


@lru_cache(maxsize=4096)
def _width_em(text: str) -> float:
    """Return the width of a text over its size: outlines are not hinted, so it is the same in every
    size.
    """
    with plt.style.context(STYLE_FILE):
        return TextPath((0, 0), text, prop=FontProperties(size=100)).get_extents().width / 100
