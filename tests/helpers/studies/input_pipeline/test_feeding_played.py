"""The played device against times worked out by hand, and each fault that it must notice."""

from __future__ import annotations

import pytest

from helpers.studies import input_pipeline


def copied_ahead(batches, cuda, *, waits=True, records=True):
    copies, before = cuda.Stream(), None
    for batch in [*batches, None]:
        if batch is not None:
            with cuda.stream(copies):
                coming = batch.to("cuda", non_blocking=True), copies.record_event()
        if before is not None:
            there, event = before
            if waits:
                cuda.current_stream().wait_event(event)
            if records:
                there.record_stream(cuda.current_stream())
            yield there
        before = coming


def run(copies, *, pinned=True, waits_each_step=True, copy_s=3, step_s=5):
    cuda = input_pipeline.PlayedCuda(copy_s=copy_s, pageable_s=7, step_s=step_s)
    for there in copies(cuda.batches(5, pinned=pinned), cuda):
        cuda.step(there)
        if waits_each_step:
            cuda.synchronize()
    return cuda


def one_stream(non_blocking):
    return lambda batches, _cuda: (batch.to("cuda", non_blocking=non_blocking) for batch in batches)


def test_in_one_stream_copy_and_step_take_turns() -> None:
    for pinned, non_blocking, step_s in (
        (False, False, 12),
        (False, True, 12),
        (True, False, 8),
        (True, True, 8),
    ):
        for waits in (True, False):
            cuda = run(one_stream(non_blocking), pinned=pinned, waits_each_step=waits)
            assert cuda.from_step_to_step_s == step_s
            assert cuda.faults == ()


def test_on_a_stream_of_its_own_the_longer_one_decides() -> None:
    assert run(copied_ahead).from_step_to_step_s == 5
    assert run(copied_ahead, copy_s=6).from_step_to_step_s == 6
    cuda = run(copied_ahead)
    spans = [(each.lane, each.start_s, each.end_s, each.label) for each in cuda.activities[:5]]
    assert spans == [
        ("stream 1", 0, 3, "0"),
        ("stream 1", 3, 6, "1"),
        ("default stream", 3, 8, "0"),
        ("stream 1", 8, 11, "2"),
        ("default stream", 8, 13, "1"),
    ]
    assert cuda.faults == ()


def test_faults_are_noticed() -> None:
    early = run(lambda batches, cuda: copied_ahead(batches, cuda, waits=False)).faults
    assert early == ("step 0 began before its batch was there",)
    unrecorded = run(lambda batches, cuda: copied_ahead(batches, cuda, records=False)).faults
    assert unrecorded == ("batch 0 was not recorded on the stream of its step",)


def test_a_stream_waits_for_all_that_another_holds() -> None:
    cuda = input_pipeline.PlayedCuda(copy_s=3, step_s=5)
    copies = cuda.Stream()
    with cuda.stream(copies):
        there = cuda.batches(1)[0].to("cuda", non_blocking=True)
    assert cuda.host_s == 0
    cuda.current_stream().wait_stream(copies)
    cuda.step(there)
    cuda.synchronize()
    assert cuda.host_s == 8


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: input_pipeline.PlayedCuda(copy_s=-1, step_s=1), "copy_s=-1"),
        (lambda: input_pipeline.PlayedCuda(copy_s=1, step_s=1).batches(0), "count=0"),
        (
            lambda: input_pipeline.PlayedCuda(copy_s=1, step_s=1).from_step_to_step_s,
            "at least 3 batches",
        ),
        (
            lambda: input_pipeline.PlayedCuda(copy_s=1, step_s=1).batches(1)[0].to("tpu"),
            "give 'cuda'",
        ),
    ],
)
def test_refusals(call, words) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_a_batch_of_the_host_cannot_be_stepped_with() -> None:
    cuda = input_pipeline.PlayedCuda(copy_s=1, step_s=1)
    with pytest.raises(ValueError, match="copy it first"):
        cuda.step(cuda.batches(1)[0])


def test_the_queue_at_one_moment() -> None:
    run = input_pipeline.simulate_feeding((3, 1, 1, 1), 1, workers=2, prefetch_factor=1)
    assert run.at(0.5) == ([0, 1], [], None)
    assert run.at(2) == ([0, None], [1], None)
    assert run.at(3.5) == ([2, None], [1], 0)
    assert run.at(4.5) == ([None, 3], [2], 1)
    assert run.at(6.5) == ([None, None], [], 3)
