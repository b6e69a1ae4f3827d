"""Eight programs for one convolution: each a function of (x, weight, shape) that returns the same
output.

``x`` is (batch, in_channels, height, width), ``weight`` (out_channels, in_channels, kernel,
kernel), both contiguous or channels-last; the output is (batch, out_channels, out_height,
out_width). Everything a call needs is in its time: transforms of the weights too. Lesson 20.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.checks import choice, one_of
from helpers.operations import profile_ops
from helpers.results import Record
from helpers.studies.convolution_time._shapes import ConvolutionShape, one_shape

Algorithm = Callable[[Tensor, Tensor, ConvolutionShape], Tensor]

# Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2016), section 4: B^T, G and
# A^T of F(m, 3).
WINOGRAD = {
    2: (
        ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
        ((1, 1, 1, 0), (0, 1, -1, -1)),
    ),
    4: (
        (
            (4, 0, -5, 0, 1, 0),
            (0, -4, -4, 1, 1, 0),
            (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0),
            (0, 2, -1, -2, 1, 0),
            (0, 4, 0, -5, 0, 1),
        ),
        (
            (1 / 4, 0, 0),
            (-1 / 6, -1 / 6, -1 / 6),
            (-1 / 6, 1 / 6, -1 / 6),
            (1 / 24, 1 / 12, 1 / 6),
            (1 / 24, -1 / 12, 1 / 6),
            (0, 0, 1),
        ),
        ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
    ),
}
# of the weights: those of 512 x 512 channels at 14 x 14 would take 302 MB, and a second
_MOST_SPECTRUM_BYTES = 2**28
_COMPLEX_BYTES, _COMPLEX_PRODUCTS = 8, 4
_NNPACK_LARGEST_KERNEL = 16


class AlgorithmWork(Record):
    """The arithmetic and the traffic of one program for one shape.

    ``products`` multiply a number made of the input alone with one made of the weights alone (a
    complex product is four); ``macs`` are all multiply-accumulates of matrix products and
    convolutions, transforms included, FFTs not; ``moved_bytes`` are what its operators read and
    write, each its operands once. None for NNPACK, one call. Lesson 20.
    """

    algorithm: str
    products: int | None
    macs: int | None
    moved_bytes: int | None


def direct(x: Tensor, weight: Tensor, shape: ConvolutionShape) -> Tensor:
    """PyTorch's own call; it may reorder what is stored channel by channel (NCHW) into blocks of
    channels, and back.
    """
    _check("direct", x, weight, shape)
    return F.conv2d(x, weight, stride=shape.stride, padding=shape.padding)


def channels_last(x: Tensor, weight: Tensor, shape: ConvolutionShape) -> Tensor:
    """The same call on operands stored channels last; one that is not is copied, within the
    time.
    """
    _check("channels_last", x, weight, shape)
    x, weight = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (x, weight))
    return F.conv2d(x, weight, stride=shape.stride, padding=shape.padding)


def im2col(x: Tensor, weight: Tensor, shape: ConvolutionShape) -> Tensor:
    """Copy the window of every position into a column, then one matrix product an image."""
    _check("im2col", x, weight, shape)
    columns = F.unfold(x, shape.kernel, padding=shape.padding, stride=shape.stride)
    rows = weight.flatten(1).expand(shape.batch, -1, -1)
    return torch.bmm(rows, columns).unflatten(2, (shape.out_height, shape.out_width))


def shifted(x: Tensor, weight: Tensor, shape: ConvolutionShape) -> Tensor:
    """One product of (out_channels, in_channels) with the shifted input for each place of the
    kernel, added up.
    """
    _check("shifted", x, weight, shape)
    padded = F.pad(x, [shape.padding] * 4)
    reach = (shape.stride * (shape.out_height - 1) + 1, shape.stride * (shape.out_width - 1) + 1)
    total = x.new_zeros(shape.batch, shape.out_channels, shape.out_height * shape.out_width)
    for row in range(shape.kernel):
        for column in range(shape.kernel):
            window = padded[
                :, :, row : row + reach[0] : shape.stride, column : column + reach[1] : shape.stride
            ]
            total.baddbmm_(weight[:, :, row, column].expand(shape.batch, -1, -1), window.flatten(2))
    return total.unflatten(2, (shape.out_height, shape.out_width))


def fft(x: Tensor, weight: Tensor, shape: ConvolutionShape) -> Tensor:
    """Multiply spectra of the padded input's size, frequency by frequency; of the result keep every
    stride-th place.
    """
    _check("fft", x, weight, shape)
    size = (shape.height + 2 * shape.padding, shape.width + 2 * shape.padding)
    spectrum = torch.fft.rfft2(F.pad(x, [shape.padding] * 4))
    filters = torch.fft.rfft2(weight, s=size).conj()
    correlation = torch.fft.irfft2(torch.einsum("ncij,ocij->noij", spectrum, filters), s=size)
    ends = (size[0] - shape.kernel + 1, size[1] - shape.kernel + 1)
    return correlation[:, :, : ends[0] : shape.stride, : ends[1] : shape.stride]


def winograd_2(x: Tensor, weight: Tensor, shape: ConvolutionShape) -> Tensor:
    """Winograd's F(2,3) in both directions: 16 products for a tile of 2 x 2 outputs instead of
    36.
    """
    return _winograd("winograd_2", x, weight, shape, WINOGRAD[2])


def winograd_4(x: Tensor, weight: Tensor, shape: ConvolutionShape) -> Tensor:
    """Winograd's F(4,3) in both directions: 36 products for a tile of 4 x 4 outputs instead of
    144.
    """
    return _winograd("winograd_4", x, weight, shape, WINOGRAD[4])


def _winograd(
    name: str, x: Tensor, weight: Tensor, shape: ConvolutionShape, matrices: tuple
) -> Tensor:
    _check(name, x, weight, shape)
    to_input, to_weight, to_output = (
        torch.tensor(matrix, dtype=x.dtype, device=x.device) for matrix in matrices
    )
    tile = len(to_output)
    tiles = (math.ceil(shape.out_height / tile), math.ceil(shape.out_width / tile))
    below, right = (count * tile + 2 - side for count, side in zip(tiles, x.shape[2:], strict=True))
    padded = F.pad(x, (shape.padding, right - shape.padding, shape.padding, below - shape.padding))
    windows = padded.unfold(2, tile + 2, tile).unfold(3, tile + 2, tile)
    inputs = torch.einsum("ia,nctuab,jb->ijcntu", to_input, windows, to_input).flatten(3)
    weights = torch.einsum("ia,ocab,jb->ijoc", to_weight, weight, to_weight)
    products = (weights @ inputs).unflatten(3, (shape.batch, *tiles))
    outputs = torch.einsum("ai,ijontu,bj->notaub", to_output, products, to_output)
    return outputs.flatten(4, 5).flatten(2, 3)[:, :, : shape.out_height, : shape.out_width]


def nnpack(x: Tensor, weight: Tensor, shape: ConvolutionShape) -> Tensor:
    """NNPACK's call, on processors that it knows; it takes float32 alone."""
    _check("nnpack", x, weight, shape)
    return torch._nnpack_spatial_convolution(x, weight, None, shape.padding, shape.stride)


ALGORITHMS: dict[str, Algorithm] = {
    function.__name__: function
    for function in (direct, channels_last, im2col, shifted, fft, winograd_2, winograd_4, nnpack)
}


def why_not(algorithm: str, shape: ConvolutionShape) -> str:
    """Return the reason why ``algorithm`` does not serve ``shape`` here, "" where it does.

    Raises ValueError for an unknown algorithm.
    """
    choice("algorithm", algorithm, ALGORITHMS)
    one_shape(shape)
    if algorithm.startswith("winograd") and (shape.kernel, shape.stride) != (3, 1):
        return (
            f"Winograd's matrices are for kernel 3 and stride 1, not {shape.kernel} and "
            f"{shape.stride}"
        )
    if algorithm == "fft" and _spectrum_bytes(shape) > _MOST_SPECTRUM_BYTES:
        return (
            f"the weights' spectra would take {_spectrum_bytes(shape):,} bytes, over "
            f"{_MOST_SPECTRUM_BYTES:,}"
        )
    if algorithm == "nnpack":
        if not torch._nnpack_available():
            return "this processor or this PyTorch has no NNPACK"
        if shape.kernel > _NNPACK_LARGEST_KERNEL or shape.padding >= shape.kernel:
            return (
                f"NNPACK's kernels go to {_NNPACK_LARGEST_KERNEL}, and its padding stays below the "
                "kernel"
            )
    return ""


def serving(shape: ConvolutionShape) -> list[str]:
    """Return the names of the algorithms that serve ``shape`` on this machine."""
    return [name for name in ALGORITHMS if not why_not(name, shape)]


def _spectrum_bytes(shape: ConvolutionShape) -> int:
    return _COMPLEX_BYTES * shape.in_channels * shape.out_channels * _frequencies(shape)


def _frequencies(shape: ConvolutionShape) -> int:
    return (shape.height + 2 * shape.padding) * ((shape.width + 2 * shape.padding) // 2 + 1)


def _check(algorithm: str, x: Tensor, weight: Tensor, shape: ConvolutionShape) -> None:
    """Raise ValueError for a shape that the algorithm does not serve, and for tensors of another
    shape.
    """
    _check_shape(algorithm, shape)
    for name, tensor, expected in (
        ("x", x, shape.input_size),
        ("weight", weight, shape.weight_size),
    ):
        if tuple(one_of(name, tensor, Tensor, "a tensor").shape) != expected:
            raise ValueError(
                f"{name} has the shape {tuple(tensor.shape)}, and the ConvolutionShape says "
                f"{expected}; give the one that fits the other"
            )


def _check_shape(algorithm: str, shape: ConvolutionShape) -> None:
    reason = why_not(algorithm, shape)
    if reason:
        raise ValueError(
            f"{algorithm} does not serve this shape: {reason}; take one of "
            f"{', '.join(serving(shape))}"
        )


class _ConvolutionProgram(nn.Module):
    def __init__(self, algorithm: str, shape: ConvolutionShape) -> None:
        super().__init__()
        self.algorithm, self.shape = ALGORITHMS[algorithm], shape
        self.weight = nn.Parameter(torch.empty(shape.weight_size, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        return self.algorithm(x, self.weight, self.shape)


def count_work(algorithm: str, shape: ConvolutionShape) -> AlgorithmWork:
    """Return the products of ``algorithm`` for ``shape``, and the multiply-adds and bytes of its
    operators, run on meta.

    What a library does inside one operator (reordering, packing) is not seen. Raises ValueError for
    an unknown algorithm, or a shape that it does not serve. Lesson 20.
    """
    one_shape(shape)
    if algorithm == "nnpack":
        return AlgorithmWork(algorithm, None, None, None)
    _check_shape(algorithm, shape)
    # its operands are stored so, and not copied
    run = "direct" if algorithm == "channels_last" else algorithm
    profile = profile_ops(_ConvolutionProgram(run, shape), shape.input_size)
    return AlgorithmWork(
        algorithm=algorithm,
        products=_products(algorithm, shape),
        macs=profile.forward_macs,
        moved_bytes=profile.forward_read_bytes + profile.forward_written_bytes,
    )


def _products(algorithm: str, shape: ConvolutionShape) -> int:
    pairs = shape.in_channels * shape.out_channels * shape.batch
    if algorithm == "fft":
        return _COMPLEX_PRODUCTS * pairs * _frequencies(shape)
    if algorithm.startswith("winograd"):
        tile = int(algorithm[-1])
        tiles = math.ceil(shape.out_height / tile) * math.ceil(shape.out_width / tile)
        return pairs * tiles * (tile + 2) ** 2
    return shape.macs
