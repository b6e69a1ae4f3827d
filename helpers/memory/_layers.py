"""The memory of each layer: what goes in and out, what it owns, and what training adds.

Lesson 11.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from helpers import steps
from helpers.memory import _attribution as attribution, _timeline as timeline
from helpers.memory._events import StepTrace, TracedOperator
from helpers.memory._pipeline import trace_and_probe
from helpers.memory._probing import Probe
from helpers.memory._tracer import Tracer
from helpers.results import Record, derived

_OWNED = ("weight", "bias", "buffer", "gradient", "optimizer state")
_OUTSIDE_KINDS = {attribution.OUTSIDE_MODEL["loss"]: "loss"}


class LayerMemory(Record):
    """The bytes of one layer in one step; ``calls`` is how often it ran, and input and output are
    of all its calls.

    ``weight_bytes`` are the parameters that are no bias. A tensor that two layers own is counted at
    the first, and so is one that two layers save: ``saved_bytes`` is what autograd keeps of the
    forward pass because of this layer, without parameters, buffers and the model's own input, which
    are alive anyway. ``workspace_bytes`` is the most that one of its operators takes over its
    results. Lesson 11.
    """

    layer: str
    kind: str
    calls: int
    input_bytes: int
    output_bytes: int
    weight_bytes: int
    bias_bytes: int
    buffer_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    saved_bytes: int
    workspace_bytes: int


class LayerMemoryProfile(Record):
    """The memory of every layer, in the order in which they first run; ``table()`` has a row a
    layer.

    The totals count each tensor once. ``uncertain`` is as in :class:`~helpers.memory.PeakEstimate`.
    Lesson 11.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    saved_bytes: int
    uncertain: tuple[str, ...]
    layers: tuple[LayerMemory, ...]


def profile_layer_mem(
    model: nn.Module,
    inputs: steps.Inputs = None,
    *,
    shape: steps.Inputs = None,
    **options: Unpack[steps.Options],
) -> LayerMemoryProfile:
    """Return the memory of each layer of ``model`` in one step, to the byte, without running it.

    ``inputs`` (or ``shape``), the ``options`` and what is raised are those of
    :func:`~helpers.memory.estimate_peak_memory`. A row is a module that runs an operator or owns
    parameters itself, so an identity has none; the path of the model itself is empty, and
    ``(loss)`` is the loss.

    >>> profile = profile_layer_mem(nn.Sequential(nn.Linear(100, 10), nn.ReLU()), (8, 100))
    >>> [(row.kind, row.weight_bytes, row.saved_bytes) for row in profile.layers]
    [('Linear', 4000, 0), ('ReLU', 0, 320)]

    Lesson 11.
    """
    observer = Observer()
    with steps.ONE_AT_A_TIME:
        step = steps.step(model, inputs, shape, only_followed=True, **options)
        trace, probes = trace_and_probe(step, observer.watch)
    memory_timeline = timeline.build_timeline(trace, probes, step.device)
    saved = _saved_by_layer(observer, trace, probes)
    category_bytes, workspace_bytes = (
        _bytes_by_category(memory_timeline),
        _workspace_by_layer(memory_timeline),
    )
    kinds = {name: type(module).__name__ for name, module in model.named_modules()} | _OUTSIDE_KINDS
    layers = _layers_to_show(
        observer,
        trace,
        category_bytes,
        extra={layer for layer in saved | workspace_bytes if layer in kinds},
    )
    rows = [
        derived(
            LayerMemory,
            observer.calls.get(layer, _Calls()),
            layer=layer,
            kind=kinds[layer],
            saved_bytes=saved[layer],
            workspace_bytes=workspace_bytes.get(layer, 0),
            **{
                f"{category.replace(' ', '_')}_bytes": category_bytes[category][layer]
                for category in _OWNED
            },
        )
        for layer in layers
    ]
    return LayerMemoryProfile(
        parameter_bytes=category_bytes["parameter"].total(),
        gradient_bytes=category_bytes["gradient"].total(),
        optimizer_state_bytes=category_bytes["optimizer state"].total(),
        saved_bytes=saved.total(),
        uncertain=tuple(sorted(trace.uncertain)),
        layers=tuple(rows),
    )


@dataclass
class _Calls:
    calls: int = 0
    input_bytes: int = 0
    output_bytes: int = 0


class Observer:
    """What hooks see of the second step: the calls of each module, and what autograd saves while it
    runs.
    """

    def __init__(self) -> None:
        self.calls: dict[str, _Calls] = {}
        self.parents: set[str] = set()  # modules in which another module ran
        self.saved: dict[int, str] = {}  # storage: the layer that saved it first

    @contextmanager
    def watch(self, tracer: Tracer, layers: attribution.Layers) -> Iterator[None]:
        """Look at the modules' calls and at what autograd saves, from now to the end of the
        context.
        """
        for notes in (self.calls, self.parents, self.saved):
            notes.clear()
        note_call = functools.partial(self._note_call, tracer, layers)
        hook = torch.nn.modules.module.register_module_forward_hook(note_call, with_kwargs=True)
        try:
            with saved_tensors_hooks(
                functools.partial(self._save, tracer, layers), lambda tensor: tensor
            ):
                yield
        finally:
            hook.remove()

    def _note_call(
        self,
        tracer: Tracer,
        layers: attribution.Layers,
        module: nn.Module,
        args: Any,
        kwargs: Any,
        outputs: Any,
    ) -> None:
        layer = layers.path_of(module)
        if layer is None or tracer.phase != "forward":
            return
        calls = self.calls.setdefault(layer, _Calls())
        calls.calls += 1
        calls.input_bytes += _tensor_bytes((args, kwargs))
        calls.output_bytes += _tensor_bytes(outputs)
        self.parents.update(layers.around)

    def _save(
        self, tracer: Tracer, layers: attribution.Layers, tensor: torch.Tensor
    ) -> torch.Tensor:
        """Note who saved the tensor first."""
        storage = tracer.number(tensor)
        if storage is not None:
            self.saved.setdefault(storage, layers.running)
        return tensor


def _tensor_bytes(values: Any) -> int:
    """Return the bytes of the distinct tensors in ``values``: elements times their size, whatever
    the storage.
    """
    distinct = {
        (
            tensor.untyped_storage()._cdata,
            tensor.storage_offset(),
            tuple(tensor.shape),
        ): tensor.nbytes
        for tensor in steps.tensors_of(values)
    }
    return sum(distinct.values())


def _saved_by_layer(
    observer: Observer, trace: StepTrace, probes: list[Probe | None]
) -> Counter[str]:
    """Return the bytes that each layer was the first to save, without what is alive anyway.

    Added is what C++ keeps for backward and no hook sees: numbers, and the generator's states of
    checkpointing.
    """
    sizes = dict(trace.storage_bytes)
    saved: Counter[str] = Counter()
    for event, probe in zip(trace.events[trace.start :], probes, strict=True):
        if isinstance(event, TracedOperator) and probe is not None:
            sizes.update(
                (storage, size_bytes)
                for (storage, _, _), size_bytes in zip(
                    event.made_storages, probe.made_bytes, strict=True
                )
            )
            if event.function is None and event.phase in ("forward", "loss"):
                saved[event.layer] += sum(probe.made_bytes)
    for storage, layer in observer.saved.items():
        saved[layer] += 0 if storage in trace.carried else sizes[storage]
    return saved


def _bytes_by_category(memory_timeline: timeline.MemoryTimeline) -> dict[str, Counter[str]]:
    category_bytes: dict[str, Counter[str]] = defaultdict(Counter)
    for tensor in memory_timeline.tensors:
        category = tensor.category
        if category == "parameter":
            category_bytes["bias" if "bias" in tensor.name else "weight"][tensor.layer] += (
                tensor.size_bytes
            )
        category_bytes[category][tensor.layer] += tensor.size_bytes
    return category_bytes


def _workspace_by_layer(memory_timeline: timeline.MemoryTimeline) -> dict[str, int]:
    most_bytes: dict[str, int] = defaultdict(int)
    for tensor in memory_timeline.tensors:
        if tensor.category == "workspace":
            most_bytes[tensor.layer] = max(most_bytes[tensor.layer], tensor.size_bytes)
    return most_bytes


def _layers_to_show(
    observer: Observer, trace: StepTrace, category_bytes: dict[str, Counter[str]], extra: set[str]
) -> list[str]:
    """Return the layers of the table: those that ran an operator, in order, then those that only
    own something.
    """
    operators = [
        event
        for event in trace.events[trace.start :]
        if isinstance(event, TracedOperator) and event.phase == "forward"
    ]
    with_views, without_views = (
        {event.layer for event in operators},
        {event.layer for event in operators if not event.only_views},
    )
    owners = set(category_bytes["parameter"]) | set(category_bytes["buffer"])
    called_layers = [
        layer
        for layer in observer.calls
        if layer in without_views | owners
        or (layer not in observer.parents and layer in with_views)
    ]
    return called_layers + [layer for layer in sorted(owners | extra) if layer not in called_layers]
