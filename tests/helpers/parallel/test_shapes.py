"""Copies without values have the shapes, the types, the ties and the order in memory of what they
copy.
"""

from __future__ import annotations

import torch
from torch import nn

from helpers.studies.parallel_plans._footprint import empty_output, number_type, without_values


def test_a_copy_has_everything_but_the_values() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),
        nn.BatchNorm2d(4),
        nn.Linear(4, 4),
        nn.Linear(4, 4),
    ).half()
    net[3].weight = net[2].weight
    net[2].bias.requires_grad_(requires_grad=False)
    before = {name: each.clone() for name, each in net.state_dict().items()}
    copy = without_values(net)
    assert all(each.is_meta for each in copy.state_dict().values())
    assert copy[3].weight is copy[2].weight
    assert [each.requires_grad for each in copy.parameters()] == [
        each.requires_grad for each in net.parameters()
    ]
    assert [
        (name, each.shape, each.dtype, each.stride()) for name, each in copy.state_dict().items()
    ] == [(name, each.shape, each.dtype, each.stride()) for name, each in net.state_dict().items()]
    assert all(torch.equal(each, before[name]) for name, each in net.state_dict().items())
    assert without_values(net, "cpu")[0].weight.data_ptr() != net[0].weight.data_ptr()


def test_what_is_handed_on_is_what_the_layers_make_and_the_layers_stay_as_they_are() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5)).double()
    made = empty_output(net, torch.empty(7, 3, 4, dtype=number_type(net)))
    assert (made.shape, made.dtype, made.is_meta, made.requires_grad) == (
        (7, 5),
        torch.float64,
        True,
        False,
    )
    assert net[2].num_batches_tracked == 0
    assert empty_output([], torch.zeros(2)).shape == (2,)
    assert (number_type(net), number_type(nn.ReLU())) == (torch.float64, torch.get_default_dtype())
