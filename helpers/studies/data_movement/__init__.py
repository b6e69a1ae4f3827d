"""How memory, disk and network answer to the way they are read: experiments on order, pages, files
and links.

Lesson 01.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
