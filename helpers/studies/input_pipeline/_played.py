"""A CUDA device that is played: streams, events and copies by torch.cuda's names, on a clock of
their own.

Work is queued on a stream and starts when all before it on that stream is done; the host goes on.
Nothing sleeps and nothing is computed, so every time is exact, and what a program must not do can
be noted.

Lesson 10.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from helpers.checks import boolean, number, whole_number
from helpers.links import Activity


@dataclass(frozen=True)
class PlayedEvent:
    """A mark on a stream: all that stood there before it is done at ``at_s``. Lesson 10."""

    at_s: float


class PlayedStream:
    """A queue of work: ``until_s`` is when the last of it is done. Lesson 10."""

    def __init__(self, name: str) -> None:
        self.name, self.until_s = name, 0.0

    def record_event(self) -> PlayedEvent:
        """Return a mark behind all that is queued here. Lesson 10."""
        return PlayedEvent(self.until_s)

    def wait_event(self, event: PlayedEvent) -> None:
        """Let what is queued from now on start after ``event``; the host does not wait.

        Lesson 10.
        """
        self.until_s = max(self.until_s, event.at_s)

    def wait_stream(self, stream: PlayedStream) -> None:
        """Let what is queued from now on start after all that ``stream`` holds now. Lesson 10."""
        self.wait_event(stream.record_event())


class PlayedBatch:
    """A batch in the host's memory (``stream`` is None) or on the device, there at ``copied_s``.

    Lesson 10.
    """

    def __init__(
        self, cuda: PlayedCuda, index: int, *, pinned: bool, stream: PlayedStream | None = None
    ) -> None:
        self.index, self.pinned, self.stream = index, boolean("pinned", pinned), stream
        self.copied_s, self.users = 0.0, {stream}
        self._cuda = cuda

    def to(self, device: str, *, non_blocking: bool = False) -> PlayedBatch:
        """Queue the copy on the current stream; the host waits for it unless ``non_blocking`` and
        pinned.

        Lesson 10.
        """
        boolean("non_blocking", non_blocking)
        return self._cuda._copy(self, device, non_blocking=non_blocking)

    def record_stream(self, stream: PlayedStream) -> None:
        """Keep the memory until what ``stream`` holds now is done with it. Lesson 10."""
        self.users.add(stream)


class PlayedCuda:
    """A device that copies a pinned batch in ``copy_s``, a pageable one in ``pageable_s``, and
    steps in ``step_s``.

    It has torch.cuda's ``Stream()``, ``stream(...)``, ``current_stream()`` and ``synchronize()``;
    ``batches(count)`` are in the host's memory, and ``step(batch)`` queues a training step.
    ``activities`` has a lane a stream, for ``plotting.gantt``. ``faults`` says which steps were
    wrong: of a batch that was not there yet, or that was copied on another stream and not recorded
    on the step's, so that its memory could go to the next copy meanwhile.

    Raises ValueError for a negative time. Lesson 10.
    """

    def __init__(self, *, copy_s: float, step_s: float, pageable_s: float | None = None) -> None:
        self.copy_s, self.step_s = (
            number("copy_s", copy_s, at_least=0),
            number("step_s", step_s, at_least=0),
        )
        self.pageable_s = (
            copy_s if pageable_s is None else number("pageable_s", pageable_s, at_least=0)
        )
        self.host_s = 0.0
        self.activities: list[Activity] = []
        self._streams = [PlayedStream("default stream")]
        self._current = self._streams[0]
        self._engine_until_s = 0.0
        self._steps: list[tuple[PlayedBatch, PlayedStream, float]] = []

    def batches(self, count: int, *, pinned: bool = True) -> list[PlayedBatch]:
        """Return ``count`` batches in pinned or pageable memory of the host. Lesson 10."""
        boolean("pinned", pinned)
        return [
            PlayedBatch(self, index, pinned=pinned)
            for index in range(whole_number("count", count, at_least=1))
        ]

    def Stream(self) -> PlayedStream:
        """Return a new stream. Lesson 10."""
        self._streams.append(PlayedStream(f"stream {len(self._streams)}"))
        return self._streams[-1]

    def current_stream(self) -> PlayedStream:
        """Return the stream on which work is queued now. Lesson 10."""
        return self._current

    @contextlib.contextmanager
    def stream(self, stream: PlayedStream) -> Iterator[None]:
        """Queue the block's work on ``stream``. Lesson 10."""
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    def synchronize(self) -> None:
        """Let the host wait until all that is queued is done, as ``loss.item()`` does for its
        stream.

        Lesson 10.
        """
        self.host_s = max(self.host_s, *(stream.until_s for stream in self._streams), 0.0)

    def step(self, batch: PlayedBatch) -> None:
        """Queue a training step on the current stream.

        Raises ValueError for a batch on the host. Lesson 10.
        """
        if batch.stream is None:
            raise ValueError(
                f"batch {batch.index} is in the host's memory; copy it first: batch.to('cuda')"
            )
        stream = self._current
        start_s = max(self.host_s, stream.until_s)
        stream.until_s = start_s + self.step_s
        self._steps.append((batch, stream, start_s))
        self._note(stream, start_s, "computing", batch)

    @property
    def from_step_to_step_s(self) -> float:
        """The mean seconds from the start of a step to the start of the next, from the second on.

        Lesson 10.
        """
        starts = [start_s for _, _, start_s in self._steps][1:]
        if len(starts) < 2:
            raise ValueError(
                f"{len(self._steps)} steps have no time from step to step; give at least 3 batches"
            )
        return (starts[-1] - starts[0]) / (len(starts) - 1)

    @property
    def faults(self) -> tuple[str, ...]:
        """The faults of the steps, the first of each kind. Lesson 10."""
        early = [
            f"step {batch.index} began before its batch was there"
            for batch, _, start_s in self._steps
            if start_s < batch.copied_s
        ]
        unrecorded = [
            f"batch {batch.index} was not recorded on the stream of its step"
            for batch, stream, _ in self._steps
            if stream not in batch.users
        ]
        return tuple(early[:1] + unrecorded[:1])

    def _copy(self, batch: PlayedBatch, device: str, *, non_blocking: bool) -> PlayedBatch:
        if device != "cuda":
            raise ValueError(f"device={device!r} is not played here; give 'cuda'")
        stream = self._current
        # one engine copies this way
        start_s = max(self.host_s, stream.until_s, self._engine_until_s)
        there = PlayedBatch(self, batch.index, pinned=False, stream=stream)
        there.copied_s = stream.until_s = self._engine_until_s = start_s + (
            self.copy_s if batch.pinned else self.pageable_s
        )
        self._note(stream, start_s, "copying", batch)
        if not (non_blocking and batch.pinned):
            self.host_s = there.copied_s
        return there

    def _note(self, stream: PlayedStream, start_s: float, kind: str, batch: PlayedBatch) -> None:
        self.activities.append(
            Activity(stream.name, start_s, stream.until_s, kind, str(batch.index))
        )
