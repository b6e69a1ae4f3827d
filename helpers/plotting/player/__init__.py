"""A player in a notebook's output: its script and its style, and the function that makes it of
figures.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
