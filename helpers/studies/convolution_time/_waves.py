"""A convolution as the blocks of a GPU's kernel: how many run at once, in how many waves.

No GPU is needed. Lesson 20. Sources: SEER's occupancy script (Titan Xp: 30 multiprocessors; 5, 4
and 2 blocks each) for the tiles; what a multiprocessor has, and how many blocks fit, is
:func:`helpers.studies.gpu_execution.occupancy`'s.
"""

from __future__ import annotations

from helpers.checks import one_of, whole_number
from helpers.results import Record
from helpers.studies.convolution_time._shapes import ConvolutionShape, one_shape
from helpers.studies.gpu_execution import MULTIPROCESSORS, Multiprocessor, occupancy


class BlockCapacity(Record):
    """A GPU's room for the blocks of a kernel: so many ``multiprocessors``, each like
    ``multiprocessor``.

    Lesson 20.
    """

    name: str
    multiprocessors: int
    multiprocessor: Multiprocessor


TITAN_XP = BlockCapacity("TITAN Xp", 30, MULTIPROCESSORS["6.1"])


class Waves(Record):
    """A kernel's blocks on a GPU: ``resident_blocks`` run at once, ``waves`` follow each other.

    ``limited_by`` names the limits that bind, as an
    :class:`helpers.studies.gpu_execution.Occupancy` does.

    ``last_wave_share`` is the part of the places that the last wave fills. ``busy_share`` is that
    of all waves together: where a wave takes as long half empty as full, the kernel reaches this
    share of its best rate. Lesson 20.
    """

    blocks: int
    blocks_per_multiprocessor: int
    resident_blocks: int
    limited_by: str
    waves: int
    last_wave_share: float
    busy_share: float


def count_blocks(
    shape: ConvolutionShape, *, tile_positions: int = 128, tile_channels: int = 32
) -> int:
    """Return a kernel's blocks for ``shape``, each a tile of ``tile_positions`` outputs x
    ``tile_channels`` channels.

    The defaults are those of the kernel in SEER's script.
    """
    one_shape(shape)
    rows = -(-shape.positions // whole_number("tile_positions", tile_positions))
    return rows * -(-shape.out_channels // whole_number("tile_channels", tile_channels))


def count_waves(
    shape: ConvolutionShape,
    *,
    threads: int,
    registers: int,
    shared_bytes: int,
    gpu: BlockCapacity = TITAN_XP,
    tile_positions: int = 128,
    tile_channels: int = 32,
) -> Waves:
    """Return the waves of a kernel whose blocks have ``threads`` threads of ``registers`` each, and
    ``shared_bytes``.

    The kernel is for the convolution ``shape``, in blocks of ``tile_positions`` x ``tile_channels``
    as :func:`count_blocks` has them, on ``gpu`` (by default SEER's, a TITAN Xp). How many fit at
    once is counted by :func:`helpers.studies.gpu_execution.occupancy`, to which ``shared_bytes``
    are those of a block.

    Raises TypeError or ValueError for no whole numbers, and for a block that does not fit on a
    multiprocessor.
    """
    one_of("gpu", gpu, BlockCapacity, "a BlockCapacity")
    fits = occupancy(
        gpu.multiprocessor, threads=threads, registers=registers, shared_bytes=shared_bytes
    )
    if not fits.blocks:
        room = gpu.multiprocessor
        raise ValueError(
            f"a block needs more {fits.limited_by} than a multiprocessor of {gpu.name} has; give "
            f"one within {room.registers:,} registers, {room.most_block_bytes:,} bytes of shared "
            f"memory and {room.warps:,} warps"
        )
    blocks = count_blocks(shape, tile_positions=tile_positions, tile_channels=tile_channels)
    resident = fits.blocks * gpu.multiprocessors
    waves = -(-blocks // resident)
    return Waves(
        blocks=blocks,
        blocks_per_multiprocessor=fits.blocks,
        resident_blocks=resident,
        limited_by=fits.limited_by,
        waves=waves,
        last_wave_share=(blocks - (waves - 1) * resident) / resident,
        busy_share=blocks / (waves * resident),
    )
