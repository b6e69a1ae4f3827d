"""A training loop with marks: how long the device was busy, how long the loop waited for a batch,
one factor at a time.

Lesson 10.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from helpers import console
from helpers.checks import boolean, choice, whole_number
from helpers.links import Activity, Timeline, join_activities
from helpers.results import Record, derived
from helpers.studies.input_pipeline import _loading as loading
from helpers.studies.input_pipeline._accelerators import (
    DEVICE,
    SleepingAccelerator,
    TrainingAccelerator,
    copied_ahead,
    training_step,
)
from helpers.studies.input_pipeline._pipeline import COPYING

HOST = "host"
_LONG_STEP_S = 0.01
_RECORDED_SHAPE, _RECORDED_BATCH, _RECORDED_STEPS = (3, 96, 96), 64, 24

Accelerator = SleepingAccelerator | TrainingAccelerator


class EpochFeeding(Record):
    """One epoch of a fed loop, its marks on whole steps: from the start of a step to the start of
    the next.

    ``first_batch_s`` is from the start of the epoch to its first batch (workers start in it). The
    other numbers leave ``warm_up`` steps out: ``step_s`` is the mean time from step to step,
    ``busy_share`` the device's part of it, ``waiting_share`` the part in which the host waited for
    a batch. Lesson 10.
    """

    epoch: int
    steps: int
    warm_up: int
    elapsed_s: float
    first_batch_s: float
    step_s: float
    busy_share: float
    waiting_share: float


class FeedingRun(Record):
    """A fed loop, a row an epoch; ``timeline`` is of the last one and for ``plotting.gantt``.

    Lesson 10.
    """

    accelerator: str
    copying: str
    wait_each_step: bool
    epochs: tuple[EpochFeeding, ...]
    timeline: Timeline = field(repr=False)

    @property
    def last(self) -> EpochFeeding:
        """The last epoch: of several, the one whose workers were there already where they are
        persistent.

        Lesson 10.
        """
        return self.epochs[-1]


def feed(
    loader: Iterable,
    accelerator: Accelerator,
    *,
    steps: int | None = None,
    epochs: int = 1,
    warm_up: int | None = None,
    copying: str = "blocking",
    wait_each_step: bool = True,
) -> FeedingRun:
    """Train through ``loader`` on ``accelerator``, with marks: return device busy shares and a
    timeline.

    ``steps`` ends each of the ``epochs`` early. ``warm_up`` steps of each epoch are in no share; by
    default as many as a loader's workers have under way at first, which come late (workers start
    one after the other) or all at once.

    ``copying`` is "blocking" (``.to(device)`` in the loop), "non_blocking" (the same from pinned
    memory: the host goes on) or "ahead" (:func:`helpers.studies.input_pipeline.copied_ahead`). With
    ``wait_each_step`` the host waits for the device after each step, as a loop with ``loss.item()``
    does; else at the end of the epoch. Workers that are not persistent end with their epoch,
    persistent ones with :func:`helpers.studies.input_pipeline.workers_end`.

    Raises ValueError for a loader with fewer than two batches beyond the warm-up, an unknown way of
    copying or one that the device does not have. Lesson 10.
    """
    boolean("wait_each_step", wait_each_step)
    choice("copying", copying, COPYING)
    limit = None if steps is None else whole_number("steps", steps, at_least=1)
    skipped_steps = (
        _count_under_way(loader)
        if warm_up is None
        else whole_number("warm_up", warm_up, at_least=0)
    )
    rows, activities = [], []
    for epoch in range(1, whole_number("epochs", epochs, at_least=1) + 1):
        accelerator.begin()
        start_s = time.perf_counter()
        waits = _epoch(loader, accelerator, limit, copying=copying, wait_each_step=wait_each_step)
        end_s = time.perf_counter()
        if len(waits) < skipped_steps + 2:
            raise ValueError(
                f"the loader gave {len(waits)} batches, and {skipped_steps} steps are warm-up; a "
                f"time from step to step needs {skipped_steps + 2} batches: give more items, or a "
                "smaller warm_up"
            )
        activities = accelerator.activities()
        rows.append(_row(epoch, end_s - start_s, skipped_steps, waits, activities))
    return FeedingRun(
        accelerator=repr(accelerator),
        copying=copying,
        wait_each_step=wait_each_step,
        epochs=tuple(rows),
        timeline=join_activities([*activities, *waits]),
    )


def _epoch(
    loader: Iterable,
    accelerator: Accelerator,
    limit: int | None,
    *,
    copying: str,
    wait_each_step: bool,
) -> list[Activity]:
    """Run one epoch and return when the host waited for its batches."""
    waits: list[Activity] = []
    start_s = time.perf_counter()
    iterator = loading.loader_iterator(loader)
    try:
        with _deliver(itertools.islice(iterator, limit), accelerator, copying) as arrivals:
            while True:
                try:
                    batch = next(arrivals)
                except StopIteration:
                    break
                waits.append(
                    Activity(
                        HOST, start_s, time.perf_counter(), "waiting for a batch", str(len(waits))
                    )
                )
                accelerator.step(
                    batch if copying == "ahead" else accelerator.copy(batch, copying=copying)
                )
                if wait_each_step:
                    accelerator.wait()
                start_s = time.perf_counter()
            accelerator.wait()
    finally:
        if not getattr(loader, "persistent_workers", False):
            loading.end_workers(iterator)
    return waits


@contextlib.contextmanager
def _deliver(batches: Iterator, accelerator: Accelerator, copying: str) -> Iterator[Iterator[Any]]:
    if copying != "ahead":
        yield batches
        return
    with copied_ahead(batches, lambda batch: accelerator.copy(batch, copying="ahead")) as copies:
        yield copies


def _count_under_way(loader: Iterable) -> int:
    return getattr(loader, "num_workers", 0) * (getattr(loader, "prefetch_factor", None) or 0)


def _row(
    epoch: int,
    elapsed_s: float,
    skipped_steps: int,
    waits: Sequence[Activity],
    activities: Sequence[Activity],
) -> EpochFeeding:
    computing = [bar for bar in activities if bar.lane == DEVICE]
    marked_steps = computing[skipped_steps:]
    marked_s = marked_steps[-1].start_s - marked_steps[0].start_s
    return EpochFeeding(
        epoch=epoch,
        steps=len(computing),
        warm_up=skipped_steps,
        elapsed_s=elapsed_s,
        first_batch_s=waits[0].duration_s,
        step_s=marked_s / (len(marked_steps) - 1),
        busy_share=sum(bar.duration_s for bar in marked_steps[:-1]) / marked_s,
        waiting_share=sum(bar.duration_s for bar in waits[skipped_steps + 1 :]) / marked_s,
    )


def measure_handover(
    batch_bytes: int, settings: loading.LoaderSettings, *, batches: int = 30
) -> float:
    """Return the seconds that the training process spends to receive a batch that is ready: median
    of ``batches``.

    ``settings`` needs a worker or more: their batches of ``batch_bytes`` come through shared
    memory, which costs even items that are free. Each is received while a device sleeps 10 ms a
    step, long enough for the next to be ready.

    Raises ValueError for no workers or fewer bytes than a float32 an item. Lesson 10.
    """
    if settings.workers == 0:
        raise ValueError(
            "workers=0 hands nothing over: batches are made where they are used; give 1 or more"
        )
    elements = batch_bytes // (4 * settings.batch_size)
    if elements < 1:
        raise ValueError(
            f"batch_bytes={batch_bytes} is less than 4 bytes for each of {settings.batch_size} "
            "items"
        )
    dataset = loading.FreeItems(
        settings.batch_size * whole_number("batches", batches, at_least=2), shape=(elements,)
    )
    with loading.workers_end(loading.make_loader(dataset, settings)) as loader:
        run = feed(loader, SleepingAccelerator(_LONG_STEP_S), warm_up=0)
    waits = [bar.duration_s for bar in run.timeline.activities if bar.lane == HOST]
    return statistics.median(waits[1:])


class SweepRow(Record):
    """The last epoch with one value of the factor that a sweep varies. Lesson 10."""

    value: str
    first_batch_s: float
    step_s: float
    examples_per_s: float
    busy_share: float
    waiting_share: float


class FeedingSweep(Record):
    """Fed loops that differ in ``factor`` alone, a row a value. Lesson 10."""

    factor: str
    rows: tuple[SweepRow, ...]


def sweep_feeding(
    dataset: Dataset,
    settings: Sequence[loading.LoaderSettings],
    accelerator: Accelerator | Callable[[loading.LoaderSettings], Accelerator],
    *,
    steps: int | None = None,
    epochs: int = 1,
    warm_up: int | None = None,
) -> FeedingSweep:
    """Return a fed loop over ``dataset`` for each of ``settings``, which differ in one factor: see
    :func:`vary`.

    ``accelerator`` is one, or a function that makes one for given settings: a device's step depends
    on the batch size. The last of ``epochs`` counts; ``steps`` and ``warm_up`` as in :func:`feed`.

    Raises ValueError for settings that differ in no factor or in two. Lesson 10.
    """
    settings = tuple(settings)
    names = sorted(
        {name for pair in itertools.combinations(settings, 2) for name in loading.changed(*pair)}
    )
    if len(names) != 1:
        factors = " and ".join(names) or "none"
        raise ValueError(
            f"the settings differ in {factors}; a sweep is of one factor: make them with vary(...)"
        )
    rows = []
    for setting in console.track(settings, f"one {names[0]} after the other", unit="loop"):
        loader: DataLoader = loading.make_loader(dataset, setting)
        device = accelerator if not callable(accelerator) else accelerator(setting)
        try:
            last = feed(loader, device, steps=steps, epochs=epochs, warm_up=warm_up).last
        finally:
            loading.end_workers(loader)
        value, per_s = str(getattr(setting, names[0])), setting.batch_size / last.step_s
        rows.append(derived(SweepRow, last, value=value, examples_per_s=per_s))
    return FeedingSweep(factor=names[0], rows=tuple(rows))


# What lesson 10 records.


class CopyingRow(Record):
    """A training with one way of copying: seconds from step to step and the device's busy share of
    them.

    Lesson 10.
    """

    copying: str
    pinned: bool
    step_s: float
    busy_share: float


class CopyingTable(Record):
    """The same training on ``device`` with each way of copying batches of ``batch_bytes``.

    Lesson 10.
    """

    device: str
    batch_bytes: int
    rows: tuple[CopyingRow, ...]


def measure_copying() -> CopyingTable:
    """Return a small convolution's training on CUDA with each way of copying; on a CPU, the one way
    that it has.

    Batches are 64 float32 images of 3 x 96 x 96, there already, handed over by two workers;
    "blocking" copies from pageable, the others from pinned memory.
    ``python -m helpers.recorded 10`` calls it.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    items = loading.FreeItems(_RECORDED_BATCH * _RECORDED_STEPS, shape=_RECORDED_SHAPE)
    layers = (
        nn.Conv2d(3, 16, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    accelerator = TrainingAccelerator(
        training_step(nn.Sequential(*layers).to(device)), device=device
    )
    rows = []
    for copying in COPYING if device.type == "cuda" else COPYING[:1]:
        settings = loading.LoaderSettings(
            _RECORDED_BATCH, workers=2, pin_memory=copying != "blocking"
        )
        with loading.workers_end(loading.make_loader(items, settings)) as loader:
            last = feed(loader, accelerator, copying=copying, wait_each_step=False).last
        rows.append(CopyingRow(copying, settings.pin_memory, last.step_s, last.busy_share))
    return CopyingTable(str(device), _RECORDED_BATCH * items.image.nbytes, tuple(rows))
