"""A collective's messages between ranks, and a step over a slow link: modelled, and of layers that
sleep.

Lessons 05, 06 and 08.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
