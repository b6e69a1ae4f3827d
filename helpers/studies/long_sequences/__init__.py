"""A sequence cut into pieces: the tiles of a causal ring, its time, and published rates of such
rings.

Lesson 09.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
