"""The ladder on this machine: a step of all replicas in each way, and of the small nets alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
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
_POINTS = 50  # inputs of the small nets

Step = Callable[[], Tensor]


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
    replicas: int,
    ways: Sequence[str],
    budget_s: float,
    device: str | torch.device = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> ReplicaLadder:
    """Return the time of a step of ``replicas`` of ``problem`` in float32 in each of ``ways``, the
    first the base.

    A sequential step is one of each replica in turn. They are timed on ``device`` for ``budget_s``
    seconds together by ``clock``. Each program first takes three steps, whose losses must be those
    of sequential fits to 1e-4: RuntimeError where they are not, and nothing is timed. Raises
    TypeError or ValueError for what is not accepted. Lesson 19.
    """
    names = members("ways", ways, "ways", kind=str)
    for name in names:
        choice("way", name, training.WAYS)
    prepared = programs.prepare(problem, replicas=replicas, device=device)
    rungs = {name: training.PROGRAMS[name](prepared) for name in names}
    losses = {name: _first_losses(program) for name, program in rungs.items()}
    expected = _first_losses(programs.Sequential(prepared))
    _refuse_wrong(losses, expected, right="those of sequential fits")
    return ladders.climb(
        ReplicaLadder,
        {name: program.step for name, program in rungs.items()},
        device=torch.device(device).type,
        budget_s=budget_s,
        clock=clock,
        program="fit",
        replicas=replicas,
    )


def _first_losses(program: Any) -> Tensor:
    """Return the training losses (3, R) of a program's first three steps."""
    for _ in range(_STEPS):
        program.step()
    losses, *_ = program.result()
    return losses


def _refuse_wrong(losses: Mapping[str, Tensor], expected: Tensor, *, right: str) -> None:
    errors = {
        name: float(((found - expected) / expected).abs().max()) for name, found in losses.items()
    }
    ladders.refuse_wrong(errors, allowed=_AGREE, what="the losses", right=right)


def measure_small_nets(
    *, replicas: int, budget_s: float, clock: Callable[[], float] = time.perf_counter
) -> ReplicaLadder:
    """Return the time of a training step of ``replicas`` small nets without the fit, each with its
    own 8 targets.

    "loop" has a net and torch's Adam for each; "vmap" maps the one net's loss, "stacked" writes the
    products batched, both with a fused Adam of the whole stack. On the CPU in float32, on 50
    inputs, for ``budget_s`` seconds together by ``clock``; the loss is the mean squared error.
    Three steps must agree to 1e-4 before anything is timed, as in :func:`measure_ladder`.
    """
    replicas = whole_number("replicas", replicas)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(_POINTS, 2, generator=generator) * 2 - 1
    targets = torch.randn(replicas, _POINTS, problems.WIDTHS[-1], generator=generator)
    makers = {"loop": _make_loop, "vmap": _make_mapped, "stacked": _make_stacked}
    rungs = {name: make(inputs, targets) for name, make in makers.items()}
    losses = {name: torch.stack([step() for _ in range(_STEPS)]) for name, step in rungs.items()}
    _refuse_wrong(losses, losses["loop"], right="those of the loop")
    return ladders.climb(
        ReplicaLadder,
        rungs,
        device="cpu",
        budget_s=budget_s,
        clock=clock,
        program="small nets",
        replicas=replicas,
    )


def _make_loop(inputs: Tensor, targets: Tensor) -> Step:
    """Return a step of a net and an optimizer a replica, one after another."""
    nets = _nets(len(targets))
    optimizers = [torch.optim.Adam(net.parameters(), lr=programs.RATE) for net in nets]

    def step() -> Tensor:
        losses = []
        for net, optimizer, own_targets in zip(nets, optimizers, targets, strict=True):
            loss = nn.functional.mse_loss(net(inputs), own_targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    return step


def _make_stacked(inputs: Tensor, targets: Tensor) -> Step:
    """Return a step of all nets in one, by batched products."""
    stacked = stacking.stack_weights(_nets(len(targets))).values()
    weights = [weight.requires_grad_() for weight in stacked]

    def evaluate() -> tuple[Tensor, Sequence[Tensor]]:
        outputs = programs.stacked_net(weights, inputs)
        losses = (outputs - targets).square().mean((1, 2))  # (R,), of (R, points, 8)
        return losses.detach(), torch.autograd.grad(losses.sum(), weights)

    return _with_adam(weights, evaluate)


def _make_mapped(inputs: Tensor, targets: Tensor) -> Step:
    """Return a step of all nets in one, by ``torch.vmap`` of the one's loss."""
    nets = _nets(len(targets))
    weights = stacking.stack_weights(nets)

    def loss(weights: dict[str, Tensor], targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(functional_call(nets[0], weights, (inputs,)), targets)

    gradients_of = vmap(grad_and_value(loss))

    def evaluate() -> tuple[Tensor, Sequence[Tensor]]:
        gradients, losses = gradients_of(weights, targets)
        return losses, list(gradients.values())

    return _with_adam(list(weights.values()), evaluate)


def _with_adam(
    weights: list[Tensor], evaluate: Callable[[], tuple[Tensor, Sequence[Tensor]]]
) -> Step:
    """Return a step that moves the stacked ``weights`` by the gradients beside the losses (R,)."""
    optimizer = torch.optim.Adam(weights, lr=programs.RATE, fused=True)

    def step() -> Tensor:
        losses, gradients = evaluate()
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.contiguous()
        optimizer.step()
        return losses

    return step


def _nets(count: int) -> list[nn.Sequential]:
    return [problems.net_of(seed).float() for seed in range(count)]
