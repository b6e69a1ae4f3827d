"""What is timed: one step of a copy of the caller's model, warm, so that the model itself is never touched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from helpers.memory import steps
from helpers.operations.trace import described

_WARM_STEPS = 2


@contextmanager
def warm_step(
    model: nn.Module,
    inputs: steps.Inputs | None,
    *,
    training: bool,
    loss: steps.Loss | None,
    optimizer: steps.OptimizerFactory | None = None,
) -> Iterator[steps.Workload]:
    """Give the step on a copy of ``model``, run twice so that what happens once (caches, optimizer state) is over.

    Inside, the garbage collector is off; at the end the random generators are as they were.

    Raises TypeError, ValueError or ModelError, in one sentence, for what cannot be timed.
    """
    _check(model)
    work = steps.workload(model, inputs, optimizer=optimizer, training=training, loss=loss, autocast=None)
    with steps.undisturbed(work.device), torch.inference_mode(False):
        work = steps.with_optimizer(steps.copied(work, copy_tensor=torch.clone))
        for _ in range(_WARM_STEPS):
            steps.drop_gradients(work)
            steps.run(work)
        yield work


def input_text(work: steps.Workload) -> str:
    """Return the shapes and types of what the model is given."""
    positional, named = work.arguments
    return ", ".join(described(part) for part in (positional, named) if part)


def _check(model: Any) -> None:
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise TypeError(f"{model.__name__} is a class; give a model made of it, {model.__name__}(...)")
    for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise steps.ModelError(
                f"{f'the module {name!r}' if name else 'the model'} is compiled, and its kernels cross the borders of "
                "layers; give the model as it was before torch.compile, or time the compiled one with kernel_table"
            )
