"""The time of a training from a few of its steps: against a known step, a real epoch and
arithmetic.
"""

import time
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from helpers.data import make_MNIST_loader
from helpers.models import BasicFCModel, LeNet
from helpers.studies.beyond_memory import _estimate as estimate, estimate_training_for
from helpers.training import _loop as loop, train


class Takes(nn.Module):
    """A model whose step takes 4 ms, whatever ``hidden`` is, on a clock that its forward pass alone
    moves.
    """

    now_s = 0.0

    def __init__(self, hidden=1):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(hidden))

    def forward(self, images):
        Takes.now_s += 0.004
        return images.flatten(1)[:, :10] * self.scale.mean()


@pytest.fixture
def known_time(monkeypatch):
    """Training and its estimate are timed on the clock of ``Takes``."""
    monkeypatch.setattr(Takes, "now_s", 0.0)
    monkeypatch.setattr(loop, "now_s", lambda device: Takes.now_s)


@pytest.fixture
def processor_time(monkeypatch):
    """Training and its estimate are timed by this thread's processor time, which other programs do
    not lengthen.
    """
    monkeypatch.setattr(loop, "now_s", lambda device: time.thread_time())


def blank_loader(count=30, size=4):
    return DataLoader(
        TensorDataset(torch.zeros(count * size, 784), torch.zeros(count * size).long()), size
    )


def noise(count):
    """Batches of eight rows of noise with labels."""
    return [(torch.randn(8, 6), torch.randint(10, (8,))) for _ in range(count)]


def off_by(model_class, loader, hidden=8):
    """The estimate of one epoch over a real one, right after it."""
    row = estimate_training_for(model_class, 1, hidden_sizes=[hidden], loader=loader).sizes[0]
    model = model_class(hidden=hidden)
    train(model, loader, 1)
    return row.estimated_s / train(model, loader, 1).total_s


def test_estimate_of_a_known_step_and_a_planted_wrong_one(known_time, monkeypatch):
    loader = blank_loader()
    assert off_by(Takes, loader) == pytest.approx(1)
    monkeypatch.setattr(estimate, "_steps_per_epoch", lambda loader, _: len(loader) / 2)
    assert off_by(Takes, loader) == pytest.approx(1 / 2)


@pytest.mark.timed
@pytest.mark.usefixtures("processor_time")
@pytest.mark.parametrize("model_class", [LeNet, BasicFCModel])
def test_estimate_agrees_with_a_real_epoch_of_digits(model_class):
    loader = make_MNIST_loader(50, split="test")
    assert 1 / 1.5 < off_by(model_class, loader, 128) < 1.5


def test_estimate_counts_parameters_steps_and_confidence():
    result = estimate_training_for(LeNet, 3, hidden_sizes=(120, 2), batch_size=64)
    assert [(row.hidden, row.parameters, row.parameter_bytes) for row in result.sizes] == [
        (120, 41_282, 4 * 41_282),
        (2, 156 + 2416 + 514 + 3 + 20, 4 * 3109),
    ]
    assert (result.model, result.epochs, result.batch_size) == ("LeNet", 3, 64)
    assert result.steps_per_epoch == 4000 / 64
    assert result.timed_steps == 6
    assert result.confidence_share == 1 - 2 / 64
    assert all(row.low_s <= row.estimated_s <= row.high_s for row in result.sizes)
    assert list(result.table()["hidden"]) == [120, 2]


def trial(*steps_s, first_batch_s=0.5):
    return estimate._Trial(64, 10, 40, first_batch_s, steps_s)


def test_an_estimate_is_arithmetic_on_the_steps_and_proportional_to_the_epochs():
    trials = [trial(1.0, 2.0, 9.0), trial(3.0, 4.0, 5.0, first_batch_s=0.25)]
    one = estimate._size_estimate(120, trials, 1, 10.0)
    assert (one.step_s, one.estimated_s, one.low_s, one.high_s) == (3.5, 35.25, 10.25, 90.25)
    for epochs in (2, 4, 1000):
        many = estimate._size_estimate(120, trials, epochs, 10.0)
        assert (many.estimated_s, many.low_s, many.high_s) == (
            epochs * 35.25,
            epochs * 10.25,
            epochs * 90.25,
        )


def test_the_interval_holds_the_median_as_often_as_stated():
    generator = torch.Generator().manual_seed(0)
    samples = torch.empty(4000, 6).log_normal_(0, 1, generator=generator)
    held = ((samples.min(1).values < 1) & (samples.max(1).values > 1)).float().mean().item()
    assert held == pytest.approx(1 - 2 * 0.5**6, abs=0.01)


def test_cold_steps_are_left_out_and_the_estimate_is_cheap(known_time):
    calls = []

    class Cold(Takes):
        def forward(self, images):
            calls.append(len(images))
            Takes.now_s += 0.1 if len(calls) % 5 in (1, 2) else 0
            return super().forward(images)

    row = estimate_training_for(Cold, 50, hidden_sizes=[8], loader=blank_loader()).sizes[0]
    assert len(calls) == 10
    assert (row.step_s, row.estimated_s) == pytest.approx((0.004, 50 * 30 * 0.004))


def test_only_whole_batches_are_timed_and_a_part_counts_as_its_part():
    seen = []

    class Recorder(Takes):
        def forward(self, images):
            seen.append(len(images))
            return super().forward(images)

    loader = DataLoader(TensorDataset(torch.zeros(40, 784), torch.zeros(40).long()), 30)
    result = estimate_training_for(Recorder, 1, hidden_sizes=[8], loader=loader)
    assert set(seen) == {30}
    assert result.steps_per_epoch == pytest.approx(4 / 3)
    one_batch = estimate_training_for(BasicFCModel, 1, hidden_sizes=[8], batch_size=10_000)
    assert (one_batch.batch_size, one_batch.steps_per_epoch) == (4000, 1)
    listed = estimate_training_for(partial(BasicFCModel, 6), 1, hidden_sizes=[8], loader=noise(7))
    assert (listed.batch_size, listed.steps_per_epoch) == (8, 7)


def test_steps_that_are_dropped_are_not_counted():
    dataset = TensorDataset(torch.zeros(40, 784), torch.zeros(40).long())
    assert estimate._steps_per_epoch(DataLoader(dataset, 30, drop_last=True), 30) == 1
    assert estimate._steps_per_epoch(DataLoader(dataset, 30), 30) == 40 / 30


class _Stream(IterableDataset):
    def __iter__(self):
        yield from zip(torch.zeros(4, 784), torch.zeros(4).long(), strict=True)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"epochs": 0}, ValueError, "epochs=0 is too small"),
        ({"hidden_sizes": ()}, ValueError, "hidden_sizes is empty"),
        ({"hidden_sizes": 128}, TypeError, r"hidden_sizes=128 is not accepted.*\(128, 256\)"),
        ({"hidden_sizes": (128, 0)}, ValueError, "a hidden size=0 is too small"),
        ({"hidden_sizes": (1,)}, ValueError, "hidden=1 is too small; give a whole number, 2"),
        ({"model_class": LeNet()}, TypeError, "model_class is a LeNet; give the class itself"),
        ({"model_class": "LeNet"}, TypeError, "model_class is a str; give the class itself"),
        ({"model_class": nn.Linear}, TypeError, r"Linear\(hidden=128\) does not work"),
        ({"loader": [], "batch_size": 4}, ValueError, "loader and batch_size are both given"),
        ({"batch_size": 0}, ValueError, "batch_size=0 is too small"),
        ({"loader": []}, ValueError, "the loader gave no batch"),
        ({"loader": iter(())}, TypeError, "the number of batches of the loader is not known"),
        (
            {"loader": DataLoader(_Stream())},
            TypeError,
            "the number of batches of the loader is not known",
        ),
        ({"device": "meta"}, ValueError, "on meta"),
    ],
)
def test_estimates_that_are_not_possible(arguments, error, message):
    with pytest.raises(error, match=message):
        estimate_training_for(
            **{"model_class": LeNet, "epochs": 1, "hidden_sizes": (128,)} | arguments
        )


def test_random_numbers_come_back():
    loader = make_MNIST_loader(1000)
    state, loader_state = torch.random.get_rng_state(), loader.generator.get_state()
    estimate_training_for(BasicFCModel, 1, hidden_sizes=[4], loader=loader)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(loader.generator.get_state(), loader_state)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without CUDA")
def test_an_estimate_on_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(RuntimeError, match="device='cuda' needs a CUDA device"):
        estimate_training_for(LeNet, 1, device="cuda")
