"""A rank of a layout as it trains: its part of the net, its sleeping device, its slow links.

Started by :func:`helpers.layouts.execution.execute_strategies`, and only there.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from helpers.layouts.costs import LayerWork
from helpers.links import Link, Port, Recorder, sleep_until
from helpers.parallel.collectives import Collective, collective
from helpers.parallel.costs import bucket_layers
from helpers.parallel.data_parallel import shard
from helpers.parallel.execution import execute
from helpers.parallel.footprint import Layout
from helpers.parallel.pipeline import orders
from helpers.parallel.pipeline.orders import BACKWARD, FORWARD
from helpers.parallel.pipeline.stages import split_stages
from helpers.parallel.shapes import handed_on

LEARNING_RATE = 0.1

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Groups = dict[tuple[int, ...], Any]


def neighbours(layout: Layout, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks with which ``rank`` shares gradients and those with which it shares layers."""
    stage, data_rank, tensor_rank = layout.place(rank)
    first = stage * layout.data * layout.tensor
    return (tuple(first + each * layout.tensor + tensor_rank for each in range(layout.data)),
            tuple(first + data_rank * layout.tensor + each for each in range(layout.tensor)))  # fmt: skip


@dataclass(frozen=True)
class Job:
    """What every rank is told: the cases, the net, what its layers take, and how to train. For the library itself."""

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


class _Wire:
    """Rings among a group of ranks over a slow link, and how much this rank has sent over them."""

    def __init__(self, members: tuple[int, ...], groups: Groups, link: Link, recorder: Recorder, lane: str) -> None:
        self.ranks, self.link, self.recorder, self.lane = len(members), link, recorder, lane
        self.group = groups.get(members)
        self.sent_bytes = 0
        self._planned: dict[tuple[str, int, int], Collective] = {}

    def ring(self, operation: str, values: torch.Tensor) -> torch.Tensor:
        """Carry ``operation`` out on flat ``values``, for an all-gather this rank's equal part."""
        whole = values.numel() * (self.ranks if operation == "all_gather" else 1)
        key = (operation, whole, values.element_size())
        if key not in self._planned:
            self._planned[key] = collective(operation, "ring", world_size=self.ranks, length=whole,
                                            element_bytes=values.element_size())  # fmt: skip
        planned, me = self._planned[key], dist.get_rank(self.group)
        self.sent_bytes += sum(each.size_bytes for each in planned.messages if each.source == me)
        with self.recorder.activity(self.lane, kind=operation.replace("_", "-")):
            return execute(planned, values, link=self.link, group=self.group)


class Member:
    """A rank of a layout: its part of the net, its device's clock, its links. For the library itself."""

    def __init__(self, rank: int, layout: Layout, microbatches: int, *, job: Job, groups: Groups) -> None:
        self.rank, self.layout, self.microbatches, self.job = rank, layout, microbatches, job
        self.stage, self.data_rank, self.tensor_rank = layout.place(rank)
        self.recorder, self.ends_s = Recorder(), 0.0
        data, tensor = neighbours(layout, rank)
        self.data = _Wire(data, groups, job.link, self.recorder, f"rank {rank} data")
        self.tensor = _Wire(tensor, groups, job.link, self.recorder, f"rank {rank} tensor")
        self.port, self.pipeline_bytes = Port(job.link), 0
        self.sending: list[tuple[dist.Work, torch.Tensor]] = []
        stages = split_stages(job.net, layout.pipeline)
        self.part = copy.deepcopy(stages[self.stage])
        if layout.tensor > 1:
            _split_linears(self.part, job.plan, self)
        self.layers = list(self.part)
        self.parameters = [list(each.parameters()) for each in self.layers]
        first = self.stage * len(self.layers)
        self.work = job.work[first : first + len(self.layers)]
        own = [shard(each, self.data_rank, world_size=layout.data) for each in (job.inputs, job.targets)]
        self.batches, self.targets = (each.chunk(microbatches) for each in own)
        self.incoming = torch.empty_like(handed_on(stages[: self.stage], self.batches[0]), device="cpu")
        sizes = [sum(each.numel() * each.element_size() for each in layer) for layer in self.parameters]
        self.sharded = layout.sharded == "parameters" and layout.data > 1
        buckets = bucket_layers(sizes, bucket_bytes=1 if self.sharded else job.bucket_bytes)
        self.buckets = {min(inside): [each for place in inside for each in self.parameters[place]]
                        for inside in buckets}  # fmt: skip
        self.wholes: dict[int, torch.Tensor] = {}
        self.shards: dict[int, torch.Tensor] = {}
        if self.sharded:
            for place, parameters in self.buckets.items():
                self._shard(place, parameters)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="data link")
        self.reduced: list[tuple[int, Future]] = []
        self.passes: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def step(self) -> None:
        """Carry all microbatches forward and backward, exchange, and update the parameters."""
        self.recorder.activities.clear()
        self.data.sent_bytes = self.tensor.sent_bytes = self.pipeline_bytes = 0
        for kind, _, microbatch in orders.rank_order(
            self.job.schedule, rank=self.stage, ranks=self.layout.pipeline, microbatches=self.microbatches
        ):
            (self._forward if kind == FORWARD else self._backward)(microbatch)
        for request, _ in self.sending:
            request.wait()
        self.sending.clear()
        with torch.no_grad():
            self._update()
        self.part.zero_grad()

    def report(self) -> dict[str, Any]:
        """Return what the rank did in the last step, and its parameters, gathered where they are sharded."""
        found = {"data": self.data.sent_bytes, "tensor": self.tensor.sent_bytes, "pipeline": self.pipeline_bytes,
                 "activities": list(self.recorder.activities)}  # fmt: skip
        for place in self.shards:
            self._unshard(place).result()
        self.thread.shutdown()
        return found | {"parameters": {name: each.detach().clone() for name, each in self.part.named_parameters()}}

    # Passes.

    def _forward(self, microbatch: int) -> None:
        learns = self.stage > 0
        value = self._receive(self.stage - 1, self.incoming) if learns else self.batches[microbatch]
        passes, start_s = [], time.perf_counter()
        for place in self._whole_in_turn(range(len(self.layers))):
            given = value.detach().requires_grad_(learns)
            with self._device(self.work[place], self.work[place].forward_s):
                value = self.layers[place](given)
            passes.append((given, value))
            learns = value.requires_grad
        self._note(FORWARD, start_s, microbatch)
        self.passes[microbatch] = passes
        if self.stage < self.layout.pipeline - 1:
            self._send(self.stage + 1, value.detach())

    def _backward(self, microbatch: int) -> None:
        passes = self.passes.pop(microbatch)
        if self.stage == self.layout.pipeline - 1:
            output = passes[-1][1].detach().requires_grad_()
            (self.job.loss(output, self.targets[microbatch]) / (self.microbatches * self.layout.data)).backward()
            gradient = output.grad
        else:
            gradient = self._receive(self.stage + 1, passes[-1][1])
        start_s = time.perf_counter()
        each_time = self.layout.sharded in ("gradients", "parameters")
        reduces = self.layout.data > 1 and (each_time or microbatch == self.microbatches - 1)
        for place in self._whole_in_turn(range(len(self.layers) - 1, -1, -1)):
            given, output = passes[place]
            with self._device(self.work[place], self.work[place].backward_s):
                if output.requires_grad:
                    output.backward(gradient)
            gradient = given.grad
            if reduces and place in self.buckets:
                self._reduce(place)
        self._note(BACKWARD, start_s, microbatch)
        if self.stage > 0:
            self._send(self.stage - 1, gradient)

    def _whole_in_turn(self, places: Sequence[int]) -> Iterator[int]:
        """Yield the layers' places; where parameters are sharded, once they are whole, the next on their way."""
        coming = self._unshard(places[0])
        for place, following in zip(places, [*places[1:], None], strict=True):
            if coming is not None:
                coming.result()
            coming = None if following is None else self._unshard(following)
            yield place
            if place in self.wholes:  # what fully_shard frees; whoever uses it now gets no number
                self.wholes[place].fill_(float("nan"))

    @contextmanager
    def _device(self, work: LayerWork, whole_s: float) -> Iterator[None]:
        """Let the block take the device's time; what it waits for tensor ranks comes on top."""
        split = work.split_share * (1 - 1 / self.layout.tensor)
        self.ends_s = time.perf_counter() + whole_s * (1 - split) / (self.layout.data * self.microbatches)
        yield
        sleep_until(self.ends_s)

    def sum_over_tensor_ranks(self, value: torch.Tensor) -> torch.Tensor:
        """Return the sum of the tensor ranks' ``value``; the device waits."""
        start_s = time.perf_counter()
        summed = self.tensor.ring("all_reduce", value.detach().flatten()).view_as(value)
        self.ends_s += time.perf_counter() - start_s
        return summed

    def _note(self, kind: str, start_s: float, microbatch: int) -> None:
        self.recorder.add(f"rank {self.rank}", start_s, time.perf_counter(), kind=kind, label=str(microbatch))

    # Stages.

    def _peer(self, stage: int) -> int:
        return (stage * self.layout.data + self.data_rank) * self.layout.tensor + self.tensor_rank

    def _send(self, stage: int, value: torch.Tensor) -> None:
        """Hand ``value`` over with the moment at which the link will have carried it; nobody waits here."""
        size = value.nbytes
        start_s, end_s = self.port.occupy(size, from_s=time.perf_counter())
        self.recorder.add(f"rank {self.rank} pipeline", start_s, end_s, kind="send")
        self.pipeline_bytes += size
        stamped = torch.cat([torch.tensor([end_s], dtype=torch.float64).view(torch.uint8), _as_bytes(value)])
        self.sending.append((dist.isend(stamped, self._peer(stage)), stamped))

    def _receive(self, stage: int, like: torch.Tensor) -> torch.Tensor:
        stamp_bytes = torch.float64.itemsize
        stamped = torch.empty(stamp_bytes + like.nbytes, dtype=torch.uint8)
        dist.recv(stamped, self._peer(stage))
        sleep_until(stamped[:stamp_bytes].view(torch.float64).item())
        return stamped[stamp_bytes:].clone().view(like.dtype).view(like.shape)

    # Data ranks.

    def _shard(self, place: int, parameters: Sequence[nn.Parameter]) -> None:
        """Let the parameters of a layer be views of one buffer, and keep this rank's part of it apart."""
        whole = self.wholes[place] = _flat(parameters, self.layout.data)
        self.shards[place] = self._mine(whole)
        for each, view in zip(parameters, _views(whole, parameters), strict=True):
            each.data = view
        whole.fill_(float("nan"))

    def _unshard(self, place: int) -> Future | None:
        """Gather a layer's parameters, where they are sharded, on the link; the future ends when they are whole."""

        def gather() -> None:
            self.wholes[place].copy_(self.data.ring("all_gather", self.shards[place]))

        return self.thread.submit(gather) if place in self.shards else None

    def _mine(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.chunk(self.layout.data)[self.data_rank].clone()

    def _reduce(self, place: int) -> None:
        """Put a bucket's gradients on the link."""
        parameters = self.buckets[place]
        flat = _flat([each.grad for each in parameters], self.layout.data)
        operation = "all_reduce" if self.layout.sharded == "nothing" else "reduce_scatter"
        self.reduced.append((place, self.thread.submit(self.data.ring, operation, flat)))
        for each in parameters:
            each.grad = None

    def _update(self) -> None:
        """Wait for all gradients, and step: on the whole parameters or on this rank's part of them."""
        summed: dict[int, torch.Tensor] = {}
        for place, work in self.reduced:
            summed[place] = summed[place] + work.result() if place in summed else work.result()
        self.reduced.clear()
        if self.layout.data == 1:
            for each in self.part.parameters():
                each -= LEARNING_RATE * each.grad
        elif self.layout.sharded == "nothing":
            for place, flat in summed.items():
                for each, gradient in zip(self.buckets[place], _views(flat, self.buckets[place]), strict=True):
                    each -= LEARNING_RATE * gradient
        elif self.sharded:
            for place, flat in summed.items():
                self.shards[place] -= LEARNING_RATE * flat
        else:
            self._update_parts(summed)

    def _update_parts(self, summed: dict[int, torch.Tensor]) -> None:
        """Step on this rank's part of each bucket, and gather all parts."""
        parts = [self._mine(_flat(self.buckets[place], self.layout.data)) - LEARNING_RATE * flat
                 for place, flat in summed.items()]  # fmt: skip
        gathered = self.thread.submit(self.data.ring, "all_gather", torch.cat(parts)).result()
        columns = gathered.view(self.layout.data, -1).split([len(each) for each in parts], dim=1)
        for place, column in zip(summed, columns, strict=True):
            for each, value in zip(self.buckets[place], _views(column.flatten(), self.buckets[place]), strict=True):
                each.copy_(value)


def _as_bytes(value: torch.Tensor) -> torch.Tensor:
    return value.detach().contiguous().flatten().view(torch.uint8)


def _flat(tensors: Sequence[torch.Tensor], parts: int) -> torch.Tensor:
    """Return the tensors end to end, filled up with zeros so that ``parts`` divide them."""
    flat = torch.cat([each.detach().flatten() for each in tensors])
    return nn.functional.pad(flat, (0, -len(flat) % parts))


def _views(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    sizes = [each.numel() for each in like]
    pieces = flat[: sum(sizes)].split(sizes)
    return [piece.view(each.shape) for piece, each in zip(pieces, like, strict=True)]


# Layers split over tensor ranks: Megatron-LM's f and g (Shoeybi et al., 2019, section 3).


class _SplitLinear(nn.Module):
    """A tensor rank's columns (rows of the weight) or rows of an nn.Linear."""

    def __init__(self, whole: nn.Linear, way: str, member: Member) -> None:
        super().__init__()
        self.way, self.member = way, member
        part = whole.weight.chunk(member.layout.tensor, dim=0 if way == "column" else 1)[member.tensor_rank]
        self.weight = nn.Parameter(part.detach().clone())
        bias = whole.bias
        if bias is not None and way == "column":
            bias = bias.chunk(member.layout.tensor)[member.tensor_rank]
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.way == "column":
            return nn.functional.linear(_Enter.apply(inputs, self.member), self.weight, self.bias)
        summed = _Leave.apply(nn.functional.linear(inputs, self.weight), self.member)
        return summed if self.bias is None else summed + self.bias


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, member: Member) -> torch.Tensor:
        ctx.member = member
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.member.sum_over_tensor_ranks(gradient), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, outputs: torch.Tensor, member: Member) -> torch.Tensor:
        return member.sum_over_tensor_ranks(outputs)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def _split_linears(part: nn.Module, plan: dict[str, str], member: Member) -> None:
    for name, layer in list(part.named_modules()):
        if name in plan:
            parent, _, last = name.rpartition(".")
            setattr(part.get_submodule(parent), last, _SplitLinear(layer, plan[name], member))
