"""A layout's step really run by ranks whose devices sleep and whose links are slow: the oracle
beside the model.

Every rank has its real part of the net, trains it, and sends what its layout makes it send: rings
of messages (:func:`helpers.studies.data_parallel._execution.execute`) between data and tensor
ranks, activations and their gradients between stages. A pass takes as long as the device is said to
take, for its real work is done within that time and the rest is slept; a message takes as long as
its link. Nothing here knows of a total: who waits for whom comes of the messages. All of it is on
the CPU over gloo, also where there are GPUs, for sleeping needs none.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from helpers.checks import whole_number
from helpers.links import Link, Port, sleep_until
from helpers.parallel._collectives import collective
from helpers.parallel._costs import BUCKET_BYTES, bucket_layers
from helpers.parallel._data_parallel import shard
from helpers.parallel.pipeline import _schedules as schedules
from helpers.parallel.pipeline._schedules import FORWARD
from helpers.parallel.pipeline._stages import split_stages
from helpers.results import Result
from helpers.studies.data_parallel._devices import fastest_step_s, step_times
from helpers.studies.data_parallel._execution import RankPool, execute
from helpers.studies.parallel_plans._costs import LayerWork
from helpers.studies.parallel_plans._footprint import (
    Layout,
    Plan,
    check_plan,
    check_rows,
    cut_linear,
    empty_output,
)

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LEARNING_RATE = 0.1
_plan_collective = lru_cache(maxsize=256)(collective)


@dataclass(frozen=True)
class StrategyRun(Result):
    """A layout's step on real ranks: the fastest of ``repeats``, each as long as its slowest rank,
    after one warm-up.

    ``data_bytes``, ``tensor_bytes`` and ``pipeline_bytes`` are what rank 0 sent in a step;
    ``parameters`` are the net's after all steps of plain SGD. Lesson 08.
    """

    data: int
    tensor: int
    pipeline: int
    sharded: str
    microbatches: int
    step_s: float
    repeats: int
    data_bytes: int
    tensor_bytes: int
    pipeline_bytes: int
    parameters: dict[str, torch.Tensor] = field(repr=False)


@dataclass(frozen=True)
class _Job:
    cases: tuple[tuple[Layout, int], ...]
    net: nn.Sequential
    work: tuple[LayerWork, ...]
    plan: dict[str, str]
    link: Link
    inputs: torch.Tensor
    targets: torch.Tensor
    loss: Loss
    schedule: str
    bucket_bytes: int
    repeats: int


def execute_strategies(
    ranks: RankPool,
    net: nn.Sequential,
    cases: Sequence[tuple[Layout, int]],
    *,
    layers: Sequence[LayerWork],
    link: Link,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    loss: Loss,
    plan: Plan | None = None,
    schedule: str = "1f1b",
    bucket_bytes: int = BUCKET_BYTES,
    repeats: int = 2,
    timeout_s: float = 300.0,
) -> tuple[StrategyRun, ...]:
    """Train ``net`` on ``ranks`` by each of ``cases``, (layout, microbatches), and return how long
    a step took.

    The whole batch is ``inputs`` and ``targets``. ``plan`` says which nn.Linear tensor ranks split
    (by default none), ``schedule`` is "gpipe" or "1f1b", ``bucket_bytes`` the size at which a
    bucket of gradients goes, and the fastest of ``repeats`` steps counts; all must end within
    ``timeout_s``. A device takes ``layers[i].forward_s`` and ``backward_s`` for the i-th layer of
    ``net`` and the whole batch, and its share of that for its share of the work; a message between
    any two ranks takes ``link``'s time, and each rank has a port for data ranks, one for tensor
    ranks and one for stages. A layout of fewer ranks than there are leaves the others idle.
    ``loss(outputs, targets)`` is a mean; a step of plain SGD (:data:`LEARNING_RATE`) follows each
    backward pass, so that the parameters can be held against one process's. What ``fully_shard``
    would free after a pass is overwritten with NaN. Net, loss and batch go to the ranks pickled,
    and stay here as they were.

    Raises ValueError for a layout of more ranks than there are, for layers, widths or rows that do
    not divide, for fewer microbatches than stages ("1f1b"), and for a net with a frozen parameter.
    Lesson 08.
    """
    plan = dict(plan or {})
    frozen = next(
        (name for name, parameter in net.named_parameters() if not parameter.requires_grad), None
    )
    if frozen is not None:
        raise ValueError(f"a run trains every parameter, and {frozen!r} is frozen; let it learn")
    for layout, microbatches in cases:
        if layout.ranks > ranks.world_size:
            raise ValueError(
                f"a mesh of data {layout.data} x tensor {layout.tensor} x pipeline "
                f"{layout.pipeline} needs {layout.ranks} ranks, and there are {ranks.world_size}; "
                "take a smaller mesh or more ranks"
            )
        schedules.check(schedule, ranks=layout.pipeline, microbatches=microbatches, chunks=1)
        check_plan(net, plan, layout.tensor)
        split_stages(net, layout.pipeline)
        check_rows(len(inputs), layout, microbatches)
    if len(layers) != len(net):
        raise ValueError(f"the net has {len(net)} layers, and layers tells of {len(layers)}")
    job = _Job(
        tuple(cases),
        net,
        tuple(layers),
        plan,
        link,
        inputs,
        targets,
        loss,
        schedule,
        bucket_bytes,
        whole_number("repeats", repeats),
    )
    by_case = zip(*ranks.run(_run, job, timeout_s=timeout_s), strict=True)
    return tuple(
        _strategy_run(job, *case, list(reports))
        for case, reports in zip(cases, by_case, strict=True)
    )


def _strategy_run(
    job: _Job, layout: Layout, microbatches: int, reports: list[dict[str, Any]]
) -> StrategyRun:
    active = reports[: layout.ranks]
    parameters: dict[str, torch.Tensor] = {}
    # those of the first data rank's tensor ranks, in one piece
    for name, whole in job.net.named_parameters():
        parts = [report["parameters"][name] for report in active if name in report["parameters"]][
            : layout.tensor
        ]
        cut = [
            dimension
            for dimension, size in enumerate(parts[0].shape)
            if size != whole.shape[dimension]
        ]
        parameters[name] = torch.cat(parts, dim=cut[0]) if cut else parts[0]
    return StrategyRun(
        layout.data,
        layout.tensor,
        layout.pipeline,
        layout.sharded,
        microbatches,
        step_s=fastest_step_s([report["times_s"] for report in active]),
        repeats=job.repeats,
        **{
            f"{over}_bytes": active[0]["sent_bytes"][over]
            for over in ("data", "tensor", "pipeline")
        },
        parameters=parameters,
    )


# What runs on a rank.


def _run(rank: int, _world_size: int, job: _Job) -> list[dict[str, Any]]:
    lines = {
        members: None
        for layout, _ in job.cases
        for layout_rank in range(layout.ranks)
        for members in _neighbours(layout, layout_rank).values()
        if len(members) > 1
    }
    # every rank makes each
    groups = {members: dist.new_group(list(members), backend="gloo") for members in lines}
    reports = []
    for layout, microbatches in job.cases:
        member = (
            _Member(rank, layout, microbatches, job=job, groups=groups)
            if rank < layout.ranks
            else None
        )
        times_s = step_times(
            member.step if member is not None else lambda: None, repeats=job.repeats, warm_ups=1
        )
        reports.append({"times_s": times_s} | (member.report() if member is not None else {}))
    for members, group in groups.items():
        if rank in members:
            dist.destroy_process_group(group)
    return reports


def _neighbours(layout: Layout, rank: int) -> dict[str, tuple[int, ...]]:
    """Return the ranks with which ``rank`` shares gradients, and those with which it shares
    layers.
    """
    stage, data_rank, tensor_rank = layout.place(rank)
    first = stage * layout.data * layout.tensor
    return {
        "data": tuple(first + index * layout.tensor + tensor_rank for index in range(layout.data)),
        "tensor": tuple(
            first + data_rank * layout.tensor + index for index in range(layout.tensor)
        ),
    }


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None  # a bucket is reduced once all its parameters have one
    return parameter.grad


class _Bucket:
    """Parameters end to end in one buffer, padded so that data ranks divide it, and this rank's
    part of the buffer.
    """

    def __init__(self, parameters: list[nn.Parameter], layout: Layout, data_rank: int) -> None:
        self.parameters, self.ranks = parameters, layout.data
        self.whole = self.flat(parameters)
        self.part = self.whole.chunk(layout.data)[data_rank]
        offset = 0
        for parameter in parameters:
            parameter.data = self.whole[offset : offset + parameter.numel()].view(parameter.shape)
            offset += parameter.numel()
        self.reduced: list[Future] = []

    def flat(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        values = torch.cat([tensor.detach().flatten() for tensor in tensors])
        return nn.functional.pad(values, (0, -len(values) % self.ranks))

    def forget(self) -> None:
        """Overwrite the buffer, as ``fully_shard`` frees it: whoever uses it now gets no number."""
        self.whole.fill_(float("nan"))


class _Member:
    """A rank of a layout as it trains: its part of the net, its sleeping device, its slow links."""

    def __init__(
        self,
        rank: int,
        layout: Layout,
        microbatches: int,
        *,
        job: _Job,
        groups: dict[tuple[int, ...], Any],
    ) -> None:
        self.rank, self.layout, self.microbatches, self.job, self.groups = (
            rank,
            layout,
            microbatches,
            job,
            groups,
        )
        self.stage, self.data_rank, self.tensor_rank = layout.place(rank)
        self.ends_s, self.port = 0.0, Port(job.link)
        self.sent_bytes: dict[str, int] = {}
        self.sending: list[tuple[dist.Work, torch.Tensor]] = []
        self.passes: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self.data_link = ThreadPoolExecutor(1, thread_name_prefix="data link")
        stages = split_stages(job.net, layout.pipeline)
        self.part = copy.deepcopy(stages[self.stage])
        _split_linears(self.part, job.plan if layout.tensor > 1 else {}, self)
        self.layers = list(self.part)
        self.work = job.work[self.stage * len(self.layers) :][: len(self.layers)]
        self.batches, self.targets = (
            shard(batch, self.data_rank, world_size=layout.data).chunk(microbatches)
            for batch in (job.inputs, job.targets)
        )
        self.incoming = torch.empty_like(
            empty_output(stages[: self.stage], self.batches[0]), device="cpu"
        )
        self.gathers = layout.sharded == "parameters" and layout.data > 1
        sizes = [sum(parameter.nbytes for parameter in layer.parameters()) for layer in self.layers]
        self.buckets: dict[int, _Bucket] = {}  # by the layer whose gradients come last
        for indices in bucket_layers(sizes, bucket_bytes=1 if self.gathers else job.bucket_bytes):
            parameters = [
                parameter for index in indices for parameter in self.layers[index].parameters()
            ]
            self.buckets[min(indices)] = _Bucket(parameters, layout, self.data_rank)
        for bucket in self.buckets.values() if self.gathers else ():
            bucket.part = bucket.part.clone()
            bucket.forget()

    def step(self) -> None:
        """Carry all microbatches forward and backward, exchange, and update the parameters."""
        self.sent_bytes = dict.fromkeys(("data", "tensor", "pipeline"), 0)
        for kind, _, microbatch in schedules.rank_order(
            self.job.schedule,
            rank=self.stage,
            ranks=self.layout.pipeline,
            microbatches=self.microbatches,
        ):
            (self._forward if kind == FORWARD else self._backward)(microbatch)
        for request, _ in self.sending:
            request.wait()
        self.sending.clear()
        self._update()

    def report(self) -> dict[str, Any]:
        """Return the sent bytes of the last step, and the rank's parameters, gathered where they
        are sharded.
        """
        sent_bytes = dict(self.sent_bytes)
        for index in range(len(self.layers)):
            self._start_gather(index).result()
        self.data_link.shutdown()
        parameters = {
            name: parameter.detach().clone() for name, parameter in self.part.named_parameters()
        }
        return {"sent_bytes": sent_bytes, "parameters": parameters}

    def _forward(self, microbatch: int) -> None:
        learns = self.stage > 0
        value = self._receive(self.stage - 1, self.incoming) if learns else self.batches[microbatch]
        passes = []
        for index in self._gather_in_turn(range(len(self.layers))):
            inputs = value.detach().requires_grad_(learns)
            with self._device(self.work[index], self.work[index].forward_s):
                value = self.layers[index](inputs)
            passes.append((inputs, value))
            learns = value.requires_grad
        self.passes[microbatch] = passes
        if self.stage < self.layout.pipeline - 1:
            self._send(self.stage + 1, value.detach())

    def _backward(self, microbatch: int) -> None:
        passes = self.passes.pop(microbatch)
        if self.stage == self.layout.pipeline - 1:
            output = passes[-1][1].detach().requires_grad_()
            (
                self.job.loss(output, self.targets[microbatch])
                / (self.microbatches * self.layout.data)
            ).backward()
            gradient = output.grad
        else:
            gradient = self._receive(self.stage + 1, passes[-1][1])
        is_last = microbatch == self.microbatches - 1
        for index in self._gather_in_turn(range(len(self.layers) - 1, -1, -1)):
            inputs, output = passes[index]
            with self._device(self.work[index], self.work[index].backward_s):
                if output.requires_grad:
                    output.backward(gradient)
            gradient = inputs.grad
            if index in self.buckets and (
                is_last or self.layout.sharded in ("gradients", "parameters")
            ):
                self._reduce(self.buckets[index])
        if self.stage > 0:
            assert gradient is not None  # what another stage sent takes one
            self._send(self.stage - 1, gradient)

    @contextmanager
    def _device(self, work: LayerWork, whole_s: float) -> Iterator[None]:
        """Let the block take the device's time; what it waits for tensor ranks comes on top."""
        split = work.split_share * (1 - 1 / self.layout.tensor)
        self.ends_s = time.perf_counter() + whole_s * (1 - split) / (
            self.layout.data * self.microbatches
        )
        yield
        sleep_until(self.ends_s)

    # Links.

    def _ring(self, over: str, operation: str, values: torch.Tensor) -> torch.Tensor:
        """Carry ``operation`` out on flat ``values`` (for an all-gather this rank's part) among the
        neighbours.
        """
        members = _neighbours(self.layout, self.rank)[over]
        if len(members) == 1:
            return values
        length = values.numel() * (len(members) if operation == "all_gather" else 1)
        plan = _plan_collective(
            operation,
            "ring",
            world_size=len(members),
            length=length,
            element_bytes=values.element_size(),
        )
        self.sent_bytes[over] += plan.ranks()[members.index(self.rank)].sent_bytes
        return execute(plan, values, link=self.job.link, group=self.groups[members])

    def sum_over_tensor_ranks(self, value: torch.Tensor) -> torch.Tensor:
        """Return the sum of the tensor ranks' ``value``; the device waits."""
        start_s = time.perf_counter()
        total = self._ring("tensor", "all_reduce", value.detach().flatten()).view_as(value)
        self.ends_s += time.perf_counter() - start_s
        return total

    def _peer(self, stage: int) -> int:
        return (stage * self.layout.data + self.data_rank) * self.layout.tensor + self.tensor_rank

    def _send(self, stage: int, value: torch.Tensor) -> None:
        """Hand ``value`` over with the moment at which the link will have carried it; nobody waits
        here.
        """
        _, end_s = self.port.occupy(value.nbytes, from_s=time.perf_counter())
        self.sent_bytes["pipeline"] += value.nbytes
        stamp = torch.tensor([end_s], dtype=torch.float64)
        message = torch.cat(
            [part.contiguous().flatten().view(torch.uint8) for part in (stamp, value)]
        )
        request = dist.isend(message, self._peer(stage))
        assert request is not None  # both are in the group
        self.sending.append((request, message))

    def _receive(self, stage: int, like: torch.Tensor) -> torch.Tensor:
        stamp_bytes = torch.float64.itemsize
        message = torch.empty(stamp_bytes + like.nbytes, dtype=torch.uint8)
        dist.recv(message, self._peer(stage))
        sleep_until(message[:stamp_bytes].view(torch.float64).item())
        return message[stamp_bytes:].clone().view(like.dtype).view(like.shape)

    # Data ranks.

    def _gather_in_turn(self, indices: Sequence[int]) -> Iterator[int]:
        """Yield each layer's place once its parameters are gathered; those of the next layer are on
        their way then.
        """
        gathering = self._start_gather(indices[0])
        for index, following in zip(indices, [*indices[1:], None], strict=True):
            gathering.result()
            gathering = gathering if following is None else self._start_gather(following)
            yield index
            if self.gathers and index in self.buckets:
                self.buckets[index].forget()

    def _start_gather(self, index: int) -> Future:
        """Start gathering a layer's parameters, where they are sharded, on the data link."""

        def gather(bucket: _Bucket) -> None:
            bucket.whole.copy_(self._ring("data", "all_gather", bucket.part))

        if self.gathers and index in self.buckets:
            return self.data_link.submit(gather, self.buckets[index])
        future: Future = Future()
        future.set_result(None)
        return future

    def _reduce(self, bucket: _Bucket) -> None:
        """Put a bucket's gradients on the data link."""
        flat = bucket.flat([_gradient(parameter) for parameter in bucket.parameters])
        operation = "all_reduce" if self.layout.sharded == "nothing" else "reduce_scatter"
        bucket.reduced.append(self.data_link.submit(self._ring, "data", operation, flat))
        for parameter in bucket.parameters:
            parameter.grad = None

    def _update(self) -> None:
        """Wait for all gradients, step on whole buckets or on this rank's parts, and gather parts
        that are not kept.
        """
        buckets = [bucket for bucket in self.buckets.values() if bucket.reduced]
        for bucket in buckets:
            values = bucket.whole if self.layout.sharded == "nothing" else bucket.part
            values -= LEARNING_RATE * sum(reduction.result() for reduction in bucket.reduced)
            bucket.reduced.clear()
        if self.layout.sharded in ("optimizer", "gradients"):
            parts = torch.cat([bucket.part for bucket in buckets])
            parameters = self.data_link.submit(self._ring, "data", "all_gather", parts).result()
            columns = parameters.view(self.layout.data, -1).split(
                [len(bucket.part) for bucket in buckets], dim=1
            )
            for bucket, column in zip(buckets, columns, strict=True):
                bucket.whole.copy_(column.flatten())


# Layers split over tensor ranks: Megatron-LM's f and g (Shoeybi et al., 2019, section 3).


class _SumOverTensorRanks(torch.autograd.Function):
    """The sum in the forward pass (``now``: g), or that of the gradients in the backward pass
    (f).
    """

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, member: _Member, now: bool) -> torch.Tensor:
        ctx.member = None if now else member
        return member.sum_over_tensor_ranks(values) if now else values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return (
            gradient if ctx.member is None else ctx.member.sum_over_tensor_ranks(gradient),
            None,
            None,
        )


def _split_linears(part: nn.Module, plan: dict[str, str], member: _Member) -> None:
    """Leave of each planned nn.Linear a tensor rank's columns (rows of the weight) or rows."""
    for name, layer in part.named_modules():
        if name not in plan:
            continue
        cut_linear(layer, plan[name], ranks=member.layout.tensor, rank=member.tensor_rank)
        forward = _column_forward if plan[name] == "column" else _row_forward
        layer.forward = partial(forward, layer, member)


def _column_forward(layer: nn.Linear, member: _Member, inputs: torch.Tensor) -> torch.Tensor:
    return nn.functional.linear(
        _SumOverTensorRanks.apply(inputs, member, False), layer.weight, layer.bias
    )


def _row_forward(layer: nn.Linear, member: _Member, inputs: torch.Tensor) -> torch.Tensor:
    outputs = _SumOverTensorRanks.apply(nn.functional.linear(inputs, layer.weight), member, True)
    return outputs if layer.bias is None else outputs + layer.bias
