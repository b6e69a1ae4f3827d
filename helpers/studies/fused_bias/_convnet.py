"""A convnet like the story's in several programs with the same weights: as it was written, and rung
by rung faster.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from helpers import timing
from helpers.checks import choice
from helpers.results import Record, row_of
from helpers.studies import _ladders as ladders
from helpers.studies._ladders import RungTime
from helpers.studies.fused_bias import _operators as operators, _variants as variants

CHANNELS = (1, 16, 32, 32)
PIXELS = (28, 14, 7)

_POOLED = 3  # pixels a side after the last pooling
_CLASSES = 10
_LEARNING_RATE = 0.01
_AGREE = 1e-4


@dataclass(frozen=True)
class Rung:
    """One program for a layer with its pooling, and whether the tensors lie channels-last;
    ``needs`` is the variant with which it can run or not.
    """

    block: variants.Layer
    channels_last: bool = False
    needs: str = "native"
    devices: tuple[str, ...] = ("cpu", "cuda")


def _pool_after(variant: str) -> variants.Layer:
    layer = variants.layer(variant)
    return lambda x, weight, bias: functional.max_pool2d(layer(x, weight, bias), 2)


def _pool_within(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return operators.bias_relu_pool(functional.conv2d(x, weight, padding=1), bias)


def _best_kernel(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute with Winograd's products, except for one channel, where the transforms cost more than
    they save.
    """
    algorithm = "direct" if x.shape[1] == 1 else "Winograd"
    return operators.conv_bias_relu_pool(x, weight, bias, algorithm=algorithm)


_RUNGS = {
    **{
        name: Rung(_pool_after(name), needs=name)
        for name in ("separate", "broadcast", "native", "post-op", "one-pass", "compiled")
    },
    "channels-last": Rung(_pool_after("native"), True),
    "channels-last, post-op": Rung(_pool_after("post-op"), True, "post-op"),
    "one-pass with pooling": Rung(_pool_within, False, "one-pass", ("cpu",)),
    "channels-last, one-pass with pooling": Rung(_pool_within, True, "one-pass", ("cpu",)),
    "one kernel a layer": Rung(operators.conv_bias_relu_pool, True, "one-pass", ("cpu",)),
    "one kernel a layer, Winograd": Rung(_best_kernel, True, "one-pass", ("cpu",)),
}
RUNGS = tuple(_RUNGS)


class Convnet(nn.Module):
    """A convnet like the story's: 1 to 16 to 32 to 32 channels, 3 x 3 with ReLU and 2 x 2 pooling,
    dense to 10 logits.

    The story's profile (Flux.jl, issue 558, January 2019) does not say which network ran. These
    layers are those of FluxML/model-zoo, vision/mnist/conv.jl, from February 2019 on; before, that
    file had two layers, then four.

    ``rung`` chooses the program of the layers, one of :data:`RUNGS`; the weights are the same for
    all, so that ``load_state_dict`` carries them over. Images are (N, 1, 28, 28), logits (N, 10).

    - "separate", "broadcast", "native", "post-op", "one-pass", "compiled": :func:`layer` of that
      name, then ``max_pool2d``.
    - "channels-last", "channels-last, post-op": "native" and "post-op" with the channel last in
      memory.
    - "one-pass with pooling", also with "channels-last, ": convolution, then :func:`bias_relu_pool`
      (CPU only).
    - "one kernel a layer": :func:`conv_bias_relu_pool`; with ", Winograd" by that algorithm from
      the second layer on (CPU only).

    Raises ValueError for another rung and, when called, for images of another shape. Lesson 18.
    """

    def __init__(self, rung: str = "separate") -> None:
        super().__init__()
        self.rung = choice("rung", rung, RUNGS)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=1) for before, after in itertools.pairwise(CHANNELS)
        )
        self.dense = nn.Linear(CHANNELS[-1] * _POOLED**2, _CLASSES)
        if _RUNGS[rung].channels_last:
            self.convolutions.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub has no such form

    def layers(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the weight and the bias of each convolution, in order."""
        return [(layer.weight, layer.bias) for layer in self.convolutions]  # type: ignore[misc]  # nn.Conv2d, all of them

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits (N, 10) of images (N, 1, 28, 28)."""
        if images.shape[1:] != (CHANNELS[0], PIXELS[0], PIXELS[0]):
            raise ValueError(f"images are (N, 1, 28, 28), not {tuple(images.shape)}")
        chosen = _RUNGS[self.rung]
        x = images.contiguous(memory_format=torch.channels_last) if chosen.channels_last else images
        for weight, bias in self.layers():
            x = chosen.block(x, weight, bias)
        return self.dense(x.flatten(1))


class Ladder(Record):
    """The convnet from the program as written to the best found; ``stable`` where every speedup is
    known to 5 %.

    Lesson 18.
    """

    phase: str
    batch: int
    device: str
    threads: int
    stable: bool
    reason: str
    rungs: tuple[RungTime, ...]
    comparison: timing.Comparison

    def rung(self, name: str) -> RungTime:
        """Return the row of a rung; ValueError for one that was not measured."""
        return row_of(self.rungs, "rung", rung=name)


def measure_ladder(
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    phase: str = "forward",
    rungs: Sequence[str] | None = None,
    model: Convnet | None = None,
    budget_s: float = 10.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Ladder:
    """Return the time of each rung for one batch: a forward pass, or with ``phase="training"`` a
    whole step.

    The batch is ``images`` (N, 1, 28, 28) and their ``labels`` (N,). All rungs get the weights of
    ``model`` (a new one by default) and compute on the device of the images; a step is forward
    pass, cross-entropy, backward pass and an update by SGD. ``budget_s`` is for all rungs together,
    ``clock`` for tests. The first of ``rungs`` is the baseline. By default they are all of
    :data:`RUNGS` that can run there, but for "compiled", whose first call takes tens of seconds.

    Raises RuntimeError when a rung's logits are not those of the net in float64 to within 1e-4 of
    the largest, and ValueError for an unknown phase or rung. Lesson 18.
    """
    choice("phase", phase, ("forward", "training"))
    names = default_rungs(images.device) if rungs is None else tuple(rungs)
    weights = (model or Convnet()).state_dict()
    nets = {name: _net(name, weights, images.device) for name in names}
    _refuse_wrong(nets, weights, images)
    work = _forward if phase == "forward" else _training_step
    runs = {name: work(net, images, labels) for name, net in nets.items()}
    return ladders.climb(
        Ladder,
        runs,
        device=images.device.type,
        budget_s=budget_s,
        clock=clock,
        phase=phase,
        batch=len(images),
    )


def default_rungs(device: str | torch.device) -> tuple[str, ...]:
    """Return the rungs that can run on ``device`` as this machine is, but for "compiled".

    Lesson 18.
    """
    kind = torch.device(device).type
    return tuple(
        name
        for name, rung in _RUNGS.items()
        if name != "compiled" and kind in rung.devices and not variants.missing(rung.needs, kind)
    )


def _net(rung: str, weights: dict[str, torch.Tensor], device: torch.device) -> Convnet:
    net = Convnet(rung).to(device)
    net.load_state_dict(weights)
    return net


def _refuse_wrong(
    nets: dict[str, Convnet], weights: dict[str, torch.Tensor], images: torch.Tensor
) -> None:
    with torch.no_grad():
        exact = _net("separate", weights, images.device).double()(images.double())
        allowed = _AGREE * float(exact.abs().max())
        errors = {
            name: float((net(images).double() - exact).abs().max()) for name, net in nets.items()
        }
    ladders.refuse_wrong(errors, allowed=allowed, what="the logits", right="the net's")


def _forward(net: Convnet, images: torch.Tensor, labels: torch.Tensor) -> Callable[[], object]:  # noqa: ARG001
    return torch.no_grad()(lambda: net(images))


def _training_step(
    net: Convnet, images: torch.Tensor, labels: torch.Tensor
) -> Callable[[], object]:
    optimizer = torch.optim.SGD(net.parameters(), lr=_LEARNING_RATE)

    def run() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(net(images), labels).backward()
        optimizer.step()

    return run
