"""Data laid out over memory channels, for one thread and for many: computed by a model, measured by
threads.

A processor reaches its memory through several channels, and hands addresses to them in turns
(interleaving). How that is done here no program can read; what can be seen is how the bandwidth
grows with the threads that read. Lesson 01.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np

from helpers.checks import members, short, whole_number
from helpers.hardware._card import MachineCard
from helpers.hardware._machine import machine_card
from helpers.results import Record
from helpers.studies.data_movement._order import beyond_caches_bytes, kernels, line_size_bytes
from helpers.timing import compare

CHUNK_BYTES = 4096
BLOCKS, TURNS = "blocks", "turns"

_MOST_THREADS, _MOST_UNITS = 64, 10**8
_PRECISION = 0.1


class ChannelUse(Record):
    """How evenly some threads load the channels: ``used_share`` is the part of all channels' time
    spent serving.

    A step is the time in which a channel serves one unit of ``interleave_bytes``;
    ``most_on_one_channel`` is the largest number of units that any channel serves in all. Lesson
    01.
    """

    channels: int
    threads: int
    interleave_bytes: int
    units_in_flight: int
    units: int
    steps: int
    most_on_one_channel: int
    used_share: float


class ThreadsRow(Record):
    """A buffer read once by ``threads`` threads: in ``blocks`` (each a part of its own) or in
    ``turns`` of chunks.

    ``lines_in_flight`` is Little's law, bandwidth times latency over the line: how many lines are
    on their way at once; None where no latency was given. Lesson 01.
    """

    layout: str
    threads: int
    pass_s: float
    bandwidth_bytes_per_s: float
    speedup: float
    lines_in_flight: float | None


class ChannelSweep(Record):
    """Read bandwidth of main memory by threads and layout; ``reason`` says why it is not
    ``stable``.

    Lesson 01.
    """

    engine: str
    buffer_bytes: int
    chunk_bytes: int
    stable: bool
    reason: str
    rows: tuple[ThreadsRow, ...]


def model_channels(
    starts: Sequence[int],
    *,
    bytes_each: int,
    channels: int,
    interleave_bytes: int,
    units_in_flight: int,
) -> ChannelUse:
    """Return how ``len(starts)`` threads, each reading ``bytes_each`` in sequence from its start,
    use the channels.

    The model: all threads ask for their next ``units_in_flight`` units of ``interleave_bytes`` at
    once; each of the ``channels`` serves one unit a step; the next units are asked for when all
    have come. So a round takes as many steps as its busiest channel has units. One array in one
    channel is ``interleave_bytes`` as large as the array.

    Raises ValueError for no thread, a size below 1, or a start that is not a multiple of
    ``interleave_bytes``. Lesson 01.
    """
    starts = [
        whole_number(f"starts[{index}]", start, at_least=0)
        for index, start in enumerate(members("starts", starts, "addresses"))
    ]
    if not starts:
        raise ValueError("starts is empty; give the address at which each thread starts")
    for name, value in (
        ("bytes_each", bytes_each),
        ("units_in_flight", units_in_flight),
        ("interleave_bytes", interleave_bytes),
        ("channels", channels),
    ):
        whole_number(name, value)
    if bytes_each // interleave_bytes * len(starts) > _MOST_UNITS:
        raise ValueError(
            f"bytes_each={short(bytes_each)} are more than {_MOST_UNITS:,} units of all threads "
            "together; give fewer bytes, or larger units"
        )
    if any(start % interleave_bytes for start in starts):
        raise ValueError(
            f"each thread must start at a multiple of the unit of {interleave_bytes:,} bytes"
        )
    units_each = -(-bytes_each // interleave_bytes)
    total: Counter[int] = Counter()
    steps = 0
    for first in range(0, units_each, units_in_flight):
        requests = Counter(
            (start // interleave_bytes + unit) % channels
            for start in starts
            for unit in range(first, min(first + units_in_flight, units_each))
        )
        steps += max(requests.values())
        total += requests
    units = units_each * len(starts)
    return ChannelUse(
        channels=channels,
        threads=len(starts),
        interleave_bytes=interleave_bytes,
        units_in_flight=units_in_flight,
        units=units,
        steps=steps,
        most_on_one_channel=max(total.values()),
        used_share=units / (channels * steps),
    )


def sweep_threads(
    threads: Sequence[int] | None = None,
    *,
    buffer_bytes: int | None = None,
    latency_s: float | None = None,
    budget_s: float = 3.0,
    card: MachineCard | None = None,
) -> ChannelSweep:
    """Return the bandwidth at which 1, 2, 4, ... threads read a buffer beyond the caches, in blocks
    and in turns.

    ``threads`` is by default the powers of two up to the usable cores, and those. In turns, thread
    t of T reads the chunks t, t + T, t + 2 T, ... of 4 KiB. ``latency_s`` (main memory's, from the
    probe) gives the lines in flight. ``card`` is by default this machine's, and ``buffer_bytes``
    what :func:`beyond_caches_bytes` gives for it. All cases are timed in turns for ``budget_s``
    seconds, minimum of many. The threads are Python's: the compiled loop lets go of Python's lock.

    Raises ValueError for no thread, a count outside 1 to 64, or a buffer with less than a chunk for
    each thread; MissingToolError without compiler and numba. Lesson 01.
    """
    card = card or machine_card()
    counts = sorted(set(_usual_threads(card) if threads is None else threads))
    if not counts or any(count not in range(1, _MOST_THREADS + 1) for count in counts):
        raise ValueError(
            f"threads are {threads!r}; give whole numbers from 1 to {_MOST_THREADS}, such as (1, "
            "2, 4)"
        )
    size = beyond_caches_bytes(card) if buffer_bytes is None else buffer_bytes
    if not isinstance(size, int) or size < counts[-1] * CHUNK_BYTES:
        raise ValueError(
            f"buffer_bytes is {buffer_bytes!r}; give a whole number of bytes of at least "
            f"{counts[-1] * CHUNK_BYTES:,}, a chunk for each of {counts[-1]} threads"
        )
    loops, chunks = kernels(), size // CHUNK_BYTES
    data = np.arange(chunks * CHUNK_BYTES // 4, dtype=np.uint32)
    cases = [
        (layout, count)
        for count in counts
        for layout in ((BLOCKS,) if count == 1 else (BLOCKS, TURNS))
    ]
    if len(cases) < 2:  # a comparison needs two: one thread against itself tells what the noise is
        cases.append((TURNS, counts[0]))
    with ExitStack() as stack:
        pools = {count: stack.enter_context(ThreadPoolExecutor(count)) for count in counts}
        runs = {
            f"{layout} {count}": _reader(
                loops.read_chunks, pools[count], data, chunks, layout, count
            )
            for layout, count in cases
        }
        comparison = compare(runs, budget_s=budget_s, device="cpu", precision=_PRECISION)
    passes_s = {case: comparison.candidate(f"{case[0]} {case[1]}").minimum_s for case in cases}
    line_bytes, first_pass_s = line_size_bytes(card), passes_s[cases[0]]
    rows = []
    for (layout, count), pass_s in passes_s.items():
        bandwidth = data.nbytes / pass_s
        rows.append(
            ThreadsRow(
                layout=layout,
                threads=count,
                pass_s=pass_s,
                bandwidth_bytes_per_s=bandwidth,
                speedup=first_pass_s / pass_s,
                # Little's law: rate times time (Little 1961)
                lines_in_flight=None if latency_s is None else bandwidth * latency_s / line_bytes,
            )
        )
    return ChannelSweep(
        engine=loops.engine,
        buffer_bytes=data.nbytes,
        chunk_bytes=CHUNK_BYTES,
        stable=comparison.stable,
        reason=comparison.reason,
        rows=tuple(rows),
    )


def chunks_of(thread: int, *, threads: int, chunks: int, layout: str) -> range:
    """Return the chunks that ``thread`` (from 0) reads; over all threads each chunk comes once."""
    if layout == TURNS:
        return range(thread, chunks, threads)
    return range(thread * chunks // threads, (thread + 1) * chunks // threads)


def _reader(
    read: Callable[..., int],
    pool: ThreadPoolExecutor,
    data: np.ndarray,
    chunks: int,
    layout: str,
    threads: int,
) -> Callable[[], object]:
    parts = [
        chunks_of(thread, threads=threads, chunks=chunks, layout=layout)
        for thread in range(threads)
    ]
    chunk_elements = CHUNK_BYTES // data.itemsize
    return lambda: (
        sum(
            pool.map(
                lambda part: read(data, chunk_elements, part.start, part.step, len(part)), parts
            )
        )
        % 2**32
    )


def _usual_threads(card: MachineCard) -> list[int]:
    most = min(_MOST_THREADS, max(1, int(card.usable_cores or 1)))
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]
