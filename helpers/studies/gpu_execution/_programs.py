"""The transposes of lesson 03 in CUDA C++, which NVRTC compiles also where there is no GPU."""

from __future__ import annotations

from helpers import native

TRANSPOSES_THREADS = {"one_line": (32, 32), "tiled": (32, 32), "padded": (32, 32), "four_values": (32, 8)}


def cuda_source() -> str:
    """Return the CUDA C++ of four transposes, the kernels that :data:`TRANSPOSES_THREADS` names with their blocks.

    Each is ``extern "C" __global__ void NAME(const float* input, float* output, int n)`` for n x n values, in a grid of
    one block per tile of 32 x 32 values.

    >>> compiled = native.compile_cuda(cuda_source(), architecture="sm_90")
    >>> compiled.resources("padded").shared_bytes
    4224

    Lesson 03.
    """
    return native.read_source(__package__, "transposes.cu")
