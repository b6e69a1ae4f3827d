"""A matrix without its zeros: compressed rows and 2:4, their bytes counted and modelled."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import torch
from torch import Tensor

from helpers.checks import choice, one_of, whole_number
from helpers.results import Record


class Csr(Record):
    """A matrix as compressed sparse rows.

    ``values`` are the kept numbers row by row, (kept,); ``column_indices``, (kept,), says in which
    column each stands. Those of row i are the ones from ``row_starts[i]`` to before
    ``row_starts[i + 1]``. Lesson 15.
    """

    rows: int
    columns: int
    kept: int
    stored_bytes: int
    dense_bytes: int
    values: Tensor = field(repr=False)
    column_indices: Tensor = field(repr=False)
    row_starts: Tensor = field(repr=False)


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


def to_csr(matrix: Tensor) -> Csr:
    """Return ``matrix`` without its zeros, as compressed sparse rows; ``stored_bytes`` are those of
    its three tensors.

    The indices are int64, as PyTorch's are by default. It stays on the matrix's device, without a
    gradient.

    >>> csr = to_csr(torch.tensor([[0.0, 5.0], [0.0, 0.0], [6.0, 7.0]]))
    >>> csr.values.tolist(), csr.column_indices.tolist(), csr.row_starts.tolist()
    ([5.0, 6.0, 7.0], [1, 0, 1], [0, 1, 1, 3])

    Raises TypeError for what is no matrix. Lesson 15.
    """
    matrix = _check_matrix(matrix)
    rows, columns = matrix.shape
    at_row, column_indices = matrix.nonzero(as_tuple=True)
    values = matrix[at_row, column_indices]
    row_starts = torch.zeros(rows + 1, dtype=torch.int64, device=matrix.device)
    row_starts[1:] = (matrix != 0).sum(1).cumsum(0)
    stored_bytes = values.nbytes + column_indices.nbytes + row_starts.nbytes
    return Csr(
        rows, columns, len(values), stored_bytes, matrix.nbytes, values, column_indices, row_starts
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
    rows_of_groups = torch.arange(len(groups), device=matrix.device)[:, None]
    values = groups[rows_of_groups, kept_columns].view(rows, columns // 2)
    return Packed(rows, columns, values.nbytes + indices.nbytes, matrix.nbytes, values, indices)


def model_bytes(
    storage: str,
    rows: int,
    columns: int,
    *,
    kept: int | None = None,
    value_bytes: int = 4,
    index_bytes: int = 8,
) -> int:
    """Return the bytes of a ``rows`` x ``columns`` matrix in a ``storage``, by a formula.

    * "dense": rows x columns x value_bytes.
    * "csr": for each of ``kept`` numbers its value and an index; and an index for each row, and one
      more.
    * "2:4": half of the values, and a bit for each number of the matrix, in whole bytes.

    >>> model_bytes("csr", 1000, 1000, kept=500_000), model_bytes("dense", 1000, 1000)
    (6008008, 4000000)

    A value has ``value_bytes``, an index ``index_bytes``. Raises TypeError or ValueError for a size
    that is not accepted, and columns that 4 does not divide with "2:4".
    """
    choice("storage", storage, ("dense", "csr", "2:4"))
    rows, columns = whole_number("rows", rows), whole_number("columns", columns)
    value_bytes = whole_number("value_bytes", value_bytes)
    index_bytes = whole_number("index_bytes", index_bytes)
    if storage == "dense":
        return rows * columns * value_bytes
    if storage == "2:4":
        _check_fours(rows, columns)
        return rows * columns // 2 * value_bytes + -(-rows * columns // 8)
    kept = whole_number("kept", kept, at_least=0, at_most=rows * columns)
    return kept * (value_bytes + index_bytes) + (rows + 1) * index_bytes


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


def _check_fours(rows: int, columns: int) -> None:
    if columns % 4:
        raise ValueError(
            f"the matrix is {rows} x {columns}; 2:4 needs a number of columns that 4 divides"
        )
