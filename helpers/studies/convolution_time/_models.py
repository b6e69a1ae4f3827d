"""Two models of a program's time: from shapes and measured times to a prediction.

Both minimise errors of ratios, of predicted over measured, so that a small convolution counts as
much as a large one. Lesson 20.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from helpers.checks import choice, numbers
from helpers.results import Record
from helpers.studies.convolution_time._shapes import (
    FLOAT_BYTES,
    ConvolutionShape,
    one_shape,
    shapes_of,
)

FitCosts = Callable[[np.ndarray, np.ndarray], np.ndarray]
Count = Callable[[ConvolutionShape], float]

MODELS = ("flops", "physical")
# What a program may do a number of times, each time at the same cost: no cost is negative.
TERMS: dict[str, Count] = {
    "calls": lambda _: 1,
    "macs": lambda shape: shape.macs,
    "macs of whole blocks": lambda shape: (
        shape.macs * _in_blocks(shape.out_channels) / shape.out_channels
    ),
    # a row of outputs that ends within a register
    "macs of a column": lambda shape: shape.macs / shape.out_width,
    "input bytes": lambda shape: shape.input_bytes,
    "weight bytes": lambda shape: shape.weight_bytes,
    "output bytes": lambda shape: shape.output_bytes,
    "patch bytes": lambda shape: shape.patch_bytes,  # im2col writes and reads them
    # the shifted products add them up
    "partial sum bytes": lambda shape: shape.output_bytes * shape.kernel**2,
    # of FFT
    "weight spectrum bytes": lambda shape: FLOAT_BYTES * _spectral_products(shape) / shape.batch,
    "spectral products": lambda shape: _spectral_products(shape),
}
# The programs that PyTorch chooses from, by the shape alone.
MATRIX_PRODUCT, PATCHES, BLOCKED = "matrix product", "im2col and product", "blocked"

ALL = "all programs"
_BLOCK_CHANNELS = 16  # oneDNN's aBcd16b: a register of AVX-512, a line of cache
_FEWEST_SHAPES = 8  # of a program that is fitted by itself
# PyTorch 2.13, aten/src/ATen/native/Convolution.cpp, ConvParams::use_mkldnn, for one thread.
_ONEDNN_BATCH, _ONEDNN_KERNEL, _ONEDNN_ELEMENTS = 16, 3, 20_480


class ProgramFit(Record):
    """The fit to one program's shapes: the seconds of one unit of each term.

    A term that is not named costs nothing. Lesson 20.
    """

    program: str
    fitted_shapes: int
    coefficients: Mapping[str, float]


class Model(Record):
    """A fitted model of one algorithm's time; ``fits`` has its coefficients. Lesson 20."""

    name: str
    fitted_shapes: int
    fits: tuple[ProgramFit, ...]

    def predict(self, shapes: Sequence[ConvolutionShape]) -> np.ndarray:
        """Return the predicted seconds of one call for each of ``shapes``, of the program that
        follows from it (:func:`program_of`).

        Lesson 20.
        """
        costs = {fit.program: fit.coefficients for fit in self.fits}
        times_s = []
        for shape in shapes_of(shapes):
            own_costs = costs.get(program_of(shape), costs[ALL])
            times_s.append(sum(cost * TERMS[term](shape) for term, cost in own_costs.items()))
        return np.array(times_s)


def program_of(shape: ConvolutionShape) -> str:
    """Return the program that PyTorch's call runs on one thread of x86, as PyTorch 2.13 chooses.

    oneDNN's "blocked" one is not asked for 1 x 1 with stride 1 below a batch of 16, nor for one
    small image (20,480 numbers) with a kernel up to 3 (ConvParams::use_mkldnn). Then PyTorch's own
    runs: a "matrix product" of the input as it is where every position is its own window, else
    "im2col and product".
    """
    one_shape(shape)
    is_candidate = shape.stride > 1 or shape.batch >= _ONEDNN_BATCH or shape.kernel > 1
    elements = shape.batch * shape.in_channels * shape.height * shape.width
    large = shape.kernel > _ONEDNN_KERNEL or shape.batch > 1 or elements > _ONEDNN_ELEMENTS
    return BLOCKED if is_candidate and large else own_program_of(shape)


def own_program_of(shape: ConvolutionShape) -> str:
    """Return the program of PyTorch's own that runs where oneDNN does not."""
    return MATRIX_PRODUCT if (shape.kernel, shape.stride, shape.padding) == (1, 1, 0) else PATCHES


def fit(name: str, shapes: Sequence[ConvolutionShape], times_s: Sequence[float]) -> Model:
    """Return the model ``name`` of one algorithm, fitted to its ``times_s``, one for each of
    ``shapes``.

    * ``"flops"``: so many seconds a call, and a multiply-accumulate (two FLOPs).
    * ``"physical"``: the terms of :data:`TERMS`, no coefficient negative, one fit a program.

    Which program ran follows from the shape (:func:`program_of`). A program of fewer than 8 shapes
    is predicted by the fit of "all programs". Only the physical model looks at it. No process is
    started.

    Raises TypeError or ValueError for an unknown name, times that are not above 0 or not as many as
    shapes, and fewer than 2 shapes.
    """
    choice("name", name, MODELS)
    shape_list = shapes_of(shapes)
    times = np.array(numbers("times_s", times_s, above=0))
    if len(times) != len(shape_list) or len(shape_list) < 2:
        raise ValueError(
            f"{len(shape_list)} shapes and {len(times)} times_s are given; give one time a shape, "
            "2 or more"
        )
    is_simple = name == "flops"
    terms = {term: TERMS[term] for term in ("calls", "macs")} if is_simple else TERMS
    programs = [ALL if is_simple else program_of(shape) for shape in shape_list]
    costs = fit_groups(terms, shape_list, times, programs, least_relative_error)
    fits = tuple(
        ProgramFit(
            program,
            len(programs) if program == ALL else programs.count(program),
            {term: cost for term, cost in own_costs.items() if cost},
        )
        for program, own_costs in costs.items()
    )
    return Model(name, len(shape_list), fits)


def fit_groups(
    terms: Mapping[str, Count],
    shapes: Sequence[ConvolutionShape],
    times_s: np.ndarray,
    groups: Sequence[str],
    fit_costs: FitCosts,
) -> dict[str, dict[str, float]]:
    """Return the cost of each term for all shapes, and for each of ``groups`` with enough of
    them.
    """
    columns = _columns(shapes, terms)
    largest = columns.max(axis=0)
    largest[largest == 0] = 1
    rows = {ALL: np.ones(len(groups), dtype=bool)}
    rows |= {group: np.array(groups) == group for group in sorted(set(groups))}
    costs = {}
    for group, mask in rows.items():
        if group == ALL or mask.sum() >= _FEWEST_SHAPES:
            fitted = np.asarray(fit_costs(columns[mask] / largest, times_s[mask])) / largest
            costs[group] = dict(zip(terms, map(float, fitted), strict=True))
    return costs


def _in_blocks(channels: int) -> int:
    return _BLOCK_CHANNELS * math.ceil(channels / _BLOCK_CHANNELS)


def _spectral_products(shape: ConvolutionShape) -> int:
    area = (shape.height + 2 * shape.padding) * (shape.width + 2 * shape.padding)
    return shape.batch * shape.in_channels * shape.out_channels * area


def _columns(shapes: Sequence[ConvolutionShape], terms: Mapping[str, Count]) -> np.ndarray:
    return np.array([[count(shape) for count in terms.values()] for shape in shapes], dtype=float)


def least_relative_error(columns: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the coefficients, none negative, with the least sum of (predicted / measured - 1)
    squared.
    """
    from scipy.optimize import nnls

    relative = columns / times[:, None]
    # so that a call and a billion MACs are of the same size to the solver
    size = relative.max(axis=0)
    return nnls(relative / size, np.ones(len(times)))[0] / size
