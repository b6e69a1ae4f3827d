"""The checks of lesson 05: what goes in, what must come out, and what common mistakes would give instead."""

import torch
from torch import nn

from helpers.exercises import Checks


def train_rank(checks: Checks, ranks, start) -> None:
    """Training on four ranks"""
    equal, uneven = (12, 12, 12, 12), (24, 12, 8, 4)
    alone = _train_alone(start)
    counts = torch.cat(
        [torch.full((rows,), 48 / 4 / rows, dtype=torch.float64) for rows in uneven]
    )
    of_means = _train_alone(start, row_weights=counts)

    def losses(function, sizes):
        """Return the loss over all 48 rows of the model of each rank."""
        _, inputs, targets = start(0, (48,))
        found = []
        for model in ranks.run(function, sizes, timeout_s=60):
            if not isinstance(model, nn.Module):
                kind = type(model).__name__
                raise TypeError(
                    f"your function returned a {kind}, but the cells below need the model"
                )
            loss = nn.functional.mse_loss(model.to(inputs.device)(inputs), targets)
            found.append(loss.item())
        return found

    def likeness(function, sizes):
        found = losses(function, sizes)
        return "alike" if max(found) - min(found) < 1e-9 else "unlike"

    own = "The ranks begin with weights of their own, so send rank 0's to all before the first step."
    summed = "You take four times the step. An all-reduce gives the sum, and the step needs the mean."
    means = (
        "You take the mean of four means. Every row must count 1/48, on whichever rank it is."
    )
    checks.returns(
        "the ranks stay alike",
        (equal,),
        call=likeness,
        expected="alike",
        mistakes={"unlike": own},
    )
    checks.returns(
        "equal shards end where one process does",
        (equal,),
        call=losses,
        expected=[alone] * 4,
        mistakes={(_train_alone(start, rate=0.4),) * 4: summed},
    )
    checks.returns(
        "unequal shards do so too",
        (uneven,),
        call=losses,
        expected=[alone] * 4,
        mistakes={(of_means,) * 4: means},
    )


def _train_alone(start, *, rate=0.1, row_weights=None):
    """Return the loss after the 20 steps of one process that has all 48 rows."""
    model, x, y = start(0, (48,))
    weights = torch.ones(48).double() if row_weights is None else row_weights  # (48)
    for _ in range(20):
        model.zero_grad()
        ((model(x) - y).square().mean(dim=1) * weights.to(x.device)).mean().backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= rate * weight.grad
    return nn.functional.mse_loss(model(x), y).item()


def ring_step(checks: Checks, ranks, reduce_scatter) -> None:
    """One step of the ring"""
    replaced = (
        "What arrives must be added to your own chunk, because it has other ranks' terms."
    )
    unchanged = (
        "Change the list `chunks` itself, because the loop does not use what you return."
    )
    convention = "In step 0 rank r sends chunk r - 1 and adds to chunk r - 2."
    forward = "In each later step send the chunk that you have just added to."
    checks.returns(
        "in step 0 rank 2 of 4 sends chunk 1 and adds to chunk 0",
        (2, 0),
        call=_one_step,
        expected=("chunk 1 sent", [110, 20, 30, 40]),
        mistakes={
            ("chunk 1 sent", (100, 20, 30, 40)): replaced,
            ("chunk 2 sent", (10, 120, 30, 40)): convention,
            ("chunk 1 sent", (10, 20, 30, 40)): unchanged,
        },
    )
    checks.returns(
        "in step 1 it sends chunk 0 and adds to chunk 3",
        (2, 1),
        call=_one_step,
        expected=("chunk 0 sent", [10, 20, 30, 140]),
        mistakes={("chunk 1 sent", (110, 20, 30, 40)): forward},
    )

    def complete(function, gradients):
        """Return, for each rank, the chunk that is complete there."""
        return [
            chunks[rank].tolist()
            for rank, chunks in enumerate(
                ranks.run(reduce_scatter, function, gradients, timeout_s=60)
            )
        ]

    gradients = torch.tensor(
        [[place * 10.0**rank for place in range(1, 9)] for rank in range(4)]
    )
    checks.returns(
        "on four processes each rank ends with the sum of one chunk",
        (gradients,),
        call=complete,
        expected=gradients.sum(0).reshape(4, 2),
    )


def _one_step(function, rank, step):
    """Return which of four chunks a step sends, and the chunks after it, if 100 arrives from the left."""
    chunks = [torch.tensor([10.0 * place]) for place in (1, 2, 3, 4)]
    sent = []

    def exchange(outgoing):
        sent.extend(place for place, chunk in enumerate(chunks) if chunk is outgoing)
        return torch.tensor([100.0])

    function(chunks, rank, step, exchange)
    for place, chunk in enumerate(chunks):
        if not isinstance(chunk, torch.Tensor):
            kind = type(chunk).__name__
            raise TypeError(
                f"chunk {place} is a {kind} now, but it must stay a tensor, because it is sent on"
            )
    return f"chunk {', '.join(map(str, sent))} sent", [chunk.item() for chunk in chunks]


def ring_s(checks: Checks) -> None:
    """The time of a ring"""
    once = "You add the latency once, but each message pays the latency again."
    half = "That is a reduce-scatter. A ring has two halves, so there are 2 (R - 1) messages."
    whole = "A message has a piece of the tensor, size_bytes / world_size."
    checks.returns(
        "four ranks, 12 bytes at 3 bytes per second, without latency",
        (12, 4, 3),
        expected=6.0,
        kind=(int, float),
        mistakes={3.0: half, 24.0: whole, 8.0: "A rank sends 2 (R - 1) messages, not 2 R."},
    )
    checks.returns(
        "the same with a latency of 2 s",
        (12, 4, 3, 2),
        expected=18.0,
        kind=(int, float),
        mistakes={8.0: once, 9.0: half, 36.0: whole},
    )


def bucket_ends(checks: Checks) -> None:
    """When buckets arrive"""
    once = (
        "The link carries one bucket after the other, so a bucket can wait for the one before."
    )
    early = "A bucket cannot leave before it is full, so the link waits for it."
    checks.returns(
        "a bucket waits until the link is free",
        ([1, 1, 1], [1, 2, 3]),
        expected=[2, 4, 7],
        kind=list,
        mistakes={(2, 3, 4): once},
    )
    checks.returns(
        "the link waits until a bucket is full",
        ([1, 5], [1, 1]),
        expected=[2, 6],
        kind=list,
        mistakes={(2, 3): early},
    )


def tokens_to_hide(checks: Checks) -> None:
    """Tokens that hide the traffic"""
    forward = "Only the backward pass can hide the traffic, and it has 4 FLOP per token and parameter."
    own = "A rank does not send the piece that it ends with, so it sends 2 (R - 1) / R of the gradient."
    half = "A ring has two halves, so a rank sends the gradient nearly twice."
    checks.returns(
        "four ranks of 16 FLOP per second on a link of 2 bytes per second",
        (4, 16, 2),
        expected=6.0,
        kind=(int, float),
        mistakes={
            4.0: forward,
            8.0: own,
            3.0: half,
            12.0: "The backward pass has 4 FLOP, not 2.",
        },
    )
    checks.returns(
        "the same with gradients of 4 bytes",
        (4, 16, 2, 4),
        expected=12.0,
        kind=(int, float),
        mistakes={
            6.0: "An element has gradient_bytes bytes, so gradient_bytes need not be 2."
        },
    )
