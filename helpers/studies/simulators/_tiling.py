"""The traffic of matrix products on a GPU: counted by running a reader's kernel on recorders, and
modelled by formulas.

A kernel is a function of the thread's place and of the matrices A, B and C. Where CUDA C++ writes
``__syncthreads()`` the kernel writes ``yield``: every thread of a block reaches the barrier before
any goes on. What a GPU would let pass in silence is refused here: an index outside a matrix, a
value that nobody wrote, a race between two threads.

Counted is what the threads ask for, one element an access: before any cache, and before the
hardware joins the accesses of neighbouring threads. Lesson 02.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from helpers import console
from helpers.checks import function, random_seed, whole_number
from helpers.results import Record

Kernel = Callable[..., Any]

_END = object()  # of a thread that reaches no further barrier


class KernelError(ValueError):
    """An error of a kernel: the thread, the element, and what to do. Lesson 02."""


@dataclass
class AccessTally:
    """Accesses counted so far."""

    reads: int = 0
    writes: int = 0


@dataclass(eq=False)
class RunningThread:
    """The thread that runs now, as (block row, block column, thread row, thread column), and the
    barriers passed.
    """

    thread: tuple[int, int, int, int] = (0, 0, 0, 0)
    barriers: int = 0

    def name(self) -> str:
        """Return the running thread in words."""
        return thread_name(self.thread)


def thread_name(thread: tuple[int, int, int, int]) -> str:
    """Return a thread in words."""
    return f"thread ({thread[2]}, {thread[3]}) of block ({thread[0]}, {thread[1]})"


class Matrix:
    """A matrix that counts its reads and writes, one element each: ``matrix[row, column]``.

    Lesson 02.
    """

    def __init__(
        self, name: str, values: np.ndarray, tally: AccessTally, running: RunningThread
    ) -> None:
        self._name, self._tally, self._running = name, tally, running
        self._values = [float(value) for value in values.ravel()]
        self.shape: tuple[int, int] = values.shape

    def __getitem__(self, index: tuple[int, int]) -> float:
        offset = self._offset(index)
        self._check_read(offset)
        self._tally.reads += 1
        return self._values[offset]

    def __setitem__(self, index: tuple[int, int], value: float) -> None:
        offset = self._offset(index)
        self._check_write(offset)
        self._tally.writes += 1
        try:
            self._values[offset] = float(value)
        except (TypeError, ValueError):
            raise KernelError(
                f"{self._running.name()} writes {value!r:.40} to {self._element(offset)}; an "
                "element is one number"
            ) from None

    def values(self) -> np.ndarray:
        """Return the values as an array, uncounted; NaN where nothing was written."""
        return np.array(self._values).reshape(self.shape)

    def _offset(self, index: object) -> int:
        rows, columns = self.shape
        try:
            row, column = map(operator.index, index)  # type: ignore[call-overload]  # what is no pair raises
        except (TypeError, ValueError):
            raise KernelError(
                f"{self._running.name()} uses {self._name}[{index!r}]; an element has two whole "
                f"numbers, {self._name}[row, column]"
            ) from None
        if not (0 <= row < rows and 0 <= column < columns):
            raise KernelError(
                f"{self._running.name()} uses {self._name}[{row}, {column}], outside its {rows} "
                f"rows and {columns} columns; let a thread without work skip it"
            )
        return row * columns + column

    def _element(self, offset: int) -> str:
        return f"{self._name}[{offset // self.shape[1]}, {offset % self.shape[1]}]"

    def _check_read(self, offset: int) -> None:
        """Raise KernelError when the running thread may not read the element."""

    def _check_write(self, offset: int) -> None:
        """Raise KernelError when the running thread may not write the element."""
        raise KernelError(
            f"{self._running.name()} writes {self._element(offset)}, which is an input; write to C"
        )


class OutputMatrix(Matrix):
    """C: empty at first, and each element belongs to the one thread that writes it."""

    def __init__(
        self, name: str, values: np.ndarray, tally: AccessTally, running: RunningThread
    ) -> None:
        super().__init__(name, values, tally, running)
        self._owners: dict[int, tuple[int, int, int, int]] = {}

    def _check_read(self, offset: int) -> None:
        if offset not in self._owners:
            raise KernelError(
                f"{self._running.name()} reads {self._element(offset)}, which nothing was written "
                "to; a GPU's memory is not zero at first"
            )
        self._check_owner(offset, "reads")

    def _check_write(self, offset: int) -> None:
        self._owners.setdefault(offset, self._running.thread)
        self._check_owner(offset, "writes")

    def _check_owner(self, offset: int, verb: str) -> None:
        if self._owners[offset] != self._running.thread:
            owner = thread_name(self._owners[offset])
            raise KernelError(
                f"race: {self._running.name()} {verb} {self._element(offset)}, which {owner} "
                "writes as well; give every element one thread"
            )


class SharedMatrix(Matrix):
    """A block's shared matrix: empty at first; two threads meet at an element only with a barrier
    between them.
    """

    def __init__(
        self, name: str, values: np.ndarray, tally: AccessTally, running: RunningThread
    ) -> None:
        super().__init__(name, values, tally, running)
        # of each element the barriers passed, and the thread (None: nobody; "several": more)
        nobody = (-1, None)
        self._written: list[tuple[int, Any]] = [nobody] * len(self._values)
        self._read: list[tuple[int, Any]] = [nobody] * len(self._values)

    def _check_read(self, offset: int) -> None:
        barriers, writer = self._written[offset]
        now, thread = self._running.barriers, self._running.thread
        if writer is None:
            early = (
                ""
                if now
                else "; if another thread writes it, put a yield before the reading, as the barrier"
            )
            raise KernelError(
                f"{self._running.name()} reads {self._element(offset)}, which nothing was written "
                f"to; shared memory is not zero at first{early}"
            )
        if barriers == now and writer != thread:
            raise self._race("reads", offset, writer, "wrote")
        read_at, reader = self._read[offset]
        self._read[offset] = (now, thread if read_at != now or reader == thread else "several")

    def _check_write(self, offset: int) -> None:
        now, thread = self._running.barriers, self._running.thread
        for (barriers, other_thread), verb in (
            (self._written[offset], "wrote"),
            (self._read[offset], "read"),
        ):
            if barriers == now and other_thread != thread:
                raise self._race("writes", offset, other_thread, verb)
        self._written[offset] = (now, thread)

    def _race(self, verb: str, offset: int, other_thread: Any, other_verb: str) -> KernelError:
        who = (
            "more than one thread"
            if other_thread == "several"
            else f"thread ({other_thread[2]}, {other_thread[3]})"
        )
        cure = (
            "let one thread write it, or put a yield between the two"
            if (verb, other_verb) == ("writes", "wrote")
            else "put a yield there"
        )
        return KernelError(
            f"race: {self._running.name()} {verb} {self._element(offset)}, which {who} "
            f"{other_verb} with no barrier in between; {cure}"
        )


@dataclass(eq=False)
class Thread:
    """A thread's place, and its block's shared memory: what a kernel gets first. Lesson 02.

    ``block_row``, ``block_column``, ``thread_row`` and ``thread_column`` are CUDA's ``blockIdx.y``,
    ``blockIdx.x``, ``threadIdx.y`` and ``threadIdx.x``; a block has ``tile`` x ``tile`` threads.
    """

    block_row: int
    block_column: int
    thread_row: int
    thread_column: int
    tile: int
    _block: Block = field(repr=False)

    @property
    def row(self) -> int:
        """The thread's row in the whole grid: ``blockIdx.y * blockDim.y + threadIdx.y``."""
        return self.block_row * self.tile + self.thread_row

    @property
    def column(self) -> int:
        """The thread's column in the whole grid: ``blockIdx.x * blockDim.x + threadIdx.x``."""
        return self.block_column * self.tile + self.thread_column

    def shared(self, name: str, rows: int, columns: int) -> SharedMatrix:
        """Return the block's shared matrix ``name``; every thread of a block gets the same one.

        Lesson 02.
        """
        return self._block.shared(name, (rows, columns))


@dataclass(eq=False)
class Block:
    """One thread block: its shared matrices by name, and the barriers that it has passed."""

    tally: AccessTally
    running: RunningThread
    matrices: dict[str, SharedMatrix] = field(default_factory=dict)

    def shared(self, name: str, shape: tuple[int, int]) -> SharedMatrix:
        """Return the matrix ``name``, made at the first call.

        Raises KernelError for a second shape or no shape.
        """
        if not all(isinstance(side, int) and side > 0 for side in shape):
            raise KernelError(
                f"shared matrix {name!r} has {shape} rows and columns; give two whole numbers "
                "above 0"
            )
        empty = SharedMatrix(name, np.full(shape, np.nan), self.tally, self.running)
        matrix = self.matrices.setdefault(name, empty)
        if matrix.shape != shape:
            raise KernelError(
                f"{self.running.name()} asks for shared {name!r} with {shape} rows and columns; "
                f"another thread asked for {matrix.shape}"
            )
        return matrix

    @property
    def elements(self) -> int:
        """The elements of shared memory that the block holds."""
        return sum(math.prod(matrix.shape) for matrix in self.matrices.values())


def run_block(
    kernel: Kernel,
    block_index: tuple[int, int],
    tile: int,
    matrices: tuple[Matrix, ...],
    block: Block,
) -> int:
    """Run the ``tile`` x ``tile`` threads of the block at ``block_index`` from barrier to
    barrier; return the barriers.

    Raises KernelError when some threads end while others wait at a barrier.
    """
    block.running.barriers = 0
    waiting: list[tuple[tuple[int, int, int, int], Iterator[object]]] = []
    for row in range(tile):
        for column in range(tile):
            block.running.thread = (*block_index, row, column)
            execution = kernel(Thread(*block_index, row, column, tile, block), *matrices)
            if inspect.isgenerator(execution):
                waiting.append((block.running.thread, execution))
    threads = len(waiting)
    while waiting:
        still_waiting = []
        for thread, steps in waiting:
            block.running.thread = thread
            if next(steps, _END) is not _END:
                still_waiting.append((thread, steps))
        if still_waiting and len(still_waiting) < threads:
            ended_thread = next(
                thread for thread, steps in waiting if (thread, steps) not in still_waiting
            )
            raise KernelError(
                f"{thread_name(still_waiting[0][0])} waits at a barrier, and "
                f"{thread_name(ended_thread)} has ended; every thread of a block "
                "passes every barrier: let no if or return skip a yield"
            )
        waiting = still_waiting
        block.running.barriers += bool(still_waiting)
    return block.running.barriers


ELEMENT_BYTES = 4  # float32

_MOST_VALUES = 8  # inputs are whole numbers below this, so that every sum is exact
_MOST_STEPS = 2**24


class ProductTraffic(Record):
    """Elements that all threads of a product read and write, by memory space; bytes are of float32.

    ``shared_block_bytes`` is the shared memory of one block, ``barriers`` what one block passes.
    Lesson 02.
    """

    m: int
    n: int
    k: int
    tile: int
    blocks: int
    threads: int
    barriers: int
    shared_block_bytes: int
    global_reads: int
    global_writes: int
    shared_reads: int
    shared_writes: int
    macs: int


def count_traffic(
    kernel: Kernel, m: int, n: int, k: int, *, tile: int, seed: int = 0
) -> ProductTraffic:
    """Run ``kernel(thread, a, b, c)`` for every thread, and return exact counts of its reads and
    writes.

    ``a`` is (``m``, ``k``), ``b`` (k, ``n``), ``c`` (m, n); as many blocks of ``tile`` x ``tile``
    threads run, one after another, as cover c. ``thread`` is a :class:`Thread` (``thread.row``,
    ``thread.column``, ``thread.shared(name, rows, columns)``). A kernel with barriers is a
    generator and writes ``yield`` where CUDA C++ has ``__syncthreads()``. An exact product is
    checked, for ``a`` and ``b`` are small whole numbers drawn from ``seed``.

    Raises KernelError for a wrong element of c, an index outside a matrix, a read of what nobody
    wrote, a race between two threads or a barrier that some threads do not reach, naming the
    thread; ValueError for sizes below 1 or a product of over 2^24 multiply-adds; an exception in
    the kernel passes unchanged. Lesson 02.
    """
    _check_sizes(m, n, k, tile)
    function("kernel", kernel, "a function of (thread, a, b, c)")
    if m * n * k > _MOST_STEPS:
        raise ValueError(
            f"{m} x {n} x {k} is {m * n * k:,} multiply-adds, and at most {_MOST_STEPS:,} are "
            "simulated; the counts of a small product show the same"
        )
    running, to_global, to_shared = RunningThread(), AccessTally(), AccessTally()
    generator = np.random.default_rng(random_seed(seed))
    left, right = (
        generator.integers(1, _MOST_VALUES, shape).astype(float) for shape in ((m, k), (k, n))
    )
    a, b = Matrix("A", left, to_global, running), Matrix("B", right, to_global, running)
    c = OutputMatrix("C", np.full((m, n), np.nan), to_global, running)
    block_indices = [
        (row, column) for row in range(-(-m // tile)) for column in range(-(-n // tile))
    ]
    barriers = elements = 0
    for block_index in console.track(block_indices, "running thread blocks"):
        block = Block(to_shared, running)
        barriers = max(barriers, run_block(kernel, block_index, tile, (a, b, c), block))
        elements = max(elements, block.elements)
    _check_product(left @ right, c.values())
    return _traffic(
        m,
        n,
        k,
        tile,
        barriers=barriers,
        shared_block_bytes=ELEMENT_BYTES * elements,
        global_reads=to_global.reads,
        global_writes=to_global.writes,
        shared_reads=to_shared.reads,
        shared_writes=to_shared.writes,
    )


def _traffic(m: int, n: int, k: int, tile: int, **counts: int) -> ProductTraffic:
    """Return the traffic of a product that ``counts`` holds, nothing of what it does not name."""
    blocks = -(-m // tile) * -(-n // tile)
    nothing = dict.fromkeys(("barriers", "shared_block_bytes", "shared_reads", "shared_writes"), 0)
    return ProductTraffic(
        m=m,
        n=n,
        k=k,
        tile=tile,
        blocks=blocks,
        threads=blocks * tile**2,
        macs=m * n * k,
        **(nothing | counts),
    )


def naive_traffic(m: int, n: int, k: int, *, tile: int) -> ProductTraffic:
    """Return the modelled traffic of a kernel that reads all it needs from global memory, a thread
    an element of c.

    For an ``m`` x ``k`` by ``k`` x ``n`` product in blocks of ``tile`` x ``tile`` threads that is 2
    m n k global reads and m n global writes.
    """
    _check_sizes(m, n, k, tile)
    return _traffic(m, n, k, tile, global_reads=2 * m * n * k, global_writes=m * n)


def tiled_traffic(m: int, n: int, k: int, *, tile: int) -> ProductTraffic:
    """Return the modelled traffic of a kernel that takes tiles of A and B through shared memory, a
    thread an element.

    >>> naive_traffic(4, 4, 4, tile=2).global_reads, tiled_traffic(4, 4, 4, tile=2).global_reads
    (128, 64)

    A is ``m`` x ``k``, B ``k`` x ``n``, and a block has ``tile`` x ``tile`` threads. Each of the
    ceil(n / tile) columns of blocks reads all of A once, each of the ceil(m / tile) rows of blocks
    all of B: k (m ceil(n / tile) + n ceil(m / tile)) global reads, which is 2 m n k / tile where
    tile divides m and n. In each of ceil(k / tile) steps every thread, with work or without, writes
    2 elements of shared memory, reads 2 tile, and passes 2 barriers. Lesson 02.
    """
    _check_sizes(m, n, k, tile)
    down, across, steps = -(-m // tile), -(-n // tile), -(-k // tile)
    shared_writes = down * across * tile**2 * steps * 2
    return _traffic(
        m,
        n,
        k,
        tile,
        barriers=2 * steps,
        shared_block_bytes=2 * tile**2 * ELEMENT_BYTES,
        global_reads=k * (m * across + n * down),
        global_writes=m * n,
        shared_reads=shared_writes * tile,
        shared_writes=shared_writes,
    )


def _check_sizes(m: int, n: int, k: int, tile: int) -> None:
    for name, value in {"m": m, "n": n, "k": k, "tile": tile}.items():
        whole_number(name, value)


def _check_product(expected: np.ndarray, actual: np.ndarray) -> None:
    """Raise KernelError, naming the first wrong element, unless both are equal."""
    wrong = np.argwhere(actual != expected)
    if not wrong.size:
        return
    row, column = (int(index) for index in wrong[0])
    value = actual[row, column]
    description = "never written" if np.isnan(value) else f"{value:g}"
    raise KernelError(
        f"C[{row}, {column}] is {description}, and A @ B has {expected[row, column]:g} there; "
        f"{len(wrong):,} of {expected.size:,} elements are wrong"
    )
