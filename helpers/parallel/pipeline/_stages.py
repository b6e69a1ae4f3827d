"""A pipeline run on real ranks by torch.distributed.pipelining: what happened when, and what it computed."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from helpers._checks import number, whole_number
from helpers.links import sleep_for
from helpers.parallel._comparing import Loss, RankPass, gradients_of, relative_difference
from helpers.parallel._devices import Nap, SleepingLayer
from helpers.parallel._execution import RankPool, rank_device
from helpers.parallel.pipeline import _schedules as schedules
from helpers.results import Record

# ScheduleInterleavedZeroBubble with one stage a rank is ZB-H1.
_CLASSES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "interleaved": "ScheduleInterleaved1F1B",
            "zero_bubble": "ScheduleInterleavedZeroBubble"}  # fmt: skip


class PipelineRun(Record):
    """One batch through a pipeline of real ranks: the fastest of ``repeats`` steps after one that did not count.

    ``schedule`` holds what was measured, in the same form as a modelled schedule; ``loss`` is the mean over the
    microbatches, ``outputs`` the last stage's for the whole batch, ``gradients`` those of the net's parameters by
    their names in the net. Lesson 06.
    """

    name: str
    repeats: int
    loss: float
    schedule: schedules.PipelineSchedule
    outputs: torch.Tensor = field(repr=False)
    gradients: dict[str, torch.Tensor] = field(repr=False)


class PipelineEquality(Record):
    """Whether a pipeline computed what one process computes: the largest differences, relative to the largest value.

    ``parameter`` is the one whose gradient differs most. ``equal`` says that no difference is above ``tolerance``; what
    is NaN, or missing, is infinitely far away. Lesson 06.
    """

    name: str
    equal: bool
    tolerance: float
    loss_difference: float
    output_difference: float
    gradient_difference: float
    parameter: str


@dataclass(frozen=True)
class _Job:
    name: str
    parts: tuple[nn.Sequential, ...]
    inputs: torch.Tensor
    targets: torch.Tensor
    loss: Loss
    microbatches: int
    repeats: int


class SplitSleepingLayer(nn.Module):
    """A :class:`SleepingLayer` whose backward pass comes in two: the input's gradient and, by itself, the weight's.

    Each sleeps its own time, ``input_s`` and ``weight_s``, so that a schedule can put the second off. The layer adds
    its only parameter to its inputs. Raises ValueError for a negative time. Lesson 06.
    """

    def __init__(self, forward_s: float, input_s: float, weight_s: float) -> None:
        super().__init__()
        self.forward_s = number("forward_s", forward_s, at_least=0)
        self.input_s = number("input_s", input_s, at_least=0)
        self.weight_s = number("weight_s", weight_s, at_least=0)
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Sleep for ``forward_s`` and return ``inputs`` plus the weight."""
        if not inputs.requires_grad:  # the first stage takes as long for its input as the others
            inputs = inputs.detach().requires_grad_()
        sleep_for(self.forward_s)
        return Nap.apply(inputs, partial(sleep_for, self.input_s)) + Nap.apply(
            self.weight, partial(sleep_for, self.weight_s)
        )


def sleeping_net(stages: int, *, forward_s: float, backward_s: float, weight_s: float | None = None) -> nn.Sequential:
    """Return a net of ``stages`` layers that sleep ``forward_s`` and ``backward_s`` instead of computing.

    Give ``weight_s``, a part of ``backward_s``, for "zero_bubble", which needs the two parts of the backward pass
    apart. Raises ValueError for a negative time and for a part that is more than the whole.
    """
    if weight_s is None:
        return nn.Sequential(*(SleepingLayer(forward_s, backward_s) for _ in range(whole_number("stages", stages))))
    if weight_s > backward_s:
        raise ValueError(f"weight_s is a part of backward_s and cannot be more; got {weight_s!r} of {backward_s!r}")
    layers = (SplitSleepingLayer(forward_s, backward_s - weight_s, weight_s) for _ in range(stages))
    return nn.Sequential(*layers)


def execute_schedule(
    ranks: RankPool,
    name: str,
    *,
    net: nn.Sequential,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    loss: Loss,
    microbatches: int,
    chunks: int = 1,
    repeats: int = 1,
    timeout_s: float = 120.0,
) -> PipelineRun:
    """Carry one batch forward and backward through ``net``, a pipeline on ``ranks``, by torch.distributed.pipelining.

    ``name`` is that of the schedule. The layers of ``net`` are dealt out in order, equally many to each of the
    ``ranks.world_size`` x ``chunks`` stages, and ``inputs`` and ``targets`` are cut along their first dimension into
    ``microbatches`` equal parts. ``loss(outputs, targets)`` is a mean; the gradients are then those of the whole
    batch's mean. A layer that mixes the rows of a batch (batch norm) sees one microbatch at a time, as in every
    pipeline. Net and loss go to the ranks pickled, and stay here as they were. A first step, in which PyTorch learns
    the shapes, is not counted; the fastest of ``repeats`` more counts. All must end within ``timeout_s``. PyTorch's
    "zero_bubble" puts off the whole backward pass of stage 0, for whose input gradient nobody waits.

    Raises ValueError for what :func:`schedules.pipeline_schedule` refuses, for layers that do not divide by the stages,
    rows that do not divide by the microbatches, and a parameter that two stages share; TypeError for a net that is not
    an nn.Sequential. Lesson 06.
    """
    schedules.check(name, ranks=ranks.world_size, microbatches=microbatches, chunks=chunks)
    whole_number("repeats", repeats)
    parts = split_stages(net, ranks.world_size * chunks)
    if len(inputs) != len(targets):
        raise ValueError(f"inputs and targets must be equally long; got {len(inputs)} and {len(targets)}")
    if not len(inputs) or len(inputs) % microbatches:
        raise ValueError(f"a batch of {len(inputs)} rows does not divide into {microbatches} equal microbatches; "
                         "give a multiple")  # fmt: skip
    job = _Job(name, parts, inputs, targets, loss, microbatches, repeats)
    passes = ranks.run(_run, job, timeout_s=timeout_s)
    measured = [
        schedules.schedule_of(name, [action for own in passes for action in own.counted["actions"][repeat]],
                              ranks=ranks.world_size, stages=len(parts), microbatches=microbatches)
        for repeat in range(repeats)
    ]  # fmt: skip
    gradients = {key: value for own in passes for key, value in own.gradients.items()}
    return PipelineRun(
        name=name,
        repeats=repeats,
        loss=passes[-1].counted["loss"],
        schedule=min(measured, key=lambda timed: timed.duration_s),
        outputs=passes[-1].outputs,
        gradients={key: gradients[key] for key, parameter in net.named_parameters() if parameter.requires_grad},
    )


def layers_of(net: nn.Sequential) -> list[tuple[str, nn.Module]]:
    """Return the layers of ``net`` with their names. Raises ValueError for one that stands in two places.

    PyTorch names such a layer once, so that it would be left out where it stands again.
    """
    names: dict[nn.Module, str] = {}
    for name, layer in net._modules.items():
        if layer in names:
            raise ValueError(f"layers {names[layer]!r} and {name!r} are one {type(layer).__name__}; make one for each "
                             "place, so that every layer has a stage and a cost of its own")  # fmt: skip
        names[layer] = name
    return [(name, layer) for layer, name in names.items()]


def split_stages(net: nn.Sequential, stages: int) -> tuple[nn.Sequential, ...]:
    """Return the layers of ``net`` as ``stages`` nets of equally many layers; names and parameters stay what they are.

    Raises TypeError for a net that is not an nn.Sequential, and ValueError for layers that do not divide, for a layer
    that stands in two places, and for a parameter in two stages, which would be trained apart. Lesson 06.
    """
    if not isinstance(net, nn.Sequential):
        raise TypeError(f"a pipeline is cut out of an nn.Sequential; got a {type(net).__name__}")
    layers = layers_of(net)
    each = len(layers) // stages
    if not layers or each * stages != len(layers):
        raise ValueError(f"{len(layers)} layers do not divide into {stages} stages of equally many; join layers in an "
                         "nn.Sequential of their own, or take other ranks or chunks")  # fmt: skip
    parts = tuple(nn.Sequential(OrderedDict(layers[start : start + each])) for start in range(0, len(layers), each))
    seen: dict[int, int] = {}
    for stage, part in enumerate(parts):
        for name, parameter in part.named_parameters():
            if seen.setdefault(id(parameter), stage) != stage:
                raise ValueError(f"stages {seen[id(parameter)]} and {stage} share the parameter {name!r}, and each "
                                 "would train a copy of its own: untie it, or put both layers into one")  # fmt: skip
    return parts


def compare_with_one_process(
    run: PipelineRun, net: nn.Sequential, *, inputs: torch.Tensor, targets: torch.Tensor, loss: Loss,
    tolerance: float = 1e-5,
) -> PipelineEquality:  # fmt: skip
    """Return how far ``run`` is from the same batch through ``net`` here, in one piece.

    The batch is ``inputs`` and ``targets``, and ``loss(outputs, targets)`` a mean. Each difference is the largest of
    any element over the largest magnitude in the tensor here; equal is what differs by ``tolerance`` at most. ``net``
    keeps the gradients that it has.
    """
    outputs, alone = gradients_of(net, inputs, targets, loss)
    apart = {name: relative_difference(run.gradients.get(name), wanted) for name, wanted in alone.items()}
    worst = max(apart, key=apart.__getitem__)
    loss_apart = relative_difference(torch.tensor(run.loss), loss(outputs, targets).float())
    output_apart = relative_difference(run.outputs, outputs)
    equal = max(loss_apart, output_apart, apart[worst]) <= tolerance
    return PipelineEquality(run.name, equal, tolerance, loss_apart, output_apart, apart[worst], worst)


# What runs on a rank.


def _run(rank: int, world_size: int, job: _Job) -> RankPass:
    import torch.distributed.pipelining as pipelining

    device, total = rank_device(), len(job.parts)
    owned = {index: job.parts[index].to(device) for index in range(rank, total, world_size)}
    notes: list[schedules.PipelineAction] = []
    kind = _noting_stage(rank, notes, split=job.name == "zero_bubble")
    stages = [kind(part, index, total, device) for index, part in owned.items()]
    several = job.name in ("interleaved", "zero_bubble")
    schedule = getattr(pipelining, _CLASSES[job.name])(
        stages if several else stages[0], n_microbatches=job.microbatches, loss_fn=job.loss
    )
    given = (job.inputs.to(device),) if 0 in owned else ()
    wanted = {"target": job.targets.to(device)} if total - 1 in owned else {}
    before = {
        index: {name: value.clone() for name, value in part.state_dict().items()} for index, part in owned.items()
    }
    actions = []
    for _ in range(1 + job.repeats):
        for index, part in owned.items():  # running statistics and gradients are those of one step
            part.load_state_dict(before[index])
            part.zero_grad()
        notes.clear()
        losses: list[torch.Tensor] = []
        dist.barrier()
        outputs = schedule.step(*given, **wanted, losses=losses)
        actions.append(list(notes))
    gradients = {name: own.grad.cpu() for part in owned.values() for name, own in part.named_parameters()
                 if own.grad is not None}  # fmt: skip
    loss = torch.stack(losses).mean().item() if wanted else math.nan
    return RankPass(outputs.detach().cpu() if wanted else None, gradients, {"actions": actions[1:], "loss": loss})


def _noting_stage(rank: int, notes: list[schedules.PipelineAction], *, split: bool) -> type:
    """Return PyTorch's PipelineStage with a note of when each pass of a microbatch began and ended on this rank."""
    from torch.distributed.pipelining import PipelineStage

    def noted(kind: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(stage: Any, microbatch: int, *args: Any, **kwargs: Any) -> Any:
            start_s = time.perf_counter()
            result = method(stage, microbatch, *args, **kwargs)
            if stage.device.type == "cuda":
                torch.cuda.synchronize(stage.device)
            notes.append(schedules.PipelineAction(rank, start_s, time.perf_counter(), kind, stage.stage_index,
                                                  microbatch))  # fmt: skip
            return result

        return call

    methods = {
        "forward_one_chunk": noted(schedules.FORWARD, PipelineStage.forward_one_chunk),
        "backward_one_chunk": noted(schedules.BACKWARD, PipelineStage.backward_one_chunk),
    }
    if split:
        methods["backward_weight_one_chunk"] = noted(schedules.BACKWARD_WEIGHT, PipelineStage.backward_weight_one_chunk)
    return type("NotingStage", (PipelineStage,), methods)
