"""Paper to draw on, measured in inches from its upper left corner, and the few things that stand on
it.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from helpers.plotting._style import COLOURS, STYLE_FILE, ink_on, legible_colour, mix_colours

INK, QUIET, EMPTY = "#222222", "#555555", "#EEEEEE"
DATA, COMPUTING, SENDING, WAITING = (
    COLOURS[name] for name in ("data", "computing", "sending", "waiting")
)
_PLAIN = ("none", "white", EMPTY)  # what is behind a text that has no colour
_TITLE_IN, _MARGIN_IN = 0.42, 0.12
_ROUND_IN = 0.05
# of a key: its patch, and each character of its name at 10 points
_KEY_IN, _PER_CHARACTER_IN = 0.22, 0.085


def paper(width_in: float, height_in: float, *, title: str) -> tuple[Figure, Axes]:
    """Return a figure whose axes are ``width_in`` by ``height_in`` inches, y downwards; ``title``
    may be empty.
    """
    title_in = _TITLE_IN if title else 0.0
    with plt.style.context(STYLE_FILE):
        figure = plt.figure(figsize=(width_in, height_in + title_in))
        # afterwards: a figure made without an engine gets the style's when it is saved
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, height_in / (height_in + title_in)))
        axes.set(xlim=(0, width_in), ylim=(height_in, 0))
        axes.axis("off")
        axes.set_title(title, x=_MARGIN_IN / width_in, pad=4)
    return figure, axes


def box(
    axes: Axes,
    left: float,
    top: float,
    width: float,
    height: float,
    text: str = "",
    *,
    colour: str = "white",
    edge: str = "none",
    thick: float = 1.2,
    size: float = 11,
    bold: bool = False,
) -> None:
    """Draw a box with ``text`` in its middle, in the shade of ``colour`` on which a text can be
    read.
    """
    if colour not in _PLAIN:
        colour = legible_colour(colour)
    # add_patch would look through its curves for limits, which are set
    axes.add_artist(
        FancyBboxPatch(
            (left + _ROUND_IN, top + _ROUND_IN),
            width - 2 * _ROUND_IN,
            height - 2 * _ROUND_IN,
            facecolor=colour,
            edgecolor=edge,
            linewidth=thick,
            boxstyle=f"round,pad={_ROUND_IN},rounding_size={_ROUND_IN}",
        )
    )
    if text:
        write(
            axes,
            left + width / 2,
            top + height / 2,
            text,
            size=size,
            bold=bold,
            colour=INK if colour in _PLAIN else ink_on(colour),
        )


def write(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    *,
    size: float = 11,
    colour: str = INK,
    bold: bool = False,
    ha: str = "center",
    va: str = "center",
    turned: bool = False,
) -> None:
    """Write ``text`` at (x, y)."""
    axes.text(
        x,
        y,
        text,
        fontsize=size,
        color=colour,
        fontweight="bold" if bold else "normal",
        ha=ha,
        va="center_baseline" if va == "center" and not turned else va,
        rotation=90 if turned else 0,
    )


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    *,
    colour: str = SENDING,
    thick: float = 2.2,
    bend: float = 0.0,
) -> None:
    """Draw an arrow from ``start`` to ``end``; ``bend`` is how far it leaves the straight line, of
    its length.
    """
    axes.add_artist(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=11 + 1.5 * thick,
            linewidth=thick,
            color=colour,
            shrinkA=0,
            shrinkB=0,
            connectionstyle=f"arc3,rad={bend}",
        )
    )


def keys(axes: Axes, left: float, top: float, swatches: dict[str, tuple[str, str]]) -> None:
    """Draw a key of colours in one row: each name with its (face, edge)."""
    for name, (face, edge) in swatches.items():
        box(axes, left, top, _KEY_IN, _KEY_IN, colour=face, edge=edge)
        write(axes, left + _KEY_IN + 0.08, top + _KEY_IN / 2, name, size=10, ha="left")
        left += _KEY_IN + 0.3 + _PER_CHARACTER_IN * len(name)


def tint(colour: str, share: float = 0.6) -> str:
    """Return ``colour`` with ``share`` of white in it."""
    return mix_colours(colour, "#FFFFFF", share)
