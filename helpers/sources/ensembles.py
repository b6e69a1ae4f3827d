"""Parallelism over models: an ensemble trained in a loop, stacked into one (vmap), and by several processes.

The members never need one another: nothing is synchronised until their answers are averaged. Lesson 03.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from helpers import console, timing
from helpers.checks import whole_number
from helpers.hardware.limits.results import MachineLimits
from helpers.models import BasicFCModel
from helpers.operations import profile_ops
from helpers.results import Result
from helpers.sources.problems import (
    Examples,
    batch_indices,
    chosen,
    descend,
    device_of,
    examples_of,
    gradient,
    loss_of,
    own_copy,
    positive,
    trainable,
)


class Pool(Protocol):
    """What :class:`helpers.ranks.ranks.Ranks` is used for here. For the library itself."""

    def run(self, function: Any, *args: Any) -> Sequence[Any]:
        """Call ``function(rank, world_size, *args)`` on every rank; return the results in rank order."""


@dataclass(frozen=True)
class EnsembleModel(Result):
    """The modelled time of one step of ``nets`` networks, in a loop and stacked.

    ``calls`` are the operators of one network's step, ``net_overhead_s`` and ``stack_overhead_s`` what a step of a
    network and of a stack costs beyond its work, ``work_s`` what one network's arithmetic and bytes take at the limits.
    ``stacked_ratio`` is stacked over loop, below 1 where stacking pays. Lesson 03.
    """

    nets: int
    calls: int
    net_overhead_s: float
    stack_overhead_s: float
    work_s: float
    loop_s: float
    stacked_s: float
    stacked_ratio: float


@dataclass(frozen=True)
class Overheads(Result):
    """What a step costs beyond its work: of one network in a loop, and of a whole stack. Lesson 03."""

    net_s: float
    stack_s: float
    stable: bool


@dataclass(frozen=True)
class CrossoverPoint(Result):
    """One size of network: a step of the whole ensemble in a loop, stacked, and by the processes of a pool.

    Ratios are over the loop, below 1 where it is faster; ``verdict`` is that of :func:`helpers.timing.compare` on the
    stacked one. What was not modelled or not run in processes is None. Lesson 03.
    """

    nets: int
    hidden: int
    batch_size: int
    loop_s: float
    stacked_s: float
    stacked_ratio: float
    low_ratio: float
    high_ratio: float
    verdict: str
    stable: bool
    modelled_ratio: float | None
    processes_s: float | None
    processes_ratio: float | None


@dataclass(frozen=True)
class Crossover(Result):
    """Ensembles of ever larger networks: where the loop overtakes the stack. Lesson 03."""

    device: str
    threads: int
    points: tuple[CrossoverPoint, ...]


def make_ensemble(
    nets: int, *, hidden: int, inputs: int = 784, outputs: int = 10, layers: int = 2, seed: int = 0,
    device: str | torch.device | None = None,
) -> list[nn.Module]:  # fmt: skip
    """Return ``nets`` networks (:class:`helpers.BasicFCModel`) that differ in their first weights alone.

    ``device`` is by default CUDA if there is one. The caller's random numbers stay as they are. Lesson 03.
    """
    nets, seed = whole_number("nets", nets, at_least=1), whole_number("seed", seed, at_least=0)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = [BasicFCModel(inputs, hidden, outputs, layers) for _ in range(nets)]
    return [model.to(device) for model in made]


def train_in_loop(
    models: Sequence[nn.Module], data: Any, *, rate: float | Sequence[float], steps: int, batch_size: int | None = 64,
    seed: int = 0,
) -> list[nn.Module]:  # fmt: skip
    """Return trained copies of ``models``: in every step each takes its SGD update, one network after another.

    All see the same batches. ``rate`` is one for all or one a network, as in a search for hyper-parameters. Raises
    TypeError or ValueError for what is not accepted. Lesson 03.
    """
    team, examples, rates = _prepared(models, data, rate)
    batches = batch_indices(len(examples.inputs), batch_size, seed=seed)
    for _ in range(whole_number("steps", steps, at_least=1)):
        loop_step(team, chosen(examples, next(batches)), rates)
    return team


def train_stacked(
    models: Sequence[nn.Module], data: Any, *, rate: float | Sequence[float], steps: int, batch_size: int | None = 64,
    seed: int = 0,
) -> list[nn.Module]:  # fmt: skip
    """Return what :func:`train_in_loop` returns, to rounding, computed by one operator for all networks at a time.

    The weights are stacked along a new first dimension, and ``torch.vmap`` turns each matrix product of a network into
    one batched product. The networks must be of one structure and hold no buffers, whose change cannot be batched.

    Raises TypeError or ValueError for what is not accepted. Lesson 03.
    """
    team, examples, rates = _prepared(models, data, rate)
    stacked = stack_weights(team)
    batches = batch_indices(len(examples.inputs), batch_size, seed=seed)
    for _ in range(whole_number("steps", steps, at_least=1)):
        stacked_step(team[0], stacked, chosen(examples, next(batches)), rates)
    with torch.no_grad():
        for member, model in enumerate(team):
            for name, parameter in model.named_parameters():
                parameter.copy_(stacked[name][member])
    return team


def train_in_processes(
    pool: Pool, models: Sequence[nn.Module], data: Any, *, rate: float | Sequence[float], steps: int,
    batch_size: int | None = 64, seed: int = 0,
) -> tuple[list[nn.Module], float]:  # fmt: skip
    """Return what :func:`train_in_loop` returns, each process training a share, and the slowest one's seconds a step.

    ``pool`` is a :class:`helpers.parallel.Ranks`; rank r of W trains models r, r + W, ... in a loop. Sending models and
    data there and back is outside the time; after they have come the ranks wait for one another once. A rank computes
    on its GPU where the pool has one for each (nccl), else on the CPU. The results are on the models' own device.

    Raises what :func:`train_in_loop` and the pool raise. For the library itself.
    """
    team, examples, rates = _prepared(models, data, rate)
    device = device_of(team[0])
    settings = {"steps": steps, "batch_size": batch_size, "seed": seed}
    answers = pool.run(_train_share, [model.cpu() for model in team], Examples(*(part.cpu() for part in examples)),
                       rates.tolist(), settings)  # fmt: skip
    trained: list[nn.Module] = list(team)
    for rank, (weights, _) in enumerate(answers):
        for place, state in zip(range(rank, len(team), len(answers)), weights, strict=True):
            trained[place].load_state_dict(state)
    return [model.to(device) for model in trained], max(step_s for _, step_s in answers)


def _train_share(
    rank: int, world_size: int, models: list[nn.Module], examples: Examples, rates: list[float], settings: dict
) -> tuple[list[dict[str, Tensor]], float]:
    """Train this rank's share in a loop; return its weights, on the CPU, and the seconds a step."""
    mine, device = models[rank::world_size], torch.device("cpu")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        if torch.distributed.get_backend() == "nccl":
            device = torch.device("cuda", torch.cuda.current_device())
        mine = [model.to(device) for model in mine]
        torch.distributed.barrier()
    begun_s = time.perf_counter()
    done = train_in_loop(mine, examples, rate=rates[rank::world_size], **settings) if mine else []
    states = [model.cpu().state_dict() for model in done]  # which waits for the device
    return states, (time.perf_counter() - begun_s) / settings["steps"]


def loop_step(models: Sequence[nn.Module], batch: Examples, rates: Tensor) -> None:
    """Take one SGD step of each model in place, one after another. For the library itself."""
    for model, rate in zip(models, rates.tolist(), strict=True):
        _, slopes = gradient(model, batch)
        descend(model, slopes, rate)


def stack_weights(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Return every parameter of the models stacked, (nets, ...) each, detached from them.

    Raises ValueError for models that differ in structure, that hold buffers, or of which a part is frozen.
    For the library itself.
    """
    shapes = [[(name, weight.shape) for name, weight in model.named_parameters()] for model in models]
    if any(other != shapes[0] for other in shapes) or len({type(model) for model in models}) > 1:
        raise ValueError("the models differ in their layers; give models of one class and one size to stack them")
    if any(True for model in models for _ in model.buffers()):
        raise ValueError(
            f"{type(models[0]).__name__} holds buffers (batch normalisation has some), which a step changes one "
            "network at a time; give models without, or train them in a loop"
        )
    if any(not weight.requires_grad for model in models for weight in model.parameters()):
        raise ValueError("a part of the models is frozen; give models of which every parameter is trained")
    weights, _ = stack_module_state(list(models))
    return {name: weight.detach() for name, weight in weights.items()}


def stacked_step(template: nn.Module, stacked: dict[str, Tensor], batch: Examples, rates: Tensor) -> None:
    """Take one SGD step of all networks in place, each operator once for all. For the library itself."""

    def loss(weights: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return loss_of(functional_call(template, weights, (inputs,)), targets)

    weights = {name: weight.requires_grad_() for name, weight in stacked.items()}
    with torch.enable_grad():
        losses = vmap(loss, in_dims=(0, None, None))(weights, batch.inputs, batch.targets)
        # Each loss depends on its own network's weights alone: the gradient of the sum is every network's own.
        slopes = torch.autograd.grad(losses.sum(), list(weights.values()))
    with torch.no_grad():
        for weight, slope in zip(weights.values(), slopes, strict=True):
            weight.addcmul_(slope, rates.to(weight).reshape(-1, *[1] * (weight.ndim - 1)), value=-1)


def largest_difference(models: Sequence[nn.Module], others: Sequence[nn.Module]) -> float:
    """Return the largest difference of two weights that correspond, over the largest weight: 0 when all are equal.

    Raises ValueError when the two lists do not correspond. Lesson 03.
    """
    pairs = [(a, b) for one, other in zip(models, others, strict=True)
             for a, b in zip(one.parameters(), other.parameters(), strict=True)]  # fmt: skip
    scale = max(float(a.detach().abs().max()) for a, _ in pairs)
    return max(float((a.detach() - b.detach().to(a)).abs().max()) for a, b in pairs) / scale if scale else 0.0


def model_ensemble_step(
    model: nn.Module, batch: Examples, *, nets: int, limits: MachineLimits, overheads: Overheads | None = None
) -> EnsembleModel:
    """Return the modelled time of one SGD step of ``nets`` such models on ``batch``, in a loop and stacked.

    The operators of forward, loss, backward and update are counted by :func:`helpers.profile_ops`. Their work is the
    longer of FLOPs at the peak of float32 and bytes at the bandwidth of the memory level that holds them all. A loop
    pays the overhead of a step for every network, a stack pays one and does the same work: ``nets (o + w)`` against
    ``o + nets w``. On CUDA the host only launches, so the longer of overhead and work counts in place of the sum.

    The overhead is that of :func:`measure_overheads`; without ``overheads`` it is ``limits.call_overhead_s`` a call, a
    bound from below, since autograd and Python add to it. Left out is that a batched product may run further below the
    peak than a single one, which is how a stack of large networks loses to the loop.

    Raises ValueError for limits that lack the peak of float32. Lesson 03.
    """
    nets = whole_number("nets", nets, at_least=1)
    if "float32" not in limits.peak_flops:
        raise ValueError(f"the limits have no peak for float32; they have {', '.join(limits.peak_flops) or 'none'}")
    profile = profile_ops(_WithLoss(own_copy(model)), inputs=tuple(batch), optimizer=torch.optim.SGD)
    counted = [row for row in profile.operators if row.treatment == "counted"]
    moved = sum(row.read_bytes + row.written_bytes for row in counted)
    bandwidth = limits.level_of(moved * nets).bandwidth_bytes_per_s
    work_s = sum(
        max(row.flops / limits.peak_flops["float32"],
            (row.read_bytes + row.written_bytes) / bandwidth if bandwidth else 0.0)
        for row in counted
    )  # fmt: skip
    calls = sum(row.calls for row in counted)
    bound_s = calls * limits.call_overhead_s
    net_s, stack_s = (overheads.net_s, overheads.stack_s) if overheads else (bound_s, bound_s)
    together = (lambda host_s, device_s: host_s + device_s) if limits.device.startswith("cpu") else max
    loop_s = nets * together(net_s, work_s)
    stacked_s = together(stack_s, nets * work_s)
    return EnsembleModel(nets, calls, net_s, stack_s, work_s, loop_s, stacked_s, stacked_s / loop_s)


class _WithLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return loss_of(self.model(inputs), targets)


def sweep_crossover(
    data: Any, *, nets: int = 64, sizes: Sequence[tuple[int, int]] = ((16, 32), (64, 64), (256, 256)),
    layers: int = 2, limits: MachineLimits | None = None, pool: Pool | None = None, budget_s: float = 1.0,
    device: str | torch.device | None = None,
) -> Crossover:  # fmt: skip
    """Return the time of a training step of ``nets`` networks, in a loop and stacked, for each (hidden, batch) size.

    The two are run in turns by :func:`helpers.timing.compare`, ``budget_s`` for each size. With ``limits`` the model's
    ratio (:func:`model_ensemble_step`, with overheads measured first) stands beside, with ``pool`` (a
    :class:`helpers.parallel.Ranks`) the time of its processes, whose thread setting is the pool's own. Nothing here is
    true of every machine: draw it.

    Raises TypeError or ValueError for what is not accepted. Lesson 03.
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    examples = examples_of(data, device)
    inputs = examples.inputs[0].numel()
    outputs = examples.targets.shape[1] if examples.targets.is_floating_point() else int(examples.targets.max()) + 1
    overheads = None if limits is None else measure_overheads(layers=layers, device=device)
    points = []
    for hidden, batch_size in console.track(list(sizes), "sizes", unit="size"):
        models = make_ensemble(nets, hidden=hidden, inputs=inputs, outputs=outputs, layers=layers, device=device)
        batch = chosen(examples, next(batch_indices(len(examples.inputs), batch_size, seed=0)))
        points.append(_point(models, batch, hidden=hidden, limits=limits, overheads=overheads,
                             pool=pool, budget_s=budget_s))  # fmt: skip
    return Crossover(str(device), torch.get_num_threads(), tuple(points))


def _point(
    models: list[nn.Module], batch: Examples, *, hidden: int, limits: MachineLimits | None,
    overheads: Overheads | None, pool: Pool | None, budget_s: float,
) -> CrossoverPoint:  # fmt: skip
    # The rate is small, so that however many steps are timed the numbers stay ordinary.
    rates = torch.full((len(models),), 1e-6, device=batch.inputs.device)
    stacked = stack_weights(models)
    found = timing.compare(
        {"loop": lambda: loop_step(models, batch, rates),
         "stacked": lambda: stacked_step(models[0], stacked, batch, rates)},
        budget_s=budget_s,
    )  # fmt: skip
    loop, row = found.candidate("loop"), found.candidate("stacked")
    processes_s = None
    if pool is not None:
        steps = max(3, round(budget_s / loop.median_s))
        _, processes_s = train_in_processes(pool, models, batch, rate=1e-6, steps=steps, batch_size=None)
    modelled = None
    if limits is not None:
        modelled = model_ensemble_step(models[0], batch, nets=len(models), limits=limits, overheads=overheads)
    return CrossoverPoint(
        nets=len(models),
        hidden=hidden,
        batch_size=len(batch.inputs),
        loop_s=loop.median_s,
        stacked_s=row.median_s,
        stacked_ratio=row.time_ratio,
        low_ratio=row.low_ratio,
        high_ratio=row.high_ratio,
        verdict=row.verdict,
        stable=found.stable,
        modelled_ratio=None if modelled is None else modelled.stacked_ratio,
        processes_s=processes_s,
        processes_ratio=None if processes_s is None else processes_s / loop.median_s,
    )


def measure_overheads(*, layers: int = 2, nets: int = 4, budget_s: float = 0.3, device: Any = None) -> Overheads:
    """Return what a step costs that computes next to nothing: networks one wide on one example.

    What is left is Python, autograd and the launches: of one network in a loop, and of one stack whatever its size.
    Raises ValueError for a number that is not accepted. Lesson 03.
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    models = make_ensemble(nets, hidden=1, inputs=1, outputs=2, layers=layers, device=device)
    batch = Examples(torch.zeros(1, 1, device=device), torch.zeros(1, dtype=torch.int64, device=device))
    rates, stacked = torch.full((nets,), 1e-6, device=device), stack_weights(models)
    loop = timing.measure(lambda: loop_step(models, batch, rates), budget_s=budget_s)
    stack = timing.measure(lambda: stacked_step(models[0], stacked, batch, rates), budget_s=budget_s)
    return Overheads(loop.median_s / nets, stack.median_s, loop.stable and stack.stable)


def _prepared(
    models: Sequence[nn.Module], data: Any, rate: float | Sequence[float]
) -> tuple[list[nn.Module], Examples, Tensor]:
    team = [own_copy(model) for model in models]
    if not team:
        raise ValueError("models is empty; give at least one, such as make_ensemble(4, hidden=16)")
    rates = [rate] * len(team) if isinstance(rate, int | float) else list(rate)
    if len(rates) != len(team):
        raise ValueError(f"{len(rates)} rates for {len(team)} models; give one for all, or one each")
    device = device_of(team[0])
    values = [positive(value, "rate") for value in rates]
    return team, examples_of(data, device), torch.tensor(values, dtype=trainable(team[0])[0].dtype, device=device)
