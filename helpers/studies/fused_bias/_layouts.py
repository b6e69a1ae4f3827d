"""The layout of a tensor (N, C, ...) in memory: the order of its elements, and the sizes that a
kernel needs.
"""

from __future__ import annotations

import math

import torch

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_channels_last(x: torch.Tensor) -> bool:
    """Return whether ``x`` is dense with the channel as its last dimension in memory, and not also
    NCHW.

    Lesson 18.
    """
    channels_last_format = _CHANNELS_LAST.get(x.dim())
    return (
        channels_last_format is not None
        and not x.is_contiguous()
        and x.is_contiguous(memory_format=channels_last_format)
    )


def is_dense(x: torch.Tensor) -> bool:
    """Return whether ``x`` lies in memory without gaps, as NCHW or as channels-last. Lesson 18."""
    return x.is_contiguous() or is_channels_last(x)


def memory_format(x: torch.Tensor) -> torch.memory_format:
    """Return channels-last where ``x`` lies so, else the contiguous format."""
    return _CHANNELS_LAST[x.dim()] if is_channels_last(x) else torch.contiguous_format


def dense_like(x: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """Return ``x``, or its copy where it does not lie in memory as the dense ``model``."""
    return x.contiguous(memory_format=memory_format(model))


def split(x: torch.Tensor) -> tuple[int, int, int]:
    """Return (outer, channels, inner) of a dense ``x``: (N, C, H W) in NCHW, (N H W, C, 1) in
    channels-last.

    Lesson 18.
    """
    inner = math.prod(x.shape[2:])
    return (
        (x.shape[0] * inner, x.shape[1], 1)
        if is_channels_last(x)
        else (x.shape[0], x.shape[1], inner)
    )


def check_bias(bias: torch.Tensor, x: torch.Tensor, *, channels: int) -> None:
    """Raise TypeError or ValueError unless ``bias`` has ``channels`` numbers of x's dtype, on its
    device.
    """
    if not isinstance(bias, torch.Tensor):
        raise TypeError(f"bias is a tensor (C,), not {type(bias).__name__}")
    if bias.dim() != 1 or len(bias) != channels:
        raise ValueError(
            f"bias has one number a channel, the shape ({channels},); this one has the shape "
            f"{tuple(bias.shape)}"
        )
    if bias.dtype != x.dtype or bias.device != x.device:
        raise ValueError(
            f"x is {x.dtype} on {x.device}, the bias {bias.dtype} on {bias.device}; give bias.to(x)"
        )


def check_values(x: torch.Tensor, name: str) -> None:
    """Raise TypeError or ValueError unless ``x`` is a floating-point tensor (N, C, ...)."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} is a tensor (N, C, ...), not {type(x).__name__}")
    if x.layout != torch.strided:
        raise TypeError(f"{name} is stored as {x.layout}; give {name}.to_dense()")
    if not x.is_floating_point():
        raise TypeError(f"{name} is {x.dtype}; give floating-point values, such as {name}.float()")
    if x.dim() < 2:
        raise ValueError(
            f"{name} has the shape (N, C, ...), two dimensions or more; this is {tuple(x.shape)}"
        )


def check_layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """Raise TypeError or ValueError unless a 3 x 3 convolution takes ``x`` (N, C, H, W) with weight
    and bias.
    """
    for name, tensor in (("x", x), ("weight", weight)):
        check_values(tensor, name)
        if tensor.dim() != 4:
            raise ValueError(f"{name} has four dimensions, not the shape {tuple(tensor.shape)}")
    if weight.shape[1] != x.shape[1] or tuple(weight.shape[2:]) != (3, 3):
        raise ValueError(
            f"weight is (C_out, {x.shape[1]}, 3, 3) for x of shape {tuple(x.shape)}; this one is "
            f"{tuple(weight.shape)}"
        )
    if 0 in x.shape[1:] or not len(weight):
        raise ValueError(
            "a convolution needs a channel and a pixel to read and a channel to write; x has the "
            f"shape {tuple(x.shape)}, weight {tuple(weight.shape)}"
        )
    if (weight.dtype, weight.device) != (x.dtype, x.device):
        raise ValueError(
            f"x is {x.dtype} on {x.device}, the weight {weight.dtype} on {weight.device}; "
            "give weight.to(x)"
        )
    check_bias(bias, x, channels=len(weight))
