"""Batches that a loader's workers hand over in shared memory: how many there are at once, and who
keeps one.

These functions run in a process with a ``/dev/shm`` of its own
(``helpers.run_limited(..., shared_memory_bytes=...)``), so that nobody else's files count and
nothing of the reader's fills up. Lesson 12.
"""

from __future__ import annotations

import os
import time

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from helpers.checks import whole_number

FOLDER = "/dev/shm"
_PAUSE_S, _LIMIT_S = 0.2, 60.0
_BATCH_BYTES = 2**20


def shared_bytes() -> int:
    """Return the bytes that are taken in ``/dev/shm``, in whole pages.

    Raises OSError without the folder. Lesson 12.
    """
    room = os.statvfs(FOLDER)
    return (room.f_blocks - room.f_bfree) * room.f_frsize


def wait_for_workers() -> None:
    """Return when the bytes in ``/dev/shm`` no longer change: the workers have made all that they
    may.

    Lesson 12.
    """
    before = None
    while before != shared_bytes():
        before = shared_bytes()
        time.sleep(_PAUSE_S)


def count_batches(workers: int, prefetch_factor: int) -> float:
    """Return how many batches of 1 MiB lie in ``/dev/shm`` once the first one was taken.

    Forked ``workers`` make batches ahead, ``prefetch_factor`` each. The number is the bytes taken
    over those of a batch, so pages that do not fill up and the locks of the queues add a little to
    a whole number. Raises ValueError for counts below 1. Lesson 12.
    """
    workers = whole_number("workers", workers)
    prefetch_factor = whole_number("prefetch_factor", prefetch_factor)
    images = TensorDataset(torch.zeros(8 * (workers * prefetch_factor + 2), _BATCH_BYTES // 16))
    loader = DataLoader(
        images,
        batch_size=4,
        num_workers=workers,
        prefetch_factor=prefetch_factor,
        multiprocessing_context="fork",
    )
    batches = iter(loader)
    in_hand, end_s = next(batches), time.monotonic() + _LIMIT_S
    while (
        shared_bytes() < (workers * prefetch_factor + 1) * _BATCH_BYTES and time.monotonic() < end_s
    ):
        time.sleep(_PAUSE_S)
    wait_for_workers()  # for more, should there be more
    return shared_bytes() / in_hand[0].nbytes


class SlowDigits(Dataset):
    """Black digits with the label 0 that come by the thousand: ``len`` thousands, each after 5 ms
    of work.

    Lesson 12.

    >>> images, labels = SlowDigits(18)[0]
    >>> tuple(images.shape), tuple(labels.shape)
    ((1000, 784), (1000,))
    """

    def __init__(self, thousands: int) -> None:
        self.thousands = whole_number("thousands", thousands)

    def __len__(self) -> int:
        return self.thousands

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.005)  # a worker takes its time
        return torch.zeros(1000, 784), torch.zeros(1000, dtype=torch.int64)
