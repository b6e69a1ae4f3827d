"""Cache sizes read off latency curves: exact on simulated hierarchies, near the system's answer on
this machine's.
"""

import random
from collections import OrderedDict

import numpy as np
import pytest

from helpers.hardware import LatencyPoint, find_change_points, machine_card
from helpers.hardware.limits import (
    _chase as chase,
    _levels as changepoints,
    _levels as probe_levels,
)
from helpers.studies.simulators import CacheLevel, simulate_latency

KIB, MIB = 2**10, 2**20
HIERARCHIES = {  # size in bytes and seconds of a load; the last is main memory's
    "desktop": ([(32 * KIB, 1e-9), (512 * KIB, 4e-9), (32 * MIB, 15e-9)], 110e-9),
    "server": ([(32 * KIB, 1.3e-9), (1 * MIB, 5e-9), (32 * MIB, 22e-9)], 130e-9),
    "phone": ([(64 * KIB, 1.5e-9), (512 * KIB, 6e-9)], 150e-9),
    "small steps": ([(16 * KIB, 1e-9), (128 * KIB, 2e-9), (4 * MIB, 6e-9)], 60e-9),
    "one cache": ([(256 * KIB, 2e-9)], 90e-9),
}


def sizes_to(most: int, per_octave: int = 4) -> tuple[int, ...]:
    return probe_levels.grid(4 * KIB, most, per_octave=per_octave, dense_until_bytes=most)


def least_recently_used(size: int, working_set: int, *, in_a_cycle: bool) -> float:
    """The share of hits of an LRU cache: in a cycle all or nothing, at random the part that the
    cache holds.
    """
    return float(working_set <= size) if in_a_cycle else min(1.0, size / working_set)


def curve(caches, memory_s, sizes, *, in_a_cycle: bool) -> list[LatencyPoint]:
    """The mean latency: each level answers what it hits and the levels before it do not."""
    points = []
    for size in sizes:
        seen, total_s = 0.0, 0.0
        for cache, latency_s in caches:
            hits = max(seen, least_recently_used(cache, size, in_a_cycle=in_a_cycle))
            total_s += (hits - seen) * latency_s
            seen = hits
        points.append(LatencyPoint(size, total_s + (1 - seen) * memory_s))
    return points


@pytest.mark.parametrize("in_a_cycle", [True, False])
@pytest.mark.parametrize("name", HIERARCHIES)
def test_exact_on_simulated_hierarchies(name, in_a_cycle):
    caches, memory_s = HIERARCHIES[name]
    points = curve(caches, memory_s, sizes_to(128 * MIB), in_a_cycle=in_a_cycle)
    assert find_change_points(points) == tuple(size for size, _ in caches)
    random.Random(0).shuffle(points)
    assert find_change_points(points) == tuple(size for size, _ in caches)


@pytest.mark.parametrize("per_octave", [2, 3, 8])
def test_exact_on_other_grids_when_lines_are_walked_in_a_cycle(per_octave):
    caches, memory_s = HIERARCHIES["desktop"]
    points = curve(caches, memory_s, sizes_to(128 * MIB, per_octave), in_a_cycle=True)
    assert find_change_points(points) == tuple(size for size, _ in caches)


@pytest.mark.parametrize("in_a_cycle", [True, False])
@pytest.mark.parametrize("per_octave", [2, 3, 4])
def test_exact_on_any_hierarchy_whose_sizes_and_latencies_at_least_double(per_octave, in_a_cycle):
    dice, sizes = random.Random(per_octave), sizes_to(128 * MIB, per_octave)
    for _ in range(100):
        place, latency_s, caches = dice.randint(2, 4) * per_octave, 1e-9, []
        while place < len(sizes) - per_octave and len(caches) < 4:
            caches.append((sizes[place], latency_s))
            place += dice.randint(per_octave + 1, 4 * per_octave)
            latency_s *= dice.uniform(2, 6)
        points = curve(caches, latency_s, sizes, in_a_cycle=in_a_cycle)
        assert find_change_points(points) == tuple(size for size, _ in caches), (caches, latency_s)


@pytest.mark.parametrize("ways", [None, 8])
@pytest.mark.parametrize("kibibytes", [(4, 32, 256), (16, 128)])
def test_exact_on_the_machines_of_the_simulator(kibibytes, ways):
    levels = [CacheLevel(size * KIB, 64, ways) for size in kibibytes]
    sizes = probe_levels.grid(KIB, kibibytes[-1] * 4 * KIB, per_octave=2, dense_until_bytes=MIB)
    latencies_s = (1e-9, 4e-9, 14e-9, 1e-7)[-len(levels) - 1 :]
    simulated = simulate_latency(levels, latencies_s, sizes)
    points = [LatencyPoint(point.working_set_bytes, point.latency_s) for point in simulated.points]
    assert find_change_points(points) == tuple(level.size_bytes for level in levels)


@pytest.mark.parametrize("in_a_cycle", [True, False])
@pytest.mark.parametrize("factor", [0.75, 1.1, 1.3, 1.45])
def test_a_size_between_two_points_is_known_to_one_step(factor, in_a_cycle):
    caches = [(int(size * factor), latency_s) for size, latency_s in HIERARCHIES["desktop"][0]]
    found = find_change_points(curve(caches, 110e-9, sizes_to(256 * MIB), in_a_cycle=in_a_cycle))
    assert len(found) == len(caches)
    for size, (true, _) in zip(found, caches, strict=True):
        assert 2**-0.26 < size / true < 2**0.26


@pytest.mark.parametrize("seed", range(10))
def test_noise_adds_time_and_moves_nothing_far(seed):
    caches, memory_s = HIERARCHIES["desktop"]
    noise = np.random.default_rng(seed)
    points = [
        LatencyPoint(point.working_set_bytes, point.latency_s * (1 + 0.02 * abs(noise.normal())))
        for point in curve(caches, memory_s, sizes_to(128 * MIB), in_a_cycle=True)
    ]
    disturbed = random.Random(seed).randrange(len(points) - 2)
    points[disturbed] = LatencyPoint(
        points[disturbed].working_set_bytes, 5 * points[disturbed].latency_s
    )
    assert find_change_points(points) == tuple(size for size, _ in caches)


def test_a_simulated_lru_hierarchy_counted_access_by_access_gives_its_sizes():
    lines = (64, 512)
    sizes = [round(2 ** (step / 2)) for step in range(8, 24)]
    points = [
        LatencyPoint(64 * size, mean_latency(size, lines, (1e-9, 4e-9, 16e-9))) for size in sizes
    ]
    assert find_change_points(points) == tuple(64 * line for line in lines)


def mean_latency(working_set: int, lines: tuple[int, ...], latencies_s: tuple[float, ...]) -> float:
    """Random loads from ``working_set`` lines through LRU caches that each see every access."""
    caches = [OrderedDict() for _ in lines]
    chosen, total_s, counted = random.Random(1), 0.0, 4000
    for access in range(counted + 2 * working_set):
        line, latency_s = chosen.randrange(working_set), latencies_s[-1]
        for cache, most, hit_s in reversed([*zip(caches, lines, latencies_s, strict=False)]):
            latency_s = hit_s if line in cache else latency_s
            cache[line] = None
            cache.move_to_end(line)
            if len(cache) > most:
                cache.popitem(last=False)
        total_s += latency_s * (access >= 2 * working_set)
    return total_s / counted


def test_a_finder_that_tells_less_apart_is_seen(monkeypatch):
    caches, memory_s = HIERARCHIES["server"]
    points = curve(caches, memory_s, sizes_to(128 * MIB), in_a_cycle=False)
    monkeypatch.setattr(changepoints, "_JUMP_TOLD_APART", 1.0)
    assert find_change_points(points) != tuple(size for size, _ in caches)


def test_a_flat_curve_has_no_cache_and_a_slow_drift_is_none():
    assert find_change_points([LatencyPoint(size, 1e-9) for size in sizes_to(64 * MIB)]) == ()
    drift = [LatencyPoint(size, 1e-9 * 1.01**step) for step, size in enumerate(sizes_to(64 * MIB))]
    assert find_change_points(drift) == ()


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([(1, 1e-9), (2, 1e-9)], "three or more"),
        ([(1, 1e-9), (2, 1e-9), (2, 1e-9)], "another working set"),
        ([(1, 1e-9), (2, 0.0), (3, 1e-9)], "above 0"),
        ([(1, 1e-9), (2, float("nan")), (3, 1e-9)], "above 0"),
    ],
)
def test_what_is_no_curve_is_refused(points, words):
    with pytest.raises(ValueError, match=words):
        find_change_points([LatencyPoint(*point) for point in points])


@pytest.mark.timed
def test_the_caches_of_one_core_are_where_the_system_says_within_a_factor_of_two():
    """L1 and L2 only: a last cache that is shared is as large as the other programs leave it."""
    walker = chase.find_walker()
    caches = probe_levels.card_levels(machine_card())[:2]
    if walker.walk is None or len(caches) < 2 or caches[1].shared_by > 2:
        pytest.skip("nothing to walk with, or no caches of one core that the system names")
    sizes = sizes_to(8 * caches[1].size_bytes)
    buffer = chase.chase_buffer(sizes[-1])
    # lines of small pages crowd some sets of L2 before it is full; L1's not
    if not chase.huge_pages(buffer):
        caches = caches[:1]
    least_s = dict.fromkeys(sizes, float("inf"))
    # other programs only add to a time, so that the minima repeat on a busy machine too
    for _ in range(32):
        for size in sizes:
            chase.link(buffer, size)
            least_s[size] = min(
                least_s[size], chase.walk_s(walker.walk, buffer, runs=3, run_s=1e-4)
            )
        found = find_change_points([LatencyPoint(size, each_s) for size, each_s in least_s.items()])
        shown = all(
            any(cache.size_bytes / 2 <= size <= 2 * cache.size_bytes for size in found)
            for cache in caches
        )
        if shown:
            break
    assert shown, (
        f"the system names {[cache.size_bytes for cache in caches]}, and the curve shows {found}"
    )
