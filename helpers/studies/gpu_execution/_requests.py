"""The cost of one request of a warp: sectors of a GPU's memory, passes of its shared memory.

A request is one load or store that a warp executes, with the byte address of every active lane.

Sources: NVIDIA, CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory" (transactions of
32 bytes, compute capability 6.0 and later); CUDA C++ Programming Guide, "Shared Memory" of compute
capability 5.x and later (32 banks of 32-bit words, a word that several lanes want is broadcast).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from helpers.checks import choice, members, whole_number

WARP_LANES = 32
SECTOR_BYTES = 32
BANKS = 32
WORD_BYTES = 4

_SIZES_BYTES = (1, 2, 4, 8, 16)


def sectors(addresses: Iterable[int], size_bytes: int = 4) -> int:
    """Return the number of sectors of 32 bytes that one request of a warp touches in the GPU's
    memory.

    ``addresses`` are the byte addresses of the active lanes, at most 32, and each lane takes
    ``size_bytes`` from its address: 1, 2, 4, 8 or 16, of which the address is a multiple. Source:
    CUDA C++ Best Practices Guide.

    Raises TypeError for addresses that are no whole numbers, ValueError for more than 32 of them,
    for another size and for an address that is no multiple of it.

    >>> [sectors([4 * stride * lane for lane in range(32)]) for stride in (1, 2, 8, 32)]
    [4, 8, 32, 32]

    Lesson 03.
    """
    choice("size_bytes", size_bytes, _SIZES_BYTES)
    return count_sectors(_lanes(addresses, size_bytes))


def bank_passes(addresses: Iterable[int]) -> int:
    """Return the passes that shared memory needs for one request of a warp that takes a word of 4
    bytes per lane.

    ``addresses`` are the byte addresses of the active lanes, at most 32, each a multiple of 4. Word
    number w is in bank w mod 32, and a bank delivers one word per pass to all lanes that want it,
    so the passes are the most different words in any one bank. Source: CUDA C++ Programming Guide,
    compute capability 5.x and later.

    Raises TypeError for addresses that are no whole numbers, ValueError for more than 32 of them
    and for one that is no multiple of 4.

    >>> [bank_passes([4 * words * lane for lane in range(32)]) for words in (32, 33, 34)]
    [32, 1, 2]

    Lesson 03.
    """
    return count_passes(_lanes(addresses, WORD_BYTES))


def count_sectors(addresses: Iterable[int]) -> int:
    """Return what :func:`sectors` returns, for addresses that need no check."""
    return len({address // SECTOR_BYTES for address in addresses})


def count_passes(addresses: Iterable[int]) -> int:
    """Return what :func:`bank_passes` returns, for addresses that need no check."""
    words = {address // WORD_BYTES for address in addresses}
    return max(Counter(word % BANKS for word in words).values(), default=0)


def _lanes(addresses: Iterable[int], size_bytes: int) -> list[int]:
    """Return the addresses as ints, refused if they cannot be those of one request."""
    raw_addresses = members("addresses", addresses, "byte addresses, one per lane")
    if len(raw_addresses) > WARP_LANES:
        raise ValueError(
            f"addresses has {len(raw_addresses):,} addresses, but a warp has 32 lanes; give those "
            "of one request"
        )
    lane_addresses = [
        whole_number(f"addresses[{lane}]", address, at_least=0)
        for lane, address in enumerate(raw_addresses)
    ]
    for lane, address in enumerate(lane_addresses):
        if address % size_bytes:
            raise ValueError(
                f"addresses[{lane}]={address} must be a multiple of the {size_bytes} bytes that a "
                f"lane takes; give byte addresses, {size_bytes} times the number of the element"
            )
    return lane_addresses
