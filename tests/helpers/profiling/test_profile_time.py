"""profile_time: exact times under a clock that the model itself moves, the caller's model
untouched, errors.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers import steps
from helpers.models import LeNet
from helpers.profiling import ModelError, TimeProfile, _layers as layers, profile_time
from helpers.profiling._layers import Stamps, StepMarks
from helpers.results import from_dict
from helpers.timing._runs import rounds


class FakeClock:
    """A clock that stands still until somebody lets time pass; a copy of a model keeps the same
    one.
    """

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def __deepcopy__(self, memo: dict) -> FakeClock:
        return self


class _Pass(torch.autograd.Function):
    """Let time pass in the forward and in the backward pass."""

    @staticmethod
    def forward(ctx, x, spend, forward_s, backward_s):
        ctx.spend, ctx.backward_s = spend, backward_s
        spend(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.spend(ctx.backward_s)
        return gradient, None, None, None


class Takes(nn.Module):
    """A layer that takes a known time and changes nothing."""

    def __init__(self, clock: FakeClock | None, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.clock, self.forward_s, self.backward_s = clock, forward_s, backward_s

    def spend(self, seconds: float) -> None:
        if self.clock is not None:
            self.clock.now_s += seconds
            return
        # processor time: a machine that others use does not stretch it
        end_s = time.thread_time() + seconds
        while time.thread_time() < end_s:
            pass

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Pass.apply(x, self.spend, self.forward_s, self.backward_s)


class Known(nn.Module):
    """Times known by construction: a layer used twice around an operator in place, a block, a
    functional operator.
    """

    def __init__(self, clock: FakeClock | None) -> None:
        super().__init__()
        self.weights = nn.Linear(4, 4)
        self.twice = Takes(clock, 3, 5)
        self.relu = nn.ReLU(inplace=True)
        self.block = nn.Sequential(Takes(clock, 1, 2), nn.Dropout(0.5), Takes(clock, 4, 8))
        self.unused = nn.Linear(4, 4)
        self.alias = self.twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.twice(self.weights(x)))
        x = self.alias(x) + self.block(x)
        return _Pass.apply(x, self.twice.spend, 7, 11)


def timed(model: nn.Module, inputs: object, **options) -> TimeProfile:
    return profile_time(model, inputs, **{"budget_s": 0.02, **options})


@pytest.fixture(scope="module", autouse=True)
def _quick_collector():
    """Leave torch's own objects out of the garbage collections that every call begins with."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def known() -> TimeProfile:
    clock = FakeClock()
    takes = Takes(clock, 13, 17)
    return profile_time(
        Known(clock), (2, 4), loss=lambda y: takes(y).sum(), budget_s=300, clock=clock
    )


@pytest.mark.parametrize(("waiting_share", "stable"), [(None, True), (0.1, True), (0.11, False)])
def test_a_profile_that_waited_for_a_processor_says_so(monkeypatch, waiting_share, stable):
    monkeypatch.setattr(layers, "watch_waiting", lambda clock: lambda: waiting_share)
    profile = timed(nn.Linear(2, 2), (1, 2))
    assert (profile.waiting_share, profile.stable) == (waiting_share, stable)
    for shown in (str(profile), profile._repr_html_()):
        assert ("a thread waited for a processor during 11.0 % of the time" in shown) != stable


def test_every_row_is_exact_under_a_known_clock(known):
    rows = {
        row.layer: (row.depth, row.calls, row.forward_s, row.backward_s) for row in known.layers
    }
    assert rows == {
        "": (0, 1, 18, 31),
        "weights": (1, 1, 0, 0),
        "twice": (1, 2, 6, 10),
        "relu": (1, 1, 0, 0),
        "block": (1, 1, 5, 10),
        "block.0": (2, 1, 1, 2),
        "block.1": (2, 1, 0, 0),
        "block.2": (2, 1, 4, 8),
        "block.(functional)": (2, 1, 0, 0),
        "unused": (1, 0, 0, 0),
        "(functional)": (1, 1, 7, 11),
        "(unaccounted)": (0, 0, 13, 17),
    }
    assert [row.layer for row in known.layers] == list(rows)


def test_the_parts_add_up_to_the_step_and_the_shares_to_one(known):
    assert (known.forward_s, known.backward_s, known.step_s) == (31, 48, 79)
    assert (known.hooked_step_s, known.plain_step_s, known.overhead_ratio) == (79, 79, 1)
    assert math.fsum(row.total_s for row in known.parts()) == known.step_s
    assert math.fsum(row.share for row in known.parts()) == pytest.approx(1, abs=1e-12)
    for row in known.layers:
        assert row.total_s == row.forward_s + row.backward_s
        assert row.share == row.total_s / 79
    assert known.slowest().layer == "twice"
    assert known.rounds >= 5


def test_parts_of_a_real_step_add_up_too():
    profile = timed(LeNet(), (4, 1, 28, 28))
    assert math.fsum(row.total_s for row in profile.parts()) == pytest.approx(
        profile.step_s, rel=1e-12
    )
    assert math.fsum(row.median_s for row in profile.operators) == pytest.approx(
        profile.profiled_step_s, rel=1e-12
    )
    assert math.fsum(row.share for row in profile.operators) == pytest.approx(1, abs=1e-9)
    assert all(row.total_s >= 0 for row in profile.layers)
    assert profile.operators[-1].operator == "(unaccounted)"


def test_operators_of_lenet_are_counted_by_phase():
    profile = timed(LeNet(), (2, 1, 28, 28))
    calls = {(row.operator, row.phase): row.calls for row in profile.operators}
    assert calls["aten::convolution", "forward"] == 2
    assert calls["aten::addmm", "forward"] == 3
    assert calls["aten::relu", "forward"] == 4
    assert calls["aten::convolution_backward", "backward"] == 2
    assert calls["aten::threshold_backward", "backward"] == 4
    assert calls["torch::autograd::AccumulateGrad", "backward"] == 10
    assert ("aten::convolution", "backward") not in calls


def test_inference_has_no_backward():
    clock = FakeClock()
    profile = profile_time(Known(clock), (2, 4), training=False, budget_s=99, clock=clock)
    assert (profile.forward_s, profile.backward_s, profile.step_s) == (18, 0, 18)
    assert not profile.training
    assert {row.phase for row in profile.operators} == {"forward", "both"}


def test_what_lies_before_the_first_trained_layer_has_no_backward():
    clock = FakeClock()
    model = nn.Sequential(Takes(clock, 1, 100), nn.Linear(4, 4), Takes(clock, 1, 2))
    assert profile_time(model, (2, 4), budget_s=9, clock=clock).backward_s == 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_computes_again_is_backward_and_no_call(reentrant):
    clock = FakeClock()

    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner = nn.Linear(4, 4), Takes(clock, 3, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, self.first(x), use_reentrant=reentrant)

    profile = profile_time(Saving(), (2, 4), budget_s=99, clock=clock)
    assert (profile.forward_s, profile.layer("inner").calls) == (3, 1)
    # Without saved tensors the other way has nothing to compute again.
    again_s = 3 if reentrant else 0
    assert profile.backward_s == 5 + again_s
    assert profile.layer("inner").backward_s == (again_s if reentrant else 5)
    assert profile.layer("(unaccounted)").total_s == 0


def test_a_checkpoint_that_stops_early_leaves_the_marks_in_order():
    clock = FakeClock()
    inner = nn.Sequential(Takes(clock, 3, 5), nn.Linear(4, 4), Takes(clock, 7, 11))

    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = inner, Takes(clock, 1, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(checkpoint(self.inner, x, use_reentrant=False))

    profile = profile_time(Saving(), torch.rand(2, 4, requires_grad=True), budget_s=99, clock=clock)
    # what follows the linear layer is not needed
    assert (profile.forward_s, profile.backward_s) == (11, 18 + 3)
    rows = {
        row.layer: (row.calls, row.forward_s, row.backward_s)
        for row in profile.layers
        if row.total_s
    }
    assert rows["inner.0"] == (1, 3, 5 + 3)
    assert rows["inner.2"] == (1, 7, 11)
    assert rows["last"] == (1, 1, 2)
    assert profile.layer("(unaccounted)").total_s == 0


def spinning(first_s: float, second_s: float) -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 8),
        Takes(None, first_s, 2 * first_s),
        nn.ReLU(inplace=True),
        Takes(None, second_s, 2 * second_s),
    )


@pytest.mark.timed
def test_a_layer_that_spins_is_found_with_its_share():
    profile = timed(spinning(0.003, 0.001), (2, 8), budget_s=0.2, clock=time.thread_time)
    slow, quick = profile.layer("1"), profile.layer("3")
    assert profile.slowest() is slow
    assert slow.share == pytest.approx(0.75, rel=0.15)
    assert quick.share == pytest.approx(0.25, rel=0.15)
    assert slow.backward_s == pytest.approx(2 * slow.forward_s, rel=0.15)


@pytest.mark.timed
def test_the_same_model_the_other_way_round_has_the_other_slowest_layer():
    assert timed(spinning(0.0005, 0.002), (2, 8), clock=time.thread_time).slowest().layer == "3"


class BareHooks(StepMarks):
    """Hooks that do nothing: one before and after each module, and one for each of LeNet's twelve
    owners of the backward pass. Torch takes their time, whatever a profile does in them.
    """

    def _hooks(self, _row: int) -> tuple[Callable, Callable]:
        return (lambda *_: None), (lambda *_: None)

    def _hook_graph(self, root: Any) -> None:
        nodes = itertools.islice(layers._nodes(root), 12)
        for _, node in nodes:
            node.register_prehook(lambda _gradients: None)


def lenet_steps_s(monkeypatch, kinds: dict[str, type | None], budget_s: float) -> dict[str, float]:
    """Return the median seconds of LeNet's step of 64 images, in turns under each kind of hooks."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    try:
        with steps.warm_step(LeNet(), (64, 1, 28, 28), None, training=True, loss=None) as step:
            modules = [*step.model.modules()]
            stamps = Stamps(step.device, time.thread_time)
            for _ in rounds(budget_s, time.thread_time):
                for name, kind in kinds.items():
                    if kind is None:
                        seconds[name].append(layers._plain_step(step, stamps))
                        continue
                    monkeypatch.setattr(layers, "StepMarks", kind)
                    seconds[name].append(layers._hooked_step(step, modules, stamps).whole_s)
    finally:
        torch.set_num_threads(threads)
    return {name: statistics.median(values) for name, values in seconds.items()}


def is_cheap(monkeypatch) -> bool:
    """Return whether a profile's hooks take at most 2.5 times as long as bare ones, and at most a
    tenth of the step where bare ones leave room for that.

    Bare hooks take 60 us of each ms on a core whose vectors compute the step in 3 ms.
    """
    kinds = {"plain": None, "bare": BareHooks, "ours": StepMarks}
    step_s = lenet_steps_s(monkeypatch, kinds, budget_s=0.8)
    bare_s, ours_s = (step_s[name] - step_s["plain"] for name in ("bare", "ours"))
    has_room = bare_s < 0.04 * step_s["plain"]
    return ours_s <= 2.5 * bare_s and (ours_s <= 0.1 * step_s["plain"] or not has_room)


@pytest.mark.timed
def test_the_hooks_cost_little_beside_bare_ones_and_at_most_a_tenth_where_these_leave_room(
    monkeypatch,
):
    assert any(is_cheap(monkeypatch) for _ in range(4))


@pytest.mark.timed
def test_hooks_that_are_slow_would_be_seen(monkeypatch):
    real = Stamps.__init__

    def slow(self, device, clock):
        real(self, device, clock)

        def now() -> float:
            end_s = time.perf_counter() + 1e-4
            while time.perf_counter() < end_s:
                pass
            return clock()

        self.now = now

    monkeypatch.setattr(Stamps, "__init__", slow)
    assert not is_cheap(monkeypatch)


# The model comes back as it was.


def fingerprint(model: nn.Module) -> dict:
    return {
        "state": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "gradients": [
            (id(p.grad), None if p.grad is None else p.grad.clone()) for p in model.parameters()
        ],
        "versions": [tensor._version for tensor in (*model.parameters(), *model.buffers())],
        "modes": [module.training for module in model.modules()],
        "hooks": [
            (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
            for m in model.modules()
        ],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "random": (torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())),
    }


def assert_same(before: dict, after: dict) -> None:
    assert before["state"].keys() == after["state"].keys()
    for name, tensor in before["state"].items():
        assert torch.equal(tensor, after["state"][name]), name
    for (old_id, old), (new_id, new) in zip(before["gradients"], after["gradients"], strict=True):
        assert old_id == new_id
        assert old is None or torch.equal(old, new)
    for key in ("versions", "modes", "hooks", "attributes", "random"):
        assert before[key] == after[key], key


ALL_CALLS = itertools.count()


class Stateful(nn.Module):
    """Batch norm and dropout, one frozen layer, one gradient that is there already, a layer that
    raises on demand.
    """

    def __init__(self, fails: str = "") -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.last = (
            nn.Linear(4, 4),
            nn.BatchNorm1d(4),
            nn.Dropout(),
            nn.Linear(4, 4),
        )
        self.norm.eval()
        self.first.weight.requires_grad_(False)
        self.last.weight.grad = torch.ones(4, 4)
        self.register_forward_hook(lambda *_: None)
        self.fails, self.calls = fails, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.last(self.drop(self.norm(self.first(x + random.random() + np.random.rand()))))
        # the model's own count begins anew with each step
        if self.fails == "late" and next(ALL_CALLS) > 4:
            raise RuntimeError("broken in the middle")
        if self.fails == "backward":
            x.register_hook(self._raise)
        return x

    def _raise(self, gradient: torch.Tensor) -> None:
        raise ValueError("broken on the way back")


@pytest.mark.parametrize("training", [True, False])
def test_the_model_and_the_generators_come_back_as_they_were(training):
    model = Stateful()
    before = fingerprint(model)
    timed(model, torch.rand(5, 4), training=training)
    assert_same(before | {"random": fingerprint(model)["random"]}, fingerprint(model))
    before = fingerprint(model)
    timed(model, torch.ones(5, 4), training=training)
    assert_same(before, fingerprint(model))


@pytest.mark.parametrize(
    ("fails", "message"), [("late", "broken in the middle"), ("backward", "on the way back")]
)
def test_also_after_an_exception(fails, message):
    model = Stateful(fails)
    before, inputs = fingerprint(model), torch.ones(5, 4, requires_grad=True)
    with pytest.raises(ModelError, match=message):
        timed(model, inputs)
    assert_same(before, fingerprint(model))
    assert inputs.grad is None


# Models of every kind.


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (nn.LSTM(8, 8, 2, bidirectional=True), (3, 2, 8)),
        (nn.MultiheadAttention(8, 2), (torch.rand(3, 2, 8),) * 3),
        (nn.TransformerEncoderLayer(8, 2, 16), (3, 2, 8)),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True)), (2, 1, 8, 8)),
        (nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)), torch.tensor([[1, 2], [0, 8]])),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), (2, 4)),
        (nn.Linear(4, 4), {"input": torch.rand(2, 4)}),
        (nn.Linear(4, 0), (0, 4)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_models_of_every_kind(model, inputs):
    profile = timed(model, inputs)
    assert profile.step_s > 0
    assert math.fsum(row.total_s for row in profile.parts()) == pytest.approx(
        profile.step_s, rel=1e-12
    )
    assert profile.layers[0].calls == 1


def test_without_gradients_around_it_and_in_inference_mode_it_trains_all_the_same():
    with torch.no_grad():
        assert timed(nn.Linear(4, 4), (2, 4)).backward_s > 0
    with torch.inference_mode():
        assert timed(nn.Linear(4, 4), torch.rand(2, 4)).backward_s > 0


# Errors: one sentence each.


def frozen() -> nn.Module:
    return nn.Linear(4, 4).requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "inputs", "error", "message"),
    [
        (nn.Linear, (2, 4), TypeError, "is a class"),
        ("linear", (2, 4), TypeError, "give a torch.nn.Module"),
        (nn.Linear(4, 4), (2, 5), ModelError, r"forward.*mat1 and mat2.*\(2, 5\)"),
        (nn.Linear(4, 4), (2, -4), ValueError, "negative"),
        (nn.Linear(4, 4), None, TypeError, "give a shape"),
        (nn.LazyLinear(4), (2, 4), ModelError, "lazy"),
        (torch.jit.script(nn.Linear(4, 4)), (2, 4), ModelError, "TorchScript"),
        (torch.compile(nn.Linear(4, 4)), (2, 4), ModelError, "compiled.*kernel_table"),
        (
            nn.Sequential(torch.compile(nn.Linear(4, 4))),
            (2, 4),
            ModelError,
            "module '0' is compiled",
        ),
        (frozen(), (2, 4), ModelError, "training=False"),
    ],
    ids=[
        "class",
        "text",
        "shape",
        "negative",
        "none",
        "lazy",
        "script",
        "compiled",
        "compiled inside",
        "frozen",
    ],
)
def test_an_error_says_what_to_do(model, inputs, error, message):
    with pytest.raises(error, match=message):
        timed(model, inputs)


@pytest.mark.filterwarnings("ignore")
def test_a_quantised_model_is_refused_in_one_sentence():
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})
    with pytest.raises(ModelError, match="quantised"):
        timed(model, (2, 4), training=False)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"budget_s": 0}, ValueError),
        ({"budget_s": math.nan}, ValueError),
        ({"budget_s": "1"}, TypeError),
        ({"training": 1}, TypeError),
        ({"loss": 3}, TypeError),
        ({"loss": lambda y: y}, ModelError),
        ({"training": False, "loss": torch.sum}, ValueError),
    ],
)
def test_bad_options(options, error):
    with pytest.raises(error):
        timed(nn.Linear(4, 4), (2, 4), **options)


def test_a_running_profiler_is_refused():
    with torch.profiler.profile(), pytest.raises(RuntimeError, match="already running"):
        timed(nn.Linear(4, 4), (2, 4))


# The result.


def test_it_prints_and_turns_into_html_tables_and_json(known):
    lines = str(known).splitlines()
    assert lines[0].startswith("Known for (2, 4) float32 on cpu")
    assert len([line for line in lines if "█" in line]) == 7
    page = known._repr_html_()
    assert page.count("of the whole' style") == len(known.layers) + len(known.operators)
    assert page.count("<details") == 3
    assert "<script" not in page
    assert list(known.table()["layer"]) == [row.layer for row in known.layers]
    assert set(known.table(by="operator")["phase"]) == {"forward", "backward", "both"}
    assert from_dict(TimeProfile, json.loads(known.to_json())) == known
    with pytest.raises(ValueError, match="'layer', 'operator'"):
        known.table(by="kernel")
    with pytest.raises(KeyError, match="no layer 'blok'"):
        known.layer("blok")


def test_a_name_cannot_break_the_page():
    model = nn.Sequential()
    model.add_module("<b>&", nn.Linear(4, 4))
    assert "&lt;b&gt;&amp;" in timed(model, (2, 4))._repr_html_()


@pytest.mark.cuda
def test_on_cuda_the_marks_are_events():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    profile = profile_time(LeNet().cuda(), (64, 1, 28, 28), budget_s=0.5)
    assert profile.device.startswith("cuda")
    assert math.fsum(row.total_s for row in profile.parts()) == pytest.approx(
        profile.step_s, rel=1e-9
    )
    assert profile.layer("conv2").backward_s > 0
