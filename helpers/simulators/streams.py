"""Streams of memory accesses for the simulated caches: byte addresses in program order, each a read or a write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from helpers.checks import whole_number

_LAST_ADDRESS = 2**63 - 1
_PAGE_BYTES = 4096  # matrices of a product start at multiples of this
_MOST_ACCESSES = 2**25


@dataclass(frozen=True, eq=False)
class AddressStream:
    """Accesses in program order: ``addresses`` in bytes (int64), ``writes`` (True: it writes), ``access_bytes`` each.

    Any sequence of whole numbers serves as ``addresses``; ``writes`` may be one bool for all. Raises TypeError or
    ValueError for what is no such stream. Lesson 01.
    """

    addresses: np.ndarray
    writes: np.ndarray | bool = False
    access_bytes: int = 4

    def __post_init__(self) -> None:
        addresses = np.asarray(self.addresses)
        if addresses.ndim != 1 or (addresses.size and addresses.dtype.kind not in "iu"):
            raise TypeError("addresses are whole numbers in one row (bytes from the start of memory), not "
                            f"{addresses.dtype} of shape {addresses.shape}")  # fmt: skip
        writes = np.asarray(self.writes)
        if writes.dtype != bool or (writes.ndim and writes.shape != addresses.shape):
            raise TypeError(f"writes is one bool, or one for each of the {addresses.size:,} addresses, not "
                            f"{writes.dtype} of shape {writes.shape}")  # fmt: skip
        whole_number("access_bytes", self.access_bytes)
        if addresses.size and int(addresses.min()) < 0:
            raise ValueError(f"an address is 0 or more; the smallest given is {int(addresses.min())}")
        if addresses.size and int(addresses.max()) > _LAST_ADDRESS - self.access_bytes:
            raise ValueError(f"addresses are below 2^63; the largest given is {int(addresses.max())}")
        object.__setattr__(self, "addresses", addresses.astype(np.int64, copy=False))
        object.__setattr__(self, "writes", np.broadcast_to(writes, addresses.shape))

    def __len__(self) -> int:
        return self.addresses.size

    def lines(self, line_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of the lines touched, and whether each touch writes.

        An access that crosses the border of a line touches both lines, so there may be more touches than accesses.
        Lesson 01.
        """
        first = self.addresses // line_bytes
        touched = (self.addresses + self.access_bytes - 1) // line_bytes - first + 1
        if not len(self) or touched.max() == 1:
            return first, self.writes
        starts = np.cumsum(touched) - touched
        within = np.arange(int(touched.sum())) - np.repeat(starts, touched)
        return np.repeat(first, touched) + within, np.repeat(self.writes, touched)


def join_streams(streams: Sequence[AddressStream]) -> AddressStream:
    """Return the streams one after another; ValueError unless all have the same ``access_bytes``.

    Lesson 02.
    """
    streams = list_of("streams", streams, "address streams")
    for stream in streams:
        require_stream(stream)
    widths = sorted({stream.access_bytes for stream in streams})
    if len(widths) != 1:
        raise ValueError(f"streams of one access width can be joined; these have {widths or 'none'} bytes an access")
    return AddressStream(
        np.concatenate([stream.addresses for stream in streams]),
        np.concatenate([stream.writes for stream in streams]),
        widths[0],
    )


def sequential(count: int, *, element_bytes: int = 4, start: int = 0, writes: bool = False) -> AddressStream:
    """Return ``count`` elements one after another, from the byte ``start``. Lesson 01."""
    return strided(count, stride_bytes=element_bytes, element_bytes=element_bytes, start=start, writes=writes)


def strided(
    count: int, *, stride_bytes: int, element_bytes: int = 4, start: int = 0, writes: bool = False
) -> AddressStream:
    """Return ``count`` elements, each ``stride_bytes`` behind the one before, from the byte ``start``.

    Lesson 02.
    """
    whole_number("count", count, at_most=_MOST_ACCESSES)
    whole_number("stride_bytes", stride_bytes, at_most=_LAST_ADDRESS // _MOST_ACCESSES)
    whole_number("start", start, at_least=0)
    return AddressStream(start + stride_bytes * np.arange(count, dtype=np.int64), writes, element_bytes)


def random_accesses(
    count: int, *, working_set_bytes: int, element_bytes: int = 4, write_share: float = 0.0, seed: int = 0
) -> AddressStream:
    """Return ``count`` elements drawn evenly from ``working_set_bytes``, of which about ``write_share`` write.

    Raises ValueError for a share outside 0 to 1 or a working set smaller than an element. For the library itself.
    """
    whole_number("count", count, at_most=_MOST_ACCESSES)
    whole_number("element_bytes", element_bytes)
    whole_number("working_set_bytes", working_set_bytes, at_least=element_bytes)
    if not 0 <= write_share <= 1:
        raise ValueError(f"write_share is a part of one, 0 to 1; got {write_share!r}")
    generator = np.random.default_rng(seed)
    elements = generator.integers(0, working_set_bytes // element_bytes, count)
    return AddressStream(elements * element_bytes, generator.random(count) < write_share, element_bytes)


def pointer_chase(working_set_bytes: int, *, step_bytes: int = 64, laps: int = 1, seed: int = 0) -> AddressStream:
    """Return the loads of a pointer chase: every ``step_bytes`` of the working set once a lap, in one random order.

    A load reads 8 bytes, the address of the next. Raises ValueError for a working set without a whole step.
    For the library itself.
    """
    whole_number("step_bytes", step_bytes, at_least=8)
    whole_number("working_set_bytes", working_set_bytes, at_least=step_bytes)
    whole_number("laps", laps)
    _require_few(working_set_bytes // step_bytes * laps, "a chase through that working set")
    order = np.random.default_rng(seed).permutation(working_set_bytes // step_bytes)
    return AddressStream(np.tile(order * step_bytes, laps), False, 8)


def matrix_walk(
    rows: int, columns: int, *, order: str = "rows", element_bytes: int = 4, start: int = 0, writes: bool = False
) -> AddressStream:
    """Return a walk over a matrix that is stored row by row, along its ``"rows"`` or down its ``"columns"``.

    Raises ValueError for another order. For the library itself.
    """
    whole_number("rows", rows)
    whole_number("columns", columns)
    whole_number("start", start, at_least=0)
    _require_few(rows * columns, f"a walk over {rows:,} x {columns:,}")
    if order not in ("rows", "columns"):
        raise ValueError(f"a matrix is walked by 'rows' or by 'columns', not by {order!r}")
    elements = np.arange(rows * columns, dtype=np.int64).reshape(rows, columns)
    walked = elements if order == "rows" else elements.T
    return AddressStream(start + element_bytes * walked.ravel(), writes, element_bytes)


def matrix_product(
    m: int, n: int, k: int, *, order: str = "ijk", tile: int | None = None, element_bytes: int = 4
) -> AddressStream:
    """Return the accesses of ``C = A @ B``: A (m, k), B (k, n), C (m, n), each stored by rows and begun on a page.

    They are those of the C++ programs of :mod:`helpers.studies.matrix_product`. ``"ijk"`` sums an element of C in a
    register: two reads a step, one write an element. ``"ikj"`` writes zeros to C, then takes an element of A and adds
    its multiples of a row of B to a row of C: a read of B and a read and a write of C a step. With ``tile``, the order
    is "ikj" within blocks of ``tile`` x ``tile``, the blocks in the order i, j, k.

    Raises ValueError for another order, a tile with "ijk", or over 2^25 accesses. For the library itself.
    """
    for name, value in {"m": m, "n": n, "k": k, "element_bytes": element_bytes}.items():
        whole_number(name, value)
    if order not in ("ijk", "ikj") or (tile is not None and order == "ijk"):
        raise ValueError(f"order is 'ijk' or 'ikj', and a tile goes with 'ikj'; got {order!r} with tile={tile!r}")
    whole_number("tile", max(m, n, k) if tile is None else tile)
    accesses = m * n * (2 * k + 1) if order == "ijk" else m * n * (1 + 3 * k) + m * k * _tiles(n, tile)
    _require_few(accesses, f"a product of {m} x {k} and {k} x {n}")
    bases = np.cumsum([0, _pages(m * k * element_bytes), _pages(k * n * element_bytes)])
    a, b, c = (
        base + element_bytes * np.arange(rows * columns, dtype=np.int64).reshape(rows, columns)
        for base, (rows, columns) in zip(bases, ((m, k), (k, n), (m, n)), strict=True)
    )
    parts = [_by_element(a, b, c)] if order == "ijk" else [(c.ravel(), True), *_by_blocks(a, b, c, tile)]
    return join_streams([AddressStream(addresses, writes, element_bytes) for addresses, writes in parts])


def _by_element(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    (m, k), n = a.shape, b.shape[1]
    addresses, writes = np.empty((m, n, 2 * k + 1), np.int64), np.zeros((m, n, 2 * k + 1), bool)
    addresses[:, :, 0:-1:2] = a[:, None, :]
    addresses[:, :, 1:-1:2] = b.T[None, :, :]
    addresses[:, :, -1], writes[:, :, -1] = c, True
    return addresses.ravel(), writes.ravel()


def _by_blocks(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, tile: int | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    (m, k), n = a.shape, b.shape[1]
    side = tile or max(m, n, k)
    for i in range(0, m, side):
        for j in range(0, n, side):
            for p in range(0, k, side):
                rows, steps, columns = slice(i, i + side), slice(p, p + side), slice(j, j + side)
                yield _by_row(a[rows, steps], b[steps, columns], c[rows, columns])


def _by_row(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    (m, k), n = a.shape, b.shape[1]
    addresses, writes = np.empty((m, k, 1 + 3 * n), np.int64), np.zeros((m, k, 1 + 3 * n), bool)
    addresses[:, :, 0] = a
    addresses[:, :, 1::3] = b[None]
    addresses[:, :, 2::3] = addresses[:, :, 3::3] = c[:, None, :]
    writes[:, :, 3::3] = True
    return addresses.ravel(), writes.ravel()


def _tiles(length: int, tile: int | None) -> int:
    return 1 if tile is None else -(-length // tile)


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES


def _require_few(accesses: int, what: str) -> None:
    if accesses > _MOST_ACCESSES:
        raise ValueError(f"{what} is {accesses:,} accesses, and at most {_MOST_ACCESSES:,} are simulated; give less")


def require_stream(given: object) -> None:
    """Raise TypeError unless ``given`` is an address stream. For the library itself."""
    if not isinstance(given, AddressStream):
        raise TypeError(f"this takes an address stream, such as sequential(100) or AddressStream(addresses), not "
                        f"{type(given).__name__} {given!r:.40}")  # fmt: skip


def list_of(name: str, given: object, what: str) -> list:
    """Return ``given`` as a list; TypeError when it is one thing instead of several. For the library itself."""
    try:
        return list(given)  # type: ignore[call-overload]
    except TypeError:
        raise TypeError(f"{name} is a list of {what}; got {type(given).__name__} {given!r:.40}") from None
