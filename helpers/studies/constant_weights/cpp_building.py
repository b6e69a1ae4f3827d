"""Generated C++ compiled, loaded and called with tensors. Lesson 11."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from helpers import native
from helpers.studies.constant_weights import cpp_calling
from helpers.studies.constant_weights.cpp_sources import context_of, cpp_source
from helpers.studies.constant_weights.network import Network, network_of, pruned


@dataclass(frozen=True, eq=False)
class CppProgram:
    """A network as a loaded C++ program: ``program(x)``, or ``program(x, out=y)`` without a new tensor.

    ``x`` is float32 (N, inputs) on the CPU, contiguous; the result (N, outputs). ``library`` has the source and how
    long it took to compile. It holds no state, so threads may call it at once; long calls let Python run. ``evaluate``
    is the bare function of addresses, nothing checked, with ``context`` as its last argument.

    Calling raises TypeError or ValueError for other tensors (:func:`cpp_calling.check_tensors`). Lesson 11.
    """

    network: Network
    placement: str
    library: native.Library
    evaluate: Any = field(repr=False)
    kept: tuple[object, ...] = field(repr=False)
    quick: Callable[..., Any] = field(repr=False)

    @property
    def context(self) -> int | None:
        """The address that ``evaluate`` takes last: of the weights, or of all it must be told; None for nothing."""
        return cpp_calling.address_of(self.kept)

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        if out is not None:
            done = self.quick(x, out)
            if done is not None:
                return done
        sizes = {"inputs": self.network.inputs, "outputs": self.network.outputs}
        out = cpp_calling.check_tensors(x, out, **sizes)
        self.evaluate(x.data_ptr(), out.data_ptr(), x.shape[0], self.context)
        return out


def build_cpp(source: str) -> native.Library:
    """Return the compiled program of a source that :func:`cpp_sources.cpp_source` wrote, loaded; kept by content.

    Raises as :func:`helpers.native.compile_cpp`. Lesson 11.
    """
    return native.compile_cpp(source)


def cpp_program(model: nn.Module | Network, placement: str = "lanes", *, prune: float = 0.0) -> CppProgram:
    """Return ``model`` compiled with its weights placed as :data:`cpp_sources.CPP_PLACEMENTS` says, ready to be called.

    Raises as :func:`cpp_sources.cpp_source` and :func:`helpers.native.compile_cpp`. Lesson 11.
    """
    network = pruned(network_of(model), prune)
    library = build_cpp(cpp_source(network, placement))
    evaluate = library.function(cpp_calling.EVALUATE).raw
    kept = context_of(network, placement)
    quick = cpp_calling.caller(evaluate, kept, inputs=network.inputs, outputs=network.outputs, macs=network.macs)
    return CppProgram(network, placement, library, evaluate, kept, quick)
