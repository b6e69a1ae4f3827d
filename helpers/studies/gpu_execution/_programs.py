"""The transposes of lesson 03 in CUDA C++, which NVRTC compiles also where there is no GPU."""

from __future__ import annotations

from helpers import native

H100_COMPILER = "NVRTC 13.0"
H100_RESOURCES = {  # by this compiler for sm_90; another version may take other registers
    "one_line": native.Resources(registers=10, stack_bytes=0, parameter_bytes=20, shared_bytes=0),
    "tiled": native.Resources(registers=12, stack_bytes=0, parameter_bytes=20, shared_bytes=4096),
    "padded": native.Resources(registers=12, stack_bytes=0, parameter_bytes=20, shared_bytes=4224),
    "four_values": native.Resources(
        registers=24, stack_bytes=0, parameter_bytes=20, shared_bytes=4224
    ),
}
TRANSPOSES_THREADS = {
    "one_line": (32, 32),
    "tiled": (32, 32),
    "padded": (32, 32),
    "four_values": (32, 8),
}


def cuda_source() -> str:
    """Return the CUDA C++ of four transposes, the kernels that :data:`TRANSPOSES_THREADS` names
    with their blocks.

    Each is ``extern "C" __global__ void NAME(const float* input, float* output, int n)`` for n x n
    values, in a grid of one block per tile of 32 x 32 values. Compile them for an H100 with
    ``native.compile_cuda(cuda_source(), architecture="sm_90")``; what it returns has with
    ``resources("padded")`` the registers and the shared memory for :func:`occupancy`.

    >>> [name for name in TRANSPOSES_THREADS if f"void {name}(" in cuda_source()]
    ['one_line', 'tiled', 'padded', 'four_values']

    Lesson 03.
    """
    return native.read_source(__package__, "transposes.cu")
