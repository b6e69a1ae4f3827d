"""Draw times: a tree that follows the modules, and rows with bars; text for a terminal, HTML for a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from helpers import results

if TYPE_CHECKING:
    from helpers.profiling.report import LayerTime, TimeProfile

FUNCTIONAL_KIND = "operators, Python"
OUTSIDE_KIND = "loss, Python, autograd"
NO_MODULE = (FUNCTIONAL_KIND, OUTSIDE_KIND)

_BAR_CELLS = 20
_TITLES = ("forward", "backward", "total", "share")
_COLUMNS = ("forward_s", "backward_s", "total_s", "share")
_GRID = "display:grid;grid-template-columns:minmax(14em,1fr) 3em repeat(3,6em) 4.5em 10em;gap:0 .6em;align-items:center"
_RIGHT = "text-align:right;font-variant-numeric:tabular-nums"


def summary_lines(profile: TimeProfile) -> list[str]:
    """Return what the step took, and what it cost to know, a line each."""
    step, ahead, back, hooked, plain = (
        results.cell("time_s", getattr(profile, name))
        for name in ("step_s", "forward_s", "backward_s", "hooked_step_s", "plain_step_s")
    )
    what = f"a training step (forward {ahead}, backward {back})" if profile.training else "a forward pass"
    threads = "1 thread" if profile.threads == 1 else f"{profile.threads} threads"
    return [
        f"{profile.model} for {profile.input} on {profile.device}, {threads}",
        f"  {what}: {step}, from medians of {profile.rounds} steps",
        f"  whole steps: {hooked} with the hooks, {plain} without; the hooks make one {profile.overhead_ratio:.2f}x",
    ]


def text_lines(layers: Sequence[LayerTime]) -> list[str]:
    """Return the layers as an indented table with a bar for each one's share of the step."""
    names = [f"{'  ' * row.depth}{_name(row)}" for row in layers]
    width = max(map(len, names), default=0)
    lines = [f"{'layer':<{width}}  {'calls':>5}  " + "  ".join(f"{title:>9}" for title in _TITLES)]
    for row, name in zip(layers, names, strict=True):
        cells = "  ".join(f"{cell:>9}" for cell in _cells(row))
        lines.append(f"{name:<{width}}  {row.calls or '':>5}  {cells}  {_text_bar(row.share)}".rstrip())
    return lines


def html_tree(profile: TimeProfile) -> str:
    """Return the profile as HTML without script: nested ``details``, colours taken from the page."""
    summary = "".join(f"<div>{html.escape(line.strip())}</div>" for line in summary_lines(profile))
    titles = "".join(f"<span style='{_RIGHT}'>{title}</span>" for title in ("calls", *_TITLES))
    header = (f"<div style='{_GRID};font-weight:600;padding-left:1.2em'><span>layer</span>{titles}"
              "<span>of the step</span></div>")  # fmt: skip
    body, start = "", 0
    while start < len(profile.layers):
        branch, start = _branch(profile.layers, start)
        body += branch
    operators = rows_html(
        ("operator", "phase", "calls", "time", "share"),
        [((row.operator, row.phase, f"{row.calls:,}" if row.calls else "", results.cell("time_s", row.median_s),
           results.cell("share", row.share)), row.share) for row in profile.operators],
    )  # fmt: skip
    step = html.escape(results.cell("time_s", profile.profiled_step_s))
    return (f"<div style='font-size:.9em;overflow-x:auto'><div style='margin-bottom:.5em'>{summary}</div>"
            f"<div style='min-width:54em'>{header}{body}</div>"
            "<details style='margin-top:.5em'><summary style='cursor:pointer'>operators (under torch's profiler a "
            f"step takes {step})</summary>{operators}</details></div>")  # fmt: skip


def rows_html(titles: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]) -> str:
    """Return a table with a bar a row; each row is its cells (the first one text, left) and its share."""
    head = "".join(f"<th style='{_side(place)}'>{html.escape(title)}</th>" for place, title in enumerate(titles))
    lines = []
    for cells, share in rows:
        line = "".join(f"<td style='{_side(place)}'>{html.escape(cell)}</td>" for place, cell in enumerate(cells))
        lines.append(f"<tr>{line}<td style='min-width:10em'>{_bar(share)}</td></tr>")
    return f"<table><thead><tr>{head}<th></th></tr></thead><tbody>{''.join(lines)}</tbody></table>"


def rows_text(titles: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]) -> list[str]:
    """Return the same rows as text."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(titles, *(cells for cells, _ in rows), strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(f"{cell:<{width}}" if not place else f"{cell:>{width}}"
                         for place, (cell, width) in enumerate(zip(cells, widths, strict=True)))  # fmt: skip

    return [line(titles).rstrip(), *(f"{line(cells)}  {_text_bar(share)}".rstrip() for cells, share in rows)]


def _side(place: int) -> str:
    return f"padding:.1em .5em;white-space:nowrap;{_RIGHT if place else 'text-align:left'}"


def _branch(layers: Sequence[LayerTime], start: int) -> tuple[str, int]:
    """Return the HTML of the layer at ``start`` with all below it, and the index of the layer after them."""
    row, children, following = layers[start], [], start + 1
    while following < len(layers) and layers[following].depth > row.depth:
        child, following = _branch(layers, following)
        children.append(child)
    line = _line(row)
    if not children:
        return f"<div style='padding-left:1.2em'>{line}</div>", following
    is_open = "" if row.depth else " open"
    return (f"<details{is_open}><summary style='list-style-position:outside;margin-left:1.2em;cursor:pointer'>{line}"
            f"</summary><div style='padding-left:1.2em'>{''.join(children)}</div></details>"), following  # fmt: skip


def _line(row: LayerTime) -> str:
    cells = "".join(
        f"<span style='{_RIGHT}'>{html.escape(cell)}</span>" for cell in (str(row.calls or ""), *_cells(row))
    )
    name = f"{html.escape(_name(row))} <span style='opacity:.65'>{html.escape(row.kind)}</span>"
    return f"<span style='{_GRID}'><span>{name}</span>{cells}{_bar(row.share)}</span>"


def _bar(share: float) -> str:
    """Return a bar in the page's own colour of text, so that it shows on light and on dark."""
    width = 100 * min(1.0, max(0.0, share))
    return (f"<span title='{100 * share:.1f} % of the whole' style='display:block;height:.7em;border-radius:2px;"
            f"box-shadow:inset 0 0 0 1px color-mix(in srgb,currentColor 25%,transparent)'>"
            f"<span style='display:block;height:100%;width:{width:.2f}%;background:currentColor;opacity:.55;"
            f"border-radius:2px'></span></span>")  # fmt: skip


def _text_bar(share: float) -> str:
    return "█" * round(_BAR_CELLS * min(1.0, max(0.0, share)))


def _cells(row: LayerTime) -> list[str]:
    return [results.cell(name, getattr(row, name)) for name in _COLUMNS]


def _name(row: LayerTime) -> str:
    return row.layer.rpartition(".")[2] or row.kind
