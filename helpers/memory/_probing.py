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

import itertools
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from helpers import steps
from helpers.memory import _allocator as allocator
from helpers.memory._events import Layouts, StepTrace, TensorSpec, TracedOperator, strides_of

_FREE = (
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.resize_.default,
    torch.ops.aten._efficientzerotensor.default,
)


@dataclass(frozen=True)
class Probe:
    """What one operator takes, and the real sizes of the storages it made, in the order of
    ``TracedOperator.made_storages``.
    """

    usage: allocator.Usage
    made_bytes: tuple[int, ...]


@dataclass
class _Run:
    """One distinct operator that was run: where its changes stand, and what it returned."""

    mark: str
    usage: allocator.Usage | None
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
    events = trace.events[trace.start :]
    if step.device.type != step.runs_on.type:
        return [_probe(event, None, trace, None) for event in events], {}
    device = step.device
    with steps.undisturbed(), torch.autocast(device.type, enabled=False):
        if device.type == "cuda":
            runner, log = _Runner(trace, device), None
            runs = [runner.run(event) for event in events]
        else:
            runner = _Runner(trace, device, probe_large_operators(events, trace))
            with allocator.record_allocations() as log:
                runner.log = log
                runs = [runner.run(event) for event in events]
    return [
        _probe(event, run, trace, log) for event, run in zip(events, runs, strict=True)
    ], runner.layouts


def _probe(
    event: Any, run: _Run | None, trace: StepTrace, log: allocator.AllocatorLog | None
) -> Probe | None:
    if not isinstance(event, TracedOperator):
        return None
    fake_bytes = tuple(trace.storage_bytes[result.storage] for result in event.made_storages)
    if run is None:
        return Probe(allocator.Usage(sum(fake_bytes), sum(fake_bytes)), fake_bytes)
    usage = run.usage
    if usage is None:
        assert log is not None  # what a CPU runs is recorded
        usage = allocator.usage(log.window(run.mark))
    return Probe(usage, tuple(run.output_bytes[result.position] for result in event.made_storages))


class _Runner:
    def __init__(
        self, trace: StepTrace, device: torch.device, inside_bytes: dict[Any, int] | None = None
    ) -> None:
        self.log: allocator.AllocatorLog | None = None
        self.layouts: Layouts = {}
        self._trace, self._device, self._inside_bytes = trace, device, inside_bytes or {}
        self._runs: dict[Any, _Run | None] = {}
        self._opaque: dict[int, tuple[str, int, torch.Tensor]] = {}

    def run(self, event: Any) -> _Run | None:
        if (
            not isinstance(event, TracedOperator)
            or event.only_views
            or event.function in (None, *_FREE)
        ):
            return None
        key = self._key(event)
        if key not in self._runs:
            self._runs[key] = self._run_alone(event, str(len(self._runs)))
        run = self._runs[key]
        if run is None:
            return None
        for result in event.made_storages:
            if result.position in run.kept_outputs:
                self._opaque[result.storage] = (
                    run.mark,
                    result.position,
                    run.kept_outputs[result.position],
                )
            strides = run.output_strides.get(result.position, result.strides)
            if strides != result.strides:
                self.layouts.setdefault(event.key, {})[result.position] = strides
        return run

    def _key(self, event: TracedOperator) -> Any:
        """Return the operator's key, and which of its operands hold what another operator has
        made.
        """
        specs = (
            leaf for leaf in pytree.tree_leaves(event.arguments) if isinstance(leaf, TensorSpec)
        )
        makers = (
            self._opaque[spec.storage][:2] if spec.storage in self._opaque else () for spec in specs
        )
        return event.key, tuple(makers)

    def _run_alone(self, event: TracedOperator, mark: str) -> _Run | None:
        inside_bytes = self._inside_bytes.get(event.key)
        if inside_bytes is not None:
            made_bytes = {
                result.position: self._trace.storage_bytes[result.storage]
                for result in event.made_storages
            }
            kept_bytes = sum(made_bytes.values())
            return _Run(mark, allocator.Usage(kept_bytes + inside_bytes, kept_bytes), made_bytes)
        is_too_large = (
            self._device.type == "cpu" and _needed_bytes(event, self._trace) > _machine_bytes() / 2
        )
        if is_too_large or self._lacks_workspace(event):
            self._note_not_run(event)
            return None
        function = event.function
        assert function is not None  # else there is nothing to run, and nobody asks for it

        def call() -> Any:
            with torch.set_grad_enabled(event.grad_mode):
                return function(*arguments, **keywords)

        usage = None
        try:
            arguments, keywords = pytree.tree_map_only(
                TensorSpec, self._make_operand, event.arguments
            )
            if self.log is None:
                call()  # the libraries take at their first call what they keep
                usage, outputs = allocator.cuda_usage(call, self._device)
            else:
                self.log.mark(mark)
                try:
                    outputs = call()
                finally:
                    self.log.mark("between")
        except (RuntimeError, ValueError, IndexError, NotImplementedError, MemoryError):
            self._note_not_run(event)
            return None
        return self._finish_run(event, mark, usage, pytree.tree_leaves(outputs))

    def _lacks_workspace(self, event: TracedOperator) -> bool:
        """Return whether an operand is a workspace whose maker could not be run: without it a
        kernel may crash.
        """
        return any(
            isinstance(leaf, TensorSpec)
            and leaf.dtype is torch.uint8
            and 0 in leaf.sizes
            and leaf.storage is not None
            and leaf.storage not in self._opaque
            and event.segment > 0
            for leaf in pytree.tree_leaves(event.arguments)
        )

    def _note_not_run(self, event: TracedOperator) -> None:
        self._trace.uncertain.add(
            f"{event.function} cannot be run alone here: what it takes inside is not counted"
        )

    def _finish_run(
        self, event: TracedOperator, mark: str, usage: allocator.Usage | None, outputs: list[Any]
    ) -> _Run:
        """Note the real sizes, and keep an output whose size only the operator knows: another may
        need its content.
        """
        run = _Run(
            mark,
            usage,
            {position: self._bytes_of(output) for position, output in enumerate(outputs)},
        )
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
            return _view_as_specified(self._opaque[spec.storage][2], spec)
        if spec.room_bytes:
            storage_bytes = zeros((spec.room_bytes,), (1,), torch.uint8, spec.device)
            return torch.empty(0, dtype=spec.dtype, device=spec.device).set_(
                storage_bytes.untyped_storage(), 0, spec.sizes, spec.strides
            )
        if spec.content is not None:
            values = torch.frombuffer(bytearray(spec.content), dtype=spec.dtype).reshape(spec.sizes)
            operand = torch.empty_strided(
                spec.sizes, spec.strides, dtype=spec.dtype, device=spec.device
            ).copy_(values)
        else:
            operand = zeros(spec.sizes, spec.strides, spec.dtype, spec.device)
        operand = operand.conj() if spec.is_conj else operand
        return torch._neg_view(operand) if spec.is_neg else operand


def _view_as_specified(output: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """Return the result of another operator as ``spec`` views it; as it is where only the operator
    knows its size.
    """
    needed_bytes = _extent(spec.sizes, spec.strides) * spec.dtype.itemsize
    has_room = 0 < needed_bytes <= output.untyped_storage().nbytes()
    if not has_room or output.dtype != spec.dtype or output.shape == spec.sizes:
        return output
    return output.as_strided(spec.sizes, spec.strides, 0)


def _needed_bytes(event: TracedOperator, trace: StepTrace) -> int:
    """Return the bytes of the operator's own tensors, its operands' and its results'."""
    specs = [leaf for leaf in pytree.tree_leaves(event.arguments) if isinstance(leaf, TensorSpec)]
    operand_bytes = sum(math.prod(spec.sizes) * spec.dtype.itemsize for spec in specs)
    return operand_bytes + sum(
        trace.storage_bytes[result.storage] for result in event.made_storages
    )


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


def probe_large_operators(events: Iterable[Any], trace: StepTrace) -> dict[Any, int]:
    """Return, by key, the bytes that the large operators take inside, where the small sizes tell
    it.
    """
    large_events = {
        event.key: event
        for event in events
        if isinstance(event, TracedOperator) and _is_large(event, trace)
    }
    small_runs: dict[Any, list[_SmallRun | None]] = {}
    if not large_events:
        return {}
    with allocator.record_allocations() as log:
        for key, event in large_events.items():
            small_runs[key] = [_run_small(event, small_size, log) for small_size in _SMALL_SIZES]
    finished_runs = {
        key: [run for run in runs if run is not None] for key, runs in small_runs.items()
    }
    complete_runs = {
        key: runs for key, runs in finished_runs.items() if len(runs) == len(_SMALL_SIZES)
    }
    inside_by_key = {
        key: _inside_at_full_size(large_events[key], runs, log)
        for key, runs in complete_runs.items()
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
    operands = list(
        zip(_operand_bytes(event.arguments), *(run.operand_bytes for run in runs), strict=True)
    )
    copied_bytes = {
        sum(operand[0] for operand in subset)
        for count in range(1, len(operands) + 1)
        for subset in itertools.combinations(operands, count)
        if inside_bytes
        == [sum(operand[1] for operand in subset), sum(operand[2] for operand in subset)]
    }
    return copied_bytes.pop() if len(copied_bytes) == 1 else None


class _SmallRun(NamedTuple):
    """One run at a small size: where its changes stand, and the bytes of its operands."""

    mark: str
    operand_bytes: list[int]


def _operand_bytes(arguments: Any) -> list[int]:
    operands = [
        leaf
        for leaf in pytree.tree_leaves(arguments)
        if isinstance(leaf, TensorSpec | torch.Tensor)
    ]
    shapes = [
        operand.sizes if isinstance(operand, TensorSpec) else operand.shape for operand in operands
    ]
    return [
        math.prod(shape) * operand.dtype.itemsize
        for shape, operand in zip(shapes, operands, strict=True)
    ]


def _is_large(event: TracedOperator, trace: StepTrace) -> bool:
    if event.function is None or event.only_views:
        return False
    is_elementwise = torch.Tag.pointwise in event.function.tags
    is_random = torch.Tag.nondeterministic_seeded in event.function.tags
    if is_random or not (is_elementwise or event.name in _BY_ROWS):
        return False
    made_bytes = sum(trace.storage_bytes[result.storage] for result in event.made_storages)
    written_bytes = sum(
        math.prod(value.sizes) * value.dtype.itemsize
        for argument, value in zip(
            event.function._schema.arguments, event.arguments[0], strict=False
        )
        if isinstance(value, TensorSpec)
        and argument.alias_info is not None
        and argument.alias_info.is_write
    )
    return made_bytes + written_bytes > _LARGE_BYTES


def _run_small(
    event: TracedOperator, small_size: int, log: allocator.AllocatorLog
) -> _SmallRun | None:
    """Run the operator with its large sizes about ``small_size``; return None where it cannot be
    run so.
    """
    assert event.function is not None  # as it is large
    mark = str(log.marks)
    smaller_sizes = _smaller_sizes(event.arguments, small_size)
    try:
        arguments, keywords = pytree.tree_map(
            lambda leaf: _scale(leaf, smaller_sizes), event.arguments
        )
    except ValueError:
        return None
    operand_bytes = _operand_bytes((arguments, keywords))
    with torch.set_grad_enabled(event.grad_mode):
        log.mark(mark)
        try:
            outputs = event.function(*arguments, **keywords)
        except (RuntimeError, ValueError, IndexError, NotImplementedError):
            return None
        finally:
            log.mark("between")
    del outputs
    return _SmallRun(mark, operand_bytes)


def _smaller_sizes(arguments: Any, small_size: int) -> dict[int, int]:
    """Return a smaller size for each large one: of the same alignment, and different from the
    others.
    """
    leaves = pytree.tree_leaves(arguments)
    sizes = {size for leaf in leaves if isinstance(leaf, TensorSpec) for size in leaf.sizes}
    sizes |= {leaf for leaf in leaves if type(leaf) is int}  # an embedding's rows
    large_sizes = sorted(size for size in sizes if size > 2 * max(_SMALL_SIZES))
    return {size: small_size + 16 * rank + size % 16 for rank, size in enumerate(large_sizes)}


def _scale(leaf: Any, smaller_sizes: dict[int, int]) -> Any:
    if isinstance(leaf, TensorSpec):
        sizes = tuple(smaller_sizes.get(size, size) for size in leaf.sizes)
        operand = zeros(sizes, _strides(leaf, sizes), leaf.dtype, leaf.device)
        operand = operand.conj() if leaf.is_conj else operand
        return torch._neg_view(operand) if leaf.is_neg else operand
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
        if spec.strides[dimension] == 0 or spec.sizes[dimension] == 1:
            strides[dimension] = 0 if spec.strides[dimension] == 0 else scaled_reach
            continue
        gap, remainder = divmod(spec.strides[dimension], reach)
        if remainder or gap < 1:
            raise ValueError("the layout overlaps")
        strides[dimension] = scaled_reach * gap
        reach, scaled_reach = (
            spec.strides[dimension] * spec.sizes[dimension],
            strides[dimension] * sizes[dimension],
        )
    return tuple(strides)


def _extent(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the number of elements from a tensor's first to its last, both included."""
    return (
        sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1
        if 0 not in sizes
        else 0
    )


def zeros(
    sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return zeros; large ones on a CPU are pages that the system hands out without taking memory
    until a write.
    """
    extent = _extent(sizes, strides)
    if device.type != "cpu" or extent * dtype.itemsize < _ZERO_PAGES_FROM_BYTES:
        return torch.empty_strided(sizes, strides, dtype=dtype, device=device).zero_()
    pages = torch.from_numpy(np.zeros(extent * dtype.itemsize, dtype=np.uint8))
    return pages.view(dtype).as_strided(sizes, strides)
