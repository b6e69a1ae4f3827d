"""The peak memory of one step: estimated without running it, measured by running it, and held
against a limit.

Both mean the same thing. A step is: the forward pass and the loss, and for training the backward
pass and the optimizer's step, from gradients that are None. The second step counts, when the
optimizer's state exists. The peak is the most bytes alive at once: parameters, buffers, input and
optimizer state, and every tensor of the step, inside operators too. The model's outputs are dropped
as soon as the loss has been computed from them.

Bytes are those of tensors, as PyTorch's allocator is asked for them. On CUDA the caching allocator
rounds each up to 512 bytes, and so does the estimate. ``left_out`` of a result says what is in
neither number.
"""

from __future__ import annotations

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import field
from typing import Any, Unpack

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from helpers import hardware, steps, units
from helpers.checks import number, whole_number
from helpers.memory import _allocator as allocator, _timeline as timeline
from helpers.memory._pipeline import trace_and_probe
from helpers.memory._values import MOST_ELEMENTS, key_of_storage
from helpers.results import Record, derived
from helpers.steps import ModelError as ModelError

_LARGEST_GROUPS = 20
LEFT_OUT = {
    "cpu": "what oneDNN and MKL take from the system themselves; Python, and PyTorch's code",
    "cuda": "CUDA's context and kernels; the workspaces that cuBLAS keeps; what the allocator "
    "holds and no tensor uses (up to 1 MiB of each large block)",
}


class AliveGroup(Record):
    """The tensors of one category and one layer that are alive at the peak; the smallest groups are
    one, "others".

    Lesson 11.
    """

    category: str
    layer: str
    tensors: int
    size_bytes: int
    peak_share: float


class PeakEstimate(Record):
    """The peak memory of a step, when it comes, and what is alive there.

    ``step`` says which step it is: inputs, types, loss and optimizer, so that a default is not
    taken for one's own. ``peak_bytes`` is reached at event ``peak_event`` of ``timeline``, while
    ``operator`` of ``layer`` runs in ``phase`` (forward, loss, backward or optimizer).
    ``category_bytes`` splits it by category, ``alive`` by category and layer, the largest first;
    both add up to it, and ``timeline.alive_at(peak_event)`` has every tensor. ``uncertain`` says
    what had to be assumed (an operator that cannot be run alone, for instance); it is empty where
    every byte of the allocator is accounted for. ``left_out`` says what the allocator does not see.
    Lesson 11.
    """

    step: str
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
    timeline: timeline.MemoryTimeline = field(repr=False)


class PeakMeasurement(Record):
    """The measured peak memory of a step.

    ``carried_bytes`` is alive when the step begins: parameters, buffers, input, optimizer state and
    what else the model keeps. ``step_bytes`` is the most that the step has alive over it; the two
    add up to ``peak_bytes``. ``left_out`` says what PyTorch's allocator does not see. Lesson 11.
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
    """Return the peak memory of one step of ``model`` and its timeline, without running the step.

    ``inputs`` (or ``shape``) is as in :mod:`helpers.steps`. ``optimizer`` is a class of
    torch.optim, or a callable from parameters to an optimizer; None leaves its step out.
    ``training=False`` is inference: evaluation mode without gradients. ``loss`` goes from the
    model's outputs to one number and is the sum of all outputs unless given. ``autocast`` is the
    type of a ``torch.autocast`` around forward pass and loss.

    ``target`` is the device that the step would run on, ``"cpu"`` or ``"cuda"``, unless that is the
    model's own. A model on ``meta`` has no data and takes no memory, however large; without a
    target it is taken as on the CPU. Where this machine has no CUDA device, what is modelled of
    ``"cuda"`` is the allocator's rounding, the optimizer that it chooses there and what stays on
    the host; ``uncertain`` says what is not.

    The life of each tensor is found on fake tensors; each distinct operator is run once alone on
    zeros for what it takes inside (a large product on two smaller sizes, from which its own
    follows). The model comes back as it was. On a CPU it agrees to the byte with
    :func:`measure_peak_memory` on most models; on CUDA nobody has compared them yet.

    Raises TypeError or ValueError for an argument that is not accepted, ModelError for a model that
    raises, that cannot be copied, or whose memory depends on the values of its tensors.

    >>> estimate = estimate_peak_memory(nn.Linear(100, 10), (8, 100), optimizer=torch.optim.Adam)
    >>> estimate.category_bytes["parameter"]  # 1,010 parameters in float32
    4040

    Lesson 11.
    """
    with steps.ONE_AT_A_TIME:
        step = steps.step(
            model,
            inputs,
            shape,
            optimizer=optimizer,
            training=training,
            loss=loss,
            autocast=autocast,
            only_followed=True,
            target=target,
        )
        trace, probes = trace_and_probe(step)
        memory_timeline = timeline.build_timeline(trace, probes, step.device)
        return _estimate(memory_timeline, trace.uncertain, step)


def _step_text(step: steps.Step) -> str:
    """Return in words which step it is, with the defaults that the caller may not have meant."""
    dtypes = sorted({str(parameter.dtype) for parameter in step.model.parameters()})
    types = f"parameters in {' and '.join(dtypes)}" if dtypes else "no parameters"
    if step.autocast is not None:
        types += f", autocast to {step.autocast}"
    elif torch.is_autocast_enabled(step.runs_on.type):
        cast_to = torch.get_autocast_dtype(step.runs_on.type)
        types += f", in the caller's own autocast to {cast_to}"
    types = types.replace("torch.", "")
    if not step.training:
        return f"inference without gradients on {step.input_text}; {types}"
    is_default = step.loss is steps.sum_of_outputs
    optimizer = step.make_optimizer
    optimizer_name = optimizer.__name__ if isinstance(optimizer, type) else "the one given"
    optimizer_text = f"the optimizer is {optimizer_name}, in its second step"
    return "; ".join(
        [
            f"training on {step.input_text}",
            types,
            "the loss is the sum of the outputs" if is_default else "the loss is the one given",
            "no optimizer" if optimizer is None else optimizer_text,
            "activations are those of one forward and backward pass",
            "the outputs are dropped once the loss is known: a loop that keeps them needs their "
            "bytes besides",
        ]
    )


def _estimate(
    memory_timeline: timeline.MemoryTimeline, uncertain: set[str], step: steps.Step
) -> PeakEstimate:
    if not memory_timeline.events:
        raise steps.ModelError("the model ran no operator, so there is nothing to estimate")
    peak = max(memory_timeline.events, key=operator.attrgetter("live_bytes"))
    peak_event = memory_timeline.events.index(peak)
    categories: Counter[str] = Counter()
    sizes_by_group: dict[tuple[str, str], list[int]] = defaultdict(list)
    for tensor in memory_timeline.alive_at(peak_event):
        categories[tensor.category] += tensor.size_bytes
        sizes_by_group[tensor.category, tensor.layer].append(tensor.size_bytes)
    groups = sorted(sizes_by_group.items(), key=lambda group: -sum(group[1]))
    smallest_groups = groups[_LARGEST_GROUPS:]
    if len(smallest_groups) > 1:
        sizes = [size for _, sizes in smallest_groups for size in sizes]
        groups[_LARGEST_GROUPS:] = [(("others", ""), sizes)]
    return derived(
        PeakEstimate,
        peak,
        step=_step_text(step),
        peak_bytes=peak.live_bytes,
        peak_event=peak_event,
        category_bytes={name: categories[name] for name in timeline.CATEGORIES if categories[name]},
        device=str(step.device),
        uncertain=tuple(sorted(uncertain)),
        left_out=LEFT_OUT[step.device.type],
        alive=tuple(
            AliveGroup(*group, len(sizes), sum(sizes), sum(sizes) / peak.live_bytes)
            for group, sizes in groups
        ),
        timeline=memory_timeline,
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
    """Return the peak memory of one step, measured: two steps run on a copy of ``model``, the
    second counts.

    ``inputs`` (or ``shape``), ``optimizer``, ``training``, ``loss`` and ``autocast`` are those of
    :func:`estimate_peak_memory`, and the device is the model's own. On a CPU each allocation and
    release is read from PyTorch's profiler, on CUDA ``torch.cuda.max_memory_allocated``. The model
    comes back as it was.

    Raises what :func:`estimate_peak_memory` raises, and RuntimeError when a PyTorch profiler is
    already running.

    >>> measured = measure_peak_memory(nn.Linear(100, 10), (8, 100), optimizer=torch.optim.Adam)
    >>> measured.carried_bytes + measured.step_bytes == measured.peak_bytes
    True

    Lesson 11.
    """
    with steps.ONE_AT_A_TIME, steps.undisturbed():
        step = steps.step(
            model,
            inputs,
            shape,
            optimizer=optimizer,
            training=training,
            loss=loss,
            autocast=autocast,
        )
        measure = _measure_on_cuda if step.device.type == "cuda" else _measure_on_cpu
        carried_bytes, step_bytes = measure(step)
    return PeakMeasurement(
        peak_bytes=carried_bytes + step_bytes,
        carried_bytes=carried_bytes,
        step_bytes=step_bytes,
        device=str(step.device),
        left_out=LEFT_OUT[step.device.type],
    )


def _real_copy(step: steps.Step) -> steps.Step:
    if any(
        isinstance(tensor, FakeTensor) for tensor in steps.tensors_of(step.model, step.arguments)
    ):
        raise steps.ModelError(
            "the model or its inputs were made under FakeTensorMode and have no data to run on; "
            "make them outside of it, or ask estimate_peak_memory, which needs none"
        )
    with torch.inference_mode(False):
        return steps.copied(step, copy_tensor=torch.clone)


def _measure_on_cpu(step: steps.Step) -> tuple[int, int]:
    with allocator.record_allocations() as log:
        real_step = _real_copy(step)  # inside the record, so that a release of any of it is seen
        copy_bytes = sum(
            {
                key_of_storage(tensor): tensor.untyped_storage().nbytes()
                for tensor in steps.tensors_of(real_step.model, real_step.arguments)
            }.values()
        )
        log.mark("first step")
        real_step = _first_step(real_step)
        log.mark("second step")
        steps.run(real_step)
        torch.clear_autocast_cache()
        log.mark("end")
        del real_step
    kept_bytes = allocator.usage(log.window("first step")).kept_bytes
    return copy_bytes + kept_bytes, allocator.usage(log.window("second step")).peak_bytes


def _measure_on_cuda(step: steps.Step) -> tuple[int, int]:
    # cuBLAS takes its workspaces here, before anything is counted
    steps.run(steps.with_optimizer(_real_copy(step)))
    torch.cuda.synchronize(step.device)
    before_bytes = torch.cuda.memory_allocated(step.device)
    real_step = _first_step(_real_copy(step))
    usage, _ = allocator.cuda_usage(lambda: steps.run(real_step), step.device)
    carried_bytes = torch.cuda.memory_allocated(step.device) - usage.kept_bytes - before_bytes
    return carried_bytes, usage.peak_bytes


def _first_step(step: steps.Step) -> steps.Step:
    ready_step = steps.with_optimizer(step)
    with steps.in_one_thread(step.model):
        steps.run(ready_step)
    torch.clear_autocast_cache()  # the caller's own autocast would keep the casts of this step
    steps.drop_gradients(ready_step)
    return ready_step


class Fit(Record):
    """Whether a step fits into ``memory_bytes``: True in ``if``, and what is left, negative where
    it is too much.

    ``uncertain`` and ``left_out`` are as in :class:`~helpers.memory.PeakEstimate`. Lesson 11.
    """

    fits: bool
    peak_bytes: int
    memory_bytes: int
    free_bytes: int
    device: str
    uncertain: tuple[str, ...]
    left_out: str

    def __bool__(self) -> bool:
        return self.fits


class LargestBatch(Record):
    """The largest batch that fits into ``memory_bytes``, its peak, and the peak of a batch larger
    by one.

    ``batch_size`` is 0 where ``smallest_batch_size`` does not fit: that is the batch with which the
    search began, 1 but for a model that cannot run one example. ``next_peak_bytes`` is None where
    the search ended at the limit that it was given. ``estimates`` is how many batch sizes were
    estimated; ``uncertain``, of them all, and ``left_out`` are as in
    :class:`~helpers.memory.PeakEstimate`. Lesson 11.
    """

    batch_size: int
    peak_bytes: int | None
    next_peak_bytes: int | None
    memory_bytes: int
    estimates: int
    device: str
    uncertain: tuple[str, ...]
    left_out: str
    smallest_batch_size: int


def fits(
    model: nn.Module,
    inputs: steps.Inputs = None,
    memory_bytes: int | str | None = None,
    *,
    shape: steps.Inputs = None,
    **options: Unpack[steps.Options],
) -> Fit:
    """Return whether one step of ``model`` on ``inputs`` fits into ``memory_bytes`` of tensors, by
    the estimate.

    ``memory_bytes`` is a number of bytes or a text with its unit, such as ``"24 GiB"``. None is all
    the memory of the device: the memory of the GPU, or the memory that this process may use at most
    on a CPU. Python, PyTorch's code and, on CUDA, the context need memory as well, so give less
    than the device has (by hundreds of MB). ``shape`` may be given instead of ``inputs``. The
    ``options`` are those of :func:`~helpers.memory.estimate_peak_memory`.

    Raises what that function raises, TypeError or ValueError for ``memory_bytes`` that are no
    amount of memory, and ValueError where it is None and the memory of the device is not known
    here.

    >>> bool(fits(nn.Linear(1000, 1000), (64, 1000), "24 GiB"))
    True

    Lesson 12.
    """
    limit = _limit(memory_bytes)
    estimate = estimate_peak_memory(model, inputs, shape=shape, **options)
    limit = _memory_of(estimate.device) if limit is None else limit
    free_bytes = limit - estimate.peak_bytes
    return derived(Fit, estimate, fits=free_bytes >= 0, memory_bytes=limit, free_bytes=free_bytes)


def max_batch_size(
    model: nn.Module,
    inputs: steps.Inputs = None,
    memory_bytes: int | str | None = None,
    *,
    shape: steps.Inputs = None,
    at_most: int = 2**20,
    **options: Unpack[steps.Options],
) -> LargestBatch:
    """Return the largest batch whose step of ``model`` fits into ``memory_bytes`` of tensors,
    ``at_most`` at the most.

    ``memory_bytes`` is as in :func:`fits`. ``inputs`` (or ``shape``) and the ``options`` are as in
    :func:`~helpers.memory.estimate_peak_memory`; the first size of the shape, or of each tensor, is
    the batch and is replaced: rows are left out at the end, or each is repeated, so that masks and
    lengths keep the values that were given. Tensors of the inputs have the batch first and the same
    batch. A ``loss`` must take any batch.

    The search bisects on the estimate, guided by a straight line through the last two: the result
    fits, and one more does not. It is the largest if the peak grows with the batch, as it does but
    for a few bytes where a kernel takes another road. It begins at 1; for a model that cannot run
    one example, as batch normalisation in training cannot, at 2, and where that fails too at the
    batch of ``inputs``: ``smallest_batch_size`` says which.

    Raises ValueError when the inputs have no common batch, and what ``estimate_peak_memory``
    raises; where no batch to begin with runs, the error of the batch of ``inputs``.

    >>> max_batch_size(nn.Linear(1000, 1000), (1, 1000), "64 MiB", training=False).batch_size > 1000
    True

    Lesson 11.
    """
    limit = _limit(memory_bytes)
    whole_number("at_most", at_most)
    steps.check_model(model)
    input_batch, resize = _batch_and_resize(steps.arguments_of(model, inputs, shape))
    estimates: dict[int, PeakEstimate] = {}

    def peak(batch: int) -> int:
        if batch not in estimates:
            estimates[batch] = estimate_peak_memory(model, resize(batch), **options)
        return estimates[batch].peak_bytes

    smallest = _smallest_that_runs(peak, input_batch, at_most)
    limit = _memory_of(estimates[smallest].device) if limit is None else limit
    largest = largest_below(peak, limit, at_most, smallest=smallest)
    peaks = {batch: estimate.peak_bytes for batch, estimate in estimates.items()}
    return derived(
        LargestBatch,
        estimates[smallest],
        batch_size=largest,
        peak_bytes=peaks.get(largest),
        next_peak_bytes=peaks.get(largest + 1),
        memory_bytes=limit,
        estimates=len(peaks),
        uncertain=tuple(
            sorted(set().union(*(estimate.uncertain for estimate in estimates.values())))
        ),
        smallest_batch_size=smallest,
    )


def _limit(memory_bytes: int | str | None) -> int | None:
    amount = units.parse(memory_bytes, "B") if isinstance(memory_bytes, str) else memory_bytes
    return None if amount is None else int(number("memory_bytes", amount, at_least=0))


def _memory_of(device: str) -> int:
    """Return the bytes of memory of a device of this machine, for the CPU at most those of its
    control groups.
    """
    card = hardware.machine_card()
    target = torch.device(device)
    sizes = [card.ram_bytes, card.memory_limit_bytes]
    if target.type == "cuda":
        sizes = [
            gpu.memory_bytes
            for index, gpu in enumerate(card.gpus or ())
            if index == (target.index or 0)
        ]
    known_sizes = [size for size in sizes if size is not None]
    if not known_sizes:
        raise ValueError(
            f"the memory of {device!r} is not known here; give memory_bytes, such as '24 GiB'"
        )
    return min(known_sizes)


def _smallest_that_runs(peak: Callable[[int], int], input_batch: int, at_most: int) -> int:
    """Return the first of 1, 2 and ``input_batch`` whose step runs; raise the error of the last, or
    else the first.
    """
    errors: dict[int, steps.ModelError] = {}
    for batch in sorted(batch for batch in {1, 2, input_batch} if 1 <= batch <= at_most):
        try:
            peak(batch)
            return batch
        except steps.ModelError as error:
            errors[batch] = error
    raise errors.get(input_batch, errors[1])


def largest_below(
    peak: Callable[[int], int], limit: int, at_most: int, *, smallest: int = 1
) -> int:
    """Return the largest n of ``smallest`` to ``at_most`` with ``peak(n) <= limit``, 0 if there is
    none.

    ``peak`` must grow with n.

    Each step tries where the straight line through the bracket's ends meets the limit, and every
    second step the middle, so that a peak that is no straight line does not make it slow.
    """
    if peak(smallest) > limit:
        return 0
    low, high = smallest, smallest + 1
    while peak(high := min(high, at_most)) <= limit:
        if high == at_most:
            return at_most
        low, high = high, _extrapolate(peak, low, high, limit)
    halve = False
    while high - low > 1:
        middle = (low + high) // 2 if halve else _interpolate(peak, low, high, limit)
        halve = not halve
        if peak(middle) <= limit:
            low = middle
        else:
            high = middle
    return low


def _extrapolate(peak: Callable[[int], int], low: int, high: int, limit: int) -> int:
    """Return a batch over ``high`` that no longer fits by the line through the two, 64 times
    ``high`` at the most.
    """
    slope = (peak(high) - peak(low)) / (high - low)
    batch = high + int((limit - peak(high)) / slope) + 1 if slope > 0 else 64 * high
    return min(max(batch, high + 1), 64 * high)


def _interpolate(peak: Callable[[int], int], low: int, high: int, limit: int) -> int:
    share = (limit - peak(low)) / (peak(high) - peak(low))
    return min(max(low + int(share * (high - low)), low + 1), high - 1)


def _batch_and_resize(arguments: steps.Arguments) -> tuple[int, Callable[[int], steps.Arguments]]:
    """Return the inputs' batch and a function that makes them with another: each tensor's rows over
    and over.
    """
    batches = {next(iter(leaf.shape), None) for leaf in arguments.leaves}
    batch = next(iter(batches), None)
    if len(batches) != 1 or batch is None:
        raise ValueError(
            f"the inputs' first sizes are {sorted(map(str, batches))}; give tensors with one "
            "common batch, first"
        )

    def resize(new_batch: int) -> steps.Arguments:
        def resize_leaf(leaf: Any) -> Any:
            if isinstance(leaf, steps.Shape):
                return steps.Shape((new_batch, *leaf.shape[1:]))
            return _repeat_rows(leaf, new_batch)

        return arguments.replaced(resize_leaf)

    return batch, resize


def _repeat_rows(tensor: torch.Tensor, batch: int) -> torch.Tensor:
    """Return a tensor of ``batch`` rows: those of ``tensor`` over and over, equal ones side by
    side.

    So rows that are in order, as lengths are, stay in order. Zeros stand for values that an
    estimate does not keep.
    """
    sizes = (batch, *tensor.shape[1:])
    is_number = tensor.is_floating_point() or tensor.is_complex()
    if is_number or not len(tensor) or math.prod(sizes) > MOST_ELEMENTS:
        return tensor.new_zeros(()).expand(sizes)
    rows = torch.arange(batch, device=tensor.device) % len(tensor)
    return tensor[rows.sort().values]
