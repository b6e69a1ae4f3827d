"""What counting gives: one row a layer, one an operator, the totals, and the lecture's own table beside them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pandas as pd

from helpers.operations import tree
from helpers.results import Result


@dataclass(frozen=True)
class LayerOperations(Result):
    """The operations of one module, everything inside it included.

    ``layer`` is the module's path in the model ("" is the model itself; a path that ends in "(functional)" holds
    the operators that a module with children calls itself). ``forward_macs`` are executed, ``forward_useful_macs``
    leave out what a causal mask throws away. ``output_shape`` is that of what its last call returned, the shapes of
    several tensors side by side. ``input_bytes``, ``weight_bytes`` and ``output_bytes`` are the forward
    traffic of its operators. Lesson 07.
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


@dataclass(frozen=True)
class OperatorOperations(Result):
    """The operations of one of torch's operators over the whole model, in one phase.

    ``phase`` is "forward", "backward" (of that operator's calls) or "optimizer". ``treatment`` is "counted", "free"
    (nothing computed, nothing moved) or "not counted". Lesson 07.
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


@dataclass(frozen=True)
class LayerOperator(Result):
    """The operations of one operator that one module calls itself, in one phase; free operators have no row.

    ``layer`` is the path of the module's row, or that of its row "(functional)". Lesson 07.
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


@dataclass(frozen=True)
class LectureLayer(Result):
    """One row of the lecture's table."""

    layer: str
    kind: str
    operations: int


@dataclass(frozen=True)
class LectureTable(Result):
    """The lecture's own count, named "FLOPs" there: its rules are neither MACs nor FLOPs (lesson 07 shows why).

    Convolution: outputs x (weights of one output + 1); linear: inputs x outputs; ReLU: 2 an element; pooling: 3 an
    output. ``not_covered`` names the layers for which the lecture has no rule. Lesson 07.
    """

    total_operations: int
    not_covered: tuple[str, ...]
    layers: tuple[LectureLayer, ...]


@dataclass(frozen=True)
class OperationProfile(Result):
    """Operations of one forward, one backward and one optimizer step of a model, for one input.

    A notebook shows it as a tree that opens and closes, with a bar a layer; ``print`` gives the tree as text
    (``print(profile.to_depth(2))`` a part of it), :meth:`table` a DataFrame, ``to_json`` everything.

    ``not_counted`` names the operators that have no rule: their FLOPs and bytes are missing. Of these
    ``may_hold_products`` may hold multiply-accumulates too; where it is empty every MAC is counted.
    ``random_draws`` names the layers whose forward asked what a random draw gave, and other generators that were used:
    the count may be another for another draw. Lesson 07.
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
    layers: tuple[LayerOperations, ...]
    operators: tuple[OperatorOperations, ...]
    layer_operators: tuple[LayerOperator, ...]

    def __str__(self) -> str:
        return "\n".join([*tree.summary_lines(self), *tree.text_lines(self.layers)])

    def _repr_html_(self) -> str:
        return tree.html_tree(self)

    def table(self, by: str = "layer") -> pd.DataFrame:
        """Return a DataFrame of plain numbers, one row a layer (``by="layer"``) or an operator (``by="operator"``)."""
        rows = {"layer": self.layers, "operator": self.operators}
        if by not in rows:
            raise ValueError(f"by={by!r} is not known; use 'layer' or 'operator'")
        frame = pd.DataFrame([row.to_dict() for row in rows[by]])
        return frame.drop(columns="lecture_operations", errors="ignore")

    def cross_table(self, what: str = "macs", phase: str = "forward") -> pd.DataFrame:
        """Return layer by operator: a row a layer without what is inside it, a column an operator, so all adds up.

        ``what`` is "macs", "flops", "read_bytes", "written_bytes" or "calls", ``phase`` "forward", "backward" or
        "optimizer". What is 0 throughout has no row and no column. Raises ValueError for another name. Lesson 07.
        """
        known = {"what": ("macs", "flops", "read_bytes", "written_bytes", "calls"),
                 "phase": ("forward", "backward", "optimizer")}  # fmt: skip
        for name, given in (("what", what), ("phase", phase)):
            if given not in known[name]:
                raise ValueError(f"{name}={given!r} is not known; use one of {', '.join(map(repr, known[name]))}")
        rows = [row for row in self.layer_operators if row.phase == phase and getattr(row, what)]
        frame = pd.DataFrame(
            0, list(dict.fromkeys(row.layer for row in rows)), sorted({row.operator for row in rows}), dtype="int64"
        )
        for row in rows:
            frame.loc[row.layer, row.operator] += getattr(row, what)
        return frame

    def to_depth(self, depth: int) -> OperationProfile:
        """Return the profile without the rows deeper than ``depth`` (the model is 0); every row still holds all inside.

        Raises ValueError for a negative depth. Lesson 07.
        """
        if depth < 0:
            raise ValueError(f"depth is {depth}; 0 keeps the model's own row, 1 its layers, and so on")
        return replace(self, layers=tuple(row for row in self.layers if row.depth <= depth))

    def layer(self, path: str) -> LayerOperations:
        """Return the row of the module at ``path``; the model itself is ``""``.

        Raises KeyError that names the paths there are.
        """
        for row in self.layers:
            if row.layer == path:
                return row
        raise KeyError(f"no layer {path!r}; the layers are {', '.join(repr(row.layer) for row in self.layers)}")

    def lecture_table(self) -> LectureTable:
        """Return the lecture's table for this model: 295,700 for ``LeNet(variant="lecture")`` at (1, 1, 28, 28).

        Source: the lecture "Hardware Ecosystem", its per-layer figures. Lesson 07.
        """
        parents = {row.layer.rpartition(".")[0] for row in self.layers if row.layer}
        leaves = [row for row in self.layers if row.layer not in parents and row.calls]
        known = [row for row in leaves if row.lecture_operations]
        missing = [row.layer or row.kind for row in leaves if row.lecture_operations is None]
        return LectureTable(
            total_operations=sum(row.lecture_operations for row in known),
            not_covered=tuple(missing),
            layers=tuple(LectureLayer(row.layer, row.kind, row.lecture_operations) for row in known),
        )
