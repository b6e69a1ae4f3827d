"""Training with a clock beside it, and an estimate of how long a training would take.

The clock of an epoch runs from the request for its first batch until the device has finished its last update: it
holds loading and moving the data, forward, backward and the optimizer (Adam). The test digits are outside it.

Lesson 00.
"""

from helpers.training.estimate import HIDDEN_SIZES, SizeEstimate, TrainingEstimate, estimate_training_for
from helpers.training.loop import EpochRow, TrainingRun, accuracy, gpu_train, train

__all__ = [
    "EpochRow", "HIDDEN_SIZES", "SizeEstimate", "TrainingEstimate", "TrainingRun",
    "accuracy", "estimate_training_for", "gpu_train", "train",
]  # fmt: skip
