from ._estimate import (
    SizeEstimate as SizeEstimate,
    TrainingEstimate as TrainingEstimate,
    estimate_training_for as estimate_training_for,
)
from ._loop import (
    EpochRow as EpochRow,
    TrainingRun as TrainingRun,
    accuracy as accuracy,
    gpu_train as gpu_train,
    train as train,
)
