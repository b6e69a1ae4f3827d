"""A generated kernel on a GPU, as a function of tensors. Lesson 11."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from helpers import native
from helpers.studies.constant_weights.building import CudaProgram, build
from helpers.studies.constant_weights.cuda_sources import (
    THREADS,
    candidates_per_thread,
    cuda_declaration,
    cuda_source,
    packed_weights,
)
from helpers.studies.constant_weights.network import Network, network_of, pruned


@dataclass(frozen=True, eq=False)
class CudaFunction:
    """A network's kernel on a GPU: ``function(inputs)``, or ``function(inputs, out=outputs)``, evaluates it.

    ``program`` has the source and the machine code. With ``layout="rows"`` inputs are (N, inputs) and outputs
    (N, outputs); with "columns" they are (inputs, N) and (outputs, N). Both are float32, on ``device`` and contiguous.
    It starts on torch's current stream and returns at once, as torch's own operations do.

    A call raises TypeError or ValueError for other tensors, saying what is accepted. Lesson 11.
    """

    network: Network = field(repr=False)
    placement: str
    precision: str
    layout: str
    device: torch.device
    program: CudaProgram = field(repr=False)
    kernel: native.Kernel = field(repr=False)
    weights: Any = field(repr=False)

    def __call__(self, inputs: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        axis = 0 if self.layout == "rows" else 1
        self._check("inputs", inputs, self.network.inputs, None)
        candidates = inputs.shape[axis]
        if out is None:
            shape = (candidates, self.network.outputs) if axis == 0 else (self.network.outputs, candidates)
            out = torch.empty(shape, device=self.device)
        else:
            self._check("out", out, self.network.outputs, candidates)
        if candidates:
            blocks = math.ceil(candidates / (THREADS * candidates_per_thread(self.precision)))
            last = () if self.weights is None else (self.weights,)
            self.kernel(inputs.detach(), out, candidates, *last, grid=blocks, block=THREADS)
        return out

    def _check(self, name: str, tensor: Any, width: int, candidates: int | None) -> None:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is a tensor, not {type(tensor).__name__}")
        many = "N" if candidates is None else f"{candidates:,}"
        wanted = f"({many}, {width})" if self.layout == "rows" else f"({width}, {many})"
        axis = 1 if self.layout == "rows" else 0
        fits = tensor.dim() == 2 and tensor.shape[axis] == width and candidates in (None, tensor.shape[1 - axis])
        if not fits or tensor.dtype != torch.float32 or tensor.device != self.device or not tensor.is_contiguous():
            kind = "contiguous" if tensor.is_contiguous() else "not contiguous"
            raise ValueError(f"{name} is a contiguous float32 tensor {wanted} on {self.device}; this is {tensor.dtype} "
                             f"{tuple(tensor.shape)} on {tensor.device}, {kind}")  # fmt: skip


def cuda_function(
    model: nn.Module | Network,
    *,
    placement: str = "const",
    precision: str = "fp32",
    layout: str = "rows",
    prune: float = 0.0,
    device: str | torch.device | None = None,
) -> CudaFunction:
    """Return ``model`` compiled for the GPU ``device`` (torch's current one) and loaded there, its weights in place.

    The other arguments are those of :func:`generate`. It is compiled once and then read from the cache. Raises what
    :func:`generate` and :func:`build` raise, and NativeError where there is no GPU. For the library itself.
    """
    network = pruned(network_of(model), prune)
    source = cuda_source(network, placement=placement, precision=precision, layout=layout)
    program = build(source, architecture=native.gpu_architecture(device))
    assert isinstance(program, CudaProgram)
    chosen = torch.device("cuda" if device is None else device)
    if chosen.index is None:
        chosen = torch.device("cuda", torch.cuda.current_device())
    kernel = program.cubin.load(chosen).function(cuda_declaration(placement))
    weights: Any = None
    if placement in ("parameter", "pointer", "shared"):
        weights = packed_weights(network, precision=precision)
    if placement in ("pointer", "shared"):
        weights = torch.frombuffer(bytearray(weights), dtype=torch.uint8).to(chosen)
    return CudaFunction(network, placement, precision, layout, chosen, program, kernel, weights)
