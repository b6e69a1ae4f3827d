"""A cluster's layouts: steps of real processes in a mesh, published layouts, and drawings of both.

Lesson 08.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
