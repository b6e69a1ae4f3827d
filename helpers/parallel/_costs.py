"""The costs of communication: alpha-beta models of collectives, and the buckets of gradients.

alpha is a link's latency, beta one over its bandwidth, p the ranks, n the bytes of the whole
buffer. The arithmetic of a reduction is left out: it is small beside the network's beta. On slow
links the models hold as they stand; what a message costs the machine itself,
``execution.measure_message_overhead`` measures, and its ``added_to(link)`` puts it into the link
that the models are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from helpers.checks import number, whole_number
from helpers.links import Activity, Link, Timeline, join_activities, require_link
from helpers.parallel._collectives import Collective
from helpers.results import Record

BUCKET_BYTES = 25 * 2**20  # what DistributedDataParallel takes unless told otherwise

_MOST_RANKS = 10**9


# Collectives in closed form.


def ring_all_reduce_s(world_size: int, size_bytes: float, *, link: Link) -> float:
    """Return 2 (p - 1) alpha + 2 (p - 1) / p n beta seconds: n beta twice at most, however many
    ranks there are.

    Patarasuk and Yuan (2009); no all-reduce can send fewer bytes. Lesson 05.
    """
    return 2 * ring_reduce_scatter_s(world_size, size_bytes, link=link)


def ring_reduce_scatter_s(world_size: int, size_bytes: float, *, link: Link) -> float:
    """Return (p - 1) (alpha + n / p beta) seconds; ``size_bytes`` is the whole buffer, a rank keeps
    1 / p of it.

    Patarasuk and Yuan (2009). Lesson 05.
    """
    ranks = whole_number("world_size", world_size, at_most=_MOST_RANKS)
    return (ranks - 1) * require_link("link", link).transfer_s(
        number("size_bytes", size_bytes, at_least=0) / ranks
    )


def ring_all_gather_s(world_size: int, size_bytes: float, *, link: Link) -> float:
    """Return (p - 1) (alpha + n / p beta) seconds; ``size_bytes`` is the whole buffer that every
    rank ends with.

    Thakur, Rabenseifner and Gropp (2005). Lesson 05.
    """
    return ring_reduce_scatter_s(world_size, size_bytes, link=link)


def schedule(planned: Collective, link: Link) -> Timeline:
    """Return when each message of ``planned`` goes over ``link``, modelled: ``duration_s`` is the
    collective's time.

    A message starts when its source and its target have ended their messages of the steps before,
    and takes the link's time; nobody waits for a rank it has nothing to do with. Unlike the
    formulas this counts chunks that differ by an element, and any number of ranks. Raises
    ValueError for a collective without messages.

    >>> from helpers.parallel import collective
    >>> ring = collective("all_reduce", "ring", world_size=4, length=1000)
    >>> round(schedule(ring, Link(1e6, latency_s=0.001)).duration_s, 6)
    0.012
    """
    if not planned.messages:
        raise ValueError(
            f"this {planned.operation} sends nothing (world size {planned.world_size}, "
            f"{planned.length} elements): it takes no time"
        )
    return join_activities(_message_activities(planned, link))


def _message_activities(plan: Collective, link: Link) -> Iterator[Activity]:
    ready = [0.0] * plan.world_size
    for step in range(plan.steps):
        next_ready = list(ready)
        for message in (message for message in plan.messages if message.step == step):
            start_s = max(ready[message.source], ready[message.target])
            end_s = start_s + link.transfer_s(message.size_bytes)
            for rank in (message.source, message.target):
                next_ready[rank] = max(next_ready[rank], end_s)
            yield Activity(
                f"rank {message.source} sends", start_s, end_s, "send", f"to {message.target}"
            )
            yield Activity(
                f"rank {message.target} receives",
                start_s,
                end_s,
                "receive",
                f"from {message.source}",
            )
        ready = next_ready


# The layers of a data-parallel step.


class LayerCost(Record):
    """The cost of a layer for a rank: the seconds of its forward and its backward pass, and the
    bytes of its gradient.

    Raises ValueError for one that is negative or not finite. Lesson 05.
    """

    forward_s: float
    backward_s: float
    gradient_bytes: int

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "gradient_bytes"):
            number(name, getattr(self, name), at_least=0)


def bucket_layers(
    gradient_bytes: Sequence[int], *, bucket_bytes: int = BUCKET_BYTES
) -> tuple[tuple[int, ...], ...]:
    """Return which layers' gradients share a bucket, from the last layer to the first, as DDP fills
    them.

    A bucket closes when it has reached ``bucket_bytes``, so it may hold more. It is the cap of all
    buckets, as DDP takes it when ``bucket_cap_mb`` is given; with DDP's defaults the first closes
    at 1 MiB. One gradient a layer, all of one type; a layer without a gradient (0 bytes) is in no
    bucket. Raises ValueError for a cap below 1 byte. Lesson 05.
    """
    whole_number("bucket_bytes", bucket_bytes)
    buckets: list[tuple[int, ...]] = []
    current: list[int] = []
    filled_bytes = 0
    for layer in reversed(range(len(gradient_bytes))):
        if not gradient_bytes[layer]:
            continue
        current.append(layer)
        filled_bytes += gradient_bytes[layer]
        if filled_bytes >= bucket_bytes:
            buckets.append(tuple(current))
            current, filled_bytes = [], 0
    return (*buckets, tuple(current)) if current else tuple(buckets)
