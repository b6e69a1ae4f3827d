"""The peak memory of one step: estimated without running it, and measured by running it.

Both mean the same thing. A step is: the forward pass and the loss, and for training the backward pass and the
optimizer's step, from gradients that are None. The second step counts, when the optimizer's state exists. The peak
is the most bytes alive at once: parameters, buffers, input and optimizer state, and every tensor of the step,
inside operators too. The model's outputs are dropped as soon as the loss has been computed from them.

Bytes are those of tensors, as PyTorch's allocator is asked for them. On CUDA the caching allocator rounds each up to
512 bytes, and so does the estimate. ``left_out`` of a result says what is in neither number.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import nn

from helpers import steps
from helpers.memory import _allocations as allocations, _probing as probing, _timeline as timeline
from helpers.results import Result, derived
from helpers.steps import ModelError as ModelError, sum_of_outputs as sum_of_outputs

_LARGEST_GROUPS = 20
LEFT_OUT = {
    "cpu": "what oneDNN and MKL take from the system themselves; Python, and PyTorch's code",
    "cuda": "CUDA's context and kernels; the workspaces that cuBLAS keeps; what the allocator holds and no tensor uses "
    "(up to 1 MiB of each large block)",
}


@dataclass(frozen=True)
class AliveGroup(Result):
    """The tensors of one category and one layer that are alive at the peak; the smallest groups are one, "others".

    Lesson 07.
    """

    category: str
    layer: str
    tensors: int
    size_bytes: int
    peak_share: float


@dataclass(frozen=True)
class PeakEstimate(Result):
    """The peak memory of a step, when it comes, and what is alive there.

    ``peak_bytes`` is reached at event ``peak_event`` of ``timeline``, while ``operator`` of ``layer`` runs in
    ``phase`` (forward, loss, backward or optimizer). ``category_bytes`` splits it by category, ``alive`` by category
    and layer, the largest first; both add up to it, and ``timeline.alive_at(peak_event)`` has every tensor.
    ``uncertain`` says what had to be assumed (an operator that cannot be run alone, for instance); it is empty where
    every byte of the allocator is accounted for. ``left_out`` says what the allocator does not see. Lesson 07.
    """

    peak_bytes: int
    phase: str
    operator: str
    layer: str
    peak_event: int
    category_bytes: dict[str, int]
    device: str
    uncertain: tuple[str, ...]
    left_out: str
    alive: tuple[AliveGroup, ...]
    timeline: timeline.Timeline = field(repr=False)


@dataclass(frozen=True)
class PeakMeasurement(Result):
    """The measured peak memory of a step.

    ``carried_bytes`` is alive when the step begins: parameters, buffers, input, optimizer state and what else the
    model keeps. ``step_bytes`` is the most that the step has alive over it; the two add up to ``peak_bytes``.
    ``left_out`` says what PyTorch's allocator does not see. Lesson 07.
    """

    peak_bytes: int
    carried_bytes: int
    step_bytes: int
    device: str
    left_out: str


def estimate_peak_memory(
    model: nn.Module,
    inputs: steps.Inputs = None,
    *,
    shape: steps.Inputs = None,
    optimizer: steps.OptimizerFactory | None = None,
    training: bool = True,
    loss: steps.Loss | None = None,
    autocast: torch.dtype | None = None,
    target: str | torch.device | None = None,
) -> PeakEstimate:
    """Return the peak memory of one step and its timeline, without running the step.

    ``inputs`` (or ``shape``) is as in :mod:`helpers.steps`. ``optimizer`` is a class of torch.optim, or a callable from
    parameters to an optimizer; None leaves its step out. ``training=False`` is inference: evaluation mode without
    gradients. ``loss`` goes from the model's outputs to one number and is the sum of all outputs unless
    given. ``autocast`` is the type of a ``torch.autocast`` around forward pass and loss.

    ``target`` is the device that the step would run on, ``"cpu"`` or ``"cuda"``, unless that is the model's own. A
    model on ``meta`` has no data and takes no memory, however large; without a target it is taken as on the CPU. Where
    this machine has no CUDA device, what is modelled of ``"cuda"`` is the allocator's rounding, the optimizer that it
    chooses there and what stays on the host; ``uncertain`` says what is not.

    The life of each tensor is found on fake tensors; each distinct operator is run once alone on zeros for what it
    takes inside. The model comes back as it was. Agrees to the byte with :func:`measure_peak_memory` on most models.

    Raises TypeError or ValueError for an argument that is not accepted, ModelError for a model that raises, that
    cannot be copied, or whose memory depends on the values of its tensors. Lesson 07.
    """
    work = steps.step(
        model, inputs, shape, optimizer=optimizer, training=training, loss=loss, autocast=autocast, only_followed=True,
        target=target,
    )  # fmt: skip
    trace, probes = probing.followed(work)
    return _estimate(timeline.built(trace, probes, work.device), tuple(sorted(trace.uncertain)), work.device)


def _estimate(line: timeline.Timeline, uncertain: tuple[str, ...], device: torch.device) -> PeakEstimate:
    if not line.events:
        raise steps.ModelError("the model ran no operator, so there is nothing to estimate")
    peak_event = max(range(len(line.events)), key=lambda event: line.events[event].live_bytes)
    peak = line.events[peak_event]
    sizes: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    categories: Counter[str] = Counter()
    for tensor in line.alive_at(peak_event):
        sizes[tensor.category, tensor.layer] += tensor.size_bytes
        counts[tensor.category, tensor.layer] += 1
        categories[tensor.category] += tensor.size_bytes
    named = [(*group, counts[group], size) for group, size in sizes.most_common()]
    rest = named[_LARGEST_GROUPS:]
    if len(rest) > 1:
        others = ("others", "", sum(group[2] for group in rest), sum(group[3] for group in rest))
        named = [*named[:_LARGEST_GROUPS], others]
    groups = tuple(AliveGroup(*group, group[3] / max(peak.live_bytes, 1)) for group in named)
    return derived(
        PeakEstimate,
        peak,
        peak_bytes=peak.live_bytes,
        peak_event=peak_event,
        category_bytes={name: categories[name] for name in timeline.CATEGORIES if categories[name]},
        device=str(device),
        uncertain=uncertain,
        left_out=LEFT_OUT[device.type],
        alive=groups,
        timeline=line,
    )


def measure_peak_memory(
    model: nn.Module,
    inputs: steps.Inputs = None,
    *,
    shape: steps.Inputs = None,
    optimizer: steps.OptimizerFactory | None = None,
    training: bool = True,
    loss: steps.Loss | None = None,
    autocast: torch.dtype | None = None,
) -> PeakMeasurement:
    """Return the peak memory of one step, measured: two steps run on a copy of the model, the second counts.

    The arguments are those of :func:`estimate_peak_memory`, and the device is the model's own. On a CPU each allocation
    and release is read from PyTorch's profiler, on CUDA ``torch.cuda.max_memory_allocated``. The model comes back as it
    was.

    Raises what :func:`estimate_peak_memory` raises, and RuntimeError when a PyTorch profiler is already running.
    Lesson 07.
    """
    work = steps.step(model, inputs, shape, optimizer=optimizer, training=training, loss=loss, autocast=autocast)
    measured = _measured_on_cuda if work.device.type == "cuda" else _measured_on_cpu
    with steps.undisturbed():
        carried_bytes, step_bytes = measured(work)
    return PeakMeasurement(
        peak_bytes=carried_bytes + step_bytes,
        carried_bytes=carried_bytes,
        step_bytes=step_bytes,
        device=str(work.device),
        left_out=LEFT_OUT[work.device.type],
    )


def _real_copy(work: steps.Step) -> steps.Step:
    with torch.inference_mode(False):
        return steps.copied(work, copy_tensor=torch.clone)


def _measured_on_cpu(work: steps.Step) -> tuple[int, int]:
    with allocations.recorded() as record:
        record.mark("copy")  # inside the record, so that a release of any of it is seen
        real = _real_copy(work)
        given = _own_bytes(real)
        record.mark("first step")
        real = _first_step(real)
        record.mark("second step")
        steps.run(real)
        record.mark("end")
        del real
    kept = allocations.usage(record.window("first step")).kept_bytes
    return given + kept, allocations.usage(record.window("second step")).peak_bytes


def _measured_on_cuda(work: steps.Step) -> tuple[int, int]:
    steps.run(steps.with_optimizer(_real_copy(work)))  # cuBLAS takes its workspaces here, before anything is counted
    torch.cuda.synchronize(work.device)
    before = torch.cuda.memory_allocated(work.device)
    real = _first_step(_real_copy(work))
    usage, _ = allocations.cuda_usage(lambda: steps.run(real), work.device)
    carried = torch.cuda.memory_allocated(work.device) - usage.kept_bytes - before
    return carried, usage.peak_bytes


def _first_step(work: steps.Step) -> steps.Step:
    ready = steps.with_optimizer(work)
    steps.run(ready)
    steps.drop_gradients(ready)
    return ready


def _own_bytes(work: steps.Step) -> int:
    """Return the bytes of the distinct storages of the model's tensors and the inputs."""
    model = work.model
    named = (model.parameters(), model.buffers(), steps.kept_tensors(model).values(), steps.tensors_of(work.arguments))
    tensors = [tensor for group in named for tensor in group]
    return sum({tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}.values())
