"""Give a model and the random generators back exactly as they were, whatever its forward did to them."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

_CONTAINERS = (list, dict, set, deque, OrderedDict)


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Restore, at the end and after an exception, each module's attributes and the state of every generator.

    A forward may set attributes (a hidden state, a counter, a buffer), grow a list, or draw random numbers.
    Attributes are restored by identity and containers one level deep; the tensors themselves are the caller's
    to protect.
    """
    attributes = [(vars(module), dict(vars(module))) for module in model.modules()]
    containers = [
        (value, value.copy()) for _, before in attributes for value in before.values() if type(value) in _CONTAINERS
    ]
    generators = [
        (value, value.get_state())
        for _, before in attributes
        for value in before.values()
        if isinstance(value, torch.Generator)
    ]
    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        for now, before in attributes:
            if not _same(now, before):
                now.clear()
                now.update(before)
        for now, before in containers:
            if (now or before) and not _same(now, before):
                now.clear()
                (now.extend if isinstance(now, list | deque) else now.update)(before)
        for generator, state in generators:
            generator.set_state(state)
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _same(now: Any, before: Any) -> bool:
    """Tell whether two containers hold the same objects in the same order, without comparing the objects."""
    if len(now) != len(before):
        return False
    if isinstance(now, dict):
        pairs = zip(now.items(), before.items(), strict=True)
        return all(key == old_key and value is old for (key, value), (old_key, old) in pairs)
    if isinstance(now, set):
        return now == before
    return all(value is old for value, old in zip(now, before, strict=True))
