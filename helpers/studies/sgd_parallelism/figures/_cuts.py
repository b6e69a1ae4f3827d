"""The three products of a layer with one side cut, and what a cut is worth on a link, as a figure
to turn.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers import plotting
from helpers.checks import choice
from helpers.plotting import COLOURS, MODELLED, Curves, Menu, Series, Slider
from helpers.studies._paper import EMPTY, INK, QUIET, paper, write

SIDES = ("tokens", "inputs", "outputs")
_PRODUCTS = {  # the result, and the sides of the two factors and of the result
    "outputs": (("tokens", "inputs"), ("inputs", "outputs"), ("tokens", "outputs")),
    "gradient of the inputs": (("tokens", "outputs"), ("outputs", "inputs"), ("tokens", "inputs")),
    "gradient of the weights": (("inputs", "tokens"), ("tokens", "outputs"), ("inputs", "outputs")),
}
_SIZES_IN = {"tokens": 0.8, "inputs": 0.52, "outputs": 0.66}
_WORKERS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
_WIDE_IN, _ROW_IN, _HEAD_IN, _LEFT_IN = 8.2, 1.16, 0.12, 0.2
_COLUMNS_IN, _BEHIND_IN = (3.5, 5.0, 6.5), 0.06

_TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16384, 21504, 32768, 65536, 131072, 262144)
_LINKS = {"NVLink, 450 GB/s": {"B": 450.0}, "400 Gbit/s": {"B": 50.0}, "100 Gbit/s": {"B": 12.5}}
_CUTS = {
    "tokens": {"weights": 1, "activations": 0},
    "inputs or outputs": {"weights": 0, "activations": 1},
}


def draw_cut(side: str) -> Figure:
    """Draw the three products of a layer in training with one ``side`` cut, a colour for each of
    four workers.

    ``side`` is "tokens", "inputs" or "outputs". Grey, "all", is what every worker needs whole.
    Where a product sums over the side, each worker has terms of the whole result, so the result is
    drawn once for each, one behind another. Raises ValueError for another side. Lesson 04.
    """
    side = choice("side", side, SIDES)
    drawn, axes = paper(_WIDE_IN, _HEAD_IN + len(_PRODUCTS) * _ROW_IN, title="")
    for row, (name, matrices) in enumerate(_PRODUCTS.items()):
        middle = _HEAD_IN + (row + 0.45) * _ROW_IN
        write(axes, _LEFT_IN, middle - 0.1, name, size=12, bold=True, ha="left")
        is_sum = side not in matrices[2]
        caption = f"a sum of {len(_WORKERS)} terms" if is_sum else "no sum"
        ink = INK if is_sum else QUIET
        write(axes, _LEFT_IN, middle + 0.17, caption, size=12, ha="left", colour=ink)
        for centre, sides in zip(_COLUMNS_IN, matrices, strict=True):
            if is_sum and sides == matrices[2]:
                for index, colour in reversed(list(enumerate(_WORKERS))):
                    away = _BEHIND_IN * index
                    _matrix(axes, centre + away, middle - away, sides, side, (colour,))
            else:
                colours = _WORKERS if side in sides else (EMPTY,)
                _matrix(axes, centre, middle, sides, side, colours)
            _name_sides(axes, centre, middle, sides)
        write(axes, _COLUMNS_IN[0] + 0.66, middle, "@", size=15)
        write(axes, _COLUMNS_IN[1] + 0.66, middle, "=", size=15)
    return drawn


def _matrix(
    axes: Axes,
    centre: float,
    middle: float,
    sides: tuple[str, str],
    cut: str,
    colours: tuple[str, ...],
) -> None:
    """Draw a matrix of (rows, columns), along the ``cut`` side a piece of each of ``colours``."""
    height, width = (_SIZES_IN[side] for side in sides)
    left, top = centre - width / 2, middle - height / 2
    is_cut_across = cut == sides[1]
    share = 1 / len(colours)
    size = (share * width, height) if is_cut_across else (width, share * height)
    for index, colour in enumerate(colours):
        corner = (left + index * size[0], top) if is_cut_across else (left, top + index * size[1])
        edge = QUIET if colour == EMPTY else "white"
        axes.add_patch(Rectangle(corner, *size, facecolor=colour, edgecolor=edge, linewidth=1))
        if colour == EMPTY:
            write(axes, centre, middle, "all", size=10, colour=QUIET)


def _name_sides(axes: Axes, centre: float, middle: float, sides: tuple[str, str]) -> None:
    height, width = (_SIZES_IN[side] for side in sides)
    left = centre - width / 2 - 0.08
    axes.text(left, middle, sides[0], rotation=90, ha="right", va="center", fontsize=10)
    write(axes, centre, middle + height / 2 + 0.12, sides[1], size=10)


def explore_sharing() -> None:
    """Display what four H100s that share a layer are worth, as a figure to turn: tokens, link, and
    the side cut.

    The layer has 4,096 inputs and outputs, and each GPU computes at 400 TFLOP/s. It begins with
    16,384 tokens, which are cut, and a port of 100 Gbit/s. Lesson 04.
    """
    plotting.explore(
        title="How many times as fast as one H100 are four?",
        alt="Tokens cut: the curve rises with the tokens and crosses 1 at about 21,000. Inputs "
        "cut: it is flat.",
        inputs=[
            Menu("cut", "the layer is cut by", _CUTS, "tokens"),
            Menu("link", "link of each GPU", _LINKS, "100 Gbit/s"),
            Slider("tokens", "tokens in a step", list(_TOKENS), 16384),
        ],
        formulas={
            "compute": "6 * 4096 * 4096 * tokens / 400e9",  # ms
            "summed": "2 * 4096 * (cut.weights * 4096 + cut.activations * tokens)",
            "sending": "1.5 * summed / link.B / 1e6",  # ms
            "gain": "compute / (compute / 4 + sending)",
            "one": "compute / compute",
        },
        picture=Curves(
            along="tokens",
            lines=[
                Series("one", "one GPU", COLOURS["waiting"]),
                Series("gain", "four GPUs (modelled)", MODELLED),
            ],
            xlabel="tokens in a step",
            ylabel="times as fast as one GPU",
        ),
    )
