"""A matrix without its zeros: compressed rows (of numbers or blocks) and 2:4, their bytes counted
and modelled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import torch
from torch import Tensor

from helpers.checks import choice, one_of, whole_number
from helpers.results import Record
from helpers.studies.sparsity._pruning import checked_block, split_tiles

_INDEX_TYPES = (torch.int32, torch.int64)


class Csr(Record):
    """A matrix as compressed sparse rows, of numbers (CSR) or of blocks (BSR); ``csr @ x`` is its
    product.

    ``values`` are the kept numbers row by row, (kept,), or the kept blocks, (kept, block rows,
    block columns); ``column_indices``, (kept,), says in which column, or column of blocks, each
    stands. Those of row i, or row of blocks, are the ones from ``row_starts[i]`` to before
    ``row_starts[i + 1]``. Lesson 15.
    """

    rows: int
    columns: int
    block: tuple[int, int]
    kept: int
    stored_bytes: int
    dense_bytes: int
    values: Tensor = field(repr=False)
    column_indices: Tensor = field(repr=False)
    row_starts: Tensor = field(repr=False)

    def dense(self) -> Tensor:
        """Return the whole matrix, (rows, columns)."""
        matrix = self.values.new_zeros(self.rows, self.columns)
        split_tiles(matrix, self.block)[self._rows(), self.column_indices.long()] = self._blocks()
        return matrix

    def __matmul__(self, right: Tensor) -> Tensor:
        """Return the product with ``right``, (columns,) or (columns, n): each kept number times a
        row of it.

        Numbers of fewer than 32 bits are added in float32, and the sum is rounded once. Raises
        TypeError or ValueError for a right side of another type, device or length.
        """
        one_of("the right side", right, Tensor, "a torch.Tensor")
        if right.ndim not in (1, 2) or right.shape[0] != self.columns:
            raise ValueError(
                f"the right side has the shape {tuple(right.shape)}; give ({self.columns},) or "
                f"({self.columns}, n), because the matrix is {self.rows} x {self.columns}"
            )
        if (right.dtype, right.device) != (self.values.dtype, self.values.device):
            raise TypeError(
                f"the right side is {right.dtype} on {right.device}; give {self.values.dtype} on "
                f"{self.values.device}, as the matrix is"
            )
        down, across = self.block
        wide = torch.float32 if right.is_floating_point() and right.itemsize < 4 else right.dtype
        strips = right.to(wide).reshape(self.columns // across, across, math.prod(right.shape[1:]))
        products = self._blocks().to(wide) @ strips[self.column_indices.long()]
        sums = products.new_zeros(self.rows // down, down, products.shape[2]).index_add_(
            0, self._rows(), products
        )
        return sums.view(self.rows, *right.shape[1:]).to(right.dtype)

    def _blocks(self) -> Tensor:
        return self.values.view(-1, *self.block)

    def _rows(self) -> Tensor:
        """Return the row, or row of blocks, of each that is stored."""
        counts = self.row_starts.long().diff()
        return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)


class Packed(Record):
    """A matrix with at most two numbers in every four of a row: ``values``, (rows, columns / 2),
    and their places.

    ``indices`` are bytes, and hold two groups of four each, the earlier one in the low half. Of a
    group the places of its two values, 0 to 3, take two bits each, the earlier one in the low bits.
    Lesson 15.
    """

    rows: int
    columns: int
    stored_bytes: int
    dense_bytes: int
    values: Tensor = field(repr=False)
    indices: Tensor = field(repr=False)

    def dense(self) -> Tensor:
        """Return the whole matrix, (rows, columns): the way back from :func:`pack_2_4`."""
        groups = self.rows * self.columns // 4
        halves = torch.stack((self.indices & 15, self.indices >> 4), 1).flatten()[:groups].long()
        kept_columns = torch.stack((halves & 3, halves >> 2), 1)
        matrix = self.values.new_zeros(groups, 4)
        matrix[_row_numbers(kept_columns), kept_columns] = self.values.view(groups, 2)
        return matrix.view(self.rows, self.columns)


def to_csr(
    matrix: Tensor, *, block: Sequence[int] = (1, 1), index_dtype: torch.dtype = torch.int64
) -> Csr:
    """Return ``matrix`` without its zeros, as compressed sparse rows; ``stored_bytes`` are those of
    its three tensors.

    With another ``block`` than (1, 1), blocks of (rows, columns) that hold a number are stored
    whole. ``index_dtype`` is int64, as PyTorch's is by default, or int32, which takes half. It
    stays on the matrix's device, without a gradient.

    >>> csr = to_csr(torch.tensor([[0.0, 5.0], [0.0, 0.0], [6.0, 7.0]]))
    >>> csr.values.tolist(), csr.column_indices.tolist(), csr.row_starts.tolist()
    ([5.0, 6.0, 7.0], [1, 0, 1], [0, 1, 1, 3])

    Raises TypeError for what is no matrix, ValueError for a block that does not divide it. Lesson
    15.
    """
    matrix = _check_matrix(matrix)
    rows, columns = matrix.shape
    block = _check_blocks(rows, columns, block)
    if index_dtype not in _INDEX_TYPES:
        raise TypeError(f"index_dtype={index_dtype!r:.80}; give torch.int32 or torch.int64")
    tiles = split_tiles(matrix, block)
    filled = (tiles != 0).any(3).any(2)
    at_row, at_column = filled.nonzero(as_tuple=True)
    values, column_indices = tiles[at_row, at_column], at_column.to(index_dtype)
    row_starts = torch.zeros(len(tiles) + 1, dtype=index_dtype, device=matrix.device)
    row_starts[1:] = filled.sum(1).cumsum(0)
    values = values.flatten() if block == (1, 1) else values
    stored_bytes = values.nbytes + column_indices.nbytes + row_starts.nbytes
    return Csr(
        rows,
        columns,
        block,
        len(values),
        stored_bytes,
        matrix.nbytes,
        values,
        column_indices,
        row_starts,
    )


def pack_2_4(matrix: Tensor) -> Packed:
    """Return the matrix with two values, and two indices of two bits, for every four neighbours in
    a row.

    PyTorch's semi-structured tensors hold the same numbers, the indices in an order of their own. A
    group with fewer than two numbers keeps zeros in their place, the first ones. ``stored_bytes``
    are those of both tensors.

    >>> packed = pack_2_4(torch.tensor([[0.0, 5.0, 0.0, 6.0]]))
    >>> packed.values.tolist(), packed.indices.tolist()  # places 1 and 3: 0b1101
    ([[5.0, 6.0]], [13])

    Raises TypeError for what is no matrix, ValueError for columns that 4 does not divide, and for a
    group with three or four numbers. Lesson 15.
    """
    matrix = _check_matrix(matrix)
    rows, columns = matrix.shape
    _check_fours(rows, columns)
    groups = matrix.reshape(-1, 4)
    counts = (groups != 0).sum(1)
    crowded = (counts > 2).nonzero().flatten()
    if len(crowded):
        row, column = divmod(4 * int(crowded[0]), columns)
        raise ValueError(
            f"{int(counts[crowded[0]])} of the four numbers from [{row}, {column}] on are not "
            "zero, and 2:4 keeps two; prune with pattern='2:4' first"
        )
    kept_columns = (
        (groups == 0).to(torch.uint8).argsort(dim=1, stable=True)[:, :2].sort(dim=1).values
    )
    halves = (kept_columns[:, 0] | kept_columns[:, 1] << 2).to(torch.uint8)
    halves = torch.nn.functional.pad(halves, (0, len(halves) % 2))
    indices = halves[0::2] | halves[1::2] << 4
    values = groups[_row_numbers(kept_columns), kept_columns].view(rows, columns // 2)
    return Packed(rows, columns, values.nbytes + indices.nbytes, matrix.nbytes, values, indices)


def model_bytes(
    storage: str,
    rows: int,
    columns: int,
    *,
    kept: int | None = None,
    block: Sequence[int] = (1, 1),
    value_bytes: int = 4,
    index_bytes: int = 8,
) -> int:
    """Return the bytes of a ``rows`` x ``columns`` matrix in a ``storage``, by a formula.

    * "dense": rows x columns x value_bytes.
    * "csr": for each of ``kept`` blocks (numbers, if ``block`` is left out) its values and an
      index; and an index for each row of blocks, and one more.
    * "2:4": half of the values, and a bit for each number of the matrix, in whole bytes.

    >>> model_bytes("csr", 1000, 1000, kept=500_000), model_bytes("dense", 1000, 1000)
    (6008008, 4000000)

    A value has ``value_bytes``, an index ``index_bytes``. Raises TypeError or ValueError for a size
    that is not accepted, a ``block`` that does not divide the matrix, and columns that 4 does not
    divide with "2:4".
    """
    choice("storage", storage, ("dense", "csr", "2:4"))
    sizes = {
        "rows": rows,
        "columns": columns,
        "value_bytes": value_bytes,
        "index_bytes": index_bytes,
    }
    rows, columns, value_bytes, index_bytes = (
        whole_number(name, size) for name, size in sizes.items()
    )
    down, across = _check_blocks(rows, columns, block)
    if storage == "dense":
        return rows * columns * value_bytes
    if storage == "2:4":
        _check_fours(rows, columns)
        return rows * columns // 2 * value_bytes + -(-rows * columns // 8)
    kept = whole_number("kept", kept, at_least=0, at_most=rows * columns // (down * across))
    return kept * (down * across * value_bytes + index_bytes) + (rows // down + 1) * index_bytes


def _check_matrix(matrix: Any) -> Tensor:
    one_of("matrix", matrix, Tensor, "a matrix as a torch.Tensor")
    if (
        matrix.ndim != 2
        or matrix.layout != torch.strided
        or matrix.is_meta
        or matrix.dtype == torch.bool
    ):
        raise TypeError(
            f"matrix is a tensor of {matrix.ndim} dimensions ({matrix.dtype}, {matrix.layout}, on "
            f"{matrix.device}); give a dense one of 2 that holds numbers, such as "
            "sparsity.weight_matrix(layer)"
        )
    return matrix.detach()


def _row_numbers(kept_columns: Tensor) -> Tensor:
    """Return the numbers of the rows of ``places``, (rows, 1), to index with."""
    return torch.arange(len(kept_columns), device=kept_columns.device)[:, None]


def _check_blocks(rows: int, columns: int, block: Any) -> tuple[int, int]:
    down, across = checked_block(block)
    if rows % down or columns % across:
        raise ValueError(
            f"blocks of {down} x {across} do not divide a matrix of {rows} x {columns}; give others"
        )
    return down, across


def _check_fours(rows: int, columns: int) -> None:
    if columns % 4:
        raise ValueError(
            f"the matrix is {rows} x {columns}; 2:4 needs a number of columns that 4 divides"
        )
