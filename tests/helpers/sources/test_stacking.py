"""Models in one stack, each with what is its own: equal to torch's training of one after another, or it is seen."""

import math

import pytest
import torch
from torch import nn

from helpers import sources
from helpers.sources import _stacking as stacking

TOLERANCE = 1e-12


@pytest.fixture
def nets():
    return [net.double() for net in sources.make_ensemble(4, hidden=6, inputs=3, outputs=2, device="cpu")]


@pytest.fixture
def data():
    """Own inputs, values and masks of four models, 20 examples each."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4, 20, 3, generator=generator, dtype=torch.float64)
    masks = torch.rand(4, 20, generator=generator) < torch.tensor([[0.3], [0.5], [0.7], [0.9]])
    return inputs, torch.stack([inputs[..., 0].sin(), inputs.prod(-1)], dim=-1), masks


def difference(run, other):
    if not torch.equal(run.losses.isnan(), other.losses.isnan()) or not torch.equal(run.steps_taken, other.steps_taken):
        return math.inf
    losses = ((run.losses - other.losses) / other.losses).nan_to_num(0).abs().max()
    judged = (run.validation_losses - other.validation_losses).nan_to_num(0).abs().max()
    return max(float(losses), float(judged), sources.largest_difference(run.models, other.models))


OPTIONS = {
    "one for all": {},
    "own rates": {"rate": (0.001, 0.01, 0.1, 0.03)},
    "own optimizers": {"rate": 0.01, "optimizer": ("sgd", "adam", "adam", "sgd")},
    "own clipping": {"rate": 0.1, "optimizer": "sgd", "clip_norm": (0.01, 0.1, 0.05, 100.0)},
    "own stopping": {"rate": (0.5, 0.3, 0.05, 0.01), "patience": (1, 3, 2, 60)},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_together_is_one_after_another(options, nets, data):
    inputs, targets, masks = data
    given = {"steps": 40, "masks": masks} | OPTIONS[options]
    apart, together = (train(nets, inputs, targets, **given) for train in (sources.train_apart, sources.train_together))
    assert difference(together, apart) < TOLERANCE
    assert sources.largest_difference(together.models, nets) > 1e-3
    if "patience" in given:
        assert len(set(apart.steps_taken.tolist())) >= 3


def test_labels_shared_examples_and_a_loss_of_ones_own(nets, data):
    inputs, targets, _ = data
    shared, labels = inputs[0].expand(4, 20, 3), (targets[0, :, 0] > 0).long().expand(4, 20)
    apart, together = (train(nets, shared, labels, steps=20) for train in (sources.train_apart, sources.train_together))
    assert difference(together, apart) < TOLERANCE
    assert together.validation_losses.isnan().all()
    first = nn.functional.cross_entropy(nets[2](shared[2]), labels[2])
    assert float(apart.losses[0, 2]) == pytest.approx(first.item(), rel=1e-12)
    given = {"steps": 5, "loss": lambda outputs, targets: (outputs - targets).abs().sum(-1)}
    assert difference(sources.train_together(nets, inputs, targets, **given),
                      sources.train_apart(nets, inputs, targets, **given)) < TOLERANCE  # fmt: skip


def test_apart_is_torch(nets, data):
    inputs, targets, _ = data
    run = sources.train_apart(nets, inputs, targets, steps=7, rate=0.02)
    for net, trained, own, wanted in zip(nets, run.models, inputs, targets, strict=True):
        adam = torch.optim.Adam(net.parameters(), lr=0.02)
        for _ in range(7):
            adam.zero_grad()
            ((net(own) - wanted) ** 2).sum(1).mean().div(2).backward()
            adam.step()
        assert sources.largest_difference([net], [trained]) < TOLERANCE


def test_each_gradient_is_clipped_by_its_own_norm():
    """The story's candidate: norms 0.2 and 20, clip 1. One norm for the stack would give 0.01 and 1."""
    gradients = [torch.tensor([[0.12], [12.0]]), torch.tensor([[0.16], [16.0]])]
    stacking.clip_each(gradients, torch.tensor([1.0, 1.0]))
    norms = torch.cat(gradients, dim=1).norm(dim=1)
    assert norms.tolist() == pytest.approx([0.2, 1.0], rel=1e-5)
    whole = nn.Parameter(torch.zeros(4))
    whole.grad = torch.tensor([0.12, 12.0, 0.16, 16.0])
    nn.utils.clip_grad_norm_([whole], 1.0)
    assert whole.grad.reshape(2, 2).norm(dim=0).tolist() == pytest.approx([0.01, 1.0], rel=1e-3)


def test_a_loss_of_weight_0_does_not_stop_a_replica_and_a_mask_does():
    weight, masked = (torch.ones(2, 1, dtype=torch.float64) for _ in range(2))
    plain, right = (stacking.StackedOptimizer([tensor], torch.tensor([0.1, 0.1]), ["adam", "adam"])
                    for tensor in (weight, masked))  # fmt: skip
    for optimizer in (plain, right):
        optimizer.step([torch.ones(2, 1, dtype=torch.float64)])
    before = weight.clone()
    plain.step([torch.tensor([[1.0], [0.0]], dtype=torch.float64)])
    right.step([torch.ones(2, 1, dtype=torch.float64)], torch.tensor([True, False]))
    assert abs(float((weight - before)[1])) > 0.01
    assert float((masked - before)[1]) == 0
    assert float(masked[0]) == pytest.approx(float(weight[0]))


@pytest.mark.parametrize("fused", [False, True])
def test_moves_with_own_rates_are_torch_s_own(fused):
    """Each row is an Adam of its own; the gradients lie transposed in memory, as a batched product leaves them."""
    generator = torch.Generator().manual_seed(1)
    stack = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    rows = [nn.Parameter(row.clone()) for row in stack]
    rates = (0.1, 0.003, 0.02)
    alone = [torch.optim.Adam([row], lr=rate) for row, rate in zip(rows, rates, strict=True)]
    ours = stacking.StackedOptimizer([stack], torch.tensor(rates, dtype=torch.float64), ["adam"] * 3, fused=fused)
    for _ in range(20):
        gradient = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64).transpose(1, 2)
        ours.step([gradient])
        for row, optimizer, own in zip(rows, alone, gradient, strict=True):
            row.grad = own.clone()
            optimizer.step()
    assert float((stack - torch.stack(rows).detach()).abs().max()) < TOLERANCE


def test_what_cannot_be_stacked_is_refused(nets, data):
    inputs, targets, masks = data
    cases = [
        ((nets, inputs, targets[:, :5]), {}, ValueError, "targets has shape"),
        ((nets[:3], inputs, targets), {}, ValueError, "for 3 models"),
        (([], inputs, targets), {}, ValueError, "models is empty"),
        ((nets, inputs.tolist(), targets), {}, TypeError, "inputs="),
        ((nets, inputs, targets), {"patience": 3}, ValueError, "give masks"),
        ((nets, inputs, targets), {"masks": masks.double()}, ValueError, "torch.bool"),
        ((nets, inputs, targets), {"masks": masks | True}, ValueError, "20 of 20 True"),
        ((nets, inputs, targets), {"rate": (0.1, 0.2)}, ValueError, "2 entries for 4 replicas"),
        ((nets, inputs, targets), {"optimizer": "lion"}, ValueError, "'adam', 'sgd'"),
        ((nets, inputs, targets), {"clip_norm": 0}, ValueError, "above 0"),
        (([nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double() for _ in nets], inputs, targets), {}, ValueError,
         "holds buffers"),
    ]  # fmt: skip
    for given, options, kind, words in cases:
        with pytest.raises(kind, match=words):
            sources.train_together(*given, **{"steps": 1} | options)
