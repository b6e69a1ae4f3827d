"""One call trains the replicas in any of the ways, and gives the same losses and weights in all of
them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from helpers.checks import choice, whole_number
from helpers.studies.replicas import _own_step as own_step, _programs as programs
from helpers.studies.replicas._problem import FitProblem

_MOST_STEPS = 10**6

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


class ReplicaRun(NamedTuple):
    """Trained replicas: their losses before each update, and their weights.

    ``losses`` and ``validation_losses`` are (steps, replicas): chi2 over the number of data that a
    replica trains on, with the cost of violated positivity, and chi2 over the number of the others.
    ``weights`` (replicas, ...) are the last. Lesson 19.
    """

    losses: Tensor
    validation_losses: Tensor
    weights: dict[str, Tensor]


def train(
    problem: FitProblem,
    *,
    replicas: int,
    steps: int,
    way: str = "fused_optimizer",
    dtype: torch.dtype = torch.float32,
    device: str | torch.device | None = None,
) -> ReplicaRun:
    """Return ``replicas`` fits of ``problem`` in ``dtype``, trained for ``steps`` steps of Adam in
    a ``way`` of :data:`WAYS`.

    A replica's number decides its first weights, its data and which three quarters of them it
    trains on, in every way alike and whoever is trained beside it. Both losses of a step are those
    of the weights before its update.

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
    steps = whole_number("steps", steps, at_most=_MOST_STEPS)
    if device is None:
        device = "cuda" if torch.cuda.is_available() and way != "own_step" else "cpu"
    prepared = programs.prepare(problem, replicas=replicas, dtype=dtype, device=device)
    program = PROGRAMS[way](prepared)
    for _ in range(steps):
        program.step()
    return ReplicaRun(*program.result())
