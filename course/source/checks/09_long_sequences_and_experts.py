"""The checks of lesson 09: what goes in, what must come out, and what common mistakes would give instead."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from helpers.exercises import Checks
from helpers.ranks import Ranks


def merge(checks: Checks) -> None:
    """Two blocks of keys become one"""
    torch.manual_seed(1)
    query, key, value = torch.randn(3, 8, 4, dtype=torch.float64)
    near, far = _attend(query, key[:2], value[:2]), _attend(query, key[2:], value[2:])
    both = torch.logaddexp(near[1], far[1])
    _returns_two_tensors(checks, *near, *far)
    checks.returns(
        "2 keys and 6 keys give the attention to all 8",
        (*near, *far),
        expected=_attend(query, key, value),
        mistakes={
            _hashable(((near[0] + far[0]) / 2, both)): (
                "Each output was divided by its own sum, so weigh it by that sum, and not by half."
            ),
            _hashable((near[0] + far[0], both)): (
                "Both outputs are means already, so their plain sum is too large. Weigh each by its share of the sum."
            ),
        },
    )
    zeros, ones, low, high = (
        torch.full((1, 1), number) for number in (0.0, 1.0, 900.0, 1000.0)
    )
    checks.returns(
        "logarithms of 900 and 1,000 do not overflow",
        (zeros, low, ones, high),
        expected=(ones, high),
    )


def _returns_two_tensors(checks: Checks, *given):
    checks.returns(
        "two tensors are returned",
        given,
        call=lambda function, *arguments: [
            type(part).__name__ for part in function(*arguments)
        ],
        expected=["Tensor", "Tensor"],
        mistakes={
            ("list", "list"): "The cells below need tensors, so return them without tolist()."
        },
    )


def ring_attention(checks: Checks, ranks: Ranks) -> None:
    """Ring attention on four ranks"""

    def run(function, *parts):
        return ranks.run(function, *parts, timeout_s=20)

    def count(
        rank, world_size, function, *parts
    ):  # within this function, so that it is sent to the ranks by value
        from helpers import parallel

        with parallel.count_collectives() as counter:
            function(rank, world_size, *parts)
        return sorted(
            (call.collective, call.size_bytes) for call in counter.counts.collectives
        )

    torch.manual_seed(1)
    query, key, value = torch.randn(3, 8, 4, dtype=torch.float64)
    parts = [list(tensor.chunk(4)) for tensor in (query, key, value)]
    own = tuple(_attend(*part)[0] for part in zip(*parts, strict=True))
    stationary = tuple(_values_stay(rank, *parts) for rank in range(4))
    checks.returns(
        "every rank has PyTorch's attention to all keys",
        parts,
        call=run,
        expected=scaled_dot_product_attention(query, key, value).chunk(4),
        mistakes={
            _hashable(
                own
            ): "That is the attention to the rank's own keys, so send them round.",
            _hashable(stationary): "Values travel with their keys. Pass both on.",
        },
    )
    both_bytes = key.nbytes + value.nbytes
    sent_bytes = 3 * both_bytes // 4  # a quarter in each of three steps
    checks.returns(
        f"each rank passes on {sent_bytes} bytes",
        parts,
        call=lambda function, *lists: run(count, function, *lists)[0],
        expected=[("receive", sent_bytes), ("send", sent_bytes)],
        mistakes={
            (): "Nothing was sent. A rank has only its own part of each list, and the rest comes round.",
            (("all_gather", both_bytes),): (
                "After an all-gather each rank holds all keys at once. Pass one block on at a time."
            ),
            (("receive", both_bytes), ("send", both_bytes)): (
                "After three steps each block has been everywhere, so do not send it again."
            ),
        },
    )
    checks.returns(
        "a rank returns a tensor, which the cells below join",
        parts,
        call=lambda function, *lists: run(function, *lists)[0],
        expected=scaled_dot_product_attention(query, key, value).chunk(4)[0],
        kind=torch.Tensor,
    )


def _attend(query, key, value):
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    return scores.softmax(dim=-1) @ value, scores.logsumexp(dim=-1, keepdim=True)


def _values_stay(rank, queries, keys, values):
    """Return what a rank computes that sends its keys round and keeps its values."""
    outputs, sums = zip(
        *(_attend(queries[rank], key, values[rank]) for key in keys), strict=True
    )
    weights = torch.cat(sums, dim=1).softmax(dim=1)  # (queries, blocks)
    return sum(weights[:, block, None] * output for block, output in enumerate(outputs))


def zigzag(checks: Checks) -> None:
    """The two pieces of a rank"""
    from_front = "Count the late pieces from the end, so that the first rank has the last one."
    in_order = "Those are two neighbouring pieces, so the ranks stay in order."
    too_far = "The pieces are numbered from 0, so the last of them is 2 * world_size - 1."
    checks.returns(
        "rank 0 of 4 has the first piece and the last",
        (0, 4),
        expected=(0, 7),
        kind=(tuple, list),
        mistakes={
            (0, 4): from_front,
            (0, 1): in_order,
            (0, 8): too_far,
            (7, 0): "The early piece comes first.",
        },
    )
    checks.returns(
        "rank 2 of 8 has pieces 2 and 13",
        (2, 8),
        expected=(2, 13),
        kind=(tuple, list),
        mistakes={(2, 10): from_front, (4, 5): in_order},
    )


def route(checks: Checks) -> None:
    """The experts of a token, and their weights"""
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    router = torch.tensor([[3.0, 1.0, 2.0, 0.0], [-1.0, 0.0, -2.0, 1.0]], dtype=torch.float64)
    _returns_two_tensors(checks, x, router, 2)
    scores = x @ router
    rows = [[0, 2], [3, 1]]
    every = scores.softmax(dim=1)
    checks.returns(
        "each token visits the two experts with the highest scores, weighted by a softmax of these two",
        (x, router, 2),
        call=_weights,
        expected=_spread(rows, scores),
        mistakes={
            _hashable(_spread(rows, scores, every)): (
                "Take the softmax over the scores of the chosen experts alone, so that their weights add up to 1."
            ),
            _hashable(_spread(rows, scores, torch.full_like(every, 0.5))): (
                "Weigh the experts by their scores and not equally."
            ),
            _hashable(_spread([[3, 1], [2, 0]], scores)): (
                "Choose the experts with the highest scores and not the lowest."
            ),
        },
    )
    checks.returns(
        "with k = 1 the weight is 1",
        (x, router, 1),
        call=_weights,
        expected=[[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]],
    )


def _weights(function, x, router, k):
    """Return the weight of each expert (tokens, experts), so that the order of the chosen ones does not matter."""
    chosen, weights = (torch.as_tensor(part) for part in function(x, router, k))
    return torch.zeros(len(x), router.shape[1], dtype=torch.float64).scatter(
        1, chosen, weights.double()
    )


def _spread(rows, scores, weights=None):
    """Return ``weights`` of the chosen experts, by default a softmax of their scores, and 0 for all others."""
    spread = torch.zeros_like(scores)
    for token, chosen in enumerate(rows):
        spread[token, chosen] = (
            scores[token, chosen].softmax(dim=0) if weights is None else weights[token, chosen]
        )
    return spread


def balance_loss(checks: Checks) -> None:
    """The balance loss"""
    experts = "Multiply by the number of experts, so that an even choice gives 1."
    squared = "Multiply the mean probability by the share of the tokens, and not of the probability by itself."
    counts = "The share of the tokens and not their number."
    even = torch.full((4, 4), 0.25, dtype=torch.float64)
    checks.returns(
        "an even choice of four experts gives 1",
        (even, torch.arange(4)),
        expected=1.0,
        kind=torch.Tensor,
        mistakes={0.25: experts, 4.0: counts},
    )
    probabilities = torch.tensor(
        [[0.6, 0.4], [0.6, 0.4], [0.7, 0.3], [0.1, 0.9]], dtype=torch.float64
    )
    checks.returns(
        "3 of 4 tokens at an expert with the mean probability 0.5 still give 1",
        (probabilities, torch.tensor([0, 0, 0, 1])),
        expected=1.0,
        kind=torch.Tensor,
        mistakes={0.5: experts, 4.0: counts},
    )
    certain = torch.tensor([[0.9, 0.1]] * 4, dtype=torch.float64)
    checks.returns(
        "4 of 4 tokens at an expert with the probability 0.9 give 1.8",
        (certain, torch.zeros(4, dtype=torch.int64)),
        expected=1.8,
        kind=torch.Tensor,
        mistakes={0.9: experts, 7.2: counts, 2 * (0.9**2 + 0.1**2): squared},
    )
    checks.returns(
        "the gradient makes the full expert less probable",
        (certain, torch.zeros(4, dtype=torch.int64)),
        call=_gradient,
        expected=[[0.5, 0.0]] * 4,
        mistakes={
            "none": "The loss has no gradient. Compute it from the tensor of the probabilities."
        },
    )


def _gradient(function, probabilities, chosen):
    """Return the gradient of the loss with respect to the probabilities, "none" where there is none."""
    probabilities = probabilities.requires_grad_()
    loss = function(probabilities, chosen)
    if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
        return "none"
    [gradient] = torch.autograd.grad(loss, probabilities)
    return gradient


def _hashable(value):
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value
