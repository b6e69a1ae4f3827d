"""The checks of lesson 11: what goes in, what must come out, and what common mistakes would give instead."""

import torch
from torch import nn

from helpers.exercises import Checks


def saved_bytes(checks: Checks) -> None:
    """What autograd saves"""
    three = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    checks.returns(
        "two layers and a ReLU",
        (three, torch.zeros(5, 4)),
        expected=60,
        kind=int,
        mistakes={
            120: "Two layers save the output of ReLU, but it is in memory only once, so count each storage once.",
            140: "`x` is in memory anyway, whoever saves it.",
            84: "The parameters are in memory anyway, whoever saves them.",
            164: "`x` and the parameters are in memory anyway.",
            0: "Your hook noted nothing, so call the model inside the hooks.",
        },
    )
    checks.returns(
        "one layer saves nothing new", (nn.Linear(4, 3), torch.zeros(5, 4)), expected=0
    )


def saved_per_token(checks: Checks) -> None:
    """What a block saves per token"""
    checks.returns(
        "width 8 and feed-forward width 20",
        (8, 20),
        expected=288,
        kind=int,
        mistakes={
            144: "A bfloat16 value has 2 bytes.",
            576: "A bfloat16 value has 2 bytes, not 4.",
            248: "The gated feed-forward layer saves four vectors of width f, two more than you count.",
            208: "The gated feed-forward layer saves four vectors of width f.",
            256: "Query, key and value are saved as well, one vector of width h each.",
            240: "Query, key and value are saved as well, one vector of width h each.",
        },
    )
    checks.returns("the shape of Llama 2 7B", (4096, 11_008), expected=153_600, kind=int)


def alive(checks: Checks) -> None:
    """Which bytes are alive when"""
    lives = [(0, 4, 100), (1, 3, 20), (2, 3, 7)]  # born, gone, bytes
    checks.returns(
        "three tensors, four moments",
        (lives, 4),
        expected=[100, 120, 127, 100],
        kind=list,
        mistakes={
            (100, 120, 127, 127): "A tensor is no longer alive at the moment `gone`.",
            (
                100,
                20,
                7,
                0,
            ): "A tensor is alive until it is gone, and not only at the moment when it is born.",
            (100, 20, 7, -27): "That is the change at each moment, so add the changes up.",
            (100, 120, 127): "Return one number for each moment.",
        },
    )
    checks.returns(
        "nothing is alive before the first tensor", ([(2, 3, 5)], 3), expected=[0, 0, 5]
    )


class _Counting(nn.Linear):
    """A block that counts how often it runs."""

    runs = 0

    def forward(self, x):
        self.runs += 1
        return super().forward(x).tanh()


def backward_by_blocks(checks: Checks) -> None:
    """The backward pass, block by block"""
    torch.manual_seed(0)
    chain = [_Counting(3, 3).double() for _ in range(3)]
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    (chain[2](chain[1](chain[0](x))) ** 2).sum().backward()
    expected = [
        each.grad.flatten().tolist() for each in (x, *(block.weight for block in chain))
    ]
    x = x.detach()
    checks.returns(
        "the gradients are those of one backward pass",
        (chain, x),
        call=_gradients,
        expected=expected,
    )
    checks.returns(
        "each block runs twice",
        (chain, x),
        call=_runs,
        expected=[2, 2, 2],
        mistakes={
            (1, 1, 1): "Each block ran only once, so autograd saved everything inside it."
        },
    )


def _gradients(function, blocks, x):
    for block in blocks:
        block.zero_grad()
        block.runs = 0
    gradient = function(blocks, x.clone(), lambda y: (y**2).sum())
    return [
        each.flatten().tolist()
        for each in (gradient, *(block.weight.grad for block in blocks))
    ]


def _runs(function, blocks, x):
    _gradients(function, blocks, x)
    return [block.runs for block in blocks]
