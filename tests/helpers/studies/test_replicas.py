"""The replicas: every way is the sequential fit to 1e-11, the sequential fit is torch's, and what
couples is seen.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import shutil
import time
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch._inductor.utils import fresh_cache
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import native, results, timing
from helpers.studies import replicas
from helpers.studies.replicas import (
    _contractions as contractions,
    _own_step as own_step,
    _problem as problems,
    _programs as programs,
    _training as training,
)
from helpers.studies.sgd_parallelism import _stacking as stacking

EAGER = tuple(
    way for way in replicas.WAYS if way != "compiled" and (way != "own_step" or shutil.which("g++"))
)
TOLERANCE = 1e-11
SMALL = {
    "points": 9,
    "single_sets": 3,
    "single_data": 7,
    "single_channels": 4,
    "pair_sets": 2,
    "pair_data": 5,
    "pair_channels": 6,
}
# A rate at which losses jump multiplies roundings as well: replicas that train through have rates
# at which they fall.
OPTIONS = {
    "nothing": {},
    "own rates": {"rate": (0.01, 0.001, 0.005, 0.002, 0.003)},
    "own clipping": {"clip_norm": (0.1, 1.0, 1e3, 20.0, 0.5), "optimizer": "sgd", "rate": 0.01},
    "own stopping": {"patience": (1, 2, 3, 4, 50), "rate": (0.05, 0.05, 0.05, 0.05, 0.003)},
    "own optimizers, all together": {
        "optimizer": ("adam", "sgd", "adam", "sgd", "adam"),
        "rate": (0.05, 0.01, 0.02, 0.03, 0.002),
        "clip_norm": (0.1, 1.0, 2.0, 100.0, 0.5),
        "patience": (1, 2, 3, 4, 50),
    },
}


@pytest.fixture(scope="module")
def problem():
    return replicas.make_problem(3, **SMALL)


def fit(problem, way, **options):
    given = {"replicas": 5, "steps": 30, "dtype": torch.float64, "device": "cpu"} | options
    return replicas.train(problem, way=way, **given)


@pytest.fixture(scope="module")
def alone(problem):
    return {name: fit(problem, "sequential", **options) for name, options in OPTIONS.items()}


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


def difference(run, other):
    """Return the largest difference of losses, relative, and of weights; infinite where other steps
    were taken.
    """
    if not torch.equal(run.steps_taken, other.steps_taken) or not torch.equal(
        run.losses.isnan(), other.losses.isnan()
    ):
        return math.inf
    pairs = (run.losses, other.losses), (run.validation_losses, other.validation_losses)
    off = [((mine - theirs) / theirs).nan_to_num(0).abs().max() for mine, theirs in pairs]
    off += [(weight - other.weights[name]).abs().max() for name, weight in run.weights.items()]
    return float(max(off))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("way", EAGER[1:])
def test_every_way_is_the_sequential_fit(way, options, problem, alone):
    assert difference(fit(problem, way, **OPTIONS[options]), alone[options]) < TOLERANCE


def test_the_options_do_something(alone):
    runs = list(alone.values())
    assert all(difference(one, other) > 1e-3 for one, other in itertools.combinations(runs, 2))
    stopped = alone["own stopping"]
    assert len(set(stopped.steps_taken.tolist())) >= 3
    assert (
        stopped.losses.isnan().sum(0).tolist() == (29 - stopped.steps_taken).clamp(min=0).tolist()
    )


@pytest.mark.parametrize(
    ("seed", "sizes"),
    [
        (11, {}),
        (12, {"positivity_sets": 0, "pair_data": 12}),
        (13, {"single_channels": 14, "points": 4}),
    ],
)
def test_they_are_equal_on_other_problems_seeds_and_masks(seed, sizes):
    other = replicas.make_problem(seed, **SMALL | sizes)
    masks = torch.rand(3, len(other.data), generator=torch.Generator().manual_seed(seed)) < 0.5
    given = {"replicas": 3, "seeds": (70, 3, 501), "masks": masks, "steps": 10}
    sequential = fit(other, "sequential", **given)
    assert max(difference(fit(other, way, **given), sequential) for way in EAGER[1:]) < TOLERANCE


def test_a_replica_is_the_same_whoever_is_trained_beside_it(problem, alone):
    lone = fit(problem, "fused_optimizer", replicas=1, seeds=(3,))
    assert torch.allclose(lone.losses[:, 0], alone["nothing"].losses[:, 3], rtol=TOLERANCE)


def test_the_sequential_fit_is_torch_on_the_definition(problem, alone):
    """The oracle: chi2 with NumPy's inverse of the masked matrix, autograd and Adam of torch, on
    sums as defined.
    """
    for seed in (0, 4):
        start, net = problems.start_of(problem, seed), problems.net_of(seed)
        mask = start.mask
        adam = torch.optim.Adam(net.parameters(), lr=2e-3)
        inverses = [
            torch.from_numpy(np.linalg.inv(problem.covariance.numpy()[np.ix_(m, m)]))
            for m in (mask, ~mask)
        ]
        for step in range(30):
            eight = net(problem.inputs) * problem.shapes
            momentum = (problem.quadrature * (eight[:, 0] + eight[:, 1])).sum()
            fourteen = (eight + (1 - momentum) * problem.bump) @ problem.rotation
            values = torch.cat(
                [problems.exact_values(one, fourteen) for one in problem.observables]
            )
            conditions = torch.cat(
                [problems.exact_values(one, fourteen) for one in problem.positivity]
            )
            off = values - start.data
            training, validation = (
                off[m] @ inverse @ off[m] / m.sum()
                for m, inverse in zip((mask, ~mask), inverses, strict=True)
            )
            training = training + 10 * nn.functional.elu(-conditions, alpha=1e-7).sum()
            found = alone["nothing"]
            assert found.losses[step, seed] == pytest.approx(training.item(), rel=1e-10)
            assert found.validation_losses[step, seed] == pytest.approx(
                validation.item(), rel=1e-10
            )
            adam.zero_grad()
            training.backward()
            adam.step()


def test_the_observables_are_their_sums(problem):
    flavoured = torch.randn(9, 14, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    f = flavoured.numpy()
    for observable in (problem.observables[0], problem.observables[-1]):
        table, channels = observable.table.numpy(), observable.channels.numpy()
        expected = np.zeros(len(table))
        for n, channel, x in itertools.product(*map(range, table.shape[:3])):
            if observable.of_pairs:
                a, b = channels[channel]
                for y in range(9):
                    expected[n] += table[n, channel, x, y] * f[x, a] * f[y, b]
            else:
                expected[n] += table[n, channel, x] * f[x, channels[channel]]
        stack = flavoured[None]
        found = {
            "definition": problems.exact_values(observable, flavoured),
            "boolean_mask": contractions.boolean_mask(observable)(stack.permute(1, 2, 0))[:, 0],
            "padded_einsum": contractions.padded_einsum(observable)(stack)[0],
            "gather": contractions.gather(observable)(stack.transpose(1, 2))[0],
            "pair_product": contractions.pair_product(observable)(stack.permute(2, 1, 0))[:, 0],
        }
        for name, values in found.items():
            np.testing.assert_allclose(
                values.numpy(), expected, rtol=1e-12, atol=1e-12, err_msg=name
            )


def test_the_sum_rule_holds_and_the_data_are_those_of_a_net(problem):
    unrotated = torch.eye(8, 14, dtype=torch.float64)
    plain = dataclasses.replace(problem, rotation=unrotated)
    kept = problems.flavours(plain, torch.randn(4, 9, 8, dtype=torch.float64))
    torch.testing.assert_close(
        kept[..., :2].sum(-1) @ problem.quadrature, torch.ones(4, dtype=torch.float64)
    )
    starts = torch.stack([problems.start_of(problem, seed).data for seed in range(400)])
    spread = torch.linalg.solve_triangular(
        torch.linalg.cholesky(problem.covariance), (starts - problem.data).T, upper=False
    )
    # 400 draws of 31 unit normals
    assert float(spread.square().mean()) == pytest.approx(1, abs=0.05)
    assert float((spread @ spread.T / 400 - torch.eye(len(spread))).abs().max()) < 0.3
    assert {int(problems.start_of(problem, seed).mask.sum()) for seed in range(5)} == {
        round(0.75 * 31)
    }


def test_a_problem_and_its_replicas_are_drawn_by_their_seeds_alone():
    state = torch.get_rng_state()
    one, two, other = (replicas.make_problem(seed, **SMALL) for seed in (5, 5, 6))
    assert torch.equal(one.data, two.data)
    assert not torch.equal(one.data, other.data)
    problems.start_of(one, 3)
    assert torch.equal(torch.get_rng_state(), state)
    whole = replicas.make_problem(0)
    assert len(whole.data) == 340
    assert sum(weight.numel() for weight in problems.start_of(whole, 0).weights.values()) == 763
    assert torch.linalg.eigvalsh(whole.covariance).min() > 0


OF_COMPILED = {
    "replicas": 3,
    "patience": (2, 30, 40),
    "rate": (0.05, 0.005, 0.003),
    "clip_norm": 1.0,
}


def test_the_traced_way_is_the_sequential_fit(problem, monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    compiled = fit(problem, "compiled", **OF_COMPILED)
    assert difference(compiled, fit(problem, "sequential", **OF_COMPILED)) < TOLERANCE


@pytest.mark.release
def test_the_compiled_way_is_the_sequential_fit():
    tiny = replicas.make_problem(
        4,
        points=6,
        single_sets=1,
        single_data=7,
        single_channels=4,
        pair_sets=1,
        pair_data=5,
        pair_channels=6,
        positivity_sets=1,
    )
    with fresh_cache():
        compiled = fit(tiny, "compiled", **OF_COMPILED)
    assert difference(compiled, fit(tiny, "sequential", **OF_COMPILED)) < TOLERANCE


# The step of our own.


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_its_gradient_is_autograd_s_for_any_number_of_points_and_replicas(dtype):
    """Points that fill no lane, replicas that fill no group of four, data of one flavour or two
    only by one set.
    """
    for points, count, seed in ((5, 1, 0), (16, 3, 1), (33, 6, 2)):
        other = replicas.make_problem(seed, **SMALL | {"points": points, "pair_sets": 1})
        prepared, _ = training.prepare_replicas(other, replicas=count, dtype=dtype)
        ours, theirs = (training.PROGRAMS[way](prepared) for way in ("own_step", "gather"))
        (loss, judged, (found,)), (exact, validated, parts) = ours.evaluate(), theirs.evaluate()
        expected, exact = torch.cat([part.flatten(1) for part in parts], dim=1), exact.detach()
        near = 1e-12 if dtype is torch.float64 else 2e-4
        for mine, right in ((loss, exact), (judged, validated), (found, expected)):
            assert float((mine - right).abs().max() / right.abs().max()) < near


@needs_compiler
def test_its_tanh_is_numpy_s():
    """Through the net: one x-point a lane, weights that carry 0, tiny, ordinary and huge numbers to
    the tanh.
    """
    source = native.read_source(own_step.__package__, "own_step.cpp")
    source += """extern "C" void tanh_all(REAL* x, int64_t n) {
        for (int64_t i = 0; i < n; i += LANES) store(x + i, tanh_of(load(x + i))); }"""
    for real, kind, near in (("float", np.float32, 3e-7), ("double", np.float64, 5e-16)):
        library = native.compile_cpp(source, flags=(*own_step.FLAGS, f"-DREAL={real}"))
        x = np.concatenate(
            [np.linspace(-30, 30, 4001), np.logspace(-300, 2, 95), [0.0, -0.0, 1e-3, 700.0]]
        )
        x = np.resize(x.astype(kind), 4096)
        found = x.copy()
        library.function(f"void tanh_all({real}* x, int64_t n)")(found, 4096)
        exact = np.tanh(x.astype(np.float64))
        assert np.abs(found - exact).max() < near
        assert np.all(
            np.abs(found - exact) <= 4 * np.finfo(kind).eps * np.abs(exact) + np.finfo(kind).tiny
        )


@needs_compiler
@pytest.mark.parametrize(("right", "wrong"), [
    ("total * (1 - y * y)", "total * (1 - y)"),
    ("const REAL of_momentum = -sum(missing)", "const REAL of_momentum = sum(missing)"),
    ("part ? 0 : 2 * product", "2 * product"),
], ids=["tanh's slope", "the sum rule's slope", "validation in the gradient"])  # fmt: skip
def test_a_mistake_in_it_is_seen(right, wrong, problem, alone, monkeypatch):
    source = native.read_source(own_step.__package__, "own_step.cpp")
    assert right in source
    planted = native.compile_cpp(
        source.replace(right, wrong), flags=("-O1", "-std=c++17", "-DREAL=double")
    )
    monkeypatch.setattr(own_step, "compile_program", lambda dtype: planted)
    assert difference(fit(problem, "own_step"), alone["nothing"]) > 1e-4


@needs_compiler
def test_it_is_right_for_the_plainest_processor_too(problem, alone, monkeypatch):
    source = native.read_source(own_step.__package__, "own_step.cpp")
    plain = native.compile_cpp(source, flags=("-O1", "-std=c++17", "-DREAL=double"))
    monkeypatch.setattr(own_step, "compile_program", lambda dtype: plain)
    assert difference(fit(problem, "own_step"), alone["nothing"]) < TOLERANCE


@needs_compiler
def test_its_limits_are_refused(problem):
    with pytest.raises(ValueError, match="at most 256"):
        replicas.train(
            replicas.make_problem(
                0, points=257, single_sets=1, pair_sets=1, pair_data=1, pair_channels=1
            ),
            replicas=1,
            steps=1,
            way="own_step",
        )
    with pytest.raises(ValueError, match="device='cpu'"):
        replicas.train(problem, replicas=1, steps=1, way="own_step", device="meta")


# What couples replicas: each mistake is planted, and the comparison above sees it.


def _clip_the_stack(gradients, limits):
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    for gradient in gradients:
        gradient.mul_((limits[0] / norm).clamp(max=1))


def _mean_over_replicas(self):
    losses, validation, gradients = _EVALUATE(self)
    return losses, validation, [gradient / len(losses) for gradient in gradients]


_EVALUATE, _PREPARE = programs.Stacked.evaluate, programs.prepare


def _one_covariance(*given, **named):
    prepared = _PREPARE(*given, **named)
    first = {
        name: getattr(prepared, name)[:1].expand_as(prepared.training)
        for name in ("training", "validation")
    }
    return dataclasses.replace(prepared, **first)


def _masked_inverse(covariance, mask):
    both = mask[:, None] & mask[None, :]
    return torch.where(both, torch.linalg.inv(covariance), 0) / mask.sum()


@pytest.mark.parametrize(
    ("where", "name", "wrong", "options"),
    [
        (stacking, "clip_each", _clip_the_stack, "own clipping"),
        (programs.Stacked, "evaluate", _mean_over_replicas, "own clipping"),
        (programs, "prepare", _one_covariance, "nothing"),
        (problems, "inverse_of", _masked_inverse, "nothing"),
    ],
    ids=[
        "one norm for the stack",
        "mean in the loss",
        "one covariance for all",
        "the inverse masked",
    ],
)
def test_a_coupling_that_is_planted_is_seen(
    where, name, wrong, options, problem, alone, monkeypatch
):
    monkeypatch.setattr(where, name, wrong)
    assert difference(fit(problem, "fused_optimizer", **OPTIONS[options]), alone[options]) > 1e-4


def test_a_mean_in_the_loss_hides_under_adam(problem, alone, monkeypatch):
    monkeypatch.setattr(programs.Stacked, "evaluate", _mean_over_replicas)
    assert difference(fit(problem, "fused_optimizer"), alone["nothing"]) < 1e-5


# What is counted.


def test_padded_tables_and_the_cheapest_contraction_are_counted(problem):
    whole = replicas.make_problem(0)
    single, pair = whole.observables[0], whole.observables[-1]
    assert replicas.padded(single).nbytes / single.table.nbytes == 14 / 6
    assert replicas.padded(pair).nbytes / pair.table.nbytes == 196 / 24
    few, many = (replicas.cheapest_contraction(n, 24, 30, replicas=100) for n in (10, 40))
    assert (few.chosen, many.chosen) == ("pair_product", "gather")
    assert few.way("gather").made_numbers == 100 * 24 * 30 * 30
    assert few.way("pair_product").made_numbers == 100 * 24 * 30 * 10
    assert few.way("padded_einsum").table_numbers == replicas.padded(pair).numel()
    assert few.way("boolean_mask").made_numbers == 100 * 196 * 30 * 30
    assert few.way("boolean_mask").macs == 100 * (196 * 30 * 30 + 10 * 24 * 30 * 30)
    assert few.way("pair_product").macs == 100 * (10 * 24 * 30 * 30 + 10 * 24 * 30)


@pytest.mark.parametrize(("given", "kind", "words"), [
    ({"replicas": 0}, ValueError, "replicas=0"),
    ({"way": "faster"}, ValueError, "'fused_optimizer'"),
    ({"steps": 1.5}, TypeError, "steps=1.5"),
    ({"dtype": torch.float16}, ValueError, "torch.float64"),
    ({"seeds": (1, 2)}, ValueError, "2 entries for 5 replicas"),
    ({"seeds": (1, 2, 3, 4, -5)}, ValueError, r"seeds\[4\]"),
    ({"rate": (0.1, 0.2)}, ValueError, "rate has 2 entries for 5"),
    ({"rate": 0}, ValueError, "above 0"),
    ({"optimizer": "lbfgs"}, ValueError, "'adam', 'sgd'"),
    ({"clip_norm": -1}, ValueError, "clip_norm=-1"),
    ({"patience": 0}, ValueError, "patience=0"),
    ({"masks": torch.ones(5, 31)}, ValueError, "torch.bool"),
    ({"masks": torch.ones(5, 31, dtype=torch.bool)}, ValueError, "31 of 31 True"),
    ({"masks": [True]}, TypeError, "a boolean tensor"),
])  # fmt: skip
def test_what_is_not_accepted_is_refused(given, kind, words, problem):
    with pytest.raises(kind, match=words):
        replicas.train(problem, **{"replicas": 5, "steps": 1, "device": "cpu"} | given)


def test_other_arguments_are_refused():
    with pytest.raises(TypeError, match="what make_problem returns"):
        replicas.train("a fit", replicas=1, steps=1)
    with pytest.raises(ValueError, match="points=1"):
        replicas.make_problem(points=1)
    with pytest.raises(ValueError, match="1 to 196"):
        replicas.cheapest_contraction(1, 197, 3)


# Separate networks, epochs, and mistakes.


class Calls(TorchDispatchMode):
    """Counts the calls of each operator."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.counts[operator] += 1
        return operator(*args, **(kwargs or {}))


def calls_of(prepared, way):
    program = training.PROGRAMS[way](prepared)
    with Calls() as calls:
        program.step()
    return calls.counts


def test_separate_networks_call_more_for_each_replica_and_a_stack_does_not(problem):
    few, many = (training.prepare_replicas(problem, replicas=count)[0] for count in (2, 5))
    for separate, stacked in (("separate", "stacked"), ("separate_last", "fused_optimizer")):
        assert calls_of(few, stacked).total() == calls_of(many, stacked).total()
        assert calls_of(many, separate).total() - calls_of(few, separate).total() >= 3 * 30


def test_a_shared_validation_takes_one_forward_pass_of_the_networks_instead_of_two(problem):
    prepared, _ = training.prepare_replicas(problem, replicas=3)
    # two tanh a pass
    takes = {"stacked": 4, "pair_product": 4, "shared_validation": 2, "fused_optimizer": 2}
    assert {way: calls_of(prepared, way)[torch.ops.aten.tanh.default] for way in takes} == takes


def test_the_gaps_of_epochs_are_the_time_without_a_step():
    times = iter([0.0, 1.0, 1.5, 3.5, 4.5])
    run = replicas.time_epochs(
        torch.arange(2), lambda sample: None, epochs=1, clock=lambda: next(times)
    )
    assert run.steps_s == ((1.0, 1.5), (3.5, 4.5))
    assert (run.epochs, run.gap_s, run.step_s) == (1, 1.5, 0.75)
    assert results.from_dict(replicas.EpochTimes, run.to_dict()) == run


def test_every_sample_of_every_epoch_is_a_step():
    samples = []
    run = replicas.time_epochs(torch.arange(6).view(3, 2), samples.append, epochs=2)
    assert torch.equal(torch.stack(samples), torch.arange(6).view(3, 2).repeat(2, 1))
    assert len(run.steps_s) == 6
    with pytest.raises(ValueError, match="epochs"):
        replicas.time_epochs(torch.arange(2), samples.append, epochs=0)


def own_norms(gradients, limit):
    clipped = [gradient.clone() for gradient in gradients]
    stacking.clip_each(clipped, torch.full((len(gradients[0]),), limit, dtype=gradients[0].dtype))
    return clipped


def test_nine_of_twenty_fits_are_changed_by_mistakes():
    changes = replicas.change_fits(own_norms)
    changed = [
        [True] * 4,
        [False, True, False, False],
        [False] * 4,
        [False, True, True, True],
        [False, False, True, False],
    ]
    assert replicas.is_changed(changes).tolist() == changed
    assert not ((changes > 1e-5) & (changes < 1e-3)).any()


def test_without_clipping_a_norm_couples_nothing():
    changes = replicas.is_changed(replicas.change_fits(lambda gradients, limit: gradients))
    assert not changes[0].any()


def test_one_norm_slows_the_median_replica_and_with_one_replica_nothing():
    own, stack = (replicas.median_losses(norm, replicas=30, steps=40) for norm in ("own", "stack"))
    assert own[0] == stack[0]
    assert stack[30] > 1.2 * own[30]
    own, stack = (replicas.median_losses(norm, replicas=1, steps=10) for norm in ("own", "stack"))
    assert own == pytest.approx(stack, rel=1e-4)
    with pytest.raises(ValueError, match="'each'"):
        replicas.median_losses("each")


# What is timed.


def minima(prepared, ways, rounds, calls):
    """Return the smallest time of a step of each way, taken in turns: a busy machine adds time, and
    takes none away.
    """
    found = {way: training.PROGRAMS[way](prepared) for way in ways}
    least = dict.fromkeys(ways, math.inf)
    for _ in range(rounds):
        for way, program in found.items():
            for _ in range(calls[way]):
                begun_s = time.perf_counter()
                program.step()
                least[way] = min(least[way], time.perf_counter() - begun_s)
    return least


@pytest.mark.timed
def test_a_hundred_replicas_train_eight_times_faster_together():
    """The floor for every machine; the planted program, a stack that masks as one replica did, does
    not reach it.
    """
    prepared, _ = training.prepare_replicas(replicas.make_problem(), replicas=100)
    calls = {"sequential": 1, "stacked": 1, "fused_optimizer": 6} | (
        {"own_step": 6} if "own_step" in EAGER else {}
    )
    with timing.fixed_threads(1):
        least = minima(prepared, list(calls), 2, calls)
    for way in calls.keys() - {"sequential", "stacked"}:
        assert least["sequential"] / least[way] >= 8, way
    assert least["sequential"] / least["stacked"] < 8


@pytest.mark.timed
def test_one_replica_is_no_slower_by_the_default():
    prepared, _ = training.prepare_replicas(replicas.make_problem(), replicas=1)
    calls = {"sequential": 10, "fused_optimizer": 10} | (
        {"own_step": 10} if "own_step" in EAGER else {}
    )
    with timing.fixed_threads(1):
        least = minima(prepared, list(calls), 8, calls)
    assert all(least[way] <= least["sequential"] for way in calls)


def test_the_ladders_hold_what_was_timed(problem):
    given = [way for way in EAGER if way in ("sequential", "gather", "fused_optimizer", "own_step")]
    with timing.fixed_threads(1):
        ladder = replicas.measure_ladder(problem, replicas=3, ways=given, budget_s=0.2)
        small = replicas.measure_small_nets(replicas=3, points=7, budget_s=0.2)
    assert [rung.rung for rung in ladder.rungs] == given
    assert [rung.rung for rung in small.rungs] == ["loop", "vmap", "stacked"]
    assert (ladder.program, ladder.replicas, ladder.rungs[0].speedup, ladder.threads) == (
        "fit",
        3,
        1,
        1,
    )
    for found in (ladder, small):
        assert results.from_dict(replicas.ReplicaLadder, found.to_dict()) == found
        assert all(rung.low_speedup <= rung.speedup <= rung.high_speedup for rung in found.rungs)
    assert set(replicas.default_ways()) <= set(EAGER)
    assert "own_step" not in replicas.default_ways(torch.device("cuda", 0))
    for device in ("tpu", "cuda:x"):
        with pytest.raises(
            ValueError, match=f"device='{device}' is neither a CPU nor a CUDA device; give 'cpu'"
        ):
            replicas.default_ways(device)


def test_a_rung_that_is_not_equal_is_not_timed(problem, monkeypatch):
    monkeypatch.setattr(programs, "chi2_by_bmm", lambda found, *rest: _CHI2(found * 1.001, *rest))
    with pytest.raises(
        RuntimeError,
        match=r"losses of gather \(off by .*, pair_product \(off by .*nothing was timed",
    ):
        replicas.measure_ladder(
            problem, replicas=2, ways=("sequential", "gather", "pair_product"), budget_s=0.1
        )
    with pytest.raises(ValueError, match="'faster'"):
        replicas.measure_ladder(problem, replicas=2, ways=("faster",))


_CHI2 = programs.chi2_by_bmm
