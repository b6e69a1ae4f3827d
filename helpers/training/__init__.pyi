from ._loop import (
    EpochRow as EpochRow,
    TrainingRun as TrainingRun,
    accuracy as accuracy,
    gpu_train as gpu_train,
    train as train,
)
