"""The costs of communication: alpha-beta models of collectives and of a data-parallel step.

alpha is a link's latency, beta one over its bandwidth, p the ranks, n the bytes of the whole
buffer. The arithmetic of a reduction is left out: it is small beside the network's beta. On slow
links the models hold as they stand; what a message costs the machine itself,
``execution.measure_message_overhead`` measures, and its ``added_to(link)`` puts it into the link
that the models are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from helpers.checks import boolean, members, number, whole_number
from helpers.links import Activity, Link, Timeline, join_activities, require_link
from helpers.parallel._collectives import Collective
from helpers.results import Record

# What DistributedDataParallel takes unless told otherwise
# (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES, and 25 MiB).
FIRST_BUCKET_BYTES, BUCKET_BYTES = 2**20, 25 * 2**20

CollectiveModel = Callable[..., float]

_MOST_RANKS = 10**9


# Collectives in closed form.


def ring_all_reduce_s(world_size: int, size_bytes: float, *, link: Link) -> float:
    """Return 2 (p - 1) alpha + 2 (p - 1) / p n beta seconds: n beta twice at most, however many
    ranks there are.

    Patarasuk and Yuan (2009); no all-reduce can send fewer bytes. Lesson 05.
    """
    return ring_reduce_scatter_s(world_size, size_bytes, link=link) + ring_all_gather_s(
        world_size, size_bytes, link=link
    )


def ring_reduce_scatter_s(world_size: int, size_bytes: float, *, link: Link) -> float:
    """Return (p - 1) (alpha + n / p beta) seconds; ``size_bytes`` is the whole buffer, a rank keeps
    1 / p of it.

    Patarasuk and Yuan (2009). Lesson 05.
    """
    return _ring_pass_s(world_size, size_bytes, link)


def ring_all_gather_s(world_size: int, size_bytes: float, *, link: Link) -> float:
    """Return (p - 1) (alpha + n / p beta) seconds; ``size_bytes`` is the whole buffer that every
    rank ends with.

    Thakur, Rabenseifner and Gropp (2005). Lesson 05.
    """
    return _ring_pass_s(world_size, size_bytes, link)


def _ring_pass_s(world_size: int, size_bytes: float, link: Link) -> float:
    ranks = whole_number("world_size", world_size, at_most=_MOST_RANKS)
    return (ranks - 1) * require_link("link", link).transfer_s(
        number("size_bytes", size_bytes, at_least=0) / ranks
    )


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
            next_ready[message.source], next_ready[message.target] = (
                max(next_ready[message.source], end_s),
                max(next_ready[message.target], end_s),
            )
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


# A data-parallel step.


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


class BucketCost(Record):
    """A bucket of gradients: its layers, its bytes, when it is ready, and when its all-reduce
    starts and ends.

    Lesson 05.
    """

    layers: tuple[int, ...]
    size_bytes: int
    ready_s: float
    start_s: float
    end_s: float


class DdpStep(Record):
    """A modelled data-parallel step: ``step_s`` is ``compute_s`` and the communication that is not
    hidden behind it.

    ``link_s`` is the time of all all-reduces, ``exposed_s`` what of it (and of waiting for it)
    comes after the backward pass. ``table()`` has a row a bucket. Lesson 05.
    """

    step_s: float
    compute_s: float
    link_s: float
    exposed_s: float
    buckets: tuple[BucketCost, ...]

    def activities(self) -> tuple[Activity, ...]:
        """Return the compute and the buckets as bars of two lanes, for ``gantt``. Lesson 05."""
        bars = [Activity("device", 0.0, self.compute_s, "compute", "forward, backward")]
        bars += [
            Activity("link", bucket.start_s, bucket.end_s, "all-reduce", f"bucket {index}")
            for index, bucket in enumerate(self.buckets)
        ]
        return tuple(bars)


def bucket_layers(
    gradient_bytes: Sequence[int],
    *,
    bucket_bytes: int = BUCKET_BYTES,
    first_bucket_bytes: int | None = None,
) -> tuple[tuple[int, ...], ...]:
    """Return which layers' gradients share a bucket, from the last layer to the first, as DDP fills
    them.

    A bucket closes when it has reached ``bucket_bytes`` (the first one ``first_bucket_bytes``), so
    it may hold more. Without ``first_bucket_bytes`` it is ``bucket_bytes`` for all, as DDP takes it
    when ``bucket_cap_mb`` is given; with DDP's defaults the first is :data:`FIRST_BUCKET_BYTES`.
    One gradient a layer, all of one type; a layer without a gradient (0 bytes) is in no bucket.
    Raises ValueError for a cap below 1 byte. Lesson 05.
    """
    caps = (bucket_bytes if first_bucket_bytes is None else first_bucket_bytes, bucket_bytes)
    for cap in caps:
        whole_number("bucket_bytes", cap)
    buckets: list[tuple[int, ...]] = []
    current: list[int] = []
    filled_bytes = 0
    for layer in reversed(range(len(gradient_bytes))):
        if not gradient_bytes[layer]:
            continue
        current.append(layer)
        filled_bytes += gradient_bytes[layer]
        if filled_bytes >= caps[min(len(buckets), 1)]:
            buckets.append(tuple(current))
            current, filled_bytes = [], 0
    return (*buckets, tuple(current)) if current else tuple(buckets)


def ddp_step(
    layers: Sequence[LayerCost],
    *,
    world_size: int,
    link: Link,
    bucket_bytes: int = BUCKET_BYTES,
    first_bucket_bytes: int | None = None,
    overlap: bool = True,
    micro_batches: int = 1,
    wire_share: float = 1.0,
    all_reduce_s: CollectiveModel = ring_all_reduce_s,
) -> DdpStep:
    """Return the modelled step of data-parallel training on ``world_size`` ranks that compute
    equally fast.

    The backward pass goes from the last of ``layers`` to the first; a bucket is ready when its last
    gradient is, and ``link`` carries one bucket after the other, each for ``all_reduce_s``.
    ``bucket_bytes`` and ``first_bucket_bytes`` are those of :func:`bucket_layers`.
    ``overlap=False`` keeps the link idle until the backward pass ends. ``micro_batches`` are
    accumulated, of which only the last is reduced (``no_sync``). ``wire_share`` is the part of the
    bytes that is sent: 0.5 for float32 gradients sent as float16.

    The queue is that of Li et al., "PyTorch Distributed", VLDB 2020. Raises ValueError for no
    layers, and for numbers that cannot be.

    >>> layers = [LayerCost(0.1, 0.2, 10_000_000)] * 3
    >>> step = ddp_step(layers, world_size=4, link=Link(1e8), bucket_bytes=10_000_000)
    >>> round(step.compute_s, 3), round(step.link_s, 3), round(step.exposed_s, 3), len(step.buckets)
    (0.9, 0.45, 0.15, 3)

    Lesson 05.
    """
    boolean("overlap", overlap)
    layers = members("layers", layers, "LayerCost, one a layer", kind=LayerCost)
    if not layers:
        raise ValueError("a step needs at least one layer")
    micro_batches = whole_number("micro_batches", micro_batches)
    wire_share = number("wire_share", wire_share, above=0)
    if wire_share > 1:
        raise ValueError(
            f"wire_share={wire_share:g} is more than all bytes; give a share of at most 1"
        )
    pass_s = sum(layer.forward_s + layer.backward_s for layer in layers)
    moment_s = (micro_batches - 1) * pass_s + sum(layer.forward_s for layer in layers)
    ready_s = {}
    for layer_index in reversed(range(len(layers))):
        moment_s += layers[layer_index].backward_s
        ready_s[layer_index] = moment_s
    compute_s = micro_batches * pass_s
    sizes = [layer.gradient_bytes for layer in layers]
    contents = bucket_layers(
        sizes, bucket_bytes=bucket_bytes, first_bucket_bytes=first_bucket_bytes
    )
    buckets, free_s, link_s = [], 0.0, 0.0
    for inside in contents:
        size_bytes = sum(sizes[layer_index] for layer_index in inside)
        took_s = all_reduce_s(world_size, size_bytes * wire_share, link=link)
        ready = max(ready_s[layer_index] for layer_index in inside)
        start_s = max(ready if overlap else compute_s, free_s)
        free_s, link_s = start_s + took_s, link_s + took_s
        buckets.append(BucketCost(inside, size_bytes, ready, start_s, free_s))
    step_s = max(compute_s, free_s)
    return DdpStep(step_s, compute_s, link_s, step_s - compute_s, tuple(buckets))
