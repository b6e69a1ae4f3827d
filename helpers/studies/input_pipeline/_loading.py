"""The settings of a DataLoader as one value, loaders made from it, and datasets whose items have a
known cost.

**Fork or spawn.** Linux forks a worker up to Python 3.13: it has the notebook's objects at once,
also a dataset of a cell, but a fork after CUDA was used must not touch CUDA. From 3.14 on Linux has
forkserver, macOS and Windows have spawn: the worker is a fresh Python that imports the dataset's
module, so the dataset must stand in a file and be picklable. ``start_method`` chooses;
:func:`make_loader` refuses what would die in a worker, before one starts. The datasets live here,
not in a cell, so that a spawned worker can import them.

Lesson 10.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import multiprocessing
import os
import pickle
import statistics
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from helpers import storage
from helpers.checks import boolean, choice, number, random_seed, whole_number
from helpers.links import Link, require_link, sleep_for, sleep_until
from helpers.results import Record, Result

_SHAPE = (1, 28, 28)
_CLASSES = 10
_COMPUTING_SHARE = 0.5
_FREE_S = 50e-6
_FORMATS = {"jpeg": ".jpg", "png": ".png"}
_JPEG_QUALITY = 90
_COARSE_PIXELS = 8
_NOISE = 12.0


class FreeItems(Dataset):
    """``items`` pairs (image, label) that are there already: an item costs a look into a tensor.

    Images are float32 of ``shape``, all of one random image; the label of item i is i modulo 10.
    Raises TypeError or ValueError for a number of items that is not a whole one of at least 1.
    Lesson 10.
    """

    def __init__(self, items: int, *, shape: Sequence[int] = _SHAPE) -> None:
        self.items = whole_number("items", items, at_least=1)
        self.image = torch.rand(tuple(shape), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        _refuse_outside(index, self.items)
        return self.image, index % _CLASSES


class WaitingItems(FreeItems):
    """Items that wait: item i sleeps ``wait_s`` seconds as for a network or a disk, and computes
    nothing.

    Every ``late_every``-th item (from 0: none) sleeps ``late_s`` instead: what a prefetch buffer is
    for. A sleeping worker needs no core, so any machine carries any number of them.
    ``cost_s(index)`` is the sleep of one item. Raises ValueError for a time that is negative or not
    finite. Lesson 10.
    """

    def __init__(
        self,
        items: int,
        *,
        wait_s: float,
        late_every: int = 0,
        late_s: float = 0.0,
        shape: Sequence[int] = _SHAPE,
    ) -> None:
        super().__init__(items, shape=shape)
        self.wait_s, self.late_s = (
            number("wait_s", wait_s, at_least=0),
            number("late_s", late_s, at_least=0),
        )
        self.late_every = whole_number("late_every", late_every, at_least=0)

    def cost_s(self, index: int) -> float:
        """Return the seconds that item ``index`` sleeps. Lesson 10."""
        return (
            self.late_s
            if self.late_every and index % self.late_every == self.late_every - 1
            else self.wait_s
        )

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sleep_for(self.cost_s(index))
        return super().__getitem__(index)


class FilesOnOneDisk(Dataset):
    """The bytes of files, read through one disk of a known rate that all workers share.

    Item i is (float32 tensor of ``shape``, i modulo 10). The file is really read; then the item
    waits until a disk of ``disk.bandwidth_bytes_per_s`` and ``disk.latency_s`` would have delivered
    it, one file after the other whoever asks: more workers hide the latency of nothing, for the
    disk is one. ``disk_s(index)`` is what item i keeps the disk busy. Raises FileNotFoundError for
    a file that is not there, ValueError for no files, TypeError for a disk that is no link. Lesson
    10.
    """

    def __init__(
        self, paths: Sequence[str | os.PathLike[str]], disk: Link, *, shape: Sequence[int] = _SHAPE
    ) -> None:
        self.paths = [Path(path) for path in paths]
        if not self.paths:
            raise ValueError(
                "paths is empty; give the files to read, such as those of write_images(folder)"
            )
        self.sizes_bytes = [path.stat().st_size for path in self.paths]
        self.disk, self.image = require_link("disk", disk), torch.zeros(tuple(shape))
        # A lock of the spawn context goes to forked and to spawned workers alike.
        self._free_s = multiprocessing.get_context("spawn").Value("d", -math.inf)

    def disk_s(self, index: int) -> float:
        """Return the seconds that item ``index`` keeps the disk busy. Lesson 10."""
        return self.disk.transfer_s(self.sizes_bytes[index])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        _refuse_outside(index, len(self.paths))
        asked_s = time.perf_counter()
        content = self.paths[index].read_bytes()
        with self._free_s.get_lock():
            end_s = max(asked_s, self._free_s.value) + self.disk.transfer_s(len(content))
            self._free_s.value = end_s
        sleep_until(end_s)
        return self.image, index % _CLASSES


class ItemCost(Record):
    """The cost of an item of a dataset to one process: seconds, the part of them that a processor
    worked, and the kind.

    ``processor_share`` is that of the item with the largest: on a busy machine all others wait for
    a processor as well. ``kind`` is "free" (below 50 us), "computes" (at least half of the time on
    a processor; more workers than cores do not help), or "waits" (workers help beyond the cores).
    Lesson 10.
    """

    items: int
    median_s: float
    mean_s: float
    processor_share: float
    kind: str


class SizedDataset(Protocol):
    """A dataset with a length: items by their places."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def item_cost(dataset: SizedDataset, *, items: int = 32) -> ItemCost:
    """Return the cost of the first ``items`` items of ``dataset`` (all, where it has fewer) to this
    process, one by one.

    One item is made before the clock runs. Processor time is this process's, so call it while
    nothing else computes here. Raises ValueError for an empty dataset. Lesson 10.
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
    return ItemCost(
        items=count,
        median_s=median_s,
        mean_s=statistics.fmean(taken_s),
        processor_share=share,
        kind=kind,
    )


def _refuse_outside(index: int, items: int) -> None:
    if not 0 <= index < items:
        raise IndexError(f"item {index} is not there; the {items} items are 0 to {items - 1}")


# Image files: reading, decoding and augmenting them is real work on a processor.


def write_images(
    folder: str | os.PathLike[str],
    *,
    images: int = 32,
    side: int = 128,
    file_format: str = "jpeg",
    seed: int = 0,
) -> tuple[Path, ...]:
    """Write ``images`` RGB pictures of ``side`` x ``side`` pixels to ``folder`` and return their
    paths, in order.

    A picture is smooth patches of colour with noise over them, as compressible as a photograph is;
    ``seed`` alone decides them. ``file_format`` is "jpeg" (quality 90) or "png". Each file is whole
    or not there.

    Raises ValueError for an unknown format or a side below 8, FileNotFoundError for a folder that
    is missing, ModuleNotFoundError without Pillow. Lesson 10.
    """
    images = whole_number("images", images, at_least=1)
    side = whole_number("side", side, at_least=_COARSE_PIXELS)
    choice("file_format", file_format, _FORMATS)
    target = Path(folder)
    if not target.is_dir():
        raise FileNotFoundError(f"the folder {str(target)!r} is not there; make it first")
    pillow, random, paths = _pillow(), np.random.default_rng(random_seed(seed)), []
    for index in range(images):
        coarse = random.integers(0, 256, (_COARSE_PIXELS, _COARSE_PIXELS, 3), dtype=np.uint8)
        smooth = pillow.fromarray(coarse).resize((side, side), pillow.Resampling.BICUBIC)
        pixels = np.asarray(smooth, dtype=np.float32) + random.normal(0, _NOISE, (side, side, 3))
        content = io.BytesIO()
        options = {"quality": _JPEG_QUALITY} if file_format == "jpeg" else {}
        pillow.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(
            content, file_format.upper(), **options
        )
        path = target / f"image_{index:05d}{_FORMATS[file_format]}"
        storage.write_atomically(path, content.getvalue())
        paths.append(path)
    return tuple(paths)


class DecodedImages(Dataset):
    """Image files as training items: item i is (float32 tensor (3, crop, crop) in -1..1, label i
    modulo 10).

    An item is read, decoded, cut at a random place, mirrored or not, and scaled; with
    ``augment=False`` it is cut in the middle. Place and mirror depend on ``seed`` and the index
    alone, so that every number of workers gives the same items. ``repeats`` lists each file so
    often: an epoch longer than the folder.

    Raises ValueError for no paths or a crop larger than an image, ModuleNotFoundError without
    Pillow. Lesson 10.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        *,
        crop: int = 96,
        augment: bool = True,
        repeats: int = 1,
        seed: int = 0,
    ) -> None:
        boolean("augment", augment)
        _pillow()
        self.paths = [Path(path) for path in paths] * whole_number("repeats", repeats, at_least=1)
        if not self.paths:
            raise ValueError(
                "paths is empty; give image files, such as those of write_images(folder)"
            )
        self.crop = whole_number("crop", crop, at_least=1)
        self.augment, self.seed = augment, random_seed(seed)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        _refuse_outside(index, len(self.paths))
        return self.transformed(
            self.decoded(self.paths[index].read_bytes()), index
        ), index % _CLASSES

    def decoded(self, content: bytes) -> np.ndarray:
        """Return the pixels, uint8 of shape (height, width, 3), of an image file's bytes.

        Lesson 10.
        """
        with _pillow().open(io.BytesIO(content)) as image:
            return np.asarray(image.convert("RGB"))

    def transformed(self, pixels: np.ndarray, index: int) -> torch.Tensor:
        """Return the float32 tensor (3, crop, crop) of item ``index`` from its pixels.

        Lesson 10.
        """
        height, width, _ = pixels.shape
        spare = height - self.crop, width - self.crop
        if min(spare) < 0:
            raise ValueError(
                f"crop={self.crop} is larger than the image of {height} x {width} pixels "
                f"{self.paths[index].name}; give at most {min(height, width)}"
            )
        random = np.random.default_rng((self.seed, index))
        top, left = (
            random.integers(0, np.array(spare) + 1) if self.augment else np.array(spare) // 2
        )
        cut = pixels[top : top + self.crop, left : left + self.crop]
        if self.augment and random.random() < 0.5:
            cut = cut[:, ::-1]
        channels_first = np.ascontiguousarray(cut.transpose(2, 0, 1)).astype(np.float32)
        return torch.from_numpy(channels_first).div_(127.5).sub_(1)


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "image files need the package Pillow, which comes with torchvision and is not "
            "installed here; run make setup, or: uv pip install pillow",
            name="PIL",
        ) from error
    return Image


Settings = TypeVar("Settings", bound=Result)


class LoaderSettings(Record):
    """How a DataLoader loads: ``batch_size`` items a batch by ``workers`` processes (0: the
    training process itself).

    ``prefetch_factor`` is how many batches each worker has under way, ready or not;
    ``persistent_workers`` keeps them from one epoch to the next. Both are without meaning, and
    without effect, for 0 workers. ``pin_memory`` puts batches into page-locked memory, which only
    CUDA can use. ``start_method`` is "fork", "forkserver" or "spawn", None for the system's own.
    Raises TypeError or ValueError for what is not accepted. Lesson 10.
    """

    batch_size: int = 32
    workers: int = 0
    prefetch_factor: int = 2
    pin_memory: bool = False
    persistent_workers: bool = False
    start_method: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("workers", 0), ("prefetch_factor", 1)):
            whole_number(name, getattr(self, name), at_least=least)
        for name in ("pin_memory", "persistent_workers"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(
                    f"{name}={getattr(self, name)!r} is not accepted; give True or False"
                )
        methods = multiprocessing.get_all_start_methods()
        if self.start_method is not None and self.start_method not in methods:
            raise ValueError(
                f"start_method={self.start_method!r} is not one of this system's: "
                f"{', '.join(methods)}; None is its own choice"
            )


def make_loader(
    dataset: Dataset, settings: LoaderSettings, *, shuffle: bool = False, seed: int = 0
) -> DataLoader:
    """Return a DataLoader over ``dataset`` with ``settings``; ``seed`` alone decides the order
    where ``shuffle``.

    Use it in ``with workers_end(loader):`` so that its workers end with the block. The last batch
    holds what is left.

    Raises ValueError for pinned memory without a CUDA device, TypeError for a dataset that workers
    cannot import: one that was defined in a notebook's cell, where workers are not forked. Lesson
    10.
    """
    boolean("shuffle", shuffle)
    if settings.pin_memory and not torch.cuda.is_available():
        raise ValueError(
            "pin_memory=True needs a CUDA device, and torch sees none here; pinned memory is for "
            "the copy to one. A SleepingAccelerator has a pinned link of its own: leave pin_memory "
            "at False"
        )
    working = settings.workers > 0
    if working:
        _refuse_cell_dataset(dataset, settings.start_method or multiprocessing.get_start_method())
    with _ignore_worker_warning():
        return DataLoader(
            dataset,
            batch_size=settings.batch_size,
            shuffle=shuffle,
            num_workers=settings.workers,
            prefetch_factor=settings.prefetch_factor if working else None,
            persistent_workers=settings.persistent_workers and working,
            pin_memory=settings.pin_memory,
            multiprocessing_context=settings.start_method if working else None,
            generator=torch.Generator().manual_seed(random_seed(seed)),
        )


@contextlib.contextmanager
def _ignore_worker_warning() -> Iterator[None]:
    """Keep torch from warning of more workers than cores: whether they help is what a sweep is
    there to show.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def loader_iterator(loader: Iterable) -> Iterator:
    """Return ``iter(loader)``; a dataset that cannot go to a worker is one error, before a batch is
    asked for.

    Raises TypeError for it, and for what gives no batches.
    """
    if not isinstance(loader, Iterable):
        raise TypeError(
            f"loader is a {type(loader).__name__}, which gives no batches; give a DataLoader or a "
            "list"
        )
    try:
        with _ignore_worker_warning():
            return iter(loader)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if getattr(loader, "num_workers", 0) == 0 or "pickle" not in str(error):
            raise
        kind = type(getattr(loader, "dataset", loader)).__name__
        raise TypeError(
            f"{kind} cannot be sent to a worker ({error}); a worker that is not forked gets "
            "the dataset pickled: no lambdas, open files or classes inside functions. Or give "
            "workers=0"
        ) from error


def _refuse_cell_dataset(dataset: Dataset, method: str) -> None:
    main = sys.modules["__main__"]
    if (
        method != "fork"
        and type(dataset).__module__ == "__main__"
        and not hasattr(main, "__file__")
    ):
        raise TypeError(
            f"{type(dataset).__name__} is defined in a notebook, and a worker started by {method} "
            "is a fresh Python that cannot import it from there; write the class to a file beside "
            "the notebook and import it, or give workers=0"
            + (
                " or start_method='fork'"
                if "fork" in multiprocessing.get_all_start_methods()
                else ""
            )
        )


def vary(base: Settings, **factor: Sequence[Any]) -> tuple[Settings, ...]:
    """Return copies of ``base`` that differ in one factor:
    ``vary(LoaderSettings(), workers=(0, 1, 2, 4))``.

    An experiment that changes two factors at once cannot say which of them did it, so two are
    refused. Raises ValueError for no factor or two, a name that ``base`` does not have, no values,
    or a value twice. Lesson 10.
    """
    names = [field.name for field in dataclasses.fields(base)]
    if len(factor) != 1:
        factors = " and ".join(factor) or "none"
        raise ValueError(
            f"vary changes one factor, and was given {factors}; an effect has one cause only where "
            f"one thing changed. Give one of {', '.join(names)}, and vary the next in a run of its "
            "own"
        )
    ((name, values),) = factor.items()
    if name not in names:
        raise ValueError(f"{type(base).__name__} has no factor {name!r}; it has {', '.join(names)}")
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(
            f"{name}={values!r} is one value; give all that it takes, as in {name}=({values!r}, "
            "...)"
        )
    values = tuple(values)
    if not values or len(set(values)) < len(values):
        raise ValueError(f"{name}={values} are no values to vary; give at least one, and each once")
    return tuple(dataclasses.replace(base, **{name: value}) for value in values)


def changed(first: Result, second: Result) -> tuple[str, ...]:
    """Return the names of the factors in which two settings of one type differ: more than one, and
    no cause is known.

    Raises TypeError for settings of two types. Lesson 10.
    """
    if type(first) is not type(second):
        raise TypeError(
            f"a {type(first).__name__} and a {type(second).__name__} have no factors in common; "
            "give two of one type"
        )
    names = [field.name for field in dataclasses.fields(first)]
    return tuple(name for name in names if getattr(first, name) != getattr(second, name))


@contextlib.contextmanager
def workers_end(loader: Iterable) -> Iterator[Iterable]:
    """Give ``loader`` to the block, and end its persistent workers afterwards, also after an
    exception.

    Lesson 10.
    """
    try:
        yield loader
    finally:
        end_workers(loader)


def end_workers(loader: object) -> None:
    """End the workers that ``loader``, or an iterator over one, still has; nothing happens where
    there are none.

    A loader's workers live as long as its iterator, and in a notebook the last exception's
    traceback, or Out[n], keeps that alive.
    """
    iterator = getattr(loader, "_iterator", None) if isinstance(loader, DataLoader) else loader
    shut_down = getattr(iterator, "_shutdown_workers", None)
    if shut_down is not None:
        shut_down()
    if isinstance(loader, DataLoader):
        loader._iterator = None
