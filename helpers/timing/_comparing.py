"""Several functions run in turns and told apart at a stated error rate; what a lesson claims about
such times.
"""

from __future__ import annotations

import math
import numbers
import random
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from helpers.checks import boolean, number, real, whole_number
from helpers.results import Record, Result, cell, row_of
from helpers.timing import _runs as runs

FALSE_POSITIVE_RATE = 0.01  # of comparisons in which every candidate is equal to the baseline

_FIRST_LOOK = 16
_FEWEST_ROUNDS = 2
_SAME_CALLS_WITHIN = 2


class Candidate(Record):
    """One row of a comparison: ``time_ratio`` is this candidate's time over the baseline's, above 1
    when slower.
    """

    name: str
    median_s: float
    minimum_s: float
    time_ratio: float
    low_ratio: float
    high_ratio: float
    calls_per_run: int
    verdict: str


class Comparison(Record):
    """Candidates against a baseline; ``stable`` when every ratio is known as well as asked, else
    ``reason`` has why.

    ``waiting_share`` is the part of the time in which a thread of this process had no processor;
    None if unknown.
    """

    baseline: str
    rounds: int
    confidence_share: float
    threads: int
    device: str
    waiting_share: float | None
    stable: bool
    reason: str
    candidates: tuple[Candidate, ...]

    def candidate(self, name: str) -> Candidate:
        """Return the row of the candidate ``name``; ValueError when there is none of that name."""
        return row_of(self.candidates, "candidate", name=name)

    def claim(
        self,
        sentence: str,
        name: str,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        simulated: bool = False,
    ) -> None:
        """Print ``sentence`` with the bound of ``name``'s time ratio, then whether it holds here.

        ``comparison.claim("a @ b takes longer than a * b", "a @ b", at_least=4)`` prints ::

            a @ b takes longer than a * b (at least 4 times)
            Here it is 43 times (measured), so this holds.

        It holds where the whole interval of the ratio lies within the bounds, and is contradicted
        where the whole interval lies outside; between the two, and where a thread waited for a
        processor over a tenth of the time (no interval shows a machine that is busy all along), the
        line is ``Here this was not decided.`` With ``simulated``, for links and devices that sleep,
        the line says "(simulated)".

        Raises ClaimContradicted with what was measured; ValueError for an unknown name, the
        baseline's name, or bounds that are missing, not positive or in the wrong order.

        >>> sums = {"short": lambda: sum(range(10)), "long": lambda: sum(range(10_000))}
        >>> comparison = compare(sums, budget_s=0.05)
        >>> comparison.claim("the long sum takes longer", "long", at_least=4)  # doctest: +ELLIPSIS
        the long sum takes longer (at least 4 times)
        Here ...

        Lesson 00.
        """
        boolean("simulated", simulated)
        row = self.candidate(name)
        if name == self.baseline:
            raise ValueError(
                f"{name!r} is the baseline, its ratio is 1; claim something about another candidate"
            )
        least, most, bounds = _bounds(at_least, at_most)
        holds = least <= row.low_ratio and row.high_ratio <= most
        is_outside = row.low_ratio > most or row.high_ratio < least
        is_decided = (
            (holds or is_outside)
            and row.high_ratio < math.inf
            and not runs.why_disturbed(self.waiting_share)
        )
        evidence_text = (
            f"{name!r} takes {row.time_ratio:.3g} times as long as {self.baseline!r} "
            f"({row.low_ratio:.3g} to {row.high_ratio:.3g} at "
            f"{cell('share', self.confidence_share)} confidence), the claim needs {bounds}"
        )
        ratio_text = _number_text(row.time_ratio)
        decision = holds if is_decided else None
        _settle(sentence, bounds, ratio_text, decision, evidence_text, simulated=simulated)


def compare(
    candidates: Mapping[str, runs.Function],
    *,
    baseline: str | None = None,
    budget_s: float = 2.0,
    device: str | torch.device | None = None,
    own_caches: bool = False,
    precision: float = 0.01,
    seed: int | None = None,
    clock: runs.Clock = time.perf_counter,
) -> Comparison:
    """Return the time of each of ``candidates`` as a ratio to that of ``baseline``, with an
    interval.

    The baseline is the first one unless named. In each round every candidate is run once
    (:func:`measure` says what a run is), in a new random order. A round gives one ratio a
    candidate, in which whatever slows the whole round cancels. ``time_ratio`` is the median of the
    ratios, ``low_ratio`` to ``high_ratio`` its distribution-free interval by order statistics (the
    sign test's). The ``verdict`` is ``"faster"`` or ``"slower"`` when the interval leaves out 1,
    else ``"too close to tell"``. A run starts with the caches as another candidate left them; with
    ``own_caches`` as the candidate itself left them, by a call before each run that is not timed:
    what a loop over this candidate alone sees, and what the limits of a machine describe, which are
    measured in loops.

    Error rate: between equal candidates the random order makes each round a fair coin, however
    heavy-tailed, drifting or self-correlated the noise is. In at most 1 % of comparisons
    (``FALSE_POSITIVE_RATE``) is any candidate told from a baseline that it is equal to. Stopping
    early is paid for: look number j (after 16, 32, 64, ... rounds and at the end of the budget)
    spends 1 / (j (j + 1)) of the 1 %, shared by the candidates.

    It stops when every ratio is known to within ``precision`` of itself (half its interval), no
    thread waited for a processor over a tenth of the time and a tenth of ``budget_s`` is spent, or
    at the end of the budget; then ``reason`` says what is missing. The budget is for what follows
    the cold calls; the warm-up, a last round and two rounds in any case may overrun it. ``device``
    as in :func:`measure`; ``seed`` (of the order) and ``clock`` are for tests.

    Raises TypeError or ValueError for a bad argument, RuntimeError for CUDA where there is none or
    when the clock sees nothing of a candidate; an exception in a candidate passes unchanged.

    >>> sums = {"short": lambda: sum(range(10)), "long": lambda: sum(range(10_000))}
    >>> comparison = compare(sums, budget_s=0.1)
    >>> [candidate.name for candidate in comparison.candidates]
    ['short', 'long']

    Lesson 00.
    """
    boolean("own_caches", own_caches)
    baseline_name = _check_candidates(candidates, baseline)
    number("budget_s", budget_s, above=0)
    runs.check_clock(clock)
    if seed is not None:
        whole_number("seed", seed, at_least=0)
    if not (isinstance(precision, numbers.Real) and 0 < precision < 1):
        raise ValueError(
            f"precision={precision!r}: give the share to which each ratio must be known, such as "
            "0.05"
        )
    chosen_device = runs.chosen_device(device)
    for fn in candidates.values():
        runs.run(fn, 1, chosen_device, clock)
    chosen_device = chosen_device or runs.device_in_use()
    begin_s, read_waiting_share = clock(), runs.watch_waiting(clock)
    calls = _shared_calls(
        {name: runs.calibrate(fn, chosen_device, clock) for name, fn in candidates.items()}
    )
    shuffle, order = random.Random(seed).shuffle, list(candidates)
    calls_s: dict[str, list[float]] = {name: [] for name in candidates}
    look, next_look, rounds = 1, _FIRST_LOOK, 0
    while True:
        shuffle(order)
        for name in order:
            if own_caches:
                runs.run(candidates[name], 1, chosen_device, clock)
            timed_run = runs.run(candidates[name], calls[name], chosen_device, clock)
            calls_s[name].append(_seconds_a_call(name, timed_run, calls[name]))
        rounds += 1
        spent_s = clock() - begin_s
        is_over = spent_s >= runs.latest_s(budget_s) and rounds >= _FEWEST_ROUNDS
        if is_over or rounds == next_look:
            alpha = _alpha(look) / (len(candidates) - 1)
            rows = tuple(
                _row(name, calls_s, baseline_name, calls[name], alpha) for name in candidates
            )
            waiting_share = read_waiting_share()
            reason = runs.why_disturbed(waiting_share) or _why_unknown(
                rows, alpha, precision, rounds, spent_s / rounds
            )
            if is_over or (not reason and spent_s >= runs.earliest_s(budget_s)):
                break
            look, next_look = look + 1, 2 * next_look
    return Comparison(
        baseline=baseline_name,
        rounds=rounds,
        confidence_share=1 - FALSE_POSITIVE_RATE,
        threads=torch.get_num_threads(),
        device=str(chosen_device),
        waiting_share=waiting_share,
        stable=not reason,
        reason=reason,
        candidates=rows,
    )


def _seconds_a_call(name: str, timed_run: runs.Run, calls: int) -> float:
    if not timed_run.host_s > 0:
        raise RuntimeError(
            f"the clock saw nothing of {calls:,} calls of {name!r}, so there is no ratio; "
            "give every candidate more to do"
        )
    return timed_run.host_s / calls


def _shared_calls(calibrated: Mapping[str, tuple[int, runs.Run]]) -> dict[str, int]:
    """Give candidates of about the same time the same calls a run: equal ones must be timed
    alike.
    """
    call_s = {name: timed_run.host_s / calls for name, (calls, timed_run) in calibrated.items()}
    groups: list[list[str]] = []
    for name in sorted(call_s, key=call_s.__getitem__):
        if groups and call_s[name] <= _SAME_CALLS_WITHIN * call_s[groups[-1][-1]]:
            groups[-1].append(name)
        else:
            groups.append([name])
    return {
        name: max(calibrated[member][0] for member in group) for group in groups for name in group
    }


def _alpha(look: int) -> float:
    """Return the error rate of look number ``look`` (from 1); the looks together spend no more than
    the whole rate.
    """
    return FALSE_POSITIVE_RATE / (look * (look + 1))


def _row(
    name: str, calls_s: Mapping[str, list[float]], baseline: str, calls: int, alpha: float
) -> Candidate:
    ratios = np.array(calls_s[name]) / np.array(calls_s[baseline])
    low, high = (1.0, 1.0) if name == baseline else runs.median_interval(ratios, alpha)
    verdict = "faster" if high < 1 else "slower" if low > 1 else "too close to tell"
    return Candidate(
        name=name,
        median_s=float(np.median(calls_s[name])),
        minimum_s=min(calls_s[name]),
        time_ratio=float(np.median(ratios)),
        low_ratio=low,
        high_ratio=high,
        calls_per_run=calls,
        verdict="baseline" if name == baseline else verdict,
    )


def _why_unknown(
    rows: Sequence[Candidate], alpha: float, precision: float, rounds: int, round_s: float
) -> str:
    """Return the reason why the ratios are not known to ``precision``; "" when they are."""
    # an interval from 0 to infinity: fewer rounds than an interval takes
    if any(row.low_ratio == 0 for row in rows):
        return runs.too_few("rounds", rounds, math.ceil(1 - math.log2(alpha)), round_s)
    precisions = {row.name: (row.high_ratio - row.low_ratio) / 2 / row.time_ratio for row in rows}
    worst = max(precisions, key=precisions.__getitem__)
    return (
        runs.imprecise(f"the ratio of {worst!r}", precisions[worst], precision)
        if precisions[worst] > precision
        else ""
    )


def _check_candidates(candidates: object, baseline: str | None) -> str:
    """Return the baseline's name; raise when there are no two named functions or none of that
    name.
    """
    if not isinstance(candidates, Mapping):
        raise TypeError(
            "candidates must be a dictionary from names to functions, not "
            f"{type(candidates).__name__}"
        )
    if len(candidates) < 2:
        raise ValueError(
            f"compare needs two candidates or more, got {len(candidates)}; measure times one "
            "function"
        )
    for name, fn in candidates.items():
        if not isinstance(name, str):
            raise TypeError(f"a candidate's name must be text; got {name!r}")
        runs.check_function(f"candidate {name!r}", fn)
    if baseline is not None and baseline not in candidates:
        raise ValueError(
            f"baseline {baseline!r} is no candidate; there are {', '.join(map(repr, candidates))}"
        )
    return next(iter(candidates)) if baseline is None else baseline


# Claims.

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
    simulated: bool = False,
) -> None:
    """Print ``sentence`` with the bound of ``ratio``, then whether it holds here; raise where it
    stably does not.

    ``claim("a step is slower than its roofline", step_s / roofline_s, at_least=2,
    evidence=timing)`` prints ::

        a step is slower than its roofline (at least 2 times)
        Here it is 43 times (measured), so this holds.

    ``ratio`` is one time over another, or several that must all lie within the bounds ``at_least``
    and ``at_most``, one of which may be left out. ``evidence`` is what the times were taken from:
    results of :func:`measure` or :func:`compare`, or any with a field ``stable``. Where one of them
    is not stable, the claim holds if the ratio keeps a factor of 1.5 from each bound and no
    comparison had too few rounds for an interval, and is else ``Here this was not decided.``, and
    where nothing could be measured, ``ratio`` is None, without evidence, and it is
    ``Here this was not measured.`` The strict test of a notebook compares the sentence and the
    bound, and not the line below it. With ``simulated``, for links and devices that sleep, the line
    says "(simulated)".

    Raises ClaimContradicted with the evidence; TypeError or ValueError for a ratio that is no
    number, bounds that are missing or in the wrong order, or evidence that is no measurement.

    >>> short, long = (runs.measure(lambda n=n: sum(range(n)), budget_s=0.05) for n in (10, 10_000))
    >>> ratio = long.median_s / short.median_s
    >>> claim("the long sum takes longer", ratio, at_least=4, evidence=long)  # doctest: +ELLIPSIS
    the long sum takes longer (at least 4 times)
    Here it is ... times (measured), so this holds.

    Lesson 00.
    """
    boolean("simulated", simulated)
    measurements = list(evidence) if isinstance(evidence, Sequence) else [evidence]
    stable = [
        getattr(measurement, "stable", None) if isinstance(measurement, Result) else None
        for measurement in measurements
    ]
    if None in stable:
        raise TypeError(
            "evidence must be what measure or compare returned, or a list of them; got "
            f"{evidence!r}"
        )
    low, high, bounds = _bounds(at_least, at_most)
    if ratio is None:
        if measurements:
            raise ValueError(
                "ratio=None says that nothing was measured, and evidence was given; give the ratio"
            )
        print(f"{sentence} ({bounds})\nHere this was not measured.")
        return
    ratios = _ratios(ratio)
    if not measurements:
        raise TypeError(
            "a measured ratio needs evidence: what measure or compare returned, or a list of them"
        )
    holds: bool | None
    if all(stable):
        holds = low <= min(ratios) and max(ratios) <= high
    elif any(
        row.high_ratio == math.inf
        for measurement in measurements
        for row in getattr(measurement, "candidates", ())
    ):
        holds = None  # too few rounds for any interval: such a ratio may be off by more
    else:
        holds = (low * _MARGIN <= min(ratios) and max(ratios) <= high / _MARGIN) or None
    evidence_text = "\n".join(str(measurement) for measurement in measurements)
    _settle(sentence, bounds, _ratios_text(ratios), holds, evidence_text, simulated=simulated)


def _settle(
    sentence: str,
    bounds: str,
    ratio_text: str,
    holds: bool | None,
    evidence_text: str,
    *,
    simulated: bool,
) -> None:
    """Print ``sentence`` and what this machine says of it, or raise ClaimContradicted with
    ``evidence_text``.

    ``holds`` is None where the measurement does not decide. Times of a link or a device that sleeps
    are ``simulated``.
    """
    if holds is False:
        raise ClaimContradicted(f"contradicted: {sentence} ({bounds})\nmeasured: {evidence_text}")
    kind = "simulated" if simulated else "measured"
    verdict = (
        f"it is {ratio_text} times ({kind}), so this holds." if holds else "this was not decided."
    )
    print(f"{sentence} ({bounds})\nHere {verdict}")


def _bounds(at_least: float | None, at_most: float | None) -> tuple[float, float, str]:
    """Return the bounds of a ratio, and in words; raises ValueError where they are missing or in
    the wrong order.
    """
    bounds = [
        real(name, bound)
        for name, bound in (("at_least", at_least), ("at_most", at_most))
        if bound is not None
    ]
    if not bounds or any(not bound > 0 for bound in bounds) or bounds != sorted(bounds):
        raise ValueError(
            f"at_least={at_least}, at_most={at_most}: give one or both, above 0, at_least the "
            "smaller"
        )
    words = " to ".join(map(_number_text, bounds)) + " times"
    if len(bounds) == 1:
        words = f"at {'most' if at_least is None else 'least'} {words}"
    return at_least or 0, math.inf if at_most is None else at_most, words


def _ratios(ratio: object) -> list[float]:
    ratios = list(ratio) if isinstance(ratio, Sequence) and not isinstance(ratio, str) else [ratio]
    if not ratios or not all(
        isinstance(value, numbers.Real) and not isinstance(value, bool) for value in ratios
    ):
        raise TypeError(
            "ratio must be a number (one time over another), several of them, or None; got "
            f"{ratio!r}"
        )
    floats = [real("ratio", value) for value in ratios]
    if any(map(math.isnan, floats)):
        raise ValueError(f"ratio is not a number: {ratio!r}; a time of it was not measured")
    return floats


def _ratios_text(ratios: Sequence[float]) -> str:
    low, high = _number_text(min(ratios)), _number_text(max(ratios))
    return low if low == high else f"{low} to {high}"


def _number_text(value: float) -> str:
    """Return a number of times as text, to three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
