"""The estimate against the measurement, the measurement against arithmetic, and each of its parts
left out.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from memory_models import CONFIGURATIONS, Adam, Picks, Residual, SelfAttention, TinyLanguageModel
from torch import nn

from helpers import steps
from helpers.memory import (
    _events as events,
    _tracer as tracer,
    estimate_peak_memory,
    measure_peak_memory,
)
from helpers.memory._allocator import Usage
from helpers.models import LeNet

TOKENS = torch.arange(128).reshape(8, 16) % 100


def assert_exact(model, inputs, **how):
    estimate = estimate_peak_memory(model, inputs, **how)
    assert estimate.peak_bytes == measure_peak_memory(model, inputs, **how).peak_bytes
    return estimate


@pytest.mark.parametrize("training", [False, True], ids=["inference", "Adam"])
@pytest.mark.parametrize(
    "configuration", CONFIGURATIONS, ids=lambda configuration: configuration.name
)
def test_the_estimate_is_the_measurement_on_the_table(configuration, training):
    """The heavy ones have a lighter stand-in here; ``make bench NAME=peak`` runs every one at its
    own size.
    """
    make, shape = configuration.light or (configuration.make, configuration.shape)
    estimate = assert_exact(make(), shape, training=training, optimizer=Adam if training else None)
    assert estimate.uncertain == ()


def small_network():
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))


@pytest.mark.parametrize(
    "optimizer",
    [
        None,
        torch.optim.SGD,
        lambda parameters: torch.optim.SGD(
            parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4
        ),
        torch.optim.Adagrad,
        torch.optim.RMSprop,
        torch.optim.NAdam,
        lambda parameters: Adam(parameters, amsgrad=True),
        lambda parameters: Adam(parameters, foreach=True),
        lambda parameters: Adam(parameters, fused=True),
    ],
)
def test_optimizers(optimizer):
    assert_exact(small_network(), (4, 16, 32), optimizer=optimizer)


def test_an_optimizer_that_reads_its_own_numbers_is_estimated_and_says_so():
    estimate = assert_exact(small_network(), (4, 16, 32), optimizer=torch.optim.Adafactor)
    assert "1 was taken" in estimate.uncertain[0]


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (TinyLanguageModel, TOKENS),
        (Picks, (4, 16, 32)),
        (lambda: nn.GRU(32, 48, 2, batch_first=True, dropout=0.1), (4, 16, 32)),
        (lambda: nn.LSTMCell(32, 48), (4, 32)),
        (
            lambda: nn.Sequential(
                nn.ConvTranspose2d(8, 16, 4, 2, 1),
                nn.GroupNorm(4, 16),
                nn.SiLU(),
                nn.Conv2d(16, 16, 3, groups=16),
                nn.BatchNorm2d(16),
                nn.ReLU(inplace=True),
                nn.Upsample(scale_factor=2, mode="bilinear"),
                nn.Dropout(),
            ),
            (2, 8, 16, 16),
        ),
        (lambda: nn.Linear(64, 64, dtype=torch.bfloat16), torch.zeros(8, 64, dtype=torch.bfloat16)),
        (lambda: nn.Linear(64, 64), (0, 64)),
        (lambda: nn.Linear(64, 64), {"input": torch.zeros(3, 64)}),
        (lambda: nn.Bilinear(8, 8, 4), (torch.zeros(5, 8), torch.zeros(5, 8))),
    ],
)
def test_other_models(make, inputs):
    assert_exact(make(), inputs, optimizer=Adam)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_a_shape_is_of_the_models_type(dtype):
    estimate = assert_exact(
        nn.Linear(4, 4, dtype=dtype), (2, 4), loss=lambda outputs: outputs.abs().sum()
    )
    assert estimate.category_bytes["input"] == 2 * 4 * dtype.itemsize


@pytest.mark.parametrize("bias", [False, True])
def test_complex_weights(bias):
    """Their backward multiplies by conjugate views, which the kernel copies first."""
    model, x = (
        nn.Linear(20, 30, bias=bias, dtype=torch.complex64),
        torch.zeros(2, 20, dtype=torch.complex64),
    )
    assert_exact(model, x, optimizer=torch.optim.SGD, loss=lambda outputs: outputs.abs().sum())


class Negated(nn.Module):
    """A product with the imaginary part of a conjugate: a view that negates when it is read."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(20, 30, dtype=torch.complex64))

    def forward(self, x):
        return x @ self.weight.conj().imag


def test_a_view_that_negates():
    assert_exact(Negated(), torch.zeros(2, 20), optimizer=torch.optim.SGD)


def test_inference_takes_the_fast_path_of_the_encoder():
    estimate = assert_exact(TinyLanguageModel(), TOKENS, training=False)
    assert "_transformer_encoder_layer_fwd" in {
        event.operator for event in estimate.timeline.events
    }


def test_a_loss_of_ones_own_that_holds_its_targets():
    assert_exact(
        TinyLanguageModel(),
        TOKENS,
        loss=lambda logits: F.cross_entropy(logits.reshape(-1, 100), TOKENS.reshape(-1)),
    )


def test_a_model_that_keeps_tensors_of_its_own_between_steps():
    class Cached(nn.Linear):
        def forward(self, x):
            self.last = super().forward(x)
            return (self.last * self.mask).view(-1)[:100]

    model = Cached(64, 64)
    model.mask = torch.ones(64, 64)
    model(torch.zeros(64, 64))  # what it keeps now is a result of autograd
    estimate = assert_exact(model, (64, 64), optimizer=Adam)
    # the mask; at the peak the last result is a new one
    assert estimate.category_bytes["other"] == 64 * 64 * 4


def test_a_function_with_a_backward_of_its_own_and_accumulated_gradients():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient + 2 * x * gradient

    class Uses(nn.Linear):
        def forward(self, x):
            h = super().forward(x)
            return Square.apply(h) + h + h.sin()

    assert_exact(Uses(64, 64), (64, 64), optimizer=Adam)


# What the numbers must be, by arithmetic: float32, n elements; a loss and its gradient are 4 bytes
# each.


def test_inference_of_one_activation_by_hand():
    assert measure_peak_memory(nn.ReLU(), (64, 64), training=False).peak_bytes == 2 * 64 * 64 * 4


def test_training_of_one_activation_by_hand():
    x = torch.zeros(64, 64, requires_grad=True)
    measured = measure_peak_memory(nn.ReLU(), x)
    assert measured.carried_bytes == 64 * 64 * 4
    # output, loss, its gradient, input's gradient
    assert measured.step_bytes == 64 * 64 * 4 + 4 + 4 + 64 * 64 * 4


def test_training_of_one_product_by_hand():
    # y = x w.T, loss sum(y): backward makes w's gradient from an expanded 1, of which the product
    # needs a copy
    measured = measure_peak_memory(nn.Linear(50, 30, bias=False), (20, 50))
    weight, x, y = 4 * 50 * 30, 4 * 20 * 50, 4 * 20 * 30
    assert measured.carried_bytes == weight + x
    assert measured.peak_bytes == weight + x + 4 + 4 + weight + y


def test_adam_carries_two_moments_and_a_step_for_each_parameter():
    measured = measure_peak_memory(nn.Linear(50, 30), (1, 50), optimizer=Adam)
    parameters = 4 * (50 * 30 + 30)
    assert measured.carried_bytes == 3 * parameters + 2 * 4 + 4 * 50


# The parts of the estimate, each shown to matter by leaving it out.


def test_without_workspace_lenet_would_be_far_off(monkeypatch):
    exact = estimate_peak_memory(LeNet(), (64, 1, 28, 28), training=False)
    assert exact.category_bytes["workspace"] > 0.4 * exact.peak_bytes
    monkeypatch.setattr("helpers.memory._allocator.usage", lambda _changes: Usage(0, 0))
    blind = estimate_peak_memory(LeNet(), (64, 1, 28, 28), training=False)
    assert blind.peak_bytes < 0.9 * exact.peak_bytes


def test_without_accumulation_in_place_attention_would_be_off(monkeypatch):
    model = SelfAttention(64, 4, weights=False)
    exact = assert_exact(model, (4, 32, 64))
    monkeypatch.setattr(events, "_in_place_operator", lambda *_: None)
    out_of_place = estimate_peak_memory(model, (4, 32, 64))
    # queries, keys, values: three sums
    assert len(out_of_place.timeline.tensors) == len(exact.timeline.tensors) + 2


def test_without_the_numbers_that_a_product_keeps_it_would_be_eight_bytes_off(monkeypatch):
    class Scaled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 0.5

    model = nn.Sequential(Scaled(64, 64), nn.Linear(64, 512))
    exact = assert_exact(model, (64, 64))
    monkeypatch.setattr("helpers.memory._attribution.saved_number_bytes", lambda *_: 0)
    assert estimate_peak_memory(model, (64, 64)).peak_bytes == exact.peak_bytes - 8


def test_no_kernel_of_the_step_runs_on_real_data(monkeypatch):
    """The trace alone computes nothing: it is done without any real tensor of the step's size."""
    monkeypatch.setattr(
        "helpers.memory._probing.probe_operators", lambda trace, device: pytest.fail("stop here")
    )
    trace = tracer.trace_step(steps.step(nn.Linear(1, 1), (10**12, 1)))
    assert max(trace.storage_bytes.values()) == 4 * 10**12


# Storages that change their size.


class Resizes(nn.Linear):
    """Gives a tensor another size in its forward pass."""

    def __init__(self, resize):
        super().__init__(64, 64)
        self.resize, self.own = resize, torch.empty(0)

    def forward(self, x):
        return super().forward(x) + self.resize(self, x.detach())[0, 0]


def grown(model, x):
    return model.own.resize_(500, 500).fill_(1.0)


def grown_and_shrunk(model, x):
    grown(model, x)
    return model.own.resize_(500, 800).fill_(1.0)[:3].clone()


def emptied(model, x):
    first = torch.ones(500, 500)
    first.untyped_storage().resize_(0)
    return torch.ones(500, 500)


def filled_again(model, x):
    first = torch.ones(500, 500)
    first.untyped_storage().resize_(0)
    first.untyped_storage().resize_(10**6)
    return first.fill_(2.0)


def joined(model, x):
    return torch.cat([x] * 50, out=torch.empty(0))


def stacked(model, x):
    return torch.stack([x] * 50, out=torch.empty(0)).sum(0)


def filled_within_its_room(model, x):
    return torch.cat([x] * 50, out=model.own.resize_(0))


RESIZES = [grown, grown_and_shrunk, emptied, filled_again, joined, stacked, filled_within_its_room]


@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize("training", [False, True])
def test_a_storage_that_is_given_another_size(resize, training):
    assert assert_exact(Resizes(resize), (64, 64), training=training).uncertain == ()


def test_what_a_model_grows_stays_its_own():
    estimate = estimate_peak_memory(Resizes(grown), (64, 64))
    assert ("other", "own", 10**6) in {
        (held.category, held.name, held.size_bytes) for held in estimate.timeline.tensors
    }


# What depends on values, and tensors that share a storage.


class Computes(nn.Linear):
    """A layer, and a function of its outputs."""

    def __init__(self, function):
        super().__init__(16, 16)
        self.function = function

    def forward(self, x):
        return self.function(super().forward(x))


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda y: y.prod(1), "aten.prod.dim_int takes less where no factor is zero"),
        (torch.prod, "aten.prod.default takes less"),
        (lambda y: y.cumprod(1), "aten.cumprod.default takes less"),
        (torch.matrix_exp, "aten.linalg_matrix_exp.default takes inside what the values"),
    ],
)
def test_an_operator_that_takes_memory_by_its_values_is_named(function, named):
    assert named in " ".join(estimate_peak_memory(Computes(function), (16, 16)).uncertain)
    assert (
        estimate_peak_memory(Computes(lambda y: y.detach().cumprod(1) + y), (16, 16)).uncertain
        == ()
    )


class Pushes(nn.Linear):
    """Gives the derivative of a layer along its input, forward."""

    def forward(self, x):
        return torch.func.jvp(super().forward, (x,), (x,))[1]


@pytest.mark.parametrize("training", [False, True])
def test_a_derivative_forward(training):
    assert assert_exact(Pushes(64, 64), (64, 64), training=training).uncertain == ()


class Halves(nn.Module):
    """Two products with the halves of one storage."""

    def __init__(self):
        super().__init__()
        whole = torch.randn(128, 64)
        self.first, self.second = nn.Parameter(whole[:64]), nn.Parameter(whole[64:])

    def forward(self, x):
        return x @ self.first @ self.second


@pytest.mark.parametrize("training", [False, True])
def test_parameters_that_share_a_storage_count_once(training):
    assert (
        assert_exact(Halves(), (64, 64), training=training).category_bytes["parameter"]
        == 128 * 64 * 4
    )


# Checkpointing and mixed precision: the saving is the measured one.


def test_checkpointing_saves_what_it_is_estimated_to_save():
    plain, recomputed = (
        assert_exact(Residual(checkpointed=checkpointed), (512, 64)).peak_bytes
        for checkpointed in (False, True)
    )
    assert recomputed < 0.65 * plain


@pytest.mark.parametrize(("training", "share"), [(False, 0.9), (True, 0.65)])
def test_mixed_precision_saves_what_it_is_estimated_to_save(training, share):
    """Of the tensors: without bfloat16 instructions the library converts operands to float32 in a
    workspace.
    """
    full, mixed = (
        assert_exact(Residual(), (512, 64), training=training, autocast=autocast)
        for autocast in (None, torch.bfloat16)
    )
    tensors, halved = (
        one.peak_bytes - one.category_bytes.get("workspace", 0) for one in (full, mixed)
    )
    assert halved < share * tensors


@pytest.mark.cuda
@pytest.mark.parametrize("training", [False, True])
def test_on_cuda_within_one_per_cent(training):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model, shape = LeNet().cuda(), (512, 1, 28, 28)
    how = {"training": training, "optimizer": Adam if training else None}
    estimate = estimate_peak_memory(model, shape, **how)
    assert all(
        tensor.size_bytes % 512 == 0
        for tensor in estimate.timeline.tensors
        if tensor.category != "workspace"
    )
    assert estimate.peak_bytes == pytest.approx(
        measure_peak_memory(model, shape, **how).peak_bytes, rel=0.01
    )
