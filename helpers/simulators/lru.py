"""One level of cache with the least recently used line replaced, walked exactly: compiled by numba, or in Python.

Both walks do the same and are tested against each other. What they take is a level's input with repetitions taken
out: of several touches of one line in a row, all but the first hit and only the writing matters.
"""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

COMPILED_FROM = 200_000  # touches; for fewer, numba's compilation takes longer than Python

_ABSENT, _CLEAN, _DIRTY = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Walk:
    """What a level did with its touches: counts, and in order the lines that it asked of (wrote to) the next level.

    For the library itself.
    """

    misses: int
    evictions: int
    write_backs: int
    dirty_lines: int
    next_lines: np.ndarray
    next_writes: np.ndarray


@dataclass(frozen=True, eq=False)
class Touches:
    """Lines touched, no line twice in a row; whether the first touch of each run wrote, and whether any did.

    For the library itself.
    """

    lines: np.ndarray
    first_writes: np.ndarray
    any_writes: np.ndarray


def without_repetitions(lines: np.ndarray, writes: np.ndarray) -> Touches:
    """Return the runs of touches of one line, in order. For the library itself."""
    if lines.size == 0:
        return Touches(lines, writes, writes)
    starts = np.flatnonzero(np.concatenate([[True], lines[1:] != lines[:-1]]))
    return Touches(lines[starts], writes[starts], np.logical_or.reduceat(writes, starts))


def walk(touches: Touches, *, sets: int, ways: int, fetches_before_writing: bool, compiled: bool | None = None) -> Walk:
    """Return what a level of ``sets`` x ``ways`` lines does with ``touches``, empty at first.

    A line stands in the set of its number modulo ``sets``. A miss asks the next level for the line (a missed write
    only if ``fetches_before_writing``), then writes the line that it replaces to the next level if that is dirty.
    ``compiled=None`` takes numba where it is installed and the touches are many. For the library itself.
    """
    compiled_walk = _compiled_walk() if compiled or (compiled is None and touches.lines.size >= COMPILED_FROM) else None
    if compiled_walk is None:
        return _walk_in_python(touches, sets, ways, fetches_before_writing)
    numbers, lines = _numbered(touches.lines)
    counts, next_lines, next_writes = compiled_walk(
        numbers, lines % sets, touches.first_writes, touches.any_writes, sets, ways, fetches_before_writing
    )
    return Walk(*(int(count) for count in counts), lines[next_lines], next_writes)


def _walk_in_python(touches: Touches, sets: int, ways: int, fetches_before_writing: bool) -> Walk:
    held: dict[int, OrderedDict[int, bool]] = defaultdict(OrderedDict)  # a set's lines, oldest first: is it dirty?
    misses = evictions = write_backs = 0
    next_lines: list[int] = []
    next_writes: list[bool] = []
    runs = zip(touches.lines.tolist(), touches.first_writes.tolist(), touches.any_writes.tolist(), strict=True)
    for line, wrote_first, wrote in runs:
        lines = held[line % sets]
        if line in lines:
            lines.move_to_end(line)
            if wrote:
                lines[line] = True
            continue
        misses += 1
        if fetches_before_writing or not wrote_first:
            next_lines.append(line)
            next_writes.append(False)
        if len(lines) == ways:
            victim, dirty = lines.popitem(last=False)
            evictions += 1
            if dirty:
                write_backs += 1
                next_lines.append(victim)
                next_writes.append(True)
        lines[line] = wrote
    dirty_lines = sum(sum(lines.values()) for lines in held.values())
    sent = np.array(next_lines, np.int64), np.array(next_writes, bool)
    return Walk(misses, evictions, write_backs, dirty_lines, *sent)


def _numbered(lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lines as numbers from 0, and the line of each number; some numbers may stand for no line touched."""
    low, high = int(lines.min()), int(lines.max())
    if high - low < 4 * lines.size:
        return lines - low, np.arange(low, high + 1)
    known, numbers = np.unique(lines, return_inverse=True)
    return numbers, known


@functools.cache
def _compiled_walk() -> Callable[..., tuple] | None:
    """Return the walk compiled by numba, None where numba is not installed; compiled once a process."""
    try:
        import numba
    except ImportError:
        return None
    return numba.njit(nogil=True)(_linked_walk)


def _linked_walk(numbers, set_of, first_writes, any_writes, sets, ways, fetches_before_writing):
    """The walk for numba: each set's lines are a doubly linked list by age, so a step costs the same for any ways."""
    state = np.zeros(set_of.size, np.uint8)
    newer, older = np.full(set_of.size, -1, np.int64), np.full(set_of.size, -1, np.int64)
    newest, oldest = np.full(sets, -1, np.int64), np.full(sets, -1, np.int64)
    held = np.zeros(sets, np.int64)
    next_lines, next_writes = np.empty(2 * numbers.size, np.int64), np.empty(2 * numbers.size, np.bool_)
    sent = misses = evictions = write_backs = 0
    for touch in range(numbers.size):
        line = numbers[touch]
        own = set_of[line]
        if state[line] == _ABSENT:
            misses += 1
            if fetches_before_writing or not first_writes[touch]:
                next_lines[sent], next_writes[sent] = line, False
                sent += 1
            if held[own] == ways:
                victim = oldest[own]
                oldest[own] = newer[victim]
                if oldest[own] < 0:
                    newest[own] = -1
                else:
                    older[oldest[own]] = -1
                evictions += 1
                if state[victim] == _DIRTY:
                    write_backs += 1
                    next_lines[sent], next_writes[sent] = victim, True
                    sent += 1
                state[victim] = _ABSENT
            else:
                held[own] += 1
            state[line] = _DIRTY if any_writes[touch] else _CLEAN
        else:
            if any_writes[touch]:
                state[line] = _DIRTY
            if newest[own] == line:
                continue
            newer_one, older_one = newer[line], older[line]
            older[newer_one] = older_one
            if older_one < 0:
                oldest[own] = newer_one
            else:
                newer[older_one] = newer_one
        older[line], newer[line] = newest[own], -1
        if newest[own] < 0:
            oldest[own] = line
        else:
            newer[newest[own]] = line
        newest[own] = line
    dirty_lines = np.sum(state == _DIRTY)
    return (misses, evictions, write_backs, dirty_lines), next_lines[:sent].copy(), next_writes[:sent].copy()
