"""Programs that are slightly too large: layers taken in turn, batches in shared memory,
checkpointing's segments; and the time of a training, estimated from a few steps.

Lesson 12.
"""

from helpers import _faces as faces

__getattr__, __dir__, __all__ = faces.attach(__name__, __file__)
