"""A systolic array, register by register: in a cycle every value moves by one element at most.

An element has a register for an input, one for a filter, one for a sum, and a multiplier. In a
cycle it takes what its left and its upper neighbour held, multiplies where both operands have come,
and adds. Nothing is computed from a formula: counts are of what happened, and a run is over when
the last result has left. Lesson 14.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from helpers import console
from helpers.checks import boolean, choice, whole_number
from helpers.studies.simulators.systolic._model import DATAFLOWS, LARGEST, model_cycles
from helpers.studies.simulators.systolic._run import Frame, SystolicRun

_EMPTY = -1
_FRAME_ELEMENTS = 2**20
_LARGEST_WHOLE = np.iinfo(np.int64).max
# A cycle takes as long as moving so many elements, and as long for each of its own: the work of
# about a minute.
_CYCLE_ELEMENTS, _MOST_ELEMENTS = 2**13, 2**32


def simulate(
    a: Any,
    b: Any,
    *,
    rows: int,
    columns: int,
    dataflow: str = "weight",
    double_buffered: bool = False,
    frames: bool = False,
) -> SystolicRun:
    """Multiply ``a`` (m x k) by ``b`` (k x n) on an array of ``rows`` x ``columns`` elements, cycle
    by cycle.

    ``a`` and ``b`` are what numpy reads as matrices of numbers. The product is in int64 for whole
    numbers and in float64 (or complex128) otherwise. ``dataflow`` says what stays in the elements:

    * "weight": a tile of ``b``, k on the rows and n on the columns. It is loaded down the columns
      in ``rows`` cycles; then the rows of ``a`` pass from the left and the sums go down and leave
      at the bottom.
    * "output": a tile of the product, m on the rows and n on the columns. ``a`` passes from the
      left and ``b`` from the top; when the tile is complete it leaves down the columns in ``rows``
      cycles.
    * "input": a tile of ``a``: the weight-stationary run of the transposed product, k on the rows,
      m on the columns.

    Operands enter with a skew: each row (column) one cycle after the one before it. Tiles run one
    after another, those along k first; the sums of several tiles along k are added below the array.
    With ``double_buffered`` (not for "output") an element has a second filter register: the next
    tile is loaded while this one is used.

    With ``frames`` the result holds what each element held in each cycle, for small runs only.

    >>> simulate([[1, 2], [3, 4]], [[5], [6]], rows=2, columns=1).product.tolist()
    [[17], [39]]

    Raises TypeError for what is no matrix of numbers or no whole number, ValueError for shapes that
    do not fit, an empty matrix, whole numbers whose sums are beyond int64, an array above 1,024 x
    1,024 elements, a run that would take minutes, and for frames of one too long to keep. Lesson
    14.
    """
    boolean("double_buffered", double_buffered)
    boolean("frames", frames)
    inputs, filters = _matrices(a, b)
    rows, columns = (
        whole_number(name, size, at_most=LARGEST)
        for name, size in (("rows", rows), ("columns", columns))
    )
    choice("dataflow", dataflow, DATAFLOWS)
    (m, k), n = inputs.shape, filters.shape[1]
    cycles = model_cycles(
        m, n, k, rows=rows, columns=columns, dataflow=dataflow, double_buffered=double_buffered
    )
    if frames and cycles * rows * columns > _FRAME_ELEMENTS:
        raise ValueError(
            f"frames of about {cycles:,} cycles of {rows} x {columns} elements are too many to "
            f"keep (above {_FRAME_ELEMENTS:,} elements in all); give a smaller product or array"
        )
    if cycles * (rows * columns + _CYCLE_ELEMENTS) > _MOST_ELEMENTS:
        raise ValueError(
            f"{cycles:,} cycles of {rows} x {columns} elements would take minutes to simulate; "
            "give a smaller product or a larger array, or count them with model_cycles"
        )
    transposed = dataflow == "input"
    moving, staying = (filters.T, inputs.T) if transposed else (inputs, filters)
    array = _Array(moving, staying, rows, columns, keep=frames, transposed=transposed)
    clock = iter(
        console.track(
            itertools.count(), f"simulating {rows} x {columns}", total=cycles, unit="cycle"
        )
    )
    if dataflow == "output":
        array.run_output_stationary(clock)
    else:
        array.run_weight_stationary(clock, double_buffered=double_buffered)
    reads = (array.moving_reads, array.staying_reads)
    return SystolicRun(
        m=m,
        n=n,
        k=k,
        rows=rows,
        columns=columns,
        dataflow=dataflow,
        cycles=len(array.active),
        macs=sum(array.active),
        utilisation_share=sum(array.active) / (len(array.active) * rows * columns),
        input_reads=reads[transposed],
        filter_reads=reads[not transposed],
        output_writes=array.writes,
        partial_sum_reads=array.read_back,
        product=array.product.T if transposed else array.product,
        active=np.array(array.active),
        frames=tuple(array.frames),
    )


class _Registers(NamedTuple):
    """Registers: the values in them, and the values' places in their matrix (-1 for none)."""

    values: np.ndarray
    places: np.ndarray


def _move_right(registers: _Registers, entering: _Registers) -> None:
    """Move every value one element to the right; the left edge takes ``entering``."""
    for register, edge in zip(registers, entering, strict=True):
        register[:, 1:] = register[:, :-1]
        register[:, 0] = edge


def _move_down(registers: _Registers, entering: _Registers, into: np.ndarray | bool = True) -> None:
    """Move values one element down, ``into`` the elements that take one; the upper edge takes
    ``entering``.
    """
    for register, edge in zip(registers, entering, strict=True):
        np.copyto(register, np.vstack((edge, register[:-1])), where=into)


def _replace(registers: _Registers, others: _Registers, where: np.ndarray | bool = True) -> None:
    """Put ``others`` into the registers, ``where`` that is true."""
    for register, other in zip(registers, others, strict=True):
        np.copyto(register, other, where=where)


class _Array:
    """The elements, the sums that have left them, and the counts."""

    def __init__(
        self,
        moving: np.ndarray,
        staying: np.ndarray,
        rows: int,
        columns: int,
        *,
        keep: bool,
        transposed: bool,
    ) -> None:
        self.a, self.b, self.rows, self.columns = moving, staying, rows, columns
        (self.m, self.k), self.n = moving.shape, staying.shape[1]
        self.products = np.zeros((rows, columns), moving.dtype)
        self.inputs, self.held, self.next, self.sums = (
            _Registers(np.zeros((rows, columns), moving.dtype), np.full((rows, columns), _EMPTY))
            for _ in range(4)
        )
        self.nothing = _Registers(np.zeros(columns, moving.dtype), np.full(columns, _EMPTY))
        self.changing = np.zeros((rows, columns), bool)
        self.product = np.zeros((self.m, self.n), moving.dtype)
        self.written = np.zeros(self.product.size, bool)
        self.row_delays, self.column_delays = _skew(rows), _skew(columns)
        self.moving_reads = self.staying_reads = self.writes = self.read_back = 0
        self.active: list[int] = []
        self.frames: list[Frame] = []
        self.keep, self.transposed = keep, transposed

    def run_weight_stationary(self, clock: Iterator[int], *, double_buffered: bool) -> None:
        tiles = [
            (k0, n0) for n0 in range(0, self.n, self.columns) for k0 in range(0, self.k, self.rows)
        ]
        if not double_buffered:
            for fold, tile in enumerate(tiles):
                self._stream(
                    [tile],
                    np.array([0]),
                    np.array([self.rows]),
                    0 * self.column_delays,
                    clock,
                    fold,
                )
            return
        # a tile begins when the one before has taken its rows and its own are loaded
        period = max(self.m, self.rows)
        begin = self.rows + period * np.arange(len(tiles))
        loading = np.r_[0, begin[:-1]]
        self._stream(tiles, loading, begin, self.column_delays, clock, 0)

    def _stream(
        self,
        tiles: list[tuple[int, int]],
        loading: np.ndarray,
        begin: np.ndarray,
        load_delays: np.ndarray,
        clock: Iterator[int],
        first_fold: int,
    ) -> None:
        """Load tile f from cycle ``loading[f]``, pass a from ``begin[f]``, until all results have
        left.
        """
        k0, n0 = np.array(tiles).T
        missing = sum(self.m * min(self.columns, self.n - start) for start in n0)
        every_row = np.arange(self.rows)
        for cycle in itertools.count():
            # Each element at the edge knows its fold and how long that has been going on, by its
            # own delay.
            fold = np.searchsorted(begin, cycle - self.row_delays, "right") - 1
            step = cycle - self.row_delays - begin[fold]
            self.changing[:, 1:] = self.changing[:, :-1]
            self.changing[:, 0] = (fold >= 0) & (step == 0)
            _replace(self.held, self.next, self.changing)
            self._take_filters(cycle - load_delays, loading, k0, n0)
            at = k0[fold] + every_row
            entering = self._enter(self.a, step, at, (fold >= 0) & (step < self.m) & (at < self.k))
            _move_right(self.inputs, entering)
            self.moving_reads += _occupied(entering)
            top, filters = self.inputs.places[0], self.held.places[0]
            born = np.where(
                (top != _EMPTY) & (filters != _EMPTY), self._sum_places(top, filters), _EMPTY
            )
            _move_down(self.sums, _Registers(self.nothing.values, born))
            current_fold = int(np.searchsorted(begin, cycle, "right")) - 1
            phase = "load" if current_fold < 0 else "compute"
            # With one register an element holds what was loaded; with two, in use is the one that
            # it changed to.
            self._work(
                first_fold + max(current_fold, 0),
                phase,
                self.held if len(tiles) > 1 and current_fold >= 0 else self.next,
            )
            missing -= self._leave()
            next(clock)
            if not missing:
                return

    def _take_filters(
        self, times: np.ndarray, loading: np.ndarray, k0: np.ndarray, n0: np.ndarray
    ) -> None:
        """Move the tiles that are being loaded one row down: the last row enters first, each until
        it is in its row.
        """
        fold = np.searchsorted(loading, times, "right") - 1
        steps = times - loading[fold]
        under_way = (fold >= 0) & (steps < self.rows)
        if under_way.any():
            k, n = k0[fold] + self.rows - 1 - steps, n0[fold] + np.arange(self.columns)
            entering = self._enter(self.b, k, n, under_way & (k < self.k) & (n < self.n))
            _move_down(self.next, entering, under_way & (np.arange(self.rows)[:, None] <= steps))
            self.staying_reads += _occupied(entering)

    def run_output_stationary(self, clock: Iterator[int]) -> None:
        tiles = [
            (m0, n0) for n0 in range(0, self.n, self.columns) for m0 in range(0, self.m, self.rows)
        ]
        for fold, (m0, n0) in enumerate(tiles):
            for register in (self.inputs, self.held, self.sums):
                _replace(register, self.nothing)
            m, n = m0 + np.arange(self.rows), n0 + np.arange(self.columns)
            for cycle in itertools.count():
                left, top = cycle - self.row_delays, cycle - self.column_delays
                from_left = self._enter(
                    self.a, m, left, (left >= 0) & (left < self.k) & (m < self.m)
                )
                from_top = self._enter(self.b, top, n, (top >= 0) & (top < self.k) & (n < self.n))
                _move_right(self.inputs, from_left)
                _move_down(self.held, from_top)
                inputs, filters = self.inputs.places, self.held.places
                met = (inputs != _EMPTY) & (filters != _EMPTY)
                if not met.any():
                    break
                self.moving_reads += _occupied(from_left)
                self.staying_reads += _occupied(from_top)
                np.copyto(self.sums.places, self._sum_places(inputs, filters), where=met)
                self._work(fold, "compute", self.held)
                next(clock)
            _replace(self.inputs, self.nothing)
            _replace(self.held, self.nothing)
            while _occupied(self.sums):
                self._work(fold, "drain", self.held)
                self._leave()
                _move_down(self.sums, self.nothing)
                next(clock)

    def _enter(
        self, matrix: np.ndarray, row: np.ndarray, column: np.ndarray, fits: np.ndarray
    ) -> _Registers:
        """Return the registers of the elements that enter at an edge; nothing where they do
        not ``fit``.
        """
        places = np.where(fits, row * matrix.shape[1] + column, _EMPTY)
        return _Registers(np.where(fits, matrix.ravel()[places], 0), places)

    def _sum_places(self, inputs: np.ndarray, filters: np.ndarray) -> np.ndarray:
        """Return the places of the sums to which products of these operands belong."""
        return inputs // self.k * self.n + filters % self.n

    def _work(self, fold: int, phase: str, filters: _Registers) -> None:
        """Multiply and add wherever two operands have met, and note the cycle."""
        active = (self.inputs.places != _EMPTY) & (filters.places != _EMPTY)
        np.multiply(self.inputs.values, filters.values, out=self.products, where=active)
        np.add(self.sums.values, self.products, out=self.sums.values, where=active)
        if self.keep:
            inputs, held = (
                self._caller_places(register, matrix)
                for register, matrix in ((self.inputs, self.a), (filters, self.b))
            )
            if self.transposed:
                inputs, held = held, inputs
            sum_places = self._caller_places(self.sums, self.product)
            cycle = len(self.active)
            self.frames.append(Frame(cycle, fold, phase, inputs, held, sum_places, active))
        self.active.append(int(np.count_nonzero(active)))

    def _leave(self) -> int:
        """Write the sums that stand in the last row to where they belong, and return how many there
        were.
        """
        places = self.sums.places[-1]
        places, values = places[places != _EMPTY], self.sums.values[-1][places != _EMPTY]
        self.read_back += int(np.count_nonzero(self.written[places]))
        self.product.reshape(-1)[places] += values
        self.written[places] = True
        self.writes += len(places)
        return len(places)

    def _caller_places(self, register: _Registers, matrix: np.ndarray) -> np.ndarray:
        """Return the places in ``matrix`` as places in the matrix that the caller knows, which may
        be its transpose.
        """
        places = register.places
        if not self.transposed:
            return places.copy()
        height, width = matrix.shape
        return np.where(places == _EMPTY, _EMPTY, places % width * height + places // width)


def _occupied(register: _Registers) -> int:
    return int(np.count_nonzero(register.places != _EMPTY))


def _skew(count: int) -> np.ndarray:
    """Return after how many cycles each row or column begins: one later than the one before it."""
    return np.arange(count)


def _matrices(a: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
    inputs, filters = _matrix("a", a), _matrix("b", b)
    if inputs.shape[1] != filters.shape[0]:
        raise ValueError(
            f"a has the shape {inputs.shape} and b {filters.shape}; give a as many columns as b "
            "has rows"
        )
    kinds = inputs.dtype.kind + filters.dtype.kind
    dtype = np.complex128 if "c" in kinds else np.float64 if "f" in kinds else np.int64
    if dtype is np.int64:
        largest = (abs(inputs.astype(np.float64)) @ abs(filters.astype(np.float64))).max()
        if largest >= _LARGEST_WHOLE:
            raise ValueError(
                f"sums of this product are up to {largest:.3g}, and whole numbers are computed in "
                f"int64, up to {_LARGEST_WHOLE:.3g}; give floats, or smaller numbers"
            )
    return inputs.astype(dtype), filters.astype(dtype)


def _matrix(name: str, values: Any) -> np.ndarray:
    accepted = "give a matrix of numbers, such as a numpy array of two dimensions"
    try:
        matrix = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except (TypeError, ValueError) as problem:
        reason = str(problem).split(". ")[0]
        raise TypeError(
            f"numpy cannot read {name}, a {type(values).__name__} ({reason}); {accepted}"
        ) from None
    if matrix.dtype.kind not in "biufc":
        raise TypeError(f"{name} holds values of type {matrix.dtype}; {accepted}")
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"{name} has the shape {matrix.shape}; give two sizes, both 1 or more")
    if matrix.dtype.kind == "u" and matrix.max() > _LARGEST_WHOLE:
        raise ValueError(
            f"{name} holds {matrix.max()}; whole numbers are computed in int64, up to "
            f"{_LARGEST_WHOLE}"
        )
    return matrix
