"""One call trains the replicas in any of the ways, and gives the same losses and weights in all of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from helpers.checks import choice, members, one_of, whole_number
from helpers.studies.replicas import _own_step as own_step, _programs as programs
from helpers.studies.replicas._problem import FitProblem
from helpers.studies.sgd_parallelism import _stacking as stacking

_MOST_REPLICAS, _MOST_STEPS = 10**5, 10**6

PROGRAMS: dict[str, Callable[[programs.Prepared], Any]] = {
    "sequential": programs.Sequential,
    "separate": partial(programs.Separate, kind="boolean_mask"),
    "stacked": partial(programs.Stacked, kind="boolean_mask"),
    "vmap": programs.Mapped,
    "padded_einsum": partial(programs.Stacked, kind="padded_einsum"),
    "gather": partial(programs.Stacked, kind="gather"),
    "pair_product": partial(programs.Stacked, kind="pair_product"),
    "shared_validation": partial(programs.Stacked, kind="shared"),
    "fused_optimizer": partial(programs.Stacked, kind="shared", fused=True),
    "separate_last": partial(programs.Separate, kind="shared", fused=True),
    "compiled": partial(programs.Stacked, kind="shared", fused=True, compiled=True),
    "own_step": own_step.OwnStep,
}
WAYS = tuple(PROGRAMS)


@dataclass(frozen=True)
class ReplicaRun:
    """Trained replicas: their losses before each update, and their weights.

    ``losses`` and ``validation_losses`` are (steps, replicas): chi2 over the number of data that a
    replica trains on, with the cost of violated positivity, and chi2 over the number of the others;
    NaN behind the step in which a replica stopped. ``weights`` (replicas, ...) are the last, or
    with ``patience`` those of the lowest validation loss. ``steps_taken`` (replicas,) are the
    updates of each. Lesson 19.
    """

    way: str
    seeds: tuple[int, ...]
    losses: Tensor = field(repr=False)
    validation_losses: Tensor = field(repr=False)
    weights: dict[str, Tensor] = field(repr=False)
    steps_taken: Tensor = field(repr=False)


def train(
    problem: FitProblem,
    *,
    replicas: int,
    steps: int,
    way: str = "fused_optimizer",
    dtype: torch.dtype = torch.float32,
    seeds: Sequence[int] | None = None,
    rate: float | Sequence[float] = 2e-3,
    optimizer: str | Sequence[str] = "adam",
    masks: Tensor | None = None,
    clip_norm: float | Sequence[float] | None = None,
    patience: int | Sequence[int] | None = None,
    device: str | torch.device | None = None,
) -> ReplicaRun:
    """Return ``replicas`` fits of ``problem`` in ``dtype``, trained for ``steps`` steps in a
    ``way`` of :data:`WAYS`.

    ``seeds``, one a replica (by default 0, 1, ...), decide its first weights, its data and which
    three quarters of them it trains on, in every way alike and whoever is trained beside it.
    ``masks`` (replicas, n), True for training, replace the drawn ones. ``rate``, ``optimizer``
    ("adam", "sgd"), ``clip_norm`` and ``patience`` are given once for all or once a replica; by
    default nothing is clipped and nothing stops. A replica stops once ``patience`` validation
    losses in a row were no new lowest. Both losses of a step are those of the weights before its
    update.

    Each way is a rung of the study's ladder, with all before it that do not contradict it:

    - "sequential": a net, an optimizer, a boolean mask and a validation from x on, one replica
      after another;
    - "separate": all in one program, but each with a network of its own, replicas last in what
      follows;
    - "stacked": one net of batched products, replicas last in what follows; "vmap": the same made
      by ``torch.vmap``;
    - "padded_einsum": tables padded to all flavours;
    - "gather": the needed channels gathered, one product a table;
    - "pair_product": a product for each pair of flavours;
    - "shared_validation": both losses from one pass; "fused_optimizer": the update in one kernel;
    - "separate_last": "fused_optimizer" with separate networks again, to see what the stack is
      worth last;
    - "compiled": by ``torch.compile``, whose first step takes from tens of seconds to minutes;
    - "own_step": forward, losses, backward and update in C++ of our own, one thread of the CPU.

    ``device`` is by default CUDA if there is one, and the CPU for "own_step". Raises TypeError or
    ValueError for what is not accepted, MissingToolError for "own_step" without a C++ compiler.
    Lesson 19.
    """
    choice("way", way, WAYS)
    steps = whole_number("steps", steps, at_least=1, at_most=_MOST_STEPS)
    if device is None:
        device = "cuda" if torch.cuda.is_available() and way != "own_step" else "cpu"
    prepared, chosen_seeds = prepare_replicas(
        problem,
        replicas=replicas,
        dtype=dtype,
        seeds=seeds,
        rate=rate,
        optimizer=optimizer,
        masks=masks,
        clip_norm=clip_norm,
        patience=patience,
        device=device,
    )
    program = PROGRAMS[way](prepared)
    program.run(steps)
    return ReplicaRun(way=way, seeds=chosen_seeds, **program.result(steps))


def prepare_replicas(
    problem: FitProblem,
    *,
    replicas: int,
    dtype: torch.dtype = torch.float32,
    seeds: Sequence[int] | None = None,
    rate: Any = 2e-3,
    optimizer: Any = "adam",
    masks: Tensor | None = None,
    clip_norm: Any = None,
    patience: Any = None,
    device: str | torch.device = "cpu",
) -> tuple[programs.Prepared, tuple[int, ...]]:
    """Return the starts of the replicas, from which every program begins, and their seeds."""
    one_of("problem", problem, FitProblem, "what make_problem returns")
    replicas = whole_number("replicas", replicas, at_least=1, at_most=_MOST_REPLICAS)
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype={dtype} is not accepted; give torch.float32 or torch.float64")
    seed_values = range(replicas) if seeds is None else members("seeds", seeds, "whole numbers")
    chosen_seeds = tuple(
        whole_number(f"seeds[{index}]", seed, at_least=0) for index, seed in enumerate(seed_values)
    )
    if len(chosen_seeds) != replicas:
        raise ValueError(
            f"seeds has {len(chosen_seeds)} entries for {replicas} replicas; give one each"
        )
    if masks is not None:
        masks = stacking.check_masks(masks, (replicas, len(problem.data)))
    settings = stacking.settings_of(
        replicas, rate=rate, optimizer=optimizer, clip_norm=clip_norm, patience=patience
    )
    return programs.prepare(
        problem, chosen_seeds, masks, settings, dtype=dtype, device=torch.device(device)
    ), chosen_seeds
