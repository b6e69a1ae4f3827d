"""Draws the library's results; measures nothing. One style for all, and no figure without an alt text."""

from helpers.plotting.bars import draw_bars, draw_three
from helpers.plotting.gantt import Span, gantt
from helpers.plotting.images import draw_images
from helpers.plotting.layers import draw_layers, draw_shares
from helpers.plotting.style import MEASURED, MODELLED, PREDICTED, figure, png, show, unit_axis

__all__ = [
    "MEASURED", "MODELLED", "PREDICTED", "Span", "draw_bars", "draw_images", "draw_layers", "draw_shares",
    "draw_three", "figure", "gantt", "png", "show", "unit_axis",
]  # fmt: skip
