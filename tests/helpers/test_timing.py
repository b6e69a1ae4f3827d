"""What a timing means: exact on a fake clock, at its stated error rate in simulated noise, and true
of real work.
"""

from __future__ import annotations

import gc
import itertools
import math
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from scipy import signal, stats

from helpers import results, timing
from helpers.timing import _comparing as comparing, _runs as runs


class FakeMachine:
    """A clock that only work moves: ``work(seconds)`` is a function that takes the seconds,
    ``noise`` multiplies.
    """

    def __init__(self, noise: Iterator[float] | None = None) -> None:
        self.now_s = 0.0
        self.calls = 0
        self.noise = noise or itertools.repeat(1.0)

    def clock(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.calls += 1
        self.now_s += seconds * next(self.noise)

    def work(self, seconds: float) -> Callable[[], None]:
        return lambda: self.advance(seconds)

    def script(self, durations_s: list[float], then_s: float) -> Callable[[], None]:
        rest = itertools.chain(durations_s, itertools.repeat(then_s))
        return lambda: self.advance(next(rest))


# One function: the statistics, to the digit.


def test_cold_minimum_median_and_iqr_are_exact() -> None:
    machine = FakeMachine()
    # Powers of two add without rounding: the cold call, one warm-up run, then five runs that end
    # the budget.
    runs_s = [each / 64 for each in (2, 5, 3, 1, 4)]
    fn = machine.script([4.0, 4 / 64, *runs_s], then_s=100.0)
    measured = timing.measure(fn, budget_s=19 / 64, device="cpu", clock=machine.clock)
    assert measured == timing.Timing(
        cold_s=4.0,
        minimum_s=1 / 64,
        median_s=3 / 64,
        iqr_s=2 / 64,
        runs=5,
        calls_per_run=1,
        threads=torch.get_num_threads(),
        device="cpu",
        waiting_share=None,
        stable=False,
        reason="5 runs fitted in the budget, 8 are needed: give a budget_s of 0.45 or more",
    )
    lower, _, upper = statistics.quantiles(runs_s, n=4, method="inclusive")
    assert measured.iqr_s == upper - lower


def test_the_first_call_is_the_cold_one_and_in_no_statistic() -> None:
    machine = FakeMachine()
    measured = timing.measure(
        machine.script([100.0], then_s=0.01), budget_s=1.0, clock=machine.clock
    )
    assert measured.cold_s == 100.0
    assert measured.minimum_s == pytest.approx(0.01)
    assert measured.median_s == pytest.approx(0.01)
    assert measured.stable
    assert measured.reason == ""


def test_a_steady_function_stops_early_and_the_budget_is_kept() -> None:
    machine = FakeMachine()
    timing.measure(machine.work(0.001), budget_s=10.0, clock=machine.clock)
    assert machine.now_s < 1.5  # a tenth of the budget, and the last stretch between two looks
    noisy = FakeMachine(itertools.cycle([1.0, 3.0]))
    measured = timing.measure(noisy.work(0.001), budget_s=1.0, clock=noisy.clock)
    assert not measured.stable
    assert 1.0 <= noisy.now_s - measured.cold_s <= 1.0 + 0.003


def test_in_the_test_of_a_notebook_a_tenth_of_the_budget_is_spent_and_stable_means_the_same(
    monkeypatch,
) -> None:
    monkeypatch.setenv("HELPERS_EARLY_END", "1")
    noisy, steady = FakeMachine(itertools.cycle([1.0, 3.0])), FakeMachine()
    assert not timing.measure(noisy.work(0.001), budget_s=10.0, clock=noisy.clock).stable
    assert timing.measure(steady.work(0.001), budget_s=10.0, clock=steady.clock).stable
    unequal = FakeMachine(itertools.cycle([1.0, 3.0, 2.0]))
    both = {"a": unequal.work(0.001), "b": unequal.work(0.001)}
    assert not timing.compare(both, budget_s=10.0, seed=0, clock=unequal.clock).stable
    taken = FakeMachine()
    assert len([taken.advance(0.01) for _ in runs.rounds(10.0, taken.clock)]) == 100
    for machine in (noisy, steady, unequal, taken):
        assert 1.0 - 1e-9 <= machine.now_s <= 1.05


@pytest.mark.parametrize("seconds", [1e-7, 3e-6, 5e-5, 1e-4, 2e-2])
def test_calls_per_run_lift_a_run_above_the_clock(seconds: float) -> None:
    machine = FakeMachine()
    measured = timing.measure(machine.work(seconds), budget_s=0.5, clock=machine.clock)
    assert measured.calls_per_run == max(1, measured.calls_per_run)
    assert measured.calls_per_run * seconds >= 1e-4 * (1 - 1e-9)
    assert (measured.calls_per_run - 1) * seconds <= 1.2e-4
    assert measured.median_s == pytest.approx(seconds, rel=1e-6)


def test_a_disturbed_first_warm_up_does_not_fix_calls_per_run() -> None:
    machine = FakeMachine()
    measured = timing.measure(
        machine.script([1.0, 5e-3], then_s=1e-6), budget_s=0.1, clock=machine.clock
    )
    assert measured.calls_per_run >= 100


def test_a_function_slower_than_the_budget_runs_three_times() -> None:
    machine = FakeMachine()
    measured = timing.measure(machine.work(30.0), budget_s=1.0, clock=machine.clock)
    assert machine.calls == 3
    assert (measured.cold_s, measured.median_s, measured.runs, measured.stable) == (
        30.0,
        30.0,
        2,
        False,
    )
    assert (
        measured.reason
        == "2 runs fitted in the budget, 8 are needed: give a budget_s of 288 or more"
    )
    assert timing.measure(machine.work(30.0), budget_s=288, clock=machine.clock).stable


def test_work_that_the_clock_cannot_see_ends_and_says_so() -> None:
    machine = FakeMachine()
    measured = timing.measure(machine.work(0.0), budget_s=1.0, clock=machine.clock)
    assert (measured.median_s, measured.iqr_s, measured.stable) == (0.0, 0.0, False)
    assert "shorter than the clock" in measured.reason
    with pytest.raises(RuntimeError, match=r"the clock saw nothing of .* 'b'"):
        timing.compare(
            {"a": machine.work(1.0), "b": machine.work(0.0)}, clock=machine.clock, seed=0
        )


@pytest.mark.parametrize(
    ("runs_s", "reason"),
    [
        ([1.0] * 8, ""),
        ([1.0, 1.01] * 20, ""),
        ([*[1.0] * 10, 1000.0], ""),
        ([1.0] * 7, "7 runs fitted in the budget, 8 are needed"),
        ([1.0, 1.0, *[1.0, 9.0] * 49], "the median is known to a factor of 5 only, not to 2.0 %"),
        ([1.0, 3.0] * 50, "the median is known to 50.0 % only, not to 2.0 %"),
        (
            np.linspace(1, 1.12, 100).tolist(),
            "the second half of the runs differs from the first by 5.7 %",
        ),
        ([1.0, *[1.5] * 19], "the median is 1.50 times the minimum"),
        ([0.0] * 8, "a run is shorter than the clock can tell"),
        ([0.0, 0.0, 0.0, 0.0, 0.0, 0.01, 0.01, 0.01], "a run is shorter than the clock can tell"),
    ],
)
def test_each_way_to_be_unstable_has_its_reason(runs_s: list[float], reason: str) -> None:
    found = runs._why_unstable(runs_s)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


def test_a_noisy_or_drifting_machine_is_not_stable_and_nothing_warns(
    recwarn: pytest.WarningsRecorder,
) -> None:
    for noise in (itertools.cycle([1.0, 3.0]), (1.01**step for step in itertools.count())):
        machine = FakeMachine(noise)
        measured = timing.measure(machine.work(0.001), budget_s=0.5, clock=machine.clock)
        assert not measured.stable
        assert "stop other programs or raise budget_s" in measured.reason
    assert not recwarn.list


def test_an_exception_passes_unchanged_and_the_collector_is_as_before() -> None:
    class StudentError(Exception):
        pass

    def failing_at(call: int) -> Callable[[], None]:
        calls = itertools.count(1)

        def fn() -> None:
            assert not gc.isenabled()
            if next(calls) == call:
                raise StudentError("mine")

        return fn

    assert gc.isenabled()
    for call in (1, 2, 50):
        with pytest.raises(StudentError, match=r"^mine$"):
            timing.measure(failing_at(call))
        with pytest.raises(StudentError, match=r"^mine$"):
            timing.compare({"good": lambda: None, "bad": failing_at(call)})
        assert gc.isenabled()
    gc.disable()
    try:
        timing.measure(lambda: None, budget_s=0.001)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_garbage_of_the_timed_function_is_collected_between_runs() -> None:
    alive = set()

    class Node:
        def __init__(self) -> None:
            self.itself = self
            alive.add(id(self))

        def __del__(self) -> None:
            alive.discard(id(self))

    timing.measure(lambda: [Node() for _ in range(500)], budget_s=0.1)
    assert len(alive) < 50_000


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (
            (torch.ones(2),),
            TypeError,
            "fn must be a function without arguments, not Tensor; write lambda",
        ),
        ((3.0,), TypeError, "fn must be a function"),
        ((None,), TypeError, "fn must be a function"),
    ],
)
def test_measure_wants_a_function(arguments: tuple, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        timing.measure(*arguments)


@pytest.mark.parametrize("budget_s", [0, -1.0, math.nan, math.inf, "1 s", None, True])
def test_a_budget_is_a_positive_number_of_seconds(budget_s: object) -> None:
    for call in (
        lambda: timing.measure(len, budget_s=budget_s),
        lambda: timing.compare({"a": len, "b": len}, budget_s=budget_s),
    ):
        with pytest.raises(
            (TypeError, ValueError), match=r"budget_s=.*; give a finite number above 0"
        ):
            call()


@pytest.mark.parametrize("device", ["gpu", "meta", "mps", "", "cpu:x", object(), 1.5])
def test_an_unknown_device_is_named(device: object) -> None:
    with pytest.raises(
        ValueError, match="is neither a CPU nor a CUDA device; give 'cpu' or 'cuda'"
    ):
        timing.measure(lambda: None, device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_without_cuda_says_so() -> None:
    with pytest.raises(RuntimeError, match="sees 0 CUDA devices"):
        timing.measure(lambda: None, device="cuda")


def test_results_print_and_return_from_json() -> None:
    machine = FakeMachine()
    measured = timing.measure(machine.work(0.001), clock=machine.clock)
    assert "median         1.00 ms" in str(measured)
    assert results.from_dict(timing.Timing, measured.to_dict()) == measured
    compared = timing.compare(
        {"a": machine.work(0.001), "b": machine.work(0.002)}, clock=machine.clock
    )
    assert results.from_dict(timing.Comparison, compared.to_dict()) == compared
    assert list(compared.table()["time_ratio"]) == pytest.approx([1, 2])
    assert "2.00x" in compared._repr_html_()


# The interval: against SciPy.


@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.005, 1e-4])
@pytest.mark.parametrize("count", [1, 5, 6, 8, 9, 16, 17, 100, 1001, 20_000])
def test_the_interval_of_a_median_is_the_exact_one(count: int, alpha: float) -> None:
    values = np.random.default_rng(count).standard_cauchy(count) + 10
    low, high = runs.median_interval(values, alpha)
    # the largest k with P(heads < k) <= alpha / 2
    rank = int(stats.binom.ppf(alpha / 2, count, 0.5))
    ordered = np.sort(values)
    assert (low, high) == ((ordered[rank - 1], ordered[count - rank]) if rank else (0, math.inf))


def test_the_looks_spend_no_more_than_the_stated_rate() -> None:
    spent = sum(comparing._alpha(look) for look in range(1, 10_000))
    assert 0.99 * timing.FALSE_POSITIVE_RATE < spent <= timing.FALSE_POSITIVE_RATE


# Several functions: simulated noise, known truth.


def heavy_noise(seed: int) -> Iterator[float]:
    """Yield a busy machine's factors: self-correlated load, a slow wave, spikes without a finite
    variance.
    """
    generator = np.random.default_rng(seed)
    count = 5_000
    load = signal.lfilter([1], [1, -0.95], generator.normal(0, 0.01, count))
    wave = 0.1 * np.sin(np.arange(count) / generator.uniform(50, 500) + generator.uniform(0, 6))
    spikes = (generator.random(count) < 0.05) * generator.pareto(1.5, count)
    jitter = np.abs(generator.normal(0, 0.02, count))
    return iter((np.exp(load + wave + jitter) * (1 + spikes)).tolist())


def warming_machine(seed: int) -> Iterator[float]:
    """Yield a machine that gets slower all the time, which punishes whoever always comes second."""
    generator = random.Random(seed)
    return (1 + 0.001 * step + abs(generator.gauss(0, 0.0003)) for step in itertools.count())


NOISES = {"heavy": heavy_noise, "warming": warming_machine}


def errors_between_equals(noise: str, *, count: int = 200, names: str = "ab") -> int:
    """Return in how many of ``count`` comparisons some of the equal candidates were told apart."""
    errors = 0
    for seed in range(count):
        machine = FakeMachine(NOISES[noise](seed))
        candidates = {name: machine.work(0.001) for name in names}
        compared = timing.compare(candidates, budget_s=0.5, seed=seed, clock=machine.clock)
        errors += any(row.verdict in ("faster", "slower") for row in compared.candidates)
    return errors


def most_errors_by_chance(count: int) -> int:
    """Return the number of errors that the stated rate exceeds once in 10,000 times."""
    return int(stats.binom.ppf(0.9999, count, timing.FALSE_POSITIVE_RATE))


@pytest.mark.parametrize("noise", NOISES)
def test_equal_candidates_are_told_apart_no_more_often_than_stated(noise: str) -> None:
    assert errors_between_equals(noise) <= most_errors_by_chance(200)


def test_the_rate_holds_for_four_candidates_together() -> None:
    assert errors_between_equals("heavy", count=60, names="abcd") <= most_errors_by_chance(60)


def test_a_fixed_order_would_break_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    class InOrder(random.Random):
        def shuffle(self, x: list) -> None:
            x.sort()

    monkeypatch.setattr(comparing.random, "Random", InOrder)
    assert errors_between_equals("warming", count=40) > most_errors_by_chance(200)


def test_a_looser_interval_would_break_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "_alpha", lambda look: 0.2)
    assert errors_between_equals("heavy", count=100) > most_errors_by_chance(200)


def test_five_percent_is_found_in_heavy_noise() -> None:
    found = {"slower": 0, "faster": 0}
    for seed in range(100):
        machine = FakeMachine(heavy_noise(seed))
        candidates = {"plain": machine.work(0.001), "longer": machine.work(0.00105)}
        compared = timing.compare(candidates, budget_s=2.0, seed=seed, clock=machine.clock)
        found["slower"] += compared.candidate("longer").verdict == "slower"
        reverse = FakeMachine(heavy_noise(1000 + seed))
        candidates = {"longer": reverse.work(0.00105), "plain": reverse.work(0.001)}
        compared = timing.compare(candidates, budget_s=2.0, seed=seed, clock=reverse.clock)
        found["faster"] += compared.candidate("plain").verdict == "faster"
    assert min(found.values()) >= 95, found


def test_the_ratio_is_exact_without_noise_and_the_baseline_can_be_chosen() -> None:
    machine = FakeMachine()
    candidates = {
        "one": machine.work(0.001),
        "three": machine.work(0.003),
        "half": machine.work(0.0005),
    }
    compared = timing.compare(candidates, baseline="three", clock=machine.clock)
    assert (compared.baseline, compared.stable, compared.reason) == ("three", True, "")
    assert [row.time_ratio for row in compared.candidates] == pytest.approx([1 / 3, 1, 1 / 6])
    assert [row.verdict for row in compared.candidates] == ["faster", "baseline", "faster"]
    assert compared.candidate("half").median_s == pytest.approx(0.0005)
    assert compared.confidence_share == 1 - timing.FALSE_POSITIVE_RATE
    assert timing.compare(candidates, clock=machine.clock).baseline == "one"


def test_a_run_finds_the_caches_as_another_left_them_or_with_own_caches_as_itself_left_them() -> (
    None
):
    machine, last = FakeMachine(), ""

    def candidate(name: str) -> Callable[[], None]:
        def call() -> None:
            nonlocal last
            machine.advance(0.01 if last == name else 0.05)
            last = name

        return call

    for own_caches, median_s in ((True, 0.01), (False, 0.05)):
        candidates = {name: candidate(name) for name in "abc"}
        found = timing.compare(
            candidates, budget_s=20, own_caches=own_caches, seed=1, clock=machine.clock
        )
        assert [row.median_s for row in found.candidates] == pytest.approx([median_s] * 3)
        assert {row.calls_per_run for row in found.candidates} == {1}


def test_equal_fast_candidates_get_the_same_calls_a_run() -> None:
    machine = FakeMachine()
    seconds = {"a": 1e-6, "b": 1.3e-6, "slow": 0.01}
    compared = timing.compare(
        {name: machine.work(each) for name, each in seconds.items()}, clock=machine.clock
    )
    calls = {row.name: row.calls_per_run for row in compared.candidates}
    assert calls["a"] == calls["b"] >= 100
    assert calls["slow"] == 1


def test_too_few_rounds_give_no_interval_and_say_what_is_needed(capsys) -> None:
    machine = FakeMachine()
    candidates = {"a": machine.work(10.0), "b": machine.work(20.0)}
    compared = timing.compare(candidates, budget_s=1.0, clock=machine.clock)
    row = compared.candidate("b")
    assert (row.low_ratio, row.high_ratio, row.verdict) == (0.0, math.inf, "too close to tell")
    assert (compared.rounds, compared.stable) == (2, False)
    assert compared.reason.startswith(
        "2 rounds fitted in the budget, 9 are needed: give a budget_s of"
    )
    compared.claim("an interval from zero to infinity decides nothing", "b", at_most=0.1)
    compared.claim("nor does it support anything", "b", at_least=0.1)
    timing.claim("far from the bound or not", row.time_ratio, at_least=0.1, evidence=compared)
    assert capsys.readouterr().out.count("Here this was not decided.\n") == 3
    wanted_s = float(compared.reason.split()[-3].replace(",", ""))
    assert (
        timing.compare(candidates, budget_s=wanted_s, clock=machine.clock).candidate("b").verdict
        == "slower"
    )


def test_the_budget_of_a_comparison_is_kept_and_its_random_numbers_are_its_own() -> None:
    machine = FakeMachine(itertools.cycle([1.0, 2.0, 5.0]))
    state = random.getstate()
    timing.compare(
        {"a": machine.work(0.001), "b": machine.work(0.001)}, budget_s=1.0, clock=machine.clock
    )
    assert machine.now_s <= 1.0 + 0.012 + 0.010
    assert random.getstate() == state


@pytest.mark.parametrize(
    ("candidates", "baseline", "error", "words"),
    [
        ({}, None, ValueError, "two candidates or more, got 0"),
        ({"a": len}, None, ValueError, "two candidates or more, got 1; measure times one function"),
        ({"a": len, "b": len}, "c", ValueError, "baseline 'c' is no candidate; there are 'a', 'b'"),
        ({"a": len, 2: len}, None, TypeError, "a candidate's name must be text; got 2"),
        (
            {"a": len, "b": torch.ones(1)},
            None,
            TypeError,
            "candidate 'b' must be a function .* write lambda",
        ),
        ([len, len], None, TypeError, "a dictionary from names to functions, not list"),
    ],
)
def test_compare_refuses_what_it_cannot_compare(candidates, baseline, error, words) -> None:
    with pytest.raises(error, match=words):
        timing.compare(candidates, baseline=baseline)
    with pytest.raises(error, match=words):
        timing.compare(candidates, baseline=baseline)


# Claims: the same sentence unless contradicted.


@pytest.fixture
def compared() -> timing.Comparison:
    machine = FakeMachine()
    return timing.compare({"a": machine.work(0.001), "b": machine.work(0.002)}, clock=machine.clock)


def test_a_claim_prints_its_sentence_its_bound_and_what_it_found(capsys, compared) -> None:
    steady, noisy = FakeMachine(), FakeMachine(itertools.cycle([1.0, 3.0]))
    stable = timing.measure(steady.work(0.001), clock=steady.clock)
    unstable = timing.measure(noisy.work(0.001), clock=noisy.clock)
    timing.claim("it is slower", 43.21, at_least=2, evidence=stable)
    timing.claim("it is slower", 3, at_least=2, evidence=[stable, unstable])
    timing.claim("it is slower", 2.99, at_least=2, evidence=[stable, unstable])
    timing.claim("it is slower", 1, at_least=2, evidence=unstable)
    timing.claim("it is faster", [0.01, 0.35], at_most=0.5, evidence=unstable)
    timing.claim("it is slower", None, at_least=2)
    timing.claim(
        "both are near",
        [0.9, np.float64(1.3)],
        at_least=0.5,
        at_most=2000,
        evidence=(stable, compared),
    )
    timing.claim("a link is slower", 3, at_least=2, evidence=stable, simulated=True)
    assert capsys.readouterr().out == (
        "it is slower (at least 2 times)\nHere it is 43.2 times (measured), so this holds.\n"
        + "it is slower (at least 2 times)\nHere it is 3 times (measured), so this holds.\n"
        + "it is slower (at least 2 times)\nHere this was not decided.\n" * 2
        + "it is faster (at most 0.5 times)\nHere this was not decided.\n"
        + "it is slower (at least 2 times)\nHere this was not measured.\n"
        + "both are near (0.5 to 2,000 times)\nHere it is 0.9 to 1.3 times (measured), so this "
        "holds.\n"
        + "a link is slower (at least 2 times)\nHere it is 3 times (simulated), so this holds.\n"
    )
    for ratio in (1.99, [1.99, 2], [2.1, 3.01]):
        with pytest.raises(
            timing.ClaimContradicted, match=r"it is so \(2 to 3 times\)\nmeasured: Timing\n  cold"
        ):
            timing.claim("it is so", ratio, at_least=2, at_most=3, evidence=stable)
    assert issubclass(timing.ClaimContradicted, AssertionError)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("ratio", "options", "error", "words"),
    [
        ("2", {}, TypeError, "ratio must be a number"),
        (True, {}, TypeError, "ratio must be a number"),
        ([], {}, TypeError, "ratio must be a number"),
        ([1.0, None], {}, TypeError, "ratio must be a number"),
        (math.nan, {}, ValueError, "ratio is not a number"),
        (2, {"at_least": None}, ValueError, "give one or both"),
        (2, {"at_most": 0.5}, ValueError, "at_least the smaller"),
        (2, {"evidence": ()}, TypeError, "a measured ratio needs evidence"),
        (2, {"evidence": [1.0]}, TypeError, "evidence must be what measure or compare returned"),
        (2, {"evidence": None}, TypeError, "evidence must be what measure or compare returned"),
        (None, {}, ValueError, "says that nothing was measured, and evidence was given"),
    ],
)
def test_a_claim_wants_ratios_bounds_and_measurements(
    compared, ratio, options, error, words
) -> None:
    with pytest.raises(error, match=words):
        timing.claim("it is so", ratio, **({"at_least": 1, "evidence": compared} | options))


@pytest.mark.parametrize(
    ("bounds", "contradicted"),
    [
        ({"at_least": 1}, False),
        ({"at_least": 2.01}, True),
        ({"at_most": 2.01}, False),
        ({"at_most": 1.99}, True),
        ({"at_least": 1.9, "at_most": 2.1}, False),
        ({"at_least": 0.9, "at_most": 1.1}, True),
    ],
)
def test_a_ratio_outside_its_bounds_contradicts(capsys, compared, bounds, contradicted) -> None:
    if contradicted:
        with pytest.raises(
            timing.ClaimContradicted, match=r"'b' takes 2 times as long as 'a' .* the claim needs"
        ):
            compared.claim("b is slower", "b", **bounds)
        assert capsys.readouterr().out == ""
    else:
        compared.claim("b is slower", "b", **bounds)
        assert re.fullmatch(
            r"b is slower \([a-z0-9. ]+ times\)\nHere it is 2 times \(measured\), so this holds.\n",
            capsys.readouterr().out,
        )


def test_a_claim_about_what_sleeps_is_called_simulated(capsys, compared) -> None:
    compared.claim("b is slower", "b", at_least=1, simulated=True)
    assert (
        capsys.readouterr().out
        == "b is slower (at least 1 times)\nHere it is 2 times (simulated), so this holds.\n"
    )


def test_an_interval_on_both_sides_of_a_bound_decides_nothing(capsys) -> None:
    machine = FakeMachine(itertools.cycle([1.0, 1.0, 3.0]))
    compared = timing.compare(
        {"a": machine.work(0.001), "b": machine.work(0.002)}, seed=1, clock=machine.clock
    )
    row = compared.candidate("b")
    assert row.low_ratio < row.high_ratio
    compared.claim("b is slower", "b", at_least=(row.low_ratio + row.high_ratio) / 2)
    assert capsys.readouterr().out.endswith("Here this was not decided.\n")


def test_a_comparison_is_as_stable_as_it_was_asked_to_be() -> None:
    asked = {}
    for precision in (0.01, 0.5):
        machine = FakeMachine(itertools.cycle([1.0, 1.1, 1.3]))
        candidates = {"a": machine.work(0.01), "b": machine.work(0.02)}
        asked[precision] = timing.compare(
            candidates, precision=precision, seed=1, clock=machine.clock
        )
    assert (asked[0.01].stable, asked[0.5].stable) == (False, True)
    assert asked[0.5].rounds < asked[0.01].rounds
    assert "not to 1.0 %" in asked[0.01].reason


@pytest.mark.parametrize("precision", [0, 1, -0.1, math.nan, "5 %", None])
def test_a_precision_is_a_share(precision) -> None:
    with pytest.raises(ValueError, match="give the share to which each ratio must be known"):
        timing.compare({"a": len, "b": len}, precision=precision)


@pytest.mark.parametrize(
    ("name", "bounds", "words"),
    [
        ("c", {"at_least": 1}, "no candidate 'c'; there are 'a', 'b'"),
        ("a", {"at_least": 1}, "'a' is the baseline"),
        ("b", {}, "give one or both"),
        ("b", {"at_least": 2, "at_most": 1}, "at_least the smaller"),
        ("b", {"at_least": 0}, "above 0"),
        ("b", {"at_most": math.nan}, "above 0"),
    ],
)
def test_a_claim_about_a_ratio_wants_a_name_and_bounds(compared, name, bounds, words) -> None:
    with pytest.raises(ValueError, match=words):
        compared.claim("it is so", name, **bounds)


# Real work.


def spin(seconds: float) -> Callable[[], None]:
    def fn() -> None:
        end_s = time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            pass

    return fn


@pytest.mark.timed
def test_five_percent_more_spinning_is_found_in_reality() -> None:
    compared = timing.compare(
        {"plain": spin(300e-6), "longer": spin(315e-6), "same": spin(300e-6)}, budget_s=1.5
    )
    longer, same = compared.candidate("longer"), compared.candidate("same")
    assert longer.verdict == "slower", compared
    assert 1.03 < longer.time_ratio < 1.08, compared
    assert abs(same.time_ratio - 1) < 0.02, compared


def test_a_real_call_is_not_timed_shorter_than_it_is() -> None:
    measured = timing.measure(spin(1e-3), budget_s=0.1)
    assert 1e-3 <= measured.minimum_s <= measured.median_s
    assert measured.cold_s >= 1e-3


@pytest.mark.timed
def test_a_real_call_is_not_timed_much_longer_than_it_is() -> None:
    assert timing.measure(spin(1e-3), budget_s=0.1).minimum_s < 2e-3


BUSY = """
import time
end_s = time.perf_counter() + 60
print("busy", flush=True)
while time.perf_counter() < end_s:
    pass
"""


@pytest.mark.timed
@pytest.mark.skipif(not runs._waited_s(), reason="this system does not say how long threads wait")
def test_a_shared_processor_is_noticed_and_contradicts_nothing(
    capsys: pytest.CaptureFixture,
) -> None:
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(ours)})
    # They inherit the one processor.
    busy = [
        subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        assert [process.stdout.readline() for process in busy] == [b"busy\n"] * 2
        # A turn of the scheduler is longer than a run, so the runs repeat well: only the waiting
        # gives them away.
        measured = timing.measure(lambda: sum(range(1000)), budget_s=0.5)
        compared = timing.compare({"a": spin(1e-4), "b": spin(1e-3)}, budget_s=0.5)
    finally:
        for process in busy:
            process.kill()
            process.communicate()
        os.sched_setaffinity(0, ours)
    for result in (measured, compared):
        assert 0.1 < result.waiting_share < 1
        assert not result.stable
        assert "a thread waited for a processor during" in result.reason
    compared.claim("b is faster than a", "b", at_most=0.5)
    timing.claim("it takes an hour", measured.median_s / 3600, at_least=1, evidence=measured)
    assert capsys.readouterr().out.count("Here this was not decided.\n") == 2


def test_waiting_is_the_share_of_the_unluckiest_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    counts = iter([{"1": 5.0, "2": 1.0, "3": 0.0}, {"1": 5.5, "2": 3.0, "4": 1.0}, {}])
    monkeypatch.setattr(runs, "_waited_s", lambda: next(counts))
    monkeypatch.setattr(runs.time, "perf_counter", lambda: now_s)
    share = runs.watch_waiting(runs.time.perf_counter)
    now_s = 110.0
    assert share() == 0.2
    assert share() is None
    assert runs.why_disturbed(None) == runs.why_disturbed(0.1) == ""
    assert runs.why_disturbed(0.2).startswith(
        "a thread waited for a processor during 20.0 % of the time"
    )


def test_threads_are_restored() -> None:
    before = torch.get_num_threads()

    def fail_with_one_more() -> None:
        with timing.fixed_threads(before + 1):
            assert timing.measure(lambda: None, budget_s=0.001).threads == before + 1
            raise KeyError

    with pytest.raises(KeyError):
        fail_with_one_more()
    assert torch.get_num_threads() == before


# The allocator.

PAGE_FAULTS = """
import ctypes, resource, torch
from helpers import timing

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: pages of one size, whatever this system prefers

def faults(tensors):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(tensors):
        torch.empty(16 * 2**20).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults(1)
untouched = faults(3)
assert timing.steady_allocator() == timing.steady_allocator()
faults(12)
print(untouched, faults(3))
"""  # noqa: E501


@pytest.mark.skipif(runs._glibc() is None, reason="the C library is not glibc")
def test_the_steady_allocator_and_not_its_import_ends_the_page_faults_of_64_mib_tensors() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PAGE_FAULTS], check=True, capture_output=True, text=True
    )
    untouched, steady = (int(number) for number in ran.stdout.split())
    if untouched == 0:
        pytest.skip("this kernel counts no page faults")
    assert steady < untouched / 50


def test_the_steady_allocator_says_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_glibc", lambda: None)
    assert timing.steady_allocator() == timing.AllocatorSetting(
        sys.platform, False, "not glibc: unchanged"
    )

    class Refusing:
        def mallopt(self, parameter: int, value: int) -> int:
            return 0

    monkeypatch.setattr(runs, "_glibc", Refusing)
    with pytest.raises(RuntimeError, match="glibc refused mallopt"):
        timing.steady_allocator()


# CUDA: on a simulated device everywhere, and on the real one where there is one.


class FakeCuda:
    """A device beside the fake clock: a launch takes the host's time and queues the kernel's;
    waiting waits for it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = self.free_s = 0.0
        self.initialised = False
        fake = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self, stream: str) -> None:
                assert stream == "stream of cuda:0"
                self.at_s = max(fake.now_s, fake.free_s)

            def elapsed_time(self, end: Event) -> float:
                return 1e3 * (end.at_s - self.at_s)

        def synchronize(device: torch.device) -> None:
            assert str(device) == "cuda:0"
            self.now_s = max(self.now_s, self.free_s)

        replaced = {
            "Event": Event,
            "synchronize": synchronize,
            "is_initialized": lambda: self.initialised,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "current_stream": lambda device: f"stream of {device}",
        }
        for name, replacement in replaced.items():
            monkeypatch.setattr(torch.cuda, name, replacement)

    def clock(self) -> float:
        return self.now_s

    def kernel(self, *, launch_s: float, compute_s: float) -> Callable[[], None]:
        def launch() -> None:
            self.initialised = True
            self.now_s += launch_s
            self.free_s = max(self.free_s, self.now_s) + compute_s

        return launch


@pytest.mark.parametrize("device", [None, "cuda", "cuda:0", torch.device("cuda"), 0])
def test_a_cuda_run_waits_for_the_kernels_at_both_ends(
    monkeypatch: pytest.MonkeyPatch, device: object
) -> None:
    machine = FakeCuda(monkeypatch)
    fn = machine.kernel(launch_s=1e-5, compute_s=1e-3)
    measured = timing.measure(fn, device=device, clock=machine.clock)
    assert isinstance(measured, timing.CudaTiming)
    assert (measured.device, measured.stable) == ("cuda:0", True)
    assert measured.cold_s == pytest.approx(1e-5 + 1e-3)
    calls = measured.calls_per_run
    assert calls == 3  # the shortest run of 2 ms, and a fifth more
    assert measured.median_s == pytest.approx((1e-5 + calls * 1e-3) / calls)
    assert measured.device_median_s == pytest.approx(measured.median_s)
    launch_bound = timing.measure(
        machine.kernel(launch_s=1e-5, compute_s=1e-6), device=device, clock=machine.clock
    )
    assert launch_bound.median_s == pytest.approx(1e-5, rel=0.01)


def test_a_comparison_on_cuda_has_the_same_boundary_and_cuda_1_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = FakeCuda(monkeypatch)
    candidates = {each: machine.kernel(launch_s=1e-5, compute_s=1e-3 * each) for each in (3, 6)}
    named = {f"{each} ms": fn for each, fn in candidates.items()}
    compared = timing.compare(named, clock=machine.clock)
    assert compared.device == "cuda:0"
    assert compared.candidate("6 ms").time_ratio == pytest.approx(2, rel=0.01)
    with pytest.raises(
        RuntimeError, match="'cuda:1' is not here: this process sees 1 CUDA devices"
    ):
        timing.measure(lambda: None, device="cuda:1")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_cuda_timing_holds_the_kernels_and_not_only_their_launch() -> None:
    a = torch.rand(4096, 4096, device="cuda")
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for fn in (lambda: a @ a, lambda: [a @ a for _ in range(5)]):
        fn()
        torch.cuda.synchronize()
        started.record()
        fn()
        ended.record()
        torch.cuda.synchronize()
        for device in (None, "cuda", "cuda:0", torch.device("cuda")):
            measured = timing.measure(fn, device=device, budget_s=0.3)
            assert isinstance(measured, timing.CudaTiming)
            assert measured.device == "cuda:0"
            assert measured.device_median_s <= measured.median_s
            assert measured.device_median_s == pytest.approx(
                started.elapsed_time(ended) / 1e3, rel=0.5
            )
            assert results.from_dict(timing.CudaTiming, measured.to_dict()) == measured


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_comparison_on_cuda_tells_more_kernels_from_fewer() -> None:
    a = torch.rand(2048, 2048, device="cuda")
    compared = timing.compare(
        {"once": lambda: a @ a, "twice": lambda: (a @ a, a @ a)}, device="cuda"
    )
    assert 1.7 < compared.candidate("twice").time_ratio < 2.3
    assert timing.measure(lambda: None, device="cpu", budget_s=0.01).device == "cpu"
