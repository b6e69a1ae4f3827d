"""Widgets for the reader: predictions that lock, answers that wait for them, sliders."""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
