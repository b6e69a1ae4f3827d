"""How far ranks are away from one process: by hand, and infinitely far wherever a number is none."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from helpers.parallel._differences import agreement, gradients_of, relative_difference

ONES = torch.ones(3)
NONE = (torch.tensor([1.0, math.nan, 1.0]), torch.tensor([1.0, math.inf, 1.0]))


def agreed(outputs=ONES, expected=ONES, tolerance: float = 1e-6, **gradients):
    wanted = {name: each[-1] for name, each in gradients.items()} or {"weight": ONES}
    found = {name: each[0] for name, each in gradients.items()} or {"weight": ONES}
    return agreement([outputs], expected, found, wanted, tolerance=tolerance)


def test_a_difference_is_over_the_largest_magnitude_of_the_one_process() -> None:
    assert relative_difference(torch.tensor([1.0, 3.5]), torch.tensor([1.0, -4.0])) == 7.5 / 4
    assert relative_difference(torch.tensor([0.25]), torch.zeros(1)) == 0.25
    assert relative_difference(torch.tensor([0.25]), torch.zeros(1), least=0.5) == 0.5
    assert relative_difference(torch.zeros(0), torch.zeros(0)) == 0
    assert relative_difference(None, ONES) == relative_difference(torch.ones(2), ONES) == math.inf


def test_the_worst_gradient_is_named_and_tiny_ones_are_held_against_the_largest() -> None:
    run = agreed(
        large=(torch.tensor([100.0]), torch.tensor([100.0])), small=(torch.tensor([2e-3]), torch.tensor([1e-3]))
    )
    assert (run.equal, run.worst_gradient) == (False, "small")
    assert run.gradient_difference == pytest.approx(1e-3 / (1e-3 * 100))
    assert agreed(tolerance=0.0).equal


@pytest.mark.parametrize("none", NONE)
@pytest.mark.parametrize("first", [True, False])
def test_what_is_no_number_agrees_with_nothing_not_even_with_itself(none, first) -> None:
    """Also where the reference has it: a comparison of NaN with NaN must not say that all is well."""
    both = {"ill": (none, none), "well": (ONES, ONES)}
    for wanted in (both, {"ill": (ONES, none), "well": (ONES, ONES)}, {"ill": (none, ONES), "well": (ONES, ONES)}):
        run = agreed(**(wanted if first else dict(reversed(wanted.items()))))
        assert (run.equal, run.gradient_difference, run.worst_gradient) == (False, math.inf, "ill")
    for outputs, expected in ((none, none), (ONES, none), (none, ONES)):
        run = agreed(outputs, expected)
        assert (run.equal, run.output_difference) == (False, math.inf)


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
