"""What a large product or elementwise operator takes inside, found at small sizes.

A product of 2048 by 4096 by 32000 takes seconds and 800 MB to run, and takes nothing inside but what the layout of its
operands asks for (a copy of one that it cannot read as it lies). So it is run at two small sizes with the same layout.
Where it takes the same inside at both, that does not depend on the size; where it takes copies of the same operands at
both, it copies them at its own size too; where neither holds, it is run as it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from helpers.memory import allocations
from helpers.memory.trace import Operator, TensorSpec, Trace

_LARGE_BYTES = 2**24  # what an operator writes, from which on it is run at small sizes
_SMALL_SIZES = (96, 64)
_ZERO_PAGES_FROM_BYTES = 2**20
_BY_ROWS = frozenset({
    "mm", "bmm", "addmm", "baddbmm", "_to_copy", "clone", "copy", "copy_", "zeros_like", "ones_like", "fill_",
    "zero_", "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
    "embedding_dense_backward",
})  # fmt: skip


def inside_bytes(events: Iterable[Any], trace: Trace) -> dict[Any, int]:
    """Return, by key, what the large operators take inside, of those where the small sizes tell it."""
    waiting = {event.key: event for event in events if isinstance(event, Operator) and _is_large(event, trace)}
    tried: dict[Any, list[_Run | None]] = {}
    if not waiting:
        return {}
    with allocations.recorded() as record:
        for key, event in waiting.items():
            tried[key] = [_run(event, most, record) for most in _SMALL_SIZES]
    found = {key: _at_full_size(waiting[key], runs, record) for key, runs in tried.items() if None not in runs}
    return {key: inside for key, inside in found.items() if inside is not None}


def _at_full_size(event: Operator, runs: list[_Run], record: allocations.Record) -> int | None:
    """Return what the operator takes inside at its own size, None where the small sizes leave it open."""
    usages = [allocations.usage(record.window(run.mark)) for run in runs]
    inside = [usage.peak_bytes - usage.kept_bytes for usage in usages]
    if inside[0] == inside[1]:
        return inside[0]
    operands = list(zip(_operand_bytes(event.arguments), *(run.operand_bytes for run in runs), strict=True))
    copied = {
        sum(operand[0] for operand in chosen)
        for count in range(1, len(operands) + 1)
        for chosen in itertools.combinations(operands, count)
        if inside == [sum(operand[1] for operand in chosen), sum(operand[2] for operand in chosen)]
    }
    return copied.pop() if len(copied) == 1 else None


class _Run(NamedTuple):
    """One run at a small size: where its changes stand, and the bytes of its operands."""

    mark: str
    operand_bytes: list[int]


def _operand_bytes(arguments: Any) -> list[int]:
    leaves = pytree.tree_leaves(arguments)
    sizes = [
        (leaf.sizes if isinstance(leaf, TensorSpec) else leaf.shape, leaf.dtype) for leaf in leaves if _is_operand(leaf)
    ]
    return [math.prod(size) * dtype.itemsize for size, dtype in sizes]


def _is_operand(leaf: Any) -> bool:
    return isinstance(leaf, TensorSpec | torch.Tensor)


def _is_large(event: Operator, trace: Trace) -> bool:
    if event.function is None or event.only_views:
        return False
    elementwise = torch.Tag.pointwise in event.function.tags
    random = torch.Tag.nondeterministic_seeded in event.function.tags
    if random or not (elementwise or event.name in _BY_ROWS):
        return False
    made = sum(trace.storage_bytes[made.storage] for made in event.made)
    written = sum(
        math.prod(value.sizes) * value.dtype.itemsize
        for argument, value in zip(event.function._schema.arguments, event.arguments[0], strict=False)
        if isinstance(value, TensorSpec) and argument.alias_info is not None and argument.alias_info.is_write
    )
    return made + written > _LARGE_BYTES


def _run(event: Operator, most: int, record: allocations.Record) -> _Run | None:
    """Run the operator with its large sizes about ``most``; return None where it cannot be run so."""
    mark = str(record.marks)
    smaller = _smaller_sizes(event.arguments, most)
    try:
        arguments, named = pytree.tree_map(lambda leaf: _scaled(leaf, smaller), event.arguments)
    except ValueError:
        return None
    operand_bytes = _operand_bytes((arguments, named))
    with torch.set_grad_enabled(event.grad_mode):
        record.mark(mark)
        try:
            outputs = event.function(*arguments, **named)
        except (RuntimeError, ValueError, IndexError, NotImplementedError):
            return None
        finally:
            record.mark("between")
    del outputs
    return _Run(mark, operand_bytes)


def _smaller_sizes(arguments: Any, most: int) -> dict[int, int]:
    """Return a smaller size for each large one: of the same alignment, and different from the others."""
    leaves = pytree.tree_leaves(arguments)
    sizes = {size for leaf in leaves if isinstance(leaf, TensorSpec) for size in leaf.sizes}
    sizes |= {leaf for leaf in leaves if type(leaf) is int}  # an embedding's rows
    large = sorted(size for size in sizes if size > 2 * max(_SMALL_SIZES))
    return {size: most + 16 * rank + size % 16 for rank, size in enumerate(large)}


def _scaled(leaf: Any, smaller: dict[int, int]) -> Any:
    if isinstance(leaf, TensorSpec):
        sizes = tuple(smaller.get(size, size) for size in leaf.sizes)
        made = zeros(sizes, _strides(leaf, sizes), leaf.dtype, leaf.device)
        made = made.conj() if leaf.is_conj else made
        return torch._neg_view(made) if leaf.is_neg else made
    return smaller.get(leaf, leaf) if type(leaf) is int else leaf


def _strides(spec: TensorSpec, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of the same layout at other sizes: the same order of dimensions, the same gaps.

    Raises ValueError for a layout that has none.
    """
    strides, reach, scaled = [0] * len(sizes), 1, 1
    for place in sorted(range(len(sizes)), key=lambda place: (spec.strides[place], -place)):
        if spec.strides[place] == 0 or spec.sizes[place] == 1:
            strides[place] = 0 if spec.strides[place] == 0 else scaled
            continue
        gap, rest = divmod(spec.strides[place], reach)
        if rest or gap < 1:
            raise ValueError("the layout overlaps")
        strides[place] = scaled * gap
        reach, scaled = spec.strides[place] * spec.sizes[place], strides[place] * sizes[place]
    return tuple(strides)


def zeros(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros; large ones on a CPU are pages that the system hands out without taking memory until a write."""
    extent = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1 if 0 not in sizes else 0
    if device.type != "cpu" or extent * dtype.itemsize < _ZERO_PAGES_FROM_BYTES:
        return torch.empty_strided(sizes, strides, dtype=dtype, device=device).zero_()
    pages = torch.from_numpy(np.zeros(extent * dtype.itemsize, dtype=np.uint8))
    return pages.view(dtype).as_strided(sizes, strides)
