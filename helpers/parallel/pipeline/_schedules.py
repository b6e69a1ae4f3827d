"""Pipeline schedules as data: the order of each rank's work, its times, its idle time, and the
activations it keeps.

With p ranks and v chunks a rank there are p x v stages, and stage s is on rank s mod p. The orders
are those of GPipe, 1F1B, interleaved 1F1B and the zero-bubble schedule ZB-H1.

A pipeline of p ranks carries a batch as m microbatches. Each stage has a forward pass of a
microbatch and a backward pass, which "zero_bubble" cuts in two: the gradient of the stage's input
("backward"), for which the stage before it waits, and that of its weights ("backward-weight"), for
which nobody waits. What a schedule says of bubbles and memory is computed from its actions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from itertools import chain, zip_longest
from numbers import Real

from helpers.checks import choice, number, numbers, short, whole_number
from helpers.links import Activity, Timeline
from helpers.results import Record

FORWARD, BACKWARD, BACKWARD_WEIGHT = "forward", "backward", "backward-weight"

Step = tuple[str, int, int]  # kind, stage, microbatch
_MOST_PASSES = 10**6  # forward passes of a schedule, which take seconds to arrange


def rank_order(
    name: str, *, rank: int, ranks: int, microbatches: int, chunks: int = 1
) -> list[Step]:
    """Return the steps of ``rank``, in order, as (kind, stage, microbatch).

    A kind is "forward", "backward" or "backward-weight". ``name`` is one of :data:`SCHEDULES`:
    "gpipe" (Huang et al., 2019), "1f1b" (PipeDream-Flush: Narayanan et al., 2021, arXiv
    2104.04473), "interleaved" (the same paper, ``chunks`` stages a rank) or "zero_bubble" (ZB-H1:
    Qi et al., 2024, arXiv 2401.10241), where "backward" is the gradient of the input alone. Raises
    as :func:`check`.
    """
    check(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
    whole_number("rank", rank, at_least=0, at_most=ranks - 1)
    return list(_ORDERS[name](rank, ranks, microbatches, chunks))


def check(name: str, *, ranks: int, microbatches: int, chunks: int) -> None:
    """Raise ValueError or TypeError for a schedule that does not exist, with the change that it
    needs.
    """
    choice("schedule", name, _ORDERS)
    for argument, count in (("ranks", ranks), ("microbatches", microbatches), ("chunks", chunks)):
        whole_number(argument, count)
    if ranks * microbatches * chunks > _MOST_PASSES:
        raise ValueError(
            f"{short(ranks)} ranks, {short(microbatches)} microbatches and {short(chunks)} chunks "
            f"make more than {_MOST_PASSES:,} forward passes; give fewer"
        )
    if name == "interleaved" and chunks < 2:
        raise ValueError(
            "interleaved gives every rank several stages: give chunks=2 or more, or take '1f1b'"
        )
    if name != "interleaved" and chunks != 1:
        raise ValueError(
            f"{name!r} has one stage a rank, and chunks is {chunks}; only 'interleaved' has more"
        )
    if name != "gpipe" and microbatches < ranks:
        raise ValueError(
            f"{name!r} is run here as PyTorch runs it, with at least as many microbatches as "
            f"ranks; got {microbatches} microbatches for {ranks} ranks: cut the batch into {ranks} "
            "or more, or take 'gpipe'"
        )
    if name == "interleaved" and microbatches % ranks:
        raise ValueError(
            "interleaved takes the microbatches in rounds of as many as there are ranks; "
            f"{microbatches} do not divide by {ranks}: take {microbatches // ranks * ranks} or "
            f"{(microbatches // ranks + 1) * ranks}"
        )


def _gpipe(rank: int, _ranks: int, microbatches: int, _chunks: int) -> Iterator[Step]:
    yield from ((FORWARD, rank, microbatch) for microbatch in range(microbatches))
    yield from ((BACKWARD, rank, microbatch) for microbatch in range(microbatches))


def _alternating(forwards: list[Step], backwards: list[Step], *, warm_up: int) -> Iterator[Step]:
    yield from forwards[:warm_up]
    # the backward passes left over are the cool-down
    pairs = zip_longest(forwards[warm_up:], backwards)
    yield from (step for step in chain.from_iterable(pairs) if step is not None)


def _one_forward_one_backward(
    rank: int, ranks: int, microbatches: int, _chunks: int
) -> Iterator[Step]:
    forwards = [(FORWARD, rank, microbatch) for microbatch in range(microbatches)]
    backwards = [(BACKWARD, rank, microbatch) for microbatch in range(microbatches)]
    yield from _alternating(forwards, backwards, warm_up=ranks - 1 - rank)


def _interleaved(rank: int, ranks: int, microbatches: int, chunks: int) -> Iterator[Step]:
    # the chunk and the microbatch: rounds of `ranks` through every chunk
    def place(turn: int) -> tuple[int, int]:
        return turn // ranks % chunks, turn // (ranks * chunks) * ranks + turn % ranks

    turns = [place(turn) for turn in range(microbatches * chunks)]
    forwards = [(FORWARD, chunk * ranks + rank, microbatch) for chunk, microbatch in turns]
    backwards = [
        (BACKWARD, (chunks - 1 - chunk) * ranks + rank, microbatch) for chunk, microbatch in turns
    ]
    yield from _alternating(
        forwards, backwards, warm_up=interleaved_warm_up(rank, ranks, microbatches, chunks)
    )


def interleaved_warm_up(rank: int, ranks: int, microbatches: int, chunks: int) -> int:
    """Return the number of forward passes of ``rank`` before it alternates: Narayanan et al.
    (2021).
    """
    return min(microbatches * chunks, (chunks - 1) * ranks + 2 * (ranks - 1 - rank))


def _zero_bubble(rank: int, ranks: int, microbatches: int, chunks: int) -> Iterator[Step]:
    next_weight = 0
    for kind, stage, microbatch in _one_forward_one_backward(rank, ranks, microbatches, chunks):
        yield kind, stage, microbatch
        # `rank` weight gradients wait, to fill the rank's last gaps
        if kind == BACKWARD and microbatch >= rank:
            yield BACKWARD_WEIGHT, stage, next_weight
            next_weight += 1
    yield from (
        (BACKWARD_WEIGHT, rank, microbatch) for microbatch in range(next_weight, microbatches)
    )


_ORDERS: dict[str, Callable[[int, int, int, int], Iterator[Step]]] = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "zero_bubble": _zero_bubble,
}


SCHEDULES = tuple(_ORDERS)

Times = float | Sequence[float]


class PipelineAction(Record):
    """One pass of one microbatch through one stage; kinds are "forward", "backward" and
    "backward-weight".

    Lesson 06.
    """

    rank: int
    start_s: float
    end_s: float
    kind: str
    stage: int
    microbatch: int


class RankLoad(Record):
    """The load of a rank in a schedule, and the most (stage, microbatch) pairs whose activations it
    kept at once.

    Of the ``chunks`` stages that an interleaved rank has, each counts by itself. ``idle_share`` is
    of the schedule's duration. Lesson 06.
    """

    rank: int
    stages: str
    busy_s: float
    idle_share: float
    live_activations: int


class PipelineSchedule(Record):
    """A modelled schedule: ``actions`` by rank and start, the first start at 0.

    ``bubble_share`` is the share of all ranks' time in which they do nothing, ``bubble_ratio`` that
    idle time over the busy time: (p - 1) / m for GPipe, whose share is (p - 1) / (m + p - 1).
    Lesson 06.
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
        """The actions as a timeline, a lane a rank:
        ``gantt(schedule.timeline.activities, title=...)`` draws it.

        Labels are microbatches. Where a rank has several stages the kind names them: "forward,
        stages 4-7". Lesson 06.
        """
        several = any(action.stage >= self.ranks for action in self.actions)

        def kind(action: PipelineAction) -> str:
            first_stage = action.stage - action.stage % self.ranks
            return (
                f"{action.kind}, stages {first_stage}-{first_stage + self.ranks - 1}"
                if several
                else action.kind
            )

        return Timeline(
            self.duration_s,
            tuple(
                Activity(
                    f"rank {action.rank}",
                    action.start_s,
                    action.end_s,
                    kind(action),
                    f"{action.microbatch}",
                )
                for action in self.actions
            ),
        )

    def order(self, rank: int) -> list[Step]:
        """Return the steps of ``rank``, in order: (kind, stage, microbatch). Lesson 06."""
        return [
            (action.kind, action.stage, action.microbatch)
            for action in self.actions
            if action.rank == rank
        ]


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
    """Return the schedule ``name`` ("gpipe", "1f1b", "interleaved", "zero_bubble"), every pass as
    early as it can be.

    ``forward_s`` and ``backward_s`` are seconds of one of the ``microbatches`` in one stage: one
    number for all, or one a stage. ``weight_s`` is the part of ``backward_s`` that "zero_bubble"
    may put off (by default half of it). A rank does one thing at a time, in the schedule's order; a
    result is ``transfer_s`` on the way to a stage of another rank. "interleaved" gives each rank
    ``chunks`` stages: stage s is on rank s mod ``ranks``.

    Raises ValueError for another name, fewer microbatches than ranks (but for "gpipe"; the
    schedules can do with fewer, PyTorch's refuse them), microbatches that do not divide by the
    ranks ("interleaved"), chunks that the schedule does not have, and times that do not fit.

    >>> schedule = pipeline_schedule("1f1b", ranks=4, microbatches=8)
    >>> schedule.duration_s, schedule.bubble_ratio  # (8 + 4 - 1) x 3 s, and 3 / 8
    (33.0, 0.375)

    Lesson 06.
    """
    check(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
    if weight_s is not None and name != "zero_bubble":
        raise ValueError(
            f"only 'zero_bubble' splits the backward pass; leave weight_s out for {name!r}"
        )
    stages = ranks * chunks
    forward = _stage_times("forward_s", forward_s, stages)
    whole = backward = _stage_times("backward_s", backward_s, stages)
    weight = (
        [stage_s / 2 for stage_s in whole]
        if weight_s is None
        else _stage_times("weight_s", weight_s, stages)
    )
    if name == "zero_bubble":
        backward = [stage_s - part_s for stage_s, part_s in zip(whole, weight, strict=True)]
        if min(backward) < 0:
            raise ValueError(
                f"weight_s is a part of backward_s and cannot be more; got {weight} of {whole}"
            )
    durations = {FORWARD: forward, BACKWARD: backward, BACKWARD_WEIGHT: weight}
    orders = [
        rank_order(name, rank=rank, ranks=ranks, microbatches=microbatches, chunks=chunks)
        for rank in range(ranks)
    ]
    [delay_s] = _stage_times("transfer_s", transfer_s, 1)
    actions = _simulate(orders, durations, delay_s)
    # The sort is stable, so that passes that take no time stay in their order.
    actions.sort(key=lambda action: (action.rank, action.start_s))
    duration_s = max(action.end_s for action in actions)
    loads = tuple(
        _load([action for action in actions if action.rank == rank], rank, duration_s)
        for rank in range(ranks)
    )
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
        actions=tuple(actions),
    )


def _stage_times(name: str, times_s: Times, stages: int) -> list[float]:
    times = [times_s] * stages if isinstance(times_s, float | Real) else list(times_s)
    if len(times) != stages:
        raise ValueError(
            f"{name} must be one number, or one for each of the {stages} stages; got {len(times)}"
        )
    return numbers(name, times, at_least=0)


def _simulate(
    orders: list[list[Step]], durations_s: dict[str, list[float]], transfer_s: float
) -> list[PipelineAction]:
    ranks, stages = len(orders), len(durations_s[FORWARD])
    ended_s: dict[Step, float] = {}
    free_s, queues = [0.0] * ranks, [deque(order) for order in orders]
    actions: list[PipelineAction] = []
    while any(queues):
        action_count = len(actions)
        for rank, queue in enumerate(queues):
            while queue and all(need in ended_s for need in _needs(queue[0], stages)):
                step = queue.popleft()
                ready_s = [
                    ended_s[need] + (transfer_s if need[1] % ranks != rank else 0.0)
                    for need in _needs(step, stages)
                ]
                start_s = max([free_s[rank], *ready_s])
                ended_s[step] = free_s[rank] = start_s + durations_s[step[0]][step[1]]
                actions.append(PipelineAction(rank, start_s, free_s[rank], *step))
        if len(actions) == action_count:
            stuck = [queue[0] for queue in queues if queue]
            raise RuntimeError(f"the ranks wait for each other for ever: next are {stuck}")
    return actions


def _needs(step: Step, stages: int) -> Iterable[Step]:
    kind, stage, microbatch = step
    if kind == FORWARD and stage > 0:
        yield FORWARD, stage - 1, microbatch
    if kind == BACKWARD:
        yield FORWARD, stage, microbatch
        if stage < stages - 1:
            yield BACKWARD, stage + 1, microbatch
    if kind == BACKWARD_WEIGHT:
        yield BACKWARD, stage, microbatch


def _load(actions: list[PipelineAction], rank: int, duration_s: float) -> RankLoad:
    busy_s = math.fsum(action.end_s - action.start_s for action in actions)
    releasing_kind = (
        BACKWARD_WEIGHT if any(action.kind == BACKWARD_WEIGHT for action in actions) else BACKWARD
    )
    live = most_live = 0
    for action in actions:
        live += (action.kind == FORWARD) - (action.kind == releasing_kind)
        most_live = max(most_live, live)
    stages = ", ".join(str(stage) for stage in sorted({action.stage for action in actions}))
    return RankLoad(rank, stages, busy_s, 1 - busy_s / duration_s if duration_s else 0.0, most_live)


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
    """Return a rank's idle over its busy time in the schedule ``name``, with equal stages and
    messages of no time.

    p ``ranks``, m ``microbatches``, v ``chunks`` a rank, and seconds of the forward pass (F,
    ``forward_s``), the backward pass (B, ``backward_s``) and its weight part (W, ``weight_s``): (p
    - 1) / m for "gpipe" and "1f1b", (p - 1) / (v m) for "interleaved" (Narayanan et al., 2021,
    section 2.2), and (p - 1) (F + (B - W) - W) / (m (F + B)) for "zero_bubble", ZB-H1 (Qi et al.,
    2024, table 2), which holds while W is at most F and at most B - W. ``weight_s`` is half of
    ``backward_s`` unless given.

    >>> bubble_ratio("1f1b", ranks=4, microbatches=12)
    0.25

    Raises ValueError as :func:`pipeline_schedule`, and where the formula does not hold. Lesson 06.
    """
    check(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
    if name != "zero_bubble":
        return (ranks - 1) / (chunks * microbatches)
    put_off_s = backward_s / 2 if weight_s is None else weight_s
    if put_off_s > min(forward_s, backward_s - put_off_s):
        raise ValueError(
            f"this formula holds where weight_s is at most forward_s and half of backward_s; got "
            f"{put_off_s:g} s of {forward_s:g} and {backward_s:g} s: use pipeline_schedule"
        )
    idle_s = (ranks - 1) * (forward_s + backward_s - 2 * put_off_s)
    return idle_s / (microbatches * (forward_s + backward_s))


def bubble_share(ratio: float) -> float:
    """Return the share of the ranks' time that idles from the ratio of idle to busy time: r / (1 +
    r).

    >>> bubble_share(0.25)
    0.2
    """
    return number("ratio", ratio, at_least=0) / (1 + ratio)


def live_activations(
    name: str, *, rank: int, ranks: int, microbatches: int, chunks: int = 1
) -> int:
    """Return the most (stage, microbatch) pairs whose activations ``rank`` keeps at once.

    Of m ``microbatches`` on p ``ranks`` with v ``chunks`` each, by ``name``: all m for "gpipe"; p -
    rank for "1f1b" (Narayanan et al., 2021); for "interleaved" one more than the forward passes of
    its warm-up, at most v m; p on every rank for "zero_bubble", ZB-H1, whose activations live until
    the weights' gradient (Qi et al., 2024). Raises ValueError as :func:`pipeline_schedule`.

    >>> [live_activations(name, rank=0, ranks=4, microbatches=8) for name in ("gpipe", "1f1b")]
    [8, 4]

    Lesson 06.
    """
    check(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
    whole_number("rank", rank, at_least=0, at_most=ranks - 1)
    if name == "gpipe":
        return microbatches
    if name == "1f1b":
        return ranks - rank
    if name == "zero_bubble":
        return ranks
    return min(interleaved_warm_up(rank, ranks, microbatches, chunks) + 1, microbatches * chunks)
