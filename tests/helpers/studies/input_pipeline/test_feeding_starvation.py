"""The prefetch queue by model, by exact simulation and with real workers on sleeping devices;
copies that overlap.
"""

from __future__ import annotations

import itertools
import math
import random
import threading
import time

import pytest
import torch
from torch import nn

from helpers.links import Link
from helpers.studies import input_pipeline
from helpers.studies.input_pipeline import (
    LoaderSettings,
    SleepingAccelerator,
    TrainingAccelerator,
    _loading as loading,
    _pipeline as pipeline,
    _starvation as starvation,
)

CLOSE = 0.2  # of the model: the project's bound for the simulated tier is 15 to 25 %
# what a busy machine adds to a sleep does not grow with the sleep
LONGER = (1, 1, 1, 2, 2, 2, 4, 4, 4)


def in_turns(function, holds) -> object:
    """Return the first result of ``function(longer)`` that holds, else the last; it sleeps so many
    times as long.

    A busy machine spoils some of them: it adds time and never takes any away.
    """
    for longer in LONGER:
        found = function(longer)
        if holds(found):
            break
    return found


# The model and the simulation.


def test_the_model_is_the_longest_of_what_runs_at_once_and_the_sum_of_what_runs_in_turn() -> None:
    assert input_pipeline.model_feeding(0.03, 0.01).step_s == pytest.approx(0.04)
    assert input_pipeline.model_feeding(0.03, 0.01).bound == "input, device in turn"
    assert (
        input_pipeline.model_feeding(
            0.03, 0.01, wait_each_step=False, copying="non_blocking"
        ).step_s
        == 0.03
    )
    steps = {
        workers: input_pipeline.model_feeding(0.03, 0.01, workers=workers)
        for workers in (1, 2, 3, 6)
    }
    assert {workers: each.step_s for workers, each in steps.items()} == {
        1: 0.03,
        2: 0.015,
        3: 0.01,
        6: 0.01,
    }
    assert [steps[workers].bound for workers in (1, 6)] == ["input", "device"]
    assert steps[2].busy_share == pytest.approx(2 / 3)
    # computing needs cores
    assert input_pipeline.model_feeding(0.03, 0.01, workers=6, cores=2).step_s == 0.015
    assert (
        input_pipeline.model_feeding(0.03, 0.01, workers=2, start_s=1, handover_s=0.5).first_batch_s
        == 1.53
    )
    assert input_pipeline.model_feeding(0.0, 0.01, workers=1, handover_s=0.01).busy_share == 0.5


def test_copies_cost_their_time_their_stream_or_nothing() -> None:
    shared = {"workers": 1, "copy_s": 0.004}
    assert input_pipeline.model_feeding(0.002, 0.01, **shared).step_s == 0.014
    same_stream = input_pipeline.model_feeding(
        0.002, 0.01, copying="non_blocking", wait_each_step=False, **shared
    )
    assert (same_stream.step_s, same_stream.bound) == (0.014, "copy, device in turn")
    for wait in (True, False):
        ahead = input_pipeline.model_feeding(
            0.002, 0.01, copying="ahead", wait_each_step=wait, **shared
        )
        assert (ahead.step_s, ahead.bound) == (0.01, "device")
    ahead = input_pipeline.model_feeding(0.002, 0.01, copying="ahead", workers=1, copy_s=0.02)
    assert (ahead.step_s, ahead.bound) == (0.02, "copy")


def test_the_simulation_agrees_with_the_model_where_batches_are_alike() -> None:
    for workers, prefetch, produce_s, device_s, handover_s in itertools.product(
        (0, 1, 2, 3, 5), (1, 2, 4), (0.004, 0.03, 0.2), (0.01, 0.05), (0.0, 0.002)
    ):
        modelled = input_pipeline.model_feeding(
            produce_s, device_s, workers=workers, handover_s=handover_s, start_s=0.1
        )
        simulated = input_pipeline.simulate_feeding(
            produce_s,
            device_s,
            steps=301,
            workers=workers,
            prefetch_factor=prefetch,
            handover_s=handover_s,
            start_s=0.1,
            warm_up=240,
        )
        assert simulated.step_s == pytest.approx(modelled.step_s)
        assert simulated.busy_share == pytest.approx(modelled.busy_share)
        assert simulated.first_batch_s == pytest.approx(modelled.first_batch_s)
        assert simulated.most_ready <= workers * prefetch


def test_the_simulation_by_hand() -> None:
    """Two workers, one batch each under way, batches of 3, 1, 1, 1 s, a step of 1 s.

    Batch 0 is ready at 3, batch 1 at 1 and waits for its turn. Batch 2 is sent off at 3, when 0 is
    taken; 3 at 4.
    """
    run = input_pipeline.simulate_feeding((3, 1, 1, 1), 1, workers=2, prefetch_factor=1)
    spans = {
        (each.lane, each.label): (each.start_s, each.end_s) for each in run.timeline.activities
    }
    assert spans == {
        ("worker 0", "0"): (0, 3),
        ("worker 1", "1"): (0, 1),
        ("worker 0", "2"): (3, 4),
        ("worker 1", "3"): (4, 5),
        ("device", "0"): (3, 4),
        ("device", "1"): (4, 5),
        ("device", "2"): (5, 6),
        ("device", "3"): (6, 7),
    }
    assert (run.elapsed_s, run.first_batch_s, run.step_s, run.busy_share, run.most_ready) == (
        7,
        3,
        1,
        1,
        2,
    )


def test_prefetching_hides_late_batches_only_while_the_buffer_lasts() -> None:
    # Were every 8th batch late, worker 1 of 2 would make all the late ones: batches go to workers
    # in turn.
    times_s = [0.2 if batch % 7 == 6 else 0.005 for batch in range(400)]
    shares = [
        input_pipeline.simulate_feeding(times_s, 0.02, workers=2, prefetch_factor=p).busy_share
        for p in (1, 2, 4, 8)
    ]
    assert shares == sorted(shares)
    assert shares[0] < 0.65
    assert shares[-1] > 0.95
    starved = [
        input_pipeline.simulate_feeding(0.1, 0.02, steps=400, workers=2, prefetch_factor=p)
        for p in (1, 8)
    ]
    # a buffer makes nothing faster
    assert starved[1].busy_share == pytest.approx(starved[0].busy_share, rel=0.03)


def test_no_schedule_breaks_the_queues_rules() -> None:
    draw = random.Random(3)
    for _ in range(50):
        workers, prefetch = draw.randint(1, 4), draw.randint(1, 3)
        times_s = [draw.expovariate(20) for _ in range(40)]
        run = input_pipeline.simulate_feeding(
            times_s, 0.03, workers=workers, prefetch_factor=prefetch
        )
        made = sorted(
            (a for a in run.timeline.activities if a.kind == "making a batch"),
            key=lambda a: int(a.label),
        )
        used = [a for a in run.timeline.activities if a.lane == "device"]
        for batch, (making, using) in enumerate(zip(made, used, strict=True)):
            assert making.lane == f"worker {batch % workers}"
            assert making.duration_s == pytest.approx(times_s[batch])
            assert using.start_s >= making.end_s - 1e-9
            if batch >= workers * prefetch:
                assert making.start_s >= used[batch - workers * prefetch].start_s - 1e-9
        assert all(a.end_s <= b.start_s + 1e-9 for a, b in itertools.pairwise(used))
        # No time is lost: what starts, starts with the end of something.
        ends = {0.0, *(round(a.end_s, 9) for a in run.timeline.activities)}
        assert all(round(a.start_s, 9) in ends for a in run.timeline.activities)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: input_pipeline.simulate_feeding(0.1, 0.1), "needs steps"),
        (lambda: input_pipeline.simulate_feeding([], 0.1), "holds 0 batches"),
        (lambda: input_pipeline.simulate_feeding(0.1, 0.1, steps=3, warm_up=2), "give at least 4"),
        (
            lambda: input_pipeline.simulate_feeding([0.1], 0.1, steps=2),
            "holds 1 batches and steps=2",
        ),
        (lambda: input_pipeline.simulate_feeding([0.1, -1, 1], 0.1), r"produce_s\[1\]=-1"),
        (lambda: input_pipeline.simulate_feeding([0.1, 1, math.nan], 0.1), r"produce_s\[2\]=nan"),
        (lambda: input_pipeline.simulate_feeding([math.inf, 1, 1], 0.1), r"produce_s\[0\]=inf"),
        (
            lambda: TrainingAccelerator(print, device="meta"),
            "device='meta' is neither a CPU nor a CUDA device",
        ),
        (
            lambda: TrainingAccelerator(print, device="cuda:x"),
            "device='cuda:x' is neither a CPU nor a CUDA device",
        ),
        (
            lambda: list(input_pipeline.copy_ahead([torch.zeros(1)], "meta")),
            "device='meta' is neither a CPU nor",
        ),
        (
            lambda: input_pipeline.model_feeding(-1, 0.1),
            "produce_s=-1; give a finite number, 0 or more",
        ),
        (
            lambda: input_pipeline.model_feeding(1, math.nan),
            "device_s=nan; give a finite number, 0 or more",
        ),
        (
            lambda: input_pipeline.model_feeding(1, 1, copying="async"),
            "'blocking', 'non_blocking', 'ahead'",
        ),
        (lambda: input_pipeline.model_feeding(1, 1, cores=0), "cores=0 is too small"),
        (lambda: input_pipeline.model_feeding(1, 1, workers=10**400), "workers=1.* is too large"),
        (lambda: SleepingAccelerator(-1), "step_s=-1; give a finite number, 0 or more"),
        (lambda: input_pipeline.feed([], SleepingAccelerator(0.1)), "gave 0 batches"),
        (lambda: input_pipeline.feed([1], SleepingAccelerator(0.1), copying="fast"), "not known"),
        (
            lambda: input_pipeline.measure_handover(4000, LoaderSettings(workers=0)),
            "hands nothing over",
        ),
        (
            lambda: input_pipeline.measure_handover(4, LoaderSettings(workers=1)),
            "less than 4 bytes",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(call, said) -> None:
    with pytest.raises(ValueError, match=said):
        call()


def test_a_link_that_is_a_number_and_a_gpu_that_is_not_there_are_refused(monkeypatch) -> None:
    for wrong in ({"pinned": 1e9}, {"pageable": 1e9}):
        with pytest.raises(TypeError, match=r"is a helpers\.links\.Link"):
            SleepingAccelerator(0.1, **wrong)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for call in (
        lambda: TrainingAccelerator(print, device="cuda"),
        lambda: list(input_pipeline.copy_ahead([], "cuda")),
    ):
        with pytest.raises(RuntimeError, match="torch sees none here"):
            call()


# Real workers, sleeping devices.


@pytest.mark.timed
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_busy_shares_are_the_models(workers) -> None:
    """Batches wait 60 ms and the device needs 30: it is busy 33, 50, 100 and 100 % of the time."""
    produce_s, device_s, steps = 0.06, 0.03, 2 * workers + 9
    modelled = input_pipeline.model_feeding(produce_s, device_s, workers=workers)

    def fed(longer: int):
        dataset = input_pipeline.WaitingItems(steps, wait_s=longer * produce_s)
        loader = input_pipeline.make_loader(dataset, LoaderSettings(batch_size=1, workers=workers))
        return input_pipeline.feed(loader, SleepingAccelerator(longer * device_s)).last, longer

    def as_modelled(busy_share: float, waiting_share: float) -> bool:
        return (busy_share, busy_share + waiting_share) == (
            pytest.approx(modelled.busy_share, rel=CLOSE),
            pytest.approx(1, abs=0.1),
        )

    found, longer = in_turns(
        fed, lambda each: as_modelled(each[0].busy_share, each[0].waiting_share)
    )
    assert as_modelled(found.busy_share, found.waiting_share), found
    assert (found.steps, found.warm_up) == (steps, 2 * workers)
    # the device's clock is exact
    assert found.step_s * found.busy_share == pytest.approx(longer * device_s)
    assert found.first_batch_s >= longer * produce_s
    if workers < 2:  # the wrong model, of a loop with two workers, would not pass
        assert (
            found.busy_share
            < (1 - CLOSE) * input_pipeline.model_feeding(produce_s, device_s, workers=2).busy_share
        )


@pytest.mark.timed
def test_warm_up_steps_are_in_no_share() -> None:
    def late_at_first():
        for batch in range(9):
            time.sleep(0.1 if batch < 3 else 0.0)
            yield batch

    # the third batch is late too, and its wait ends where the marks begin: with its step
    found = in_turns(
        lambda longer: (
            input_pipeline.feed(late_at_first(), SleepingAccelerator(longer * 0.02), warm_up=2).last
        ),
        lambda each: each.busy_share > 0.8 and each.waiting_share < 0.2,
    )
    assert found.busy_share > 0.8
    assert found.waiting_share < 0.2
    assert (
        input_pipeline.feed(late_at_first(), SleepingAccelerator(0.02), warm_up=0).last.busy_share
        < 0.5
    )


@pytest.mark.timed
def test_a_sweep_has_a_row_for_each_value_of_its_factor() -> None:
    dataset = input_pipeline.WaitingItems(8, wait_s=0.005)
    settings = input_pipeline.vary(LoaderSettings(batch_size=2), batch_size=(1, 4))
    sweep = in_turns(
        lambda longer: input_pipeline.sweep_feeding(
            dataset, settings, lambda each: SleepingAccelerator(longer * 0.002 * each.batch_size)
        ),
        lambda each: each.rows[0].step_s < each.rows[1].step_s,
    )
    assert (sweep.factor, [row.value for row in sweep.rows]) == ("batch_size", ["1", "4"])
    assert sweep.rows[0].step_s < sweep.rows[1].step_s


def test_a_sweep_is_of_one_factor() -> None:
    dataset = input_pipeline.FreeItems(8)
    with pytest.raises(
        ValueError, match="differ in batch_size and workers; a sweep is of one factor"
    ):
        input_pipeline.sweep_feeding(
            dataset, (LoaderSettings(128, 4), LoaderSettings(64, 1)), SleepingAccelerator(0)
        )
    with pytest.raises(ValueError, match="differ in none"):
        input_pipeline.sweep_feeding(dataset, (LoaderSettings(),), SleepingAccelerator(0))


@pytest.mark.timed
def test_persistent_workers_are_there_in_the_second_epoch() -> None:
    dataset = input_pipeline.FreeItems(8)

    def second_over_first(persistent: bool) -> float:
        settings = LoaderSettings(2, 1, persistent_workers=persistent)
        with input_pipeline.workers_end(input_pipeline.make_loader(dataset, settings)) as loader:
            fed = input_pipeline.feed(loader, SleepingAccelerator(0.005), epochs=2)
        assert [row.epoch for row in fed.epochs] == [1, 2]
        assert fed.last is fed.epochs[1]
        return fed.epochs[1].first_batch_s / fed.epochs[0].first_batch_s

    assert in_turns(lambda _: second_over_first(True), lambda ratio: ratio < 0.5) < 0.5
    assert in_turns(lambda _: second_over_first(False), lambda ratio: ratio > 0.5) > 0.5


def test_a_handover_is_of_a_batch_of_the_bytes_asked_for(monkeypatch) -> None:
    made, make = [], input_pipeline.make_loader
    monkeypatch.setattr(
        loading, "make_loader", lambda items, settings: made.append(items) or make(items, settings)
    )
    assert input_pipeline.measure_handover(800, LoaderSettings(2, 1), batches=3) > 0
    assert [(len(items), items.image.nbytes) for items in made] == [(6, 400)]


@pytest.mark.timed
def test_a_handover_grows_with_the_batch() -> None:
    """The fastest of five each, in turns: a busy machine adds time, and never takes any away."""
    settings = LoaderSettings(2, 1)
    pairs = [
        [input_pipeline.measure_handover(size, settings, batches=6) for size in (800, 8_000_000)]
        for _ in range(5)
    ]
    small, large = zip(*pairs, strict=True)
    assert min(small) < min(large)


def test_a_loader_that_fails_is_heard_and_leaves_no_thread() -> None:
    def failing():
        yield torch.ones(2)
        raise KeyError("no such file")

    for copying in pipeline.COPYING:
        with pytest.raises(KeyError, match="no such file"):
            input_pipeline.feed(failing(), SleepingAccelerator(0.0), copying=copying)
    assert not [each for each in threading.enumerate() if each.name == "copies ahead"]


# Copies.


class Frames(torch.utils.data.Dataset):
    """Items of 250,000 bytes."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((62_500,), float(index))


@pytest.mark.timed
@pytest.mark.parametrize(
    ("copying", "wait"),
    [("blocking", True), ("non_blocking", False), ("ahead", True), ("ahead", False)],
)
def test_copies_overlap_as_the_model_says(copying, wait) -> None:
    """A copy takes 25 ms, a step 30: 55 ms in turn, 30 at once."""
    device_s = 0.03

    def fed(longer: int):
        loader = input_pipeline.make_loader(Frames(), LoaderSettings(batch_size=1))
        device = SleepingAccelerator(longer * device_s, pinned=Link(1e7 / longer))
        return input_pipeline.feed(loader, device, copying=copying, wait_each_step=wait), longer

    modelled = input_pipeline.model_feeding(
        0.0, device_s, copy_s=0.025, copying=copying, wait_each_step=wait
    )
    assert modelled.step_s == pytest.approx(0.03 if copying == "ahead" else 0.055)
    found, longer = in_turns(
        fed, lambda each: each[0].last.step_s < (1 + CLOSE) * each[1] * modelled.step_s
    )
    # In turn the first copy is before the first step, which is where the clock of a step starts.
    assert found.last.step_s == pytest.approx(longer * modelled.step_s, rel=CLOSE)
    copies = [each for each in found.timeline.activities if each.lane == "copies"]
    steps = [each for each in found.timeline.activities if each.lane == "device"]
    assert len(copies) == len(steps) == 12
    assert all(each.duration_s == pytest.approx(longer * 0.025) for each in copies)
    assert all(step.start_s >= copy.end_s - 1e-9 for copy, step in zip(copies, steps, strict=True))
    overlap = any(
        c.start_s < s.end_s - 1e-6 and s.start_s < c.end_s - 1e-6 for c in copies for s in steps
    )
    assert overlap == (copying == "ahead")


def test_pageable_and_pinned_copies_have_their_own_link() -> None:
    device = SleepingAccelerator(0.0, pinned=Link(1e6), pageable=Link(1e5))
    batch = {"images": torch.zeros(100), "more": [torch.zeros(10, dtype=torch.int64), ("a", 1)]}
    assert device.copy_s(batch) == pytest.approx(480 / 1e5)
    assert device.copy_s(batch, copying="non_blocking") == pytest.approx(480 / 1e6)


def test_copies_ahead_are_bounded_in_order_and_complete() -> None:
    begun: list[int] = []
    with input_pipeline.copied_ahead(
        range(20), lambda each: begun.append(each) or each * 10, depth=3
    ) as ready:
        given = []
        for value in ready:
            given.append(value)
            time.sleep(0.002)
            assert len(begun) <= len(given) + 3
    assert given == [each * 10 for each in range(20)]
    with input_pipeline.copied_ahead(itertools.count(), lambda each: each) as ready:
        assert next(ready) == 0  # breaking off ends the thread, though the batches never end
    assert not [each for each in threading.enumerate() if each.name == "copies ahead"]
    assert list(input_pipeline.copy_ahead([torch.ones(1)], "cpu")) == [torch.ones(1)]
    with (
        pytest.raises(ValueError, match="depth=0 is too small"),
        input_pipeline.copied_ahead([], print, depth=0),
    ):
        pass


# Real training steps.


def test_a_real_step_is_timed_on_this_device_and_trains() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    before = model[1].weight.detach().clone()
    device = TrainingAccelerator(input_pipeline.training_step(model), device="cpu")
    loader = input_pipeline.make_loader(
        input_pipeline.WaitingItems(8, wait_s=0.01), LoaderSettings(2)
    )
    found = input_pipeline.feed(loader, device).last
    assert found.steps == 4
    assert 0 < found.busy_share < 1
    assert found.waiting_share > 0
    assert not torch.equal(model[1].weight, before)
    for copying in ("non_blocking", "ahead"):
        with pytest.raises(ValueError, match="on a CPU a batch is there already"):
            input_pipeline.feed(loader, device, copying=copying)
    with pytest.raises(TypeError, match="train=5 is an int; give a function of a batch"):
        TrainingAccelerator(5)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("copying", pipeline.COPYING)
def test_on_cuda_all_ways_of_copying_train_alike(copying) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).cuda()
    dataset = input_pipeline.FreeItems(64)
    settings = LoaderSettings(4, 1, pin_memory=copying != "blocking")
    fed = input_pipeline.feed(
        input_pipeline.make_loader(dataset, settings),
        TrainingAccelerator(input_pipeline.training_step(model)),
        copying=copying,
    )
    torch.manual_seed(0)
    alone = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).cuda()
    step = input_pipeline.training_step(alone)
    for images, labels in input_pipeline.make_loader(dataset, LoaderSettings(4)):
        step((images.cuda(), labels.cuda()))
    torch.testing.assert_close(model[1].weight, alone[1].weight)
    assert 0 < fed.last.busy_share <= 1
    assert all(each.end_s >= each.start_s for each in fed.timeline.activities)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_copies_ahead_on_cuda_are_exact_and_refuse_pageable_memory() -> None:
    frames = [torch.full((1 << 20,), float(each)).pin_memory() for each in range(16)]
    totals = [batch.sum() for batch in input_pipeline.copy_ahead(frames, "cuda")]
    assert [float(each) for each in totals] == [float(each) * (1 << 20) for each in range(16)]
    with pytest.raises(ValueError, match="pinned memory"):
        list(input_pipeline.copy_ahead([torch.ones(2)], "cuda"))


def test_the_timeline_of_a_run_can_be_drawn() -> None:
    from helpers.plotting import gantt

    fed = input_pipeline.feed([torch.ones(1000)] * 3, SleepingAccelerator(0.005, pinned=Link(1e6)))
    assert {each.lane for each in fed.timeline.activities} == {"device", "copies", starvation.HOST}
    assert len(gantt(fed.timeline.activities, title="A fed device").axes[0].patches) == 9
