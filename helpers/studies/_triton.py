"""Triton as the studies import it: where it is missing they say so, and its interpreter is mended
where it must be.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any


def load() -> tuple[ModuleType, ModuleType]:
    """Return Triton and its language; raises MissingToolError where it is not installed."""
    try:
        import triton
        import triton.language as language
    except ImportError as error:
        from helpers.native import MissingToolError

        raise MissingToolError(
            f"Triton does not import here ({error})",
            "install a CUDA build of torch for Linux, which brings Triton",
        ) from error
    if os.environ.get("TRITON_INTERPRET") == "1" and triton.__version__.startswith("3.6."):
        _mend_interpreter()
    return triton, language


def _mend_interpreter() -> None:
    """Let Triton 3.6 read the number in an array of one element as 3.7 does: NumPy refuses 3.6's
    way since 2.4.
    """
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor
    if original.__module__ == __name__:
        return

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)  # the scope gives back what was there before
        tensor.__index__ = lambda self: int(self.handle.data.squeeze())

    interpreter._patch_lang_tensor = patch
