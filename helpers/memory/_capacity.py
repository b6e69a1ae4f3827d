"""How large a batch fits: the estimate of the peak against a limit.

Lesson 07.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

from torch import nn

from helpers import steps
from helpers._checks import number, whole_number
from helpers.memory._peak import PeakEstimate, estimate_peak_memory
from helpers.results import Result, derived


@dataclass(frozen=True)
class Fit(Result):
    """Whether a step fits into ``memory_bytes``: True in ``if``, and what is left, negative where it is too much.

    ``uncertain`` and ``left_out`` are as in :class:`~helpers.memory.PeakEstimate`. Lesson 07.
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


@dataclass(frozen=True)
class LargestBatch(Result):
    """The largest batch that fits into ``memory_bytes``, its peak, and the peak of a batch larger by one.

    ``batch_size`` is 0 where ``smallest_batch_size`` does not fit: that is the batch with which the search began, 1
    but for a model that cannot run one example. ``next_peak_bytes`` is None where the search ended at the limit that
    it was given. ``estimates`` is how many batch sizes were estimated; ``uncertain``, of them all, and ``left_out``
    are as in :class:`~helpers.memory.PeakEstimate`. Lesson 07.
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
    memory_bytes: int | None = None,
    **options: Unpack[steps.Options],
) -> Fit:
    """Return whether one step fits into ``memory_bytes`` of tensors, by the estimate.

    Python, PyTorch's code and, on CUDA, the context need memory as well: leave room for them (hundreds of MB). The
    other arguments, and what is raised, are those of :func:`~helpers.memory.estimate_peak_memory`. Lesson 07.
    """
    limit = int(number("memory_bytes", memory_bytes, at_least=0))
    estimate = estimate_peak_memory(model, inputs, **options)
    free_bytes = limit - estimate.peak_bytes
    return derived(Fit, estimate, fits=free_bytes >= 0, memory_bytes=limit, free_bytes=free_bytes)


def max_batch_size(
    model: nn.Module,
    inputs: steps.Inputs = None,
    memory_bytes: int | None = None,
    *,
    shape: steps.Inputs = None,
    at_most: int = 2**20,
    **options: Unpack[steps.Options],
) -> LargestBatch:
    """Return the largest batch whose step fits into ``memory_bytes`` of tensors, ``at_most`` at the most.

    ``inputs`` is as in :func:`~helpers.memory.estimate_peak_memory`; the first size of the shape, or of each tensor,
    is the batch and is replaced. Tensors of the inputs have the batch first and the same batch. A ``loss`` must
    take any batch. The search bisects on the estimate, guided by a straight line through the last two: the result
    fits, and one more does not. It is the largest if the peak grows with the batch, as it does but for a few bytes
    where a kernel takes another road. It begins at 1; for a model that cannot run one example, as batch normalisation
    in training cannot, at 2, and where that fails too at the batch of ``inputs``: ``smallest_batch_size`` says which.

    Raises ValueError when the inputs have no common batch, and what ``estimate_peak_memory`` raises; where no batch
    to begin with runs, the error of the batch of ``inputs``. Lesson 07.
    """
    limit = int(number("memory_bytes", memory_bytes, at_least=0))
    whole_number("at_most", at_most)
    steps.check_model(model)
    given, resized = _with_batch(steps.arguments_of(model, inputs, shape))
    estimates: dict[int, PeakEstimate] = {}

    def peak(batch: int) -> int:
        if batch not in estimates:
            estimates[batch] = estimate_peak_memory(model, resized(batch), **options)
        return estimates[batch].peak_bytes

    smallest = _smallest_that_runs(peak, given, at_most)
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
        uncertain=tuple(sorted({sentence for estimate in estimates.values() for sentence in estimate.uncertain})),
        smallest_batch_size=smallest,
    )


def _smallest_that_runs(peak: Callable[[int], int], given: int, at_most: int) -> int:
    """Return the first of 1, 2 and ``given`` whose step runs; raise the error of ``given``, or else the first."""
    errors: dict[int, steps.ModelError] = {}
    for batch in sorted(batch for batch in {1, 2, given} if 1 <= batch <= at_most):
        try:
            peak(batch)
        except steps.ModelError as error:
            errors[batch] = error
        else:
            return batch
    raise errors.get(given, errors[1])


def largest_below(peak: Callable[[int], int], limit: int, at_most: int, *, smallest: int = 1) -> int:
    """Return the largest n of ``smallest`` to ``at_most`` with ``peak(n) <= limit``, 0 if there is none.

    ``peak`` must grow with n.

    Each step tries where the straight line through the bracket's ends meets the limit, and every second step the
    middle, so that a peak that is no straight line does not make it slow.
    """
    if peak(smallest) > limit:
        return 0
    low, high = smallest, smallest + 1
    while peak(high := min(high, at_most)) <= limit:
        if high == at_most:
            return at_most
        low, high = high, _beyond(peak, low, high, limit)
    halve = False
    while high - low > 1:
        middle = (low + high) // 2 if halve else _between(peak, low, high, limit)
        halve = not halve
        if peak(middle) <= limit:
            low = middle
        else:
            high = middle
    return low


def _beyond(peak: Callable[[int], int], low: int, high: int, limit: int) -> int:
    """Return a batch over ``high`` that no longer fits by the line through the two, 64 times ``high`` at the most."""
    slope = (peak(high) - peak(low)) / max(high - low, 1)
    over = high + int((limit - peak(high)) / slope) + 1 if slope > 0 else 64 * high
    return min(max(over, high + 1), 64 * high)


def _between(peak: Callable[[int], int], low: int, high: int, limit: int) -> int:
    share = (limit - peak(low)) / (peak(high) - peak(low))
    return min(max(low + int(share * (high - low)), low + 1), high - 1)


def _with_batch(arguments: steps.Arguments) -> tuple[int, Callable[[int], steps.Arguments]]:
    """Return the inputs' batch and what makes them with another one; a tensor's content is not needed: it is zeros."""
    batches = {next(iter(leaf.shape), None) for leaf in arguments.leaves}
    if len(batches) != 1 or None in batches:
        raise ValueError(
            f"the inputs' first sizes are {sorted(map(str, batches))}; give tensors with one common batch, first"
        )

    def resized(batch: int) -> steps.Arguments:
        def with_batch(leaf: Any) -> Any:
            sizes = (batch, *leaf.shape[1:])
            return steps.Shape(sizes) if isinstance(leaf, steps.Shape) else leaf.new_zeros(()).expand(sizes)

        return arguments.replaced(with_batch)

    return batches.pop(), resized
