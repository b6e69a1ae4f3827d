"""The checks of lesson 03: what goes in, what must come out, and what common mistakes would give instead."""

import numpy as np

from helpers.exercises import Checks
from helpers.studies import gpu_execution


def saxpy(checks: Checks) -> None:
    """SAXPY with a guard"""
    checks.returns(
        "70 elements in three blocks of 32, all of them replaced and none past the end",
        (70,),
        call=_replaced,
        expected=70,
        mistakes={
            32: "Only the first block's elements changed. Add the index of the block's first thread.",
            0: "No element is right. An element of y becomes a * x + y.",
        },
    )


def _replaced(kernel, count):
    x, y = np.arange(count, dtype=np.float32) + 1, np.full(count, 5, np.float32)
    gpu_execution.launch(kernel, 3.0, x, y, grid=3, block=32)
    return int((y == 3 * (np.arange(count) + 1) + 5).sum())


def sectors(checks: Checks) -> None:
    """The sectors of a request"""
    shared = "A sector that several lanes touch counts once."
    checks.returns(
        "32 neighbouring values touch four sectors",
        ([4 * lane for lane in range(32)],),
        expected=4,
        kind=int,
        mistakes={32: shared, 1: "A sector has 32 bytes, and not 128."},
    )
    checks.returns(
        "32 values from the middle of a sector on touch five",
        ([4 * lane + 16 for lane in range(32)],),
        expected=5,
        kind=int,
        mistakes={
            32: shared,
            4: "A request may begin in the middle of a sector.",
            2: "A sector has 32 bytes, and not 128.",
        },
    )
    checks.returns(
        "values that are 128 bytes apart touch a sector each",
        ([128 * lane for lane in range(32)],),
        expected=32,
        kind=int,
        mistakes={
            125: "Lanes need not touch neighbouring sectors. Count only those that a lane touches."
        },
    )


def transpose(checks: Checks) -> None:
    """A transpose through shared memory"""
    checks.returns(
        "64 x 64 elements are in their places",
        (64,),
        call=_in_place,
        expected=4096,
        mistakes={
            2048: "The blocks change places as well, and not only the elements within each.",
            128: "The elements change places within their block as well.",
        },
    )
    checks.returns(
        "loads and stores of the GPU's memory touch 4 sectors each",
        (32,),
        call=_sectors,
        expected=(4, 4),
        mistakes={
            (
                4,
                32,
            ): "A warp stores down a column of the output. Let it store along a row, and read down a column of the tile.",
            (32, 4): "A warp loads down a column of the input. Let it load along a row.",
        },
    )
    checks.returns(
        "a row of the tile has as many words as `words` says",
        (33,),
        call=_most_passes,
        expected=1,
        mistakes={32: "A column is in one bank. Give a row of the tile `words` words."},
    )


def _in_place(kernel, side):
    matrix = np.arange(side * side, dtype=np.float32).reshape(side, side)
    turned = np.full((side, side), -1, np.float32)
    gpu_execution.launch(
        kernel, matrix, turned, 32, grid=(side // 32, side // 32), block=(32, 32)
    )
    return int((turned == matrix.T).sum())


def _one_tile(kernel, words):
    matrix, turned = np.zeros((32, 32), np.float32), np.zeros((32, 32), np.float32)
    return gpu_execution.launch(kernel, matrix, turned, words, grid=1, block=(32, 32))


def _sectors(kernel, words):
    rows = [row for row in _one_tile(kernel, words).counts if row.space == "global"]
    return tuple(row.sectors_per_request for row in sorted(rows, key=lambda row: row.access))


def _most_passes(kernel, words):
    return max((request.passes for request in _one_tile(kernel, words).requests), default=0)


def blocks_that_fit(checks: Checks) -> None:
    """Blocks on a multiprocessor of an H100"""
    whole = "Blocks move in whole, because half a block cannot move in. Round down."
    checks.returns(
        "two blocks of 1,024 threads with 12 registers and 4,224 bytes fit, because of their threads",
        (1024, 12, 4224),
        expected=2,
        kind=int,
        mistakes={
            4: "There is room for only 64 warps.",
            44: "Take the smallest of all limits.",
        },
    )
    checks.returns(
        "six blocks of 256 threads with 33 registers fit, because of their registers",
        (256, 33, 0),
        expected=6,
        kind=int,
        mistakes={
            7: "A warp gets its registers in lots of 256. Round each warp's up.",
            6.4: whole,
            8: "Registers limit too.",
        },
    )
    checks.returns(
        "six blocks with 32 KiB of shared memory fit",
        (256, 16, 32768),
        expected=6,
        kind=int,
        mistakes={
            7: "The system adds 1,024 bytes of shared memory to each block.",
            8: "Shared memory limits too.",
        },
    )
    checks.returns(
        "32 of the smallest blocks fit",
        (32, 16, 0),
        expected=32,
        kind=int,
        mistakes={64: "A multiprocessor holds at most 32 blocks, however small they are."},
    )
    checks.returns(
        "no block fits whose registers are too many", (1024, 65, 0), expected=0, kind=int
    )
