"""The checks of lesson 06: what goes in, what must come out, and what common mistakes would give instead."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from helpers.exercises import Checks


def attention_by_heads(checks: Checks, ranks) -> None:
    """Attention of eight heads on four ranks"""
    torch.manual_seed(0)
    inputs = torch.randn(3, 16, dtype=torch.float64)  # (tokens, width)
    weights = torch.randn(4, 16, 16, dtype=torch.float64)
    whole = _attend(inputs, weights, heads=8)
    terms = [
        _attend(inputs, weights, heads=8, own=slice(4 * rank, 4 * rank + 4))
        for rank in range(4)
    ]
    one_head = _attend(inputs, weights, heads=4)
    not_causal = _attend(inputs, weights, heads=8, causal=False)
    checks.returns(
        "every rank has what one process computes",
        (inputs, weights, 8),
        call=lambda function, *arguments: _run(ranks, function, *arguments),
        expected=[whole] * 4,
        mistakes={
            _hashable(
                terms
            ): "Each rank has only its own term, because the all-reduce is missing.",
            _hashable(
                [one_head] * 4
            ): "Each rank has two heads here, and each head has scores of its own.",
            _hashable(
                [not_causal] * 4
            ): "A token looks at itself and at earlier tokens only (is_causal=True).",
            _hashable(
                [whole / 4] * 4
            ): "The terms are added, not averaged, so do not divide by the number of ranks.",
        },
    )
    checks.returns(
        "a rank returns a tensor",
        (inputs, weights, 8),
        call=lambda function, *arguments: _run(ranks, function, *arguments)[0],
        expected=whole,
        kind=torch.Tensor,
    )


def column_then_row_backward(checks: Checks, ranks) -> None:
    """The backward pass on four ranks"""
    torch.manual_seed(0)
    sizes = (2, 4), (4, 8), (8, 3), (2, 3)
    inputs, up, down, gradient = (torch.randint(-3, 4, size).float() for size in sizes)
    hidden = torch.relu(inputs @ up)
    _, back = torch.func.vjp(lambda x, u, d: torch.relu(x @ u) @ d, inputs, up, down)
    to_inputs, to_up, to_down = back(gradient)
    own = list(zip(to_up.chunk(4, dim=1), to_down.chunk(4), strict=True))
    through = (gradient @ down.T) * (hidden > 0)
    terms = [
        part @ columns.T
        for part, columns in zip(through.chunk(4, dim=1), up.chunk(4, dim=1), strict=True)
    ]
    unsummed = [(term, *both) for term, both in zip(terms, own, strict=True)]
    four_times = [(4 * to_inputs, 4 * columns, 4 * rows) for columns, rows in own]
    ungated = gradient @ down.T
    open_gate = [
        (ungated @ up.T, inputs.T @ part, rows)
        for part, (_, rows) in zip(ungated.chunk(4, dim=1), own, strict=True)
    ]
    checks.returns(
        "gradients are those of autograd in one process",
        (inputs, up, down, gradient),
        call=lambda function, *arguments: _run(ranks, function, *arguments),
        expected=[(to_inputs, *both) for both in own],
        mistakes={
            _hashable(unsummed): (
                "Each rank has one term of the inputs' gradient, so add it up over the ranks."
            ),
            _hashable(four_times): (
                "The gradient that comes in is whole already, so do not add it up."
            ),
            _hashable(open_gate): (
                "ReLU passes a gradient on only where the hidden element is above 0."
            ),
        },
    )


def all_backward(checks: Checks, ranks, gpipe) -> None:
    """GPipe's way back: three microbatches, four stages"""
    stages = [nn.Linear(2, 2, bias=False) for _ in range(4)]
    for index, stage in enumerate(stages):
        stage.weight.data = torch.tensor([[1.0, index - 1], [2, -1]])
    microbatches = list(torch.tensor([[[1.0, 2]], [[3, -1]], [[0, 2]]]))
    whole = _gradients(stages, microbatches)
    last_only = _gradients(stages, microbatches[-1:])
    checks.returns(
        "every stage has its gradient of the whole batch",
        (stages, microbatches),
        call=lambda function, *arguments: _run(ranks, gpipe, function, *arguments),
        expected=whole,
        mistakes={
            _hashable(last_only): (
                "Only the last microbatch went back, so go through all of saved."
            ),
            _hashable([each / 3 for each in whole]): (
                "The gradients of microbatches are added up, so do not divide them."
            ),
            _hashable(_from_ones(stages, microbatches)): (
                "Every stage went back from ones, but only the last one does. Start from the gradient "
                "that you receive, and send received.grad on."
            ),
        },
    )


def one_forward_one_backward(checks: Checks) -> None:
    """1F1B, the order of one stage"""
    gpipe_order = "That is GPipe's order. Go back as soon as the stages behind have had their microbatches."
    checks.returns(
        "the last stage goes back at once",
        (3, 4, 2),
        expected=[("F", 0), ("B", 0), ("F", 1), ("B", 1)],
        kind=(list, tuple),
        mistakes={
            (("F", 0), ("F", 1), ("B", 0), ("B", 1)): (
                "One microbatch too many goes ahead, because no stage follows the last one."
            )
        },
    )
    forward = tuple(("F", microbatch) for microbatch in range(4))
    backward = tuple(("B", microbatch) for microbatch in range(4))
    one_ahead = (
        ("F", 0),
        ("F", 1),
        ("B", 0),
        ("F", 2),
        ("B", 1),
        ("F", 3),
        ("B", 2),
        ("B", 3),
    )
    too_many = (("F", 0), ("F", 1), ("F", 2), ("B", 0), ("F", 3), ("B", 1), ("B", 2), ("B", 3))
    checks.returns(
        "stage 2 of 4 is one microbatch ahead",
        (2, 4, 4),
        expected=list(one_ahead),
        kind=(list, tuple),
        mistakes={
            too_many: "One microbatch too many goes ahead, because one stage follows stage 2.",
            (*forward, *backward): gpipe_order,
        },
    )
    three = (("F", 0), ("F", 1), ("F", 2), ("B", 0), ("B", 1))
    checks.returns(
        "two microbatches are enough for four stages",
        (0, 4, 2),
        expected=[("F", 0), ("F", 1), ("B", 0), ("B", 1)],
        kind=(list, tuple),
        mistakes={
            three: "Your stage takes a third microbatch that does not exist. There are two."
        },
    )


def cut_step_s(checks: Checks) -> None:
    """The time of a step"""
    waits = "A pipeline waits for (ranks - 1) / microbatches of its computing time."
    share = (
        "That share is of the whole step. Waiting / computing is (ranks - 1) / microbatches."
    )
    checks.returns(
        "tensor parallel computes for 8 s and sends 30 bytes at 10 per second",
        ("tensor", 8, 30, 10, 5, 8),
        expected=11.0,
        kind=(int, float),
        mistakes={
            15.0: "Only a pipeline waits.",
            8.0: "Nothing is hidden here, so add the time for sending.",
        },
    )
    checks.returns(
        "FSDP sends 40 bytes at 10 per second",
        ("FSDP", 8, 40, 10, 5, 8),
        expected=12.0,
        kind=(int, float),
        mistakes={16.0: "Only a pipeline waits."},
    )
    checks.returns(
        "a pipeline of 5 stages with 8 microbatches also waits for 4 turns of 1 s",
        ("pipeline", 8, 30, 10, 5, 8),
        expected=15.0,
        kind=(int, float),
        mistakes={
            11.0: waits,
            8 * (1 + 4 / 12) + 3: share,
            16.0: "The stages wait for one turn less than there are stages.",
        },
    )


def _run(ranks, function, *arguments):
    return ranks.run(function, *arguments, timeout_s=20)


def _attend(inputs, weights, *, heads, own=slice(None), causal=True):
    """Return attention in one process, or the term that the columns ``own`` of its heads give."""
    query, key, value = (
        (inputs @ weight).unflatten(1, (heads, -1)).transpose(0, 1) for weight in weights[:3]
    )  # (heads, tokens, d) each
    attended = scaled_dot_product_attention(query, key, value, is_causal=causal)
    return attended.transpose(0, 1).flatten(1)[:, own] @ weights[3][own]


def _gradients(stages, microbatches):
    """Return each stage's gradient of the sum of the last outputs, from one process."""
    net = nn.Sequential(*stages)
    return torch.autograd.grad(net(torch.cat(microbatches)).sum(), list(net.parameters()))


def _from_ones(stages, microbatches):
    """Return each stage's gradient of the sum of its own outputs."""
    outputs, gradients = torch.cat(microbatches), []
    for stage in stages:
        outputs = stage(outputs.detach())
        gradients.append(torch.autograd.grad(outputs.sum(), stage.weight)[0])
    return gradients


def _hashable(value):
    """Return tensors, lists and tuples as tuples of numbers, which may be the key of a mistake."""
    value = value.tolist() if isinstance(value, torch.Tensor) else value
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value
