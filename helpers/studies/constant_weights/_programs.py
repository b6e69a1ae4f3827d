"""From a model to the source of a program that evaluates it, and from the source to a function of
tensors.

``generate`` writes C++ or CUDA C++, ``build`` compiles it (CUDA C++ on any machine),
``cpp_program`` and ``cuda_function`` do both and give what is called. Lesson 17.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from helpers import native
from helpers.checks import choice
from helpers.studies.constant_weights import (
    _cpp_sources as cpp_sources,
    _cuda_sources as cuda_sources,
)
from helpers.studies.constant_weights._cpp_sources import context_of, cpp_source
from helpers.studies.constant_weights._network import Network, network_of, pruned

TARGETS = ("cpp", "cuda")

_MOST_BLOCKS = 2**31 - 1


def generate(
    model: nn.Module | Network,
    target: str = "cpp",
    *,
    placement: str | None = None,
    precision: str = "fp32",
) -> str:
    """Return the source text of a program that evaluates ``model``: with ``target`` "cpp" C++, with
    "cuda" CUDA C++.

    ``placement`` says where the weights are: one of :data:`CPP_PLACEMENTS` (by default "lanes") or
    of :data:`CUDA_PLACEMENTS` ("const"). Where the values are known to the compiler (and in C++
    with "pruned") a weight of zero costs no instruction. ``precision="fp16"`` is CUDA's alone:
    :func:`cuda_source` says what it is.

    Raises TypeError or ValueError for a model that is no chain of dense layers, an unknown name,
    and what a placement cannot hold. Lesson 17.
    """
    network = network_of(model)
    if choice("target", target, TARGETS) == "cuda":
        where = "const" if placement is None else placement
        return cuda_sources.cuda_source(network, placement=where, precision=precision)
    if precision != "fp32":
        raise ValueError(
            f'in C++ the precision is "fp32", not {precision!r:.40}; precision="fp16" (HFMA2) is '
            'generated with target="cuda"'
        )
    return cpp_source(network, "lanes" if placement is None else placement)


@dataclass(frozen=True)
class CudaProgram:
    """CUDA C++ compiled: ``cubin`` holds source and machine code, and loads on a GPU
    (``cubin.load()``).

    Lesson 17.
    """

    cubin: native.Cubin


def build(source: str, *, architecture: str = "sm_90") -> CudaProgram | native.Library:
    """Return the program that the compiler makes of a generated ``source``; a kernel in it
    (``__global__``) says that it is CUDA.

    CUDA C++ gives a :class:`CudaProgram` for ``architecture``, and needs no GPU; C++ a loaded
    :class:`helpers.native.Library` for this processor, of which :func:`cpp_program` makes a
    function of tensors. Both are kept in the cache under their content.

    Raises TypeError for what is no text, ValueError for an architecture that is not known,
    CompilationError for a source that the compiler refuses, and MissingToolError, with what to
    install, without it.
    """
    if not isinstance(source, str):
        raise TypeError(
            f"a source is the text that generate() returns, not {type(source).__name__}"
        )
    return (
        build_cuda(source, architecture=architecture)
        if "__global__" in source
        else native.compile_cpp(source)
    )


def build_cuda(source: str, *, architecture: str) -> CudaProgram:
    """Return the program of a CUDA ``source``. Raises as :func:`build` does."""
    return CudaProgram(native.compile_cuda(source, architecture=architecture))


@dataclass(frozen=True, eq=False)
class CppProgram:
    """A network as a loaded C++ program: ``program(x)``, or ``program(x, out=y)`` without a new
    tensor.

    ``x`` is float32 (N, inputs) on the CPU, contiguous; the result (N, outputs). ``library`` has
    the source and how long it took to compile. It holds no state, so threads may call it at once;
    long calls let Python run. ``evaluate`` is the bare function of addresses, nothing checked, with
    ``context`` as its last argument.

    Calling raises TypeError or ValueError for other tensors (:func:`cpp_sources.check_tensors`).
    Lesson 17.
    """

    network: Network
    placement: str
    library: native.Library
    evaluate: Any = field(repr=False)
    kept: tuple[Any, ...] = field(repr=False)
    quick: Callable[..., Any] = field(repr=False)

    @property
    def context(self) -> int | None:
        """The address that ``evaluate`` takes last: of the weights, or of all it must be told; None
        for nothing.
        """
        return cpp_sources.address_of(self.kept)

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        if out is not None:
            result = self.quick(x, out)
            if result is not None:
                return result
        out = cpp_sources.check_tensors(x, out, self.network)
        self.evaluate(x.data_ptr(), out.data_ptr(), x.shape[0], self.context)
        return out


def cpp_program(
    model: nn.Module | Network, placement: str = "lanes", *, prune: float = 0.0
) -> CppProgram:
    """Return ``model`` compiled with its weights where ``placement`` says, one of
    :data:`CPP_PLACEMENTS`, to be called.

    ``prune`` is the share of every layer's weights that is set to zero first.

    Raises as :func:`cpp_sources.cpp_source` and :func:`helpers.native.compile_cpp`. Lesson 17.
    """
    network = pruned(network_of(model), prune)
    library = native.compile_cpp(cpp_source(network, placement))
    evaluate = library.function(cpp_sources.EVALUATE).raw
    context = context_of(network, placement)
    quick = cpp_sources.caller(evaluate, context, network)
    return CppProgram(network, placement, library, evaluate, context, quick)


@dataclass(frozen=True, eq=False)
class CudaFunction:
    """A network's kernel on a GPU: ``function(x)``, or ``function(x, out=outputs)``, evaluates it.

    ``program`` has the source and the machine code. With ``layout="rows"`` x is (N, inputs) and the
    outputs (N, outputs); with "columns" they are (inputs, N) and (outputs, N). Both are float32, on
    ``device`` and contiguous. It starts on torch's current stream and returns at once, as torch's
    own operations do.

    A call raises TypeError or ValueError for other tensors (:func:`cpp_sources.check_tensors`) and
    for more candidates than a grid has threads for. Lesson 17.
    """

    network: Network = field(repr=False)
    placement: str
    precision: str
    layout: str
    device: torch.device
    program: CudaProgram = field(repr=False)
    kernel: native.LoadedKernel = field(repr=False)
    weights: tuple[Any, ...] = field(repr=False)

    def quick(self, x: object, out: object) -> None:
        """Decline: the checks are in Python here, since a launch costs more than they do."""

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        out = cpp_sources.check_tensors(
            x, out, self.network, device=str(self.device), layout=self.layout
        )
        candidates = x.shape[0 if self.layout == "rows" else 1]
        block_candidates = cuda_sources.THREADS * cuda_sources.candidates_per_thread(self.precision)
        blocks = -(-candidates // block_candidates)
        if blocks > _MOST_BLOCKS:
            raise ValueError(
                f"x has {candidates:,} candidates; one call takes up to "
                f"{_MOST_BLOCKS * block_candidates:,}"
            )
        if blocks:
            self.kernel(x, out, candidates, *self.weights, grid=blocks, block=cuda_sources.THREADS)
        return out


def cuda_function(
    model: nn.Module | Network,
    *,
    placement: str = "const",
    precision: str = "fp32",
    layout: str = "rows",
    device: str | torch.device | None = None,
) -> CudaFunction:
    """Return ``model`` compiled for the GPU ``device`` (torch's current one) and loaded there, its
    weights in place.

    ``placement``, ``precision`` and ``layout`` are those of :func:`cuda_source`. It is compiled
    once and then read from the cache. Raises what :func:`generate` and :func:`build` raise, and
    NativeError where there is no GPU.
    """
    network = network_of(model)
    source = cuda_sources.cuda_source(
        network, placement=placement, precision=precision, layout=layout
    )
    program = build_cuda(source, architecture=native.gpu_architecture(device))
    chosen = torch.device("cuda" if device is None else device)
    if chosen.index is None:
        chosen = torch.device("cuda", torch.cuda.current_device())
    kernel = program.cubin.load(chosen).function(cuda_sources.cuda_declaration(placement))
    weights: tuple[Any, ...] = ()
    if placement in ("parameter", "pointer", "shared"):
        weights = (cuda_sources.packed_weights(network, precision=precision),)
    if placement in ("pointer", "shared"):
        weights = (torch.frombuffer(bytearray(*weights), dtype=torch.uint8).to(chosen),)
    return CudaFunction(network, placement, precision, layout, chosen, program, kernel, weights)
