"""A training step with four faults, each of which can be repaired alone: digits, a network of four
blocks, Adam.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import record_function

from helpers import data
from helpers.checks import boolean, whole_number

BATCH = 128
_PIXELS, _WIDTH, _HIDDEN, _BLOCKS, _CLASSES = 784, 128, 512, 4, 10
_DIGITS = 4000

Batch = tuple[torch.Tensor, torch.Tensor]


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Return GELU of ``x`` by eight operators, as NewGELUActivation of Hugging Face's Transformers
    does.

    Lesson 13.
    """
    return (
        0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
    )


class _ResidualBlock(nn.Module):
    def __init__(self, factor_type: type) -> None:
        super().__init__()
        self.register_buffer("factors", torch.from_numpy(np.full(_HIDDEN, 0.5, dtype=factor_type)))
        self.norm = nn.LayerNorm(_WIDTH)
        self.up = nn.Linear(_WIDTH, _HIDDEN)
        self.down = nn.Linear(_HIDDEN, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # (batch, hidden), float64 if the factors are
        hidden = gelu(self.up(self.norm(x)) * self.factors)
        return x + self.down(hidden.to(x.dtype))


class Network(nn.Module):
    """The network of lesson 13: images (batch, 784) to logits (batch, 10), four residual blocks of
    width 128.

    With ``float64`` the factors before each GELU are float64, as numpy makes them; their values are
    exact in both types. Lesson 13.
    """

    def __init__(self, *, float64: bool = False) -> None:
        super().__init__()
        factor_type = np.float64 if boolean("float64", float64) else np.float32
        self.stem = nn.Linear(_PIXELS, _WIDTH)
        self.blocks = nn.ModuleList(_ResidualBlock(factor_type) for _ in range(_BLOCKS))
        self.head = nn.Linear(_WIDTH, _CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)  # (batch, width)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@functools.cache
def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the 4,000 packaged digits to learn from: pixels (4000, 784) of uint8, labels
    (4000,).
    """
    images, labels = next(iter(data.make_MNIST_loader(_DIGITS)))
    pixels = ((images * data.MNIST_STD + data.MNIST_MEAN) * 255).round().to(torch.uint8)
    return pixels.reshape(_DIGITS, _PIXELS), labels


@functools.cache
def _digit_lists() -> tuple[list[list[int]], list[int]]:
    pixels, labels = _digits()
    return pixels.tolist(), labels.tolist()


def _rows(index: int) -> range:
    first = whole_number("index", index, at_least=0) % (_DIGITS // BATCH) * BATCH
    return range(first, first + BATCH)


def load_pixels(index: int) -> Batch:
    """Return batch ``index``, images (128, 784) and labels (128,), built pixel by pixel in
    Python.
    """
    pixels, labels = _digit_lists()
    rows = _rows(index)
    images = [
        [(pixel / 255 - data.MNIST_MEAN) / data.MNIST_STD for pixel in pixels[row]] for row in rows
    ]
    return torch.tensor(images), torch.tensor([labels[row] for row in rows])


def load_tensor(index: int) -> Batch:
    """Return the same batch as :func:`load_pixels`, by a handful of operators on whole tensors.

    Lesson 13.
    """
    pixels, labels = _digits()
    rows = _rows(index)
    images = (
        pixels[rows.start : rows.stop].float().div_(255).sub_(data.MNIST_MEAN).div_(data.MNIST_STD)
    )
    return images, labels[rows.start : rows.stop]


def product_shapes() -> list[tuple[int, int, int]]:
    """Return (m, k, n) of the 29 matrix products of a step, (m, k) times (k, n).

    A linear layer computes one in the forward pass and two in the backward pass, but for the first,
    because nothing needs the gradient of the images. Lesson 13.
    """
    layers = [
        (_PIXELS, _WIDTH),
        *[(_WIDTH, _HIDDEN), (_HIDDEN, _WIDTH)] * _BLOCKS,
        (_WIDTH, _CLASSES),
    ]
    forward = [(BATCH, inputs, outputs) for inputs, outputs in layers]
    weights = [(outputs, BATCH, inputs) for inputs, outputs in layers]
    inputs_only = [(BATCH, outputs, inputs) for inputs, outputs in layers[1:]]
    return forward + weights + inputs_only


class TrainingStep:
    """A training step on 128 digits; as it is given it has four faults, and each argument repairs
    one of them.

    ``load`` makes a batch. Adam updates one tensor after the other unless ``fused``. With
    ``float64`` the network's factors are float64. With ``log`` the step reads the norm of each
    gradient and the loss into :attr:`log`. ``compiled`` hands the network to ``torch.compile``.
    Weights are those of seed 0, and a call ``step(index)`` returns the loss of batch ``index``. It
    runs on :attr:`device`, which is ``device`` or else CUDA where torch sees a GPU; there a batch
    is made by the CPU and then copied. Lesson 13.
    """

    def __init__(
        self,
        *,
        load: Callable[[int], Batch] = load_pixels,
        fused: bool = False,
        float64: bool = True,
        log: bool = True,
        compiled: bool = False,
        device: str | torch.device | None = None,
    ) -> None:
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.network = Network(float64=float64).to(self.device)
        # foreach=False is the default on a CPU, and written here because it is not the default on
        # CUDA.
        adam = functools.partial(torch.optim.Adam, self.network.parameters(), lr=1e-3)
        self.optimizer = adam(fused=True) if boolean("fused", fused) else adam(foreach=False)
        self.log: list[tuple[float, float]] | None = [] if boolean("log", log) else None
        self._model = torch.compile(self.network) if boolean("compiled", compiled) else self.network
        self._load = load
        load(0)  # the digits are read once, and not within a step

    def __call__(self, index: int) -> torch.Tensor:
        with record_function("load"):
            images, labels = self._load(index)
            # where nothing moves, `to` would be two calls more in the trace
            if self.device.type != "cpu":
                images, labels = images.to(self.device), labels.to(self.device)
        with record_function("forward"):
            loss = functional.cross_entropy(self._model(images), labels)
        with record_function("backward"):
            self.optimizer.zero_grad()
            loss.backward()
        if self.log is not None:
            with record_function("log"):
                gradients = (parameter.grad for parameter in self.network.parameters())
                norms = [gradient.norm().item() for gradient in gradients if gradient is not None]
                self.log.append((loss.item(), math.hypot(*norms)))
        with record_function("optimizer"):
            self.optimizer.step()
        return loss


def plant_fault(step: TrainingStep) -> TrainingStep:
    """Plant in ``step`` a fault that lesson 13 does not show, and return it.

    Its exercises look for it in a trace.
    """
    for parameter in step.network.parameters():
        parameter.register_hook(_refuse_nan)
    return step


def _refuse_nan(gradient: torch.Tensor) -> None:
    if torch.isnan(gradient).any().item():
        raise FloatingPointError("a gradient holds NaN; take a smaller learning rate")
