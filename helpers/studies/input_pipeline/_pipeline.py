"""A loader and a device as a model (two formulas) and as an exact simulation of the bounded
prefetch queue.

The queue is DataLoader's own (torch.utils.data, in-order delivery): at the start each of W workers
is sent ``prefetch_factor`` batches, batch i to worker i modulo W; a worker makes its batches one
after the other; batches are handed out in order; and handing out one batch sends off the next. So
at most W x prefetch_factor are under way.

Lesson 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from helpers.checks import number, numbers, whole_number
from helpers.links import Activity, Timeline, join_activities
from helpers.results import Record

COPYING = ("blocking", "non_blocking", "ahead")
_MOST_WORKERS = 1_000_000
_MOST_STEPS = 1_000_000


class FeedingModel(Record):
    """A modelled training loop in its steady state: seconds a step, and the device's ``busy_share``
    of it.

    ``bound`` says what decides the step: "device", "input", "input, device in turn" or "nothing";
    ``first_batch_s`` is from the start of the loop to its first batch. Lesson 10.
    """

    first_batch_s: float
    step_s: float
    busy_share: float
    bound: str


def model_feeding(
    produce_s: float, device_s: float, *, workers: int = 0, cores: int | None = None
) -> FeedingModel:
    """Return the steady state of a loop whose batch takes ``produce_s`` to make and ``device_s`` to
    compute with.

    What runs at the same time takes the longest of its parts, what runs in turn their sum.
    ``workers`` make batches at the same time as the device computes, so their part is produce /
    workers; with ``cores`` (for batches that compute, not wait) it is produce / min(workers,
    cores). Without workers the host makes a batch and then waits for the device.

    Raises ValueError for a negative time and for no cores. Lesson 10.
    """
    workers = whole_number("workers", workers, at_least=0, at_most=_MOST_WORKERS)
    hands = workers if cores is None else min(workers, whole_number("cores", cores, at_least=1))
    number("produce_s", produce_s, at_least=0)
    number("device_s", device_s, at_least=0)
    lanes = [{"input": produce_s, "device": device_s}]
    if workers:
        lanes = [{"input": produce_s / hands}, {"device": device_s}]
    longest = max(lanes, key=lambda lane: sum(lane.values()))
    step_s = sum(longest.values())
    parts = [name for name, part_s in longest.items() if part_s > 0] or ["nothing"]
    return FeedingModel(
        first_batch_s=produce_s,
        step_s=step_s,
        busy_share=device_s / step_s if step_s else 0.0,
        bound=parts[0] if len(parts) == 1 else ", ".join(parts) + " in turn",
    )


class SimulatedFeeding(Record):
    """A simulated loop: the first wait, the time of a step, and the busy share.

    ``step_s`` is the mean time from the start of a step to the start of the next, after ``warm_up``
    steps, and ``busy_share`` the device's part of it. ``timeline`` is for ``plotting.gantt``.
    Lesson 10.
    """

    steps: int
    workers: int
    warm_up: int
    first_batch_s: float
    step_s: float
    busy_share: float
    timeline: Timeline = field(repr=False)

    def at(self, now_s: float) -> tuple[list[int | None], list[int], int | None]:
        """Return the batch that each worker makes at ``now_s``, the batches that lie ready, and the
        one that the device computes with.

        None stands for one that waits. For ``input_pipeline.draw_loader``. Lesson 10.
        """
        activities = [
            activity for activity in self.timeline.activities if activity.start_s <= now_s
        ]
        doing = {
            activity.lane: int(activity.label) for activity in activities if now_s < activity.end_s
        }
        taken_batches = {
            int(activity.label) for activity in activities if activity.lane in ("device", "host")
        }
        made_batches = {
            int(activity.label)
            for activity in activities
            if activity.kind == "making a batch" and activity.end_s <= now_s
        }
        making = [doing.get(f"worker {worker}") for worker in range(self.workers)]
        return making, sorted(made_batches - taken_batches), doing.get("device")


def simulate_feeding(
    produce_s: float | Sequence[float],
    device_s: float,
    *,
    steps: int | None = None,
    workers: int = 0,
    prefetch_factor: int = 2,
    warm_up: int = 0,
) -> SimulatedFeeding:
    """Return the simulated run of DataLoader's queue with batches that take ``produce_s``: one
    number, or one a batch.

    The host takes a batch, the device computes for ``device_s``, and the host waits for it. Each of
    the ``workers`` has a core of its own, or waits. One number needs ``steps``.

    The schedule is exact: batch i starts when its worker is free and it has been sent off, which is
    when batch i - ``workers`` x ``prefetch_factor`` was taken. Raises ValueError for a negative
    time, fewer than two batches beyond the ``warm_up``, or ``steps`` that are not as many as the
    batches. Lesson 10.
    """
    times_s = _batch_times(produce_s, steps)
    warm_up = whole_number("warm_up", warm_up, at_least=0)
    if len(times_s) < warm_up + 2:
        raise ValueError(
            f"{len(times_s)} batches with {warm_up} of them for warm-up have no time from step to "
            f"step; give at least {warm_up + 2}"
        )
    workers = whole_number("workers", workers, at_least=0, at_most=_MOST_WORKERS)
    prefetch_factor = whole_number("prefetch_factor", prefetch_factor, at_least=1)
    number("device_s", device_s, at_least=0)
    activities: list[Activity] = []
    taken_s: list[float] = []
    free_s, host_s = [0.0] * workers, 0.0
    for batch, make_s in enumerate(times_s):
        if workers:
            sent_s = (
                taken_s[batch - workers * prefetch_factor]
                if batch >= workers * prefetch_factor
                else 0.0
            )
            worker = batch % workers
            begin_s = max(free_s[worker], sent_s)
            free_s[worker] = begin_s + make_s
            lane = f"worker {worker}"
        else:
            begin_s, lane = host_s, "host"
        ready_s = begin_s + make_s
        taken_s.append(max(host_s, ready_s))
        host_s = taken_s[-1] + device_s
        activities += [
            Activity(lane, begin_s, ready_s, "making a batch", str(batch)),
            Activity("device", taken_s[-1], host_s, "computing", str(batch)),
        ]
    step_s = (taken_s[-1] - taken_s[warm_up]) / (len(times_s) - warm_up - 1)
    return SimulatedFeeding(
        steps=len(times_s),
        workers=workers,
        warm_up=warm_up,
        first_batch_s=taken_s[0],
        step_s=step_s,
        busy_share=device_s / step_s if step_s else 0.0,
        timeline=join_activities(activities, zero_s=0.0),
    )


def _batch_times(produce_s: float | Sequence[float], steps: int | None) -> list[float]:
    if isinstance(produce_s, int | float):
        if steps is None:
            raise ValueError(
                "one produce_s for all batches needs steps, the number of batches; give it"
            )
        return [number("produce_s", produce_s, at_least=0)] * whole_number(
            "steps", steps, at_most=_MOST_STEPS
        )
    times_s = numbers("produce_s", produce_s, at_least=0)
    if not times_s or (steps is not None and steps != len(times_s)):
        raise ValueError(
            f"produce_s holds {len(times_s)} batches and steps={steps}; give at least one batch, "
            "and no steps beside them"
        )
    return times_s
