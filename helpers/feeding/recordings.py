"""What lesson 06 records on a machine with an accelerator: the same training with each way of copying its batches.

Lesson 06.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from helpers.feeding.accelerators import TrainingAccelerator, training_step
from helpers.feeding.items import FreeItems
from helpers.feeding.loading import LoaderSettings, make_loader, workers_end
from helpers.feeding.pipeline import COPYING
from helpers.feeding.starvation import feed
from helpers.results import Result

_SHAPE = (3, 96, 96)
_BATCH_SIZE = 64
_STEPS = 24
_CHANNELS = 16
_CLASSES = 10


@dataclass(frozen=True)
class CopyingRow(Result):
    """A training with one way of copying: seconds from step to step and the device's busy share of them. Lesson 06."""

    copying: str
    pinned: bool
    step_s: float
    busy_share: float


@dataclass(frozen=True)
class CopyingTable(Result):
    """The same training on ``device`` with each way of copying batches of ``batch_bytes``. Lesson 06."""

    device: str
    batch_bytes: int
    rows: tuple[CopyingRow, ...]


def measure_copying() -> CopyingTable:
    """Return a small convolution's training on CUDA with each way of copying; on a CPU, the one way that it has.

    Batches are 64 float32 images of 3 x 96 x 96, there already, handed over by two workers; "blocking" copies from
    pageable, the others from pinned memory. ``python -m helpers.recorded 06`` calls it. For the library itself.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    items = FreeItems(_BATCH_SIZE * _STEPS, shape=_SHAPE)
    model = nn.Sequential(
        nn.Conv2d(_SHAPE[0], _CHANNELS, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(_CHANNELS, _CLASSES),
    ).to(device)
    accelerator = TrainingAccelerator(training_step(model), device=device)
    rows = []
    for copying in COPYING if device.type == "cuda" else COPYING[:1]:
        settings = LoaderSettings(_BATCH_SIZE, workers=2, pin_memory=copying != "blocking")
        with workers_end(make_loader(items, settings)) as loader:
            last = feed(loader, accelerator, copying=copying, wait_each_step=False).last
        rows.append(CopyingRow(copying, settings.pin_memory, last.step_s, last.busy_share))
    return CopyingTable(str(device), _BATCH_SIZE * items.image.nbytes, tuple(rows))
