"""Layouts: what each strategy costs in time and in memory, and which one to choose.

Lesson 06.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
