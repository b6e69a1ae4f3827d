"""The checks of lesson 19: what goes in, what must come out, and what common mistakes would give instead."""

import torch
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.exercises import Checks


def stacked_layer(checks: Checks) -> None:
    """One layer of all replicas"""
    generator = torch.Generator().manual_seed(0)
    layers = (
        _integers(generator, 3, 3, 2),
        _integers(generator, 3, 4, 2),
        _integers(generator, 3, 4),
    )
    doubled = [torch.cat([tensor, tensor]) for tensor in layers]
    inputs, weights, biases = layers
    checks.returns(
        "3 replicas and 3 points give what three layers give one by one",
        layers,
        expected=torch.stack([linear(*layer) for layer in zip(*layers, strict=True)]),
        kind=torch.Tensor,
        mistakes={
            _hashable(inputs @ weights.mT + biases): (
                "Point r got the biases of replica r, so the biases need an axis for the points."
            ),
            _hashable(inputs @ weights.mT): "The biases are missing.",
        },
    )
    checks.returns(
        "6 replicas take as many calls as 3",
        (layers, doubled),
        call=_growth,
        expected="as many calls",
        mistakes={
            "more calls": "Each replica has calls of its own, which is the loop again. "
            "Multiply the matrices of all replicas in one call."
        },
    )


def _growth(function, small, large):
    """Return whether ``function`` calls more operators for the larger stack."""
    return (
        "more calls"
        if _Watch(function, large).calls > _Watch(function, small).calls
        else "as many calls"
    )


def pair_product(checks: Checks) -> None:
    """The pair product"""
    generator = torch.Generator().manual_seed(0)
    table, first, second = (
        _integers(generator, *shape) for shape in ((2, 3, 4, 4), (3, 4, 9), (3, 4, 9))
    )
    right, swapped = (
        torch.einsum(f"nf{axes},fxr,fyr->nr", table, first, second) for axes in ("xy", "yx")
    )
    checks.returns(
        "the sums are those of the definition",
        (table, first, second),
        expected=right,
        kind=torch.Tensor,
        mistakes={
            _hashable(swapped): (
                "The last axis of the table belongs to the second flavour, and the axis before it to the first."
            )
        },
    )
    checks.returns(
        "no tensor on the way has more than n F x R values",
        (table, first, second),
        call=lambda function, *given: max(_Watch(function, given).largest, 2 * 3 * 4 * 9),
        expected=2 * 3 * 4 * 9,
        mistakes={
            3 * 4 * 4 * 9: (
                "You make all products of two flavours. Multiply the table by one flavour first, which sums "
                "over one set of points, and then the result by the other flavour."
            )
        },
    )


def as_one_epoch(checks: Checks) -> None:
    """A dataset of copies"""
    grid = torch.arange(6.0).view(3, 2)
    checks.returns(
        "each of 4 samples is the whole grid",
        (grid, 4),
        call=lambda function, *given: [sample.tolist() for sample in function(*given)],
        expected=[grid.tolist()] * 4,
        mistakes={
            _hashable(grid.repeat(4, 1)): (
                "You made one longer grid, whose samples are points. The copies need an axis of their own, "
                "in front of the points."
            ),
            _hashable(grid[None]): "There is one sample, and an epoch of 4 steps needs 4.",
        },
    )
    checks.returns(
        "the data loader finds 4 samples of shape (3, 2)",
        (grid, 4),
        call=lambda function, *given: [len(function(*given)), *function(*given)[3].shape],
        expected=[4, 3, 2],
    )


def clip_each(checks: Checks) -> None:
    """Each replica is clipped by its own norm"""
    gradients = [torch.tensor([[[3.0, 0]], [[0, 30]]]), torch.tensor([[4.0], [40]])]
    together = [5 / 2525**0.5] * 2
    checks.returns(
        "with norms of 5 and 50 and the limit 5, only the second replica is clipped",
        (gradients, 5),
        expected=_scaled(gradients, [1, 0.1], [1, 0.1]),
        mistakes={
            _hashable(_scaled(gradients, together, together)): (
                "You take one norm for all replicas, so the loud one shortens the quiet one."
            ),
            _hashable(_scaled(gradients, [1, 1 / 6], [1, 1 / 8])): (
                "The norm of a replica is that of all its tensors together, the weights and the biases."
            ),
        },
    )
    checks.returns(
        "a norm below the limit stays as it is",
        (gradients, 100),
        expected=_scaled(gradients, [1, 1], [1, 1]),
        mistakes={
            _hashable(
                _scaled(gradients, [20, 2], [20, 2])
            ): "Clipping never makes a gradient longer."
        },
    )
    checks.returns(
        "the gradients are tensors (R, ...), which the cells below use",
        (gradients, 5),
        call=lambda function, *given: [list(gradient.shape) for gradient in function(*given)],
        expected=[[2, 1, 2], [2, 1]],
    )


def _scaled(gradients, *factors):
    """Return the gradients with each replica's rows multiplied by its factor, a list of factors for each tensor."""
    return [
        gradient * torch.tensor(rows).view(-1, *[1] * (gradient.dim() - 1))
        for gradient, rows in zip(gradients, factors, strict=True)
    ]


class _Watch(TorchDispatchMode):
    """The operators that a function calls, and the elements of the largest tensor that one of them returns."""

    def __init__(self, function, arguments):
        super().__init__()
        self.calls, self.largest = 0, 0
        with self:
            function(*arguments)

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        self.calls += 1
        if isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.numel())
        return result


def _integers(generator, *shape):
    return torch.randint(-9, 10, shape, generator=generator).float()


def _hashable(values):
    if isinstance(values, torch.Tensor):
        values = values.tolist()
    return tuple(map(_hashable, values)) if isinstance(values, list) else values
