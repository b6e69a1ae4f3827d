"""Pruning against torch.nn.utils.prune, brute force over every choice, and a network that is really
smaller.
"""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

from helpers import BasicFCModel, LeNet
from helpers.steps import ModelError
from helpers.studies.sparsity import _pruning, prune, weight_matrix

LINEAR = ["fc1", "fc2", "fc3"]


def lenet(seed=0, **how):
    torch.manual_seed(seed)
    return LeNet(**how)


def net_of(*layers):
    torch.manual_seed(0)
    return nn.Sequential(*layers)


def with_weights(values):
    layer = nn.Linear(len(values[0]), len(values))
    layer.weight.data = torch.tensor(values, dtype=torch.float32)
    return layer


@pytest.mark.parametrize("share", [0, 0.001, 0.29, 0.5, 0.9, 0.987, 1])
@pytest.mark.parametrize("scope", ["layer", "model"])
def test_single_weights_go_as_in_pytorch(share, scope):
    model, theirs = lenet(), lenet()
    parts = [(layer, "weight") for layer in theirs.children() if hasattr(layer, "weight")]
    if scope == "model":
        torch_prune.global_unstructured(parts, torch_prune.L1Unstructured, amount=float(share))
    else:
        for part in parts:
            torch_prune.l1_unstructured(*part, amount=float(share))
    pruned, report = prune(model, share, scope=scope)
    for row, (layer, _) in zip(report.layers, parts, strict=True):
        mine = pruned.get_submodule(row.layer)
        assert torch.equal(mine.weight, layer.weight)
        assert torch.equal(mine.bias, layer.bias)
        zeros = int((layer.weight == 0).sum())
        assert (row.kind, row.weights, row.zeros) == (
            type(mine).__name__,
            layer.weight.numel(),
            zeros,
        )
        assert row.kept == row.weights - zeros
        assert row.zeros_share == zeros / row.weights
    assert (
        report.weights
        == report.kept + report.zeros
        == sum(row.weights for row in report.layers)
        == 41_070
    )
    assert report.zeros == sum(row.zeros for row in report.layers)
    if scope == "model":
        assert report.zeros == round(share * report.weights)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.77])
def test_of_equal_weights_exactly_the_asked_number_goes_the_first_ones(share):
    model = net_of(nn.Linear(30, 7), nn.Linear(7, 10))
    for layer in model:
        layer.weight.data.sign_()
    for scope, each in (
        ("layer", [round(share * 210), round(share * 70)]),
        ("model", [round(share * 280)]),
    ):
        pruned, _ = prune(model, share, scope=scope)
        zeros = [(layer.weight == 0).flatten() for layer in pruned]
        zeros = [torch.cat(zeros)] if scope == "model" else zeros
        assert [gone.nonzero().flatten().tolist() for gone in zeros] == [
            list(range(count)) for count in each
        ]


def best_two(group):
    """Brute force: the sum of magnitudes that the best of the six choices of two keeps."""
    return max(abs(a) + abs(b) for a, b in itertools.combinations(group, 2))


def test_two_of_four_keeps_the_most_of_every_choice():
    model = net_of(nn.Linear(16, 12))
    pruned, report = prune(model, 0.5, pattern="2:4")
    assert (report.zeros, report.zeros_share) == (96, 0.5)
    for before, after in zip(
        model[0].weight.view(-1, 4).tolist(), pruned[0].weight.view(-1, 4).tolist(), strict=True
    ):
        assert sum(value == 0 for value in after) == 2
        assert all(value in (0, old) for value, old in zip(after, before, strict=True))
        assert sum(map(abs, after)) == pytest.approx(best_two(before), rel=1e-7)


def test_of_four_equal_weights_the_first_two_go():
    pruned, _ = prune(nn.Sequential(with_weights([[1, -1, 1, 1, 2, 0, 0, 0]])), 0.5, pattern="2:4")
    assert pruned[0].weight.tolist() == [[0, 0, 1, 1, 2, 0, 0, 0]]


@pytest.mark.parametrize("make", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_in_a_convolution_two_of_four_are_input_channels_at_one_place_of_the_kernel(make):
    conv = make(16, 6, 3, groups=2)
    (pruned,), _ = prune(nn.Sequential(conv), 0.5, pattern="2:4")
    groups = pruned.weight.detach().flatten(2).reshape(6, 2, 4, -1)
    before = conv.weight.detach().flatten(2).reshape(6, 2, 4, -1)
    assert ((groups == 0).sum(2) == 2).all()
    for place in np.ndindex(6, 2, groups.shape[3]):
        four, old = (each[place[0], place[1], :, place[2]].tolist() for each in (groups, before))
        assert sum(map(abs, four)) == pytest.approx(best_two(old), rel=1e-7)
    assert torch.equal(pruned.bias, conv.bias)


def smallest_blocks(matrix, block, share):
    """Blocks one by one, and a sort that keeps the order of equals."""
    down, across = block
    corners = [
        (r, c) for r in range(0, matrix.shape[0], down) for c in range(0, matrix.shape[1], across)
    ]
    corners.sort(key=lambda at: np.abs(matrix[at[0] : at[0] + down, at[1] : at[1] + across]).sum())
    expected = matrix.copy()
    for r, c in corners[: round(share * len(corners))]:
        expected[r : r + down, c : c + across] = 0
    return expected


@pytest.mark.parametrize("block", [(1, 1), (4, 4), (2, 8), (12, 1), (1, 16), (12, 16)])
def test_blocks_go_whole(block):
    model = net_of(nn.Linear(16, 12, dtype=torch.float64))
    for share in (0.0, 0.3, 0.5, 1.0):
        pruned, _ = prune(model, share, pattern="blocks", block=block)
        assert np.array_equal(
            pruned[0].weight.detach(),
            smallest_blocks(model[0].weight.detach().numpy(), block, share),
        )


def test_blocks_of_a_convolution_are_blocks_of_its_matrix():
    conv = nn.Conv2d(6, 4, 3, dtype=torch.float64)
    (pruned,), _ = prune(nn.Sequential(conv), 0.5, pattern="blocks", block=(2, 3))
    expected = smallest_blocks(weight_matrix(conv).numpy(), (2, 3), 0.5)
    assert np.array_equal(weight_matrix(pruned), expected)


def test_the_matrix_of_a_convolution_computes_it():
    conv, images = (
        nn.Conv2d(4, 6, 3, dtype=torch.float64),
        torch.randn(1, 4, 3, 3, dtype=torch.float64),
    )
    channels_last = images.movedim(1, -1).flatten()
    assert torch.allclose(weight_matrix(conv) @ channels_last + conv.bias, conv(images).flatten())
    assert weight_matrix(nn.Linear(3, 2)).shape == (2, 3)


def test_neurons_go_as_in_pytorch():
    model, theirs = lenet(), lenet()
    pruned, _ = prune(model, 0.5, pattern="neurons", layers=["conv2", "fc1"])
    for name in ("conv2", "fc1"):
        torch_prune.ln_structured(theirs.get_submodule(name), "weight", amount=0.5, n=1, dim=0)
        assert torch.equal(pruned.get_submodule(name).weight, theirs.get_submodule(name).weight)
    for name in ("conv1", "fc2", "fc3"):
        assert torch.equal(pruned.get_submodule(name).weight, model.get_submodule(name).weight)


def test_a_network_without_the_neurons_says_the_same():
    """Rows and columns are really taken away: so the removed neurons' biases must be gone as
    well.
    """
    model = lenet().double()
    pruned, report = prune(model, 0.5, pattern="neurons", layers=["fc1", "fc2"])
    small = lenet(hidden=60).double()
    small.load_state_dict(
        {
            **small.state_dict(),
            **{
                name: value for name, value in model.state_dict().items() if name.startswith("conv")
            },
        }
    )
    kept1, kept2 = ((pruned.get_submodule(name).weight != 0).any(1) for name in ("fc1", "fc2"))
    assert (int(kept1.sum()), int(kept2.sum())) == (60, 30)
    with torch.no_grad():
        for name, rows, columns in (
            ("fc1", kept1, slice(None)),
            ("fc2", kept2, kept1),
            ("fc3", slice(None), kept2),
        ):
            layer, old = small.get_submodule(name), model.get_submodule(name)
            layer.weight.copy_(old.weight[rows][:, columns])
            layer.bias.copy_(old.bias[rows])
        images = torch.randn(9, 1, 28, 28, dtype=torch.float64)
        assert torch.allclose(pruned(images), small(images), atol=1e-12)
    assert [row.zeros_share for row in report.layers] == [0.5, 0.5]


def state_of(model):
    """Everything of a model that a caller could miss."""
    values = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    extras = [
        (id(p), p.requires_grad, None if p.grad is None else p.grad.clone(), p._backward_hooks)
        for p in model.parameters()
    ]
    return values, modes, extras


def same_state(before, after):
    return (
        before[0].keys() == after[0].keys()
        and all(torch.equal(before[0][key], after[0][key]) for key in before[0])
        and before[1] == after[1]
        and str(before[2]) == str(after[2])
    )


@pytest.mark.parametrize("how", [{"share": 0.5}, {"share": 0.9, "scope": "model"},
                                 {"share": 0.5, "pattern": "2:4", "layers": ["0", "4"]},
                                 {"share": 0.5, "pattern": "neurons", "layers": ["0"]},
                                 {"share": 0.5, "pattern": "2:4"}])  # fmt: skip
def test_the_model_stays_as_it_was_also_after_a_refusal(how):
    model = net_of(
        nn.Linear(8, 6),
        nn.BatchNorm1d(6),
        nn.Dropout(),
        nn.ReLU(),
        nn.Linear(8, 4),
        nn.Linear(6, 2),
    )
    model[5](model[1](model[0](torch.randn(5, 8)))).sum().backward()
    model[1].eval()
    model[4].weight.requires_grad_(False)
    before, generator = state_of(model), torch.get_rng_state()
    if how == {"share": 0.5, "pattern": "2:4"}:
        with pytest.raises(ValueError, match="6 of 5"):
            prune(model, **how)
    else:
        pruned, _ = prune(model, **how)
        assert [module.training for module in pruned.modules()] == before[1]
        assert torch.equal(pruned[1].running_mean, model[1].running_mean)
        assert [p.requires_grad for p in pruned.parameters()] == [
            p.requires_grad for p in model.parameters()
        ]
        assert all(p.grad is None for p in pruned.parameters())
        assert not {p.data_ptr() for p in pruned.parameters()} & {
            p.data_ptr() for p in model.parameters()
        }
    assert same_state(before, state_of(model))
    assert torch.equal(generator, torch.get_rng_state())


def optimizers(parameters):
    return [
        torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1),
        torch.optim.Adam(parameters, lr=0.1),
        torch.optim.AdamW(parameters, lr=0.1),
    ]


def trained(model, which, steps=3):
    optimizer = optimizers(list(model.parameters()))[which]
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().sum().backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("pattern", ["unstructured", "2:4", "neurons"])
def test_training_keeps_the_zeros_and_changes_the_others(which, pattern):
    model = net_of(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    model[0].weight.requires_grad_(False)  # frozen when pruned, trained later
    pruned, _ = prune(model, 0.5, pattern=pattern, layers=["0", "2"])
    pruned[0].weight.requires_grad_(True)
    before = copy.deepcopy(pruned)
    trained(pruned, which)
    for name, old in before.named_parameters():
        new = pruned.get_parameter(name)
        assert torch.equal(new == 0, old == 0)
        assert (new != old)[old != 0].any()
    # a copy of the copy, as documented: its zeros grow
    assert (trained(before, which)[0].weight != 0).all()


def test_a_shared_weight_is_counted_once_and_stays_shared():
    model = net_of(nn.Embedding(20, 8), nn.Linear(8, 20), nn.Linear(8, 20), nn.Linear(20, 5))
    model[1].weight = model[2].weight = model[0].weight
    pruned, report = prune(model, 0.25)
    assert [row.layer for row in report.layers] == ["1", "3"]
    assert (report.weights, report.zeros) == (260, 65)
    assert pruned[0].weight is pruned[1].weight is pruned[2].weight
    assert int((pruned[0].weight == 0).sum()) == 40
    _, report = prune(model, 0.25, layers=["2"])
    assert [row.layer for row in report.layers] == ["2"]
    twice = nn.Linear(4, 4)
    assert prune(nn.Sequential(twice, nn.ReLU(), twice), 0.5)[1].weights == 16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"scope": "model"},
        {"pattern": "2:4"},
        {"pattern": "blocks", "block": (2, 4)},
        {"pattern": "neurons", "layers": ["0"]},
    ],
)
def test_other_types_lose_as_many(dtype, how):
    model = nn.Sequential(nn.Linear(8, 6, dtype=dtype))
    pruned, report = prune(model, 0.5, **how)
    assert report.zeros == 24
    assert pruned[0].weight.dtype == dtype
    assert torch.equal(
        pruned[0].weight[pruned[0].weight != 0], model[0].weight[pruned[0].weight != 0]
    )


@pytest.mark.parametrize("rows", [[[1, 1 + 2**-10], [1, 1]], [[60_000, 50_000], [-40_000, 50_000]]])
def test_neurons_in_float16_are_ranked_as_they_are(rows):
    """In float16 the first two means are equal, and the others' sums infinite."""
    layer = with_weights(rows).half()
    pruned, _ = prune(layer, 0.5, pattern="neurons", layers=["Linear"])
    assert (pruned.weight == 0).all(1).tolist() == [False, True]


def test_what_is_no_number_is_not_small():
    pruned, report = prune(with_weights([[float("nan"), 1, 2, float("-inf")]]), 0.5)
    assert pruned.weight.isfinite().tolist() == [[False, True, True, False]]
    assert (report.layers[0].layer, report.zeros) == ("Linear", 2)


def test_zeros_that_are_there_count_and_zero_weights_stay_countable():
    once, _ = prune(lenet(), 0.5)
    twice, report = prune(once, 0.75)
    assert all(row.zeros == round(0.75 * row.weights) for row in report.layers)
    assert all(
        ((new == 0) | (old != 0)).all()
        for new, old in zip(twice.parameters(), once.parameters(), strict=True)
    )
    _, report = prune(with_weights([[0.0] * 4] * 2), 0.5)
    assert (report.kept, report.zeros_share) == (0, 1.0)


def test_a_state_that_a_module_keeps_is_no_obstacle():
    class Remembering(nn.Linear):
        def forward(self, x):
            self.hidden = super().forward(x)
            return self.hidden

    model = nn.Sequential(Remembering(4, 4))
    model(torch.ones(1, 4))
    assert torch.equal(prune(model, 0.5)[0][0].hidden, model[0].hidden)


def test_transposed_convolutions_and_empty_models_stay():
    model = nn.Sequential(nn.ConvTranspose2d(2, 2, 3), nn.Conv2d(2, 2, 3))
    pruned, report = prune(model, 1)
    assert [row.layer for row in report.layers] == ["1"]
    assert torch.equal(pruned[0].weight, model[0].weight)


def test_a_weight_computed_from_others_is_refused_by_name():
    model = BasicFCModel(8, 8)
    nn.utils.parametrizations.weight_norm(model.fc2)
    with pytest.raises(ModelError, match="the weight of fc2 is computed from other tensors"):
        prune(model, 0.5)
    assert prune(model, 0.5, layers=["fc1"])[1].weights == 64


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_where_no_gradients_are_kept_it_prunes_as_well(mode):
    model = lenet()
    with mode():
        assert prune(model, 0.5)[1] == prune(model, 0.5)[1]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_same_weights_go():
    for how in (
        {},
        {"scope": "model"},
        {"pattern": "2:4", "layers": LINEAR},
        {"pattern": "neurons", "layers": ["fc1"]},
    ):
        here, _ = prune(lenet(), 0.5, **how)
        there, _ = prune(lenet().cuda(), 0.5, **how)
        assert all(
            torch.equal(a, b.cpu())
            for a, b in zip(here.parameters(), there.parameters(), strict=True)
        )
        assert next(there.parameters()).is_cuda
        moved = here.cuda()
        moved(torch.randn(2, 1, 28, 28, device="cuda")).sum().backward()
        assert (moved.fc1.weight.grad[moved.fc1.weight == 0] == 0).all()


@pytest.mark.parametrize(
    ("name", "wrong", "seen_by"),
    [
        (
            "_two_of_four",
            lambda sizes: _pruning._lowest(sizes.flatten(), sizes.numel() // 2).view_as(sizes),
            test_two_of_four_keeps_the_most_of_every_choice,
        ),
        (
            "_remove",
            lambda parameter, removed: parameter.masked_fill_(removed, 0),
            lambda: test_training_keeps_the_zeros_and_changes_the_others(0, "unstructured"),
        ),
        (
            "_lowest",
            lambda values, count: values <= values.kthvalue(max(count, 1)).values,
            lambda: test_of_equal_weights_exactly_the_asked_number_goes_the_first_ones(0.3),
        ),
        (
            "weight_matrix",
            lambda layer: layer.weight.detach().flatten(1),
            lambda: test_in_a_convolution_two_of_four_are_input_channels_at_one_place_of_the_kernel(
                nn.Conv2d
            ),
        ),
    ],
)
def test_a_planted_fault_is_seen(monkeypatch, name, wrong, seen_by):
    monkeypatch.setattr(_pruning, name, wrong)
    with pytest.raises(AssertionError):
        seen_by()
