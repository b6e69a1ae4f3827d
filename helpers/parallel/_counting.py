"""Which collectives a piece of code calls: how often, and on how many bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.results import Result

# PyTorch's operators, of torch.distributed (c10d) and of its functional form, by the names of the field.
_NAMES = {
    "allreduce_": "all_reduce", "allreduce_coalesced_": "all_reduce", "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce", "all_reduce_coalesced": "all_reduce", "all_reduce_coalesced_": "all_reduce",
    "_allgather_base_": "all_gather", "allgather_": "all_gather", "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor": "all_gather", "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter", "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "broadcast_": "broadcast", "broadcast": "broadcast", "reduce_": "reduce", "gather_": "gather",
    "scatter_": "scatter", "alltoall_": "all_to_all", "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all", "send": "send", "recv_": "receive", "recv_any_source_": "receive",
}  # fmt: skip
_NO_DATA = {"barrier": "barrier", "monitored_barrier_": "barrier"}
_NOT_COUNTED = ("wait_tensor", "_wrap_tensor_autograd")


@dataclass(frozen=True)
class CollectiveCalls(Result):
    """How often one rank called a collective, and the bytes of its whole buffers over all calls.

    The whole buffer is what the models call n: for an all-gather the output, for a reduce-scatter the input. Lesson 04.
    """

    collective: str
    calls: int
    size_bytes: int


@dataclass(frozen=True)
class CollectiveCounts(Result):
    """The collectives that one rank called, in the order of their first calls. Lesson 04."""

    collectives: tuple[CollectiveCalls, ...]

    def calls(self, collective: str) -> int:
        """Return how often ``collective`` ("all_reduce", "all_gather", ...) was called: 0 if never. Lesson 04."""
        return sum(call.calls for call in self.collectives if call.collective == collective)

    def size_bytes(self, collective: str) -> int:
        """Return the bytes of the whole buffers of all calls of ``collective``: 0 if never called. Lesson 04."""
        return sum(call.size_bytes for call in self.collectives if call.collective == collective)


class CollectiveCounter:
    """What :func:`count_collectives` has counted so far, on this rank. Lesson 04."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def add(self, name: str, size_bytes: int) -> None:
        """Count one call."""
        self._calls[name] += 1
        self._bytes[name] += size_bytes

    @property
    def counts(self) -> CollectiveCounts:
        """The collectives counted so far. Lesson 04."""
        return CollectiveCounts(tuple(CollectiveCalls(name, self._calls[name], self._bytes[name])
                                      for name in self._calls))  # fmt: skip


@contextmanager
def count_collectives() -> Iterator[CollectiveCounter]:
    """Count the collectives that this rank calls inside the block: also those of DDP and FSDP, and of a backward pass.

    ``counter.counts`` has them by name. An operator of torch.distributed without a name here is counted under its own
    name. Lesson 04.
    """
    counter = CollectiveCounter()
    with _Watch(counter):
        yield counter


class _Watch(TorchDispatchMode):
    def __init__(self, counter: CollectiveCounter) -> None:
        super().__init__()
        self.counter = counter

    def __torch_dispatch__(self, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        space, _, name = operator._schema.name.partition("::")
        if space in ("c10d", "_c10d_functional", "_c10d_functional_autograd") and name not in _NOT_COUNTED:
            if name in _NO_DATA:
                self.counter.add(_NO_DATA[name], 0)
            else:
                given = [*args, *(kwargs or {}).values(), result]
                self.counter.add(_NAMES.get(name, name), max((_tensor_bytes(value) for value in given), default=0))
        return result


def _tensor_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(map(_tensor_bytes, value)) if isinstance(value, tuple | list) else 0
