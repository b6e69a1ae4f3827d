"""A ladder: several programs for one result, from the one as written to the best found, timed only
where all are right.

Each study has its own ladder, with what says on which problem it was climbed; the rungs are the
same in all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from helpers import timing
from helpers.results import Record, derived

PRECISION = 0.1

LadderType = TypeVar("LadderType", bound=Record)


class RungTime(Record):
    """One rung: its time, and its speedup over the first rung from runs taken in turns, with the
    interval's ends.

    Lesson 18.
    """

    rung: str
    median_s: float
    speedup: float
    low_speedup: float
    high_speedup: float


def refuse_wrong(errors: Mapping[str, float], *, allowed: float, what: str, right: str) -> None:
    """Raise RuntimeError when a rung's error is not within ``allowed``: what is not equal is not
    timed.

    ``what`` is what the rungs compute ("the logits"), ``right`` whose they should be ("the net's").
    NaN is wrong.
    """
    wrong = [
        f"{name} (off by {error:.3g})" for name, error in errors.items() if not error <= allowed
    ]
    if wrong:
        raise RuntimeError(
            f"{what} of {', '.join(wrong)} are not {right} (allowed: {allowed:.3g}); nothing was "
            "timed. Change the program back, or report it"
        )


def climb(
    ladder: type[LadderType],
    rungs: Mapping[str, Callable[[], object]],
    *,
    budget_s: float,
    device: str | torch.device | None = None,
    clock: Callable[[], float] = time.perf_counter,
    **fields: Any,
) -> LadderType:
    """Return a ``ladder`` of the rungs' times, taken in turns by :func:`helpers.timing.compare`;
    the first is the base.

    Its fields ``rungs`` and ``comparison`` are filled here, those that a comparison has are the
    comparison's, and the others are ``fields``.
    """
    comparison = timing.compare(
        rungs, device=device, budget_s=budget_s, precision=PRECISION, clock=clock
    )
    rows = tuple(
        RungTime(
            row.name, row.median_s, 1 / row.time_ratio, 1 / row.high_ratio, _inverse(row.low_ratio)
        )
        for row in comparison.candidates
    )
    return derived(ladder, comparison, rungs=rows, comparison=comparison, **fields)


def _inverse(ratio: float) -> float:
    return 1 / ratio if ratio else float("inf")
