"""The gap between two epochs: a data loader that starts its worker anew, around steps of whatever
length.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from torch.utils.data import DataLoader, Dataset

from helpers.checks import whole_number
from helpers.results import Record


class EpochTimes(Record):
    """The begin and the end of each step of some epochs, in seconds since the first epoch began.

    ``steps_s`` are (begin, end) of each step, in their order. Lesson 19.
    """

    epochs: int
    steps_s: tuple[tuple[float, float], ...]

    @property
    def gap_s(self) -> float:
        """The time per step in which no step runs, the wait before the first step included."""
        ends = [0.0, *(end for _, end in self.steps_s)]
        waits = [begin - end for (begin, _), end in zip(self.steps_s, ends, strict=False)]
        return sum(waits) / len(waits)

    @property
    def step_s(self) -> float:
        """The median time of a step."""
        return statistics.median(end - begin for begin, end in self.steps_s)


def time_epochs(
    dataset: Dataset,
    step: Callable[[object], object],
    *,
    epochs: int,
    clock: Callable[[], float] = time.perf_counter,
) -> EpochTimes:
    """Return the times of ``step`` on each sample of ``dataset`` in ``epochs`` epochs.

    A ``DataLoader`` with one worker process, which it starts at the beginning of each epoch, hands
    over one sample at a time, without an axis for a batch. ``clock`` is for tests. Raises TypeError
    or ValueError for ``epochs`` that are no integer of at least 1. Lesson 19.
    """
    epochs = whole_number("epochs", epochs)
    loader = DataLoader(dataset, batch_size=None, num_workers=1)
    first_start_s, steps_s = clock(), []
    for _ in range(epochs):
        for sample in loader:
            step_start_s = clock()
            step(sample)
            steps_s.append((step_start_s - first_start_s, clock() - first_start_s))
    return EpochTimes(epochs, tuple(steps_s))
