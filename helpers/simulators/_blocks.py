"""Thread blocks of a GPU in Python: a reader's kernel, run thread by thread on matrices that record every access.

A kernel is a function of the thread's place and of the matrices A, B and C. Where CUDA C++ writes ``__syncthreads()``
the kernel writes ``yield``: every thread of a block reaches the barrier before any goes on. What a GPU would let pass
in silence is refused here: an index outside a matrix, a value that nobody wrote, a race between two threads.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Kernel = Callable[..., Any]


class KernelError(ValueError):
    """What is wrong with a kernel: the thread, the element, and what to do. Lesson 02."""


@dataclass
class Tally:
    """Accesses counted so far."""

    reads: int = 0
    writes: int = 0


@dataclass(eq=False)
class Running:
    """The thread that runs now, as (block row, block column, thread row, thread column), and the barriers passed."""

    thread: tuple[int, int, int, int] = (0, 0, 0, 0)
    barriers: int = 0

    def named(self) -> str:
        """Return the running thread in words."""
        return named(self.thread)


def named(thread: tuple[int, int, int, int]) -> str:
    """Return a thread in words."""
    return f"thread ({thread[2]}, {thread[3]}) of block ({thread[0]}, {thread[1]})"


class Matrix:
    """A matrix that counts its reads and writes, one element each: ``matrix[row, column]``. Lesson 02."""

    def __init__(self, name: str, values: np.ndarray, tally: Tally, running: Running) -> None:
        self._name, self._tally, self._running = name, tally, running
        self._values = [float(value) for value in values.ravel()]
        self.shape: tuple[int, int] = values.shape

    def __getitem__(self, index: tuple[int, int]) -> float:
        place = self._place(index)
        self._check_read(place)
        self._tally.reads += 1
        return self._values[place]

    def __setitem__(self, index: tuple[int, int], value: float) -> None:
        place = self._place(index)
        self._check_write(place)
        self._tally.writes += 1
        try:
            self._values[place] = float(value)
        except (TypeError, ValueError):
            raise KernelError(f"{self._running.named()} writes {value!r:.40} to {self._element(place)}; an element is "
                              "one number") from None  # fmt: skip

    def values(self) -> np.ndarray:
        """Return the values as an array, uncounted; NaN where nothing was written."""
        return np.array(self._values).reshape(self.shape)

    def _place(self, index: object) -> int:
        rows, columns = self.shape
        try:
            row, column = map(operator.index, index)  # type: ignore[call-overload]
        except (TypeError, ValueError):
            raise KernelError(f"{self._running.named()} uses {self._name}[{index!r}]; an element has two whole "
                              f"numbers, {self._name}[row, column]") from None  # fmt: skip
        if not (0 <= row < rows and 0 <= column < columns):
            raise KernelError(f"{self._running.named()} uses {self._name}[{row}, {column}], outside its {rows} rows "
                              f"and {columns} columns; let a thread without work skip it")  # fmt: skip
        return row * columns + column

    def _element(self, place: int) -> str:
        return f"{self._name}[{place // self.shape[1]}, {place % self.shape[1]}]"

    def _check_read(self, place: int) -> None:
        """Raise KernelError when the running thread may not read the element."""

    def _check_write(self, place: int) -> None:
        """Raise KernelError when the running thread may not write the element."""
        raise KernelError(f"{self._running.named()} writes {self._element(place)}, which is an input; write to C")


class OutputMatrix(Matrix):
    """C: empty at first, and each element belongs to the one thread that writes it."""

    def __init__(self, name: str, shape: tuple[int, int], tally: Tally, running: Running) -> None:
        super().__init__(name, np.full(shape, np.nan), tally, running)
        self._owners: dict[int, tuple[int, int, int, int]] = {}

    def _check_read(self, place: int) -> None:
        if place not in self._owners:
            raise KernelError(f"{self._running.named()} reads {self._element(place)}, which nothing was written to; "
                              "a GPU's memory is not zero at first")  # fmt: skip
        self._check_owner(place, "reads")

    def _check_write(self, place: int) -> None:
        self._owners.setdefault(place, self._running.thread)
        self._check_owner(place, "writes")

    def _check_owner(self, place: int, verb: str) -> None:
        if self._owners[place] != self._running.thread:
            owner = named(self._owners[place])
            raise KernelError(f"race: {self._running.named()} {verb} {self._element(place)}, which {owner} writes as "
                              "well; give every element one thread")  # fmt: skip


class SharedMatrix(Matrix):
    """A block's shared matrix: empty at first; two threads meet at an element only with a barrier between them."""

    def __init__(self, name: str, shape: tuple[int, int], tally: Tally, running: Running) -> None:
        super().__init__(name, np.full(shape, np.nan), tally, running)
        nobody = (-1, None)  # the barriers passed, and the thread (None: nobody; "several": more than one)
        self._written: list[tuple[int, Any]] = [nobody] * (shape[0] * shape[1])
        self._read: list[tuple[int, Any]] = [nobody] * (shape[0] * shape[1])

    def _check_read(self, place: int) -> None:
        barriers, writer = self._written[place]
        now, thread = self._running.barriers, self._running.thread
        if writer is None:
            early = "" if now else "; if another thread writes it, put a yield before the reading, as the barrier"
            raise KernelError(f"{self._running.named()} reads {self._element(place)}, which nothing was written to; "
                              f"shared memory is not zero at first{early}")  # fmt: skip
        if barriers == now and writer != thread:
            raise self._race("reads", place, writer, "wrote")
        read_at, reader = self._read[place]
        self._read[place] = (now, thread if read_at != now or reader == thread else "several")

    def _check_write(self, place: int) -> None:
        now, thread = self._running.barriers, self._running.thread
        for (barriers, other), verb in ((self._written[place], "wrote"), (self._read[place], "read")):
            if barriers == now and other != thread:
                raise self._race("writes", place, other, verb)
        self._written[place] = (now, thread)

    def _race(self, verb: str, place: int, other: Any, other_verb: str) -> KernelError:
        who = "more than one thread" if other == "several" else f"thread ({other[2]}, {other[3]})"
        two_write = (verb, other_verb) == ("writes", "wrote")
        cure = "let one thread write it, or put a yield between the two" if two_write else "put a yield there"
        return KernelError(f"race: {self._running.named()} {verb} {self._element(place)}, which {who} {other_verb} "
                           f"with no barrier in between; {cure}")  # fmt: skip


@dataclass(eq=False)
class Thread:
    """A thread's place, and its block's shared memory: what a kernel gets first. Lesson 02.

    ``block_row``, ``block_column``, ``thread_row`` and ``thread_column`` are CUDA's ``blockIdx.y``, ``blockIdx.x``,
    ``threadIdx.y`` and ``threadIdx.x``; a block has ``tile`` x ``tile`` threads.
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
        """Return the block's shared matrix ``name``; every thread of a block gets the same one. Lesson 02."""
        return self._block.shared(name, (rows, columns))


@dataclass(eq=False)
class Block:
    """One thread block: its shared matrices by name, and the barriers that it has passed."""

    tally: Tally
    running: Running
    matrices: dict[str, SharedMatrix] = field(default_factory=dict)

    def shared(self, name: str, shape: tuple[int, int]) -> SharedMatrix:
        """Return the matrix ``name``, made at the first call. Raises KernelError for a second shape or no shape."""
        if not all(isinstance(side, int) and side > 0 for side in shape):
            raise KernelError(f"shared matrix {name!r} has {shape} rows and columns; give two whole numbers above 0")
        found = self.matrices.setdefault(name, SharedMatrix(name, shape, self.tally, self.running))
        if found.shape != shape:
            raise KernelError(f"{self.running.named()} asks for shared {name!r} with {shape} rows and columns; another "
                              f"thread asked for {found.shape}")  # fmt: skip
        return found

    @property
    def elements(self) -> int:
        """The elements of shared memory that the block holds."""
        return sum(rows * columns for rows, columns in (matrix.shape for matrix in self.matrices.values()))


def run_block(kernel: Kernel, place: tuple[int, int], tile: int, matrices: tuple[Matrix, ...], block: Block) -> int:
    """Run the ``tile`` x ``tile`` threads of the block at ``place`` from barrier to barrier; return the barriers.

    Raises KernelError when some threads end while others wait at a barrier.
    """
    block.running.barriers = 0
    waiting: list[tuple[tuple[int, int, int, int], Generator]] = []
    for row in range(tile):
        for column in range(tile):
            block.running.thread = (*place, row, column)
            started = kernel(Thread(*place, row, column, tile, block), *matrices)
            if inspect.isgenerator(started):
                waiting.append((block.running.thread, started))
    threads = len(waiting)
    while waiting:
        still = []
        for thread, steps in waiting:
            block.running.thread = thread
            if _reaches_a_barrier(steps):
                still.append((thread, steps))
        if still and len(still) < threads:
            ended = next(thread for thread, _ in waiting if thread not in {waiter for waiter, _ in still})
            raise KernelError(f"{named(still[0][0])} waits at a barrier, and {named(ended)} has ended; every "
                              "thread of a block passes every barrier: let no if or return skip a yield")  # fmt: skip
        waiting = still
        block.running.barriers += bool(still)
    return block.running.barriers


def _reaches_a_barrier(steps: Generator) -> bool:
    """Run a thread to its next barrier; False when it ends first."""
    try:
        next(steps)
    except StopIteration:
        return False
    return True
