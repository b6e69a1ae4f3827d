"""Published times of kernels that differ in what lesson 03 counts, as data with their source.

Lesson 03.
"""

from __future__ import annotations

from helpers.results import Record


class TransposeTime(Record):
    """A kernel that transposes 32,768 x 32,768 float32 values on an H100, in tiles of ``tile`` x
    ``tile`` values.

    ``kernel`` is the source's name for it, ``threads`` those of a block. The bandwidth is that of 8
    bytes per value.
    """

    kernel: str
    threads: int
    tile: int
    values_per_thread: int
    time_s: float
    bandwidth_bytes_per_s: float


class ProductRate(Record):
    """A kernel that multiplies two matrices of 4,096 x 4,096 float32 values on an A6000."""

    kernel: str
    flops_per_s: float


TRANSPOSES_SOURCE = (
    "Caleb Yenusah, gpu-matrix-transpose (github.com/yencal/gpu-matrix-transpose, README at commit "
    "cab4650, December 2025): an H100 80 GB HBM3, nvcc -O3 -arch=sm_90"
)
TRANSPOSES = (
    TransposeTime("Naive", 1024, 32, 1, 18.0645e-3, 475.5e9),
    TransposeTime("Tiled", 1024, 32, 1, 8.6235e-3, 996.1e9),
    TransposeTime("TiledPadded", 1024, 32, 1, 5.0724e-3, 1693.4e9),
    TransposeTime("Coarsen2", 512, 32, 2, 3.6014e-3, 2385.1e9),
    TransposeTime("Coarsen4", 256, 32, 4, 3.0984e-3, 2772.4e9),
    TransposeTime("Coarsen8", 128, 32, 8, 3.0951e-3, 2775.3e9),
    TransposeTime("Vec2_T64", 1024, 64, 4, 2.9910e-3, 2872.0e9),
    TransposeTime("Vec4_T64_Coarsen4", 128, 64, 32, 2.9213e-3, 2940.5e9),
)

PRODUCTS_SOURCE = (
    "Simon Boehm, SGEMM_CUDA (github.com/siboehm/SGEMM_CUDA, README): kernels 1 and 2 on an A6000, "
    "without and with neighbouring threads in one row of the result"
)
PRODUCTS = (ProductRate("1: Naive", 309.0e9), ProductRate("2: GMEM Coalescing", 1986.5e9))
