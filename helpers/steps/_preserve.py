"""Give a model and the random generators back exactly as they were, whatever a step did to them.

Lesson 11.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from torch import nn

from helpers.steps._objects import State
from helpers.timing._runs import collector_off


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Restore at the end, also after an exception, the state of ``model``'s modules and the random
    generators.

    A forward may set attributes (a hidden state, a counter, a buffer), grow a list or a cache, or
    draw random numbers. The attributes of modules and of the objects that they hold, and the
    contents of containers at any depth, are restored by identity, and so are the gradients of
    parameters and whether they need one; the values of tensors are the caller's to protect.

    >>> model = nn.Linear(4, 2)
    >>> with preserved(model):
    ...     model.eval().calls = 1
    >>> model.training, hasattr(model, "calls")
    (True, False)
    """
    state = State(*model.modules(), originals={})
    gradients = [
        (parameter, parameter.grad, parameter.requires_grad) for parameter in model.parameters()
    ]
    with _restore_generators():
        try:
            yield
        finally:
            state.restore()
            for parameter, gradient, needs_grad in gradients:
                if parameter.requires_grad != needs_grad:
                    parameter.requires_grad_(needs_grad)
                if parameter.grad is not gradient:
                    parameter.grad = gradient


@contextmanager
def undisturbed() -> Iterator[None]:
    """Give back the random generators as they were, and keep the garbage collector from a moment of
    its own choice.

    >>> with undisturbed():
    ...     first = torch.rand(3)
    >>> bool((torch.rand(3) == first).all())
    True
    """
    with collector_off(), _restore_generators():
        yield


def uncompiled() -> AbstractContextManager:
    """Run as it was written what torch.compile has made, or flex_attention would make, whose frames
    it gives up else.

    Loading the compiler takes seconds: where it is not loaded, nothing was compiled.

    >>> double = torch.compile(lambda x: 2 * x)  # doctest: +SKIP
    >>> with uncompiled():  # doctest: +SKIP
    ...     double(torch.ones(2))
    tensor([2., 2.])
    """
    has_compiler = {"torch._dynamo", "torch.nn.attention.flex_attention"} & sys.modules.keys()
    return torch.compiler.set_stance("force_eager") if has_compiler else nullcontext()


@contextmanager
def _restore_generators() -> Iterator[None]:
    """Give the generators of torch, Python and NumPy their states back."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    cuda_devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(cuda_devices):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
