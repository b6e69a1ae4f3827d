"""A link between ranks as two numbers, a port that is busy as long as the link would be, and
timelines.

A message of n bytes over a link takes alpha + n beta: alpha is the latency, beta one over the
bandwidth (the Hockney model, Parallel Computing 20, 1994). Every rank has one port that sends one
message and receives one message at a time, both at once (full duplex, single port: Thakur,
Rabenseifner and Gropp, 2005).
"""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from helpers.checks import number, short
from helpers.results import Record


class Link(Record):
    """A link: ``bandwidth_bytes_per_s`` (infinite for one that only delays) and ``latency_s`` a
    message.

    Raises ValueError for a bandwidth that is not above 0 and for a latency that is negative or not
    finite. Lesson 05.
    """

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not _is_number(self.bandwidth_bytes_per_s) or not self.bandwidth_bytes_per_s > 0:
            raise ValueError(
                "bandwidth_bytes_per_s must be a number above 0; got "
                f"{self.bandwidth_bytes_per_s!r} (100 Mbit/s are 12.5e6 bytes a second)"
            )
        if not _is_number(self.latency_s) or not 0 <= self.latency_s < math.inf:
            raise ValueError(
                "latency_s must be a finite number of seconds of at least 0; got "
                f"{self.latency_s!r}"
            )

    def transfer_s(self, size_bytes: float) -> float:
        """Return the seconds of one message of ``size_bytes``: the latency and the bytes over the
        bandwidth.

        Raises TypeError for a size that is no number, ValueError for a negative one. Lesson 05.
        """
        return (
            self.latency_s
            + number("size_bytes", size_bytes, at_least=0) / self.bandwidth_bytes_per_s
        )


def require_link(name: str, value: object) -> Link:
    """Return ``value``. Raises TypeError unless it is a :class:`Link`.

    >>> require_link("link", Link(12.5e6)).transfer_s(25e6)
    2.0
    """
    if not isinstance(value, Link):
        raise TypeError(
            f"{name} is a helpers.links.Link(bandwidth_bytes_per_s, latency_s), not {short(value)}"
        )
    return value


class Activity(Record):
    """A stretch of ``lane`` (a rank, a port) from ``start_s`` to ``end_s``, filled with one
    ``kind`` of activity.

    It has what ``plotting.gantt`` reads of a span: ``gantt(timeline.activities, title=...)`` draws
    it. Lesson 05.
    """

    lane: str
    start_s: float
    end_s: float
    kind: str
    label: str = ""

    @property
    def start(self) -> float:
        """The start in seconds."""
        return self.start_s

    @property
    def end(self) -> float:
        """The end in seconds."""
        return self.end_s

    @property
    def duration_s(self) -> float:
        """The seconds from start to end. Lesson 05."""
        return self.end_s - self.start_s


class Timeline(Record):
    """The activities of every lane, in the order of starts; ``gantt(timeline.activities, ...)``
    draws it.

    ``duration_s`` is from the first start to the last end. Lesson 05.
    """

    duration_s: float
    activities: tuple[Activity, ...]

    def busy_s(self, lane: str, kind: str | None = None) -> float:
        """Return the seconds in which ``lane`` did something (of ``kind``, if given): overlaps
        count once.

        Raises ValueError for a lane that is not there, naming those that are. Lesson 05.
        """
        lanes = dict.fromkeys(activity.lane for activity in self.activities)
        if lane not in lanes:
            raise ValueError(f"no lane {lane!r}; there are {', '.join(lanes)}")
        busy_s, until_s = 0.0, -math.inf
        for activity in self.activities:
            if activity.lane == lane and kind in (None, activity.kind):
                busy_s += max(0.0, activity.end_s - max(activity.start_s, until_s))
                until_s = max(until_s, activity.end_s)
        return busy_s


def join_activities(activities: Iterable[Activity], *, zero_s: float | None = None) -> Timeline:
    """Return the activities of all ranks as one timeline, the lanes in alphabetical order;
    ``zero_s`` becomes 0.

    ``zero_s`` is by default the first start.

    The ranks' clocks must be one clock: ``time.perf_counter`` is, for the processes of one machine.
    Raises ValueError where there is nothing to join.

    >>> spans = [Activity("rank 1", 5.0, 8.0, "wait"), Activity("rank 0", 4.0, 6.0, "send")]
    >>> timeline = join_activities(spans)
    >>> timeline.duration_s
    4.0
    >>> [(span.lane, span.start_s, span.end_s) for span in timeline.activities]
    [('rank 0', 0.0, 2.0), ('rank 1', 1.0, 4.0)]
    """
    sorted_activities = sorted(
        activities, key=lambda activity: (activity.lane, activity.start_s, activity.end_s)
    )
    if not sorted_activities:
        raise ValueError("no activities to join: record some first")
    first_s, last_s = (
        min(activity.start_s for activity in sorted_activities),
        max(activity.end_s for activity in sorted_activities),
    )
    zero_s = first_s if zero_s is None else zero_s
    shifted_activities = tuple(
        replace(activity, start_s=activity.start_s - zero_s, end_s=activity.end_s - zero_s)
        for activity in sorted_activities
    )
    return Timeline(last_s - first_s, shifted_activities)


class Recorder:
    """Collects the activities of one rank, in its own process; ``activities`` goes back to the
    caller.

    Lesson 05.
    """

    def __init__(self) -> None:
        self.activities: list[Activity] = []

    def add(self, lane: str, start_s: float, end_s: float, *, kind: str, label: str = "") -> None:
        """Note one activity; times are of ``time.perf_counter``. Lesson 05."""
        self.activities.append(Activity(lane, start_s, end_s, kind, label))

    @contextmanager
    def activity(self, lane: str, *, kind: str, label: str = "") -> Iterator[None]:
        """Note the block as one activity, also when it raises. Lesson 05."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self.add(lane, start_s, time.perf_counter(), kind=kind, label=label)


def sleep_until(end_s: float) -> None:
    """Sleep until ``time.perf_counter()`` reads ``end_s``; return at once where it already does.

    A sleep ends late by the timer's slack (50 us on Linux) and what the scheduler adds, and never
    early: waiting for a moment keeps that from adding up, as it would over sleeps for a duration.

    >>> end_s = time.perf_counter() + 0.001
    >>> sleep_until(end_s)
    >>> time.perf_counter() >= end_s
    True
    """
    while (left_s := end_s - time.perf_counter()) > 0:
        time.sleep(left_s)


def sleep_for(duration_s: float) -> None:
    """Sleep for ``duration_s`` from now: see :func:`sleep_until`.

    >>> start_s = time.perf_counter()
    >>> sleep_for(0.001)
    >>> time.perf_counter() >= start_s + 0.001
    True
    """
    sleep_until(time.perf_counter() + duration_s)


class Port:
    """One direction of a rank's port: messages follow one another, each as long as ``link`` needs.

    Lesson 05.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.free_s = -math.inf

    def occupy(self, size_bytes: int, *, from_s: float) -> tuple[float, float]:
        """Return when a message that could start at ``from_s`` starts and ends, and keep the port
        busy until then.

        Nothing is waited for here.
        """
        start_s = max(from_s, self.free_s)
        self.free_s = start_s + self.link.transfer_s(size_bytes)
        return start_s, self.free_s


def _is_number(value: object) -> bool:
    try:
        return (
            isinstance(value, numbers.Real)
            and not isinstance(value, bool)
            and not math.isnan(value)
        )
    except OverflowError:  # a whole number that no float holds
        return False
