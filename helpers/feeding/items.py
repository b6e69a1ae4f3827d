"""Datasets whose items have a known cost, and what an item of any dataset costs: time, and how much of it computing.

They live in a module, not in a cell, so that a spawned worker (macOS, Windows, CUDA) can import them.

Lesson 06.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import Dataset

from helpers.checks import whole_number
from helpers.links import Link, checked_link, sleep_until
from helpers.results import Result

_SHAPE = (1, 28, 28)
_CLASSES = 10
_COMPUTING_SHARE = 0.5
_FREE_S = 50e-6


class FreeItems(Dataset):
    """``items`` pairs (image, label) that are there already: an item costs a look into a tensor.

    Images are float32 of ``shape``, all of one random image; the label of item i is i modulo 10. Raises TypeError or
    ValueError for a number of items that is not a whole one of at least 1. Lesson 06.
    """

    def __init__(self, items: int, *, shape: Sequence[int] = _SHAPE) -> None:
        self.items = whole_number("items", items, at_least=1)
        self.image = torch.rand(tuple(shape), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        refuse_outside(index, self.items)
        return self.image, index % _CLASSES


class WaitingItems(FreeItems):
    """Items that wait: item i sleeps ``wait_s`` seconds as for a network or a disk, and computes nothing.

    Every ``late_every``-th item (from 0: none) sleeps ``late_s`` instead: what a prefetch buffer is for. A sleeping
    worker needs no core, so any machine carries any number of them. ``cost_s(index)`` is the sleep of one item.
    Raises ValueError for a time that is negative or not finite. Lesson 06.
    """

    def __init__(
        self, items: int, *, wait_s: float, late_every: int = 0, late_s: float = 0.0, shape: Sequence[int] = _SHAPE
    ) -> None:
        super().__init__(items, shape=shape)
        for name, value in (("wait_s", wait_s), ("late_s", late_s)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}={value!r} is no time to wait; give seconds, 0 or more")
        self.wait_s, self.late_s = wait_s, late_s
        self.late_every = whole_number("late_every", late_every, at_least=0)

    def cost_s(self, index: int) -> float:
        """Return the seconds that item ``index`` sleeps. Lesson 06."""
        return self.late_s if self.late_every and index % self.late_every == self.late_every - 1 else self.wait_s

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sleep_until(time.perf_counter() + self.cost_s(index))
        return super().__getitem__(index)


class FilesOnOneDisk(Dataset):
    """The bytes of files, read through one disk of a known rate that all workers share.

    Item i is (float32 tensor of ``shape``, i modulo 10). The file is really read; then the item waits until
    a disk of ``disk.bandwidth_bytes_per_s`` and ``disk.latency_s`` would have delivered it, one file after the other
    whoever asks: more workers hide the latency of nothing, for the disk is one. ``disk_s(index)`` is what item i keeps
    the disk busy. Raises FileNotFoundError for a file that is not there, ValueError for no files, TypeError for a disk
    that is no link. Lesson 06.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]], disk: Link, *, shape: Sequence[int] = _SHAPE) -> None:
        self.paths = [Path(path) for path in paths]
        if not self.paths:
            raise ValueError("paths is empty; give the files to read, such as those of write_images(folder)")
        self.sizes_bytes = [path.stat().st_size for path in self.paths]
        self.disk, self.image = checked_link("disk", disk), torch.zeros(tuple(shape))
        # A lock of the spawn context goes to forked and to spawned workers alike.
        self._free_s = multiprocessing.get_context("spawn").Value("d", -math.inf)

    def disk_s(self, index: int) -> float:
        """Return the seconds that item ``index`` keeps the disk busy. Lesson 06."""
        return self.disk.transfer_s(self.sizes_bytes[index])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        refuse_outside(index, len(self.paths))
        asked_s = time.perf_counter()
        content = self.paths[index].read_bytes()
        with self._free_s.get_lock():
            end_s = max(asked_s, self._free_s.value) + self.disk.transfer_s(len(content))
            self._free_s.value = end_s
        sleep_until(end_s)
        return self.image, index % _CLASSES


@dataclass(frozen=True)
class ItemCost(Result):
    """What an item of a dataset costs one process: seconds, the part of them that a processor worked, and the kind.

    ``processor_share`` is that of the item with the largest: on a busy machine all others wait for a processor as well.
    ``kind`` is "free" (below 50 us), "computes" (at least half of the time on a processor; more workers than
    cores do not help), or "waits" (workers help beyond the cores). Lesson 06.
    """

    items: int
    median_s: float
    mean_s: float
    processor_share: float
    kind: str


def item_cost(dataset: Dataset, *, items: int = 32) -> ItemCost:
    """Return what the first ``items`` items of ``dataset`` (all, where it has fewer) cost this process, one by one.

    One item is made before the clock runs. Processor time is this process's, so call it while nothing else computes
    here. Raises ValueError for an empty dataset. Lesson 06.
    """
    count = min(whole_number("items", items, at_least=1), len(dataset))
    if count == 0:
        raise ValueError("the dataset has no items; give one with at least 1")
    dataset[0]
    taken_s, shares = [], []
    for index in range(count):
        start_s, processor_s = time.perf_counter(), time.process_time()
        dataset[index]
        processor_s = time.process_time() - processor_s
        taken_s.append(time.perf_counter() - start_s)
        shares.append(min(1.0, processor_s / taken_s[-1]))
    median_s, share = statistics.median(taken_s), max(shares)
    kind = "free" if median_s < _FREE_S else "computes" if share >= _COMPUTING_SHARE else "waits"
    return ItemCost(items=count, median_s=median_s, mean_s=statistics.fmean(taken_s), processor_share=share, kind=kind)


def refuse_outside(index: int, items: int) -> None:
    """Raise IndexError for an item that is not there. For the library itself."""
    if not 0 <= index < items:
        raise IndexError(f"item {index} is not there; the {items} items are 0 to {items - 1}")
