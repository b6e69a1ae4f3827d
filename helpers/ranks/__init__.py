"""The runtime of ranks: processes that train together from a notebook, and scripts under torchrun.

Lesson 04.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
