"""The models of communication, where they are arithmetic: exact. On real ranks: test_costs_on_ranks.py."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.distributed as dist

from helpers.links import Activity, Link, Port, joined
from helpers.parallel import _costs as costs
from helpers.parallel._collectives import ALGORITHMS, collective
from helpers.parallel._costs import LayerCost
from helpers.studies.data_parallel import _execution as execution

SLOW = Link(bandwidth_bytes_per_s=10e6, latency_s=10e-3)

# The seconds of each algorithm's all-reduce, from Thakur, Rabenseifner and Gropp (2005); p is a power of 2.
ALL_REDUCE_S = {
    "ring": lambda p, size, link: costs.ring_all_reduce_s(p, size, link=link),
    "tree": lambda p, size, link: 2 * math.ceil(math.log2(p)) * link.transfer_s(size),
    "halving_doubling": lambda p, size, link: (
        2 * math.log2(p) * link.latency_s + 2 * (p - 1) / p * size / link.bandwidth_bytes_per_s
    ),
    "gather_broadcast": lambda p, size, link: 2 * (p - 1) * link.transfer_s(size),
}


def test_a_message_takes_its_latency_and_its_bytes() -> None:
    assert Link(1e6, 0.5).transfer_s(2_000_000) == 2.5
    assert Link(math.inf, 0.5).transfer_s(10**12) == 0.5
    for bandwidth, latency in ((0, 0), (-1, 0), (1, -1), (1, math.inf), ("1", 0), (math.nan, 0), (True, 0)):
        with pytest.raises(ValueError, match=r"must be a (finite )?number"):
            Link(bandwidth, latency)
    with pytest.raises(ValueError, match="size_bytes=-1; give a finite number, 0 or more"):
        Link(1.0).transfer_s(-1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_the_formula_is_what_the_messages_take(algorithm, ranks) -> None:
    planned = collective("all_reduce", algorithm, world_size=ranks, length=64 * ranks)
    model = ALL_REDUCE_S[algorithm](ranks, 4 * planned.length, SLOW)
    assert costs.schedule(planned, SLOW).duration_s == pytest.approx(model)


def test_the_halves_of_the_ring_are_what_their_messages_take() -> None:
    for ranks in (2, 3, 5, 8):
        for operation, model in (
            ("reduce_scatter", costs.ring_reduce_scatter_s), ("all_gather", costs.ring_all_gather_s),
        ):  # fmt: skip
            planned = collective(operation, "ring", world_size=ranks, length=10 * ranks)
            assert costs.schedule(planned, SLOW).duration_s == pytest.approx(model(ranks, 40 * ranks, link=SLOW))


def test_the_models_that_the_facts_were_measured_against() -> None:
    """Ring against gather and broadcast, 3.4 MB over 100 MB/s and 1 ms: computed by hand, p = 2, 4, 8."""
    link, size = Link(100e6, 1e-3), 3_400_000
    by_hand = {2: (2 * (1 + 17), 2 * 35), 4: (6 * (1 + 8.5), 6 * 35), 8: (14 * (1 + 4.25), 14 * 35)}
    for ranks, (ring_ms, star_ms) in by_hand.items():
        assert 1e3 * costs.ring_all_reduce_s(ranks, size, link=link) == pytest.approx(ring_ms)
        assert 1e3 * ALL_REDUCE_S["gather_broadcast"](ranks, size, link) == pytest.approx(star_ms)


def test_ranks_that_are_no_power_of_two_pay_for_the_folding() -> None:
    planned = collective("all_reduce", "halving_doubling", world_size=6, length=600)
    inner = collective("all_reduce", "halving_doubling", world_size=4, length=600)
    assert planned.steps == inner.steps + 2
    assert costs.schedule(planned, SLOW).duration_s > costs.schedule(inner, SLOW).duration_s + 2 * SLOW.latency_s


def test_a_schedule_keeps_every_port_to_one_message_at_a_time() -> None:
    for algorithm, ranks in itertools.product(ALGORITHMS, (3, 6)):
        timeline = costs.schedule(collective("all_reduce", algorithm, world_size=ranks, length=50), SLOW)
        for one, two in itertools.pairwise(timeline.activities):
            assert one.lane != two.lane or two.start_s >= one.end_s
    with pytest.raises(ValueError, match="takes no time"):
        costs.schedule(collective("all_reduce", "ring", world_size=1, length=50), SLOW)


def test_buckets_are_the_ones_that_ddp_makes() -> None:
    """The oracle is the function in PyTorch that DDP calls, given the gradients from the last layer to the first."""
    generator = torch.Generator().manual_seed(3)
    for cap, first in itertools.product((1, 4_000, 100_000), (None, 1_000)):
        elements = torch.randint(1, 20_000, (30,), generator=generator).tolist()
        gradients = [torch.zeros(count) for count in reversed(elements)]
        limits = [cap if first is None else first, cap]
        theirs, _ = dist._compute_bucket_assignment_by_size(gradients, limits, [False] * len(gradients))
        ours = costs.bucket_layers([4 * each for each in elements], bucket_bytes=cap, first_bucket_bytes=first)
        assert [[len(elements) - 1 - layer for layer in bucket] for bucket in ours] == theirs
    assert costs.FIRST_BUCKET_BYTES == dist._DEFAULT_FIRST_BUCKET_BYTES
    assert costs.bucket_layers([4, 0, 4], bucket_bytes=100) == ((2, 0),)
    with pytest.raises(ValueError, match="bucket_bytes=0 is too small"):
        costs.bucket_layers([4], bucket_bytes=0)


def test_the_buckets_queue_for_the_link_by_hand() -> None:
    """Three layers of 1 s forward and 2 s backward, 3 bytes each, an all-reduce of 1 s a byte."""
    layers = [LayerCost(1.0, 2.0, 3)] * 3

    def byte_a_second(world_size: int, size_bytes: float, *, link: Link) -> float:
        return size_bytes

    given = {"world_size": 2, "link": SLOW, "all_reduce_s": byte_a_second}
    step = costs.ddp_step(layers, bucket_bytes=3, **given)
    assert [(each.ready_s, each.start_s, each.end_s) for each in step.buckets] == [(5, 5, 8), (7, 8, 11), (9, 11, 14)]
    assert (step.step_s, step.compute_s, step.link_s, step.exposed_s) == (14, 9, 9, 5)
    assert costs.ddp_step(layers, bucket_bytes=3, overlap=False, **given).step_s == 18
    assert costs.ddp_step(layers, bucket_bytes=100, **given).step_s == 18  # one bucket hides nothing
    assert costs.ddp_step(layers, bucket_bytes=3, wire_share=0.5, **given).step_s == 10.5  # 5 + 1.5, 8.5, 10.5
    accumulated = costs.ddp_step(layers, bucket_bytes=3, micro_batches=3, **given)
    assert (accumulated.step_s, accumulated.exposed_s) == (18 + 14, 5)
    frozen = costs.ddp_step([LayerCost(1.0, 2.0, 0)], **given)
    assert (frozen.step_s, frozen.buckets) == (3, ())
    assert len(step.activities()) == 4
    for wrong in ((-1.0, 2.0, 3), (1.0, float("nan"), 3), (1.0, 2.0, float("inf"))):
        with pytest.raises(ValueError, match="; give a finite number, 0 or more"):
            LayerCost(*wrong)
    for wrong in ({"micro_batches": 0}, {"wire_share": 0.0}, {"wire_share": 2.0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
            costs.ddp_step(layers, **given, **wrong)
    with pytest.raises(ValueError, match="at least one layer"):
        costs.ddp_step([], **given)


def test_a_timeline_starts_at_zero_and_counts_overlaps_once() -> None:
    timeline = joined([Activity("b", 12, 15, "x"), Activity("a", 10, 14, "x"), Activity("a", 12, 13, "y"),
                       Activity("a", 13, 18, "x")])  # fmt: skip
    assert [each.start_s for each in timeline.activities] == [0, 2, 3, 2]
    assert timeline.duration_s == 8
    assert (timeline.busy_s("a"), timeline.busy_s("a", "y"), timeline.busy_s("b")) == (8, 1, 3)
    with pytest.raises(ValueError, match="there are a, b"):
        timeline.busy_s("c")
    with pytest.raises(ValueError, match="record some first"):
        joined([])


def test_a_port_carries_one_message_after_the_other() -> None:
    port = Port(Link(10.0, 1.0))
    assert port.occupy(10, from_s=5.0) == (5.0, 7.0)
    assert port.occupy(20, from_s=6.0) == (7.0, 10.0)
    assert port.occupy(0, from_s=20.0) == (20.0, 21.0)


def test_an_overhead_goes_into_the_link() -> None:
    overhead = execution.MessageOverhead(2, per_message_s=0.001, per_byte_s=1e-7, typical_message_s=0.002, repeats=3)
    whole = overhead.added_to(Link(10e6, 0.005))
    assert whole.latency_s == pytest.approx(0.006)
    assert whole.bandwidth_bytes_per_s == pytest.approx(5e6)
    for size in (0, 1000):
        assert whole.transfer_s(size) == pytest.approx(Link(10e6, 0.005).transfer_s(size) + 0.001 + size * 1e-7)
