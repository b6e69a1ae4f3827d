"""The transposes in CUDA C++: their machine code makes the requests that the simulated warps make;
published times.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from gpu_kernels import four_values, numbered, one_line, through_tile

from helpers import native
from helpers.native import _cubin, _nvrtc
from helpers.studies.gpu_execution import (
    H100_COMPILER,
    H100_RESOURCES,
    PRODUCTS,
    TRANSPOSES,
    TRANSPOSES_THREADS,
    cuda_source,
    launch,
    occupancy,
)

SIMULATED = {
    "one_line": one_line,
    "tiled": through_tile(32),
    "padded": through_tile(33),
    "four_values": four_values,
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return the transposes, compiled for every third architecture that NVRTC knows, and for those
    of an H100.
    """
    try:
        architectures = native.supported_architectures()
    except native.MissingToolError:
        pytest.skip("no NVRTC")
    folder = tmp_path_factory.mktemp("cubins")
    chosen = dict.fromkeys([*architectures[::3], "sm_90", architectures[-1]])
    return {
        name: native.compile_cuda(cuda_source(), architecture=name, folder=folder)
        for name in chosen
    }


def test_registers_and_shared_memory_are_those_that_the_compiler_reports(compiled):
    words = re.compile(
        r"entry function '(\w+)'.*?Used (\d+) registers(?:[^\n]*?(\d+) bytes smem)?", re.S
    )
    for cubin in compiled.values():
        reported = {
            name: (int(registers), int(shared or 0))
            for name, registers, shared in words.findall(cubin.log)
        }
        assert set(reported) == set(TRANSPOSES_THREADS)
        for name, (registers, shared_bytes) in reported.items():
            resources = cubin.resources(name)
            assert (resources.registers, resources.shared_bytes) == (registers, shared_bytes)


def test_the_recorded_resources_are_those_of_the_compiler_that_they_name(compiled):
    cubin = compiled["sm_90"]
    for name, recorded in H100_RESOURCES.items():
        found = cubin.resources(name)
        assert found.shared_bytes == recorded.shared_bytes
        assert found.registers is not None
        if cubin.compiler == H100_COMPILER:
            assert found == recorded
    assert set(H100_RESOURCES) == set(TRANSPOSES_THREADS)


def test_shared_memory_is_that_of_the_tiles(compiled):
    for cubin in compiled.values():
        shared = {name: cubin.resources(name).shared_bytes for name in TRANSPOSES_THREADS}
        assert shared == {"one_line": 0, "tiled": 4096, "padded": 4224, "four_values": 4224}


def test_a_kernel_that_is_not_there_is_refused(compiled):
    with pytest.raises(
        ValueError, match="kernel='padding' is not known; give one of 'four_values', 'one_line'"
    ):
        compiled["sm_90"].resources("padding")


def test_machine_code_has_the_loads_and_stores_that_are_simulated(compiled):
    """An instruction of a thread is a request of a warp: per warp as many of each as in the
    simulated launch.
    """
    try:
        native.find_nvdisasm()
    except native.MissingToolError:
        pytest.skip("no nvdisasm")
    for name, kernel in SIMULATED.items():
        run = launch(
            kernel,
            numbered(32, 32),
            np.zeros((32, 32), np.float32),
            grid=1,
            block=TRANSPOSES_THREADS[name],
        )
        made = {(row.space, row.access): row.requests / run.warps for row in run.counts}
        for cubin in (compiled["sm_90"], next(iter(compiled.values()))):
            census = native.census(cubin, function=name)
            expected = {
                ("global", "load"): census.global_loads, ("global", "store"): census.global_stores,
                ("shared", "load"): census.shared_loads, ("shared", "store"): census.shared_stores,
            }  # fmt: skip
            assert made == {key: count for key, count in expected.items() if count}
        assert run.shared_bytes == compiled["sm_90"].resources(name).shared_bytes


def test_the_compiled_transposes_fill_an_h100(compiled):
    for name, (width, height) in TRANSPOSES_THREADS.items():
        resources = compiled["sm_90"].resources(name)
        assert resources.registers is not None
        fits = occupancy(
            "9.0",
            threads=width * height,
            registers=resources.registers,
            shared_bytes=resources.shared_bytes,
        )
        assert (fits.blocks, fits.warp_share) == (2_048 // (width * height), 1.0)


def test_without_nvrtc_the_room_is_there_all_the_same(monkeypatch):
    def missing():
        raise native.MissingToolError("there is no NVRTC beside torch", "install it")

    monkeypatch.setattr(_nvrtc, "find_nvrtc", missing)
    assert cuda_source().count("__global__") == 4
    with pytest.raises(native.MissingToolError):
        native.compile_cuda(cuda_source())


def test_a_section_without_content_has_its_size():
    assert (
        _cubin.Elf({}, (), {".nv.shared.f": 5248, ".nv.shared.reserved.0": 0}).sizes[".nv.shared.f"]
        == 5248
    )
    for sizes, expected in (
        ({".nv.shared.f": 4224}, 4224),
        ({}, 0),
        ({".nv.shared.reserved.0": 0}, 0),
        ({".nv.shared.f": 5248, ".nv.shared.reserved.0": 0}, 4224),
    ):
        assert _cubin.resources(_cubin.Elf({}, (), sizes), "f").shared_bytes == expected


def test_published_times_and_bandwidths_are_of_one_matrix():
    for row in TRANSPOSES:
        assert 8 * 32_768**2 / row.time_s == pytest.approx(row.bandwidth_bytes_per_s, rel=1e-3)
        assert row.threads * row.values_per_thread == row.tile**2
    times = {row.kernel: row.time_s for row in TRANSPOSES}
    assert times["Naive"] / min(times.values()) == pytest.approx(6.2, abs=0.05)
    assert PRODUCTS[1].flops_per_s / PRODUCTS[0].flops_per_s == pytest.approx(6.4, abs=0.05)
