"""Nodes of ranks with a fast link inside and a slow one between: sums in two levels, published
times.

Lesson 07.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
