"""The ladder on this machine: a step of all replicas in each way, and of the small nets alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from helpers import native, timing
from helpers.checks import choice, cpu_or_cuda, members, whole_number
from helpers.results import Record, row_of
from helpers.studies import _ladders as ladders
from helpers.studies._ladders import RungTime
from helpers.studies.replicas import (
    _problem as problems,
    _programs as programs,
    _training as training,
)
from helpers.studies.replicas._problem import FitProblem
from helpers.studies.sgd_parallelism import _stacking as stacking

# of the programs that are timed, in float32; the tests have 30 steps in float64
_STEPS, _AGREE = 3, 1e-4
_RATE = 2e-3


class ReplicaLadder(Record):
    """A training step of all replicas, rung by rung; ``stable`` where every speedup is known to 5
    %.

    Lesson 19.
    """

    program: str
    replicas: int
    device: str
    threads: int
    stable: bool
    reason: str
    rungs: tuple[RungTime, ...]
    comparison: timing.Comparison

    def rung(self, name: str) -> RungTime:
        """Return the row of a rung; ValueError for one that was not measured."""
        return row_of(self.rungs, "rung", rung=name)


def default_ways(device: str | torch.device = "cpu") -> tuple[str, ...]:
    """Return the ways that run on ``device`` as this machine is, but for "compiled", whose first
    step takes a minute.

    Raises ValueError for a device that is neither a CPU nor CUDA. Lesson 19.
    """
    has_own_step = cpu_or_cuda(device).type == "cpu" and _has_compiler()
    return tuple(
        way for way in training.WAYS if way != "compiled" and (way != "own_step" or has_own_step)
    )


def _has_compiler() -> bool:
    try:
        return bool(native.find_compiler())
    except native.MissingToolError:
        return False


def measure_ladder(
    problem: FitProblem,
    *,
    replicas: int = 100,
    ways: Sequence[str] | None = None,
    budget_s: float = 30.0,
    device: str | torch.device = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> ReplicaLadder:
    """Return the time of a step of ``replicas`` of ``problem`` in float32 in each of ``ways``, the
    first the base.

    The ways are by default :func:`default_ways`. A sequential step is one of each replica in turn.
    They are timed on ``device`` for ``budget_s`` seconds together; ``clock`` is for tests. Each
    program first takes three steps, whose losses must be those of sequential fits to 1e-4:
    RuntimeError where they are not, and nothing is timed. Raises TypeError or ValueError for what
    is not accepted. Lesson 19.
    """
    names = default_ways(device) if ways is None else members("ways", ways, "ways", kind=str)
    for name in names:
        choice("way", name, training.WAYS)
    prepared, _ = training.prepare_replicas(problem, replicas=replicas, device=device)
    sequential = programs.Sequential(prepared)
    sequential.run(_STEPS)
    expected = sequential.result(_STEPS)["losses"]
    runs, errors = {}, {}
    for name in names:
        program = training.PROGRAMS[name](prepared)
        program.run(_STEPS)
        errors[name] = float(((program.result(_STEPS)["losses"] - expected) / expected).abs().max())
        runs[name] = program.step
    ladders.refuse_wrong(
        errors, allowed=_AGREE, what="the losses", right="those of sequential fits"
    )
    return ladders.climb(
        ReplicaLadder,
        runs,
        device=torch.device(device).type,
        budget_s=budget_s,
        clock=clock,
        program="fit",
        replicas=replicas,
    )


def measure_small_nets(
    *,
    replicas: int = 100,
    points: int = 50,
    budget_s: float = 10.0,
    clock: Callable[[], float] = time.perf_counter,
) -> ReplicaLadder:
    """Return the time of a training step of ``replicas`` small nets without the fit, each with its
    own 8 targets.

    "loop" has a net and torch's Adam for each; "vmap" maps the one net's loss, "stacked" writes the
    products batched, both with a fused Adam of the whole stack. On the CPU in float32, on
    ``points`` inputs, for ``budget_s`` seconds together (``clock`` is for tests); the loss is the
    mean squared error. Three steps must agree to 1e-4 before anything is timed, as in
    :func:`measure_ladder`.
    """
    replicas, points = (
        whole_number("replicas", replicas, at_least=1),
        whole_number("points", points, at_least=2),
    )
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(points, 2, generator=generator) * 2 - 1
    targets = torch.randn(replicas, points, problems.WIDTHS[-1], generator=generator)
    makers: dict[str, type[_Loop] | type[_Stacked]] = {
        "loop": _Loop,
        "vmap": _Mapped,
        "stacked": _Stacked,
    }
    nets = {name: make(inputs, targets) for name, make in makers.items()}
    losses = {name: torch.stack([net.step() for _ in range(_STEPS)]) for name, net in nets.items()}
    errors = {
        name: float(((net_losses - losses["loop"]) / losses["loop"]).abs().max())
        for name, net_losses in losses.items()
    }
    ladders.refuse_wrong(errors, allowed=_AGREE, what="the losses", right="those of the loop")
    runs = {name: net.step for name, net in nets.items()}
    return ladders.climb(
        ReplicaLadder,
        runs,
        device="cpu",
        budget_s=budget_s,
        clock=clock,
        program="small nets",
        replicas=replicas,
    )


class _Loop:
    """A net and an optimizer a replica, one after another."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets
        self.nets = [problems.net_of(seed).float() for seed in range(len(targets))]
        self.optimizers = [torch.optim.Adam(net.parameters(), lr=_RATE) for net in self.nets]

    def step(self) -> Tensor:
        """Take one step of each; return the losses (R,)."""
        losses = []
        for net, optimizer, targets in zip(self.nets, self.optimizers, self.targets, strict=True):
            loss = nn.functional.mse_loss(net(self.inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)


class _Stacked:
    """All nets in one, by batched products."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets
        nets = [problems.net_of(seed).float() for seed in range(len(targets))]
        self.template, self.weights = nets[0], stacking.stack_weights(nets)
        for weight in self.weights.values():
            weight.requires_grad_()
        self.optimizer = torch.optim.Adam(self.weights.values(), lr=_RATE, fused=True)

    def step(self) -> Tensor:
        """Take one step of all; return the losses (R,)."""
        losses, gradients = self.evaluate()
        for weight, gradient in zip(self.weights.values(), gradients, strict=True):
            weight.grad = gradient.contiguous()
        self.optimizer.step()
        return losses.detach()

    def evaluate(self) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the losses (R,) and each one's gradient."""
        outputs = programs.stacked_net(list(self.weights.values()), self.inputs)
        losses = (outputs - self.targets).square().mean((1, 2))  # (R,), of (R, points, 8)
        return losses, torch.autograd.grad(losses.sum(), list(self.weights.values()))


class _Mapped(_Stacked):
    """All nets in one, by ``torch.vmap`` of the one's loss."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        super().__init__(inputs, targets)

        def loss(weights: dict[str, Any], targets: Tensor) -> Tensor:
            return nn.functional.mse_loss(
                functional_call(self.template, weights, (inputs,)), targets
            )

        self.gradients_of = vmap(grad_and_value(loss))

    def evaluate(self) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the losses (R,) and each one's gradient, of the mapped program."""
        gradients, losses = self.gradients_of(
            {name: weight.detach() for name, weight in self.weights.items()}, self.targets
        )
        return losses, [gradients[name] for name in self.weights]
