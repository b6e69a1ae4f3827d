"""The checks of lesson 04: what goes in, what must come out, and what common mistakes would give instead."""

import itertools
from collections.abc import Iterator

import torch

from helpers.exercises import Checks


def longest_chain(checks: Checks) -> None:
    """The longest chain"""
    fork = {"a": [], "b": ["a"], "c": ["a"], "d": ["a", "b", "c"]}
    waits = "You count the waits between the tasks, so add the first task of the chain."
    total = "The tasks b and c can run at the same time, so take the longest of them, not their sum."
    checks.returns(
        "b and c both wait for a, and d waits for all of them",
        (fork,),
        expected=3,
        kind=int,
        mistakes={
            4: "You count all tasks, but b and c do not wait for each other.",
            6: total,
            2: waits,
        },
    )
    checks.returns(
        "e waits for nothing and nothing waits for it",
        (fork | {"e": []},),
        expected=3,
        kind=int,
        mistakes={
            1: "The chain may end at any task, so take the longest of all.",
            5: "You count all tasks, but b and c do not wait for each other.",
            6: total,
            2: waits,
        },
    )


def share(checks: Checks) -> None:
    """A product in pieces"""
    a, b = torch.arange(8.0).reshape(2, 4), torch.arange(12.0).reshape(4, 3) - 5
    whole = torch.einsum("ti,io->to", a, b)
    term = torch.einsum("ti,io->to", a[:, :2], b[:2])
    checks.returns(
        "with the inputs cut, the terms are added up",
        ("ti,io->to", a, b, "i", 2),
        call=_result,
        expected=whole,
        kind=torch.Tensor,
        mistakes={
            _hashable(term): (
                "You return a piece of the result, but each worker has only a term of every element."
            ),
        },
    )
    checks.returns(
        "and the bytes of the sum are those of 2 x 3 elements",
        ("ti,io->to", a, b, "i", 2),
        call=_bytes,
        expected=24,
        kind=(int, float),
        mistakes={
            48: "The sum is as large as one term, however many terms there are.",
            6: "Each element has 4 bytes.",
            0: "The workers have terms of the same elements, so these must be added up.",
        },
    )
    checks.returns(
        "with the tokens cut, the pieces are put below each other",
        ("ti,io->to", a, b, "t", 2),
        call=_result,
        expected=whole,
        kind=torch.Tensor,
        mistakes={
            _hashable(torch.einsum("ti,io->to", a[:1], b)): (
                "You return a piece of the result, so put all of them together."
            ),
        },
    )
    checks.returns(
        "and nothing is summed",
        ("ti,io->to", a, b, "t", 2),
        call=_bytes,
        expected=0,
        kind=(int, float),
        mistakes=dict.fromkeys(
            (12, 24, 48),
            "Each worker has a piece of the result of its own, so nothing is added.",
        ),
    )
    slopes = torch.arange(6.0).reshape(2, 3) - 2
    checks.returns(
        "with the outputs cut, the gradient of the inputs is a sum",
        ("to,io->ti", slopes, b, "o", 3),
        call=_result,
        expected=torch.einsum("to,io->ti", slopes, b),
        kind=torch.Tensor,
    )


def _result(share, *arguments):
    return share(*arguments)[0]


def _bytes(share, *arguments):
    return share(*arguments)[1]


def delayed(checks: Checks) -> None:
    """Descent on old gradients"""
    returned = []

    def listed(descend, *arguments):
        given = descend(*arguments)
        returned.append(given)
        return list(itertools.islice(iter(given), 100))

    immediate = (
        "Every gradient is applied at once, so let it wait until `delay` others have come."
    )
    checks.returns(
        "without delay it is plain descent",
        (_parabola, 8.0, 0.5, 0, 3),
        call=listed,
        expected=[4.0, 2.0, 1.0],
        mistakes={(8.0, 4.0, 2.0, 1.0): "Yield w after each step, and not before the first."},
    )
    checks.holds(
        "without delay it is plain descent",
        not returned or isinstance(returned[-1], Iterator),
        otherwise="You return all weights at once, but those of 160 networks in 400 steps would fill the memory. "
        "Yield each w.",
    )
    checks.returns(
        "gradients that are one update old",
        (_parabola, 8.0, 0.5, 1, 4),
        call=listed,
        expected=[8.0, 4.0, 0.0, -2.0],
        mistakes={
            (4.0, 2.0, 1.0, 0.5): immediate,
            (8.0, 4.0, 2.0, 1.0): "Apply the oldest gradient that waits, not the newest.",
            (4.0, 0.0, -2.0): "Yield w after each step, also while no gradient arrives.",
            (4.0, 0.0, -2.0, -2.0): "In the first step no gradient has arrived, so w stays 8.",
        },
    )


def _parabola(w):
    return w


def _hashable(tensor):
    return tuple(map(tuple, tensor.tolist()))
