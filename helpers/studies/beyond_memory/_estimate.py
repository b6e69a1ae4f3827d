"""How long a training would take, from timing a few of its steps. Lesson 12."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader

from helpers import console
from helpers.checks import whole_number
from helpers.data import make_MNIST_loader
from helpers.results import Record, derived
from helpers.training import _loop as loop

HIDDEN_SIZES = (128, 256, 512, 1024, 2048, 4096, 6144)

SizedBatches = DataLoader[Any] | Sequence[tuple[torch.Tensor, torch.Tensor]]

_BATCH_SIZE = 128
_COLD_STEPS = 2
_TIMED_STEPS = 3


class SizeEstimate(Record):
    """One hidden size: its parameters, the median time of a step, and the estimated time of the
    training.

    The interval ``low_s`` to ``high_s`` is the training at the fastest and at the slowest step that
    was timed.
    """

    hidden: int
    parameters: int
    parameter_bytes: int
    step_s: float
    estimated_s: float
    low_s: float
    high_s: float


class TrainingEstimate(Record):
    """What :func:`estimate_training_for` found: one row a hidden size.

    ``measuring_s`` is what the estimate itself took. ``confidence_share`` is the chance that the
    median step lies in the interval of its row: n steps all miss it on the same side with
    probability 2 * (1/2)^n.
    """

    model: str
    device: str
    threads: int
    batch_size: int
    epochs: int
    steps_per_epoch: float
    timed_steps: int
    confidence_share: float
    measuring_s: float
    sizes: tuple[SizeEstimate, ...]


class _Trial(NamedTuple):
    batch_size: int
    parameters: int
    parameter_bytes: int
    first_batch_s: float
    steps_s: tuple[float, ...]


def estimate_training_for(
    model_class: Callable[..., nn.Module],
    epochs: int,
    *,
    hidden_sizes: Sequence[int] = HIDDEN_SIZES,
    loader: SizedBatches | None = None,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
) -> TrainingEstimate:
    """Estimate the time to train ``model_class(hidden=h)`` for ``epochs`` epochs, for each ``h`` of
    ``hidden_sizes``.

    Times a few steps of real training a size: the first two are cold and left out, the next three
    count. All sizes are measured in two passes, up and then down, so that a machine that slows down
    meanwhile does not favour one. The estimate of an epoch is the time to the loader's first batch,
    plus the median step times the number of steps; a smaller last batch counts by its examples.
    ``epochs`` only multiplies. The interval holds noise between steps; it does not hold a machine
    that becomes busier after the estimate.

    Digits come from ``loader``, else from the packaged digits with ``batch_size`` (128). Models are
    made on ``device``, by default CUDA if there is one, one at a time. Random numbers are as they
    were afterwards.

    Raises TypeError or ValueError for an argument that is not accepted, and what
    :func:`.training.train` raises.

    >>> from helpers import LeNet
    >>> estimate = estimate_training_for(LeNet, 10, hidden_sizes=(120, 240))  # doctest: +SKIP
    >>> [(row.hidden, row.parameters) for row in estimate.sizes]  # doctest: +SKIP
    [(120, 41282), (240, 94382)]

    Lesson 12.
    """
    epochs = whole_number("epochs", epochs, at_least=1)
    sizes = _hidden_sizes(hidden_sizes)
    batches = _sized_loader(loader, batch_size)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda":
        loop.refuse_without_cuda(f"device={str(device)!r}")
    begin_s = time.perf_counter()
    trials: dict[int, list[_Trial]] = {hidden: [] for hidden in sizes}
    with loop.seed_generators(batches, device, 0):
        for hidden in console.track([*sizes, *reversed(sizes)], "estimating", unit="model"):
            trials[hidden].append(
                _time_trial(_build_model(model_class, hidden, device), batches, device)
            )
    batch_size = trials[sizes[0]][0].batch_size
    steps_per_epoch = _steps_per_epoch(batches, batch_size)
    timed_steps = len(trials[sizes[0]]) * _TIMED_STEPS
    return TrainingEstimate(
        model=getattr(model_class, "__name__", str(model_class)),
        device=str(device),
        threads=torch.get_num_threads(),
        batch_size=batch_size,
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        timed_steps=timed_steps,
        confidence_share=1 - 2 * 0.5**timed_steps,
        measuring_s=time.perf_counter() - begin_s,
        sizes=tuple(
            _size_estimate(hidden, trials[hidden], epochs, steps_per_epoch) for hidden in sizes
        ),
    )


def _time_trial(model: nn.Module, loader: loop.Batches, device: torch.device) -> _Trial:
    """Time the loader's first batch and a few whole steps, each with the loading of its batch."""
    optimizer = loop.adam(model, loop.LEARNING_RATE)
    parameters = list(model.parameters())
    model.train()
    with contextlib.closing(loop.prepare_batches(_repeat_batches(loader), device)) as batches:
        start_s = loop.now_s(device)
        first_batch = next(batches)
        first_batch_s = loop.now_s(device) - start_s
        full_batches = (
            batch
            for batch in itertools.chain([first_batch], batches)
            if len(batch.labels) == len(first_batch.labels)
        )
        steps = loop.training_steps(model, optimizer, full_batches, 1)
        steps_s = [
            _time_action_s(lambda: next(steps), device) for _ in range(_COLD_STEPS + _TIMED_STEPS)
        ]
    return _Trial(
        batch_size=len(first_batch.labels),
        parameters=sum(parameter.numel() for parameter in parameters),
        parameter_bytes=sum(
            parameter.numel() * parameter.element_size() for parameter in parameters
        ),
        first_batch_s=first_batch_s,
        steps_s=tuple(steps_s[_COLD_STEPS:]),
    )


def _size_estimate(
    hidden: int, trials: Sequence[_Trial], epochs: int, steps_per_epoch: float
) -> SizeEstimate:
    steps_s = [step_s for trial in trials for step_s in trial.steps_s]
    # The first loader of a process pays for more than any later one does: the smallest stands for
    # all epochs.
    first_batch_s = min(trial.first_batch_s for trial in trials)

    def training_s(step_s: float) -> float:
        return epochs * (first_batch_s + steps_per_epoch * step_s)

    median_s = statistics.median(steps_s)
    return derived(
        SizeEstimate,
        trials[0],
        hidden=hidden,
        step_s=median_s,
        estimated_s=training_s(median_s),
        low_s=training_s(min(steps_s)),
        high_s=training_s(max(steps_s)),
    )


def _repeat_batches(loader: Iterable) -> Iterator:
    while True:
        batch = None
        for batch in loader:
            yield batch
        loop.refuse_empty(0 if batch is None else 1)


def _sized_loader(loader: SizedBatches | None, batch_size: int | None) -> SizedBatches:
    if loader is None:
        return make_MNIST_loader(_BATCH_SIZE if batch_size is None else batch_size)
    if batch_size is not None:
        raise ValueError(
            "loader and batch_size are both given; a loader has a batch size of its own: give one "
            "of them"
        )
    try:
        loop.check_iterable(loader)
        len(loader)
    except TypeError as error:
        raise TypeError(
            f"the number of batches of the loader is not known ({error}); give a DataLoader"
        ) from None
    return loader


def _steps_per_epoch(loader: SizedBatches, batch_size: int) -> float:
    """Return the batches of an epoch, a smaller last one as its part of a whole."""
    if isinstance(loader, DataLoader) and loader.batch_size is not None and not loader.drop_last:
        return len(loader.sampler) / batch_size  # type: ignore[arg-type]  # a sampler of single examples has a length
    return float(len(loader))


def _hidden_sizes(hidden_sizes: Sequence[int]) -> list[int]:
    if not isinstance(hidden_sizes, Iterable) or isinstance(hidden_sizes, str):
        raise TypeError(
            f"hidden_sizes={hidden_sizes!r} is not accepted; give several numbers, such as (128, "
            "256)"
        )
    sizes = list(
        dict.fromkeys(whole_number("a hidden size", hidden, at_least=1) for hidden in hidden_sizes)
    )
    if not sizes:
        raise ValueError("hidden_sizes is empty; give at least one number, such as (128, 256)")
    return sizes


def _build_model(
    model_class: Callable[..., nn.Module], hidden: int, device: torch.device
) -> nn.Module:
    if isinstance(model_class, nn.Module) or not callable(model_class):
        raise TypeError(
            f"model_class is a {type(model_class).__name__}; give the class itself, such as LeNet"
        )
    try:
        inspect.signature(model_class).bind(hidden=hidden)
    except TypeError as error:
        name = getattr(model_class, "__name__", str(model_class))
        raise TypeError(
            f"{name}(hidden={hidden}) does not work ({error}); give a class such as LeNet"
        ) from None
    model = model_class(hidden=hidden)
    loop.trainable_device(model)
    loop.trainable_device(model.to(device))
    return model


def _time_action_s(action: Callable[[], object], device: torch.device) -> float:
    start_s = loop.now_s(device)
    action()
    return loop.now_s(device) - start_s
