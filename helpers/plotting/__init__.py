"""Draws the library's results; measures nothing. One style for all, and no figure without an alt text."""

from helpers.plotting.bars import draw_bars, draw_three
from helpers.plotting.style import MEASURED, MODELLED, PREDICTED, figure, png, show, unit_axis

__all__ = ["MEASURED", "MODELLED", "PREDICTED", "draw_bars", "draw_three", "figure", "png", "show", "unit_axis"]
