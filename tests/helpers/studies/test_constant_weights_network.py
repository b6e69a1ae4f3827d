"""Networks as arrays: the same as the model they come from, and a clear no to every other model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from helpers import models
from helpers.studies.constant_weights._network import (
    Dense,
    Network,
    network_of,
    pruned,
    random_network,
    standard_network,
)


class Nested(nn.Module):
    """Layers in a module of its own, activations as functions and methods."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Tanh())
        self.head = nn.Linear(6, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.head(self.body(x)), dim=-1)


class Methods(nn.Module):
    """An activation as a method."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).sigmoid()


class Residual(Methods):
    """No chain: the input is added to the output."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + x[:, :3]


class Thrown(Methods):
    """What is returned is not the last layer's output."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layer(x)
        return x


def test_the_storys_network_has_its_size():
    network = standard_network()
    assert network.widths == (23, 32, 32, 1)
    assert (network.macs, network.parameters) == (1_792, 1_857)
    assert [layer.activation for layer in network.layers] == ["relu", "relu", "sigmoid"]
    assert all(
        np.array_equal(a.weights, b.weights)
        for a, b in zip(network.layers, standard_network().layers, strict=True)
    )
    assert not np.array_equal(network.layers[0].weights, standard_network(1).layers[0].weights)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 3)),
        nn.Linear(4, 3),
        Nested(),
        Methods(),
        nn.Sequential(nn.Sequential(Methods()), nn.Linear(3, 2)),
        nn.Sequential(
            nn.Identity(),
            nn.Linear(4, 2),
            nn.ReLU(inplace=True),
            nn.Linear(2, 2),
            nn.Softmax(dim=1),
        ),
        models.BasicFCModel(inputs=4, hidden=5, outputs=2),
        models.BasicFCModel(4, 5, 2, variant="lecture"),
        nn.Linear(4, 3).half(),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 3)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_network_computes_what_its_model_does(model):
    model = model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    module = network_of(model).module().double()
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    x = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(module(x), model.eval().double()(x))


def test_a_network_is_its_own_and_its_module_gives_it_back():
    network = random_network((5, 4, 2), ("tanh", "softmax"))
    assert network_of(network) is network
    again = network_of(network.module())
    for one, other in zip(network.layers, again.layers, strict=True):
        assert one.weights.tobytes() == other.weights.tobytes()
        assert (one.bias.tobytes(), one.activation) == (other.bias.tobytes(), other.activation)


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        (
            nn.Sequential(nn.Linear(2, 3), nn.GELU()),
            ValueError,
            "module '1' is GELU; accepted is a chain",
        ),
        (nn.Sequential(nn.ReLU(), nn.Linear(2, 3)), ValueError, "relu.* comes before the first"),
        (
            nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Tanh()),
            ValueError,
            "tanh.* follows another",
        ),
        (nn.Sequential(nn.Linear(2, 3), nn.Softmax(0)), ValueError, "dim=0"),
        (nn.Sequential(nn.Linear(2, 3), nn.Softmax()), ValueError, "dim=None"),
        (nn.Sequential(), ValueError, "no nn.Linear"),
        (nn.Conv2d(1, 1, 1), ValueError, "Conv2d"),
        (nn.LSTM(2, 3), ValueError, "LSTM"),
        (Residual(), ValueError, "does not take the step before it alone|is getitem"),
        (Thrown(), ValueError, "does not return its last layer's output"),
        (nn.Bilinear(2, 2, 2), ValueError, "accepted is a chain"),
        (nn.Linear(2, 3, device="meta"), ValueError, "meta device"),
        (nn.LazyLinear(3), ValueError, "nn.LazyLinear of the model has no weights yet"),
        (
            nn.Sequential(nn.Linear(2, 2), nn.Flatten(0), nn.Linear(2, 2)),
            ValueError,
            "flattens from dimension 0",
        ),
        (nn.Linear(2, 3, dtype=torch.float64), ValueError, "float32 does not hold"),
        (models.LeNet(), ValueError, "accepted is a chain"),
        ("net.pt", TypeError, "not str"),
    ],
    ids=str,
)
def test_any_other_model_is_refused_saying_at_what(model, error, words):
    with pytest.raises(error, match=words):
        network_of(model)


@pytest.mark.parametrize(
    ("weights", "bias", "words"),
    [
        (np.ones((2, 3)), np.ones(2), "weights .* has 3 outputs"),
        (np.ones(3), np.ones(3), r"\(inputs, outputs\)"),
        (np.ones((0, 3)), np.ones(3), "at least one input"),
        (np.ones((2, 3)), np.array([0, np.nan, 0]), r"bias\[1\] is nan"),
        (np.array([[1, np.inf]]), np.ones(2), r"weights\[0, 1\] is inf"),
        (np.array([[0.1]]), np.ones(1), "float32 does not hold"),
        (np.array([[1e300]]), np.ones(1), "float32 does not hold"),
        (np.ones((1, 1), int), np.ones(1), "not int64 array"),
        ([[1.0]], np.ones(1), "not list"),
    ],
)
def test_a_layer_refuses_what_it_cannot_hold(weights, bias, words):
    with pytest.raises((TypeError, ValueError), match=words):
        Dense(weights, bias)


def test_a_layer_cannot_be_changed_from_outside():
    weights = np.ones((2, 2), np.float32)
    layer = Dense(weights, np.zeros(2, np.float32))
    weights[:] = 5
    assert (layer.weights == 1).all()
    with pytest.raises(ValueError, match="read-only"):
        layer.weights[0, 0] = 2


def test_layers_must_fit_together():
    layer = Dense(np.ones((2, 3)), np.ones(3))
    with pytest.raises(ValueError, match="layer 1 gives 3 numbers and layer 2 takes 2"):
        Network((layer, layer))
    with pytest.raises(TypeError, match="at least one Dense"):
        Network(())
    with pytest.raises(
        ValueError, match="activation='gelu' is not known; give one of 'identity', 'relu'"
    ):
        Dense(np.ones((2, 3)), np.ones(3), "gelu")
    with pytest.raises(ValueError, match="2 activations need 3 widths"):
        random_network((1, 2), ("relu", "relu"))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_pruning_takes_the_weights_nearest_to_zero(share):
    network = standard_network()
    kept = pruned(network, share)
    for before, after in zip(network.layers, kept.layers, strict=True):
        gone = after.weights == 0
        assert gone.sum() == round(share * before.weights.size)
        assert np.array_equal(after.weights[~gone], before.weights[~gone])
        assert np.array_equal(after.bias, before.bias)
        if 0 < share < 1:
            assert np.abs(before.weights[gone]).max() <= np.abs(before.weights[~gone]).min()
    assert kept.nonzero_weights == sum(int((layer.weights != 0).sum()) for layer in kept.layers)


def test_pruning_again_takes_no_more_and_a_wrong_share_is_refused():
    once = pruned(standard_network(), 0.5)
    assert pruned(once, 0.5).nonzero_weights == once.nonzero_weights
    for share in (-0.1, 1.5, float("nan"), "half", None):
        with pytest.raises(ValueError, match="0 to 1"):
            pruned(once, share)
