"""Models on meta, and a CUDA device that is not here: the allocator's rounding by arithmetic."""

from __future__ import annotations

import pytest
import torch
from memory_models import Adam, Residual, SelfAttention
from torch import nn

from helpers import isolation
from helpers.memory import (
    estimate_peak_memory,
    fits,
    max_batch_size,
    measure_peak_memory,
    profile_layer_mem,
)
from helpers.memory._allocator import cuda_usage
from helpers.models import LeNet

needs_no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")


def on_meta(make):
    with torch.device("meta"):
        return make()


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (LeNet, (8, 1, 28, 28)),
        (lambda: nn.LSTM(16, 32, 2, batch_first=True), (4, 10, 16)),
        (lambda: SelfAttention(32, 4, weights=False), (2, 8, 32)),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (2, 3, 8, 8)),
    ],
)
def test_on_meta_it_is_as_on_the_cpu_and_says_so(make, shape):
    expected = estimate_peak_memory(make(), shape, optimizer=Adam)
    for inputs in (shape, torch.zeros(shape), torch.zeros(shape, device="meta")):
        found = estimate_peak_memory(on_meta(make), inputs, optimizer=Adam)
        assert (found.timeline, found.device) == (expected.timeline, "cpu")
        assert found.uncertain == (
            "the model is on meta and no target is given: a CPU was assumed",
        )
    assert estimate_peak_memory(on_meta(make), shape, optimizer=Adam, target="cpu") == expected


def test_tied_weights_on_meta_are_one():
    def tied():
        model = nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 100, bias=False))
        model[1].weight = model[0].weight
        return model

    tokens = torch.zeros(4, 8, dtype=torch.long)
    assert estimate_peak_memory(on_meta(tied), tokens).category_bytes["parameter"] == 4 * 100 * 32


def test_a_model_on_meta_comes_back_as_it_was():
    model = on_meta(lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    tensors = [*model.parameters(), *model.buffers()]
    before = [
        (id(tensor), tensor._version, tensor.device, tensor.requires_grad) for tensor in tensors
    ]
    for function in (estimate_peak_memory, profile_layer_mem):
        function(model, (4, 8), optimizer=Adam)
    assert [
        (id(t), t._version, t.device, t.requires_grad)
        for t in (*model.parameters(), *model.buffers())
    ] == before
    assert all(parameter.grad is None for parameter in model.parameters())


def large():
    return nn.Sequential(nn.Embedding(32_000, 4096), nn.GELU(), nn.Linear(4096, 32_000, bias=False))


def parameters_and_peak():
    model = on_meta(large)
    estimate = estimate_peak_memory(model, torch.zeros(1, 256, dtype=torch.long), optimizer=Adam)
    return (
        sum(parameter.nbytes for parameter in model.parameters()),
        estimate.peak_bytes,
        estimate.uncertain[1:],
    )


def test_a_model_on_meta_is_estimated_in_a_fraction_of_its_memory():
    run = isolation.run_limited(parameters_and_peak, timeout_s=200)
    assert run.status == "returned", run.message
    parameter_bytes, peak_bytes, unsettled = run.value
    assert parameter_bytes == 2 * 4 * 32_000 * 4096
    assert 4 * parameter_bytes < peak_bytes < 6 * parameter_bytes
    assert unsettled == ()
    assert run.peak_bytes < 300_000_000


# CUDA without a CUDA device. float32; sizes worked out by hand and rounded up to 512.

# 4 * 50 * 30 = 6000, 4 * 20 * 50 = 4000, 4 * 20 * 30 = 2400, 4
WEIGHT, X, Y, NUMBER = 6144, 4096, 2560, 512


def product():
    return nn.Linear(50, 30, bias=False)


@needs_no_cuda
def test_rounding_of_one_product_by_hand():
    inference = estimate_peak_memory(product(), (20, 50), training=False, target="cuda")
    assert inference.peak_bytes == WEIGHT + X + Y
    assert inference.device == "cuda:0"
    training = estimate_peak_memory(product(), (20, 50), target="cuda")
    # loss, its gradient, the weight's gradient
    assert training.peak_bytes == WEIGHT + X + 2 * NUMBER + WEIGHT
    assert training.timeline.event_table().live_bytes[0] == WEIGHT + X + Y


@needs_no_cuda
def test_a_tensor_of_512_bytes_takes_512_and_one_more_takes_1024():
    peaks = [
        estimate_peak_memory(nn.ReLU(), (n,), training=False, target="cuda").peak_bytes
        for n in (1, 128, 129)
    ]
    assert peaks == [2 * 512, 2 * 512, 2 * 1024]


@needs_no_cuda
def test_adam_on_cuda_updates_all_parameters_at_once_and_counts_its_steps_on_the_host():
    model = nn.Sequential(product(), nn.Linear(30, 50, bias=False))  # two weights of one size
    estimate = estimate_peak_memory(model, (20, 50), optimizer=Adam, target="cuda")
    assert estimate.phase == "optimizer"
    assert estimate.category_bytes == {
        "parameter": 2 * WEIGHT,
        "input": X,
        "optimizer state": 4 * WEIGHT,
        "gradient": 2 * WEIGHT,
        "optimizer temporary": 2 * WEIGHT,
        "saved activation": NUMBER,
    }
    on_cpu = estimate_peak_memory(model, (20, 50), optimizer=Adam)
    assert on_cpu.category_bytes["optimizer state"] == 4 * 6000 + 2 * 4


@needs_no_cuda
def test_what_backward_keeps_on_the_host_takes_nothing_of_a_gpu():
    class Scaled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 0.5

    names = [
        tensor.name
        for tensor in estimate_peak_memory(Scaled(8, 8), (4, 8), target="cuda").timeline.tensors
    ]
    assert "outside" not in names
    checkpointed = estimate_peak_memory(Residual(checkpointed=True), (4, 64), target="cuda")
    assert "outside" not in {tensor.name for tensor in checkpointed.timeline.tensors}


@needs_no_cuda
def test_what_is_not_modelled_is_said():
    estimate = estimate_peak_memory(product(), (20, 50), target="cuda", autocast=torch.bfloat16)
    assert [sentence.partition(":")[0] for sentence in estimate.uncertain] == [
        "autocast casts what it casts on a CPU; on CUDA it keeps more operators in float32",
        "this machine has no CUDA device",
    ]
    assert "cuBLAS" in estimate.left_out
    assert "oneDNN" in measure_peak_memory(product(), (20, 50)).left_out
    assert "workspace" not in estimate.category_bytes


@needs_no_cuda
def test_fits_and_the_largest_batch_take_the_target():
    model = on_meta(LeNet)
    found = max_batch_size(model, (1, 1, 28, 28), 4_000_000, optimizer=Adam, target="cuda")
    assert found.device == "cuda:0"
    assert found.peak_bytes <= 4_000_000 < found.next_peak_bytes
    fit = fits(model, (found.batch_size + 1, 1, 28, 28), 4_000_000, optimizer=Adam, target="cuda")
    assert (fit.fits, fit.peak_bytes, fit.device) == (False, found.next_peak_bytes, "cuda:0")
    assert fit.uncertain == found.uncertain != ()


class FakeCuda:
    """An allocator whose counters a test moves."""

    def __init__(self, monkeypatch):
        self.allocated, self.peak, self.calls = 1000, 5000, []
        for name in (
            "synchronize",
            "reset_peak_memory_stats",
            "memory_allocated",
            "max_memory_allocated",
        ):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def synchronize(self, device):
        self.calls.append("synchronize")

    def reset_peak_memory_stats(self, device):
        self.peak = self.allocated

    def memory_allocated(self, device):
        return self.allocated

    def max_memory_allocated(self, device):
        return self.peak

    def take(self, size_bytes):
        self.allocated += size_bytes
        self.peak = max(self.peak, self.allocated)


def test_usage_on_cuda_is_over_what_was_allocated_before(monkeypatch):
    cuda = FakeCuda(monkeypatch)

    def call():
        cuda.take(700)
        cuda.take(-500)
        return "value"

    usage, value = cuda_usage(call, torch.device("cuda"))
    assert (usage.peak_bytes, usage.kept_bytes, value) == (700, 200, "value")
    assert cuda.calls == ["synchronize", "synchronize"]


@needs_no_cuda
def test_a_cuda_device_that_is_not_here_is_not_touched(monkeypatch):
    for name in (
        "synchronize",
        "current_device",
        "get_rng_state",
        "_lazy_init",
        "get_device_properties",
    ):
        monkeypatch.setattr(torch.cuda, name, lambda *_: pytest.fail("touched"))
    assert (
        estimate_peak_memory(
            Residual(checkpointed=True), (4, 64), optimizer=Adam, target="cuda"
        ).peak_bytes
        > 0
    )


@pytest.mark.cuda
def test_a_target_that_is_here_is_probed_as_if_the_model_were_there():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    expected = estimate_peak_memory(LeNet().cuda(), (8, 1, 28, 28), optimizer=Adam)
    for model in (LeNet(), on_meta(LeNet)):
        assert (
            estimate_peak_memory(model, (8, 1, 28, 28), optimizer=Adam, target="cuda") == expected
        )
