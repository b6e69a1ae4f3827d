"""The products: C++ against float64, the kernels' instructions, and the kernels themselves on
threads of this CPU.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from helpers import native, recorded, results, timing
from helpers.native import _nvrtc as nvrtc, _tools as tools
from helpers.studies.matrix_product import (
    _programs as matrix_product,
    count_instructions,
    error_share,
    make_product,
    measure_products,
)
from helpers.studies.simulators import naive_traffic, tiled_traffic

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
SHAPES = [(1, 1, 1), (4, 16, 8), (5, 7, 3), (17, 33, 20), (64, 48, 80), (3, 100, 130), (70, 1, 65)]

# CUDA's words for a CPU: a block's threads are threads, its barrier is theirs, blocks run one after
# another.
CUDA_ON_A_CPU = """
#include <barrier>
#include <memory>
#include <thread>
#include <vector>
struct Index { int x, y; };
static thread_local Index threadIdx;
static Index blockIdx, blockDim;
static std::unique_ptr<std::barrier<>> barrier_of_the_block;
#define __global__
#define __shared__ static
#define __syncthreads() barrier_of_the_block->arrive_and_wait()
"""
LAUNCHERS = """
#define LAUNCHER(kernel) \\
extern "C" void launch_##kernel(const float* a, const float* b, float* c, int m, int n, int k, \\
                                int grid_x, int grid_y, int block_x, int block_y) { \\
    blockDim = {block_x, block_y}; \\
    for (blockIdx.y = 0; blockIdx.y < grid_y; ++blockIdx.y) \\
        for (blockIdx.x = 0; blockIdx.x < grid_x; ++blockIdx.x) { \\
            barrier_of_the_block = std::make_unique<std::barrier<>>(block_x * block_y); \\
            std::vector<std::thread> threads; \\
            for (int y = 0; y < block_y; ++y) for (int x = 0; x < block_x; ++x) threads.emplace_back([=] { \\
                threadIdx = {x, y}; kernel(a, b, c, m, n, k); }); \\
            for (auto& thread : threads) thread.join(); \\
        } \\
}
LAUNCHER(naive_product)
LAUNCHER(tiled_product)
"""  # noqa: E501


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    """What is compiled here is compiled once for all tests, and kept nowhere else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELPERS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def emulated(name: str, tile: int, source: str | None = None):
    """Return the CUDA C++ kernel as a function with a grid and a block, compiled for this CPU."""
    program = CUDA_ON_A_CPU + (source or matrix_product.cuda_source(tile=tile)) + LAUNCHERS
    library = native.compile_cpp(program, flags=("-O1", "-std=c++20", "-pthread"))
    declared = matrix_product._CUDA_DECLARATION.format(f"launch_{name}")
    launch = library.function(
        declared.replace(")", ", int grid_x, int grid_y, int block_x, int block_y)")
    )
    return lambda *arguments, grid, block: launch(*arguments, *grid, *block)


def factors(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(m + n + k)
    return torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)


@needs_compiler
@pytest.mark.parametrize("name", matrix_product.CPU_PRODUCTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_program_computes_the_product(name, shape):
    a, b = factors(*shape)
    found = make_product(name, tile=16, device="cpu")(a, b)
    np.testing.assert_allclose(found, a.double().numpy() @ b.double().numpy(), rtol=1e-4, atol=1e-4)
    assert error_share(found, a, b) < 1
    # views, another tile
    assert error_share(make_product(name, tile=5, device="cpu")(b.T, a.T), b.T, a.T) < 1


@needs_compiler
@pytest.mark.parametrize("name", matrix_product.CUDA_PRODUCTS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (8, 16, 8), (9, 7, 17), (20, 3, 10)])
def test_the_cuda_kernels_compute_the_product_on_the_launch_that_they_get(name, shape):
    a, b = factors(*shape)
    found = matrix_product._launch(emulated(name, 8), 8, torch.device("cpu"), a, b)
    np.testing.assert_allclose(found, a.double().numpy() @ b.double().numpy(), rtol=1e-4, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize(("old", "new"), [
    ("? a[row * k + start + x] : 0", "? a[row * k + start + y] : 0"),
    ("start + y < k && column < n", "start + y < k - 1 && column < n"),
    ("p < TILE; ++p", "p < TILE - 1; ++p"),
])  # fmt: skip
def test_a_planted_mistake_in_the_kernel_is_seen(old, new):
    source = matrix_product.cuda_source(tile=8)
    assert source.count(old) == 1
    a, b = factors(9, 7, 17)
    kernel = emulated("tiled", 8, source.replace(old, new))
    found = matrix_product._launch(kernel, 8, torch.device("cpu"), a, b)
    assert error_share(found, a, b) > 1


def _has_nvrtc() -> bool:
    try:
        nvrtc.find_nvrtc()
        tools.find_nvdisasm()
    except native.MissingToolError:
        return False
    return True


@pytest.mark.skipif(not _has_nvrtc(), reason="no NVRTC or no nvdisasm")
@pytest.mark.parametrize(
    ("tile", "architectures"), [(16, ["sm_75", "sm_80", "sm_90"]), (32, ["sm_75", "sm_90"])]
)
def test_the_instructions_are_the_formulas_in_small(tile, architectures):
    counted = count_instructions(tile=tile, architectures=architectures)
    assert [row.architecture for row in counted.kernels] == [
        name for name in architectures for _ in range(2)
    ]
    naive, tiled = (
        naive_traffic(tile, tile, tile, tile=tile),
        tiled_traffic(tile, tile, tile, tile=tile),
    )
    for row in counted.kernels:
        model = naive if row.kernel == "naive" else tiled
        # What stands in the program for each multiply-add is what the traffic of a whole product
        # has for each.
        assert row.global_loads * model.macs == row.multiply_adds * model.global_reads
        assert row.shared_load_bytes * model.macs == row.multiply_adds * model.shared_reads * 4
        assert row.shared_stores * model.macs == row.multiply_adds * model.shared_writes
        assert row.barriers * model.macs == row.multiply_adds * model.barriers * model.threads
        assert (row.global_stores, row.multiply_adds > 0, row.registers > 0) == (1, True, True)
        if row.kernel == "tiled":
            assert (row.multiply_adds % tile, row.loads_per_multiply_add_ratio) == (0, 2 / tile)
            # four numbers of a_tile come in one load
            assert row.shared_loads < 2 * row.multiply_adds
    assert results.from_dict(matrix_product.InstructionCounts, counted.to_dict()) == counted


@pytest.mark.skipif(not _has_nvrtc(), reason="no NVRTC or no nvdisasm")
def test_the_architectures_can_be_named(monkeypatch):
    # by default those that NVRTC knows
    monkeypatch.setattr(matrix_product, "_ARCHITECTURES", ("sm_80", "sm_1"))
    assert {row.architecture for row in count_instructions(tile=8).kernels} == {"sm_80"}
    counted = count_instructions(tile=8, architectures=["sm_80"])
    assert [(row.kernel, row.architecture) for row in counted.kernels] == [
        ("naive", "sm_80"),
        ("tiled", "sm_80"),
    ]
    assert counted.kernels[1].loads_per_multiply_add_ratio == 2 / 8
    with pytest.raises(TypeError, match=r"a list of names, such as \['sm_80'\]"):
        count_instructions(architectures="sm_80")
    with pytest.raises(ValueError, match="no architecture to compile for"):
        count_instructions(architectures=[])


@needs_compiler
def test_the_times_are_of_one_product_with_one_thread():
    threads = torch.get_num_threads()
    times = measure_products(96, device="cpu", budget_s=0.2)
    assert [row.name for row in times.products] == [*matrix_product.CPU_PRODUCTS, "torch.matmul"]
    assert (times.m, times.n, times.k, times.macs, times.tile) == (96, 96, 96, 96**3, 64)
    assert (times.comparison.threads, times.comparison.baseline, torch.get_num_threads()) == (
        1,
        "naive",
        threads,
    )
    for row, candidate in zip(times.products, times.comparison.candidates, strict=True):
        assert row.rate_flops_per_s * row.median_s == pytest.approx(2 * 96**3)
        assert row.speedup * candidate.time_ratio == pytest.approx(1)
        assert 0 < row.error_share < 1
    assert results.from_dict(matrix_product.ProductTimes, times.to_dict()) == times


@needs_compiler
@pytest.mark.timed
def test_the_order_of_the_loops_decides_the_time():
    times = measure_products(384, device="cpu", budget_s=2)
    for name in ("interchanged", "tiled", "registers"):
        times.comparison.claim(f"{name} is faster than naive", name, at_most=1)
    # told apart: then the opposite is contradicted
    if times.comparison.candidate("interchanged").high_ratio < 0.9:
        waited = times.comparison.waiting_share
        if waited is None or waited < 0.1:
            with pytest.raises(timing.ClaimContradicted):
                times.comparison.claim(
                    "interchanged is slower than naive", "interchanged", at_least=1
                )


@needs_compiler
def test_a_wrong_product_is_not_timed(monkeypatch):
    wrong = matrix_product.cpu_source(tile=64).replace("p < k", "p < k - 1", 1)
    monkeypatch.setattr(matrix_product, "cpu_source", lambda tile: wrong)
    with pytest.raises(
        RuntimeError, match=r"wrong products: naive \([\d.e+]+ times .*; nothing was timed"
    ):
        measure_products(32, device="cpu", budget_s=0.1)


def test_the_error_is_a_share_of_what_rounding_can_cause():
    a, b = torch.full((1, 3), 1.0), torch.full((3, 1), 1.0)
    allowed = 3 * 2.0**-24 / (1 - 3 * 2.0**-24) * 3
    assert error_share(torch.tensor([[3.0]]), a, b) == 0
    off = torch.tensor([[3.0 + 2.0**-22]])
    assert error_share(off, a, b) == pytest.approx(2.0**-22 / allowed)
    assert error_share(torch.tensor([[float("nan")]]), a, b) == float("inf")
    assert error_share(torch.tensor([[1e-30]]), torch.zeros(1, 3), b) == float("inf")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: make_product("fast", device="cpu"),
            ValueError,
            "on cpu the products are naive, interchanged, tiled, reg",
        ),
        (
            lambda: make_product("naive", device="mps"),
            ValueError,
            "device='mps' is neither a CPU nor a CUDA device",
        ),
        (
            lambda: make_product("naive", device="gpu"),
            ValueError,
            "device='gpu' is neither a CPU nor a CUDA device",
        ),
        (
            lambda: make_product("tiled", tile=0, device="cpu"),
            ValueError,
            "tile is a whole number from 1 to 4,096; got 0",
        ),
        (
            lambda: measure_products(0, device="cpu"),
            ValueError,
            "side is a whole number of at least 1; got 0",
        ),
        (lambda: count_instructions(tile=12), ValueError, "a tile of 8, 16, 32; got 12"),
        (
            lambda: matrix_product._operands([[1.0]], torch.ones(1, 1), torch.device("cpu")),
            TypeError,
            "not list",
        ),
        (
            lambda: matrix_product._operands(
                torch.ones(2, 3), torch.ones(2, 3), torch.device("cpu")
            ),
            ValueError,
            r"got \(2, 3\) @ \(2, 3\)",
        ),
        (
            lambda: matrix_product._operands(
                torch.ones(2, 0), torch.ones(0, 3), torch.device("cpu")
            ),
            ValueError,
            "sides of 1 or more",
        ),
        (
            lambda: matrix_product._operands(
                torch.ones(2, 2).double(), torch.ones(2, 2), torch.device("cpu")
            ),
            ValueError,
            "a is a float32 matrix on cpu; this is torch.float64",
        ),
        (
            lambda: matrix_product._launch(
                None, 8, torch.device("cpu"), torch.ones(1, 1).expand(600_000, 1), torch.ones(1, 1)
            ),
            ValueError,
            "524,280 rows",
        ),
    ],
)
def test_wrong_arguments_are_told_what_is_accepted(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_cuda_is_refused_with_what_works():
    with pytest.raises(
        RuntimeError, match=r"no CUDA device here; count_instructions .* device='cpu'"
    ):
        measure_products(device="cuda")


def test_the_product_is_recorded_for_lesson_02():
    assert "helpers.studies.matrix_product:measure_products" in recorded.RECORDERS["02"].values()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("tile", matrix_product.CUDA_TILES)
@pytest.mark.parametrize("shape", SHAPES)
def test_on_a_gpu_the_kernels_compute_the_product(tile, shape):
    a, b = (matrix.cuda() for matrix in factors(*shape))
    for name in matrix_product.CUDA_PRODUCTS:
        assert error_share(make_product(name, tile=tile)(a, b), a, b) < 1
