"""Rows as a tree that opens and closes, or as a table, each with a bar for its share: for a
terminal and a notebook.

HTML is without script and takes its colours from the page. A result that has such rows gives its
cells as text.

Lesson 11.
"""

from __future__ import annotations

import html
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from helpers.checks import choice
from helpers.results import Record

FUNCTIONAL = "(functional)"
"""The row of what a module with children does itself."""
_RIGHT = "text-align:right;font-variant-numeric:tabular-nums"
_SHOWN_RUNS = 2
_CLIPPED = "overflow:hidden;text-overflow:ellipsis"


class Column(NamedTuple):
    """A column after the name: numbers, ``width`` letters wide, or text as wide as its longest
    where that is 0.
    """

    title: str
    width: int = 0


class Row(NamedTuple):
    """One line of a tree: a name, its ``kind`` (HTML alone shows it), the cells, the bar's share of
    the whole.
    """

    name: str
    kind: str
    depth: int
    cells: tuple[str, ...]
    share: float
    is_faded: bool = False


class ColumnLayout(NamedTuple):
    """The look of a tree: its columns, the whole of which its bars are shares, and in HTML the CSS
    widths of columns and whole.
    """

    columns: tuple[Column, ...]
    bar_title: str
    share_of: str
    bar_letters: int
    grid: str
    width: str


class LayerProfile(Record):
    """A result with a row a layer in ``layers``, the path in each row's ``layer``, and a row an
    operator.
    """

    layers: tuple[Any, ...]
    operators: tuple[Any, ...]

    def table(self, by: str = "layer") -> pd.DataFrame:
        """Return a DataFrame of plain numbers, one row a layer (``by="layer"``) or an operator
        (``by="operator"``).
        """
        rows = {"layer": self.layers, "operator": self.operators}
        return pd.DataFrame([row.to_dict() for row in rows[choice("by", by, rows)]])

    def layer(self, path: str) -> Any:
        """Return the row of the module at ``path``; the model itself is ``""``.

        Raises KeyError that names the paths there are.
        """
        return row_of(self.layers, path)


def row_of(layers: Sequence[Any], path: str) -> Any:
    """Return the row whose ``layer`` is ``path``; KeyError that names the paths there are."""
    for row in layers:
        if row.layer == path:
            return row
    raise KeyError(
        f"no layer {path!r}; the layers are {', '.join(repr(row.layer) for row in layers)}"
    )


def children_of(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return the paths right below each path; a shared module in between may stand under another
    name.

    >>> dict(children_of(["", "features", "features.0", "features.3", "head"]))
    {'': ['features', 'head'], 'features': ['features.0', 'features.3']}
    """
    unique_paths = dict.fromkeys(paths)
    children: dict[str, list[str]] = defaultdict(list)
    for path in unique_paths:
        parent = path.rpartition(".")[0]
        while parent and parent not in unique_paths:
            parent = parent.rpartition(".")[0]
        if path:
            children[parent].append(path)
    return children


def last_name(layer: str, kind: str) -> str:
    """Return the last part of a layer's path, the model's kind where the path is empty.

    >>> last_name("features.0", "Conv2d"), last_name("", "LeNet")
    ('0', 'LeNet')
    """
    return layer.rpartition(".")[2] or kind


class _Branch(NamedTuple):
    """A row with all that stands below it, and the parts that are equal in two branches of which
    one is shown.
    """

    rows: tuple[Row, ...]
    stem: str
    number: int | None
    comparison_key: tuple


def fold_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with equal blocks shown once: "0-79 x 80" stands for the block 0 and 79 more.

    Three or more branches fold that have one parent, the same rows, and names that differ in a
    number at their end: those that follow one another, and blocks (with rows of their own below)
    also where others stand between them.

    >>> rows = [Row(name, "Linear", 0, (), 0.25) for name in ("fc0", "fc1", "fc2", "head")]
    >>> [row.name for row in fold_rows(rows)]
    ['fc0-2 x 3', 'head']
    """
    return [row for branch in _branches(rows) for row in branch.rows]


def _branches(rows: Sequence[Row]) -> list[_Branch]:
    """Return the branches of the tree that ``rows`` are, each folded within."""
    starts = [index for index, row in enumerate(rows) if row.depth == rows[0].depth]
    groups: list[list[_Branch]] = []
    for start, end in itertools.pairwise([*starts, len(rows)]):
        row, descendants = rows[start], fold_rows(rows[start + 1 : end])
        stem = row.name.rstrip("0123456789")
        number = int(row.name[len(stem) :]) if row.name != stem else None
        branch = _Branch((row, *descendants), stem, number, (row._replace(name=stem), *descendants))
        candidates = groups if descendants else groups[-1:]
        equal = [
            group
            for group in candidates
            if number is not None and group[0].comparison_key == branch.comparison_key
        ]
        equal[0].append(branch) if equal else groups.append([branch])
    return [
        branch
        for group in groups
        for branch in ([_merge_group(group)] if len(group) > 2 else group)
    ]


def _merge_group(group: Sequence[_Branch]) -> _Branch:
    """Return the first of a group of equal branches, named for all of them."""
    first, *descendants = group[0].rows
    runs: list[list[int]] = []
    for number in (branch.number for branch in group if branch.number is not None):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs[:_SHOWN_RUNS]]
    numbers = ", ".join(texts) + (", ..." if len(runs) > _SHOWN_RUNS else "")
    name = f"{group[0].stem}{numbers} x {len(group)}"
    return group[0]._replace(rows=(first._replace(name=name), *descendants))


def text_lines(layout: ColumnLayout, rows: Sequence[Row]) -> list[str]:
    """Return the rows as an indented table."""
    names = [f"{'  ' * row.depth}{row.name}" for row in rows]
    name_width = max(map(len, names), default=0)
    cells = zip(*(row.cells for row in rows), strict=True) if rows else [()] * len(layout.columns)
    widths = [
        column.width or max(map(len, texts), default=0)
        for column, texts in zip(layout.columns, cells, strict=True)
    ]

    def line(name: str, texts: Iterable[str], bar: str) -> str:
        padded = [
            f"{text:>{column.width}}" if column.width else f"{text:<{width}}"
            for text, column, width in zip(texts, layout.columns, widths, strict=True)
        ]
        return "  ".join([f"{name:<{name_width}}", *padded, bar]).rstrip()

    header = line("layer", (column.title for column in layout.columns), "")
    return [
        header,
        *(
            line(name, row.cells, _text_bar(row.share, layout.bar_letters))
            for row, name in zip(rows, names, strict=True)
        ),
    ]


def html_tree(
    layout: ColumnLayout, rows: Sequence[Row], summary: Iterable[str], below: str = ""
) -> str:
    """Return ``summary``, a line each, ``rows`` in a ``layout`` as nested details, and ``below``
    (HTML) under them.
    """
    lines = "".join(f"<div>{html.escape(line)}</div>" for line in summary)
    titles = "".join(
        f"<span style='{_RIGHT}'>{column.title}</span>"
        if column.width
        else f"<span>{column.title}</span>"
        for column in layout.columns
    )
    header = (
        f"<div style='{layout.grid};font-weight:600;padding-left:1.2em'><span>layer</span>{titles}"
        f"<span>{layout.bar_title}</span></div>"
    )
    body, start = "", 0
    while start < len(rows):
        branch, start = _branch_html(layout, rows, start)
        body += branch
    return (
        f"<div style='font-size:.9em;overflow-x:auto'><div style='margin-bottom:.5em'>{lines}</div>"
        f"<div style='min-width:{layout.width}'>{header}{body}</div>{below}</div>"
    )


def _branch_html(layout: ColumnLayout, rows: Sequence[Row], start: int) -> tuple[str, int]:
    """Return the HTML of the row at ``start`` with all below it, and the index of the row after
    them.
    """
    row, children, following = rows[start], [], start + 1
    while following < len(rows) and rows[following].depth > row.depth:
        child, following = _branch_html(layout, rows, following)
        children.append(child)
    line = _line(layout, row)
    if not children:
        return f"<div style='padding-left:1.2em'>{line}</div>", following
    is_open = "" if row.depth else " open"
    return (
        f"<details{is_open}><summary "
        f"style='list-style-position:outside;margin-left:1.2em;cursor:pointer'>{line}"
        f"</summary><div style='padding-left:1.2em'>{''.join(children)}</div></details>"
    ), following


def _line(layout: ColumnLayout, row: Row) -> str:
    cells = "".join(
        f"<span style='{_RIGHT if column.width else _CLIPPED}'>{html.escape(cell)}</span>"
        for column, cell in zip(layout.columns, row.cells, strict=True)
    )
    kind = f" <span style='opacity:.65'>{html.escape(row.kind)}</span>" if row.kind else ""
    opacity = ";opacity:.55" if row.is_faded else ""
    bar = _bar(row.share, layout.share_of)
    return (
        "<span "
        f"style='{layout.grid}{opacity}'><span>{html.escape(row.name)}{kind}</span>{cells}{bar}</span>"
    )


def rows_html(titles: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]) -> str:
    """Return a table with a bar a row; each row is its cells (the first one text, left) and its
    share.
    """
    head = "".join(
        f"<th style='{_alignment(column)}'>{html.escape(title)}</th>"
        for column, title in enumerate(titles)
    )
    lines = []
    for cells, share in rows:
        line = "".join(
            f"<td style='{_alignment(column)}'>{html.escape(cell)}</td>"
            for column, cell in enumerate(cells)
        )
        lines.append(f"<tr>{line}<td style='min-width:10em'>{_bar(share, 'the whole')}</td></tr>")
    return f"<table><thead><tr>{head}<th></th></tr></thead><tbody>{''.join(lines)}</tbody></table>"


def rows_text(titles: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]) -> list[str]:
    """Return the same rows as text.

    >>> for line in rows_text(["layer", "MAC"], [(["conv1", "86 k"], 0.3), (["fc", "200 k"], 0.7)]):
    ...     print(line)
    layer    MAC
    conv1   86 k  ██████
    fc     200 k  ██████████████
    """
    rows = list(rows)
    widths = [
        max(map(len, column)) for column in zip(titles, *(cells for cells, _ in rows), strict=True)
    ]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            f"{cell:<{width}}" if not column else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )

    return [
        line(titles).rstrip(),
        *(f"{line(cells)}  {_text_bar(share, 20)}".rstrip() for cells, share in rows),
    ]


def _alignment(column: int) -> str:
    return f"padding:.1em .5em;white-space:nowrap;{_RIGHT if column else 'text-align:left'}"


def _bar(share: float, share_of: str) -> str:
    """Return a bar in the page's own colour of text, so that it shows on light and on dark."""
    width = 100 * min(1.0, max(0.0, share))
    return (
        f"<span title='{100 * share:.1f} % of {share_of}' "
        "style='display:block;height:.7em;border-radius:2px;box-shadow:inset 0 0 0 1px "
        "color-mix(in srgb,currentColor 25%,transparent)'><span "
        f"style='display:block;height:100%;width:{width:.2f}%;background:currentColor;opacity:.55;border-radius:2px'></span></span>"
    )


def _text_bar(share: float, letters: int) -> str:
    return "█" * round(letters * min(1.0, max(0.0, share)))
