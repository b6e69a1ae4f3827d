"""The figures of lesson 20: they draw what the rest of this room has counted and modelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from helpers import plotting
from helpers.checks import named, whole_number

_GRID = "#777777"
_MOST_SIDE = 7
_SPREAD = 0.3  # of a row of points, so that they do not cover each other


def draw_patches(side: int, kernel: int, pixel: int, *, title: str) -> Figure:
    """Return an image of numbered pixels beside its matrix of patches, with ``pixel`` marked in
    both.

    The image has ``side`` x ``side`` pixels and one channel, ``kernel`` is the side of the kernel,
    the stride is 1, and there is no padding. ``title`` is above the figure. Raises TypeError or
    ValueError unless a kernel fits and the pixel is one of the image. Lesson 20.
    """
    side = whole_number("side", side, at_most=_MOST_SIDE)
    kernel = whole_number("kernel", kernel, at_most=side)
    pixel = whole_number("pixel", pixel, at_least=0, at_most=side**2 - 1)
    pixels = np.arange(side**2).reshape(side, side)
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (kernel, kernel))
    patches = windows.reshape(-1, kernel**2).T  # (numbers of a window, positions)
    rows, columns = max(side, len(patches)), side + 2 + patches.shape[1]
    grid = np.full((rows, columns), np.nan)
    top = (rows - side) // 2
    grid[top : top + side, :side] = pixels
    grid[: len(patches), side + 2 :] = patches
    figure, axes = plotting.figure(title=title, height_in=0.35 * rows + 0.6)
    colours = ListedColormap(["#EEEEEE", plotting.COLOURS["data"]])
    marked = np.where(np.isnan(grid), np.nan, grid == pixel)
    axes.imshow(marked, cmap=colours, vmin=0, vmax=1, aspect="auto")
    for row, column in zip(*np.nonzero(~np.isnan(grid)), strict=True):
        number = str(int(grid[row, column]))
        axes.text(column, row, number, ha="center", va="center", fontsize=10)
    axes.text(side + 0.5, (rows - 1) / 2, "→", ha="center", va="center")
    axes.axis("off")
    return figure


def draw_waves(
    images: Sequence[int], blocks: Sequence[int], *, resident: int, title: str
) -> Figure:
    """Return the time in whole waves over the number of images, beside a line that grows as the
    FLOP do.

    ``blocks`` has the blocks of a GPU kernel for each of ``images``, of which ``resident`` run at
    once. The unit of time is that of one full wave, and ``title`` is above the figure. Lesson 20.
    """
    resident = whole_number("resident", resident)
    if len(images) != len(blocks) or not len(images):
        raise ValueError(
            f"{len(images)} images and {len(blocks)} blocks are given; give one number of blocks "
            "each"
        )
    shares = np.array(blocks) / resident
    figure, axes = plotting.figure(title=title, height_in=3.4)
    axes.step(
        images,
        np.ceil(shares),
        where="mid",
        color=plotting.MODELLED,
        label="whole waves (modelled)",
    )
    axes.plot(images, np.ceil(shares), "o", color=plotting.MODELLED, ms=4)
    axes.plot(images, shares, ":", color=_GRID, label="blocks / resident blocks, as FLOP grow")
    axes.set(xlabel="images", ylabel="time, full waves", ylim=(0, None))
    axes.set_xticks(images)
    axes.legend()
    return figure


def draw_ratios(ratios: Mapping[str, Sequence[float]], *, title: str) -> Figure:
    """Return one row of points for each algorithm, each point a modelled over a measured time.

    ``ratios`` has the ratios by algorithm, and ``title`` is above the figure. NaN is left out.
    Raises TypeError or ValueError for no rows, or a ratio that is not above 0. Lesson 20.
    """
    rows = {
        name: np.asarray(row, dtype=float)
        for name, row in named("ratios", ratios, "ratios").items()
    }
    if not rows or any((row <= 0).any() for row in rows.values()):
        raise ValueError(f"ratios has the rows {list(rows)}; give at least one, of ratios above 0")
    figure, axes = plotting.figure(title=title, height_in=0.45 * len(rows) + 1.2)
    for index, row in enumerate(rows.values()):
        known = row[np.isfinite(row)]
        heights = index + np.linspace(-_SPREAD, _SPREAD, len(known))
        axes.plot(known, heights, ".", color=plotting.MODELLED, alpha=0.5)
    axes.axvline(1, color=_GRID)
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks([0.25, 0.5, 1, 2, 4])
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set(xlabel="modelled / measured time")
    return figure
