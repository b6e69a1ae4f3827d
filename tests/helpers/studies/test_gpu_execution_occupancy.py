"""Occupancy against NVIDIA's own calculator, which comes with CUDA as C, and against the examples
of its guides.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from helpers import native
from helpers.native._tools import package_folders
from helpers.studies.gpu_execution import MULTIPROCESSORS, Multiprocessor, occupancy

THREADS = (1, 32, 33, 96, 128, 160, 256, 320, 512, 768, 1024)
REGISTERS = (1, 24, 32, 33, 37, 64, 65, 73, 96, 168, 255)
SHARED_BYTES = (0, 1, 4224, 8192, 8193, 16_640, 32_768, 49_152, 98_304, 101_376, 232_448)
# As bits of NVIDIA's result. Its next bit is the barriers: as many as blocks on 12.0, so they never
# bind alone.
LIMITS = {"warps": 1, "registers": 2, "shared memory": 4, "blocks": 8}
NVIDIA = """
#include <cstdint>
#include <cuda_occupancy.h>

// cases: capability's two numbers, threads of a multiprocessor, shared bytes of it, of a block at most, reserved for
// one; then threads, registers, shared bytes. fits: blocks, limits, and the blocks by warps, registers, shared memory.
extern "C" void count(const int64_t* cases, int64_t* fits, int64_t n) {
    for (; n--; cases += 9, fits += 5) {
        cudaOccDeviceProp room;
        room.computeMajor = cases[0], room.computeMinor = cases[1];
        room.maxThreadsPerBlock = 1024, room.maxThreadsPerMultiprocessor = cases[2];
        room.regsPerBlock = room.regsPerMultiprocessor = 65536;
        room.warpSize = 32, room.numSms = 1;
        room.sharedMemPerBlock = 48 * 1024, room.sharedMemPerMultiprocessor = cases[3];
        room.sharedMemPerBlockOptin = cases[4], room.reservedSharedMemPerBlock = cases[5];
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = 1024, kernel.numRegs = cases[7];
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN, kernel.maxDynamicSharedSizeBytes = cases[4];
        kernel.numBlockBarriers = 1;
        cudaOccDeviceState state;
        state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult result;
        const auto error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &room, &kernel, &state, cases[6], cases[8]);
        fits[0] = error == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : -1;
        fits[1] = result.limitingFactors;
        fits[2] = result.blockLimitWarps, fits[3] = result.blockLimitRegs, fits[4] = result.blockLimitSharedMem;
    }
}
"""  # noqa: E501


def header():
    folders = [place / "cu13" / "include" for place in package_folders("nvidia")]
    folders += [place / "backends" / "nvidia" / "include" for place in package_folders("triton")]
    return next((folder for folder in folders if (folder / "cuda_occupancy.h").is_file()), None)


def calculated(cases):
    """Return what NVIDIA's calculator says of cases of (capability, threads, registers, shared
    bytes).
    """
    try:
        native.find_compiler()
    except native.MissingToolError:
        pytest.skip("no C++ compiler")
    if header() is None:
        pytest.skip("no cuda_occupancy.h among the installed packages")
    library = native.compile_cpp(NVIDIA, flags=("-O1", "-std=c++17", f"-I{header()}"))
    rows = []
    for capability, *kernel in cases:
        room = MULTIPROCESSORS[capability]
        numbers = [int(number) for number in capability.split(".")]
        rows.append(
            [
                *numbers,
                32 * room.warps,
                room.shared_bytes,
                room.most_block_bytes,
                room.reserved_bytes,
                *kernel,
            ]
        )
    fits = np.empty((len(rows), 5), dtype=np.int64)
    count = library.function("void count(const int64_t* cases, int64_t* fits, int64_t n)")
    count(np.array(rows, dtype=np.int64), fits, len(rows))
    return fits.tolist()


def of_case(case):
    capability, threads, registers, shared_bytes = case
    return occupancy(capability, threads=threads, registers=registers, shared_bytes=shared_bytes)


def test_rooms_are_those_of_the_guides_table():
    """CUDA Programming Guide, "Compute Capabilities": warps, KiB of shared memory in all and for a
    block at most.
    """
    guide = {
        "6.0": (64, 64, 48),
        "6.1": (64, 96, 48),
        "7.0": (64, 96, 96),
        "7.5": (32, 64, 64),
        "8.0": (64, 164, 163),
        "8.6": (48, 100, 99),
        "8.9": (48, 100, 99),
        "9.0": (64, 228, 227),
        "10.0": (64, 228, 227),
        "12.0": (48, 100, 99),
    }
    kib = {
        name: (room.warps, room.shared_bytes / 1024, room.most_block_bytes / 1024)
        for name, room in MULTIPROCESSORS.items()
    }
    assert kib == guide
    since_ampere = [room for name, room in MULTIPROCESSORS.items() if float(name) >= 8]
    assert {
        room.shared_bytes - room.most_block_bytes - room.reserved_bytes for room in since_ampere
    } == {0}
    assert {room.reserved_bytes for name, room in MULTIPROCESSORS.items() if float(name) < 8} == {0}
    assert {room.registers for room in MULTIPROCESSORS.values()} == {65_536}


def test_every_case_is_that_of_nvidias_calculator():
    cases = list(itertools.product(MULTIPROCESSORS, THREADS, REGISTERS, SHARED_BYTES))
    differing = []
    for case, (blocks, limits, by_warps, by_registers, by_shared) in zip(
        cases, calculated(cases), strict=True
    ):
        fits = of_case(case)
        binding = sum(LIMITS[limit] for limit in fits.limited_by.split(" and "))
        expected = (blocks, by_warps, by_registers, min(by_shared, 10**6))
        # the calculator's "none taken"
        shared = fits.blocks_by_shared_memory if by_shared < 10**6 else 10**6
        if (
            fits.blocks,
            fits.blocks_by_warps,
            fits.blocks_by_registers,
            shared,
        ) != expected or binding != limits & 15:
            differing.append((case, fits, expected, limits))
    assert len(cases) > 13_000
    assert differing == []


@pytest.mark.parametrize(
    "wrong",
    [
        lambda case: 65_536 // (case[1] * case[2]),  # no units, no partitions
        lambda case: 4 * (16_384 // (32 * case[2])) // -(-case[1] // 32),  # no units of 256
        lambda case: 65_536 // (-(-case[1] // 32) * 256 * -(-case[2] // 8)),  # no partitions
    ],
)
def test_the_oracle_sees_wrong_rules_of_registers(wrong):
    cases = list(itertools.product(["9.0"], THREADS, REGISTERS, [0]))
    assert [wrong(case) for case in cases] != [row[3] for row in calculated(cases)]


@pytest.mark.parametrize("reserved_bytes", [0, 512])
def test_the_oracle_sees_a_wrong_share_of_the_system(reserved_bytes):
    cases = list(itertools.product(["8.0"], [32], [16], SHARED_BYTES))
    room = MULTIPROCESSORS["8.0"]
    wrong = Multiprocessor(**{**room.to_dict(), "reserved_bytes": reserved_bytes})
    found = [
        occupancy(wrong, threads=32, registers=16, shared_bytes=case[3]).blocks for case in cases
    ]
    assert found != [row[0] for row in calculated(cases)]


@pytest.mark.parametrize(
    ("capability", "kernel", "blocks", "share"),
    [
        # CUDA C++ Best Practices Guide, "Calculating Occupancy": 37 registers on 7.0; 75 % and 63
        # %.
        ("7.0", (128, 37, 0), 12, 0.75),
        ("7.0", (320, 37, 0), 4, 0.625),
        # CUDA Programming Guide, its examples of occupancy on 10.0.
        ("10.0", (768, 32, 0), 2, 0.75),
        ("10.0", (32, 32, 0), 32, 0.5),
        ("10.0", (256, 32, 100 * 1024), 2, 0.25),
        # The registers and the shared memory of the transposes of lesson 03, by NVRTC 13 for sm_90.
        ("9.0", (1024, 12, 4_224), 2, 1.0),
        ("9.0", (256, 28, 4_224), 8, 1.0),
        ("9.0", (128, 32, 16_640), 13, 0.8125),
        # The edges: one register more, and more than there are.
        ("9.0", (1024, 32, 0), 2, 1.0),
        ("9.0", (1024, 33, 0), 1, 0.5),
        ("9.0", (1024, 65, 0), 0, 0.0),
        # 32 KiB would fit five times into 164 KiB if the system took nothing.
        ("8.0", (128, 32, 32 * 1024), 4, 0.25),
        ("8.6", (1024, 32, 0), 1, 2 / 3),
    ],
)
def test_published_and_worked_cases(capability, kernel, blocks, share):
    fits = of_case((capability, *kernel))
    assert (fits.blocks, fits.warp_share) == (blocks, pytest.approx(share))


def test_all_limits_that_bind_are_named():
    def limits(capability="9.0", threads=1024, registers=16, shared_bytes=0):
        return of_case((capability, threads, registers, shared_bytes)).limited_by

    assert limits() == "warps"
    assert limits(registers=32) == "warps and registers"
    assert limits(registers=33) == "registers"
    assert limits(threads=32) == "blocks"
    assert limits(threads=128, shared_bytes=16_640) == "shared memory"


def test_a_block_with_more_shared_memory_than_a_block_may_have_does_not_fit():
    most = MULTIPROCESSORS["9.0"].most_block_bytes
    assert of_case(("9.0", 32, 32, most)).blocks == 1
    assert of_case(("9.0", 32, 32, most + 1)).blocks == 0


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        (
            {"threads": 1025},
            ValueError,
            "threads=1025 is too large; give a whole number, 1 to 1,024",
        ),
        ({"threads": 0}, ValueError, "threads=0 is too small"),
        (
            {"registers": 256},
            ValueError,
            "registers=256 is too large; give a whole number, 1 to 255",
        ),
        ({"shared_bytes": 1.5}, TypeError, "shared_bytes=1.5 is a float"),
        (
            {"capability": "5.2"},
            ValueError,
            "capability='5.2' is not known; give one of '6.0', '6.1'",
        ),
        (
            {"capability": 9.0},
            TypeError,
            "capability=9.0 is a float; give a compute capability as text",
        ),
        ({"capability": (9, 0)}, TypeError, "capability=(9, 0) is a tuple"),
    ],
)
def test_refused(given, kind, words):
    kernel = {"capability": "9.0", "threads": 256, "registers": 32} | given
    with pytest.raises(kind) as raised:
        occupancy(kernel.pop("capability"), **kernel)
    assert words in str(raised.value)
