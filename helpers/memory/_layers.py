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
from helpers.memory._peak import estimate_peak_memory
from helpers.memory._pipeline import trace_and_probe
from helpers.memory._probing import Probe
from helpers.memory._tracer import Tracer, trace_step
from helpers.results import Record, derived

ALEXNET_INPUT = (1, 3, 224, 224)
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


class MemoryShare(Record):
    """One category: its most bytes at any moment of the step, its share of the whole, and its bytes
    at the peak.

    Lesson 11.
    """

    category: str
    size_bytes: int
    whole_share: float
    at_peak_bytes: int


class MemoryProfile(Record):
    """Where the memory of a step goes: the slices of a pie.

    ``whole_bytes`` is the sum of each category's largest moment. They do not all come at once, so
    the peak, which is what must fit, is not larger. Lesson 11.
    """

    whole_bytes: int
    peak_bytes: int
    shares: tuple[MemoryShare, ...]


class LayerWorkingSet(Record):
    """What one layer touches in inference: its input, its parameters, its output, and their sum.

    Lesson 11.
    """

    layer: str
    kind: str
    input_bytes: int
    parameter_bytes: int
    output_bytes: int
    working_set_bytes: int


class WorkingSets(Record):
    """The working set of each layer with parameters, in the order in which they run. Lesson 11."""

    batch_bytes: int
    parameter_bytes: int
    layers: tuple[LayerWorkingSet, ...]


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
    observer = _Observer()
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


def profile_mem(
    model: nn.Module,
    inputs: steps.Inputs = None,
    *,
    shape: steps.Inputs = None,
    **options: Unpack[steps.Options],
) -> MemoryProfile:
    """Return the memory of one step of ``model`` by category: the lecture's pie.

    ``inputs`` (or ``shape``), the ``options`` (``training=False`` is inference) and what is raised
    are those of :func:`~helpers.memory.estimate_peak_memory`.

    >>> profile = profile_mem(nn.Linear(100, 10), (8, 100), optimizer=torch.optim.Adam)
    >>> size_bytes = {row.category: row.size_bytes for row in profile.shares}
    >>> [size_bytes[category] for category in ("parameter", "gradient", "optimizer state")]
    [4040, 4040, 8088]

    Lesson 11.
    """
    estimate = estimate_peak_memory(model, inputs, shape=shape, **options)
    most_bytes = _most_bytes(estimate.timeline)
    whole_bytes = sum(most_bytes.values())
    shares = tuple(
        MemoryShare(
            category,
            most_bytes[category],
            most_bytes[category] / whole_bytes,
            estimate.category_bytes.get(category, 0),
        )
        for category in timeline.CATEGORIES
        if most_bytes.get(category)
    )
    return MemoryProfile(whole_bytes=whole_bytes, peak_bytes=estimate.peak_bytes, shares=shares)


def profile_layer_alexnet(
    model: nn.Module | None = None, inputs: steps.Inputs = ALEXNET_INPUT
) -> WorkingSets:
    """Return the working set of each layer of AlexNet that has parameters: input, parameters and
    output.

    ``model`` is torchvision's AlexNet unless given, and may be any other; ``inputs`` is one image
    unless given.

    Raises ModuleNotFoundError when torchvision is needed and missing, and what
    :func:`~helpers.memory.estimate_peak_memory` raises.

    >>> from helpers import LeNet
    >>> sets = profile_layer_alexnet(LeNet(), (1, 1, 28, 28))
    >>> {row.layer: row.parameter_bytes for row in sets.layers}
    {'conv1': 624, 'conv2': 9664, 'fc1': 123360, 'fc2': 29040, 'fc3': 2440}

    Lesson 11.
    """
    model = _alexnet() if model is None else model
    observer = _Observer()
    with steps.ONE_AT_A_TIME:
        step = steps.step(model, inputs, training=False, only_followed=True)
        trace = trace_step(step, observer.watch)
    owned: Counter[str] = Counter()
    for storage, (category, layer, _) in trace.names.items():
        owned[layer] += trace.storage_bytes[storage] if category == "parameter" else 0
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    rows = tuple(
        LayerWorkingSet(
            layer,
            kinds[layer],
            call.input_bytes,
            owned[layer],
            call.output_bytes,
            call.input_bytes + owned[layer] + call.output_bytes,
        )
        for layer, call in observer.calls.items()
        if owned[layer]
    )
    batch = sum(
        trace.storage_bytes[storage]
        for storage, names in trace.names.items()
        if names[0] == "input"
    )
    return WorkingSets(batch_bytes=batch, parameter_bytes=owned.total(), layers=rows)


def _alexnet() -> nn.Module:
    try:
        from torchvision.models import alexnet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "AlexNet comes with torchvision: install torchvision, or give a model"
        ) from error
    with torch.random.fork_rng(devices=[]):
        return alexnet()


@dataclass
class _Calls:
    calls: int = 0
    input_bytes: int = 0
    output_bytes: int = 0


class _Observer:
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
    observer: _Observer, trace: StepTrace, probes: list[Probe | None]
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
    observer: _Observer, trace: StepTrace, category_bytes: dict[str, Counter[str]], extra: set[str]
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


def _most_bytes(memory_timeline: timeline.MemoryTimeline) -> dict[str, int]:
    """Return the most bytes that each category has alive at any one event."""
    by_category: dict[str, list[timeline.LiveTensor]] = defaultdict(list)
    for tensor in memory_timeline.tensors:
        by_category[tensor.category].append(tensor)
    return {
        name: max(timeline.live_bytes(tensors, len(memory_timeline.events)))
        for name, tensors in by_category.items()
    }
