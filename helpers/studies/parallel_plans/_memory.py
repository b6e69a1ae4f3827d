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
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.autograd.graph import get_gradient_edge

from helpers.checks import batch_shape
from helpers.memory import _allocator as allocator
from helpers.parallel.pipeline._schedules import live_activations
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
    state_tensors,
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


def estimate_footprint(
    net: nn.Sequential,
    layout: Layout,
    *,
    inputs: Sequence[int],
    plan: Plan | None = None,
    optimizer: OptimizerFactory | None = None,
    ranks: Sequence[int] | None = None,
) -> footprints.Footprint:
    """Return the bytes that each of ``ranks`` of ``layout`` keeps, activations too, without
    starting any of them.

    ``ranks`` are by default the first of each stage. No rank of a stage keeps more than its first,
    so that ``largest_bytes`` is then the most that any rank of the layout keeps. ``inputs`` is the
    shape of the whole batch, of the net's own type, its first dimension the rows, which the data
    ranks divide, and in a pipeline the microbatches, one a stage. A rank's part of one step runs on
    fake tensors and a fake process group of ``layout.ranks`` ranks; a stage keeps the activations
    of as many microbatches as 1F1B has alive there. See :func:`footprint.count_footprint` for
    ``net`` (on any device, or on meta), ``plan`` and ``optimizer``.

    Raises ValueError as :func:`footprint.count_footprint`, for ZeRO-1 and 2, which PyTorch does not
    run in this form, for rows that do not divide or on which the net cannot run, and for ranks that
    are not there; TypeError for ``inputs`` that are no shape; RuntimeError where a process group is
    already there, as on a rank. Lesson 06.
    """
    if dist.is_initialized():
        raise RuntimeError(
            "this process is a rank already, and the estimate needs a process group of its own; "
            "call it outside of Ranks(...).run and torchrun"
        )
    _check_runs(layout)
    chosen = range(0, layout.ranks, layout.data * layout.tensor) if ranks is None else ranks
    if not chosen:
        raise ValueError("no rank to estimate: give at least one, as in ranks=(0,)")
    jobs = _jobs(net, layout, inputs, plan, optimizer)
    return footprints.footprint_of(
        layout, [_estimate_rank(jobs[layout.place(rank)[0]], rank) for rank in chosen]
    )


def measure_footprint(
    ranks: RankPool,
    net: nn.Sequential,
    layout: Layout,
    *,
    inputs: Sequence[int],
    plan: Plan | None = None,
    optimizer: OptimizerFactory | None = None,
    timeout_s: float = 120.0,
) -> footprints.Footprint:
    """Return the bytes that real ``ranks`` of ``layout`` keep, as their allocators handed them out
    in training.

    Each rank makes two backward passes and a step of the ``optimizer`` within ``timeout_s``. On a
    CPU every allocation is recorded (PyTorch's profiler), on CUDA the caching allocator's count is
    read: after building (``parameter_bytes``, with the buffers), after the first backward pass
    (gradients), after the second forward pass (activations), and after the optimizer; each is the
    least of a few tries. ``inputs`` (a shape) and ``plan`` are those of :func:`estimate_footprint`;
    ``net`` must hold values.

    Raises ValueError as :func:`estimate_footprint`, for a pipeline, and for a layout of more or
    fewer ranks than there are. Lesson 06.
    """
    if _check_runs(layout).pipeline > 1:
        raise ValueError(
            f"a pipeline of {layout.pipeline} stages is estimated and not run; measure one stage"
        )
    if ranks.world_size != layout.ranks:
        raise ValueError(
            f"a layout of {layout.ranks} ranks is measured on as many, and there are "
            f"{ranks.world_size}; give another layout, or other ranks"
        )
    if any(parameter.is_meta for parameter in net.parameters()):
        raise ValueError(
            "the net is on the meta device and holds no values; make it on a real one to measure it"
        )
    (job,) = _jobs(net, layout, inputs, plan, optimizer)
    return footprints.footprint_of(layout, ranks.run(_measure_rank, job, timeout_s=timeout_s))


def _check_runs(layout: Layout) -> Layout:
    if footprints.check_layout(layout).sharded in ("optimizer", "gradients"):
        raise ValueError(
            f"sharded={layout.sharded!r} is counted and not run; give 'nothing' or 'parameters', "
            "or take count_footprint"
        )
    return layout


def _jobs(
    net: nn.Sequential,
    layout: Layout,
    inputs: Sequence[int],
    plan: Plan | None,
    optimizer: OptimizerFactory | None,
) -> list[_FootprintJob]:
    """Return the job of a rank of each stage: a microbatch of its data rank's rows."""
    plan = plan or {}
    footprints.check_plan(net, plan, layout.tensor)
    parts = split_stages(net, layout.pipeline)
    all_rows, *sizes = batch_shape(inputs)
    rows = (footprints.check_rows(all_rows, layout, layout.pipeline), *sizes)
    batch, jobs = torch.empty(rows, dtype=number_type(net), device="meta"), []
    for part in parts:
        jobs.append(
            _FootprintJob(layout, part, tuple(batch.shape), batch.dtype, dict(plan), optimizer)
        )
        try:
            batch = empty_output(part, batch)
        except RuntimeError as error:
            raise ValueError(f"the net does not run on a rank's rows, {rows}: {error}") from None
    return jobs


# One rank's part of a step.


def _build_part(job: _FootprintJob, part: nn.Sequential, device: torch.device) -> nn.Module:
    """Return ``part`` as it lies on ``device``: split, then sharded. Every rank calls it."""
    layout = job.layout
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


def _estimate_rank(job: _FootprintJob, rank: int) -> RankFootprint:
    saved_storages: dict[int, int] = {}
    layout, stage = job.layout, job.layout.place(rank)[0]
    device = torch.device("cpu")
    with _fake_group(rank, layout.ranks), FakeTensorMode(allow_non_fake_inputs=True):
        # Dealing out a thousand shards is fast on meta tensors, and slow on fake ones; all of them
        # are then DTensors.
        late = layout.sharded == "parameters"
        with unset_fake_temporarily() if late else nullcontext():
            empty_part = without_values(job.part, "meta" if late else device)
        # a mesh is made of real tensors, and fake parameters stay fake
        with unset_fake_temporarily():
            part = _build_part(job, empty_part, device)
        if late:
            part = part.to_empty(device=device)
        batch = torch.empty(job.rows, dtype=job.dtype, requires_grad=stage > 0)

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            # at this moment: gathered parameters come and go
            held = [*part.parameters(), *part.buffers()] + ([] if stage > 0 else [batch])
            held_storages = _storages(held)
            saved_storages.update(
                {key: size for key, size in _storages([tensor]).items() if key not in held_storages}
            )
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = part(batch).sum()
        if loss.requires_grad:  # not where everything is frozen
            loss.backward()
        gradients = [
            parameter.grad for parameter in part.parameters() if parameter.grad is not None
        ]
        stepping = _step_optimizer(part, job.optimizer)
        states = [] if stepping is None else state_tensors(stepping)
        kept = list(part.parameters()), list(part.buffers()), gradients, states
        sizes_bytes = [sum(_storages(tensors).values()) for tensors in kept]
    live = live_activations("1f1b", rank=stage, ranks=layout.pipeline, microbatches=layout.pipeline)
    built, buffers, gradient_bytes, state_bytes = sizes_bytes
    return footprints.rank_footprint(
        rank,
        stage,
        built,
        buffers,
        gradient_bytes,
        state_bytes,
        live * sum(saved_storages.values()),
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


def _storages(tensors: Sequence[Any]) -> dict[int, int]:
    """Return the bytes of each distinct storage below ``tensors`` on this rank, by its address in
    PyTorch.
    """
    local = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]
    return {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in local}


# On real ranks.


def _measure_rank(rank: int, _world_size: int, job: _FootprintJob) -> RankFootprint:
    device = rank_device()
    levels_of = _levels_on_cuda if device.type == "cuda" else _levels_on_cpu
    batch = torch.zeros(job.rows, dtype=job.dtype, device=device)
    gc.collect()
    gc.freeze()  # so that the collections below look through the step's objects alone
    try:
        tries = _SHARDED_REPEATS if job.layout.sharded == "parameters" else _REPEATS
        repeats = [
            [after - before for before, after in pairwise(levels_of(job, batch))]
            for _ in range(tries)
        ]
    finally:
        gc.unfreeze()
    # A release in a thread of gloo's is not recorded: that makes a level too high, and never too
    # low.
    built, gradients, activations, _, states = (min(part) for part in zip(*repeats, strict=True))
    return footprints.rank_footprint(rank, 0, built, 0, gradients, states, activations)


def _train(job: _FootprintJob, batch: torch.Tensor, mark: Callable[[], None]) -> None:
    """Build a rank's part and train it, and call ``mark`` before and after each thing that memory
    is taken or released for.
    """
    mark()
    part = _build_part(job, copy.deepcopy(job.part).to(batch.device), batch.device)
    mark()
    part(batch).sum().backward()
    mark()
    # Of the output only its place in the graph is kept: nobody reads its values again.
    edge = get_gradient_edge(part(batch).sum())
    mark()
    torch.autograd.backward([edge])
    mark()
    stepping = _step_optimizer(part, job.optimizer)
    mark()
    del stepping


def _levels_on_cpu(job: _FootprintJob, batch: torch.Tensor) -> list[int]:
    """Return the bytes alive at each mark of a training."""
    names: list[str] = []
    with allocator.record_allocations() as record:

        def mark() -> None:
            gc.collect()  # what only refers to itself is released before it would be counted
            names.append(str(len(names)))
            record.mark(names[-1])

        _train(job, batch, mark)
    return list(accumulate((sum(record.window(name)) for name in names[:-1]), initial=0))


def _levels_on_cuda(job: _FootprintJob, batch: torch.Tensor) -> list[int]:
    levels: list[int] = []

    def mark() -> None:
        gc.collect()
        torch.cuda.synchronize(batch.device)
        levels.append(torch.cuda.memory_allocated(batch.device))

    _train(job, batch, mark)
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
