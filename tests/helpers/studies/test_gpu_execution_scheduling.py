"""A scheduler that hides waits: exactly the bound of its warps, and Little's law where the memory
is the limit.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from helpers.studies import memory_hierarchy
from helpers.studies.gpu_execution import run_scheduler
from tests.properties import repeatable


@repeatable(examples=40)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 5), st.integers(1, 60))
def test_without_a_limit_the_scheduler_is_as_busy_as_its_warps_allow(
    warps, loads, computing, latency
):
    instructions = computing + loads
    alone = instructions - 1 + latency
    schedule = run_scheduler(
        warps, latency_cycles=latency, loads=loads, computing=computing, rounds=8
    )
    assert schedule.busy_share == pytest.approx(
        min(1, warps * instructions / max(alone, instructions))
    )
    assert schedule.bytes_per_cycle == pytest.approx(
        128 * schedule.busy_share * loads / instructions
    )


@repeatable(examples=30)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(5, 60))
def test_the_turns_of_a_schedule_are_possible(warps, loads, latency):
    schedule = run_scheduler(
        warps, latency_cycles=latency, loads=loads, most_bytes_per_cycle=50, rounds=6
    )
    issued = sorted((turn.start, turn.stop) for turn in schedule.turns)
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(issued))
    for warp in range(warps):
        own = [turn for turn in schedule.turns if turn.warp == warp]
        assert all(turn.stop - turn.start == 1 + loads for turn in own)
        assert all(turn.ready >= turn.stop - 1 + latency for turn in own)
        assert all(later.start >= turn.ready for turn, later in itertools.pairwise(own))


@pytest.mark.parametrize("loads", [1, 4])
@pytest.mark.parametrize("warps", [1, 4, 8, 16, 64])
def test_what_is_in_flight_is_rate_times_wait(warps, loads):
    """Little's law, with the waits of the turns themselves; a load of a turn waits a cycle less
    than the one before.
    """
    schedule = run_scheduler(
        warps, latency_cycles=687, loads=loads, most_bytes_per_cycle=64, rounds=20
    )
    later = schedule.turns[len(schedule.turns) // 2 :]
    waits = [turn.ready - turn.stop + 1 for turn in later]
    mean = sum(waits) / len(waits)
    assert schedule.bytes_in_flight == pytest.approx(schedule.bytes_per_cycle * mean, rel=0.01)


def test_the_bandwidth_of_an_h100_takes_half_of_its_warps_or_a_quarter_of_them():
    """The reads of a transpose: 1,675 GB/s among 4 x 132 schedulers with 16 places each, a wait of
    687 cycles.
    """
    wait = memory_hierarchy.gpu_wait("GH100")
    rate = 3_350e9 / 2 / 132 / 4 / wait.clock_hz
    needed = rate * wait.memory_cycles / 128
    assert needed / 16 == pytest.approx(0.54, abs=0.005)
    reached = {
        (warps, loads): run_scheduler(
            warps,
            latency_cycles=round(wait.memory_cycles),
            loads=loads,
            most_bytes_per_cycle=rate,
            rounds=40,
        ).bytes_per_cycle
        / rate
        for warps, loads in ((4, 1), (8, 1), (9, 1), (16, 1), (2, 4), (3, 4), (4, 4))
    }
    # a turn has three or six instructions more than the wait
    for (warps, loads), share in reached.items():
        assert share <= 1.001
        assert share >= 0.7 * min(1, warps * loads / needed)
    assert reached[4, 1] == pytest.approx(4 / needed, rel=0.01)
    assert reached[8, 1] == pytest.approx(8 / needed, rel=0.01)
    assert reached[9, 1] == pytest.approx(1, abs=0.01)
    assert reached[4, 4] == pytest.approx(1, abs=0.01)


def test_threads_of_lesson_01_are_warps_of_this_one():
    """Its figure: 1, 4 and 10 threads that compute for one step and wait for nine are busy 10, 40
    and 100 %.
    """
    for threads in (1, 4, 10):
        schedule = run_scheduler(threads, computing=1, loads=1, latency_cycles=19)
        assert schedule.busy_share == pytest.approx(threads / 10)


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"warps": 0}, ValueError, "warps=0 is too small"),
        ({"loads": 0}, ValueError, "loads=0 is too small"),
        ({"latency_cycles": 0.5}, TypeError, "latency_cycles=0.5 is a float"),
        ({"rounds": 1}, ValueError, "rounds=1 is too small; give a whole number, 2"),
        (
            {"rounds": 60_000, "warps": 2},
            ValueError,
            "are 120,000 turns; give fewer, at most 100,000",
        ),
        (
            {"most_bytes_per_cycle": 0},
            ValueError,
            "most_bytes_per_cycle=0; give a finite number above 0",
        ),
    ],
)
def test_refused(given, kind, words):
    with pytest.raises(kind) as raised:
        run_scheduler(**({"warps": 4, "latency_cycles": 20} | given))
    assert words in str(raised.value)
