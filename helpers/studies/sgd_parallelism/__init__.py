"""The four sources of parallelism in minibatch SGD, as experiments.

Lesson 04.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
