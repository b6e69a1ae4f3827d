"""A network from a file at the speed of constants: the program is written and compiled when the file is read.

Weights in a file and weights in the program exclude each other only as long as the compiler is not there at start-up.
Here it is: on a CPU the C++ compiler, on CUDA NVRTC. Lesson 11.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from helpers import _console as console, native, units
from helpers.results import Result
from helpers.studies.constant_weights._cpp_calling import check_tensors
from helpers.studies.constant_weights._cpp_sources import cpp_source
from helpers.studies.constant_weights._cuda_sources import THREADS, cuda_declaration, cuda_source, packed_weights
from helpers.studies.constant_weights._files import load
from helpers.studies.constant_weights._network import Network, network_of, pruned
from helpers.studies.constant_weights._programs import CppProgram, build, cpp_program

STRAIGHT_LINE_SHARE = 0.4  # of the weights; up to here straight-line code is shorter than the loops take

_MOST_BLOCKS = 2**31 - 1


@dataclass(frozen=True)
class Serving(Result):
    """What a :class:`Specialised` computes with at the moment.

    ``weights_are`` is "behind a pointer" while the compiler runs, "constants" afterwards. ``compile_s`` is what the
    compiler took for the constants, 0 when the program was in the cache, None while it runs. Lesson 11.
    """

    device: str
    weights_are: str
    placement: str
    macs: int
    nonzero_weights: int
    was_cached: bool | None
    compile_s: float | None


class Specialised:
    """A dense network that is compiled, with its weights as constants, while it already serves.

    ``specialised(x)`` or ``specialised(x, out=y)`` with float32 (N, inputs) on its device gives (N, outputs). Until the
    compiler is done, a program that reads the weights through a pointer answers (on a CPU the one for any sizes, which
    is compiled once a machine); the results of the two agree to rounding, not to the bit. Threads may call it at once.

    ``device`` is "cpu" or a CUDA device. ``prune`` is the share of every layer's weights, the ones nearest to zero,
    that become zero. With few weights left (:data:`STRAIGHT_LINE_SHARE`) a CPU gets straight-line code.

    Raises TypeError or ValueError for a model that is no dense network or is too large, MissingToolError without a
    compiler, and NativeError where CUDA is asked for and there is none. Lesson 11.
    """

    def __init__(self, model: nn.Module | Network, *, device: str | torch.device = "cpu", prune: float = 0.0) -> None:
        self.network = pruned(network_of(model), prune)
        self.device = torch.device(device)
        if self.device.type not in ("cpu", "cuda"):
            raise ValueError(f"device is 'cpu' or a CUDA device such as 'cuda', not {device!r:.40}")
        if self.device.type == "cuda":
            if not torch.cuda.is_available():
                raise native.NativeError(f"there is no CUDA device for {device!r}", "take device='cpu'")
            index = torch.cuda.current_device() if self.device.index is None else self.device.index
            self.device = torch.device("cuda", index)
        make = _cpu_programs if self.device.type == "cpu" else _cuda_programs
        self._program, constants = make(self.network, self.device)
        self._quick = self._program.quick
        self._serving = self._state("behind a pointer", None, None)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._specialise, args=(constants,), name="specialise", daemon=True)
        self._thread.start()

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        *,
        activations: Sequence[str] | None = None,
        device: str | torch.device = "cpu",
        prune: float = 0.0,
    ) -> Specialised:
        """Return the network of the file ``path`` (:func:`load`, which takes ``activations``), being compiled.

        Raises as :func:`load` for the file and as the class for the network. Lesson 11.
        """
        return cls(load(path, activations=activations), device=device, prune=prune)

    @property
    def serving(self) -> Serving:
        """What answers at the moment."""
        return self._serving

    def wait(self, timeout_s: float | None = None) -> Serving:
        """Wait until the constants are compiled and serve; return what serves then.

        Raises TimeoutError when that takes longer than ``timeout_s`` (it goes on in the background), and what the
        compiler raised when it failed (then the pointer program goes on serving). Lesson 11.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the compiler is still at work after {timeout_s:g} s; the network serves from behind a "
                               "pointer meanwhile, and wait() may be called again")  # fmt: skip
        if self._error is not None:
            raise self._error
        return self._serving

    def __repr__(self) -> str:
        now = self._serving
        layers = " -> ".join(map(str, self.network.widths))
        took = "" if now.compile_s is None else f", compiled in {units.text(now.compile_s, 's')}"
        return f"Specialised({layers} on {self.device}, weights {now.weights_are}{took})"

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        if out is not None:
            done = self._quick(x, out)
            if done is not None:
                return done
        return self._program(x, out=out)

    def _specialise(self, constants: Callable[[], tuple[Any, bool, float]]) -> None:
        try:
            program, was_cached, compile_s = constants()
        except Exception as error:  # kept for wait(), and said now: a thread has nobody to raise to
            self._error = error
            console.notice(f"The network is not specialised, and goes on with its weights behind a pointer: {error}")
            return
        # Each is one assignment; a call that runs meanwhile uses the old program or the new one, never half of each.
        self._program = program
        self._quick = program.quick
        self._serving = self._state("constants", was_cached, compile_s)

    def _state(self, weights_are: str, was_cached: bool | None, compile_s: float | None) -> Serving:
        return Serving(device=str(self.device), weights_are=weights_are, placement=self._program.placement,
                       macs=self.network.macs, nonzero_weights=self.network.nonzero_weights, was_cached=was_cached,
                       compile_s=compile_s)  # fmt: skip


def best_placement(network: Network) -> str:
    """Return the C++ placement that is fastest for ``network``: "pruned" with few weights left, else "lanes"."""
    return "pruned" if network.nonzero_weights <= STRAIGHT_LINE_SHARE * network.macs else "lanes"


def _cpu_programs(network: Network, device: torch.device) -> tuple[CppProgram, Callable[[], Any]]:  # noqa: ARG001
    placement = best_placement(network)
    cpp_source(network, placement)  # what is too large is refused here and now, not in the background

    def constants() -> tuple[CppProgram, bool, float]:
        program = cpp_program(network, placement)
        return program, program.library.was_cached, program.library.compile_s

    return cpp_program(network, "runtime_sizes"), constants


@dataclass(frozen=True, eq=False)
class _CudaProgram:
    """A kernel with its weights, called as a :class:`CppProgram` is."""

    network: Network
    device: torch.device
    placement: str
    kernel: native.Kernel
    weights: tuple[torch.Tensor, ...]

    def quick(self, x: object, out: object) -> None:
        """Decline: the checks are in Python here, since a launch costs more than they do."""

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        sizes = {"inputs": self.network.inputs, "outputs": self.network.outputs}
        out = check_tensors(x, out, device=str(self.device), **sizes)
        blocks = -(-x.shape[0] // THREADS)
        if blocks > _MOST_BLOCKS:
            raise ValueError(f"x has {x.shape[0]:,} candidates; one call takes up to {_MOST_BLOCKS * THREADS:,}")
        if blocks:
            self.kernel(x, out, x.shape[0], *self.weights, grid=blocks, block=THREADS)
        return out


def _cuda_programs(network: Network, device: torch.device) -> tuple[_CudaProgram, Callable[[], Any]]:
    architecture = native.gpu_architecture(device)
    source = cuda_source(network, placement="const")

    def made(placement: str, text: str, weights: tuple[torch.Tensor, ...]) -> tuple[_CudaProgram, bool, float]:
        cubin = build(text, architecture=architecture).cubin
        kernel = cubin.load(device).function(cuda_declaration(placement))
        program = _CudaProgram(network, device, placement, kernel, weights)
        return program, cubin.was_cached, cubin.compile_s

    numbers = torch.frombuffer(bytearray(packed_weights(network)), dtype=torch.float32).to(device)
    behind_pointer, _, _ = made("pointer", cuda_source(network, placement="pointer"), (numbers,))
    return behind_pointer, lambda: made("const", source, ())
