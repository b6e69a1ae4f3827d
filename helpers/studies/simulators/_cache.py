"""Caches simulated exactly: what hits, what misses, and every byte that moves between the levels.

A stream of accesses is byte addresses in program order, each a read or a write.

Each level is set-associative, replaces the least recently used line, writes back and allocates on a
write. A miss asks the next level for the line; a dirty line that is replaced is written to the next
level, after the miss was served. The levels are neither inclusive nor exclusive: a line that leaves
an outer level may stay in an inner one. A line written back whole takes its place in the next level
without being read first.

Simulated are these rules, not a processor: no prefetching, no virtual memory, no other program.
Lesson 01.
"""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from helpers.checks import members, numbers, one_of, random_seed, whole_number
from helpers.results import Record

_LAST_ADDRESS = 2**63 - 1
_MOST_ACCESSES = 2**25


@dataclass(frozen=True, eq=False)
class AddressStream:
    """Accesses in program order: ``addresses`` in bytes (int64), ``writes`` (True: it writes),
    ``access_bytes`` each.

    Any sequence of whole numbers serves as ``addresses``; ``writes`` may be one bool for all.
    Raises TypeError or ValueError for what is no such stream. Lesson 01.
    """

    addresses: np.ndarray
    writes: np.ndarray | bool = False
    access_bytes: int = 4

    def __post_init__(self) -> None:
        addresses = np.asarray(self.addresses)
        if addresses.ndim != 1 or (addresses.size and addresses.dtype.kind not in "iu"):
            raise TypeError(
                "addresses are whole numbers in one row (bytes from the start of memory), not "
                f"{addresses.dtype} of shape {addresses.shape}"
            )
        writes = np.asarray(self.writes)
        if writes.dtype != bool or (writes.ndim and writes.shape != addresses.shape):
            raise TypeError(
                f"writes is one bool, or one for each of the {addresses.size:,} addresses, not "
                f"{writes.dtype} of shape {writes.shape}"
            )
        whole_number("access_bytes", self.access_bytes)
        if addresses.size and int(addresses.min()) < 0:
            raise ValueError(
                f"an address is 0 or more; the smallest given is {int(addresses.min())}"
            )
        if addresses.size and int(addresses.max()) > _LAST_ADDRESS - self.access_bytes:
            raise ValueError(
                f"addresses are below 2^63; the largest given is {int(addresses.max())}"
            )
        object.__setattr__(self, "addresses", addresses.astype(np.int64, copy=False))
        object.__setattr__(self, "writes", np.broadcast_to(writes, addresses.shape))

    def __len__(self) -> int:
        return self.addresses.size

    def lines(self, line_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of the lines touched, and whether each touch writes.

        An access that crosses the border of a line touches both lines, so there may be more touches
        than accesses. Lesson 01.
        """
        first_lines = self.addresses // line_bytes
        line_counts = (self.addresses + self.access_bytes - 1) // line_bytes - first_lines + 1
        if not len(self) or line_counts.max() == 1:
            return first_lines, np.asarray(self.writes)
        starts = np.cumsum(line_counts) - line_counts
        within = np.arange(int(line_counts.sum())) - np.repeat(starts, line_counts)
        return np.repeat(first_lines, line_counts) + within, np.repeat(self.writes, line_counts)


def join_streams(streams: Sequence[AddressStream]) -> AddressStream:
    """Return the streams one after another; ValueError unless all have the same ``access_bytes``.

    Lesson 02.
    """
    streams = members("streams", streams, "address streams", kind=AddressStream)
    widths = sorted({stream.access_bytes for stream in streams})
    if len(widths) != 1:
        raise ValueError(
            f"streams of one access width can be joined; these have {widths or 'none'} bytes an "
            "access"
        )
    return AddressStream(
        np.concatenate([stream.addresses for stream in streams]),
        np.concatenate([stream.writes for stream in streams]),
        widths[0],
    )


def sequential(count: int) -> AddressStream:
    """Return the loads of ``count`` numbers of 4 bytes one after another. Lesson 01."""
    return strided(count, stride_bytes=4)


def strided(count: int, *, stride_bytes: int) -> AddressStream:
    """Return the loads of ``count`` numbers of 4 bytes, each ``stride_bytes`` behind the last.

    >>> strided(3, stride_bytes=256).addresses.tolist()
    [0, 256, 512]

    Lesson 02.
    """
    whole_number("count", count, at_most=_MOST_ACCESSES)
    whole_number("stride_bytes", stride_bytes, at_most=_LAST_ADDRESS // _MOST_ACCESSES)
    return AddressStream(stride_bytes * np.arange(count, dtype=np.int64))


def pointer_chase(
    working_set_bytes: int, *, step_bytes: int = 64, laps: int = 1, seed: int = 0
) -> AddressStream:
    """Return the loads of a pointer chase: each step of ``working_set_bytes`` once a lap, in one
    random order.

    A load reads 8 bytes, the address of the next. A step is ``step_bytes``; there are ``laps``
    laps, and ``seed`` decides the order. Raises ValueError for a working set without a whole step.
    """
    whole_number("step_bytes", step_bytes, at_least=8)
    whole_number("working_set_bytes", working_set_bytes, at_least=step_bytes)
    whole_number("laps", laps)
    steps = working_set_bytes // step_bytes
    if steps * laps > _MOST_ACCESSES:
        raise ValueError(
            f"a chase through that working set is {steps * laps:,} accesses, and at most "
            f"{_MOST_ACCESSES:,} are simulated; give less"
        )
    order = np.random.default_rng(random_seed(seed)).permutation(steps)
    return AddressStream(np.tile(order * step_bytes, laps), False, 8)


_COMPILED_FROM = 200_000  # touches; for fewer, numba's compilation takes longer than Python

_ABSENT, _CLEAN, _DIRTY = 0, 1, 2


class CacheLevel(Record):
    """One level of cache: ``ways`` lines a set; None makes it fully associative, one set of all
    lines.

    A line belongs to the set of its number modulo the number of sets, which need not be a power of
    two. Raises ValueError for a line that is no power of two bytes, or a size that is not whole
    sets. Lesson 01.
    """

    size_bytes: int
    line_bytes: int = 64
    ways: int | None = None

    def __post_init__(self) -> None:
        whole_number("size_bytes", self.size_bytes)
        whole_number("line_bytes", self.line_bytes)
        if self.line_bytes & (self.line_bytes - 1):
            raise ValueError(
                f"line_bytes is a power of two (32, 64, 128, ...); got {self.line_bytes}"
            )
        if self.size_bytes % self.line_bytes:
            raise ValueError(
                f"size_bytes is whole lines of {self.line_bytes} bytes; {self.size_bytes:,} is not"
            )
        if self.ways is None:
            return
        whole_number("ways", self.ways)
        if self.lines % self.ways:
            raise ValueError(
                f"{self.lines:,} lines do not divide into sets of {self.ways} ways; give a ways "
                "that divides the number of lines, or None for one set of all"
            )

    @property
    def lines(self) -> int:
        """The number of lines that the level holds."""
        return self.size_bytes // self.line_bytes

    @property
    def sets(self) -> int:
        """The number of sets: 1 when fully associative."""
        return 1 if self.ways is None else self.lines // self.ways


class LevelCounts(Record):
    """The counts of one level.

    ``reads`` and ``writes`` are touches of its lines, by the program or by the level before.
    ``read_bytes`` came from the next level (memory behind the last), ``written_bytes`` went to it;
    ``dirty_lines`` are still to be written when the stream ends. Lesson 01.
    """

    level: str
    size_bytes: int
    line_bytes: int
    ways: int
    reads: int
    writes: int
    hits: int
    misses: int
    miss_share: float
    evictions: int
    write_backs: int
    dirty_lines: int
    read_bytes: int
    written_bytes: int


class CacheRun(Record):
    """A stream through a hierarchy.

    ``asked_bytes`` is what the program asked for; the rest moved at memory's side.
    ``split_accesses`` crossed the border of a line and touched two or more of them. Lesson 01.
    """

    accesses: int
    split_accesses: int
    asked_bytes: int
    memory_read_bytes: int
    memory_written_bytes: int
    levels: tuple[LevelCounts, ...]


class ChasePoint(Record):
    """The mean latency of a load of a random pointer chase through ``working_set_bytes``.

    Lesson 01.
    """

    working_set_bytes: int
    latency_s: float
    memory_share: float


class LatencyCurve(Record):
    """The latency of a simulated machine by working set; ``levels`` and ``latencies_s`` are the
    machine.

    Lesson 01.
    """

    latencies_s: tuple[float, ...]
    levels: tuple[CacheLevel, ...] = field(repr=False)
    points: tuple[ChasePoint, ...]


def simulate_caches(stream: AddressStream, levels: Sequence[CacheLevel]) -> CacheRun:
    """Return exact counts of the ``levels``, nearest first and empty at first, for ``stream``.

    A million accesses take under a second with numba (after its compilation, once a process);
    without it, several seconds where most of them miss. Raises TypeError or ValueError for no
    stream, no level, or a level whose lines are shorter than those of the level before. Lesson 01.
    """
    one_of(
        "stream",
        stream,
        AddressStream,
        "an address stream, such as sequential(100) or AddressStream(addresses)",
    )
    levels = _check_levels(levels)
    line_bytes = levels[0].line_bytes
    lines, writes = stream.lines(line_bytes)
    splits = stream.addresses % line_bytes + stream.access_bytes > line_bytes
    level_counts: list[LevelCounts] = []
    for index, level in enumerate(levels):
        lines_in_one = level.line_bytes // levels[max(index - 1, 0)].line_bytes
        counts, lines, writes = _simulate_level(
            f"L{index + 1}",
            level,
            lines // lines_in_one,
            writes,
            fetches_before_writing=index == 0 or lines_in_one > 1,
        )
        level_counts.append(counts)
    return CacheRun(
        accesses=len(stream),
        split_accesses=int(np.count_nonzero(splits)),
        asked_bytes=len(stream) * stream.access_bytes,
        memory_read_bytes=level_counts[-1].read_bytes,
        memory_written_bytes=level_counts[-1].written_bytes,
        levels=tuple(level_counts),
    )


def simulate_latency(
    levels: Sequence[CacheLevel],
    latencies_s: Sequence[float],
    working_sets_bytes: Sequence[int],
    *,
    seed: int = 0,
) -> LatencyCurve:
    """Return the mean latency of a warm random pointer chase, one load a line, for each of
    ``working_sets_bytes``.

    ``levels`` are the caches, the nearest first; ``latencies_s`` are seconds from a load to its
    value when it hits in each, and last when it goes to memory: one more than there are levels. A
    chase, in an order by ``seed``, walks two laps, and the second counts: its hits and misses are
    exact, and its time is their latencies' sum, for each load waits for the one before.

    Raises ValueError for latencies that are too few or do not grow, and as :func:`simulate_caches`.
    Lesson 01.
    """
    levels = _check_levels(levels)
    latencies = tuple(numbers("latencies_s", latencies_s))
    sizes = members("working_sets_bytes", working_sets_bytes, "sizes in bytes")
    if (
        len(latencies) != len(levels) + 1
        or list(latencies) != sorted(latencies)
        or not latencies[0] > 0
    ):
        raise ValueError(
            f"give {len(levels) + 1} latencies in seconds, from the nearest level's to memory's, "
            f"each above 0 and not below the one before; got {latencies}"
        )
    points = tuple(_chase_point(levels, latencies, size, seed) for size in sizes)
    return LatencyCurve(latencies_s=latencies, levels=levels, points=points)


def _chase_point(
    levels: Sequence[CacheLevel], latencies_s: Sequence[float], size_bytes: int, seed: int
) -> ChasePoint:
    step = levels[0].line_bytes
    one_lap, two_laps = (
        _count_served(pointer_chase(size_bytes, step_bytes=step, laps=laps, seed=seed), levels)
        for laps in (1, 2)
    )
    second_lap = two_laps - one_lap
    loads = int(second_lap.sum())
    return ChasePoint(
        working_set_bytes=size_bytes,
        latency_s=float(second_lap @ np.array(latencies_s)) / loads,
        memory_share=int(second_lap[-1]) / loads,
    )


def _count_served(loads: AddressStream, levels: Sequence[CacheLevel]) -> np.ndarray:
    """Return how many of the loads each level served, memory last: every miss of a level is a touch
    of the next.
    """
    run = simulate_caches(loads, levels)
    return np.array([*(level.hits for level in run.levels), run.levels[-1].misses])


def _check_levels(levels: Sequence[CacheLevel]) -> tuple[CacheLevel, ...]:
    accepted = "CacheLevel, the one nearest to the processor first: [CacheLevel(32768, ways=8)]"
    hierarchy = tuple(members("levels", levels, accepted, kind=CacheLevel))
    if not hierarchy:
        raise ValueError(f"levels is empty; give a list of {accepted}")
    lines = [level.line_bytes for level in hierarchy]
    if lines != sorted(lines):
        raise ValueError(
            f"a level's lines are at least as long as those of the level before; got {lines} bytes"
        )
    return hierarchy


def _simulate_level(
    name: str,
    level: CacheLevel,
    lines: np.ndarray,
    writes: np.ndarray,
    *,
    fetches_before_writing: bool,
) -> tuple[LevelCounts, np.ndarray, np.ndarray]:
    """Return the counts of touches of a level, empty at first, and in order the lines that it asked
    of the next level or wrote to it, and which of them it wrote.

    A line stands in the set of its number modulo the sets. A miss asks the next level for the line
    (a missed write only if ``fetches_before_writing``), then writes the line that it replaces to
    the next level if that is dirty. numba walks where it is installed and the touches are many,
    else Python; both do the same.
    """
    ways = level.lines // level.sets
    touches = _merge_repeats(lines, writes)
    compiled_walk = _compile_walk() if touches[0].size >= _COMPILED_FROM else None
    if compiled_walk is None:
        counts, next_lines, next_writes = _walk_in_python(
            *touches, level.sets, ways, fetches_before_writing
        )
    else:
        numbers, known = _number_lines(touches[0])
        counts, next_numbers, next_writes = compiled_walk(
            numbers, known % level.sets, *touches[1:], level.sets, ways, fetches_before_writing
        )
        next_lines = known[next_numbers]
    misses, evictions, write_backs, dirty_lines = map(int, counts)
    written = int(np.count_nonzero(writes))
    level_counts = LevelCounts(
        level=name,
        size_bytes=level.size_bytes,
        line_bytes=level.line_bytes,
        ways=ways,
        reads=writes.size - written,
        writes=written,
        hits=writes.size - misses,
        misses=misses,
        miss_share=misses / writes.size if writes.size else 0.0,
        evictions=evictions,
        write_backs=write_backs,
        dirty_lines=dirty_lines,
        read_bytes=(next_writes.size - write_backs) * level.line_bytes,
        written_bytes=write_backs * level.line_bytes,
    )
    return level_counts, next_lines, next_writes


def _merge_repeats(
    lines: np.ndarray, writes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the lines touched, no line twice in a row; whether the first touch of each run wrote,
    and whether any did.
    """
    if lines.size == 0:
        return lines, writes, writes
    starts = np.flatnonzero(np.concatenate([[True], lines[1:] != lines[:-1]]))
    return lines[starts], writes[starts], np.logical_or.reduceat(writes, starts)


def _walk_in_python(
    lines: np.ndarray,
    first_writes: np.ndarray,
    any_writes: np.ndarray,
    sets: int,
    ways: int,
    fetches_before_writing: bool,
) -> tuple[tuple[int, ...], np.ndarray, np.ndarray]:
    # a set's lines, oldest first: is it dirty?
    cache_sets: dict[int, OrderedDict[int, bool]] = defaultdict(OrderedDict)
    misses = evictions = write_backs = 0
    next_lines: list[int] = []
    next_writes: list[bool] = []
    touches = (array.tolist() for array in (lines, first_writes, any_writes))
    for line, wrote_first, wrote in zip(*touches, strict=True):
        held = cache_sets[line % sets]
        if line in held:
            held.move_to_end(line)
            held[line] |= wrote
            continue
        misses += 1
        if fetches_before_writing or not wrote_first:
            next_lines.append(line)
            next_writes.append(False)
        if len(held) == ways:
            victim, dirty = held.popitem(last=False)
            evictions += 1
            if dirty:
                write_backs += 1
                next_lines.append(victim)
                next_writes.append(True)
        held[line] = wrote
    dirty_lines = sum(sum(held.values()) for held in cache_sets.values())
    counts = (misses, evictions, write_backs, dirty_lines)
    return counts, np.array(next_lines, np.int64), np.array(next_writes, bool)


def _number_lines(lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lines as numbers from 0, and the line of each number; some numbers may stand for
    no line touched.
    """
    low, high = int(lines.min()), int(lines.max())
    if high - low < 4 * lines.size:
        return lines - low, np.arange(low, high + 1)
    known, numbers = np.unique(lines, return_inverse=True)
    return numbers, known


@functools.cache
def _compile_walk() -> Callable[..., tuple] | None:
    """Return the walk compiled by numba, None where numba is not installed; compiled once a
    process.
    """
    try:
        import numba
    except ImportError:
        return None
    return numba.njit(nogil=True)(_linked_walk)


def _linked_walk(numbers, set_of, first_writes, any_writes, sets, ways, fetches_before_writing):
    """The walk for numba: each set's lines are a doubly linked circle by age, so a step costs the
    same for any ways.
    """
    count = set_of.size
    state = np.zeros(count, np.uint8)
    # beside the lines stands the end of each circle, between its newest and its oldest line
    newer, older = np.arange(count + sets), np.arange(count + sets)
    line_counts = np.zeros(sets, np.int64)
    next_lines = np.empty(2 * numbers.size, np.int64)
    next_writes = np.empty(2 * numbers.size, np.bool_)
    sent = misses = evictions = write_backs = 0
    for touch in range(numbers.size):
        line = numbers[touch]
        leaving, end = line, count + set_of[line]
        if state[line] == _ABSENT:
            misses += 1
            if fetches_before_writing or not first_writes[touch]:
                next_lines[sent], next_writes[sent] = line, False
                sent += 1
            if line_counts[set_of[line]] == ways:
                leaving = newer[end]
                evictions += 1
                if state[leaving] == _DIRTY:
                    write_backs += 1
                    next_lines[sent], next_writes[sent] = leaving, True
                    sent += 1
                state[leaving] = _ABSENT
            else:
                line_counts[set_of[line]] += 1
            state[line] = _CLEAN
        if any_writes[touch]:
            state[line] = _DIRTY
        # the line that leaves its place; one that was in no circle stands between itself and itself
        newer[older[leaving]], older[newer[leaving]] = newer[leaving], older[leaving]
        newer[line], older[line] = end, older[end]
        newer[older[end]] = line
        older[end] = line
    dirty_lines = np.sum(state == _DIRTY)
    return (
        (misses, evictions, write_backs, dirty_lines),
        next_lines[:sent].copy(),
        next_writes[:sent].copy(),
    )
