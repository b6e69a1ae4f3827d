"""What a packet carries besides the message, the loopback's round trips, and the shortest way over
a distance.

Header sizes without options: UDP 8 bytes (RFC 768), TCP 20 (RFC 9293), IPv4 20 (RFC 791);
Ethernet 14 in a frame of which 46 bytes must be data, and 24 around it: check 4,
preamble and start 8, gap 12 (IEEE 802.3). Lesson 01.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from helpers.checks import choice, number
from helpers.results import Record, row_of
from helpers.timing import Comparison, compare

TRANSPORT_HEADER_BYTES = {"UDP": 8, "TCP": 20}
IP_HEADER_BYTES = 20  # version 4
ETHERNET_HEADER_BYTES, ETHERNET_AROUND_BYTES, ETHERNET_LEAST_BYTES = 14, 24, 46
# the option of RFC 7323 with its padding, which Linux, macOS and Windows can send
TCP_TIMESTAMP_BYTES = 12
LIGHT_M_PER_S = 299_792_458  # exact, by the SI's definition of the metre
# Of single-mode fibre 9/125 at 1300 nm, as a cable analyser assumes it: Fluke Networks, knowledge
# base, "Index of Refraction - DSP FTA Series", which also gives 1.5 as the rule of thumb for glass.
FIBRE_REFRACTIVE_INDEX = 1.4719

STREAM_BYTES = 256 * 2**20

_LARGEST_UDP_BYTES = 65_507
_STREAM_PART_BYTES = 2**20
_MTU_BYTES = 1500  # Ethernet's
_PRECISION = 0.1
_WAIT_S = 5.0
_TCP_INFO_BYTES = 232
# struct tcp_info of <linux/tcp.h>: tcpi_options is its sixth byte, tcpi_segs_out stands 136 bytes
# in.
_TCP_OPTIONS_AT, _TCP_SEGMENTS_AT, _TCP_HAS_TIMESTAMPS = 5, 136, 1


class PacketOverhead(Record):
    """A message on Ethernet: its packets, what their headers and padding take, and the share of it
    that is message.

    ``frame_bytes`` are headers, padding and payload; ``wire_bytes`` also the check, preamble and
    gap of each frame; ``payload_share`` is payload over ``wire_bytes``. Acknowledgements and TCP's
    opening and closing are not counted. Lesson 01.
    """

    protocol: str
    payload_bytes: int
    packets: int
    header_bytes: int
    frame_bytes: int
    wire_bytes: int
    payload_share: float


class RoundTrip(Record):
    """A message sent and sent back over the loopback; ``payload_bytes_per_s`` counts it in both
    directions.

    ``round_trip_s`` is the minimum; ``segments_per_message`` is what the system counted for the way
    there on TCP, acknowledgements that travel alone included (None for UDP, where a message is a
    packet, and outside Linux). ``header_bytes`` are the transport's and IP's of those packets: a
    loopback has no Ethernet. Lesson 01.
    """

    protocol: str
    payload_bytes: int
    round_trip_s: float
    median_s: float
    payload_bytes_per_s: float
    segments_per_message: float | None
    header_bytes: float


class RoundTrips(Record):
    """UDP and TCP over this machine's loopback, by message size; ``reason`` says why not
    ``stable``.

    Lesson 01.
    """

    stable: bool
    reason: str
    rows: tuple[RoundTrip, ...]

    def row(self, protocol: str, payload_bytes: int) -> RoundTrip:
        """Return the row of a protocol and size; ValueError, with what there is, for another."""
        return row_of(self.rows, "row", protocol=protocol, payload_bytes=payload_bytes)


def packet_overhead(payload_bytes: int, protocol: str) -> PacketOverhead:
    """Return the packets and overhead of ``payload_bytes`` over Ethernet, computed from the
    standards' header sizes.

    ``protocol`` is "TCP" or "UDP", over IPv4. A frame carries 1,500 bytes at most, headers of IP
    included (the MTU). TCP cuts the message into segments that fit it, each with all headers and no
    options. UDP sends one datagram, which IP cuts into fragments whose data are multiples of 8
    bytes: only the first has UDP's header.

    >>> overhead = packet_overhead(1500, "TCP")
    >>> overhead.packets, overhead.header_bytes, overhead.wire_bytes
    (2, 108, 1656)

    Raises ValueError for another protocol, and for a payload below 1 (for UDP over 65,507) or no
    whole number. Lesson 01.
    """
    choice("protocol", protocol, TRANSPORT_HEADER_BYTES)
    transport = TRANSPORT_HEADER_BYTES[protocol]
    if not _is_whole(payload_bytes) or (protocol == "UDP" and payload_bytes > _LARGEST_UDP_BYTES):
        raise ValueError(
            f"payload_bytes is {payload_bytes!r}; give a whole number of at least 1, for UDP at "
            f"most {_LARGEST_UDP_BYTES:,}"
        )
    if protocol == "TCP":
        header = IP_HEADER_BYTES + transport
        inside = [header + size for size in _cut(payload_bytes, _MTU_BYTES - header)]
    else:
        inside = _datagram(transport + payload_bytes)
    frames = [ETHERNET_HEADER_BYTES + max(size, ETHERNET_LEAST_BYTES) for size in inside]
    wire = sum(frames) + ETHERNET_AROUND_BYTES * len(frames)
    header = sum(inside) - payload_bytes + ETHERNET_HEADER_BYTES * len(frames)
    return PacketOverhead(
        protocol=protocol,
        payload_bytes=payload_bytes,
        packets=len(frames),
        header_bytes=header,
        frame_bytes=sum(frames),
        wire_bytes=wire,
        payload_share=payload_bytes / wire,
    )


def measure_loopback(
    payload_bytes: Sequence[int] = (1, 100, 1400, 32_768), *, budget_s: float = 3.0
) -> RoundTrips:
    """Return round trips of UDP and TCP messages over 127.0.0.1 to a thread that sends each back.

    All sizes and both protocols are timed in turns. What is timed holds Python's calls and the
    waking of the two threads, which here is most of it. TCP sends at once (TCP_NODELAY). On Linux
    the segments that the connection really sent are read from it (TCP_INFO, tcp(7)).

    Raises ValueError for sizes outside 1 to 65,507, OSError where the loopback cannot be used.
    Lesson 01.
    """
    sizes = sorted(set(payload_bytes))
    if not sizes or not all(map(_is_whole, sizes)) or sizes[-1] > _LARGEST_UDP_BYTES:
        raise ValueError(
            f"payload_bytes are {tuple(payload_bytes)}; give whole sizes from 1 to "
            f"{_LARGEST_UDP_BYTES:,}"
        )
    with tcp_echo() as connection, udp_echo() as port:
        trips: dict[tuple[str, int], Callable[[], object]] = {}
        for size in sizes:
            trips["UDP", size] = functools.partial(_udp_trip, port, size)
            trips["TCP", size] = functools.partial(_tcp_trip, connection, size)
        comparison = compare(
            {f"{name} {size}": trip for (name, size), trip in trips.items()},
            budget_s=budget_s,
            device="cpu",
            precision=_PRECISION,
        )
        segment_counts = {
            size: _segments_per_message(connection, trips["TCP", size]) for size in sizes
        }
        option = _option_bytes(connection)
    rows = tuple(_row(comparison, name, size, segment_counts[size], option) for name, size in trips)
    return RoundTrips(stable=comparison.stable, reason=comparison.reason, rows=rows)


def loopback_rate(*, stream_bytes: int = STREAM_BYTES) -> float:
    """Return the bytes a second that a thread receives from another over TCP on 127.0.0.1, counted
    where they arrive.

    Both threads are this process's, so on one core they take turns. Raises OSError (TimeoutError)
    when the loopback cannot be used or stands still. Lesson 01.
    """
    with _connection() as (near, far):

        def send() -> None:
            part = bytes(_STREAM_PART_BYTES)
            with far, contextlib.suppress(ConnectionError):
                for start in range(0, stream_bytes, len(part)):
                    far.sendall(part[: stream_bytes - start])

        sender = threading.Thread(target=send, daemon=True)
        store, remaining = bytearray(_STREAM_PART_BYTES), stream_bytes
        start_s = time.perf_counter()
        sender.start()
        while remaining:
            got = near.recv_into(store)
            if got == 0:
                raise ConnectionError(
                    "the sending end of the loopback's connection closed too early"
                )
            remaining -= got
        elapsed_s = time.perf_counter() - start_s
        sender.join(_WAIT_S)
    return stream_bytes / elapsed_s


def shortest_round_trip_s(distance_m: float, *, refractive_index: float = 1.0) -> float:
    """Return the seconds of light there and back over ``distance_m``, in vacuum or in glass of
    ``refractive_index``.

    No packet is faster: 10,000 km take at least 66.7 ms. In a fibre the group index counts
    (``FIBRE_REFRACTIVE_INDEX``). Raises ValueError for a distance that is not above 0 or an index
    below 1. Lesson 01.
    """
    distance_m = number("distance_m", distance_m, above=0)
    index = number("refractive_index", refractive_index, at_least=1)
    return 2 * distance_m * index / LIGHT_M_PER_S


@contextlib.contextmanager
def _connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as near:
        near.settimeout(_WAIT_S)
        near.connect(listener.getsockname())
        far, _ = listener.accept()
        yield near, far


@contextlib.contextmanager
def tcp_echo() -> Iterator[socket.socket]:
    """Give a TCP connection over the loopback whose other end sends everything back, and close
    both.
    """
    with _connection() as (near, far):
        for endpoint in (near, far):
            endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def answer() -> None:
            with far, contextlib.suppress(ConnectionError):
                while data := far.recv(_LARGEST_UDP_BYTES):
                    far.sendall(data)

        echo = threading.Thread(target=answer, daemon=True)
        echo.start()
        try:
            yield near
        finally:
            near.close()
            echo.join(_WAIT_S)


@contextlib.contextmanager
def udp_echo() -> Iterator[socket.socket]:
    """Give a UDP socket over the loopback, connected to one that sends everything back, and close
    both.
    """
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as far,
    ):
        for endpoint in (near, far):
            # macOS sends no datagram larger than this buffer, which has 9,216 bytes there if
            # nothing is said.
            if endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < _LARGEST_UDP_BYTES:
                endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_UDP_BYTES)
            endpoint.bind(("127.0.0.1", 0))
        near.connect(far.getsockname())
        far.connect(near.getsockname())
        near.settimeout(_WAIT_S)

        def answer() -> None:
            while data := far.recv(_LARGEST_UDP_BYTES + 1):  # an empty message ends it
                far.send(data)

        echo = threading.Thread(target=answer, daemon=True)
        echo.start()
        try:
            yield near
        finally:
            near.send(b"")
            echo.join(_WAIT_S)


def _is_whole(size: object) -> bool:
    return isinstance(size, int) and size >= 1


def _cut(total: int, largest: int) -> list[int]:
    return [min(largest, total - start) for start in range(0, total, largest)]


def _datagram(total: int) -> list[int]:
    """Return the sizes of the IP packets that carry a datagram of ``total`` bytes, UDP's header
    included.
    """
    room = _MTU_BYTES - IP_HEADER_BYTES
    pieces = [total] if total <= room else _cut(total, room // 8 * 8)
    return [IP_HEADER_BYTES + size for size in pieces]


def _udp_trip(near: socket.socket, size: int) -> None:
    near.send(bytes(size))
    if len(near.recv(_LARGEST_UDP_BYTES)) != size:
        raise OSError(
            f"a message of {size:,} bytes came back in another size: something else wrote to the "
            "socket"
        )


def _tcp_trip(near: socket.socket, size: int) -> None:
    near.sendall(bytes(size))
    remaining = size
    while remaining:
        got = len(near.recv(remaining))
        if got == 0:
            raise ConnectionError("the other end of the loopback's connection closed")
        remaining -= got


def _tcp_info(connection: socket.socket) -> bytes | None:
    """Return what the system tells of the connection, None where that is nothing."""
    if not sys.platform.startswith("linux"):
        return None
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)


def _segments(connection: socket.socket) -> int | None:
    """Return how many segments the connection has sent so far, None where the system does not
    tell.
    """
    info = _tcp_info(connection)
    if info is None or len(info) < _TCP_SEGMENTS_AT + 4:
        return None
    return struct.unpack_from("=I", info, _TCP_SEGMENTS_AT)[0]


def _segments_per_message(
    connection: socket.socket, trip: Callable[[], object], messages: int = 200
) -> float | None:
    before = _segments(connection)
    for _ in range(messages):
        trip()
    after = _segments(connection)
    return None if before is None or after is None else (after - before) / messages


def _option_bytes(connection: socket.socket) -> int:
    info = _tcp_info(connection)
    has_timestamps = info is not None and info[_TCP_OPTIONS_AT] & _TCP_HAS_TIMESTAMPS
    return TCP_TIMESTAMP_BYTES if has_timestamps else 0


def _row(
    comparison: Comparison, protocol: str, size: int, segments: float | None, option_bytes: int
) -> RoundTrip:
    candidate = comparison.candidate(f"{protocol} {size}")
    segment_count = segments if protocol == "TCP" else None
    option = option_bytes if protocol == "TCP" else 0
    header = (1 if segment_count is None else segment_count) * (
        TRANSPORT_HEADER_BYTES[protocol] + IP_HEADER_BYTES + option
    )
    return RoundTrip(
        protocol=protocol,
        payload_bytes=size,
        round_trip_s=candidate.minimum_s,
        median_s=candidate.median_s,
        payload_bytes_per_s=2 * size / candidate.minimum_s,
        segments_per_message=segment_count,
        header_bytes=header,
    )
