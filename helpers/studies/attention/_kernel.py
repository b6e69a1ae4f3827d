"""Attention's forward as a Triton kernel; with TRITON_INTERPRET=1 it runs on a CPU, for its results
alone.
"""

from __future__ import annotations

import inspect
import math
import os
from typing import TYPE_CHECKING

import torch

from helpers.checks import boolean, whole_number
from helpers.isolation import run_limited
from helpers.studies import _triton

if TYPE_CHECKING:
    import triton.language as tl

_LIMIT_S = 120.0


def interpret(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    rows: int = 32,
    columns: int = 32,
    causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention and each token's log-sum, (heads, tokens, 1), from the kernel in Triton's
    interpreter.

    It runs on a CPU in a process of its own, because Triton reads ``TRITON_INTERPRET`` when it is
    imported. ``query``, ``key`` and ``value`` are (heads, tokens, width) in float32; the width and
    the ``rows`` and ``columns`` of a tile are powers of two of 16 or more, and ``causal`` is as in
    :func:`in_tiles`. Raises MissingToolError where Triton is not installed. Lesson 21.
    """
    boolean("causal", causal)
    _check(query, key, value, rows, columns)
    _triton.load()
    options = {"rows": rows, "columns": columns, "causal": causal}
    return run_limited(
        attend,
        query,
        key,
        value,
        options,
        timeout_s=_LIMIT_S,
        variables={"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    ).unwrap()


def kernel_source() -> str:
    """Return the kernel as it is written. Lesson 21."""
    return inspect.getsource(attention_kernel)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the kernel: on CUDA, or where ``TRITON_INTERPRET`` is 1."""
    global tl  # Triton looks for the names of a kernel among the globals of its module
    rows, columns = options["rows"], options["columns"]
    heads, tokens, width = _check(query, key, value, rows, columns)
    if query.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError(
            "Triton's kernels run on CUDA; on a CPU call interpret, which runs them in its "
            "interpreter"
        )
    triton, tl = _triton.load()
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    output, log_sum = torch.empty_like(query), query.new_empty(heads, tokens, 1)
    triton.jit(attention_kernel)[(math.ceil(tokens / rows), heads)](
        query,
        key,
        value,
        output,
        log_sum,
        tokens,
        width**-0.5,
        WIDTH=width,
        ROWS=rows,
        COLUMNS=columns,
        CAUSAL=bool(options["causal"]),
    )
    return output, log_sum


def attention_kernel(
    query, key, value, output, log_sum, tokens, scale,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, across = block * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    own = (head * tokens + row[:, None]) * WIDTH + across[None, :]
    q = tl.load(query + own, mask=row[:, None] < tokens, other=0.0)
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    result = tl.zeros((ROWS, WIDTH), tl.float32)
    end = tl.minimum(tokens, (block + 1) * ROWS) if CAUSAL else tokens
    for left in range(0, end, COLUMNS):
        column = left + tl.arange(0, COLUMNS)
        other = (head * tokens + column[:, None]) * WIDTH + across[None, :]
        k = tl.load(key + other, mask=column[:, None] < tokens, other=0.0)
        v = tl.load(value + other, mask=column[:, None] < tokens, other=0.0)
        allowed = (column < tokens)[None, :]
        if CAUSAL:
            allowed = allowed & (column[None, :] <= row[:, None])
        scores = scale * tl.dot(q, tl.trans(k), input_precision="ieee")
        scores = tl.where(allowed, scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, axis=1))
        shrink, weights = tl.exp(largest - new), tl.exp(scores - new[:, None])
        total = shrink * total + tl.sum(weights, axis=1)
        result = shrink[:, None] * result + tl.dot(weights, v, input_precision="ieee")
        largest = new
    tl.store(output + own, result / total[:, None], mask=row[:, None] < tokens)
    tl.store(log_sum + head * tokens + row, largest + tl.log(total), mask=row < tokens)


def _check(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: int, columns: int
) -> torch.Size:
    shape = query.shape
    if any(
        tensor.shape != shape or tensor.dtype != torch.float32 or tensor.dim() != 3
        for tensor in (query, key, value)
    ):
        raise ValueError(
            "query, key and value are (heads, tokens, width) in float32, all of one shape"
        )
    for name, side in {"the width": shape[-1], "rows": rows, "columns": columns}.items():
        if whole_number(name, side, at_least=16) & (side - 1):
            raise ValueError(
                f"{name} is a power of two of 16 or more (16, 32, 64, ...); got {side}"
            )
    return shape
