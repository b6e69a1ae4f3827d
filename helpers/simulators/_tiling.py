"""The traffic of matrix products on a GPU: counted by running a kernel on recorders, and modelled by formulas.

Counted is what the threads ask for, one element an access: before any cache, and before the hardware joins the
accesses of neighbouring threads. Lesson 02.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from helpers import _console as console
from helpers._checks import whole_number
from helpers.results import Result
from helpers.simulators._blocks import (
    Block,
    Kernel,
    KernelError,
    Matrix,
    OutputMatrix,
    Running,
    Tally,
    run_block,
)

ELEMENT_BYTES = 4  # float32

_MOST_VALUES = 8  # inputs are whole numbers below this, so that every sum is exact
_MOST_STEPS = 2**24


@dataclass(frozen=True)
class Traffic(Result):
    """Elements that all threads of a product read and write, by memory space; bytes are of float32. Lesson 02.

    ``shared_block_bytes`` is the shared memory of one block, ``barriers`` what one block passes.
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

    @property
    def global_bytes(self) -> int:
        """Bytes to and from global memory."""
        return ELEMENT_BYTES * (self.global_reads + self.global_writes)

    @property
    def shared_bytes(self) -> int:
        """Bytes to and from shared memory."""
        return ELEMENT_BYTES * (self.shared_reads + self.shared_writes)

    @property
    def macs_per_global_byte(self) -> float:
        """Multiply-adds for each byte to and from global memory."""
        return self.macs / self.global_bytes


def count_traffic(kernel: Kernel, m: int, n: int, k: int, *, tile: int, seed: int = 0) -> Traffic:
    """Run ``kernel(thread, a, b, c)`` for every thread, and return what it read and wrote: exact counts.

    ``a`` is (m, k), ``b`` (k, n), ``c`` (m, n); as many blocks of ``tile`` x ``tile`` threads run, one after another,
    as cover c. ``thread`` is a :class:`Thread` (``thread.row``, ``thread.column``, ``thread.shared(name, rows,
    columns)``). A kernel with barriers is a generator and writes ``yield`` where CUDA C++ has ``__syncthreads()``. An
    exact product is checked, for ``a`` and ``b`` are small whole numbers drawn from ``seed``.

    Raises KernelError for a wrong element of c, an index outside a matrix, a read of what nobody wrote, a race between
    two threads or a barrier that some threads do not reach, naming the thread; ValueError for sizes below 1 or a
    product of over 2^24 multiply-adds; an exception in the kernel passes unchanged. Lesson 02.
    """
    _check_sizes(m, n, k, tile)
    if not callable(kernel):
        raise TypeError(f"kernel is a function of (thread, a, b, c), not {type(kernel).__name__}")
    if m * n * k > _MOST_STEPS:
        raise ValueError(f"{m} x {n} x {k} is {m * n * k:,} multiply-adds, and at most {_MOST_STEPS:,} are simulated; "
                         "the counts of a small product show the same")  # fmt: skip
    generator, running, to_global, to_shared = np.random.default_rng(seed), Running(), Tally(), Tally()
    left, right = (generator.integers(1, _MOST_VALUES, shape).astype(float) for shape in ((m, k), (k, n)))
    a, b = Matrix("A", left, to_global, running), Matrix("B", right, to_global, running)
    c = OutputMatrix("C", (m, n), to_global, running)
    places = [(row, column) for row in range(-(-m // tile)) for column in range(-(-n // tile))]
    barriers = elements = 0
    for place in console.track(places, "running thread blocks"):
        block = Block(to_shared, running)
        barriers = max(barriers, run_block(kernel, place, tile, (a, b, c), block))
        elements = max(elements, block.elements)
    _check_product(left @ right, c.values())
    return Traffic(
        m=m, n=n, k=k, tile=tile, blocks=len(places), threads=len(places) * tile**2, barriers=barriers,
        shared_block_bytes=ELEMENT_BYTES * elements, global_reads=to_global.reads, global_writes=to_global.writes,
        shared_reads=to_shared.reads, shared_writes=to_shared.writes, macs=m * n * k,
    )  # fmt: skip


def naive_traffic(m: int, n: int, k: int, *, tile: int) -> Traffic:
    """Return the modelled traffic of a kernel that reads all it needs from global memory, a thread an element of c.

    That is 2 m n k global reads and m n global writes. Lesson 02.
    """
    _check_sizes(m, n, k, tile)
    blocks = -(-m // tile) * -(-n // tile)
    return Traffic(
        m=m, n=n, k=k, tile=tile, blocks=blocks, threads=blocks * tile**2, barriers=0, shared_block_bytes=0,
        global_reads=2 * m * n * k, global_writes=m * n, shared_reads=0, shared_writes=0, macs=m * n * k,
    )  # fmt: skip


def tiled_traffic(m: int, n: int, k: int, *, tile: int) -> Traffic:
    """Return the modelled traffic of a kernel that takes tiles of A and B through shared memory, a thread an element.

    Each of the ceil(n / tile) columns of blocks reads all of A once, each of the ceil(m / tile) rows of blocks all of
    B: k (m ceil(n / tile) + n ceil(m / tile)) global reads, which is 2 m n k / tile where tile divides m and n. In
    each of ceil(k / tile) steps every thread, with work or without, writes 2 elements of shared memory, reads 2 tile,
    and passes 2 barriers. Lesson 02.
    """
    _check_sizes(m, n, k, tile)
    down, across, steps = -(-m // tile), -(-n // tile), -(-k // tile)
    threads = down * across * tile**2
    return Traffic(
        m=m, n=n, k=k, tile=tile, blocks=down * across, threads=threads, barriers=2 * steps,
        shared_block_bytes=2 * tile**2 * ELEMENT_BYTES, global_reads=k * (m * across + n * down), global_writes=m * n,
        shared_reads=threads * steps * 2 * tile, shared_writes=threads * steps * 2, macs=m * n * k,
    )  # fmt: skip


def _check_sizes(m: int, n: int, k: int, tile: int) -> None:
    for name, value in {"m": m, "n": n, "k": k, "tile": tile}.items():
        whole_number(name, value)


def _check_product(expected: np.ndarray, found: np.ndarray) -> None:
    """Raise KernelError, naming the first wrong element, unless both are equal."""
    wrong = np.argwhere(found != expected)
    if not wrong.size:
        return
    row, column = (int(index) for index in wrong[0])
    value = found[row, column]
    what = "never written" if np.isnan(value) else f"{value:g}"
    raise KernelError(f"C[{row}, {column}] is {what}, and A @ B has {expected[row, column]:g} there; {len(wrong):,} of "
                      f"{expected.size:,} elements are wrong")  # fmt: skip
