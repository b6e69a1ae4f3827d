"""Training with a clock beside it.

The clock of an epoch runs from the request for its first batch until the device has finished its
last update: it holds loading and moving the data, forward, backward and the optimizer (Adam). The
test digits are outside it.

Lesson 00.
"""

from helpers import _faces as faces

_MOVED = {
    "SizeEstimate": "helpers.studies.beyond_memory:SizeEstimate",
    "TrainingEstimate": "helpers.studies.beyond_memory:TrainingEstimate",
    "estimate_training_for": "helpers.studies.beyond_memory:estimate_training_for",
}
__getattr__, __dir__, __all__ = faces.attach(__name__, __file__, moved=_MOVED)
