"""Blocks of convolutions on a systolic array: their tiles and cycles drawn, and a block to turn.

Lesson 15.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
