"""``play``: figures as the frames of a player that a reader steps through, also in a notebook
without a kernel.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from helpers.checks import members, whole_number
from helpers.plotting._displaying import (
    CSS_PIXELS_PER_INCH,
    display_page,
    require_sentences,
    script_of,
)
from helpers.plotting._style import STYLE_FILE, pixels_of, png

SCRIPT = script_of(Path(__file__).parent, "player")
BEGINS = '<div class="course-player"'

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
# else a figure that has no layout gets one as it is saved
_AS_LAID_OUT = {"figure.constrained_layout.use": False}
_NAMELESS = {"svg.fonttype": "none", "svg.hashsalt": "frame"}
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_REFERENCE = re.compile(r"#([\w-]+)")
_DIGITS = re.compile(r"-?\d+\.\d{3,}")
_FONTS = "font-family: 'DejaVu Sans', sans-serif; "  # the player's style has them, for all texts
_AREA_IN = (16.0, 8.0)  # a page across, into which the picture is fitted
_GAP_IN, _TITLE_IN, _LINE_IN, _TEXT_PT = 0.25, 0.55, 0.27, 14
_CHARACTERS_PER_IN = 8  # of a caption


def play(
    frames: Sequence[Figure],
    *,
    title: str,
    alt: str,
    captions: Sequence[str] | None = None,
    stills: Sequence[int] | None = None,
) -> None:
    """Display ``frames`` as a player: a button to play, steps forth and back, a slider, the keys
    Left, Right, Space.

    ``title`` stands above it; ``alt`` says what moves, for those who do not see it; ``captions``
    has a sentence for each frame. Without scripts, on paper and on GitHub some of the frames stand
    there as a picture: those at the places ``stills``, counted from 0, by default the first, the
    middle and the last. The figures are closed. Raises TypeError for what is no figure or no place,
    ValueError for fewer than two, for figures of different sizes, for empty texts, another number
    of captions, and a place without a frame.

    >>> frames = [Figure(figsize=(4, 3)) for step in range(3)]
    >>> play(frames, title="A ring", alt="A chunk goes round the ring")  # doctest: +SKIP

    Lesson 05.
    """
    figures = members("frames", frames, "figures, such as draw_ring returns", kind=Figure)
    caption_texts = (
        []
        if captions is None
        else members("captions", captions, "sentences, one a frame", kind=str)
    )
    require_sentences("a player", "moves in it", title=title, alt=alt)
    if len(figures) < 2:
        raise ValueError(
            f"{len(figures)} frames do not move; give at least two, or show one with plotting.show"
        )
    sizes = list(dict.fromkeys(tuple(figure.get_size_inches()) for figure in figures))
    if len(sizes) > 1:
        sizes_text = " and ".join(f"{width:g} x {height:g} inches" for width, height in sizes[:2])
        raise ValueError(
            f"frames have one size, and these have {sizes_text}; draw all of them with the same "
            "sizes"
        )
    if caption_texts and len(caption_texts) != len(figures):
        raise ValueError(
            f"{len(caption_texts)} captions for {len(figures)} frames; give one each, or none"
        )
    last_index = len(figures) - 1
    still_numbers = (
        [0, len(figures) // 2, last_index]
        if stills is None
        else members("stills", stills, "places of frames", kind=int)
    )
    if not still_numbers:
        raise ValueError("stills is empty; give the place of at least one frame, or leave it out")
    still_indices = sorted(
        {whole_number("stills", number, at_least=0, at_most=last_index) for number in still_numbers}
    )
    picture, size_in = _picture(figures, still_indices, title, caption_texts)
    data = {
        "title": title,
        "alt": alt,
        "frames": [svg(figure) for figure in figures],
        "captions": caption_texts,
    }
    width_px = round(CSS_PIXELS_PER_INCH * sizes[0][0])
    display_page(f'{BEGINS} data-width="{width_px}"', data, SCRIPT, picture, size_in)
    for figure in figures:
        plt.close(figure)


def svg(figure: Figure) -> str:
    """Return ``figure`` as SVG to stand in a page: texts are text, and no id is there that nothing
    refers to.
    """
    with plt.style.context([STYLE_FILE, _AS_LAID_OUT, _NAMELESS]), io.StringIO() as buffer:
        figure.savefig(buffer, format="svg", metadata=_NO_METADATA)
        root = ElementTree.fromstring(buffer.getvalue())
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib["aria-hidden"] = "true"  # the player says what there is to see
    attributes = [value for element in root.iter() for value in element.attrib.values()]
    referenced_ids = {name for value in attributes for name in _REFERENCE.findall(value)}
    for element in root.iter():
        _shorten(element, referenced_ids)
    _unwrap(root)
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _shorten(element: ElementTree.Element, referenced_ids: set[str]) -> None:
    if element.attrib.get("id") not in referenced_ids:
        element.attrib.pop("id", None)
    if element.attrib.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    for name, value in element.attrib.items():
        if not value.startswith("data:"):
            short = _DIGITS.sub(
                lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), value
            )
            element.attrib[name] = " ".join(short.split()).replace(_FONTS, "")
    if not element.tag.endswith(("text", "tspan")):
        element.text = None
    element.tail = None if not (element.tail or "").strip() else element.tail


def _unwrap(element: ElementTree.Element) -> None:
    """Put the members of each group without attributes in its place; the style is the player's
    own.
    """
    for index in reversed(range(len(element))):
        child = element[index]
        _unwrap(child)
        plain = child.tag == f"{{{_SVG}}}g" and not child.attrib
        if (
            plain
            or child.tag == f"{{{_SVG}}}style"
            or (child.tag == f"{{{_SVG}}}defs" and not len(child))
        ):
            element[index : index + 1] = list(child)


def _picture(
    figures: Sequence[Figure], still_indices: Sequence[int], title: str, captions: Sequence[str]
) -> tuple[bytes, tuple[float, float]]:
    """Return the frames at ``still_indices`` on one PNG, and its size in inches.

    They stand side by side, or in two rows or three where they are larger so on a page across.
    """
    width, height = figures[0].get_size_inches()
    caption_texts = [
        f"{frame_index + 1} of {len(figures)}" + (f": {captions[frame_index]}" if captions else "")
        for frame_index in still_indices
    ]
    caption_texts = [textwrap.fill(text, int(_CHARACTERS_PER_IN * width)) for text in caption_texts]
    wide = width + _GAP_IN
    high = height + _GAP_IN + _LINE_IN * max(text.count("\n") + 1 for text in caption_texts)

    def down(across: int) -> int:
        return math.ceil(len(still_indices) / across)

    def scale(across: int) -> float:
        return min(_AREA_IN[0] / (across * wide), _AREA_IN[1] / (down(across) * high))

    across = max((len(still_indices), 2, 1), key=scale)
    size = _GAP_IN + across * wide, _TITLE_IN + down(across) * high
    with plt.style.context(STYLE_FILE):
        page = plt.figure(figsize=size)
        page.set_layout_engine("none")
        page.text(
            _GAP_IN / size[0], 1 - 0.3 / size[1], title, fontsize=18, fontweight="bold", va="center"
        )
        for index, (frame_index, text) in enumerate(zip(still_indices, caption_texts, strict=True)):
            left, top = _GAP_IN + index % across * wide, _TITLE_IN + index // across * high
            with plt.style.context(_AS_LAID_OUT):
                pixels = np.asarray(pixels_of(figures[frame_index], CSS_PIXELS_PER_INCH))
            page.figimage(
                pixels,
                round(left * CSS_PIXELS_PER_INCH),
                round((size[1] - top) * CSS_PIXELS_PER_INCH) - len(pixels),
                origin="upper",
            )
            page.text(
                left / size[0],
                1 - (top + height + 0.08) / size[1],
                text,
                fontsize=_TEXT_PT,
                va="top",
            )
        picture = png(page, dpi=CSS_PIXELS_PER_INCH)
        plt.close(page)
    return picture, size
