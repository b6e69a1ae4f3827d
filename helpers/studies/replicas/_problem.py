"""The fit that a replica repeats: one small net on x-points, observables of one and two flavours,
correlated data.

The shapes are those of the story's program (n3fit of NNPDF): a net 2 -> 25 -> 20 -> 8, 14 flavours,
and a data set's table of (n, F, x) or (n, F, x, x). The numbers are drawn, and no physics is in
them. Lesson 19.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from helpers.checks import random_seed, whole_number

WIDTHS = (2, 25, 20, 8)
FLAVOURS = 14
POSITIVITY = 10.0  # the weight of a positivity condition that is violated, per unit of violation
ALPHA = 1e-7  # what the ELU of the condition is worth where it holds

# the seed of the weights from which the data are made, beyond those that replicas take by default
_TRUTH = 2**32 + 1
_TRAINING_SHARE = 0.75


@dataclass(frozen=True)
class Observable:
    """One data set: n numbers, each a weighted sum over x-points and flavours.

    ``table`` is (n, F, x) with ``channels`` (F,), the flavours that it needs of the 14, or (n, F,
    x, x) with ``channels`` (F, 2), pairs of flavours at two x-points; float64. The channels are in
    the order of their numbers. Lesson 19.
    """

    name: str
    table: Tensor = field(repr=False)
    channels: Tensor = field(repr=False)

    @property
    def of_pairs(self) -> bool:
        """True where a number needs two flavours at a time."""
        return self.channels.ndim == 2


@dataclass(frozen=True)
class FitProblem:
    """The fit that all replicas share: x-points, observables, positivity conditions, central data
    and their covariance.

    ``points`` (x,) and the net's ``inputs`` (x, 2), x and log x scaled to -1 to 1. The net's 8
    outputs are multiplied by ``shapes`` (x, 8); then the sum rule is kept: what ``quadrature`` (x,)
    gives for the first two outputs is brought to 1 by adding ``bump`` (x, 8). (The story's fit
    scales an output instead, and so may divide by nearly 0.) ``rotation`` (8, 14) makes 14 flavours
    of 8. ``data`` (n,) of all observables, in their order, have the covariance ``covariance`` (n,
    n). Everything is float64. Lesson 19.
    """

    seed: int
    points: Tensor = field(repr=False)
    inputs: Tensor = field(repr=False)
    shapes: Tensor = field(repr=False)
    quadrature: Tensor = field(repr=False)
    bump: Tensor = field(repr=False)
    rotation: Tensor = field(repr=False)
    observables: tuple[Observable, ...]
    positivity: tuple[Observable, ...]
    data: Tensor = field(repr=False)
    covariance: Tensor = field(repr=False)


@dataclass(frozen=True)
class Start:
    """A replica's start, which its seed decides: its first weights, its own data (n,) and which of
    them it trains on (n,).
    """

    weights: dict[str, Tensor]
    data: Tensor
    mask: Tensor


def make_problem(
    seed: int = 0,
    *,
    points: int = 30,
    single_sets: int = 12,
    single_data: int = 25,
    single_channels: int = 6,
    pair_sets: int = 4,
    pair_data: int = 10,
    pair_channels: int = 24,
    positivity_sets: int = 2,
) -> FitProblem:
    """Return a fit of 340 data on 30 x-points, by default: 12 sets of one flavour and 4 of two.

    There are ``single_sets`` of ``single_data`` data from ``single_channels`` flavours,
    ``pair_sets`` of ``pair_data`` from ``pair_channels`` pairs of flavours, ``positivity_sets`` of
    conditions, and ``points`` on x. The data are what a net with weights of its own, drawn with
    ``seed``, gives, which also keeps the positivity conditions. Their covariance has an uncertainty
    of each datum and ten that all share. The caller's random numbers stay as they are. Raises
    TypeError or ValueError for a size that is not accepted. Lesson 19.
    """
    seed, points = random_seed(seed), whole_number("points", points, at_least=2)
    whole_number("single_sets", single_sets)
    whole_number("single_data", single_data)
    whole_number("pair_sets", pair_sets)
    whole_number("pair_data", pair_data)
    whole_number("positivity_sets", positivity_sets, at_least=0)
    whole_number("single_channels", single_channels, at_most=FLAVOURS)
    whole_number("pair_channels", pair_channels, at_most=FLAVOURS**2)
    generator = torch.Generator().manual_seed(seed)
    x = torch.logspace(-3, math.log10(0.9), points, dtype=torch.float64)
    quadrature = torch.gradient(x)[0]
    rises, falls = _uniform(generator, (8,), 0.1, 0.6), _uniform(generator, (8,), 1.0, 3.0)
    rise_and_fall = x**0.5 * (1 - x) ** 3
    bump = torch.zeros(points, 8, dtype=torch.float64)
    bump[:, 1] = rise_and_fall / (rise_and_fall @ quadrature)
    rotation = torch.randn(8, FLAVOURS, generator=generator, dtype=torch.float64) / math.sqrt(8)
    singles = [
        _single(generator, f"one flavour {number}", x, single_data, single_channels)
        for number in range(single_sets)
    ]
    pairs = [
        _pairs(generator, f"two flavours {number}", x, pair_data, pair_channels)
        for number in range(pair_sets)
    ]
    problem = FitProblem(
        seed=seed,
        points=x,
        inputs=torch.stack([2 * x - 1, 1 + 2 * x.log() / math.log(1e3)], dim=1),
        shapes=3 * x[:, None] ** rises * (1 - x[:, None]) ** falls,
        quadrature=quadrature,
        bump=bump,
        rotation=rotation,
        observables=(*singles, *pairs),
        positivity=(),
        data=torch.empty(0, dtype=torch.float64),
        covariance=torch.empty(0, 0, dtype=torch.float64),
    )
    with torch.no_grad():
        truth = flavours(problem, net_of(_TRUTH + seed)(problem.inputs))
    data = torch.cat([exact_values(observable, truth) for observable in problem.observables])
    spread = float(data.std()) if len(data) > 1 else 1.0
    shared = 0.03 * spread * torch.randn(len(data), 10, generator=generator, dtype=torch.float64)
    uncorrelated = spread * _uniform(generator, (len(data),), 0.03, 0.1)
    positivity = []
    for number in range(positivity_sets):
        condition = _single(generator, f"positivity {number}", x, 10, min(3, FLAVOURS))
        signs = exact_values(condition, truth).sign()
        signed = condition.table * signs[:, None, None]
        positivity.append(dataclasses.replace(condition, table=signed))
    return dataclasses.replace(
        problem,
        positivity=tuple(positivity),
        data=data,
        covariance=shared @ shared.T + uncorrelated.square().diag(),
    )


def _uniform(generator: torch.Generator, shape: Sequence[int], low: float, high: float) -> Tensor:
    return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)


def _bumps(generator: torch.Generator, x: Tensor, *counts: int) -> Tensor:
    """Return (*counts, x): each datum looks at its own stretch of x, with a weight a point of its
    own.
    """
    logs = x.log()
    centres = _uniform(generator, (*counts, 1), float(logs[0]), float(logs[-1]))
    bumps = torch.exp(-((logs - centres) ** 2) / 2) + 0.05
    return bumps / bumps.sum(-1, keepdim=True) * _uniform(generator, (*counts, len(x)), 0.5, 1.5)


def _choose(generator: torch.Generator, count: int, of: int) -> Tensor:
    return torch.randperm(of, generator=generator)[:count].sort().values


def _single(
    generator: torch.Generator, name: str, x: Tensor, data: int, channels: int
) -> Observable:
    weights = torch.randn(data, channels, generator=generator, dtype=torch.float64)
    table = weights[..., None] * _bumps(generator, x, data, channels)
    return Observable(name, table, _choose(generator, channels, FLAVOURS))


def _pairs(
    generator: torch.Generator, name: str, x: Tensor, data: int, channels: int
) -> Observable:
    weights = torch.randn(data, channels, generator=generator, dtype=torch.float64)
    left, right = (_bumps(generator, x, data, channels) for _ in range(2))
    # (n, F, 1, 1) * (n, F, x, 1) * (n, F, 1, x)
    table = weights[:, :, None, None] * left[..., :, None] * right[..., None, :]
    table = table * _uniform(generator, table.shape, 0.5, 1.5)
    flat = _choose(generator, channels, FLAVOURS**2)
    return Observable(name, table, torch.stack([flat // FLAVOURS, flat % FLAVOURS], dim=1))


def net_of(seed: int) -> nn.Sequential:
    """Return the net 2 -> 25 -> 20 -> 8 (tanh, tanh, linear; float64): normal weights after Glorot,
    biases 0.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        layers = [nn.Linear(a, b, dtype=torch.float64) for a, b in itertools.pairwise(WIDTHS)]
    for layer in layers:
        nn.init.zeros_(layer.bias)
        nn.init.xavier_normal_(layer.weight, generator=generator)
    first, second, last = layers
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last)


def start_of(problem: FitProblem, seed: int) -> Start:
    """Return the start of the replica of ``seed``: the same whichever replicas are trained beside
    it.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(problem.data), generator=generator, dtype=torch.float64)
    order = torch.randperm(len(problem.data), generator=generator)
    mask = torch.zeros(len(problem.data), dtype=torch.bool)
    mask[order[: round(_TRAINING_SHARE * len(mask))]] = True
    weights = {name: weight.detach() for name, weight in net_of(seed).named_parameters()}
    return Start(weights, problem.data + torch.linalg.cholesky(problem.covariance) @ noise, mask)


def inverse_of(covariance: Tensor, mask: Tensor) -> Tensor:
    """Return (n, n): the inverse of the covariance among the data of ``mask`` over their number, 0
    elsewhere.

    It is the inverse of the masked matrix. The whole matrix's inverse, masked, is another one: it
    knows what the left out data would say.
    """
    inverse = torch.zeros_like(covariance)
    kept = mask[:, None] & mask
    inverse[kept] = torch.linalg.inv(covariance[mask][:, mask]).flatten() / mask.sum()
    return inverse


def flavours(problem: FitProblem, outputs: Tensor) -> Tensor:
    """Return the 14 flavours (..., x, 14) of the net's outputs (..., x, 8), with the sum rule kept.

    The tensors of ``problem`` must be of the type and on the device of ``outputs``.
    """
    shaped = outputs * problem.shapes  # (..., x, 8)
    # (...), the share that the sum rule lacks
    missing = 1 - shaped[..., :2].sum(-1) @ problem.quadrature
    return (shaped + missing[..., None, None] * problem.bump) @ problem.rotation


def exact_values(observable: Observable, flavoured: Tensor) -> Tensor:
    """Return the numbers (n,) of an observable for the flavours (x, 14) of one replica, as its
    definition says.
    """
    if not observable.of_pairs:
        return torch.einsum("nfx,xf->n", observable.table, flavoured[:, observable.channels])
    first, second = (flavoured[:, observable.channels[:, index]] for index in range(2))
    return torch.einsum("nfxy,xf,yf->n", observable.table, first, second)
