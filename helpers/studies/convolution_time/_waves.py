"""A convolution as the blocks of a GPU's kernel: how many run at once, in how many waves. No GPU is needed. Lesson 20.

Sources: SEER's occupancy script (Titan Xp: 30 multiprocessors; 5, 4 and 2 blocks each) for the tiles; NVIDIA, CUDA C++
Programming Guide, table of technical specifications by compute capability, for what a multiprocessor has.
"""

from __future__ import annotations

from helpers.checks import one_of, whole_number
from helpers.results import Record
from helpers.studies.convolution_time._shapes import ConvolutionShape, one_shape

WARP_THREADS = 32
_REGISTERS_AT_ONCE = 256  # a warp is given registers in such units


class BlockCapacity(Record):
    """What a GPU has for the blocks of a kernel; all but ``multiprocessors`` is what one of these has. Lesson 20."""

    name: str
    multiprocessors: int
    registers: int
    shared_bytes: int
    threads: int
    blocks: int


TITAN_XP = BlockCapacity("TITAN Xp", 30, registers=65_536, shared_bytes=98_304, threads=2_048, blocks=32)


class Waves(Record):
    """A kernel's blocks on a GPU: ``resident_blocks`` run at once, ``waves`` follow each other.

    ``last_wave_share`` is the part of the places that the last wave fills. ``busy_share`` is that of all waves
    together: where a wave takes as long half empty as full, the kernel reaches this share of its best rate. Lesson 20.
    """

    blocks: int
    blocks_per_multiprocessor: int
    resident_blocks: int
    limited_by: str
    waves: int
    last_wave_share: float
    busy_share: float


def count_blocks(shape: ConvolutionShape, *, tile_positions: int = 128, tile_channels: int = 32) -> int:
    """Return a kernel's blocks for ``shape``, each a tile of ``tile_positions`` outputs x ``tile_channels`` channels.

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
    """Return the waves of a kernel whose blocks have ``threads`` threads of ``registers`` each, and ``shared_bytes``.

    The kernel is for the convolution ``shape``, in blocks of ``tile_positions`` x ``tile_channels`` as
    :func:`count_blocks` has them, on ``gpu`` (by default SEER's, a TITAN Xp). Registers are given to a warp of 32
    threads in units of 256; what a block of shared memory is rounded up to differs by generation and is left out, as is
    what a driver keeps for itself.

    Raises TypeError or ValueError for no whole numbers, and for a block that does not fit on a multiprocessor.
    Lesson 20.
    """
    one_of("gpu", gpu, BlockCapacity, "a Gpu")
    warps = -(-whole_number("threads", threads) // WARP_THREADS)
    warp_registers = WARP_THREADS * whole_number("registers", registers)
    block_registers = warps * -(-warp_registers // _REGISTERS_AT_ONCE) * _REGISTERS_AT_ONCE
    shared = whole_number("shared_bytes", shared_bytes, at_least=0)
    fitting = {
        "blocks": gpu.blocks,
        "registers": gpu.registers // block_registers,
        "shared memory": gpu.shared_bytes // shared if shared else gpu.blocks,
        "threads": gpu.threads // (warps * WARP_THREADS),
    }
    limited_by = min(fitting, key=fitting.__getitem__)
    if not fitting[limited_by]:
        raise ValueError(f"a block needs more {limited_by} than a multiprocessor of {gpu.name} has; give one within "
                         f"{gpu.registers:,} registers, {gpu.shared_bytes:,} bytes of shared memory and "
                         f"{gpu.threads:,} threads")  # fmt: skip
    blocks = count_blocks(shape, tile_positions=tile_positions, tile_channels=tile_channels)
    resident = fitting[limited_by] * gpu.multiprocessors
    waves = -(-blocks // resident)
    return Waves(
        blocks=blocks,
        blocks_per_multiprocessor=fitting[limited_by],
        resident_blocks=resident,
        limited_by=limited_by,
        waves=waves,
        last_wave_share=(blocks - (waves - 1) * resident) / resident,
        busy_share=blocks / (waves * resident),
    )
