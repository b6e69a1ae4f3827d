"""The checks of lesson 16: what goes in, what must come out, and what common mistakes would give instead."""

import torch

from helpers.exercises import Checks


def quantise(checks: Checks) -> None:
    """Whole numbers and a scale for each row"""
    rows = torch.tensor([[7, -3.25, 1.75], [-3.5, 1.625, 0.875]]).double()
    whole, scales = torch.tensor([[7, -3, 2], [-7, 3, 2]]), torch.tensor([[1], [0.5]])
    shared = torch.tensor([[7, -3, 2], [-4, 2, 1]]), torch.tensor([[1.0]])
    cut = torch.tensor([[7, -4, 1], [-7, 3, 1]]), scales
    eight = torch.tensor([[8, -4, 2], [-8, 4, 2]]), torch.tensor([[0.875], [0.4375]])
    checks.returns(
        "4 bits reach from -7 to 7, and each row uses all of them",
        (rows, 4),
        expected=(whole, scales),
        mistakes={
            shared: "Each row has a scale of its own.",
            cut: "Take the nearest integer, and not the next lower one.",
            eight: "An integer of 4 bits with a sign does not reach 8 here.",
        },
    )
    for part, name in enumerate(("integers", "scale")):
        checks.returns(
            f"{name}: a tensor, with which the cells below multiply",
            (rows, 4),
            call=lambda function, *given, part=part: function(*given)[part],
            expected=(whole, scales)[part],
            kind=torch.Tensor,
        )


def spacing(checks: Checks) -> None:
    """The step between two numbers"""
    checks.returns(
        "3 bits of mantissa, at 1, 1.75, -5 and 448",
        (torch.tensor([1, 1.75, -5, 448]).double(), 3, -6),
        expected=(0.125, 0.125, 0.5, 32.0),
        kind=torch.Tensor,
        mistakes={
            (
                1.0,
                1.0,
                4.0,
                256.0,
            ): "That is the power of two, which the mantissa divides into 2^m steps.",
            (
                0.125,
                0.21875,
                0.625,
                56.0,
            ): "Between two powers of two the step stays the same.",
        },
    )
    checks.returns(
        "below 2^least the step shrinks no further",
        (torch.tensor([2**-6, 2**-8]).double(), 3, -6),
        expected=(2**-9, 2**-9),
        kind=torch.Tensor,
        mistakes={(2**-9, 2**-11): "Below 2^least the exponent stays at least."},
    )


def smooth(checks: Checks) -> None:
    """The outlier moves into the weights"""
    activations = torch.tensor([[64.0, -2.0], [-16.0, 0.5]])
    weights = torch.tensor([[0.25, 2.0], [0.125, -0.5], [-0.0625, 1.0]])
    s = torch.tensor([16.0, 1.0])
    wrong_way = activations * s, weights / s
    whole = activations / torch.tensor([64.0, 2.0]), weights * torch.tensor([64.0, 2.0])
    only_one = activations / s, weights
    checks.returns(
        "afterwards a channel's largest activation and largest weight are equal",
        (activations, weights),
        expected=(activations / s, weights * s),
        mistakes={
            wrong_way: "The activations are divided, and the weights multiplied.",
            whole: "Now every activation is at most 1, but the weights carry the whole range.",
            only_one: "The product has changed, because the weights stayed as they were.",
        },
    )
    for part, name in enumerate(("activations", "weights")):
        checks.returns(
            f"{name}: a tensor, which the cells below round",
            (activations, weights),
            call=lambda function, *given, part=part: function(*given)[part],
            expected=(activations / s, weights * s)[part],
            kind=torch.Tensor,
        )


def add_up(checks: Checks) -> None:
    """A sum with two decimal digits"""
    checks.returns(
        "100 + 4 + 4 + 4 stays at 100",
        (torch.tensor([100.0, 4.0, 4.0, 4.0]), _two_digits),
        expected=100.0,
        kind=torch.Tensor,
        mistakes={
            112.0: "No partial sum was rounded, and `keep` must see each one.",
            110.0: "Only the last sum was rounded, and `keep` must see each one.",
        },
    )


def _two_digits(total):
    return torch.tensor(float(f"{total.item():.2g}"))


def stochastic(checks: Checks) -> None:
    """A coin decides the last step"""
    checks.returns(
        "0.3 of a step becomes a whole step in three of ten cases",
        (0.3,),
        call=_outcomes,
        expected=[0.0, 0.5, 0.3],
        mistakes={
            (0.0, 0.0, 0.0): "No value ever moves, so the update is lost as before.",
            (
                0.0,
                0.5,
                0.5,
            ): "A value moves in half of the cases, however near the next number is.",
            (0.0, 1.0, 0.6): "The result must be a number of steps times `step`.",
        },
    )
    checks.returns(
        "and -0.3 of a step becomes -1 step as often",
        (-0.3,),
        call=_outcomes,
        expected=[-0.5, 0.0, -0.3],
        mistakes={(0.0, 0.0, 0.0): "Negative numbers must be rounded to either side as well."},
    )


def _outcomes(function, share):
    """Return the smallest and largest result of many values of ``share`` steps of 0.5, and their mean in steps."""
    values = torch.full((40_000,), share / 2, dtype=torch.float64)
    rounded = function(values, torch.full_like(values, 0.5))
    return [rounded.min().item(), rounded.max().item(), round(rounded.mean().item() / 0.5, 1)]
