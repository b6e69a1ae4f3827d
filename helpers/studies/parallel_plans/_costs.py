"""What a step of training costs when data, tensor and pipeline ranks share it: bytes counted, time
modelled on a link.

The bytes are exact. The time is that of one rank a stage, since the ranks of a stage do the same at
the same time: a device that does one pass after the other, and a link for each kind of neighbour
(data, tensor, pipeline) that carries one collective or message after the other. Collectives are
rings. The work of a tensor rank waits for its all-reduces; what data ranks exchange goes on behind
the computing where the strategy allows it, and so do a pipeline's messages. The optimizer's own
arithmetic is left out, and so are the padding of shards and the loss of speed of small batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from helpers.checks import boolean, choice, members, whole_number
from helpers.links import Link, require_link
from helpers.parallel._costs import (
    BUCKET_BYTES,
    bucket_layers,
    ring_all_gather_s,
    ring_all_reduce_s,
    ring_reduce_scatter_s,
)
from helpers.parallel.pipeline import _schedules as schedules
from helpers.parallel.pipeline._schedules import BACKWARD, FORWARD
from helpers.results import Result
from helpers.studies.parallel_plans._footprint import Layout, check_layout

_RINGS = {
    "all-reduce": ring_all_reduce_s,
    "all-gather": ring_all_gather_s,
    "reduce-scatter": ring_reduce_scatter_s,
}
_RING_STEPS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}
ONE_BY_ONE = ("gpipe", "1f1b")
_EACH_MICROBATCH = ("gradients", "parameters")


@dataclass(frozen=True)
class LayerWork(Result):
    """A layer's work on the whole batch, on one device: seconds, the bytes it keeps, and the bytes
    it hands on.

    Tensor ranks divide ``split_share`` of the seconds, ``split_parameter_bytes`` of the parameters
    and ``split_gradient_bytes`` of the gradients; they sum ``forward_sum_bytes`` (outputs of row
    splits) in the forward pass and ``backward_sum_bytes`` (gradients of the inputs of column
    splits) in the backward pass, an all-reduce each. Lesson 08.
    """

    name: str
    forward_s: float
    backward_s: float
    parameter_bytes: int
    gradient_bytes: int
    output_bytes: int
    split_share: float = 0.0
    split_parameter_bytes: int = 0
    split_gradient_bytes: int = 0
    forward_sum_bytes: tuple[int, ...] = ()
    backward_sum_bytes: tuple[int, ...] = ()

    def parameters_of(self, tensor: int) -> int:
        """Return the bytes of the parameters on each of ``tensor`` ranks."""
        return (
            self.parameter_bytes - self.split_parameter_bytes + self.split_parameter_bytes // tensor
        )

    def gradients_of(self, tensor: int) -> int:
        """Return the bytes of the gradients on each of ``tensor`` ranks."""
        return self.gradient_bytes - self.split_gradient_bytes + self.split_gradient_bytes // tensor


@dataclass(frozen=True)
class StrategyTraffic(Result):
    """The collectives of a rank in one step over one kind of neighbour (``over``): so many
    ``calls`` among so many ``ranks``.

    ``size_bytes`` sums the whole buffers of all calls, ``sent_bytes`` is what of it this rank
    sends: 2 (p - 1) / p for a ring all-reduce, half of that for an all-gather or a reduce-scatter,
    all of it for a message. Lesson 08.
    """

    over: str
    collective: str
    ranks: int
    calls: int
    size_bytes: int
    sent_bytes: float


@dataclass(frozen=True)
class StepTraffic(Result):
    """All that a rank of ``stage`` exchanges in one step. Lesson 08."""

    stage: int
    sent_bytes: float
    rows: tuple[StrategyTraffic, ...]

    def sent(self, over: str) -> float:
        """Return the bytes that the rank sends over "data", "tensor" or "pipeline": 0 where there
        are none.

        Lesson 08.
        """
        return sum(row.sent_bytes for row in self.rows if row.over == over)


@dataclass(frozen=True)
class StrategyStep(Result):
    """A modelled step of a layout.

    Its parts are those of the stage that ends last, and add up to ``step_s``. ``compute_s`` is
    spent in forward and backward passes, ``tensor_s`` in waiting for all-reduces of tensor ranks,
    ``bubble_s`` in waiting for other stages (and for their messages), ``exposed_s`` in waiting for
    data ranks: what of their ``data_link_s`` is not hidden behind computing. Lesson 08.
    """

    data: int
    tensor: int
    pipeline: int
    sharded: str
    microbatches: int
    step_s: float
    compute_s: float
    tensor_s: float
    bubble_s: float
    exposed_s: float
    data_link_s: float


def strategy_traffic(
    layers: Sequence[LayerWork],
    layout: Layout,
    *,
    stage: int = 0,
    microbatches: int = 1,
    sequence: bool = False,
    reshard_after_forward: bool = True,
    bucket_bytes: int = BUCKET_BYTES,
) -> StepTraffic:
    """Return the traffic of a rank of ``stage`` in one step of ``layout``, counted; sent bytes are
    those of rings.

    * Tensor ranks (Megatron-LM: Shoeybi et al., 2019, arXiv 1909.08053): an all-reduce of the
      output of each row split in the forward pass, and of the input's gradient of each column split
      in the backward pass, each microbatch. With ``sequence`` (Korthikanti et al., 2022, arXiv
      2205.05198) an all-gather and a reduce-scatter stand for each of them: as many bytes.
    * Data ranks (ZeRO: Rajbhandari et al., 2020, arXiv 1910.02054): "nothing" sharded, an
      all-reduce of the gradients, a bucket at a time; "optimizer" and "gradients", a reduce-scatter
      of them and an all-gather of the parameters after the optimizer: as many bytes; "parameters",
      an all-gather of a layer's parameters before its forward pass and, unless
      ``reshard_after_forward`` is False, again before its backward pass, and a reduce-scatter after
      it. "gradients" and "parameters" reduce after each microbatch, since no rank keeps whole
      gradients, the others once.
    * Pipeline ranks (GPipe: Huang et al., 2019): a message a microbatch to the next stage, and one
      to the stage before. One microbatch is naive model parallelism, where one stage works at a
      time.

    ``layers`` hold the whole batch's work, cut into ``microbatches``; a bucket is full at
    ``bucket_bytes``. Raises ValueError for a stage that is not there, and as :func:`strategy_step`.
    Lesson 08.
    """
    boolean("reshard_after_forward", reshard_after_forward)
    boolean("sequence", sequence)
    parts = cut(_check_layers(layers), check_layout(layout).pipeline)
    whole_number("stage", stage, at_least=0, at_most=layout.pipeline - 1)
    m = whole_number("microbatches", microbatches)
    stage_layers = parts[stage]
    traffic = _tensor_traffic(stage_layers, layout, m, sequence)
    traffic += _data_traffic(stage_layers, layout, m, reshard_after_forward, bucket_bytes)
    before = parts[stage - 1][-1].output_bytes if stage else 0
    after = stage_layers[-1].output_bytes if stage < layout.pipeline - 1 else 0
    for collective, size in (("send forward", after), ("send backward", before)):
        if size:
            traffic.append(
                StrategyTraffic(
                    "pipeline", collective, 2, m, size // layout.data, size / layout.data
                )
            )
    return StepTraffic(stage, sum(row.sent_bytes for row in traffic), tuple(traffic))


def _tensor_traffic(
    layers: Sequence[LayerWork], layout: Layout, microbatches: int, sequence: bool
) -> list[StrategyTraffic]:
    sums = [
        size // layout.data
        for layer in layers
        for size in layer.forward_sum_bytes + layer.backward_sum_bytes
    ]
    kinds = ("all-gather", "reduce-scatter") if sequence else ("all-reduce",)
    return [
        _ring("tensor", kind, layout.tensor, microbatches * len(sums), sum(sums))
        for kind in kinds
        if layout.tensor > 1 and sums
    ]


def _data_traffic(
    layers: Sequence[LayerWork], layout: Layout, microbatches: int, reshard: bool, bucket_bytes: int
) -> list[StrategyTraffic]:
    if layout.data == 1:
        return []
    gradients = [layer.gradients_of(layout.tensor) for layer in layers]
    parameters = [layer.parameters_of(layout.tensor) for layer in layers]
    times = microbatches if layout.sharded in _EACH_MICROBATCH else 1
    if layout.sharded == "parameters":
        learn, passes = sum(map(bool, gradients)), times * (2 if reshard else 1)
        return [
            _ring(
                "data",
                "all-gather",
                layout.data,
                passes * sum(map(bool, parameters)),
                passes * sum(parameters),
            ),
            _ring("data", "reduce-scatter", layout.data, times * learn, times * sum(gradients)),
        ]
    buckets = len(bucket_layers(gradients, bucket_bytes=bucket_bytes))
    if layout.sharded == "nothing":
        return [_ring("data", "all-reduce", layout.data, buckets, sum(gradients))]
    return [
        _ring("data", "reduce-scatter", layout.data, times * buckets, times * sum(gradients)),
        _ring("data", "all-gather", layout.data, 1, sum(gradients)),
    ]


def _ring(over: str, collective: str, ranks: int, calls: int, size_bytes: int) -> StrategyTraffic:
    sent = _RING_STEPS[collective] * (ranks - 1) / ranks * size_bytes
    return StrategyTraffic(over, collective, ranks, calls, size_bytes, sent)


def _check_layers(layers: Sequence[LayerWork]) -> list[LayerWork]:
    return members("layers", layers, "LayerWork, as layer_work() returns it", kind=LayerWork)


def cut(layers: Sequence[LayerWork], stages: int) -> list[Sequence[LayerWork]]:
    """Return the layers of each of ``stages`` equally long stages."""
    if not layers:
        raise ValueError("a step needs at least one layer")
    if len(layers) % stages:
        raise ValueError(f"{len(layers)} layers do not divide into {stages} stages of equally many")
    layers_per_stage = len(layers) // stages
    return [
        layers[start : start + layers_per_stage]
        for start in range(0, len(layers), layers_per_stage)
    ]


# The clock.


def strategy_step(
    layers: Sequence[LayerWork],
    layout: Layout,
    *,
    link: Link,
    microbatches: int = 1,
    schedule: str = "1f1b",
    bucket_bytes: int = BUCKET_BYTES,
    reshard_after_forward: bool = True,
) -> StrategyStep:
    """Return one modelled step of ``layout``: who waits for what, and for how long; the module says
    what is left out.

    ``layers`` hold the whole batch's work, of which a data rank takes its share, in
    ``microbatches`` equal parts; the stages are equally many layers each and follow ``schedule``,
    "gpipe" or "1f1b". What is exchanged is what :func:`strategy_traffic` counts. Between any two
    ranks is ``link``; ``reshard_after_forward`` is as there. Overlap: buckets of ``bucket_bytes``
    of gradients go while the last (or each) backward pass goes on, as in DDP; sharded parameters
    are gathered one layer ahead within a pass, as ``fully_shard`` does; the all-gather after the
    optimizer, and all-reduces of tensor ranks, are waited for.

    Raises ValueError for layers that do not divide by the stages, for fewer microbatches than
    stages ("1f1b") and for another schedule. Lesson 08.
    """
    boolean("reshard_after_forward", reshard_after_forward)
    choice("schedule", schedule, ONE_BY_ONE)
    layers, layout, link = (_check_layers(layers), check_layout(layout), require_link("link", link))
    schedules.check(schedule, ranks=layout.pipeline, microbatches=microbatches, chunks=1)
    stages = [
        _Stage(part, layout, link, microbatches, bucket_bytes, reshard_after_forward)
        for part in cut(layers, layout.pipeline)
    ]
    by_rank = [
        schedules.rank_order(schedule, rank=rank, ranks=layout.pipeline, microbatches=microbatches)
        for rank in range(layout.pipeline)
    ]
    arrived_s: dict[tuple[str, int, int], float] = {
        (FORWARD, 0, microbatch): 0.0 for microbatch in range(microbatches)
    }
    arrived_s |= {
        (BACKWARD, layout.pipeline - 1, microbatch): 0.0 for microbatch in range(microbatches)
    }
    next_pass = [0] * layout.pipeline
    while any(next_pass[rank] < len(order) for rank, order in enumerate(by_rank)):
        for rank, order in enumerate(by_rank):
            while next_pass[rank] < len(order) and order[next_pass[rank]] in arrived_s:
                kind, _, microbatch = order[next_pass[rank]]
                stages[rank].run(kind, microbatch, arrived_s[kind, rank, microbatch])
                neighbour = rank + (1 if kind == FORWARD else -1)
                if 0 <= neighbour < layout.pipeline:
                    boundary = stages[min(rank, neighbour)].layers[-1].output_bytes / (
                        layout.data * microbatches
                    )
                    arrived_s[kind, neighbour, microbatch] = stages[rank].send(boundary)
                next_pass[rank] += 1
    for stage in stages:
        stage.finish()
    slowest = max(stages, key=lambda stage: stage.now_s)
    return StrategyStep(
        data=layout.data,
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        sharded=layout.sharded,
        microbatches=microbatches,
        step_s=slowest.now_s,
        compute_s=slowest.spent["compute"],
        tensor_s=slowest.spent["tensor"],
        bubble_s=slowest.spent["bubble"],
        exposed_s=slowest.spent["exposed"],
        data_link_s=slowest.link_s,
    )


class _Stage:
    """The clock of a rank of one stage: ``now_s`` is its device's time, the others are when a link
    is free again.
    """

    def __init__(
        self,
        layers: Sequence[LayerWork],
        layout: Layout,
        link: Link,
        microbatches: int,
        bucket_bytes: int,
        reshard: bool,
    ) -> None:
        self.layers, self.link = layers, link
        self.work = {
            kind: [_work(layer, kind, layout, link, microbatches) for layer in layers]
            for kind in (FORWARD, BACKWARD)
        }
        self.orders = {FORWARD: range(len(layers)), BACKWARD: range(len(layers) - 1, -1, -1)}
        self.now_s = self.link_free_s = self.port_free_s = self.link_s = 0.0
        self.spent = dict.fromkeys(("compute", "tensor", "bubble", "exposed"), 0.0)
        self._plan_collectives(layout, link, microbatches, bucket_bytes, reshard)

    def _plan_collectives(
        self, layout: Layout, link: Link, microbatches: int, bucket_bytes: int, reshard: bool
    ) -> None:
        """Plan the collectives of data ranks and their times; most of them recur in every
        microbatch.
        """

        def taken_s(collective: str, size_bytes: int) -> float:
            return _RINGS[collective](layout.data, size_bytes, link=link)

        gradients = [layer.gradients_of(layout.tensor) for layer in self.layers]
        sharded = layout.sharded == "parameters"
        cap = 1 if sharded else bucket_bytes  # fully_shard: a unit a layer
        buckets = bucket_layers(gradients, bucket_bytes=cap) if layout.data > 1 else ()
        reduction = "all-reduce" if layout.sharded == "nothing" else "reduce-scatter"
        self.reduce_s = {
            min(bucket): taken_s(reduction, sum(gradients[index] for index in bucket))
            for bucket in buckets
        }
        self.reduces_from = 0 if layout.sharded in _EACH_MICROBATCH else microbatches - 1
        self.gathering = {
            FORWARD: sharded and layout.data > 1,
            BACKWARD: sharded and layout.data > 1 and reshard,
        }
        sizes = (
            [layer.parameters_of(layout.tensor) for layer in self.layers]
            if self.gathering[FORWARD]
            else []
        )
        self.gather_s = [taken_s("all-gather", size) if size else None for size in sizes]
        ends_with_gather = buckets and layout.sharded in ("optimizer", "gradients")
        self.last_gather_s = taken_s("all-gather", sum(gradients)) if ends_with_gather else None

    def run(self, kind: str, microbatch: int, ready_s: float) -> None:
        """Carry a microbatch through the layers once it has arrived."""
        self._wait("bubble", ready_s)
        order, work = self.orders[kind], self.work[kind]
        gathers, reduces = (
            self.gathering[kind],
            kind == BACKWARD and microbatch >= self.reduces_from,
        )
        whole_s = self._order_gather(order[0]) if gathers else 0.0
        for turn, index in enumerate(order, start=1):
            if gathers:
                self._wait("exposed", whole_s)
                whole_s = self._order_gather(order[turn]) if turn < len(order) else 0.0
            compute_s, tensor_s = work[index]
            self._spend("compute", compute_s)
            for each_s in tensor_s:
                self._spend("tensor", each_s)
            if reduces and index in self.reduce_s:
                self._carry(self.reduce_s[index])

    def send(self, size_bytes: float) -> float:
        """Return when a message that is ready now has arrived."""
        self.port_free_s = max(self.now_s, self.port_free_s) + self.link.transfer_s(size_bytes)
        return self.port_free_s

    def finish(self) -> None:
        """Wait for the gradients, and where only they were sharded, for the parameters after the
        optimizer.
        """
        if self.last_gather_s is not None:
            self._carry(self.last_gather_s)
        self._wait("exposed", self.link_free_s)

    def _order_gather(self, index: int) -> float:
        """Return when a layer's parameters, ordered now, are whole."""
        took_s = self.gather_s[index]
        return self.now_s if took_s is None else self._carry(took_s)

    def _carry(self, took_s: float) -> float:
        """Return when a collective that is ready now has ended, and keep the link busy until
        then.
        """
        self.link_free_s, self.link_s = (
            max(self.now_s, self.link_free_s) + took_s,
            self.link_s + took_s,
        )
        return self.link_free_s

    def _wait(self, part: str, until_s: float) -> None:
        self._spend(part, max(0.0, until_s - self.now_s))

    def _spend(self, part: str, seconds: float) -> None:
        self.spent[part] += seconds
        self.now_s += seconds


def _work(
    layer: LayerWork, kind: str, layout: Layout, link: Link, microbatches: int
) -> tuple[float, list[float]]:
    """Return the seconds of a microbatch's pass through a layer, and those of each all-reduce of
    its tensor ranks.
    """
    share = 1 / (layout.data * microbatches)
    one_s = layer.forward_s if kind == FORWARD else layer.backward_s
    compute_s = one_s * share * (1 - layer.split_share + layer.split_share / layout.tensor)
    if layout.tensor == 1:
        return compute_s, []
    sizes = layer.forward_sum_bytes if kind == FORWARD else layer.backward_sum_bytes
    return compute_s, [ring_all_reduce_s(layout.tensor, size * share, link=link) for size in sizes]
