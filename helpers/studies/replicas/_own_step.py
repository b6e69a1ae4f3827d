"""The last rung: a step of our own in C++, ``own_step.cpp``, with nothing of torch in it but the
tensors' memory.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from helpers import native
from helpers.studies.replicas import _problem as problems, _programs as programs
from helpers.studies.replicas._problem import Observable
from helpers.studies.sgd_parallelism._within_layer import bind_call

FLAGS = (*native.CPP_FLAGS, "-fno-math-errno")

_REAL = {torch.float32: "float", torch.float64: "double"}
_MOST_POINTS = 256  # the program's arrays on the stack
_EVALUATE = """\
void evaluate(int64_t replicas, int64_t points, int64_t used, int64_t singles, int64_t pairs,
    int64_t data, int64_t conditions, int64_t conditions_at, const void* inputs,
    const void* shapes, const void* quadrature, const void* bump, const void* rotation,
    const int64_t* single_sizes, const int64_t* single_channels, const void* single_tables,
    const int64_t* pair_sizes, const int64_t* pair_channels, const void* pair_tables,
    const void* pair_turned, double weight, double alpha, const int64_t* columns_of,
    const void* given, const int64_t* orders, const int64_t* training, const void* inverses,
    const int64_t* starts, const void* weights, void* hidden, void* flavours, void* half,
    void* values, void* slopes, void* residual, void* losses, void* validation, void* gradients)"""
_UPDATE = """\
void update(int64_t replicas, int64_t step, const void* gradients, const void* rates,
    const int64_t* adam, void* means, void* squares, void* weights)"""


@functools.cache
def compile_program(dtype: torch.dtype) -> native.Library:
    """Return the program for float32 or float64; it takes seconds once.

    Raises MissingToolError without a compiler.
    """
    source = native.read_source(__package__, "own_step.cpp")
    return native.compile_cpp(source, flags=(*FLAGS, f"-DREAL={_REAL[dtype]}"))


class OwnStep(programs.BatchedTrainer):
    """The fit by our own program: tables and inverse covariances laid out once, then two calls a
    step.

    Of a replica's inverse covariances only what is not zero is kept: a dense matrix of the data
    that it trains on, and one of the others. Raises ValueError for a device that is no CPU, or for
    more than 256 x-points.
    """

    def __init__(self, prepared: programs.Prepared) -> None:
        problem, like = prepared.problem, prepared.data
        if like.device.type != "cpu":
            raise ValueError(
                f"own_step is a program of the CPU, not of {like.device}; give device='cpu'"
            )
        library = compile_program(like.dtype)
        lanes = library.function("int64_t lanes()")()
        used_points = len(problem.points)
        points = 2 * lanes * math.ceil(used_points / (2 * lanes))
        if points > _MOST_POINTS:
            raise ValueError(
                f"points={used_points} is too many for own_step; give at most {_MOST_POINTS}"
            )
        replicas, data = like.shape
        flat = torch.cat([weight.flatten(1) for weight in prepared.weights.values()], dim=1)
        self.results = like.new_zeros(replicas), like.new_zeros(replicas), torch.zeros_like(flat)
        alone = [each for each in problem.observables if not each.of_pairs]
        singles = [*alone, *problem.positivity]
        pairs = [each for each in problem.observables if each.of_pairs]
        conditions = sum(len(condition.table) for condition in problem.positivity)
        conditions_at = sum(len(each.table) for each in alone)
        beyond = points - used_points

        def pad(tensor: Tensor) -> Tensor:
            return functional.pad(tensor, (0, beyond)).contiguous()

        def pad_both(table: Tensor) -> Tensor:
            return functional.pad(table, (0, beyond, 0, beyond))

        orders = [torch.cat([mask.nonzero(), (~mask).nonzero()]) for mask in prepared.masks]
        matrices = [_dense(prepared, replica, lanes) for replica in range(replicas)]
        starts = [0, *itertools.accumulate(len(matrix) for matrix in matrices)]
        tiles = sum(math.prod(each.table.shape[:2]) for each in pairs)
        arguments: list[Any] = [
            replicas,
            points,
            used_points,
            len(singles),
            len(pairs),
            data,
            conditions,
            conditions_at,
            pad(problem.inputs.T),
            pad(problem.shapes.T),
            pad(problem.quadrature),
            pad(problem.bump.T),
            problem.rotation.contiguous(),
            _sizes(singles),
            _channels(singles),
            _join([pad(each.table) for each in singles], like),
            _sizes(pairs),
            _channels(pairs),
            _join([pad_both(each.table.transpose(2, 3)) for each in pairs], like),
            _join([pad_both(each.table) for each in pairs], like),
            problems.POSITIVITY,
            problems.ALPHA,
            _columns(problem.observables, conditions_at + conditions),
            like.contiguous(),
            torch.stack(orders),
            prepared.masks.sum(1),
            torch.cat(matrices),
            torch.tensor(starts[:-1]),
            flat,
            like.new_empty(replicas, sum(problems.WIDTHS[1:3]), points),
            like.new_empty(2 * replicas, problems.FLAVOURS, points),
            like.new_empty(tiles * replicas * points),
            like.new_empty(replicas, data + conditions),
            like.new_empty(replicas, data + conditions),
            like.new_empty(data + lanes),
            *self.results,
        ]
        self.call = bind_call(library.function(_EVALUATE).raw, arguments)
        named = _views(flat, prepared.weights)
        self.begin(prepared, named, [flat], functools.partial(Update, library))

    def evaluate(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return losses and gradients; they stay in one place, and the next step writes over
        them.
        """
        self.call()
        training, validation, gradients = self.results
        return training, validation, [gradients]


class Update:
    """Adam or SGD on all replicas in one call, each at its own rate, as
    :class:`StackedOptimizer` does.
    """

    def __init__(
        self, library: native.Library, weights: list[Tensor], rates: Tensor, kinds: Sequence[str]
    ) -> None:
        self.function, self.rates = library.function(_UPDATE).raw, rates
        self.adam = torch.tensor([int(kind == "adam") for kind in kinds])
        (flat,) = weights
        self.state = torch.zeros_like(flat), torch.zeros_like(flat), flat  # means, squares, weights
        self.steps = 0

    def step(self, gradients: Sequence[Tensor], active: Tensor | None = None) -> None:
        """Move every replica that is ``active``."""
        self.steps += 1
        rates = self.rates if active is None else self.rates * active
        tensors = (gradients[0], rates, self.adam, *self.state)
        self.function(len(rates), self.steps, *(tensor.data_ptr() for tensor in tensors))


def _views(flat: Tensor, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    parts = flat.split([weight[0].numel() for weight in weights.values()], dim=1)
    named = zip(weights.items(), parts, strict=True)
    return {name: part.view(weight.shape) for (name, weight), part in named}


def _join(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([like.new_empty(0), *(tensor.flatten() for tensor in tensors)])


def _sizes(observables: Sequence[Observable]) -> Tensor:
    return torch.tensor([each.table.shape[:2] for each in observables], dtype=torch.int64)


def _channels(observables: Sequence[Observable]) -> Tensor:
    return _join([each.channels for each in observables], torch.empty(0, dtype=torch.int64))


def _columns(observables: Sequence[Observable], pairs_at: int) -> Tensor:
    """Return the position of each datum (n,) among the values: data of one flavour, conditions,
    data of two.
    """
    positions, next_at = [], {False: 0, True: pairs_at}
    for observable in observables:
        positions.append(torch.arange(len(observable.table)) + next_at[observable.of_pairs])
        next_at[observable.of_pairs] += len(observable.table)
    return torch.cat(positions)


def _dense(prepared: programs.Prepared, replica: int, lanes: int) -> Tensor:
    """Return the two matrices of a replica without their zeros, each row padded to a multiple of
    ``lanes``.
    """
    training, parts = prepared.masks[replica], []
    for mask, inverse in ((training, prepared.training), (~training, prepared.validation)):
        dense = inverse[replica][mask][:, mask]  # (data of the mask, data of the mask)
        parts.append(functional.pad(dense, (0, -len(dense) % lanes)).flatten())
    return torch.cat(parts)
