"""The figures of lesson 15: a packed tile, tiles by the channels of a block, costs that disagree, a
block to turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from helpers import plotting
from helpers.checks import number, whole_number
from helpers.plotting import COLOURS, Curves, Menu, Series, Slider
from helpers.plotting._style import OTHERS
from helpers.studies._paper import COMPUTING, EMPTY, INK, QUIET, box, paper, write

KERNEL = 9  # weights of a 3 x 3 kernel
_TILE_IN, _LEFT_IN, _BETWEEN_IN, _TOP_IN = 2.5, 0.35, 1.3, 0.62
_SIDES = (128, 256, 512)
_TPU_V1_CYCLES = 65_536 / 34e9 * 700e6  # between two tiles of 256 x 256 bytes


def draw_packed_tile(channels: int, *, side: int) -> Figure:
    """Return a tile with depthwise 3 x 3 kernels on its diagonal, beside that of a convolution of
    ``channels`` inputs.

    Each of the ``side // 9`` kernels has its nine weights in a column of its own, below those of
    the one before. The other tile holds 9 x ``channels`` rows, at most ``side``. Raises ValueError
    for a side below 9 and for channels that need more than one tile. Lesson 15.
    """
    side = whole_number("side", side, at_least=KERNEL)
    channels = whole_number("channels", channels)
    if KERNEL * channels > side:
        raise ValueError(
            f"{channels} channels need {KERNEL * channels} rows, but a tile has {side}; give at "
            f"most {side // KERNEL}"
        )
    strips = side // KERNEL
    second = _LEFT_IN + _TILE_IN + _BETWEEN_IN
    figure, axes = paper(second + _TILE_IN + 0.35, _TOP_IN + _TILE_IN + 0.55, title="One tile each")
    scale = _TILE_IN / side
    for left, name in ((_LEFT_IN, "depthwise 3 x 3, packed"), (second, "ordinary 3 x 3")):
        write(axes, left + _TILE_IN / 2, 0.25, name, bold=True)
        box(axes, left, _TOP_IN, _TILE_IN, _TILE_IN, colour=EMPTY, edge=QUIET)
    for strip in range(strips):
        left, top = _LEFT_IN + strip * scale, _TOP_IN + KERNEL * strip * scale
        _fill(axes, left, top, max(scale, 0.02), KERNEL * scale)
    _fill(axes, second, _TOP_IN, _TILE_IN, KERNEL * channels * scale)
    text_y = _TOP_IN + _TILE_IN + 0.25
    for left, weights in ((_LEFT_IN, KERNEL * strips), (second, KERNEL * channels * side)):
        text = f"{weights:,} of {side**2:,} places hold a weight"
        write(axes, left + _TILE_IN / 2, text_y, text, size=10, colour=INK)
    return figure


def _fill(axes: Axes, left: float, top: float, width: float, height: float) -> None:
    axes.fill_between([left, left + width], top, top + height, color=COMPUTING, linewidth=0)


def draw_border(groups: Sequence[int], *, sides: Sequence[int] = (128, 256)) -> Figure:
    """Return how many times as many tiles a fused block takes as one with a depthwise step, by the
    block's channels.

    With c channels, w channels between and an array of side S, the fused block takes 9 c w / S^2
    tiles and the other one c w / S^2 + 9 w / S, without the narrowing that both have and without
    rounding. So the ratio is 9 c / (c + 9 S) and is 1 at 9 S / 8 channels. ``groups`` are channels
    to mark, at the first of the ``sides``. Raises ValueError for no sides. Lesson 15.
    """
    sides = [whole_number("sides", side) for side in sides]
    if not sides:
        raise ValueError("sides is empty; give the side of an array, such as 256")
    figure, axes = plotting.figure(title="From which channels on does a depthwise step save tiles?")
    channels = np.arange(8, 513)
    for side, style in zip(sides, ("-", "--", ":", "-."), strict=False):
        ratio = KERNEL * channels / (channels + KERNEL * side)
        axes.plot(channels, ratio, style, color=COLOURS["modelled"], label=f"array of side {side}")
        equal_channels = KERNEL * side / 8
        axes.annotate(
            f"{equal_channels:.0f}",
            (equal_channels, 1),
            (0, -16),
            textcoords="offset points",
            ha="center",
        )
    marked_channels = np.array([whole_number("groups", group) for group in groups])
    axes.plot(
        marked_channels,
        KERNEL * marked_channels / (marked_channels + KERNEL * sides[0]),
        "o",
        color=OTHERS[1],
        label=f"groups of EfficientNet-B4, side {sides[0]}",
    )
    axes.axhline(1, color=QUIET, linewidth=1)
    axes.text(500, 1.04, "fused takes more tiles", ha="right", color=QUIET)
    axes.text(500, 0.86, "fused takes fewer", ha="right", color=QUIET)
    axes.set(
        xlabel="channels of the block",
        ylabel="tiles, fused / depthwise (modelled)",
        xlim=(0, 512),
        ylim=(0, None),
    )
    axes.legend(loc="upper left")
    return figure


def draw_costs(costs: Mapping[str, Mapping[str, float]], *, title: str) -> Figure:
    """Return the costs of several layers in several units, relative to the first layer, as lines.

    ``costs`` has a mapping of units and costs for each layer, all with the same units. Lines that
    cross are layers that change places. Raises ValueError for no layers, more than six, other
    units, and a cost that is not above 0.

    Lesson 15.
    """
    if not 1 <= len(costs) <= len(OTHERS) + 1:
        raise ValueError(f"{len(costs)} layers cannot be drawn; give 1 to {len(OTHERS) + 1}")
    first_layer, first = next(iter(costs.items()))
    units = list(first)
    for layer, by_unit in costs.items():
        if list(by_unit) != units:
            raise ValueError(
                f"{layer!r} has costs in {list(by_unit)}; give all layers costs in {units}"
            )
        for unit, cost in by_unit.items():
            number(f"costs[{layer!r}][{unit!r}]", cost, above=0)
    figure, axes = plotting.figure(title=title, height_in=4.2)
    for colour, style, (layer, by_unit) in zip(
        ("#555555", *OTHERS), ("-", "--", "-.", ":", "-", "--"), costs.items(), strict=False
    ):
        relative = [by_unit[unit] / first[unit] for unit in units]
        axes.plot(
            range(len(units)), relative, style, marker="o", color=colour, linewidth=2.2, label=layer
        )
    axes.set_xticks(range(len(units)), units)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set(ylabel=f"relative to {first_layer}", xlim=(-0.25, len(units) - 0.75))
    axes.legend(loc="lower right")
    return figure


def _channels_of_the_curve() -> list[int]:
    """Return channels up to 384, with both ends of every step, so that a line through them shows
    the steps.
    """
    last = {
        side * tiles // KERNEL for side in _SIDES for tiles in range(1, 1 + 384 * KERNEL // side)
    }
    last |= set(range(_SIDES[0], 385, _SIDES[0]))
    return sorted({4, *last, *(channels + 1 for channels in last if channels < 384)})


def explore_block() -> None:
    """Display the cycles of both blocks over their channels as a figure to turn.

    The reader turns the side of the array, the bits of a weight, the digits at once and the
    channels. The blocks widen to 256 channels and see 7 x 7 positions of each digit. A tile takes
    the larger of its rows and the cycles in which its bytes arrive, 1,349 for 256 x 256 bytes on
    TPU v1 (Jouppi and others, 2017: 34 GB/s, 700 MHz), and each product 3 S - 2 more on an array of
    side S. Lesson 15.
    """
    tile = f"bits.b / 8 * array.S ** 2 * {_TPU_V1_CYCLES / 256**2!r}"
    narrow = "ceil(256 / array.S) * ceil(channels / array.S)"
    plotting.explore(
        title="Which block, and how many channels?",
        alt="Cycles rise in steps with the channels; the depthwise step pays only for blocks of "
        "many channels.",
        inputs=[
            Menu("array", "side of the array", {f"{side}": {"S": side} for side in _SIDES}, "256"),
            Menu("bits", "bits of a weight", {"4": {"b": 4}, "8": {"b": 8}}, "8"),
            Slider("digits", "digits at once", [1, 2, 4, 8, 14, 16, 28, 32, 64], 64),
            Slider("channels", "channels of the block", _channels_of_the_curve(), 28),
        ],
        formulas={
            "tile": f"max(49 * digits, {tile})",
            "fused_tiles": f"ceil(9 * channels / array.S) * ceil(256 / array.S) + {narrow}",
            "mbconv_tiles": f"2 * {narrow} + ceil(256 / floor(array.S / 9))",
            "fused": "(fused_tiles * tile + 2 * (3 * array.S - 2)) / 1000",
            "mbconv": "(mbconv_tiles * tile + 3 * (3 * array.S - 2)) / 1000",
        },
        picture=Curves(
            along="channels",
            lines=[
                Series("fused", "fused, thousand cycles:", COLOURS["modelled"]),
                Series("mbconv", "with a depthwise step, thousand cycles:", OTHERS[0]),
            ],
            xlabel="channels of the block",
            ylabel="thousand cycles (modelled)",
            log_x=False,
            log_y=False,
        ),
    )
