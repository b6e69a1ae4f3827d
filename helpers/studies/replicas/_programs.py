"""The ways to train the replicas, each a program that takes one step of all of them: from a loop to
a compiled stack.

A program is made of the same :class:`Prepared` in every way, so a replica starts alike in all.
Losses are those of the weights before a step's update, training and validation alike.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from helpers.studies.replicas import _contractions as contractions, _problem as problems
from helpers.studies.replicas._problem import FitProblem, Observable
from helpers.studies.sgd_parallelism import _stacking as stacking


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A problem and its replicas' starts, in one type on one device: weights (R, ...), data and
    masks (R, n).

    ``training`` and ``validation`` (R, n, n) are the inverses of each replica's masked covariances.
    """

    problem: FitProblem
    weights: dict[str, Tensor]
    data: Tensor
    masks: Tensor
    training: Tensor
    validation: Tensor
    settings: stacking.Settings

    def only(self, replica: int) -> Prepared:
        """Return the same of one replica."""
        row = slice(replica, replica + 1)
        settings: list[Any] = [values and values[row] for values in self.settings]
        return dataclasses.replace(
            self,
            weights={name: weight[row] for name, weight in self.weights.items()},
            data=self.data[row],
            masks=self.masks[row],
            training=self.training[row],
            validation=self.validation[row],
            settings=stacking.Settings(*settings),
        )


def prepare(
    problem: FitProblem,
    seeds: Sequence[int],
    masks: Tensor | None,
    settings: stacking.Settings,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Prepared:
    """Return the starts of the replicas with these seeds: computed in float64, then cast."""
    starts = [problems.start_of(problem, seed) for seed in seeds]
    chosen = torch.stack([start.mask for start in starts]) if masks is None else masks.cpu()

    def inverses(masks: Tensor) -> Tensor:
        return torch.stack(
            [problems.inverse_of(problem.covariance, mask).to(dtype) for mask in masks]
        ).to(device)

    return Prepared(
        problem=cast(problem, dtype=dtype, device=device),
        weights={
            name: torch.stack([start.weights[name] for start in starts]).to(device, dtype)
            for name in starts[0].weights
        },
        data=torch.stack([start.data for start in starts]).to(device, dtype),
        masks=chosen.to(device),
        training=inverses(chosen),
        validation=inverses(~chosen),
        settings=settings,
    )


def cast(problem: FitProblem, *, dtype: torch.dtype, device: torch.device) -> FitProblem:
    """Return the problem with its numbers in another type, on another device."""

    def move(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(device, dtype if value.is_floating_point() else None)
        if isinstance(value, tuple):
            return tuple(map(move, value))
        if isinstance(value, FitProblem | Observable):
            fields = {
                field.name: move(getattr(value, field.name)) for field in dataclasses.fields(value)
            }
            return dataclasses.replace(value, **fields)
        return value

    return move(problem)


def violation(values: Tensor) -> Tensor:
    """Return the cost of each positivity value: nothing where it is positive, in proportion where
    it is not.
    """
    return problems.POSITIVITY * functional.elu(-values, alpha=problems.ALPHA)


# One replica after another.


class SingleTrainer:
    """One replica's fit as the story's program had it: a net, an optimizer, and a validation from x
    on.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.prepared, self.settings = prepared, prepared.settings
        self.net = problems.net_of(0).to(prepared.data)
        self.net.load_state_dict({name: weight[0] for name, weight in prepared.weights.items()})
        problem = prepared.problem
        self.observables = [contractions.boolean_mask(each) for each in problem.observables]
        self.conditions = [contractions.boolean_mask(each) for each in problem.positivity]
        kind = stacking.OPTIMIZERS[self.settings.optimizers[0]]
        self.optimizer = kind(self.net.parameters(), lr=self.settings.rates[0])
        self.losses: list[float] = []
        self.validation_losses: list[float] = []
        self.steps_taken, self.stopped = 0, False
        self.best, self.lowest, self.waited = self.net.state_dict(), math.inf, 0

    def loss(self, outputs: Tensor, data: Tensor, inverse: Tensor, *, conditions: bool) -> Tensor:
        """Return chi2 of the ``outputs`` (x, 8) for those of the ``data`` (1, n) that ``inverse``
        (1, n, n) knows, with the cost of ``conditions`` that are violated.
        """
        flavoured = problems.flavours(self.prepared.problem, outputs)[..., None]  # (x, 14, 1)
        predictions = torch.cat([observable(flavoured) for observable in self.observables])
        residual = predictions.T - data  # (1, n)
        total = torch.einsum("ri,rij,rj->r", residual, inverse, residual)[0]
        kept = self.conditions if conditions else ()
        return total + sum(violation(condition(flavoured)).sum() for condition in kept)

    def step(self) -> None:
        """Take one step, unless the replica has stopped."""
        if self.stopped:
            return
        inputs, data = self.prepared.problem.inputs, self.prepared.data
        training = self.loss(self.net(inputs), data, self.prepared.training, conditions=True)
        with torch.no_grad():
            validation = self.loss(
                self.net(inputs), data, self.prepared.validation, conditions=False
            ).item()
        self.losses.append(training.item())
        self.validation_losses.append(validation)
        if self.settings.patience is not None:
            self.waited += 1
            if validation < self.lowest:
                self.best = copy.deepcopy(self.net.state_dict())
                self.lowest, self.waited = validation, 0
            if self.waited >= self.settings.patience[0]:
                self.stopped = True
                return
        self.optimizer.zero_grad()
        training.backward()
        if self.settings.clip_norms is not None:
            nn.utils.clip_grad_norm_(self.net.parameters(), self.settings.clip_norms[0])
        self.optimizer.step()
        self.steps_taken += 1


class Sequential:
    """All replicas, one after another."""

    def __init__(self, prepared: Prepared) -> None:
        self.fits = [SingleTrainer(prepared.only(replica)) for replica in range(len(prepared.data))]
        self.like = prepared.data

    def step(self) -> None:
        """Take one step of each replica."""
        for fit in self.fits:
            fit.step()

    def run(self, steps: int) -> None:
        """Train one replica to its end, then the next."""
        for fit in self.fits:
            for _ in range(steps):
                fit.step()

    def result(self, steps: int) -> dict[str, Any]:
        """Return the fields of :class:`ReplicaRun` that the training decides."""

        def columns(name: str) -> Tensor:
            lists = [getattr(fit, name) for fit in self.fits]
            padded = [values + [math.nan] * (steps - len(values)) for values in lists]
            return self.like.new_tensor(padded).T.contiguous()

        states = [
            fit.net.state_dict() if fit.settings.patience is None else fit.best for fit in self.fits
        ]
        return {
            "losses": columns("losses"),
            "validation_losses": columns("validation_losses"),
            "weights": {name: torch.stack([state[name] for state in states]) for name in states[0]},
            "steps_taken": torch.tensor([fit.steps_taken for fit in self.fits]),
        }


# All replicas in one program.


class BatchedTrainer:
    """A program for all replicas at once; ``evaluate`` differs from program to program."""

    def __init__(self, prepared: Prepared, *, fused: bool = False) -> None:
        named = {name: weight.clone() for name, weight in prepared.weights.items()}
        optimizer = functools.partial(stacking.StackedOptimizer, fused=fused)
        self.begin(prepared, named, list(named.values()), optimizer)

    def begin(
        self,
        prepared: Prepared,
        named: dict[str, Tensor],
        weights: list[Tensor],
        optimizer: Callable[..., Any],
    ) -> None:
        """Make what a step needs beside the losses; ``weights`` are what the ``optimizer`` moves,
        ``named`` what comes back.
        """
        self.prepared, self.named, self.weights = prepared, named, weights
        rates, optimizers, norms, patience = prepared.settings
        like = prepared.data
        self.optimizer = optimizer(weights, like.new_tensor(rates), optimizers)
        self.norms = None if norms is None else like.new_tensor(norms)
        self.stopping = None
        if patience is not None:
            self.stopping = stacking.Stopping(weights, torch.tensor(patience, device=like.device))
        self.losses: list[Tensor] = []  # (2, R) each: of training and of validation

    def evaluate(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return training and validation losses (R,), and the gradient of each replica's training
        loss.
        """
        raise NotImplementedError

    def step(self) -> None:
        """Take one step of every replica that has not stopped."""
        training, validation, gradients = self.evaluate()
        losses, active = torch.stack([training.detach(), validation.detach()]), None
        if self.stopping is not None:
            losses = torch.where(self.stopping.active, losses, math.nan)
            self.stopping.look(losses[1])
            active = self.stopping.active
        self.losses.append(losses)
        if self.norms is not None:
            stacking.clip_each(gradients, self.norms)
        self.optimizer.step(gradients, active)

    def run(self, steps: int) -> None:
        """Take up to ``steps`` steps, until every replica has stopped."""
        for _ in range(steps):
            self.step()
            if self.stopping is not None and not self.stopping.active.any():
                return

    def result(self, steps: int) -> dict[str, Any]:
        """Return the fields of :class:`ReplicaRun` that the training decides."""
        taken = torch.stack(self.losses)
        losses = taken.new_full((steps, *taken.shape[1:]), math.nan)
        losses[: len(taken)] = taken
        steps_taken = torch.full((taken.shape[2],), steps)
        if self.stopping is not None:
            steps_taken = self.stopping.steps_taken.cpu()
            for weight, best in zip(self.weights, self.stopping.best, strict=True):
                weight.detach().copy_(best)
        return {
            "losses": losses[:, 0],
            "validation_losses": losses[:, 1],
            "steps_taken": steps_taken,
            "weights": {name: weight.detach().clone() for name, weight in self.named.items()},
        }


class Stacked(BatchedTrainer):
    """One net of batched products for all replicas; ``kind`` says how tables, chi2 and validation
    are computed.

    - "boolean_mask": as the program of one replica, replicas last;
    - "padded_einsum", "gather", "pair_product": those of :mod:`_contractions`;
    - "shared": each observable by the cheaper count, and both losses from the same observables.
    """

    def __init__(
        self, prepared: Prepared, kind: str, *, fused: bool = False, compiled: bool = False
    ) -> None:
        super().__init__(prepared, fused=fused)
        problem = prepared.problem
        self.kind, self.learned = kind, self.weights
        self.observables, self.conditions = (
            [_contraction(kind, observable, len(prepared.data)) for observable in group]
            for group in (problem.observables, problem.positivity)
        )
        if kind == "shared":
            self.joint = prepared.training + prepared.validation
        self.both = torch.compile(self._both, dynamic=False) if compiled else self._both

    def evaluate(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return losses and gradients by autograd: the gradient of the losses' sum is every
        replica's own.
        """
        for weight in self.learned:
            weight.requires_grad_()
        if self.kind == "shared":
            training, validation = self.both(self.learned)
        else:
            training = self._loss(self.prepared.training, conditions=True)
            with torch.no_grad():
                validation = self._loss(self.prepared.validation, conditions=False)
        gradients = torch.autograd.grad(training.sum(), self.learned)
        return training, validation, list(gradients)

    def _outputs(self, weights: list[Tensor]) -> Tensor:
        """Return the outputs (R, x, 8) of all networks."""
        return stacked_net(weights, self.prepared.problem.inputs)

    def _loss(self, inverse: Tensor, *, conditions: bool) -> Tensor:
        predictions, cost = self._values(self.learned, conditions=conditions)
        total = chi2_by_bmm(predictions, self.prepared.data, inverse)
        return total if cost is None else total + cost

    def _both(self, weights: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return both losses of one pass: no datum is in both, so one matrix holds both inverses,
        and is read once.

        The matrices are symmetric, so the gradient of r A r is twice what comes through one of the
        two r.
        """
        predictions, cost = self._values(weights, conditions=True)
        residual = predictions.T - self.prepared.data  # (R, n)
        # (R, n), of (R, 1, n) @ (R, n, n)
        half = residual * torch.bmm(residual.detach()[:, None, :], self.joint)[:, 0]
        terms = 2 * half - half.detach()
        training = torch.where(self.prepared.masks, terms, 0).sum(1)
        if cost is not None:
            training = training + cost
        return training, torch.where(self.prepared.masks, 0, terms.detach()).sum(1)

    def _values(self, weights: list[Tensor], *, conditions: bool) -> tuple[Tensor, Tensor | None]:
        """Return the observables (n, R) and the cost (R,) of the conditions, None where there are
        none.
        """
        flavoured = problems.flavours(self.prepared.problem, self._outputs(weights))  # (R, x, 14)
        if self.kind == "gather":
            flavoured = flavoured.transpose(1, 2).contiguous()  # (R, 14, x)
        elif self.kind == "boolean_mask":
            flavoured = flavoured.permute(1, 2, 0)  # (x, 14, R)
        elif self.kind != "padded_einsum":
            flavoured = flavoured.permute(2, 1, 0).contiguous()  # (14, x, R)

        def joined(parts: Sequence[contractions.Contraction]) -> Tensor:
            values = [part(flavoured) for part in parts]
            if self.kind in ("gather", "padded_einsum"):  # which have the replicas first
                return torch.cat(values, dim=1).T
            return torch.cat(values)

        predictions = joined(self.observables)
        if conditions and self.conditions:
            return predictions, violation(joined(self.conditions)).sum(0)
        return predictions, None


class Separate(Stacked):
    """The same with a separate network for each replica, whose outputs are then joined.

    The networks' weights are views of the stack's, so only their forward and backward passes are
    separate.
    """

    def __init__(self, prepared: Prepared, kind: str, *, fused: bool = False) -> None:
        super().__init__(prepared, kind, fused=fused)
        self.learned = [
            weight[replica].detach()
            for replica in range(len(prepared.data))
            for weight in self.weights
        ]

    def evaluate(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return losses, and the gradients (R, ...) of all networks' own weights."""
        training, validation, gradients = super().evaluate()
        tensors = len(self.weights)
        stacked = [torch.stack(gradients[index::tensors]) for index in range(tensors)]
        return training, validation, stacked

    def _outputs(self, weights: list[Tensor]) -> Tensor:
        tensors = len(self.weights)
        networks = (weights[start : start + tensors] for start in range(0, len(weights), tensors))
        return torch.stack([_net(network, self.prepared.problem.inputs) for network in networks])


def _contraction(kind: str, observable: Observable, replicas: int) -> contractions.Contraction:
    if kind != "shared":
        return getattr(contractions, kind)(observable)
    way = "pair_product"
    if observable.of_pairs:
        sizes = observable.table.shape[:3]  # data, channels, points
        way = contractions.cheapest_contraction(*sizes, replicas=replicas).chosen
    contraction = getattr(contractions, way)(observable)
    if way == "pair_product":
        return contraction
    # from (14, x, R) to what it takes
    order = (2, 1, 0) if way == "padded_einsum" else (2, 0, 1)
    return lambda flavoured: contraction(flavoured.permute(*order).contiguous()).T


def _net(weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
    """Return the outputs (x, 8) of one network for the inputs (x, 2)."""
    hidden = inputs
    for layer in range(0, len(weights), 2):
        hidden = functional.linear(hidden, weights[layer], weights[layer + 1])
        if layer < len(weights) - 2:
            hidden = torch.tanh(hidden)
    return hidden


def stacked_net(
    weights: Sequence[Tensor],
    inputs: Tensor,
    *,
    activation: Callable[[Tensor], Tensor] = torch.tanh,
) -> Tensor:
    """Return the outputs (R, x, 8) of all replicas' nets for the inputs (x, 2): three batched
    products.
    """
    replicas = len(weights[0])
    hidden = inputs.expand(replicas, *inputs.shape)  # (R, x, 2)
    for layer in range(0, len(weights), 2):
        weight, bias = weights[layer], weights[layer + 1]
        # (R, x, outputs), of (R, x, inputs) @ (R, inputs, outputs)
        hidden = torch.baddbmm(bias[:, None, :], hidden, weight.transpose(1, 2))
        if layer < len(weights) - 2:
            hidden = activation(hidden)
    return hidden


def chi2_by_bmm(predictions: Tensor, data: Tensor, inverse: Tensor) -> Tensor:
    """Return chi2 (R,) of the observables ``predictions`` (n, R) for data (R, n) and inverse
    covariances (R, n, n), by a batched product: of rows, which is faster than of columns.
    """
    residual = predictions.T - data
    # (R, 1, n) @ (R, n, n)
    return (residual * torch.bmm(residual[:, None, :], inverse)[:, 0]).sum(1)


class Mapped(BatchedTrainer):
    """The program of one replica as it was written, for all by ``torch.vmap``."""

    def __init__(self, prepared: Prepared) -> None:
        super().__init__(prepared)
        trainer = SingleTrainer(prepared.only(0))

        def loss(
            weights: dict[str, Tensor], data: Tensor, inverse: Tensor, *, conditions: bool
        ) -> Tensor:
            outputs = functional_call(trainer.net, weights, (prepared.problem.inputs,))
            return trainer.loss(outputs, data[None], inverse[None], conditions=conditions)

        self.gradients_of = vmap(grad_and_value(functools.partial(loss, conditions=True)))
        self.validate = vmap(functools.partial(loss, conditions=False))

    def evaluate(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return losses and gradients of the mapped program."""
        gradients, losses = self.gradients_of(
            self.named, self.prepared.data, self.prepared.training
        )
        with torch.no_grad():
            validation = self.validate(self.named, self.prepared.data, self.prepared.validation)
        return losses, validation, [gradients[name] for name in self.named]
