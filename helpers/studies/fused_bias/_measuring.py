"""The study's measurements: layers, kernels beside their model, reductions, and the story's own
figures.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from helpers import profiling, timing
from helpers.checks import boolean, whole_number
from helpers.hardware.limits._results import MachineLimits
from helpers.results import Record, derived
from helpers.studies.fused_bias import (
    _convnet as convnet,
    _operators as operators,
    _variants as variants,
)
from helpers.studies.fused_bias._counting import model_time, traffic

STORY_BATCHES = (100, 1000)
_FLOAT_BYTES = 4
_FILTERS, _SIDE = convnet.CHANNELS[1], convnet.PIXELS[0]  # of the first layer
_PRECISION = 0.1  # as well as a ratio of the kernels must be known beside a model of their bytes
_BIAS = 1e-3  # so small that a value which it is added to many thousand times stays finite


class KernelComparison(Record):
    """The kernels after the convolution, by one variant: the bytes counted, the time modelled and
    measured.

    ``model_ratio`` is modelled over measured time. ``scale_share`` is the measured bandwidth over
    that of ``y.mul_(1)`` on the same tensor, timed in turns: the machine's own in-place limit.
    Lesson 18.
    """

    variant: str
    phase: str
    moved_bytes: int
    modelled_s: float
    measured_s: float
    model_ratio: float
    bandwidth_bytes_per_s: float
    scale_share: float


class KernelComparisons(Record):
    """The kernels beside the convolution for one activation; ``comparison`` has the intervals.

    Lesson 18.
    """

    shape: tuple[int, ...]
    device: str
    stable: bool
    reason: str
    rows: tuple[KernelComparison, ...]
    comparison: timing.Comparison


class StoryRow(Record):
    """The story's figures at one batch size, of the story's program: "broadcast" over "post-op".

    ``layers_ratio`` is of the three layers' convolution, bias and ReLU, ``forward_ratio`` of the
    whole forward pass with pooling and the dense layer. The shares are of the busy time of a
    training step: the sums of autograd in the separate net, and what the one-pass kernel takes
    beyond the ReLU's backward pass in the one-pass net (below 0: it takes less). Lesson 18.
    """

    batch: int
    layers_ratio: float
    forward_ratio: float
    bias_gradient_share: float
    one_pass_bias_gradient_share: float


class StoryFigures(Record):
    """The story's figures on one device, and the profile of its program's forward pass in its form.

    Lesson 18.
    """

    device: str
    threads: int
    rows: tuple[StoryRow, ...]
    profile: profiling.KernelTable


def measure_kernels(
    shape: Sequence[int],
    limits: MachineLimits,
    *,
    device: str | torch.device | None = None,
    budget_s: float = 5.0,
    clock: Callable[[], float] = time.perf_counter,
) -> KernelComparisons:
    """Return the times of the kernels after the convolution, forward and backward, for an
    activation of ``shape`` (N, C, H, W).

    float32, random, contiguous; modelled by :func:`model_time` from ``limits``, measured in turns
    with ``y.mul_(1)``, each in its own caches as the limits were, for ``budget_s`` seconds on
    ``device`` (by default CUDA if there is one); ``clock`` is for tests. Backward are the gradients
    of ReLU and bias. Raises ValueError for a shape of other than four sizes. Lesson 18.
    """
    chosen = _device(device)
    if len(shape) != 4:
        raise ValueError(f"shape is (N, C, H, W), not {tuple(shape)}")
    generator = torch.Generator().manual_seed(0)
    y, grad = (torch.randn(*shape, generator=generator).to(chosen) for _ in range(2))
    bias = torch.full((y.shape[1],), _BIAS, device=chosen)
    column = bias.view(1, -1, 1, 1)
    mask = torch.relu(y)
    work = {
        ("separate", "forward"): lambda: torch.relu(y + column),
        ("broadcast", "forward"): lambda: operators.bias_relu(y, bias),
        ("in-place", "forward"): lambda: y.add_(column).relu_(),
        ("native", "forward"): lambda: y.relu_(),
        ("one-pass", "forward"): lambda: operators.bias_relu_(y, bias),
        ("separate", "backward"): lambda: torch.ops.aten.threshold_backward(grad, mask, 0).sum(
            (0, 2, 3)
        ),
        ("one-pass", "backward"): lambda: operators.relu_bias_backward(grad, mask),
    }
    runs = {key: fn for key, fn in work.items() if not variants.missing(key[0], chosen)}
    with torch.no_grad():
        comparison = timing.compare(
            {"scale": lambda: y.mul_(1.0)} | {", ".join(key): fn for key, fn in runs.items()},
            device=chosen.type,
            budget_s=budget_s,
            own_caches=True,
            precision=_PRECISION,
            clock=clock,
        )
    scale_rate = 2 * y.numel() * _FLOAT_BYTES
    rows = []
    for (variant, phase), candidate in zip(runs, comparison.candidates[1:], strict=True):
        counts = traffic(variant, shape, phase=phase)
        modelled_s = model_time(counts, limits).modelled_s
        rows.append(
            derived(
                KernelComparison,
                counts,
                modelled_s=modelled_s,
                measured_s=candidate.median_s,
                model_ratio=modelled_s / candidate.median_s,
                bandwidth_bytes_per_s=counts.moved_bytes / candidate.median_s,
                scale_share=counts.moved_bytes / scale_rate / candidate.time_ratio,
            )
        )
    return derived(
        KernelComparisons, comparison, shape=tuple(shape), rows=tuple(rows), comparison=comparison
    )


def measure_layer(
    channels: int,
    images: int = 1000,
    *,
    device: str | torch.device | None = None,
    budget_s: float = 3.0,
) -> timing.Comparison:
    """Return the times of the story's first layer in one, two and three kernels, and of a copy of
    its output.

    The layer is a 3 x 3 convolution of ``images`` x (``channels``, 28, 28) to 16 channels, its bias
    and its ReLU, in float32 and without gradients. The candidates are "one kernel", the baseline
    ("post-op" of :func:`layer`, or "native" where the library cannot fuse the ReLU), "two kernels"
    ("broadcast", if a C++ compiler or Triton is there), "three kernels" ("separate") and "copy",
    which reads and writes a tensor of the output's size. ``device`` is by default CUDA if there is
    one; ``budget_s`` is that of :func:`timing.compare`.

    Raises ValueError for ``channels`` or ``images`` below 1. Lesson 18.
    """
    chosen = _device(device)
    read, count = whole_number("channels", channels), whole_number("images", images)
    x, weight, bias = _layer_inputs(count, read, _FILTERS, _SIDE, chosen)
    weight /= 3 * read**0.5
    y = torch.ones(count, _FILTERS, _SIDE, _SIDE, device=chosen)
    target = torch.empty_like(y)
    layers = {
        "one kernel": "native" if variants.missing("post-op", chosen) else "post-op",
        "two kernels": "broadcast",
        "three kernels": "separate",
    }
    runs: dict[str, Callable[[], object]] = {
        name: functools.partial(variants.layer(variant), x, weight, bias)
        for name, variant in layers.items()
        if not variants.missing(variant, chosen)
    }
    runs["copy"] = functools.partial(target.copy_, y)
    return timing.compare(runs, device=chosen.type, budget_s=budget_s, precision=_PRECISION)


def measure_reductions(
    shape: Sequence[int],
    *,
    channels_last: bool = False,
    device: str | torch.device | None = None,
    budget_s: float = 4.0,
) -> timing.Comparison:
    """Return the times of every reduction of a random float32 gradient of ``shape`` (N, C, H, W),
    "sum" the baseline.

    "one-pass" is left out where it cannot run. With ``channels_last`` the gradient lies so.
    ``device`` is by default CUDA if there is one; ``budget_s`` is that of
    :func:`timing.compare`. Raises ValueError for a shape of other than four sizes. Lesson 18.
    """
    boolean("channels_last", channels_last)
    chosen = _device(device)
    grad = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(chosen)
    if channels_last:
        grad = grad.contiguous(memory_format=torch.channels_last)
    runs = {
        name: functools.partial(variants.reduction(name), grad)
        for name in variants.REDUCTIONS
        if name != "one-pass" or not variants.missing(name, chosen)
    }
    return timing.compare(
        runs, baseline="sum", device=chosen.type, budget_s=budget_s, precision=_PRECISION
    )


def measure_story(
    *,
    batches: Sequence[int] = STORY_BATCHES,
    device: str | torch.device | None = None,
    budget_s: float = 2.0,
) -> StoryFigures:
    """Return the figures of the story on ``device``, of a net like its own (:class:`Convnet`).

    The story's: 2.61 for convolution, bias and activation, 2.31 for the forward pass, on an unnamed
    GPU. By default on CUDA if there is one. A row is for as many random images as one of
    ``batches`` says; the weights are new, and ``budget_s`` is for each comparison. The profile is
    of ten forward passes of the "broadcast" net at the first batch size. cuDNN computes in float32,
    as the story's did: TF32, its default, is off meanwhile. Lesson 18.
    """
    chosen = _device(device)
    with _without_tf32():
        rows = tuple(_story_row(batch, chosen, budget_s) for batch in batches)
        net = convnet.Convnet("broadcast").to(chosen)
        images = torch.randn(batches[0], 1, 28, 28, device=chosen)
        with torch.no_grad():
            profile = profiling.kernel_table(lambda: net(images), runs=10, device=chosen)
    return StoryFigures(str(chosen), torch.get_num_threads(), rows, profile)


@contextlib.contextmanager
def _without_tf32() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def _story_row(batch: int, device: torch.device, budget_s: float) -> StoryRow:
    batch = whole_number("batch", batch)
    sizes = list(zip(convnet.CHANNELS, convnet.CHANNELS[1:], convnet.PIXELS, strict=False))
    inputs = [
        _layer_inputs(batch, before, after, pixels, device, seed=index)
        for index, (before, after, pixels) in enumerate(sizes)
    ]

    def layers(variant: str) -> Callable[[], object]:
        layer = variants.layer(variant)
        return lambda: [layer(*layer_inputs) for layer_inputs in inputs]

    with torch.no_grad():
        pair = timing.compare(
            {name: layers(name) for name in ("post-op", "broadcast")},
            device=device.type,
            budget_s=budget_s,
        )
    images, labels = inputs[0][0], torch.zeros(batch, dtype=torch.int64, device=device)
    ladder = convnet.measure_ladder(
        images, labels, rungs=("post-op", "broadcast"), budget_s=budget_s
    )
    busy_s = {
        name: _busy_s(
            convnet._training_step(convnet.Convnet(name).to(device), images, labels), device
        )
        for name in ("separate", "one-pass")
    }
    gradients = [
        torch.randn(batch, channels, pixels, pixels, device=device) for _, channels, pixels in sizes
    ]

    def time_over_gradients(fn: Callable[[torch.Tensor], object]) -> float:
        return _busy_s(lambda: [fn(grad) for grad in gradients], device)

    sums_s = time_over_gradients(lambda grad: grad.sum((0, 2, 3)))
    masks_s = time_over_gradients(lambda grad: torch.ops.aten.threshold_backward(grad, grad, 0))
    fused_s = time_over_gradients(lambda grad: operators.relu_bias_backward(grad, grad))
    return StoryRow(
        batch=batch,
        layers_ratio=pair.candidate("broadcast").time_ratio,
        forward_ratio=ladder.comparison.candidate("broadcast").time_ratio,
        bias_gradient_share=sums_s / busy_s["separate"],
        one_pass_bias_gradient_share=(fused_s - masks_s) / busy_s["one-pass"],
    )


def _busy_s(fn: Callable[[], object], device: torch.device, *, runs: int = 10) -> float:
    """Return the seconds a call in which the device (on a CPU: an operator) is at work, as torch's
    profiler sees it.
    """
    rows = profiling.kernel_table(fn, runs=runs, device=device).kernels
    return sum(row.total_s for row in rows if row.calls) / runs


def _layer_inputs(
    batch: int, before: int, after: int, pixels: int, device: torch.device, *, seed: int = 0
) -> list[torch.Tensor]:
    """Return a random x, weight and bias of a layer from ``before`` to ``after`` channels."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, before, pixels, pixels), (after, before, 3, 3), (after,))
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


def _device(device: str | torch.device | None) -> torch.device:
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
