"""Attention in plain torch, in tiles of its table of scores. Lesson 21."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.autograd.graph import saved_tensors_hooks

from helpers import checks
from helpers.checks import boolean, one_of, whole_number

_FORBIDDEN = -math.inf


def in_tiles(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    rows: int = 64,
    columns: int = 64,
    causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention and the logarithm of each token's sum, (..., tokens, 1), from tiles of
    ``rows`` x ``columns``.

    ``query``, ``key`` and ``value`` are (..., tokens, width). For each block of queries the keys
    are passed once, with a running maximum, sum and output (Milakov and Gimelshein, Online
    normalizer calculation for softmax, 2018; Dao, FlashAttention-2, 2023, algorithm 1). Tiles that
    ``causal`` forbids whole are not computed. Lesson 21.
    """
    boolean("causal", causal)
    rows, columns = _check(query, key, value, causal, rows, columns)
    outputs, log_sums = [], []
    for q_start in range(0, query.shape[-2], rows):
        # (..., rows, width)
        q_tile = query[..., q_start : q_start + rows, :] * query.shape[-1] ** -0.5
        running_max = q_tile.new_full((*q_tile.shape[:-1], 1), _FORBIDDEN)
        # (..., rows, 1), and (..., rows, width of the values)
        total = torch.zeros_like(running_max)
        output = torch.zeros_like(q_tile @ key[..., :0, :].mT @ value[..., :0, :])
        end = q_start + q_tile.shape[-2] if causal else key.shape[-2]
        for kv_start in range(0, end, columns):
            # (..., rows, columns), and so are the weights
            scores = q_tile @ key[..., kv_start : kv_start + columns, :].mT
            if causal:
                scores = scores.masked_fill(_later_mask(scores, q_start, kv_start), _FORBIDDEN)
            # (..., rows, 1), and so is the factor that rescales
            row_max = torch.maximum(running_max, scores.amax(dim=-1, keepdim=True))
            rescale, weights = (running_max - row_max).exp(), (scores - row_max).exp()
            total = rescale * total + weights.sum(dim=-1, keepdim=True)
            output = rescale * output + weights @ value[..., kv_start : kv_start + columns, :]
            running_max = row_max
        outputs.append(output / total)
        log_sums.append(running_max + total.log())
    return torch.cat(outputs, dim=-2), torch.cat(log_sums, dim=-2)


def saved_bytes(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> int:
    """Return the bytes that autograd keeps for backward of ``function(*tensors)``, each storage
    once.

    Lesson 21.
    """
    accepted = "a function of tensors, such as nn.functional.scaled_dot_product_attention"
    checks.function("function", function, accepted)
    for index, tensor in enumerate(tensors):
        one_of(
            f"tensors[{index}]", tensor, torch.Tensor, "a tensor for each argument of the function"
        )
        if not (tensor.is_floating_point() or tensor.is_complex()):
            raise TypeError(
                f"tensors[{index}] holds {tensor.dtype}, which has no gradient; give floats"
            )
    saved = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        # alive, so that no other takes its place
        saved[storage.data_ptr()] = tensor, storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        function(*(tensor.detach().requires_grad_() for tensor in tensors))
    return sum(size for _, size in saved.values())


def _later_mask(scores: torch.Tensor, q_start: int, kv_start: int) -> torch.Tensor:
    """Return the mask (rows, columns) of the keys in a tile that are later than their query."""
    rows, columns = (torch.arange(side, device=scores.device) for side in scores.shape[-2:])
    return kv_start + columns > q_start + rows[:, None]


def _check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    causal: bool,
    rows: int,
    columns: int,
) -> tuple[int, int]:
    for name, tensor in {"query": query, "key": key, "value": value}.items():
        if not isinstance(tensor, torch.Tensor) or tensor.dim() < 2 or not tensor.numel():
            raise ValueError(
                f"{name} is a tensor (..., tokens, width) with at least one number in it"
            )
    types = [tensor.dtype for tensor in (query, key, value)]
    if len(set(types)) > 1 or not query.is_floating_point():
        listed = ", ".join(str(dtype).removeprefix("torch.") for dtype in types)
        raise TypeError(
            f"query, key and value hold floats of one type; these are {listed}: convert them with "
            ".float()"
        )
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (query, key, value))
        raise ValueError(
            f"query and key have one width, key and value the same tokens; these are {shapes}"
        )
    if causal and query.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"causal needs as many queries as keys, not {query.shape[-2]:,} and {key.shape[-2]:,}: "
            "which key is a query's own would be a guess"
        )
    return whole_number("rows", rows), whole_number("columns", columns)
