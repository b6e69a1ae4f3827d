from ._batches import (
    SlowDigits as SlowDigits,
    count_batches as count_batches,
    wait_for_workers as wait_for_workers,
)
from ._estimate import (
    SizeEstimate as SizeEstimate,
    TrainingEstimate as TrainingEstimate,
    estimate_training_for as estimate_training_for,
)
from ._layers import TurnRow as TurnRow, TurnSweep as TurnSweep, sweep_layers as sweep_layers
from .figures import (
    draw_epoch_times as draw_epoch_times,
    draw_shared_batches as draw_shared_batches,
    draw_turns as draw_turns,
    explore_segments as explore_segments,
)
