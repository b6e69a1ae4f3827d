"""The uses of one element of a matrix in a product: the reuse that makes a matrix product fast."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.checks import whole_number
from helpers.studies._paper import COMPUTING, DATA, EMPTY, QUIET, paper, write

_CELL_IN, _GAP_IN, _TOP_IN, _MARGIN_IN, _APART_IN = 0.26, 0.42, 0.5, 0.35, 0.7
_MOST = 8


def draw_products(n: int = 4, *, title: str = "Uses of one element") -> Figure:
    """Return ``a * b`` and ``a @ b`` of n x n matrices side by side: an element of ``a``, what it
    meets and makes.

    Raises ValueError for an ``n`` that is not 2 to 8. Lesson 00.
    """
    whole_number("n", n, at_least=2, at_most=_MOST)
    side = n * _CELL_IN
    panel = 3 * side + 2 * _GAP_IN
    figure, axes = paper(2 * (panel + _MARGIN_IN) + _APART_IN, side + 1.15, title=title)
    row, column = n // 4, n // 2
    element = {(row, column)}
    panels = {
        "a * b": (element, element, "an element of a takes part in one result"),
        "a @ b": (
            {(column, index) for index in range(n)},
            {(row, index) for index in range(n)},
            f"an element of a takes part in {n} results",
        ),
    }
    for panel_index, (name, (b_cells, result_cells, caption)) in enumerate(panels.items()):
        left = _MARGIN_IN + panel_index * (panel + _APART_IN)
        write(axes, left + panel / 2, 0.25, name, size=13, bold=True)
        for index, cells in enumerate((element, b_cells, result_cells)):
            x = left + index * (side + _GAP_IN)
            for i in range(n):
                for j in range(n):
                    colour = EMPTY if (i, j) not in cells else COMPUTING if index == 2 else DATA
                    corner, wide = (x + j * _CELL_IN, _TOP_IN + i * _CELL_IN), _CELL_IN - 0.03
                    axes.add_patch(Rectangle(corner, wide, wide, facecolor=colour))
            if index < 2:
                write(
                    axes,
                    x + side + _GAP_IN / 2 - 0.015,
                    _TOP_IN + side / 2,
                    "=" if index else name[2],
                    size=15,
                )
        write(axes, left + panel / 2, _TOP_IN + side + 0.26, caption, colour=QUIET)
    return figure
