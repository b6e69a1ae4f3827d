"""What a simulated run of a systolic array gives: its product, its counts, and what each element
held.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np

from helpers.results import Record


class Frame(Record):
    """The contents of an array's elements in one cycle, as arrays of shape (rows, columns).

    ``inputs``, ``filters`` and ``sums`` are places: the flat index, row by row, in ``a``, in ``b``
    and in the product; -1 is an empty register. ``active`` says which elements multiplied and
    added. ``phase`` is "load", "compute" or "drain", ``fold`` counts the tiles of the product from
    0. Lesson 14.
    """

    cycle: int
    fold: int
    phase: str
    inputs: np.ndarray
    filters: np.ndarray
    sums: np.ndarray
    active: np.ndarray


class SystolicRun(Record):
    """The product of an m x k matrix with a k x n one on an array of ``rows`` x ``columns``
    elements, as simulated.

    ``active`` holds, for each cycle, the elements that multiplied two operands: it has ``cycles``
    entries, and its sum is ``macs``. ``input_reads``, ``filter_reads`` and ``output_writes`` count
    numbers that cross the edge of the array; ``partial_sum_reads`` those of the writes that found a
    sum of an earlier fold there and had to read it to add. ``frames`` is empty unless it was asked
    for. Lesson 14.
    """

    m: int
    n: int
    k: int
    rows: int
    columns: int
    dataflow: str
    cycles: int
    macs: int
    utilisation_share: float
    input_reads: int
    filter_reads: int
    output_writes: int
    partial_sum_reads: int
    product: np.ndarray = field(repr=False)
    active: np.ndarray = field(repr=False)
    frames: tuple[Frame, ...] = field(default=(), repr=False)

    @property
    def utilisation(self) -> float:
        """The share of all element-cycles in which an element multiplied: macs / (cycles x rows x
        columns).
        """
        return self.utilisation_share
