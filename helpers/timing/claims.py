"""What a lesson claims about a time: one sentence, printed unless a stable measurement contradicts it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from helpers.results import Result


class ClaimContradicted(AssertionError):
    """A stable measurement says the opposite of what a lesson claims. Lesson 00."""


def claim(sentence: str, *, holds: bool, evidence: Result | Sequence[Result]) -> None:
    """Print ``sentence``, unless it does not hold and every measurement in ``evidence`` is stable.

    The printed line is the same on every machine that does not contradict it, also on one too noisy to tell.
    ``claim("the first call is the slowest", holds=t.cold_s > t.median_s, evidence=t)``

    ``evidence`` is what :func:`measure` or :func:`compare` returned (any result with a field ``stable``), or several.

    Raises ClaimContradicted with the evidence; TypeError where ``holds`` is not a bool or the evidence no measurement.
    Lesson 00.
    """
    measurements = [evidence] if isinstance(evidence, Result) else list(evidence)
    if not measurements or not all(isinstance(item, Result) and hasattr(item, "stable") for item in measurements):
        raise TypeError(f"evidence must be what measure or compare returned, or a list of them; got {evidence!r}")
    if not isinstance(holds, bool | np.bool_):
        raise TypeError(f"holds must be True or False, the outcome of a comparison; got {holds!r}")
    stable = all(item.stable for item in measurements)
    settle(sentence, stable and not holds, "\n".join(str(item) for item in measurements))


def settle(sentence: str, contradicted: bool, measured: str) -> None:
    """Print ``sentence``, or raise ClaimContradicted with what was ``measured``."""
    if contradicted:
        raise ClaimContradicted(f"contradicted: {sentence}\nmeasured: {measured}")
    print(sentence)
