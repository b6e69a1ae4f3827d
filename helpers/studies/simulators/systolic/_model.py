"""Closed formulas of a systolic array's cycles and accesses, apart from the simulator.

A fold is one tile of the product on the array. The formulas charge every fold all rows and columns
of the array, as the literature does; a simulated run is over when the last result has left, so it
needs as many cycles on full tiles and fewer on partial ones. Sources: Samajdar et al., SCALE-Sim
(arXiv 1811.02883, ISPASS 2020), whose tool reports one cycle less (an index, not a count) and,
output-stationary, no cycles to drain. Lesson 14.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from helpers.checks import boolean, choice, whole_number
from helpers.results import Record

DATAFLOWS = ("weight", "output", "input")
"""What may stay in the elements. Lesson 14."""
LARGEST = 1024
"""Rows, or columns, of the largest array that is simulated."""


class Accesses(Record):
    """Numbers that cross the edge of an array: read from the buffers, written to them, and read
    back to be added to.

    Lesson 14.
    """

    input_reads: int
    filter_reads: int
    output_writes: int
    partial_sum_reads: int


def model_cycles(
    m: int,
    n: int,
    k: int,
    *,
    rows: int,
    columns: int,
    dataflow: str = "weight",
    double_buffered: bool = False,
) -> int:
    """Return the cycles of an m x k by k x n product on an array of ``rows`` x ``columns``
    elements.

    * Weight-stationary, each of ceil(k / rows) ceil(n / columns) folds takes ``rows`` cycles to
      load, and the last of m rows leaves after m + rows + columns - 2 more.
    * Output-stationary, each of ceil(m / rows) ceil(n / columns) folds takes k + rows + columns - 2
      cycles to compute and ``rows`` to drain.
    * Input-stationary is weight-stationary with m and n changed over.

    ``double_buffered``, the folds begin max(m, rows) cycles one after another.

    >>> model_cycles(4, 4, 4, rows=4, columns=4)
    14

    Raises TypeError or ValueError for a size that is no whole number above 0, another dataflow, and
    for ``double_buffered`` with "output", whose elements keep no filter. Lesson 14.
    """
    boolean("double_buffered", double_buffered)
    m, n, k, rows, columns = _sizes(m, n, k, rows, columns, dataflow)
    if dataflow == "output":
        if double_buffered:
            raise ValueError(
                "double_buffered=True has no meaning for dataflow='output': no filter stays in an "
                "element; choose 'weight' or 'input'"
            )
        return _folds(m, rows) * _folds(n, columns) * (2 * rows + columns + k - 2)
    if dataflow == "input":
        m, n = n, m
    folds = _folds(k, rows) * _folds(n, columns)
    if double_buffered:
        return (folds - 1) * max(m, rows) + m + 2 * rows + columns - 2
    return folds * (2 * rows + columns + m - 2)


def model_accesses(
    m: int, n: int, k: int, *, rows: int, columns: int, dataflow: str = "weight"
) -> Accesses:
    """Return the reads and writes of an m x k by k x n product at the edge of an array of ``rows``
    x ``columns``.

    What stays in the elements is read once. An operand that passes is read once for each tile along
    the other one's columns (or rows), and where k takes several folds each result is written, read
    back and written again. Full and partial tiles alike. Raises as :func:`model_cycles` does.
    Lesson 14.
    """
    m, n, k, rows, columns = _sizes(m, n, k, rows, columns, dataflow)
    if dataflow == "output":
        return Accesses(m * k * _folds(n, columns), k * n * _folds(m, rows), m * n, 0)
    along_k = _folds(k, rows)
    inputs, filters = (1, _folds(m, columns)) if dataflow == "input" else (_folds(n, columns), 1)
    return Accesses(m * k * inputs, k * n * filters, m * n * along_k, m * n * (along_k - 1))


def useful_share(k: int, n: int, *, side: int) -> float:
    """Return the share of the places of an array's tiles that hold one of k x n weights, from 0 to
    1.

    The weights are cut into tiles of ``side`` x ``side``, and the last tiles of a direction are
    filled with zeros.

    >>> round(useful_share(600, 600, side=256), 3)
    0.61

    Raises TypeError or ValueError for a size that is no whole number above 0. Lesson 14.
    """
    k, n, side = (whole_number(name, size) for name, size in {"k": k, "n": n, "side": side}.items())
    return k * n / (_folds(k, side) * _folds(n, side) * side**2)


def working_elements(rows: int, *, side: int) -> np.ndarray:
    """Return how many elements work in each cycle while ``rows`` of inputs pass through one full
    tile, as an array.

    The array of ``side`` x ``side`` elements is weight-stationary. It takes ``side`` cycles to
    load, and then element (r, c) works for ``rows`` cycles from cycle r + c on. The array has rows
    + 3 side - 2 entries.

    >>> working_elements(2, side=2).tolist()
    [0, 0, 1, 3, 3, 1]

    Raises TypeError or ValueError for a size that is no whole number above 0. Lesson 14.
    """
    rows, side = whole_number("rows", rows), whole_number("side", side)
    # elements with r + c = 0, 1, 2, ...
    diagonals = np.convolve(np.ones(side, int), np.ones(side, int))
    return np.concatenate((np.zeros(side, int), np.convolve(diagonals, np.ones(rows, int))))


def _sizes(m: Any, n: Any, k: Any, rows: Any, columns: Any, dataflow: Any) -> tuple[int, ...]:
    choice("dataflow", dataflow, DATAFLOWS)
    sizes = {"m": m, "n": n, "k": k, "rows": rows, "columns": columns}
    return tuple(whole_number(name, size) for name, size in sizes.items())


def _folds(size: int, elements: int) -> int:
    return -(-size // elements)
