"""Draw a profile as a tree that follows the modules: text for a terminal, folding HTML for a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from helpers import results

if TYPE_CHECKING:
    from helpers.operations.report import LayerOperations, OperationProfile

_BAR_CELLS = 12
_SHAPE_LETTERS = 24
_OPEN_LEVELS = 2
_COLUMNS = {"forward MAC": "forward_macs", "forward FLOP": "forward_flops", "backward MAC": "backward_macs",
            "forward B": "traffic_bytes", "FLOP/B": "forward_flops_per_byte"}  # fmt: skip
_GRID = "display:grid;grid-template-columns:minmax(0,1fr) 10em 3em repeat(5,7.6em) 8em;gap:0 .6em;align-items:center"
_RIGHT = "text-align:right;font-variant-numeric:tabular-nums"


def summary_lines(profile: OperationProfile) -> list[str]:
    """Return the totals, a line each."""
    short = {row.phase for row in profile.operators if row.treatment == "not counted"}
    other = {phase: "at least " if phase in short else "" for phase in ("forward", "backward", "optimizer")}
    product = other if profile.may_hold_products else dict.fromkeys(other, "")
    rows = [
        ("forward", profile.forward_macs, profile.forward_useful_macs, profile.forward_flops,
         profile.forward_read_bytes + profile.forward_written_bytes),
        ("backward", profile.backward_macs, profile.backward_useful_macs, profile.backward_flops,
         profile.backward_read_bytes + profile.backward_written_bytes),
    ]  # fmt: skip
    lines = [f"{profile.model} for {profile.input}: {profile.parameters:,} parameters"]
    for name, macs, useful, flops, moved in rows:
        causal = f" ({useful:,} useful)" if useful != macs else ""
        flops_and_bytes = f"{other[name]}{flops:,} FLOP, {other[name]}{moved:,} B"
        lines.append(f"  {name:<9} {product[name]}{macs:,} MAC{causal}, {flops_and_bytes}")
    if profile.optimizer is not None:
        moved = profile.optimizer_read_bytes + profile.optimizer_written_bytes
        flops_and_bytes = f"{other['optimizer']}{profile.optimizer_flops:,} FLOP, {other['optimizer']}{moved:,} B"
        lines.append(f"  optimizer {profile.optimizer}: {flops_and_bytes}")
    harmless = [name for name in profile.not_counted if name not in profile.may_hold_products]
    if profile.may_hold_products:
        lines.append(f"  no rule for {', '.join(profile.may_hold_products)}: may hold multiply-accumulates")
    if harmless:
        lines.append(f"  no rule for {', '.join(harmless)}: no multiply-accumulates")
    if not profile.not_counted:
        lines.append("  every operator is counted")
    if profile.random_draws:
        lines.append(f"  depends on a random draw: {', '.join(profile.random_draws)}")
    return lines


def text_lines(layers: Sequence[LayerOperations]) -> list[str]:
    """Return the layers as an indented table with a bar for each one's share of the forward FLOPs."""
    total = max((row.forward_flops for row in layers), default=0)
    names = [f"{'  ' * row.depth}{_name(row)}" for row in layers]
    width = max(map(len, names), default=0)
    wide = max((len(_shape(row)) for row in layers), default=0)
    header = f"{'layer':<{width}}  {'output':<{wide}}  {'calls':>5}  " + "  ".join(f"{title:>12}" for title in _COLUMNS)
    lines = [header]
    for row, name in zip(layers, names, strict=True):
        cells = "  ".join(f"{cell:>12}" for cell in _cells(row))
        filled = round(_BAR_CELLS * row.forward_flops / total) if total else 0
        start = f"{name:<{width}}  {_shape(row):<{wide}}"
        lines.append(f"{start}  {row.calls:>5}  {cells}  {'█' * filled}".rstrip())
    return lines


def html_tree(profile: OperationProfile) -> str:
    """Return the profile as HTML without script: nested ``details``, colours taken from the page."""
    summary = "".join(f"<div>{html.escape(line)}</div>" for line in summary_lines(profile))
    titles = "".join(f"<span style='{_RIGHT}'>{title}</span>" for title in _COLUMNS)
    header = (f"<div style='{_GRID};font-weight:600;padding-left:1.2em'><span>layer</span><span>output</span>"
              f"<span style='{_RIGHT}'>calls</span>{titles}<span>share of FLOP</span></div>")  # fmt: skip
    total = max((row.forward_flops for row in profile.layers), default=0)
    body, _ = _branch(profile.layers, 0, total)
    return (f"<div style='font-size:.9em;overflow-x:auto'><div style='margin-bottom:.5em'>{summary}</div>"
            f"<div style='min-width:72em'>{header}{body}</div></div>")  # fmt: skip


def _branch(layers: Sequence[LayerOperations], start: int, total: int) -> tuple[str, int]:
    """Return the HTML of the layer at ``start`` with all below it, and the index of the layer after them."""
    row, children, following = layers[start], [], start + 1
    while following < len(layers) and layers[following].depth > row.depth:
        child, following = _branch(layers, following, total)
        children.append(child)
    line = _line(row, total)
    if not children:
        return f"<div style='padding-left:1.2em'>{line}</div>", following
    is_open = " open" if row.depth < _OPEN_LEVELS - 1 else ""
    return (f"<details{is_open}><summary style='list-style-position:outside;margin-left:1.2em;cursor:pointer'>{line}"
            f"</summary><div style='padding-left:1.2em'>{''.join(children)}</div></details>"), following  # fmt: skip


def _line(row: LayerOperations, total: int) -> str:
    cells = "".join(f"<span style='{_RIGHT}'>{html.escape(cell)}</span>" for cell in _cells(row))
    share = 100 * row.forward_flops / total if total else 0
    bar = (f"<span title='{share:.1f} % of the forward FLOPs' style='display:block;height:.7em;border-radius:2px;"
           f"box-shadow:inset 0 0 0 1px color-mix(in srgb,currentColor 25%,transparent)'>"
           f"<span style='display:block;height:100%;width:{share:.2f}%;background:currentColor;opacity:.55;"
           f"border-radius:2px'></span></span>")  # fmt: skip
    faded = "" if row.calls else ";opacity:.55"
    kind = f" <span style='opacity:.65'>{html.escape(row.kind)}</span>" if row.layer else ""
    name = f"{html.escape(_name(row))}{kind}"
    calls = f"<span style='{_RIGHT}'>{row.calls}</span>"
    shape = f"<span style='overflow:hidden;text-overflow:ellipsis'>{html.escape(_shape(row))}</span>"
    return f"<span style='{_GRID}{faded}'><span>{name}</span>{shape}{calls}{cells}{bar}</span>"


def _cells(row: LayerOperations) -> list[str]:
    values = {**vars(row), "traffic_bytes": row.input_bytes + row.weight_bytes + row.output_bytes}
    return ["" if values[name] is None else results.cell(name, values[name]) for name in _COLUMNS.values()]


def _shape(row: LayerOperations) -> str:
    return (
        row.output_shape if len(row.output_shape) <= _SHAPE_LETTERS else f"{row.output_shape[: _SHAPE_LETTERS - 3]}..."
    )


def _name(row: LayerOperations) -> str:
    return row.layer.rpartition(".")[2] or row.kind
