"""The timeline of a step: what is alive at each operator, from a trace and its probes.

An event is one operator of the step that is not a mere view. A tensor is alive from the event that
makes it to the last one before its release, both included, so the live bytes of an event are the
sum over the tensors that span it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

import pandas as pd
import torch

from helpers.memory._events import Release, StepTrace, TracedOperator
from helpers.memory._probing import Probe
from helpers.results import Record, derived

CATEGORIES = (
    "parameter", "buffer", "input", "optimizer state", "saved activation", "activation", "gradient",
    "activation gradient", "optimizer temporary", "workspace", "other",
)  # fmt: skip

_CUDA_BLOCK_BYTES = 512  # torch.cuda's caching allocator rounds every tensor up to it


class LiveTensor(Record):
    """One tensor of the step, or the workspace of one operator: how large, whose, and alive from
    when to when.

    ``category`` is one of ``CATEGORIES``: a saved activation is made in the forward pass and kept
    for the backward pass, an activation is not kept; a gradient is a parameter's, an activation
    gradient any other of the backward pass; workspace is what one operator takes over its results;
    other is what the model itself keeps between steps. ``layer`` is the module's path, empty for
    the model. ``start_event`` and ``end_event`` are both included. Lesson 11.
    """

    name: str
    category: str
    layer: str
    size_bytes: int
    start_event: int
    end_event: int


class Event(Record):
    """One operator of the step, and the most bytes alive while it ran. Lesson 11."""

    operator: str
    layer: str
    phase: str
    live_bytes: int


class MemoryTimeline(Record):
    """Every tensor of a step with its life, in order of birth, and every event; ``table()`` is the
    tensors'.

    Lesson 11.
    """

    tensors: tuple[LiveTensor, ...]
    events: tuple[Event, ...] = field(repr=False)

    def event_table(self) -> pd.DataFrame:
        """Return a row an event: operator, layer, phase, live_bytes."""
        return pd.DataFrame([event.to_dict() for event in self.events])

    def alive_at(self, event: int) -> tuple[LiveTensor, ...]:
        """Return the tensors that are alive at ``event``, the largest first."""
        alive_tensors = [
            tensor for tensor in self.tensors if tensor.start_event <= event <= tensor.end_event
        ]
        return tuple(sorted(alive_tensors, key=lambda tensor: -tensor.size_bytes))


@dataclass
class _Life:
    name: str
    category: str
    layer: str
    size_bytes: int
    start: int
    end: int | None = None


def build_timeline(
    trace: StepTrace, probes: list[Probe | None], device: torch.device
) -> MemoryTimeline:
    """Return the timeline of the trace's second step."""
    replay = _Replay(trace, device)
    events = trace.events[trace.start :]
    for event, probe in zip(events, probes, strict=True):
        if isinstance(event, Release):
            replay.release(event.storage)
        elif probe is not None and not event.only_views:
            replay.run(event, probe)
    return replay.timeline()


class _Replay:
    """Play a step's operators and releases, and keep the life of each storage."""

    def __init__(self, trace: StepTrace, device: torch.device) -> None:
        self._trace = trace
        self._block_bytes = _CUDA_BLOCK_BYTES if device.type == "cuda" else 1
        self._lives: list[_Life] = []
        self._operators: list[TracedOperator] = []
        self._by_storage: dict[int, _Life] = {}
        for storage in trace.carried:
            category, layer, name = trace.names.get(storage, ("other", "", "kept by the model"))
            self._add_life(
                storage, trace.storage_bytes[storage], name=name, category=category, layer=layer
            )

    @property
    def _now(self) -> int:
        return max(len(self._operators) - 1, 0)

    def _add_life(
        self, storage: int | None, size_bytes: int, *, name: str, category: str, layer: str
    ) -> _Life:
        rounded = -(-size_bytes // self._block_bytes) * self._block_bytes
        life = _Life(name, category, layer, rounded, start=self._now)
        self._lives.append(life)
        if storage is not None:
            self._by_storage[storage] = life
        return life

    def run(self, operator: TracedOperator, probe: Probe) -> None:
        self._operators.append(operator)
        made_bytes = 0
        for (storage, _, _), size_bytes in zip(
            operator.made_storages, probe.made_bytes, strict=True
        ):
            category = _CATEGORY_OF_PHASE[operator.phase]
            life = self._add_life(
                storage, size_bytes, name=operator.name, category=category, layer=operator.layer
            )
            made_bytes += life.size_bytes
            if storage in self._trace.gradients:
                life.layer, life.name = self._trace.gradients[storage]
                life.category = "gradient"
        workspace_bytes = probe.usage.peak_bytes - made_bytes
        if workspace_bytes > 0:
            life = self._add_life(
                None,
                workspace_bytes,
                name=operator.name,
                category="workspace",
                layer=operator.layer,
            )
            life.end = self._now

    def release(self, storage: int) -> None:
        life = self._by_storage[storage]
        life.end = self._now
        phase = self._operators[-1].phase if self._operators else "forward"
        if life.category == "activation" and phase not in ("forward", "loss"):
            life.category = "saved activation"

    def timeline(self) -> MemoryTimeline:
        last = self._now
        tensors = tuple(
            derived(
                LiveTensor,
                life,
                start_event=life.start,
                end_event=last if life.end is None else life.end,
            )
            for life in self._lives
            if life.size_bytes
        )
        events = tuple(
            Event(operator.name, operator.layer, operator.phase, level)
            for operator, level in zip(
                self._operators, live_bytes(tensors, len(self._operators)), strict=True
            )
        )
        return MemoryTimeline(tensors, events)


_CATEGORY_OF_PHASE = {
    "forward": "activation",
    "loss": "activation",
    "backward": "activation gradient",
    "optimizer": "optimizer temporary",
}


def live_bytes(tensors: Iterable[LiveTensor], events: int) -> list[int]:
    """Return the bytes of these tensors that are alive at each event."""
    changes = [0] * (events + 1)
    for tensor in tensors if events else ():
        changes[tensor.start_event] += tensor.size_bytes
        changes[tensor.end_event + 1] -= tensor.size_bytes
    return list(itertools.accumulate(changes))[:events]
