"""The names of the lecture "Hardware Ecosystem" (Cambridge, 2022): its code cells run as it wrote
them.

``from helpers.lecture import *`` hands out what the lecture imported from its own module, which was
never published: torch, nn, the clock, a LeNet with a loader of digits, and ten functions. They
return what the functions of the same names return, in helpers or in the studies of lessons 11 and
12. What the lecture printed or drew, they print or draw as well; plotting draws, and a cell that
needs a GPU ends without one in a sentence that says so.

Lesson 00.
"""

from __future__ import annotations

import functools
import importlib
from time import time
from typing import Any, Self

import torch
from torch import nn
from torch.utils.data import DataLoader

from helpers import memory, models, operations, plotting, training, units
from helpers.data import make_MNIST_loader
from helpers.results import Record
from helpers.training._loop import refuse_without_cuda

__all__ = [ "BasicFCModel", "LeNet", "MNIST_trainloader", "estimate_training_for", "gpu_train",
    "lenet", "make_MNIST_loader", "nn", "profile_layer_alexnet", "profile_layer_mem", "profile_mem",
    "profile_ops", "time", "torch", "train"]  # fmt: skip

_BATCH_SIZE = 128

# made, as the loader, when it is asked for: the digits come with a package of their own
lenet: LeNet
MNIST_trainloader: DataLoader


class _LectureNet(nn.Module):
    """A network with the lecture's activations (``variant="lecture"``), which says where there is
    no GPU to go to.
    """

    def cuda(self, device: int | torch.device | None = None) -> Self:
        refuse_without_cuda(f"{type(self).__name__}.cuda()")
        return super().cuda(device)


class LeNet(_LectureNet, models.LeNet):
    """LeNet as the lecture had it, with a ReLU on the logits: :class:`helpers.models.LeNet` of that
    variant.
    """

    def __init__(self, hidden: int = 120) -> None:
        super().__init__(hidden, variant="lecture")


class BasicFCModel(_LectureNet, models.BasicFCModel):
    """The lecture's fully connected network: :class:`.models.BasicFCModel` of its variant."""

    def __init__(self) -> None:
        super().__init__(variant="lecture")


@functools.cache
def __getattr__(name: str) -> object:
    if name == "lenet":
        return LeNet()
    if name == "MNIST_trainloader":
        return make_MNIST_loader(_BATCH_SIZE)
    raise AttributeError(
        f"module 'helpers.lecture' has no attribute {name!r}; it has {', '.join(__all__)}"
    )


def _study(name: str) -> Any:
    """Return a room of helpers.studies, which stand above the library."""
    return importlib.import_module(f"helpers.studies.{name}")


def train(model: nn.Module, loader: DataLoader, epochs: int = 2) -> training.TrainingRun:
    """Train ``model`` for ``epochs`` of ``loader`` as :func:`.training.train` does, and print a
    line an epoch.

    >>> run = train(LeNet(), make_MNIST_loader(128), epochs=1)  # doctest: +SKIP
    >>> run.model, run.epochs  # doctest: +SKIP
    ('LeNet', 1)
    """
    return _print_epochs(training.train(model, loader, epochs))


def gpu_train(model: nn.Module, loader: DataLoader, epochs: int = 2) -> training.TrainingRun:
    """Train ``model`` on the GPU, ``epochs`` of ``loader``, as :func:`.training.gpu_train`; print a
    line an epoch.

    >>> run = gpu_train(LeNet(), make_MNIST_loader(128), epochs=1)  # doctest: +SKIP
    >>> run.model, run.device  # doctest: +SKIP
    ('LeNet', 'cuda:0')
    """
    return _print_epochs(training.gpu_train(model, loader, epochs))


def _print_epochs(run: training.TrainingRun) -> training.TrainingRun:
    for row in run.rows:
        print(
            f"Epoch {row.epoch}, {run.steps} steps, loss {row.loss:.3f}, "
            f"{units.text(row.time_s, 's')}"
        )
    return run


def profile_ops(
    model: nn.Module, shape: tuple[int, ...] | None = None
) -> operations.OperationProfile:
    """Count as :func:`.operations.profile_ops` does; print the lecture's table, draw the FLOPs by
    layer.

    >>> profile = profile_ops(LeNet())  # doctest: +SKIP
    >>> profile.forward_flops  # doctest: +SKIP
    566190
    """
    profile = operations.profile_ops(model, shape)
    table = profile.lecture_table()
    print(table)
    plotting.show(
        plotting.draw_operations(profile),
        alt=f"Pies of the FLOPs of {profile.model} by layer: "
        f"{units.text(profile.forward_flops, 'FLOP')} in "
        f"inference, {units.text(profile.forward_flops + profile.backward_flops, 'FLOP')} in "
        "training.",
    )
    return profile


def profile_layer_mem(model: nn.Module, inputs: Any = None) -> memory.LayerMemoryProfile:
    """Return :func:`.memory.profile_layer_mem` of a training step; draw it and that of inference, a
    bar a layer.

    >>> profile = profile_layer_mem(LeNet())  # doctest: +SKIP
    >>> profile.parameter_bytes, profile.saved_bytes  # doctest: +SKIP
    (165128, 32120)
    """
    name = type(model).__name__
    inference, step = (
        memory.profile_layer_mem(model, inputs, training=trains) for trains in (False, True)
    )
    plotting.show(
        plotting.draw_layer_memory(
            inference, training=False, title=f"{name}: the working set of each layer"
        ),
        alt=f"Bars of the layers of {name}: the bytes of their inputs, outputs and parameters in "
        "inference.",
    )
    plotting.show(
        plotting.draw_layer_memory(
            step, training=True, title=f"{name}: what training keeps for each layer"
        ),
        alt=f"Bars of the layers of {name}: the bytes of their parameters, gradients and what "
        "backward needs.",
    )
    return step


def profile_mem(model: nn.Module, inputs: Any = None) -> Record:
    """Return :func:`.working_set.profile_mem` of a training step; draw it and that of inference as
    shares of a whole.

    >>> profile = profile_mem(LeNet())  # doctest: +SKIP
    >>> profile.shares[0].category, profile.shares[0].size_bytes  # doctest: +SKIP
    ('parameter', 165128)
    """
    name, study = type(model).__name__, _study("working_set")
    inference, step = (
        study.profile_mem(model, inputs, training=trains) for trains in (False, True)
    )
    plotting.show(
        study.draw_memory(
            {"inference": inference, "training": step}, title=f"Memory of {name} by kind"
        ),
        alt=f"Pies of the memory of {name} by kind: {units.text(inference.whole_bytes, 'B')} in "
        "inference, "
        f"{units.text(step.whole_bytes, 'B')} in training.",
    )
    return step


def profile_layer_alexnet(model: nn.Module | None = None) -> Record:
    """Return the result of :func:`.working_set.profile_layer_alexnet`, and draw it, a bar a layer.

    >>> sets = profile_layer_alexnet()  # doctest: +SKIP
    >>> sets.batch_bytes  # doctest: +SKIP
    602112
    """
    study = _study("working_set")
    sets = study.profile_layer_alexnet(model)
    largest = max(sets.layers, key=lambda row: row.working_set_bytes)
    plotting.show(
        study.draw_working_sets(sets, title="AlexNet, one image: the working set of each layer"),
        alt=f"Bars of AlexNet's layers, stacked of inputs, outputs and parameters: {largest.layer} "
        "has the largest "
        f"working set, {units.text(largest.working_set_bytes, 'B')}.",
    )
    return sets


def estimate_training_for(model_class: type[nn.Module], epochs: int) -> Record:
    """Estimate as :func:`.beyond_memory.estimate_training_for` does; print and draw the seconds an
    epoch.

    >>> estimate = estimate_training_for(LeNet, 2)  # doctest: +SKIP
    >>> estimate.model, estimate.epochs  # doctest: +SKIP
    ('LeNet', 2)
    """
    study = _study("beyond_memory")
    estimate = study.estimate_training_for(model_class, epochs)
    for size in estimate.sizes:
        print(
            f"{size.hidden} hidden: {units.text(size.estimated_s / epochs, 's')} an epoch, "
            f"{units.text(size.estimated_s, 's')} for {epochs:,} epochs"
        )
    narrowest, widest = estimate.sizes[0], estimate.sizes[-1]
    plotting.show(
        study.draw_epoch_times(estimate),
        alt=f"The estimated time of an epoch of {estimate.model} over its hidden units: "
        f"{units.text(narrowest.estimated_s / epochs, 's')} with {narrowest.hidden}, "
        f"{units.text(widest.estimated_s / epochs, 's')} with {widest.hidden}.",
    )
    return estimate
