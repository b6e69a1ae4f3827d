"""Training by several processes: collectives, and the data, tensor, pipeline, sequence and expert kinds of parallelism.

A name is imported from its module when it is first used: a rank loads only what it runs.

Lesson 05.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
