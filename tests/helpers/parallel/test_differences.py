"""How far ranks are away from one process: by hand, and infinitely far wherever a number is none."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from helpers.parallel._comparing import gradients_of, relative_difference

ONES = torch.ones(3)
NONE = (torch.tensor([1.0, math.nan, 1.0]), torch.tensor([1.0, math.inf, 1.0]))


def test_a_difference_is_over_the_largest_magnitude_of_the_one_process() -> None:
    assert relative_difference(torch.tensor([1.0, 3.5]), torch.tensor([1.0, -4.0])) == 7.5 / 4
    assert relative_difference(torch.tensor([0.25]), torch.zeros(1)) == 0.25
    assert relative_difference(torch.zeros(0), torch.zeros(0)) == 0
    assert relative_difference(None, ONES) == relative_difference(torch.ones(2), ONES) == math.inf


@pytest.mark.parametrize("none", NONE)
def test_what_is_no_number_agrees_with_nothing_not_even_with_itself(none) -> None:
    """Also where the reference has it: a comparison of NaN with NaN must not say that all is well."""
    for one, other in ((none, none), (ONES, none), (none, ONES)):
        assert relative_difference(one, other) == math.inf


def test_gradients_are_those_of_autograd_and_zeros_where_the_loss_does_not_look() -> None:
    net = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
    net.forward = lambda inputs: net["used"](inputs)
    net["used"].bias.requires_grad_(requires_grad=False)
    outputs, found = gradients_of(net, torch.tensor([[3.0, 5.0]]), torch.zeros(1, 1), lambda out, _: out.sum())
    assert not outputs.requires_grad
    assert {name: each.flatten().tolist() for name, each in found.items()} == {
        "used.weight": [3.0, 5.0], "unused.weight": [0.0, 0.0], "unused.bias": [0.0],
    }  # fmt: skip
    assert all(each.grad is None for each in net.parameters())
    with pytest.raises(ValueError, match="nothing to compare"):
        gradients_of(net.requires_grad_(requires_grad=False), ONES, ONES, nn.functional.mse_loss)
