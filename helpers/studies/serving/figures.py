"""The figures of lesson 23: slots over time, a step of several requests, pages of a cache, a server
under its load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers import plotting
from helpers.checks import members, named, whole_number
from helpers.plotting import COLOURS, Menu, Series, Slider, Span, StackedBar
from helpers.plotting._style import OTHERS, STYLE_FILE, ink_on, legible_colour
from helpers.studies._paper import (
    COMPUTING,
    DATA,
    EMPTY,
    INK,
    QUIET,
    arrow,
    box,
    keys,
    paper,
    tint,
    write,
)
from helpers.studies.decoding import CONFIGS, Config
from helpers.studies.serving._loop import Served, ServingReport
from helpers.studies.serving._scheduling import good_share
from helpers.studies.serving._steps import Batch, gpu_step

_WAITS, _WRITES = "waiting, until the first token", "computing, writes"
_OWNERS = tuple(
    map(legible_colour, (COMPUTING, COLOURS["backward"], COLOURS["sending"], OTHERS[2]))
)
_EDGE = "#AAAAAA"
# B/s, 40 % of the peak
_GPUS = {"A100": (2.039e12, 126e12), "H100": (3.35e12, 400e12), "H200": (4.8e12, 400e12)}


def draw_slots(
    reports: Mapping[str, ServingReport], *, title: str, now_s: float | None = None
) -> Figure:
    """Draw which request used which slot when, a lane for each slot of each of ``reports``, which
    have names.

    A bar is the stay of a request in a slot, with its number in the order of the requests, from 1;
    the first part of it is until its first token. ``title`` stands above. ``now_s`` ends all bars
    there, of which those that go on have no number yet, and the axis goes on to the last token of
    all.
    """
    named("reports", reports, "ServingReports")
    spans = [span for name, report in reports.items() for span in _spans(name, report.requests)]
    until = max(span.end for span in spans)
    if now_s is not None:
        spans = [
            replace(
                span,
                start=min(span.start, now_s),
                end=min(span.end, now_s),
                label=span.label if span.end <= now_s else "",
            )
            for span in spans
        ]
    return plotting.gantt(spans, title=title, until=until)


def slot_frames(
    reports: Mapping[str, ServingReport], *, title: str, count: int = 12
) -> list[Figure]:
    """Return ``count`` frames for ``plotting.play``, at equal distances up to the last token.

    A frame is that of :func:`draw_slots`, which takes ``reports`` and ``title``. Lesson 23.
    """
    count = whole_number("count", count, at_least=2)
    named("reports", reports, "ServingReports")
    end_s = max(
        end
        for report in reports.values()
        for served in report.requests
        for _, _, end in served.stays
    )
    return [
        draw_slots(reports, title=title, now_s=end_s * (frame + 1) / count)
        for frame in range(count)
    ]


def _spans(name: str, requests: Sequence[Served]) -> list[Span]:
    stays = [
        (slot, begin, end, number, served)
        for number, served in enumerate(requests, 1)
        for slot, begin, end in served.stays
    ]
    spans = []
    for slot, begin, end, number, served in sorted(stays, key=lambda stay: stay[:2]):
        first = min(max(served.token_s[0], begin), end)
        lane = f"{name}, slot {slot + 1}"
        spans += [Span(lane, begin, first, _WAITS), Span(lane, first, end, _WRITES, str(number))]
    return spans


def draw_load(
    reports: Mapping[str, Mapping[float, ServingReport]],
    *,
    ttft_limit_s: float,
    tpot_limit_s: float,
    title: str,
) -> Figure:
    """Draw tokens per second, the median first token, and the requests in time over the rate of
    arrivals.

    ``reports`` has for each server, by its name, the report at each rate in requests per second.
    Requests in time are those per second that keep ``ttft_limit_s`` and ``tpot_limit_s``, the
    goodput; on the dotted line it would be all of them. ``title`` stands above. Lesson 23.
    """
    with plt.style.context(STYLE_FILE):
        figure, (rate_axes, ttft_axes, goodput_axes) = plt.subplots(1, 3, figsize=(9.6, 3.7))
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        for (name, by_rate), marker, colour in zip(
            named("reports", reports, "dictionaries from rates to reports").items(),
            "os^v",
            _OWNERS,
            strict=False,
        ):
            rates = sorted(by_rate)
            shares = [
                good_share(by_rate[rate].ttfts_s, by_rate[rate].tpots_s, ttft_limit_s, tpot_limit_s)
                for rate in rates
            ]
            values = {
                rate_axes: [by_rate[rate].tokens_per_s for rate in rates],
                ttft_axes: [by_rate[rate].median_ttft_s for rate in rates],
                goodput_axes: [rate * share for rate, share in zip(rates, shares, strict=True)],
            }
            for axes, along in values.items():
                axes.plot(rates, along, f"{marker}-", color=colour, label=name)
        max_rate = max(rate for by_rate in reports.values() for rate in by_rate)
        goodput_axes.plot([0, max_rate], [0, max_rate], ":", color=INK)
        ttft_axes.axhline(ttft_limit_s, color=INK, linestyle="--", linewidth=1)
        ttft_axes.set_yscale("log")
        plotting.unit_axis(ttft_axes, "y", "s")
        headings = ("tokens/s", "median first token", "requests in time, per s")
        for axes, heading in zip(figure.axes, headings, strict=True):
            axes.set_title(heading, fontsize=12, fontweight="normal")
            axes.set(xlabel="requests per s", xlim=(0, None))
        rate_axes.set_ylim(0, None)
        goodput_axes.set_ylim(0, None)
        figure.legend(
            *rate_axes.get_legend_handles_labels(), loc="outside lower left", ncols=4, frameon=False
        )
    return figure


def draw_pages(
    tables: Mapping[str, Sequence[int]],
    tokens: Mapping[str, int],
    *,
    pages: int,
    page_tokens: int,
    common: Sequence[int] = (),
    title: str = "",
) -> Figure:
    """Draw the pages of a cache, and beside them the table of each request.

    ``tables`` has the page numbers of each request, by its name, ``common`` ones included, and
    ``tokens`` the tokens of its text. The cache has ``pages`` pages of ``page_tokens`` tokens; a
    place with a token in it is coloured by its request, or as ``common``. ``title`` stands above.
    Raises ValueError for more than 4 requests, 24 pages or 16 tokens in a page, and for a page that
    is not there or that two requests have although it is not common. Lesson 23.
    """
    pages = whole_number("pages", pages, at_most=24)
    page_tokens = whole_number("page_tokens", page_tokens, at_most=16)
    if not 1 <= len(named("tables", tables, "lists of pages")) <= len(_OWNERS):
        raise ValueError(f"tables has {len(tables)} requests; give 1 to {len(_OWNERS)}")
    common = members("common", common, "pages", kind=int)
    own_pages = [page for table in tables.values() for page in table if page not in common]
    if len(set(own_pages)) < len(own_pages) or not {*own_pages, *common} <= {*range(pages)}:
        raise ValueError(
            f"tables have the pages {sorted(own_pages)}; give pages from 0 to {pages - 1}, each to "
            "one request"
        )
    colours = dict(zip(tables, _OWNERS, strict=False))
    filled = {}
    for name, table in tables.items():
        for index, page in enumerate(table):
            filled[page] = colours[name], tokens[name] - index * page_tokens
    filled |= dict.fromkeys(common, (DATA, page_tokens))
    columns, cell, gap = 6, 0.85 / page_tokens, 1.02
    rows = -(-pages // columns)
    left, below = 0.15, 0.55 + 0.62 * rows
    figure, axes = paper(
        left + columns * gap + 4.1, max(below + 0.5, 1.2 + 0.45 * len(tables)), title=title
    )
    write(axes, left, 0.25, f"memory: {pages} pages of {page_tokens} tokens", ha="left", bold=True)
    for page in range(pages):
        x, y = left + page % columns * gap, 0.5 + 0.62 * (page // columns)
        colour, count = filled.get(page, (EMPTY, 0))
        for index in range(page_tokens):
            face = colour if index < count else EMPTY
            _fill(axes, x + index * cell, y, cell, 0.3, face, width=0.6)
        _fill(axes, x, y, page_tokens * cell, 0.3, "none", edge=_EDGE)
        write(axes, x + page_tokens * cell / 2, y + 0.42, str(page), size=9, colour=QUIET)
    words = left + columns * gap + 0.3
    write(axes, words, 0.25, "tables", ha="left", bold=True)
    for row, (name, table) in enumerate(tables.items()):
        y = 0.5 + 0.45 * row
        write(axes, words, y + 0.15, f"{name}, {tokens[name]} tokens", ha="left", size=10)
        for index, page in enumerate(table):
            colour = DATA if page in common else colours[name]
            box(axes, words + 1.75 + 0.32 * index, y, 0.3, 0.3, str(page), colour=colour, size=10)
    named_colours = {name: (colour, INK) for name, colour in colours.items()}
    named_colours |= {"common": (DATA, INK)} if common else {}
    keys(axes, left, below, named_colours | {"empty": (EMPTY, _EDGE)})
    return figure


def _fill(
    axes: Axes,
    left: float,
    top: float,
    wide: float,
    high: float,
    colour: str,
    *,
    edge: str = "white",
    width: float = 1,
) -> None:
    axes.add_patch(
        Rectangle((left, top), wide, high, facecolor=colour, edgecolor=edge, linewidth=width)
    )


def draw_ragged_step(batch: Batch, *, title: str = "") -> Figure:
    """Draw one step for the requests of ``batch``: their tokens go through the matrices together,
    attention alone.

    A row of the drawing is a token, coloured by its request; beside its attention stands the cache
    that it reads, with one small field a token. Raises ValueError for more than 4 requests, 12
    tokens or 24 tokens in a cache. Lesson 23.
    """
    total = sum(batch.tokens)
    seen = [start + count for start, count in zip(batch.starts, batch.tokens, strict=True)]
    if not 1 <= len(seen) <= len(_OWNERS) or total > 12 or max(seen) > 24:
        raise ValueError(
            f"the step has {len(seen)} requests, {total} tokens and up to {max(seen, default=0)} "
            "tokens in a cache; give at most 4, 12 and 24, so that they can be seen"
        )
    high, top, field = 0.3, 0.75, 0.115
    gap = 0.14
    figure, axes = paper(9.6, top + high * total + gap * len(seen) + 0.25, title=title)
    heads = {
        0.55: "tokens",
        2.1: "norm, q k v",
        5.1: "attention, each with its own cache",
        8.25: "out, feed-forward",
    }
    for x, text in heads.items():
        write(axes, x, 0.3, text, bold=True)
    bottom = top + high * total + gap * (len(seen) - 1)
    for left, right in ((1.35, 2.85), (7.35, 9.15)):
        box(axes, left, top - 0.06, right - left, bottom - top + 0.12, colour=EMPTY, edge=_EDGE)
        write(axes, (left + right) / 2, (top + bottom) / 2, "all rows in\none product", size=10)
    y = top
    for number, (start, count, colour) in enumerate(
        zip(batch.starts, batch.tokens, _OWNERS, strict=False), 1
    ):
        for row in range(count):
            at = y + row * high
            _fill(axes, 0.2, at, 0.75, high, colour)
            write(axes, 0.575, at + high / 2, f"{number}", size=10, colour=ink_on(colour))
        middle = y + count * high / 2
        for begin, end in ((1.0, 1.32), (2.9, 3.2), (7.0, 7.3), (9.18, 9.5)):
            arrow(axes, (begin, middle), (end, middle), colour=INK, thick=1.2)
        box(axes, 3.25, y, 0.72, count * high, f"{number}", colour=colour, size=10)
        for token in range(start + count):
            face = colour if token >= start else tint(colour, 0.55)
            _fill(axes, 4.1 + token * field, middle - 0.11, field, 0.22, face, width=0.5)
        y += count * high + gap
    return figure


def explore_request() -> None:
    """Display the cost of a request as a figure to turn: reading its prompt, the weights,
    arithmetic, and caches.

    It is :meth:`GpuStep.request_s` of a server that never runs out of requests, with answers whose
    lengths are distributed exponentially. Shapes are the models' own (``CONFIGS``), bandwidths
    those of NVIDIA's data sheets, and arithmetic 40 % of the peak there, as in the training of
    Llama 3. Lesson 23.
    """
    models = {name: _shape(CONFIGS[name]) for name in ("Llama 2 7B", "Llama 3 8B")}
    plotting.explore(
        title="What does a request cost?",
        alt="A stacked bar of the milliseconds that a request costs, above what a GPU has for it "
        "at some rates.",
        inputs=[
            Menu("model", "model", models, "Llama 3 8B"),
            Menu(
                "gpu",
                "GPU",
                {name: {"B": rate, "F": work} for name, (rate, work) in _GPUS.items()},
                "H100",
            ),
            Slider("prompt", "tokens read", [100, 250, 500, 1000, 2000, 4000, 8000, 16000], 2000),
            Slider("kept", "share of them kept", [0, 0.25, 0.5, 0.75, 0.9], 0),
            Slider("answer", "tokens written", [1, 10, 50, 100, 250, 500, 1000, 2000], 250),
            Slider("batch", "requests that share a step", [1, 2, 4, 8, 16, 32, 64, 128, 256], 64),
        ],
        formulas={
            "reading": "1e3 * prompt * (1 - kept) * model.flops / gpu.F",
            "weights": "1e3 * answer * max(model.weights / gpu.B / batch, model.flops / gpu.F)",
            "caches": "1e3 * answer * (prompt + answer) * model.cached / gpu.B",
        },
        picture=StackedBar(
            parts=[
                Series("reading", "reading", COLOURS["computing"]),
                Series("weights", "writing: weights or arithmetic", OTHERS[1]),
                Series("caches", "writing: caches", COLOURS["data"]),
            ],
            unit="ms",
            limits={
                "2 per second": 500,
                "5 per second": 200,
                "10 per second": 100,
                "20 per second": 50,
            },
            verdict="leaves time for",
            total="a request",
        ),
    )


def _shape(config: Config) -> dict[str, float]:
    """Return the bytes and operations of :func:`gpu_step`: on a GPU of one byte and one operation a
    second.
    """
    step = gpu_step(config, bandwidth_bytes_per_s=1, flops_per_s=1)
    return {"weights": step.weights_s, "flops": step.token_s, "cached": step.cached_s}
