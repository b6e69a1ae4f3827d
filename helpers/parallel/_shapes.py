"""A net's shapes without its values: a copy with empty tensors, and what layers hand on."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import nn


def without_values(net: nn.Module, device: str | torch.device = "meta") -> nn.Module:
    """Return a copy of ``net`` with empty parameters and buffers on ``device``; ties are kept, no value is copied."""
    copies: dict[int, torch.Tensor] = {id(buffer): torch.empty_like(buffer, device=device) for buffer in net.buffers()}
    for parameter in net.parameters():
        empty = torch.empty_like(parameter, device=device)
        copies[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    return copy.deepcopy(net, copies)


def handed_on(layers: Iterable[nn.Module], value: torch.Tensor) -> torch.Tensor:
    """Return an empty meta tensor like what ``layers`` make of ``value``, in turn."""
    value = torch.empty_like(value, device="meta")
    with torch.no_grad():
        for layer in layers:
            value = without_values(layer)(value)
    return value


def number_type(net: nn.Module) -> torch.dtype:
    """Return the type of the net's first parameter, and of its inputs; without one torch's default."""
    return next((parameter.dtype for parameter in net.parameters()), torch.get_default_dtype())
