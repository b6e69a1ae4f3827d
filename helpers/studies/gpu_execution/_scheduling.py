"""A scheduler of a multiprocessor: while a warp waits for its data, it issues the instructions of
other warps.

A model, cycle by cycle, of what NVIDIA's CUDA C++ Programming Guide says in "Hardware
Multithreading": the registers of every warp stay where they are, so the change to another warp
costs nothing. Which of several ready warps NVIDIA's schedulers take is not published; here it is
the one that is ready for longest, and it goes on as long as it can.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import field

from helpers.checks import number, whole_number
from helpers.results import Record
from helpers.studies.gpu_execution._requests import WARP_LANES, WORD_BYTES

LOAD_BYTES = WARP_LANES * WORD_BYTES
_MOST_TURNS = 100_000


class Turn(Record):
    """A turn of a warp: from ``start`` it issues, at ``stop`` it begins to wait, at ``ready`` its
    data have come.

    All three are in cycles. Lesson 03.
    """

    warp: int
    start: int
    stop: int
    ready: float


class Schedule(Record):
    """The turns and rates of a scheduler with ``warps`` warps, each with ``loads`` loads in flight
    while it waits.

    ``busy_share`` is the share of cycles in which it issued an instruction, ``bytes_per_cycle`` the
    rate at which the memory delivered, ``bytes_in_flight`` what was on its way on average. The
    three are those of the second half of the rounds, when the pattern repeats. Lesson 03.
    """

    warps: int
    loads: int
    busy_share: float
    bytes_per_cycle: float
    bytes_in_flight: float
    turns: tuple[Turn, ...] = field(repr=False)


def run_scheduler(
    warps: int,
    *,
    latency_cycles: int,
    loads: int = 1,
    computing: int = 1,
    most_bytes_per_cycle: float = math.inf,
    rounds: int = 20,
) -> Schedule:
    """Return the :class:`Schedule` of ``warps`` warps that each compute, load and wait, ``rounds``
    times.

    In a turn a warp issues ``computing`` instructions and then ``loads`` loads of 128 bytes, one
    instruction per cycle, and waits until all its data have come, ``latency_cycles`` after each
    load. The memory delivers at most ``most_bytes_per_cycle``, so that loads queue beyond it.
    Without that limit the scheduler is busy for min(1, warps n / T), with n = computing + loads
    instructions per turn and T = n - 1 + latency_cycles cycles from one turn of a single warp to
    its next. With it, Little's law says how many bytes must be in flight: most_bytes_per_cycle x
    latency_cycles.

    Raises ValueError for numbers below 1, for fewer than 2 rounds and for over 100,000 turns.

    >>> [run_scheduler(warps, latency_cycles=19).busy_share for warps in (1, 4, 10, 12)]
    [0.1, 0.4, 1.0, 1.0]

    Lesson 03.
    """
    whole_number("warps", warps, at_most=_MOST_TURNS)
    whole_number("rounds", rounds, at_least=2, at_most=_MOST_TURNS)
    whole_number("latency_cycles", latency_cycles)
    whole_number("loads", loads)
    whole_number("computing", computing)
    if warps * rounds > _MOST_TURNS:
        raise ValueError(
            f"{warps:,} warps and {rounds:,} rounds are {warps * rounds:,} turns; give fewer, at "
            f"most {_MOST_TURNS:,}"
        )
    transfer = _transfer_cycles(most_bytes_per_cycle)
    waiting = [(0.0, warp) for warp in range(warps)]
    turns: list[Turn] = []
    flights: list[tuple[int, float]] = []
    first_turns: list[int] = []
    cycle, port = 0, 0.0
    while len(first_turns) <= rounds:
        ready, warp = heapq.heappop(waiting)
        start = max(cycle, math.ceil(ready))
        if warp == 0:
            first_turns.append(start)
        cycle = start + computing + loads
        for issued in range(start + computing, cycle):
            port = max(port, issued)
            flights.append((issued, port + latency_cycles))
            port += transfer
        turns.append(Turn(warp, start, cycle, flights[-1][1]))
        heapq.heappush(waiting, (turns[-1].ready, warp))
    begin, end = first_turns[rounds // 2], first_turns[rounds]
    counted_turns = sum(begin <= turn.start < end for turn in turns)
    in_flight = sum(max(0.0, min(arrived, end) - max(issued, begin)) for issued, arrived in flights)
    return Schedule(
        warps,
        loads,
        busy_share=counted_turns * (computing + loads) / (end - begin),
        bytes_per_cycle=LOAD_BYTES * counted_turns * loads / (end - begin),
        bytes_in_flight=LOAD_BYTES * in_flight / (end - begin),
        turns=tuple(turns),
    )


def _transfer_cycles(most_bytes_per_cycle: float) -> float:
    """Return the cycles for which a load keeps the memory busy."""
    if most_bytes_per_cycle == math.inf:
        return 0.0
    return LOAD_BYTES / number("most_bytes_per_cycle", most_bytes_per_cycle, above=0)
