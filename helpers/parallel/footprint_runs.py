"""A rank's memory found by running its part of a step: on a fake process group in this process, and on real ranks.

Both run the same code: the stage's layers, split by DTensor over the tensor ranks and sharded by ``fully_shard`` over
the data ranks. On the fake group no rank but this one exists, no byte is sent, and tensors have shapes but no
elements, so that one process stands for any of thousands of ranks.
"""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from helpers.memory import allocations
from helpers.parallel import footprint as footprints
from helpers.parallel import schedules
from helpers.parallel.checks import batch_shape, whole_number
from helpers.parallel.execution import RankPool, rank_device
from helpers.parallel.footprint import Layout, OptimizerFactory, Plan, RankFootprint
from helpers.parallel.pipeline_execution import split_stages
from helpers.parallel.shapes import handed_on, number_type, without_values

_PHASES = ("built", "forward", "backward", "optimizer")
_REPEATS = 8


@dataclass(frozen=True)
class _Job:
    layout: Layout
    part: nn.Module
    rows: tuple[int, ...]
    dtype: torch.dtype
    plan: dict[str, str]
    optimizer: OptimizerFactory | None


def estimate_footprint(
    net: nn.Sequential,
    layout: Layout,
    *,
    inputs: Sequence[int],
    plan: Plan | None = None,
    optimizer: OptimizerFactory | None = None,
    ranks: Sequence[int] = (0,),
    schedule: str = "1f1b",
    microbatches: int | None = None,
) -> footprints.Footprint:
    """Return the bytes that each of ``ranks`` of ``layout`` keeps, activations too, without starting any of them.

    ``inputs`` is the shape of the whole batch, of the net's own type, its first dimension the rows, which the data
    ranks divide, and in a pipeline the ``microbatches`` (by default one a stage) of ``schedule`` ("gpipe", "1f1b",
    "zero_bubble"). A rank's part of one step runs on fake tensors and a fake process group of ``layout.ranks`` ranks; a
    pipeline keeps the activations of as many microbatches as the schedule has alive there. See
    :func:`footprint.count_footprint` for ``net`` (on any device, or on meta), ``plan``, ``optimizer``, and for how
    ZeRO-1 and 2 divide, which are counted, not run.

    Raises ValueError as :func:`footprint.count_footprint`, for rows that do not divide or on which the net cannot run,
    and for ranks that are not there; TypeError for ``inputs`` that are no shape; RuntimeError where a process group is
    already there, as on a rank. Lesson 05.
    """
    if dist.is_initialized():
        raise RuntimeError("this process is a rank already, and the estimate needs a process group of its own; "
                           "call it outside of Ranks(...).run and torchrun")  # fmt: skip
    if schedule == "interleaved":
        raise ValueError("here a rank has one stage of the pipeline; give schedule='gpipe', '1f1b' or 'zero_bubble'")
    if not ranks:
        raise ValueError("no rank to estimate: give at least one, as in ranks=(0,)")
    footprints.check_plan(net, plan or {}, layout.tensor)
    plan = dict(plan or {})
    parts = split_stages(net, layout.pipeline)
    several = layout.pipeline if microbatches is None else microbatches
    rows = _local_rows(inputs, layout, several)
    live = [
        schedules.live_activations(schedule, rank=stage, ranks=layout.pipeline, microbatches=several)
        for stage in range(layout.pipeline)
    ]
    entering = _entering(parts, torch.empty(rows, dtype=number_type(net), device="meta"))
    found = []
    for rank in ranks:
        stage = layout.place(rank)[0]
        given = entering[stage]
        job = _Job(layout, parts[stage], tuple(given.shape), given.dtype, plan, optimizer)
        found.append(_estimated(job, rank, live[stage]))
    return footprints.footprint_of(layout, found)


def measure_footprint(
    ranks: RankPool,
    net: nn.Sequential,
    *,
    inputs: Sequence[int],
    sharded: str = "parameters",
    plan: Plan | None = None,
    tensor: int = 1,
    optimizer: OptimizerFactory | None = None,
    timeout_s: float = 120.0,
) -> footprints.Footprint:
    """Return the bytes that real ``ranks`` keep, as their allocators handed them out: one step of training, measured.

    The ranks form a data x ``tensor`` layout. On a CPU every allocation of the step is recorded (PyTorch's profiler);
    on CUDA the caching allocator's count is read. Building, forward pass, backward pass and the optimizer's step are
    told apart by what each leaves alive, the least of a few steps; ``parameter_bytes`` includes the buffers. Arguments
    are those of :func:`estimate_footprint`; ``net`` must hold values.

    Raises ValueError as :func:`estimate_footprint`, for ZeRO-1 and 2, which PyTorch does not run in this form, and for
    tensor ranks that do not divide the ranks. Lesson 05.
    """
    if sharded in ("optimizer", "gradients"):
        raise ValueError(f"sharded={sharded!r} is counted and not run; measure 'nothing' or 'parameters'")
    if ranks.world_size % whole_number("tensor", tensor):
        raise ValueError(f"{ranks.world_size} ranks do not divide by {tensor} tensor ranks")
    layout = Layout(data=ranks.world_size // tensor, tensor=tensor, sharded=sharded)
    footprints.check_plan(net, plan or {}, tensor)
    plan = dict(plan or {})
    if any(each.is_meta for each in net.parameters()):
        raise ValueError("the net is on the meta device and holds no values; make it on a real one to measure it")
    job = _Job(layout, net, _local_rows(inputs, layout, 1), number_type(net), plan, optimizer)
    return footprints.footprint_of(layout, ranks.run(_measured, job, timeout_s=timeout_s))


def _entering(parts: Sequence[nn.Module], batch: torch.Tensor) -> list[torch.Tensor]:
    """Return what enters each stage, and what leaves the last, as empty meta tensors."""
    found = [batch]
    try:
        for part in parts:
            found.append(handed_on(part, found[-1]))
    except RuntimeError as error:
        raise ValueError(f"the net does not run on a rank's rows, {tuple(batch.shape)}: {error}") from None
    return found


def _local_rows(inputs: Sequence[int], layout: Layout, microbatches: int) -> tuple[int, ...]:
    parts = layout.data * whole_number("microbatches", microbatches)
    shape = batch_shape(inputs)
    if shape[0] % parts:
        raise ValueError(f"a batch of shape {shape} does not divide among {layout.data} data ranks and {microbatches} "
                         f"microbatches; give a multiple of {parts} rows")  # fmt: skip
    return (shape[0] // parts, *shape[1:])


# One rank's part of a step.


def _built(job: _Job, device: torch.device) -> nn.Module:
    """Return the rank's part as it lies on ``device``: split, then sharded. Every rank calls it."""
    part, layout = job.part, job.layout
    if layout.tensor == 1 and layout.sharded != "parameters":
        return part
    from torch.distributed.device_mesh import init_device_mesh

    sizes = (layout.pipeline, layout.data, layout.tensor)
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("pipeline", "data", "tensor"))
    if layout.tensor > 1:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        names = {name for name, _ in part.named_modules()}
        ways = {"column": ColwiseParallel, "row": RowwiseParallel}
        styles = {name: ways[way]() for name, way in job.plan.items() if name in names}
        if styles:
            parallelize_module(part, mesh["tensor"], styles, src_data_rank=None)  # every rank has the values
    if layout.sharded == "parameters":
        from torch.distributed.fsdp import fully_shard

        for layer in [*part.children(), part]:  # a unit a layer; none stays whole after its forward pass
            fully_shard(layer, mesh=mesh["data"], reshard_after_forward=True)
    return part


# On a fake process group.


def _estimated(job: _Job, rank: int, live: int) -> RankFootprint:
    saved: dict[int, int] = {}
    stage, layout = job.layout.place(rank)[0], job.layout
    device = torch.device("cpu")
    with _fake_group(rank, layout.ranks), FakeTensorMode(allow_non_fake_inputs=True):
        # Dealing out a thousand shards is fast on meta tensors, and slow on fake ones; all of them are then DTensors.
        late = layout.sharded == "parameters"
        with unset_fake_temporarily() if late else nullcontext():
            own = without_values(job.part, "meta" if late else device)
        with unset_fake_temporarily():  # a mesh is made of real tensors, and fake parameters stay fake
            part = _built(replace(job, part=own), device)
        if late:
            part = part.to_empty(device=device)
        batch = torch.empty(job.rows, dtype=job.dtype, requires_grad=stage > 0)
        held = _Storages(part)

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            own = held.now() if stage > 0 else held.now() | _storages([batch])
            saved.update({key: size for key, size in _storages([tensor]).items() if key not in own})
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = part(batch).sum()
        if loss.requires_grad:  # not where everything is frozen
            loss.backward()
        learning = [each for each in part.parameters() if each.requires_grad]
        gradients = _bytes([each.grad for each in learning if each.grad is not None])
        states = _state_bytes(_stepped(part, job.optimizer))
        kept = [_bytes(list(part.parameters())), _bytes(list(part.buffers())), gradients, states]
    if layout.sharded in ("optimizer", "gradients"):
        names = {name for name, _ in job.part.named_modules()}
        inside = {f"0.{name}": way for name, way in job.plan.items() if name in names}
        flat, alone = replace(layout, pipeline=1), nn.Sequential(job.part)
        counted = footprints.count_footprint(alone, flat, plan=inside, optimizer=job.optimizer).ranks[0]
        kept[2:] = [counted.gradient_bytes, counted.optimizer_bytes]
    return footprints.rank_footprint(rank, stage, *kept, activation_bytes=live * sum(saved.values()))


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
    """The storages of a module's parameters and buffers at this moment: gathered ones come and go."""

    def __init__(self, part: nn.Module) -> None:
        self.part = part

    def now(self) -> dict[int, int]:
        return _storages([*self.part.parameters(), *self.part.buffers()])


def _storages(tensors: Sequence[Any]) -> dict[int, int]:
    """Return the bytes of each distinct storage below ``tensors`` on this rank, by its address in PyTorch."""
    local = [getattr(each, "_local_tensor", each) for each in tensors]
    return {each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in local}


def _bytes(tensors: Sequence[Any]) -> int:
    return sum(_storages(tensors).values())


def _state_bytes(stepping: torch.optim.Optimizer | None) -> int:
    states = stepping.state.values() if stepping is not None else ()
    return _bytes([value for state in states for value in state.values() if torch.is_tensor(value)])


# On real ranks.


def _measured(rank: int, _world_size: int, job: _Job) -> RankFootprint:
    device = rank_device()
    once = _levels_on_cuda if device.type == "cuda" else _levels_on_cpu
    gc.collect()
    gc.freeze()  # so that the collections below look through the step's objects alone
    try:
        repeats = [once(job, device) for _ in range(_REPEATS)]
    finally:
        gc.unfreeze()
    # A release in a thread of gloo's is not recorded: that makes a level too high, and never too low.
    gained = {name: min(each[name] for each in repeats) for name in _PHASES}
    built, forward, backward, stepped = (gained[name] for name in _PHASES)
    return footprints.rank_footprint(rank, 0, built, 0, forward + backward, stepped, activation_bytes=forward)


def _levels_on_cpu(job: _Job, device: torch.device) -> dict[str, int]:
    """Return what each phase of a step, in the order of ``_PHASES``, left alive beyond the one before it."""
    batch = torch.zeros(job.rows, dtype=job.dtype)
    gc.collect()
    with allocations.recorded() as record:

        def mark(name: str) -> None:
            gc.collect()  # what only refers to itself is released before it would be counted
            record.mark(name)

        mark("built")
        part = _built(_moved(job, device), device)
        mark("forward")
        loss = part(batch).sum()
        mark("backward")
        loss.backward()
        mark("optimizer")
        stepping = _stepped(part, job.optimizer)
        mark("end")
    del stepping
    return {name: sum(record.window(name)) for name in _PHASES}


def _levels_on_cuda(job: _Job, device: torch.device) -> dict[str, int]:
    batch = torch.zeros(job.rows, dtype=job.dtype, device=device)
    levels: list[int] = []

    def mark() -> None:
        gc.collect()
        torch.cuda.synchronize(device)
        levels.append(torch.cuda.memory_allocated(device))

    mark()
    part = _built(_moved(job, device), device)
    mark()
    loss = part(batch).sum()
    mark()
    loss.backward()
    mark()
    stepping = _stepped(part, job.optimizer)
    mark()
    del stepping
    return {name: after - before for name, (before, after) in zip(_PHASES, pairwise(levels), strict=True)}


def _stepped(part: nn.Module, optimizer: OptimizerFactory | None) -> torch.optim.Optimizer | None:
    """Return the optimizer after its step; its state is alive as long as it is."""
    learning = [each for each in part.parameters() if each.requires_grad]
    if optimizer is None or not learning:
        return None
    stepping = optimizer(learning)
    stepping.step()
    return stepping


def _moved(job: _Job, device: torch.device) -> _Job:
    return replace(job, part=copy.deepcopy(job.part).to(device))
