"""One grammar for a model and its inputs: every function takes the same forms and refuses with the
same sentence.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from helpers import memory, operations, profiling, roofline
from helpers.hardware.limits._results import MachineLimits, MemoryLevel
from helpers.results import Result
from helpers.steps import ForwardError, ModelError
from helpers.studies import working_set

LIMITS = MachineLimits(
    device="cpu",
    threads=torch.get_num_threads(),
    date="",
    versions={},
    chase="none",
    memory_levels=(MemoryLevel("memory", None, 100e-9, 25e9),),
    peak_flops={"float32": 100e9},
    product_flops={"float32": 80e9},
    call_overhead_s=1e-6,
    launch_s=None,
    host_to_device_bytes_per_s=None,
    device_to_host_bytes_per_s=None,
    unstable=(),
    notes=(),
    latencies=(),
    bandwidths=(),
)
FUNCTIONS = {
    "profile_ops": (operations.profile_ops, {}),
    "profile_ops values": (operations.profile_ops, {"values": True}),
    "estimate_peak_memory": (memory.estimate_peak_memory, {}),
    "measure_peak_memory": (memory.measure_peak_memory, {}),
    "profile_layer_mem": (memory.profile_layer_mem, {}),
    "profile_mem": (working_set.profile_mem, {}),
    "fits": (memory.fits, {"memory_bytes": 10**6}),
    "max_batch_size": (memory.max_batch_size, {"memory_bytes": 10**6, "at_most": 2}),
    "profile_time": (profiling.profile_time, {"budget_s": 1e-6}),
    "estimate_step_time": (profiling.estimate_step_time, {"budget_s": 1e-6}),
    "roofline": (roofline.roofline, {"limits": LIMITS, "budget_s": 1e-6}),
}


def linear():
    return nn.Linear(8, 4)


def bilinear():
    return nn.Bilinear(8, 8, 4)


def embedding():
    return nn.Embedding(5, 4)


def named():
    model = nn.Linear(8, 4)
    model.example_shape = (2, 8)
    return model


X, Y = torch.zeros(2, 8), torch.ones(2, 8)
TOKENS = torch.tensor([[1, 2], [3, 4]])
FORMS = {
    "a shape": (linear, (2, 8)),
    "a shape as a list": (linear, [2, 8]),
    "a torch.Size": (linear, X.shape),
    "a tensor": (linear, X),
    "one argument": (linear, (X,)),
    "a keyword": (linear, {"input": X}),
    "two shapes": (bilinear, ((2, 8), (2, 8))),
    "two arguments": (bilinear, (X, Y)),
    "a list of arguments": (bilinear, [X, Y]),
    "two keywords": (bilinear, {"input1": X, "input2": Y}),
    "shapes by name": (bilinear, {"input1": (2, 8), "input2": (2, 8)}),
    "token ids": (embedding, TOKENS),
    "token ids by name": (embedding, {"input": TOKENS}),
    "two tensors of which one is the other": (bilinear, (X, X)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_takes_every_form_by_position_and_by_either_keyword(name, form):
    (function, how), (make, given) = FUNCTIONS[name], FORMS[form]
    model = make()
    found = [
        function(model, given, **how),
        function(model, inputs=given, **how),
        function(model, shape=given, **how),
    ]
    assert all(isinstance(result, Result) for result in found)
    if "time" not in name and name != "roofline":
        assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_model_may_name_its_shape_itself(name):
    function, how = FUNCTIONS[name]
    assert isinstance(function(named(), **how), Result)


def test_one_input_counts_the_same_in_every_form():
    for make in (linear, bilinear, embedding):
        given = [value for model, value in FORMS.values() if model is make]
        assert len({operations.profile_ops(make(), value).forward_flops for value in given}) == 1
    peaks = [
        memory.estimate_peak_memory(make(), value).peak_bytes
        for make, value in FORMS.values()
        if make is linear
    ]
    assert len(set(peaks)) == 1


class WithoutParts(nn.Module):
    def __init__(self):
        pass


REFUSED = {
    "a class": (
        lambda: nn.Linear,
        {"inputs": (2, 8)},
        TypeError,
        "Linear is a class; give a model made of it",
    ),
    "no model": (
        lambda: 3,
        {"inputs": (2, 8)},
        TypeError,
        "model=3 is an int; give a torch.nn.Module",
    ),
    "a lazy layer": (
        lambda: nn.LazyLinear(4),
        {"inputs": (2, 8)},
        ModelError,
        "weight has no shape yet (a lazy",
    ),
    "TorchScript": (
        lambda: torch.jit.script(linear()),
        {"inputs": (2, 8)},
        ModelError,
        "the model is a TorchScript",
    ),
    "no super": (
        WithoutParts,
        {"inputs": X},
        ModelError,
        "a module has no parts ('WithoutParts' object has no",
    ),
    "too large": (
        linear,
        {"shape": (1, 2**40, 2**30, 8)},
        ValueError,
        "does not fit into memory; give a smaller",
    ),
    "a number": (
        linear,
        {"inputs": 8},
        TypeError,
        "8 is neither a shape nor inputs; give a shape such as",
    ),
    "no whole numbers": (
        linear,
        {"inputs": (2.0, 8)},
        TypeError,
        "(2.0, 8) is neither a shape nor inputs",
    ),
    "text": (linear, {"shape": "2, 8"}, TypeError, "'2, 8' is neither a shape nor inputs"),
    "nothing in it": (linear, {"inputs": ()}, TypeError, "() is neither a shape nor inputs"),
    "a negative size": (
        linear,
        {"shape": (-2, 8)},
        ValueError,
        "shape (-2, 8) has a negative size",
    ),
    "no input": (
        linear,
        {},
        TypeError,
        "neither a shape nor inputs are given, and Linear has no example_shape",
    ),
    "both": (
        linear,
        {"inputs": X, "shape": (2, 8)},
        ValueError,
        "both a shape and inputs are given; give one of them",
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_every_function_refuses_with_the_same_sentence(case):
    make, given, kind, words = REFUSED[case]
    said = set()
    for function, how in FUNCTIONS.values():
        with pytest.raises(kind) as raised:
            function(make(), **given, **how)
        said.add((raised.type, str(raised.value)))
    [(_, sentence)] = said
    assert words in sentence
    assert "\n" not in sentence


class Threads(nn.Module):
    """Calls its layers in threads; with ``looks`` it looks what became of them."""

    def __init__(self, looks):
        super().__init__()
        self.layers, self.looks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), looks

    def forward(self, x):
        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(layer, x) for layer in self.layers]
        return sum(call.result() for call in calls) if self.looks else self.layers[0](x)


@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_forward_in_threads_is_refused(name, looks):
    function, how = FUNCTIONS[name]
    with pytest.raises(
        ForwardError, match="calls a Linear in another thread, whose operators are not seen; let it"
    ):
        function(Threads(looks), (2, 8), **how)


class Bag:
    """An object of a class that nobody knows."""


class Bagged(nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.layer, self.keep = nn.Linear(8, 4), keep

    def forward(self, x):
        bag, y = Bag(), self.layer(x)
        if self.keep:
            bag.logits = [{"y": y}]
        return bag


@pytest.mark.parametrize("name", FUNCTIONS)
def test_outputs_of_an_unknown_class(name):
    function, how = FUNCTIONS[name]
    result = function(Bagged(keep=True), (2, 8), **how)
    if name.startswith("profile_ops"):
        assert (result.forward_macs, result.backward_macs) == (64, 64)
    with pytest.raises(ModelError, match="the model returned Bag without a"):
        function(Bagged(keep=False), (2, 8), **how)


def test_a_forward_that_cannot_be_followed_is_an_error_of_the_model():
    assert issubclass(ForwardError, ModelError)
    assert operations.ForwardError is ForwardError
    assert operations.ModelError is memory.ModelError is profiling.ModelError is ModelError
