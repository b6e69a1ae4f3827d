"""Packets by the standards, the system's own count of what went over the loopback, and the speed of
light.
"""

from __future__ import annotations

import math
import socket
import sys
import time
from pathlib import Path

import pytest

from helpers.studies.data_movement import _network as network


def test_a_full_segment_reaches_the_known_rates_of_gigabit_ethernet():
    # 949.3 Mbit/s of TCP payload on Gigabit Ethernet without time stamps; 957.1 by UDP.
    assert 1000 * network.packet_overhead(1460, "TCP").payload_share == pytest.approx(
        949.3, abs=0.05
    )
    assert 1000 * network.packet_overhead(1472, "UDP").payload_share == pytest.approx(
        957.1, abs=0.05
    )


@pytest.mark.parametrize(
    ("payload", "protocol", "packets", "header", "frame", "wire"),
    [
        (1, "UDP", 1, 42, 60, 84),  # 29 bytes of IP are padded to 46
        (18, "UDP", 1, 42, 60, 84),
        (19, "UDP", 1, 42, 61, 85),
        (1, "TCP", 1, 54, 60, 84),
        (1472, "UDP", 1, 42, 1514, 1538),
        (1473, "UDP", 2, 76, 1514 + 60, 1574 + 48),  # the second fragment: 1 byte behind 20
        (1460, "TCP", 1, 54, 1514, 1538),
        (1461, "TCP", 2, 108, 1514 + 60, 1574 + 48),
        (65_507, "UDP", 45, 8 + 45 * 34, 65_507 + 8 + 45 * 34, 65_507 + 8 + 45 * 34 + 45 * 24),
    ],
)
def test_packets_by_hand(payload, protocol, packets, header, frame, wire):
    found = network.packet_overhead(payload, protocol)
    assert (found.packets, found.header_bytes, found.frame_bytes, found.wire_bytes) == (
        packets,
        header,
        frame,
        wire,
    )
    assert found.payload_share == payload / wire


def test_no_packet_is_longer_than_the_mtu_and_no_byte_is_lost():
    for payload in (1, 500, 1473, 9001, 30_000):
        pieces = network._datagram(8 + payload)
        assert max(pieces) <= 1500
        assert sum(pieces) - 20 * len(pieces) == 8 + payload
        assert all((piece - 20) % 8 == 0 for piece in pieces[:-1])
        assert sum(network._cut(payload, 1460)) == payload


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"protocol": "ICMP"}, "protocol='ICMP' is not known; give one of 'UDP', 'TCP'"),
        ({"payload_bytes": 0}, "at least 1"),
        ({"payload_bytes": 65_508}, "at most 65,507"),
        ({"payload_bytes": 100.5}, "a whole number of at least 1"),
    ],
)
def test_what_is_no_packet_is_refused(arguments, message):
    given = {"payload_bytes": 100, "protocol": "UDP"} | arguments
    with pytest.raises(ValueError, match=message):
        network.packet_overhead(**given)


def test_round_trips_over_the_loopback():
    trips = network.measure_loopback((1, 1400), budget_s=0.4)
    assert [(row.protocol, row.payload_bytes) for row in trips.rows] == [
        ("UDP", 1),
        ("TCP", 1),
        ("UDP", 1400),
        ("TCP", 1400),
    ]
    for row in trips.rows:
        assert 0 < row.round_trip_s <= row.median_s
        assert row.payload_bytes_per_s == 2 * row.payload_bytes / row.round_trip_s
    assert trips.row("UDP", 1).header_bytes == 28
    if sys.platform.startswith("linux"):
        # one, and now and then an acknowledgement
        assert 1 <= trips.row("TCP", 1400).segments_per_message < 1.5
        assert trips.row("TCP", 1400).header_bytes >= 40
    with pytest.raises(ValueError, match=r"there are \('UDP', 1\), \('TCP', 1\)"):
        trips.row("UDP", 2)


def test_the_largest_datagram_has_room_on_both_sides():
    with network.udp_echo() as near:
        assert near.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= 65_507
        network._udp_trip(near, 65_507)


@pytest.mark.timed
def test_a_slower_way_back_is_seen_in_the_round_trip(monkeypatch):
    trip = network._udp_trip
    monkeypatch.setattr(
        network, "_udp_trip", lambda near, size: (time.sleep(2e-3), trip(near, size))
    )
    slow = network.measure_loopback((1,), budget_s=0.3)
    assert slow.row("UDP", 1).round_trip_s >= 2e-3
    assert slow.row("TCP", 1).round_trip_s < 2e-3


def _sent_on_loopback():
    """Return the bytes sent on the loopback of this process's network namespace (/sys may show
    another's).
    """
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.split()[0] == "lo:")


@pytest.mark.skipif(
    not Path("/proc/self/net/dev").is_file(), reason="the system counts no loopback bytes"
)
def test_the_system_counts_the_headers_that_are_computed():
    # The loopback's own counter holds IP's header, the transport's and the payload, and no
    # Ethernet.
    payload, messages, least = 1400, 20, math.inf
    computed = network.packet_overhead(payload, "UDP").header_bytes - network.ETHERNET_HEADER_BYTES
    assert computed == 28
    end = time.monotonic() + 60
    with network.udp_echo() as near:
        # others send on the loopback too: the least is the nearest
        while least > computed and time.monotonic() < end:
            before = _sent_on_loopback()
            for _ in range(messages):
                network._udp_trip(near, payload)
            least = min(least, (_sent_on_loopback() - before) / (2 * messages) - payload)
    assert least == computed


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="TCP_INFO is Linux's")
def test_the_segments_that_a_connection_sent_are_read_from_it():
    with network.tcp_echo() as near:
        # Opening sends two (SYN, ACK) and receives one (RFC 9293, section 3.5).
        assert network._segments(near) == 2
        before = network._segments(near)
        for _ in range(50):
            network._tcp_trip(near, 10)
        assert 50 <= network._segments(near) - before <= 100
        # More than a segment of the loopback's 65,536 bytes holds.
        assert network._segments_per_message(near, lambda: network._tcp_trip(near, 10), 20) < 2


def test_a_stream_is_counted_where_it_arrives():
    assert network.loopback_rate(stream_bytes=3 * 2**20 + 5) > 0


def test_sizes_that_no_datagram_holds_are_refused():
    for sizes in ((), (0,), (65_508,), (1.5,)):
        with pytest.raises(ValueError, match="from 1 to 65,507"):
            network.measure_loopback(sizes)


def test_light_needs_66_7_ms_for_10_000_km_and_back():
    assert network.shortest_round_trip_s(1e7) == pytest.approx(66.71e-3, rel=1e-4)
    in_fibre = network.shortest_round_trip_s(1e7, refractive_index=network.FIBRE_REFRACTIVE_INDEX)
    assert 0.095 < in_fibre < 0.1
    with pytest.raises(ValueError, match="above 0"):
        network.shortest_round_trip_s(0)
    with pytest.raises(ValueError, match="give a finite number, 1 or more"):
        network.shortest_round_trip_s(1, refractive_index=0.5)
