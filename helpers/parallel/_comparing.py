"""The collectives that were called: the number of calls, and the bytes of their buffers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.results import Record

# How PyTorch's operators begin, of torch.distributed (c10d) and its functional form, where the
# field has another name.
_BEGINNINGS = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "recv": "receive",
    "monitored_barrier": "barrier",
}
_SPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
_NOT_COUNTED = ("wait_tensor", "_wrap_tensor_autograd")


class CollectiveCalls(Record):
    """The number of calls of one collective by a rank, and the bytes of its whole buffers over all
    calls.

    The whole buffer is what the models call n: for an all-gather the output, for a reduce-scatter
    the input. Lesson 05.
    """

    collective: str
    calls: int
    size_bytes: int


class CollectiveCounts(Record):
    """The collectives that one rank called, in the order of their first calls. Lesson 05."""

    collectives: tuple[CollectiveCalls, ...]

    def calls(self, collective: str) -> int:
        """Return the number of calls of ``collective`` ("all_reduce", "all_gather", ...): 0 if
        none.

        Lesson 05.
        """
        return sum(call.calls for call in self.collectives if call.collective == collective)

    def size_bytes(self, collective: str) -> int:
        """Return the bytes of the whole buffers of all calls of ``collective``: 0 if never called.

        Lesson 05.
        """
        return sum(call.size_bytes for call in self.collectives if call.collective == collective)


class CollectiveCounter(TorchDispatchMode):
    """The counts of :func:`count_collectives` so far, on this rank. Lesson 05."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    @property
    def counts(self) -> CollectiveCounts:
        """The collectives counted so far. Lesson 05."""
        return CollectiveCounts(
            tuple(
                CollectiveCalls(name, self._calls[name], self._bytes[name]) for name in self._calls
            )
        )

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        space, _, operator_name = operator._schema.name.partition("::")
        if space in _SPACES and operator_name not in _NOT_COUNTED:
            plain = operator_name.strip("_")
            name = next(
                (field for start, field in _BEGINNINGS.items() if plain.startswith(start)), plain
            )
            buffers = [] if name == "barrier" else [*args, *(kwargs or {}).values(), result]
            size_bytes = max(map(_tensor_bytes, buffers), default=0)
            self._calls[name] += 1
            self._bytes[name] += size_bytes
        return result


@contextmanager
def count_collectives() -> Iterator[CollectiveCounter]:
    """Count the collectives that this rank calls inside the block: also those of DDP and FSDP, and
    of a backward pass.

    ``counter.counts`` has them by name. An operator of torch.distributed without a name here is
    counted under its own name.

    >>> with count_collectives() as counter:  # doctest: +SKIP
    ...     torch.distributed.all_reduce(torch.ones(4))
    >>> counter.counts.size_bytes("all_reduce")  # doctest: +SKIP
    16

    Lesson 05.
    """
    with CollectiveCounter() as counter:
        yield counter


def _tensor_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(map(_tensor_bytes, value)) if isinstance(value, tuple | list) else 0
