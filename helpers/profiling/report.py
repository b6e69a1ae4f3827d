"""What timing a model gives: one row a layer, one an operator, and the whole step that they add up to."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from helpers.profiling import tree
from helpers.results import Result


@dataclass(frozen=True)
class LayerTime(Result):
    """The time of one module in a step, everything inside it included.

    ``layer`` is the module's path ("" is the model itself). A path that ends in "(functional)" is what a module with
    children does itself: the operators it calls as functions, and its own Python. The row "(unaccounted)", the last
    one, is what no module does: the loss, and Python and autograd around it. ``share`` is of the whole step.
    Lesson 07.
    """

    layer: str
    kind: str
    depth: int
    calls: int
    forward_s: float
    backward_s: float
    total_s: float
    share: float


@dataclass(frozen=True)
class OperatorTime(Result):
    """The time that one of torch's operators spends itself, in one phase of a step, in all its calls.

    ``phase`` is "forward", "backward" or, in the last row, "(unaccounted)", "both". ``share`` is of the step that the
    profiler saw. Lesson 07.
    """

    operator: str
    phase: str
    calls: int
    median_s: float
    share: float


@dataclass(frozen=True)
class TimeProfile(Result):
    """Where the time of a model's step goes; the rows of ``layers`` add up to ``step_s``.

    Every moment of a step belongs to one row. The times of the layers are medians over ``rounds`` steps, and
    ``forward_s``, ``backward_s`` and ``step_s`` are sums of them; ``hooked_step_s`` is the median of the same steps as
    wholes, which a busy machine moves away from ``step_s``. In each round the step also ran without any hook:
    ``plain_step_s`` is the median of those, and ``overhead_ratio`` the median of what the hooks made of a step, the
    setting of backward hooks included. The operators come from other steps, under torch's profiler, which costs more:
    their rows add up to ``profiled_step_s``. Lesson 07.
    """

    model: str
    input: str
    device: str
    threads: int
    training: bool
    rounds: int
    step_s: float
    forward_s: float
    backward_s: float
    hooked_step_s: float
    plain_step_s: float
    overhead_ratio: float
    profiled_step_s: float
    layers: tuple[LayerTime, ...]
    operators: tuple[OperatorTime, ...]

    def __str__(self) -> str:
        return "\n".join([*tree.summary_lines(self), *tree.text_lines(self.layers)])

    def _repr_html_(self) -> str:
        return tree.html_tree(self)

    def table(self, by: str = "layer") -> pd.DataFrame:
        """Return a DataFrame of plain numbers, one row a layer (``by="layer"``) or an operator (``by="operator"``)."""
        rows = {"layer": self.layers, "operator": self.operators}
        if by not in rows:
            raise ValueError(f"by={by!r} is not known; use 'layer' or 'operator'")
        return pd.DataFrame([row.to_dict() for row in rows[by]])

    def layer(self, path: str) -> LayerTime:
        """Return the row of the module at ``path``; the model itself is ``""``.

        Raises KeyError that names the paths there are.
        """
        for row in self.layers:
            if row.layer == path:
                return row
        raise KeyError(f"no layer {path!r}; the layers are {', '.join(repr(row.layer) for row in self.layers)}")

    def parts(self) -> tuple[LayerTime, ...]:
        """Return the rows that hold no other row: their times add up to ``step_s`` and their shares to 1."""
        following = (*self.layers[1:], None)
        return tuple(row for row, after in zip(self.layers, following, strict=True)
                     if after is None or after.depth <= row.depth)  # fmt: skip

    def slowest(self) -> LayerTime:
        """Return the module without children in which the step spends most of its time."""
        return max((row for row in self.parts() if row.kind not in tree.NO_MODULE), key=lambda row: row.total_s)
