"""Each thing that cannot be counted says so in one sentence."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from operation_samples import Functional
from torch import nn

from helpers.models import LeNet
from helpers.operations import ForwardError, profile_ops
from helpers.steps import ModelError


def _layer(function):
    return Functional(function, layer=nn.Linear(3, 4))


@pytest.mark.parametrize(
    ("model", "shape", "said"),
    [
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(5, 6)),
            (1, 3, 8, 8),
            (
                r"layer '2' \(Linear\) failed on \(1, 144\) float32.*the model was given \(1, 3, "
                r"8, "
                r"8\)"
            ),
        ),
        (
            nn.Sequential(nn.Conv2d(3, 4, 3)),
            (1, 5, 8, 8),
            r"layer '0' \(Conv2d\) failed on \(1, 5, 8, 8\)",
        ),
        (
            nn.Sequential(nn.BatchNorm2d(4)),
            (1, 5, 8, 8),
            r"layer '0' \(BatchNorm2d\).*5 elements not 4",
        ),
        (LeNet(), (1, 3, 28, 28), r"LeNet failed on \(1, 3, 28, 28\)"),
        (
            nn.Embedding(10, 4),
            (2, 3),
            (
                r"float32 for its indices, which are int64 or int32; .*pass "
                r"inputs=torch.zeros\(shape, "
                r"dtype=torch.long\)"
            ),
        ),
        (nn.EmbeddingBag(10, 4), (2, 3), r"pass inputs=torch.zeros\(shape, dtype=torch.long\)"),
        (
            nn.Bilinear(2, 3, 4),
            (1, 2),
            "missing 1 required positional argument.*pass what the forward takes",
        ),
        (
            _layer(lambda m, x: m.layer(x) if x.sum() > 0 else x),
            (2, 3),
            "needs the values of an activation",
        ),
        (
            _layer(lambda m, x: x[m.layer(x)[:, :3] > 0]),
            (2, 3),
            "needs the values of an activation",
        ),
        (_layer(lambda m, x: m.layer(x).nonzero()), (2, 3), "needs the values of an activation"),
        (
            _layer(lambda m, x: m.layer(x) * x.mean().item()),
            (2, 3),
            "needs the values of an activation",
        ),
        (
            _layer(lambda m, x: torch.from_numpy(x.numpy())),
            (2, 3),
            "needs the values of an activation",
        ),
        (_layer(lambda m, x: m.layer(x).tolist()), (2, 3), "needs the values of an activation"),
    ],
)
def test_a_forward_that_fails(model, shape, said):
    with pytest.raises(ForwardError, match=said) as caught:
        profile_ops(model, shape)
    assert caught.value.__cause__ is not None
    assert "\n" not in str(caught.value)


def test_what_a_layer_was_given_by_name():
    model = _layer(lambda m, x=None, mask=None: m.layer(input=x))
    for values in (False, True):
        with pytest.raises(
            ForwardError, match=r"layer 'layer' \(Linear\) failed on input=\(2, 5\) float32: Run"
        ):
            profile_ops(model, {"x": torch.zeros(2, 5), "mask": None}, values=values)
        with pytest.raises(
            ForwardError, match=r"the forward of Linear failed on x=\(2, 3\) float32: TypeError"
        ):
            profile_ops(nn.Linear(3, 4), {"x": torch.zeros(2, 3)}, values=values)


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda m, x: torch.sparse.mm(m.layer(x).to_sparse(), x),
        lambda m, x: m.layer(x).to_sparse_csr(),
        lambda m, x: torch.sparse.mm(
            torch.sparse_coo_tensor(torch.tensor([[0], [1]]), torch.ones(1), (2, 2)), m.layer(x)
        ),
    ],
)
def test_a_sparse_tensor_within_the_forward(make, values):
    with pytest.raises(ForwardError, match="only dense tensors are counted"):
        profile_ops(_layer(make), (4, 3), values=values)


@pytest.mark.parametrize("values", [False, True])
def test_a_thread_that_uses_the_same_model_is_left_alone(values):
    served, real = nn.Linear(3, 4), torch.ones(2, 3)
    with ThreadPoolExecutor(1) as server:
        server.submit(served, real).result()  # it serves before the profile begins
        answers = []

        def serve_meanwhile(model, x):
            answers.append(server.submit(served, real).exception())
            return model.served(x)

        with pytest.raises(
            ForwardError, match=r"calls a Linear in another thread.*not seen; let it.*count a copy"
        ):
            profile_ops(Functional(serve_meanwhile, served=served), (2, 3), values=values)
    assert answers == [None]


def test_two_types_in_one_product():
    with pytest.raises(ForwardError, match="float32 and float64; a matrix product needs one type"):
        profile_ops(nn.Linear(3, 4), inputs=torch.zeros(2, 3, dtype=torch.float64))


@pytest.mark.parametrize(
    ("make", "said"),
    [(lambda: nn.Linear, "Linear is a class"), (lambda: len, "give a torch.nn.Module")],
)
def test_what_is_no_model(make, said):
    with pytest.raises(TypeError, match=said):
        profile_ops(make(), (2, 3))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.jit.script(nn.Linear(3, 4)), "the model is a TorchScript"),
        (lambda: nn.Sequential(torch.jit.script(nn.Linear(3, 4))), "module '0' is a TorchScript"),
        (
            lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(3, 4))),
            "module '0' is quantised",
        ),
        (lambda: nn.Sequential(nn.LazyLinear(4)), "0.weight has no shape yet"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_models_that_cannot_be_counted(make, said):
    with pytest.raises(ModelError, match=said):
        profile_ops(make(), (2, 3))


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({}, TypeError, "neither a shape nor inputs"),
        ({"shape": (2, 3), "inputs": torch.zeros(2, 3)}, ValueError, "both"),
        ({"shape": (-2, 3)}, ValueError, "negative"),
        ({"shape": (2.0, 3)}, TypeError, "neither a shape nor inputs"),
        ({"shape": (float("nan"), 3)}, TypeError, "neither a shape nor inputs"),
        ({"shape": 3}, TypeError, "neither a shape nor inputs"),
        ({"shape": "2, 3"}, TypeError, "neither a shape nor inputs"),
        ({"shape": (2, 3), "optimizer": "adam"}, TypeError, "optimizer is text, as str"),
        (
            {"shape": (2, 3), "values": "yes"},
            TypeError,
            "values='yes' is text, as str; give True or False",
        ),
        (
            {"shape": (2, 3), "inputs_need_grad": 1},
            TypeError,
            "inputs_need_grad=1 is an int; give True or False",
        ),
        (
            {"shape": (2, 3), "optimizer": torch.optim.LBFGS},
            ModelError,
            "LBFGS runs the model several times",
        ),
        (
            {"shape": (2, 3), "optimizer": lambda p: 3},
            TypeError,
            "gave int; it must give a torch.optim.Optimizer",
        ),
        ({"inputs": torch.zeros(2, 3).to_sparse()}, ForwardError, "dense"),
    ],
)
def test_arguments_that_cannot_be_used(arguments, error, said):
    with pytest.raises(error, match=said):
        profile_ops(nn.Linear(3, 4), **arguments)


def test_an_optimizer_object_is_named():
    model = nn.Linear(3, 4)
    with pytest.raises(TypeError, match="optimizer is a SGD; give a class such as"):
        profile_ops(model, (2, 3), optimizer=torch.optim.SGD(model.parameters()))


@pytest.mark.parametrize(
    ("inputs", "macs"),
    [
        ({"shape": (2, 3)}, 24),
        ({"shape": [2, 3]}, 24),
        ({"shape": torch.Size([2, 3])}, 24),
        ({"shape": torch.zeros(2, 3)}, 24),
        ({"inputs": torch.zeros(2, 3)}, 24),
        ({"inputs": (torch.zeros(2, 3),)}, 24),
        ({"inputs": {"input": torch.zeros(2, 3)}}, 24),
        ({"shape": (0, 3)}, 0),
        ({"shape": (3,)}, 12),
    ],
)
def test_every_way_to_give_the_input(inputs, macs):
    assert profile_ops(nn.Linear(3, 4), **inputs).forward_macs == macs


def test_wrapped_and_typed_models():
    layer = nn.Linear(3, 4)
    compiled_in_place = nn.Linear(3, 4)
    compiled_in_place.compile()
    for model in (
        nn.DataParallel(layer),
        torch.compile(layer),
        compiled_in_place,
        nn.Linear(3, 4).double(),
        nn.Linear(3, 4).bfloat16(),
        nn.Linear(3, 4, device="meta"),
    ):
        assert profile_ops(model, (2, 3)).forward_macs == 24
    assert profile_ops(nn.Linear(3, 4).bfloat16(), (2, 3)).forward_written_bytes == 2 * 8
