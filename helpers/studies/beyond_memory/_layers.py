"""Layers of weights taken in turn, more of them than a cache holds: the time of a layer by their
number.

Lesson 12.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from helpers import native
from helpers.checks import number, whole_number
from helpers.hardware import machine_card
from helpers.results import Record
from helpers.timing import fixed_threads

ORDERS = ("forward", "by turns")
COLUMNS = 256
_ASSUMED_BYTES = 2**20  # where the system does not tell the size of its L2 cache
_LAYERS_IN_CACHE = 8
# layers in a timed call, at least: some 0.5 ms, beside which the call itself does not count
_USES = 240
_DECLARATION = (
    "float take_layers(const float* weights, const int32_t* order, int64_t uses, int64_t rows, "
    "int64_t columns, const float* x, float* y)"
)


class TurnRow(Record):
    """A loop over ``layers``: the time of a layer, forward only and forward and backward by turns.

    Lesson 12.
    """

    layers: int
    forward_s: float
    by_turns_s: float


class TurnSweep(Record):
    """The time of a layer of ``layer_bytes`` by the number of layers in a loop; minima of many
    rounds.

    ``cache_bytes`` is the L2 cache of a core, of which a layer takes an eighth; None where the
    system does not tell it, and a layer then has 128 KiB. ``engine`` is "C++", or "torch.mv"
    without a compiler. Lesson 12.
    """

    engine: str
    layer_bytes: int
    cache_bytes: int | None
    rows: tuple[TurnRow, ...]

    def row(self, layers: int) -> TurnRow:
        """Return the row of a number of layers; ValueError, with the numbers that there are, for
        another.
        """
        for row in self.rows:
            if row.layers == layers:
                return row
        numbers = ", ".join(str(row.layers) for row in self.rows)
        raise ValueError(f"there is no row of {layers} layers; there are {numbers}")


def sweep_layers(
    counts: Sequence[int] = tuple(range(1, 25)), *, budget_s: float = 3.0
) -> TurnSweep:
    """Return the time of a layer in loops over ``counts`` layers that are an eighth of the L2 cache
    each.

    A layer is a matrix of float32 weights with 256 columns, which is multiplied with a vector. A
    loop takes the layers forward only, or forward and backward by turns. All loops are timed in
    rounds, one after the other, on one thread, until ``budget_s`` is over and at least 5 times; the
    minimum of each counts.

    >>> sweep = sweep_layers([4, 16], budget_s=0.2)
    >>> sweep.row(16).layers
    16

    Raises ValueError for no counts, or a count outside of 1 to 64. Lesson 12.
    """
    counts = [
        whole_number(f"counts[{index}]", count, at_most=64) for index, count in enumerate(counts)
    ]
    if not counts:
        raise ValueError("counts is empty; give numbers of layers, such as range(1, 25)")
    budget_s = number("budget_s", budget_s, above=0)
    cache_bytes = _cache_bytes()
    rows = (cache_bytes or _ASSUMED_BYTES) // _LAYERS_IN_CACHE // (4 * COLUMNS)
    weights = np.random.default_rng(0).standard_normal(
        (max(counts), rows, COLUMNS), dtype=np.float32
    )
    take, engine = _engine(weights)
    loops = {(count, kind): _uses(count, kind) for count in counts for kind in ORDERS}
    least_s = dict.fromkeys(loops, math.inf)
    with fixed_threads(1):
        end_s = time.perf_counter() + budget_s
        for round_number in itertools.count():
            if round_number >= 5 and time.perf_counter() > end_s:
                break
            for loop, uses in loops.items():
                begin_s = time.perf_counter()
                take(uses)
                least_s[loop] = min(least_s[loop], (time.perf_counter() - begin_s) / len(uses))
    measured = tuple(TurnRow(count, *(least_s[count, kind] for kind in ORDERS)) for count in counts)
    return TurnSweep(engine, rows * COLUMNS * 4, cache_bytes, measured)


def _cache_bytes() -> int | None:
    """Return the bytes of the L2 cache for data; None where the system does not tell it."""
    sizes = [cache.size_bytes for cache in machine_card().caches or () if cache.level == 2]
    return max((size for size in sizes if size), default=None)


def _uses(count: int, kind: str) -> np.ndarray:
    """Return the numbers of the layers in the order of their uses, whole passes and at least
    ``_USES``.
    """
    layers = list(range(count))
    passes = layers + (layers[::-1] if kind == "by turns" else layers)
    return np.array(passes * math.ceil(_USES / len(passes)), dtype=np.int32)


def _engine(weights: np.ndarray) -> tuple[Callable[[np.ndarray], object], str]:
    """Return a function that takes layers in an order, and the name of its engine."""
    _, rows, columns = weights.shape
    x = np.ones(columns, dtype=np.float32)
    try:
        library = native.compile_cpp(native.read_source(__package__, "layers.cpp"))
    except native.MissingToolError:
        tensors, vector = list(torch.from_numpy(weights)), torch.from_numpy(x)
        return lambda uses: [
            torch.mv(tensors[layer], vector) for layer in uses.tolist()
        ], "torch.mv"
    take, y = library.function(_DECLARATION), np.empty(rows, dtype=np.float32)
    return lambda uses: take(weights, uses, len(uses), rows, columns, x, y), "C++"
