"""Pipeline schedules as data: who works on which microbatch when, how long ranks idle, and how much they keep.

A pipeline of p ranks carries a batch as m microbatches. Each stage has a forward pass of a microbatch and a backward
pass, which "zero_bubble" cuts in two: the gradient of the stage's input ("backward"), for which the stage before it
waits, and that of its weights ("backward-weight"), for which nobody waits. A schedule, modelled or measured, is the
same dataclass, and what it says of bubbles and memory is computed from its actions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Real

from helpers._checks import number, numbers, whole_number
from helpers.links import Activity, Timeline
from helpers.parallel.pipeline import _orders as pipeline_orders
from helpers.parallel.pipeline._orders import BACKWARD, BACKWARD_WEIGHT, FORWARD
from helpers.results import Result

SCHEDULES = tuple(pipeline_orders.SCHEDULES)

Times = float | Sequence[float]


@dataclass(frozen=True)
class PipelineAction(Result):
    """One pass of one microbatch through one stage; kinds are "forward", "backward" and "backward-weight".

    Lesson 05.
    """

    rank: int
    start_s: float
    end_s: float
    kind: str
    stage: int
    microbatch: int


@dataclass(frozen=True)
class RankLoad(Result):
    """What a rank of a schedule did, and the most (stage, microbatch) pairs whose activations it kept at once.

    Of the ``chunks`` stages that an interleaved rank has, each counts by itself. ``idle_share`` is of the schedule's
    duration. Lesson 05.
    """

    rank: int
    stages: str
    busy_s: float
    idle_share: float
    live_activations: int


@dataclass(frozen=True)
class PipelineSchedule(Result):
    """A schedule, modelled or measured: ``actions`` by rank and start, the first start at 0.

    ``bubble_share`` is the share of all ranks' time in which they do nothing, ``bubble_ratio`` that idle time over the
    busy time: (p - 1) / m for GPipe, whose share is (p - 1) / (m + p - 1). Lesson 05.
    """

    name: str
    ranks: int
    stages: int
    microbatches: int
    duration_s: float
    bubble_share: float
    bubble_ratio: float
    loads: tuple[RankLoad, ...]
    actions: tuple[PipelineAction, ...] = field(repr=False)

    @property
    def timeline(self) -> Timeline:
        """The actions as a timeline, a lane a rank: ``gantt(schedule.timeline.activities, title=...)`` draws it.

        Labels are microbatches. Where a rank has several stages the kind names all but its first: "forward, stage 2".
        Lesson 05.
        """

        def kind(each: PipelineAction) -> str:
            chunk = each.stage // self.ranks
            return f"{each.kind}, stage {chunk + 1}" if chunk else each.kind

        return Timeline(self.duration_s, tuple(
            Activity(f"rank {action.rank}", action.start_s, action.end_s, kind(action), f"{action.microbatch}")
            for action in self.actions))  # fmt: skip

    def order(self, rank: int) -> list[pipeline_orders.Step]:
        """Return what ``rank`` did, in order: (kind, stage, microbatch). Lesson 05."""
        return [(action.kind, action.stage, action.microbatch) for action in self.actions if action.rank == rank]


def pipeline_schedule(
    name: str,
    *,
    ranks: int,
    microbatches: int,
    forward_s: Times = 1.0,
    backward_s: Times = 2.0,
    weight_s: Times | None = None,
    chunks: int = 1,
    transfer_s: float = 0.0,
) -> PipelineSchedule:
    """Return the schedule ``name`` ("gpipe", "1f1b", "interleaved", "zero_bubble"), every pass as early as it can be.

    ``forward_s`` and ``backward_s`` are seconds of one microbatch in one stage: one number for all, or one a stage.
    ``weight_s`` is the part of ``backward_s`` that "zero_bubble" may put off (by default half of it). A rank does one
    thing at a time, in the schedule's order; a result is ``transfer_s`` on the way to a stage of another rank.
    "interleaved" gives each rank ``chunks`` stages: stage s is on rank s mod ``ranks``.

    Raises ValueError for another name, fewer microbatches than ranks (but for "gpipe"; the schedules can do with fewer,
    PyTorch's refuse them), microbatches that do not divide by the ranks ("interleaved"), chunks that the schedule does
    not have, and times that do not fit. Lesson 05.
    """
    pipeline_orders.check(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
    if weight_s is not None and name != "zero_bubble":
        raise ValueError(f"only 'zero_bubble' splits the backward pass; leave weight_s out for {name!r}")
    stages = ranks * chunks
    forward, backward = _a_stage("forward_s", forward_s, stages), _a_stage("backward_s", backward_s, stages)
    weight = [whole_s / 2 for whole_s in backward] if weight_s is None else _a_stage("weight_s", weight_s, stages)
    if name == "zero_bubble":
        if any(part > whole for part, whole in zip(weight, backward, strict=True)):
            raise ValueError(f"weight_s is a part of backward_s and cannot be more; got {weight} of {backward}")
        backward = [whole - part for part, whole in zip(weight, backward, strict=True)]
    durations = {FORWARD: forward, BACKWARD: backward, BACKWARD_WEIGHT: weight}
    orders = [pipeline_orders.rank_order(name, rank=rank, ranks=ranks, microbatches=microbatches, chunks=chunks)
              for rank in range(ranks)]  # fmt: skip
    delay_s = _a_stage("transfer_s", transfer_s, 1)[0]
    return schedule_of(name, _timed(orders, durations, delay_s), ranks=ranks, stages=stages, microbatches=microbatches)


def _a_stage(what: str, times_s: Times, stages: int) -> list[float]:
    given = [times_s] * stages if isinstance(times_s, Real) else list(times_s)
    if len(given) != stages:
        raise ValueError(f"{what} must be one number, or one for each of the {stages} stages; got {len(given)}")
    return numbers(what, given, at_least=0)


def _timed(
    orders: list[list[pipeline_orders.Step]], durations_s: dict[str, list[float]], transfer_s: float
) -> list[PipelineAction]:
    ranks, stages = len(orders), len(durations_s[FORWARD])
    ended_s: dict[pipeline_orders.Step, float] = {}
    free_s, done = [0.0] * ranks, [0] * ranks
    actions: list[PipelineAction] = []
    while any(done[rank] < len(order) for rank, order in enumerate(orders)):
        before = len(actions)
        for rank, order in enumerate(orders):
            while done[rank] < len(order):
                step = order[done[rank]]
                needs = list(_needs(step, stages))
                if not all(need in ended_s for need in needs):
                    break
                ready_s = [ended_s[need] + (transfer_s if need[1] % ranks != rank else 0.0) for need in needs]
                start_s = max([free_s[rank], *ready_s])
                ended_s[step] = free_s[rank] = start_s + durations_s[step[0]][step[1]]
                actions.append(PipelineAction(rank, start_s, free_s[rank], *step))
                done[rank] += 1
        if len(actions) == before:
            stuck = [orders[rank][done[rank]] for rank in range(ranks) if done[rank] < len(orders[rank])]
            raise RuntimeError(f"the ranks wait for each other for ever: next are {stuck}")
    return actions


def _needs(step: pipeline_orders.Step, stages: int) -> Iterable[pipeline_orders.Step]:
    kind, stage, microbatch = step
    if kind == FORWARD and stage > 0:
        yield FORWARD, stage - 1, microbatch
    if kind == BACKWARD:
        yield FORWARD, stage, microbatch
        if stage < stages - 1:
            yield BACKWARD, stage + 1, microbatch
    if kind == BACKWARD_WEIGHT:
        yield BACKWARD, stage, microbatch


def schedule_of(
    name: str, actions: Iterable[PipelineAction], *, ranks: int, stages: int, microbatches: int
) -> PipelineSchedule:
    """Return the schedule of ``actions``, modelled or measured, moved to start at 0.

    Raises ValueError where there are none.
    """
    given = list(actions)
    if not given:
        raise ValueError("no actions: a schedule needs at least one")
    zero_s = min(action.start_s for action in given)
    # The sort is stable, so that passes that take no time stay in their order.
    given.sort(key=lambda action: (action.rank, action.start_s))
    moved = tuple(PipelineAction(action.rank, action.start_s - zero_s, action.end_s - zero_s, action.kind, action.stage,
                                 action.microbatch) for action in given)  # fmt: skip
    duration_s = max(action.end_s for action in moved)
    loads = tuple(_load([action for action in moved if action.rank == rank], rank, duration_s) for rank in range(ranks))
    busy_s, whole_s = math.fsum(load.busy_s for load in loads), ranks * duration_s
    return PipelineSchedule(
        name=name,
        ranks=ranks,
        stages=stages,
        microbatches=microbatches,
        duration_s=duration_s,
        bubble_share=(whole_s - busy_s) / whole_s if whole_s else 0.0,
        bubble_ratio=(whole_s - busy_s) / busy_s if busy_s else 0.0,
        loads=loads,
        actions=moved,
    )


def _load(actions: list[PipelineAction], rank: int, duration_s: float) -> RankLoad:
    busy_s = math.fsum(action.end_s - action.start_s for action in actions)
    last = BACKWARD_WEIGHT if any(action.kind == BACKWARD_WEIGHT for action in actions) else BACKWARD
    live = most = 0
    for action in actions:
        live += (action.kind == FORWARD) - (action.kind == last)
        most = max(most, live)
    stages = ", ".join(str(stage) for stage in sorted({action.stage for action in actions}))
    return RankLoad(rank, stages, busy_s, 1 - busy_s / duration_s if duration_s else 0.0, most)


# The same in closed form.


def bubble_ratio(
    name: str,
    *,
    ranks: int,
    microbatches: int,
    chunks: int = 1,
    forward_s: float = 1.0,
    backward_s: float = 2.0,
    weight_s: float | None = None,
) -> float:
    """Return the idle time of a rank over its busy time, where all stages take equally long and messages no time.

    p ranks, m microbatches, v chunks, and F, B, W seconds of the forward pass, the backward pass and its weight part:
    (p - 1) / m for "gpipe" and "1f1b", (p - 1) / (v m) for "interleaved" (Narayanan et al., 2021, section 2.2), and
    (p - 1) (F + (B - W) - W) / (m (F + B)) for "zero_bubble", ZB-H1 (Qi et al., 2024, table 2), which holds while
    W is at most F and at most B - W. ``weight_s`` is half of ``backward_s`` unless given.

    Raises ValueError as :func:`pipeline_schedule`, and where the formula does not hold. Lesson 05.
    """
    pipeline_orders.check(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
    if name != "zero_bubble":
        return (ranks - 1) / (chunks * microbatches)
    put_off_s = backward_s / 2 if weight_s is None else weight_s
    if put_off_s > min(forward_s, backward_s - put_off_s):
        raise ValueError(f"this formula holds where weight_s is at most forward_s and half of backward_s; got "
                         f"{put_off_s:g} s of {forward_s:g} and {backward_s:g} s: use pipeline_schedule")  # fmt: skip
    idle_s = (ranks - 1) * (forward_s + backward_s - 2 * put_off_s)
    return idle_s / (microbatches * (forward_s + backward_s))


def bubble_share(ratio: float) -> float:
    """Return the share of the ranks' time that idles from the ratio of idle to busy time: r / (1 + r)."""
    return number("ratio", ratio, at_least=0) / (1 + ratio)


def live_activations(name: str, *, rank: int, ranks: int, microbatches: int, chunks: int = 1) -> int:
    """Return the most (stage, microbatch) pairs whose activations ``rank`` keeps at once.

    All m for "gpipe"; p - rank for "1f1b" (Narayanan et al., 2021); for "interleaved" one more than the forward passes
    of its warm-up, at most v m; p on every rank for "zero_bubble", ZB-H1, whose activations live until the weights'
    gradient (Qi et al., 2024). Raises ValueError as :func:`pipeline_schedule`. Lesson 05.
    """
    pipeline_orders.check(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
    whole_number("rank", rank, at_least=0, at_most=ranks - 1)
    if name == "gpipe":
        return microbatches
    if name == "1f1b":
        return ranks - rank
    if name == "zero_bubble":
        return ranks
    return min(pipeline_orders.interleaved_warm_up(rank, ranks, microbatches, chunks) + 1, microbatches * chunks)
