"""Two models of a program's time: from shapes and measured times to a prediction.

Both minimise errors of ratios, of predicted over measured, so that a small convolution counts as
much as a large one. Lesson 20.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from helpers.checks import choice, members, numbers
from helpers.results import Record
from helpers.studies.convolution_time._shapes import (
    FLOAT_BYTES,
    ConvolutionShape,
    one_shape,
    shapes_of,
)

MODELS = ("flops", "physical")
# What a program may do a number of times, each time at the same cost: no cost is negative.
TERMS: dict[str, Callable[[ConvolutionShape], float]] = {
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

_ALL = "all programs"
_BLOCK_CHANNELS = 16  # oneDNN's aBcd16b: a register of AVX-512, a line of cache
_FEWEST_SHAPES = 8  # of a program that is fitted by itself
# PyTorch 2.13, aten/src/ATen/native/Convolution.cpp, ConvParams::use_mkldnn, for one thread.
_ONEDNN_BATCH, _ONEDNN_KERNEL, _ONEDNN_ELEMENTS = 16, 3, 20_480

Predict = Callable[[Sequence[ConvolutionShape], Sequence[str]], np.ndarray]


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
    _predict: Predict = field(repr=False)
    _program_of: Callable[[ConvolutionShape], str] = field(repr=False)

    def predict(
        self, shapes: Sequence[ConvolutionShape], programs: Sequence[str] | None = None
    ) -> np.ndarray:
        """Return the predicted seconds of one call for each of ``shapes``.

        ``programs`` names the program of each; by default it follows from the shape: as
        :func:`program_of`, or where the model was fitted with programs, that of the nearest shape
        fitted. Raises as :func:`fit`. Lesson 20.
        """
        shape_list = shapes_of(shapes)
        return self._predict(shape_list, _programs(programs, shape_list, self._program_of))


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


def fit(
    name: str,
    shapes: Sequence[ConvolutionShape],
    times_s: Sequence[float],
    programs: Sequence[str] | None = None,
) -> Model:
    """Return the model ``name`` of one algorithm, fitted to its ``times_s``, one for each of
    ``shapes``.

    * ``"flops"``: so many seconds a call, and a multiply-accumulate (two FLOPs).
    * ``"physical"``: the terms of :data:`TERMS`, no coefficient negative, one fit a program.

    ``programs`` names the program that ran for each shape; without it that follows from the shape
    (:func:`program_of`). A program of fewer than 8 shapes is predicted by the fit of "all
    programs". Only the physical model looks at it. No process is started.

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
    ran = _programs(programs, shape_list, program_of)
    predict, fits = _FITS[name](shape_list, times, ran)
    return Model(
        name,
        len(shape_list),
        fits,
        predict,
        program_of if programs is None else _nearest(shape_list, ran),
    )


def _programs(
    programs: Sequence[str] | None,
    shapes: Sequence[ConvolutionShape],
    follow: Callable[[ConvolutionShape], str],
) -> list[str]:
    if programs is None:
        return [follow(shape) for shape in shapes]
    ran = members("programs", programs, "names", kind=str)
    if len(ran) != len(shapes):
        raise ValueError(
            f"{len(shapes)} shapes and {len(ran)} programs are given; give one program a shape"
        )
    return ran


def _nearest(
    shapes: Sequence[ConvolutionShape], programs: Sequence[str]
) -> Callable[[ConvolutionShape], str]:
    """Return a function to the program of the nearest fitted shape; kernel and stride weigh
    most.
    """
    known = _nearness(shapes)
    return lambda shape: programs[int(np.abs(known - _nearness([shape])).sum(axis=1).argmin())]


def _nearness(shapes: Sequence[ConvolutionShape]) -> np.ndarray:
    sizes = np.log2(
        [
            (s.batch, s.in_channels, s.height, s.width, s.out_channels, s.kernel, s.stride)
            for s in shapes
        ]
    )
    return sizes * [1, 1, 1, 1, 1, 100, 100]


def _in_blocks(channels: int) -> int:
    return _BLOCK_CHANNELS * math.ceil(channels / _BLOCK_CHANNELS)


def _spectral_products(shape: ConvolutionShape) -> int:
    area = (shape.height + 2 * shape.padding) * (shape.width + 2 * shape.padding)
    return shape.batch * shape.in_channels * shape.out_channels * area


def _columns(shapes: Sequence[ConvolutionShape], terms: Sequence[str]) -> np.ndarray:
    return np.array([[TERMS[term](shape) for term in terms] for shape in shapes], dtype=float)


def least_relative_error(columns: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the coefficients, none negative, with the least sum of (predicted / measured - 1)
    squared.
    """
    from scipy.optimize import nnls

    relative = columns / times[:, None]
    # so that a call and a billion MACs are of the same size to the solver
    size = relative.max(axis=0)
    return nnls(relative / size, np.ones(len(times)))[0] / size


def _named_costs(terms: Sequence[str], costs: np.ndarray) -> dict[str, float]:
    return {term: float(cost) for term, cost in zip(terms, costs, strict=True) if cost}


def _fit_terms(
    terms: Sequence[str],
    shapes: Sequence[ConvolutionShape],
    times: np.ndarray,
    programs: Sequence[str],
) -> tuple[Predict, tuple[ProgramFit, ...]]:
    columns, ran = _columns(shapes, terms), np.array(programs)
    rows = {
        program: mask
        for program in sorted(set(programs))
        if (mask := ran == program).sum() >= _FEWEST_SHAPES
    }
    rows = {_ALL: np.ones(len(ran), dtype=bool)} | rows
    fitted = {
        program: least_relative_error(columns[mask], times[mask]) for program, mask in rows.items()
    }

    def predict(new_shapes: Sequence[ConvolutionShape], programs: Sequence[str]) -> np.ndarray:
        coefficients = np.array([fitted.get(program, fitted[_ALL]) for program in programs])
        return (_columns(new_shapes, terms) * coefficients).sum(axis=1)

    fits = tuple(
        ProgramFit(program, int(rows[program].sum()), _named_costs(terms, costs))
        for program, costs in fitted.items()
    )
    return predict, fits


def _fit_flops(
    shapes: Any, times: np.ndarray, _programs: Any
) -> tuple[Predict, tuple[ProgramFit, ...]]:
    return _fit_terms(("calls", "macs"), shapes, times, [_ALL] * len(shapes))


_fit_physical = functools.partial(_fit_terms, tuple(TERMS))


_FITS: dict[str, Callable[..., tuple[Predict, tuple[ProgramFit, ...]]]] = {
    "flops": _fit_flops,
    "physical": _fit_physical,
}
