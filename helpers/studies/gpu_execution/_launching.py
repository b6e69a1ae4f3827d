"""A reader's kernel on simulated warps: it runs thread by thread, and its requests are counted warp
by warp.

A kernel is a function of a thread and of its arguments, written for one thread. ``yield`` is
``__syncthreads()``: each thread of a block reaches the barrier before any goes on. What a GPU would
let pass in silence is refused: an index outside an array, shared memory that no thread has filled,
a race between two threads, a barrier that some threads miss.

Counted are requests as the warps make them, before any cache. Lesson 03.
"""

from __future__ import annotations

import inspect
from array import array as words
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType, GeneratorType
from typing import Any

import numpy as np

from helpers import console
from helpers.checks import function, whole_number
from helpers.results import Record, row_of
from helpers.studies.gpu_execution._arrays import (
    Access,
    GlobalArray,
    LaunchedThread,
    SharedArray,
    ThreadNumber,
    thread_name,
)
from helpers.studies.gpu_execution._occupancy import MOST_THREADS
from helpers.studies.gpu_execution._places import Place, ReportedPlace
from helpers.studies.gpu_execution._requests import (
    WARP_LANES,
    WORD_BYTES,
    count_passes,
    count_sectors,
)
from helpers.studies.simulators import KernelError

_ALIGNED_BYTES = 256  # where an array begins in the GPU's memory, as cudaMalloc has it
_MOST_LAUNCHED = 2**20
_CODES = {"float32": "f", "int32": "i"}


class MemoryRequest(Record):
    """One request: a load or a store that warp number ``warp`` of the launch executed for some of
    its lanes.

    ``space`` is "global" or "shared", ``access`` is "load" or "store". ``addresses`` has a byte
    address for each of ``lanes``; those of one array begin at a multiple of 256. Lesson 03.
    """

    warp: int
    array: str
    space: str
    access: str
    lanes: tuple[int, ...]
    addresses: tuple[int, ...]

    @property
    def sectors(self) -> int:
        """Sectors of 32 bytes that it touches; 0 in shared memory."""
        return count_sectors(self.addresses) if self.space == "global" else 0

    @property
    def passes(self) -> int:
        """Passes that it takes in shared memory; 0 in the GPU's memory."""
        return count_passes(self.addresses) if self.space == "shared" else 0


class ArrayCounts(Record):
    """The requests of all warps that load, or that store, one array.

    ``lanes`` is the sum of their active lanes, and ``active_share`` is that over all lanes.
    ``sectors`` are those of the GPU's memory, ``passes`` those of shared memory. Lesson 03.
    """

    array: str
    space: str
    access: str
    requests: int
    lanes: int
    active_share: float
    sectors: int
    passes: int

    @property
    def sectors_per_request(self) -> float:
        """Sectors per request, 4 at best if all lanes take different words."""
        return self.sectors / self.requests


class Launch(Record):
    """A kernel that ran on simulated warps: its parts, and a row of ``counts`` for each array and
    access.

    ``barriers`` and ``shared_bytes`` are those of the block that has most. ``requests`` are all of
    them, in the order in which the warps made them. Lesson 03.
    """

    blocks: int
    threads: int
    warps: int
    barriers: int
    shared_bytes: int
    counts: tuple[ArrayCounts, ...]
    requests: tuple[MemoryRequest, ...] = field(repr=False)

    @property
    def loads(self) -> int:
        """Requests that load."""
        return sum(row.requests for row in self.counts if row.access == "load")

    @property
    def sectors(self) -> int:
        """Sectors of all requests to the GPU's memory."""
        return sum(row.sectors for row in self.counts)

    @property
    def passes(self) -> int:
        """Passes of all requests to shared memory."""
        return sum(row.passes for row in self.counts)

    def count(self, array: str, access: str) -> ArrayCounts:
        """Return the row of ``array`` and ``access``, "load" or "store"; ValueError, with the rows,
        for none.

        Lesson 03.
        """
        return row_of(self.counts, "row of counts", array=array, access=access)


@dataclass(eq=False)
class Thread:
    """A thread's place in the launch, and its block's shared memory: what a kernel gets first.

    ``thread_x`` and ``thread_y`` are CUDA's ``threadIdx``, ``block_x`` and ``block_y`` its
    ``blockIdx``, ``block_width`` and ``block_height`` its ``blockDim``. In its block a thread has
    the number ``block_width * thread_y + thread_x``, and 32 consecutive numbers are a warp. Lesson
    03.
    """

    block_x: int
    block_y: int
    thread_x: int
    thread_y: int
    block_width: int
    block_height: int
    _block: _ThreadBlock = field(repr=False)

    @property
    def x(self) -> int:
        """The thread's x in the whole grid: ``blockIdx.x * blockDim.x + threadIdx.x``."""
        return self.block_x * self.block_width + self.thread_x

    @property
    def y(self) -> int:
        """The thread's y in the whole grid: ``blockIdx.y * blockDim.y + threadIdx.y``."""
        return self.block_y * self.block_height + self.thread_y

    @property
    def row(self) -> int:
        """As y, by the name that kernels of lesson 02 use."""
        return self.y

    @property
    def column(self) -> int:
        """As x, by the name that kernels of lesson 02 use."""
        return self.x

    @property
    def thread_row(self) -> int:
        """As thread_y, by the name that kernels of lesson 02 use."""
        return self.thread_y

    @property
    def thread_column(self) -> int:
        """As thread_x, by the name that kernels of lesson 02 use."""
        return self.thread_x

    @property
    def tile(self) -> int:
        """The side of a square block, by the name that kernels of lesson 02 use."""
        return self.block_width

    def shared(self, name: str, *shape: int) -> SharedArray:
        """Return the block's shared array ``name`` of float32, with so many elements, or rows and
        columns.

        Every thread of a block gets the same one. Lesson 03.
        """
        return self._block.shared(name, shape)


@dataclass(eq=False)
class _ThreadBlock:
    """One block: its shared arrays by name."""

    running: LaunchedThread
    arrays: dict[str, SharedArray] = field(default_factory=dict)

    def shared(self, name: str, shape: tuple[int, ...]) -> SharedArray:
        """Return the array ``name``, made at the first call; KernelError for a second shape or
        none.
        """
        if len(shape) not in (1, 2) or not all(
            isinstance(size, int) and size > 0 for size in shape
        ):
            raise KernelError(
                f"shared array {name!r} has the shape {shape}, but it must have one or two sizes, "
                "each a whole number above 0"
            )
        if name not in self.arrays:
            self.arrays[name] = SharedArray(name, shape, self.running)
        array = self.arrays[name]
        if array.shape != shape:
            raise KernelError(
                f"{thread_name(self.running.thread)} takes shared array {name!r} with the shape "
                f"{shape}, but another thread took it with {array.shape}; give it one shape"
            )
        return array

    @property
    def shared_bytes(self) -> int:
        """The shared memory of the block."""
        return WORD_BYTES * sum(len(array.values) for array in self.arrays.values())


@dataclass(eq=False)
class _Lane:
    """A thread between two barriers: its number, the rest of its kernel, where it waits, its
    frames, its accesses.
    """

    thread: ThreadNumber
    start: Callable[[], Any]
    rest: GeneratorType[Any, Any, Any] | None = None
    barrier: Place = ()
    frames: dict[FrameType, Any] = field(default_factory=dict)
    accesses: list[Access] = field(default_factory=list)

    def run(self, running: LaunchedThread) -> bool:
        """Run to the next barrier; False if the thread ends first."""
        running.thread, running.accesses = self.thread, []
        self.accesses = running.accesses
        with running.follower.of(self.frames):
            if self.rest is None:
                generator = self.start()
                if not isinstance(generator, GeneratorType):
                    return False
                self.rest = generator
            try:
                reached = next(self.rest)
            except StopIteration:
                return False
            is_reported = isinstance(reached, ReportedPlace)
            self.barrier = reached if is_reported else running.follower.barrier(self.rest)
        return True


def launch(
    kernel: Callable[..., Any],
    *arguments: Any,
    grid: int | tuple[int, int],
    block: int | tuple[int, int],
) -> Launch:
    """Run ``kernel(thread, *arguments)`` for all threads, store its results into the arrays, and
    return the counts.

    ``grid`` has the blocks and ``block`` the threads of a block, as x or as (x, y). ``thread`` is a
    :class:`Thread`. A NumPy array of float32 or int32, with one dimension or two, is an array in
    the GPU's memory, stored row by row, and bears the name of the kernel's parameter; other
    arguments pass as they are. A kernel with barriers is a generator and has ``yield`` where CUDA
    C++ has ``__syncthreads()``. Lanes that take different sides of a branch, or loop for longer
    than others, make requests of their own, as on a GPU (see
    :mod:`helpers.studies.gpu_execution._places`). A kernel that runs in another process accesses
    arrays with ``load_at`` and ``store_at``, and yields a :class:`ReportedPlace` at each barrier.

    Raises KernelError, naming the thread, for an index outside an array, a load from shared memory
    that no thread has filled, a race between two threads or blocks and a barrier that some threads
    miss; TypeError or ValueError for arguments that do not fit; an exception in the kernel passes
    unchanged. After an error the arrays are as before.

    >>> def double(thread, x):
    ...     if thread.x < len(x):
    ...         x[thread.x] = 2 * x[thread.x]
    >>> run = launch(double, np.ones(1000, np.float32), grid=4, block=256)
    >>> run.warps, run.loads, run.sectors, round(run.count("x", "load").active_share, 3)
    (32, 32, 250, 0.977)

    Lesson 03.
    """
    function("kernel", kernel, "a function of (thread, ...), written for one thread")
    (columns, rows), (width, height) = _sizes("grid", grid), _sizes("block", block)
    if width * height > MOST_THREADS:
        raise ValueError(
            f"block={block} has {width * height:,} threads, but a block has at most "
            f"{MOST_THREADS:,}; give smaller blocks, and more of them"
        )
    if columns * rows * width * height > _MOST_LAUNCHED:
        raise ValueError(
            f"{columns * rows:,} blocks of {width * height:,} threads are more than the "
            f"{_MOST_LAUNCHED:,} simulated at most; a small grid shows the same counts"
        )
    running = LaunchedThread()
    values, arrays = _place_arguments(kernel, arguments, running)
    requests: list[MemoryRequest] = []
    barriers = shared_bytes = 0
    block_warps = -(-width * height // WARP_LANES)
    block_indices = [(x, y) for y in range(rows) for x in range(columns)]
    for number, (x, y) in enumerate(console.track(block_indices, "running thread blocks")):
        current_block = _ThreadBlock(running)
        lanes = [
            _lane(kernel, values, Thread(x, y, i % width, i // width, width, height, current_block))
            for i in range(width * height)
        ]
        first_warp = number * block_warps
        barriers = max(
            barriers, _run_block(lanes, running, first_warp=first_warp, requests=requests)
        )
        shared_bytes = max(shared_bytes, current_block.shared_bytes)
    for argument, array in arrays:
        if array.is_stored:
            argument[...] = np.array(array.values, dtype=argument.dtype).reshape(argument.shape)
    blocks = len(block_indices)
    return Launch(
        blocks=blocks,
        threads=blocks * width * height,
        warps=blocks * block_warps,
        barriers=barriers,
        shared_bytes=shared_bytes,
        counts=_count_requests(requests),
        requests=tuple(requests),
    )


def _sizes(name: str, value: object) -> tuple[int, int]:
    sizes = value if isinstance(value, tuple) else (value, 1)
    if len(sizes) != 2:
        raise ValueError(f"{name}={value!r} must be a whole number, or two as (x, y)")
    x, y = (whole_number(name, size) for size in sizes)
    return x, y


def _place_arguments(
    kernel: Callable[..., Any], arguments: Sequence[Any], running: LaunchedThread
) -> tuple[list[Any], list[tuple[np.ndarray, GlobalArray]]]:
    """Return the kernel's arguments with arrays of the simulated GPU in place of NumPy's, and the
    pairs of the two.
    """
    names = _names(kernel, arguments)
    values: list[Any] = []
    arrays: list[tuple[np.ndarray, GlobalArray]] = []
    address = 0
    for name, argument in zip(names, arguments, strict=True):
        if not isinstance(argument, list) and not getattr(argument, "shape", ()):
            values.append(argument)
            continue
        _check_array(name, argument, arrays)
        elements = words(_CODES[argument.dtype.name], argument.ravel().tolist())
        array = GlobalArray(name, argument.shape, running, elements, address)
        values.append(array)
        arrays.append((argument, array))
        address += -(-argument.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
    return values, arrays


def _names(kernel: Callable[..., Any], arguments: Sequence[Any]) -> list[str]:
    """Return a name for each argument: that of the kernel's parameter, or its number behind a
    star.
    """
    parameters = inspect.signature(kernel)
    try:
        parameters.bind(None, *arguments)
    except TypeError as error:
        raise TypeError(
            f"{getattr(kernel, '__name__', 'kernel')} cannot be called with a thread and the "
            f"{len(arguments)} arguments given ({error}); give one for each parameter after the "
            "thread"
        ) from None
    names = [
        name
        for name, parameter in parameters.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ][1:]
    return [
        *names[: len(arguments)],
        *(f"argument {number + 1}" for number in range(len(names), len(arguments))),
    ]


def _check_array(name: str, array: Any, earlier: Sequence[tuple[np.ndarray, GlobalArray]]) -> None:
    if not isinstance(array, np.ndarray):
        raise TypeError(
            f"{name} is a {type(array).__name__}; give a NumPy array of float32 or int32, for "
            f"example {name}.numpy() of a tensor on the CPU"
        )
    if array.dtype.name not in _CODES:
        raise TypeError(
            f"{name} has elements of {array.dtype.name}, but the simulated memory has words of 4 "
            f"bytes; give {name}.astype(np.float32) or int32"
        )
    if array.ndim > 2 or not array.size:
        raise ValueError(
            f"{name} has the shape {array.shape}, but an array must have one dimension or two, and "
            "an element"
        )
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{name} is not stored row by row, so its addresses would be others; give "
            f"np.ascontiguousarray({name})"
        )
    for values, other in earlier:
        if np.may_share_memory(values, array):
            raise ValueError(
                f"{name} and {other.name} share memory, but each array must have its own; give a "
                "copy of one"
            )


def _lane(kernel: Callable[..., Any], values: Sequence[Any], thread: Thread) -> _Lane:
    number = thread.block_x, thread.block_y, thread.thread_x, thread.thread_y
    return _Lane(number, lambda: kernel(thread, *values))


def _run_block(
    lanes: Sequence[_Lane],
    running: LaunchedThread,
    *,
    first_warp: int,
    requests: list[MemoryRequest],
) -> int:
    """Run a block from barrier to barrier, append its warps' requests to ``requests``, and return
    the barriers.
    """
    barriers = 0
    while True:
        running.interval += 1
        waiting = [lane for lane in lanes if lane.run(running)]
        for begin in range(0, len(lanes), WARP_LANES):
            traces = [lane.accesses for lane in lanes[begin : begin + WARP_LANES]]
            requests += _requests(traces, warp=first_warp + begin // WARP_LANES)
        if not waiting:
            return barriers
        _check_barrier(lanes, waiting)
        barriers += 1


def _check_barrier(lanes: Sequence[_Lane], waiting: Sequence[_Lane]) -> None:
    """Raise KernelError unless all threads of the block wait at one barrier."""
    if len(waiting) < len(lanes):
        ended = next(lane for lane in lanes if lane not in waiting)
        raise KernelError(
            f"{thread_name(waiting[0].thread)} waits at a barrier, but {thread_name(ended.thread)} "
            "has ended; let no if or return skip a yield, because every thread of a block must "
            "reach it"
        )
    elsewhere = next((lane for lane in waiting if lane.barrier != waiting[0].barrier), None)
    if elsewhere is not None:
        raise KernelError(
            f"{thread_name(waiting[0].thread)} and {thread_name(elsewhere.thread)} wait at "
            "different barriers; put the yield outside the if, so that every thread of a block "
            "reaches the same one"
        )


def _requests(traces: Sequence[Sequence[Access]], *, warp: int) -> Iterator[MemoryRequest]:
    """Yield the requests of a warp whose lanes made the accesses ``traces``, those furthest behind
    first.
    """
    positions = [0] * len(traces)
    waiting = [lane for lane, trace in enumerate(traces) if trace]
    while waiting:
        first_place = min(traces[lane][positions[lane]].place for lane in waiting)
        groups: dict[tuple[str, bool], list[tuple[int, Access]]] = defaultdict(list)
        for lane in waiting:
            access = traces[lane][positions[lane]]
            if access.place == first_place:
                groups[access.array.space, access.stores].append((lane, access))
                positions[lane] += 1
        for (space, stores), group in groups.items():
            names = sorted({access.array.name for _, access in group})
            yield MemoryRequest(
                warp,
                " or ".join(names),
                space,
                "store" if stores else "load",
                lanes=tuple(lane for lane, _ in group),
                addresses=tuple(access.address for _, access in group),
            )
        waiting = [lane for lane in waiting if positions[lane] < len(traces[lane])]


def _count_requests(requests: Sequence[MemoryRequest]) -> tuple[ArrayCounts, ...]:
    """Return a row for each array and access, in the order of their first requests."""
    groups: dict[tuple[str, str, str], list[MemoryRequest]] = defaultdict(list)
    for request in requests:
        groups[request.array, request.space, request.access].append(request)
    return tuple(_row(*key, group) for key, group in groups.items())


def _row(array: str, space: str, access: str, group: Sequence[MemoryRequest]) -> ArrayCounts:
    lanes = sum(len(request.lanes) for request in group)
    return ArrayCounts(
        array,
        space,
        access,
        requests=len(group),
        lanes=lanes,
        active_share=lanes / (WARP_LANES * len(group)),
        sectors=sum(request.sectors for request in group),
        passes=sum(request.passes for request in group),
    )
