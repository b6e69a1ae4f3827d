"""The eight sizes of a convolution that decide its time, and the counts from them. Lesson 20."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import nn

from helpers import steps
from helpers.checks import members, one_of, random_seed, whole_number
from helpers.results import Record
from helpers.units import flops_from_macs

FLOAT_BYTES = 4
# 224 pixels, batch 1: the networks whose convolutions are recorded.
NETWORKS = (
    "alexnet",
    "vgg16",
    "resnet18",
    "resnet50",
    "squeezenet1_1",
    "googlenet",
    "densenet121",
    "mobilenet_v2",
)

_FEWEST_MACS, _MOST_MACS = 10**6, 2 * 10**9  # of a random shape: 20 us to 40 ms at 100 GFLOP/s


class ConvolutionShape(Record):
    """A convolution's sizes: input (batch, in_channels, height, width), weight (out_channels,
    in_channels, kernel, kernel), the same stride and padding in both directions; no groups, no
    dilation, no bias, float32.

    Raises TypeError or ValueError for sizes that are no convolution. Lesson 20.
    """

    batch: int
    in_channels: int
    height: int
    width: int
    out_channels: int
    kernel: int
    stride: int
    padding: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(
                self, name, whole_number(name, value, at_least=0 if name == "padding" else 1)
            )
        smallest = min(self.height, self.width) + 2 * self.padding
        if self.kernel > smallest:
            raise ValueError(
                f"kernel={self.kernel} is larger than the padded input, {smallest} at its smaller "
                "side; give a smaller kernel, or more padding"
            )

    @property
    def out_height(self) -> int:
        """Rows of the output."""
        return (self.height + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def out_width(self) -> int:
        """Columns of the output."""
        return (self.width + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def positions(self) -> int:
        """Positions of the output, of all images together."""
        return self.batch * self.out_height * self.out_width

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the direct sum; those with a padded zero count."""
        return self.positions * self.out_channels * self.in_channels * self.kernel**2

    @property
    def flops(self) -> int:
        """Floating-point operations of the direct sum: two a multiply-accumulate."""
        return flops_from_macs(self.macs)

    @property
    def input_bytes(self) -> int:
        """Bytes of the input."""
        return FLOAT_BYTES * self.batch * self.in_channels * self.height * self.width

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return FLOAT_BYTES * self.out_channels * self.in_channels * self.kernel**2

    @property
    def output_bytes(self) -> int:
        """Bytes of the output."""
        return FLOAT_BYTES * self.positions * self.out_channels

    @property
    def patch_bytes(self) -> int:
        """Bytes of im2col's matrix: a copy of the window of every position."""
        return FLOAT_BYTES * self.positions * self.in_channels * self.kernel**2

    @property
    def least_bytes(self) -> int:
        """Bytes of input, weights and output: each is moved at least once."""
        return self.input_bytes + self.weight_bytes + self.output_bytes

    @property
    def input_size(self) -> tuple[int, int, int, int]:
        """The input's shape, as torch writes it."""
        return self.batch, self.in_channels, self.height, self.width

    @property
    def weight_size(self) -> tuple[int, int, int, int]:
        """The weight's shape, as torch writes it."""
        return self.out_channels, self.in_channels, self.kernel, self.kernel


class LayerShape(Record):
    """One call of a convolution in a network. Lesson 20."""

    layer: str
    shape: ConvolutionShape


class NetworkShapes(Record):
    """A network's convolutions in the order of their calls; ``left_out`` names those of another
    kind, with why.

    Lesson 20.
    """

    network: str
    macs: int
    left_out: tuple[str, ...]
    layers: tuple[LayerShape, ...]

    @property
    def shapes(self) -> list[ConvolutionShape]:
        """The shapes, one a call: a network repeats some."""
        return [layer.shape for layer in self.layers]


def network_shapes(model: nn.Module, inputs: steps.Inputs = None) -> NetworkShapes:
    """Return the shapes of the model's ``nn.Conv2d`` layers for one input, such as the shape (1, 3,
    224, 224).

    The forward runs on the meta device, so nothing is computed, and the model comes back as it was.
    A convolution with groups, dilation, or two different kernels, strides or paddings is left out.
    Biases are passed over.

    Raises TypeError for what is no model, ValueError for one that calls no convolution,
    ForwardError where the forward cannot run on shapes.
    """
    steps.check_model(model)
    arguments = steps.arguments_of(model, inputs)
    calls: list[tuple[str, nn.Conv2d, tuple[int, ...]]] = []
    names = {module: name or type(module).__name__ for name, module in model.named_modules()}

    def note(layer: nn.Conv2d, args: tuple[Any, ...]) -> None:
        calls.append((names[layer], layer, tuple(args[0].shape)))

    with torch.inference_mode(False), steps.preserved(model):
        for layer in (module for module in names if isinstance(module, nn.Conv2d)):
            layer.register_forward_pre_hook(note)
        _run_on_meta(model, arguments)
    if not calls:
        raise ValueError(f"{type(model).__name__} calls no nn.Conv2d; give a network that does")
    reasons = {name: why for name, layer, _ in calls if (why := _other_kind(layer))}
    layers = tuple(
        LayerShape(name, _shape(layer, size)) for name, layer, size in calls if name not in reasons
    )
    return NetworkShapes(
        network=type(model).__name__,
        macs=sum(layer.shape.macs for layer in layers),
        left_out=tuple(f"{name}: {why}" for name, why in reasons.items()),
        layers=layers,
    )


def _run_on_meta(model: nn.Module, inputs: steps.Arguments) -> None:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    stand_ins = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    dtype = steps.dtype_of(model)
    arguments = inputs.replaced(
        lambda leaf: torch.empty(leaf.shape, dtype=getattr(leaf, "dtype", dtype), device="meta")
    )
    try:
        with torch.no_grad():
            torch.func.functional_call(model, stand_ins, arguments.positional, arguments.named)
    except Exception as error:
        raise steps.ForwardError(
            f"{type(model).__name__} does not run on shapes ({steps.first_line(error)}); give the "
            "input that its forward takes, such as the shape (1, 3, 224, 224)"
        ) from error


def _other_kind(layer: nn.Conv2d) -> str:
    if layer.groups > 1:
        return f"{layer.groups} groups"
    if layer.dilation != (1, 1):
        return f"dilation {layer.dilation}"
    if isinstance(layer.padding, str) or layer.padding_mode != "zeros":
        return f"padding {layer.padding!r}, {layer.padding_mode}"
    pairs = {"kernel": layer.kernel_size, "stride": layer.stride, "padding": layer.padding}
    return next((f"{name} {pair}" for name, pair in pairs.items() if pair[0] != pair[1]), "")


def _shape(layer: nn.Conv2d, size: tuple[int, ...]) -> ConvolutionShape:
    batch, channels, height, width = size if len(size) == 4 else (1, *size)
    assert not isinstance(layer.padding, str)  # such a layer is of another kind
    return ConvolutionShape(
        batch,
        channels,
        height,
        width,
        layer.out_channels,
        layer.kernel_size[0],
        layer.stride[0],
        layer.padding[0],
    )


def random_shapes(count: int, *, seed: int = 0) -> list[ConvolutionShape]:
    """Return ``count`` distinct shapes of 1 million to 2 billion multiply-accumulates, the same for
    the same seed.

    Batch 1 to 4; channels from 3 to 512 and sides from 7 to 112, evenly in their logarithm; kernels
    of 1 to 7, stride 1 or 2, padding so that stride 1 keeps the size. Raises TypeError or
    ValueError for no whole number.
    """
    count = whole_number("count", count, at_most=10_000)
    draw = random.Random(random_seed(seed))

    def between(low: int, high: int) -> int:
        return round(math.exp(draw.uniform(math.log(low), math.log(high))))

    shapes: dict[ConvolutionShape, None] = {}
    while len(shapes) < count:
        batch, side, kernel = (
            draw.choice((1, 1, 2, 4)),
            between(7, 112),
            draw.choice((1, 1, 3, 3, 3, 5, 7)),
        )
        shape = ConvolutionShape(
            batch,
            between(3, 512),
            side,
            side,
            between(8, 512),
            kernel,
            draw.choice((1, 1, 1, 2)),
            kernel // 2,
        )
        if _FEWEST_MACS <= shape.macs <= _MOST_MACS:
            shapes[shape] = None
    return list(shapes)


def shapes_of(shapes: Any) -> list[ConvolutionShape]:
    """Return ``shapes`` as a list; raise TypeError for another thing, ValueError for an empty
    one.
    """
    if isinstance(shapes, ConvolutionShape):
        raise TypeError("shapes is one ConvolutionShape; give a list of them, such as [shape]")
    shape_list = members("shapes", shapes, "ConvolutionShape", kind=ConvolutionShape)
    if not shape_list:
        raise ValueError("shapes is empty; give at least one ConvolutionShape")
    return shape_list


def one_shape(shape: Any) -> ConvolutionShape:
    """Return ``shape``; raise TypeError unless it is a ConvolutionShape."""
    return one_of("shape", shape, ConvolutionShape, "a ConvolutionShape")
