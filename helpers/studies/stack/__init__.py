"""The levels of one call, from Python to the instruction: operators, library primitives, generated
kernels.

Lesson 15.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
