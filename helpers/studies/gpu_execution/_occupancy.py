"""How many blocks of a kernel fit on a multiprocessor, by the rules of NVIDIA's occupancy
calculator.

Sources: NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities", technical specifications per
compute capability (warps, threads, shared memory; an older edition for 6.0 to 7.0);
``cuda_occupancy.h`` of CUDA 13 (blocks, partitions and units of allocation), to which the tests
compare every rule.
"""

from __future__ import annotations

from helpers.checks import choice, one_of, whole_number
from helpers.results import Record
from helpers.studies.gpu_execution._requests import WARP_LANES

MOST_THREADS = 1024
MOST_REGISTERS = 255

_REGISTERS = 65_536
_REGISTER_UNIT = 256  # registers are given to a warp in such units
_KIB = 1024


class Multiprocessor(Record):
    """A multiprocessor's room for blocks. Lesson 03.

    ``warps`` and ``blocks`` are the most that it holds, and ``registers`` are divided among
    ``partitions`` of equal size, each with its own scheduler. A block takes its own shared memory
    and ``reserved_bytes`` for the system, rounded up to ``unit_bytes``, of ``shared_bytes``; its
    own is at most ``most_block_bytes``.
    """

    capability: str
    warps: int
    blocks: int
    registers: int
    partitions: int
    shared_bytes: int
    most_block_bytes: int
    reserved_bytes: int
    unit_bytes: int


def _row(
    capability: str,
    warps: int,
    blocks: int,
    shared_kib: int,
    most_block_kib: int,
    *,
    partitions: int = 4,
) -> Multiprocessor:
    since_ampere = int(capability.partition(".")[0]) >= 8
    return Multiprocessor(
        capability,
        warps,
        blocks,
        _REGISTERS,
        partitions,
        shared_bytes=shared_kib * _KIB,
        most_block_bytes=most_block_kib * _KIB,
        reserved_bytes=_KIB if since_ampere else 0,
        unit_bytes=128 if since_ampere else 256,
    )


MULTIPROCESSORS = {
    row.capability: row
    for row in (
        _row("6.0", 64, 32, 64, 48, partitions=2),
        _row("6.1", 64, 32, 96, 48),
        _row("7.0", 64, 32, 96, 96),
        _row("7.5", 32, 16, 64, 64),
        _row("8.0", 64, 32, 164, 163),
        _row("8.6", 48, 16, 100, 99),
        _row("8.9", 48, 24, 100, 99),
        _row("9.0", 64, 32, 228, 227),
        _row("10.0", 64, 32, 228, 227),
        _row("12.0", 48, 24, 100, 99),
    )
}


class Occupancy(Record):
    """The blocks of a kernel that a multiprocessor holds, and the share of its places for warps
    that they take.

    ``block_warps`` are the warps of a block. Each limit alone would let in ``blocks_by_warps``,
    ``blocks_by_blocks`` (the most blocks that a multiprocessor holds), ``blocks_by_registers`` and
    ``blocks_by_shared_memory``, and ``limited_by`` names the limit that binds, or all that do,
    joined by "and". With 0 blocks the kernel cannot be launched. Lesson 03.
    """

    capability: str
    blocks: int
    warp_share: float
    limited_by: str
    block_warps: int
    blocks_by_warps: int
    blocks_by_blocks: int
    blocks_by_registers: int
    blocks_by_shared_memory: int


def occupancy(
    capability: str | Multiprocessor, *, threads: int, registers: int, shared_bytes: int = 0
) -> Occupancy:
    """Return the :class:`Occupancy` of a kernel in blocks of ``threads`` threads with ``registers``
    registers each.

    ``capability`` is the compute capability of a GPU, such as "9.0" for an H100, or a
    :class:`Multiprocessor`; ``shared_bytes`` is the shared memory of a block in bytes, static and
    dynamic. A warp gets its registers in units of 256 and from one partition. Source: NVIDIA's
    occupancy calculator, ``cuda_occupancy.h``.

    Raises ValueError for an unknown capability, for more than 1,024 threads per block or 255
    registers per thread, TypeError for what is no whole number.

    >>> fits = occupancy("9.0", threads=1024, registers=33)
    >>> fits.blocks, fits.warp_share, fits.limited_by
    (1, 0.5, 'registers')

    Lesson 03.
    """
    room = _room(capability)
    warps = -(-whole_number("threads", threads, at_most=MOST_THREADS) // WARP_LANES)
    warp_registers = WARP_LANES * whole_number("registers", registers, at_most=MOST_REGISTERS)
    own_bytes = whole_number("shared_bytes", shared_bytes, at_least=0)
    fits = {
        "warps": room.warps // warps,
        "blocks": room.blocks,
        "registers": _warps_with_registers(room, warp_registers) // warps,
        "shared memory": _blocks_with_shared_memory(room, own_bytes),
    }
    blocks = min(fits.values())
    return Occupancy(
        room.capability,
        blocks=blocks,
        warp_share=blocks * warps / room.warps,
        limited_by=" and ".join(limit for limit, most in fits.items() if most == blocks),
        block_warps=warps,
        blocks_by_warps=fits["warps"],
        blocks_by_blocks=fits["blocks"],
        blocks_by_registers=fits["registers"],
        blocks_by_shared_memory=fits["shared memory"],
    )


def _room(capability: str | Multiprocessor) -> Multiprocessor:
    if isinstance(capability, Multiprocessor):
        return capability
    one_of("capability", capability, str, 'a compute capability as text, such as "9.0" for an H100')
    return MULTIPROCESSORS[choice("capability", capability, MULTIPROCESSORS)]


def _warps_with_registers(room: Multiprocessor, warp_registers: int) -> int:
    """Return the warps that get registers: each partition gives its own, whole warps only."""
    allocated = -(-warp_registers // _REGISTER_UNIT) * _REGISTER_UNIT
    return room.partitions * (room.registers // room.partitions // allocated)


def _blocks_with_shared_memory(room: Multiprocessor, own_bytes: int) -> int:
    """Return the blocks that get shared memory; one that takes none counts as one that takes a
    unit.
    """
    if own_bytes > room.most_block_bytes:
        return 0
    units = max(1, -(-(own_bytes + room.reserved_bytes) // room.unit_bytes))
    return room.shared_bytes // (units * room.unit_bytes)
