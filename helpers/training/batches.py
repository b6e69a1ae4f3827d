"""What training asks of a loader: batches checked and moved, a fixed order, a clock that waits for the device.

Lesson 00.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]

_BATCHES_ACCEPTED = (
    "give a DataLoader, or a list, of batches (images, labels): tensors of equal length, the labels whole numbers"
)


class Batch(NamedTuple):
    """A batch on the model's device; its labels were looked at before they went there, where that costs no wait."""

    images: torch.Tensor
    labels: torch.Tensor
    lowest_label: int
    highest_label: int


def prepared(loader: Iterable, device: torch.device) -> Iterator[Batch]:
    """Yield the loader's batches, checked, on ``device``."""
    for batch in loader:
        images, labels = _pair(batch)
        labels = labels.long()
        lowest, highest = torch.aminmax(labels)
        yield Batch(_moved(images, device), _moved(labels, device), int(lowest), int(highest))


def _pair(batch: object) -> tuple[torch.Tensor, torch.Tensor]:
    pair = isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(item, torch.Tensor) for item in batch)
    if not pair:
        raise TypeError(f"the loader gave a {type(batch).__name__}; {_BATCHES_ACCEPTED}")
    images, labels = batch
    if labels.ndim != 1 or len(labels) == 0 or images.ndim == 0 or len(images) != len(labels):
        raise ValueError(
            f"the loader gave images of shape {tuple(images.shape)} and labels of shape {tuple(labels.shape)}; "
            + _BATCHES_ACCEPTED
        )
    if labels.dtype == torch.bool or labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"the loader gave labels of {labels.dtype}; {_BATCHES_ACCEPTED}")
    return images, labels


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.to(device, non_blocking=device.type == "cuda" and tensor.is_pinned())


def iterable(loader: object) -> Iterable:
    """Return ``loader``; raise TypeError for what gives no batches, such as a dataset."""
    if not isinstance(loader, Iterable):
        raise TypeError(f"loader is a {type(loader).__name__}; {_BATCHES_ACCEPTED}")
    return loader


def refuse_empty(examples: int, epoch: int = 1) -> None:
    """Raise ValueError where an epoch held no example."""
    if examples == 0:
        once = "; a generator can be read once only: give a DataLoader or a list" if epoch > 1 else ""
        raise ValueError(f"the loader gave no batch in epoch {epoch}{once or '; give one with digits in it'}")


def now_s(device: torch.device) -> float:
    """Return the clock once the device has finished what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


@contextlib.contextmanager
def seeded(loader: object, device: torch.device, seed: int) -> Iterator[None]:
    """Seed the generators of the CPU, of ``device`` and of the loader; afterwards each is as it was."""
    generators = [torch.default_generator, *_generators(loader)]
    states = [generator.get_state() for generator in generators]
    cuda_state = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        for generator in generators:
            generator.manual_seed(seed)
        if cuda_state is not None:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        if cuda_state is not None:
            torch.cuda.set_rng_state(cuda_state, device)


def _generators(loader: object) -> list[torch.Generator]:
    holders = (loader, getattr(loader, "sampler", None))
    found = [getattr(holder, "generator", None) for holder in holders]
    return [generator for generator in found if isinstance(generator, torch.Generator)]
