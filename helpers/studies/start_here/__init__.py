"""The figures of the first lesson: two programs and their model, a copy after a pause, training
runs.

Lesson 00.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
