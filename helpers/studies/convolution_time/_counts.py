"""Counts for each algorithm, costs that are fitted to them, and the times that follow. Lesson 20.

A time is a sum of counts times costs. The three :data:`COUNTINGS` differ in what is counted, and in
which shapes share their costs. Counts of the last one were chosen by errors on random shapes alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from helpers.checks import choice, number, one_of
from helpers.results import Record
from helpers.studies.convolution_time._algorithms import ALGORITHMS
from helpers.studies.convolution_time._collecting import ConvolutionTimes
from helpers.studies.convolution_time._judging import Split
from helpers.studies.convolution_time._models import (
    ALL,
    TERMS,
    Count,
    FitCosts,
    fit_groups,
    least_relative_error,
    program_of,
)
from helpers.studies.convolution_time._shapes import FLOAT_BYTES, ConvolutionShape, one_shape

COUNTINGS = ("FLOP only", "all counts", "by implementation")
# Of the counts, those of multiplications: what is left of a time is everything else.
MULTIPLICATIONS = (
    "macs",
    "macs of whole blocks",
    "macs of a column",
    "spectral products",
    "products of tiles",
)

_COMPLEX_BYTES = 8
_CACHE_BYTES = 2**24  # what FFT's transforms may fill before they cost more
_NNPACK_TILE, _NNPACK_LARGE_TILE = 8, 16
_LARGE_TILE_GAIN = 4  # NNPACK takes tiles of 16 if they are fewer than a fourth of those of 8


class TimePart(Record):
    """The part of one count in a modelled time: ``amount`` units of ``cost_s`` seconds each.

    Lesson 20.
    """

    count: str
    amount: float
    cost_s: float

    @property
    def time_s(self) -> float:
        """The seconds of this part."""
        return self.amount * self.cost_s


def implementation_of(algorithm: str, shape: ConvolutionShape) -> str:
    """Return the implementation that ``algorithm`` runs for ``shape``, of which each has costs of
    its own.

    NNPACK takes Winograd's algorithm for 3 x 3 filters and Fourier transforms for larger ones, both
    with stride 1 alone, and multiplies matrices otherwise (its convolution-inference.c). The
    shifted products copy less for 1 x 1 filters and for stride 1. The others follow
    :func:`program_of`.

    Raises ValueError for an unknown algorithm.

    >>> stem = ConvolutionShape(1, 3, 224, 224, 64, kernel=7, stride=2, padding=3)
    >>> implementation_of("nnpack", stem)
    'matrix product'

    Lesson 20.
    """
    choice("algorithm", algorithm, ALGORITHMS)
    one_shape(shape)
    if algorithm == "nnpack":
        return _nnpack_implementation(shape)
    if algorithm == "shifted":
        return f"{'one product' if shape.kernel == 1 else 'products'}, stride {shape.stride}"
    return algorithm if algorithm.startswith("winograd") else program_of(shape)


def count_terms(
    algorithm: str, shape: ConvolutionShape, *, counting: str = COUNTINGS[-1]
) -> dict[str, float]:
    """Return the counts of ``algorithm`` for ``shape`` by name: calls, multiplications, bytes.

    ``counting`` is one of :data:`COUNTINGS`. Raises ValueError for another one, or an unknown
    algorithm. Lesson 20.

    >>> layer = ConvolutionShape(1, 64, 56, 56, 64, kernel=3, stride=1, padding=1)
    >>> f"{count_terms('nnpack', layer)['products of tiles']:,}"
    '26,214,400'
    """
    one_shape(shape)
    return {name: count(shape) for name, count in _terms(algorithm, counting).items()}


def predict_times(
    times: ConvolutionTimes,
    split: Split,
    counting: str,
    *,
    fit_costs: FitCosts = least_relative_error,
    shortest_s: float = 0.0,
) -> np.ndarray:
    """Return the modelled seconds of ``split.test`` by each algorithm, (shapes, algorithms).

    Costs are fitted to ``times`` of the shapes of ``split.train`` by ``fit_costs``, a function of
    counts (shapes, counts) and measured seconds (shapes,) that returns a cost for each count.
    ``counting`` is one of ``COUNTINGS``. Each column of counts is in units of its largest value.
    Measured times below ``shortest_s`` are not fitted. NaN stands where an algorithm cannot compute
    a shape. Lesson 20.
    """
    one_of("split", split, Split, "a Split")
    number("shortest_s", shortest_s, at_least=0)
    shapes, columns = times.shapes, []
    for algorithm in times.algorithms:
        explain = _explanation(times, split, algorithm, counting, fit_costs, shortest_s)
        is_measured = np.isfinite(times.times_s(algorithm))
        columns.append(
            [
                sum(part.time_s for part in explain(shapes[index]))
                if is_measured[index]
                else math.nan
                for index in split.test
            ]
        )
    return np.column_stack(columns)


def explain_time(
    times: ConvolutionTimes,
    split: Split,
    algorithm: str,
    shape: ConvolutionShape,
    *,
    fit_costs: FitCosts = least_relative_error,
) -> list[TimePart]:
    """Return the parts of the modelled time of ``algorithm`` for ``shape``, one for each of the
    counts by implementation.

    Costs are fitted to ``times`` of the shapes of ``split.train`` by ``fit_costs``, as
    :func:`predict_times` does. Lesson 20.
    """
    one_of("split", split, Split, "a Split")
    one_shape(shape)
    return _explanation(times, split, algorithm, COUNTINGS[-1], fit_costs)(shape)


def _explanation(
    times: ConvolutionTimes,
    split: Split,
    algorithm: str,
    counting: str,
    fit_costs: FitCosts,
    shortest_s: float = 0.0,
) -> Callable[[ConvolutionShape], list[TimePart]]:
    """Return a function to the parts of the time of a shape: each count with its implementation's
    cost, or with that of all shapes where the implementation has too few.
    """
    terms, measured_s = _terms(algorithm, counting), times.times_s(algorithm)
    fitted = [index for index in split.train if measured_s[index] > shortest_s]
    if len(fitted) < 2:
        raise ValueError(
            f"{len(fitted)} shapes of {algorithm} are left to fit; give a split with 2 or more"
        )
    shapes = [times.shapes[index] for index in fitted]
    groups = [_group(algorithm, counting, shape) for shape in shapes]
    costs = fit_groups(terms, shapes, measured_s[fitted], groups, fit_costs)

    def explain(shape: ConvolutionShape) -> list[TimePart]:
        own_costs = costs.get(_group(algorithm, counting, shape), costs[ALL])
        return [TimePart(name, terms[name](shape), cost) for name, cost in own_costs.items()]

    return explain


def _group(algorithm: str, counting: str, shape: ConvolutionShape) -> str:
    """Return the implementation whose costs ``shape`` has, ALL for those of all shapes together."""
    if counting == "FLOP only":
        return ALL
    return program_of(shape) if counting == "all counts" else implementation_of(algorithm, shape)


def _terms(algorithm: str, counting: str) -> dict[str, Count]:
    choice("algorithm", algorithm, ALGORITHMS)
    choice("counting", counting, COUNTINGS)
    if counting == "FLOP only":
        return {name: TERMS[name] for name in ("calls", "macs")}
    if counting == "all counts" or algorithm not in _OWN_TERMS:
        return TERMS
    return _OWN_TERMS[algorithm]


# What the last counting counts for one algorithm.


def _nnpack_implementation(shape: ConvolutionShape) -> str:
    if shape.stride > 1:
        return "matrix product"
    if shape.kernel == 1:
        return "direct product"
    return "Winograd" if shape.kernel == 3 else "Fourier"


def _tiles(shape: ConvolutionShape, outputs: int) -> int:
    across, down = (math.ceil(side / outputs) for side in (shape.out_width, shape.out_height))
    return shape.batch * across * down


def _nnpack_tile(shape: ConvolutionShape) -> int:
    """Return the side of NNPACK's tiles, which overlap by a kernel less one."""
    reach = shape.kernel - 1
    if shape.kernel <= 3:
        return _NNPACK_TILE
    if reach >= _NNPACK_TILE:
        return _NNPACK_LARGE_TILE
    small, large = (_tiles(shape, side - reach) for side in (_NNPACK_TILE, _NNPACK_LARGE_TILE))
    return _NNPACK_TILE if small <= _LARGE_TILE_GAIN * large else _NNPACK_LARGE_TILE


def _of_tiles(side_of: Callable[[ConvolutionShape], int]) -> dict[str, Count]:
    """Return the counts of transforms of tiles whose side is ``side_of(shape)``."""

    def area(shape: ConvolutionShape) -> int:
        return side_of(shape) ** 2

    def tiles(shape: ConvolutionShape) -> int:
        return _tiles(shape, side_of(shape) - shape.kernel + 1)

    def numbers(shape: ConvolutionShape) -> int:
        return tiles(shape) * area(shape)

    def weights(shape: ConvolutionShape) -> int:
        return shape.in_channels * shape.out_channels

    return {
        "products of tiles": lambda shape: numbers(shape) * weights(shape),
        "bytes of input tiles": lambda shape: FLOAT_BYTES * numbers(shape) * shape.in_channels,
        "bytes of output tiles": lambda shape: FLOAT_BYTES * numbers(shape) * shape.out_channels,
        "bytes of weight tiles": lambda shape: FLOAT_BYTES * area(shape) * weights(shape),
    }


def _transform_bytes(shape: ConvolutionShape) -> int:
    height, width = (side + 2 * shape.padding for side in (shape.height, shape.width))
    planes = shape.in_channels * shape.out_channels
    planes += shape.batch * (shape.in_channels + shape.out_channels)
    return _COMPLEX_BYTES * height * (width // 2 + 1) * planes


_ENDS = {name: TERMS[name] for name in ("calls", "input bytes", "weight bytes", "output bytes")}
_OWN_TERMS: dict[str, dict[str, Count]] = {
    "shifted": TERMS | {"products of matrices": lambda shape: shape.kernel**2},
    "fft": TERMS
    | {
        "transform bytes": _transform_bytes,
        "transform bytes beyond a cache": lambda shape: max(
            0, _transform_bytes(shape) - _CACHE_BYTES
        ),
    },
    "winograd_2": _ENDS | _of_tiles(lambda _: 4),
    "winograd_4": _ENDS | _of_tiles(lambda _: 6),
    "nnpack": _ENDS
    | {name: TERMS[name] for name in ("macs", "patch bytes")}
    | _of_tiles(_nnpack_tile),
}
