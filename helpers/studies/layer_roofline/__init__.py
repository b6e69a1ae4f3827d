"""One layer under the roofline: how fast a core reads its weights, a packed product, calls,
figures.

Lesson 02.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
