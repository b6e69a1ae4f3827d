"""The accesses of loops over matrices, as streams for the simulated caches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from helpers.studies.simulators._cache import AddressStream, join_streams

_PAGE_BYTES = 4096  # matrices of a product start at multiples of this


def matrix_product(
    m: int, n: int, k: int, *, order: str = "ijk", tile: int | None = None, element_bytes: int = 4
) -> AddressStream:
    """Return the accesses of ``C = A @ B``: A (m, k), B (k, n), C (m, n), each stored by rows and
    begun on a page.

    ``"ijk"`` sums an element of C in a register: two reads a step, one write an element. ``"ikj"``
    writes zeros to C, then takes an element of A and adds its multiples of a row of B to a row of
    C. With ``tile``, the order is "ikj" within blocks of ``tile`` x ``tile``, the blocks in the
    order i, j, k.
    """
    bases = np.cumsum([0, _pages(m * k * element_bytes), _pages(k * n * element_bytes)])
    a, b, c = (
        base + element_bytes * np.arange(rows * columns, dtype=np.int64).reshape(rows, columns)
        for base, (rows, columns) in zip(bases, ((m, k), (k, n), (m, n)), strict=True)
    )
    parts = (
        [_by_element(a, b, c)]
        if order == "ijk"
        else [(c.ravel(), True), *_by_blocks(a, b, c, tile)]
    )
    return join_streams(
        [AddressStream(addresses, writes, element_bytes) for addresses, writes in parts]
    )


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


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES
