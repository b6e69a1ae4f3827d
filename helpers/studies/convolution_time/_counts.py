"""Counts for each algorithm, costs that are fitted to them, and the times that follow. Lesson 20.

A time is a sum of counts times costs. The three :data:`COUNTINGS` differ in what is counted, and in
which shapes share their costs. Counts of the last one were chosen by errors on random shapes alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from helpers.checks import choice, number, one_of
from helpers.results import Record
from helpers.studies.convolution_time._algorithms import ALGORITHMS
from helpers.studies.convolution_time._collecting import ConvolutionTimes
from helpers.studies.convolution_time._judging import Split
from helpers.studies.convolution_time._models import TERMS, least_relative_error, program_of
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

FitCosts = Callable[[np.ndarray, np.ndarray], np.ndarray]
Count = Callable[[ConvolutionShape], float]

_FEWEST_SHAPES = 8  # of an implementation that is fitted by itself
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
        measured_s = times.times_s(algorithm)
        fitted = [index for index in split.train if measured_s[index] > shortest_s]
        costs = _costs(times, algorithm, counting, fitted, fit_costs)
        columns.append(
            [
                _time_s(costs, algorithm, counting, shapes[index])
                if np.isfinite(measured_s[index])
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
    counting: str = COUNTINGS[-1],
    fit_costs: FitCosts = least_relative_error,
) -> list[TimePart]:
    """Return the parts of the modelled time of ``algorithm`` for ``shape``, one for each count.

    Costs are fitted to ``times`` of the shapes of ``split.train`` by ``fit_costs``, with the counts
    of ``counting``, as :func:`predict_times` does. Lesson 20.
    """
    one_of("split", split, Split, "a Split")
    measured_s = times.times_s(algorithm)
    fitted = [index for index in split.train if np.isfinite(measured_s[index])]
    costs = _costs(times, algorithm, counting, fitted, fit_costs)
    group_costs = costs.get(_group(algorithm, counting, shape), costs[""])
    counts = count_terms(algorithm, shape, counting=counting)
    return [TimePart(name, counts[name], cost) for name, cost in group_costs.items()]


def _costs(
    times: ConvolutionTimes,
    algorithm: str,
    counting: str,
    fitted: Sequence[int],
    fit_costs: FitCosts,
) -> dict[str, dict[str, float]]:
    """Return the cost of each count for each implementation; "" is for those of too few shapes."""
    shapes = [times.shapes[index] for index in fitted]
    if len(shapes) < 2:
        raise ValueError(
            f"{len(shapes)} shapes of {algorithm} are left to fit; give a split with 2 or more"
        )
    terms = _terms(algorithm, counting)
    counts = np.array([[count(shape) for count in terms.values()] for shape in shapes], dtype=float)
    measured_s = times.times_s(algorithm)[list(fitted)]
    groups = np.array([_group(algorithm, counting, shape) for shape in shapes])
    largest = counts.max(axis=0)
    largest[largest == 0] = 1
    costs = {}
    for group in ["", *sorted(set(groups) - {""})]:
        rows = groups == group if group else np.ones(len(groups), dtype=bool)
        if rows.sum() >= _FEWEST_SHAPES or not group:
            fit = np.asarray(fit_costs(counts[rows] / largest, measured_s[rows])) / largest
            costs[group] = dict(zip(terms, map(float, fit), strict=True))
    return costs


def _time_s(
    costs: Mapping[str, Mapping[str, float]], algorithm: str, counting: str, shape: ConvolutionShape
) -> float:
    group_costs = costs.get(_group(algorithm, counting, shape), costs[""])
    terms = _terms(algorithm, counting)
    return sum(cost * terms[name](shape) for name, cost in group_costs.items())


def _group(algorithm: str, counting: str, shape: ConvolutionShape) -> str:
    """Return the implementation whose costs ``shape`` has, "" for those of all shapes together."""
    if counting == "FLOP only":
        return ""
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

    return {
        "products of tiles": lambda shape: (
            tiles(shape) * area(shape) * shape.in_channels * shape.out_channels
        ),
        "bytes of input tiles": lambda shape: (
            FLOAT_BYTES * tiles(shape) * area(shape) * shape.in_channels
        ),
        "bytes of output tiles": lambda shape: (
            FLOAT_BYTES * tiles(shape) * area(shape) * shape.out_channels
        ),
        "bytes of weight tiles": lambda shape: (
            FLOAT_BYTES * area(shape) * shape.in_channels * shape.out_channels
        ),
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
