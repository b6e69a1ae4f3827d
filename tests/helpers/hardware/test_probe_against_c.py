"""The probe's chase and triads beside compiled C that is written here, on the same memory, in
turns, minimum of 9.

C keeps its own time. What disagrees goes on, up to twelve times as long: other programs only add to
a time, so that the two minima of all turns come closer to those of a quiet machine with every turn.
Where a run is longer than a turn of the scheduler, both sides are timed by the thread's processor
time: a run in which no other program gets between may never come.
"""

import ctypes
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from helpers import native
from helpers.hardware import machine_card
from helpers.hardware.limits import (
    _bandwidth as bandwidth,
    _chase as chase,
    _levels as levels,
    _passes as probe_repeats,
)
from helpers.hardware.limits._passes import fastest_s
from helpers.timing import fixed_threads

pytestmark = pytest.mark.skipif(shutil.which("g++") is None or os.name != "posix", reason="no g++")

KIB, MIB = 2**10, 2**20
CPU = torch.device("cpu")
# where the system names no caches of its own
INSIDE = {"L2": 128 * KIB, "L3": 2 * MIB, "DRAM": 128 * MIB}
CACHES = levels.card_levels(machine_card())
INSIDE |= {
    each.name: levels.triad_bytes(CACHES, index, 1) // 64 * 64
    for index, each in enumerate(CACHES)
    if each.name in INSIDE
}
INSIDE["DRAM"] = max(INSIDE["DRAM"], levels.largest_bytes(CACHES, 1, None))
RUNS, TRIES = 9, 12
C = """#include <time.h>
#include <stdint.h>
static clockid_t chosen = CLOCK_MONOTONIC;
extern "C" void count_processor_time(bool on) { chosen = on ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC; }
static double now(void) { struct timespec t; clock_gettime(chosen, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
extern "C" double follow(const uint64_t* lines, uint64_t* place, int64_t steps) {
    double begin = now();
    const uint64_t* line = lines + *place;
    while (steps-- > 0) line = lines + *line;
    *place = line - lines;
    return now() - begin;
}
// The arrays hold whole lines of 16 numbers: the loop steps from number to number, or from line to line.
extern "C" double stream_triad(float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ c,
                               float s, int64_t n, int64_t repeats, bool by_line) {
    double begin = now();
    for (int64_t r = 0; r < repeats; ++r) {
        if (by_line)
            for (int64_t i = 0; i < n; i += 16)
                for (int64_t j = i; j < i + 16; ++j) a[j] = b[j] + s * c[j];
        else
            for (int64_t i = 0; i < n; ++i) a[i] = b[i] + s * c[i];
        __asm__ volatile("" : : "r"(a) : "memory");
    }
    return now() - begin;
}
"""  # noqa: E501


@dataclass
class Turns:
    """Times of two measurements taken in turns."""

    ours_s: list[float]
    theirs_s: list[float]

    @property
    def ratio(self) -> float:
        return min(self.ours_s) / min(self.theirs_s)


def in_turns(ours: Callable[[], float], theirs: Callable[[], float]) -> Turns:
    pairs = [(ours(), theirs()) for _ in range(RUNS)]
    return Turns([pair[0] for pair in pairs], [pair[1] for pair in pairs])


def assert_within(tolerance: float, ours: Callable[[], float], theirs: Callable[[], float]) -> None:
    all_turns, seen = Turns([], []), []
    for _ in range(TRIES):
        turns = in_turns(ours, theirs)
        all_turns.ours_s += turns.ours_s
        all_turns.theirs_s += turns.theirs_s
        seen.append(f"{turns.ratio:.3f}")
        within = 1 - tolerance <= all_turns.ratio <= 1 + tolerance
        if within:
            break
    assert within, (
        f"ours over C's is {all_turns.ratio:.3f} in all turns, and in each {RUNS} of them "
        f"{', '.join(seen)}"
    )


@pytest.fixture(scope="module")
def library():
    # Left alone, g++ takes half of the width of some processors with AVX-512.
    widest = ("-mprefer-vector-width=512",) if machine_card().architecture == "x86_64" else ()
    return native.compile_cpp(C, flags=(*native.CPP_FLAGS, "-falign-loops=64", *widest))


@pytest.fixture(scope="module")
def compiled(library):
    return (
        library.function(
            "double follow(const uint64_t* lines, uint64_t* place, int64_t steps)"
        ).raw,
        library.function(
            "double stream_triad(float* a, const float* b, const float* c, float s, int64_t n, "
            "int64_t repeats, bool by_line)"
        ).raw,
    )


@pytest.fixture
def processor_time(library, monkeypatch):
    """Ours and C's are timed by this thread's processor time: waiting for memory counts, for other
    programs not.
    """
    count = library.function("void count_processor_time(bool on)")
    for module in (chase, probe_repeats):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=time.thread_time))
    count(True)
    yield
    count(False)


@pytest.fixture(autouse=True)
def one_thread():
    with fixed_threads(1):
        yield


class Walks:
    """Ours and C's walk over one buffer: each goes on where the other one stopped."""

    def __init__(self, follow, buffer: np.ndarray, steps: int) -> None:
        self.follow, self.buffer, self.steps, self.index = follow, buffer, steps, 0
        self.walk = chase.find_walker().walk

    def ours(self) -> float:
        self.index, taken_s = chase._run(self.walk, self.buffer, self.index, self.steps)
        return taken_s

    def theirs(self) -> float:
        place = ctypes.c_uint64(self.index)
        taken_s = self.follow(self.buffer.ctypes.data, ctypes.addressof(place), self.steps)
        self.index = place.value
        return taken_s


@pytest.mark.timed
@pytest.mark.usefixtures("processor_time")
@pytest.mark.parametrize("level", INSIDE)
def test_our_chase_takes_the_time_of_one_in_c(level, compiled):
    buffer = chase.chase_buffer(INSIDE[level])
    chase.link(buffer, INSIDE[level])
    walks = Walks(compiled[0], buffer, 4000 if level == "DRAM" else 40_000)
    assert_within(0.15, walks.ours, walks.theirs)


@pytest.mark.timed
@pytest.mark.usefixtures("processor_time")
def test_a_walk_that_a_prefetcher_follows_is_seen(compiled):
    random_order, in_order = (chase.chase_buffer(INSIDE["DRAM"] // 2) for _ in range(2))
    chase.link(random_order, random_order.nbytes)
    lines = np.arange(0, len(in_order), 8, dtype=np.uint64)
    in_order[lines] = np.roll(lines, -1)
    wrong, right = (Walks(compiled[0], buffer, 4000) for buffer in (in_order, random_order))
    assert in_turns(wrong.ours, right.theirs).ratio < 0.5


@pytest.mark.timed
@pytest.mark.usefixtures("processor_time")
def test_the_latency_of_the_probe_is_that_of_its_walk(compiled):
    """walk_s divides by the steps: ten times the steps is ten times the time, and the same
    latency.
    """
    buffer = chase.chase_buffer(64 * KIB)
    chase.link(buffer, buffer.nbytes)
    walks = Walks(compiled[0], buffer, 40_000)
    walk = walks.walk
    assert_within(
        0.15, lambda: chase.walk_s(walk, buffer, runs=3), lambda: walks.theirs() / walks.steps
    )


def triad_in_c(stream_triad, arrays, repeats: int) -> Callable[[], float]:
    a, b, c = arrays

    def run() -> float:
        pointers = a.data_ptr(), b.data_ptr(), c.data_ptr()
        best_s = min(
            stream_triad(*pointers, 1.0, len(a), repeats, by_line) for by_line in (False, True)
        )
        return best_s / (repeats * 12 * len(a))

    return run


@pytest.mark.timed
@pytest.mark.usefixtures("processor_time")
def test_the_operators_triad_moves_the_bytes_of_one_in_c(compiled):
    pool = bandwidth.pool(INSIDE["DRAM"], CPU)
    triad = bandwidth.operators(pool, INSIDE["DRAM"])["triad"]
    theirs = triad_in_c(compiled[1], bandwidth.arrays(pool, INSIDE["DRAM"], 3), 1)
    ours = lambda: fastest_s(triad.fn, CPU, budget_s=0) / triad.moved_bytes  # noqa: E731
    assert_within(0.1, ours, lambda: min(theirs() for _ in range(4)))


@pytest.mark.timed
@pytest.mark.parametrize("level", ["L1", "L2", "L3"])
def test_the_compiled_triad_moves_the_bytes_of_one_in_c(level, compiled):
    size = {"L1": 16 * KIB, **INSIDE}[level]
    ours = bandwidth.compiled_triad(1)
    theirs = triad_in_c(
        compiled[1], bandwidth.arrays(bandwidth.pool(size, CPU), size, 3), max(5, 20 * MIB // size)
    )
    assert_within(
        0.15 if level == "L1" else 0.1,
        lambda: 1 / ours(size),
        lambda: min(theirs() for _ in range(10)),
    )


@pytest.mark.timed
@pytest.mark.usefixtures("processor_time")
def test_a_triad_counted_as_two_arrays_is_seen(compiled):
    pool = bandwidth.pool(INSIDE["L3"], CPU)
    triad = bandwidth.operators(pool, INSIDE["L3"])["triad"]
    theirs = triad_in_c(compiled[1], bandwidth.arrays(pool, INSIDE["L3"], 3), 10)
    for _ in range(TRIES):
        turns = in_turns(
            lambda: fastest_s(triad.fn, CPU, budget_s=0) / (triad.moved_bytes * 2 / 3), theirs
        )
        if turns.ratio > 1.1:
            break
    assert turns.ratio > 1.1, f"a triad counted as two arrays passes for one of three: {turns}"


# --- what is exact


@pytest.mark.parametrize(
    ("size", "line"), [(128, 64), (4096, 64), (100 * 64 + 63, 64), (64 * KIB, 128)]
)
def test_the_links_are_one_cycle_over_every_line(size, line):
    buffer = chase.chase_buffer(128 * KIB)
    chase.link(buffer, size, line_bytes=line, seed=3)
    index, seen = 0, []
    for _ in range(size // line):
        seen.append(index * 8)
        index = int(buffer[index])
    assert index == 0
    assert sorted(seen) == list(range(0, size // line * line, line))
    assert not buffer[size // line * line // 8 :].any()
    strides = np.diff(seen)
    assert size < 4096 or np.mean(np.abs(strides) == line) < 0.1


def test_every_walker_ends_where_a_loop_in_python_ends(monkeypatch, tmp_path):
    buffer = chase.chase_buffer(64 * KIB)
    chase.link(buffer, 64 * KIB)
    index = 0
    for _ in range(777):
        index = int(buffer[index])
    assert chase.find_walker().name == "C++"
    assert chase.find_walker().walk(buffer, 0, 777) == index
    pytest.importorskip("numba")
    assert chase._numba_walker("no compiler").walk(buffer, 0, 777) == index


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModuleNotFoundError("No module named 'numba'"), "numba is not installed"),
        (
            ImportError("Numba needs NumPy 2.3 or less"),
            "numba does not load (Numba needs NumPy 2.3 or less)",
        ),
    ],
)
def test_a_numba_that_is_missing_and_one_that_does_not_load_are_told_apart(
    error, words, monkeypatch
):
    def refuse(reason):
        raise error

    monkeypatch.setenv("CXX", "/nonexistent/c++")
    monkeypatch.setattr(chase, "_numba_walker", refuse)
    walker = chase.find_walker()
    assert (walker.name, walker.walk) == ("none", None)
    assert walker.reason.endswith(f", and {words}")


@pytest.mark.parametrize("size", [64, 256 * KIB])
def test_a_working_set_that_cannot_be_linked_is_refused(size):
    with pytest.raises(ValueError, match="cannot be linked: give at least two lines"):
        chase.link(chase.chase_buffer(128 * KIB), size)


def test_huge_pages_are_read_from_the_mapping_that_holds_the_buffer(tmp_path):
    buffer = chase.chase_buffer(4 * MIB)
    begin = buffer.ctypes.data
    text = (
        f"1000-2000 rw-p 0 0:0 0\nAnonHugePages:      4096 kB\n{begin:x}-{begin + 6 * MIB:x} rw-p "
        f"0 0:0 0\nSize: 6144 kB\nAnonHugePages:      {{}} kB\n"
    )
    for kilobytes, answer in ((4096, True), (2048, False), (0, False)):
        (tmp_path / "smaps").write_text(text.format(kilobytes))
        assert chase.huge_pages(buffer, maps=tmp_path / "smaps") is answer
    assert chase.huge_pages(buffer, maps=tmp_path / "none") is None
    (tmp_path / "smaps").write_text("")
    assert chase.huge_pages(buffer, maps=tmp_path / "smaps") is None


def test_a_system_without_huge_pages_gives_small_ones(monkeypatch):
    monkeypatch.setattr(chase.mmap, "MADV_HUGEPAGE", 12345, raising=False)
    assert len(chase.chase_buffer(128 * KIB)) == 16 * KIB
    monkeypatch.delattr(chase.mmap, "MADV_HUGEPAGE")
    assert not chase.chase_buffer(128 * KIB).any()


def test_operators_compute_what_they_say_inside_their_working_set():
    pool = bandwidth.pool(1200 * 4, CPU)
    size = 960 * 4
    operators = bandwidth.operators(pool, size)
    assert {name: each.moved_bytes for name, each in operators.items()} == {
        "read": size,
        "write": size,
        "copy": size,
        "triad": size,
        "scale": 2 * size,
    }
    assert tuple(operators) == bandwidth.KERNELS
    assert operators["read"].fn().item() == 960
    pool[:960] = torch.arange(960.0)
    a, b, c = bandwidth.arrays(pool, size, 3)
    operators["triad"].fn()
    assert torch.equal(a, b + c)
    operators["copy"].fn()
    assert torch.equal(pool[:480], pool[480:960])
    operators["write"].fn()
    operators["scale"].fn()
    assert pool.eq(1).all()
    with pytest.raises(ValueError, match="do not fit"):
        bandwidth.operators(pool, 8 * KIB)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_team_of_threads_computes_the_triad_on_arrays_of_its_own(threads, monkeypatch):
    made = []
    arrays = bandwidth.arrays
    monkeypatch.setattr(
        bandwidth, "arrays", lambda *arguments: made.append(arrays(*arguments)) or made[-1]
    )
    assert bandwidth.compiled_triad(threads)(threads * 12 * KIB) > 0
    assert len(made) == threads
    assert all(len(a) == KIB and a.eq(2).all() for a, _, _ in made)
    assert len({a.data_ptr() for a, _, _ in made}) == threads
