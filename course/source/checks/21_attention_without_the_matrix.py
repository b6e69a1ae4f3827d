"""The checks of lesson 21: what goes in, what must come out, and what common mistakes would give instead."""

import math

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.exercises import Checks
from helpers.studies import attention


def one_pass(checks: Checks) -> None:
    """A softmax's maximum and sum in one pass"""
    blocks = [torch.tensor(b, dtype=torch.float64) for b in ([1.0, 3.0], [2.0], [5.0, 4.0])]
    total = (torch.cat(blocks) - 5).exp().sum().item()
    stale = math.exp(-2) + 1 + math.exp(-1) + 1 + math.exp(-1)
    checks.returns(
        "three blocks give the maximum and the sum of all five scores",
        (blocks,),
        call=_once,
        expected=(5.0, total),
        kind=tuple,
        mistakes={
            (5.0, stale): (
                "A sum for an old maximum is too large. Shrink it when a larger one comes."
            )
        },
    )
    checks.returns(
        "scores far below 0 give the same sum",
        ([block - 1000 for block in blocks],),
        call=_once,
        expected=(-995.0, total),
        kind=tuple,
        mistakes={(0.0, 0.0): "All of these are far below 0. Begin with minus infinity."},
    )
    checks.returns(
        "scores far above 0 do not overflow",
        ([block + 1000 for block in blocks],),
        call=_once,
        expected=(1005.0, total),
        kind=tuple,
    )


def _once(function, blocks):
    """Return what ``function`` gives for blocks that can be walked through once."""
    return function(iter(blocks))


def absorb(checks: Checks) -> None:
    """A block of keys is absorbed"""
    torch.manual_seed(1)
    scores = torch.randn(2, 6, dtype=torch.float64) + torch.arange(6)  # (rows, columns)
    values = torch.randn(6, 3, dtype=torch.float64)
    before, after = _state(scores[:, :2], values[:2]), _state(scores, values)
    fresh = (scores[:, 2:] - after[0]).exp() @ values[2:]
    checks.returns(
        "two keys and then four give what six give at once",
        (*before, scores[:, 2:], values[2:]),
        expected=after,
        kind=(tuple, list),
        mistakes={
            _hashable(*after[:2], before[2] + fresh): "Shrink the old output as well.",
            _hashable(*after[:2], after[2] / after[1]): (
                "You divide the output by the sum. Divide only when all keys are absorbed."
            ),
        },
    )
    empty = torch.full((2, 1), -torch.inf), torch.zeros(2, 1), torch.zeros(2, 3)
    checks.returns(
        "the first block of all meets minus infinity, 0 and 0",
        (*(tensor.double() for tensor in empty), scores, values),
        expected=after,
        kind=(tuple, list),
    )


def _state(scores, values):
    """Return the maximum, the sum and the undivided output of rows of scores."""
    largest = scores.amax(dim=-1, keepdim=True)
    weights = (scores - largest).exp()
    return largest, weights.sum(dim=-1, keepdim=True), weights @ values


def by_tiles(checks: Checks) -> None:
    """Attention in tiles"""
    torch.manual_seed(2)
    query, key, value = torch.randn(3, 2, 12, 2, dtype=torch.float64)
    scores = query @ key.mT / 2**0.5
    log = scores.logsumexp(dim=-1, keepdim=True)
    output = scaled_dot_product_attention(query, key, value)
    undivided = output * (log - scores.amax(dim=-1, keepdim=True)).exp()
    unscaled = attention.in_tiles(2**0.5 * query, key, value)
    checks.returns(
        "12 tokens in tiles of 4 x 3 give PyTorch's attention, and lambda",
        (query, key, value, 4, 3),
        expected=(output, log),
        kind=(tuple, list),
        mistakes={
            _hashable(undivided, log): (
                "Divide the output by its sum, once all keys are absorbed."
            ),
            _hashable(*unscaled): "The scores are divided by the root of d.",
        },
    )
    checks.returns(
        "no tensor is larger than the output with its 48 elements",
        (query, key, value, 4, 3),
        call=_largest_tensor,
        expected=48,
        mistakes={
            288: "That is the whole matrix. Make one tile at a time.",
            96: "That is a block of queries with all keys. Split the keys, too.",
        },
    )


class _Written(TorchDispatchMode):
    """Notes the size of the largest tensor that an operator writes."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        inputs = {
            tensor.untyped_storage().data_ptr()
            for tensor in args
            if isinstance(tensor, torch.Tensor)
        }
        for tensor in result if isinstance(result, tuple) else [result]:
            is_tensor = isinstance(tensor, torch.Tensor)
            if is_tensor and tensor.untyped_storage().data_ptr() not in inputs:
                self.largest = max(self.largest, tensor.numel())
        return result


def _largest_tensor(function, *arguments):
    """Return the number of elements of the largest tensor that a call makes."""
    with _Written() as written:
        function(*arguments)
    return written.largest


def tile_gradients(checks: Checks) -> None:
    """The way back through one tile"""
    torch.manual_seed(3)
    query, key, value, gradient = torch.randn(4, 6, 4, dtype=torch.float64)
    inputs = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    output, log = attention.in_tiles(query, key, value)
    shared = (gradient * output).sum(dim=-1, keepdim=True)
    expected = torch.autograd.grad(scaled_dot_product_attention(*inputs), inputs, gradient)
    without_d = (query @ key.mT / 2 - log).exp() * (gradient @ value.mT)
    checks.returns(
        "a tile of all keys has the gradients of autograd",
        (query, key, value, log, shared, gradient),
        expected=expected,
        kind=(tuple, list),
        mistakes={
            _hashable(without_d @ key / 2, without_d.mT @ query / 2, expected[2]): (
                "Take D off, because a row's attention weights add up to 1 and one grows at the "
                "cost of the others."
            ),
            _hashable(2 * expected[0], 2 * expected[1], expected[2]): (
                "The scores were divided by the root of d, and so are their gradients."
            ),
        },
    )


def _hashable(*tensors):
    """Return tensors as nested tuples, which can be the key of a mistake."""

    def nested(values):
        return tuple(map(nested, values)) if isinstance(values, list) else values

    return tuple(nested(tensor.tolist()) for tensor in tensors)
