"""A player in a notebook's output: the script and the style that stand in it, and what makes it of
figures.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
