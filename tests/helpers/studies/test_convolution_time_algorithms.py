"""Eight programs for a convolution against loops in float64, their counts against torch's own;
networks' shapes.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from helpers.studies import convolution_time
from helpers.studies.convolution_time import (
    ALGORITHMS,
    NETWORKS,
    WINOGRAD,
    ConvolutionShape,
    count_work,
    network_shapes,
    random_shapes,
    serving,
    why_not,
)

IN_PYTORCH = [name for name in ALGORITHMS if name != "nnpack"]  # which compute in float64 too
SMALL = [
    ConvolutionShape(2, 3, 6, 5, 4, kernel=3, stride=1, padding=1),
    ConvolutionShape(1, 2, 7, 9, 3, kernel=3, stride=1, padding=0),
    ConvolutionShape(1, 3, 8, 6, 2, kernel=3, stride=2, padding=1),
    ConvolutionShape(2, 2, 9, 8, 3, kernel=5, stride=3, padding=2),
    ConvolutionShape(3, 4, 5, 3, 2, kernel=1, stride=1, padding=0),
    ConvolutionShape(1, 2, 4, 5, 2, kernel=1, stride=2, padding=0),
    ConvolutionShape(1, 2, 5, 5, 2, kernel=2, stride=1, padding=3),
    ConvolutionShape(1, 1, 3, 4, 1, kernel=3, stride=1, padding=0),
]
LARGER = [
    ConvolutionShape(2, 16, 15, 13, 8, kernel=3, stride=1, padding=1),
    *sorted(random_shapes(60, seed=5), key=lambda shape: shape.macs)[:5],
]


def operands(shape, dtype=torch.float64):
    draw = torch.Generator().manual_seed(hash(shape) % 2**31)
    return [
        torch.randn(size, generator=draw, dtype=torch.float64).to(dtype)
        for size in (shape.input_size, shape.weight_size)
    ]


def by_loops(x, weight, shape):
    padded = np.pad(x.numpy(), [(0, 0), (0, 0), *[(shape.padding, shape.padding)] * 2])
    filters, kernel, stride = weight.numpy(), shape.kernel, shape.stride
    rows, columns = (
        range(0, padded.shape[2] - kernel + 1, stride),
        range(0, padded.shape[3] - kernel + 1, stride),
    )
    output = np.zeros((shape.batch, shape.out_channels, len(rows), len(columns)))
    for image, channel, (i, row), (j, column) in itertools.product(
        range(shape.batch), range(shape.out_channels), enumerate(rows), enumerate(columns)
    ):
        window = padded[image, :, row : row + kernel, column : column + kernel]
        output[image, channel, i, j] = (window * filters[channel]).sum()
    return torch.from_numpy(output)


def far_from_loops(name, shape):
    x, weight = operands(shape)
    wanted, found = by_loops(x, weight, shape), ALGORITHMS[name](x, weight, shape)
    assert found.shape == wanted.shape
    return float((found - wanted).abs().max())


@pytest.mark.parametrize("name", IN_PYTORCH)
def test_a_program_is_the_loops_in_float64(name):
    served = [shape for shape in SMALL if not why_not(name, shape)]
    assert len(served) >= 3
    assert max(far_from_loops(name, shape) for shape in served) < 1e-12


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_program_in_float32_is_the_convolution_in_float64(name):
    served = [shape for shape in (*SMALL, *LARGER) if not why_not(name, shape)]
    for shape in served:
        x, weight = operands(shape, torch.float32)
        exact = F.conv2d(x.double(), weight.double(), stride=shape.stride, padding=shape.padding)
        sizes = F.conv2d(
            x.double().abs(), weight.double().abs(), stride=shape.stride, padding=shape.padding
        )
        off = (ALGORITHMS[name](x, weight, shape) - exact).abs()
        assert (off <= 2e-5 * sizes.max()).all(), (name, shape)


@pytest.mark.parametrize(
    ("tile", "part", "row"), [(2, 0, 1), (2, 1, 2), (2, 2, 1), (4, 0, 3), (4, 1, 4), (4, 2, 2)]
)
def test_a_wrong_sign_in_winograds_matrices_is_seen(monkeypatch, tile, part, row):
    wrong = [[list(line) for line in matrix] for matrix in WINOGRAD[tile]]
    place = next(place for place, entry in enumerate(wrong[part][row]) if entry)
    wrong[part][row][place] *= -1
    monkeypatch.setitem(WINOGRAD, tile, wrong)
    with pytest.raises(AssertionError):
        test_a_program_is_the_loops_in_float64(f"winograd_{tile}")


def test_a_forgotten_flip_is_seen(monkeypatch):
    """A convolution in the mathematicians' sense turns the kernel round; FFT without the conjugate
    does that.
    """
    monkeypatch.setattr(torch.Tensor, "conj", lambda tensor: tensor)
    with pytest.raises(AssertionError):
        test_a_program_is_the_loops_in_float64("fft")


def test_channels_last_goes_in_and_comes_out():
    shape = LARGER[0]
    x, weight = (
        each.contiguous(memory_format=torch.channels_last)
        for each in operands(shape, torch.float32)
    )
    assert ALGORITHMS["channels_last"](x, weight, shape).is_contiguous(
        memory_format=torch.channels_last
    )
    assert ALGORITHMS["direct"](*operands(shape, torch.float32), shape).is_contiguous()


# Counts.


def counted_by_torch(function):
    # Of baddbmm torch counts what is out of place alone.
    in_place = {torch.ops.aten.baddbmm_: lambda _total, a, b, **_: 2 * math.prod(a) * b[-1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        function()
    return counter.get_total_flops()


def on_meta(name, shape):
    return ALGORITHMS[name](
        *(torch.empty(size, device="meta") for size in (shape.input_size, shape.weight_size)), shape
    )


def test_sizes_and_counts_are_torchs():
    for shape in (*SMALL, *random_shapes(12, seed=1)):
        output = on_meta("direct", shape)
        assert output.shape == (shape.batch, shape.out_channels, shape.out_height, shape.out_width)
        assert counted_by_torch(lambda shape=shape: on_meta("direct", shape)) == shape.flops
        x, weight = (
            torch.empty(size, device="meta") for size in (shape.input_size, shape.weight_size)
        )
        patches = F.unfold(x, shape.kernel, padding=shape.padding, stride=shape.stride)
        counted = (shape.input_bytes, shape.weight_bytes, shape.output_bytes, shape.patch_bytes)
        assert counted == (x.nbytes, weight.nbytes, output.nbytes, patches.nbytes)


def test_macs_for_flops_are_seen(monkeypatch):
    monkeypatch.setattr(ConvolutionShape, "flops", ConvolutionShape.macs)
    with pytest.raises(AssertionError):
        test_sizes_and_counts_are_torchs()


@pytest.mark.parametrize("name", IN_PYTORCH)
def test_macs_of_a_program_are_torchs(name):
    for shape in (shape for shape in (*SMALL[:-1], *LARGER[:2]) if not why_not(name, shape)):
        found = count_work(name, shape)
        complex_products = 4 if name == "fft" else 1  # torch counts a complex product as one
        assert 2 * found.macs == complex_products * counted_by_torch(
            lambda shape=shape: on_meta(name, shape)
        )
        if not name.startswith("winograd"):
            assert found.products == found.macs


@pytest.mark.parametrize(("name", "saved"), [("winograd_2", 36 / 16), ("winograd_4", 144 / 36)])
def test_winograd_saves_what_its_tiles_say(name, saved):
    whole_tiles = ConvolutionShape(2, 8, 16, 24, 8, kernel=3, stride=1, padding=1)
    found = count_work(name, whole_tiles)
    assert whole_tiles.macs / found.products == saved
    # What the product of transformed operands multiplies, seen where it runs.
    seen = []
    matmul = torch.Tensor.__matmul__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            torch.Tensor, "__matmul__", lambda a, b: seen.append((a.shape, b.shape)) or matmul(a, b)
        )
        on_meta(name, whole_tiles)
    ((left, right),) = seen
    assert found.products == left.numel() * right[-1]


def test_bytes_that_are_moved_are_the_operators_own():
    shape = ConvolutionShape(1, 4, 8, 8, 6, kernel=3, stride=1, padding=1)
    assert count_work("direct", shape).moved_bytes == shape.least_bytes
    assert count_work("channels_last", shape).moved_bytes == shape.least_bytes
    # The input is read, its patches are written and read, and the product reads the weights too.
    assert count_work("im2col", shape).moved_bytes == shape.least_bytes + 2 * shape.patch_bytes
    assert count_work("nnpack", shape) == convolution_time.AlgorithmWork("nnpack", None, None, None)


# Which serve, and what is refused.


def test_who_serves_what(monkeypatch):
    monkeypatch.setattr(torch, "_nnpack_available", lambda: True)
    assert serving(SMALL[0]) == list(ALGORITHMS)
    assert serving(SMALL[2]) == ["direct", "channels_last", "im2col", "shifted", "fft", "nnpack"]
    assert "nnpack" not in serving(SMALL[6])  # its padding is as wide as the kernel
    monkeypatch.setattr(torch, "_nnpack_available", lambda: False)
    assert "no NNPACK" in why_not("nnpack", SMALL[0])
    wide = ConvolutionShape(1, 512, 28, 28, 512, kernel=3, stride=1, padding=1)
    assert "1,006,632,960 bytes" in why_not("fft", wide)


ONE = ConvolutionShape(1, 2, 5, 5, 2, kernel=5, stride=1, padding=2)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (
            lambda: ConvolutionShape(1, 2, 5, 5, 2, 0, 1, 2),
            ValueError,
            "kernel=0 is too small; give a whole number",
        ),
        (lambda: ConvolutionShape(1, 2, 5, 5, 2, 3, 1, -1), ValueError, "padding=-1 is too small"),
        (
            lambda: ConvolutionShape(1, 2.0, 5, 5, 2, 3, 1, 0),
            TypeError,
            "in_channels=2.0 is a float",
        ),
        (
            lambda: ConvolutionShape(1, 2, 9, 3, 2, 6, 1, 1),
            ValueError,
            "kernel=6 is larger than the padded input, 5",
        ),
        (lambda: random_shapes(0), ValueError, "count=0 is too small"),
        (lambda: random_shapes(3, seed="1"), TypeError, "seed='1' is text"),
        (
            lambda: why_not("fast", ONE),
            ValueError,
            "algorithm='fast' is not known; give one of 'direct'",
        ),
        (
            lambda: why_not("fft", (1, 2)),
            TypeError,
            "shape=(1, 2) is a tuple; give a ConvolutionShape",
        ),
        (
            lambda: on_meta("winograd_2", ONE),
            ValueError,
            "kernel 3 and stride 1, not 5 and 1; take one of direct",
        ),
        (lambda: count_work("winograd_4", ONE), ValueError, "winograd_4 does not serve this shape"),
        (
            lambda: ALGORITHMS["im2col"](torch.ones(1, 2, 5, 4), torch.ones(2, 2, 5, 5), ONE),
            ValueError,
            "x has the shape (1, 2, 5, 4), and the ConvolutionShape says (1, 2, 5, 5)",
        ),
        (
            lambda: ALGORITHMS["im2col"](torch.ones(1, 2, 5, 5), [1], ONE),
            TypeError,
            "weight=[1] is a list",
        ),
        (lambda: network_shapes(nn.Linear(3, 2), (1, 3)), ValueError, "Linear calls no nn.Conv2d"),
        (lambda: network_shapes(nn.Conv2d, (1, 3)), TypeError, "Conv2d is a class"),
    ],
)
def test_refused(call, kind, words):
    with pytest.raises(kind) as raised:
        call()
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_network_that_does_not_run_on_the_shape_is_told():
    with pytest.raises(
        RuntimeError, match=r"Conv2d does not run on shapes .* such as the shape \(1, 3, 224, 224\)"
    ):
        network_shapes(nn.Conv2d(3, 2, 3), (1, 4, 8, 8))


# Networks.


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 5, stride=2, padding=2)
        self.twice = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)
        self.flat = nn.Conv2d(8, 4, (1, 7))
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        return self.flat(self.depthwise(self.norm(self.twice(self.twice(self.first(x))))))


def test_a_networks_calls_in_their_order_and_what_is_left_out():
    model = Mixed()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = network_shapes(model, (2, 3, 20, 32))
    again = ConvolutionShape(2, 8, 10, 16, 8, 3, 1, 1)
    assert found.shapes == [ConvolutionShape(2, 3, 20, 32, 8, 5, 2, 2), again, again]
    assert [layer.layer for layer in found.layers] == ["first", "twice", "twice"]
    assert found.left_out == ("depthwise: 8 groups", "flat: kernel (1, 7)")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_the_recorded_networks_have_the_published_shapes():
    """Of ResNet-50's 53 convolutions 23 differ; MACs are torchvision's own figures, less its linear
    layers.
    """
    models = pytest.importorskip("torchvision").models
    published_gflops = {
        "alexnet": 0.71,
        "vgg16": 15.47,
        "resnet18": 1.81,
        "resnet50": 4.09,
        "squeezenet1_1": 0.35,
    }
    distinct = set()
    for name in NETWORKS:
        options = {"init_weights": False} if name == "googlenet" else {}
        with torch.device("meta"):
            model = models.get_model(name, **options).eval()
        found = network_shapes(model, (1, 3, 224, 224))
        distinct |= set(found.shapes)
        if name in published_gflops:
            linear = sum(
                layer.weight.numel() for layer in model.modules() if isinstance(layer, nn.Linear)
            )
            assert (found.macs + linear) / 1e9 == pytest.approx(published_gflops[name], abs=0.006)
        if name == "resnet50":
            assert (len(found.shapes), len(set(found.shapes))) == (53, 23)
    assert len(distinct) == 186


def test_random_shapes_are_the_same_for_a_seed_distinct_and_within_their_bounds():
    found = random_shapes(150, seed=3)
    assert found == random_shapes(150, seed=3)
    assert found != random_shapes(150, seed=4)
    assert len(set(found)) == 150
    assert all(10**6 <= shape.macs <= 2 * 10**9 for shape in found)
    assert {shape.kernel for shape in found} == {1, 3, 5, 7}
