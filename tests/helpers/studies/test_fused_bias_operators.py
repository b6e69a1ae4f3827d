"""The one-pass operators: against torch and float64, in every dtype and layout; gradients; what is
refused.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from helpers import native, timing
from helpers.studies.fused_bias import (
    _cpp_kernels as cpp_kernels,
    _layouts as layouts,
    _operators as operators,
    _triton_kernels as triton_kernels,
    bias_gradient,
    bias_relu,
    bias_relu_,
    bias_relu_pool,
    conv_bias_relu_pool,
    relu_bias_backward,
)
from helpers.timing._runs import why_disturbed

ROOT = Path(__file__).parents[3]
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
ROUNDOFF = {torch.float32: 2.0**-24, torch.float64: 2.0**-53, torch.bfloat16: 2.0**-8}
# Rows longer and shorter than any vector, odd ones, one channel, channels that are no multiple of a
# vector, no pixels; the last one is of several blocks, which do not divide it.
SHAPES = [
    (2, 3, 5, 7),
    (3, 33, 2, 2),
    (2, 16, 8, 8),
    (7, 1, 3, 3),
    (1, 5, 1, 1),
    (5, 7),
    (300, 4),
    (2, 3, 70),
    (1, 2, 3, 2, 3),
    (2, 3, 40, 65),
    (13, 5, 60, 111),
]
EMPTY = [(0, 3, 4, 4), (2, 3, 0, 4), (0, 5), (2, 0, 3, 3)]


@pytest.fixture(autouse=True)
def _nothing_is_zero_by_chance():
    """torch.empty is filled with NaN: what a kernel forgets to write is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


def random(shape, dtype=torch.float32, *, channels_last=False, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    if channels_last and x.dim() in (4, 5):
        x = x.contiguous(
            memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        )
    return x


def with_specials(x):
    x = x.clone()
    flat = x.permute(0, *range(2, x.dim()), 1) if layouts.is_channels_last(x) else x
    values = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0], dtype=x.dtype)
    where = torch.linspace(0, x.numel() - 1, 4).long()  # the first and the last element among them
    flat.reshape(-1)[where] = values
    return x


def column(bias, x):
    return bias.view(1, -1, *[1] * (x.dim() - 2))


def same(found, expected):
    return (
        found.dtype == expected.dtype
        and torch.equal(found.isnan(), expected.isnan())
        and torch.equal(
            found.masked_fill(found.isnan(), 0), expected.masked_fill(expected.isnan(), 0)
        )
    )


def sums_agree(found, values):
    """The bound of bias_gradient's docstring, and one rounding to the result's dtype."""
    wide = values.double()
    dims = [0, *range(2, values.dim())]
    u = ROUNDOFF[torch.float64 if values.dtype == torch.float64 else torch.float32]
    allowed = (
        37 * u / (1 - 37 * u) * wide.abs().sum(dims) + ROUNDOFF[values.dtype] * wide.sum(dims).abs()
    )
    return bool(((found.double() - wide.sum(dims)).abs() <= allowed * (1 + 1e-12)).all())


@needs_compiler
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_results_are_torchs_bit_for_bit_and_the_sums_within_the_bound(dtype, channels_last):
    for shape in SHAPES:
        x, bias = (
            with_specials(random(shape, dtype, channels_last=channels_last)),
            random(shape[1:2], dtype, seed=1),
        )
        expected = torch.relu(x + column(bias, x))
        found = bias_relu(x, bias)
        assert same(found, expected), shape
        assert found.stride() == expected.stride()
        grad = random(shape, dtype, channels_last=channels_last, seed=2)
        grad_x, total = relu_bias_backward(grad, found)
        passed = torch.ops.aten.threshold_backward(grad, expected, 0)
        assert torch.equal(grad_x, passed), shape
        in_another_order = random(shape, dtype, channels_last=not channels_last, seed=2)
        assert torch.equal(relu_bias_backward(in_another_order, found)[0], passed), shape
        assert sums_agree(total, passed), shape
        assert sums_agree(bias_gradient(grad), grad), shape
        again = x.clone()
        assert bias_relu_(again, bias) is again
        assert same(again, expected), shape


@needs_compiler
@pytest.mark.parametrize("shape", EMPTY)
def test_nothing_in_gives_nothing_out_and_a_zero_gradient(shape):
    x, bias = torch.empty(shape), torch.ones(shape[1])
    assert bias_relu(x, bias).shape == bias_relu_(x.clone(), bias).shape == x.shape
    assert torch.equal(bias_gradient(x), torch.zeros(shape[1]))
    grad_x, total = relu_bias_backward(x, x)
    assert grad_x.shape == x.shape
    assert torch.equal(total, torch.zeros(shape[1]))


@needs_compiler
def test_views_are_right_or_refused():
    whole, bias = random((4, 6, 8, 10)), random((3,))
    for view in (
        whole[:, ::2],
        whole[:, :3, 1:, 1:],
        whole.transpose(2, 3)[:, :3],
        random((1, 3, 1, 1)).expand(4, 3, 8, 10),
    ):
        assert torch.equal(bias_relu(view, bias), torch.relu(view + column(bias, view)))
        assert sums_agree(bias_gradient(view), view)
        with pytest.raises(
            ValueError, match=r"with gaps or in another order; give x.contiguous\(\)"
        ):
            bias_relu_(view, bias)
    every_other, view = random((6,))[::2], whole[:, :3, 1:]
    expected = torch.relu(view + column(every_other, view))
    assert torch.equal(bias_relu(view, every_other), expected)
    assert torch.equal(bias_relu_pool(view, every_other), functional.max_pool2d(expected, 2))


@needs_compiler
@pytest.mark.parametrize("channels_last", [False, True])
def test_threads_share_the_work_without_changing_the_result(channels_last, monkeypatch):
    monkeypatch.setattr(cpp_kernels, "_PART_BYTES", 1)
    with timing.fixed_threads(3):
        for shape in [(5, 3, 7, 9), (3, 33, 2, 2), (2, 3)]:
            x, bias, grad = (
                random(shape, channels_last=channels_last),
                random(shape[1:2]),
                random(shape, seed=1),
            )
            y = bias_relu(x, bias)
            assert cpp_kernels._threads(x, 1) == 3
            assert torch.equal(y, torch.relu(x + column(bias, x)))
            assert sums_agree(
                relu_bias_backward(grad, y)[1], torch.ops.aten.threshold_backward(grad, y, 0)
            )
            if len(shape) == 4:
                assert torch.equal(bias_relu_pool(x, bias), functional.max_pool2d(y, 2))


@needs_compiler
@pytest.mark.parametrize(
    ("shape", "channels_last"),
    [((400, 16, 28, 28), False), ((700, 33, 14, 14), True), ((6000, 16, 7, 7), False)],
)
def test_a_gradient_that_is_written_past_the_caches_is_right(shape, channels_last):
    grad, y = (random(shape, channels_last=channels_last, seed=seed) for seed in range(2))
    assert grad.nbytes > 2**24  # stream_bytes of the program
    passed = torch.ops.aten.threshold_backward(grad, y, 0)
    for threads in (1, 2):
        with timing.fixed_threads(threads):
            grad_x, total = relu_bias_backward(grad, y)
        assert torch.equal(grad_x, passed)
        assert sums_agree(total, passed)


@needs_compiler
# of the second a sum from 512 on loses all but the 1
@pytest.mark.parametrize("term", [0.1, 1 + 2**-16 - 2**-22])
@pytest.mark.parametrize("shape", [(2, 3, 200_001), (1, 3, 16_400), (70_000, 3), (9000, 17, 2)])
def test_the_sums_of_long_rows_and_columns_are_within_the_bound(shape, term):
    grad = torch.full(shape, term)  # equal terms: every rounding of a long sum goes the same way
    assert sums_agree(bias_gradient(grad), grad)
    assert sums_agree(relu_bias_backward(grad, torch.ones(shape))[1], grad)


@needs_compiler
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("the tail of a row counted twice", "k >= lanes - inner % lanes ? -1 : 0", "-1"),
        (
            "NaN lost",
            (
                "return (typename T::Vector)((typename T::Bits)v & ~(typename T::Bits)(v <= "
                "typename T::Vector{}));"
            ),
            (
                "return (typename T::Vector)((typename T::Bits)v & (typename T::Bits)(v > typename "
                "T::Vector{}));"
            ),
        ),
        ("the remainder forgotten", "i = count / period * period", "i = count"),
        ("a row between two blocks forgotten", "stop -= block", "stop -= block + 1"),
    ],
)
def test_a_planted_mistake_in_the_program_is_seen(name, old, new, monkeypatch):
    source = cpp_kernels.source("passes")
    assert source.count(old) == 1
    assert math.prod(SHAPES[-1]) * 4 > 4 * 2**18  # block_bytes of the program
    library = native.compile_cpp(
        source.replace(old, new), flags=("-O0", "-std=c++17", "-pthread", "-DKIND=F32")
    )
    monkeypatch.setattr(
        cpp_kernels, "_function", lambda name, dtype: cpp_kernels.function_of(library, name)
    )
    with pytest.raises(AssertionError):
        test_the_results_are_torchs_bit_for_bit_and_the_sums_within_the_bound(torch.float32, False)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_pooling_is_max_pool2d_of_the_relu_with_its_gradients(channels_last, dtype):
    for shape in [(3, 5, 7, 7), (2, 33, 4, 6), (2, 3, 2, 2), (1, 8, 5, 36), (4, 16, 3, 5)]:
        # many equal ones
        x = with_specials(random(shape, dtype, channels_last=channels_last).mul(4).round().div(4))
        bias = random(shape[1:2], dtype, seed=1).mul(4).round().div(4)
        ours, theirs = (
            [x.clone().requires_grad_(), bias.clone().requires_grad_()] for _ in range(2)
        )
        found = bias_relu_pool(*ours)
        expected = functional.max_pool2d(torch.relu(theirs[0] + column(theirs[1], x)), 2)
        assert same(found, expected), shape
        grad = random(expected.shape, dtype, seed=2)
        found.backward(grad)
        expected.backward(grad)
        assert torch.equal(ours[0].grad, theirs[0].grad), shape
        torch.testing.assert_close(ours[1].grad, theirs[1].grad, rtol=1e-5, atol=1e-5)


@needs_compiler
def test_the_gradients_and_theirs_are_those_of_finite_differences():
    x = random((2, 3, 4, 5), torch.float64).requires_grad_()
    bias = random((3,), torch.float64, seed=1).requires_grad_()
    for function in (bias_relu, bias_relu_pool, lambda x, bias: bias_relu_(x.clone(), bias)):
        assert torch.autograd.gradcheck(function, (x, bias))
    for function in (bias_relu, bias_relu_pool, lambda x, bias: bias_relu_(x.clone(), bias)):
        assert torch.autograd.gradgradcheck(function, (x, bias))
    assert torch.autograd.gradcheck(bias_gradient, (x,))


@needs_compiler
@pytest.mark.parametrize("shape", [(2, 4, 2, 20_000), (2, 19, 2, 20_000)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_sums_of_a_wide_pooled_gradient_are_within_the_bound(channels_last, shape):
    x, bias = (
        random(shape, channels_last=channels_last).abs(),
        torch.zeros(shape[1], requires_grad=True),
    )
    y = bias_relu_pool(x, bias)
    grad = torch.full_like(y, 1 + 2**-15 - 2**-22)  # from 512 on a sum loses all of it but the 1
    y.backward(grad)
    assert sums_agree(bias.grad, grad)


@needs_compiler
def test_a_bias_within_the_tensor_is_read_before_it_is_overwritten():
    for shape in ((3, 3, 40), (3, 5)):
        x = random(shape)
        bias = x.view(-1)[1 : 1 + shape[1]]
        expected = torch.relu(x + column(bias, x))
        assert torch.equal(bias_relu_(x, bias), expected)
        memory = random((1 + math.prod(shape),))
        # it begins before x and reaches into it
        x, bias = memory[1:].view(shape), memory[: shape[1]]
        expected = torch.relu(x + column(bias, x))
        assert torch.equal(bias_relu_(x, bias), expected)


@needs_compiler
def test_the_operators_are_registered_as_torch_wants_them():
    x, bias = random((2, 3, 4, 4), channels_last=True), random((3,))
    y = bias_relu(x, bias)
    place = operators._bias_relu_pool(x, bias)[1]
    quick = {"test_utils": ("test_schema", "test_autograd_registration", "test_faketensor")}
    torch.library.opcheck(
        operators._bias_relu, (x.clone().requires_grad_(), bias.clone().requires_grad_())
    )
    torch.library.opcheck(operators._bias_relu_, (x.clone(), bias), **quick)
    torch.library.opcheck(operators._bias_gradient, (x.clone().requires_grad_(),), **quick)
    torch.library.opcheck(
        operators._relu_bias_backward, (random((2, 3, 4, 4)).requires_grad_(), y), **quick
    )
    torch.library.opcheck(operators._bias_relu_pool, (x.clone().requires_grad_(), bias), **quick)
    torch.library.opcheck(
        operators._bias_relu_pool_backward, (random((2, 3, 2, 2)), place, 4, 4), **quick
    )


@needs_compiler
def test_autograd_notices_that_a_tensor_was_changed_in_place():
    base = random((2, 3, 4, 4)).requires_grad_()
    saved = base.exp()  # autograd keeps the result
    bias_relu_(saved, torch.zeros(3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()
    before = base.detach().clone()
    for leaf in (base, base[:1], base.view(2, 3, 16)):
        with pytest.raises(RuntimeError, match=r"a leaf Variable .* give x.detach"):
            bias_relu_(leaf, torch.ones(3))
    assert torch.equal(base, before)
    with torch.inference_mode():
        made_there = torch.ones(2, 3)
        assert bias_relu_(made_there, torch.ones(3)).sum() == 12
    with pytest.raises(RuntimeError, match="made in inference mode"):
        bias_relu_(made_there, torch.ones(3))
    assert made_there.sum() == 12


@needs_compiler
def test_a_view_that_autograd_cannot_follow_is_refused_before_it_is_changed():
    whole, bias = random((2, 3, 4)).requires_grad_() * 2, torch.ones(3)
    with torch.no_grad():
        made_without = whole[:1]
    before = whole.detach().clone()
    for view in (*whole.split(1), made_without):
        with pytest.raises(
            RuntimeError, match="autograd cannot follow a change of it in place; use bias_relu"
        ):
            bias_relu_(view, bias)
    assert torch.equal(whole, before)
    plain = torch.zeros(2, 3, 4)
    grad, weights = torch.ones(3, requires_grad=True), random((2, 3, 4))
    bias_relu_(plain[1:], grad)  # a view as any other: the whole gets the bias's gradient
    (plain * weights).sum().backward()
    torch.testing.assert_close(grad.grad, weights[1].sum(1))


@needs_compiler
def test_a_tangent_of_forward_mode_is_refused_and_not_dropped():
    x, bias = random((2, 3, 4, 4)), random((3,))
    calls = [
        bias_relu,
        bias_relu_,
        bias_relu_pool,
        lambda x, bias: bias_gradient(x),
        lambda x, bias: relu_bias_backward(x, x),
        lambda x, bias: conv_bias_relu_pool(x, torch.ones(3, 3, 3, 3), bias),
    ]
    before = x.clone()
    for call in calls:
        with pytest.raises(NotImplementedError, match="gradients in reverse mode alone"):
            torch.func.jvp(lambda x, call=call: call(x, bias), (x,), (x,))
    for call in calls[:3] + calls[-1:]:
        with pytest.raises(NotImplementedError, match="gradients in reverse mode alone"):
            torch.func.jvp(lambda bias, call=call: call(x, bias), (bias,), (bias,))
    assert torch.equal(x, before)
    with pytest.raises(RuntimeError, match="functorch"):
        torch.func.grad(lambda bias: bias_relu(x, bias).sum())(bias)


@needs_compiler
def test_a_view_that_negates_is_right_or_refused():
    x, bias = random((2, 3, 4, 4)), random((3,))
    view, expected = torch._neg_view(x), torch.relu(column(bias, x) - x)
    assert torch.equal(bias_relu(view, bias), expected)
    assert torch.equal(bias_gradient(view), -bias_gradient(x))
    with pytest.raises(ValueError, match=r"give x.resolve_neg\(\)"):
        bias_relu_(view, bias)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: bias_relu([1.0], torch.ones(1)),
            TypeError,
            r"x is a tensor \(N, C, ...\), not list",
        ),
        (
            lambda: bias_relu(torch.ones(2, 3).to_sparse(), torch.ones(3)),
            TypeError,
            r"torch.sparse_coo; give x.to_dense",
        ),
        (
            lambda: bias_relu(torch.ones(2, 3).int(), torch.ones(3)),
            TypeError,
            r"torch.int32; give .* x.float\(\)",
        ),
        (
            lambda: bias_relu(torch.ones(3), torch.ones(3)),
            ValueError,
            r"two dimensions or more; this is \(3,\)",
        ),
        (
            lambda: bias_relu(torch.ones(2, 3), torch.ones(2)),
            ValueError,
            r"shape \(3,\); .* has the shape \(2,\)",
        ),
        (
            lambda: bias_relu(torch.ones(2, 3), 1.0),
            TypeError,
            r"bias is a tensor \(C,\), not float",
        ),
        (
            lambda: bias_relu(torch.ones(2, 3), torch.ones(3).double()),
            ValueError,
            r"give bias.to\(x\)",
        ),
        (
            lambda: bias_relu(torch.ones(2, 3).half(), torch.ones(3).half()),
            TypeError,
            "not float16; convert with x.float",
        ),
        (
            lambda: bias_relu_pool(torch.ones(2, 3, 4, 4).bfloat16(), torch.ones(3).bfloat16()),
            TypeError,
            "not bfloat16",
        ),
        (
            lambda: bias_relu_pool(torch.ones(2, 3, 1, 4), torch.ones(3)),
            ValueError,
            "2 x 2 pixels or more",
        ),
        (lambda: bias_gradient(torch.ones(3)), ValueError, "grad_output has the shape"),
        (
            lambda: relu_bias_backward(torch.ones(2, 3), torch.ones(2, 4)),
            ValueError,
            "one shape, dtype and device",
        ),
        (
            lambda: bias_relu(torch.ones(2, 3, device="meta"), torch.ones(3, device="meta")),
            ValueError,
            "not on meta",
        ),
    ],
)
def test_wrong_arguments_are_told_what_is_accepted(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_without_a_compiler_the_kernels_say_so(monkeypatch):
    cpp_kernels.compile_program.cache_clear()
    cpp_kernels._function.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(native.MissingToolError, match="To mend it"):
        bias_relu(torch.ones(2, 3), torch.ones(3))


@needs_compiler
@pytest.mark.timed
def test_one_pass_is_not_slower_than_two():
    timing.steady_allocator()
    y, bias = random((100, 16, 28, 28)), torch.full((16,), 1e-3)
    two = lambda: y.add_(column(bias, y)).relu_()  # noqa: E731
    with timing.fixed_threads(1), torch.no_grad():
        runs = {
            "two": two,
            "one": lambda: bias_relu_(y, bias),
            "planted": lambda: (two(), bias_relu_(y, bias)),
        }
        found = timing.compare(runs, budget_s=0.8)
    found.claim("one pass takes no longer than add_ and relu_", "one", at_most=1)
    planted = found.candidate("planted")
    if planted.low_ratio > 1.05 and not why_disturbed(found.waiting_share):
        with pytest.raises(timing.ClaimContradicted):
            found.claim("one pass takes no longer than add_ and relu_", "planted", at_most=1)


INTERPRETED = """
import torch
from helpers.studies.fused_bias import _triton_kernels as kernels
whole, half = (torch.float32, 0), (torch.bfloat16, 2**-7)  # the interpreter cuts bfloat16 off, a GPU rounds
for dtype, ulp in (whole, half, (torch.float64, 0)):
    for shape, last in (((2, 3, 5, 7), False), ((2, 33, 5, 7), True), ((1, 2, 40, 30), False))[: 3 if ulp == 0 else 1]:
        generator = torch.Generator().manual_seed(0)
        x, grad = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
        x.view(-1)[0] = float("nan")
        if last:
            x, grad = (t.contiguous(memory_format=torch.channels_last) for t in (x, grad))
        bias = torch.randn(shape[1], generator=generator, dtype=torch.float64).to(dtype)
        expected = torch.relu(x + bias.view(1, -1, *[1] * (x.dim() - 2)))
        y = torch.empty_like(x)
        kernels.bias_relu(x, bias, y)
        assert y.flatten()[0].isnan()
        torch.testing.assert_close(y, expected, rtol=ulp, atol=0, equal_nan=True)
        grad_x, passed = torch.empty_like(y), torch.where(y <= 0, 0, grad)
        total = kernels.relu_bias_backward(grad, y, grad_x)
        assert torch.equal(grad_x, passed)
        dims = [0, *range(2, x.dim())]
        near = {"rtol": max(1e-5, ulp / 2), "atol": 1e-5} if dtype != torch.float64 else {"rtol": 1e-13, "atol": 1e-13}
        assert total.dtype == dtype
        torch.testing.assert_close(total.double(), passed.double().sum(dims), **near)
        torch.testing.assert_close(kernels.bias_gradient(grad).double(), grad.double().sum(dims), **near)
print("right")
"""  # noqa: E501


def _has_triton():
    try:
        triton_kernels.programs()
    except native.MissingToolError:
        return False
    return True


@pytest.mark.skipif(not _has_triton(), reason="no Triton")
def test_the_triton_kernels_are_right_in_its_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", INTERPRETED]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout.strip() == "right", done.stderr[-3000:]


@pytest.mark.skipif(not _has_triton(), reason="no Triton")
@pytest.mark.parametrize("alone", [(), ("count", "channels")], ids=["any size", "sizes of 1"])
def test_the_triton_kernels_compile_for_a_gpu_that_is_not_here(alone, tmp_path, monkeypatch):
    """On CUDA Triton makes a size of 1 a constant of the program, which is then another program."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = triton_kernels.programs().channel_sums
    given = {"RELU": True, "BLOCK": 1024} | dict.fromkeys(alone, 1)
    kinds = dict.fromkeys(("grad", "y", "grad_x", "partial"), "*fp32") | dict.fromkeys(
        given, "constexpr"
    )
    signature = {name: kinds.get(name, "i32") for name in kernel.arg_names}
    constants = {(kernel.arg_names.index(name),): value for name, value in given.items()}
    made = compile(
        ASTSource(fn=kernel, signature=signature, constexprs=constants),
        target=GPUTarget("cuda", 80, 32),
    )
    assert len(made.asm["cubin"]) > 1000


def test_tritons_kernels_on_a_cpu_are_refused_with_what_works():
    with pytest.raises(RuntimeError, match="set TRITON_INTERPRET=1"):
        triton_kernels.bias_gradient(torch.ones(2, 3))


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [((100, 16, 784), 64), ((1, 3, 5), 1), ((78_400, 16, 1), 1024), ((1, 2048, 49), 1)],
)
def test_a_sum_is_divided_among_enough_programs(sizes, parts):
    assert triton_kernels.parts_of(*sizes) == parts
