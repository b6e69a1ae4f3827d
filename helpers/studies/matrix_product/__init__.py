"""The matrix product studied: naive and tiled programs of our own, beside ``torch.matmul``.

Lesson 02.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
