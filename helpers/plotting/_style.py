"""The one look of every figure: a style file, a colour a meaning, and ``show``, which never forgets
the alt text.
"""

from __future__ import annotations

import functools
import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter
from PIL import Image

from helpers import units
from helpers.checks import boolean, one_of
from helpers.plotting._displaying import display_picture

STYLE_FILE = Path(__file__).with_name("course.mplstyle")

# One colour a meaning, in every figure of the course: Okabe and Ito's palette, and a grey for what
# does nothing.
COLOURS = {
    "predicted": "#E69F00",
    "modelled": "#0072B2",
    "measured": "#009E73",
    "computing": "#56B4E9",
    "backward": "#CC79A7",
    "sending": "#D55E00",
    "waiting": "#BBBBBB",
    "data": "#F0E442",
}
# told apart from these, and without a meaning
OTHERS = ("#882255", "#332288", "#999933", "#8C510A", "#000000")
PREDICTED, MODELLED, MEASURED = COLOURS["predicted"], COLOURS["modelled"], COLOURS["measured"]
# what an answer may rest on: one a figure
FOUND = ("measured", "counted", "simulated", "published", "stated")
_COLOURS = 128

_LEAST_CONTRAST = 4.5  # of a text with what is behind it
# the slides' pages; the site's differ little
_LIGHT_PAGE, _DARK_PAGE = np.array(to_rgb("#FBFBF9")), np.array(to_rgb("#14191F"))
_GREY_WEIGHTS = np.array([0.29, 0.5, 0.21])  # of the filter in drawings.css
_LUMINANCE_WEIGHTS = np.array([0.2126, 0.7152, 0.0722])


def figure(*, title: str, width_in: float = 7.2, height_in: float = 3.8) -> tuple[Figure, Axes]:
    """Return a new figure in the course's style with one axes and a ``title``.

    It is ``width_in`` x ``height_in`` inches.

    >>> fig, axes = figure(title="Time of a step", height_in=2.5)
    >>> axes.get_title(loc="left"), fig.get_size_inches().tolist()
    ('Time of a step', [7.2, 2.5])

    Lesson 02.
    """
    with plt.style.context(STYLE_FILE):
        fig, axes = plt.subplots(figsize=(width_in, height_in))
        axes.set_title(title)
    return fig, axes


def unit_axis(axes: Axes, which: str, unit: str, *, binary: bool = False) -> None:
    """Print the ticks of the axis ``which`` ('x' or 'y') of ``axes`` as quantities in ``unit``,
    such as '10 us'.

    With ``binary`` bytes have the prefixes Ki, Mi, Gi.

    >>> fig, axes = figure(title="Time of a step")
    >>> unit_axis(axes, "y", "s")
    >>> axes.yaxis.get_major_formatter()(1e-5)
    '10 us'

    Lesson 02.
    """
    boolean("binary", binary)
    if which not in ("x", "y"):
        raise ValueError(f"an axis is 'x' or 'y', not {which!r}")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: _short(units.text(value, unit, binary=binary)))
    )


def name_rows(axes: Axes, names: Sequence[str], *, end: float = 0.5) -> None:
    """Write ``names`` at the rows 0, 1, 2 and so on of ``axes`` from the top, with ``end`` of a row
    above the first and below the last.
    """
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 1 + end, -end)
    axes.grid(axis="y", visible=False)


def decades(values: Sequence[float], *, room: float = 1.0) -> tuple[float, float]:
    """Return the powers of ten around ``values``, the upper one around ``room`` times the
    largest.
    """
    low, high = math.log10(min(values)), math.log10(room * max(values))
    return 10 ** math.floor(low), 10 ** math.ceil(high)


def _short(quantity: str) -> str:
    number, space, unit = quantity.partition(" ")
    trimmed = number.rstrip("0").rstrip(".") if "." in number else number
    return f"{trimmed}{space}{unit}"


def png(drawn: Figure, *, dpi: int | None = None) -> bytes:
    """Return the figure as PNG bytes: the same drawing gives the same bytes, for no version or date
    stands in them.

    A palette of 128 colours, a third of the bytes: notebooks are kept with their figures. ``dpi``
    is by default the style's.

    >>> fig, axes = figure(title="Time of a step")
    >>> Image.open(io.BytesIO(png(fig, dpi=50))).size
    (360, 190)
    """
    with plt.style.context(STYLE_FILE), io.BytesIO() as buffer:
        # texts measure their boxes as they are saved
        drawn.set_dpi(dpi or plt.rcParams["savefig.dpi"])
        picture = pixels_of(drawn, drawn.dpi)
        if _break_titles(drawn):
            picture = pixels_of(drawn, drawn.dpi)
        paletted = picture.quantize(
            _COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
        )
        paletted.save(buffer, format="png", optimize=True)
        return buffer.getvalue()


def pixels_of(drawn: Figure, dpi: float) -> Image.Image:
    """Return the figure as an RGB picture with ``dpi`` pixels an inch."""
    with io.BytesIO() as buffer:
        drawn.savefig(buffer, format="png", dpi=dpi)
        return Image.open(buffer).convert("RGB")


def _break_titles(fig: Figure) -> bool:
    """Break each title that runs out of a figure that was drawn into lines that stay in it; whether
    there was one.
    """
    broken = False
    for axes in fig.axes:
        for text in (child for child in axes.get_children() if isinstance(child, Text)):
            box, title = text.get_window_extent(), text.get_text()
            if title and title == axes.get_title(loc="left") and box.x1 > fig.bbox.x1:
                fitting = len(title) * (fig.bbox.x1 - box.x0) / box.width
                lines = textwrap.wrap(title, int(0.95 * fitting))
                text.set_text("\n".join(lines))
                fig.set_figheight(fig.get_figheight() + (len(lines) - 1) * box.height / fig.dpi)
                broken = True
    return broken


def show(drawn: Figure, *, alt: str) -> None:
    """Display ``drawn`` in a notebook with ``alt``, a sentence or two for those who do not see it,
    and close it.

    The alt text is the output's ``text/plain`` and stands in the image's metadata, so that a screen
    reader, a slide and the notebook's test all read it. Raises ValueError when it is empty,
    TypeError for no figure or no text.

    >>> fig, axes = figure(title="Time of a step")
    >>> bars = axes.bar(["batch 1", "batch 64"], [2, 31])
    >>> show(fig, alt="Two bars: 64 images take 15 times as long as one.")  # doctest: +SKIP

    Lesson 00.
    """
    one_of("drawn", drawn, Figure, "a figure, such as a draw_ function returns")
    if not one_of("alt", alt, str, "a sentence that says what a reader should see").strip():
        raise ValueError(
            "a figure needs an alt text: say in a sentence what a reader should see in it"
        )
    image = png(drawn)  # which may make the figure higher
    display_picture(image, drawn.get_size_inches(), alt)
    plt.close(drawn)


def mix_colours(colour: str, other_colour: str, share: float) -> str:
    """Return ``colour`` with ``share`` of it replaced by ``other``, all written '#RRGGBB'."""
    mixed = (1 - share) * np.array(to_rgb(colour)) + share * np.array(to_rgb(other_colour))
    return to_hex((*mixed,)).upper()


def legible_colour(colour: str) -> str:
    """Return the shade of ``colour``, the nearest one, on which a text in :func:`ink_on`'s colour
    can be read.

    The text has a contrast of at least 4.5 (WCAG 2.2, AA) on a light page and on a dark one, where
    slides and site turn a drawing's lightness round. Because this changes contrasts, a label on
    orange or green needs another shade.
    """
    shades = (
        mix_colours(colour, ink, percent / 100)
        for percent in range(101)
        for ink in ("#000000", "#FFFFFF")
    )
    return next(shade for shade in shades if contrast(shade, ink_on(shade)) >= _LEAST_CONTRAST)


def ink_on(colour: str) -> str:
    """Return black or white, whichever is read better on ``colour``, written '#RRGGBB', on light
    and on dark pages.
    """
    return max(("black", "white"), key=lambda ink: contrast(colour, ink))


@functools.cache
def contrast(colour: str, ink: str) -> float:
    """Return the contrast of ``ink`` with ``colour`` on the page where it is less, the light or the
    dark one.

    Contrast and relative luminance are those of WCAG 2.2; what a page makes of a colour is that of
    drawings.css.
    """
    colours = np.array([to_rgb(colour), to_rgb(ink)])  # (2, 3)
    # a light page multiplies them; a dark one inverts them, turns their hues back, and screens them
    inverted = np.clip(1 - 2 * (colours @ _GREY_WEIGHTS)[:, None] + colours, 0, 1)
    on_pages = np.array([colours * _LIGHT_PAGE, 1 - (1 - inverted) * (1 - _DARK_PAGE)])
    # (pages, 2)
    luminances = _linear(on_pages) @ _LUMINANCE_WEIGHTS + 0.05
    return float((luminances.max(axis=1) / luminances.min(axis=1)).min())


def _linear(channels: np.ndarray) -> np.ndarray:
    """Return the light of ``channels`` of sRGB."""
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
