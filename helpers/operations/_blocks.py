"""Blocks that record operators at the same time, in one thread or in several: each ends by itself,
in any order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch as dispatch

from helpers.steps import uncompiled

_FLAGS = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)
_WRONG_THREAD = (
    "a block that counts operators must end in the thread that began it, so leave it there"
)

_lock = threading.Lock()
_settings = ExitStack()
_open_blocks = 0


@contextmanager
def visible_operators() -> Iterator[None]:
    """Let every operator be seen: attention takes its plain path, and compiled code runs as it was
    written.

    Both are settings of the process, so that the first open block makes them and the last one takes
    them back.
    """
    global _open_blocks
    with _lock:
        _open_blocks += 1
        if _open_blocks == 1:
            _settings.callback(_restore_flags, [getattr(dispatch, name) for name in _FLAGS])
            _settings.enter_context(uncompiled())
            _settings.callback(
                torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled()
            )
            torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        with _lock:
            _open_blocks -= 1
            if not _open_blocks:
                _settings.close()


def _restore_flags(values: list[bool]) -> None:
    """Give back what torch notes of open dispatch modes, in one place for all threads."""
    for name, value in zip(_FLAGS, values, strict=True):
        setattr(dispatch, name, value)
    dispatch.set_is_in_mode_without_ignore_compile_internals(values[-1])


@contextmanager
def _set_aside_later_modes(
    mode: Any, pop: Callable[[], Any], push: Callable[[Any], None], depth: Callable[[], int]
) -> Iterator[None]:
    """Put aside the modes that were entered after ``mode`` and are still open, as torch removes the
    last one only.
    """
    later_modes: list[Any] = []
    try:
        while True:
            if not depth():
                raise RuntimeError(_WRONG_THREAD)
            top = pop()
            if top is mode:
                push(top)
                break
            later_modes.append(top)
        yield
    finally:
        for later_mode in reversed(later_modes):
            push(later_mode)


class DispatchMode(dispatch.TorchDispatchMode):
    """A dispatch mode that ends in any order."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say that nothing in here is compiled: torch would import its compiler to make sure."""
        return False

    def __exit__(self, *error: Any) -> None:
        pop, push, depth = (
            dispatch._pop_mode,
            dispatch._push_mode,
            torch._C._len_torch_dispatch_stack,
        )
        with _set_aside_later_modes(self, pop, push, depth):
            super().__exit__(*error)


class FunctionMode(TorchFunctionMode):
    """A mode over the functions of torch that ends in any order."""

    def __exit__(self, *error: Any) -> None:
        pop, push = torch._C._pop_torch_function_stack, torch._C._push_on_torch_function_stack
        with _set_aside_later_modes(self, pop, push, torch._C._len_torch_function_stack):
            super().__exit__(*error)
