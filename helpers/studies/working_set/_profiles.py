"""Where the memory of a step goes, as lesson 11 and the lecture show it: by category, and what each
layer touches.

Lesson 11.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Unpack

import torch
from torch import nn

from helpers import steps
from helpers.memory import CATEGORIES, LiveTensor, estimate_peak_memory
from helpers.memory._layers import Observer
from helpers.memory._timeline import live_bytes
from helpers.memory._tracer import trace_step
from helpers.results import Record

ALEXNET_INPUT = (1, 3, 224, 224)


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
    by_category: dict[str, list[LiveTensor]] = defaultdict(list)
    for tensor in estimate.timeline.tensors:
        by_category[tensor.category].append(tensor)
    most_bytes = {
        category: max(live_bytes(tensors, len(estimate.timeline.events)))
        for category, tensors in by_category.items()
    }
    whole_bytes = sum(most_bytes.values())
    shares = tuple(
        MemoryShare(
            category,
            most_bytes[category],
            most_bytes[category] / whole_bytes,
            estimate.category_bytes.get(category, 0),
        )
        for category in CATEGORIES
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
    observer = Observer()
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
            observer.input_bytes[layer],
            owned[layer],
            observer.output_bytes[layer],
            observer.input_bytes[layer] + owned[layer] + observer.output_bytes[layer],
        )
        for layer in observer.calls
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
