"""What an operator takes inside itself: each distinct operator of a step run once, alone, on zeros.

A convolution of oneDNN pads LeNet's 6 channels to 16, a matrix product copies an operand it cannot read as it lies,
a number becomes a tensor of 8 bytes: none of it shows in the tensors that come out. Running one operator at a time
needs the memory of one operator, not of the step.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from helpers.memory import allocations, steps
from helpers.memory.trace import Operator, TensorSpec, Trace

_FREE = (
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten._local_scalar_dense.default,
)


@dataclass(frozen=True)
class Probe:
    """What one operator takes, and the real sizes of the storages it made, in the order of ``Operator.made``."""

    usage: allocations.Usage
    made_bytes: tuple[int, ...]


@dataclass
class _Run:
    """One distinct operator that was run: where its changes stand, and what it returned."""

    mark: str
    usage: allocations.Usage | None
    output_bytes: dict[int, int]
    kept: dict[int, torch.Tensor] = field(default_factory=dict)


def probed(trace: Trace, device: torch.device) -> list[Probe | None]:
    """Return a probe for every event of the second step, None for a release.

    An operator that makes only views takes nothing and is not run. One that cannot run alone is taken to need what
    it returns, and ``trace.uncertain`` then says so.
    """
    events = trace.events[trace.start :]
    runner = _Runner(trace, device)
    with steps.undisturbed(device), torch.autocast(device.type, enabled=False):
        if device.type == "cuda":
            record, runs = None, [runner.run(event) for event in events]
        else:
            with allocations.recorded() as record:
                runner.record = record
                runs = [runner.run(event) for event in events]
    return [_probe(event, run, trace, record) for event, run in zip(events, runs, strict=True)]


def _probe(event: Any, run: _Run | None, trace: Trace, record: allocations.Record | None) -> Probe | None:
    if not isinstance(event, Operator):
        return None
    fake_bytes = tuple(trace.storage_bytes[storage] for storage, _ in event.made)
    if run is None:
        return Probe(allocations.Usage(sum(fake_bytes), sum(fake_bytes)), fake_bytes)
    usage = run.usage or allocations.usage(record.window(run.mark))
    return Probe(usage, tuple(run.output_bytes[position] for _, position in event.made))


class _Runner:
    def __init__(self, trace: Trace, device: torch.device) -> None:
        self.record: allocations.Record | None = None
        self._trace, self._device = trace, device
        self._runs: dict[Any, _Run | None] = {}
        self._opaque: dict[int, tuple[str, int, torch.Tensor]] = {}

    def run(self, event: Any) -> _Run | None:
        if not isinstance(event, Operator) or event.only_views or event.function in (None, *_FREE):
            return None
        key = self._key(event)
        if key not in self._runs:
            self._runs[key] = self._run_alone(event, str(len(self._runs)))
        run = self._runs[key]
        for storage, position in event.made if run is not None else ():
            if position in run.kept:
                self._opaque[storage] = (run.mark, position, run.kept[position])
        return run

    def _key(self, event: Operator) -> Any:
        leaves, shape = pytree.tree_flatten(event.arguments)
        return event.function, event.grad_mode, repr(shape), tuple(self._leaf_key(leaf) for leaf in leaves)

    def _leaf_key(self, leaf: Any) -> Any:
        if isinstance(leaf, TensorSpec):
            return leaf, self._opaque.get(leaf.storage, ())[:2]
        return type(leaf), repr(leaf)

    def _run_alone(self, event: Operator, mark: str) -> _Run | None:
        too_large = self._device.type == "cpu" and _needed_bytes(event, self._trace) > _machine_bytes() / 2
        if too_large or self._lacks_workspace(event):
            return self._not_run(event)

        def call() -> Any:
            with torch.set_grad_enabled(event.grad_mode):
                return event.function(*arguments, **named)

        usage = None
        try:
            arguments, named = pytree.tree_map_only(TensorSpec, self._made, event.arguments)
            if self.record is None:
                call()  # the libraries take at their first call what they keep
                usage, outputs = allocations.cuda_usage(call, self._device)
            else:
                self.record.mark(mark)
                try:
                    outputs = call()
                finally:
                    self.record.mark("between")
        except (RuntimeError, ValueError, IndexError, NotImplementedError):
            return self._not_run(event)
        return self._finished(event, mark, usage, pytree.tree_leaves(outputs))

    def _lacks_workspace(self, event: Operator) -> bool:
        """Return whether an operand is a workspace whose maker could not be run: without it a kernel may crash."""
        return any(
            isinstance(leaf, TensorSpec)
            and leaf.dtype is torch.uint8
            and 0 in leaf.sizes
            and leaf.storage is not None
            and leaf.storage not in self._opaque
            and event.segment > 0
            for leaf in pytree.tree_leaves(event.arguments)
        )

    def _not_run(self, event: Operator) -> None:
        self._trace.uncertain.add(f"{event.function} cannot be run alone here: what it takes inside is not counted")

    def _finished(self, event: Operator, mark: str, usage: allocations.Usage | None, outputs: list[Any]) -> _Run:
        """Note the real sizes, and keep an output whose size only the operator knows: another may need its content."""
        run = _Run(mark, usage, {position: _storage_bytes(output) for position, output in enumerate(outputs)})
        for storage, position in event.made:
            if run.output_bytes[position] not in (0, self._trace.storage_bytes[storage]):
                run.kept[position] = outputs[position]
        return run

    def _made(self, spec: TensorSpec) -> torch.Tensor:
        if spec.storage in self._opaque:
            return self._opaque[spec.storage][2]
        made = torch.empty_strided(spec.sizes, spec.strides, dtype=spec.dtype, device=spec.device).zero_()
        made = made.conj() if spec.is_conj else made
        return torch._neg_view(made) if spec.is_neg else made


def _storage_bytes(output: Any) -> int:
    """Return the bytes of an output's storage; a kernel may leave out, as None, what its description promises."""
    return output.untyped_storage().nbytes() if isinstance(output, torch.Tensor) else 0


def _needed_bytes(event: Operator, trace: Trace) -> int:
    """Return the bytes of the operator's own tensors, its operands' and its results'."""
    specs = [leaf for leaf in pytree.tree_leaves(event.arguments) if isinstance(leaf, TensorSpec)]
    given = sum(math.prod(spec.sizes) * spec.dtype.itemsize for spec in specs)
    return given + sum(trace.storage_bytes[storage] for storage, _ in event.made)


def _machine_bytes() -> float:
    """Return the machine's memory, infinity where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return math.inf
