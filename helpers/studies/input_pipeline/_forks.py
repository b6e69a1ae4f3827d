"""What forked workers do to memory: the pages that a program keeps while its workers read a dataset
of many paths.

A forked worker shares all pages with the training process until one of the two writes to a page,
which the system then copies. CPython keeps the count of an object's references in the object, so
that reading a string writes to its page.

Lesson 10.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
from torch.utils.data import DataLoader, Dataset

from helpers.checks import boolean, numbers, whole_number
from helpers.results import Record
from helpers.studies.input_pipeline import _loading as loading

_BATCH = 2000
_ALIGNMENT_BYTES = 16  # of CPython's own allocator, in a build for 64 bits
_CHARACTERS = 48


class PathItems(Dataset):
    """A dataset that holds ``items`` paths of files and opens none: item i is the length of path i.

    The paths are a list of Python strings, or with ``as_array`` one NumPy array of bytes. Lesson
    10.
    """

    def __init__(self, items: int, *, as_array: bool = False) -> None:
        boolean("as_array", as_array)
        items = whole_number("items", items, at_least=1)
        paths = (f"/data/photos/train/{item:025}.jpg" for item in range(items))
        self.paths: Sequence[str] | np.ndarray
        self.paths = (
            np.fromiter(map(str.encode, paths), f"S{_CHARACTERS}", items)
            if as_array
            else list(paths)
        )

    @property
    def stored_bytes(self) -> int:
        """The bytes that the paths take: those of the array, or of the strings as CPython's
        allocator rounds them.
        """
        if isinstance(self.paths, np.ndarray):
            return self.paths.nbytes
        return sum(
            -(-path.__sizeof__() // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for path in self.paths
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        return len(self.paths[index])


class MemoryGrowth(Record):
    """By how many bytes a program has grown since its ``workers`` were started, at ``shares`` of
    the epoch.

    ``grown_bytes`` has a number for each of ``shares``. A page that several processes share counts
    once. Lesson 10.
    """

    workers: int
    shares: tuple[float, ...]
    grown_bytes: tuple[int, ...]


def measure_growth(
    dataset: PathItems, *, workers: int, shares: Sequence[float] = (0.1, 1.0)
) -> MemoryGrowth | None:
    """Return by how many bytes a program grows while forked ``workers`` read all of ``dataset`` in
    a random order.

    It is the proportional set size of the training process and its workers (``Pss`` in
    ``/proc/PID/smaps_rollup``, see the manual page proc_pid_smaps(5)) at each of ``shares`` of the
    batches, less that before the workers were started. So it has what workers and their order cost
    in any case, which the same dataset as an array measures. None where the system has no such file
    or cannot fork.

    Raises ValueError for no workers, a share outside of 0 to 1, or so few items that a share of
    them is not a batch of 2,000 per worker. Lesson 10.
    """
    workers = whole_number("workers", workers, at_least=1)
    fractions = tuple(numbers("shares", shares, above=0))
    batches = -(-len(dataset) // _BATCH)
    if not fractions or max(fractions) > 1 or int(min(fractions) * batches) < workers:
        raise ValueError(
            f"shares={fractions} of {batches} batches with {workers} workers; give shares of at "
            f"most 1 that are a batch of {_BATCH:,} items per worker or more"
        )
    if (
        "fork" not in multiprocessing.get_all_start_methods()
        or not Path("/proc/self/smaps_rollup").is_file()
    ):
        return None
    # no Python object an item
    order = np.array_split(np.random.default_rng(0).permutation(len(dataset)), batches)
    loader: DataLoader = DataLoader(
        dataset,
        batch_sampler=cast(list[list[int]], order),
        num_workers=workers,
        prefetch_factor=1,
        multiprocessing_context="fork",
    )
    marks = [int(share * batches) for share in fractions]
    before, other_children = _shared_bytes(os.getpid()), set(multiprocessing.active_children())
    growth_bytes: dict[int, int] = {}
    batch_iterator = loading.loader_iterator(loader)
    try:
        children = set(multiprocessing.active_children()) - other_children
        for count, _ in enumerate(batch_iterator, start=1):
            if count in marks:
                processes = (os.getpid(), *(process.pid for process in children))
                growth_bytes[count] = sum(map(_shared_bytes, processes)) - before
    finally:
        loading.end_workers(batch_iterator)
    return MemoryGrowth(workers, fractions, tuple(growth_bytes[mark] for mark in marks))


def _shared_bytes(process: int | None) -> int:
    """Return the proportional set size of a process, in bytes."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/{process}/smaps_rollup has no line Pss:, which Linux writes from 4.14 on")
