"""Parallelism over models: an ensemble trained in a loop, stacked into one (vmap), and by several
processes.

The members never need one another: nothing is synchronised until their answers are averaged. Lesson
04.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from helpers import console, timing
from helpers.checks import members, number, whole_number
from helpers.models import BasicFCModel
from helpers.results import Record, derived
from helpers.studies.data_parallel._execution import RankPool
from helpers.studies.sgd_parallelism import _problems as problems
from helpers.studies.sgd_parallelism._problems import Examples
from helpers.studies.sgd_parallelism._stacking import rows, stack_weights

_TIMED_RATE = 1e-6


class Overheads(Record):
    """The time of a step beyond its work: of one network in a loop, and of a whole stack.

    Lesson 04.
    """

    net_s: float
    stack_s: float
    stable: bool


class CrossoverPoint(Record):
    """One size of network: a step of the whole ensemble in a loop, stacked, and by the processes of
    a pool.

    Ratios are over the loop, below 1 where it is faster; ``verdict`` is that of
    :func:`helpers.timing.compare` on the stacked one. What was not modelled or not run in processes
    is None. Lesson 04.
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


class Crossover(Record):
    """Ensembles of ever larger networks: where the loop overtakes the stack. Lesson 04."""

    device: str
    threads: int
    points: tuple[CrossoverPoint, ...]


def make_ensemble(
    nets: int,
    *,
    hidden: int,
    inputs: int = 784,
    outputs: int = 10,
    device: str | torch.device | None = None,
) -> list[nn.Module]:
    """Return ``nets`` networks (:class:`.models.BasicFCModel`) that differ in their first weights
    alone.

    They go from ``inputs`` values to ``outputs`` logits in two linear layers, ``hidden`` wide
    between them; seed 0 draws the weights. ``device`` is by default CUDA if there is one. The
    caller's random numbers stay as they are. Lesson 04.
    """
    nets = whole_number("nets", nets)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        models = [BasicFCModel(inputs, hidden, outputs, 2) for _ in range(nets)]
    return [model.to(_device(device)) for model in models]


def train_in_loop(
    models: Sequence[nn.Module],
    data: Any,
    *,
    rate: float | Sequence[float],
    steps: int,
    batch_size: int | None = 64,
) -> list[nn.Module]:
    """Return trained copies of ``models``: in every step each takes its SGD update, one network
    after another.

    All take ``steps`` on the same batches; ``data`` and ``batch_size`` are those of
    :func:`train_stale`. ``rate`` is one for all or one a network, as in a search for
    hyper-parameters. Raises TypeError or ValueError for what is not accepted. Lesson 04.
    """
    team, examples, rates = _prepare_training(models, data, rate)
    for batch in _batches(examples, batch_size, steps):
        loop_step(team, batch, rates)
    return team


def train_stacked(
    models: Sequence[nn.Module],
    data: Any,
    *,
    rate: float | Sequence[float],
    steps: int,
    batch_size: int | None = 64,
) -> list[nn.Module]:
    """Return the networks of :func:`train_in_loop`, to rounding, computed by one operator for all
    of them at a time.

    ``models``, ``data``, ``rate``, ``steps`` and ``batch_size`` are those of :func:`train_in_loop`.
    The weights are stacked along a new first dimension, and ``torch.vmap`` turns each matrix
    product of a network into one batched product. The networks must be of one structure and hold no
    buffers, whose change cannot be batched.

    Raises TypeError or ValueError for what is not accepted. Lesson 04.
    """
    team, examples, rates = _prepare_training(models, data, rate)
    stacked_weights = stack_weights(team)
    for batch in _batches(examples, batch_size, steps):
        stacked_step(team[0], stacked_weights, batch, rates)
    for member, model in enumerate(team):
        weights = {name: weight[member] for name, weight in stacked_weights.items()}
        model.load_state_dict(weights, strict=False)  # as weights that are tied have one name here
    return team


def train_in_processes(
    pool: RankPool,
    models: Sequence[nn.Module],
    data: Any,
    *,
    rate: float | Sequence[float],
    steps: int,
    batch_size: int | None = 64,
) -> tuple[list[nn.Module], float]:
    """Return the networks of :func:`train_in_loop`, each process training a share, and the slowest
    one's seconds a step.

    ``models``, ``data``, ``rate``, ``steps`` and ``batch_size`` are those of :func:`train_in_loop`.
    ``pool`` is a :class:`helpers.ranks.Ranks`; rank r of W trains models r, r + W, ... in a loop.
    Sending models and data there and back is outside the time; after they have come the ranks wait
    for one another once. A rank computes on its GPU where the pool has one for each (nccl), else on
    the CPU. The results are on the models' own device.

    Raises what :func:`train_in_loop` and the pool raise.
    """
    team, examples, rates = _prepare_training(models, data, rate)
    answers = pool.run(
        _train_share,
        [model.cpu() for model in team],
        Examples(*(part.cpu() for part in examples)),
        rates.tolist(),
        {"steps": steps, "batch_size": batch_size},
    )
    for rank, (states, _) in enumerate(answers):
        for model, state in zip(team[rank :: len(answers)], states, strict=True):
            model.load_state_dict(state)
    device = examples.inputs.device
    return [model.to(device) for model in team], max(step_s for _, step_s in answers)


def _train_share(
    rank: int,
    world_size: int,
    models: list[nn.Module],
    examples: Examples,
    rates: list[float],
    settings: dict,
) -> tuple[list[dict[str, Tensor]], float]:
    """Train this rank's share in a loop; return its weights, on the CPU, and the seconds a step."""
    share, device = models[rank::world_size], torch.device("cpu")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        if torch.distributed.get_backend() == "nccl":
            device = torch.device("cuda", torch.cuda.current_device())
        share = [model.to(device) for model in share]
        torch.distributed.barrier()
    start_s = time.perf_counter()
    if share:
        share = train_in_loop(share, examples, rate=rates[rank::world_size], **settings)
    states = [model.cpu().state_dict() for model in share]  # which waits for the device
    return states, (time.perf_counter() - start_s) / settings["steps"]


def loop_step(models: Sequence[nn.Module], batch: Examples, rates: Tensor) -> None:
    """Take one SGD step of each model in place, one after another."""
    for model, rate in zip(models, rates.tolist(), strict=True):
        _, slopes = problems.gradient(model, batch)
        problems.descend(model, slopes, rate)


def stacked_step(
    template: nn.Module, stacked_weights: dict[str, Tensor], batch: Examples, rates: Tensor
) -> None:
    """Take one SGD step of all networks in place, each operator once for all."""

    def loss(weights: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return problems.loss_of(functional_call(template, weights, (inputs,)), targets)

    weights = {name: weight.requires_grad_() for name, weight in stacked_weights.items()}
    with torch.enable_grad():
        losses = vmap(loss, in_dims=(0, None, None))(weights, batch.inputs, batch.targets)
        # Each loss depends on its own network's weights alone: the gradient of the sum is every
        # network's own.
        slopes = torch.autograd.grad(losses.sum(), list(weights.values()))
    with torch.no_grad():
        for weight, slope in zip(weights.values(), slopes, strict=True):
            weight.addcmul_(slope, rows(rates.to(weight), weight), value=-1)


def largest_difference(models: Sequence[nn.Module], others: Sequence[nn.Module]) -> float:
    """Return the largest difference of two weights that correspond, over the largest weight: 0 when
    all are equal.

    Raises ValueError when the two lists do not correspond. Lesson 04.
    """
    teams = [
        members(name, team, "models, each a torch.nn.Module", kind=nn.Module)
        for name, team in (("models", models), ("others", others))
    ]
    shapes, other_shapes = (
        [[weight.shape for weight in model.parameters()] for model in team] for team in teams
    )
    if shapes != other_shapes:
        raise ValueError(
            "the two lists do not correspond; give as many models in each, of the same weights"
        )
    weights, other_weights = (
        [weight.detach() for model in team for weight in model.parameters()] for team in teams
    )
    if not weights:
        raise ValueError("these models have no weights to compare; give at least one that has")
    scale = max(float(weight.abs().max()) for weight in weights)
    pairs = zip(weights, other_weights, strict=True)
    difference = max(float((weight - other.to(weight)).abs().max()) for weight, other in pairs)
    return difference / scale if scale else 0.0


def sweep_crossover(
    data: Any,
    *,
    nets: int,
    sizes: Sequence[tuple[int, int]],
    budget_s: float,
    pool: RankPool | None = None,
    device: str | torch.device | None = None,
) -> Crossover:
    """Return the time of a training step of ``nets`` networks, in a loop and stacked, for ``sizes``
    (hidden, batch).

    The networks have two linear layers and learn ``data`` (as in :func:`train_stale`) on
    ``device``, by default CUDA if there is one. The two are run in turns by
    :func:`helpers.timing.compare`, ``budget_s`` for each size. With ``pool`` (a
    :class:`helpers.ranks.Ranks`) the time of its processes stands beside, whose thread setting is
    the pool's own. ``modelled_ratio`` is left to who has a model. Nothing here is true of every
    machine: draw it.

    Raises TypeError or ValueError for what is not accepted. Lesson 04.
    """
    device = _device(device)
    examples = problems.examples_of(data, device)
    inputs, targets = examples.inputs[0].numel(), examples.targets
    outputs = targets.shape[1] if targets.is_floating_point() else int(targets.max()) + 1
    points = []
    for hidden, batch_size in console.track(list(sizes), "sizes", unit="size"):
        models = make_ensemble(nets, hidden=hidden, inputs=inputs, outputs=outputs, device=device)
        batch = next(problems.batches_of(examples, batch_size))
        points.append(_point(models, batch, hidden=hidden, pool=pool, budget_s=budget_s))
    return Crossover(str(device), torch.get_num_threads(), tuple(points))


def _point(
    models: list[nn.Module], batch: Examples, *, hidden: int, pool: RankPool | None, budget_s: float
) -> CrossoverPoint:
    comparison = timing.compare(_steps(models, batch), budget_s=budget_s)
    loop, stacked = comparison.candidates
    processes_s = None
    if pool is not None:
        steps = max(3, round(budget_s / loop.median_s))
        _, processes_s = train_in_processes(
            pool, models, batch, rate=_TIMED_RATE, steps=steps, batch_size=None
        )
    return derived(
        CrossoverPoint,
        stacked,
        nets=len(models),
        hidden=hidden,
        batch_size=len(batch.inputs),
        loop_s=loop.median_s,
        stacked_s=stacked.median_s,
        stacked_ratio=stacked.time_ratio,
        stable=comparison.stable,
        modelled_ratio=None,
        processes_s=processes_s,
        processes_ratio=None if processes_s is None else processes_s / loop.median_s,
    )


def measure_overheads(*, device: Any = None) -> Overheads:
    """Return the time of a step that computes next to nothing: four networks one wide on one
    example.

    They are on ``device`` (by default CUDA if there is one), timed for 0.3 s in each way. What is
    left is Python, autograd and the launches: of one network in a loop, and of one stack whatever
    its size. Lesson 04.
    """
    device = _device(device)
    models = make_ensemble(4, hidden=1, inputs=1, outputs=2, device=device)
    zeros = torch.zeros(1, 1, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    loop, stack = (
        timing.measure(step, budget_s=0.3) for step in _steps(models, Examples(*zeros)).values()
    )
    return Overheads(loop.median_s / len(models), stack.median_s, loop.stable and stack.stable)


def _steps(models: list[nn.Module], batch: Examples) -> dict[str, Callable[[], None]]:
    """Return a step of all ``models`` on ``batch`` in a loop, and one of their stack.

    The rate is small, so that however many steps are timed the numbers stay ordinary.
    """
    rates = torch.full((len(models),), _TIMED_RATE, device=batch.inputs.device)
    stacked_weights = stack_weights(models)
    return {
        "loop": lambda: loop_step(models, batch, rates),
        "stacked": lambda: stacked_step(models[0], stacked_weights, batch, rates),
    }


def _device(device: str | torch.device | None) -> torch.device:
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _batches(examples: Examples, batch_size: int | None, steps: int) -> Iterator[Examples]:
    """Return the batches of so many ``steps``."""
    return itertools.islice(problems.batches_of(examples, batch_size), whole_number("steps", steps))


def _prepare_training(
    models: Sequence[nn.Module], data: Any, rate: float | Sequence[float]
) -> tuple[list[nn.Module], Examples, Tensor]:
    team = [problems.copy_for_training(model) for model in models]
    if not team:
        raise ValueError("models is empty; give at least one, such as make_ensemble(4, hidden=16)")
    rates = [rate] * len(team) if isinstance(rate, int | float) else list(rate)
    if len(rates) != len(team):
        raise ValueError(
            f"{len(rates)} rates for {len(team)} models; give one for all, or one each"
        )
    weight = problems.trainable_parameters(team[0])[0]
    values = [number("rate", value, above=0) for value in rates]
    return team, problems.examples_of(data, weight.device), weight.detach().new_tensor(values)
