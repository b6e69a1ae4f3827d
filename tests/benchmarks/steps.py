"""A step's time from its operators alone, beside the measured step and a plain roofline:
``make bench NAME=steps``.

The seven configurations are LeNet (batch 64) in inference and training, AlexNet (4) in inference,
ResNet-50 (2) in both, ViT-B/16 (1) in inference and multi-head attention with weights (8) in
training. The roofline takes for each layer the longer of FLOPs over peak and bytes over bandwidth,
both measured here. Estimate and measurement take turns, and the median of the rounds counts.
``--clock thread`` counts processor time instead of time on the wall: on a machine that others use,
with one thread, it leaves out the waiting.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from helpers import console, results, steps, units
from helpers.models import LeNet
from helpers.operations import profile_ops
from helpers.profiling import estimate_step_time
from helpers.timing import steady_allocator
from helpers.timing._runs import Clock, run

CLOCKS = {"wall": time.perf_counter, "thread": time.thread_time}
MEDIAN_ERROR, WORST_ERROR = 0.10, 0.25
_MATRIX_SIDE = 1024
_STREAM_ELEMENTS = 2**25


@dataclass(frozen=True)
class Row(results.Result):
    """One configuration: the step as measured, as estimated from its operators, and as a roofline
    has it.
    """

    step: str
    measured_s: float
    estimated_s: float
    error_share: float
    roofline_s: float
    roofline_error_share: float
    operator_calls: int
    distinct: int


@dataclass(frozen=True)
class Limits:
    """What this machine reaches: the best of many matrix products, and of many sums of two large
    tensors.
    """

    flops_per_s: float
    bytes_per_s: float


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence with itself, which also gives the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(512, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.attention(x, x, x, need_weights=True)


def configurations() -> dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]]:
    """Return, by name, what makes the model, the shape of its input, and whether the step
    trains.
    """
    from torchvision import models

    return {
        "LeNet b64 inference": (LeNet, (64, 1, 28, 28), False),
        "LeNet b64 training": (LeNet, (64, 1, 28, 28), True),
        "AlexNet b4 inference": (models.alexnet, (4, 3, 224, 224), False),
        "ResNet-50 b2 inference": (models.resnet50, (2, 3, 224, 224), False),
        "ResNet-50 b2 training": (models.resnet50, (2, 3, 224, 224), True),
        "ViT-B/16 b1 inference": (models.vit_b_16, (1, 3, 224, 224), False),
        "MHA with weights b8 training": (SelfAttention, (196, 8, 512), True),
    }


def limits(device: torch.device, clock: Clock) -> Limits:
    """Measure the two limits of the roofline."""
    a, b = (torch.rand(_MATRIX_SIDE, _MATRIX_SIDE, device=device) for _ in range(2))
    x, y, z = (torch.zeros(_STREAM_ELEMENTS, device=device) for _ in range(3))
    product_s = min(run(lambda: a @ b, 1, device, clock).host_s for _ in range(20))
    sum_s = min(run(lambda: torch.add(x, y, out=z), 1, device, clock).host_s for _ in range(20))
    return Limits(2 * _MATRIX_SIDE**3 / product_s, 3 * x.nbytes / sum_s)


def roofline_s(model: nn.Module, inputs: Tensor, training: bool, limit: Limits) -> float:
    """Return the sum over the layers of the longer of arithmetic and traffic, forward and, in
    training, backward.
    """
    layers = profile_ops(model.train(training), inputs=inputs).layers
    following = (*layers[1:], None)
    leaves = [
        row
        for row, after in zip(layers, following, strict=True)
        if after is None or after.depth <= row.depth
    ]

    def phase_s(flops: int, moved: int) -> float:
        return max(flops / limit.flops_per_s, moved / limit.bytes_per_s)

    total_s = sum(
        phase_s(row.forward_flops, row.forward_read_bytes + row.forward_written_bytes)
        for row in leaves
    )
    if training:
        total_s += sum(
            phase_s(row.backward_flops, row.backward_read_bytes + row.backward_written_bytes)
            for row in leaves
        )
    return total_s


def measured_s(
    model: nn.Module, inputs: Tensor, training: bool, budget_s: float, clock: Clock
) -> list[float]:
    """Return the seconds of warm steps, at least three."""
    found: list[float] = []
    with steps.warm_step(model, inputs, training=training, loss=None) as work:
        begin_s = clock()
        while len(found) < 3 or clock() - begin_s < budget_s:
            steps.drop_gradients(work)
            found.append(run(lambda: steps.run(work), 1, work.device, clock).host_s)
    return found


def compared(
    name: str,
    model: nn.Module,
    inputs: Tensor,
    training: bool,
    limit: Limits,
    rounds: int,
    budget_s: float,
    clock: Clock,
) -> Row:
    """Estimate and measure one configuration, taking turns."""
    measured: list[float] = []
    estimates = []
    for _ in range(rounds):
        measured += measured_s(model, inputs, training, budget_s / 2, clock)
        estimates.append(
            estimate_step_time(model, inputs, training=training, budget_s=budget_s, clock=clock)
        )
        measured += measured_s(model, inputs, training, budget_s / 2, clock)
    step_s = statistics.median(measured)
    estimated_s = statistics.median(estimate.step_s for estimate in estimates)
    modelled_s = roofline_s(model, inputs, training, limit)
    return Row(
        name,
        step_s,
        estimated_s,
        estimated_s / step_s - 1,
        modelled_s,
        modelled_s / step_s - 1,
        estimates[0].calls,
        estimates[0].distinct,
    )


def main() -> None:
    """Print the table and the median and largest error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--budget",
        type=float,
        default=1.0,
        help="seconds an estimate and a measurement (default: 1)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of the two (default: 3)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    device, clock = torch.device(arguments.device), CLOCKS[arguments.clock]
    if clock is time.thread_time and (device.type != "cpu" or torch.get_num_threads() > 1):
        parser.error(
            "the thread's clock sees one CPU thread only: set OMP_NUM_THREADS=1, or use --clock "
            "wall"
        )
    steady_allocator()
    limit = limits(device, clock)
    rows = []
    for name, (make, shape, training) in console.track(configurations().items(), "steps"):
        torch.manual_seed(0)
        model, inputs = make().to(device), torch.rand(shape, device=device)
        rows.append(
            compared(
                name, model, inputs, training, limit, arguments.rounds, arguments.budget, clock
            )
        )
    reached = f"{units.text(limit.flops_per_s, 'FLOP/s')}, {units.text(limit.bytes_per_s, 'B/s')}"
    print(f"{arguments.clock} clock, {torch.get_num_threads()} threads, {device}: {reached}")
    print(results.printed(pd.concat([each.table() for each in rows])).to_string(index=False))
    for what, errors in (
        ("estimate", [each.error_share for each in rows]),
        ("roofline", [each.roofline_error_share for each in rows]),
    ):
        found = sorted(map(abs, errors))
        print(f"{what}: median error {statistics.median(found):.1%}, largest {found[-1]:.1%}")
    print(f"wanted of the estimate: at most {MEDIAN_ERROR:.0%} and {WORST_ERROR:.0%}")


if __name__ == "__main__":
    main()
