"""Contractions of a table with the flavours: four programs for the same sums, for all replicas at
once, and the counts of each.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from helpers.checks import whole_number
from helpers.results import Record, row_of
from helpers.studies.replicas._problem import FLAVOURS, Observable

Contraction = Callable[[Tensor], Tensor]


class ContractionCount(Record):
    """One way to compute a two-flavour data set for all replicas: multiply-adds, and numbers that
    pass by memory.

    ``table_numbers`` are read, ``made_numbers`` are written on the way to the result and read
    again. Lesson 19.
    """

    way: str
    macs: int
    table_numbers: int
    made_numbers: int


class ContractionCounts(Record):
    """The ways to compute a data set; ``chosen`` is the one with the fewest numbers read and made.

    Lesson 19.
    """

    chosen: str
    ways: tuple[ContractionCount, ...]

    def way(self, name: str) -> ContractionCount:
        """Return the row of a way; ValueError where there is none."""
        return row_of(self.ways, "way", way=name)


def cheapest_contraction(
    data: int, channels: int, points: int, *, replicas: int = 1
) -> ContractionCounts:
    """Return the counts of four contractions of a two-flavour data set, and the one that reads and
    makes least.

    ``data`` n numbers from ``channels`` F pairs of flavours on ``points`` x for ``replicas`` R.
    "boolean_mask" makes the products of all 14 x 14 pairs and sums those of F, "padded_einsum" sums
    over all pairs; "gather" makes the F x^2 products of each replica; "pair_product" multiplies the
    table by one flavour first, which makes n F x. So pairs win where n < x: a count that knows no
    caches, and favours them too much once n F x R leaves these. Raises TypeError or ValueError for
    a size that is not accepted. Lesson 19.
    """
    n, x = whole_number("data", data), whole_number("points", points)
    channels = whole_number("channels", channels, at_most=FLAVOURS**2)
    replicas = whole_number("replicas", replicas)
    all_products, needed_products = (FLAVOURS * x) ** 2, channels * x**2
    tables_made = {  # of each way the numbers of its table, and those that a replica makes
        "boolean_mask": (n * needed_products, all_products),
        "padded_einsum": (n * all_products, n * FLAVOURS * x),
        "gather": (n * needed_products, needed_products),
        "pair_product": (n * needed_products, n * channels * x),
    }
    rows = tuple(
        # a multiply-add makes a number, and one takes each number of the table
        ContractionCount(way, replicas * (table + made), table, replicas * made)
        for way, (table, made) in tables_made.items()
    )
    return ContractionCounts(
        min(rows, key=lambda row: row.table_numbers + row.made_numbers).way, rows
    )


def boolean_mask(observable: Observable) -> Contraction:
    """Return the story's first program, of flavours (x, 14, R), replicas last: (n, R).

    Of two flavours it makes all 14 x 14 products and throws most away by a boolean mask, of a shape
    that only the data tell.
    """
    shape = (FLAVOURS, FLAVOURS) if observable.of_pairs else (FLAVOURS,)
    mask = torch.zeros(shape, dtype=torch.bool, device=observable.table.device)
    mask[tuple(observable.channels.T) if observable.of_pairs else observable.channels] = True

    def single(flavoured: Tensor) -> Tensor:
        # the table (n, F, x) with (F, x, R)
        return torch.tensordot(observable.table, flavoured.transpose(0, 1)[mask], dims=2)

    def pairs(flavoured: Tensor) -> Tensor:
        products = torch.einsum("xfr,ygr->fgxyr", flavoured, flavoured)  # (14, 14, x, x, R)
        # the table (n, F, x, x) with (F, x, x, R)
        return torch.tensordot(observable.table, products[mask], dims=3)

    return pairs if observable.of_pairs else single


def padded_einsum(observable: Observable) -> Contraction:
    """Return the story's second program, of flavours (R, x, 14): (R, n), by tables padded with
    zeros to all flavours.

    A table of F of 14 flavours becomes 14 / F times as large, one of F pairs 196 / F times.
    """
    table = padded(observable)
    if not observable.of_pairs:
        return lambda flavoured: torch.einsum("nxf,rxf->rn", table, flavoured)

    def pairs(flavoured: Tensor) -> Tensor:
        half = torch.einsum("nxfyg,ryg->rnxf", table, flavoured)
        return torch.einsum("rnxf,rxf->rn", half, flavoured)

    return pairs


def padded(observable: Observable) -> Tensor:
    """Return the table with all flavours: (n, x, 14), or (n, x, 14, x, 14) of two; else 0.

    Lesson 19.
    """
    table = observable.table
    data, _, points = table.shape[:3]
    if not observable.of_pairs:
        return table.new_zeros(data, points, FLAVOURS).index_copy(
            2, observable.channels, table.transpose(1, 2)
        )
    padded_table = table.new_zeros(data, points, FLAVOURS, points, FLAVOURS)  # (n, x, 14, x, 14)
    first, second = observable.channels.T
    # two index lists with a dimension between them: theirs comes first, (F, n, x, x)
    padded_table[:, :, first, :, second] = table.permute(1, 0, 2, 3)
    return padded_table


def gather(observable: Observable) -> Contraction:
    """Return the program of flavours (R, 14, x): the needed channels gathered, then one product
    with the table.
    """
    table = observable.table.flatten(1).T.contiguous()  # (F x, n), or (F x x, n) of two
    if not observable.of_pairs:
        return lambda flavoured: flavoured[:, observable.channels].flatten(1) @ table
    first, second = observable.channels.T.contiguous()
    # (R, F, x, 1) * (R, F, 1, x), flat (R, F x x)
    return lambda flavoured: (
        (flavoured[:, first, :, None] * flavoured[:, second, None, :]).flatten(1) @ table
    )


def pair_product(observable: Observable) -> Contraction:
    """Return the program of flavours (14, x, R): one matrix product a flavour pair, then a weighted
    sum: (n, R).

    For each pair, (n x, y) @ (y, R) brings the second flavour in; the first is a weight of the sum
    that is left.
    """
    data, channels, points = observable.table.shape[:3]
    if not observable.of_pairs:
        table = observable.table.flatten(1)  # (n, F x), and the flavours become (F x, R)
        return lambda flavoured: table @ flavoured[observable.channels].flatten(0, 1)
    table = observable.table.transpose(0, 1).reshape(channels, data * points, points)
    first, second = observable.channels.T.contiguous()

    def pairs(flavoured: Tensor) -> Tensor:
        # (F, n, x, R), of (F, n x, x) @ (F, x, R)
        half = torch.bmm(table, flavoured[second]).view(channels, data, points, -1)
        return (half * flavoured[first][:, None]).sum((0, 2))

    return pairs
