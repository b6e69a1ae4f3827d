"""How long a load waits in buffers of many sizes: the fastest of many short runs, in turns.

Lesson 01.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from helpers import console, native
from helpers.results import Record

LINE_BYTES = 64

_LOADS = 4_000  # of a run, so short that many runs end before another program gets the core
_RUNS = 25
# lines of a run, so many that the first waits, which overlap with none before them, do not count
_GATHERED = 100_000
_MOST_WARMING = 2**20
_HELD_RATIO = 1.5  # a flushed load takes so many times as long where a cache held the line before
_REPEATS_RATIO = 1.25

Walk = Callable[[np.ndarray, int, int], int]
Link = Callable[[np.ndarray, np.random.Generator], object]
InOrder = Callable[[np.ndarray, int], object]
Gather = Callable[[np.ndarray, np.ndarray], object]
Flush = Callable[[np.ndarray], object]


class Waits(Record):
    """The seconds of one load by the size of its buffer, in ``sizes_bytes``: the fastest run of
    each.

    ``chase_s`` is a load of a chase that goes round and round, ``flushed_s`` one directly after the
    whole buffer was thrown out of every cache, ``in_order_s`` one of a loop over all lines in the
    order of their addresses, and ``gathered_s`` one of a loop over lines in a random order that is
    given beforehand. A tuple is empty where it was not measured. ``stable`` says that the passes
    agree within a quarter in the smallest and in the largest buffer, which the claims of lesson 01
    compare. Lesson 01.
    """

    sizes_bytes: tuple[int, ...]
    chase_s: tuple[float, ...]
    flushed_s: tuple[float, ...] = ()
    in_order_s: tuple[float, ...] = ()
    gathered_s: tuple[float, ...] = ()
    stable: bool = False

    @property
    def held_bytes(self) -> int | None:
        """The largest of the sizes, from the smallest up, that a cache held; None where no flush
        changed anything.

        A cache held the buffer where a load takes 1.5 times as long or longer once its lines are
        thrown out.
        """
        largest = 0
        for size, chase_s, flushed_s in zip(
            self.sizes_bytes, self.chase_s, self.flushed_s, strict=False
        ):
            if flushed_s < _HELD_RATIO * chase_s:
                break
            largest = size
        return largest or None

    @property
    def memory_s(self) -> float:
        """The seconds of a load from main memory: after a flush at the largest size, else the
        slowest chase.
        """
        return self.flushed_s[-1] if self.flushed_s else max(self.chase_s)


def measure_waits(
    walk: Walk,
    link: Link,
    buffers: Mapping[str, np.ndarray],
    *,
    sizes_bytes: Sequence[int],
    flush: Flush | None = None,
    in_order: InOrder | None = None,
    gather: Gather | None = None,
    passes: int = 2,
) -> dict[str, Waits]:
    """Return the waits in each of ``buffers`` (lines, 8), measured in turns at each of
    ``sizes_bytes``.

    Each size is measured in ``passes`` passes. ``link``, called as ``link(lines, generator)``,
    joins the first lines of a buffer into one cycle, and ``walk``, as ``walk(lines, line, loads)``,
    follows it and returns where it has come to; ``in_order``, as ``in_order(lines, times)``, reads
    one element from each line, so many times over; ``gather``, as ``gather(lines, order)``, reads
    one from each of the lines whose numbers ``order`` holds. With ``flush``, such as
    :func:`helpers.hardware.flush_caches`, the chase is repeated on lines that it has thrown out of
    every cache; where it raises NativeError, ``flushed_s`` is empty. Lesson 01.
    """
    flush = flush if flush is not None and _can_flush(flush) else None
    times_s: dict[tuple[str, str, int], list[float]] = {}
    for size_bytes in console.track(list(sizes_bytes) * passes, "chasing"):
        for name, buffer in buffers.items():
            lines = buffer[: size_bytes // LINE_BYTES]
            link(lines, np.random.default_rng(size_bytes))
            measured = {"chase": _chase_s(walk, lines)}
            if flush is not None:
                measured["flushed"] = _flushed_s(walk, lines, flush)
            if in_order is not None:
                measured["in order"] = _in_order_s(in_order, lines)
            if gather is not None:
                measured["gathered"] = _gathered_s(
                    gather, lines, np.random.default_rng(size_bytes + 1)
                )
            for kind, seconds in measured.items():
                times_s.setdefault((name, kind, size_bytes), []).append(seconds)
    return {name: _waits(name, sizes_bytes, times_s) for name in buffers}


def _waits(
    name: str, sizes_bytes: Sequence[int], times_s: Mapping[tuple[str, str, int], Sequence[float]]
) -> Waits:
    def curve(kind: str) -> tuple[float, ...]:
        return tuple(
            min(times_s[name, kind, size]) for size in sizes_bytes if (name, kind, size) in times_s
        )

    end_times = (
        passes
        for key, passes in times_s.items()
        if key[0] == name and key[2] in (min(sizes_bytes), max(sizes_bytes))
    )
    stable = all(
        len(passes) > 1 and max(passes) <= _REPEATS_RATIO * min(passes) for passes in end_times
    )
    return Waits(
        tuple(sizes_bytes),
        curve("chase"),
        curve("flushed"),
        curve("in order"),
        curve("gathered"),
        stable=stable,
    )


def _can_flush(flush: Flush) -> bool:
    try:
        flush(np.zeros(8, np.uint64))
    except native.NativeError:
        return False
    return True


def _chase_s(walk: Walk, lines: np.ndarray) -> float:
    line = walk(lines, 0, min(len(lines), _MOST_WARMING))
    return min(_runs_s(walk, lines, line, _LOADS, _RUNS))


def _flushed_s(walk: Walk, lines: np.ndarray, flush: Flush) -> float:
    """Return the seconds of a load from lines that are in no cache: no line is walked twice after a
    flush.
    """
    loads = min(_LOADS, len(lines))
    runs = min(_RUNS, len(lines) // loads)
    fastest_s = np.inf
    for _ in range(-(-_RUNS // (2 * runs))):
        flush(lines)
        fastest_s = min(fastest_s, *_runs_s(walk, lines, 0, loads, runs))
    return fastest_s


def _runs_s(walk: Walk, lines: np.ndarray, line: int, loads: int, runs: int) -> Iterator[float]:
    """Yield the seconds of a load in each of ``runs`` runs, each of which goes on where the one
    before it stopped.
    """
    for _ in range(runs):
        begin_s = time.perf_counter()
        line = walk(lines, line, loads)
        yield (time.perf_counter() - begin_s) / loads


def _in_order_s(in_order: InOrder, lines: np.ndarray) -> float:
    times = max(1, _LOADS // len(lines))
    in_order(lines, times)
    runs = max(3, min(_RUNS, 2**21 // len(lines)))
    return min(_call_s(in_order, lines, times) for _ in range(runs)) / (times * len(lines))


def _gathered_s(gather: Gather, lines: np.ndarray, random: np.random.Generator) -> float:
    """Return the seconds of a load from lines in a known random order, none of which an earlier run
    has read.
    """
    order = random.permutation(len(lines))
    begins = range(0, len(order) - _GATHERED + 1, _GATHERED)[:_RUNS]
    pieces = [order[begin : begin + _GATHERED] for begin in begins] or [order]
    return min(_call_s(gather, lines, piece) / len(piece) for piece in pieces)


def _call_s(function: Callable[..., object], *arguments: object) -> float:
    begin_s = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin_s
