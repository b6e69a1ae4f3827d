"""A loader and a device as a model (two formulas) and as an exact simulation of the bounded
prefetch queue.

The queue is DataLoader's own (torch.utils.data, in-order delivery): at the start each of W workers
is sent ``prefetch_factor`` batches, batch i to worker i modulo W; a worker makes its batches one
after the other; batches are handed out in order; and handing out one batch sends off the next. So
at most W x prefetch_factor are under way.

Lesson 10.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import field

from helpers.checks import boolean, choice, number, numbers, whole_number
from helpers.links import Activity, Timeline, join_activities
from helpers.results import Record

COPYING = ("blocking", "non_blocking", "ahead")
_MOST_WORKERS = 1_000_000
_MOST_STEPS = 1_000_000


class FeedingModel(Record):
    """A modelled training loop in its steady state: seconds a step, and the device's ``busy_share``
    of it.

    ``bound`` says what decides the step: "device", "copy", "input", "input, device in turn" and the
    like; ``first_batch_s`` is from the start of the loop to its first batch. Lesson 10.
    """

    first_batch_s: float
    step_s: float
    busy_share: float
    bound: str


def model_feeding(
    produce_s: float,
    device_s: float,
    *,
    workers: int = 0,
    cores: int | None = None,
    copy_s: float = 0.0,
    copying: str = "blocking",
    wait_each_step: bool = True,
    start_s: float = 0.0,
    handover_s: float = 0.0,
) -> FeedingModel:
    """Return the steady state of a loop whose batch takes ``produce_s`` to make and ``device_s`` to
    compute with.

    What runs at the same time takes the longest of its parts, what runs in turn their sum.
    ``workers`` make batches at the same time as the device computes, so their part is produce /
    workers; with ``cores`` (for batches that compute, not wait) it is produce / min(workers,
    cores). ``handover_s`` is what the training process spends to receive a batch, and ``start_s``
    what the workers take to start, which delays the first batch only.

    ``copying`` puts the copy of ``copy_s`` in its place: "blocking" (pageable: the host waits, then
    the device computes), "non_blocking" (pinned: the host goes on, copy and computing share a
    stream, so one waits for the other) or "ahead" (pinned, by a thread and a stream of its own: at
    the same time as everything else). ``wait_each_step``: the host waits for the device in each
    step, as ``loss.item()`` does; without it the host makes the next batch (0 workers) or receives
    it meanwhile.

    Raises ValueError for a negative time, an unknown way of copying, no cores. Lesson 10.
    """
    boolean("wait_each_step", wait_each_step)
    workers = whole_number("workers", workers, at_least=0, at_most=_MOST_WORKERS)
    hands = workers if cores is None else min(workers, whole_number("cores", cores, at_least=1))
    _check_times(
        produce_s=produce_s,
        device_s=device_s,
        copy_s=copy_s,
        start_s=start_s,
        handover_s=handover_s,
    )
    choice("copying", copying, COPYING)
    makers = {"input": produce_s / hands} if workers else {}
    hosts = {"hand-over": handover_s, **({} if workers else {"input": produce_s})}
    if copying == "ahead":  # a thread receives and copies; the host only steps
        lanes = [makers, hosts, {"copy": copy_s}, {"device": device_s}]
    elif wait_each_step:
        lanes = [makers, {**hosts, "copy": copy_s, "device": device_s}]
    elif copying == "blocking":  # the copy waits for the device, and the host for the copy
        slower = hosts if sum(hosts.values()) > device_s else {"device": device_s}
        lanes = [makers, {**slower, "copy": copy_s}]
    else:
        lanes = [makers, hosts, {"copy": copy_s, "device": device_s}]
    longest = max(lanes, key=lambda lane: sum(lane.values()))
    step_s = sum(longest.values())
    parts = [name for name, part_s in longest.items() if part_s > 0] or ["nothing"]
    return FeedingModel(
        first_batch_s=start_s + produce_s + handover_s,
        step_s=step_s,
        busy_share=device_s / step_s if step_s else 0.0,
        bound=parts[0] if len(parts) == 1 else ", ".join(parts) + " in turn",
    )


class SimulatedFeeding(Record):
    """A simulated loop: ``elapsed_s`` from its start to its last step's end, the first wait, and
    the busy share.

    ``step_s`` is the mean time from the start of a step to the start of the next, after ``warm_up``
    steps, and ``busy_share`` the device's part of it. ``most_ready`` is the most batches that were
    ready and not yet taken. ``timeline`` is for ``plotting.gantt``. Lesson 10.
    """

    steps: int
    workers: int
    warm_up: int
    elapsed_s: float
    first_batch_s: float
    step_s: float
    busy_share: float
    most_ready: int
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
    start_s: float = 0.0,
    handover_s: float = 0.0,
    warm_up: int = 0,
) -> SimulatedFeeding:
    """Return the simulated run of DataLoader's queue with batches that take ``produce_s``: one
    number, or one a batch.

    The host takes a batch (``handover_s``), the device computes for ``device_s``, and the host
    waits for it. The ``workers`` are ready ``start_s`` after the loop's start; each has a core of
    its own, or waits. One number needs ``steps``.

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
    _check_times(device_s=device_s, start_s=start_s, handover_s=handover_s)
    activities: list[Activity] = []
    taken_s: list[float] = []
    ready_s: list[float] = []
    free_s, host_s = [start_s] * workers, start_s if workers == 0 else 0.0
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
        ready_s.append(begin_s + make_s)
        taken_s.append(max(host_s, ready_s[-1]))
        device_from_s = taken_s[-1] + handover_s
        host_s = device_from_s + device_s
        activities.append(Activity(lane, begin_s, ready_s[-1], "making a batch", str(batch)))
        if handover_s:
            activities.append(Activity("host", taken_s[-1], device_from_s, "hand-over", str(batch)))
        activities.append(Activity("device", device_from_s, host_s, "computing", str(batch)))
    step_s = (taken_s[-1] - taken_s[warm_up]) / (len(times_s) - warm_up - 1)
    return SimulatedFeeding(
        steps=len(times_s),
        workers=workers,
        warm_up=warm_up,
        elapsed_s=host_s,
        first_batch_s=taken_s[0] + handover_s,
        step_s=step_s,
        busy_share=device_s / step_s if step_s else 0.0,
        most_ready=max(_count_ready(ready_s, taken_s)) if workers else 0,
        timeline=join_activities(activities, zero_s=0.0),
    )


def _count_ready(ready_s: Sequence[float], taken_s: Sequence[float]) -> Iterator[int]:
    """Yield how many batches are ready and not taken, just before each is taken."""
    in_order = sorted(ready_s)
    for taken, now_s in enumerate(taken_s):
        yield bisect.bisect_right(in_order, now_s) - taken


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


def _check_times(**times_s: float) -> None:
    for name, value in times_s.items():
        number(name, value, at_least=0)
