"""A layout's step really run by ranks whose devices sleep and whose links are slow: the oracle beside the model.

Every rank has its real part of the net, trains it, and sends what its layout makes it send: rings of messages
(:func:`helpers.parallel.execution.execute`) between data and tensor ranks, activations and their gradients between
stages. A pass takes as long as the device is said to take, for its real work is done within that time and the rest is
slept; a message takes as long as its link. Nothing here knows of a total: who waits for whom comes of the messages.
All of it is on the CPU over gloo, also where there are GPUs, for sleeping needs none.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from helpers.checks import whole_number
from helpers.layouts.costs import LayerWork
from helpers.layouts.members import LEARNING_RATE, Groups, Job, Loss, Member, neighbours
from helpers.links import Activity, Link, joined
from helpers.parallel.costs import BUCKET_BYTES
from helpers.parallel.execution import RankPool
from helpers.parallel.footprint import Layout, Plan, check_plan
from helpers.parallel.pipeline import orders
from helpers.parallel.pipeline.stages import split_stages
from helpers.results import Result


@dataclass(frozen=True)
class StrategyRun(Result):
    """A layout's step on real ranks: the fastest of ``repeats``, each as long as its slowest rank, after one warm-up.

    ``data_bytes``, ``tensor_bytes`` and ``pipeline_bytes`` are what rank 0 sent in a step; ``activities`` are those of
    the last step, a lane a rank and a link; ``parameters`` are the net's after all steps of plain SGD. Lesson 05.
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
    activities: tuple[Activity, ...] = field(repr=False)
    parameters: dict[str, torch.Tensor] = field(repr=False)


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
    """Train ``net`` on ``ranks`` by each of ``cases``, (layout, microbatches), and return how long a step took.

    A device takes ``layers[i].forward_s`` and ``backward_s`` for the i-th layer of ``net`` and the whole batch, and its
    share of that for its share of the work; a message between any two ranks takes ``link``'s time, and each rank has a
    port for data ranks, one for tensor ranks and one for stages. A layout of fewer ranks than there are leaves the
    others idle. ``loss(outputs, targets)`` is a mean; a step of plain SGD (:data:`LEARNING_RATE`) follows each backward
    pass, so that the parameters can be held against one process's: :func:`train_alone`. What ``fully_shard`` would free
    after a pass is overwritten with NaN. Net, loss and batch go to the ranks pickled, and stay here as they were.

    Raises ValueError for a layout of more ranks than there are, for layers, widths or rows that do not divide, for
    fewer microbatches than stages ("1f1b"), and for a net with a frozen parameter. Lesson 05.
    """
    plan = dict(plan or {})
    frozen = next((name for name, each in net.named_parameters() if not each.requires_grad), None)
    if frozen is not None:
        raise ValueError(f"a run trains every parameter, and {frozen!r} is frozen; let it learn")
    for layout, microbatches in cases:
        check_ranks(layout, ranks.world_size)
        orders.check(schedule, ranks=layout.pipeline, microbatches=microbatches, chunks=1)
        check_plan(net, plan, layout.tensor)
        split_stages(net, layout.pipeline)
        check_rows(len(inputs), layout, microbatches)
    if len(layers) != len(net):
        raise ValueError(f"the net has {len(net)} layers, and layers tells of {len(layers)}")
    job = Job(tuple(cases), net, tuple(layers), plan, link, inputs, targets, loss, schedule, bucket_bytes,
               whole_number("repeats", repeats))  # fmt: skip
    told = ranks.run(_run, job, timeout_s=timeout_s)
    return tuple(
        _joined(layout, microbatches, job.repeats, net, [each[place] for each in told])
        for place, (layout, microbatches) in enumerate(cases)
    )


def train_alone(
    net: nn.Sequential, *, inputs: torch.Tensor, targets: torch.Tensor, loss: Loss, steps: int
) -> dict[str, torch.Tensor]:
    """Return the parameters after ``steps`` of plain SGD on the whole batch, here; ``net`` stays as it was.

    What :func:`execute_strategies` with ``repeats`` has after ``repeats + 1`` steps. Lesson 05.
    """
    own = copy.deepcopy(net)
    stepping = torch.optim.SGD(own.parameters(), lr=LEARNING_RATE)
    for _ in range(whole_number("steps", steps)):
        stepping.zero_grad()
        loss(own(inputs), targets).backward()
        stepping.step()
    return {name: each.detach() for name, each in own.named_parameters()}


def check_ranks(layout: Layout, there: int) -> None:
    """Raise ValueError for a layout of more ranks than there are. For the library itself."""
    if layout.ranks > there:
        raise ValueError(f"a mesh of data {layout.data} x tensor {layout.tensor} x pipeline {layout.pipeline} needs "
                         f"{layout.ranks} ranks, and there are {there}; take a smaller mesh or more ranks")  # fmt: skip


def check_rows(rows: int, layout: Layout, microbatches: int) -> None:
    """Raise ValueError for a batch that does not divide. For the library itself."""
    if rows % (layout.data * microbatches):
        raise ValueError(f"a batch of {rows} rows does not divide among {layout.data} data ranks and {microbatches} "
                         f"microbatches; give a multiple of {layout.data * microbatches} rows")  # fmt: skip


def _joined(
    layout: Layout, microbatches: int, repeats: int, net: nn.Sequential, told: list[dict[str, Any]]
) -> StrategyRun:
    active = told[: layout.ranks]
    found: dict[str, torch.Tensor] = {}
    for name, each in net.named_parameters():
        holders = [one["parameters"][name] for one in active if name in one["parameters"]]
        found[name] = _assembled(holders, layout, each)
    return StrategyRun(
        layout.data, layout.tensor, layout.pipeline, layout.sharded, microbatches,
        step_s=min(max(together) for together in zip(*(each["times_s"] for each in active), strict=True)),
        repeats=repeats, data_bytes=active[0]["data"], tensor_bytes=active[0]["tensor"],
        pipeline_bytes=active[0]["pipeline"],
        activities=joined([bar for each in active for bar in each["activities"]]).activities, parameters=found,
    )  # fmt: skip


def _assembled(holders: list[torch.Tensor], layout: Layout, whole: torch.Tensor) -> torch.Tensor:
    """Return a parameter of the first data rank's tensor ranks in one piece."""
    parts = holders[: layout.tensor]
    split = [dimension for dimension, size in enumerate(parts[0].shape) if size != whole.shape[dimension]]
    return torch.cat(parts, dim=split[0]) if split else parts[0]


# What runs on a rank.


def _run(rank: int, _world_size: int, job: Job) -> list[dict[str, Any]]:
    groups = _groups(job)
    told = []
    for layout, microbatches in job.cases:
        member = Member(rank, layout, microbatches, job=job, groups=groups) if rank < layout.ranks else None
        times_s = []
        for _ in range(1 + job.repeats):
            dist.barrier()
            start_s = time.perf_counter()
            if member is not None:
                member.step()
            times_s.append(time.perf_counter() - start_s)
        told.append({"times_s": times_s[1:]} | (member.report() if member is not None else {}))
    for members, group in groups.items():
        if rank in members:
            dist.destroy_process_group(group)
    return told


def _groups(job: Job) -> Groups:
    """Return a process group for each set of neighbours; every rank makes every group, in the same order."""
    lines = {members: None for layout, _ in job.cases for rank in range(layout.ranks)
             for members in neighbours(layout, rank) if len(members) > 1}  # fmt: skip
    return {members: dist.new_group(list(members), backend="gloo") for members in lines}
