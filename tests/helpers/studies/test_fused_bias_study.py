"""The study: variants and reductions against float64, bytes against torch's own operators, the net
and its ladder.
"""

from __future__ import annotations

import math
import os
import re
import shutil

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import recorded, results, timing
from helpers.data import make_MNIST_loader
from helpers.hardware.limits._results import BandwidthPoint, MachineLimits, MemoryLevel
from helpers.studies import fused_bias
from helpers.studies.fused_bias import (
    REDUCTIONS,
    RUNGS,
    VARIANTS,
    Convnet,
    _convnet as convnet,
    _cpp_kernels as cpp_kernels,
    _variants as variants,
    bandwidth_at,
    bias_relu_,
    bias_relu_pool,
    gradients,
    layer,
    measure_kernels,
    measure_ladder,
    measure_reductions,
    measure_story,
    model_time,
    reduction,
    traffic,
)
from helpers.training import train

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
UNIT_ROUNDOFF = 2.0**-24


@pytest.fixture(autouse=True)
def _quick_compiler(monkeypatch):
    """torch.compile with the graph compiler alone: what Inductor makes of it is the benchmark's
    question.
    """
    real = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda fn, **options: real(fn, backend="aot_eager", **options)
    )
    variants._compile_separate.cache_clear()
    yield
    variants._compile_separate.cache_clear()


def tensors(batch=2, before=3, after=5, pixels=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (batch, before, pixels, pixels),
        (after, before, 3, 3),
        (after,),
        (batch, after, pixels, pixels),
    )
    return [torch.randn(shape, generator=generator) for shape in shapes]


def limits(**changes):
    """Limits whose bandwidths differ by kernel and size, so that a wrong choice shows."""
    points = tuple(
        BandwidthPoint(
            size,
            **{
                f"{kernel}_bytes_per_s": rate * factor
                for kernel, rate in (
                    ("read", 5e9),
                    ("write", 2e9),
                    ("copy", 3e9),
                    ("triad", 4e9),
                    ("scale", 1e9),
                )
            },
        )
        for size, factor in ((2**16, 10), (2**24, 1))
    )
    values = {
        "device": "cpu",
        "threads": 1,
        "date": "2026-01-01",
        "versions": {},
        "chase": "",
        "peak_flops": {"float32": 1e12},
        "product_flops": {"float32": 1e12},
        "memory_levels": (MemoryLevel("DRAM", None, None, 2e9),),
        "call_overhead_s": 1e-6,
        "launch_s": None,
        "host_to_device_bytes_per_s": None,
        "device_to_host_bytes_per_s": None,
        "unstable": (),
        "notes": (),
        "latencies": (),
        "bandwidths": points,
    }
    return MachineLimits(**values | changes)


@needs_compiler
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_the_layer_and_its_gradients_in_float64(variant, channels_last):
    x, weight, bias, grad = tensors()
    if channels_last:
        x, grad = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (x, grad))
    wide = [tensor.double() for tensor in (x, weight, bias, grad)]
    exact, size = (
        layer("separate")(*wide[:3]),
        layer("separate")(*[tensor.abs() for tensor in wide[:3]]),
    )
    found = layer(variant)(x, weight, bias)
    # 27 products and the bias: an inner product of 28 terms in any order (Higham 2002, 3.5), one
    # ReLU without error.
    assert ((found - exact).abs() <= 28 * UNIT_ROUNDOFF / (1 - 28 * UNIT_ROUNDOFF) * size).all()
    expected = gradients("separate", wide[0].requires_grad_(), *wide[1:3], grad_output=wide[3])
    got = gradients(variant, x.requires_grad_(), weight, bias, grad_output=grad)
    for name in ("x", "weight", "bias"):
        torch.testing.assert_close(
            getattr(got, name).double(), getattr(expected, name), rtol=1e-4, atol=1e-5
        )
    with torch.no_grad():  # a lesson turns gradients off for all that is forward
        assert gradients(variant, x.detach(), weight, bias, grad_output=grad).x is None


@needs_compiler
@pytest.mark.parametrize(
    "function", [bias_relu_pool, lambda x, bias: bias_relu_(2 * x, bias)], ids=["new", "in place"]
)
def test_the_compilers_graph_of_an_operator_gives_the_same(function):
    x, _, bias, _ = tensors(after=3)
    x = x.contiguous(memory_format=torch.channels_last)
    ours, theirs = ([x.clone().requires_grad_(), bias.clone().requires_grad_()] for _ in range(2))
    found, expected = (
        torch.compile(function, fullgraph=True, dynamic=False)(*ours),
        function(*theirs),
    )
    found.sum().backward()
    expected.sum().backward()
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()
    assert all(torch.equal(one.grad, other.grad) for one, other in zip(ours, theirs, strict=True))


@needs_compiler
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_every_reduction_is_the_sum(name, channels_last):
    grad = tensors(batch=4, after=6)[3]
    exact = grad.double().sum((0, 2, 3))
    if channels_last:
        grad = grad.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(reduction(name)(grad).double(), exact, rtol=1e-5, atol=1e-5)
    for nothing in (grad[:0], grad[:, :, :0]):
        assert torch.equal(reduction(name)(nothing), torch.zeros(6))
    assert reduction(name)(grad[:, :0]).shape == (0,)


@needs_compiler
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_sum_that_cancels_is_within_the_stated_bound(name, channels_last):
    """Great numbers of both signs between small ones: what is left of the small ones is the
    program's affair.
    """
    generator = torch.Generator().manual_seed(0)
    grad = torch.randn((5, 3, 9, 8), generator=generator)
    grad[:, :, ::4] += 1e8
    grad[:, :, 1::4] -= 1e8
    if channels_last:
        grad = grad.contiguous(memory_format=torch.channels_last)
    found = reduction(name)(grad)
    for channel in range(3):
        terms = grad[:, channel].flatten().tolist()
        additions = 37 if name == "one-pass" else len(terms) - 1
        allowed = (
            additions * UNIT_ROUNDOFF / (1 - additions * UNIT_ROUNDOFF) * math.fsum(map(abs, terms))
        )
        assert abs(found[channel].item() - math.fsum(terms)) <= allowed


class Bytes(TorchDispatchMode):
    """Counts what each operator but the convolution is handed and hands back, from the tensors
    themselves.
    """

    def __init__(self):
        super().__init__()
        self.moved = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        name = str(function)
        # no bytes of the bias and the ReLU
        if not any(word in name for word in ("conv", "view", "detach")):
            read = sum(a.numel() * a.element_size() for a in args if isinstance(a, torch.Tensor))
            outs = result if isinstance(result, tuple | list) else (result,)
            written = sum(o.numel() * o.element_size() for o in outs if isinstance(o, torch.Tensor))
            if "fused_bias.bias_relu_" in name:
                written = args[0].numel() * args[0].element_size()
            self.moved.append((read, written))
        return result


@needs_compiler
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "compiled"])
def test_the_bytes_are_those_of_the_operators_that_run(variant):
    x, weight, bias, grad = tensors()
    weight.requires_grad_()
    bias.requires_grad_()
    with Bytes() as forward:
        y = layer(variant)(x, weight, bias)
    counted = traffic(variant, y.shape)
    assert [
        (kernel.read_bytes, kernel.written_bytes) for kernel in counted.kernels
    ] == forward.moved
    assert (
        counted.moved_bytes
        == counted.read_bytes + counted.written_bytes
        == sum(map(sum, forward.moved))
    )
    with Bytes() as backward:
        torch.autograd.grad(y, (weight, bias), grad)
    counted = traffic(variant, y.shape, phase="backward")
    assert [
        (kernel.read_bytes, kernel.written_bytes) for kernel in counted.kernels
    ] == backward.moved


def test_the_bytes_of_the_story_are_a_formula():
    whole = 100 * 16 * 28 * 28
    separate = traffic("separate", (100, 16, 28, 28))
    assert (separate.read_bytes, separate.written_bytes) == (4 * (2 * whole + 16), 4 * 2 * whole)
    assert traffic("one-pass", (100, 16, 28, 28), torch.bfloat16).moved_bytes == 2 * (
        2 * whole + 16
    )
    assert traffic("post-op", (100, 16, 28, 28)).kernels == ()
    assert traffic("separate", (0, 16, 28, 28)).read_bytes == 64
    assert results.from_dict(fused_bias.VariantTraffic, separate.to_dict()) == separate


def test_the_working_set_of_a_loop_is_what_is_read_first_and_what_is_new():
    forward = {
        "separate": 3,
        "broadcast": 2,
        "in-place": 1,
        "native": 1,
        "one-pass": 1,
        "post-op": 0,
    }
    sizes = {("forward", name): tensors for name, tensors in forward.items()}
    sizes |= {("backward", "separate"): 3, ("backward", "one-pass"): 3}
    for (phase, variant), tensors in sizes.items():
        beside_the_bias = (
            traffic(variant, (10, 2, 8, 8), phase=phase).working_set_bytes
            - tensors * 10 * 2 * 8 * 8 * 4
        )
        assert beside_the_bias in (0, 2 * 4), (variant, phase)


def test_the_model_takes_each_kernels_own_bandwidth_at_the_size_of_the_whole_variant():
    machine, shape = limits(), (2, 2, 64, 64)  # 2^16 bytes
    whole, overhead_s = 2**16, 1e-6
    modelled = model_time(traffic("in-place", shape), machine)
    assert [kernel.measured_by for kernel in modelled.kernels] == ["scale", "scale"]
    # and the bias
    assert modelled.kernels[1].modelled_s == pytest.approx(2 * whole / 1e10 + overhead_s, rel=1e-3)
    separate = model_time(traffic("separate", shape), machine)
    assert [kernel.measured_by for kernel in separate.kernels] == ["copy", "copy"]
    on_the_way = 1 - math.log2(3) / 8  # from 2^24 down to 2^16, of three tensors of 2^16 bytes
    assert separate.kernels[1].bandwidth_bytes_per_s == pytest.approx(
        3e9 * 10**on_the_way, rel=1e-3
    )
    assert separate.modelled_s == pytest.approx(
        sum(kernel.modelled_s for kernel in separate.kernels)
    )
    backward = model_time(traffic("separate", shape, phase="backward"), machine)
    assert [kernel.measured_by for kernel in backward.kernels] == ["triad", "read"]
    fused = model_time(traffic("one-pass", shape, phase="backward"), machine)
    assert [kernel.measured_by for kernel in fused.kernels] == ["triad"]
    on_cuda = model_time(traffic("native", (1, 1, 1, 1)), limits(device="cuda:0"))
    assert on_cuda.modelled_s == overhead_s  # launches run ahead: the longer of the two
    assert bandwidth_at(machine, 1, by="read") == pytest.approx(5e10)
    assert bandwidth_at(machine, 2**40, by="read") == pytest.approx(5e9)


@needs_compiler
def test_the_nets_are_one_net_and_learn_the_digits(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda fn, **options: fn)  # the layer's test compiles it
    images, labels = next(iter(make_MNIST_loader(20)))
    first = Convnet()
    exact = [
        torch.autograd.grad(functional.cross_entropy(first(images), labels), first.parameters()),
        first(images),
    ]
    for rung in RUNGS:
        net = Convnet(rung)
        net.load_state_dict(first.state_dict())
        torch.testing.assert_close(net(images), exact[1], rtol=1e-4, atol=1e-5)
        found = torch.autograd.grad(functional.cross_entropy(net(images), labels), net.parameters())
        for ours, theirs in zip(found, exact[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    torch.manual_seed(0)
    net = Convnet("channels-last, one-pass with pooling")
    run = train(net, make_MNIST_loader(100), 1, test_loader=make_MNIST_loader(500, split="test"))
    assert run.test_accuracy_share > 0.85
    assert (
        sum(p.numel() for p in net.parameters())
        == 16 * 10 + 32 * (16 * 9 + 1) + 32 * (32 * 9 + 1) + 10 * 289
    )


@needs_compiler
@pytest.mark.parametrize("phase", [pytest.param("forward", marks=pytest.mark.timed), "training"])
def test_the_ladder_times_the_same_net_on_every_rung(phase):
    images, labels = next(iter(make_MNIST_loader(32)))
    timing.steady_allocator()
    with timing.fixed_threads(1):
        ladder = measure_ladder(images, labels, phase=phase, budget_s=0.5)
    assert [row.rung for row in ladder.rungs] == [name for name in RUNGS if name != "compiled"]
    assert (ladder.batch, ladder.rungs[0].speedup, ladder.device) == (32, 1, "cpu")
    if phase == "forward":
        ladder.comparison.claim(
            "channels-last pools faster", "channels-last, one-pass with pooling", at_most=0.7
        )
    assert results.from_dict(convnet.Ladder, ladder.to_dict()) == ladder


def test_a_timed_step_is_a_step_of_sgd_on_the_cross_entropy():
    images, labels = next(iter(make_MNIST_loader(8)))
    ours, theirs = Convnet(), Convnet().double()
    theirs.load_state_dict(ours.state_dict())
    step = convnet._training_step(ours, images, labels)
    for _ in range(3):
        step()
        loss = functional.cross_entropy(theirs(images.double()), labels)
        changes = torch.autograd.grad(loss, theirs.parameters())
        with torch.no_grad():
            for parameter, change in zip(theirs.parameters(), changes, strict=True):
                parameter -= convnet._LEARNING_RATE * change
    for found, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


@needs_compiler
@pytest.mark.parametrize(
    "change",
    [lambda y, b: y + 0.01 * b.sign().view(1, -1, 1, 1), lambda y, b: y * 1.001],
    ids=["another bias", "a thousandth more"],
)
def test_a_wrong_rung_is_not_timed(change, monkeypatch):
    images, labels = next(iter(make_MNIST_loader(4)))
    wrong = convnet.Rung(
        lambda x, w, b: change(convnet._RUNGS["separate"].block(x, w, b), b), False
    )
    monkeypatch.setitem(convnet._RUNGS, "native", wrong)
    with pytest.raises(RuntimeError, match=r"logits of native \(off by .*nothing was timed"):
        measure_ladder(images, labels, rungs=("separate", "native"), budget_s=0.1)


@needs_compiler
def test_the_measurements_hold_together():
    with timing.fixed_threads(1):
        kernels = measure_kernels((2, 4, 8, 8), limits(), device="cpu", budget_s=0.1)
        sums = measure_reductions((2, 4, 8, 8), channels_last=True, device="cpu", budget_s=0.1)
        story = measure_story(batches=(4,), device="cpu", budget_s=0.1)
    scale = kernels.comparison.candidate("one-pass, forward")
    row = results.row_of(kernels.rows, "row", variant="one-pass", phase="forward")
    assert row.moved_bytes == traffic("one-pass", (2, 4, 8, 8)).moved_bytes
    assert row.model_ratio * row.measured_s == pytest.approx(row.modelled_s)
    assert row.scale_share * scale.time_ratio == pytest.approx(
        row.moved_bytes / (2 * 4 * 2 * 4 * 64)
    )
    assert [candidate.name for candidate in sums.candidates] == list(REDUCTIONS)
    assert 0 < story.rows[0].bias_gradient_share < 1
    assert "aten::max_pool2d_with_indices" in [kernel.name for kernel in story.profile.kernels]
    for result in (kernels, story):
        assert results.from_dict(type(result), result.to_dict()) == result


def test_the_story_is_measured_without_tf32_which_comes_back_also_after_an_error(monkeypatch):
    seen = []

    def refuse(*_):
        seen.append(torch.backends.cudnn.allow_tf32)
        raise RuntimeError("stop here")

    monkeypatch.setattr("helpers.studies.fused_bias._measuring._story_row", refuse)
    for before in (True, False):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", before)
        with pytest.raises(RuntimeError, match="stop here"):
            measure_story(batches=(4,), device="cpu")
        assert torch.backends.cudnn.allow_tf32 is before
    assert seen == [False, False]


@needs_compiler
def test_the_story_is_timed_with_its_own_program_one_kernel_for_bias_and_activation(monkeypatch):
    timed, compare = [], timing.compare
    monkeypatch.setattr(
        timing, "compare", lambda ways, **how: timed.append(set(ways)) or compare(ways, **how)
    )
    story = measure_story(batches=(2,), device="cpu", budget_s=0.05)
    assert timed == [{"post-op", "broadcast"}] * 2
    kernels = {kernel.name: kernel.calls for kernel in story.profile.kernels}
    assert kernels["fused_bias::bias_relu"] == 30  # three layers, ten runs
    assert not {"aten::add", "aten::relu", "aten::clamp_min"} & set(kernels)


def test_the_storys_figures_are_recorded_for_lesson_18():
    assert "helpers.studies.fused_bias:measure_story" in recorded.RECORDERS["18"].values()


@pytest.mark.skipif(os.name != "posix", reason="a compiler that is a script is POSIX's")
def test_a_compiler_that_is_broken_is_missing(monkeypatch, tmp_path):
    cpp_kernels.compile_program.cache_clear()
    broken = tmp_path / "c++"
    broken.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo broken; else exit 1; fi\n')
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    for variant in ("one-pass", "compiled"):
        assert re.search(r"c\+\+ fails: exit status 1. To mend it", variants.missing(variant))
    assert convnet.default_rungs("cpu")[:2] == ("separate", "native")
    assert not any("one" in rung for rung in convnet.default_rungs("cpu"))


@needs_compiler
def test_a_folder_that_keeps_no_program_is_missing(monkeypatch, tmp_path):
    cpp_kernels.compile_program.cache_clear()
    (tmp_path / "cache").write_text("a file, no folder")
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "cache"))
    assert "set the environment variable HELPERS_CACHE" in variants.missing("one-pass")


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "To mend it" in variants.missing("one-pass")
    assert "To mend it" in variants.missing("compiled")
    assert variants.missing("native") == variants.missing("separate") == ""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert variants.missing("post-op") == "this torch has no oneDNN"
    with pytest.raises(RuntimeError, match="no oneDNN, which 'post-op' needs"):
        layer("post-op")(*tensors()[:3])
    assert convnet.default_rungs("cpu") == ("separate", "native", "channels-last")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: layer("fused"),
            ValueError,
            "variant='fused' is not known; give one of 'separate', 'broadcast'",
        ),
        (
            lambda: layer("native")(torch.ones(2, 3, 4, 4), torch.ones(5, 2, 3, 3), torch.ones(5)),
            ValueError,
            r"\(C_out, 3, 3, 3\)",
        ),
        (
            lambda: layer("native")(torch.ones(3, 4, 4), torch.ones(5, 3, 3, 3), torch.ones(5)),
            ValueError,
            "four dimensions",
        ),
        (
            lambda: layer("native")(torch.ones(2, 3, 4, 4), torch.ones(5, 3, 3, 3), torch.ones(4)),
            ValueError,
            r"shape \(5,\)",
        ),
        (
            lambda: layer("native")(
                torch.ones(2, 3, 4, 4).double(), torch.ones(5, 3, 3, 3), torch.ones(5)
            ),
            ValueError,
            r"give weight.to\(x\)",
        ),
        (
            lambda: layer("native")(torch.ones(2, 0, 4, 4), torch.ones(5, 0, 3, 3), torch.ones(5)),
            ValueError,
            "a channel and a pixel to read and a channel to write",
        ),
        (
            lambda: layer("post-op")(torch.ones(2, 3, 0, 4), torch.ones(5, 3, 3, 3), torch.ones(5)),
            ValueError,
            r"x has the shape \(2, 3, 0, 4\)",
        ),
        (
            lambda: layer("one-pass")(
                torch.ones(2, 3, 4, 4), torch.ones(0, 3, 3, 3), torch.ones(0)
            ),
            ValueError,
            r"weight \(0, 3, 3, 3\)",
        ),
        (
            lambda: layer("post-op")(*[tensor.double() for tensor in tensors()[:3]]),
            TypeError,
            "fuses float64",
        ),
        (
            lambda: reduction("slow"),
            ValueError,
            "name='slow' is not known; give one of 'per image', 'sum'",
        ),
        (lambda: reduction("sum")(torch.ones(2, 3)), ValueError, r"grad is \(N, C, H, W\)"),
        (lambda: traffic("separate", (3,)), ValueError, r"shape is \(N, C, ...\)"),
        (
            lambda: traffic("separate", (3, 4), phase="sideways"),
            ValueError,
            "phase='sideways' is not known; give one of 'forward', 'backward'",
        ),
        (
            lambda: traffic("separate", (3, 4), "float32"),
            TypeError,
            "dtype='float32' is text, as str; give one of torch's",
        ),
        (
            lambda: traffic("compiled", (3, 4), phase="backward"),
            ValueError,
            "see profiling.kernel_table",
        ),
        (
            lambda: model_time(traffic("separate", (3, 4)), "limits"),
            TypeError,
            "what helpers.probe",
        ),
        (
            lambda: model_time(traffic("separate", (3, 4)), limits(bandwidths=())),
            ValueError,
            "hold no bandwidths",
        ),
        (lambda: Convnet("fast"), ValueError, "rung='fast' is not known; give one of 'separate', "),
        (lambda: Convnet()(torch.ones(2, 784)), ValueError, r"images are \(N, 1, 28, 28\)"),
        (
            lambda: measure_ladder(torch.ones(2, 1, 28, 28), torch.zeros(2), phase="sleep"),
            ValueError,
            "give one of 'forward', 'training'",
        ),
        (
            lambda: measure_kernels((2, 3), limits(), device="cpu"),
            ValueError,
            r"shape is \(N, C, H, W\), not \(2, 3\)",
        ),
        (
            lambda: measure_story(batches=(0,), device="cpu"),
            ValueError,
            "batch=0 is too small; give a whole number, 1 or more",
        ),
    ],
)
def test_wrong_arguments_are_told_what_is_accepted(call, error, words):
    with pytest.raises(error, match=words):
        call()
