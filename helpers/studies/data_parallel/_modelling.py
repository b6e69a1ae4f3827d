"""A ring all-reduce step by step, and the modelled time of a step of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from helpers.checks import members
from helpers.links import Activity, Link
from helpers.parallel._collectives import collective
from helpers.parallel._costs import BUCKET_BYTES, LayerCost, bucket_layers, ring_all_reduce_s
from helpers.results import Record


class RingFrame(Record):
    """The ranks before ``step`` of a ring: whose terms ``chunks[rank][chunk]`` holds, and the moves
    of the step.

    ``moves`` are (source, target, chunk). The last frame has the result and no moves. Lesson 05.
    """

    step: int
    chunks: tuple[tuple[frozenset[int], ...], ...]
    moves: tuple[tuple[int, int, int], ...]


def ring_frames(world_size: int) -> tuple[RingFrame, ...]:
    """Return a ring all-reduce of a chunk a rank, step by step, as ``parallel_plans.draw_ring``
    draws it.

    It follows the messages of ``collective("all_reduce", "ring", ...)``, as :func:`execute` sends
    them.

    >>> frames = ring_frames(3)
    >>> len(frames), frames[0].moves
    (5, ((0, 1, 2), (1, 2, 0), (2, 0, 1)))
    >>> frames[-1].chunks[0] == (frozenset({0, 1, 2}),) * 3
    True

    Lesson 05.
    """
    plan = collective("all_reduce", "ring", world_size=world_size, length=world_size)
    contents = [[frozenset({owner})] * world_size for owner in range(world_size)]
    frames = []
    for step in range(plan.steps + 1):
        chunks = tuple(map(tuple, contents))
        moves = tuple(
            (message.source, message.target, message.start)
            for message in plan.messages
            if message.step == step
        )
        frames.append(RingFrame(step, chunks, moves))
        for source, target, chunk in moves:  # a chunk that is copied has all terms
            contents[target][chunk] |= chunks[source][chunk]
    return tuple(frames)


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


def ddp_step(
    layers: Sequence[LayerCost], *, world_size: int, link: Link, bucket_bytes: int = BUCKET_BYTES
) -> DdpStep:
    """Return the modelled step of data-parallel training on ``world_size`` ranks that compute
    equally fast.

    The backward pass goes from the last of ``layers`` to the first; a bucket is ready when its last
    gradient is, and ``link`` carries one bucket after the other, each as long as a ring all-reduce
    takes. A bucket closes when it has reached ``bucket_bytes``.

    The queue is that of Li et al., "PyTorch Distributed", VLDB 2020. Raises ValueError for no
    layers, and for numbers that cannot be.

    >>> layers = [LayerCost(0.1, 0.2, 10_000_000)] * 3
    >>> step = ddp_step(layers, world_size=4, link=Link(1e8), bucket_bytes=10_000_000)
    >>> round(step.compute_s, 3), round(step.link_s, 3), round(step.exposed_s, 3), len(step.buckets)
    (0.9, 0.45, 0.15, 3)

    Lesson 05.
    """
    layers = members("layers", layers, "LayerCost, one a layer", kind=LayerCost)
    if not layers:
        raise ValueError("a step needs at least one layer")
    compute_s = sum(layer.forward_s + layer.backward_s for layer in layers)
    forward_s = sum(layer.forward_s for layer in layers)
    backward_s = (layer.backward_s for layer in reversed(layers))
    ready_s = list(accumulate(backward_s, initial=forward_s))[::-1]  # of each layer's gradient
    sizes = [layer.gradient_bytes for layer in layers]
    buckets, free_s, link_s = [], 0.0, 0.0
    for inside in bucket_layers(sizes, bucket_bytes=bucket_bytes):
        size_bytes = sum(sizes[layer_index] for layer_index in inside)
        took_s = ring_all_reduce_s(world_size, size_bytes, link=link)
        bucket_ready_s = ready_s[inside[-1]]
        start_s = max(bucket_ready_s, free_s)
        free_s, link_s = start_s + took_s, link_s + took_s
        buckets.append(BucketCost(inside, size_bytes, bucket_ready_s, start_s, free_s))
    step_s = max(compute_s, free_s)
    return DdpStep(step_s, compute_s, link_s, step_s - compute_s, tuple(buckets))
