"""What PyTorch and a model see while a step runs on fake tensors, so that it does the real thing.

A model that asks whether its tensors are fake hears no, an optimizer chooses as on its device, and
what no operator does (the states of a random generator, the sizes of storages) is seen by functions
in place of PyTorch's own.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from helpers import steps


def quiet_fakes() -> AbstractContextManager:
    """Keep PyTorch from logging the traceback of an error that is raised anyway."""
    return mock.patch.object(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True)


class _AskedByTorchOnly(type):
    """Tell a model that no tensor is fake, because it would take the path of a traced run; PyTorch
    itself may ask.
    """

    def __instancecheck__(cls, value: Any) -> bool:
        asker = sys._getframe(1).f_globals.get("__name__", "")
        return asker.partition(".")[0] == "torch" and isinstance(value, FakeTensor)


def hide_fakes() -> AbstractContextManager:
    """Let a model that looks whether it is traced (transformers) do what it does in a real run."""
    hidden_class = _AskedByTorchOnly("HiddenFakeTensor", (), {})
    return mock.patch.object(torch._subclasses, "FakeTensor", hidden_class)


def foreach_as_real(step: steps.Step) -> AbstractContextManager:
    """Let optimizers choose for fake parameters the implementation that they choose for real ones
    on the device.
    """
    module = importlib.import_module("torch.optim.optimizer")  # torch.optim hides the module's name
    devices = module._get_foreach_kernels_supported_devices()
    if step.device.type in devices:
        devices = [*devices, step.runs_on.type]
    return mock.patch.multiple(
        module,
        _foreach_supported_types=[*module._foreach_supported_types, FakeTensor],
        _get_foreach_kernels_supported_devices=lambda: devices,
    )


def see_generator_states(write_state: Callable[[torch.Tensor], None]) -> AbstractContextManager:
    """See the states of the random generator that checkpointing keeps: no operator makes them."""
    real_get_rng_state = torch.get_rng_state

    def get_rng_state() -> torch.Tensor:
        with _disable_current_modes():
            state = real_get_rng_state()
        write_state(state)
        return state

    return mock.patch.object(torch, "get_rng_state", get_rng_state)


def see_sizes(write_resized: Callable[[torch.UntypedStorage], None]) -> AbstractContextManager:
    """See the sizes that a model gives to storages themselves: no operator does it."""
    real_resize = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        result = real_resize(storage, size)
        write_resized(storage)
        return result

    return mock.patch.object(torch.UntypedStorage, "resize_", resize_, create=True)
