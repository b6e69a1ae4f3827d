import contextlib
import hashlib
import math
import random
import signal
import statistics

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from helpers.data import make_MNIST_loader
from helpers.models import BasicFCModel, LeNet
from helpers.training import _loop as loop, accuracy, gpu_train, train


def batches(count=4, *, size=8, classes=10, seed=0):
    """Batches of noise with labels: enough for what does not need digits."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, 6, generator=generator),
            torch.randint(classes, (size,), generator=generator),
        )
        for _ in range(count)
    ]


def small(**arguments):
    torch.manual_seed(0)
    return BasicFCModel(6, 5, 10, 2, **arguments)


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(left, right):
    return all(torch.equal(left[name], right[name]) for name in left)


def fingerprint(model):
    return hashlib.sha256(
        b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    ).hexdigest()


def recording(generator_function, record):
    """The generator, with ``record()`` called before each item it gives."""

    def recorded(*arguments):
        for item in generator_function(*arguments):
            record()
            yield item

    return recorded


# What comes back


def test_lenet_learns_the_packaged_digits():
    torch.manual_seed(0)
    test_loader = make_MNIST_loader(500, split="test")
    model = LeNet()
    assert accuracy(model, test_loader) < 0.3
    run = train(model, make_MNIST_loader(64), 5, test_loader=test_loader)
    assert run.test_accuracy_share >= 0.93
    assert run.test_accuracy_share == accuracy(model, test_loader)
    losses = [row.loss for row in run.rows]
    assert losses == sorted(losses, reverse=True)
    assert (run.model, run.device, run.batch_size, run.epochs, run.examples, run.steps) == (
        "LeNet",
        "cpu",
        64,
        5,
        4000,
        63,
    )
    assert [row.epoch for row in run.rows] == [1, 2, 3, 4, 5]
    assert run.total_s == sum(row.time_s for row in run.rows)
    assert run.examples_per_s == pytest.approx(5 * 4000 / run.total_s)
    assert "test accuracy share  9" in str(run)
    assert list(run.table()["epoch"]) == [1, 2, 3, 4, 5]


def test_accuracy_is_that_of_predictions_counted_by_hand():
    model, loader = small(), batches(5)
    expected = [
        model(image[None]).argmax().item() == label.item()
        for images, labels in loader
        for image, label in zip(images, labels, strict=True)
    ]
    assert accuracy(model, loader) == statistics.fmean(expected)


def test_training_is_adam_on_cross_entropy_written_out():
    model, oracle, loader = small(), small(), batches()
    run = train(model, loader, 3, learning_rate=0.01)
    optimizer = torch.optim.Adam(oracle.parameters(), lr=0.01, foreach=False)
    losses = []
    for _ in range(3):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = -oracle(images).log_softmax(1)[range(len(labels)), labels].mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    for name, value in oracle.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)
    assert [row.loss for row in run.rows] == pytest.approx(
        [statistics.fmean(losses[i : i + 4]) for i in (0, 4, 8)]
    )


@pytest.mark.parametrize(("waiting_share", "stable"), [(None, True), (0.1, True), (0.11, False)])
def test_a_training_that_waited_for_a_processor_is_no_evidence(monkeypatch, waiting_share, stable):
    monkeypatch.setattr(loop, "watch_waiting", lambda clock: lambda: waiting_share)
    run = train(small(), batches(1), 1)
    assert (run.waiting_share, run.stable) == (waiting_share, stable)


def test_the_mean_over_an_epoch_counts_examples_not_batches():
    images, labels = torch.zeros(5, 6), torch.tensor([1, 1, 1, 1, 2])
    model = small()
    loader = [(images[:4], labels[:4]), (images[4:], labels[4:])]
    run = train(model, loader, 1, learning_rate=1e-12)
    assert run.examples == 5
    assert run.rows[0].loss == pytest.approx(
        nn.functional.cross_entropy(model(images), labels).item(), rel=1e-4
    )


def test_same_seed_same_weights_to_the_bit_and_first_epochs_agree():
    def trained(epochs, seed=0, spoil=0):
        loader = make_MNIST_loader(250, seed=spoil)
        for _ in range(spoil):
            next(iter(loader))
        torch.manual_seed(7)
        model = BasicFCModel(hidden=16)
        torch.manual_seed(spoil)
        return train(model, loader, epochs, seed=seed), weights(model)

    first_run, first = trained(2)
    again_run, again = trained(2, spoil=3)
    assert same(first, again)
    assert [row.loss for row in first_run.rows] == [row.loss for row in again_run.rows]
    assert trained(1)[0].rows[0].loss == first_run.rows[0].loss
    assert not same(first, trained(2, seed=1)[1])


def test_dropout_follows_the_seed():
    def trained(seed):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 10))
        train(model, batches(), seed=seed)
        return weights(model)

    assert same(trained(1), trained(1))
    assert not same(trained(1), trained(2))


@pytest.mark.parametrize("action", ["train", "accuracy"])
def test_random_numbers_modes_and_gradients_come_back(action):
    loader = make_MNIST_loader(1000)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.Dropout(0.1))
    model[2].eval()
    model[1].weight.grad = torch.full_like(model[1].weight, math.nan)
    modes = [module.training for module in model.modules()]
    state, loader_state = torch.random.get_rng_state(), loader.generator.get_state()
    if action == "train":
        train(model, loader, 1)
        assert model[1].weight.grad is None
        assert all(torch.isfinite(value).all() for value in model.state_dict().values())
    else:
        accuracy(model, loader)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(loader.generator.get_state(), loader_state)
    assert [module.training for module in model.modules()] == modes


def test_accuracy_leaves_batch_norm_and_gradients_alone():
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 10))
    model[1].bias.grad = torch.ones(10)
    before = weights(model)
    accuracy(model, batches())
    assert same(before, weights(model))
    assert torch.equal(model[1].bias.grad, torch.ones(10))


def test_training_works_where_the_caller_wants_no_gradients():
    model = small()
    before = weights(model)
    with torch.no_grad():
        train(model, batches(), 1)
        assert not torch.is_grad_enabled()
    assert not same(before, weights(model))


def test_frozen_parameters_stay():
    model = small()
    model.fc1.requires_grad_(False)
    before = weights(model)
    train(model, batches(), 1)
    assert torch.equal(model.fc1.weight, before["fc1.weight"])
    assert not torch.equal(model.fc2.weight, before["fc2.weight"])


# What goes wrong


def test_an_interrupt_leaves_the_last_whole_update():
    def interrupted(loader, stop):
        for number, batch in enumerate(loader):
            if number == stop:
                raise KeyboardInterrupt
            yield batch

    model, oracle, loader = small().eval(), small(), batches(6)
    with pytest.raises(KeyboardInterrupt):
        train(model, interrupted(loader, 3), 1)
    train(oracle, loader[:3], 1)
    assert same(weights(oracle), weights(model))
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("enabled", [True, False])
def test_an_interrupt_while_gradients_are_switched_leaves_them_as_they_were(monkeypatch, enabled):
    """PyTorch turns them off for an update, and an interrupt between its two lines keeps them
    off.
    """

    def interrupted(*_):
        torch.set_grad_enabled(not enabled)
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.optim.Adam, "step", interrupted)
    with torch.set_grad_enabled(enabled):
        with pytest.raises(KeyboardInterrupt):
            train(small(), batches(2), 1)
        assert torch.is_grad_enabled() is enabled
        monkeypatch.setattr(loop, "_refuse_labels", interrupted)
        with pytest.raises(KeyboardInterrupt):
            accuracy(small(), batches(2))
        assert torch.is_grad_enabled() is enabled


@pytest.mark.timed
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a Unix timer")
def test_an_interrupt_at_any_moment_leaves_whole_updates(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    loader, model = (
        batches(30),
        nn.Sequential(*[nn.Linear(6, 6) for _ in range(20)], nn.Linear(6, 10)),
    )
    start, generator, moments = weights(model), random.Random(0), [fingerprint(model)]
    with monkeypatch.context() as patch:
        patch.setattr(
            loop,
            "prepare_batches",
            recording(loop.prepare_batches, lambda: moments.append(fingerprint(model))),
        )
        train(model, loader, 1)
    moments.append(fingerprint(model))
    lasts_s = min(train(model, loader, 1).total_s for _ in range(5))
    before, found = signal.signal(signal.SIGALRM, interrupt), []
    try:
        for _ in range(20):
            model.load_state_dict(start)
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, generator.uniform(0.05, 0.9) * lasts_s)
                train(model, loader, 1)
                signal.setitimer(signal.ITIMER_REAL, 0)
            found.append(moments.index(fingerprint(model)))
            assert torch.is_grad_enabled()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        # for the tests that follow in this process, should it have failed
        torch.set_grad_enabled(True)
        signal.signal(signal.SIGALRM, before)
    assert len(set(found)) > 3


def test_a_loss_that_is_not_finite_names_the_step_and_keeps_the_weights():
    loader = batches(5)
    loader[2][0][0, 0] = math.nan
    model, oracle = small(), small()
    with pytest.raises(
        FloatingPointError, match="the loss is nan at step 3 of epoch 1; try a learning_rate"
    ):
        train(model, loader)
    train(oracle, loader[:2], 1)
    assert same(weights(oracle), weights(model))


@pytest.mark.parametrize(
    ("loader", "error", "message"),
    [
        ([], ValueError, "the loader gave no batch in epoch 1; give one with digits"),
        (iter(batches()), ValueError, "no batch in epoch 2; a generator can be read once only"),
        (
            TensorDataset(torch.zeros(3, 6)),
            TypeError,
            "loader is a TensorDataset; give a DataLoader",
        ),
        (None, TypeError, "loader is a NoneType; give a DataLoader"),
        ([torch.zeros(3, 6)], TypeError, "the loader gave a Tensor; give a DataLoader"),
        ([(torch.zeros(6), 3)], TypeError, "the loader gave a tuple; give a DataLoader"),
        (
            [(torch.zeros(3, 6), torch.zeros(2).long())],
            ValueError,
            r"shape \(3, 6\) and labels of shape \(2,\)",
        ),
        (
            [(torch.zeros(3, 6), torch.zeros(3, 10).long())],
            ValueError,
            r"labels of shape \(3, 10\)",
        ),
        ([(torch.zeros(0, 6), torch.zeros(0).long())], ValueError, r"labels of shape \(0,\)"),
        ([(torch.zeros(3, 6), torch.zeros(3))], TypeError, r"labels of torch\.float32"),
        (
            [(torch.zeros(2, 6), torch.tensor([0, 10]))],
            ValueError,
            "labels run from 0 to 10.*10 outputs.*give it 11",
        ),
        ([(torch.zeros(2, 6), torch.tensor([-100, 1]))], ValueError, "labels run from -100 to 1"),
    ],
)
def test_loaders_that_are_not_accepted(loader, error, message):
    with pytest.raises(error, match=message):
        train(small(), loader)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_labels_may_be_any_whole_numbers(dtype):
    loader = batches()
    expected = train(small(), loader).rows[-1].loss
    assert (
        train(small(), [(images, labels.to(dtype)) for images, labels in loader]).rows[-1].loss
        == expected
    )


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (nn.ReLU(), ValueError, "ReLU has no parameters, so there is nothing to train"),
        (small().requires_grad_(False), ValueError, "all parameters of BasicFCModel are frozen"),
        (LeNet, TypeError, r"model is the class LeNet; give a model, such as LeNet\(\)"),
        (print, TypeError, "model is a builtin_function_or_method; give a model"),
        (
            small().to("meta"),
            ValueError,
            "BasicFCModel is on meta; give a model on one device that holds values",
        ),
        (nn.Sequential(small(), nn.Linear(10, 10, device="meta")), ValueError, "on cpu and meta"),
    ],
)
def test_models_that_are_not_accepted(model, error, message):
    with pytest.raises(error, match=message):
        train(model, batches())


def test_an_output_that_is_not_one_row_an_image_is_named():
    with pytest.raises(ValueError, match=r"output of shape \(8, 2, 10\) for 8 images"):
        train(nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 10)), batches())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"epochs": 0}, ValueError, "epochs=0 is too small; give a whole number, 1 or more"),
        ({"epochs": 1.5}, TypeError, "epochs=1.5 is a float"),
        ({"learning_rate": 0}, ValueError, "learning_rate=0; give a finite number above 0"),
        ({"learning_rate": math.nan}, ValueError, "learning_rate=nan"),
        ({"learning_rate": math.inf}, ValueError, "learning_rate=inf"),
        ({"learning_rate": "fast"}, TypeError, "learning_rate='fast' is text"),
        ({"seed": -1}, ValueError, "seed=-1 is too small"),
    ],
)
def test_numbers_that_are_not_accepted(arguments, error, message):
    model = small()
    before = weights(model)
    with pytest.raises(error, match=message):
        train(model, batches(), **arguments)
    assert same(before, weights(model))


# The GPU


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without CUDA")
def test_gpu_train_says_why_there_is_no_gpu_and_what_to_do():
    model = small()
    before = weights(model)
    with pytest.raises(
        RuntimeError, match=r"gpu_train needs a CUDA device.*: .*Train on the CPU with train\("
    ):
        gpu_train(model, batches())
    assert same(before, weights(model))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_train_brings_the_model_back_trained():
    model = small().eval()
    before, state = weights(model), torch.cuda.get_rng_state()
    run = gpu_train(model, batches(), test_loader=batches())
    assert run.device.startswith("cuda")
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    assert not same(before, weights(model))
    assert not model.training
    assert torch.equal(torch.cuda.get_rng_state(), state)
    with pytest.raises(FloatingPointError, match="step 1 of epoch 1"):
        gpu_train(model, [(torch.full((2, 6), math.nan), torch.zeros(2).long())])
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


def test_a_model_of_another_type_is_refused_with_the_remedy():
    loader = make_MNIST_loader(batch_size=500, split="test")
    with pytest.raises(
        TypeError, match=r"parameters are float64, the images float32; give it with model\.to"
    ):
        train(LeNet().double(), loader, epochs=1)


def test_inference_mode_is_refused():
    loader = make_MNIST_loader(batch_size=500, split="test")
    with torch.inference_mode(), pytest.raises(RuntimeError, match="inference_mode"):
        train(LeNet(), loader, epochs=1)
