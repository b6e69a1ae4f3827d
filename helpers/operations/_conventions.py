"""What one operator costs where no multiply-accumulate says it: floating-point operations per
element, as data.

The tables stand in ``conventions.toml`` beside this module.

A multiply-accumulate (MAC) of a convolution or matrix product is two floating-point operations
(FLOP). A bias that the same operator adds starts the accumulator and costs nothing more: K
multiplications, K - 1 additions and the bias are 2 K operations. Everything else is counted per
element by these tables, under four rules:

* An addition, multiplication, division, negation, comparison, minimum or maximum is 1; so is an
  elementary function (exponential, logarithm, root, power, sine, error function, hyperbolic
  tangent).
* A composite function is the sum of its steps: a sigmoid is negate, exponential, add, divide: 4.
* Moving and selecting data (copy, concatenate, gather, pad, ``where``) is 0: it costs bytes, not
  operations.
* Integer and boolean arithmetic is 0. A complex element counts as two real ones, a complex product
  as 6, and a complex MAC as 4 real MACs.

Lesson 11.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any, NamedTuple

import pandas as pd


class Elementwise(NamedTuple):
    """FLOP per output element, FLOP per element of each input's gradient, and the tensors that
    backward reads besides.

    ``saved`` is "none", "own" (the operand itself), "other" (the other operands) or "one" (one
    tensor of the output's size). ``gradient_flops`` is one number for every input or one an input,
    in the order of the operator's arguments.
    """

    flops: int
    gradient_flops: int | tuple[int, ...]
    saved: str
    steps: str


class Reduction(NamedTuple):
    """FLOP per input element and FLOP per element of the input's gradient; backward reads ``saved``
    inputs again.
    """

    flops: int
    gradient_flops: int
    saved: int
    steps: str


_DATA = tomllib.loads(
    resources.files("helpers.operations").joinpath("conventions.toml").read_text(encoding="utf-8")
)


def _load_table(section: str, kind: Any) -> dict[str, Any]:
    rows = {
        names: [tuple(cell) if isinstance(cell, list) else cell for cell in row]
        for names, row in _DATA[section].items()
    }
    return {name: kind(*row) for names, row in rows.items() for name in names.split()}


ELEMENTWISE: dict[str, Elementwise] = _load_table("elementwise", Elementwise)
REDUCTIONS: dict[str, Reduction] = _load_table("reductions", Reduction)
INTERPOLATION: dict[str, tuple[int, int]] = _load_table("interpolation", lambda *pair: pair)
FREE, FILL, COPY, GATHER, SCATTER, ACCUMULATING, NORMS, WITHOUT_PRODUCTS = (
    frozenset(_DATA["sets"][name].split())
    for name in (
        "free",
        "fill",
        "copy",
        "gather",
        "scatter",
        "accumulating",
        "norms",
        "without_products",
    )
)
GELU_TANH = Elementwise(
    9, 16, "one", "the tanh approximation: cube 2, polynomial 3, tanh, add, two products"
)

# A complex element of these costs more than twice a real one.
COMPLEX_FLOPS = {"mul": 6, "div": 11, "true_divide": 11}

# Normalisations, per element: statistics and scaling where the statistics are this input's own,
# scaling alone where they are stored (batch normalisation in eval), one for the weight, one for the
# bias; then the same for backward.
NORM_FLOPS = {"own": 5, "stored": 2, "weight": 1, "bias": 1}
NORM_GRADIENT_FLOPS = {"own": 9, "stored": 1, "through_weight": 1, "weight": 2, "bias": 1}


def convention_table() -> pd.DataFrame:
    """Return the conventions as a table: operator, FLOP per element forward and backward, and the
    steps counted.

    ``per`` says of which elements: the output's for element-wise operators, the input's for
    reductions.

    >>> table = convention_table().set_index("operator")
    >>> table.loc["sigmoid", ["flops", "gradient_flops", "steps"]].tolist()
    [4, 3, 'negate, exponential, add, divide; backward: g s (1 - s)']

    Lesson 11.
    """
    rows: list[tuple[object, ...]] = []
    for rules, per in ((ELEMENTWISE, "output element"), (REDUCTIONS, "input element")):
        rows += [
            (name, per, rule.flops, rule.gradient_flops, rule.steps) for name, rule in rules.items()
        ]
    rows += [
        (name, "output element", *pair, "weighted sum") for name, pair in INTERPOLATION.items()
    ]
    rows += [
        (
            "max_pool, avg_pool",
            "output element",
            "window",
            "1, window",
            "compare, or add, each element",
        ),
        (
            "normalisation",
            "element",
            "5, 2 stored",
            "9, 1 stored",
            "statistics and scaling; weight: 1 forward, 3 backward; bias: 1 and 1",
        ),
    ]
    return pd.DataFrame(rows, columns=["operator", "per", "flops", "gradient_flops", "steps"])
