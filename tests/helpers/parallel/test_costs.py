"""The models of communication, where they are arithmetic: exact.

On real ranks: test_costs_on_ranks.py.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, strategies as st

from helpers.links import Activity, Link, Port, join_activities
from helpers.parallel import _costs as costs
from helpers.parallel._collectives import ALGORITHMS, collective
from helpers.parallel._costs import LayerCost
from helpers.studies.data_parallel import _execution as execution
from tests.properties import repeatable

SLOW = Link(bandwidth_bytes_per_s=10e6, latency_s=10e-3)
LINKS = st.builds(Link, st.floats(1e3, 1e12), st.floats(0, 1))

# The seconds of each algorithm's all-reduce, from Thakur, Rabenseifner and Gropp (2005); p is a
# power of 2.
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
    for bandwidth, latency in (
        (0, 0),
        (-1, 0),
        (1, -1),
        (1, math.inf),
        ("1", 0),
        (math.nan, 0),
        (True, 0),
    ):
        with pytest.raises(ValueError, match=r"must be a (finite )?number"):
            Link(bandwidth, latency)
    with pytest.raises(ValueError, match="size_bytes=-1; give a finite number, 0 or more"):
        Link(1.0).transfer_s(-1)


@repeatable(examples=60)
@given(
    st.sampled_from(sorted(ALGORITHMS)), st.sampled_from([2, 4, 8, 16]), st.integers(1, 1000), LINKS
)
def test_the_formula_is_what_the_messages_take(algorithm, ranks, chunk, link) -> None:
    planned = collective("all_reduce", algorithm, world_size=ranks, length=chunk * ranks)
    model = ALL_REDUCE_S[algorithm](ranks, 4 * planned.length, link)
    assert costs.schedule(planned, link).duration_s == pytest.approx(model)


RING_S = {
    "all_reduce": costs.ring_all_reduce_s,
    "reduce_scatter": costs.ring_reduce_scatter_s,
    "all_gather": costs.ring_all_gather_s,
}


@repeatable(examples=60)
@given(st.sampled_from(sorted(RING_S)), st.integers(2, 17), st.integers(1, 1000), LINKS)
def test_the_ring_and_its_halves_are_what_their_messages_take(
    operation, ranks, chunk, link
) -> None:
    planned = collective(operation, "ring", world_size=ranks, length=chunk * ranks)
    model = RING_S[operation](ranks, 4 * planned.length, link=link)
    assert costs.schedule(planned, link).duration_s == pytest.approx(model)


def test_the_models_that_the_facts_were_measured_against() -> None:
    """Ring against gather and broadcast, 3.4 MB over 100 MB/s and 1 ms: computed by hand, p = 2, 4,
    8.
    """
    link, size = Link(100e6, 1e-3), 3_400_000
    by_hand = {2: (2 * (1 + 17), 2 * 35), 4: (6 * (1 + 8.5), 6 * 35), 8: (14 * (1 + 4.25), 14 * 35)}
    for ranks, (ring_ms, star_ms) in by_hand.items():
        assert 1e3 * costs.ring_all_reduce_s(ranks, size, link=link) == pytest.approx(ring_ms)
        assert 1e3 * ALL_REDUCE_S["gather_broadcast"](ranks, size, link) == pytest.approx(star_ms)


def test_ranks_that_are_no_power_of_two_pay_for_the_folding() -> None:
    planned = collective("all_reduce", "halving_doubling", world_size=6, length=600)
    inner = collective("all_reduce", "halving_doubling", world_size=4, length=600)
    assert planned.steps == inner.steps + 2
    assert (
        costs.schedule(planned, SLOW).duration_s
        > costs.schedule(inner, SLOW).duration_s + 2 * SLOW.latency_s
    )


@repeatable(examples=60)
@given(st.sampled_from(sorted(ALGORITHMS)), st.integers(2, 17), st.integers(1, 60), LINKS)
def test_a_schedule_keeps_every_port_to_one_message_at_a_time(
    algorithm, ranks, length, link
) -> None:
    timeline = costs.schedule(
        collective("all_reduce", algorithm, world_size=ranks, length=length), link
    )
    for earlier, later in itertools.pairwise(timeline.activities):
        assert earlier.lane != later.lane or later.start_s >= earlier.end_s


def test_a_collective_without_messages_has_no_schedule() -> None:
    with pytest.raises(ValueError, match="takes no time"):
        costs.schedule(collective("all_reduce", "ring", world_size=1, length=50), SLOW)


@repeatable(examples=100)
@given(st.lists(st.integers(1, 20_000), min_size=1, max_size=30), st.data())
def test_buckets_are_the_ones_that_ddp_makes(elements, data) -> None:
    """The oracle is the function in PyTorch that DDP calls, given the gradients from the last layer
    to the first.
    """
    # full to the byte
    filled = st.sampled_from([*itertools.accumulate(4 * count for count in reversed(elements))])
    cap = data.draw(filled | st.integers(1, 100_000))
    gradients = [torch.empty(count) for count in reversed(elements)]
    theirs, _ = dist._compute_bucket_assignment_by_size(gradients, [cap], [False] * len(gradients))
    ours = costs.bucket_layers([4 * count for count in elements], bucket_bytes=cap)
    assert [[len(elements) - 1 - layer for layer in bucket] for bucket in ours] == theirs


def test_layers_without_bytes_are_in_no_bucket() -> None:
    assert costs.bucket_layers([4, 0, 4], bucket_bytes=100) == ((2, 0),)
    with pytest.raises(ValueError, match="bucket_bytes=0 is too small"):
        costs.bucket_layers([4], bucket_bytes=0)
    for wrong in ((-1.0, 2.0, 3), (1.0, float("nan"), 3), (1.0, 2.0, float("inf"))):
        with pytest.raises(ValueError, match="; give a finite number, 0 or more"):
            LayerCost(*wrong)


def test_a_timeline_starts_at_zero_and_counts_overlaps_once() -> None:
    timeline = join_activities(
        [
            Activity("b", 12, 15, "x"),
            Activity("a", 10, 14, "x"),
            Activity("a", 12, 13, "y"),
            Activity("a", 13, 18, "x"),
        ]
    )
    assert [each.start_s for each in timeline.activities] == [0, 2, 3, 2]
    assert timeline.duration_s == 8
    assert (timeline.busy_s("a"), timeline.busy_s("a", "y"), timeline.busy_s("b")) == (8, 1, 3)
    with pytest.raises(ValueError, match="there are a, b"):
        timeline.busy_s("c")
    with pytest.raises(ValueError, match="record some first"):
        join_activities([])


def test_a_port_carries_one_message_after_the_other() -> None:
    port = Port(Link(10.0, 1.0))
    assert port.occupy(10, from_s=5.0) == (5.0, 7.0)
    assert port.occupy(20, from_s=6.0) == (7.0, 10.0)
    assert port.occupy(0, from_s=20.0) == (20.0, 21.0)


ACTIVITIES = st.builds(
    lambda lane, start, length, kind: Activity(lane, start / 4, (start + length) / 4, kind),
    st.sampled_from("ab"),
    st.integers(0, 60),
    st.integers(0, 12),
    st.sampled_from("xy"),
)


@repeatable(examples=100)
@given(st.lists(ACTIVITIES, min_size=1, max_size=12))
def test_busy_seconds_are_the_quarters_of_a_second_in_which_something_runs(activities) -> None:
    timeline, first_s = join_activities(activities), min(each.start_s for each in activities)
    assert timeline.duration_s == max(each.end_s for each in activities) - first_s
    for lane, kinds in itertools.product({each.lane for each in activities}, ("x", "y", "xy")):
        quarters = {
            quarter
            for each in activities
            if each.lane == lane and each.kind in kinds
            for quarter in range(int(4 * each.start_s), int(4 * each.end_s))
        }
        assert timeline.busy_s(lane, kinds if len(kinds) == 1 else None) == len(quarters) / 4


def test_an_overhead_goes_into_the_link() -> None:
    overhead = execution.MessageOverhead(
        2, per_message_s=0.001, per_byte_s=1e-7, typical_message_s=0.002, repeats=3
    )
    whole = overhead.added_to(Link(10e6, 0.005))
    assert whole.latency_s == pytest.approx(0.006)
    assert whole.bandwidth_bytes_per_s == pytest.approx(5e6)
    for size in (0, 1000):
        assert whole.transfer_s(size) == pytest.approx(
            Link(10e6, 0.005).transfer_s(size) + 0.001 + size * 1e-7
        )
