"""What a lesson claims about times: a sentence with its bound, then a line with what this machine says of it."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence

from helpers.results import Result

_MARGIN = 1.5  # a measurement that is not stable may be this far off


class ClaimContradicted(AssertionError):
    """A stable measurement says the opposite of what a lesson claims. Lesson 00."""


def claim(
    sentence: str,
    ratio: float | Sequence[float] | None,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    evidence: Result | Sequence[Result] = (),
) -> None:
    """Print ``sentence`` with the bound of ``ratio``, then whether it holds here; raise where it stably does not.

    ``claim("a step is slower than its roofline", step_s / roofline_s, at_least=2, evidence=timing)`` prints ::

        a step is slower than its roofline (at least 2 times)
        here: 43 times (measured), holds

    ``ratio`` is one time over another, or several that must all lie within the bounds. ``evidence`` is what the times
    were taken from: results of :func:`measure` or :func:`compare`, or any with a field ``stable``. Where one of them is
    not stable, the claim holds if the ratio keeps a factor of 1.5 from each bound and no comparison had too few rounds
    for an interval, and is else ``here: not decided``;
    where nothing could be measured, ``ratio`` is None, without evidence, and it is ``here: not measured``. The strict
    test of a notebook compares the sentence and the bound, and not what follows ``here:``.

    Raises ClaimContradicted with the evidence; TypeError or ValueError for a ratio that is no number, bounds that are
    missing or in the wrong order, or evidence that is no measurement. Lesson 00.
    """
    measurements = list(evidence) if isinstance(evidence, Sequence) else [evidence]
    if not all(isinstance(item, Result) and hasattr(item, "stable") for item in measurements):
        raise TypeError(f"evidence must be what measure or compare returned, or a list of them; got {evidence!r}")
    wanted = bound_text(at_least, at_most)
    if ratio is None:
        if measurements:
            raise ValueError("ratio=None says that nothing was measured, and evidence was given; give the ratio")
        print(f"{sentence} ({wanted})\nhere: not measured")
        return
    ratios = _ratios(ratio)
    if not measurements:
        raise TypeError("a measured ratio needs evidence: what measure or compare returned, or a list of them")
    low, high = at_least or 0, math.inf if at_most is None else at_most
    if all(item.stable for item in measurements):
        holds = low <= min(ratios) and max(ratios) <= high
    elif any(row.high_ratio == math.inf for item in measurements for row in getattr(item, "candidates", ())):
        holds = None  # too few rounds for any interval: such a ratio may be off by more
    else:
        holds = (low * _MARGIN <= min(ratios) and max(ratios) <= high / _MARGIN) or None
    settle(sentence, wanted, _shown(ratios), holds, "\n".join(str(item) for item in measurements))


def settle(
    sentence: str, wanted: str, shown: str, holds: bool | None, measured: str, *, simulated: bool = False
) -> None:
    """Print ``sentence`` and what this machine says of it, or raise ClaimContradicted with what was ``measured``.

    ``holds`` is None where the measurement does not decide. Times of a link or a device that sleeps are ``simulated``.
    """
    if holds is False:
        raise ClaimContradicted(f"contradicted: {sentence} ({wanted})\nmeasured: {measured}")
    kind = "simulated" if simulated else "measured"
    print(f"{sentence} ({wanted})\nhere: {f'{shown} times ({kind}), holds' if holds else 'not decided'}")


def bound_text(at_least: float | None, at_most: float | None) -> str:
    """Return the bounds of a ratio in words; raises ValueError where they are missing or in the wrong order."""
    bounds = [bound for bound in (at_least, at_most) if bound is not None]
    if not bounds or any(not bound > 0 for bound in bounds) or bounds != sorted(bounds):
        raise ValueError(f"at_least={at_least}, at_most={at_most}: give one or both, above 0, at_least the smaller")
    if len(bounds) == 2:
        return f"{number_text(bounds[0])} to {number_text(bounds[1])} times"
    return f"at {'most' if at_least is None else 'least'} {number_text(bounds[0])} times"


def _ratios(ratio: object) -> list[float]:
    ratios = list(ratio) if isinstance(ratio, Sequence) and not isinstance(ratio, str) else [ratio]
    if not ratios or not all(isinstance(one, numbers.Real) and not isinstance(one, bool) for one in ratios):
        raise TypeError(f"ratio must be a number (one time over another), several of them, or None; got {ratio!r}")
    if any(math.isnan(one) for one in ratios):
        raise ValueError(f"ratio is not a number: {ratio!r}; a time of it was not measured")
    return [float(one) for one in ratios]


def _shown(ratios: Sequence[float]) -> str:
    low, high = number_text(min(ratios)), number_text(max(ratios))
    return low if low == high else f"{low} to {high}"


def number_text(value: float) -> str:
    """Return how many times, to three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
