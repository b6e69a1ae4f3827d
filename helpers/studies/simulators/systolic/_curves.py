"""The curves of lesson 14: the elements at work over time, and the useful share over the width of a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from helpers import plotting
from helpers.plotting import MODELLED, Curves, Menu, Series, Slider

if TYPE_CHECKING:
    from helpers.studies.simulators.systolic import SystolicRun

_STYLES = ("-", "--", ":", "-.")
_SIDES = (128, 256, 512)
_WIDEST = 1100


def draw_working(runs: Mapping[str, SystolicRun]) -> Figure:
    """Return a plot of the elements at work in each cycle, one line for each of at most four ``runs`` by its label.

    All runs are on arrays of one size, whose elements are a dotted line above. Raises ValueError for no run, for more
    than four, and for arrays of different sizes. Lesson 14.
    """
    sizes = {(run.rows, run.columns) for run in runs.values()}
    if len(sizes) != 1 or len(runs) > len(_STYLES):
        given = ", ".join(f"{rows} x {columns}" for rows, columns in sorted(sizes)) or "none"
        raise ValueError(f"{len(runs)} runs on arrays of {given}: give 1 to {len(_STYLES)} runs on arrays of one size")
    [(rows, columns)] = sizes
    drawn, axes = plotting.figure(title=f"PEs at work in each cycle, on {rows} x {columns} PEs", height_in=3.4)
    for (label, run), style in zip(runs.items(), _STYLES, strict=False):
        named = f"{label} ({run.utilisation:.0%} of all PE cycles, simulated)"
        axes.plot(range(run.cycles), run.active, style, color=plotting.MEASURED, label=named)
    axes.axhline(rows * columns, color="#777777", linestyle=":", linewidth=1, label="all PEs")
    axes.set(xlabel="cycle", ylabel="PEs at work", ylim=(0, 1.5 * rows * columns))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="upper left")
    return drawn


def explore_width() -> None:
    """Display the useful share of an array over the width of a square layer as a figure to turn.

    The reader turns the side of the array, and a width with the step behind each multiple of 128. It begins with 600 x
    600 weights on an array of side 256. Lesson 14.
    """
    steps = [multiple + more for multiple in range(128, _WIDEST, 128) for more in (0, 1)]
    widths = sorted({*range(40, _WIDEST, 20), *steps})
    plotting.explore(
        title="Which share of an array's places holds a weight?",
        alt="The useful share rises with the width of the matrix and falls at once behind each multiple of the side.",
        inputs=[
            Menu("array", "side of the array", {f"{side}": {"S": side} for side in _SIDES}, "256"),
            Slider("width", "rows and columns of the matrix", widths, 600),
        ],
        formulas={"padded": "ceil(width / array.S) * array.S", "useful": "100 * (width / padded) ** 2"},
        picture=Curves(
            along="width",
            lines=[Series("useful", "useful share", MODELLED)],
            xlabel="rows and columns of the matrix",
            ylabel="useful share in percent (modelled)",
            log_x=False,
            log_y=False,
        ),
    )
