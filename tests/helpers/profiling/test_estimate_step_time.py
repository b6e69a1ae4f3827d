"""estimate_step_time: exact counts against torch's profiler, sums, the model untouched, the sum
near the real step.
"""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import time
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import steps
from helpers.models import LeNet
from helpers.profiling import ModelError, StepTimeEstimate, _estimate as module, estimate_step_time
from helpers.results import from_dict


@pytest.fixture(scope="module", autouse=True)
def _quick_collector():
    """Leave torch's own objects out of the garbage collections that every call begins with."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Ticks:
    """A clock on which every reading is a second after the one before: every timing is one
    second.
    """

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def __call__(self) -> float:
        return float(next(self._ticks))


def estimated(model: nn.Module, inputs: object, **options) -> StepTimeEstimate:
    return estimate_step_time(model, inputs, **{"budget_s": 0.02, **options})


def repeated() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 4)
    )


def test_equal_operators_are_timed_once_and_counted():
    estimate = estimated(repeated(), (2, 8), training=False)
    calls = {(row.operator, row.arguments): row.calls for row in estimate.operators}
    square = next(
        row
        for row in estimate.operators
        if row.operator == "aten.addmm.default" and "(8, 8)" in row.arguments
    )
    assert square.calls == 3
    assert sum(n for (name, _), n in calls.items() if name == "aten.addmm.default") == 4
    assert sum(n for (name, _), n in calls.items() if name == "aten.relu.default") == 2
    assert (estimate.calls, estimate.distinct) == (sum(calls.values()), len(calls))
    assert {row.phase for row in estimate.operators} == {"forward"}


def test_strides_types_and_plain_arguments_make_another_operator():
    class Variants(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (
                x.sum(0),
                x.sum(0),
                x.sum(1),
                x.T.contiguous().T.sum(0),
                x.double().sum(0),
                x[:2].sum(0),
            )

    estimate = estimated(Variants(), (4, 4), training=False)
    sums = [row.calls for row in estimate.operators if row.operator == "aten.sum.dim_IntList"]
    assert sorted(sums) == [1, 1, 1, 1, 2]


def test_with_a_second_a_call_the_step_takes_as_many_seconds_as_it_has_calls():
    estimate = estimated(
        LeNet(), (2, 1, 28, 28), optimizer=torch.optim.Adam, clock=Ticks(), budget_s=600
    )
    assert (
        estimate.step_s
        == estimate.calls
        == estimate.forward_s + estimate.backward_s + estimate.optimizer_s
    )
    for row in estimate.operators:
        assert row.median_s == 1
        assert row.total_s == row.calls
        assert row.share == pytest.approx(row.calls / estimate.calls)
    assert sum(row.share for row in estimate.operators) == pytest.approx(1)
    assert estimate.optimizer_s > 10 * 5  # ten parameters, each with more operators than five
    assert estimate.not_timed == ()


@pytest.mark.parametrize(("waiting_share", "stable"), [(None, True), (0.1, True), (0.11, False)])
def test_an_estimate_that_waited_for_a_processor_is_no_evidence(monkeypatch, waiting_share, stable):
    monkeypatch.setattr(module, "watch_waiting", lambda clock: lambda: waiting_share)
    estimate = estimated(nn.Linear(2, 2), (1, 2))
    assert (estimate.waiting_share, estimate.stable) == (waiting_share, stable)
    assert ("a thread waited for a processor during 11.0 % of the time" in str(estimate)) != stable


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[str(func)] += func.namespace not in ("prim", "profiler")
        return func(*args, **(kwargs or {}))


def test_the_calls_are_those_of_a_step():
    model, images = LeNet(), torch.rand(2, 1, 28, 28)
    with _Counting() as counting:
        model(images).sum().backward()
    estimate = estimated(LeNet(), images)
    found: Counter[str] = Counter()
    for row in estimate.operators:
        found[row.operator] += row.calls
    assert found == +counting.seen
    backward = {row.operator: row.phase for row in estimate.operators if "backward" in row.operator}
    assert set(backward.values()) == {"backward"}


def step_s(model: nn.Module, inputs: torch.Tensor, *, training: bool) -> float:
    found = []
    with steps.warm_step(model, inputs, training=training, loss=None) as work:
        for _ in range(15):
            steps.drop_gradients(work)
            begin_s = time.thread_time()
            steps.run(work)
            found.append(time.thread_time() - begin_s)
    return statistics.median(found)


def error(model: nn.Module, inputs: torch.Tensor, *, training: bool) -> float:
    measured_s = step_s(model, inputs, training=training)
    estimate = estimate_step_time(
        model, inputs, training=training, budget_s=0.3, clock=time.thread_time
    )
    return estimate.step_s / measured_s - 1


@pytest.mark.timed
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.usefixtures("one_thread")
def test_the_estimate_is_near_the_step(training):
    # make bench NAME=steps holds it to 10 and 25 % on seven configurations; here the machine is
    # busy with other tests.
    assert abs(error(LeNet(), torch.rand(64, 1, 28, 28), training=training)) < 0.25


@pytest.mark.timed
@pytest.mark.usefixtures("one_thread")
def test_what_is_no_operator_is_missed():
    class Slow(LeNet):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            end_s = time.thread_time() + 0.01
            while time.thread_time() < end_s:
                pass
            return super().forward(images)

    assert error(Slow(), torch.rand(16, 1, 28, 28), training=False) < -0.5


def test_an_operator_that_cannot_run_alone_is_named():
    def broken() -> None:
        raise RuntimeError("only within a step")

    assert not module._runs_alone(broken)
    medians_s, rounds = module._medians([None, lambda: None], torch.device("cpu"), 0.01, Ticks())
    assert (medians_s, rounds) == ([0.0, 1.0], 5)


def test_an_index_that_the_step_moves_stays_within_its_bounds():
    class Moving(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            place = torch.zeros(1, dtype=torch.long)
            place.add_(1)
            return x[place]

    assert estimated(Moving(), (2, 4), training=False, budget_s=0.05).not_timed == ()


@pytest.mark.parametrize(
    ("model", "inputs", "options"),
    [
        (nn.LSTM(8, 8, 2, bidirectional=True), (3, 2, 8), {"optimizer": torch.optim.Adam}),
        (nn.MultiheadAttention(8, 2), (torch.rand(3, 2, 8),) * 3, {}),
        (
            nn.Sequential(
                nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True), nn.Dropout()
            ),
            (2, 1, 8, 8),
            {},
        ),
        (nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)), torch.tensor([[1, 2], [0, 8]]), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_model_comes_back_as_it_was(model, inputs, options):
    next(model.parameters()).grad = gradient = torch.zeros_like(next(model.parameters()))
    model.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    estimate = estimated(model, inputs, **options)
    assert estimate.step_s > 0
    assert estimate.not_timed == ()
    assert (estimate.optimizer_s > 0) == bool(options)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(part.training for part in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert next(model.parameters()).grad is gradient
    assert all(parameter.grad is None for parameter in list(model.parameters())[1:])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"optimizer": torch.optim.Adam, "training": False}, ValueError, "neither"),
        (
            {"optimizer": torch.optim.SGD([torch.ones(1)], lr=1)},
            TypeError,
            "optimizer is a SGD; give",
        ),
        ({"budget_s": -1}, ValueError, "above 0"),
        ({"inputs": (2, 5)}, ModelError, "mat1 and mat2"),
        ({"model": torch.compile(nn.Linear(8, 8))}, ModelError, "compiled"),
    ],
)
def test_an_error_says_what_to_do(options, error, message):
    with pytest.raises(error, match=message):
        estimated(**{"model": nn.Linear(8, 8), "inputs": (2, 8), **options})


def test_it_prints_and_turns_into_html_a_table_and_json():
    estimate = estimated(LeNet(), (2, 1, 28, 28))
    lines = str(estimate).splitlines()
    assert lines[0].startswith("LeNet for (2, 1, 28, 28) float32 on cpu: ")
    assert f"{estimate.calls:,} calls of {estimate.distinct:,} distinct operators" in lines[1]
    assert len(lines) == (3 if estimate.stable else 4) + 20 + 1
    assert f"{len(estimate.operators) - 20} others" in lines[-1]
    assert estimate._repr_html_().count("<tr>") == 1 + 20 + 1
    assert len(estimate.table()) == len(estimate.operators)
    assert from_dict(StepTimeEstimate, json.loads(estimate.to_json())) == estimate


@pytest.mark.cuda
def test_on_cuda_it_estimates():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    estimate = estimated(LeNet().cuda(), (64, 1, 28, 28))
    assert estimate.device.startswith("cuda")
    assert estimate.step_s > 0
