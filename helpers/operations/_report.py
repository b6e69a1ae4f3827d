"""What counting gives: one row a layer, one an operator, the totals, and the lecture's own table
beside them.
"""

from __future__ import annotations

from dataclasses import field

import pandas as pd

from helpers import results, trees
from helpers.checks import whole_number
from helpers.results import Record

PHASES = ("forward", "backward", "optimizer")
_SHAPE_LETTERS = 24
_COLUMNS = {
    "forward MAC": "forward_macs",
    "forward FLOP": "forward_flops",
    "backward MAC": "backward_macs",
    "forward B": "forward_traffic_bytes",
    "FLOP/B": "forward_flops_per_byte",
}
_LAYOUT = trees.ColumnLayout(
    columns=(
        trees.Column("output"),
        trees.Column("calls", 5),
        *(trees.Column(title, 12) for title in _COLUMNS),
    ),
    bar_title="share of FLOP",
    share_of="the forward FLOPs",
    bar_letters=12,
    grid="display:grid;grid-template-columns:minmax(0,1fr) 10em 3em repeat(5,7.6em) 8em;gap:0 "
    ".6em;align-items:center",
    width="72em",
)


class LayerOperations(Record):
    """The operations of one module, everything inside it included.

    ``layer`` is the module's path in the model ("" is the model itself; a path that ends in
    "(functional)" holds the operators that a module with children calls itself). ``forward_macs``
    are executed, ``forward_useful_macs`` leave out what a causal mask throws away. ``output_shape``
    is that of what its last call returned, the shapes of several tensors side by side.
    ``input_bytes``, ``weight_bytes`` and ``output_bytes`` are the forward traffic of its operators.
    Lesson 11.
    """

    layer: str
    kind: str
    depth: int
    calls: int
    output_shape: str
    parameters: int
    forward_macs: int
    forward_useful_macs: int
    forward_flops: int
    input_bytes: int
    weight_bytes: int
    output_bytes: int
    forward_flops_per_byte: float | None
    backward_macs: int
    backward_useful_macs: int
    backward_flops: int
    backward_read_bytes: int
    backward_written_bytes: int
    backward_flops_per_byte: float | None
    optimizer_flops: int
    optimizer_read_bytes: int
    optimizer_written_bytes: int
    lecture_operations: int | None = field(default=None, repr=False)

    @property
    def forward_read_bytes(self) -> int:
        """Bytes of activations and weights that the forward reads."""
        return self.input_bytes + self.weight_bytes

    @property
    def forward_written_bytes(self) -> int:
        """Bytes of results that the forward writes."""
        return self.output_bytes

    @property
    def forward_traffic_bytes(self) -> int:
        """Bytes that the forward reads and writes."""
        return self.forward_read_bytes + self.forward_written_bytes


class OperatorOperations(Record):
    """The operations of one of torch's operators over the whole model, in one phase.

    ``phase`` is "forward", "backward" (of that operator's calls) or "optimizer". ``treatment`` is
    "counted", "free" (nothing computed, nothing moved) or "not counted". Lesson 11.
    """

    operator: str
    phase: str
    treatment: str
    calls: int
    macs: int
    flops: int
    read_bytes: int
    written_bytes: int
    flops_per_byte: float | None


class LayerOperator(Record):
    """The operations of one operator that one module calls itself, in one phase; free operators
    have no row.

    ``layer`` is the path of the module's row, or that of its row "(functional)". Lesson 11.
    """

    layer: str
    operator: str
    phase: str
    treatment: str
    calls: int
    macs: int
    flops: int
    read_bytes: int
    written_bytes: int
    flops_per_byte: float | None


class LectureLayer(Record):
    """One row of the lecture's table."""

    layer: str
    kind: str
    operations: int


class LectureTable(Record):
    """The lecture's own count, named "FLOPs" there: its rules are neither MACs nor FLOPs (lesson 11
    shows why).

    Convolution: outputs x (weights of one output + 1); linear: inputs x outputs; ReLU: 2 an
    element; pooling: 3 an output. ``not_covered`` names the layers for which the lecture has no
    rule. Lesson 11.
    """

    total_operations: int
    not_covered: tuple[str, ...]
    layers: tuple[LectureLayer, ...]


class OperationProfile(trees.LayerProfile):
    """Operations of one forward, one backward and one optimizer step of a model, for one input.

    A notebook shows it as a tree that opens and closes, with a bar a layer; ``print`` gives the
    tree as text, each with equal blocks once ("0-79 x 80": its numbers are those of one block).
    ``print(profile.to_depth(2))`` shows all blocks to that depth, :meth:`table` is a DataFrame,
    ``to_json`` everything.

    ``not_counted`` names the operators that have no rule: their FLOPs and bytes are missing. Of
    these ``may_hold_products`` may hold multiply-accumulates too; where it is empty every MAC is
    counted. ``random_draws`` names the layers whose forward asked what a random draw gave, and
    other generators that were used: the count may be another for another draw.
    ``attention_taken_apart`` names the layers whose bytes hold the scores of an attention, which a
    fused kernel neither writes nor reads. Lesson 11.
    """

    model: str
    input: str
    training: bool
    parameters: int
    forward_macs: int
    forward_useful_macs: int
    forward_flops: int
    forward_read_bytes: int
    forward_written_bytes: int
    forward_flops_per_byte: float | None
    backward_macs: int
    backward_useful_macs: int
    backward_flops: int
    backward_read_bytes: int
    backward_written_bytes: int
    backward_flops_per_byte: float | None
    optimizer: str | None
    optimizer_flops: int
    optimizer_read_bytes: int
    optimizer_written_bytes: int
    not_counted: tuple[str, ...]
    may_hold_products: tuple[str, ...]
    random_draws: tuple[str, ...]
    attention_taken_apart: tuple[str, ...]
    layers: tuple[LayerOperations, ...]
    operators: tuple[OperatorOperations, ...]
    layer_operators: tuple[LayerOperator, ...]

    def __str__(self) -> str:
        return "\n".join([*_summary(self), *trees.text_lines(_LAYOUT, self._display_rows())])

    def _repr_html_(self) -> str:
        return trees.html_tree(_LAYOUT, self._display_rows(), _summary(self))

    def _display_rows(self) -> list[trees.Row]:
        return trees.fold_rows(self._rows())

    def _rows(self) -> list[trees.Row]:
        total = max((row.forward_flops for row in self.layers), default=0)
        return [
            trees.Row(
                name=trees.last_name(row.layer, row.kind),
                kind=row.kind if row.layer else "",
                depth=row.depth,
                cells=_cells(row),
                share=row.forward_flops / total if total else 0.0,
                is_faded=not row.calls,
            )
            for row in self.layers
        ]

    def table(self, by: str = "layer") -> pd.DataFrame:
        """Return a DataFrame of plain numbers, one row a layer (``by="layer"``) or an operator
        (``by="operator"``).
        """
        return super().table(by).drop(columns="lecture_operations", errors="ignore")

    def cross_table(self, what: str = "macs", phase: str = "forward") -> pd.DataFrame:
        """Return layer by operator: a row a layer without what is inside it, a column an operator,
        so all adds up.

        ``what`` is "macs", "flops", "read_bytes", "written_bytes" or "calls", ``phase`` "forward",
        "backward" or "optimizer". What is 0 throughout has no row and no column. Raises ValueError
        for another name. Lesson 11.
        """
        allowed = {
            "what": ("macs", "flops", "read_bytes", "written_bytes", "calls"),
            "phase": PHASES,
        }
        for name, value in (("what", what), ("phase", phase)):
            if value not in allowed[name]:
                raise ValueError(
                    f"{name}={value!r} is not known; use one of "
                    f"{', '.join(map(repr, allowed[name]))}"
                )
        rows = [row for row in self.layer_operators if row.phase == phase and getattr(row, what)]
        frame = pd.DataFrame(
            0,
            list(dict.fromkeys(row.layer for row in rows)),
            sorted({row.operator for row in rows}),
            dtype="int64",
        )
        for row in rows:
            frame.loc[row.layer, row.operator] += getattr(row, what)
        return frame

    def to_depth(self, depth: int) -> OperationProfile:
        """Return the profile without the rows deeper than ``depth`` (the model is 0); every row
        still holds all inside.

        Printed or shown, it has every block by itself.
        Raises TypeError for what is no whole number, ValueError for a negative one. Lesson 11.
        """
        whole_number("depth", depth, at_least=0)
        layers = tuple(row for row in self.layers if row.depth <= depth)
        return results.derived(_UnfoldedProfile, self, layers=layers)

    def lecture_table(self) -> LectureTable:
        """Return the lecture's table for this model: 295,700 for ``LeNet(variant="lecture")`` at
        (1, 1, 28, 28).

        Source: the lecture "Hardware Ecosystem", its per-layer figures. Lesson 11.
        """
        parents = {row.layer.rpartition(".")[0] for row in self.layers if row.layer}
        leaves = [row for row in self.layers if row.layer not in parents and row.calls]
        lecture_layers = [
            LectureLayer(row.layer, row.kind, row.lecture_operations)
            for row in leaves
            if row.lecture_operations
        ]
        not_covered = [row.layer or row.kind for row in leaves if row.lecture_operations is None]
        return LectureTable(
            total_operations=sum(layer.operations for layer in lecture_layers),
            not_covered=tuple(not_covered),
            layers=tuple(lecture_layers),
        )


class _UnfoldedProfile(OperationProfile):
    """A part of a profile that is shown with every block by itself."""

    def _display_rows(self) -> list[trees.Row]:
        return self._rows()


def _summary(profile: OperationProfile) -> list[str]:
    """Return the totals, a line each."""
    incomplete_phases = {row.phase for row in profile.operators if row.treatment == "not counted"}
    input_text = f" for {profile.input}" if profile.input else ""
    lines = [f"{profile.model}{input_text}: {profile.parameters:,} parameters"]
    for phase in PHASES:
        flops, read_bytes, written_bytes = (
            getattr(profile, f"{phase}_{amount}")
            for amount in ("flops", "read_bytes", "written_bytes")
        )
        at_least = "at least " if phase in incomplete_phases else ""
        flops_and_bytes = f"{at_least}{flops:,} FLOP, {at_least}{read_bytes + written_bytes:,} B"
        if phase != "optimizer":
            macs, useful_macs = (
                getattr(profile, f"{phase}_{kind}macs") for kind in ("", "useful_")
            )
            at_least = at_least if profile.may_hold_products else ""
            causal = f" ({useful_macs:,} useful)" if useful_macs != macs else ""
            lines.append(f"  {phase:<9} {at_least}{macs:,} MAC{causal}, {flops_and_bytes}")
        elif profile.optimizer is not None:
            lines.append(f"  optimizer {profile.optimizer}: {flops_and_bytes}")
    without_products = [
        name for name in profile.not_counted if name not in profile.may_hold_products
    ]
    if profile.may_hold_products:
        lines.append(
            f"  no rule for {', '.join(profile.may_hold_products)}: may hold multiply-accumulates"
        )
    if without_products:
        lines.append(f"  no rule for {', '.join(without_products)}: no multiply-accumulates")
    if not profile.not_counted:
        lines.append("  every operator is counted")
    if profile.attention_taken_apart:
        lines.append(
            "  attention is taken apart: the bytes hold its scores, which a fused kernel does not "
            "write"
        )
    if any(trees.last_name(row.layer, row.kind) == trees.FUNCTIONAL for row in profile.layers):
        lines.append(
            f"  {trees.FUNCTIONAL}: operators called directly, outside of the modules beside this "
            "row"
        )
    if profile.random_draws:
        lines.append(f"  depends on a random draw: {', '.join(profile.random_draws)}")
    return lines


def _cells(row: LayerOperations) -> tuple[str, ...]:
    shape = row.output_shape
    shape_text = shape if len(shape) <= _SHAPE_LETTERS else f"{shape[: _SHAPE_LETTERS - 3]}..."
    amounts = {name: getattr(row, name) for name in _COLUMNS.values()}
    return (
        shape_text,
        str(row.calls),
        *("" if value is None else results.cell(name, value) for name, value in amounts.items()),
    )
