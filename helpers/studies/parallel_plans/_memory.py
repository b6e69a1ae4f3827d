"""A rank's memory found by running its part of a step: on a fake process group in this process, and
on real ranks.

Both run the same code: the stage's layers, split by DTensor over the tensor ranks and sharded by
``fully_shard`` over the data ranks. On the fake group no rank but this one exists, no byte is sent,
and tensors have shapes but no elements, so that one process stands for any of thousands of ranks.
"""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.autograd.graph import GradientEdge, get_gradient_edge

from helpers.checks import batch_shape
from helpers.memory import _allocator as allocator
from helpers.parallel.pipeline import _schedules as schedules
from helpers.parallel.pipeline._schedules import BACKWARD, FORWARD
from helpers.parallel.pipeline._stages import split_stages
from helpers.studies.data_parallel._execution import RankPool, rank_device
from helpers.studies.parallel_plans import _footprint as footprints
from helpers.studies.parallel_plans._footprint import (
    Layout,
    OptimizerFactory,
    Plan,
    RankFootprint,
    empty_output,
    number_type,
    without_values,
)

_REPEATS, _SHARDED_REPEATS = 8, 16  # a sharded step is too high in two to four of ten


@dataclass(frozen=True)
class _FootprintJob:
    layout: Layout
    part: nn.Sequential
    rows: tuple[int, ...]
    dtype: torch.dtype
    plan: dict[str, str]
    optimizer: OptimizerFactory | None
    schedule: str
    microbatches: int


def estimate_footprint(
    net: nn.Sequential,
    layout: Layout,
    *,
    inputs: Sequence[int],
    plan: Plan | None = None,
    optimizer: OptimizerFactory | None = None,
    ranks: Sequence[int] | None = None,
    schedule: str = "1f1b",
    microbatches: int | None = None,
) -> footprints.Footprint:
    """Return the bytes that each of ``ranks`` of ``layout`` keeps, activations too, without
    starting any of them.

    ``ranks`` are by default the first of each stage. No rank of a stage keeps more than its first,
    so that ``largest_bytes`` is then the most that any rank of the layout keeps. ``inputs`` is the
    shape of the whole batch, of the net's own type, its first dimension the rows, which the data
    ranks divide, and in a pipeline the ``microbatches`` (by default one a stage) of ``schedule``
    ("gpipe", "1f1b", "zero_bubble"). A rank's part of one step runs on fake tensors and a fake
    process group of ``layout.ranks`` ranks; a pipeline keeps the activations of as many
    microbatches as the schedule has alive there. See :func:`footprint.count_footprint` for ``net``
    (on any device, or on meta), ``plan``, ``optimizer``, and for how ZeRO-1 and 2 divide, which are
    counted, not run.

    Raises ValueError as :func:`footprint.count_footprint`, for rows that do not divide or on which
    the net cannot run, and for ranks that are not there; TypeError for ``inputs`` that are no
    shape; RuntimeError where a process group is already there, as on a rank. Lesson 06.
    """
    if dist.is_initialized():
        raise RuntimeError(
            "this process is a rank already, and the estimate needs a process group of its own; "
            "call it outside of Ranks(...).run and torchrun"
        )
    if schedule == "interleaved":
        raise ValueError(
            "here a rank has one stage of the pipeline; give schedule='gpipe', '1f1b' or "
            "'zero_bubble'"
        )
    footprints.check_layout(layout)
    chosen = range(0, layout.ranks, layout.data * layout.tensor) if ranks is None else ranks
    if not chosen:
        raise ValueError("no rank to estimate: give at least one, as in ranks=(0,)")
    jobs = _jobs(net, layout, inputs, plan, optimizer, schedule, microbatches)
    rank_footprints = []
    for rank in chosen:
        stage = layout.place(rank)[0]
        live = schedules.live_activations(
            schedule, rank=stage, ranks=layout.pipeline, microbatches=jobs[stage].microbatches
        )
        rank_footprints.append(_estimate_rank(jobs[stage], rank, live))
    return footprints.footprint_of(
        layout, rank_footprints, schedule=schedule, microbatches=jobs[0].microbatches
    )


def measure_footprint(
    ranks: RankPool,
    net: nn.Sequential,
    layout: Layout,
    *,
    inputs: Sequence[int],
    plan: Plan | None = None,
    optimizer: OptimizerFactory | None = None,
    schedule: str = "1f1b",
    microbatches: int | None = None,
    timeout_s: float = 120.0,
) -> footprints.Footprint:
    """Return the bytes that real ``ranks`` of ``layout`` keep, as their allocators handed them out
    in training.

    Each rank makes two backward passes of the whole ``schedule`` ("gpipe" or "1f1b") and a step of
    the ``optimizer`` within ``timeout_s``; stages send each other what they must. On a CPU every
    allocation is recorded (PyTorch's profiler), on CUDA the caching allocator's count is read:
    after building (``parameter_bytes``, with the buffers), after the first backward pass
    (gradients), after each microbatch of the second (activations: the most that are alive at once),
    and after the optimizer; each is the least of a few tries. ``inputs`` (a shape), ``plan`` and
    ``microbatches`` are those of :func:`estimate_footprint`; ``net`` must hold values.

    Raises ValueError as :func:`estimate_footprint`, for ZeRO-1 and 2, which PyTorch does not run in
    this form, for a layout of more or fewer ranks than there are, and for another schedule. Lesson
    06.
    """
    if footprints.check_layout(layout).sharded in ("optimizer", "gradients"):
        raise ValueError(
            f"sharded={layout.sharded!r} is counted and not run; measure 'nothing' or 'parameters'"
        )
    if ranks.world_size != layout.ranks:
        raise ValueError(
            f"a layout of {layout.ranks} ranks is measured on as many, and there are "
            f"{ranks.world_size}; give another layout, or other ranks"
        )
    if schedule not in ("gpipe", "1f1b"):
        raise ValueError(
            f"schedule is {schedule!r}, and 'gpipe' and '1f1b' are run here; give one of these"
        )
    if any(parameter.is_meta for parameter in net.parameters()):
        raise ValueError(
            "the net is on the meta device and holds no values; make it on a real one to measure it"
        )
    jobs = _jobs(net, layout, inputs, plan, optimizer, schedule, microbatches)
    rank_footprints = ranks.run(_measure_rank, jobs, timeout_s=timeout_s)
    return footprints.footprint_of(
        layout, rank_footprints, schedule=schedule, microbatches=jobs[0].microbatches
    )


def _jobs(
    net: nn.Sequential,
    layout: Layout,
    inputs: Sequence[int],
    plan: Plan | None,
    optimizer: OptimizerFactory | None,
    schedule: str,
    microbatches: int | None,
) -> list[_FootprintJob]:
    """Return the job of a rank of each stage: a microbatch of its data rank's rows."""
    footprints.check_plan(net, plan or {}, layout.tensor)
    parts = split_stages(net, layout.pipeline)
    microbatch_count = layout.pipeline if microbatches is None else microbatches
    rows = _local_rows(inputs, layout, microbatch_count)
    schedules.check(schedule, ranks=layout.pipeline, microbatches=microbatch_count, chunks=1)
    stage_inputs = _stage_inputs(parts, torch.empty(rows, dtype=number_type(net), device="meta"))
    return [
        _FootprintJob(
            layout,
            part,
            tuple(stage_input.shape),
            stage_input.dtype,
            dict(plan or {}),
            optimizer,
            schedule,
            microbatch_count,
        )
        for part, stage_input in zip(parts, stage_inputs, strict=False)
    ]


def _stage_inputs(parts: Sequence[nn.Sequential], batch: torch.Tensor) -> list[torch.Tensor]:
    """Return the input of each stage, and the output of the last, as empty meta tensors."""
    tensors = [batch]
    try:
        for part in parts:
            tensors.append(empty_output(part, tensors[-1]))
    except RuntimeError as error:
        raise ValueError(
            f"the net does not run on a rank's rows, {tuple(batch.shape)}: {error}"
        ) from None
    return tensors


def _local_rows(inputs: Sequence[int], layout: Layout, microbatches: int) -> tuple[int, ...]:
    rows, *rest = batch_shape(inputs)
    return footprints.check_rows(rows, layout, microbatches), *rest


# One rank's part of a step.


def _build_part(job: _FootprintJob, device: torch.device) -> nn.Module:
    """Return the rank's part as it lies on ``device``: split, then sharded. Every rank calls it."""
    part, layout = job.part, job.layout
    if layout.tensor == 1 and layout.sharded != "parameters":
        return part
    from torch.distributed.device_mesh import init_device_mesh

    sizes = (layout.pipeline, layout.data, layout.tensor)
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("pipeline", "data", "tensor"))
    if layout.tensor > 1:
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        names = {name for name, _ in part.named_modules()}
        style_classes = {"column": ColwiseParallel, "row": RowwiseParallel}
        styles = {name: style_classes[style]() for name, style in job.plan.items() if name in names}
        if styles:
            # every rank has the values
            parallelize_module(part, mesh["tensor"], styles, src_data_rank=None)
    if layout.sharded == "parameters":
        from torch.distributed.fsdp import fully_shard

        # a unit a layer; none stays whole after its forward pass
        for layer in [*part.children(), part]:
            fully_shard(layer, mesh=mesh["data"], reshard_after_forward=True)
    return part


# On a fake process group.


def _estimate_rank(job: _FootprintJob, rank: int, live: int) -> RankFootprint:
    saved_storages: dict[int, int] = {}
    stage, layout = job.layout.place(rank)[0], job.layout
    device = torch.device("cpu")
    with _fake_group(rank, layout.ranks), FakeTensorMode(allow_non_fake_inputs=True):
        # Dealing out a thousand shards is fast on meta tensors, and slow on fake ones; all of them
        # are then DTensors.
        late = layout.sharded == "parameters"
        with unset_fake_temporarily() if late else nullcontext():
            empty_part = without_values(job.part, "meta" if late else device)
        # a mesh is made of real tensors, and fake parameters stay fake
        with unset_fake_temporarily():
            part = _build_part(replace(job, part=empty_part), device)
        if late:
            part = part.to_empty(device=device)
        batch = torch.empty(job.rows, dtype=job.dtype, requires_grad=stage > 0)
        storages = _Storages(part)

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            held_storages = storages.now() if stage > 0 else storages.now() | _storages([batch])
            saved_storages.update(
                {key: size for key, size in _storages([tensor]).items() if key not in held_storages}
            )
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = part(batch).sum()
        if loss.requires_grad:  # not where everything is frozen
            loss.backward()
        learning = [parameter for parameter in part.parameters() if parameter.requires_grad]
        gradients = _bytes([parameter.grad for parameter in learning if parameter.grad is not None])
        states = _state_bytes(_step_optimizer(part, job.optimizer))
        sizes = _bytes(list(part.parameters())), _bytes(list(part.buffers())), gradients, states
    if layout.sharded in ("optimizer", "gradients"):
        names = {name for name, _ in job.part.named_modules()}
        stage_plan = {f"0.{name}": style for name, style in job.plan.items() if name in names}
        flat, alone = replace(layout, pipeline=1), nn.Sequential(job.part)
        footprint = footprints.count_footprint(
            alone, flat, plan=stage_plan, optimizer=job.optimizer
        ).ranks[0]
        sizes = *sizes[:2], footprint.gradient_bytes, footprint.optimizer_bytes
    return footprints.rank_footprint(
        rank, stage, *sizes, activation_bytes=live * sum(saved_storages.values())
    )


@contextmanager
def _fake_group(rank: int, world_size: int) -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of FSDP, about a CPU
            yield
    finally:
        dist.destroy_process_group()


class _Storages:
    """The storages of a module's parameters and buffers at this moment: gathered ones come and
    go.
    """

    def __init__(self, part: nn.Module) -> None:
        self.part = part

    def now(self) -> dict[int, int]:
        return _storages([*self.part.parameters(), *self.part.buffers()])


def _storages(tensors: Sequence[Any]) -> dict[int, int]:
    """Return the bytes of each distinct storage below ``tensors`` on this rank, by its address in
    PyTorch.
    """
    local = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]
    return {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in local}


def _bytes(tensors: Sequence[Any]) -> int:
    return sum(_storages(tensors).values())


def _state_bytes(stepping: torch.optim.Optimizer | None) -> int:
    states = stepping.state.values() if stepping is not None else ()
    return _bytes([value for state in states for value in state.values() if torch.is_tensor(value)])


# On real ranks.


def _measure_rank(rank: int, _world_size: int, jobs: list[_FootprintJob]) -> RankFootprint:
    device = rank_device()
    levels_of = _levels_on_cuda if device.type == "cuda" else _levels_on_cpu
    stage, neighbour = jobs[0].layout.place(rank)[0], jobs[0].layout.data * jobs[0].layout.tensor
    member = _FootprintMember(jobs[stage], stage, rank - neighbour, rank + neighbour, device)
    gc.collect()
    gc.freeze()  # so that the collections below look through the step's objects alone
    try:
        tries = _SHARDED_REPEATS if jobs[0].layout.sharded == "parameters" else _REPEATS
        repeats = [_parts(levels_of(member)) for _ in range(tries)]
    finally:
        gc.unfreeze()
    # A release in a thread of gloo's is not recorded: that makes a level too high, and never too
    # low.
    built, gradients, activations, states = (min(level) for level in zip(*repeats, strict=True))
    return footprints.rank_footprint(
        rank, stage, built, 0, gradients, states, activation_bytes=activations
    )


def _parts(levels: list[int]) -> tuple[int, int, int, int]:
    """Return the bytes that building, the first backward pass, the second's microbatches and the
    optimizer put on top.
    """
    start, after_building, after_backward, *during, after_step = levels
    return (
        after_building - start,
        after_backward - after_building,
        max(during) - after_backward,
        after_step - during[-1],
    )


class _FootprintMember:
    """A rank as it trains its stage: sends, receives, and keeps of each microbatch what autograd
    keeps.
    """

    def __init__(
        self, job: _FootprintJob, stage: int, before: int, after: int, device: torch.device
    ) -> None:
        self.job, self.stage, self.before, self.after, self.device = (
            job,
            stage,
            before,
            after,
            device,
        )
        self.is_first, self.is_last = stage == 0, stage == job.layout.pipeline - 1
        batch = torch.zeros(job.rows, dtype=job.dtype, device=device)
        self.batch = batch if self.is_first else None
        leaving = torch.zeros_like(empty_output(job.part, batch), device=device)
        # What is on its way has places of its own, made before anything is counted.
        self.outgoing = {
            FORWARD: [torch.empty_like(leaving) for _ in range(job.microbatches)],
            BACKWARD: [torch.empty_like(batch) for _ in range(job.microbatches)],
        }
        self.arriving = torch.empty_like(leaving)
        self.sending: list[dist.Work] = []
        self.passes: dict[int, tuple[torch.Tensor | None, GradientEdge]] = {}

    def train(self, mark: Callable[[], None]) -> None:
        """Build the stage and train it, and call ``mark`` wherever :func:`_parts` wants to know
        what is alive.
        """
        mark()
        part = _build_part(_move_job(self.job, self.device), self.device)
        mark()
        self._pass(part, lambda: None)
        mark()
        self._pass(part, mark)
        stepping = _step_optimizer(part, self.job.optimizer)
        mark()
        del stepping

    def _pass(self, part: nn.Module, mark: Callable[[], None]) -> None:
        order = schedules.rank_order(
            self.job.schedule,
            rank=self.stage,
            ranks=self.job.layout.pipeline,
            microbatches=self.job.microbatches,
        )
        for kind, _, microbatch in order:
            if kind == FORWARD:
                self._forward(part, microbatch)
            else:
                self._backward(microbatch)
            mark()
        for request in self.sending:
            request.wait()
        self.sending.clear()

    def _forward(self, part: nn.Module, microbatch: int) -> None:
        entering = self.batch
        if not self.is_first:
            entering = torch.empty(self.job.rows, dtype=self.job.dtype, device=self.device)
            dist.recv(entering, self.before)
            entering.requires_grad_()
        leaving = part(entering)
        if self.is_last:
            leaving = leaving.sum()
        else:
            self._send(leaving.detach(), FORWARD, microbatch, self.after)
        # Of the output only its place in the graph is kept: nobody reads its values again.
        self.passes[microbatch] = entering, get_gradient_edge(leaving)

    def _backward(self, microbatch: int) -> None:
        entering, edge = self.passes.pop(microbatch)
        if not self.is_last:
            dist.recv(self.arriving, self.after)
        torch.autograd.backward([edge], None if self.is_last else [self.arriving])
        if entering is not None and not self.is_first:
            assert entering.grad is not None  # what another stage sent takes one
            self._send(entering.grad, BACKWARD, microbatch, self.before)

    def _send(self, values: torch.Tensor, kind: str, microbatch: int, to: int) -> None:
        buffer = self.outgoing[kind][microbatch].copy_(values)
        request = dist.isend(buffer, to)
        assert request is not None  # both are in the group
        self.sending.append(request)


def _levels_on_cpu(member: _FootprintMember) -> list[int]:
    """Return the bytes alive at each mark of a training."""
    names: list[str] = []
    with allocator.record_allocations() as record:

        def mark() -> None:
            gc.collect()  # what only refers to itself is released before it would be counted
            names.append(str(len(names)))
            record.mark(names[-1])

        member.train(mark)
    return list(accumulate((sum(record.window(name)) for name in names[:-1]), initial=0))


def _levels_on_cuda(member: _FootprintMember) -> list[int]:
    levels: list[int] = []

    def mark() -> None:
        gc.collect()
        torch.cuda.synchronize(member.device)
        levels.append(torch.cuda.memory_allocated(member.device))

    member.train(mark)
    return levels


def _step_optimizer(
    part: nn.Module, optimizer: OptimizerFactory | None
) -> torch.optim.Optimizer | None:
    """Return the optimizer after its step; its state is alive as long as it is."""
    learning = [parameter for parameter in part.parameters() if parameter.requires_grad]
    if optimizer is None or not learning:
        return None
    stepping = optimizer(learning)
    stepping.step()
    return stepping


def _move_job(job: _FootprintJob, device: torch.device) -> _FootprintJob:
    return replace(job, part=copy.deepcopy(job.part).to(device))
