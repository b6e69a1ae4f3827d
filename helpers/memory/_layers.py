"""The memory of each layer: what goes in and out, what it owns, and what training adds.

Lesson 11.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
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
from helpers.memory._values import key_of_storage
from helpers.results import Record

_OWNED = ("weight", "bias", "buffer")
_CATEGORIES = ("input", "output", *_OWNED, "gradient", "optimizer state", "saved", "workspace")


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
    layer_bytes = _bytes_by_category(memory_timeline)
    layer_bytes["input"], layer_bytes["output"] = observer.input_bytes, observer.output_bytes
    layer_bytes["saved"] = _saved_by_layer(observer, trace, probes)
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    kinds[attribution.OUTSIDE_MODEL["loss"]] = "loss"
    rows = (
        LayerMemory(
            layer=layer,
            kind=kinds[layer],
            calls=observer.calls[layer],
            **{
                f"{category.replace(' ', '_')}_bytes": layer_bytes[category][layer]
                for category in _CATEGORIES
            },
        )
        for layer in _layers_to_show(observer, trace, layer_bytes)
        if layer in kinds
    )
    return LayerMemoryProfile(
        parameter_bytes=layer_bytes["weight"].total() + layer_bytes["bias"].total(),
        gradient_bytes=layer_bytes["gradient"].total(),
        optimizer_state_bytes=layer_bytes["optimizer state"].total(),
        saved_bytes=layer_bytes["saved"].total(),
        uncertain=tuple(sorted(trace.uncertain)),
        layers=tuple(rows),
    )


class Observer:
    """What hooks see of the second step: the calls of each module, and what autograd saves while it
    runs.
    """

    calls: Counter[str]
    input_bytes: Counter[str]
    output_bytes: Counter[str]
    parents: set[str]  # modules in which another module ran
    saved: dict[int, str]  # storage: the layer that saved it first

    @contextmanager
    def watch(self, tracer: Tracer) -> Iterator[None]:
        """Look at the modules' calls and at what autograd saves, from now to the end of the
        context.
        """
        layers = tracer.layers
        self.calls, self.input_bytes, self.output_bytes = Counter(), Counter(), Counter()
        self.parents, self.saved = set(), {}

        def note_call(module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
            layer = layers.path_of(module)
            if layer is None or tracer.phase != "forward":
                return
            self.calls[layer] += 1
            self.input_bytes[layer] += _tensor_bytes((args, kwargs))
            self.output_bytes[layer] += _tensor_bytes(outputs)
            self.parents.update(layers.around)

        def note_saved(tensor: torch.Tensor) -> torch.Tensor:
            storage = tracer.number(tensor)
            if storage is not None:
                self.saved.setdefault(storage, layers.running)
            return tensor

        with (
            torch.nn.modules.module.register_module_forward_hook(note_call, with_kwargs=True),
            saved_tensors_hooks(note_saved, lambda tensor: tensor),
        ):
            yield


def _tensor_bytes(values: Any) -> int:
    """Return the bytes of the distinct tensors in ``values``: elements times their size, whatever
    the storage.
    """
    distinct = {
        (key_of_storage(tensor), tensor.storage_offset(), tuple(tensor.shape)): tensor.nbytes
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
    for event, probe in zip(trace.second_step, probes, strict=True):
        if isinstance(event, TracedOperator) and probe is not None:
            storages = (made_storage.storage for made_storage in event.made_storages)
            sizes.update(zip(storages, probe.made_bytes, strict=True))
            if event.function is None and event.phase in ("forward", "loss"):
                saved[event.layer] += sum(probe.made_bytes)
    for storage, layer in observer.saved.items():
        saved[layer] += 0 if storage in trace.carried else sizes[storage]
    return saved


def _bytes_by_category(memory_timeline: timeline.MemoryTimeline) -> dict[str, Counter[str]]:
    """Return the bytes of each layer by category, parameters as weights and biases; of the
    workspace the most that one operator takes.
    """
    layer_bytes: dict[str, Counter[str]] = defaultdict(Counter)
    for tensor in memory_timeline.tensors:
        category, layer = tensor.category, tensor.layer
        if category == "parameter":
            category = "bias" if "bias" in tensor.name else "weight"
        if category == "workspace":
            layer_bytes[category][layer] = max(layer_bytes[category][layer], tensor.size_bytes)
        else:
            layer_bytes[category][layer] += tensor.size_bytes
    return layer_bytes


def _layers_to_show(
    observer: Observer, trace: StepTrace, layer_bytes: dict[str, Counter[str]]
) -> list[str]:
    """Return the layers of the table: those that ran an operator, in order, then those that only
    own something, save something or take a workspace.
    """
    running = {
        event.layer
        for event in trace.second_step
        if isinstance(event, TracedOperator)
        and event.phase == "forward"
        and not (event.only_views and event.layer in observer.parents)
    }
    owners = {layer for category in _OWNED for layer in layer_bytes[category]}
    called = [layer for layer in observer.calls if layer in running | owners]
    others = owners.union(layer_bytes["saved"], layer_bytes["workspace"]).difference(called)
    return called + sorted(others)
