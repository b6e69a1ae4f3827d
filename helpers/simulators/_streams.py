"""Streams of memory accesses for the simulated caches: byte addresses in program order, each a read or a write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from helpers._checks import whole_number

_LAST_ADDRESS = 2**63 - 1
_MOST_ACCESSES = 2**25


@dataclass(frozen=True, eq=False)
class AddressStream:
    """Accesses in program order: ``addresses`` in bytes (int64), ``writes`` (True: it writes), ``access_bytes`` each.

    Any sequence of whole numbers serves as ``addresses``; ``writes`` may be one bool for all. Raises TypeError or
    ValueError for what is no such stream. Lesson 01.
    """

    addresses: np.ndarray
    writes: np.ndarray | bool = False
    access_bytes: int = 4

    def __post_init__(self) -> None:
        addresses = np.asarray(self.addresses)
        if addresses.ndim != 1 or (addresses.size and addresses.dtype.kind not in "iu"):
            raise TypeError("addresses are whole numbers in one row (bytes from the start of memory), not "
                            f"{addresses.dtype} of shape {addresses.shape}")  # fmt: skip
        writes = np.asarray(self.writes)
        if writes.dtype != bool or (writes.ndim and writes.shape != addresses.shape):
            raise TypeError(f"writes is one bool, or one for each of the {addresses.size:,} addresses, not "
                            f"{writes.dtype} of shape {writes.shape}")  # fmt: skip
        whole_number("access_bytes", self.access_bytes)
        if addresses.size and int(addresses.min()) < 0:
            raise ValueError(f"an address is 0 or more; the smallest given is {int(addresses.min())}")
        if addresses.size and int(addresses.max()) > _LAST_ADDRESS - self.access_bytes:
            raise ValueError(f"addresses are below 2^63; the largest given is {int(addresses.max())}")
        object.__setattr__(self, "addresses", addresses.astype(np.int64, copy=False))
        object.__setattr__(self, "writes", np.broadcast_to(writes, addresses.shape))

    def __len__(self) -> int:
        return self.addresses.size

    def lines(self, line_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of the lines touched, and whether each touch writes.

        An access that crosses the border of a line touches both lines, so there may be more touches than accesses.
        Lesson 01.
        """
        first = self.addresses // line_bytes
        touched = (self.addresses + self.access_bytes - 1) // line_bytes - first + 1
        if not len(self) or touched.max() == 1:
            return first, self.writes
        starts = np.cumsum(touched) - touched
        within = np.arange(int(touched.sum())) - np.repeat(starts, touched)
        return np.repeat(first, touched) + within, np.repeat(self.writes, touched)


def join_streams(streams: Sequence[AddressStream]) -> AddressStream:
    """Return the streams one after another; ValueError unless all have the same ``access_bytes``.

    Lesson 02.
    """
    streams = list_of("streams", streams, "address streams")
    for stream in streams:
        require_stream(stream)
    widths = sorted({stream.access_bytes for stream in streams})
    if len(widths) != 1:
        raise ValueError(f"streams of one access width can be joined; these have {widths or 'none'} bytes an access")
    return AddressStream(
        np.concatenate([stream.addresses for stream in streams]),
        np.concatenate([stream.writes for stream in streams]),
        widths[0],
    )


def sequential(count: int, *, element_bytes: int = 4, start: int = 0, writes: bool = False) -> AddressStream:
    """Return ``count`` elements one after another, from the byte ``start``. Lesson 01."""
    return strided(count, stride_bytes=element_bytes, element_bytes=element_bytes, start=start, writes=writes)


def strided(
    count: int, *, stride_bytes: int, element_bytes: int = 4, start: int = 0, writes: bool = False
) -> AddressStream:
    """Return ``count`` elements, each ``stride_bytes`` behind the one before, from the byte ``start``.

    Lesson 02.
    """
    whole_number("count", count, at_most=_MOST_ACCESSES)
    whole_number("stride_bytes", stride_bytes, at_most=_LAST_ADDRESS // _MOST_ACCESSES)
    whole_number("start", start, at_least=0)
    return AddressStream(start + stride_bytes * np.arange(count, dtype=np.int64), writes, element_bytes)


def pointer_chase(working_set_bytes: int, *, step_bytes: int = 64, laps: int = 1, seed: int = 0) -> AddressStream:
    """Return the loads of a pointer chase: every ``step_bytes`` of the working set once a lap, in one random order.

    A load reads 8 bytes, the address of the next. Raises ValueError for a working set without a whole step.
    """
    whole_number("step_bytes", step_bytes, at_least=8)
    whole_number("working_set_bytes", working_set_bytes, at_least=step_bytes)
    whole_number("laps", laps)
    _require_few(working_set_bytes // step_bytes * laps, "a chase through that working set")
    order = np.random.default_rng(seed).permutation(working_set_bytes // step_bytes)
    return AddressStream(np.tile(order * step_bytes, laps), False, 8)


def _require_few(accesses: int, what: str) -> None:
    if accesses > _MOST_ACCESSES:
        raise ValueError(f"{what} is {accesses:,} accesses, and at most {_MOST_ACCESSES:,} are simulated; give less")


def require_stream(given: object) -> None:
    """Raise TypeError unless ``given`` is an address stream."""
    if not isinstance(given, AddressStream):
        raise TypeError(f"this takes an address stream, such as sequential(100) or AddressStream(addresses), not "
                        f"{type(given).__name__} {given!r:.40}")  # fmt: skip


def list_of(name: str, given: object, what: str) -> list:
    """Return ``given`` as a list; TypeError when it is one thing instead of several."""
    try:
        return list(given)  # type: ignore[call-overload]
    except TypeError:
        raise TypeError(f"{name} is a list of {what}; got {type(given).__name__} {given!r:.40}") from None
