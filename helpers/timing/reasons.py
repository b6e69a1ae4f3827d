"""Why a measurement is not stable, in words for a student."""

from __future__ import annotations

import math

from helpers.results import cell

ADVICE = "stop other programs or raise budget_s"


def too_few(what: str, done: int, needed: int, each_s: float) -> str:
    """Say that ``done`` of the ``needed`` runs or rounds fitted, and which budget holds them all."""
    enough_s = 1.2 * needed * each_s
    rounded_s = f"{math.ceil(enough_s):,}" if enough_s > 10 else f"{enough_s:.2g}"
    return f"{done} {what} fitted in the budget, {needed} are needed: give a budget_s of {rounded_s} or more"


def imprecise(what: str, found_share: float, wanted_share: float) -> str:
    """Say that ``what`` is known to a share of itself that is larger than the one wanted."""
    found = cell("share", found_share) if found_share < 1 else f"a factor of {1 + found_share:.3g}"
    return f"{what} is known to {found} only, not to {cell('share', wanted_share)}: {ADVICE}"
