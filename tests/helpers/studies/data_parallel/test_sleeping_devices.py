"""Devices that sleep and a link that is slow, under real DDP; shards, and collectives that are
counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from helpers.links import Link, Recorder, join_activities, sleep_until
from helpers.parallel import _comparing as comparing, _costs as costs
from helpers.parallel._data_parallel import shard
from helpers.plotting import gantt
from helpers.studies.data_parallel import _devices as devices, _modelling as modelling
from tests.properties import repeatable

SLOW = Link(bandwidth_bytes_per_s=5e6, latency_s=5e-3)
CLOSE = 0.25

# Sleeping.


def late_s() -> list[float]:
    """Return by how much each of 20 sleeps ended late."""
    found = []
    for _ in range(20):
        end_s = time.perf_counter() + 0.003
        sleep_until(end_s)
        found.append(time.perf_counter() - end_s)
    return found


def test_a_sleep_never_ends_early_and_there_is_none_until_a_moment_that_is_past(
    monkeypatch,
) -> None:
    assert min(late_s()) >= 0
    monkeypatch.setattr(time, "sleep", lambda duration_s: pytest.fail(f"a sleep of {duration_s} s"))
    sleep_until(time.perf_counter() - 1)


@pytest.mark.timed
def test_a_sleep_ends_late_by_well_under_a_millisecond() -> None:
    assert min(late_s()) < 0.5e-3


def test_a_sleeping_layer_sleeps_both_ways_and_its_gradients_are_exact() -> None:
    recorder = Recorder()
    layer = devices.SleepingLayer(0.004, 0.008, parameters=5)
    layer.recorder = recorder
    inputs = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer.double(), inputs)
    recorder.activities.clear()
    layer.weight.grad = None
    (layer(inputs) ** 2).sum().backward()
    reference = layer.weight.detach().clone().requires_grad_()
    ((inputs.detach() + reference.mean()) ** 2).sum().backward()
    torch.testing.assert_close(layer.weight.grad, reference.grad)
    forward, backward = recorder.activities
    assert (forward.kind, backward.kind, forward.lane) == ("forward", "backward", "device")
    assert forward.duration_s >= 0.004
    assert backward.duration_s >= 0.008
    assert devices.SleepingLayer(1, 2, parameters=5).cost == costs.LayerCost(1, 2, 20)


def test_bad_devices_and_links_are_refused() -> None:
    with pytest.raises(ValueError, match="forward_s=-1; give a finite number, 0 or more"):
        devices.SleepingLayer(-1, 0)
    with pytest.raises(ValueError, match="parameters=0 is too small"):
        devices.SleepingLayer(0, 0, parameters=0)
    with pytest.raises(TypeError, match="needs a DistributedDataParallel; got a Linear"):
        devices.slow_link(nn.Linear(1, 1), SLOW)
    with pytest.raises(ValueError, match="repeats=0 is too small"):
        devices.step_times(lambda: None, repeats=0)


def test_a_step_is_as_slow_as_its_slowest_rank() -> None:
    assert devices.fastest_step_s([[1.0, 5.0, 2.0], [4.0, 1.0, 3.0]]) == 3.0


# A data-parallel step.


def test_the_buckets_queue_for_the_link_by_hand() -> None:
    """Three layers of 1 s forward and 2 s backward, 3 bytes each, an all-reduce of 1 s a byte."""
    layers = [costs.LayerCost(1.0, 2.0, 3)] * 3
    given = {"world_size": 2, "link": Link(1.0)}  # each rank sends half of the bytes, twice
    step = modelling.ddp_step(layers, bucket_bytes=3, **given)
    assert [(each.ready_s, each.start_s, each.end_s) for each in step.buckets] == [
        (5, 5, 8),
        (7, 8, 11),
        (9, 11, 14),
    ]
    assert (step.step_s, step.compute_s, step.link_s, step.exposed_s) == (14, 9, 9, 5)
    # one bucket hides nothing
    assert modelling.ddp_step(layers, bucket_bytes=100, **given).step_s == 18
    frozen = modelling.ddp_step([costs.LayerCost(1.0, 2.0, 0)], **given)
    assert (frozen.step_s, frozen.buckets) == (3, ())
    assert len(step.activities()) == 4
    with pytest.raises(ValueError, match="at least one layer"):
        modelling.ddp_step([], **given)


LAYERS, FORWARD_S, BACKWARD_S, PARAMETERS = 4, 0.010, 0.030, 25_000
LAYER_BYTES = 4 * PARAMETERS


def steps(rank: int, world_size: int, caps_bytes: list[int]) -> list[tuple]:
    """Return, for each cap of a bucket, the seconds of the steps, the bytes of each bucket, and the
    last step's activities.
    """
    found = []
    for bucket_bytes in caps_bytes:
        recorder = Recorder()
        layers = [
            devices.SleepingLayer(FORWARD_S, BACKWARD_S, parameters=PARAMETERS)
            for _ in range(LAYERS)
        ]
        for layer in layers:
            layer.recorder = recorder
        net, inputs = nn.Sequential(*layers), torch.ones(2)
        ddp = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=bucket_bytes / 2**20)
        reducer = devices.slow_link(ddp, SLOW, recorder=recorder)

        def step(ddp=ddp, inputs=inputs, recorder=recorder, reducer=reducer) -> None:
            recorder.activities.clear()
            reducer.bucket_bytes.clear()
            ddp(inputs).sum().backward()

        taken_s = devices.step_times(step, repeats=3)
        activities = [
            replace(activity, lane=f"rank {rank} {activity.lane}")
            for activity in recorder.activities
        ]
        found.append((taken_s, reducer.bucket_bytes, activities))
    return found


def model(bucket_bytes: int, world_size: int) -> modelling.DdpStep:
    return modelling.ddp_step(
        [costs.LayerCost(FORWARD_S, BACKWARD_S, LAYER_BYTES)] * LAYERS,
        world_size=world_size,
        link=SLOW,
        bucket_bytes=bucket_bytes,
    )


CASES = {"a bucket a layer": LAYER_BYTES, "two buckets": 2 * LAYER_BYTES, "one bucket": 10**6}


def fastest_of(ranks: list[tuple]) -> float:
    return devices.fastest_step_s([taken_s for taken_s, _, _ in ranks])


class Measured:
    """The fastest round of each case so far: a busy machine makes a step slower, never faster."""

    def __init__(self, ranks) -> None:
        self.ranks, self.best = ranks, {}

    def of(self, *names: str, until: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """Return the seconds of the named cases; what does not hold ``until`` yet is measured at
        most 4 times more.
        """
        for _ in range(4):
            if set(names) <= set(self.best) and until(self.seconds(names)):
                break
            found = self.ranks.run(steps, [CASES[name] for name in names], timeout_s=240)
            for place, name in enumerate(names):
                now = [rank[place] for rank in found]
                self.best[name] = min(self.best.get(name, now), now, key=fastest_of)
        return self.seconds(names)

    def seconds(self, names: Iterable[str]) -> dict[str, float]:
        return {name: fastest_of(self.best[name]) for name in names}


@pytest.fixture(scope="module")
def ddp_steps(four_ranks) -> Measured:
    return Measured(four_ranks)


@pytest.mark.parametrize("name", CASES)
def test_the_buckets_are_those_of_the_model(ddp_steps, name) -> None:
    """Exact: the buckets that DDP really made."""
    ddp_steps.of(name, until=lambda _: True)
    for _, bucket_bytes, _ in ddp_steps.best[name]:
        assert bucket_bytes == [bucket.size_bytes for bucket in model(CASES[name], 4).buckets]


@pytest.mark.timed
@pytest.mark.parametrize("name", CASES)
def test_a_step_takes_what_its_model_says(ddp_steps, name) -> None:
    modelled_s = model(CASES[name], 4).step_s
    taken_s = ddp_steps.of(name, until=lambda now: now[name] < (1 + CLOSE / 2) * modelled_s)[name]
    assert taken_s == pytest.approx(modelled_s, rel=CLOSE)


@pytest.mark.timed
def test_overlap_hides_part_of_the_communication(ddp_steps) -> None:
    two, compute_s = model(CASES["two buckets"], 4), LAYERS * (FORWARD_S + BACKWARD_S)

    def hides(now: dict[str, float]) -> bool:
        return (
            now["two buckets"] < 0.97 * now["one bucket"]  # the model says 0.90
            and all(now[name] < (1 + CLOSE / 2) * model(CASES[name], 4).step_s for name in now)
        )

    def told_apart(now: dict[str, float]) -> bool:
        """Planted: a model that hides nothing, and one that hides everything, are both further
        off.
        """
        planted_s = (compute_s, compute_s + two.link_s)
        return all(
            abs(now["two buckets"] - two.step_s) < abs(now["two buckets"] - wrong_s)
            for wrong_s in planted_s
        )

    taken_s = ddp_steps.of(
        "two buckets", "one bucket", until=lambda now: hides(now) and told_apart(now)
    )
    assert hides(taken_s), taken_s
    assert told_apart(taken_s), taken_s


def test_the_timeline_shows_devices_and_links_of_all_ranks(ddp_steps) -> None:
    ddp_steps.of("two buckets", until=lambda _: True)
    timeline = join_activities(each for rank in ddp_steps.best["two buckets"] for each in rank[2])
    assert {each.lane for each in timeline.activities} == {
        f"rank {r} {what}" for r in range(4) for what in ("device", "link")
    }
    for rank in range(4):
        mine = [each for each in timeline.activities if each.lane == f"rank {rank} link"]
        assert [(each.kind, each.label) for each in mine] == [
            ("waiting", ""),
            ("all-reduce", "bucket 0"),
            ("waiting", ""),
            ("all-reduce", "bucket 1"),
        ]
        assert all(later.start_s >= earlier.end_s for earlier, later in pairwise(mine))
        assert mine[1].start_s == mine[0].end_s
        assert mine[3].start_s == mine[2].end_s
        assert timeline.busy_s(f"rank {rank} device", "backward") >= LAYERS * BACKWARD_S
    drawn = gantt(timeline.activities, title="Two buckets")
    assert len(drawn.axes[0].patches) == 4 * (2 * LAYERS + 4)


# Ranks and one process.


@repeatable(examples=60)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_shards_make_up_the_batch(sizes) -> None:
    ranks, batch = len(sizes), torch.arange(2 * sum(sizes)).view(-1, 2)
    shards = [shard(batch, rank, world_size=ranks) for rank in range(ranks)]
    assert torch.equal(torch.cat(shards), batch)
    rows, longer = divmod(len(batch), ranks)
    assert [len(rows_of) for rows_of in shards] == [rows + (rank < longer) for rank in range(ranks)]


def test_what_is_no_shard_is_refused() -> None:
    batch = torch.arange(10)
    with pytest.raises(ValueError, match="2 rows cannot give each of 3 ranks one"):
        shard(batch[:2], 0, world_size=3)
    with pytest.raises(ValueError, match="rank=3 is too large; give a whole number, 0 to 2"):
        shard(batch, 3, world_size=3)


# Counting collectives.


def counted(rank: int, world_size: int) -> dict[str, comparing.CollectiveCounts]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    found, inputs = {}, torch.ones(2, 100)
    plain = nn.Linear(100, 52)
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(100, 52), broadcast_buffers=False)
    fsdp = fully_shard(nn.Linear(100, 52), mesh=init_device_mesh("cpu", (world_size,)))
    # in its second step DDP tells its ranks how it has arranged its buckets anew
    for _ in range(3):
        for name, model in (("plain", plain), ("ddp", ddp), ("fsdp", fsdp)):
            with comparing.count_collectives() as counter:
                model(inputs).sum().backward()
            found[name] = counter.counts
    with ddp.no_sync(), comparing.count_collectives() as counter:
        ddp(inputs).sum().backward()
    found["no_sync"] = counter.counts
    return found


def test_collectives_and_their_bytes_are_counted_exactly(four_ranks) -> None:
    size = 4 * (100 * 52 + 52)
    for found in four_ranks.run(counted, timeout_s=120):
        assert found["plain"].collectives == found["no_sync"].collectives == ()
        assert found["ddp"].collectives == (comparing.CollectiveCalls("all_reduce", 1, size),)
        # With DDP's bytes: FSDP gathers the weights and scatters the gradients; a lone module is
        # not gathered twice.
        assert found["fsdp"].calls("reduce_scatter") == 1
        assert found["fsdp"].size_bytes("reduce_scatter") == size
        assert (
            found["fsdp"].size_bytes("all_gather") == found["fsdp"].calls("all_gather") * size > 0
        )
