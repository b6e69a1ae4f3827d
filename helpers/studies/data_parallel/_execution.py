"""A collective's messages sent between real ranks, over a link as slow as asked, and what a message
costs by itself.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from helpers.links import Link, Port, sleep_until
from helpers.parallel import _collectives as collectives
from helpers.results import Record
from helpers.studies.data_parallel._devices import step_times

_SMALL_ELEMENTS, _LARGE_ELEMENTS = 2, 2**16  # float32: 8 B and 256 KiB
_WARM_UPS = 3


class RankPool(Protocol):
    """The part of ``helpers.ranks.Ranks`` that is needed."""

    world_size: int

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = ...) -> list[Any]:
        """Call ``function(rank, world_size, *args)`` on every rank; return the results in rank
        order.
        """


def execute(
    planned: collectives.Collective,
    tensor: torch.Tensor,
    *,
    link: Link | None = None,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Carry ``planned`` out with torch.distributed's send and receive; every rank of ``group``
    calls it.

    ``tensor`` is 1-D and stays as it is: the whole buffer of ``planned.length`` elements, for an
    all-gather the rank's chunk. The whole buffer comes back, for a reduce-scatter the rank's chunk.

    Over a ``link`` the source and the target of a message sleep from the moment it is handed over
    for as long as the link would need; what the machine itself needs for the message comes on top.

    Raises RuntimeError where torch.distributed is not initialised, and ValueError for a group or a
    tensor that does not fit ``planned``. Lesson 05.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "execute runs on ranks: call it in a function that Ranks(...).run or torchrun starts"
        )
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if world_size != planned.world_size:
        raise ValueError(
            f"the collective is for {planned.world_size} ranks, and here are {world_size}"
        )
    brought = own_elements(planned, rank, operation="all_gather")
    buffer = tensor.new_zeros(planned.length)
    if tensor.shape != buffer[brought].shape:
        raise ValueError(
            f"rank {rank} brings {len(buffer[brought])} elements in one dimension to this "
            f"{planned.operation} of {planned.length}; got the shape {tuple(tensor.shape)}"
        )
    if tensor.element_size() != planned.element_bytes:
        has = tensor.element_size()
        raise ValueError(
            f"the collective counts {planned.element_bytes} bytes an element, and a "
            f"{tensor.dtype} has {has}; give collective(..., element_bytes={has})"
        )
    buffer[brought] = tensor.detach()
    ports = None if link is None else (Port(link), Port(link))
    own_messages = [
        message for message in planned.messages if rank in (message.source, message.target)
    ]
    for _, messages in groupby(own_messages, key=lambda message: message.step):
        _step(buffer, list(messages), rank=rank, ports=ports, group=group)
    return buffer[own_elements(planned, rank, operation="reduce_scatter")].clone()


def own_elements(planned: collectives.Collective, rank: int, *, operation: str) -> slice:
    """Return which of all elements are those of ``rank``: its chunk in ``operation``, else all."""
    if planned.operation != operation:
        return slice(0, planned.length)
    return slice(*collectives.chunk(rank, planned.world_size, length=planned.length))


def rank_device() -> torch.device:
    """Return the device that this rank's collectives run on: its current CUDA device with nccl,
    else the CPU.
    """
    nccl = "nccl" in str(dist.get_backend_config())
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")


def _step(
    buffer: torch.Tensor,
    messages: list[collectives.Message],
    *,
    rank: int,
    ports: tuple[Port, Port] | None,
    group: dist.ProcessGroup | None,
) -> None:
    operations, received = [], []
    for message in messages:
        values = buffer[message.start : message.stop]
        sends = message.source == rank
        # A received message is kept apart, for the same elements may be on their way out in this
        # step.
        chunk = values.contiguous() if sends else torch.empty_like(values)
        peer = message.target if sends else message.source
        peer = peer if group is None else dist.get_global_rank(group, peer)
        operations.append(dist.P2POp(dist.isend if sends else dist.irecv, chunk, peer, group))
        if not sends:
            received.append((message, chunk))
    requests = dist.batch_isend_irecv(operations)
    for request in requests:
        request.wait()
    if buffer.is_cuda:
        torch.cuda.current_stream(buffer.device).synchronize()
    handed_over_s = time.perf_counter()
    for message, values in received:
        chunk = buffer[message.start : message.stop]
        if message.action == "reduce":
            chunk += values
        else:
            chunk.copy_(values)
    if ports is not None:
        for message in messages:
            port = ports[0 if message.source == rank else 1]
            port.occupy(message.size_bytes, from_s=handed_over_s)
        sleep_until(max(port.free_s for port in ports))


class MessageOverhead(Record):
    """The cost of a message on this machine without any link: software, copies, the loopback,
    waking the other rank.

    A message of n bytes takes ``per_message_s`` + n ``per_byte_s``, both from the fastest of
    ``repeats`` exchanges between ``world_size`` ranks; ``typical_message_s`` is a small message's
    median. Lesson 05.
    """

    world_size: int
    per_message_s: float
    per_byte_s: float
    typical_message_s: float
    repeats: int

    def added_to(self, link: Link) -> Link:
        """Return ``link`` with this overhead in its latency and its bandwidth, for the models.

        Lesson 05.
        """
        return Link(
            1 / (1 / link.bandwidth_bytes_per_s + self.per_byte_s),
            link.latency_s + self.per_message_s,
        )


def measure_message_overhead(ranks: RankPool, *, repeats: int = 60) -> MessageOverhead:
    """Return the cost of a message between ``ranks`` by itself, measured in a ring in which all
    send at once.

    The ring is :func:`execute`'s, with chunks of 8 B and of 256 KiB; the step of the slowest rank
    counts, of the fastest of ``repeats`` exchanges. Raises ValueError for fewer than 2 ranks or 1
    repeat. Lesson 08.
    """
    if ranks.world_size < 2 or repeats < 1:
        raise ValueError(
            f"a message needs 2 ranks and at least 1 repeat; got {ranks.world_size} ranks and "
            f"{repeats!r} repeats"
        )
    times = ranks.run(_exchange_times, (_SMALL_ELEMENTS, _LARGE_ELEMENTS), repeats)
    # (ranks, sizes, repeats) -> (sizes, repeats)
    small_s, large_s = np.max(times, axis=0).tolist()
    element_bytes = torch.float32.itemsize
    apart_bytes = (_LARGE_ELEMENTS - _SMALL_ELEMENTS) * element_bytes
    per_byte_s = max(0.0, min(large_s) - min(small_s)) / apart_bytes
    return MessageOverhead(
        world_size=ranks.world_size,
        per_message_s=max(0.0, min(small_s) - _SMALL_ELEMENTS * element_bytes * per_byte_s),
        per_byte_s=per_byte_s,
        typical_message_s=statistics.median(small_s),
        repeats=repeats,
    )


def _exchange_times(
    rank: int, world_size: int, chunk_elements: tuple[int, ...], repeats: int
) -> list[list[float]]:
    """Return the seconds of a step of the ring for each chunk size and repeat, on this rank."""
    device = rank_device()
    times = []
    for elements in chunk_elements:
        collective = collectives.collective(
            "all_gather", "ring", world_size=world_size, length=elements * world_size
        )
        values = torch.full((elements,), float(rank), device=device)
        taken_s = step_times(
            partial(execute, collective, values), repeats=repeats, warm_ups=_WARM_UPS
        )
        times.append([step_s / (world_size - 1) for step_s in taken_s])
    return times
