"""Our count of operators beside those of other counters. Lesson 11."""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
