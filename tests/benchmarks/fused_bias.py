"""The figures of the fused bias on this machine, one thread (``make bench NAME=fused_bias``).

Each line states what was wanted, what was measured as a ratio within one run, what the machine
allows (the ratio of PyTorch's plainest kernel that moves the same bytes, timed in the same turns),
and "reached", "missed", or, where the interval of the ratio holds the wanted value or the machine
was busy, "too noisy to tell". ``--compile`` adds ``torch.compile``, whose cold start takes tens of
seconds; ``--seconds`` is the budget of each comparison; ``--thread-time`` times by the thread's own
processor time, which on a busy machine leaves out the waiting, not the caches and the memory that
other programs take away.
"""

from __future__ import annotations

import argparse
import functools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pandas as pd
import torch

from helpers import hardware, profiling, results, timing
from helpers.data import make_MNIST_loader
from helpers.studies import fused_bias
from helpers.studies.fused_bias import (
    _convnet as convnet,
    _measuring as measuring,
    _variants as variants,
)

LARGE = (1000, 16, 28, 28)  # 50 MB of float32: the first layer's activation at batch 1,000
BEYOND_L2 = (100, 16, 28, 28)  # 5 MB
VARIANTS = ("separate", "broadcast", "in-place", "native", "post-op", "one-pass")
LAYOUTS = {"NCHW": torch.contiguous_format, "channels-last": torch.channels_last}


@dataclass(frozen=True)
class Figure(results.Result):
    """One figure to reach: the ratio wanted, measured with the ends of its interval, and the
    smallest times' ratio.

    ``allowed`` is the ratio of a plain kernel that moves the same bytes; NaN where none was timed.
    """

    figure: str
    wanted: str
    measured: float
    low: float
    high: float
    of_minima: float
    allowed: float
    verdict: str


def judged(
    name: str,
    comparison: timing.Comparison,
    fast: str,
    *,
    at_least: float,
    mover: str | None = None,
) -> Figure:
    """Return how many times as fast as the baseline the candidate ``fast`` is, beside what was
    wanted and allowed.
    """
    row, base = comparison.candidate(fast), comparison.candidate(comparison.baseline)
    low, high = 1 / row.high_ratio, 1 / row.low_ratio if row.low_ratio else float("inf")
    allowed = 1 / comparison.candidate(mover).time_ratio if mover else math.nan
    disturbed = comparison.waiting_share is not None and comparison.waiting_share > 0.1
    told = "reached" if low >= at_least else "missed" if high < at_least else "too noisy to tell"
    if disturbed and told == "missed":
        told = "too noisy to tell (busy machine)"
    elif told == "missed" and allowed < at_least:
        told = f"missed, at {1 / row.time_ratio / allowed:.0%} of what this machine allows"
    return Figure(
        name,
        f"{at_least:g}x or more",
        1 / row.time_ratio,
        low,
        high,
        base.minimum_s / row.minimum_s,
        allowed,
        told,
    )


def kernels(seconds: float, clock: Callable[[], float]) -> Iterator[Figure]:
    """Yield the one-pass kernels against PyTorch's, in place, backward and as a sum.

    What the machine allows: in place it is a scaling, for the ReLU's gradient an addition into
    memory that is there (two tensors read, one written), for a sum the sum of the same numbers as
    one flat array. Backward, PyTorch's two kernels move four times the activation, ours three:
    where the caches hold it, and reading is as fast as writing, 4/3 is all that the bytes allow.
    Beyond the caches a stream saves the read before the write.
    """
    for shape in (BEYOND_L2, LARGE):
        size = f"{4 * torch.Size(shape).numel() / 1e6:.0f} MB"
        y, grad = (
            torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in range(2)
        )
        bias, mask = torch.full((shape[1],), 1e-3), torch.relu(y)
        column = bias.view(1, -1, 1, 1)
        runs = {
            "add_, relu_": functools.partial(lambda y, column: y.add_(column).relu_(), y, column),
            "one-pass": functools.partial(fused_bias.bias_relu_, y, bias),
            "mul_": functools.partial(y.mul_, 1.0),
        }
        found = timing.compare(runs, budget_s=seconds, clock=clock)
        yield judged(
            f"one-pass in place over add_, relu_, {size}",
            found,
            "one-pass",
            at_least=1.7,
            mover="mul_",
        )
        found = timing.compare(
            {name: runs[name] for name in ("mul_", "one-pass")}, budget_s=seconds, clock=clock
        )
        yield judged(
            f"one-pass in place over in-place scaling, {size}", found, "one-pass", at_least=0.85
        )
        for where, order in LAYOUTS.items():
            grad, mask = (tensor.contiguous(memory_format=order) for tensor in (grad, mask))
            runs = {
                "separate": functools.partial(_backward, grad, mask),
                "one-pass": functools.partial(fused_bias.relu_bias_backward, grad, mask),
                "add": functools.partial(torch.add, grad, mask, out=torch.empty_like(grad)),
            }
            found = timing.compare(runs, budget_s=seconds, clock=clock)
            what = f"one-pass ReLU backward and bias gradient, {size}, {where}"
            yield judged(what, found, "one-pass", at_least=1.7, mover="add")
    for where, order in LAYOUTS.items():
        grad = torch.randn(LARGE, generator=torch.Generator().manual_seed(0)).contiguous(
            memory_format=order
        )
        flat = torch.as_strided(grad, (grad.numel(),), (1,))
        runs = {
            name: functools.partial(fused_bias.reduction(name), grad)
            for name in fused_bias.REDUCTIONS
        }
        runs |= {"flat": functools.partial(torch.sum, flat)}
        found = timing.compare(runs, baseline="sum", budget_s=seconds, clock=clock)
        for name in ("per image", "two-step", "ones", "one-pass"):
            least = 2.5 if name == "one-pass" else 1
            what = f"{name} over sum((0,2,3)), 50 MB, {where}"
            yield judged(what, found, name, at_least=least, mover="flat")


def _backward(grad: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.threshold_backward(grad, mask, 0).sum((0, 2, 3))


@dataclass(frozen=True)
class LayerTimes(results.Result):
    """A layer of the convnet, forward: ``separate_per_fused_ratio`` is of "separate" over
    "post-op", in turns.

    ``bias_share`` is the part of the separate layer that is not convolution: the bias and the ReLU.
    """

    layer: str
    batch: int
    convolution_s: float
    separate_per_fused_ratio: float
    bias_share: float
    stable: bool
    reason: str
    variants: tuple[timing.Candidate, ...]


def layer_times(index: int, batch: int, seconds: float, clock: Callable[[], float]) -> LayerTimes:
    """Return the forward times of layer ``index`` by the variants that can run here, the bare
    convolution first.
    """
    before, after = convnet.CHANNELS[index : index + 2]
    x, weight, bias = measuring._layer_inputs(
        batch, before, after, convnet.PIXELS[index], torch.device("cpu"), seed=index
    )
    names = [name for name in VARIANTS if not variants.missing(name, x.device)]
    runs = {"convolution": functools.partial(torch.conv2d, x, weight, padding=1)}
    runs |= {name: functools.partial(fused_bias.layer(name), x, weight, bias) for name in names}
    with torch.no_grad():
        found = timing.compare(runs, device="cpu", budget_s=seconds, clock=clock)
        pair = timing.compare(
            {name: runs[name] for name in ("post-op", "separate")},
            device="cpu",
            budget_s=seconds / 2,
            clock=clock,
        )
    separate = found.candidate("separate")
    return LayerTimes(
        layer=f"{convnet.CHANNELS[index]} to {convnet.CHANNELS[index + 1]}, {x.shape[2]} x "
        f"{x.shape[3]}",
        batch=batch,
        convolution_s=found.candidate("convolution").median_s,
        separate_per_fused_ratio=pair.candidate("separate").time_ratio,
        bias_share=1 - 1 / separate.time_ratio,
        stable=found.stable and pair.stable,
        reason=found.reason or pair.reason,
        variants=tuple(row for row in found.candidates if row.name != "convolution"),
    )


def ladders(
    seconds: float, clock: Callable[[], float], *, compiled: bool
) -> Iterator[fused_bias.Ladder]:
    """Yield the convnet's rungs at batch 100 on real digits, forward and a training step."""
    images, labels = next(iter(make_MNIST_loader(100)))
    rungs = [*convnet.default_rungs("cpu"), *(["compiled"] if compiled else [])]
    for phase in ("forward", "training"):
        yield fused_bias.measure_ladder(
            images, labels, phase=phase, rungs=rungs, budget_s=4 * seconds, clock=clock
        )


def show(title: str, rows: list[results.Result]) -> None:
    """Print results of one type as a table."""
    frame = results.printed(
        pd.concat([pd.DataFrame([row.to_dict()]) for row in rows], ignore_index=True)
    )
    print(f"\n{title}\n{frame.to_string(index=False)}", flush=True)


def main() -> None:
    """Print every figure of the study, with the machine's limits and whether it was quiet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="budget of each comparison")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile as well")
    parser.add_argument(
        "--thread-time",
        action="store_true",
        help="time by the thread's processor time: busy machine",
    )
    arguments = parser.parse_args()
    clock = time.thread_time if arguments.thread_time else time.perf_counter
    print(timing.steady_allocator())
    torch.set_num_threads(1)
    limits = hardware.probe(refresh=True, device="cpu")
    print(limits)
    with torch.no_grad():
        show("Kernels", list(kernels(arguments.seconds, clock)))
    for batch in measuring.STORY_BATCHES:
        for index in range(3):
            print(f"\n{layer_times(index, batch, arguments.seconds, clock)}", flush=True)
    for shape in (BEYOND_L2, LARGE):
        measured = fused_bias.measure_kernels(
            shape, limits, device="cpu", budget_s=arguments.seconds, clock=clock
        )
        show(f"Model and measurement, {shape}: {measured.reason or 'stable'}", list(measured.rows))
    for ladder in ladders(arguments.seconds, clock, compiled=arguments.compile):
        show(
            f"{ladder.phase}, batch {ladder.batch}: {ladder.reason or 'stable'}", list(ladder.rungs)
        )
        if ladder.phase == "forward":
            names = [row.rung for row in ladder.rungs if row.rung != ladder.comparison.baseline]
            show(
                "The best rung",
                [judged(name, ladder.comparison, name, at_least=4) for name in names],
            )
    _profile()
    if arguments.compile:
        _cold_start()


def _profile() -> None:
    """Print the story's table before and after: where the time of a forward pass goes."""
    images, _ = next(iter(make_MNIST_loader(100)))
    for rung in (
        "separate",
        "channels-last, one-pass with pooling",
        "one kernel a layer, Winograd",
    ):
        net = fused_bias.Convnet(rung)
        with torch.no_grad():
            print(f"\n{rung}\n{profiling.kernel_table(functools.partial(net, images), runs=20)}")


def _cold_start() -> None:
    begin_s = time.perf_counter()
    torch.compiler.reset()
    layer = fused_bias.layer("compiled")
    layer(torch.randn(100, 1, 28, 28), torch.randn(16, 1, 3, 3), torch.randn(16))
    print(
        f"\ntorch.compile, first call of one layer: {time.perf_counter() - begin_s:.1f} s (a kept "
        "cache helps)"
    )


if __name__ == "__main__":
    main()
