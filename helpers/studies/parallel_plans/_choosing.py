"""Which layout trains a net fastest on these devices: all that divide it, modelled, held against
the memory, ranked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import nn

from helpers import console, units
from helpers.checks import choice, short, whole_number
from helpers.links import Link, require_link
from helpers.parallel._costs import BUCKET_BYTES, LayerCost, bucket_layers
from helpers.parallel.pipeline import _schedules as schedules
from helpers.results import Result
from helpers.studies.parallel_plans._costs import (
    ONE_BY_ONE,
    LayerWork,
    StrategyStep,
    cut,
    strategy_step,
)
from helpers.studies.parallel_plans._footprint import (
    SHARDED,
    Footprint,
    Layout,
    OptimizerFactory,
    Plan,
    check_rows,
    count_footprint,
)
from helpers.studies.parallel_plans._work import (
    Saved,
    check_pairs,
    layer_work,
    rank_net,
    saved_by_layer,
    sum_by_stage,
    tensor_plan,
)

_MOST_DEVICES = 10**6
_MOST_MICROBATCHES = 8  # a stage: there the bubble is at most an eighth of the work
_PARTS = {
    "compute_s": "compute-bound: {} of the step are passes",
    "tensor_s": "link-bound: {} of the step wait for all-reduces between tensor ranks",
    "bubble_s": "bubble-bound: {} of the step wait for other stages and their messages",
    "exposed_s": "link-bound: {} of the step wait for gradients or parameters of data ranks",
}


@dataclass(frozen=True)
class Strategy(Result):
    """One layout: its modelled step and the parts of it, the memory of its largest rank, and what
    decides in words.

    ``step_s`` and its parts are None where the layout cannot be; the parts are those of
    :class:`strategy_costs.StrategyStep`. ``largest_bytes`` counts what the largest rank keeps,
    activations, and what is whole for a moment: a bucket of gradients (ZeRO-2), two layers'
    parameters and one's gradients (ZeRO-3, FSDP). Lesson 08.
    """

    strategy: str
    fits: bool
    step_s: float | None
    compute_s: float | None
    tensor_s: float | None
    bubble_s: float | None
    exposed_s: float | None
    largest_bytes: int | None
    microbatches: int | None
    reason: str
    layout: Layout = field(repr=False)


@dataclass(frozen=True)
class Choice(Result):
    """The result of :func:`choose`: ``best`` in words, and a row a layout.

    ``rows`` begin with those that fit, the fastest first; then come those that do not, the smallest
    first, and those that cannot be. Lesson 08.
    """

    best: str
    step_s: float
    speedup: float | None
    devices: int
    memory_bytes: float
    rows: tuple[Strategy, ...]

    def fitting(self) -> tuple[Strategy, ...]:
        """Return the rows that fit, the fastest first. Lesson 08."""
        return tuple(row for row in self.rows if row.fits)


def choose(
    model: nn.Sequential,
    devices: int,
    link: Link,
    memory: float | str,
    *,
    inputs: Sequence[int],
    flops_per_s: float | None = None,
    layer_costs: Sequence[LayerCost] | None = None,
    optimizer: OptimizerFactory | None = torch.optim.SGD,
    plan: Plan | None = None,
    microbatches: int | None = None,
    schedule: str = "1f1b",
    bucket_bytes: int = BUCKET_BYTES,
) -> Choice:
    """Return every layout of ``model`` on ``devices`` equal devices, ranked by its modelled step
    within ``memory``.

    ``model`` may be on the meta device. Between any two devices is ``link``; each has ``memory``
    bytes, or text such as "24 GiB". ``inputs`` is the shape of the whole batch of a step, its rows
    first. A device either sustains ``flops_per_s``, or takes ``layer_costs`` for the whole batch,
    one for each layer of ``model`` (measured, or ``[layer.cost for layer in model]`` of sleeping
    layers). ``plan`` says which nn.Linear tensor ranks split and how; without it
    :func:`tensor_plan` makes one. ``microbatches`` is tried from one a stage to eight a stage
    unless given (without a pipeline: accumulated, which takes memory and not time off a step), and
    the fastest that fits counts. ``schedule`` is "gpipe" or "1f1b", ``bucket_bytes`` the size at
    which a bucket of gradients goes, and ``optimizer`` (a class, or a callable from parameters to
    one) says what state a parameter has; None is no state.

    Layouts are the products data x tensor x pipeline whose ranks divide ``devices``, with nothing,
    ZeRO-1, 2 or 3 (FSDP) sharded among the data ranks. Time is
    :func:`strategy_costs.strategy_step`'s, with what it leaves out; memory is counted as in
    :func:`footprint.count_footprint` with activations as on meta tensors. See :class:`Strategy`.
    Layouts whose times differ by a few per cent may change places when they run: beside runs of the
    simulated tier give the link that messages there have,
    ``measure_message_overhead(ranks).added_to(link)``.

    Raises ValueError when no layout fits, saying what would, when neither or both of
    ``flops_per_s`` and ``layer_costs`` are given, for a layer that stands in two places, and for
    numbers that cannot be; TypeError for a model that is not an nn.Sequential. Lesson 08.
    """
    if not isinstance(model, nn.Sequential):
        raise TypeError(
            f"choose cuts an nn.Sequential into stages; got a {type(model).__name__}: put its "
            "layers into one"
        )
    require_link("link", link)
    choice("schedule", schedule, ONE_BY_ONE)
    limit = _memory_bytes(memory)
    whole_number("bucket_bytes", bucket_bytes)
    split_plan = tensor_plan(model) if plan is None else plan
    layers = layer_work(
        model, inputs, flops_per_s=flops_per_s, layer_costs=layer_costs, plan=split_plan
    )
    request = _Request(
        model,
        tuple(inputs),
        link,
        limit,
        layers,
        split_plan,
        optimizer,
        microbatches,
        schedule,
        bucket_bytes,
    )
    layouts = console.track(list(layouts_of(devices)), "modelling layouts", unit="layout")
    rows = sorted((_row(layout, request) for layout in layouts), key=_rank)
    best = rows[0]
    if not best.fits:
        raise ValueError(_nothing_fits(rows, devices, limit))
    assert best.step_s is not None  # as it fits
    alone = next(row for row in rows if row.layout.ranks == 1)
    speedup = alone.step_s / best.step_s if alone.step_s else None
    return Choice(best.strategy, best.step_s, speedup, devices, limit, tuple(rows))


def layouts_of(devices: int) -> Iterator[Layout]:
    """Yield every layout whose ranks divide ``devices``; what is sharded matters only among several
    data ranks.
    """
    whole_number("devices", devices, at_most=_MOST_DEVICES)
    divisors = [divisor for divisor in range(1, devices + 1) if devices % divisor == 0]
    for ranks in divisors:
        for data in (divisor for divisor in divisors if ranks % divisor == 0):
            for tensor in (divisor for divisor in divisors if (ranks // data) % divisor == 0):
                for sharded in SHARDED if data > 1 else SHARDED[:1]:
                    yield Layout(data, tensor, ranks // data // tensor, sharded)


# One layout.


@dataclass(frozen=True)
class _Request:
    model: nn.Sequential
    inputs: tuple[int, ...]
    link: Link
    memory_bytes: float
    layers: tuple[LayerWork, ...]
    plan: Plan
    optimizer: OptimizerFactory | None
    microbatches: int | None
    schedule: str
    bucket_bytes: int
    nets: dict[int, nn.Sequential] = field(default_factory=dict)
    saved: dict[tuple[int, int], Saved] = field(default_factory=dict)

    def activation_bytes(self, rows: int, layout: Layout) -> list[int]:
        """Return the bytes that a microbatch of ``rows`` keeps in each stage; many layouts ask for
        the same.
        """
        tensor, key = layout.tensor, (rows, layout.tensor)
        if tensor not in self.nets:
            self.nets[tensor] = rank_net(self.model, self.plan, tensor)
        if key not in self.saved:
            self.saved[key] = saved_by_layer(
                self.nets[tensor], (rows, *self.inputs[1:]), tensor=tensor
            )
        return sum_by_stage(self.saved[key], layout.pipeline)


def _row(layout: Layout, request: _Request) -> Strategy:
    """Return the layout at the number of microbatches that is fastest of those that fit, or
    smallest if none does.
    """
    name = describe(layout)
    try:
        if layout.tensor > 1 and not request.plan:
            raise ValueError(
                "no two nn.Linear follow each other that tensor ranks could split; give a plan"
            )
        check_pairs(request.model, request.plan if layout.tensor > 1 else {}, layout.pipeline)
        footprint = count_footprint(
            request.model, layout, plan=request.plan, optimizer=request.optimizer
        )
        steps = [_step(layout, number, request) for number in _microbatches(layout, request)]
        step, largest = _fastest_that_fits(layout, steps, footprint, request)
    except ValueError as error:
        return Strategy(name, False, None, None, None, None, None, None, None, str(error), layout)
    fits = largest <= request.memory_bytes
    reason = _bound_by(step) if fits else f"needs {_text(largest)} of {_text(request.memory_bytes)}"
    return Strategy(
        name,
        fits,
        step.step_s,
        step.compute_s,
        step.tensor_s,
        step.bubble_s,
        step.exposed_s,
        largest,
        step.microbatches,
        reason,
        layout,
    )


def _fastest_that_fits(
    layout: Layout, steps: Sequence[StrategyStep], footprint: Footprint, request: _Request
) -> tuple[StrategyStep, int]:
    """Return the step, and the bytes of its largest rank: of the smallest where none fits.

    A number of microbatches on which the net does not run (one row, for a batch normalisation) is
    passed over. Raises ValueError where it runs on none.
    """
    trials: list[tuple[StrategyStep, int]] = []
    errors: list[ValueError] = []
    for step in sorted(steps, key=lambda step: (_round_seconds(step.step_s), step.microbatches)):
        try:
            trials.append((step, _largest_bytes(layout, step.microbatches, footprint, request)))
        except ValueError as error:
            errors.append(error)
            continue
        if trials[-1][1] <= request.memory_bytes:
            return trials[-1]
    if not trials:
        raise errors[0]
    return min(trials, key=lambda trial: trial[1])


def describe(layout: Layout) -> str:
    """Return the layout in words: "one device", "data 2 (FSDP) x tensor 2"."""
    names = {
        "nothing": "",
        "optimizer": " (ZeRO-1)",
        "gradients": " (ZeRO-2)",
        "parameters": " (FSDP)",
    }
    kinds = {"data": layout.data, "tensor": layout.tensor, "pipeline": layout.pipeline}
    parts = [
        f"{kind} {ranks}{names[layout.sharded] if kind == 'data' else ''}"
        for kind, ranks in kinds.items()
        if ranks > 1
    ]
    return " x ".join(parts) or "one device"


def _microbatches(layout: Layout, request: _Request) -> list[int]:
    rows = request.inputs[0]
    if request.microbatches is not None:
        schedules.check(
            request.schedule, ranks=layout.pipeline, microbatches=request.microbatches, chunks=1
        )
        check_rows(rows, layout, request.microbatches)
        return [request.microbatches]
    check_rows(rows, layout, 1)
    most = min(_MOST_MICROBATCHES * layout.pipeline, rows // layout.data)
    counts = [
        number for number in range(layout.pipeline, most + 1) if (rows // layout.data) % number == 0
    ]
    if not counts:
        raise ValueError(
            f"the {rows // layout.data} rows of a data rank do not divide into {layout.pipeline} "
            "or more equal microbatches, one for each stage"
        )
    return counts


def _step(layout: Layout, microbatches: int, request: _Request) -> StrategyStep:
    return strategy_step(
        request.layers,
        layout,
        link=request.link,
        microbatches=microbatches,
        schedule=request.schedule,
        bucket_bytes=request.bucket_bytes,
    )


def _largest_bytes(
    layout: Layout, microbatches: int, footprint: Footprint, request: _Request
) -> int:
    activation_bytes = request.activation_bytes(
        request.inputs[0] // (layout.data * microbatches), layout
    )
    live = [
        schedules.live_activations(
            request.schedule, rank=stage, ranks=layout.pipeline, microbatches=microbatches
        )
        for stage in range(layout.pipeline)
    ]
    moment_bytes = [
        _moment_bytes(part, layout, request.bucket_bytes)
        for part in cut(request.layers, layout.pipeline)
    ]
    return max(
        rank.total_bytes
        + live[rank.stage] * activation_bytes[rank.stage]
        + moment_bytes[rank.stage]
        for rank in footprint.ranks
    )


def _moment_bytes(layers: Sequence[LayerWork], layout: Layout, bucket_bytes: int) -> int:
    """Return the bytes that a rank holds whole for a moment: a bucket of gradients, or gathered
    layers and one's gradients.
    """
    if layout.data == 1 or layout.sharded in ("nothing", "optimizer"):
        return 0
    gradients = [layer.gradients_of(layout.tensor) for layer in layers]
    if layout.sharded == "gradients":
        buckets = bucket_layers(gradients, bucket_bytes=bucket_bytes)
        return max((sum(gradients[index] for index in bucket) for bucket in buckets), default=0)
    parameters = [layer.parameters_of(layout.tensor) for layer in layers]
    return max(before + after for before, after in pairwise([0, *parameters])) + max(gradients)


# In words.


def _bound_by(step: StrategyStep) -> str:
    parts = {name: getattr(step, name) for name in _PARTS}
    largest = max(parts, key=parts.__getitem__)
    share = parts[largest] / step.step_s if step.step_s else 0.0
    return _PARTS[largest].format(f"{100 * share:.0f} %")


def _rank(row: Strategy) -> tuple[bool, bool, float, int, int]:
    """Sort what fits by time, then what does not by memory; at equal times the simpler layout comes
    first.
    """
    simple = (row.layout.ranks, SHARDED.index(row.layout.sharded))
    if row.largest_bytes is None:
        return True, True, 0.0, *simple
    size = row.largest_bytes if row.step_s is None or not row.fits else _round_seconds(row.step_s)
    return not row.fits, False, size, *simple


def _round_seconds(seconds: float) -> float:
    """Return ``seconds`` to nine digits: sums of the same parts in another order are equal
    times.
    """
    return float(f"{seconds:.9g}")


def _nothing_fits(rows: list[Strategy], devices: int, limit: float) -> str:
    smallest = rows[0]
    if smallest.largest_bytes is None:
        return f"no layout on {devices} devices can be: {smallest.strategy}: {smallest.reason}"
    return (
        f"no layout on up to {devices} devices fits into {_text(limit)} a device: the smallest, "
        f"{smallest.strategy}, needs {_text(smallest.largest_bytes)} on its largest rank; give "
        "devices with that much memory, more devices, or a smaller batch or model"
    )


def _text(size_bytes: float) -> str:
    return units.text(size_bytes, "B", binary=True)


def _memory_bytes(memory: float | str) -> float:
    try:
        limit = units.parse(memory, "B") if isinstance(memory, str) else memory
    except ValueError:
        limit = None
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
        raise ValueError(
            f"memory is the bytes of a device, or text such as '24 GiB'; got {short(memory)}"
        )
    return limit
