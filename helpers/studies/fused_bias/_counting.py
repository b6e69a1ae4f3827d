"""The bytes that bias and ReLU move, counted kernel by kernel, and the time that a machine's limits
give them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from helpers.checks import choice, members, one_of, whole_number
from helpers.hardware.limits._results import MachineLimits
from helpers.results import Record
from helpers.studies.fused_bias._variants import VARIANTS


class _KernelTraffic(NamedTuple):
    """A kernel by what it reads and writes of the activation (in whole tensors) and of the bias (in
    whole vectors).
    """

    kernel: str
    reads: int
    writes: int
    bias_reads: int = 0
    bias_writes: int = 0
    in_place: bool = False


_RELU_IN_PLACE = _KernelTraffic("ReLU", 1, 1, in_place=True)
_ONE_FORWARD = (_KernelTraffic("bias and ReLU", 1, 1, 1, in_place=True),)
_BACKWARD = (
    _KernelTraffic("ReLU backward", 2, 1),
    _KernelTraffic("bias gradient", 1, 0, bias_writes=1),
)
_ONE_BACKWARD = (_KernelTraffic("ReLU backward and bias gradient", 2, 1, bias_writes=1),)
_STEPS: dict[str, dict[str, tuple[_KernelTraffic, ...]]] = {
    "forward": {
        "separate": (_KernelTraffic("add bias", 1, 1, 1), _KernelTraffic("ReLU", 1, 1)),
        "broadcast": (_KernelTraffic("bias and ReLU", 1, 1, 1),),
        "in-place": (_KernelTraffic("add bias", 1, 1, 1, in_place=True), _RELU_IN_PLACE),
        "native": (_RELU_IN_PLACE,),
        "post-op": (),
        "compiled": _ONE_FORWARD,
        "one-pass": _ONE_FORWARD,
    },
    "backward": {
        "separate": _BACKWARD,
        "broadcast": _ONE_BACKWARD,
        "in-place": _BACKWARD,
        "native": _BACKWARD[:1],
        "post-op": _BACKWARD[:1],
        "one-pass": _ONE_BACKWARD,
    },
}


class KernelTraffic(Record):
    """The bytes that one kernel reads and writes; ``working_set_bytes`` are the distinct bytes of
    both.

    Lesson 18.
    """

    kernel: str
    read_bytes: int
    written_bytes: int
    working_set_bytes: int

    @property
    def moved_bytes(self) -> int:
        """Read and written bytes together."""
        return self.read_bytes + self.written_bytes


class VariantTraffic(Record):
    """The kernels of a variant beside its convolution, in their order, for an activation of
    ``shape``.

    Lesson 18.
    """

    variant: str
    phase: str
    shape: tuple[int, ...]
    dtype: str
    kernels: tuple[KernelTraffic, ...]

    @property
    def read_bytes(self) -> int:
        """Bytes that all kernels read."""
        return sum(kernel.read_bytes for kernel in self.kernels)

    @property
    def written_bytes(self) -> int:
        """Bytes that all kernels write."""
        return sum(kernel.written_bytes for kernel in self.kernels)

    @property
    def moved_bytes(self) -> int:
        """Bytes that all kernels read and write."""
        return self.read_bytes + self.written_bytes

    @property
    def working_set_bytes(self) -> int:
        """The distinct bytes of all kernels: what the first one reads, and each result that has
        bytes of its own.
        """
        first = self.kernels[0].read_bytes if self.kernels else 0
        return first + sum(kernel.working_set_bytes - kernel.read_bytes for kernel in self.kernels)


class KernelModel(Record):
    """A kernel's modelled time: its bytes over ``bandwidth_bytes_per_s``, and ``overhead_s`` for
    the call.

    ``measured_by`` is the kernel of the probe whose bandwidth it is. Lesson 18.
    """

    kernel: str
    moved_bytes: int
    measured_by: str
    bandwidth_bytes_per_s: float
    overhead_s: float
    modelled_s: float


class TrafficModel(Record):
    """The modelled time of a variant's bias and ReLU on a device, kernel by kernel. Lesson 18."""

    variant: str
    phase: str
    device: str
    modelled_s: float
    kernels: tuple[KernelModel, ...]


def traffic(
    variant: str,
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    *,
    phase: str = "forward",
) -> VariantTraffic:
    """Return the bytes that the bias and the ReLU of ``variant`` read and write for an activation
    of ``shape`` (N, C, ...).

    Counted is what the program names: each kernel reads its operands once and writes its result
    once; the line that a cache fetches before a write is left out, as in STREAM. The convolution is
    left out too, since all variants have it, and with it the bias of "native" and "post-op", which
    it adds, and their bias gradient, which its backward pass computes. ``phase`` is "forward", or
    "backward" for the ReLU's and the bias's gradients. All tensors are of ``dtype``.

    Raises ValueError for an unknown variant, phase or shape, and for the backward pass of
    "compiled", whose kernels the compiler decides: profile it instead. Lesson 18.
    """
    choice("variant", variant, VARIANTS)
    choice("phase", phase, _STEPS)
    if variant not in _STEPS[phase]:
        raise ValueError(
            f"the compiler decides what {variant!r} moves in the {phase} pass; see "
            "profiling.kernel_table"
        )
    sizes = tuple(
        whole_number(f"shape[{index}]", size, at_least=0)
        for index, size in enumerate(members("shape", shape, "sizes, (N, C, ...)"))
    )
    if len(sizes) < 2:
        raise ValueError(f"shape is (N, C, ...), of two sizes or more; got {sizes}")
    one_of("dtype", dtype, torch.dtype, "one of torch's, such as torch.float32")
    activation_bytes, bias_bytes = math.prod(sizes) * dtype.itemsize, sizes[1] * dtype.itemsize
    kernels = tuple(
        _count_step(step, activation_bytes, bias_bytes) for step in _STEPS[phase][variant]
    )
    return VariantTraffic(variant, phase, sizes, str(dtype).removeprefix("torch."), kernels)


def _count_step(step: _KernelTraffic, activation_bytes: int, bias_bytes: int) -> KernelTraffic:
    read, written = (
        step.reads * activation_bytes + step.bias_reads * bias_bytes,
        step.writes * activation_bytes + step.bias_writes * bias_bytes,
    )
    return KernelTraffic(step.kernel, read, written, read if step.in_place else read + written)


def model_time(counted: VariantTraffic, limits: MachineLimits) -> TrafficModel:
    """Return the time that the counted bytes take within the measured ``limits`` of a machine.

    Each kernel moves its bytes at the bandwidth of the probe's kernel that moves bytes in the same
    way (a sum for one that only reads, a scaling in place, a copy, a triad for two reads and a
    write), at the working set of the whole variant, since in a loop a tensor comes back after all
    the others; between two measured working sets the logarithm of the bandwidth is interpolated. So
    the model knows the caches. On a CPU the call overhead of an operator is added; on CUDA a kernel
    takes at least the overhead of its launch, since launches run ahead. Pages that are written for
    the first time are not in it: measure under ``steady_allocator()``.

    Where a measurement is faster, the kernel does what the probe's operators do not: from 16 MiB on
    :func:`relu_bias_backward` writes past the caches, which saves the read of each line before its
    write (a triad moves four tensors for the three that are counted), and the one-pass kernels work
    on several places in turns, where one stream waits at the end of each page. Where it is slower,
    other programs take a part of the caches or of the memory's bandwidth since the probe ran:
    compare with ``scale_share``, which is timed in turns.

    Raises TypeError for what are no limits, ValueError for limits without bandwidths.
    """
    one_of("limits", limits, MachineLimits, "what helpers.probe() returns")
    if not limits.bandwidths:
        raise ValueError(
            "these limits hold no bandwidths; measure them again with helpers.probe(refresh=True)"
        )
    kernels = tuple(
        _model_kernel(kernel, limits, counted.working_set_bytes) for kernel in counted.kernels
    )
    total_s = sum(kernel.modelled_s for kernel in kernels)
    return TrafficModel(counted.variant, counted.phase, limits.device, total_s, kernels)


def _model_kernel(
    kernel: KernelTraffic, limits: MachineLimits, working_set_bytes: int
) -> KernelModel:
    by = _probe_kernel(kernel)
    bandwidth = bandwidth_at(limits, working_set_bytes, by=by)
    memory_s, overhead_s = kernel.moved_bytes / bandwidth, limits.call_overhead_s
    modelled_s = (
        max(memory_s, overhead_s) if limits.device.startswith("cuda") else memory_s + overhead_s
    )
    return KernelModel(kernel.kernel, kernel.moved_bytes, by, bandwidth, overhead_s, modelled_s)


def _probe_kernel(kernel: KernelTraffic) -> str:
    """Return the probe's kernel that moves bytes as this one does; in place the result is no bytes
    of its own.
    """
    if kernel.working_set_bytes == kernel.read_bytes:
        return "scale"
    if kernel.written_bytes * 2 < kernel.read_bytes - kernel.written_bytes:
        return "read"
    return "triad" if kernel.read_bytes > 1.5 * kernel.written_bytes else "copy"


def bandwidth_at(limits: MachineLimits, working_set_bytes: float, *, by: str) -> float:
    """Return the bandwidth in bytes a second of the kernel ``by`` at ``working_set_bytes``,
    interpolated in ``limits``.

    ``by`` is "read", "write", "copy", "triad" or "scale"; outside the measured sizes the nearest
    one counts. Lesson 18.
    """
    one_of("limits", limits, MachineLimits, "a machine's limits, such as helpers.hardware.probe()")
    points = sorted(limits.bandwidths, key=lambda point: point.working_set_bytes)
    sizes = np.log([point.working_set_bytes for point in points])
    rates = np.log([getattr(point, f"{by}_bytes_per_s") for point in points])
    return float(np.exp(np.interp(math.log(max(1, working_set_bytes)), sizes, rates)))
