"""An optimizer of a stack, whose replicas have what is their own: equal to torch's of one after
another.
"""

import pytest
import torch
from torch import nn

from helpers.studies.sgd_parallelism import _stacking as stacking

TOLERANCE = 1e-12


def test_each_gradient_is_clipped_by_its_own_norm():
    """The story's candidate: norms 0.2 and 20, clip 1.

    One norm for the stack would give 0.01 and 1.
    """
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
    plain, right = (
        stacking.StackedOptimizer([tensor], torch.tensor([0.1, 0.1]), ["adam", "adam"])
        for tensor in (weight, masked)
    )
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
    """Each row is an Adam of its own; the gradients lie transposed in memory, as a batched product
    leaves them.
    """
    generator = torch.Generator().manual_seed(1)
    stack = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    rows = [nn.Parameter(row.clone()) for row in stack]
    rates = (0.1, 0.003, 0.02)
    alone = [torch.optim.Adam([row], lr=rate) for row, rate in zip(rows, rates, strict=True)]
    ours = stacking.StackedOptimizer(
        [stack], torch.tensor(rates, dtype=torch.float64), ["adam"] * 3, fused=fused
    )
    for _ in range(20):
        gradient = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64).transpose(1, 2)
        ours.step([gradient])
        for row, optimizer, own in zip(rows, alone, gradient, strict=True):
            row.grad = own.clone()
            optimizer.step()
    assert float((stack - torch.stack(rows).detach()).abs().max()) < TOLERANCE
