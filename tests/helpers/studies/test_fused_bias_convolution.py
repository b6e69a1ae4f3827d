"""A layer in one kernel: the convolution with bias, ReLU and pooling, direct and by Winograd's
products.
"""

from __future__ import annotations

import shutil

import pytest
import torch
from torch.nn import functional

from helpers import native, timing
from helpers.studies.fused_bias import (
    ALGORITHMS,
    _cpp_kernels as cpp_kernels,
    _operators as operators,
    conv_bias_relu_pool,
)
from helpers.timing._runs import why_disturbed

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
ROUNDOFF = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
# N, C_in, C_out, H, W: the story's, odd sizes, channels that are no multiple of a vector, blocks of
# every length.
LAYERS = [
    (2, 1, 16, 28, 28),
    (2, 16, 32, 14, 14),
    (2, 32, 32, 7, 7),
    (3, 3, 21, 9, 5),
    (1, 5, 1, 2, 2),
    (2, 9, 40, 3, 7),
    (1, 2, 17, 6, 27),
]
B = torch.tensor([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
G = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
A = torch.tensor([[1, 1, 1, 0], [0, 1, -1, -1]])


def tensors(layer, dtype=torch.float32):
    images, before, after, height, width = layer
    generator = torch.Generator().manual_seed(0)
    shapes = ((images, before, height, width), (after, before, 3, 3), (after,))
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes
    ]


def reference(x, weight, bias):
    return functional.max_pool2d(torch.relu(functional.conv2d(x, weight, bias, padding=1)), 2)


def winograd(x, weight, bias, b, g, a):
    """Return the outputs before ReLU and pooling by the published formula, with the given
    matrices.
    """
    height, width = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
    # (N, C, rows, columns, 4, 4)
    tiles = functional.pad(x, (1, 1, 1, 1)).unfold(2, 4, 2).unfold(3, 4, 2)
    tiles = tiles[:, :, : height // 2, : width // 2]
    products = torch.einsum("ockl,ncrskl->norskl", g @ weight @ g.T, b @ tiles @ b.T)
    found = a @ products @ a.T
    return found.permute(0, 1, 2, 4, 3, 5).reshape(len(x), len(weight), height, width) + bias.view(
        1, -1, 1, 1
    )


def error_bound(algorithm, x, weight, bias, u):
    """Return the bound of conv_bias_relu_pool's docstring for each output: the largest of its
    pooling window's.
    """
    size = [tensor.double().abs() for tensor in (x, weight, bias)]
    if algorithm == "direct":
        n, total = 9 * x.shape[1] + 1, functional.conv2d(*size, padding=1)
    else:
        n, total = (
            x.shape[1] + 12,
            winograd(*size, *(matrix.double().abs() for matrix in (B, G, A))),
        )
    return functional.max_pool2d(n * u / (1 - n * u) * total, 2)


def test_the_bound_of_winograd_is_of_a_formula_that_is_the_convolution():
    x, weight, bias = tensors(LAYERS[3], torch.float64)
    found = winograd(x, weight, bias, B.double(), G.double(), A.double())
    expected = functional.conv2d(x, weight, bias, padding=1)[:, :, :8, :4]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def check(algorithm, dtype):
    for layer in LAYERS:
        x, weight, bias = tensors(layer, dtype)
        exact = reference(x.double(), weight.double(), bias.double())
        allowed = error_bound(algorithm, x, weight, bias, ROUNDOFF[dtype])
        allowed += (dtype == torch.float64) * allowed  # torch's own sum in float64 errs as well
        for last in (False, True):
            form = torch.channels_last if last else torch.contiguous_format
            given = [tensor.contiguous(memory_format=form) for tensor in (x, weight)]
            found = conv_bias_relu_pool(*given, bias, algorithm=algorithm)
            assert found.dtype == dtype
            assert found.is_contiguous(memory_format=torch.channels_last)
            assert ((found.double() - exact).abs() <= allowed).all(), layer


@needs_compiler
@pytest.mark.parametrize("dtype", ROUNDOFF, ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_layer_is_the_one_in_float64_to_within_the_stated_bound(algorithm, dtype):
    check(algorithm, dtype)


@needs_compiler
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_its_gradients_are_those_of_finite_differences_and_of_torch(algorithm):
    small = [tensor.requires_grad_() for tensor in tensors((2, 3, 5, 4, 5), torch.float64)]
    layer = lambda *all: conv_bias_relu_pool(*all, algorithm=algorithm)  # noqa: E731
    assert torch.autograd.gradcheck(layer, small)
    assert torch.autograd.gradgradcheck(layer, small)
    ours, theirs = ([t.requires_grad_() for t in tensors((2, 9, 20, 7, 6))] for _ in range(2))
    found, expected = conv_bias_relu_pool(*ours, algorithm=algorithm), reference(*theirs)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    found.backward(grad)
    expected.backward(grad)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)


@needs_compiler
def test_only_what_needs_a_gradient_gets_one():
    x, weight, bias = tensors((2, 3, 5, 4, 4))
    conv_bias_relu_pool(x, weight, bias.requires_grad_()).sum().backward()
    assert bias.grad is not None
    assert weight.grad is x.grad is None
    assert not conv_bias_relu_pool(x, weight, bias.detach()).requires_grad
    with pytest.raises(RuntimeError, match="called for no gradient"):
        operators._conv_bias_relu_pool(x, weight, bias, False, False)


@needs_compiler
def test_the_operator_is_registered_as_torch_wants_it():
    x, weight, bias = tensors((2, 3, 5, 4, 4))
    quick = ("test_schema", "test_autograd_registration", "test_faketensor")
    for places in (False, True):
        given = (x, weight, bias.requires_grad_(places), True, places)
        torch.library.opcheck(operators._conv_bias_relu_pool, given, test_utils=quick)


@needs_compiler
def test_nan_and_infinity_reach_the_outputs_that_they_touch():
    x, weight, bias = tensors((1, 3, 5, 8, 8))
    for value in (float("nan"), float("inf")):
        x[0, 1, 2, 2] = value
        expected, direct = reference(x, weight, bias), conv_bias_relu_pool(x, weight, bias)
        torch.testing.assert_close(direct, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
        tiled = conv_bias_relu_pool(x, weight, bias, algorithm="Winograd")
        touched = torch.zeros(4, 4, dtype=torch.bool)
        # the tiles of 4 x 4 inputs, padding included, in which row and column 2 stand
        touched[0:2, 0:2] = True
        assert tiled[0, :, touched].isnan().any()
        torch.testing.assert_close(
            tiled[0, :, ~touched], expected[0, :, ~touched], rtol=1e-4, atol=1e-5
        )


@needs_compiler
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_threads_views_and_nothing(algorithm, monkeypatch):
    x, weight, bias = tensors((5, 4, 6, 6, 6))
    expected = conv_bias_relu_pool(x, weight, bias, algorithm=algorithm)
    monkeypatch.setattr(cpp_kernels, "_PART_BYTES", 1)
    with timing.fixed_threads(3):
        assert torch.equal(conv_bias_relu_pool(x, weight, bias, algorithm=algorithm), expected)
    wide = torch.zeros(5, 8, 6, 12)
    wide[:, ::2, :, ::2] = x
    many = torch.zeros(12)
    many[::2] = bias
    found = conv_bias_relu_pool(
        wide[:, ::2, :, ::2],
        weight.transpose(2, 3).contiguous().transpose(2, 3),
        many[::2],
        algorithm=algorithm,
    )
    assert torch.equal(found, expected)
    assert conv_bias_relu_pool(x[:0], weight, bias, algorithm=algorithm).shape == (0, 6, 3, 3)


@needs_compiler
@pytest.mark.parametrize(
    ("algorithm", "old", "new"),
    [
        ("direct", "sum[p][v] = T::load(bias + v * lanes)", "sum[p][v] = V{}"),
        ("Winograd", "low[k] = difference - at(12 + k)", "low[k] = difference"),
    ],
)
def test_a_planted_mistake_in_the_program_is_seen(algorithm, old, new, monkeypatch):
    source = cpp_kernels.source("convolution")
    assert source.count(old) == 1
    library = native.compile_cpp(
        source.replace(old, new), flags=("-O0", "-std=c++17", "-pthread", "-DKIND=F32")
    )
    monkeypatch.setattr(
        cpp_kernels, "_function", lambda name, dtype: cpp_kernels.function_of(library, name)
    )
    with pytest.raises(AssertionError):
        check(algorithm, torch.float32)


@needs_compiler
@pytest.mark.timed
def test_one_kernel_is_faster_than_four():
    timing.steady_allocator()
    x, weight, bias = tensors((20, 16, 32, 14, 14))

    def four():
        y = functional.conv2d(x, weight, padding=1) + bias.view(1, -1, 1, 1)
        return functional.max_pool2d(torch.relu(y), 2)

    with timing.fixed_threads(1), torch.no_grad():
        runs = {"four": four} | {
            name: lambda name=name: conv_bias_relu_pool(x, weight, bias, algorithm=name)
            for name in ALGORITHMS
        }
        found = timing.compare(runs | {"planted": lambda: (four(), four())}, budget_s=0.6)
    found.claim("one kernel takes no longer than four", "direct", at_most=1)
    found.claim("nor with Winograd's products", "Winograd", at_most=1)
    if not why_disturbed(found.waiting_share):
        assert found.candidate("planted").low_ratio > 1
        with pytest.raises(timing.ClaimContradicted):
            found.claim("one kernel takes no longer than four", "planted", at_most=1)


@pytest.mark.parametrize(("change", "error", "words"), [
    ({"algorithm": "fast"}, ValueError, "algorithm='fast' is not known; give one of 'direct', 'W"),
    ({"x": torch.ones(2, 3, 1, 4)}, ValueError, r"2 x 2 pixels or more; this is \(2, 3, 1, 4\)"),
    ({"weight": torch.ones(5, 2, 3, 3)}, ValueError, r"weight is \(C_out, 3, 3, 3\)"),
    ({"bias": torch.ones(4)}, ValueError, r"shape \(5,\)"),
    ({"x": torch.ones(2, 3, 4, 4, device="meta"), "weight": torch.ones(5, 3, 3, 3, device="meta"),
      "bias": torch.ones(5, device="meta")}, NotImplementedError, "for the CPU"),
])  # fmt: skip
def test_wrong_arguments_are_told_what_is_accepted(change, error, words):
    given = {
        "x": torch.ones(2, 3, 4, 4),
        "weight": torch.ones(5, 3, 3, 3),
        "bias": torch.ones(5),
    } | change
    algorithm = given.pop("algorithm", "direct")
    with pytest.raises(error, match=words):
        conv_bias_relu_pool(*given.values(), algorithm=algorithm)


@needs_compiler
def test_half_precision_is_refused():
    with pytest.raises(TypeError, match="not bfloat16; convert"):
        conv_bias_relu_pool(*tensors((2, 3, 5, 4, 4), torch.bfloat16))
