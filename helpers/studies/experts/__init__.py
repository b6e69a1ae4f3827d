"""A layer of experts: tokens dropped by chance, a small network that learns its router, and its
figure.

Lesson 09.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
