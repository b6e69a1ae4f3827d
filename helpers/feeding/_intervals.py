"""How often to save: the interval between checkpoints that loses the least time to saving and to failures.

Saving takes ``save_s`` (what it stalls the training), failures come at random with a mean time ``mtbf_s`` between them
(a Poisson process), and a restart takes ``restart_s``. All in seconds. J. W. Young, "A first order approximation to the
optimum checkpoint interval", Communications of the ACM 17 (9), 1974; J. T. Daly, "A higher order estimate of the
optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22, 2006.

Lesson 06.
"""

from __future__ import annotations

import math
import random

from helpers._checks import number

_BISECTIONS = 200
_MOST_PIECES = 10_000_000


def young_interval_s(save_s: float, mtbf_s: float) -> float:
    """Return sqrt(2 save_s mtbf_s), the seconds of training between two saves: Young (1974), for save_s << mtbf_s.

    Raises ValueError for a time that is not above 0. Lesson 06.
    """
    _check(save_s=save_s, mtbf_s=mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s)


def daly_interval_s(save_s: float, mtbf_s: float) -> float:
    """Return Daly's (2006) higher-order estimate of the seconds of training between two saves.

    With d = save_s and M = mtbf_s: sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d where d < 2 M, else M. Raises
    ValueError for a time that is not above 0. Lesson 06.
    """
    _check(save_s=save_s, mtbf_s=mtbf_s)
    part = save_s / (2 * mtbf_s)
    if part >= 1:
        return float(mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9) - save_s


def optimal_interval_s(save_s: float, mtbf_s: float) -> float:
    """Return the interval at which :func:`expected_run_s` is least: where its derivative is 0, found by bisection.

    The two estimates above approximate it; the restart does not enter. Raises ValueError for a time that is not above
    0. Lesson 06.
    """
    _check(save_s=save_s, mtbf_s=mtbf_s)
    low, high, saving = 0.0, 1.0, save_s / mtbf_s  # in units of mtbf_s
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        # d/dt of (e^(t + saving) - 1) / t has the sign of e^(t + saving) (t - 1) + 1: over e^(t + saving), so that it
        # does not overflow, and by expm1, so that short times are not lost beside 1.
        if middle + math.expm1(-middle - saving) < 0:
            low = middle
        else:
            high = middle
    return high * mtbf_s


def expected_run_s(work_s: float, interval_s: float, *, save_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Return the expected seconds of a training of ``work_s`` that saves after every ``interval_s`` of training.

    M e^(R / M) (e^((t + d) / M) - 1) work_s / t, with t = interval_s, d = save_s, M = mtbf_s, R = restart_s: Daly
    (2006). Failures come while training, saving and restarting; what was trained since the last save is lost. Infinite
    where it would not end within the largest float.

    Raises ValueError for a time that is not above 0 (a restart may be 0). Lesson 06.
    """
    _check(work_s=work_s, interval_s=interval_s, save_s=save_s, mtbf_s=mtbf_s)
    number("restart_s", restart_s, at_least=0)
    try:
        return mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + save_s) / mtbf_s) * work_s / interval_s
    except OverflowError:
        return math.inf


def simulate_run_s(
    work_s: float, interval_s: float, *, save_s: float, mtbf_s: float, restart_s: float = 0.0, seed: int = 0
) -> float:
    """Return the seconds of one simulated training whose failures are drawn with ``seed``: the formula's oracle.

    The training is cut into pieces of ``interval_s`` (the last may be shorter), each saved at its end. Raises
    ValueError for a time that is not above 0 (a restart may be 0), and for a training of more pieces, those that fail
    and come again among them, than anybody would wait for. Lesson 06.
    """
    _check(work_s=work_s, interval_s=interval_s, save_s=save_s, mtbf_s=mtbf_s)
    number("restart_s", restart_s, at_least=0)
    whole_s = restart_s + min(interval_s, work_s) + save_s
    if math.log(max(1.0, work_s / interval_s)) + whole_s / mtbf_s > math.log(_MOST_PIECES):
        raise ValueError(f"with pieces of {interval_s:g} s of {work_s:g} s, and {mtbf_s:g} s between failures, a "
                         f"simulation would run more than {_MOST_PIECES:,} pieces, for most of them fail or there are "
                         "as many; take another interval_s, or expected_run_s, which is a formula")  # fmt: skip
    draw = random.Random(seed)
    now_s, saved_s, fails_s = 0.0, 0.0, draw.expovariate(1 / mtbf_s)
    needs_restart = False
    while saved_s < work_s - 1e-9 * work_s:
        piece_s = min(interval_s, work_s - saved_s)
        end_s = now_s + (restart_s if needs_restart else 0.0) + piece_s + save_s
        if end_s <= fails_s:
            now_s, saved_s, needs_restart = end_s, saved_s + piece_s, False
        else:
            now_s, needs_restart = fails_s, True
            fails_s += draw.expovariate(1 / mtbf_s)
    return now_s


def _check(**times_s: float) -> None:
    for name, value in times_s.items():
        number(name, value, above=0)
