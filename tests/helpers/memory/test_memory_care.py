"""Care for the caller: nothing of the model changes, also after an error, and every error is one
clear sentence.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from memory_models import Adam, Branches, Raises
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers.memory import (
    ModelError,
    estimate_peak_memory,
    fits,
    max_batch_size,
    measure_peak_memory,
    profile_layer_mem,
)
from helpers.studies.working_set import profile_layer_alexnet, profile_mem
from tests.helpers import turns

FUNCTIONS = (estimate_peak_memory, measure_peak_memory, profile_layer_mem, profile_mem)


def network():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
    model[1].eval()
    model[0].weight.grad = torch.full((8, 8), 3.0)
    model.register_forward_hook(lambda *_: None)
    return model


def state(model):
    return {
        "tensors": {name: value.clone() for name, value in model.state_dict().items()},
        "identity": [id(parameter) for parameter in model.parameters()],
        "versions": [parameter._version for parameter in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "hooks": [
            len(module._forward_hooks) + len(module._forward_pre_hooks)
            for module in model.modules()
        ],
        "global hooks": len(nn.modules.module._global_forward_hooks)
        + len(nn.modules.module._global_forward_pre_hooks),
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state()[1].tolist(),
        "python": random.getstate(),
        "grad mode": torch.is_grad_enabled(),
        "rng function": torch.get_rng_state,
    }


def assert_same(before, after):
    for name, values in before.items():
        if name == "tensors":
            assert all(torch.equal(value, after[name][key]) for key, value in values.items())
        elif name == "gradients":
            pairs = zip(values, after[name], strict=True)
            assert all(a is b is None or torch.equal(a, b) for a, b in pairs)
        elif isinstance(values, torch.Tensor):
            assert torch.equal(values, after[name])
        else:
            assert values == after[name], name


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "how", [{"training": False}, {"optimizer": Adam}], ids=["inference", "training"]
)
def test_the_model_comes_back_as_it_was(function, how):
    model, x = network(), torch.randn(4, 8)
    before, given = state(model), x.clone()
    function(model, x, **how)
    assert_same(before, state(model))
    assert torch.equal(x, given)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("make", "inputs", "how"),
    [
        (Raises, (2, 4), {}),
        (network, (4, 9), {}),
        (network, (4, 8), {"loss": lambda outputs: outputs}),
        (network, (4, 8), {"optimizer": lambda parameters: Adam(parameters, lr=-1)}),
    ],
    ids=["raises", "wrong shape", "loss is no number", "optimizer"],
)
def test_the_model_comes_back_as_it_was_after_an_error(function, make, inputs, how):
    model = make()
    before = state(model)
    with pytest.raises(ModelError):
        function(model, inputs, **how)
    assert_same(before, state(model))


def test_the_callers_mode_does_not_matter():
    expected = estimate_peak_memory(nn.Linear(4, 4), (4, 4), optimizer=Adam).peak_bytes
    with torch.no_grad():
        assert estimate_peak_memory(nn.Linear(4, 4), (4, 4), optimizer=Adam).peak_bytes == expected
    with torch.inference_mode():
        assert measure_peak_memory(nn.Linear(4, 4), (4, 4), optimizer=Adam).peak_bytes == expected


def test_a_view_counts_with_its_own_bytes():
    data = torch.zeros(1000, 4)
    assert (
        estimate_peak_memory(nn.ReLU(), data[:2], training=False).category_bytes["input"]
        == 2 * 4 * 4
    )


def test_the_same_tensor_twice_is_one_input():
    x = torch.zeros(2, 4)
    assert (
        estimate_peak_memory(nn.Bilinear(4, 4, 4), (x, x), training=False).category_bytes["input"]
        == x.nbytes
    )


def quantised():
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Branches, r"forward pass looks at the values of a tensor .*measure_peak_memory"),
        (Raises, r"forward pass raised KeyError: 'no such expert'"),
        (lambda: nn.LazyLinear(4), "run the model once"),
        (lambda: torch.compile(nn.Linear(4, 4)), "compiled"),
        (quantised, "quantised"),
        (lambda: torch.jit.script(nn.Linear(4, 4)), "TorchScript"),
        (
            lambda: nn.Linear(5, 5),
            r"forward pass raised RuntimeError: .*\(inputs of shape \(2, 4\)\)",
        ),
        (lambda: nn.Embedding(5, 4), "given float32 for its indices, which are int64 or int32"),
        (nn.Identity, "depends on no parameter"),
    ],
)
def test_a_model_that_cannot_be_estimated_is_one_clear_sentence(make, message, caplog):
    with pytest.raises(ModelError, match=message) as caught:
        estimate_peak_memory(make(), (2, 4))
    assert "\n" not in str(caught.value)
    assert caplog.text == ""


def test_what_cannot_be_estimated_can_be_measured():
    assert measure_peak_memory(Branches(), (2, 4)).peak_bytes > 0


def test_a_model_whose_output_depends_on_values_of_its_input():
    class Selects(nn.Module):
        def forward(self, x):
            return x[x > 0]

    with pytest.raises(ModelError, match="looks at the values"):
        estimate_peak_memory(Selects(), (2, 4), training=False)


@pytest.mark.parametrize("function", [estimate_peak_memory, measure_peak_memory])
@pytest.mark.parametrize("bias", [False, True])
def test_inputs_of_another_type_than_the_model_are_refused(function, bias):
    model = nn.Linear(4, 4, bias=bias, dtype=torch.bfloat16)
    with pytest.raises(ModelError, match=r"RuntimeError: .*(same dtype|needs one type)") as caught:
        function(model, torch.zeros(2, 4))
    assert "\n" not in str(caught.value)
    assert function(model, torch.zeros(2, 4), autocast=torch.bfloat16).peak_bytes > 0


@pytest.mark.parametrize("inputs", [(), (4, True), {}, None, "x", (2.0, 3), [None]])
def test_inputs_that_are_none(inputs):
    with pytest.raises(TypeError, match="give a shape such as"):
        estimate_peak_memory(nn.Linear(4, 4), inputs)
    with pytest.raises(TypeError, match="give a shape such as"):
        max_batch_size(nn.Linear(4, 4), inputs, 1000)


@pytest.mark.parametrize(
    ("arguments", "how", "error", "message"),
    [
        ((nn.Linear(4, 4), (4, -1)), {}, ValueError, "negative"),
        ((lambda x: x, (4, 4)), {}, TypeError, "torch.nn.Module"),
        ((nn.Linear(4, 4), (4, 4)), {"optimizer": "Adam"}, TypeError, "torch.optim.Adam"),
        (
            (nn.Linear(4, 4), (4, 4)),
            {"optimizer": Adam([torch.zeros(1)])},
            TypeError,
            "torch.optim.Adam",
        ),
        (
            (nn.Linear(4, 4), (4, 4)),
            {"optimizer": Adam, "training": False},
            ValueError,
            "inference",
        ),
        ((nn.Linear(4, 4), (4, 4)), {"optimizer": torch.optim.LBFGS}, ModelError, "several times"),
        (
            (nn.Linear(4, 4), (4, 4)),
            {"optimizer": list},
            TypeError,
            "must give a torch.optim.Optimizer",
        ),
        (
            (nn.Linear(4, 4), (4, 4)),
            {"loss": lambda outputs: outputs.sum().item()},
            ModelError,
            "the loss looks at",
        ),
        ((nn.Linear(4, 4), (4, 4)), {"autocast": "bfloat16"}, TypeError, "dtype"),
    ],
)
def test_arguments_that_are_not_accepted(arguments, how, error, message):
    with pytest.raises(error, match=message):
        estimate_peak_memory(*arguments, **how)


def test_only_one_profiler_can_run():
    with torch.autograd.profiler.profile(), pytest.raises(RuntimeError, match="leave it before"):
        fits(nn.Linear(4, 4), (4, 4), 1000)


def test_an_operator_that_cannot_run_alone_is_named_and_what_needs_its_workspace_does_not_crash(
    monkeypatch,
):
    """The backward of oneDNN's LSTM ends the process when it is given no workspace of its
    forward.
    """
    monkeypatch.setattr("helpers.memory._probing._machine_bytes", lambda: 0)
    estimate = estimate_peak_memory(nn.LSTM(8, 8), (4, 2, 8))
    assert any("cannot be run alone here" in sentence for sentence in estimate.uncertain)
    monkeypatch.setattr("helpers.memory._probing._machine_bytes", lambda: 1e18)
    monkeypatch.setattr("helpers.memory._probing._Runner._finish_run", lambda *_: None)
    assert estimate_peak_memory(nn.LSTM(8, 8), (4, 2, 8)).peak_bytes > 0


@pytest.mark.parametrize("training", [False, True])
def test_the_callers_own_autocast_is_that_of_the_step(training):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    asked = estimate_peak_memory(model, (64, 64), training=training, autocast=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        estimate = estimate_peak_memory(model, (64, 64), training=training)
        measured = measure_peak_memory(model, (64, 64), training=training)
        profile_mem(model, (64, 64), training=training)
    assert estimate.peak_bytes == measured.peak_bytes
    assert "in the caller's own autocast to bfloat16" in estimate.step
    if not training:
        assert estimate.peak_bytes == asked.peak_bytes


class Noisy(nn.Linear):
    """Adds noise from a generator of its own."""

    def __init__(self):
        super().__init__(8, 8)
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        return super().forward(x) + torch.rand(x.shape, generator=self.generator)


def test_a_generator_of_the_models_own_is_copied():
    model = Noisy()
    before = model.generator.get_state()
    assert (
        estimate_peak_memory(model, (8, 8)).peak_bytes
        == measure_peak_memory(model, (8, 8)).peak_bytes
    )
    assert torch.equal(model.generator.get_state(), before)


def test_a_nested_tensor_is_refused_with_what_to_do():
    given = {
        "src": torch.randn(4, 10, 16),
        "src_key_padding_mask": torch.arange(10).expand(4, 10) > 6,
    }
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    with pytest.raises(
        ModelError, match=r"give nn\.TransformerEncoder enable_nested_tensor=False, or measure"
    ):
        estimate_peak_memory(nn.TransformerEncoder(layer, 2), given, training=False)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    estimate = estimate_peak_memory(encoder, given, training=False)
    assert estimate.peak_bytes == measure_peak_memory(encoder, given, training=False).peak_bytes


def test_a_view_of_what_an_operator_laid_out_its_own_way():
    model = nn.Sequential(nn.Linear(64, 64), nn.Unflatten(1, (1, 8, 8)), nn.Unfold(3))
    assert (
        estimate_peak_memory(model, (32, 64)).peak_bytes
        == measure_peak_memory(model, (32, 64)).peak_bytes
    )


@pytest.mark.parametrize("training", [False, True])
def test_parameters_that_were_made_in_inference_mode(training):
    with torch.inference_mode():
        model = nn.Linear(8, 8)
    estimate = estimate_peak_memory(model, (8, 8), training=training)
    assert estimate.peak_bytes == measure_peak_memory(model, (8, 8), training=training).peak_bytes


def test_a_model_without_data_is_estimated_and_its_measurement_refused():
    with FakeTensorMode():
        model = nn.Linear(8, 8)
    assert (
        estimate_peak_memory(model, (8, 8)).peak_bytes
        == estimate_peak_memory(nn.Linear(8, 8), (8, 8)).peak_bytes
    )
    with pytest.raises(
        ModelError, match=r"were made under FakeTensorMode and have no data to run on; make them"
    ):
        measure_peak_memory(model, (8, 8))


class Asks(nn.Linear):
    """Asks whether another thread would wait: when its shape is looked up, and in its forward
    pass.
    """

    @property
    def example_shape(self):
        assert turns.is_taken()
        return (4, 8)

    def forward(self, x):
        assert turns.is_taken()
        return super().forward(x)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (estimate_peak_memory, {}),
        (measure_peak_memory, {}),
        (profile_layer_mem, {}),
        (profile_mem, {}),
        (profile_layer_alexnet, {"inputs": (4, 8)}),
        (fits, {"memory_bytes": "1 MB"}),
    ],
)
def test_threads_wait_for_each_other(function, options):
    function(Asks(8, 8), **options)
