"""The curves of lesson 14: the elements at work over time, and the useful share over the width of a
layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from helpers import plotting
from helpers.plotting import MODELLED, Curves, Menu, Series, Slider
from helpers.studies.simulators.systolic._model import working_elements

_STYLES = ("-", "--", ":", "-.")
_SIDES = (128, 256, 512)
_WIDEST = 1100


def draw_working(rows: Sequence[int], *, side: int) -> Figure:
    """Return a plot of the elements at work in each cycle, one line for each of at most four
    numbers of ``rows``.

    The rows pass through one full tile of ``side`` x ``side`` weights (:func:`working_elements`).
    Raises ValueError for no number of rows and for more than four. Lesson 14.
    """
    if not 1 <= len(rows) <= len(_STYLES):
        raise ValueError(
            f"{len(rows)} numbers of rows, but there must be 1 to {len(_STYLES)}; draw the others "
            "apart"
        )
    drawn, axes = plotting.figure(
        title=f"PEs at work in each cycle, on {side} x {side} PEs", height_in=3.4
    )
    for count, style in zip(rows, _STYLES, strict=False):
        working = working_elements(count, side=side)
        share = working.sum() / (len(working) * side**2)
        label = f"{count:,} rows ({share:.0%} of all PE cycles, modelled)"
        axes.plot(range(len(working)), working, style, color=MODELLED, label=label)
    axes.axhline(side**2, color="#777777", linestyle=":", linewidth=1, label="all PEs")
    axes.set(xlabel="cycle", ylabel="PEs at work", ylim=(0, 1.5 * side**2))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="upper left")
    return drawn


def explore_width() -> None:
    """Display the useful share of an array over the width of a square layer as a figure to turn.

    The reader turns the side of the array, and a width with the step behind each multiple of 128.
    It begins with 600 x 600 weights on an array of side 256. Lesson 14.
    """
    steps = [multiple + more for multiple in range(128, _WIDEST, 128) for more in (0, 1)]
    widths = sorted({*range(40, _WIDEST, 20), *steps})
    plotting.explore(
        title="Which share of an array's places holds a weight?",
        alt="The useful share rises with the width of the matrix and falls at once behind each "
        "multiple of the side.",
        inputs=[
            Menu("array", "side of the array", {f"{side}": {"S": side} for side in _SIDES}, "256"),
            Slider("width", "rows and columns of the matrix", widths, 600),
        ],
        formulas={
            "padded": "ceil(width / array.S) * array.S",
            "useful": "100 * (width / padded) ** 2",
        },
        picture=Curves(
            along="width",
            lines=[Series("useful", "useful share", MODELLED)],
            xlabel="rows and columns of the matrix",
            ylabel="useful share in percent (modelled)",
            log_x=False,
            log_y=False,
        ),
    )
