"""Parallelism over models: an ensemble trained in a loop, stacked into one (vmap), and by several
processes.

The members never need one another: nothing is synchronised until their answers are averaged. Lesson
04.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from helpers import console, timing
from helpers.checks import members, number, random_seed, whole_number
from helpers.models import BasicFCModel
from helpers.results import Record, derived
from helpers.studies.data_parallel._execution import RankPool
from helpers.studies.sgd_parallelism import _problems as problems
from helpers.studies.sgd_parallelism._problems import Examples, select_examples
from helpers.studies.sgd_parallelism._stacking import rows, stack_weights, unstack_weights


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
    layers: int = 2,
    seed: int = 0,
    device: str | torch.device | None = None,
) -> list[nn.Module]:
    """Return ``nets`` networks (:class:`.models.BasicFCModel`) that differ in their first weights
    alone.

    They go from ``inputs`` values to ``outputs`` logits in ``layers`` linear layers, ``hidden``
    wide between them; ``seed`` draws the weights. ``device`` is by default CUDA if there is one.
    The caller's random numbers stay as they are. Lesson 04.
    """
    nets, seed = whole_number("nets", nets, at_least=1), random_seed(seed)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        models = [BasicFCModel(inputs, hidden, outputs, layers) for _ in range(nets)]
    return [model.to(device) for model in models]


def train_in_loop(
    models: Sequence[nn.Module],
    data: Any,
    *,
    rate: float | Sequence[float],
    steps: int,
    batch_size: int | None = 64,
    seed: int = 0,
) -> list[nn.Module]:
    """Return trained copies of ``models``: in every step each takes its SGD update, one network
    after another.

    All take ``steps`` on the same batches; ``data``, ``batch_size`` and ``seed`` are those of
    :func:`train_stale`. ``rate`` is one for all or one a network, as in a search for
    hyper-parameters. Raises TypeError or ValueError for what is not accepted. Lesson 04.
    """
    team, examples, rates = _prepare_training(models, data, rate)
    batches = problems.batch_indices(len(examples.inputs), batch_size, seed=seed)
    for _ in range(whole_number("steps", steps, at_least=1)):
        loop_step(team, select_examples(examples, next(batches)), rates)
    return team


def train_stacked(
    models: Sequence[nn.Module],
    data: Any,
    *,
    rate: float | Sequence[float],
    steps: int,
    batch_size: int | None = 64,
    seed: int = 0,
) -> list[nn.Module]:
    """Return the networks of :func:`train_in_loop`, to rounding, computed by one operator for all
    of them at a time.

    ``models``, ``data``, ``rate``, ``steps``, ``batch_size`` and ``seed`` are those of
    :func:`train_in_loop`. The weights are stacked along a new first dimension, and ``torch.vmap``
    turns each matrix product of a network into one batched product. The networks must be of one
    structure and hold no buffers, whose change cannot be batched.

    Raises TypeError or ValueError for what is not accepted. Lesson 04.
    """
    team, examples, rates = _prepare_training(models, data, rate)
    stacked_weights = stack_weights(team)
    batches = problems.batch_indices(len(examples.inputs), batch_size, seed=seed)
    for _ in range(whole_number("steps", steps, at_least=1)):
        stacked_step(team[0], stacked_weights, select_examples(examples, next(batches)), rates)
    unstack_weights(stacked_weights, team)
    return team


def train_in_processes(
    pool: RankPool,
    models: Sequence[nn.Module],
    data: Any,
    *,
    rate: float | Sequence[float],
    steps: int,
    batch_size: int | None = 64,
    seed: int = 0,
) -> tuple[list[nn.Module], float]:
    """Return the networks of :func:`train_in_loop`, each process training a share, and the slowest
    one's seconds a step.

    ``models``, ``data``, ``rate``, ``steps``, ``batch_size`` and ``seed`` are those of
    :func:`train_in_loop`. ``pool`` is a :class:`helpers.ranks.Ranks`; rank r of W trains models r,
    r + W, ... in a loop. Sending models and data there and back is outside the time; after they
    have come the ranks wait for one another once. A rank computes on its GPU where the pool has one
    for each (nccl), else on the CPU. The results are on the models' own device.

    Raises what :func:`train_in_loop` and the pool raise.
    """
    team, examples, rates = _prepare_training(models, data, rate)
    device = problems.device_of(team[0])
    settings = {"steps": steps, "batch_size": batch_size, "seed": seed}
    answers = pool.run(
        _train_share,
        [model.cpu() for model in team],
        Examples(*(part.cpu() for part in examples)),
        rates.tolist(),
        settings,
    )
    trained_models: list[nn.Module] = list(team)
    for rank, (weights, _) in enumerate(answers):
        for index, state in zip(range(rank, len(team), len(answers)), weights, strict=True):
            trained_models[index].load_state_dict(state)
    return [model.to(device) for model in trained_models], max(step_s for _, step_s in answers)


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
    trained_models = (
        train_in_loop(share, examples, rate=rates[rank::world_size], **settings) if share else []
    )
    states = [model.cpu().state_dict() for model in trained_models]  # which waits for the device
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
    models = members("models", models, "models, each a torch.nn.Module", kind=nn.Module)
    others = members("others", others, "models, each a torch.nn.Module", kind=nn.Module)
    weights, other_weights = (
        [list(model.parameters()) for model in model_list] for model_list in (models, others)
    )
    if [[a.shape for a in parameters] for parameters in weights] != [
        [b.shape for b in parameters] for parameters in other_weights
    ]:
        raise ValueError(
            "the two lists do not correspond; give as many models in each, of the same weights"
        )
    pairs = [
        pair
        for parameters, other_parameters in zip(weights, other_weights, strict=True)
        for pair in zip(parameters, other_parameters, strict=True)
    ]
    if not pairs:
        raise ValueError("these models have no weights to compare; give at least one that has")
    scale = max(float(a.detach().abs().max()) for a, _ in pairs)
    return (
        max(float((a.detach() - b.detach().to(a)).abs().max()) for a, b in pairs) / scale
        if scale
        else 0.0
    )


def sweep_crossover(
    data: Any,
    *,
    nets: int = 64,
    sizes: Sequence[tuple[int, int]] = ((16, 32), (64, 64), (256, 256)),
    layers: int = 2,
    pool: RankPool | None = None,
    budget_s: float = 1.0,
    device: str | torch.device | None = None,
) -> Crossover:
    """Return the time of a training step of ``nets`` networks, in a loop and stacked, for ``sizes``
    (hidden, batch).

    The networks have ``layers`` linear layers and learn ``data`` (as in :func:`train_stale`) on
    ``device``, by default CUDA if there is one. The two are run in turns by
    :func:`helpers.timing.compare`, ``budget_s`` for each size. With ``pool`` (a
    :class:`helpers.ranks.Ranks`) the time of its processes stands beside, whose thread setting is
    the pool's own. ``modelled_ratio`` is left to who has a model. Nothing here is true of every
    machine: draw it.

    Raises TypeError or ValueError for what is not accepted. Lesson 04.
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    examples = problems.examples_of(data, device)
    inputs = examples.inputs[0].numel()
    outputs = (
        examples.targets.shape[1]
        if examples.targets.is_floating_point()
        else int(examples.targets.max()) + 1
    )
    points = []
    for hidden, batch_size in console.track(list(sizes), "sizes", unit="size"):
        models = make_ensemble(
            nets, hidden=hidden, inputs=inputs, outputs=outputs, layers=layers, device=device
        )
        batch = select_examples(
            examples, next(problems.batch_indices(len(examples.inputs), batch_size, seed=0))
        )
        points.append(_point(models, batch, hidden=hidden, pool=pool, budget_s=budget_s))
    return Crossover(str(device), torch.get_num_threads(), tuple(points))


def _point(
    models: list[nn.Module], batch: Examples, *, hidden: int, pool: RankPool | None, budget_s: float
) -> CrossoverPoint:
    # The rate is small, so that however many steps are timed the numbers stay ordinary.
    rates = torch.full((len(models),), 1e-6, device=batch.inputs.device)
    stacked_weights = stack_weights(models)
    comparison = timing.compare(
        {
            "loop": lambda: loop_step(models, batch, rates),
            "stacked": lambda: stacked_step(models[0], stacked_weights, batch, rates),
        },
        budget_s=budget_s,
    )
    loop, row = comparison.candidate("loop"), comparison.candidate("stacked")
    processes_s = None
    if pool is not None:
        steps = max(3, round(budget_s / loop.median_s))
        _, processes_s = train_in_processes(
            pool, models, batch, rate=1e-6, steps=steps, batch_size=None
        )
    return derived(
        CrossoverPoint,
        row,
        nets=len(models),
        hidden=hidden,
        batch_size=len(batch.inputs),
        loop_s=loop.median_s,
        stacked_s=row.median_s,
        stacked_ratio=row.time_ratio,
        stable=comparison.stable,
        modelled_ratio=None,
        processes_s=processes_s,
        processes_ratio=None if processes_s is None else processes_s / loop.median_s,
    )


def measure_overheads(
    *, layers: int = 2, nets: int = 4, budget_s: float = 0.3, device: Any = None
) -> Overheads:
    """Return the time of a step that computes next to nothing: networks one wide on one example.

    There are ``nets`` networks of ``layers`` linear layers on ``device`` (by default CUDA if there
    is one), timed for ``budget_s`` in each way. What is left is Python, autograd and the launches:
    of one network in a loop, and of one stack whatever its size. Raises ValueError for a number
    that is not accepted. Lesson 04.
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    models = make_ensemble(nets, hidden=1, inputs=1, outputs=2, layers=layers, device=device)
    batch = Examples(
        torch.zeros(1, 1, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    )
    rates, stacked_weights = torch.full((nets,), 1e-6, device=device), stack_weights(models)
    loop = timing.measure(lambda: loop_step(models, batch, rates), budget_s=budget_s)
    stack = timing.measure(
        lambda: stacked_step(models[0], stacked_weights, batch, rates), budget_s=budget_s
    )
    return Overheads(loop.median_s / nets, stack.median_s, loop.stable and stack.stable)


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
