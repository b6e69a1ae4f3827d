"""Waves of blocks against a scheduler that hands them out one by one, and against published
figures.
"""

from __future__ import annotations

import pytest

from helpers.studies.convolution_time import (
    TITAN_XP,
    BlockCapacity,
    ConvolutionShape,
    count_blocks,
    count_waves,
)
from helpers.studies.gpu_execution import MULTIPROCESSORS, Multiprocessor

ROOM = Multiprocessor(
    "small",
    warps=8,
    blocks=4,
    registers=4_096,
    partitions=2,
    shared_bytes=1_000,
    most_block_bytes=1_000,
    reserved_bytes=100,
    unit_bytes=50,
)
SMALL = BlockCapacity("a small one", multiprocessors=3, multiprocessor=ROOM)


def wide(width, channels=128, batch=128):
    return ConvolutionShape(batch, 128, width, width, channels, kernel=3, stride=1, padding=1)


def blocks_one_by_one(shape, positions, channels):
    """Mark each output of an image row by row; a block owns a tile of (position, channel)."""
    outputs = ((p, c) for p in range(shape.positions) for c in range(shape.out_channels))
    return len({(p // positions, c // channels) for p, c in outputs})


def places_one_by_one(room, threads, registers, shared_bytes):
    """Put blocks on one multiprocessor, warp by warp, until something runs out."""
    left = {"shared": room.shared_bytes, "warps": room.warps, "blocks": room.blocks}
    partitions = [room.registers // room.partitions] * room.partitions
    placed = 0
    while True:
        left["blocks"] -= 1
        taken = 0
        while taken < shared_bytes + room.reserved_bytes:
            taken += room.unit_bytes
        left["shared"] -= taken
        for _ in range(-(-threads // 32)):
            left["warps"] -= 1
            given = 0
            while given < 32 * registers:
                given += 256
            partitions.sort()
            partitions[-1] -= given
        if min(*left.values(), *partitions) < 0:
            return placed
        placed += 1


def scheduled(blocks, places):
    """Let every wave take as many blocks as there are places; return how many waves, and what the
    last took.
    """
    waves = 0
    while blocks > 0:
        waves, last, blocks = waves + 1, min(blocks, places), blocks - places
    return waves, last


@pytest.mark.parametrize("threads", [32, 33, 64, 128])
@pytest.mark.parametrize("registers", [8, 9, 20, 24, 32])
@pytest.mark.parametrize("shared_bytes", [0, 1, 300, 850])
def test_waves_are_those_of_a_scheduler(threads, registers, shared_bytes):
    for shape in (wide(5, 40, 2), wide(9, 33, 1), wide(4, 64, 3)):
        found = count_waves(
            shape,
            threads=threads,
            registers=registers,
            shared_bytes=shared_bytes,
            gpu=SMALL,
            tile_positions=10,
            tile_channels=8,
        )
        places = places_one_by_one(ROOM, threads, registers, shared_bytes)
        assert found.blocks_per_multiprocessor == places
        assert found.blocks == blocks_one_by_one(shape, 10, 8)
        waves, last = scheduled(found.blocks, 3 * places)
        assert (found.waves, found.last_wave_share) == (waves, last / (3 * places))
        assert found.busy_share == pytest.approx(found.blocks / (waves * 3 * places), rel=1e-15)


def test_seers_blocks_on_a_titan_xp():
    """Capability 6.1 in CUDA's guide.

    SEER's script has 150 resident blocks; width 28 instead of 27 is a wave more.
    """
    room = TITAN_XP.multiprocessor
    assert (TITAN_XP.multiprocessors, room) == (30, MULTIPROCESSORS["6.1"])
    assert (room.registers, room.shared_bytes, 32 * room.warps, room.blocks) == (
        65_536,
        96 * 1024,
        2_048,
        32,
    )
    kernel = {"threads": 128, "registers": 96, "shared_bytes": 16_384}
    narrow, wider = (count_waves(wide(width), **kernel) for width in (27, 28))
    assert (narrow.blocks_per_multiprocessor, narrow.resident_blocks, narrow.limited_by) == (
        5,
        150,
        "registers",
    )
    assert (narrow.blocks, narrow.waves, round(narrow.last_wave_share, 2)) == (2_916, 20, 0.44)
    assert (wider.blocks, wider.waves, round(wider.last_wave_share, 2)) == (3_136, 21, 0.91)


def test_what_runs_out_is_named():
    def limit(**changed):
        block = {"threads": 32, "registers": 8, "shared_bytes": 0, **changed}
        return count_waves(wide(8), **block, gpu=SMALL).limited_by

    assert limit(registers=64) == "registers"
    assert limit(shared_bytes=400) == "shared memory"
    assert limit(threads=128) == "warps"
    assert limit() == "blocks"


def test_one_place_more_than_a_wave_is_a_wave_more():
    full = ConvolutionShape(1, 1, 1, 12, 1, kernel=1, stride=1, padding=0)
    one_more = ConvolutionShape(1, 1, 1, 13, 1, kernel=1, stride=1, padding=0)
    kernel = {
        "threads": 32,
        "registers": 8,
        "shared_bytes": 0,
        "gpu": SMALL,
        "tile_positions": 1,
        "tile_channels": 1,
    }
    assert (count_waves(full, **kernel).waves, count_waves(full, **kernel).last_wave_share) == (
        1,
        1.0,
    )
    assert (
        count_waves(one_more, **kernel).waves,
        count_waves(one_more, **kernel).last_wave_share,
    ) == (2, 1 / 12)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (
            lambda: count_waves(wide(8), threads=32, registers=8, shared_bytes=2_000, gpu=SMALL),
            ValueError,
            "a block needs more shared memory than a multiprocessor of a small one has",
        ),
        (
            lambda: count_waves(wide(8), threads=0, registers=8, shared_bytes=0),
            ValueError,
            "threads=0 is too small",
        ),
        (
            lambda: count_waves(wide(8), threads=32, registers=8, shared_bytes=0, gpu="V100"),
            TypeError,
            "give a BlockCapacity",
        ),
        (lambda: count_blocks((1, 2)), TypeError, "give a ConvolutionShape"),
        (
            lambda: count_blocks(wide(8), tile_channels=1.5),
            TypeError,
            "tile_channels=1.5 is a float",
        ),
    ],
)
def test_refused(call, kind, words):
    with pytest.raises(kind) as raised:
        call()
    assert words in str(raised.value)
