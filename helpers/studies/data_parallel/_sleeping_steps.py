"""Steps of DistributedDataParallel whose layers sleep, over a slow link: how long they take, and
who waits for whom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from helpers.checks import members, number, whole_number
from helpers.links import Activity, Link, Recorder, Timeline, join_activities, sleep_for
from helpers.results import Record
from helpers.studies.data_parallel._devices import SleepingLayer, slow_link, step_times


class RankSteps(Record):
    """The steps that one rank has recorded: the seconds of each step and its activities.

    Lesson 05.
    """

    step_s: tuple[float, ...]
    activities: tuple[tuple[Activity, ...], ...]


class SimulatedStep(Record):
    """A step of all ranks together: ``step_s`` is the slowest rank's, ``timeline`` has the
    activities of all.

    The lanes of rank r are "rank r device" and "rank r link". Lesson 05.
    """

    step_s: float
    timeline: Timeline

    def waited_s(self, rank: int) -> float:
        """Return the seconds in which a full bucket of ``rank`` and a free link waited for slower
        ranks and the sum.

        The real sum takes milliseconds, on shared cores ten and more, so the difference of two
        ranks says who waited for whom. Raises ValueError for a rank that is not there. Lesson 05.
        """
        return self.timeline.busy_s(f"rank {rank} link", "waiting")


def record_steps(
    ddp: nn.parallel.DistributedDataParallel, link: Link, *, late_s: float = 0.0, repeats: int = 6
) -> RankSteps:
    """Return ``repeats`` steps of ``ddp`` on this rank, a model of :class:`SleepingLayer`, averaged
    over ``link``.

    A step is a forward and a backward pass. All ranks call it, and all begin a step together, but
    one with ``late_s`` begins it so many seconds later. DDP arranges its buckets anew after its
    first step, so two steps come first that are not recorded.

    Raises TypeError for a model that is no DistributedDataParallel, ValueError for one without a
    sleeping layer, for a negative time and for fewer than 1 repeat. Lesson 05.
    """
    number("late_s", late_s, at_least=0)
    whole_number("repeats", repeats)
    recorder = Recorder()
    slow_link(ddp, link, recorder=recorder)
    rank = torch.distributed.get_rank(ddp.process_group)
    layers = [module for module in ddp.modules() if isinstance(module, SleepingLayer)]
    if not layers:
        raise ValueError(
            "the model has no SleepingLayer, so there is no device to record; make it of "
            "SleepingLayers"
        )
    for layer in layers:
        layer.recorder = recorder
    inputs = torch.ones(2, device=layers[0].weight.device)
    recorded_steps: list[tuple[Activity, ...]] = []

    def step() -> None:
        recorder.activities.clear()
        if late_s:
            with recorder.activity("device", kind="late"):
                sleep_for(late_s)
        ddp(inputs).sum().backward()
        recorded_steps.append(
            tuple(
                replace(activity, lane=f"rank {rank} {activity.lane}")
                for activity in recorder.activities
            )
        )

    times_s = step_times(step, repeats=repeats)
    return RankSteps(tuple(times_s), tuple(recorded_steps[-repeats:]))


def fastest_step(ranks: Sequence[RankSteps]) -> SimulatedStep:
    """Return the fastest step of all ranks together: a step takes as long as its slowest rank.

    ``ranks`` has what :func:`record_steps` returned on each rank, in the order of the ranks.

    >>> late = Activity("rank 1 device", 0.0, 3.0, "late")
    >>> fastest_step([RankSteps((2.0, 4.0), ((), ())), RankSteps((3.0, 1.0), ((late,), ()))]).step_s
    3.0

    Raises ValueError for no rank, and for ranks with unlike many steps. Lesson 05.
    """
    rank_steps = members("ranks", ranks, "RankSteps, one per rank", kind=RankSteps)
    if len({len(rank.step_s) for rank in rank_steps}) != 1 or not rank_steps[0].step_s:
        raise ValueError(
            "ranks has no steps, or ranks of unlike many; give what record_steps returned on every "
            "rank"
        )
    together_s = [max(times) for times in zip(*(rank.step_s for rank in rank_steps), strict=True)]
    fastest = together_s.index(min(together_s))
    activities = [activity for rank in rank_steps for activity in rank.activities[fastest]]
    return SimulatedStep(together_s[fastest], join_activities(activities))
