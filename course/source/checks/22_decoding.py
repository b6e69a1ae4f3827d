"""The checks of lesson 22: what goes in, what must come out, and what common mistakes would give instead."""

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.exercises import Checks


def attend_new(checks: Checks) -> None:
    """A new token attends to the cache"""
    query, key = torch.zeros(3, 1), torch.ones(3, 1)
    value = torch.tensor([[3.0], [5.0], [7.0]])
    checks.returns(
        "with a query of 0, the output is the mean of all values so far",
        (query, key, value),
        call=_decode,
        expected=[[3.0], [4.0], [5.0]],
        mistakes={
            ((0.75,), (2.0,), (3.75,)): (
                "You attend to the empty part of the cache, so use only positions 0 to `position`."
            ),
            ((0.0,), (3.0,), (4.0,)): "The new token attends to itself as well.",
            ((3.0,), (2.5,), (7 / 3,)): "Each token has a position of its own in the cache.",
        },
    )
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 6, 4, dtype=torch.float64)
    unscaled = scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0)
    checks.returns(
        "six tokens give what PyTorch gives for all six at once",
        (query, key, value),
        call=_decode,
        expected=scaled_dot_product_attention(query, key, value, is_causal=True),
        mistakes={
            _hashable(
                unscaled
            ): "Divide the scores by the square root of d before the softmax."
        },
    )


def _decode(attend, queries, keys, values):
    """Return what a decoding loop gives that calls ``attend`` once per token, (tokens, d)."""
    cache = torch.zeros(2, len(keys) + 1, keys.shape[1], dtype=keys.dtype)
    rows = [
        attend(query, key, value, cache, position)
        for position, (query, key, value) in enumerate(zip(queries, keys, values, strict=True))
    ]
    return torch.stack([torch.as_tensor(row) for row in rows])


def step_s(checks: Checks) -> None:
    """The time of a step"""
    checks.returns(
        "one sequence: the weights and one cache, divided by the bandwidth",
        (400, 40, 1, 20),
        expected=22.0,
        kind=(int, float),
        mistakes={
            2.0: "The step also reads all weights.",
            20.0: "The step also reads the cache.",
        },
    )
    checks.returns(
        "four sequences: they share the weights, but each has a cache of its own",
        (400, 40, 4, 20),
        expected=28.0,
        kind=(int, float),
        mistakes={
            88.0: "All sequences share the weights, so a step reads them once.",
            22.0: "Each sequence has a cache of its own, so a step reads four of them.",
            7.0: "A step writes a token for every sequence. Its time is not divided among them.",
        },
    )


def grouped(checks: Checks) -> None:
    """Query heads that share key-value heads"""
    torch.manual_seed(0)
    query, key = torch.randn(3, 8, 4).double(), torch.randn(3, 2, 64, 4).double()
    value = torch.randn_like(key)
    one_row = query[:, :, None]  # (batch, heads, 1, d)
    copies = [tensor.repeat_interleave(4, dim=1) for tensor in (key, value)]
    alternating = scaled_dot_product_attention(
        one_row, key.repeat(1, 4, 1, 1), value.repeat(1, 4, 1, 1)
    )
    checks.returns(
        "8 query heads and 2 key-value heads: query heads 0 to 3 share the first",
        (query, key, value),
        expected=scaled_dot_product_attention(one_row, *copies)[:, :, 0],
        kind=torch.Tensor,
        mistakes={
            _hashable(
                alternating[:, :, 0]
            ): "Neighbours share: query heads 0 to 3 use the first."
        },
    )
    checks.returns(
        "no key is copied",
        (query, key, value),
        call=_copying,
        expected="nothing copied",
        mistakes={
            "keys copied": (
                "You copy the keys once per query head. Give the query heads of a group to "
                "`scaled_dot_product_attention` as rows of one head instead."
            )
        },
    )


class _Written(TorchDispatchMode):
    """Notes the largest tensor that an operator writes."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        inputs = {
            tensor.untyped_storage() for tensor in args if isinstance(tensor, torch.Tensor)
        }
        for tensor in result if isinstance(result, tuple) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage() not in inputs:
                self.largest = max(self.largest, tensor.numel())
        return result


def _copying(function, queries, keys, values):
    """Return whether ``function`` writes a tensor that is larger than the keys."""
    with _Written() as written:
        function(queries, keys, values)
    return "keys copied" if written.largest > keys.numel() else "nothing copied"


def verify(checks: Checks) -> None:
    """Accept or resample"""
    model = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    draft = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    checks.returns(
        "the text is distributed as the model's own",
        (model, draft),
        call=_distribution,
        expected=model,
        mistakes={
            (0.35, 0.39, 0.26): (
                "Resample from what the draft proposes too rarely, max(p - q, 0), and not from the model."
            ),
            (0.2, 0.3, 0.5): "You accept every draft token, so the text is the draft's.",
        },
    )
    checks.returns(
        "and as many draft tokens as possible are accepted",
        (model, draft),
        call=_accepted,
        expected=0.7,
        mistakes={0.29: "You can accept more often, and the text is still the model's own."},
    )
    for part, name, expected in (
        (0, "accept", [1.0, 1.0, 0.4]),
        (1, "resample", [1.0, 0.0, 0.0]),
    ):
        checks.returns(
            f"{name} is a tensor, which the cells below index",
            (model, draft),
            call=lambda function, p, q, part=part: function(p, q)[part],
            expected=expected,
            kind=torch.Tensor,
        )


def _distribution(function, model, draft):
    """Return the distribution of the text that is written."""
    accept, resample = function(model, draft)
    accepted = draft * accept
    return accepted + (1 - accepted.sum()) * resample


def _accepted(function, model, draft):
    return (draft * function(model, draft)[0]).sum()


def _hashable(tensor):
    return (
        tuple(map(tuple, tensor.tolist()))
        if tensor.dim() == 2
        else tuple(map(_hashable, tensor))
    )
