"""The memory of each layer: what goes in and out, what it owns, and what training adds.

Lesson 07.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from helpers.memory import attribution, probing, steps, timeline, tracing
from helpers.memory.peak import PeakEstimate, estimate_peak_memory
from helpers.memory.trace import Operator, Trace
from helpers.results import Result

ALEXNET_INPUT = (1, 3, 224, 224)


@dataclass(frozen=True)
class LayerMemory(Result):
    """The bytes of one layer in one step; ``calls`` is how often it ran, and input and output are of all its calls.

    ``weight_bytes`` are the parameters that are no bias. A tensor that two layers own is counted at the first, and
    so is one that two layers save: ``saved_bytes`` is what autograd keeps of the forward pass because of this layer,
    without parameters, buffers and the model's own input, which are alive anyway. ``workspace_bytes`` is the most
    that one of its operators takes over its results. Lesson 07.
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


@dataclass(frozen=True)
class LayerMemoryProfile(Result):
    """The memory of every layer, in the order in which they first run; ``table()`` has a row a layer.

    The totals count each tensor once. ``uncertain`` is as in :class:`PeakEstimate`. Lesson 07.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    saved_bytes: int
    uncertain: tuple[str, ...]
    layers: tuple[LayerMemory, ...]


@dataclass(frozen=True)
class MemoryShare(Result):
    """One category: its most bytes at any moment of the step, its share of the whole, and its bytes at the peak.

    Lesson 07.
    """

    category: str
    size_bytes: int
    whole_share: float
    at_peak_bytes: int


@dataclass(frozen=True)
class MemoryProfile(Result):
    """Where the memory of a step goes: the slices of a pie.

    ``whole_bytes`` is the sum of each category's largest moment. They do not all come at once, so the peak, which
    is what must fit, is not larger. Lesson 07.
    """

    whole_bytes: int
    peak_bytes: int
    shares: tuple[MemoryShare, ...]


@dataclass(frozen=True)
class LayerWorkingSet(Result):
    """What one layer touches in inference: its input, its parameters, its output, and their sum. Lesson 07."""

    layer: str
    kind: str
    input_bytes: int
    parameter_bytes: int
    output_bytes: int
    working_set_bytes: int


@dataclass(frozen=True)
class WorkingSets(Result):
    """The working set of each layer with parameters, in the order in which they run. Lesson 07."""

    batch_bytes: int
    parameter_bytes: int
    layers: tuple[LayerWorkingSet, ...]


def profile_layer_mem(
    model: nn.Module,
    inputs: steps.Inputs,
    *,
    optimizer: steps.OptimizerFactory | None = None,
    training: bool = True,
    loss: steps.Loss | None = None,
    autocast: torch.dtype | None = None,
) -> LayerMemoryProfile:
    """Return what each layer takes in one step, to the byte, without running the step.

    The arguments, and what is raised, are those of :func:`~helpers.memory.estimate_peak_memory`. A row is a module
    that runs and has no module of its own that does, or that runs operators or owns parameters itself; the path of
    the model is empty, and ``(loss)`` is the loss. Lesson 07.
    """
    work = steps.workload(model, inputs, optimizer=optimizer, training=training, loss=loss, autocast=autocast)
    seen = _Seen()
    trace = tracing.traced(work, seen.watched)
    probes = probing.probed(trace, work.device)
    line = timeline.built(trace, probes, work.device)
    saved = _saved_by_layer(seen, trace, probes)
    by_category = _bytes_by_category(line)
    rows = tuple(
        _row(layer, seen, by_category, saved, workspace_bytes=_workspace_bytes(line, layer))
        for layer in _rows(seen, trace, model)
    )
    return LayerMemoryProfile(
        parameter_bytes=sum(by_category["parameter"].values()),
        gradient_bytes=sum(by_category["gradient"].values()),
        optimizer_state_bytes=sum(by_category["optimizer state"].values()),
        saved_bytes=sum(saved.values()),
        uncertain=tuple(sorted(trace.uncertain)),
        layers=rows,
    )


def profile_mem(
    model: nn.Module,
    inputs: steps.Inputs,
    *,
    optimizer: steps.OptimizerFactory | None = None,
    training: bool = True,
    loss: steps.Loss | None = None,
    autocast: torch.dtype | None = None,
) -> MemoryProfile:
    """Return where the memory of one step goes, by category: the lecture's pie, for inference or for training.

    The arguments, and what is raised, are those of :func:`~helpers.memory.estimate_peak_memory`. Lesson 07.
    """
    estimate = estimate_peak_memory(
        model, inputs, optimizer=optimizer, training=training, loss=loss, autocast=autocast
    )  # fmt: skip
    most = _most_bytes(estimate)
    whole = sum(most.values())
    shares = tuple(
        MemoryShare(category, most[category], most[category] / whole, estimate.category_bytes.get(category, 0))
        for category in timeline.CATEGORIES
        if most.get(category)
    )
    return MemoryProfile(whole_bytes=whole, peak_bytes=estimate.peak_bytes, shares=shares)


def profile_layer_alexnet(model: nn.Module | None = None, inputs: steps.Inputs = ALEXNET_INPUT) -> WorkingSets:
    """Return the working set of each layer of AlexNet that has parameters: input, parameters and output.

    ``model`` is torchvision's AlexNet unless given, and may be any other; ``inputs`` is one image unless given.

    Raises ModuleNotFoundError when torchvision is needed and missing, and what
    :func:`~helpers.memory.estimate_peak_memory` raises. Lesson 07.
    """
    model = _alexnet() if model is None else model
    work = steps.workload(model, inputs, optimizer=None, training=False, loss=None, autocast=None)
    seen = _Seen()
    trace = tracing.traced(work, seen.watched)
    owned: dict[str, int] = defaultdict(int)
    for storage, (category, layer, _) in trace.names.items():
        owned[layer] += trace.storage_bytes[storage] if category == "parameter" else 0
    rows = tuple(
        LayerWorkingSet(
            layer, seen.kinds[layer], call.input_bytes, owned[layer], call.output_bytes,
            call.input_bytes + owned[layer] + call.output_bytes,
        )
        for layer, call in seen.calls.items()
        if owned[layer]
    )  # fmt: skip
    batch = sum(trace.storage_bytes[storage] for storage, names in trace.names.items() if names[0] == "input")
    return WorkingSets(batch_bytes=batch, parameter_bytes=sum(owned.values()), layers=rows)


def _alexnet() -> nn.Module:
    try:
        from torchvision.models import alexnet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("AlexNet comes with torchvision: install torchvision, or give a model") from error
    with torch.random.fork_rng(devices=[]):
        return alexnet()


@dataclass
class _Calls:
    count: int = 0
    input_bytes: int = 0
    output_bytes: int = 0


class _Seen:
    """What hooks see of the second step: the calls of each module, and what autograd saves while it runs."""

    def __init__(self) -> None:
        self.calls: dict[str, _Calls] = {}
        self.kinds: dict[str, str] = {}
        self.parents: set[str] = set()  # modules in which another module ran
        self.saved: dict[int, str] = {}  # storage: the layer that saved it first
        self._tracer: tracing.Tracer | None = None
        self._layers: attribution.Layers | None = None

    @contextmanager
    def watched(self, tracer: tracing.Tracer, layers: attribution.Layers) -> Iterator[None]:
        self._tracer, self._layers = tracer, layers
        module = torch.nn.modules.module
        before = module.register_module_forward_pre_hook(self._enter, with_kwargs=True) if False else None
        after = module.register_module_forward_hook(self._left, with_kwargs=True)
        try:
            with saved_tensors_hooks(self._save, lambda tensor: tensor):
                yield
        finally:
            after.remove()
