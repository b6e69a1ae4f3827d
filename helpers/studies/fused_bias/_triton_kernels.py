"""The one-pass kernels in Triton, for CUDA; with TRITON_INTERPRET=1 they run on a CPU, for their
results alone.

A tensor is (outer, channels, inner) as in C++. A sum is made in two kernels without atomics, so
that the same call gives the same bits: each program adds up a part of one channel (or of a block of
channels), the second the parts.
"""

from __future__ import annotations

import functools
import math
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from helpers.studies import _triton
from helpers.studies.fused_bias import _layouts as layouts

if TYPE_CHECKING:
    import triton.language as tl

BLOCK = 1024  # elements a program, or a step of one
CHANNELS = 32  # channels of a tile in channels-last
PROGRAMS = 1024  # that a sum is divided among, about


def bias_relu(x: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> None:
    """Write relu(x + bias) to ``out``, of x's dense layout, which may be ``x`` itself."""
    _check_device(x)
    _, channels, inner = layouts.split(x)
    if x.numel():
        with _on(x):
            grid = (math.ceil(x.numel() / BLOCK),)
            sizes = {"DOUBLE": x.dtype == torch.float64, "BLOCK": BLOCK}
            programs().bias_relu[grid](
                x, bias.contiguous(), out, x.numel(), channels, inner, **sizes
            )


def bias_gradient(grad: torch.Tensor) -> torch.Tensor:
    """Return the sums (C,) of a dense ``grad``."""
    return _sums(grad, grad, grad, relu=False)


def relu_bias_backward(grad: torch.Tensor, y: torch.Tensor, grad_x: torch.Tensor) -> torch.Tensor:
    """Write to ``grad_x`` what of ``grad`` passes the ReLU whose output is ``y``; return its sums
    (C,).

    All three have one dense layout.
    """
    return _sums(grad, y, grad_x, relu=True)


def _sums(grad: torch.Tensor, y: torch.Tensor, grad_x: torch.Tensor, *, relu: bool) -> torch.Tensor:
    """Return the sums of ``grad``; ``y`` and ``grad_x`` are used with ``relu`` alone."""
    _check_device(grad)
    outer, channels, inner = layouts.split(grad)
    wide = torch.float64 if grad.dtype == torch.float64 else torch.float32
    total = torch.zeros(channels, dtype=wide, device=grad.device)
    if not grad.numel():
        return total.to(grad.dtype)
    parts = parts_of(outer, channels, inner)
    partial = torch.empty(parts, channels, dtype=wide, device=grad.device)
    if inner > 1:
        kernel, grid = programs().channel_sums, (channels, parts)
        counts: tuple[int, ...] = (outer * inner, channels, inner)
        sizes = {"BLOCK": BLOCK}
    else:
        kernel, grid = programs().row_sums, (math.ceil(channels / CHANNELS), parts)
        counts = (outer, channels)
        sizes = {"ROWS": BLOCK // CHANNELS, "CHANNELS": CHANNELS}
    with _on(grad):
        kernel[grid](grad, y, grad_x, partial, *counts, RELU=relu, **sizes)
        programs().add_parts[(channels,)](partial, total, parts, channels, BLOCK=PROGRAMS)
    return total.to(grad.dtype)


def parts_of(outer: int, channels: int, inner: int) -> int:
    """Return the number of programs that share the sum of a channel (or block of channels), at
    most :data:`PROGRAMS`.

    About :data:`PROGRAMS` programs in all, and none without a block to read.
    """
    if inner > 1:
        parts, blocks = PROGRAMS // channels, math.ceil(outer * inner / BLOCK)
    else:
        parts, blocks = (
            PROGRAMS // math.ceil(channels / CHANNELS),
            math.ceil(outer / (BLOCK // CHANNELS)),
        )
    return max(1, min(parts, blocks))


def _check_device(x: torch.Tensor) -> None:
    if x.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError(
            "Triton's kernels run on CUDA; on a CPU only in its interpreter: set "
            "TRITON_INTERPRET=1 before Python starts, and expect it to take a thousand times as "
            "long"
        )


def _on(x: torch.Tensor) -> Any:
    return torch.cuda.device(x.device) if x.device.type == "cuda" else torch.no_grad()


@functools.lru_cache(maxsize=1)
def programs() -> SimpleNamespace:
    """Return the kernels as Triton's functions: bias_relu, channel_sums, row_sums, add_parts.

    Raises MissingToolError where Triton is not installed. Lesson 18.
    """
    global tl  # Triton looks for the names of a kernel among the globals of its module
    triton, tl = _triton.load()
    names = ("bias_relu", "channel_sums", "row_sums", "add_parts")
    return SimpleNamespace(**{name: triton.jit(globals()[f"_{name}"]) for name in names})


def _bias_relu(x, bias, out, count, channels, inner, DOUBLE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(x + at, mask=inside)
    addend = tl.load(bias + at // inner % channels, mask=inside)
    if not DOUBLE:  # 16 bits are added in float32 and rounded once
        value, addend = value.to(tl.float32), addend.to(tl.float32)
    value += addend
    tl.store(out + at, tl.where(value <= 0, 0.0, value).to(out.dtype.element_ty), mask=inside)


def _channel_sums(
    grad, y, grad_x, partial, count, channels, inner, RELU: tl.constexpr, BLOCK: tl.constexpr
):
    channel, part = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=partial.dtype.element_ty)
    for start in range(part * BLOCK, count, tl.num_programs(1) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < count
        at = (i // inner * channels + channel) * inner + i % inner
        value = tl.load(grad + at, mask=inside, other=0.0)
        if RELU:
            value = tl.where(tl.load(y + at, mask=inside, other=0.0) <= 0, 0.0, value)
            tl.store(grad_x + at, value.to(grad_x.dtype.element_ty), mask=inside)
        total += value.to(total.dtype)
    tl.store(partial + part * channels + channel, tl.sum(total, axis=0))


def _row_sums(
    grad,
    y,
    grad_x,
    partial,
    rows,
    channels,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    column = tl.program_id(0).to(tl.int64) * CHANNELS + tl.arange(0, CHANNELS)
    part = tl.program_id(1).to(tl.int64)
    total = tl.zeros((ROWS, CHANNELS), dtype=partial.dtype.element_ty)
    for start in range(part * ROWS, rows, tl.num_programs(1) * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < channels)[None, :]
        at = row[:, None] * channels + column[None, :]
        value = tl.load(grad + at, mask=inside, other=0.0)
        if RELU:
            value = tl.where(tl.load(y + at, mask=inside, other=0.0) <= 0, 0.0, value)
            tl.store(grad_x + at, value.to(grad_x.dtype.element_ty), mask=inside)
        total += value.to(total.dtype)
    tl.store(partial + part * channels + column, tl.sum(total, axis=0), mask=column < channels)


def _add_parts(partial, total, parts, channels, BLOCK: tl.constexpr):
    part = tl.arange(0, BLOCK)
    values = tl.load(partial + part * channels + tl.program_id(0), mask=part < parts, other=0.0)
    tl.store(total + tl.program_id(0), tl.sum(values, axis=0))
