"""A rank's memory found by running its part of a step: on a fake process group in this process, and on real ranks.

Both run the same code: the stage's layers, split by DTensor over the tensor ranks and sharded by ``fully_shard`` over
the data ranks. On the fake group no rank but this one exists, no byte is sent, and tensors have shapes but no
elements, so that one process stands for any of thousands of ranks.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from helpers.memory import allocations
from helpers.parallel import footprint as footprints
from helpers.parallel import schedules
from helpers.parallel.checks import whole_number
from helpers.parallel.execution import RankPool, rank_device
from helpers.parallel.footprint import Layout, OptimizerFactory, Plan, RankFootprint
from helpers.parallel.pipeline_execution import split_stages

Mark = Callable[[str], None]


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

    ``inputs`` is the shape of the whole batch, its first dimension the rows, which the data ranks divide, and in a
    pipeline the ``microbatches`` (by default one a stage) of ``schedule`` ("gpipe", "1f1b", "zero_bubble"). A rank's
    part of one step runs on fake tensors and a fake process group of ``layout.ranks`` ranks; a pipeline keeps the
    activations of as many microbatches as the schedule has alive there. See :func:`footprint.footprint` for ``net``
    (on any device, or on meta), ``plan``, ``optimizer``, and for how ZeRO-1 and 2 divide, which are counted, not run.

    Raises ValueError as :func:`footprint.footprint`, and for rows that do not divide and ranks that are not there;
    RuntimeError where a process group is already there, as on a rank. Lesson 05.
    """
    if dist.is_initialized():
        raise RuntimeError("this process is a rank already, and the estimate needs a process group of its own; "
                           "call it outside of Ranks(...).run and torchrun")  # fmt: skip
    if not ranks:
        raise ValueError("no rank to estimate: give at least one, as in ranks=(0,)")
    plan = dict(plan or {})
    footprints.check_plan(net, plan, layout.tensor)
    parts = split_stages(net, layout.pipeline)
    several = layout.pipeline if microbatches is None else microbatches
    rows = _local_rows(inputs, layout, several)
    live = [
        schedules.live_activations(schedule, rank=stage, ranks=layout.pipeline, microbatches=several)
        for stage in range(layout.pipeline)
    ]
    found = []
    for rank in ranks:
        stage = layout.place(rank)[0]
        shape, dtype = _stage_input(parts[:stage], rows, _dtype(net))
        job = _Job(layout, parts[stage], shape, dtype, plan, optimizer)
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
    on CUDA the caching allocator's count is read. What is alive after building, after the forward pass, after the
    backward pass and after the optimizer's step is told apart by differences; ``buffer_bytes`` is in
    ``parameter_bytes``. Arguments are those of :func:`estimate_footprint`; ``net`` must hold values.

    Raises ValueError as :func:`estimate_footprint`, for ZeRO-1 and 2, which PyTorch does not run in this form, and for
    tensor ranks that do not divide the ranks. Lesson 05.
    """
    if sharded in ("optimizer", "gradients"):
        raise ValueError(f"sharded={sharded!r} is counted and not run; measure 'nothing' or 'parameters'")
    if ranks.world_size % whole_number("tensor", tensor):
        raise ValueError(f"{ranks.world_size} ranks do not divide by {tensor} tensor ranks")
    layout = Layout(data=ranks.world_size // tensor, tensor=tensor, sharded=sharded)
    plan = dict(plan or {})
    footprints.check_plan(net, plan, tensor)
    if any(each.is_meta for each in net.parameters()):
        raise ValueError("the net is on the meta device and holds no values; make it on a real one to measure it")
    job = _Job(layout, net, _local_rows(inputs, layout, 1), _dtype(net), plan, optimizer)
    return footprints.footprint_of(layout, ranks.run(_measured, job, timeout_s=timeout_s))


def _local_rows(inputs: Sequence[int], layout: Layout, microbatches: int) -> tuple[int, ...]:
    parts = layout.data * whole_number("microbatches", microbatches)
    shape = tuple(inputs)
    if not shape or shape[0] < 1 or shape[0] % parts:
        raise ValueError(f"a batch of shape {shape} does not divide among {layout.data} data ranks and {microbatches} "
                         f"microbatches; give a multiple of {parts} rows")  # fmt: skip
    return (shape[0] // parts, *shape[1:])


def _dtype(net: nn.Module) -> torch.dtype:
    return next((each.dtype for each in net.parameters()), torch.get_default_dtype())


def _stage_input(
    before: Sequence[nn.Module], rows: tuple[int, ...], dtype: torch.dtype
) -> tuple[tuple[int, ...], torch.dtype]:
    """Return the shape and the type of what the stages ``before`` hand on, found on meta tensors."""
    value = torch.empty(rows, dtype=dtype, device="meta")
    with torch.no_grad():
        for part in before:
            value = copy.deepcopy(part).to("meta")(value)
    return tuple(value.shape), value.dtype


# One rank's part of a step.


def _built(job: _Job, device: torch.device) -> nn.Module:
    """Return the rank's part as it lies on ``device``: split, then sharded. Every rank calls it."""
    part, layout = job.part, job.layout
    if layout.tensor == 1 and layout.sharded != "parameters":
        return part
    from torch.distributed.device_mesh import init_device_mesh

    sizes = (layout.pipeline, layout.data, layout.tensor)
    with _no_fake_tensors():
        mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("pipeline", "data", "tensor"))
    if layout.tensor > 1:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        names = {name for name, _ in part.named_modules()}
        ways = {"column": ColwiseParallel, "row": RowwiseParallel}
        styles = {name: ways[way]() for name, way in job.plan.items() if name in names}
        if styles:
            parallelize_module(part, mesh["tensor"], styles)
    if layout.sharded == "parameters":
        from torch.distributed.fsdp import fully_shard

        for layer in [*part.children(), part]:  # a unit a layer; none stays whole after its forward pass
            fully_shard(layer, mesh=mesh["data"], reshard_after_forward=True)
    return part


def _step(part: nn.Module, batch: torch.Tensor, optimizer: OptimizerFactory | None, mark: Mark) -> None:
    loss = part(batch).sum()
    mark("forward")
    loss.backward()
    mark("backward")
    if optimizer is not None:
        stepping = optimizer([each for each in part.parameters() if each.requires_grad])
        stepping.step()
        mark("optimizer")
        part.kept_optimizer = stepping  # alive until the levels are read
    else:
        mark("optimizer")


@contextmanager
def _no_fake_tensors() -> Iterator[None]:
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        yield


# On a fake process group.


def _estimated(job: _Job, rank: int, live: int) -> RankFootprint:
    from torch._subclasses.fake_tensor import FakeTensorMode

    saved: dict[int, int] = {}
    stage, layout = job.layout.place(rank)[0], job.layout
    device = torch.device("cpu")
    with _fake_group(rank, layout.ranks), FakeTensorMode(allow_non_fake_inputs=True):
        part = _built(_Job(layout, _fake(job.part, device), job.rows, job.dtype, job.plan, job.optimizer), device)
        batch = torch.empty(job.rows, dtype=job.dtype, requires_grad=stage > 0)
        held = _Storages(part)

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            own = held.now() if stage > 0 else held.now() | _storages([batch])
            saved.update({key: size for key, size in _storages([tensor]).items() if key not in own})
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = part(batch).sum()
        loss.backward()
        learning = [each for each in part.parameters() if each.requires_grad]
        gradients = _bytes([each.grad for each in learning if each.grad is not None])
        states = _stepped_bytes(learning, job.optimizer)
        kept = [_bytes(list(part.parameters())), _bytes(list(part.buffers())), gradients, states]
    if layout.sharded in ("optimizer", "gradients"):
        counted = footprints.footprint(nn.Sequential(job.part), Layout(layout.data, layout.tensor, 1, layout.sharded),
                                       plan={f"0.{name}": way for name, way in job.plan.items()
                                             if name in dict(job.part.named_modules())},
                                       optimizer=job.optimizer).ranks[0]  # fmt: skip
        kept[2:] = [counted.gradient_bytes, counted.optimizer_bytes]
    return footprints.rank_footprint(rank, stage, *kept, activation_bytes=live * sum(saved.values()))


def _fake(part: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy of ``part`` whose parameters and buffers are fake tensors; tied ones stay tied."""
    copies: dict[int, Any] = {}
    for each in part.buffers():
        copies[id(each)] = torch.empty(each.shape, dtype=each.dtype, device=device)
    for each in part.parameters():
        value = torch.empty(each.shape, dtype=each.dtype, device=device)
        copies[id(each)] = nn.Parameter(value, requires_grad=each.requires_grad)
    return copy.deepcopy(part, copies)


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


def _stepped_bytes(learning: list[nn.Parameter], optimizer: OptimizerFactory | None) -> int:
    if optimizer is None or not learning:
        return 0
    stepping = optimizer(learning)
    stepping.step()
    return _bytes([value for state in stepping.state.values() for value in state.values() if torch.is_tensor(value)])


# On real ranks.


def _measured(rank: int, world_size: int, job: _Job) -> RankFootprint:
    device = rank_device()
    levels: dict[str, int] = {}
    batch = torch.zeros(job.rows, dtype=job.dtype, device=device)
    if device.type == "cuda":
        empty = torch.cuda.memory_allocated(device)

        def mark(name: str) -> None:
            levels[name] = torch.cuda.memory_allocated(device) - empty

        part = _built(_moved(job, device), device)
        mark("built")
        _step(part, batch, job.optimizer, mark)
    else:
        names = ["begin", "built", "forward", "backward", "optimizer"]
        with allocations.recorded() as record:
            record.mark("begin")
            part = _built(_moved(job, device), device)
            record.mark("built")
            _step(part, batch, job.optimizer, record.mark)
        kept = [sum(record.window(name)) for name in names]
        # A window follows its mark: what "begin" changed is the level at "built", and so on.
        levels = {name: sum(kept[:place]) for place, name in enumerate(names[1:], start=1)}
    return footprints.rank_footprint(
        rank,
        0,
        levels["built"],
        0,
        levels["backward"] - levels["built"],
        levels["optimizer"] - levels["backward"],
        activation_bytes=levels["forward"] - levels["built"],
    )


def _moved(job: _Job, device: torch.device) -> _Job:
    part = copy.deepcopy(job.part).to(device)
    return _Job(job.layout, part, job.rows, job.dtype, job.plan, job.optimizer)


def rows_for(layout: Layout, rows: int, *, microbatches: int = 1) -> int:
    """Return the smallest number of rows of at least ``rows`` that the layout can divide. Lesson 05."""
    parts = layout.data * whole_number("microbatches", microbatches)
    return math.ceil(rows / parts) * parts
