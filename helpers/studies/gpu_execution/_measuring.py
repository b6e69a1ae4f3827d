"""The transposes of lesson 03 on this machine's GPU, where there is one. Lesson 03."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from helpers import native, timing
from helpers.results import Record
from helpers.studies.gpu_execution._programs import TRANSPOSES_THREADS, cuda_source

_SIDE, _BUDGET_S = 8192, 2.0
_TILE = 32


class MeasuredTranspose(Record):
    """The fastest run of ``kernel``. Lesson 03."""

    kernel: str
    time_s: float


class MeasuredTransposes(Record):
    """The transposes of ``side`` x ``side`` float32 values on the GPU ``device``.

    Their kernels are those of :data:`TRANSPOSES_THREADS`, and "torch", which is
    ``x.t().contiguous()``. ``stable`` says whether the times repeat. Lesson 03.
    """

    device: str
    side: int
    transposes: tuple[MeasuredTranspose, ...]
    stable: bool


def measure_transposes() -> MeasuredTransposes | None:
    """Return the times of the four transposes, and of PyTorch's, on this machine's GPU; None where
    there is no GPU.

    The matrix has 8,192 x 8,192 float32 values, so that it fits into no cache. Each kernel's result
    is compared with PyTorch's before it is timed. Raises RuntimeError for a wrong result, and as
    :func:`native.compile_cuda` where NVRTC is missing. Lesson 03.
    """
    if not torch.cuda.is_available():
        return None
    matrix = torch.rand(_SIDE, _SIDE, device="cuda")
    expected = matrix.t().contiguous()
    calls: dict[str, Callable[[], object]] = {}
    module = native.compile_cuda(cuda_source(), architecture=native.gpu_architecture()).load()
    blocks = -(-_SIDE // _TILE)
    output = torch.empty_like(matrix)
    for name, block in TRANSPOSES_THREADS.items():
        kernel = module.function(f"void {name}(const float* input, float* output, int n)")
        calls[name] = functools.partial(
            kernel, matrix, output.zero_(), _SIDE, grid=(blocks, blocks), block=block
        )
        calls[name]()
        if not torch.equal(output, expected):
            raise RuntimeError(
                f"the kernel {name} did not transpose the matrix on {torch.cuda.get_device_name()}"
            )
    calls["torch"] = lambda: matrix.t().contiguous()
    comparison = timing.compare(calls, budget_s=_BUDGET_S, device="cuda", precision=0.05)
    transposes = tuple(MeasuredTranspose(row.name, row.minimum_s) for row in comparison.candidates)
    return MeasuredTransposes(torch.cuda.get_device_name(), _SIDE, transposes, comparison.stable)
