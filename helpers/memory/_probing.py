"""What an operator takes inside itself: each distinct operator of a step run once, alone, on zeros.

A convolution of oneDNN pads LeNet's 6 channels to 16, a matrix product copies an operand it cannot
read as it lies, a number becomes a tensor of 8 bytes: none of it shows in the tensors that come
out. Running one operator at a time needs the memory of one operator, not of the step, and a product
or an elementwise operator on large tensors need not even that: what it takes inside is the same at
two small sizes, and is taken for the large one.

Such a product takes inside what the layout of its operands asks for (a copy of one that it cannot
read as it lies). It is run at two small sizes with the same layout. Where it takes the same inside
at both, that does not depend on the size; where it takes copies of the same operands at both, it
copies them at its own size too; where neither holds, it is run as it is.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._prims_common import compute_required_storage_length
from torch.utils import _pytree as pytree

from helpers import steps
from helpers.memory import _allocator as allocator
from helpers.memory._events import (
    Layouts,
    StepTrace,
    TensorSpec,
    TracedOperator,
    leaves_of,
    strides_of,
    written_values,
)
from helpers.memory._values import read_as

# what is not run: None is no operator
_NOT_RUN = (
    None,
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.resize_.default,
    torch.ops.aten._efficientzerotensor.default,
)
# what an operator raises that cannot be run alone
_ERRORS = (RuntimeError, ValueError, IndexError, MemoryError)


@dataclass(frozen=True)
class Probe:
    """The most that one operator takes, and the real sizes of the storages it made, in the order of
    ``TracedOperator.made_storages``.
    """

    peak_bytes: int
    made_bytes: tuple[int, ...]


@dataclass
class _ProbedOperator:
    """One distinct operator that was run: where its changes stand, and what it returned."""

    mark: str
    peak_bytes: int | None  # None where the log has it
    output_bytes: dict[int, int]
    output_strides: dict[int, tuple[int, ...]] = field(default_factory=dict)
    kept_outputs: dict[int, torch.Tensor] = field(default_factory=dict)


def probe_operators(trace: StepTrace, step: steps.Step) -> tuple[list[Probe | None], Layouts]:
    """Return a probe for every event of the second step, None for a release, and the layouts that
    are not the trace's.

    Each distinct operator is run once on its device.

    An operator that makes only views takes nothing and is not run. One that cannot run alone is
    taken to need what it returns, and ``trace.uncertain`` then says so. Where a CPU stands in for a
    GPU, nothing is run.
    """
    events = trace.second_step
    if step.device.type != step.runs_on.type:
        return [_probe(event, None, trace, None) for event in events], {}
    device = step.device
    with steps.undisturbed(), torch.autocast(device.type, enabled=False):
        is_cpu = device.type == "cpu"
        inside_bytes = probe_large_operators(trace) if is_cpu else {}
        with allocator.record_allocations() if is_cpu else contextlib.nullcontext() as log:
            runner = _Runner(trace, device, inside_bytes, log)
            runs = [runner.run(event) for event in events]
    return [
        _probe(event, run, trace, log) for event, run in zip(events, runs, strict=True)
    ], runner.layouts


def _probe(
    event: Any, run: _ProbedOperator | None, trace: StepTrace, log: allocator.AllocatorLog | None
) -> Probe | None:
    if not isinstance(event, TracedOperator):
        return None
    fake_bytes = tuple(trace.made_bytes(event))
    if run is None:
        return Probe(sum(fake_bytes), fake_bytes)
    peak_bytes = run.peak_bytes
    if peak_bytes is None:
        assert log is not None  # what a CPU runs is recorded
        peak_bytes = allocator.usage(log.window(run.mark)).peak_bytes
    return Probe(
        peak_bytes, tuple(run.output_bytes[result.position] for result in event.made_storages)
    )


class _Runner:
    def __init__(
        self,
        trace: StepTrace,
        device: torch.device,
        inside_bytes: dict[Any, int],
        log: allocator.AllocatorLog | None,
    ) -> None:
        self.layouts: Layouts = {}
        self._trace, self._device, self._inside_bytes, self._log = trace, device, inside_bytes, log
        self._runs: dict[Any, _ProbedOperator | None] = {}
        # of the storages whose size only the operator that made them knows
        self._makers: dict[int | None, tuple[str, int]] = {}
        self._opaque: dict[int | None, torch.Tensor] = {}

    def run(self, event: Any) -> _ProbedOperator | None:
        if not isinstance(event, TracedOperator):
            return None
        if event.only_views or event.function in _NOT_RUN:
            return None
        # operands that hold what another operator has made tell two apart
        key = event.key, tuple(self._makers.get(spec.storage) for spec in event.operands)
        if key not in self._runs:
            self._runs[key] = self._run_alone(event, str(len(self._runs)))
        run = self._runs[key]
        if run is None:
            self._trace.uncertain.add(
                f"{event.function} cannot be run alone here: what it takes inside is not counted"
            )
            return None
        for result in event.made_storages:
            if result.position in run.kept_outputs:
                self._makers[result.storage] = run.mark, result.position
                self._opaque[result.storage] = run.kept_outputs[result.position]
            strides = run.output_strides.get(result.position, result.strides)
            if strides != result.strides:
                self.layouts.setdefault(event.key, {})[result.position] = strides
        return run

    def _run_alone(self, event: TracedOperator, mark: str) -> _ProbedOperator | None:
        inside_bytes = self._inside_bytes.get(event.key)
        if inside_bytes is not None:
            output_bytes = {
                result.position: self._trace.storage_bytes[result.storage]
                for result in event.made_storages
            }
            return _ProbedOperator(mark, sum(output_bytes.values()) + inside_bytes, output_bytes)
        own_bytes = [*self._trace.made_bytes(event), *(spec.nbytes for spec in event.operands)]
        is_too_large = self._device.type == "cpu" and sum(own_bytes) > _machine_bytes() / 2
        if is_too_large or self._lacks_workspace(event):
            return None
        peak_bytes = None
        try:
            arguments = pytree.tree_map_only(TensorSpec, self._make_operand, event.arguments)
            if self._log is None:
                _call(event, arguments)  # the libraries take at their first call what they keep
                usage, outputs = allocator.cuda_usage(lambda: _call(event, arguments), self._device)
                peak_bytes = usage.peak_bytes
            else:
                with self._log.recorded(mark):
                    outputs = _call(event, arguments)
        except _ERRORS:
            return None
        return self._finish_run(event, mark, peak_bytes, pytree.tree_leaves(outputs))

    def _lacks_workspace(self, event: TracedOperator) -> bool:
        """Return whether an operand is a workspace whose maker could not be run: without it a
        kernel may crash.
        """
        return any(
            spec.dtype is torch.uint8
            and 0 in spec.sizes
            and spec.storage is not None
            and spec.storage not in self._opaque
            and event.segment > 0
            for spec in event.operands
        )

    def _finish_run(
        self, event: TracedOperator, mark: str, peak_bytes: int | None, outputs: list[Any]
    ) -> _ProbedOperator:
        """Note the real sizes, and keep an output whose size only the operator knows: another may
        need its content.
        """
        run = _ProbedOperator(mark, peak_bytes, dict(enumerate(map(self._bytes_of, outputs))))
        for storage, position, _ in event.made_storages:
            output = outputs[position]
            if isinstance(output, torch.Tensor) and output.numel() and output.storage_offset() == 0:
                run.output_strides[position] = strides_of(output)
            if run.output_bytes[position] not in (0, self._trace.storage_bytes[storage]):
                run.kept_outputs[position] = output
        return run

    def _bytes_of(self, output: Any) -> int:
        """Return the bytes of an output's storage, 0 on another device; a kernel may give None for
        what it promises.
        """
        is_here = isinstance(output, torch.Tensor) and output.device.type == self._device.type
        return output.untyped_storage().nbytes() if is_here else 0

    def _make_operand(self, spec: TensorSpec) -> torch.Tensor:
        if spec.storage in self._opaque:
            return _view_as_specified(self._opaque[spec.storage], spec)
        if spec.room_bytes:
            room = zeros(
                replace(
                    spec,
                    sizes=(spec.room_bytes,),
                    strides=(1,),
                    dtype=torch.uint8,
                    is_conj=False,
                    is_neg=False,
                )
            )
            return torch.empty(0, dtype=spec.dtype, device=spec.device).set_(
                room.untyped_storage(), 0, spec.sizes, spec.strides
            )
        operand = zeros(spec)
        if spec.content is not None:
            values = torch.frombuffer(bytearray(spec.content), dtype=spec.dtype)
            operand.copy_(values.reshape(spec.sizes))
        return operand


def _call(event: TracedOperator, arguments: Any) -> Any:
    assert event.function is not None  # else there is nothing to run, and nobody asks for it
    positional, named = arguments
    with torch.set_grad_enabled(event.grad_mode):
        return event.function(*positional, **named)


def _view_as_specified(output: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """Return the result of another operator as ``spec`` views it; as it is where only the operator
    knows its size.
    """
    needed_bytes = (
        compute_required_storage_length(spec.sizes, spec.strides, 0) * spec.dtype.itemsize
    )
    has_room = 0 < needed_bytes <= output.untyped_storage().nbytes()
    if not has_room or output.dtype != spec.dtype or output.shape == spec.sizes:
        return output
    return output.as_strided(spec.sizes, spec.strides, 0)


def _machine_bytes() -> float:
    """Return the machine's memory, infinity where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return math.inf


# Large operators at small sizes.


_LARGE_BYTES = 2**24  # what an operator writes, from which on it is run at small sizes
_SMALL_SIZES = (96, 64)
_ZERO_PAGES_FROM_BYTES = 2**20
_BY_ROWS = frozenset({ "mm", "bmm", "addmm", "baddbmm", "_to_copy", "clone", "copy", "copy_",
    "zeros_like", "ones_like", "fill_", "zero_", "_softmax", "_log_softmax",
    "_softmax_backward_data", "_log_softmax_backward_data",
    "embedding_dense_backward"})  # fmt: skip


def probe_large_operators(trace: StepTrace) -> dict[Any, int]:
    """Return, by key, the bytes that the large operators take inside, where the small sizes tell
    it.
    """
    large_events = {
        event.key: event
        for event in trace.second_step
        if isinstance(event, TracedOperator) and _is_large(event, trace)
    }
    small_runs: dict[Any, list[_SmallRun]] = {}
    if not large_events:
        return {}
    with allocator.record_allocations() as log:
        for key, event in large_events.items():
            with contextlib.suppress(*_ERRORS):
                small_runs[key] = [_run_small(event, size, log) for size in _SMALL_SIZES]
    inside_by_key = {
        key: _inside_at_full_size(large_events[key], runs, log) for key, runs in small_runs.items()
    }
    return {key: inside for key, inside in inside_by_key.items() if inside is not None}


def _inside_at_full_size(
    event: TracedOperator, runs: list[_SmallRun], log: allocator.AllocatorLog
) -> int | None:
    """Return the bytes that the operator takes inside at its own size, None where the small sizes
    leave it open.
    """
    usages = [allocator.usage(log.window(run.mark)) for run in runs]
    inside_bytes = [usage.peak_bytes - usage.kept_bytes for usage in usages]
    if inside_bytes[0] == inside_bytes[1]:
        return inside_bytes[0]
    full_bytes = [spec.nbytes for spec in event.operands]
    operands = list(zip(full_bytes, *(run.operand_bytes for run in runs), strict=True))
    copied_bytes = set()
    for count in range(1, len(operands) + 1):
        for subset in itertools.combinations(operands, count):
            subset_bytes, *small_bytes = map(sum, zip(*subset, strict=True))
            if small_bytes == inside_bytes:
                copied_bytes.add(subset_bytes)
    return copied_bytes.pop() if len(copied_bytes) == 1 else None


class _SmallRun(NamedTuple):
    """One run at a small size: where its changes stand, and the bytes of its operands."""

    mark: str
    operand_bytes: list[int]


def _is_large(event: TracedOperator, trace: StepTrace) -> bool:
    if event.function is None or event.only_views:
        return False
    tags = event.function.tags
    is_elementwise = torch.Tag.pointwise in tags
    is_random = torch.Tag.nondeterministic_seeded in tags
    if is_random or not (is_elementwise or event.name in _BY_ROWS):
        return False
    written = written_values(event.function, event.arguments[0], {})
    written_bytes = sum(value.nbytes for value in written if isinstance(value, TensorSpec))
    return sum(trace.made_bytes(event)) + written_bytes > _LARGE_BYTES


def _run_small(event: TracedOperator, small_size: int, log: allocator.AllocatorLog) -> _SmallRun:
    """Run the operator with its large sizes about ``small_size``.

    Raises one of ``_ERRORS`` where it cannot be run so.
    """
    mark = str(log.marks)
    smaller_sizes = _smaller_sizes(event, small_size)
    arguments = pytree.tree_map(lambda leaf: _scale(leaf, smaller_sizes), event.arguments)
    with log.recorded(mark):
        outputs = _call(event, arguments)
    del outputs
    return _SmallRun(mark, [operand.nbytes for operand in leaves_of(torch.Tensor, arguments)])


def _smaller_sizes(event: TracedOperator, small_size: int) -> dict[int, int]:
    """Return a smaller size for each large one: of the same alignment, and different from the
    others.
    """
    sizes = {size for spec in event.operands for size in spec.sizes}
    # an embedding's rows
    sizes |= {leaf for leaf in pytree.tree_leaves(event.arguments) if type(leaf) is int}
    large_sizes = sorted(size for size in sizes if size > 2 * max(_SMALL_SIZES))
    return {size: small_size + 16 * rank + size % 16 for rank, size in enumerate(large_sizes)}


def _scale(leaf: Any, smaller_sizes: dict[int, int]) -> Any:
    if isinstance(leaf, TensorSpec):
        sizes = tuple(smaller_sizes.get(size, size) for size in leaf.sizes)
        return zeros(replace(leaf, sizes=sizes, strides=_strides(leaf, sizes)))
    return smaller_sizes.get(leaf, leaf) if type(leaf) is int else leaf


def _strides(spec: TensorSpec, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of the same layout at other sizes: the same order of dimensions, the same
    gaps.

    Raises ValueError for a layout that has none.
    """
    strides, reach, scaled_reach = [0] * len(sizes), 1, 1
    for dimension in sorted(
        range(len(sizes)), key=lambda dimension: (spec.strides[dimension], -dimension)
    ):
        size, stride = spec.sizes[dimension], spec.strides[dimension]
        if stride == 0:
            continue
        if size == 1:
            strides[dimension] = scaled_reach
            continue
        gap, remainder = divmod(stride, reach)
        if remainder or gap < 1:
            raise ValueError("the layout overlaps")
        strides[dimension] = scaled_reach * gap
        reach, scaled_reach = stride * size, strides[dimension] * sizes[dimension]
    return tuple(strides)


def zeros(spec: TensorSpec) -> torch.Tensor:
    """Return zeros; large ones on a CPU are pages that the system hands out without taking memory
    until a write.
    """
    length = compute_required_storage_length(spec.sizes, spec.strides, 0)
    size_bytes = length * spec.dtype.itemsize
    if spec.device.type != "cpu" or size_bytes < _ZERO_PAGES_FROM_BYTES:
        operand = torch.empty_strided(
            spec.sizes, spec.strides, dtype=spec.dtype, device=spec.device
        ).zero_()
    else:
        pages = torch.from_numpy(np.zeros(size_bytes, dtype=np.uint8))
        operand = pages.view(spec.dtype).as_strided(spec.sizes, spec.strides)
    return read_as(operand, is_conj=spec.is_conj, is_neg=spec.is_neg)
