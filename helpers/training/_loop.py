"""Training a model with a clock beside it, its batches checked and moved, and its accuracy.

Lesson 00.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn

from helpers import console
from helpers.checks import number, random_seed, whole_number
from helpers.results import Record
from helpers.timing._runs import watch_waiting, why_disturbed

Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]

_BATCHES_ACCEPTED = (
    "give a DataLoader, or a list, of batches (images, labels): tensors of equal length, the "
    "labels whole numbers"
)


class PreparedBatch(NamedTuple):
    """A batch on the model's device; its labels were looked at before they went there, where that
    costs no wait.
    """

    images: torch.Tensor
    labels: torch.Tensor
    lowest_label: int
    highest_label: int


def prepare_batches(loader: Iterable, device: torch.device) -> Generator[PreparedBatch, None, None]:
    """Yield the loader's batches, checked, on ``device``."""
    for batch in loader:
        images, labels = _pair(batch)
        labels = labels.long()
        lowest, highest = torch.aminmax(labels)
        yield PreparedBatch(_move(images, device), _move(labels, device), int(lowest), int(highest))


def _pair(batch: object) -> tuple[torch.Tensor, torch.Tensor]:
    items = list(batch) if isinstance(batch, tuple | list) else []
    if len(items) != 2 or not all(isinstance(item, torch.Tensor) for item in items):
        raise TypeError(f"the loader gave a {type(batch).__name__}; {_BATCHES_ACCEPTED}")
    images, labels = items
    if labels.ndim != 1 or len(labels) == 0 or images.ndim == 0 or len(images) != len(labels):
        raise ValueError(
            f"the loader gave images of shape {tuple(images.shape)} and labels of shape "
            f"{tuple(labels.shape)}; " + _BATCHES_ACCEPTED
        )
    if labels.dtype == torch.bool or labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"the loader gave labels of {labels.dtype}; {_BATCHES_ACCEPTED}")
    return images, labels


def _move(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.to(device, non_blocking=device.type == "cuda" and tensor.is_pinned())


def check_iterable(loader: object) -> Iterable:
    """Return ``loader``; raise TypeError for what gives no batches, such as a dataset."""
    if not isinstance(loader, Iterable):
        raise TypeError(f"loader is a {type(loader).__name__}; {_BATCHES_ACCEPTED}")
    return loader


def refuse_empty(examples: int, epoch: int = 1) -> None:
    """Raise ValueError where an epoch held no example."""
    if examples == 0:
        advice = (
            "a generator can be read once only: give a DataLoader or a list"
            if epoch > 1
            else "give one with digits in it"
        )
        raise ValueError(f"the loader gave no batch in epoch {epoch}; {advice}")


def now_s(device: torch.device) -> float:
    """Return the clock once the device has finished what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


@contextlib.contextmanager
def seed_generators(loader: object, device: torch.device, seed: int) -> Iterator[None]:
    """Seed the generators of the CPU, of ``device`` and of the loader; afterwards each is as it
    was.
    """
    generators = [torch.default_generator, *_generators(loader)]
    states_before = [generator.get_state() for generator in generators]
    cuda_state = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        for generator in generators:
            generator.manual_seed(seed)
        if cuda_state is not None:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
    finally:
        for generator, state in zip(generators, states_before, strict=True):
            generator.set_state(state)
        if cuda_state is not None:
            torch.cuda.set_rng_state(cuda_state, device)


def _generators(loader: object) -> list[torch.Generator]:
    holders = (loader, getattr(loader, "sampler", None))
    generators = [getattr(holder, "generator", None) for holder in holders]
    return [generator for generator in generators if isinstance(generator, torch.Generator)]


LEARNING_RATE = 0.002


class EpochRow(Record):
    """One epoch: its number from 1, its time, and the mean loss and accuracy of its batches before
    their update.
    """

    epoch: int
    time_s: float
    loss: float
    accuracy_share: float


class TrainingRun(Record):
    """What :func:`train` did and how long it took: one row an epoch.

    ``examples`` and ``steps`` are those of one epoch, ``total_s`` is the sum of the epochs' times
    and ``examples_per_s`` is over all of it. ``waiting_share`` is the part of the epochs' time in
    which a thread of this process had no processor; None if unknown. ``test_accuracy_share`` is
    None without a test loader.
    """

    model: str
    device: str
    threads: int
    batch_size: int
    epochs: int
    examples: int
    steps: int
    total_s: float
    examples_per_s: float
    waiting_share: float | None
    test_accuracy_share: float | None
    rows: tuple[EpochRow, ...]

    @property
    def stable(self) -> bool:
        """False where a thread waited for a processor over a tenth of the time: no evidence against
        a claim.
        """
        return not why_disturbed(self.waiting_share)


class _Step(NamedTuple):
    loss: torch.Tensor
    correct: torch.Tensor
    examples: int


def train(
    model: nn.Module,
    loader: Batches,
    epochs: int = 2,
    *,
    learning_rate: float = LEARNING_RATE,
    seed: int = 0,
    test_loader: Batches | None = None,
) -> TrainingRun:
    """Train ``model`` in place with Adam and cross-entropy, on the device it is on; return times
    and accuracies.

    ``loader`` gives batches (images, labels) in each of the ``epochs``: a DataLoader, or a list of
    batches. ``learning_rate`` is Adam's; the accuracy is that on ``test_loader``, if there is one.
    ``seed`` decides the order of the digits and the dropout, so on a CPU with the same number of
    threads the same call gives the same weights, bit for bit. The random numbers of the caller and
    of the loader are as they were afterwards; so is the mode of each module, and gradients are
    cleared. An interrupted training leaves the weights after the last whole update.

    Raises TypeError or ValueError for a model, loader or number that is not accepted (an empty
    loader, a label without an output), FloatingPointError at the first step whose loss is not
    finite.

    >>> from helpers import LeNet, make_MNIST_loader
    >>> run = train(LeNet(), make_MNIST_loader(64))  # doctest: +SKIP
    >>> run.epochs, run.steps, run.examples  # doctest: +SKIP
    (2, 63, 4000)

    Lesson 00.
    """
    epochs = whole_number("epochs", epochs, at_least=1)
    seed = random_seed(seed)
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "training needs gradients, which torch.inference_mode() turns off; call train outside "
            "of it"
        )
    device = trainable_device(model)
    optimizer = adam(model, learning_rate)
    rows, steps = [], []
    read_waiting_share = watch_waiting(time.perf_counter)
    with (
        # an interrupt while PyTorch switches gradients would leave them off for good
        torch.set_grad_enabled(torch.is_grad_enabled()),
        _set_mode(model, training=True),
        seed_generators(loader, device, seed),
    ):
        for epoch in range(1, epochs + 1):
            start_s = now_s(device)
            batches = console.track(
                check_iterable(loader), f"epoch {epoch} of {epochs}", unit="batch"
            )
            steps = list(training_steps(model, optimizer, prepare_batches(batches, device), epoch))
            rows.append(_epoch_row(epoch, now_s(device) - start_s, steps))
    waiting_share, total_s = read_waiting_share(), sum(row.time_s for row in rows)
    examples = sum(step.examples for step in steps)
    return TrainingRun(
        model=type(model).__name__,
        device=str(device),
        threads=torch.get_num_threads(),
        batch_size=steps[0].examples,
        examples=examples,
        steps=len(steps),
        epochs=epochs,
        total_s=total_s,
        examples_per_s=epochs * examples / total_s,
        waiting_share=waiting_share,
        test_accuracy_share=None if test_loader is None else accuracy(model, test_loader),
        rows=tuple(rows),
    )


def gpu_train(
    model: nn.Module,
    loader: Batches,
    epochs: int = 2,
    *,
    learning_rate: float = LEARNING_RATE,
    seed: int = 0,
    test_loader: Batches | None = None,
) -> TrainingRun:
    """Train ``model`` on the GPU as :func:`train` does, and bring it back to its own device,
    trained.

    ``loader``, ``epochs``, ``learning_rate``, ``seed`` and ``test_loader`` are those of
    :func:`train`. The way to the GPU and back is outside the clock. A model that is on a GPU
    already stays there. After an exception the model is back as well.

    Raises RuntimeError where torch sees no CUDA device, and what :func:`train` raises.

    >>> from helpers import LeNet, make_MNIST_loader
    >>> gpu_train(LeNet(), make_MNIST_loader(64)).device  # doctest: +SKIP
    'cuda:0'

    Lesson 00.
    """
    refuse_without_cuda("gpu_train")
    own_device = trainable_device(model)
    try:
        model.to(own_device if own_device.type == "cuda" else "cuda")
        return train(
            model, loader, epochs, learning_rate=learning_rate, seed=seed, test_loader=test_loader
        )
    finally:
        model.to(own_device)


def accuracy(model: nn.Module, loader: Batches) -> float:
    """Return the share of the loader's digits that ``model`` gives its largest output to the right
    label for.

    The model runs in evaluation mode on its own device and comes back in the mode it was in. Raises
    what :func:`train` raises for a model or loader that is not accepted.

    >>> from helpers import LeNet, make_MNIST_loader
    >>> untrained = accuracy(LeNet(), make_MNIST_loader(100, split="test"))  # doctest: +SKIP
    >>> round(untrained, 1)  # doctest: +SKIP
    0.1
    """
    device = _device(model)
    correct_counts, examples = [], 0
    with (
        # an interrupt while PyTorch switches gradients would leave them off for good
        torch.set_grad_enabled(torch.is_grad_enabled()),
        _set_mode(model, training=False),
        seed_generators(loader, device, 0),
        torch.no_grad(),
    ):
        for batch in prepare_batches(
            console.track(check_iterable(loader), "testing", unit="batch"), device
        ):
            _refuse_other_type(model, batch)
            logits = model(batch.images)
            _refuse_labels(batch, logits)
            correct_counts.append((logits.argmax(dim=1) == batch.labels).sum())
            examples += len(batch.labels)
    refuse_empty(examples)
    return int(torch.stack(correct_counts).sum()) / examples


def training_steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[PreparedBatch], epoch: int
) -> Iterator[_Step]:
    """Train on each batch and yield what it gave: one step for the training and for its
    estimate.
    """
    for step, batch in enumerate(batches, start=1):
        _refuse_other_type(model, batch)
        with torch.enable_grad():
            logits = model(batch.images)
            _refuse_labels(batch, logits)
            loss = nn.functional.cross_entropy(logits, batch.labels)
            # On an accelerator the host would wait here at every step: there _epoch_row looks,
            # after the epoch.
            if loss.device.type == "cpu":
                _refuse_not_finite(loss.item(), epoch, step)
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        yield _Step(
            loss.detach(), (logits.detach().argmax(dim=1) == batch.labels).sum(), len(batch.labels)
        )


def _refuse_other_type(model: nn.Module, batch: PreparedBatch) -> None:
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if batch.images.is_floating_point() and batch.images.dtype not in dtypes:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        image_dtype = str(batch.images.dtype).removeprefix("torch.")
        raise TypeError(
            f"the model's parameters are {names}, the images {image_dtype}; give it with "
            f"model.to(torch.{image_dtype})"
        )


def _epoch_row(epoch: int, time_s: float, steps: Sequence[_Step]) -> EpochRow:
    examples = sum(step.examples for step in steps)
    refuse_empty(examples, epoch)
    losses = torch.stack([step.loss for step in steps]).tolist()
    for step, loss in enumerate(losses, start=1):
        _refuse_not_finite(loss, epoch, step)
    correct = int(torch.stack([step.correct for step in steps]).sum())
    loss_sum = math.fsum(loss * step.examples for loss, step in zip(losses, steps, strict=True))
    return EpochRow(epoch, time_s, loss=loss_sum / examples, accuracy_share=correct / examples)


def adam(model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """Return Adam over the parameters that are not frozen."""
    number("learning_rate", learning_rate, above=0)
    # foreach: all weights change in one call, so an interrupt finds them either before an update or
    # after it.
    return torch.optim.Adam(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=learning_rate,
        foreach=True,
    )


def trainable_device(model: nn.Module) -> torch.device:
    """Return the one device of ``model``; raise where there is nothing to train on one device."""
    device = _device(model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            f"all parameters of {type(model).__name__} are frozen; set requires_grad_(True) on some"
        )
    return device


def _device(model: nn.Module) -> torch.device:
    if not isinstance(model, nn.Module):
        is_class = isinstance(model, type)
        description = f"the class {model.__name__}" if is_class else f"a {type(model).__name__}"
        raise TypeError(f"model is {description}; give a model, such as LeNet()")
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if not devices:
        raise ValueError(
            f"{type(model).__name__} has no parameters, so there is nothing to train; give it a "
            "layer"
        )
    if len(devices) > 1 or devices == ["meta"]:
        raise ValueError(
            f"{type(model).__name__} is on {' and '.join(devices)}; give a model on one device "
            "that holds values, such as model.to('cpu') (a model on meta has shapes only: build it "
            "again without meta)"
        )
    return torch.device(devices[0])


def _refuse_labels(batch: PreparedBatch, logits: torch.Tensor) -> None:
    if logits.ndim != 2 or len(logits) != len(batch.labels):
        raise ValueError(
            f"the model gave an output of shape {tuple(logits.shape)} for {len(batch.labels)} "
            "images; give a model with an output (N, classes)"
        )
    classes = logits.shape[1]
    if batch.lowest_label < 0 or batch.highest_label >= classes:
        raise ValueError(
            f"labels run from {batch.lowest_label} to {batch.highest_label}, and the model has "
            f"{classes} outputs, for the labels 0 to {classes - 1}; give it "
            f"{batch.highest_label + 1} outputs, or mend the labels"
        )


def _refuse_not_finite(loss: float, epoch: int, step: int) -> None:
    if not math.isfinite(loss):
        raise FloatingPointError(
            f"the loss is {loss} at step {step} of epoch {epoch}; try a learning_rate a tenth as "
            "large, and look for values in the images that are not finite. The weights may be "
            "spoilt: build the model again"
        )


def refuse_without_cuda(name: str) -> None:
    """Raise RuntimeError, with the reason, where ``name`` needs a CUDA device and torch sees
    none.
    """
    if torch.cuda.is_available():
        return
    if not torch.backends.cuda.is_built():
        reason = f"this torch, {torch.__version__}, was built without CUDA"
    elif os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        reason = "the environment variable CUDA_VISIBLE_DEVICES hides every device"
    else:
        reason = "no NVIDIA device, or no driver for it"
    raise RuntimeError(
        f"{name} needs a CUDA device, and torch sees none here: {reason}. Train on the CPU with "
        "train(model, loader)"
    )


@contextlib.contextmanager
def _set_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put every module into one mode; afterwards each is in its own again, and gradients of
    training are gone.
    """
    before = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for module, was_training in before.items():
            module.training = was_training
        if training:
            model.zero_grad(set_to_none=True)
