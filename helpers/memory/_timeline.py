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
    start_event: int
    end: int | None = None


_CATEGORY_OF_PHASE = {
    "forward": "activation",
    "loss": "activation",
    "backward": "activation gradient",
    "optimizer": "optimizer temporary",
}


def build_timeline(
    trace: StepTrace, probes: list[Probe | None], device: torch.device
) -> MemoryTimeline:
    """Return the timeline of the trace's second step."""
    lives, operators = _replay(trace, probes, _CUDA_BLOCK_BYTES if device.type == "cuda" else 1)
    last = max(len(operators) - 1, 0)
    tensors = tuple(
        derived(LiveTensor, life, end_event=last if life.end is None else life.end)
        for life in lives
        if life.size_bytes
    )
    levels = live_bytes(tensors, len(operators))
    events = tuple(
        Event(operator.name, operator.layer, operator.phase, level)
        for operator, level in zip(operators, levels, strict=True)
    )
    return MemoryTimeline(tensors, events)


def _replay(
    trace: StepTrace, probes: list[Probe | None], block_bytes: int
) -> tuple[list[_Life], list[TracedOperator]]:
    """Play the step's operators and releases; return the life of each storage and workspace, in
    blocks of ``block_bytes``, and the operators that are no mere views.
    """
    lives: list[_Life] = []
    lives_by_storage: dict[int, _Life] = {}
    operators: list[TracedOperator] = []
    now = 0

    def begin_life(name: str, category: str, layer: str, size_bytes: int) -> _Life:
        rounded = -(-size_bytes // block_bytes) * block_bytes
        lives.append(_Life(name, category, layer, rounded, now))
        return lives[-1]

    for storage in trace.carried:
        category, layer, name = trace.names.get(storage, ("other", "", "kept by the model"))
        life = begin_life(name, category, layer, trace.storage_bytes[storage])
        lives_by_storage[storage] = life
    for event, probe in zip(trace.second_step, probes, strict=True):
        if isinstance(event, Release):
            life = lives_by_storage[event.storage]
            life.end = now
            phase = operators[-1].phase if operators else "forward"
            if life.category == "activation" and phase not in ("forward", "loss"):
                life.category = "saved activation"
        elif probe is not None and not event.only_views:
            now = len(operators)
            operators.append(event)
            workspace_bytes = probe.peak_bytes
            for made, size_bytes in zip(event.made_storages, probe.made_bytes, strict=True):
                category, layer, name = _CATEGORY_OF_PHASE[event.phase], event.layer, event.name
                if made.storage in trace.gradients:
                    category, (layer, name) = "gradient", trace.gradients[made.storage]
                life = begin_life(name, category, layer, size_bytes)
                lives_by_storage[made.storage] = life
                workspace_bytes -= life.size_bytes
            if workspace_bytes > 0:
                begin_life(event.name, "workspace", event.layer, workspace_bytes).end = now
    return lives, operators


def live_bytes(tensors: Iterable[LiveTensor], events: int) -> list[int]:
    """Return the bytes of these tensors that are alive at each event."""
    changes = [0] * (events + 1)
    for tensor in tensors if events else ():
        changes[tensor.start_event] += tensor.size_bytes
        changes[tensor.end_event + 1] -= tensor.size_bytes
    return list(itertools.accumulate(changes))[:events]
